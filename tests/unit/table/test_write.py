"""Writing: what a data file holds, where rows go, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Closed, InvalidRequest
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.files.bucket import bucket_of
from lakebed.table.model.model import BucketChange, TableSchema
from lakebed.table.read.partitions import partition_scalars
from lakebed.table.schema.schema import new_schema
from lakebed.table.write.write import SHARE_BYTES_MIN, BucketIndex, TableWriter
from lakebed.table.write.write_settings import WriteSettings
from worlds.binary_rows import decode_row
from worlds.nasty import texts_of

COLUMNS = pa.schema([("dt", pa.string()), ("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(f"memory://write-{request.node.name}")


def keyed(**options: str) -> TableSchema:
    return new_schema(COLUMNS, primary_keys=["dt", "id"], partition_keys=["dt"], options=options, time_ms=0)


def plain(**options: str) -> TableSchema:
    return new_schema(COLUMNS, options=options, time_ms=0)


def rows(*triples: tuple[str, int, float | None]) -> pa.Table:
    dt, ids, values = zip(*triples, strict=True)
    return pa.table({"dt": dt, "id": ids, "v": values, "s": [f"s{i}" for i in ids]})


def writer(
    store: ObjectStore, schema: TableSchema, *, index: Callable[[], BucketIndex] = lambda: BucketIndex(None)
) -> TableWriter:
    return TableWriter(
        store,
        schema=schema,
        settings=WriteSettings.of(schema),
        environment=Environment(),
        index=index,
    )


def written(store: ObjectStore, change: BucketChange, folder: str) -> pa.Table:
    (file,) = change.added
    return pq.read_table(pa.BufferReader(pa.py_buffer(store.get(f"{folder}/{file.file_name}"))))


def test_a_keyed_file_holds_keys_numbers_kinds_then_values(store: ObjectStore) -> None:
    """A primary-key file has exactly the format's columns, sorted by key, a key once, the last row wins."""
    schema = keyed(bucket="1")
    out = writer(store, schema)
    out.write(rows(("a", 3, 3.0), ("a", 1, 1.0), ("a", 3, 33.0)))
    (change,) = out.finish()
    table = written(store, change, "dt=a/bucket-0")
    assert table.column_names == ["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND", "dt", "id", "v", "s"]
    assert table["_KEY_id"].to_pylist() == [1, 3]
    assert table["_SEQUENCE_NUMBER"].to_pylist() == [1, 2]
    assert table["_VALUE_KIND"].to_pylist() == [0, 0]
    assert table["v"].to_pylist() == [1.0, 33.0]
    (file,) = change.added
    assert (file.level, file.row_count, file.delete_row_count) == (0, 2, 0)
    assert (file.min_sequence_number, file.max_sequence_number) == (1, 2)
    assert decode_row(file.min_key, ["BIGINT"]) == (1,)
    assert decode_row(file.max_key, ["BIGINT"]) == (3,)
    assert decode_row(file.key_stats.max_values, ["BIGINT"]) == (3,)
    assert file.file_name.startswith("data-")
    assert file.file_name.endswith("-0.parquet")


def test_system_columns_are_required_and_values_carry_field_ids(store: ObjectStore) -> None:
    """Keys and system columns are required in Parquet; columns carry their field ids for readers that match by id."""
    out = writer(store, keyed(bucket="1"))
    out.write(rows(("a", 1, None)))
    (change,) = out.finish()
    schema = written(store, change, "dt=a/bucket-0").schema
    assert [field.nullable for field in schema] == [False, False, False, False, False, True, True]
    assert schema.field("v").metadata[b"PARQUET:field_id"] == b"2"


def test_an_append_file_holds_the_table_s_columns_in_order_of_arrival(store: ObjectStore) -> None:
    """Append files hold the columns and nothing else; rows keep their order."""
    out = writer(store, plain())
    out.write(rows(("b", 2, 1.0), ("a", 1, 2.0)))
    (change,) = out.finish()
    table = written(store, change, "bucket-0")
    assert table.column_names == COLUMNS.names
    assert table["id"].to_pylist() == [2, 1]
    assert (change.bucket, change.total_buckets) == (0, -1)
    assert (change.added[0].min_sequence_number, change.added[0].max_sequence_number) == (0, 1)


