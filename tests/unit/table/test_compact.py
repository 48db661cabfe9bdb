"""Compaction plans: which files, to which level, moved or rewritten. Pure."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.compaction.compact_plan import CompactTask, plan_compaction
from lakebed.table.model.model import BucketChange, DataFile, Stats, TableSchema
from lakebed.table.schema.schema import new_schema
from worlds.binary_rows import encode_row

MB = 1 << 20


def schema(*, keyed: bool = True, **options: str) -> TableSchema:
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    keys = ["id"] if keyed else []
    return new_schema(columns, primary_keys=keys, options={"bucket": "1"} | options if keyed else options, time_ms=0)


def file(
    name: str, low: int, high: int, *, level: int = 0, size: int = 100 * MB, sequence: int = 0, deletes: int = 0
) -> DataFile:
    keys = [encode_row([value], ["BIGINT"]) for value in (low, high)]
    return DataFile(
        file_name=name,
        file_size=size,
        row_count=high - low + 1,
        min_key=keys[0],
        max_key=keys[1],
        key_stats=Stats(*keys, (0,)),
        value_stats=Stats(EMPTY_ROW, EMPTY_ROW, ()),
        min_sequence_number=sequence,
        max_sequence_number=sequence + 9,
        schema_id=0,
        level=level,
        delete_row_count=deletes,
        commit_snapshot=1,
    )


def plan(*files: DataFile, of: TableSchema | None = None, full: bool = False) -> list[CompactTask]:
    entries = entries_of_changes([BucketChange(EMPTY_ROW, 0, 1, added=files)])
    return plan_compaction(entries, schema=of or schema(), full=full)


def names(files: tuple[DataFile, ...]) -> list[str]:
    return [file.file_name for file in files]


def test_few_runs_are_left_alone() -> None:
    """Below the trigger nothing is worth rewriting, unless asked for."""
    files = [file(f"f{i}", 0, 9, sequence=10 * i) for i in range(4)]
    assert plan(*files) == []
    (task,) = plan(*files, full=True)
    assert names(task.split.files) == ["f0", "f1", "f2", "f3"]
    assert (task.output_level, task.drop_deletes) == (5, True)


def test_newer_runs_that_outgrow_the_oldest_are_all_merged() -> None:
    """When the newer runs hold more than twice the oldest, everything goes to the highest level and deletes go."""
    files = [file("old", 0, 9, level=5)] + [file(f"f{i}", 0, 9, sequence=10 + 10 * i) for i in range(4)]
    (task,) = plan(*files)
    assert names(task.split.files) == ["old", "f0", "f1", "f2", "f3"]
    assert task.drop_deletes


def test_small_new_runs_merge_above_a_large_old_one() -> None:
    """A large old run stays where it is: the new ones are merged into the level above it and keep their deletes."""
    old = file("old", 0, 9, level=5, size=5000 * MB)
    files = [old] + [file(f"f{i}", 0, 9, sequence=10 + 10 * i, size=MB) for i in range(4)]
    (task,) = plan(*files)
    assert names(task.split.files) == ["f0", "f1", "f2", "f3"]
    assert (task.output_level, task.drop_deletes) == (4, False)


def test_level_zero_is_never_an_output() -> None:
    """Runs are taken in until there is a level above what remains."""
    files = [file("old", 0, 9, level=1, size=5000 * MB)] + [
        file(f"f{i}", 0, 9, sequence=10 * i, size=MB) for i in range(5)
    ]
    (task,) = plan(*files)
    assert task.output_level == 5
    assert "old" in names(task.inputs)


def test_a_lone_file_is_moved_not_rewritten() -> None:
    """A file that overlaps nothing only changes its level; with deletes it is rewritten so that they go."""
    (task,) = plan(file("a", 0, 9), full=True)
    assert names(task.moved) == ["a"]
    assert task.split.files == ()
    (task,) = plan(file("a", 0, 9, deletes=1), full=True)
    assert names(task.split.files) == ["a"]


def test_what_another_client_says_of_its_deletes_is_not_believed() -> None:
    """A level-0 file of another client may hold deletes without saying so: it is rewritten."""
    (task,) = plan(replace(file("a", 0, 9), commit_snapshot=-1), full=True)
    assert names(task.split.files) == ["a"]


def test_a_compacted_bucket_has_nothing_to_do() -> None:
    """A full compaction of its own result is empty."""
    assert plan(file("a", 0, 9, level=5), file("b", 10, 19, level=5), full=True) == []


def test_large_files_apart_from_the_rest_are_kept_whole() -> None:
    """Only overlapping sections are rewritten; large files outside them are moved."""
    files = [file("a", 0, 9), file("b", 20, 29, sequence=10), file("c", 25, 35, sequence=20)]
    (task,) = plan(*files, full=True)
    assert names(task.split.files) == ["b", "c"]
    assert names(task.moved) == ["a"]


@pytest.mark.parametrize(("count", "full", "expected"), [(4, False, 0), (5, False, 1), (2, True, 1), (1, True, 0)])
def test_small_append_files_are_joined(count: int, full: bool, expected: int) -> None:
    """Small files of an append table are joined from `compaction.min.file-num` on; large ones are left alone."""
    of = schema(keyed=False)
    files = [replace(file(f"f{i}", 0, 9, size=MB), min_key=EMPTY_ROW, max_key=EMPTY_ROW) for i in range(count)]
    big = replace(file("big", 0, 9, size=300 * MB), min_key=EMPTY_ROW, max_key=EMPTY_ROW)
    tasks = plan(*files, big, of=of, full=full)
    assert len(tasks) == expected
    assert all("big" not in names(task.inputs) for task in tasks)


def test_a_large_file_between_others_that_are_merged() -> None:
    """Files on both sides of it are merged apart, so that no result overlaps with it."""
    low = [file("a", 0, 9, sequence=0, size=MB), file("b", 5, 9, sequence=10, size=MB)]
    high = [file("c", 50, 59, sequence=20, size=MB), file("d", 55, 59, sequence=30, size=MB)]
    tasks = plan(*low, file("big", 20, 40, sequence=40), *high, full=True)
    assert [names(task.split.files) for task in tasks] == [["a", "b"], ["c", "d"]]
    assert [names(task.moved) for task in tasks] == [["big"], []]
