"""Rows through SQL are what Python reads and writes: types, nulls, older schemas, merges, pruning."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake
from worlds.waiting import wait_until

Run = Callable[[str], list[tuple[Any, ...]]]

TYPES = {
    "b": ("BOOLEAN", [True, None]),
    "i8": ("TINYINT", [-128, None]),
    "i16": ("SMALLINT", [32767, None]),
    "i32": ("INT", [-(2**31), None]),
    "i64": ("BIGINT", [2**63 - 1, None]),
    "f32": ("FLOAT", [1.5, None]),
    "f64": ("DOUBLE", [float("inf"), None]),
    "d": ("DECIMAL(20, 3)", [Decimal("-12345678901234567.125"), None]),
    "s": ("STRING", ["grüß \U0001f600", None]),
    "bin": ("BINARY", [bytearray(b"\x00\xff"), None]),
    "day": ("DATE", [dt.date(1582, 10, 4), None]),
    "ntz": ("TIMESTAMP_NTZ", [dt.datetime(2024, 2, 29, 23, 59, 59, 999999), None]),
    "arr": ("ARRAY<STRUCT<x: INT, y: STRING>>", [[(1, "a"), None], None]),
    "m": ("MAP<STRING, ARRAY<INT>>", [{"k": [1, None]}, None]),
}


@pytest.mark.parametrize("primary_key", [False, True])
def test_every_type_comes_back(session: SparkSession, sql: Run, lake: Lake, primary_key: bool) -> None:
    """Written and read by SQL, and read by Python; with a primary key through the merge."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    properties = "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')" if primary_key else ""
    sql(f"CREATE TABLE lake.db.t (id INT NOT NULL, {columns}) {properties}")
    rows = [(position, *(values[position] for _, values in TYPES.values())) for position in range(2)]
    frame = session.createDataFrame(rows, schema=session.table("lake.db.t").schema)
    frame.writeTo("lake.db.t").append()
    if primary_key:
        frame.limit(1).writeTo("lake.db.t").append()
    assert [tuple(row) for row in sql("SELECT * FROM lake.db.t ORDER BY id")] == rows
    from_python = lake.table("db.t").read().sort_by("id").to_pylist()
    assert [row["i64"] for row in from_python] == [2**63 - 1, None]
    assert [row["d"] for row in from_python] == [Decimal("-12345678901234567.125"), None]
    assert [row["ntz"] for row in from_python] == [dt.datetime(2024, 2, 29, 23, 59, 59, 999999), None]