def test_rows_go_to_the_bucket_of_their_key(store: ObjectStore) -> None:
    """Every row lies in the partition and bucket that the format's hash names, and none is lost."""
    schema = keyed(bucket="4")
    out = writer(store, schema)
    out.write(rows(*((f"p{i % 3}", i, float(i)) for i in range(100))))
    seen = []
    for change in out.finish():
        (dt,) = decode_row(change.partition, ["STRING"])
        table = written(store, change, f"dt={dt}/bucket-{change.bucket}")
        assert set(table["dt"].to_pylist()) == {dt}
        assert set(bucket_of([table["id"]], ["BIGINT"], bucket_count=4).tolist()) == {change.bucket}
        seen += table["id"].to_pylist()
    assert sorted(seen) == list(range(100))


def test_numbers_go_on_from_the_bucket_s_highest(store: ObjectStore) -> None:
    """A second writer numbers its rows after those of the snapshot it started from."""
    schema = keyed(bucket="1")
    first = writer(store, schema)
    first.write(rows(("a", 1, 1.0), ("a", 2, 1.0)))
    entries = entries_of_changes(first.finish())
    second = writer(store, schema, index=lambda: BucketIndex(entries))
    second.write(rows(("a", 1, 2.0), ("b", 1, 2.0)))
    numbers = {decode_row(c.partition, ["STRING"])[0]: c.added[0].min_sequence_number for c in second.finish()}
    assert numbers == {"a": 2, "b": 0}


def test_buffers_are_flushed_and_files_rolled(store: ObjectStore) -> None:
    """Rows beyond the buffer are written early; files beyond the target size are closed; nothing is lost or doubled."""
    schema = plain(**{"write-buffer-size": "64 kb", "target-file-size": "32 kb", "file.compression": "none"})
    out = writer(store, schema)
    for start in range(0, 20_000, 2_000):
        out.write(rows(*(("a", i, float(i)) for i in range(start, start + 2_000))))
    (change,) = out.finish()
    assert len(change.added) > 5
    assert sum(file.row_count for file in change.added) == 20_000
    bodies = [pa.BufferReader(pa.py_buffer(store.get(f"bucket-0/{file.file_name}"))) for file in change.added]
    assert sorted(i for body in bodies for i in pq.read_table(body)["id"].to_pylist()) == list(range(20_000))


