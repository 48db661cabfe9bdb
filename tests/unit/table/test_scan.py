"""Planning a scan: sections, merge order, packing, pruning. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import UnsupportedFormat
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.files.bucket import bucket_of
from lakebed.table.files.splits import plan_splits, sort_into_runs
from lakebed.table.model.model import BucketChange, DataFile, ManifestMeta, Split, Stats, TableSchema
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_tree import Predicate, column
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.scan import check_readable
from lakebed.table.read.scan_pruning import only_on, prune_buckets, prune_files, prune_manifests
from lakebed.table.schema.schema import new_schema
from worlds.binary_rows import encode_row

COLUMNS = pa.schema([("dt", pa.int32()), ("id", pa.int64()), ("v", pa.int64())])
KEYED = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "4"}, time_ms=0)
PARTITIONED = new_schema(COLUMNS, partition_keys=["dt"], time_ms=0)


def file(name: str, low: int, high: int, **members: Any) -> DataFile:
    keys = [encode_row([value], ["BIGINT"]) for value in (low, high)]
    plain = DataFile(
        file_name=name,
        file_size=1000,
        row_count=10,
        min_key=keys[0],
        max_key=keys[1],
        key_stats=Stats(*keys, (0,)),
        value_stats=Stats(EMPTY_ROW, EMPTY_ROW, ()),
        min_sequence_number=0,
        max_sequence_number=9,
        schema_id=0,
        level=5,
        delete_row_count=0,
        commit_snapshot=1,
    )
    return replace(plain, **members)


def splits(*files: DataFile, schema: TableSchema = KEYED, target_bytes: int = 1, cost: int = 1) -> list[Split]:
    entries = entries_of_changes([BucketChange(EMPTY_ROW, 0, 4, added=files)])
    return plan_splits(entries, schema=schema, target_bytes=target_bytes, open_cost_bytes=cost)


def names(split: Split) -> list[str]:
    return [file.file_name for file in split.files]


def test_files_whose_keys_overlap_are_read_together() -> None:
    """Sections are cut exactly where no key range crosses; touching ends overlap."""
    got = splits(file("a", 0, 9), file("b", 9, 20, level=0, min_sequence_number=10), file("c", 21, 30))
    assert sorted((names(split), split.needs_merge) for split in got) == [(["a", "b"], True), (["c"], False)]


@pytest.mark.parametrize(
    ("members", "plain"),
    [
        ({}, True),
        ({"level": 0}, True),
        ({"delete_row_count": 1}, False),
        ({"delete_row_count": None}, False),
        ({"level": 0, "commit_snapshot": -1}, False),
        ({"commit_snapshot": -1}, True),
    ],
)
def test_only_files_known_to_hold_no_delete_are_read_plainly(members: dict[str, Any], plain: bool) -> None:
    """A file is read without a merge only when it certainly holds no delete; other clients' level 0 is not believed."""
    (split,) = splits(file("a", 0, 9, **members))
    assert split.needs_merge is not plain


def test_merges_take_the_oldest_first() -> None:
    """Higher levels, then level 0 by sequence number, ties by the snapshot that committed them."""
    got = splits(
        file("n2", 0, 9, level=0, min_sequence_number=20, max_sequence_number=29, commit_snapshot=3),
        file("tie", 0, 9, level=0, min_sequence_number=20, max_sequence_number=29, commit_snapshot=4),
        file("n1", 0, 9, level=0, min_sequence_number=10, max_sequence_number=19, commit_snapshot=2),
        file("l4", 0, 9, level=4),
        file("l5", 0, 9, level=5),
    )
    assert [names(split) for split in got] == [["l5", "l4", "n1", "n2", "tie"]]


def test_one_sorted_batch_in_several_files_is_one_run() -> None:
    """Files of one commit whose keys do not overlap are opened one after the other, not at once; others each alone."""
    rolled = [file(f"r{i}", 10 * i, 10 * i + 9, level=0, commit_snapshot=7) for i in (1, 0, 2)]
    over = file("over", 0, 99, level=0, min_sequence_number=50, max_sequence_number=60, commit_snapshot=8)
    runs = sort_into_runs([*rolled, over], schema=KEYED)
    assert [[f.file_name for f in run] for run in runs] == [["r0", "r1", "r2"], ["over"]]
    foreign = [replace(f, commit_snapshot=-1) for f in rolled]
    assert len(sort_into_runs(foreign, schema=KEYED)) == 3


def test_small_files_share_a_split_up_to_the_target() -> None:
    """Packing fills splits to the target size, a small file counts its opening cost; merges and plain files apart."""
    files = [file(f"f{i}", 10 * i, 10 * i + 9) for i in range(6)]
    assert [len(split.files) for split in splits(*files, target_bytes=3000)] == [3, 3]
    assert [len(split.files) for split in splits(*files, target_bytes=3000, cost=1500)] == [2, 2, 2]
    mixed = splits(*files, file("over", 0, 5, level=0, min_sequence_number=10), target_bytes=10**6)
    assert sorted((split.needs_merge, len(split.files)) for split in mixed) == [(False, 5), (True, 2)]