def test_files_of_older_schemas_are_read_as_today(sql: Run, lake: Lake) -> None:
    """Renamed, added under an old name, and widened columns."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int32()), ("v", pa.string())]))
    table.append(pa.table({"id": pa.array([1], pa.int32()), "v": ["first"]}))
    table.rename_column("v", "w")
    table.add_column("v", "STRING")
    assert sql("SELECT v, w, id FROM lake.db.t") == [(None, "first", 1)]
    assert sql("SELECT id FROM lake.db.t WHERE w = 'first' AND v IS NULL") == [(1,)]
    table.widen_column("id", "BIGINT")
    table.append(pa.table({"id": [2**40], "v": ["v"], "w": ["w"]}))
    assert sql("SELECT id, v, w FROM lake.db.t ORDER BY id") == [(1, None, "first"), (2**40, "v", "w")]


def test_a_rollback_over_replacements_shows_the_columns_of_today(sql: Run) -> None:
    """A column computed anew is the same one, one of another type is not; versions, and copies of them, hold all."""
    day = dt.datetime(2024, 2, 29, 1, 2, 3)
    held = {1: [(1, day, 7)], 2: [(2, day, 8)]}
    sql("CREATE TABLE lake.db.t (k INT, at TIMESTAMP_NTZ, made INT)")
    sql("INSERT INTO lake.db.t VALUES (1, TIMESTAMP_NTZ'2024-02-29 01:02:03', 7)")
    replacing = "CREATE OR REPLACE TABLE lake.db.t AS SELECT"
    sql(f"{replacing} k + 1 AS k, CAST(at AS TIMESTAMP) AS at, k + 7 AS made FROM lake.db.t")
    with pytest.raises(AnalysisException, match="Column 'made' cannot become NOT NULL"):
        sql("CREATE OR REPLACE TABLE lake.db.t (k INT, made INT NOT NULL)")

    def check(*newest: tuple[Any, ...]) -> None:
        assert sql("SELECT * FROM lake.db.t") == list(newest)
        for version, rows in held.items():
            assert sql(f"SELECT * FROM lake.db.t VERSION AS OF {version}") == rows

    check((2, day, 8))
    sql("CALL lake.sys.rollback_to_as_latest('db.t', '1')")
    check((1, None, 7))
    assert sql("SELECT count(*), count(at) FROM lake.db.t WHERE at IS NULL") == [(1, 0)]
    sql(f"{replacing} * FROM lake.db.t VERSION AS OF 1")
    check((1, day, 7))
    sql("CALL lake.sys.rollback('db.t', '2')")
    check((2, None, 8))


def test_fields_of_structs_are_those_of_the_query(sql: Run, session: SparkSession) -> None:
    """Spark asks for some fields of a column: in selects and conditions, by each reader, and in a rewrite."""
    kind = "STRUCT<a: STRING, b: STRING, c: STRUCT<d: INT, e: DOUBLE>>"
    value = "named_struct('a', 'A', 'b', 'B', 'c', named_struct('d', 4, 'e', 0.5D))"
    for name, properties in (
        ("plain", ""),
        ("keyed", "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')"),
    ):
        columns = f"id INT NOT NULL, s {kind}, l ARRAY<{kind}>, m MAP<INT, {kind}>"
        sql(f"CREATE TABLE lake.db.{name} ({columns}) {properties}")
        for _ in range(2):
            sql(f"INSERT INTO lake.db.{name} SELECT 1, {value}, array({value}), map(7, {value})")
        count = 2 if name == "plain" else 1
        fields = "s.b, s.c.e, l.b, l[0].c.d, m[7].b"
        assert sql(f"SELECT {fields} FROM lake.db.{name} WHERE s.c.d = 4") == [("B", 0.5, ["B"], 4, "B")] * count
    assert sql("SELECT s.b, rowkind FROM lake.db.plain.audit_log") == [("B", "+I")] * 2
    sql("UPDATE lake.db.plain SET s.b = 'new' WHERE upper(s.b) = 'B' AND s.c.e < 1")
    assert sql("SELECT s FROM lake.db.plain") == [(("A", "new", (4, 0.5)),)] * 2
    sql("DELETE FROM lake.db.plain WHERE s.c.e <> 0.5 OR upper(s.b) = 'NEW'")
    assert sql("SELECT count(s.b) FROM lake.db.plain") == [(0,)]
    if tuple(map(int, session.version.split(".")[:2])) >= (4, 2):
        changes = sql("SELECT s.c.e, _change_type FROM lake.db.plain CHANGES FROM VERSION 1 TO VERSION 1")
        assert changes == [(0.5, "insert")]


def test_conditions_that_only_spark_evaluates(sql: Run) -> None:
    """A part of an OR, or of an AND under NOT, that no reader of files can evaluate leaves out no row."""
    sql("CREATE TABLE lake.db.t AS SELECT 0.5D AS x, 'B' AS y")
    for condition, count in (
        ("x <> 0.5D OR upper(y) = 'B'", 1),
        ("NOT (x = 0.5D AND length(y) = 2)", 1),
        ("(x > 0 AND y > 'A') AND (y < 'A' OR x + 1 > 1)", 1),
        ("NOT (length(y) = 1 OR x > 9)", 0),
    ):
        assert sql(f"SELECT count(y) FROM lake.db.t WHERE {condition}") == [(count,)], condition
    sql("DELETE FROM lake.db.t WHERE x <> 0.5D OR upper(y) = 'B'")
    assert sql("SELECT * FROM lake.db.t") == []


def test_keys_of_bytes_are_compared_by_value(sql: Run) -> None:
    """An UPDATE that leaves a BINARY key as it is does not change it."""
    sql("CREATE TABLE lake.db.t (id BINARY NOT NULL, n INT) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')")
    sql("INSERT INTO lake.db.t VALUES (X'00ff', 1)")
    sql("UPDATE lake.db.t SET n = 2")
    assert sql("SELECT n FROM lake.db.t") == [(2,)]
    with pytest.raises(PySparkException, match="changes the primary key column id"):
        sql("UPDATE lake.db.t SET id = X'00'")


def test_columns_of_a_branch_change_alone(sql: Run) -> None:
    """ALTER TABLE of a branch by its name."""
    sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    sql("CALL lake.sys.create_branch('db.t', 'dev')")
    sql("ALTER TABLE lake.db.`t$branch_dev` ADD COLUMN n INT")
    assert sql("SELECT * FROM lake.db.`t$branch_dev`") == [(1, None)]
    assert sql("SELECT * FROM lake.db.t") == [(1,)]


def test_planning_asks_no_file_and_a_predicate_opens_only_its_own(sql: Run, lake: Lake) -> None:
    """Files that the predicate excludes may be gone; so may all of them, for a count and for extremes."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("d", pa.decimal128(5, 2)), ("s", pa.string())])
    table = lake.create_table("db.t", schema)
    for start in (0, 100):
        ids = range(start, start + 10)
        values = [list(ids), [id + 0.1 for id in ids], [Decimal(id).scaleb(-2) for id in ids], [None, *"b" * 9]]
        table.append(pa.table(values, schema=schema))
    folder = Path(table.url.removeprefix("file://")) / "bucket-0"
    entries = table.system("files").to_pylist()
    (high,) = (entry for entry in entries if '"id":100' in entry["min_value_stats"])
    (folder / Path(high["file_path"]).name).unlink()
    assert sql("SELECT count(*), max(id) FROM lake.db.t WHERE id < 50") == [(10, 9)]
    assert sql("SELECT count(*), max(id), min(id) FROM lake.db.t") == [(20, 109, 0)]
    (row,) = sql("SELECT count(s), max(f), min(f), max(d), min(d) FROM lake.db.t")
    assert row == (18, float(np.float32(109.1)), float(np.float32(0.1)), Decimal("1.09"), Decimal("0.00"))
    with pytest.raises((PySparkException, Py4JJavaError), match="does not exist"):
        sql("SELECT sum(id) FROM lake.db.t")


