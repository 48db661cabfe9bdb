"""From the footers of files that tasks wrote to the changes of a commit, and which tables take such files; no Spark."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Corruption, InternalError, InvalidRequest
from lakebed.objects import open_store
from lakebed.spark.plan.types import spark_schema
from lakebed.spark.tasks.native_writes import WrittenFile, changes_of_files, file_target, native_scheme, take_over_files
from lakebed.table.model.model import BucketChange
from lakebed.table.model.types import FIELD_ID_KEY, arrow_schema
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.table.write.write import BucketIndex

MakeTable = Callable[..., Table]
DAYS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("x", pa.float64())])


@pytest.fixture
def made(tmp_path: Path) -> MakeTable:
    """A new table in a folder."""

    def make(schema: pa.Schema, *, keys: Sequence[str] = (), parts: Sequence[str] = (), **options: str) -> Table:
        options = {name.replace("_", "-"): value for name, value in options.items()}
        dotted = {"bucket-function": "bucket-function.type", "compression": "file.compression"}
        return Table.create(
            open_store(tmp_path / "t", durable=False),
            name="t",
            schema=schema,
            primary_keys=keys,
            partition_keys=parts,
            options={dotted.get(name, name): value for name, value in options.items()},
        )

    return make


def file_of(table: Table, path: str, columns: Mapping[str, Sequence[Any]], *, bucket: int = 0) -> WrittenFile:
    """A file with these rows, encoded with the table's columns, and put where its path says."""
    schema = arrow_schema(table.schema.fields)
    rows = pa.table(
        {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}, schema=schema
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink, store_schema=False)
    body = sink.getvalue()
    length = int.from_bytes(body[-8:-4], "little")
    table.store.put(path, body)
    return WrittenFile(path=path, bucket=bucket, size_bytes=len(body), closed_ms=7, footer=body[-8 - length : -8])


def changes(table: Table, *files: WrittenFile, partition: Mapping[str, object] | None = None) -> list[BucketChange]:
    """The changes of some files."""
    return changes_of_files(files, schema=table.schema, index=BucketIndex(None), partition=partition or {})


def test_files_become_a_version(made: MakeTable) -> None:
    """Their rows, sizes, times and numbers are stated, and the version reads."""
    table = made(DAYS, parts=["day"])
    file = file_of(table, "day=a/bucket-0/one.parquet", {"id": [1, 2], "day": ["a", "a"], "x": [0.5, None]})
    null = file_of(table, "day=__DEFAULT_PARTITION__/bucket-0/null.parquet", {"id": [3], "day": [None], "x": [1.0]})
    result = changes(table, file, null)
    files = {change.added[0].file_name: change.added[0] for change in result}
    assert files["one.parquet"].row_count == 2
    assert files["one.parquet"].file_size == file.size_bytes
    assert files["one.parquet"].creation_time_ms == 7
    assert (files["one.parquet"].min_sequence_number, files["one.parquet"].max_sequence_number) == (0, 1)
    assert files["one.parquet"].value_stats.null_counts == (0, 0, 1)
    commit_changes(table.context, result)
    assert sorted(table.read()["id"].to_pylist()) == [1, 2, 3]
    assert table.scan(where="day = 'a'").to_arrow().num_rows == 2
    assert table.scan(where="day IS NULL").to_arrow()["id"].to_pylist() == [3]


def test_a_file_in_the_folder_of_another_partition_is_refused(made: MakeTable) -> None:
    """It would be read as that partition's, and cleaned with it."""
    table = made(DAYS, parts=["day"])
    wrong = file_of(table, "day=b/bucket-0/one.parquet", {"id": [1], "day": ["a"], "x": [0.5]})
    with pytest.raises(InternalError, match="rows of its partition belong into day=a/bucket-0"):
        changes(table, wrong)


@pytest.mark.parametrize("days", [["a", "b"], ["a", None]])
def test_a_file_with_rows_of_two_partitions_is_refused(made: MakeTable, days: list[str | None]) -> None:
    """Its footer does not show one value."""
    table = made(DAYS, parts=["day"])
    mixed = file_of(table, "day=a/bucket-0/one.parquet", {"id": [1, 2], "day": days, "x": [0.5, 0.5]})
    with pytest.raises(InvalidRequest, match="does not show one value of the partition column 'day'"):
        changes(table, mixed)


def test_rows_outside_of_an_overwritten_partition_are_refused_and_their_files_deleted(made: MakeTable) -> None:
    """A static overwrite replaces the partition that it names, so no other may get rows."""
    table = made(DAYS, parts=["day"])
    path = "day=b/bucket-0/one.parquet"
    file = file_of(table, path, {"id": [1], "day": ["b"], "x": [0.5]})
    assert changes(table, file, partition={"day": "b"})
    with pytest.raises(InvalidRequest, match="some rows have another 'day'"):
        take_over_files(table, [file], table.schema.id, starts_anew=True, partition={"day": "a"})
    assert [meta.path for meta in table.store.list("day=b")] == []