def bound(where: Predicate) -> Predicate:
    return bind(where, arrow_schema(KEYED.fields))


def test_a_required_key_names_its_bucket() -> None:
    """Equality and IN on all bucket keys leave only the buckets those keys hash to, unless the bucket count differs."""
    changes = [BucketChange(EMPTY_ROW, b, 4, added=(file(f"b{b}", 0, 99),)) for b in range(4)]
    other = BucketChange(EMPTY_ROW, 0, 2, added=(file("rescaled", 0, 99),))
    entries = entries_of_changes([*changes, other])
    wanted = int(bucket_of([pa.array([42])], ["BIGINT"], bucket_count=4)[0])
    got = prune_buckets(entries, where=bound((column("id") == 42) & (column("v") > 1)), schema=KEYED)
    assert set(got["file_name"].to_pylist()) == {f"b{wanted}", "rescaled"}
    assert prune_buckets(entries, where=bound(column("id") > 42), schema=KEYED).num_rows == 5
    assert prune_buckets(entries, where=bound(column("v") == 42), schema=KEYED).num_rows == 5


def test_only_conjuncts_on_the_given_columns_are_taken() -> None:
    """What may be judged before a merge is what looks at keys only; an OR across columns is not split."""
    where = bound((column("id") > 1) & (column("v") == 2) & ((column("id") == 5) | (column("v") == 6)))
    assert only_on(where, ["id"]) == bound(column("id") > 1)
    assert only_on(bound(column("v") == 1), ["id"]) is None
    assert only_on(None, ["id"]) is None


def test_manifests_of_other_partitions_are_not_read() -> None:
    """A manifest is skipped when its partition range excludes a match; unknown ranges are kept."""

    def manifest(name: str, low: int | None, high: int | None) -> ManifestMeta:
        ends = [encode_row([value], ["INT"]) for value in (low, high)]
        return ManifestMeta(name, 1, 1, 0, Stats(*ends, (0,)), 0)

    metas = [manifest("a", 1, 5), manifest("b", 6, 9), manifest("unknown", None, None)]
    where = bind((column("dt") == 7) & (column("v") > 0), arrow_schema(PARTITIONED.fields))
    kept = prune_manifests(metas, where=where, schema=PARTITIONED)
    assert kept == {"b", "unknown"}
    everywhere = bind(column("v") > 0, arrow_schema(PARTITIONED.fields))
    assert len(prune_manifests(metas, where=everywhere, schema=PARTITIONED)) == 3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"merge-engine": "newest"}, "newest"),
        ({"data-evolution.enabled": "true"}, "data-evolution"),
        ({"ignore-delete": "true"}, "ignore-delete"),
    ],
)
def test_tables_that_would_be_misread_are_refused(options: dict[str, str], word: str) -> None:
    """A feature this reader does not know is an error that names it, never wrong rows."""
    with pytest.raises(UnsupportedFormat, match=word):
        check_readable(replace(KEYED, options=KEYED.options | options))


def test_partitions_and_statistics_prune_together() -> None:
    """Every file of a partition that may match, unless its statistics rule it out."""

    def entry(day: int, low: int, high: int) -> BucketChange:
        ends = [encode_row([day, value, 0], ["INT", "BIGINT", "BIGINT"]) for value in (low, high)]
        stats = Stats(ends[0], ends[1], (0, 0, 0))
        item = file(f"{day}-{low}", 0, 0, value_stats=stats)
        return BucketChange(encode_row([day], ["INT"]), 0, -1, added=(item,))

    entries = entries_of_changes([entry(day, low, low + 9) for day in (1, 2, 3) for low in (0, 10, 20)])

    def left(where: Predicate) -> list[str]:
        files = prune_files(entries, where=where, schema=PARTITIONED, schema_of=lambda _: PARTITIONED)
        return sorted(files["file_name"].to_pylist())

    every = ["0", "10", "20"]
    assert left(column("dt") == 2) == [f"2-{low}" for low in every]
    assert left(column("dt").is_in([1, 3])) == [f"{day}-{low}" for day in (1, 3) for low in every]
    assert left((column("dt") >= 2) & (column("id") < 15)) == ["2-0", "2-10", "3-0", "3-10"]
    assert left((column("dt") == 2) | (column("id") == 15)) == ["1-10", "2-0", "2-10", "2-20", "3-10"]
    assert left(column("dt") == 4) == []


def test_planning_many_files_is_vectorised() -> None:
    """Two thousand files in twenty buckets plan to the right number of sections."""
    changes = [
        BucketChange(EMPTY_ROW, b, 100, added=tuple(file(f"{b}-{i}", 10 * i, 10 * i + 9) for i in range(100)))
        for b in range(20)
    ]
    entries = entries_of_changes(changes)
    got = plan_splits(entries, schema=KEYED, target_bytes=10_000, open_cost_bytes=1)
    assert len(got) == 200
    assert np.all([not split.needs_merge for split in got])