def test_extremes_of_nasty_values_are_those_of_the_rows(sql: Run, lake: Lake) -> None:
    """Judged by DuckDB: NaN, infinities, zeros with a sign, null-only files, texts that are cut or order by bytes."""
    columns = {
        "nan": (pa.float64(), [[float("nan"), 1.0], [2.0, None]]),
        "ends": (pa.float64(), [[float("inf"), 1.0], [float("-inf"), None]]),
        "zero": (pa.float32(), [[-0.0, -1.0], [-2.0, None]]),
        "dec": (pa.decimal128(38, 10), [[None, None], [Decimal("-1e-10"), Decimal("1e27")]]),
        "cut": (pa.string(), [["a" * 40, "a" * 39 + "b"], ["a" + "\U0010ffff" * 20, None]]),
        "planes": (pa.string(), [["\U0001f600", "\uffee"], ["\ue000", None]]),
    }

    def shown(row: tuple[Any, ...]) -> list[str]:
        """With the signs of zeros, without zeros at the end of a decimal."""
        return [repr(value.normalize() if isinstance(value, Decimal) else value) for value in row]

    schema = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    table = lake.create_table("db.t", schema)
    for number in (0, 1):
        table.append(pa.table([pa.array(parts[number], kind) for kind, parts in columns.values()], schema=schema))
    with duckdb.connect() as judge:
        judge.register("rows", table.read())
        for names in (list(columns), ["ends", "dec"]):  # the second by manifests
            query = f"SELECT {', '.join(f'count({item}), min({item}), max({item})' for item in names)} FROM"
            assert shown(*sql(f"{query} lake.db.t")) == shown(judge.execute(f"{query} rows").fetchone())


