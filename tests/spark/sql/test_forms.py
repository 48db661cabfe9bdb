"""Forms of statements and of DataFrames that the guide does not show, each with its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def table(sql: Run) -> None:
    """1000 rows under the tag ``old``, and 500 more."""
    sql("CREATE TABLE lake.db.t (id BIGINT, name STRING, x DOUBLE)")
    sql("INSERT INTO lake.db.t SELECT id, concat('n', id), id * 1.5D FROM range(1000)")
    sql("CALL lake.sys.create_tag(table => 'db.t', tag => 'old')")
    sql("INSERT INTO lake.db.t SELECT id, concat('m', id), id * 1.0D FROM range(1000, 1500)")


def test_what_is_typed_first(sql: Run, lake: Lake) -> None:
    """A key as a constraint, comments, the folder, the history; all rows of a table with a key deleted by DELETE."""
    sql("CREATE TABLE lake.db.k (id INT COMMENT 'the number', v STRING, PRIMARY KEY (id))")
    sql("INSERT INTO lake.db.k VALUES (1, 'a'), (2, 'b')")
    sql("INSERT INTO lake.db.k VALUES (1, 'c')")
    assert sql("SELECT * FROM lake.db.k ORDER BY id") == [(1, "c"), (2, "b")]
    sql("DELETE FROM lake.db.k")
    assert sql("SELECT * FROM lake.db.k") == []
    assert sql("SELECT count(*) FROM lake.db.k VERSION AS OF 2") == [(2,)]
    sql("INSERT INTO lake.db.k VALUES (3, 'd')")
    assert [row[0] for row in sql("DESCRIBE HISTORY lake.db.k")] == [4, 3, 2, 1]
    described = sql("DESCRIBE EXTENDED lake.db.k")
    assert ("id", "int", "the number") in described
    assert ("Location", lake.table("db.k").url, "") in described
    (shown,) = sql("SHOW CREATE TABLE lake.db.k")[0]
    assert "COMMENT 'the number'" in shown
    assert "LOCATION" not in shown
    sql(shown.replace("lake.db.k", "lake.again"))
    assert lake.table("again").schema.primary_keys == ("id",)
    assert sql("SHOW TABLES IN lake") == [("default", "again", False)]
    sql("CREATE TABLE lake.like LIKE lake.db.k TBLPROPERTIES ('bucket' = '2')")
    like = lake.table("like").schema
    assert (like.primary_keys, like.options["bucket"], like.fields[0].description) == (("id",), "2", "the number")
    sql("DROP TABLE lake.like PURGE")
    sql("ALTER TABLE lake.again SET TBLPROPERTIES ('comment' = 'c')")
    sql("ALTER TABLE lake.again UNSET TBLPROPERTIES IF EXISTS ('comment', 'nope')")
    sql("ALTER TABLE lake.again ALTER COLUMN v DROP DEFAULT")
    assert (lake.table("again").schema.comment, lake.tables()) == ("", ["again", "db.k"])
    sql("CREATE TABLE lake.db.n (id INT, v STRING NOT NULL)")
    sql("INSERT INTO lake.db.n VALUES (1, 'a')")
    sql("ALTER TABLE lake.db.n ALTER COLUMN v DROP NOT NULL")
    sql("INSERT INTO lake.db.n VALUES (2, NULL)")
    assert sql("SELECT id, count(v) FROM lake.db.n GROUP BY id ORDER BY id") == [(1, 1), (2, 0)]
    (_, (arguments,)) = sql("DESCRIBE PROCEDURE lake.sys.rollback")
    assert arguments.endswith("table string, version string.")


def test_a_provider_for_tools_that_ask_for_a_format(session: SparkSession, sql: Run, lake: Lake) -> None:
    """With the setting, USING may name the word and tables show it; they are the same tables, and others are refused.

    dbt writes MERGE and CREATE OR REPLACE only for formats that it knows, by the words Provider: iceberg.
    """
    with pytest.raises(PySparkException, match="USING iceberg is not possible in a lake"):
        sql("CREATE TABLE lake.db.t (id BIGINT) USING iceberg")
    for setting in ("", ".url", ".python"):
        session.conf.set(f"spark.sql.catalog.named{setting}", str(session.conf.get(f"spark.sql.catalog.lake{setting}")))
    session.conf.set("spark.sql.catalog.named.provider", "iceberg")
    sql("CREATE TABLE named.db.t (id BIGINT, v STRING) USING Iceberg TBLPROPERTIES ('primary-key' = 'id')")
    sql("CREATE OR REPLACE TABLE named.db.t USING iceberg TBLPROPERTIES ('primary-key' = 'id') AS SELECT 1L id, 'a' v")
    sql("CREATE TABLE named.db.like LIKE named.db.t")
    sql("CREATE TABLE named.db.own USING lakebed AS SELECT 2L id")
    information = [row[3] for row in sql("SHOW TABLE EXTENDED IN named.db LIKE '*'")]
    assert len([text for text in information if "\nProvider: iceberg\n" in text]) == 3
    assert "Provider" not in sql("SHOW TABLE EXTENDED IN lake.db LIKE 't'")[0][3]
    (shown,) = sql("SHOW CREATE TABLE named.db.t")[0]
    sql(shown.replace("named.db.t", "named.db.again"))
    assert lake.table("db.again").schema.primary_keys == lake.table("db.like").schema.primary_keys == ("id",)
    session.range(3).writeTo("named.db.own").using("iceberg").createOrReplace()
    assert sql("SELECT count(*) FROM lake.db.own") == [(3,)]
    for name in ("db.t", "db.like", "db.own", "db.again"):
        assert "provider" not in lake.table(name).schema.options
    with pytest.raises(PySparkException, match="USING delta is not possible in a lake"):
        sql("CREATE TABLE named.db.other (id BIGINT) USING delta")


@pytest.mark.long
@pytest.mark.usefixtures("table")
def test_statements(sql: Run, lake: Lake) -> None:
    """Reads of versions in joins, views and by other words; writes into branches; what Spark shows of a table."""
    first_ms = lake.table("db.t").snapshot(1).time_ms
    sql("CALL lake.sys.create_branch('db.t', 'dev')")
    sql("INSERT INTO lake.db.t WITH (branch = 'dev') VALUES (9999, 'dev', 0D)")
    for read, count in (
        ("lake.db.t", 1500),
        ("lake.db.t FOR SYSTEM_VERSION AS OF 'old'", 1000),
        ("lake.db.t FOR VERSION AS OF 2", 1500),
        (f"lake.db.t TIMESTAMP AS OF timestamp_millis({first_ms})", 1000),
        (f"lake.db.t FOR SYSTEM_TIME AS OF timestamp_millis({first_ms})", 1000),
        ("lake.db.t WITH (branch = 'dev')", 1501),
        ("lake.db.t VERSION AS OF 'dev'", 1501),
        ("lake.db.t WITH (versionAsOf = 'old')", 1000),
    ):
        assert sql(f"SELECT count(*) FROM {read}") == [(count,)], read
    assert sql(
        "SELECT a.id, a.name FROM lake.db.t a LEFT ANTI JOIN lake.db.t VERSION AS OF 'old' b ON a.id = b.id "
        "ORDER BY 1 LIMIT 2"
    ) == [(1000, "m1000"), (1001, "m1001")]
    sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT * FROM lake.db.t VERSION AS OF 'old'")
    assert sql("SELECT count(*), max(id) FROM v") == [(1000, 999)]
    (plan,) = sql("EXPLAIN FORMATTED SELECT name FROM lake.db.t WHERE id = 1200")[0]
    assert "lakebed db.t (snapshot 2)" in plan
    assert "1200" in plan.partition("predicates")[2]

    sql("DELETE FROM lake.db.t WHERE id >= 1400")
    sql("UPDATE lake.db.t SET name = 'UPD' WHERE id = 3")
    assert sql("SELECT id, name, x FROM lake.db.t WHERE id IN (3, 4) ORDER BY id") == [(3, "UPD", 4.5), (4, "n4", 6.0)]
    sql(
        "MERGE INTO lake.db.t t USING (SELECT id, concat('M', id) name, 0D x FROM range(1395, 1405)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
    )
    assert sql("SELECT count(*), count_if(name LIKE 'M%') FROM lake.db.t") == [(1405, 10)]
    counted = "SELECT _change_type, _commit_version, count(*) FROM lake.db.t"
    changes = f"{counted} CHANGES FROM VERSION {{}} GROUP BY ALL ORDER BY ALL"
    assert sql(changes.format("1 TO VERSION 3")) == [("delete", 3, 100), ("insert", 1, 1000), ("insert", 2, 500)]
    assert sql(changes.format("'old' EXCLUSIVE TO VERSION 2")) == [("insert", 2, 500)]

    sql("ALTER TABLE lake.db.t ADD COLUMN z INT")
    sql("INSERT INTO lake.db.t VALUES (5000, 'z', 1D, 7)")
    assert sql("SELECT z FROM lake.db.t WHERE id IN (3, 5000) ORDER BY id") == [(None,), (7,)]
    assert [len(row) for row in sql("SELECT * FROM lake.db.t VERSION AS OF 'old' LIMIT 1")] == [3]
    sql("ALTER TABLE lake.db.t ALTER COLUMN z TYPE BIGINT")
    sql("ALTER TABLE lake.db.t RENAME COLUMN x TO y")
    sql(f"INSERT INTO lake.db.t VALUES (5001, 'z', 2D, {2**40})")
    assert sql("SELECT y, z FROM lake.db.t WHERE id >= 5000 ORDER BY id") == [(1.0, 7), (2.0, 2**40)]
    sql("ALTER TABLE lake.db.t DROP COLUMN y")
    assert sql("SELECT * FROM lake.db.t WHERE id = 4") == [(4, "n4", None)]
    sql("ALTER TABLE lake.db.t SET TBLPROPERTIES ('snapshot.num-retained.max' = '9')")
    assert ("snapshot.num-retained.max", "9") in sql("SHOW TBLPROPERTIES lake.db.t")
    assert ("z", "bigint", None) in sql("DESCRIBE TABLE EXTENDED lake.db.t")
    (shown,) = sql("SHOW CREATE TABLE lake.db.t")[0]
    assert "CREATE TABLE lake.db.t" in shown
    assert "'snapshot.num-retained.max' = '9'" in shown
    sql("USE lake.db")
    assert sql("SELECT count(*) FROM t VERSION AS OF 'old'") == [(1000,)]
    with pytest.raises(PySparkException, match=r"(?i)analyze"):
        sql("ANALYZE TABLE lake.db.t COMPUTE STATISTICS")
    with pytest.raises(PySparkException, match="The branch 'dev' started from snapshot 2"):
        sql("CALL lake.sys.rollback('db.t', 'old')")
    sql("CALL lake.sys.delete_branch('db.t', 'dev')")
    sql("CALL lake.sys.rollback('db.t', 'old')")
    assert sql("SELECT count(*) FROM t") == [(1000,)]
    sql("TRUNCATE TABLE t")
    assert sql("SELECT count(*) FROM t") == [(0,)]
    assert sql("SELECT count(*) FROM t VERSION AS OF 'old'") == [(1000,)]


@pytest.mark.long
@pytest.mark.usefixtures("table")
def test_dataframes(session: SparkSession, sql: Run) -> None:
    """Writers, readers of versions and changes, and mergeInto."""
    rows = session.range(2000, 2003).selectExpr("id", "'w' AS name", "1D AS x")
    rows.writeTo("lake.db.t").append()
    rows.write.mode("append").saveAsTable("lake.db.t")
    rows.write.insertInto("lake.db.t")
    assert sql("SELECT count(*), count(DISTINCT id) FROM lake.db.t WHERE name = 'w'") == [(9, 3)]
    assert session.read.option("versionAsOf", "old").table("lake.db.t").count() == 1000
    changes = session.read.option("startingVersion", "3").option("endingVersion", "4").changes("lake.db.t")
    assert {row._commit_version for row in changes.collect()} == {3, 4}
    source = session.range(1, 3).union(session.range(7000, 7001)).selectExpr("id", "'M' AS name", "0D AS x").alias("s")
    source.mergeInto(
        "lake.db.t", functions.expr("s.id = lake.db.t.id")
    ).whenMatched().updateAll().whenNotMatched().insertAll().merge()
    assert sql("SELECT id FROM lake.db.t WHERE name = 'M' ORDER BY id") == [(1,), (2,), (7000,)]
    rows.writeTo("lake.db.n").tableProperty("primary-key", "id").create()
    rows.selectExpr("id", "'again' AS name", "x").writeTo("lake.db.n").append()
    assert sql("SELECT DISTINCT name FROM lake.db.n") == [("again",)]
    rows.limit(1).writeTo("lake.db.n").overwrite(functions.lit(True))
    rows.write.mode("overwrite").saveAsTable("lake.db.made")
    assert sql("SELECT count(*) FROM lake.db.n UNION ALL SELECT count(*) FROM lake.db.made ORDER BY 1") == [(1,), (3,)]
    assert sql("SELECT count(*) FROM lake.db.n VERSION AS OF 2") == [(3,)]
