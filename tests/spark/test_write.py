"""Writing: the same rows and the same mistakes as the local verbs, one snapshot a verb, or none at all."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.spark.dataframe import writing
from lakebed.spark.plan.shipping import ship
from lakebed.spark.tasks.committing import commit_changes
from lakebed.spark.tasks.tasks import collect_changes
from lakebed.spark.tasks.write_tasks import write_task
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, DataField
from lakebed.table.table import Table

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]

NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
DAYS = pa.schema([pa.field("day", pa.date32(), nullable=False), *NUMBERS])
KEYED: dict[str, Any] = {"primary_keys": ["id"], "options": {"bucket": "4"}}
MONDAY, TUESDAY = dt.date(2013, 1, 7), dt.date(2013, 1, 8)


def numbers(*ids: int, v: str = "x") -> pa.Table:
    """Rows of `NUMBERS`."""
    return pa.table({"id": list(ids), "v": [v] * len(ids)}, schema=NUMBERS)


def days(day: dt.date, *ids: int, v: str = "x") -> pa.Table:
    """Rows of `DAYS`."""
    return pa.table({"day": [day] * len(ids), "id": list(ids), "v": [v] * len(ids)}, schema=DAYS)


def values_of(table: Table) -> dict[int, str]:
    """What a table with unique ids holds."""
    rows = table.read()
    assert len(set(rows["id"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def data_files(table: Table) -> list[Path]:
    """Every data file in the table's folder, referenced or not."""
    return sorted(Path(table.url.removeprefix("file://")).rglob("*.parquet"))


