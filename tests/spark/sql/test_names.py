"""Columns whose names need quotes, as partitions and keys: every statement, judged by a dictionary of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

import lakebed.spark
from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]

NAMES = {
    "point": ("a.b", "c.d"),
    "space": ("a b", " c"),
    "unicode": ("größe", "日"),
    "percent": ("a%20b", "c%"),
    "backticks": ("a`b", "`"),
    "cases": ("Day", "iD"),
    "words": ("select", "order"),
    "signs": ("a=b", "c'd\"e"),
    "numbers": ("1", "2.5"),
}
"""By the kind: the names of a partition column and of a key."""

KINDS = {
    "append": "",
    "marked": "TBLPROPERTIES ('deletion-vectors.enabled' = 'true')",
    "bucketed": "TBLPROPERTIES ('bucket' = '2', 'bucket-key' = '{k}')",
    "keyed": "TBLPROPERTIES ('primary-key' = '{p},{k}', 'bucket' = '2')",
    "dynamic": "TBLPROPERTIES ('primary-key' = '{p},{k}', 'bucket' = '-1')",
}
"""Properties of each kind of table."""


def quoted(name: str) -> str:
    """A name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_statements(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path, names: tuple[str, str], kind: str) -> None:
    """INSERT, OVERWRITE, SELECT, UPDATE, DELETE, MERGE, ALTER, partitions, streams and procedures take the names."""
    p, k = map(quoted, names)
    properties = KINDS[kind].format(p=names[0].replace("'", "\\'"), k=names[1].replace("'", "\\'"))
    sql(f"CREATE TABLE lake.db.t ({k} BIGINT NOT NULL, v STRING, {p} STRING NOT NULL) PARTITIONED BY ({p}) {properties}")
    rows: dict[tuple[str, int], str | None] = {}

    def check(statement: str) -> None:
        found = {(row[2], row[0]): row[1] for row in sql(f"SELECT {k}, v, {p} FROM lake.db.t")}
        assert found == rows, statement
        table = lake.table("db.t").read()
        read = zip(*(table[name].to_pylist() for name in (names[0], names[1], "v")), strict=True)
        assert {(part, key): value for part, key, value in read} == rows, statement

    def run(statement: str) -> None:
        sql(statement)
        check(statement)

    rows |= {("x", key): f"v{key}" for key in range(4)} | {("y y", 9): None, ("z", 10): "z"}
    run("INSERT INTO lake.db.t VALUES (0, 'v0', 'x'), (1, 'v1', 'x'), (2, 'v2', 'x'), (3, 'v3', 'x'), (9, NULL, 'y y'), (10, 'z', 'z')")
    assert sql(f"SELECT {k} FROM lake.db.t WHERE {p} = 'x' AND {k} >= 2 ORDER BY {k}") == [(2,), (3,)]
    assert sql(f"SELECT min({k}), max({k}), count({k}) FROM lake.db.t") == [(0, 10, 6)]
    assert sql(f"SELECT {p}, count(*) FROM lake.db.t WHERE {k} IN (1, 9) GROUP BY {p} ORDER BY {p}") == [("x", 1), ("y y", 1)]
    rows[("x", 1)] = "u"
    run(f"UPDATE lake.db.t SET v = 'u' WHERE {k} = 1 AND {p} = 'x'")
    del rows[("x", 2)]
    run(f"DELETE FROM lake.db.t WHERE {k} = 2 OR {k} < 0")
    rows[("x", 3)], rows[("n", 7)] = "m", "new"
    run(
        f"MERGE INTO lake.db.t t USING (SELECT * FROM VALUES (3L, 'm', 'x'), (7L, 'new', 'n') AS s({k}, v, {p})) s "
        f"ON t.{k} = s.{k} AND t.{p} = s.{p} WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    rows[("n", 8)] = "only"
    run(
        f"MERGE INTO lake.db.t t USING (SELECT * FROM VALUES (7L, 'no', 'n'), (8L, 'only', 'n') AS s({k}, v, {p})) s "
        f"ON t.{k} = s.{k} AND t.{p} = s.{p} WHEN NOT MATCHED THEN INSERT *"
    )
    rows = {key: value for key, value in rows.items() if key[0] != "x"} | {("x", 20): "static"}
    run(f"INSERT OVERWRITE lake.db.t PARTITION ({p} = 'x') VALUES (20, 'static')")
    rows[("x", 21)] = "into"
    run(f"INSERT INTO lake.db.t PARTITION ({p} = 'x') VALUES (21, 'into')")
    rows = {key: value for key, value in rows.items() if key[0] != "n"} | {("n", 30): "dynamic"}
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    run(f"INSERT OVERWRITE lake.db.t SELECT 30L, 'dynamic', 'n'")
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    frame = session.createDataFrame([("y y", 40, "frame")], f"{p} STRING, {k} BIGINT, v STRING").select(k, "v", p)
    rows[("y y", 40)] = "frame"
    frame.writeTo("lake.db.t").append()
    check("append")
    rows = {key: value for key, value in rows.items() if key[0] != "y y"} | {("y y", 40): "frame"}
    frame.writeTo("lake.db.t").overwrite(functions.col(p) == "y y")
    check("overwrite")
    frame.writeTo("lake.db.t").overwritePartitions()
    check("overwritePartitions")
    if kind in ("append", "marked", "bucketed"):
        frame.writeTo("lake.db.t").overwrite(functions.col(k) == 40)
        check("overwrite by rows")
    assert sorted(row[0] for row in sql("SHOW PARTITIONS lake.db.t")) != []
    assert len(sql(f"SHOW PARTITIONS lake.db.t PARTITION ({p} = 'x')")) == 1
    rows = {key: value for key, value in rows.items() if key[0] != "z"}
    run(f"ALTER TABLE lake.db.t DROP PARTITION ({p} = 'z')")
    rows = {key: value for key, value in rows.items() if key[0] != "y y"}
    run(f"TRUNCATE TABLE lake.db.t PARTITION ({p} = 'y y')")
    # Programs.
    table = lake.table("db.t")
    rows[("w", 50)] = "program"
    arrow = session.createDataFrame([("w", 50, "program")], f"{p} STRING, {k} BIGINT, v STRING")
    lakebed.spark.write(arrow, table)
    check("lakebed.spark.write")
    assert lakebed.spark.read(session, table, where=functions_where(names)).count() == 1
    lakebed.spark.write(arrow, table, mode="overwrite", partition={names[0]: "w"})
    check("lakebed.spark.write of a partition")
    source = session.read.format("lakebed").load(table.url)
    assert {(row[names[0]], row[names[1]]): row["v"] for row in source.collect()} == rows
    assert source.filter(functions.col(k) == 50).filter(functions.col(p) == "w").count() == 1
    # Streams.
    rows[("w", 51)] = "stream"
    (tmp_path / "in").mkdir()
    session.createDataFrame([("w", 51, "stream")], f"{p} STRING, {k} BIGINT, v STRING").write.json(str(tmp_path / "in" / "a"))
    stream = session.readStream.schema(f"{p} STRING, {k} BIGINT, v STRING").json(str(tmp_path / "in" / "a")).select(k, "v", p)
    stream.writeStream.option("checkpointLocation", str(tmp_path / "c")).queryName("q").trigger(availableNow=True).toTable("lake.db.t").awaitTermination(120)
    check("a stream")
    seen = session.readStream.table("lake.db.t").writeStream.format("memory").queryName("seen").trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "d")).start()
    seen.awaitTermination(120)
    assert {(row[names[0]], row[names[1]]): row["v"] for row in session.table("seen").collect()} == rows
    # Columns and history.
    run("ALTER TABLE lake.db.t ADD COLUMN `n.w` INT AFTER v")
    run(f"ALTER TABLE lake.db.t ALTER COLUMN {p} COMMENT 'c'")
    run(f"ALTER TABLE lake.db.t ALTER COLUMN v AFTER {k}")
    run("ALTER TABLE lake.db.t RENAME COLUMN `n.w` TO `n``w`")
    run("ALTER TABLE lake.db.t DROP COLUMN `n``w`")
    if kind != "dynamic":
        sql("CALL lake.sys.compact('db.t', true)")
        check("compact")
    sql("CALL lake.sys.create_tag('db.t', 'x')")
    assert sql("SELECT count(*) FROM lake.db.t VERSION AS OF 'x'") == [(len(rows),)]
    sql("CREATE TABLE lake.db.u LIKE lake.db.t")
    sql("INSERT INTO lake.db.u SELECT * FROM lake.db.t")
    assert sql("SELECT count(*) FROM lake.db.u") == [(len(rows),)]
    create = sql("SHOW CREATE TABLE lake.db.t")[0][0]
    sql("DROP TABLE lake.db.u")
    sql(create.replace("lake.db.t", "lake.db.u"))
    assert len(sql("DESCRIBE TABLE lake.db.u")) == len(sql("DESCRIBE TABLE lake.db.t"))
    sql(f"CREATE OR REPLACE TABLE lake.db.u PARTITIONED BY ({p}) {properties} AS SELECT * FROM lake.db.t")
    assert sql(f"SELECT count(*) FROM lake.db.u WHERE {p} = 'x'") == [(2,)]
    rows = {}
    run("TRUNCATE TABLE lake.db.t")


def functions_where(names: tuple[str, str]) -> Any:
    """A predicate of the library for one row."""
    from lakebed.table.predicate_tree import column

    return (column(names[0]) == "w") & (column(names[1]) == 50)