@pytest.mark.parametrize("bucket", ["-1", "1"])
def test_a_large_batch_is_encoded_as_several_files(store: ObjectStore, bucket: str) -> None:
    """Each share of a large batch is a file of its own; together they hold the rows in order, numbered on."""
    count = 2 * SHARE_BYTES_MIN // 8 + 10
    schema = new_schema(
        pa.schema([("id", pa.int64())]),
        options={"bucket": bucket} | ({"bucket-key": "id"} if bucket == "1" else {}),
        time_ms=0,
    )
    settings = replace(WriteSettings.of(schema), worker_count_max=2)
    writer = TableWriter(
        store,
        schema=schema,
        settings=settings,
        environment=Environment(),
        index=lambda: BucketIndex(None),
    )
    writer.write(pa.table({"id": np.arange(count)}))
    (change,) = writer.finish()
    assert [file.row_count for file in change.added] == [count // 2, count - count // 2]
    parts = [pq.read_table(pa.BufferReader(store.get(f"bucket-0/{file.file_name}"))) for file in change.added]
    assert np.array_equal(pa.concat_tables(parts)["id"].to_numpy(), np.arange(count))
    starts = [file.min_sequence_number for file in change.added]
    assert starts == ([0, 0] if bucket == "-1" else [0, count // 2])


def test_statistics_of_a_file_span_its_row_groups(store: ObjectStore) -> None:
    """Bounds and null counts describe the whole file, although they are computed a row group at a time."""
    schema = plain()
    out = writer(store, schema)
    count = 600_000
    out.write(
        pa.table({
            "dt": pa.repeat("a", count),
            "id": pa.array(range(count), pa.int64()),
            "v": pa.array([None] * 10 + [1.0] * (count - 10)),
            "s": pa.repeat("x", count),
        })
    )  # fmt: skip
    (change,) = out.finish()
    (file,) = change.added
    types = [field.type for field in schema.fields]
    assert decode_row(file.value_stats.min_values, types) == ("a", 0, 1.0, "x")
    assert decode_row(file.value_stats.max_values, types) == ("a", count - 1, 1.0, "x")
    assert file.value_stats.null_counts == (0, 0, 10, 0)


def test_deletes_are_rows_of_their_own_kind(store: ObjectStore) -> None:
    """A marked row is stored as a delete of its key and counted as such; the mark is not a column of the table."""
    out = writer(store, keyed(bucket="1"))
    marked = rows(("a", 1, 1.0), ("a", 2, 2.0)).append_column("gone", pa.array([False, True]))
    out.write(marked, deletes="gone")
    out.delete(pa.table({"dt": ["a"], "id": [7]}))
    (change,) = out.finish()
    table = written(store, change, "dt=a/bucket-0")
    assert table["_VALUE_KIND"].to_pylist() == [0, 3, 3]
    assert change.added[0].delete_row_count == 2
    assert "gone" not in table.column_names
    assert table["v"].to_pylist() == [1.0, 2.0, None]


def test_safe_casts_are_done() -> None:
    """Narrower integers, dictionaries and large strings become the table's types without being asked."""
    store = open_store("memory://write-casts")
    out = writer(store, plain())
    out.write(
        pa.table({
            "dt": pa.array(["a", "a"]).dictionary_encode(),
            "id": pa.array([1, 2], pa.int16()),
            "v": pa.array([1, 2], pa.int32()),
            "s": pa.array(["x", None], pa.large_string()),
        })
    )  # fmt: skip
    (change,) = out.finish()
    table = written(store, change, "bucket-0")
    assert [field.type for field in table.schema] == COLUMNS.types
    assert table["s"].to_pylist() == ["x", None]


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("id", pa.array(["1"]), ["'id'", "BIGINT", "string"]),
        ("id", pa.array([1.0]), ["'id'", "BIGINT", "double"]),
        ("s", pa.array([5]), ["'s'", "STRING", "int64"]),
        ("v", pa.array([True]), ["'v'", "DOUBLE", "bool"]),
        ("id", pa.array([2**64 - 1], pa.uint64()), ["'id'", "do not fit"]),
    ],
)
def test_lossy_rows_are_refused(column: str, values: pa.Array, words: list[str]) -> None:
    """A column of another kind is refused in one sentence that names the column and both types."""
    table = rows(("a", 1, 1.0))
    table = table.set_column(table.schema.get_field_index(column), column, values)
    with pytest.raises(InvalidRequest) as refused:
        writer(open_store("memory://write-lossy"), plain()).write(table)
    assert all(word in refused.value.message for word in words)


def test_unknown_and_missing_columns_are_named() -> None:
    """A misspelt column is refused with the nearest name; a missing one is filled only where it erases nothing."""
    store = open_store("memory://write-columns")
    with pytest.raises(InvalidRequest, match="did you mean 's'"):
        writer(store, plain()).write(rows(("a", 1, 1.0)).rename_columns(["dt", "id", "v", "ss"]))
    with pytest.raises(InvalidRequest, match="no column 's'"):
        writer(store, keyed(bucket="1")).write(rows(("a", 1, 1.0)).drop_columns(["s"]))
    out = writer(store, plain())
    out.write(rows(("a", 1, 1.0)).drop_columns(["s"]))
    (change,) = out.finish()
    assert written(store, change, "bucket-0")["s"].to_pylist() == [None]


def test_null_keys_are_counted() -> None:
    """A null in a key is refused with the column and how many there are."""
    table = rows(("a", 1, 1.0), ("a", 2, 1.0))
    table = table.set_column(1, "id", pa.array([None, None], pa.int64()))
    with pytest.raises(InvalidRequest, match=r"'id' is null in 2 of 2 rows"):
        writer(open_store("memory://write-nulls"), keyed(bucket="1")).write(table)


def test_not_null_columns_hold_no_null() -> None:
    """A null in a NOT NULL column is refused."""
    schema = new_schema(pa.schema([pa.field("a", pa.int32(), nullable=False)]), time_ms=0)
    with pytest.raises(InvalidRequest, match="NOT NULL"):
        writer(open_store("memory://write-notnull"), schema).write(pa.table({"a": pa.array([None], pa.int32())}))


def test_postponed_buckets_are_refused_for_keys() -> None:
    """A primary-key table has fixed or dynamic buckets."""
    with pytest.raises(InvalidRequest, match="not supported"):
        writer(open_store("memory://write-dynamic"), replace(keyed(), options={"bucket": "-2"}))


def test_a_changed_bucket_count_is_refused(store: ObjectStore) -> None:
    """Rows are never hashed for another number of buckets than the partition was written with."""
    first = writer(store, keyed(bucket="2"))
    first.write(rows(*(("a", i, 1.0) for i in range(10))))
    entries = entries_of_changes(first.finish())
    second = writer(store, keyed(bucket="3"), index=lambda: BucketIndex(entries))
    second.write(rows(("a", 1, 1.0)))
    with pytest.raises(InvalidRequest, match="written with 2 buckets"):
        second.finish()


def test_a_finished_writer_is_closed(store: ObjectStore) -> None:
    """Rows written after `finish` are refused instead of being lost."""
    out = writer(store, plain())
    assert out.finish() == []
    with pytest.raises(Closed):
        out.write(rows(("a", 1, 1.0)))


def _of_texts(texts: pa.Array) -> dict[str, pa.Array]:
    """Three texts as a column of every kind that holds some, also inside of other values."""
    ends = pa.array([0, 1, 2, 3], pa.int32())
    numbers = pa.array([1, 2, 3])
    return {
        "string": texts,
        "large_string": texts.cast(pa.large_string()),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), texts),
        "array": pa.ListArray.from_arrays(ends, texts),
        "row": pa.StructArray.from_arrays([numbers, texts], ["n", "x"]),
        "key of a map": pa.MapArray.from_arrays(ends, texts, numbers),
        "value of a map": pa.MapArray.from_arrays(ends, numbers.cast(pa.string()), texts),
        "array of rows": pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays([texts], ["x"])),
    }