TYPES = [
    ("flag", "BOOLEAN", "true"),
    ("tiny", "TINYINT", "-128Y"),
    ("small", "SMALLINT", "-32768S"),
    ("medium", "INT", "-2147483648"),
    ("large", "BIGINT", "9223372036854775807L"),
    ("single", "FLOAT", "float(1.5)"),
    ("double", "DOUBLE", "-0.1D"),
    ("price", "DECIMAL(10, 2)", "12345678.90BD"),
    ("huge", "DECIMAL(38, 10)", "cast(-1.0000000001BD as decimal(38, 10))"),
    ("day", "DATE", "date'0001-01-01'"),
    ("seconds", "TIMESTAMP(0)", "timestamp_ntz'2013-06-01 12:30:15'"),
    ("millis", "TIMESTAMP(3)", "timestamp_ntz'2013-06-01 12:30:15.123'"),
    ("micros", "TIMESTAMP(6)", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    ("nanos", "TIMESTAMP(9)", "timestamp_ntz'2013-06-01 12:30:15.123456'"),
    ("local_millis", "TIMESTAMP_LTZ(3)", "timestamp'1582-10-04 12:30:15.123Z'"),
    ("local_micros", "TIMESTAMP_LTZ(6)", "timestamp'2013-06-01 12:30:15.123456+02:00'"),
    ("at", "TIME(3)", "time'01:02:03.004'"),
    ("text", "STRING", "'é x'"),
    ("padded", "CHAR(3)", "'abc'"),
    ("body", "BYTES", "X'00FF'"),
    ("fixed", "BINARY(2)", "X'6162'"),
]


@pytest.mark.parametrize("keyed", [False, True])
def test_every_primitive_type(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, keyed: bool) -> None:
    """Every primitive type is written with its value and with null, and read back alike by Spark and by lakebed."""
    fields = [DataField(number + 1, name, kind) for number, (name, kind, _) in enumerate(TYPES)]
    table = make_table([DataField(0, "id", "INT", nullable=False), *fields], **(KEYED if keyed else {}))
    full = spark.sql(f"select 1 id, {', '.join(f'{value} as {name}' for name, _, value in TYPES)}")
    nulls = full.select(
        sql.lit(2).alias("id"), *(sql.lit(None).cast(full.schema[name].dataType).alias(name) for name, *_ in TYPES)
    )
    source = full.unionByName(nulls).select(*reversed(full.columns))
    lakebed.spark.write(source, table)
    back = lakebed.spark.read(spark, table)
    assert sorted_rows(back) == sorted_rows(source.select(*back.columns))
    assert table.read().num_rows == 2
    row = table.read(where="id = 1").to_pylist()[0]
    assert (row["medium"], row["at"], row["text"], row["fixed"]) == (-(2**31), dt.time(1, 2, 3, 4000), "é x", b"ab")


def test_nested_types(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows) -> None:
    """Arrays, maps and rows survive the way there and back."""
    source = spark.sql(
        "select 1L id, array('p', null) a, map('k', 1L) m, named_struct('x', 1, 'y', array(date'2013-01-01')) r"
    )
    table = make_table(lakebed.spark.arrow_schema_of(source.schema))
    lakebed.spark.write(source, table)
    assert sorted_rows(lakebed.spark.read(spark, table)) == sorted_rows(source)


def test_append(spark: SparkSession, make_table: MakeTable) -> None:
    """Appending adds rows in one snapshot, with the properties given; missing nullable columns become null."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    snapshot = lakebed.spark.write(spark.range(2, 5), table, properties={"source": "range"}, watermark=77)
    assert (snapshot.id, snapshot.commit_kind, snapshot.watermark) == (2, "APPEND", 77)
    assert snapshot.properties["source"] == "range"
    assert snapshot.commit_identifier == BATCH_COMMIT_IDENTIFIER
    assert snapshot.total_record_count == 4
    assert values_of(table) == {1: "x", 2: None, 3: None, 4: None}


def test_nothing_to_append(spark: SparkSession, make_table: MakeTable) -> None:
    """An empty DataFrame makes no snapshot where there is one, unless its identifier has to be remembered."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    empty = spark.createDataFrame(numbers(7)).limit(0)
    assert lakebed.spark.write(empty, table).id == 1
    assert lakebed.spark.write(empty, table, commit_user="stream", commit_identifier=1).id == 2
    assert values_of(table) == {1: "x"}


def test_overwrite(spark: SparkSession, make_table: MakeTable) -> None:
    """An overwrite replaces the whole table, also by nothing, and the old version stays readable."""
    table = make_table(NUMBERS, **KEYED)
    table.upsert(numbers(1, 2))
    snapshot = lakebed.spark.write(spark.createDataFrame(numbers(3)), table, mode="overwrite")
    assert snapshot.commit_kind == "OVERWRITE"
    assert values_of(table) == {3: "x"}
    lakebed.spark.write(spark.createDataFrame(numbers(3)).limit(0), table, mode="overwrite")
    assert values_of(table) == {}
    assert table.read(version=1).num_rows == 2


def test_overwrite_partition(spark: SparkSession, make_table: MakeTable) -> None:
    """A static overwrite replaces one partition, may leave its column out, and refuses rows of another."""
    table = make_table(DAYS, partition_keys=["day"])
    table.append(pa.concat_tables([days(MONDAY, 1, 2), days(TUESDAY, 3)]))
    lakebed.spark.write(spark.createDataFrame(numbers(4)), table, mode="overwrite", partition={"day": MONDAY})
    assert values_of(table) == {3: "x", 4: "x"}
    lakebed.spark.write(spark.createDataFrame(days(MONDAY, 5)), table, mode="overwrite", partition={"day": MONDAY})
    assert values_of(table) == {3: "x", 5: "x"}
    with pytest.raises(InvalidRequest, match="some rows have another 'day'"):
        lakebed.spark.write(spark.createDataFrame(days(TUESDAY, 6)), table, mode="overwrite", partition={"day": MONDAY})
    with pytest.raises(InvalidRequest, match="'id' is not a partition column"):
        lakebed.spark.write(spark.createDataFrame(days(MONDAY, 6)), table, mode="overwrite", partition={"id": 6})
    assert values_of(table) == {3: "x", 5: "x"}


def test_overwrite_dynamic(spark: SparkSession, make_table: MakeTable) -> None:
    """A dynamic overwrite replaces the partitions it has rows for, and no other; by nothing it replaces nothing."""
    table = make_table(DAYS, partition_keys=["day"])
    table.append(pa.concat_tables([days(MONDAY, 1, 2), days(TUESDAY, 3)]))
    lakebed.spark.write(spark.createDataFrame(days(MONDAY, 9)), table, mode="overwrite_dynamic")
    assert values_of(table) == {3: "x", 9: "x"}
    lakebed.spark.write(spark.createDataFrame(days(MONDAY, 9)).limit(0), table, mode="overwrite_dynamic")
    assert values_of(table) == {3: "x", 9: "x"}
    plain = make_table(NUMBERS, name="plain")
    with pytest.raises(InvalidRequest, match="needs a partitioned table"):
        lakebed.spark.write(spark.createDataFrame(numbers(1)), plain, mode="overwrite_dynamic")


def test_upsert_and_deletes(spark: SparkSession, make_table: MakeTable) -> None:
    """An upsert inserts and replaces by key, and deletes the keys that a boolean column marks."""
    table = make_table(NUMBERS, **KEYED)
    lakebed.spark.upsert(spark.range(100).select("id", sql.lit("old").alias("v")), table)
    change = spark.range(90, 110).select("id", sql.lit("new").alias("v"), (sql.col("id") % 2 == 0).alias("gone"))
    snapshot = lakebed.spark.upsert(change, table, deletes="gone")
    expected = dict.fromkeys(range(90), "old") | dict.fromkeys(range(91, 110, 2), "new")
    assert values_of(table) == expected
    assert snapshot.id == 2


def test_each_bucket_is_written_once(spark: SparkSession, make_table: MakeTable) -> None:
    """However many tasks bring its rows, a bucket of a partition gets one file a write, and the rows it hashes to."""
    table = make_table(DAYS, primary_keys=["day", "id"], partition_keys=["day"], options={"bucket": "3"})
    source = spark.range(0, 300, 1, 7).select(
        sql.date_add(sql.lit(MONDAY), (sql.col("id") % 5).cast("int")).alias("day"), "id", sql.lit("x").alias("v")
    )
    lakebed.spark.write(source, table)
    files = table.system("files")
    assert files.num_rows == 5 * 3
    table.upsert(days(MONDAY, 0, 5, v="again"))
    assert sum(1 for value in values_of(table).values() if value == "again") == 2


def test_partition_whose_hash_is_near_the_limit(spark: SparkSession, make_table: MakeTable) -> None:
    """Rows of a partition are placed for any hash: adding the bucket's number to it does not overflow."""
    largest = 2**31 - 1
    near = spark.range(4_000_000).filter(f"hash(id) > {largest - 2000}").first().id
    schema = pa.schema([pa.field("p", pa.int64(), nullable=False), *NUMBERS])
    table = make_table(schema, primary_keys=["p", "id"], partition_keys=["p"], options={"bucket": "4096"})
    lakebed.spark.write(spark.range(20).select(sql.lit(near).alias("p"), "id", sql.lit("x").alias("v")), table)
    assert sorted(values_of(table)) == list(range(20))


def test_order_by_decides_between_rows_of_one_key(spark: SparkSession, make_table: MakeTable) -> None:
    """Of several rows of one key within a DataFrame the last by `order_by` stays."""
    table = make_table(NUMBERS, **KEYED)
    rows = spark.range(0, 2000, 1, 5).select(
        (sql.col("id") % 10).alias("id"), sql.format_string("%05d", "id").alias("v")
    )
    lakebed.spark.upsert(rows.orderBy(sql.rand(7)), table, order_by="v")
    assert values_of(table) == {number: f"{1990 + number:05d}" for number in range(10)}


def test_delete(spark: SparkSession, make_table: MakeTable) -> None:
    """Keys, predicates and their text delete exactly the rows they name, in both kinds of table."""
    keyed = make_table(NUMBERS, **KEYED)
    keyed.upsert(numbers(*range(10)))
    lakebed.spark.delete(spark.createDataFrame(numbers(1, 2, 77)), keyed)
    lakebed.spark.delete("id >= 8", keyed)
    assert sorted(values_of(keyed)) == [0, 3, 4, 5, 6, 7]
    plain = make_table(NUMBERS, name="plain")
    plain.append(numbers(1, 2, 3))
    plain.append(numbers(4, 5))
    untouched = data_files(plain)
    snapshot = lakebed.spark.delete("id = 2 or id = 3", plain)
    assert snapshot is not None
    assert sorted(values_of(plain)) == [1, 4, 5]
    assert len(data_files(plain)) == len(untouched) + 1
    assert lakebed.spark.delete("id = 99", plain) is None
    assert lakebed.spark.delete("id = 99", keyed) is None
    with pytest.raises(InvalidRequest, match="has no primary key"):
        lakebed.spark.delete(spark.createDataFrame(numbers(1)), plain)


def test_deletes_and_merges_that_lose_a_race_are_made_again(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another writer changes between the read and the commit are read again, not deleted or set back."""
    schema = pa.schema([*NUMBERS, ("w", pa.string())])
    table = make_table(schema, **KEYED)
    other = Table.open(table.store, name="other")

    def whole(ids: list[int], v: str, w: str) -> pa.Table:
        return pa.table({"id": ids, "v": [v] * len(ids), "w": [w] * len(ids)}, schema=schema)

    def race(change: Callable[[], object]) -> list[int]:
        """Let another writer commit before the first commit of the next verb."""
        tries: list[int] = []

        def commit(*args: Any, **more: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                change()
            return commit_changes(*args, **more)

        monkeypatch.setattr("lakebed.spark.dataframe.writing.commit_changes", commit)
        return tries

    table.upsert(whole([1, 2, 3], "a", "old"))
    tries = race(lambda: other.upsert(whole([2], "b", "new")))
    lakebed.spark.delete("v = 'a'", table)
    assert len(tries) == 2
    assert values_of(table) == {2: "b"}
    tries = race(lambda: other.upsert(whole([2], "c", "newest")))
    lakebed.spark.merge(spark.createDataFrame([(2, "d"), (9, "d")], "id bigint, v string"), table)
    assert len(tries) == 2
    rows = {row["id"]: (row["v"], row["w"]) for row in table.read().to_pylist()}
    assert rows == {2: ("d", "newest"), 9: ("d", None)}


def test_rows_of_an_older_sequence_never_win(spark: SparkSession, make_table: MakeTable) -> None:
    """Upserts, merges of incomplete rows, deletes by key and by predicate keep to the option sequence.field."""
    schema = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("v", pa.string()), ("w", pa.string())])
    table = make_table(schema, primary_keys=["id"], options={"bucket": "2", "sequence.field": "seq"})

    def frame(columns: str, *rows: tuple[object, ...]) -> DataFrame:
        return spark.createDataFrame(rows, columns)

    whole = "id bigint, seq bigint, v string, w string"
    lakebed.spark.upsert(frame(whole, (1, 5, "a", "x"), (2, 5, "b", "x"), (2, 4, "old", "x"), (3, 5, "c", "x")), table)
    lakebed.spark.merge(frame("id bigint, seq bigint, v string", (1, 4, "late"), (2, 6, "new")), table)
    assert values_of(table) == {1: "a", 2: "new", 3: "c"}
    assert table.read(where="id = 2")["w"].to_pylist() == ["x"]
    lakebed.spark.delete(frame("id bigint, seq bigint", (1, 4), (3, 9)), table)
    lakebed.spark.delete("id = 2", table)
    table.compact(full=True)
    lakebed.spark.upsert(frame(whole, (2, 5, "late", "x"), (3, 8, "late", "x")), table)
    assert values_of(table) == {1: "a"}
    with pytest.raises(InvalidRequest, match="needs the column 'seq'"):
        lakebed.spark.delete(frame("id bigint", (1,)), table)
    with pytest.raises(InvalidRequest, match="have no column 'seq'"):
        lakebed.spark.merge(frame("id bigint, v string", (1, "z")), table)


def test_merge(spark: SparkSession, make_table: MakeTable) -> None:
    """A merge completes partial rows from the table, and treats matched and new keys as its options say."""
    table = make_table(pa.schema([*NUMBERS, pa.field("w", pa.int32())]), **KEYED)
    table.upsert(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "w": [10, 20, 30]}, schema=table.arrow_schema))
    partial = spark.createDataFrame([(2, 200), (4, 400)], "id bigint, w int")

    def state() -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in table.read().to_pylist())

    lakebed.spark.merge(partial, table)
    assert state() == [(1, "a", 10), (2, "b", 200), (3, "c", 30), (4, None, 400)]
    whole = spark.createDataFrame([(3, "z", 0), (5, "n", 5)], "id bigint, v string, w int")
    lakebed.spark.merge(whole, table, matched="ignore")
    assert state() == [(1, "a", 10), (2, "b", 200), (3, "c", 30), (4, None, 400), (5, "n", 5)]
    lakebed.spark.merge(whole.withColumn("id", sql.col("id") + 1), table, not_matched="ignore")
    assert state() == [(1, "a", 10), (2, "b", 200), (3, "c", 30), (4, "z", 0), (5, "n", 5)]
    marked = spark.createDataFrame([(1, True), (9, True), (5, False)], "id bigint, gone boolean")
    lakebed.spark.merge(marked, table, deletes="gone")
    assert state() == [(2, "b", 200), (3, "c", 30), (4, "z", 0), (5, "n", 5)]


@pytest.mark.parametrize(
    ("expressions", "sentence"),
    [
        (["id", "1 as v"], r"Column 'v' is STRING.*cast it first"),
        (["id", "'x' as w"], r"[Cc]olumn 'w'"),
        (["'x' as v"], r"no column 'id'"),
        (["if(id = 3, null, id) as id", "'x' as v"], r"Key column 'id' is null in 1 of"),
    ],
)
def test_mistakes_are_the_local_sentences(
    spark: SparkSession, make_table: MakeTable, expressions: list[str], sentence: str
) -> None:
    """A row or column that does not fit is refused with the local verb's own error, and nothing is changed."""
    table = make_table(NUMBERS, **KEYED)
    table.upsert(numbers(1))
    frame = spark.range(5).selectExpr(*expressions)
    with pytest.raises(InvalidRequest, match=sentence) as by_spark:
        lakebed.spark.upsert(frame, table)
    rows = frame.toArrow()
    with pytest.raises(InvalidRequest) as local:
        table.upsert(rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema])))
    assert by_spark.value.kind == local.value.kind
    assert table.latest().id == 1
    assert values_of(table) == {1: "x"}


