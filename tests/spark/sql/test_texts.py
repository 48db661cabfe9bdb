"""Texts that are not UTF-8: conditions with them keep every row, and no write stores one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession, functions

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.table.table import Table

Run = Callable[[str], list[tuple[Any, ...]]]

TEXTS = ("a", "\ufffd", "\ufffdx", "\U0001f600", "z", "", None)
BYTES = "CAST(X'FF' AS STRING)"
LEAD = "CAST(X'C3' AS STRING)"

CONDITIONS = (
    f"s = {BYTES}",
    f"s <> {BYTES}",
    f"s <=> {BYTES}",
    f"s < {BYTES}",
    f"s <= {LEAD}",
    f"{LEAD} < s",
    f"s > {BYTES}",
    f"s IN ({BYTES}, 'a')",
    f"s NOT IN ({BYTES}, 'a')",
    f"startswith(s, {BYTES})",
    f"NOT startswith(s, {LEAD})",
    f"s LIKE concat({BYTES}, '%')",
    f"NOT (s = 'a' OR s = {BYTES})",
    f"s = {BYTES} AND id < 9",
    f"s BETWEEN 'a' AND {BYTES}",
)

KINDS = {
    "plain": "",
    "parts": "PARTITIONED BY (s)",
    "keyed": "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')",
}


@pytest.mark.parametrize(
    "conditions",
    [CONDITIONS[::3], pytest.param((*CONDITIONS[1::3], *CONDITIONS[2::3]), marks=pytest.mark.long)],
    ids=["a third", "the others"],
)
def test_conditions_keep_every_row(session: SparkSession, sql: Run, lake: Lake, conditions: tuple[str, ...]) -> None:
    """In files of one row, by partitions, in row groups that Spark's reader prunes, and in a merge of files."""
    rows = list(enumerate(TEXTS))
    session.createDataFrame(rows, "id BIGINT, s STRING").createOrReplaceTempView("judge")
    for kind, layout in KINDS.items():
        sql(f"CREATE TABLE lake.db.{kind} (id BIGINT NOT NULL, s STRING) {layout}")
        session.table("judge").repartition(3).writeTo(f"lake.db.{kind}").append()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.read.format("lakebed").load(lake.table("db.plain").url).createOrReplaceTempView("source")
    for condition in conditions:
        tables = ("judge", "lake.db.plain", "lake.db.parts", "lake.db.keyed", "source")
        shown = sql(" UNION ALL ".join(f"SELECT '{table}' AS t, id FROM {table} WHERE {condition}" for table in tables))
        ids = {table: sorted(id for name, id in shown if name == table) for table in tables}
        assert all(ids[table] == ids["judge"] for table in tables), (ids, condition)
    session.conf.unset("spark.sql.python.filterPushdown.enabled")
    for kind in KINDS:
        sql(f"DELETE FROM lake.db.{kind} WHERE s = {BYTES}")
        sql(f"MERGE INTO lake.db.{kind} t USING judge j ON t.s = {BYTES} AND t.id = j.id WHEN MATCHED THEN DELETE")
        assert lake.table(f"db.{kind}").read().num_rows == len(TEXTS), kind
    for statement in (
        f"INSERT OVERWRITE lake.db.parts PARTITION (s = {BYTES}) SELECT 100L",
        f"INSERT INTO lake.db.plain REPLACE WHERE s = {BYTES} SELECT 100L, 'b'",
        f"CALL lake.sys.create_tag('db.plain', {BYTES})",
    ):
        with pytest.raises(AnalysisException):
            sql(statement)
    with pytest.raises(AnalysisException, match="The partition to overwrite has a value of s that is not UTF-8"):
        session.sql("SELECT 100L AS id, 'b' AS s").writeTo("lake.db.parts").overwrite(
            functions.col("s") == functions.expr(BYTES)
        )
    for kind in KINDS:
        assert lake.table(f"db.{kind}").read().num_rows == len(TEXTS), kind


COLUMNS = "id BIGINT NOT NULL, s STRING, n STRUCT<a: ARRAY<STRING>, m: MAP<STRING, STRING>>"
NESTED = "named_struct('a', array('x'), 'm', map('k', 'v'))"
MEMBERS = (
    f"named_struct('a', array('x', {BYTES}), 'm', map('k', 'v'))",
    f"named_struct('a', array('x'), 'm', map({BYTES}, 'v'))",
    f"named_struct('a', array('x'), 'm', map('k', {BYTES}))",
)


def writes(session: SparkSession, sql: Run, table: Table) -> Iterator[Callable[[], Any]]:
    """Writes of such a text by each path."""
    name, row = f"lake.{table.name}", f"SELECT {{}} AS id, {BYTES} AS s, {NESTED} AS n"
    merge = f"MERGE INTO {name} t USING ({row.format('1L')}) j ON t.id = j.id WHEN MATCHED THEN UPDATE SET s = j.s"
    for statement in (
        f"INSERT INTO {name} {row.format('2L')}",
        f"INSERT OVERWRITE {name} {row.format('2L')}",
        f"UPDATE {name} SET s = {BYTES} WHERE id = 1",
        f"{merge} WHEN NOT MATCHED THEN INSERT *",
    ):
        yield lambda statement=statement: sql(statement)  # type: ignore[misc]
    rows = session.sql(row.format("2L"))
    yield lambda: rows.writeTo(name).append()
    yield lambda: lakebed.spark.write(rows, table)
    yield lambda: rows.write.format("lakebed").mode("append").save(table.url)


@pytest.mark.parametrize(
    "kind", ["keyed", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "keyed")]
)
def test_no_write_stores_one(session: SparkSession, sql: Run, lake: Lake, kind: str) -> None:
    """SQL, native and by workers, DataFrames, programs and the data source say which column has it; no file is left."""
    sql(f"CREATE TABLE lake.db.{kind} ({COLUMNS}) {KINDS[kind]}")
    sql(f"INSERT INTO lake.db.{kind} VALUES (1, 'a', {NESTED})")
    table = lake.table(f"db.{kind}")
    files = data_files(table)
    for number, write in enumerate(writes(session, sql, table)):
        with pytest.raises((PySparkException, InvalidRequest)) as refused:
            write()
        assert "Column 's' has a text that is not UTF-8 in some of the rows" in str(refused.value), (kind, number)
    for member in MEMBERS if kind != "parts" else ():
        with pytest.raises(AnalysisException, match="Column 'n' has a text that is not UTF-8"):
            sql(f"INSERT INTO lake.db.{kind} VALUES (2, 'b', {member})")
    assert sql(f"SELECT id, s FROM lake.db.{kind}") == [(1, "a")]
    newest = table.latest()
    assert newest is not None
    assert (newest.id, data_files(table)) == (1, files)
    sql(f"INSERT INTO lake.db.{kind} SELECT 2L, make_valid_utf8({BYTES}), {NESTED}")
    assert sql(f"SELECT s FROM lake.db.{kind} WHERE id = 2") == [("\ufffd",)]


def data_files(table: Table) -> list[str]:
    """The data files below a table's folder."""
    return sorted(path.name for path in Path(table.url.removeprefix("file://")).rglob("*.parquet"))
