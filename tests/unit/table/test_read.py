"""Reading data files: row groups, ranges, pieces, and files of other writers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Corruption, NotFound, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.files.data_file import open_data_file
from lakebed.table.model.model import DataFile, Split, Stats
from lakebed.table.model.predicate import bind, to_arrow
from lakebed.table.model.predicate_tree import column
from lakebed.table.read.read import ReadPlan, filter_rows, read_split, read_split_table
from lakebed.table.schema.schema import new_schema
from worlds.binary_rows import encode_row

SCHEMA = new_schema(
    pa.schema([("id", pa.int64()), ("v", pa.int32())]), primary_keys=["id"], options={"bucket": "1"}, time_ms=0
)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(f"memory://read-{request.node.name}")


def put(store: ObjectStore, name: str, rows: pa.Table, **arguments: int) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **arguments)
    body = sink.getvalue()
    store.put(f"bucket-0/{name}", body)
    return int(body.size)


def foreign(
    store: ObjectStore, name: str, ids: list[int], *, v: int, first: int, kinds: list[int] | None = None
) -> DataFile:
    """A level-0 file without `_KEY_` columns, as one of the other writers makes them."""
    count = len(ids)
    rows = pa.table({
        "_SEQUENCE_NUMBER": pa.array(range(first, first + count), pa.int64()),
        "_VALUE_KIND": pa.array(kinds or [0] * count, pa.int8()),
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([v] * count, pa.int32()),
    })  # fmt: skip
    ends = [encode_row([value], ["BIGINT"]) for value in (min(ids), max(ids))]
    return DataFile(
        file_name=name,
        file_size=put(store, name, rows),
        row_count=count,
        min_key=ends[0],
        max_key=ends[1],
        key_stats=Stats(*ends, (0,)),
        value_stats=Stats(EMPTY_ROW, EMPTY_ROW, ()),
        min_sequence_number=first,
        max_sequence_number=first + count - 1,
        schema_id=0,
        level=0,
        delete_row_count=0,
        commit_snapshot=-1,
    )


def merge_of(*files: DataFile) -> Split:
    rows = sum(file.row_count for file in files)
    return Split(EMPTY_ROW, {}, 0, "bucket-0", files, needs_merge=True, schema_id=0, row_count=rows)


PLAN = ReadPlan(schema=SCHEMA, schemas={0: SCHEMA}, columns=("id", "v"))


def test_files_without_key_columns_merge(store: ObjectStore) -> None:
    """Keys are read from the table's own columns, so writers that leave `_KEY_` out are understood."""
    split = merge_of(foreign(store, "a", [1, 2, 3], v=1, first=0), foreign(store, "b", [2], v=2, first=3))
    expected = {1: 1, 2: 2, 3: 1}
    for got in (read_split_table(store, split, plan=PLAN), pa.Table.from_batches(read_split(store, split, plan=PLAN))):
        assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == expected


def test_deletes_that_nobody_announced_are_applied(store: ObjectStore) -> None:
    """A file that states no deletes and holds one is read by its row kinds."""
    split = merge_of(foreign(store, "a", [1, 2], v=1, first=0, kinds=[0, 3]))
    assert read_split_table(store, split, plan=PLAN)["id"].to_pylist() == [1]
    assert [row["id"] for batch in read_split(store, split, plan=PLAN) for row in batch.to_pylist()] == [1]


def test_overlapping_sequence_numbers_are_compared(store: ObjectStore) -> None:
    """Where age does not order two files, each key's row with the higher number wins."""
    old, new = foreign(store, "a", [1, 2, 3], v=1, first=5), foreign(store, "b", [1, 3], v=2, first=6)
    got = read_split_table(store, merge_of(old, new), plan=PLAN)
    assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == {1: 2, 2: 1, 3: 2}


def test_every_window_gives_the_same_rows(store: ObjectStore) -> None:
    """The streaming merge does not depend on where its windows end."""
    rng = np.random.default_rng(3)
    files, expected, first = [], {}, 0
    for v in range(5):
        ids = sorted(rng.choice(500, 200, replace=False).tolist())
        files.append(foreign(store, f"f{v}", ids, v=v, first=first))
        expected |= dict.fromkeys(ids, v)
        first += 200
    for window_bytes in (1, 300, 5_000, 1 << 20):
        plan = ReadPlan(schema=SCHEMA, schemas={0: SCHEMA}, columns=("id", "v"), window_bytes=window_bytes)
        got = pa.Table.from_batches(read_split(store, merge_of(*files), plan=plan))
        assert got["id"].to_pylist() == sorted(expected)
        assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == expected