def test_value_that_does_not_fit(spark: SparkSession, make_table: MakeTable) -> None:
    """A value too large for its column is refused, not wrapped around, in a key as elsewhere."""
    table = make_table([DataField(0, "id", "INT", nullable=False), DataField(1, "v", "TINYINT")], **KEYED)
    with pytest.raises(InvalidRequest, match="Column 'v' is TINYINT"):
        lakebed.spark.write(spark.range(1).selectExpr("id", "1000 as v"), table)
    with pytest.raises(InvalidRequest, match="Column 'id' is INT"):
        lakebed.spark.write(spark.range(1).selectExpr("id + 5000000000 as id", "1 as v"), table)
    assert table.latest() is None


@pytest.mark.parametrize("verb", ["upsert", "merge"])
def test_verbs_that_need_a_key(spark: SparkSession, make_table: MakeTable, verb: str) -> None:
    """Verbs by key are refused on an append table, with what to do instead."""
    table = make_table(NUMBERS)
    with pytest.raises(InvalidRequest, match="has no primary key; append to it"):
        getattr(lakebed.spark, verb)(spark.createDataFrame(numbers(1)), table)


def test_unknown_mode(spark: SparkSession, make_table: MakeTable) -> None:
    """An unknown mode is refused with those that exist."""
    with pytest.raises(InvalidRequest, match="mode='replace' is invalid: use append, overwrite, overwrite_dynamic"):
        lakebed.spark.write(spark.createDataFrame(numbers(1)), make_table(NUMBERS), mode="replace")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="is for mode='overwrite' only"):
        lakebed.spark.write(spark.createDataFrame(numbers(1)), make_table(NUMBERS, name="u"), partition={"id": 1})


