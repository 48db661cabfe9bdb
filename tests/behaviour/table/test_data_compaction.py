"""Compaction through the whole table: rows stay, files shrink, other writers are respected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.errors import Closed, Conflict, InvalidRequest
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.compaction.compact import CompactProgress, compact, current_tasks, run_task
from lakebed.table.compaction.compact_plan import CompactTask
from lakebed.table.model.model import BucketChange
from lakebed.table.model.predicate_tree import column
from lakebed.table.read.read import ReadPlan, read_split
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table

MIB = 1 << 20
SCHEMA = pa.schema([("dt", pa.string()), ("id", pa.int64()), ("v", pa.int32())])


def make(name: str, *, keyed: bool = True, **options: str) -> Table:
    keys = {"primary_keys": ["dt", "id"], "partition_keys": ["dt"]} if keyed else {}
    values = {"bucket": "1"} | options if keyed else options
    return Table.create(open_store(f"memory://{name}"), name="t", schema=SCHEMA, options=values, **keys)  # type: ignore[arg-type]


def rows(ids: Any, *, v: int = 0, dt: str = "a") -> pa.Table:
    ids = np.asarray(list(ids), np.int64)
    return pa.table({"dt": [dt] * len(ids), "id": ids, "v": np.full(len(ids), v, np.int32)})


def content(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.read().to_pylist())


def test_a_full_compaction_changes_no_row_and_drops_deletes() -> None:
    """Afterwards one file a bucket holds exactly the rows a reader saw, no delete is left, and reads need no merge."""
    table = make("compact-full")
    for v in range(6):
        table.upsert(rows(range(v * 10, v * 10 + 50), v=v))
    table.delete(keys=rows(range(20)).select(["dt", "id"]))
    before = content(table)
    report = table.compact(full=True)
    assert content(table) == before
    assert report.snapshot is not None
    assert report.snapshot.commit_kind == "COMPACT"
    assert (report.files_before, report.files_after) == (7, 1)
    assert report.rows_after == len(before)
    (split,) = table.scan().splits()
    assert not split.needs_merge
    assert split.files[0].delete_row_count == 0
    assert report.snapshot.total_record_count == len(before)
    assert table.compact(full=True).snapshot is None


def test_automatic_compaction_keeps_deletes_above_older_rows() -> None:
    """A partial merge keeps its deletes, because the rows they delete lie below it."""
    table = make("compact-partial")
    table.upsert(rows(range(20_000), v=1))
    table.compact(full=True)
    table.delete(keys=rows([5, 6]).select(["dt", "id"]))
    for v in range(2, 6):
        table.upsert(rows(range(10), v=v))
        if v == 2:
            table.delete(keys=rows([7, 19_999]).select(["dt", "id"]))
    before = content(table)
    report = table.compact()
    assert report.snapshot is not None
    assert content(table) == before
    assert 19_999 not in table.read()["id"].to_pylist()
    levels = sorted(file.level for split in table.scan().splits() for file in split.files)
    assert levels == [4, 5]


def test_a_moved_file_keeps_its_first_commit() -> None:
    """A file that only changes its level is not rewritten and remembers the snapshot that committed it."""
    table = make("compact-move")
    first = table.upsert(rows(range(10)))
    (before,) = table.scan().splits()[0].files
    report = table.compact(full=True)
    (after,) = table.scan().splits()[0].files
    assert report.moved_count == 1
    assert (after.file_name, after.level) == (before.file_name, 5)
    assert after.commit_snapshot == first.id


def test_small_append_files_become_one() -> None:
    """Joined append files hold the same rows."""
    table = make("compact-append", keyed=False)
    for v in range(8):
        table.append(rows(range(10), v=v))
    before = content(table)
    report = table.compact()
    assert (report.files_before, report.files_after) == (8, 1)
    assert content(table) == before


def test_a_dry_run_changes_nothing() -> None:
    """A dry run reports what it would read and leaves the table as it was."""
    table = make("compact-dry")
    for v in range(6):
        table.upsert(rows(range(10), v=v))
    report = table.compact(dry_run=True)
    assert (report.snapshot, report.files_before, report.dry_run) == (None, 6, True)
    assert table.latest().id == 6  # type: ignore[union-attr]


def test_only_the_partitions_asked_for() -> None:
    """`where` leaves other partitions alone, and refuses a column that is not a partition column."""
    table = make("compact-where")
    for v in range(3):
        table.upsert(pa.concat_tables([rows(range(10), v=v), rows(range(10), v=v, dt="b")]))
    table.compact(full=True, where={"dt": "b"})
    counts = {s.partition_values["dt"]: len(s.files) for s in table.scan().splits()}
    assert counts == {"a": 3, "b": 1}
    with pytest.raises(InvalidRequest, match="'id'"):
        table.compact(where={"id": 1})


def test_progress_counts_up_to_the_end() -> None:
    """The callback hears of every bucket."""
    table = make("compact-progress", bucket="3")
    for v in range(6):
        table.upsert(rows(range(100), v=v))
    seen: list[CompactProgress] = []
    table.compact(progress=seen.append)
    assert [step.tasks_done for step in seen] == [1, 2, 3]
    assert seen[-1].bytes_done == seen[-1].bytes_total


def compacted(table: Table) -> list[BucketChange]:
    """A full compaction whose files are written and not committed."""
    changes: list[BucketChange] = []

    def run(tasks: Sequence[CompactTask], plan: ReadPlan) -> list[BucketChange]:
        changes.extend(run_task(table.store, task, plan=plan, environment=table.context.environment) for task in tasks)
        raise Closed("before the commit")

    with pytest.raises(Closed):
        compact(table.context, full=True, run_tasks=run)
    return changes


def test_a_compaction_overtaken_by_another_starts_over() -> None:
    """Two compactions of the same files: one commits, the other notices and ends without harm; upserts never wait."""
    table = make("compact-race")
    for v in range(6):
        table.upsert(rows(range(10), v=v))
    changes = compacted(table)
    table.upsert(rows(range(5), v=9))
    assert table.compact(full=True).snapshot is not None
    with pytest.raises(Conflict):
        commit_changes(table.context, changes, kind="COMPACT")
    assert content(table) == [("a", i, 9 if i < 5 else 5) for i in range(10)]


def test_rows_written_during_a_compaction_survive_it() -> None:
    """An upsert that commits between plan and commit of a compaction is newer than its result."""
    table = make("compact-during")
    for v in range(6):
        table.upsert(rows(range(10), v=v))
    changes = compacted(table)
    table.upsert(rows(range(3), v=7))
    table.delete(keys=rows([9]).select(["dt", "id"]))
    commit_changes(table.context, changes, kind="COMPACT")
    assert content(table) == [("a", i, 7 if i < 3 else 5) for i in range(9)]


def test_merging_is_bounded_in_memory(tmp_path: Path) -> None:
    """A streaming read and a compaction of a bucket far larger than the window hold a few windows, not the bucket."""
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    sizes = {"bucket": "1", "target-file-size": "1 mb", "write-buffer-size": "16 mb"}
    store = open_store(str(tmp_path), durable=False)
    table = Table.create(store, name="t", schema=schema, primary_keys=["id"], options=sizes)
    rng = np.random.default_rng(7)
    count = 400_000
    for step in range(4):
        ids = np.arange(step, count, 2 if step else 1, dtype=np.int64)
        numbers = pc.cast(pa.array(rng.integers(0, 2**62, len(ids))), pa.string())
        table.upsert(pa.table({"id": ids, "s": pc.binary_join_element_wise(numbers, numbers, numbers, "-")}))
    assert table.read().nbytes > 25 * MIB
    scan = table.scan()
    narrow = replace(scan.plan, window_bytes=2 * MIB)
    base, peak, rows_seen = pa.total_allocated_bytes(), 0, 0
    for split in scan.splits():
        for batch in read_split(store, split, plan=narrow):
            peak = max(peak, pa.total_allocated_bytes() - base)
            rows_seen += batch.num_rows
    assert rows_seen == count
    assert peak < 12 * MIB
    seen: list[int] = []
    recording = Recorder(store, lambda: seen.append(pa.total_allocated_bytes() - base))
    (task,) = current_tasks(table.context, full=True)
    change = run_task(recording, task, plan=scan.plan, environment=Environment(), window_bytes=2 * MIB)
    assert sum(file.row_count for file in change.added) == count
    assert len(seen) > 4
    assert max(seen) < 24 * MIB


class Recorder:
    """A store that calls back at every put."""

    def __init__(self, store: ObjectStore, at_put: Callable[[], None]) -> None:
        self._store = store
        self._at_put = at_put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, body: Any, **arguments: Any) -> None:
        self._at_put()
        self._store.put(path, body, **arguments)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.0, -0.0, float("nan"), 1.0]),
        pa.array([2**31 - 1, -(2**31), 0], pa.int32()).view(pa.date32()),
        pa.array([2**62, -(2**62), 1], pa.int64()).view(pa.timestamp("us")),
    ],
    ids=lambda values: str(values.type),
)
def test_keys_of_any_value_are_compacted(values: pa.Array) -> None:
    """Both zeros, NaN, and dates that Python has not: into several files of a level, which are apart in key order."""
    table = Table.create(
        open_store(f"memory://any-key-{values.type}"),
        name="t",
        schema=pa.schema([("f", values.type), ("id", pa.int64()), ("v", pa.string())]),
        primary_keys=["f", "id"],
        options={
            "bucket": "2",
            "bucket-key": "f",
            "target-file-size": "1 kb",
            "num-sorted-run.compaction-trigger": "2",
        },
    )
    rng = np.random.default_rng(1)
    for _ in range(2):
        keys = values.take(pa.array(np.repeat(np.arange(len(values)), 60)))
        texts = ["".join(map(chr, rng.integers(97, 123, 40))) for _ in keys]
        table.upsert(pa.table({"f": keys, "id": list(range(60)) * len(values), "v": texts}))
        assert table.compact(full=True).snapshot is not None
    files = table.system("files")
    assert files.num_rows > 2
    assert set(files["level"].to_pylist()) != {0}
    assert sorted(table.read()["v"].to_pylist()) == sorted(texts)
    if not pa.types.is_floating(values.type):
        counts = [table.read(where=column("f") == value).num_rows for value in values]
        assert counts == [60] * len(values)