def test_nan_is_filtered_as_spark_compares_it(sql: Run, lake: Lake) -> None:
    """In files that need no merge, and in those that do."""
    for name, keys in (("plain", ()), ("keyed", ("id",))):
        table = lake.create_table(f"db.{name}", pa.schema([("id", pa.int64()), ("x", pa.float64())]), primary_keys=keys)
        for start in (0, 3) if not keys else (0, 0):
            table.write(pa.table({"id": [start, start + 1, start + 2], "x": [float("nan"), 1.0, None]}))
        times = 1 if keys else 2
        assert sql(f"SELECT count(*) FROM lake.db.{name} WHERE x > 5") == [(times,)]
        assert sql(f"SELECT count(*) FROM lake.db.{name} WHERE NOT (x <= 5)") == [(times,)]
        assert sql(f"SELECT count(*) FROM lake.db.{name} WHERE x = double('NaN')") == [(times,)]


def test_a_failed_insert_leaves_no_snapshot_and_nothing_that_is_not_cleaned(sql: Run, lake: Lake) -> None:
    """One task fails after others have written; a task that ends after its job leaves an orphan, which is deleted."""
    sql("CREATE TABLE lake.db.t (id INT)")
    with pytest.raises(PySparkException):
        sql("INSERT INTO lake.db.t SELECT CAST(if(id = 9, raise_error('no'), id) AS INT) FROM range(0, 10, 1, 4)")
    table = lake.table("db.t")
    assert table.latest() is None

    def is_clean() -> bool:
        table.collect(grace_ms=0)
        return not any("parquet" in meta.path for meta in table.store.list("bucket-0"))

    # The job has failed before the last of its killed tasks ends.
    wait_until(is_clean)


def test_a_merge_that_lost_a_race_changes_nothing(sql: Run, session: SparkSession, lake: Lake) -> None:
    """The statement was analysed, and has its version, before another writer changed the row."""
    table = lake.create_table("db.k", pa.schema([("id", pa.int64()), ("n", pa.int64())]), primary_keys="id")
    table.upsert(pa.table({"id": [1], "n": [1]}))

    def raced(n: int) -> int:
        lake.table("db.k").upsert(pa.table({"id": [1], "n": [100]}))
        return n + 1

    session.udf.register("raced", raced, "bigint")
    with pytest.raises(PySparkException, match="Another writer changed rows of the same buckets"):
        sql("UPDATE lake.db.k SET n = raced(n) WHERE id = 1")
    assert sql("SELECT n FROM lake.db.k") == [(100,)]


def test_rows_of_an_aggregation(sql: Run, lake: Lake) -> None:
    """INSERT merges, in a read too; UPDATE and MERGE would add instead of replace, and are refused."""
    sql(
        "CREATE TABLE lake.db.t (id BIGINT, n BIGINT) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1', "
        "'merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'sum')"
    )
    for _ in range(2):
        sql("INSERT INTO lake.db.t VALUES (1, 4), (2, 1)")
    before = lake.table("db.t").latest().id
    for statement in (
        "UPDATE lake.db.t SET n = 7 WHERE id = 1",
        "MERGE INTO lake.db.t t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 7",
    ):
        with pytest.raises(PySparkException, match="by the engine 'aggregation', which does not replace a row"):
            sql(statement)
    assert sorted(sql("SELECT * FROM lake.db.t")) == [(1, 8), (2, 2)]
    assert lake.table("db.t").latest().id == before
    assert sql("SELECT count(*) FROM lake.db.t.statistics") == [(0,)]


def test_rows_of_a_partial_update_are_deleted(sql: Run) -> None:
    """Where a delete removes the row, also when the first column is not the key; elsewhere the statement is refused."""
    for name, options in (("removed", ", 'partial-update.remove-record-on-delete' = 'true'"), ("kept", "")):
        sql(
            f"CREATE TABLE lake.db.{name} (n BIGINT, id BIGINT) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1', "
            f"'merge-engine' = 'partial-update'{options})"
        )
        sql(f"INSERT INTO lake.db.{name} VALUES (4, 1), (1, 2)")
    sql("DELETE FROM lake.db.removed WHERE n + 0 > 3")
    assert sql("SELECT * FROM lake.db.removed") == [(1, 2)]
    with pytest.raises(PySparkException, match="takes no deletes"):
        sql("DELETE FROM lake.db.kept WHERE n + 0 > 3")