def test_numbers_of_a_bucket_continue(made: MakeTable) -> None:
    """After the highest in the newest version, over all files of a bucket, unless everything is replaced."""
    table = made(DAYS, bucket="2", bucket_key="id")
    first = [
        file_of(table, f"bucket-1/{name}.parquet", {"id": [1, 2], "day": ["a", "a"], "x": [0.5, 0.5]}, bucket=1)
        for name in ("a", "b")
    ]
    commit_changes(table.context, take_over_files(table, first, table.schema.id, starts_anew=False, partition={}))
    again = file_of(table, "bucket-1/c.parquet", {"id": [1], "day": ["a"], "x": [0.5]}, bucket=1)
    other = file_of(table, "bucket-0/d.parquet", {"id": [1], "day": ["a"], "x": [0.5]}, bucket=0)
    result = take_over_files(table, [again, other], table.schema.id, starts_anew=False, partition={})
    assert {change.bucket: change.added[0].min_sequence_number for change in result} == {1: 4, 0: 0}
    assert {change.total_buckets for change in result} == {2}
    replaced = take_over_files(table, [again], table.schema.id, starts_anew=True, partition={})
    assert replaced[0].added[0].min_sequence_number == 0


def test_a_file_of_other_columns_is_refused(made: MakeTable) -> None:
    """Another id is another column, although the name is the same."""
    table = made(DAYS)
    swapped = arrow_schema(table.schema.fields)
    swapped = swapped.set(2, swapped.field(2).with_metadata({FIELD_ID_KEY: b"9"}))
    sink = io.BytesIO()
    pq.write_table(pa.table([[1], ["a"], [0.5]], schema=swapped), sink, store_schema=False)
    body = sink.getvalue()
    footer = body[-8 - int.from_bytes(body[-8:-4], "little") : -8]
    file = WrittenFile(path="bucket-0/a.parquet", bucket=0, size_bytes=len(body), closed_ms=0, footer=footer)
    with pytest.raises(InvalidRequest, match="has 'x' with field id 9, where the table has 2"):
        changes(table, file)
    with pytest.raises(Corruption, match="is not one of Parquet"):
        changes(table, msgspec.structs.replace(file, footer=b"nothing"))


@pytest.mark.parametrize(
    ("kind", "options", "is_native"),
    [
        (pa.timestamp("us"), {}, True),
        (pa.timestamp("ms"), {}, False),
        (pa.timestamp("ns", tz="UTC"), {}, False),
        (pa.time32("ms"), {}, False),
        (pa.list_(pa.struct([("t", pa.timestamp("us"))])), {}, True),
        (pa.list_(pa.struct([("t", pa.timestamp("ms"))])), {}, False),
        (pa.map_(pa.string(), pa.float32()), {}, True),
        (pa.int64(), {"parts": ["c"]}, True),
        (pa.float64(), {"parts": ["c"]}, False),
        (pa.int64(), {"keys": ["id"]}, False),
        (pa.int64(), {"bucket": "2", "bucket_key": "c"}, True),
        (pa.int64(), {"bucket": "2", "bucket_key": "c", "bucket_function": "mod"}, False),
        (pa.int64(), {"compression": "brotli"}, False),
    ],
)
def test_which_tables_take_files_of_tasks(
    made: MakeTable, kind: pa.DataType, options: dict[str, Any], is_native: bool
) -> None:
    """Those whose files Spark's writer encodes as lakebed would, and whose folders the jar can name."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("c", kind)])
    table = made(schema, **options)
    assert native_scheme(table.store, table.schema) == ("file" if is_native else None)
    memory = open_store("memory://native-writes")
    assert native_scheme(memory, table.schema) is None


def test_a_target_names_ids_at_every_depth_and_no_dictionary_that_java_misreads(made: MakeTable) -> None:
    """Members of ROW have ids of their own; the rest is what the options say."""
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
    wide = pa.decimal128(30, 2)
    schema = pa.schema(
        [("id", pa.int64()), ("r", inner), ("m", pa.map_(pa.string(), inner)), ("f", pa.float32()), ("w", wide)]
    )
    table = made(schema, compression="snappy")
    target = file_target(table.store, table.schema, spark_schema=spark_schema(table.schema.fields).json())
    assert target["codec"] == "SNAPPY"
    assert target["without_dictionary"] == ["f", "w"]
    assert target["root"] == table.store.root_url

    def ids(described: Any) -> list[int]:
        if isinstance(described, list):
            return [item for part in described for item in ids(part)]
        if not isinstance(described, dict):
            return []
        value = described.get("metadata", {}).get("parquet.field.id")
        rest = [item for name, part in described.items() if name != "metadata" for item in ids(part)]
        return rest if value is None else [value, *rest]

    result = ids(msgspec.json.decode(target["schema"]))
    assert len(result) == len(set(result)) == 5 + 3 + 3
    assert "secret" not in repr(target)