def test_failing_task_changes_nothing(spark: SparkSession, make_table: MakeTable) -> None:
    """When a task dies after others have written, the table is as it was; what was written is only orphans."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    before = data_files(table)

    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column(0)[0].as_py() >= 300:
                raise RuntimeError("this task dies")
            yield batch

    source = spark.range(0, 400, 1, 4).mapInArrow(fail_late, "id bigint")
    with pytest.raises(PySparkException, match="this task dies"):
        lakebed.spark.write(source, table)
    assert table.latest().id == 1
    assert values_of(table) == {1: "x"}
    table.collect(grace_ms=0)
    assert data_files(table) == before


def test_files_of_other_tasks_go_when_rows_of_one_do_not_fit(spark: SparkSession, make_table: MakeTable) -> None:
    """A job whose rows are refused in one task leaves no file of its other tasks."""
    options = {"bucket": "4"}
    table = make_table(NUMBERS, **{**KEYED, "options": options})
    lakebed.spark.write(spark.range(100).selectExpr("id", "'x' as v"), table)
    before = data_files(table)
    assert len(before) == 4
    for columns in (["if(id = 7, null, id) as id", "'x' as v"], ["id", "if(id = 7, cast(x'ff' as string), 'x') as v"]):
        with pytest.raises(InvalidRequest):
            lakebed.spark.write(spark.range(100).selectExpr(*columns), table)
        assert data_files(table) == before
    assert table.latest().id == 1


def test_retried_task_is_committed_once(spark: SparkSession, make_table: MakeTable, tmp_path: Path) -> None:
    """A task whose first attempt died after writing is run again, and its rows are in the table once."""
    table = make_table(NUMBERS)
    ran = tmp_path / "ran"
    write = write_task(table).function(ship(table.store))

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results = list(write(batches))
        if not ran.exists():
            ran.touch()
            raise RuntimeError("lost after writing")
        yield from results

    source = spark.range(0, 10, 1, 1)
    with pytest.raises(PySparkException, match="lost after writing"):
        collect_changes(source, dies_once)
    assert len(data_files(table)) == 1
    commit_changes(table, collect_changes(source, dies_once), options={})
    assert sorted(values_of(table)) == list(range(10))
    assert len(data_files(table)) == 2


@pytest.mark.parametrize("keyed", [pytest.param(False, marks=pytest.mark.long), True])
def test_repeated_identifier_is_one_snapshot(spark: SparkSession, make_table: MakeTable, keyed: bool) -> None:
    """The same user and identifier give the same snapshot, and the second time nothing is even written."""
    table = make_table(NUMBERS, **(KEYED if keyed else {}))
    frame = spark.createDataFrame(numbers(1, 2))
    first = lakebed.spark.write(frame, table, commit_user="pipeline", commit_identifier=5)
    files = data_files(table)
    again = lakebed.spark.write(frame, table, commit_user="pipeline", commit_identifier=5)
    assert again == first
    assert data_files(table) == files
    assert lakebed.spark.write(frame, table, commit_user="pipeline", commit_identifier=6).id == first.id + 1
    if keyed:
        assert (
            lakebed.spark.merge(frame.select("id"), table, commit_user="pipeline", commit_identifier=5).id == first.id
        )
        assert lakebed.spark.delete("id = 1", table, commit_user="pipeline", commit_identifier=6).id == first.id + 1
        assert sorted(values_of(table)) == [1, 2]


def test_keys_that_another_writer_placed_meanwhile(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dynamic buckets the rows are placed again, and what the first try wrote is deleted."""
    table = make_table(NUMBERS, primary_keys=["id"], options={"bucket": "-1", "dynamic-bucket.target-row-num": "1"})
    other, real, tries = Table.open(table.store, name="t"), writing.commit_changes, []

    def late(*arguments: Any, **named: Any) -> Any:
        if not tries:
            other.upsert(numbers(2, v="first"))
            other.upsert(numbers(3, v="first"))
        tries.append(1)
        return real(*arguments, **named)

    monkeypatch.setattr(writing, "commit_changes", late)
    lakebed.spark.upsert(spark.createDataFrame(numbers(1, 2, 3, v="spark")), table)
    assert len(tries) == 2
    assert values_of(table) == dict.fromkeys((1, 2, 3), "spark")
    assert table.collect(grace_ms=0, dry_run=True).deleted_count == 0


