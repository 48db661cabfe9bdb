"""Columns whose names need quotes, as partitions and keys: every statement, judged by a dictionary of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import lakebed.spark
from lakebed.lake.lake import Lake
from lakebed.table.model.predicate_tree import column

Run = Callable[[str], list[tuple[Any, ...]]]
Rows = dict[tuple[str, int], str | None]

KINDS = {
    "append": "",
    "marked": "TBLPROPERTIES ('deletion-vectors.enabled' = 'true')",
    "keyed": "TBLPROPERTIES ('primary-key' = '{p},{k}', 'bucket' = '2')",
    "bucketed": "TBLPROPERTIES ('bucket' = '2', 'bucket-key' = '{k}')",
    "dynamic": "TBLPROPERTIES ('primary-key' = '{p},{k}', 'bucket' = '-1')",
}
"""Properties of each kind of table."""

ODD = ("P. a `%20ü=/", "Key c.d")
NAMES = {
    "append": ("Day", "iD"),
    "marked": ("a=b", "c'd\"e"),
    "keyed": ("a`b", "`"),
    "bucketed": ("a%20b", "c%"),
    "dynamic": ("a.b", "c.d"),
}
"""Of a partition column and of a key."""


class Judge:
    """A table ``lake.db.t`` of some kind, and the rows that it must have, by partition and key."""

    def __init__(self, sql: Run, lake: Lake, kind: str, names: tuple[str, str]) -> None:
        self.sql, self.lake, self.names = sql, lake, names
        self.p, self.k = (f"`{name.replace('`', '``')}`" for name in names)
        p, k = (name.replace("'", "\\'") for name in names)
        self.layout = f"PARTITIONED BY ({self.p}) {KINDS[kind].format(p=p, k=k)}"
        self.rows: Rows = {}
        columns = f"{self.k} BIGINT NOT NULL, v STRING, {self.p} STRING NOT NULL"
        sql(f"CREATE TABLE lake.db.t ({columns}) {self.layout}")

    def check(self, what: str) -> None:
        """Compare what SQL and Python read."""
        rows = {(row[2], row[0]): row[1] for row in self.sql(f"SELECT {self.k}, v, {self.p} FROM lake.db.t")}
        assert rows == self.rows, what
        read = self.lake.table("db.t").read()
        columns = (read[name].to_pylist() for name in (*self.names, "v"))
        assert {(part, key): value for part, key, value in zip(*columns, strict=True)} == self.rows, what

    def run(self, statement: str, rows: Rows, *, without: str = "") -> None:
        """Run a statement that puts rows, and removes a partition before."""
        self.rows = {place: value for place, value in self.rows.items() if place[0] != without} | rows
        self.sql(statement)
        self.check(statement)

    def change(self) -> None:
        """Run the statements that change rows."""
        p, k = self.p, self.k
        rows: Rows = {("x", key): f"v{key}" for key in range(4)} | {("y y", 9): None, ("z", 10): "z"}
        values = "(0, 'v0', 'x'), (1, 'v1', 'x'), (2, 'v2', 'x'), (3, 'v3', 'x'), (9, NULL, 'y y'), (10, 'z', 'z')"
        self.run(f"INSERT INTO lake.db.t VALUES {values}", rows)
        self.run(f"UPDATE lake.db.t SET v = 'u' WHERE {k} = 1 AND {p} = 'x'", {("x", 1): "u"})
        del self.rows["x", 2]
        self.run(f"DELETE FROM lake.db.t WHERE {k} = 2 OR hash({k}) < hash({k})", {})
        source = f"(SELECT * FROM VALUES (3L, 'm', 'x'), (7L, 'new', 'n') AS s({k}, v, {p})) s"
        merge = f"MERGE INTO lake.db.t t USING {source} ON t.{k} = s.{k} AND t.{p} = s.{p}"
        self.run(
            f"{merge} WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
            {("x", 3): "m", ("n", 7): "new"},
        )
        self.run(
            f"INSERT OVERWRITE lake.db.t PARTITION ({p} = 'x') VALUES (20, 'static')",
            {("x", 20): "static"},
            without="x",
        )


@pytest.mark.parametrize("kind", [pytest.param("append", marks=pytest.mark.long), "marked", "keyed"])
def test_rows_are_changed(session: SparkSession, sql: Run, lake: Lake, kind: str) -> None:
    """INSERT, UPDATE, DELETE, MERGE and OVERWRITE in tables of each kind of write, and a DataFrame through workers."""
    judge = Judge(sql, lake, kind, ODD)
    judge.change()
    if kind == "keyed":
        judge.rows["w", 50] = "frame"
        lakebed.spark.write(frame(session, judge, "w", 50), lake.table("db.t"))
        judge.check("lakebed.spark.write")


def overwrite(judge: Judge, session: SparkSession) -> None:
    """Run the statements about partitions, and the verbs of a DataFrame."""
    sql, p, k = judge.sql, judge.p, judge.k
    assert sql(f"SELECT {k} FROM lake.db.t WHERE {p} = 'x' AND {k} >= 2 ORDER BY {k}") == [(20,)]
    assert sql(f"SELECT min({k}), max({k}), count({k}) FROM lake.db.t") == [(7, 20, 4)]
    grouped = sql(f"SELECT {p}, count(*) FROM lake.db.t WHERE {k} IN (9, 20) GROUP BY {p} ORDER BY {p}")
    assert grouped == [("x", 1), ("y y", 1)]
    source = f"(SELECT * FROM VALUES (7L, 'no', 'n'), (8L, 'only', 'n') AS s({k}, v, {p})) s"
    merge = f"MERGE INTO lake.db.t t USING {source} ON t.{k} = s.{k} AND t.{p} = s.{p}"
    judge.run(f"{merge} WHEN NOT MATCHED THEN INSERT *", {("n", 8): "only"})
    judge.run(f"INSERT INTO lake.db.t PARTITION ({p} = 'x') VALUES (21, 'into')", {("x", 21): "into"})
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    judge.run("INSERT OVERWRITE lake.db.t SELECT 30L, 'dynamic', 'n'", {("n", 30): "dynamic"}, without="n")
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    rows = frame(session, judge, "y y", 40)
    judge.rows["y y", 40] = "frame"
    rows.writeTo("lake.db.t").append()
    judge.check("append")
    del judge.rows["y y", 9]
    rows.writeTo("lake.db.t").overwrite(functions.col(p) == "y y")
    judge.check("overwrite")
    rows.writeTo("lake.db.t").overwritePartitions()
    judge.check("overwritePartitions")
    if not judge.lake.table("db.t").schema.primary_keys:
        rows.writeTo("lake.db.t").overwrite(functions.col(k) == 40)
        judge.check("overwrite of rows")
    assert len(sql("SHOW PARTITIONS lake.db.t")) == 4
    assert len(sql(f"SHOW PARTITIONS lake.db.t PARTITION ({p} = 'x')")) == 1
    judge.run(f"ALTER TABLE lake.db.t DROP PARTITION ({p} = 'z')", {}, without="z")
    judge.run(f"TRUNCATE TABLE lake.db.t PARTITION ({p} = 'y y')", {}, without="y y")


def frame(session: SparkSession, judge: Judge, part: str, key: int) -> DataFrame:
    """A row with the value ``frame``."""
    columns = f"{judge.p} STRING, {judge.k} BIGINT, v STRING"
    return session.createDataFrame([(part, key, "frame")], columns).select(judge.k, "v", judge.p)


def call_programs(judge: Judge, session: SparkSession) -> None:
    """Run the verbs of lakebed.spark and the data source."""
    table, rows, names = judge.lake.table("db.t"), frame(session, judge, "w", 50), judge.names
    judge.rows["w", 50] = "frame"
    lakebed.spark.write(rows, table)
    judge.check("lakebed.spark.write")
    where = (column(names[0]) == "w") & (column(names[1]) == 50)
    assert lakebed.spark.read(session, table, where=where).count() == 1
    lakebed.spark.write(rows, table, mode="overwrite", partition={names[0]: "w"})
    judge.check("lakebed.spark.write of a partition")
    if table.schema.primary_keys:
        judge.rows["w", 50] = judge.rows["w", 51] = None
        both = rows.union(frame(session, judge, "w", 51)).select(judge.p, judge.k)
        lakebed.spark.merge(both.withColumn("v", functions.lit(None).cast("string")), table, matched="update")
        judge.check("lakebed.spark.merge")
        del judge.rows["w", 51]
        lakebed.spark.delete(frame(session, judge, "w", 51), table)
        judge.check("lakebed.spark.delete")
    lakebed.spark.delete(where, table)
    del judge.rows["w", 50]
    judge.check("lakebed.spark.delete by a predicate")
    source = session.read.format("lakebed").load(table.url)
    assert {(row[names[0]], row[names[1]]): row["v"] for row in source.collect()} == judge.rows
    assert source.filter(functions.col(judge.k) == 20).filter(functions.col(judge.p) == "x").count() == 1


def follow(judge: Judge, session: SparkSession, folder: Path) -> None:
    """Write and read by streams, and read changes."""
    names, p, k = judge.names, judge.p, judge.k
    judge.rows["w", 60] = "frame"
    files = str(folder / "in")
    frame(session, judge, "w", 60).write.json(files)
    arriving = session.readStream.schema(f"{p} STRING, {k} BIGINT, v STRING").json(files).select(k, "v", p)
    once = arriving.writeStream.option("checkpointLocation", str(folder / "sink")).queryName("sink")
    once.trigger(availableNow=True).toTable("lake.db.t").awaitTermination(300)
    judge.check("a stream")
    followed = session.readStream.table("lake.db.t").writeStream.format("memory").queryName("followed")
    followed = followed.trigger(availableNow=True).option("checkpointLocation", str(folder / "source"))
    followed.start().awaitTermination(300)
    assert {(row[names[0]], row[names[1]]): row["v"] for row in session.table("followed").collect()} == judge.rows
    newest = judge.lake.table("db.t").latest()
    assert newest is not None
    changes = judge.sql(f"SELECT {p}, {k}, _change_type FROM lake.db.t CHANGES FROM VERSION {newest.id}")
    assert changes == [("w", 60, "insert")]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_statement(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path, kind: str) -> None:
    """Also those on partitions and columns, DataFrames, programs, streams, procedures and copies of the table."""
    judge = Judge(sql, lake, kind, NAMES[kind])
    p, k = judge.p, judge.k
    judge.change()
    overwrite(judge, session)
    call_programs(judge, session)
    follow(judge, session, tmp_path)
    for change in (
        "ADD COLUMN `n.w` INT AFTER v",
        f"ALTER COLUMN {p} COMMENT 'c'",
        f"ALTER COLUMN v AFTER {k}",
        "RENAME COLUMN `n.w` TO `n``w`",
        "DROP COLUMN `n``w`",
    ):
        judge.run(f"ALTER TABLE lake.db.t {change}", {})
    sql("CALL lake.sys.compact('db.t', true)")
    judge.check("compact")
    sql("CALL lake.sys.create_tag('db.t', 'x')")
    count = [(len(judge.rows),)]
    assert sql("SELECT count(*) FROM lake.db.t VERSION AS OF 'x'") == count
    sql("CREATE TABLE lake.db.u LIKE lake.db.t")
    sql("INSERT INTO lake.db.u SELECT * FROM lake.db.t")
    assert sql("SELECT count(*) FROM lake.db.u") == count
    create = sql("SHOW CREATE TABLE lake.db.t")[0][0]
    sql("DROP TABLE lake.db.u")
    sql(create.replace("lake.db.t", "lake.db.u"))
    assert sql("DESCRIBE TABLE lake.db.u") == sql("DESCRIBE TABLE lake.db.t")
    sql(f"CREATE OR REPLACE TABLE lake.db.u {judge.layout} AS SELECT * FROM lake.db.t")
    assert sql(f"SELECT count(*) FROM lake.db.u WHERE {p} = 'x'") == [(2,)]
    judge.rows = {}
    judge.run("TRUNCATE TABLE lake.db.t", {})
