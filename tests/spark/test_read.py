"""Reading: any version, either way, the same rows and the same schema as lakebed's own reader."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects import open_store
from lakebed.table.model.model import DataField
from lakebed.table.model.predicate_tree import column
from lakebed.table.model.types import arrow_schema
from lakebed.table.table import Table

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]

FIELDS = [
    DataField(0, "id", "BIGINT", nullable=False),
    DataField(1, "flag", "BOOLEAN"),
    DataField(2, "tiny", "TINYINT"),
    DataField(3, "small", "SMALLINT"),
    DataField(4, "medium", "INT"),
    DataField(5, "large", "BIGINT"),
    DataField(6, "single", "FLOAT"),
    DataField(7, "double", "DOUBLE"),
    DataField(8, "price", "DECIMAL(10, 2)"),
    DataField(9, "huge", "DECIMAL(38, 10)"),
    DataField(10, "day", "DATE"),
    DataField(11, "seconds", "TIMESTAMP(0)"),
    DataField(12, "millis", "TIMESTAMP(3)"),
    DataField(13, "micros", "TIMESTAMP(6)"),
    DataField(14, "local_millis", "TIMESTAMP_LTZ(3)"),
    DataField(15, "local_micros", "TIMESTAMP_LTZ(6)"),
    DataField(16, "text", "STRING"),
    DataField(17, "short_text", "VARCHAR(10)"),
    DataField(18, "padded", "CHAR(3)"),
    DataField(19, "body", "BYTES"),
    DataField(20, "fixed", "BINARY(2)"),
]
NOON = dt.datetime(2013, 6, 1, 12, 30, 15)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
FULL = (
    1, True, -128, -32768, -(2**31), 2**63 - 1, 1.5, -0.1, Decimal("12345678.90"), Decimal("-1.0000000001"),
    dt.date(1969, 12, 31), NOON, NOON.replace(microsecond=123000), NOON.replace(microsecond=123456),
    NOON_UTC.replace(microsecond=7000), NOON_UTC.replace(microsecond=7),
    "é \u0000 x" * 3, "0123456789", "abc", b"\x00\xff", b"ab",
)  # fmt: skip
EARLY = (
    2, False, 127, 32767, 2**31 - 1, -(2**63), -0.0, 1e308, Decimal("-0.01"), Decimal(0),
    dt.date(1, 1, 1), dt.datetime(1, 1, 1), dt.datetime(1582, 10, 4), dt.datetime(9999, 12, 31),
    NOON_UTC.replace(year=1), NOON_UTC,
    "", "", "x", b"", b"yz",
)  # fmt: skip
NULLS = (3, *[None] * (len(FIELDS) - 1))


def all_types(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows over `FIELDS` as Arrow."""
    schema = arrow_schema(FIELDS)
    return pa.table(
        [pa.array(list(values), field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )


def plan_of(frame: DataFrame) -> str:
    """The physical plan as text."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("keyed", [False, True])
def test_every_primitive_type(
    spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, native: bool | None, keyed: bool
) -> None:
    """Every primitive type, with nulls and extreme values, comes out alike natively, merged, and by lakebed itself."""
    keys = {"primary_keys": ["id"], "options": {"bucket": "2"}} if keyed else {}
    table = make_table(FIELDS, **keys)
    table.write(all_types(FULL, EARLY))
    table.write(all_types(NULLS, *([EARLY] if keyed else [])))
    frame = lakebed.spark.read(spark, table, native=native)
    assert sorted_rows(frame) == sorted_rows(table.read())
    plan = plan_of(frame)
    assert "MapInArrow" in plan if keyed or native is False else "MapInArrow" not in plan
    assert native is None or "FileScan" not in plan


def test_schema_is_the_tables_either_way(spark: SparkSession, make_table: MakeTable) -> None:
    """Names, order, types and nullability of the DataFrame do not depend on the way its rows come."""
    table = make_table(FIELDS)
    empty = lakebed.spark.read(spark, table)
    table.append(all_types(FULL))
    native, merged = lakebed.spark.read(spark, table), lakebed.spark.read(spark, table, native=False)
    assert native.schema == merged.schema == empty.schema
    assert native.columns == [field.name for field in FIELDS]
    assert [field.nullable for field in native.schema] == [field.nullable for field in FIELDS]
    assert empty.count() == 0


def test_types_that_spark_cannot_read_itself(
    spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows
) -> None:
    """Times of day and nanoseconds go lakebed's way; what is below a microsecond is cut."""
    table = make_table([DataField(0, "at", "TIME(3)"), DataField(1, "exact", "TIMESTAMP(9)")])
    schema = pa.schema([("at", pa.time32("ms")), ("exact", pa.timestamp("ns"))])
    table.append(
        pa.table([[dt.time(1, 2, 3, 4000), None], pa.array([1_000_001_999, None], pa.timestamp("ns"))], schema=schema)
    )
    frame = lakebed.spark.read(spark, table)
    rows = sorted_rows(frame)
    assert rows == [(None, None), (dt.time(1, 2, 3, 4000), dt.datetime(1970, 1, 1, 0, 0, 1, 1))]
    assert "FileScan" not in plan_of(frame)


def test_nested_types(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Arrays, maps and rows come out alike both ways."""
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.timestamp("ms")))])
    schema = pa.schema(
        [("id", pa.int64()), ("a", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int64())), ("r", inner)]
    )
    table = make_table(schema)
    rows = [
        {"id": 1, "a": ["p", None], "m": [("k", 1)], "r": {"x": 1, "y": [NOON]}},
        {"id": 2, "a": [], "m": [], "r": {"x": None, "y": None}},
        {"id": 3, "a": None, "m": None, "r": None},
    ]
    table.append(pa.Table.from_pylist(rows, schema=table.arrow_schema))
    native, merged = lakebed.spark.read(spark, table), lakebed.spark.read(spark, table, native=False)
    assert native.schema == merged.schema
    assert sorted_rows(native) == sorted_rows(merged) == sorted_rows(table.read())


NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def numbers(*ids: int, v: str = "x") -> pa.Table:
    """Rows of `NUMBERS`."""
    return pa.table({"id": list(ids), "v": [v] * len(ids)}, schema=NUMBERS)


def ids_of(frame: DataFrame) -> list[int]:
    """The ids of a DataFrame, sorted."""
    return sorted(row.id for row in frame.select("id").collect())


def test_versions(spark: SparkSession, make_table: MakeTable) -> None:
    """A snapshot id, a tag, a time, and the newest are each read as they were."""
    table = make_table(NUMBERS)
    first = table.append(numbers(1))
    table.create_tag("one")
    second = table.append(numbers(2))
    read = lakebed.spark.read
    assert ids_of(read(spark, table)) == [1, 2]
    assert ids_of(read(spark, table, version=first.id)) == ids_of(read(spark, table, version="one")) == [1]
    assert ids_of(read(spark, table, timestamp_ms=second.time_ms)) == [1, 2]
    with pytest.raises(NotFound, match="nonsense"):
        read(spark, table, version="nonsense")


def test_branch(spark: SparkSession, make_table: MakeTable) -> None:
    """A branch is read by its name and as a table of its own, and written without touching main."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    table.create_tag("start")
    branch = table.create_branch("dev", tag="start")
    lakebed.spark.write(spark.createDataFrame(numbers(2)), branch)
    assert (
        ids_of(lakebed.spark.read(spark, table, version="dev")) == ids_of(lakebed.spark.read(spark, branch)) == [1, 2]
    )
    assert ids_of(lakebed.spark.read(spark, table)) == [1]


def test_a_dataframe_stays_at_its_version(spark: SparkSession, make_table: MakeTable) -> None:
    """What is committed after a DataFrame was made is not in it, however late it is evaluated."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    frame = lakebed.spark.read(spark, table)
    table.append(numbers(2))
    assert ids_of(frame) == [1]


def test_evolution(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Files from before a column was renamed, added, dropped or widened are read with today's columns, natively."""
    table = make_table([*FIELDS[:1], DataField(1, "a", "INT"), DataField(2, "b", "STRING"), DataField(3, "c", "FLOAT")])
    table.append(pa.table({"id": [1], "a": [10], "b": ["old b"], "c": pa.array([0.5], pa.float32())}))
    table.rename_column("b", "was_b")
    table.rename_column("a", "b")
    table.widen_column("b", "BIGINT")
    table.widen_column("c", "DOUBLE")
    table.add_column("d", "DECIMAL(5, 1)")
    table.append(pa.table({"id": [2], "b": [2**40], "was_b": ["new"], "c": [1.5], "d": [Decimal("1.5")]}))
    table.drop_column("was_b")
    table.add_column("was_b", "DATE")
    table.append(
        pa.table(
            {
                "id": [3],
                "b": [30],
                "c": pa.array([None], pa.float64()),
                "d": pa.array([None], pa.decimal128(5, 1)),
                "was_b": [dt.date(2013, 1, 1)],
            }
        )
    )
    frame, merged = lakebed.spark.read(spark, table), lakebed.spark.read(spark, table, native=False)
    assert sorted_rows(frame) == sorted_rows(merged) == sorted_rows(table.read())
    assert frame.schema == merged.schema
    assert plan_of(frame).count("FileScan parquet") == 3
    assert sorted_rows(frame.filter("b > 20")) == sorted_rows(table.read(where="b > 20"))
    with_old_columns = lakebed.spark.read(spark, table, version=1)
    assert with_old_columns.columns == ["id", "a", "b", "c"]
    assert [tuple(row) for row in with_old_columns.collect()] == [(1, 10, "old b", 0.5)]


def test_partition_folders_add_no_columns(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Partition values come from the files, with their types; folder names are never parsed, however odd."""
    schema = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("n", pa.int32())])
    table = make_table(schema, partition_keys=["dt", "n"])
    values = ["2013-01-01", "007", "a b=c/d%2F:é", None]
    table.append(pa.table({"id": range(4), "dt": values, "n": [1, None, 3, 4]}, schema=schema))
    native, merged = lakebed.spark.read(spark, table), lakebed.spark.read(spark, table, native=False)
    assert native.columns == ["id", "dt", "n"]
    assert sorted_rows(native) == sorted_rows(merged) == sorted_rows(table.read())
    assert {row.dt for row in native.collect()} == set(values)


def test_merge_and_native_in_one(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Buckets that need a merge and buckets that need none are one DataFrame; deleted keys are gone."""
    table = make_table(NUMBERS, primary_keys=["id"], options={"bucket": "4"})
    table.upsert(numbers(*range(100), v="old"))
    table.upsert(numbers(7, v="new"))
    assert {split.needs_merge for split in table.scan().splits()} == {True, False}
    frame = lakebed.spark.read(spark, table)
    plan = plan_of(frame)
    assert "FileScan parquet" in plan
    assert "MapInArrow" in plan
    assert sorted_rows(frame) == sorted_rows(table.read())
    table.delete(keys=numbers(8).select(["id"]))
    assert ids_of(lakebed.spark.read(spark, table)) == [number for number in range(100) if number != 8]


def test_many_small_merges_share_tasks(spark: SparkSession, make_table: MakeTable) -> None:
    """Small splits are packed into a few tasks, and every row still comes once."""
    schema = pa.schema([pa.field("p", pa.int32(), nullable=False), pa.field("id", pa.int64(), nullable=False)])
    table = make_table(schema, primary_keys=["p", "id"], partition_keys=["p"], options={"bucket": "2"})
    rows = pa.table({"p": [i % 10 for i in range(200)], "id": range(200)}, schema=schema)
    table.upsert(rows)
    table.upsert(rows)
    frame = lakebed.spark.read(spark, table)
    assert len(table.scan().splits()) == 20
    assert frame.rdd.getNumPartitions() < 20
    assert ids_of(frame) == list(range(200))


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize(
    "where",
    [
        "id >= 2 and v is not null", "v like 'b%' or d > 1", "not (d < 2)", "d <> 1.5", "d = 1.5", "d in (1.5, 3)",
        "not d in (1.5)", "day > '2013-01-02'", "price <= 1.10", "at >= '2013-01-02 00:00:00'",
        "local < '2013-01-02 12:00:00'", "id > 1.5", "id in (1, 2)",
    ],
)  # fmt: skip
def test_where(
    spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, where: str, native: bool | None
) -> None:
    """A predicate keeps the same rows whichever reader applies it, NaN and null included."""
    schema = pa.schema(
        [
            ("id", pa.int64()), ("v", pa.string()), ("d", pa.float64()), ("day", pa.date32()),
            ("price", pa.decimal128(5, 2)), ("at", pa.timestamp("us")), ("local", pa.timestamp("ms", tz="UTC")),
        ]
    )  # fmt: skip
    table = make_table(schema)
    days = [dt.date(2013, 1, day) for day in (1, 2, 3)]
    times = [dt.datetime(2013, 1, day) for day in (1, 2, 3)]
    rows = {
        "id": [1, 2, 3, None], "v": ["a", "b", "bc", None], "d": [1.5, float("nan"), 3.0, None], "day": [*days, None],
        "price": [Decimal("1.10"), Decimal("1.11"), Decimal("-1"), None], "at": [*times, None],
        "local": [*(time.replace(tzinfo=dt.UTC) for time in times), None],
    }  # fmt: skip
    table.append(pa.table(rows, schema=schema))
    expected = sorted_rows(table.read(where=where, columns=["id"]))
    assert sorted_rows(lakebed.spark.read(spark, table, where=where, columns=["id"], native=native)) == expected


def test_where_prunes_files(spark: SparkSession, make_table: MakeTable) -> None:
    """Files that cannot hold a wanted row are not even part of the plan; later filters still reach Parquet."""
    table = make_table(NUMBERS)
    for number in range(3):
        table.append(numbers(number))
    frame = lakebed.spark.read(spark, table, where=column("id") == 1)
    assert len(frame.inputFiles()) == 1
    assert ids_of(frame) == [1]
    filtered = lakebed.spark.read(spark, table).filter("id = 2 and v = 'x'")
    assert "EqualTo(id,2)" in plan_of(filtered)


def test_columns(spark: SparkSession, make_table: MakeTable) -> None:
    """Columns come in the order asked for; an unknown one is refused by name."""
    table = make_table(FIELDS)
    table.append(all_types(FULL))
    for native in (None, False):
        frame = lakebed.spark.read(spark, table, columns=["text", "id"], native=native)
        assert frame.columns == ["text", "id"]
        assert [tuple(row) for row in frame.collect()] == [(FULL[16], 1)]
    with pytest.raises(InvalidRequest, match="'nope'"):
        lakebed.spark.read(spark, table, columns=["nope"])


def test_planning_asks_the_store_for_nothing(spark: SparkSession, make_table: MakeTable, tmp_path: Path) -> None:
    """Spark lists no folder and looks at no file while planning: it plans over files that are not even there."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    data = tmp_path / "t" / "bucket-0"
    shutil.move(data, tmp_path / "hidden")
    frame = lakebed.spark.read(spark, table)
    assert "FileScan parquet" in plan_of(frame)
    shutil.move(tmp_path / "hidden", data)
    (data / "data-of-nobody.parquet").write_bytes(b"not a file of the table")
    assert ids_of(frame) == [1]


@pytest.mark.parametrize("name", ["snapshots", "tags", "schemas", "files", "manifests", "options", "partitions"])
def test_system_tables(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, name: str) -> None:
    """Each system table is a DataFrame with the rows and columns of its Arrow form, whose times are instants in UTC."""
    table = make_table(NUMBERS, options={"snapshot.num-retained.min": "3"})
    assert lakebed.spark.read(spark, table, system=name).columns == table.system(name).column_names
    table.append(numbers(1))
    table.create_tag("one", lifetime_ms=1000)
    frame = lakebed.spark.read(spark, table, system=name)
    expected = table.system(name)
    for number, field in enumerate(expected.schema):
        if pa.types.is_timestamp(field.type):
            expected = expected.set_column(number, field.name, expected[number].cast(pa.timestamp("us", "UTC")))
    assert sorted_rows(frame) == sorted_rows(expected)
    assert frame.columns == table.system(name).column_names


def test_system_table_mistakes(spark: SparkSession, make_table: MakeTable) -> None:
    """An unknown system table, and one with arguments that mean nothing for it, are refused."""
    table = make_table(NUMBERS)
    with pytest.raises((NotFound, InvalidRequest), match="tagz"):
        lakebed.spark.read(spark, table, system="tagz")
    with pytest.raises(InvalidRequest, match="system table 'tags' is read whole"):
        lakebed.spark.read(spark, table, system="tags", version=1)


def test_memory_tables_are_refused(spark: SparkSession) -> None:
    """A table that only this process can see is refused with one sentence, not by a failing task."""
    table = Table.create(open_store("memory://spark-read"), name="t", schema=NUMBERS)
    table.append(numbers(1))
    with pytest.raises(InvalidRequest, match="memory, where Spark's workers cannot see it"):
        lakebed.spark.read(spark, table)
    with pytest.raises(InvalidRequest, match="memory, where Spark's workers cannot see it"):
        lakebed.spark.write(spark.createDataFrame(numbers(2)), table)


def test_bucket_tables_and_no_secret_in_plan(spark: SparkSession, s3_server: Any) -> None:
    """Tables on S3 are read and written by lakebed on the executors, and no plan or setting holds a credential."""
    store = open_store(s3_server.url(), storage_options=s3_server.options)
    table = Table.create(store, name="t", schema=NUMBERS, primary_keys=["id"], options={"bucket": "2"})
    lakebed.spark.write(spark.createDataFrame(numbers(1, 2)), table)
    frame = lakebed.spark.read(spark, table)
    assert ids_of(frame) == [1, 2]
    assert "FileScan" not in plan_of(frame)
    settings = json.dumps(dict(spark.sparkContext.getConf().getAll()))
    assert s3_server.options["aws_secret_access_key"] not in frame._jdf.queryExecution().toString() + settings + repr(
        store
    )