@pytest.mark.parametrize("kind", _of_texts(pa.array(["a", "b", "c"])))
def test_texts_that_are_not_utf8_are_refused(store: ObjectStore, kind: str) -> None:
    """A text of other bytes, wherever it is, is refused with its column; slices and nulls that hide it are written."""
    bad, good = (_of_texts(texts_of(b"a", text, b"c"))[kind] for text in (b"\xff", "\U0001f600".encode()))
    plain_kind = good.type.value_type if pa.types.is_dictionary(good.type) else good.type
    schema = new_schema(pa.schema([("s", pa.string() if kind == "large_string" else plain_kind)]), time_ms=0)
    with pytest.raises(InvalidRequest, match=r"Column 's' has a text that is not UTF-8") as refused:
        writer(store, schema).write(pa.table({"s": bad}))
    assert (refused.value.kind, refused.value.facts["column"]) == ("not_utf8", "s")
    for shown in (good, bad.slice(2), bad.slice(0, 1)):
        task = writer(store, schema)
        task.write(pa.table({"s": shown}))
        (change,) = task.finish()
        assert sum(file.row_count for file in change.added) == len(shown)


def test_keys_that_are_not_utf8_are_refused(store: ObjectStore) -> None:
    """Keys to delete and partitions are texts like others."""
    keys = pa.table({"dt": texts_of(b"\xe9"), "id": [1]})
    with pytest.raises(InvalidRequest, match=r"Column 'dt' has a text that is not UTF-8"):
        writer(store, keyed(bucket="1")).delete(keys)
    with pytest.raises(InvalidRequest, match=r"'\\udcff' is not a value of partition column 'dt'"):
        partition_scalars({"dt": "\udcff"}, schema=keyed(bucket="1"))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (pa.array([1]), r"but has type int64: give a boolean column\."),
        (pa.array([None], pa.bool_()), r"but has 1 null: write false in their place, in SQL coalesce\(gone, false\)\."),
    ],
)
def test_the_delete_mark_is_boolean(store: ObjectStore, mask: pa.Array, words: str) -> None:
    """Only a boolean column without nulls can say which rows to delete; the error says what to do."""
    with pytest.raises(InvalidRequest, match=words):
        writer(store, keyed(bucket="1")).write(rows(("a", 1, 1.0)).append_column("gone", mask), deletes="gone")


def test_append_tables_have_no_keys_to_delete(store: ObjectStore) -> None:
    """Deleting by key needs a key."""
    with pytest.raises(InvalidRequest, match="no primary key"):
        writer(store, plain()).delete(pa.table({"id": [1]}))


def test_dictionary_encoding_follows_the_data(store: ObjectStore) -> None:
    """Repeating columns get a dictionary, distinct ones do not."""
    out = writer(store, plain())
    ids = pa.array(range(10_000), pa.int64())
    out.write(pa.table({"dt": pa.repeat("a", 10_000), "id": ids, "v": pc.cast(ids, pa.float64()), "s": pc.cast(ids, pa.string())}))  # fmt: skip  # noqa: E501
    (change,) = out.finish()
    body = pa.BufferReader(pa.py_buffer(store.get(f"bucket-0/{change.added[0].file_name}")))
    group = pq.read_metadata(body).row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(4)] == [True, False, False, False]