def test_columns_of_a_newer_schema(spark: SparkSession, make_table: MakeTable) -> None:
    """A column that another handle added is known to the next write."""
    table = make_table(NUMBERS)
    table.append(numbers(1))
    Table.open(table.store, name="t").add_column("w", "INT")
    lakebed.spark.write(spark.range(2, 3).selectExpr("id", "'x' as v", "7 as w"), table)
    assert sorted(table.read()["w"].to_pylist(), key=str) == [7, None]


@pytest.mark.parametrize("tasks", [pytest.param("1", marks=pytest.mark.long), "3"])
def test_dynamic_buckets(spark: SparkSession, make_table: MakeTable, tasks: str) -> None:
    """With dynamic buckets every key is placed once, also by several tasks and after local writes."""
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "10", "dynamic-bucket.assigner-parallelism": tasks}
    table = make_table(NUMBERS, primary_keys=["id"], options=options)
    table.upsert(numbers(*range(25), v="local"))
    lakebed.spark.upsert(spark.createDataFrame(numbers(*range(20, 80), v="spark")), table)
    table.upsert(numbers(*range(70, 90), v="again"))
    lakebed.spark.delete(spark.createDataFrame(numbers(0, 1, 85)), table)
    expected = dict.fromkeys(range(25), "local") | dict.fromkeys(range(20, 80), "spark")
    expected |= dict.fromkeys(range(70, 90), "again")
    assert values_of(table) == {n: v for n, v in expected.items() if n not in (0, 1, 85)}
    lakebed.spark.write(spark.createDataFrame(numbers(*range(40), v="anew")), table, mode="overwrite")
    assert values_of(table) == dict.fromkeys(range(40), "anew")