def test_plans_and_settings_hold_no_pickle(sql: Run, session: SparkSession, lake: Lake) -> None:
    """What goes to tasks, and may hold credentials, is in no plan."""
    table = lake.create_table("db.k", pa.schema([("id", pa.int64())]), primary_keys="id")
    for _ in range(2):
        table.upsert(pa.table({"id": [1]}))
    plan = session.sql("SELECT * FROM lake.db.k WHERE id > 0")
    plan.collect()
    shown = plan._jdf.queryExecution().toString()
    assert "lakebed db.k" in shown
    assert "Reopen" not in shown
    assert "gAS" not in shown


def test_a_running_session_gets_a_catalog(spark: SparkSession, lake: Lake) -> None:
    """It was started with the jar."""
    lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    session = lakebed.spark.session(catalogs={"more": lake.url})
    assert [tuple(row) for row in session.sql("SHOW TABLES IN more.db").collect()] == [("db", "t", False)]


def test_files_are_dealt_to_tasks_as_those_of_spark(session: SparkSession, lake: Lake) -> None:
    """Files of several sizes and folders, cut and packed: as many tasks as Spark has for them, and every row once."""
    schema = pa.schema([("id", pa.int64()), pa.field("p", pa.string(), nullable=False)])
    table = lake.create_table("db.t", schema, partition_keys=["p"])
    for number, part in enumerate(("a b", "b", "c", "c", "c")):
        ids = range(1000 * number, 1000 * number + 300 * (number + 1))
        table.append(pa.table({"id": list(ids), "p": [part] * len(ids)}, schema=schema))
    folder = Path(table.url.removeprefix("file://"))
    paths = [str(path) for path in folder.rglob("*.parquet")]
    ids = sorted(table.read()["id"].to_pylist())
    for split_bytes, open_bytes, task_count_max in (
        (1500, 0, None),
        (5000, 10, None),
        (9000, 4000, None),
        (1000, 10, 3),
    ):
        session.conf.set("spark.sql.files.maxPartitionBytes", split_bytes)
        session.conf.set("spark.sql.files.openCostInBytes", open_bytes)
        session.conf.set("spark.sql.files.minPartitionNum", 1)
        if task_count_max is not None:
            session.conf.set("spark.sql.files.maxPartitionNum", task_count_max)
        ours, plain = session.table("lake.db.t"), session.read.schema("id BIGINT").parquet(*paths)
        task_count = ours.rdd.getNumPartitions()
        assert task_count == plain.rdd.getNumPartitions() > 1, (split_bytes, open_bytes, task_count_max)
    assert sorted(row[0] for row in ours.select("id").collect()) == ids


def test_parts_of_columns_are_widened(sql: Run) -> None:
    """Fields, elements and values of maps: rows of before and of after, and filters on them."""
    sql("CREATE TABLE lake.db.wide (id BIGINT, s STRUCT<n: INT, f: FLOAT>, l ARRAY<INT>, m MAP<STRING, INT>)")
    old = "(1, named_struct('n', 1, 'f', 0.5F), array(1), map('k', 1))"
    sql(f"INSERT INTO lake.db.wide VALUES {old}, (2, NULL, NULL, NULL)")
    sql("ALTER TABLE lake.db.wide ALTER COLUMN s.n TYPE BIGINT")
    sql("ALTER TABLE lake.db.wide ALTER COLUMN s.f TYPE DOUBLE")
    sql("ALTER TABLE lake.db.wide ALTER COLUMN l.element TYPE BIGINT")
    sql("ALTER TABLE lake.db.wide ALTER COLUMN m.value TYPE BIGINT")
    big = 2**40
    sql(f"INSERT INTO lake.db.wide VALUES (3, named_struct('n', {big}, 'f', 1e300D), array({big}), map('k', {big}))")
    rows = sql("SELECT id, s.n, s.f, l[0], m['k'] FROM lake.db.wide ORDER BY id")
    assert rows == [(1, 1, 0.5, 1, 1), (2, None, None, None, None), (3, big, 1e300, big, big)]
    assert sql(f"SELECT id FROM lake.db.wide WHERE s.n >= 1 AND l[0] < {big}") == [(1,)]