def test_large_files_come_in_pieces(store: ObjectStore) -> None:
    """Beyond the window a file is read by ranges: only the columns asked for, one row group or piece at a time."""
    count = 200_000
    rng = np.random.default_rng(1)
    rows = pa.table({"a": rng.integers(0, 2**60, count), "b": rng.integers(0, 2**60, count)})
    size = put(store, "big", rows, row_group_size=50_000)
    opened = open_data_file(store, "bucket-0/big", size_bytes=size, window_bytes=1 << 20)
    assert opened.row_group_count == 4
    with store.count() as requests:
        got = pa.Table.from_batches(opened.batches(columns=["b"], batch_rows=20_000))
    assert got.equals(rows.select(["b"]))
    assert requests.get == 4
    assert requests.bytes_read < size * 0.6
    tiny = open_data_file(store, "bucket-0/big", size_bytes=size, window_bytes=100_000)
    with store.count() as requests:
        assert pa.Table.from_batches(tiny.batches(columns=["a", "b"], batch_rows=9_000)).equals(rows)
    assert requests.get > 8
    assert opened.read(columns=["a"], row_groups=[1]).equals(rows.select(["a"]).slice(50_000, 50_000))


def test_row_groups_are_pruned_by_statistics(store: ObjectStore) -> None:
    """A condition on a sorted column leaves the row groups that can hold it."""
    rows = pa.table({"a": range(1000)})
    size = put(store, "sorted", rows, row_group_size=100)
    opened = open_data_file(store, "bucket-0/sorted", size_bytes=size)
    assert opened.row_groups_for(to_arrow(column("a") == 250, rows.schema)) == [2]
    assert opened.row_groups_for(to_arrow(column("a") > 2000, rows.schema)) == []


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_sizes_that_differ_from_the_manifest_are_corruption(store: ObjectStore, window_bytes: int) -> None:
    """A file of another length than its manifest says is refused before it is decoded, however it is read."""
    size = put(store, "short", pa.table({"a": range(1000)}))
    with pytest.raises(Corruption, match="manifest states"):
        open_data_file(store, "bucket-0/short", size_bytes=size + 1, window_bytes=window_bytes)
    with pytest.raises(NotFound, match="expired"):
        open_data_file(store, "bucket-0/gone", size_bytes=size, window_bytes=window_bytes)


def test_filters_keep_the_order_of_rows() -> None:
    """A filtered table has its rows in their order; unknown is not true."""
    rows = pa.table({"a": pa.array([5, None, 1, 7, 3], pa.int64())})
    assert filter_rows(rows, bind(column("a") > 2, rows.schema))["a"].to_pylist() == [5, 7, 3]


def test_keys_out_of_order_are_corruption_however_they_are_read(store: ObjectStore) -> None:
    """A file whose keys descend cannot be merged in windows, so it is refused by both ways of reading, by its path."""
    split = merge_of(foreign(store, "a", [1, 3, 2], v=1, first=0), foreign(store, "b", [1, 2, 3], v=2, first=3))
    with pytest.raises(Corruption, match="bucket-0/a are not sorted by key") as whole:
        read_split_table(store, split, plan=PLAN)
    assert whole.value.facts["path"] == "bucket-0/a"
    with pytest.raises(Corruption, match="bucket-0/a are not sorted by key"):
        list(read_split(store, split, plan=ReadPlan(SCHEMA, {0: SCHEMA}, ("id", "v"), window_bytes=1)))


@pytest.mark.parametrize("name", ["data-1.orc", "data-1.avro"])
def test_files_of_other_formats_are_refused_by_name(store: ObjectStore, name: str) -> None:
    """A file that another client wrote in another format is unsupported, not corrupt, and the sentence says which."""
    store.put(f"bucket-0/{name}", b"12345")
    with pytest.raises(
        UnsupportedFormat, match=f"{name} is {name[-4:].lstrip('.').upper()}; this version reads Parquet"
    ):
        open_data_file(store, f"bucket-0/{name}", size_bytes=5)
