"""Mistakes in SQL: each is one sentence and an AnalysisException, and changes and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, SparkRuntimeException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from lakebed.lake.lake import Lake
from worlds.waiting import wait_until

Run = Callable[[str], list[tuple[Any, ...]]]

SECONDS_MAX = 300
KEYED = "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')"
DAY = "DATE'2024-01-01'"

NAMES = {
    "DELETE FROM lake.nodb.nope": "`lake`.`nodb`.`nope` cannot be found",
    "SELECT * FROM lake.db.t TIMESTAMP AS OF '1999-01-01'": "the earliest time that can be read is",
    "SELECT * FROM lake.db.t WITH (brnch = 'x')": "the options are versionAsOf, timestampAsOf, branch.",
    "CALL lake.sys.create_tag('db.t')": "the parameter named `tag` is required",
    "CALL lake.sys.create_tag(table => 'db.t', tga => 'y')": "Did you mean one of the following? [`tag`",
    "CALL lake.sys.create_tag('db.t', 'y', 1, 'soon')": "'soon' is not a duration",
    "CALL lake.sys.create_tag('db.t', 'y', 'abc')": "snapshot of create_tag is 'abc', and its type is bigint: give a",
    "CALL lake.sys.expire_snapshots('db.t', 3000000000)": "is 3000000000, and its type is int: give a whole number",
    "CALL lake.sys.compact('db.t', dry_run => 'abc')": "is 'abc', and its type is boolean: give true or false.",
    "CREATE TABLE lake.db.q (id INT) TBLPROPERTIES ('primry-key' = 'id')": "Option 'primry-key' is not known",
    "ALTER TABLE lake.db.t SET TBLPROPERTIES ('odd' = '1')": "Option 'odd' is not known.",
    "ALTER TABLE lake.db.t ADD COLUMN n INT DEFAULT 5": "The column n cannot have a DEFAULT",
    "ALTER TABLE lake.db.t ALTER COLUMN v SET DEFAULT 'x'": "The column v cannot have a DEFAULT",
    "ALTER TABLE lake.db.t ADD CONSTRAINT c CHECK (id > 0)": "ALTER TABLE changes no constraints",
    "CREATE TABLE lake.db.q (id INT CHECK (id > 0))": "no constraint but PRIMARY KEY: leave out CHECK (id > 0).",
    "CREATE TABLE lake.db.q (id INT, CONSTRAINT `x y) ENFORCED` CHECK (id > 0))": ": leave out CHECK (id > 0).",
    "CREATE TABLE lake.db.q (a INT, b INT, `a,b` INT, PRIMARY KEY (`a,b`))": "`a,b` cannot be in the primary key",
    "CREATE TABLE lake.db.q (a INT PRIMARY KEY) TBLPROPERTIES ('primary-key' = 'b')": "KEY (a) and the property",
    "DROP NAMESPACE lake.db CASCADE": "is pinned by tag x: delete these first, with ALTER TABLE ... DROP TAG",
    "CREATE TABLE lake.db.q (v VARIANT)": "of Spark's type variant, which lakebed does not write: cast it",
    "DROP TABLE lake.db.t.tags": "lake.db.t.tags is no table of its own",
    "SHOW TABLES IN lake.nodb": "The schema `nodb` cannot be found",
    "CREATE VIEW lake.db.v AS WITH w AS (SELECT 1 AS a) SELECT a FROM w": "stores no views: CREATE TEMPORARY VIEW v",
    "ALTER VIEW lake.db.t AS WITH w AS (SELECT 1 AS a) SELECT a FROM w": "Catalog lake does not support views",
    "ANALYZE TABLES IN lake.db COMPUTE STATISTICS": "ANALYZE TABLES is not possible in the catalog lake",
    "CREATE TABLE lake.db.q (a ARRAY<STRING COLLATE UTF8_LCASE>)": "Leave out COLLATE, and write it in queries.",
    "CREATE OR REPLACE TABLE lake.db.t (a INT) LOCATION '/x'": "a table of a lake is in the lake's own folder",
    "ALTER TABLE lake.db.k ALTER COLUMN id DROP NOT NULL": "part of the primary key, which is never null",
}
"""Unknown tables, times, procedures' arguments and options, and what is said."""

MORE_NAMES = {
    "CREATE NAMESPACE lake.db": "Cannot create schema `db` because it already exists",
    "CREATE NAMESPACE lake.q COMMENT 'c'": "A database of a lake has no properties, no comment and no location",
    "CREATE NAMESPACE lake.q LOCATION '/x'": "A database of a lake has no properties, no comment and no location",
    "CREATE NAMESPACE lake.`a/b`": "The database name 'a/b' reads as a path",
    "SHOW NAMESPACES IN lake.nodb": "The schema `nodb` cannot be found",
    "SHOW TABLE EXTENDED IN lake.nodb LIKE '*'": "The schema `nodb` cannot be found",
    "DROP TABLE IF EXISTS lake.db.`t$tags`": "lake.db.t$tags is no table of its own",
    "SELECT 1 FROM IDENTIFIER('lake.db.' || 't') VERSION AS OF 1": "takes one literal or parameter, and no expression",
    "ALTER TABLE lake.db.t ADD COLUMN w STRING COLLATE UNICODE": "Leave out COLLATE, and write it in queries.",
    "ALTER TABLE lake.db.t ALTER COLUMN v TYPE STRING COLLATE UNICODE": "Leave out COLLATE, and write it in queries.",
    "ALTER TABLE lake.db.t DEFAULT COLLATION UNICODE": "ALTER TABLE ... DEFAULT COLLATION is not possible",
    "ALTER TABLE lake.db.t SET LOCATION '/x'": "ALTER TABLE ... SET LOCATION is not possible",
    "CREATE TABLE lake.db.q (a STRING) DEFAULT COLLATION UNICODE": "Leave out COLLATE, and write it in queries.",
    "CREATE EXTERNAL TABLE lake.db.q (a INT)": "Leave out EXTERNAL; CALL sys.import_table takes files from elsewhere",
    "CREATE TABLE lake.db.q (a INT) STORED AS PARQUET": "STORED AS and ROW FORMAT are not possible",
    "CREATE OR REPLACE TABLE lake.db.t (a INT) USING csv": "USING csv is not possible in a lake",
    "SELECT * FROM lake.db.nope": "`lake`.`db`.`nope` cannot be found",
    "SELECT * FROM lake.db.`t$nope`": "There is no system table $nope: there are $snapshots",
    "SELECT * FROM lake.db.t VERSION AS OF 99": "has no snapshot 99: it has snapshots 1 to 2.",
    "SELECT * FROM lake.db.t VERSION AS OF 'nope'": "has no tag or branch 'nope'; tags: x.",
    "SELECT * FROM lake.db.t VERSION AS OF 'tag.nope'": "has no tag 'nope': it has x.",
    "SELECT * FROM lake.db.t WITH (branch = 'nope')": "There is no branch 'nope' of table 'db.t'",
    "SELECT * FROM lake.db.t CHANGES FROM VERSION 99": "has no snapshot 99",
    "CALL lake.sys.nope('db.t')": "There is no procedure 'nope': did you mean",
    "CALL lake.other.create_tag('db.t', 'y')": "are in its namespace sys: CALL lake.sys.create_tag(...).",
    "CALL lake.sys.create_tag('db.t', 'y', 1, '1 d', true, false, 5)": "parameters but the actual number is 7",
    "CALL lake.sys.create_tag('db.nope', 'y')": "has no table db.nope. Did you mean db.t",
    "CALL lake.sys.create_tag('db.t', 'x')": "The tag 'x' exists already",
    "CALL lake.sys.create_tag('db.t', 'a/b')": "would read as a path",
    "CALL lake.sys.create_tag('db.t', 'y', 1.5)": "is '1.5', and its type is bigint: give a whole number",
    "CALL lake.sys.create_tag('db.t', 'y', 1, INTERVAL '-1' DAY)": "'PT-24H' is not a duration",
    "CALL lake.sys.create_tag_from_timestamp('db.t', 'y', 'soon')": "'soon' is not a valid time",
    "CALL lake.sys.create_tag('db.t', 'y', 99)": "has no snapshot 99",
    "CALL lake.sys.create_tag(NULL, 'y')": "The argument table of create_tag is null: give a value.",
    "CALL lake.sys.create_tag_from_timestamp('db.t', 'y', '1999-01-01')": "the earliest time that can be read is",
    "CALL lake.sys.rollback('db.t', 'nope')": "has no tag or branch 'nope'",
    "CALL lake.sys.expire_snapshots('db.t', 0)": "retain_max is 0: it must be a whole number, at least 1.",
    "CREATE TABLE lake.db.q (id INT) TBLPROPERTIES ('primary-key' = 'nope')": "'nope' does not exist: there are id.",
    "CREATE TABLE lake.a.b.c (id INT)": "is named lake.database.table, and not lake.a.b.c.",
}
"""More of them; the guide has some of these, too."""

ROWS = {
    f"INSERT INTO lake.db.t VALUES (1, 'a', {DAY}, 5)": "the reason is too many data columns",
    "INSERT INTO lake.db.t VALUES (1, 'a')": "the reason is not enough data columns",
    "INSERT OVERWRITE lake.db.k VALUES (1)": "the reason is not enough data columns",
    f"INSERT INTO lake.db.t VALUES ('1', 'a', {DAY})": 'Cannot safely cast `id` "STRING" to "BIGINT"',
    "INSERT INTO lake.db.k BY NAME SELECT 1L AS id, 'a' AS v, 1 AS w": "Cannot write extra columns `w`",
    f"INSERT INTO lake.db.t (v, d) VALUES ('a', {DAY})": "Cannot find data for the output column `id`",
    "UPDATE lake.db.k SET n = 'x' WHERE id = 1": 'Cannot safely cast `n` "STRING" to "INT"',
    f"INSERT INTO lake.db.t WITH (versionAsOf = 'x') VALUES (1, 'a', {DAY})": "Time travel on the relation",
    f"INSERT INTO lake.db.`t$branch_x` VALUES (1, 'a', {DAY})": "There is no branch 'x' of table 'db.t'",
    f"INSERT INTO lake.db.t WITH (tag = 'x') VALUES (1, 'a', {DAY})": "The option tag is not known",
    "UPDATE lake.db.t WITH (versionAsOf = 1) SET v = 'z'": "Time travel on the relation",
    "DELETE FROM lake.db.k WITH (versionAsOf = 'x')": "Time travel on the relation",
    "DELETE FROM lake.db.t VERSION AS OF 1": "Syntax error at or near 'AS'",
    "DELETE FROM lake.db.`t$tags`": "does not support deletes",
}
"""Rows with other columns, and writes to tags, older versions and system tables."""

AT_RUN_TIME = {
    f"INSERT INTO lake.db.t SELECT if(id = 3, NULL, id), 'a', {DAY} FROM range(0, 5, 1, 2)": "non-nullable field",
    "INSERT INTO lake.db.k SELECT if(id = 3, NULL, id), 'a', 1 FROM range(0, 5, 1, 2)": "non-nullable field",
    "UPDATE lake.db.t SET id = NULL WHERE id = 1": "non-nullable field",
    **{
        f"MERGE INTO lake.db.{table} t USING (SELECT * FROM VALUES (1, 'q'), (1, 'r') AS s(id, v)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v": "matched a single row from the target table with multiple rows"
        for table in ("t", "k")
    },
}
"""What only the rows show: nulls where there may be none, and a MERGE that matches a row twice."""


@pytest.fixture
def files(sql: Run, lake: Lake) -> Callable[[], dict[str, bytes]]:
    """Two tables with a tag each; every file of the lake with its bytes, but indexes of tags, which readers refresh."""
    sql("CREATE TABLE lake.db.t (id BIGINT NOT NULL, v STRING, d DATE)")
    sql(f"CREATE TABLE lake.db.k (id BIGINT NOT NULL, v STRING, n INT) {KEYED}")
    for id in (1, 2):
        sql(f"INSERT INTO lake.db.t VALUES ({id}, 'a', {DAY})")
        sql(f"INSERT INTO lake.db.k VALUES ({id}, 'a', {id})")
        lake.table("db.t" if id == 2 else "db.k").create_tag("x")
    root = Path(lake.url.removeprefix("file://"))

    def read() -> dict[str, bytes]:
        result = {}
        for path in root.rglob("*"):
            if path.is_file() and path.name != "tag-index":
                with suppress(FileNotFoundError):  # of a task that was killed
                    result[str(path)] = path.read_bytes()
        return result

    return read


def check(sql: Run, lake: Lake, files: Callable[[], dict[str, bytes]], statement: str, sentence: str) -> None:
    """A statement is refused with the sentence; judged by the bytes of all files of the lake, it changes nothing."""
    before = files()
    with pytest.raises(PySparkException) as raised:
        sql(statement)
    kind = SparkRuntimeException if statement in AT_RUN_TIME else AnalysisException
    assert isinstance(raised.value, kind), statement
    assert sentence in str(raised.value), statement
    assert "\tat " not in str(raised.value), statement
    if statement not in AT_RUN_TIME:
        assert files() == before, statement
        return

    def cleaned() -> dict[str, bytes]:
        for name in ("db.t", "db.k"):
            lake.table(name).collect(grace_ms=0)
        return files()

    try:
        # A task that ended after its job had failed leaves files, which no version references.
        wait_until(lambda: cleaned() == before)
    except AssertionError:
        assert cleaned() == before, statement


def test_a_mistake_is_a_sentence_and_changes_nothing(
    sql: Run, lake: Lake, files: Callable[[], dict[str, bytes]]
) -> None:
    """What only the rows show is Spark's own error; all others are found by the analysis."""
    for statement, sentence in (NAMES | ROWS | AT_RUN_TIME).items():
        check(sql, lake, files, statement, sentence)


def test_arguments_mean_the_same_in_every_session(session: SparkSession, sql: Run, lake: Lake) -> None:
    """Without ANSI mode a cast that fails is null, and a time as text is that of the session's zone."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    for id in (1, 2):
        table.append(pa.table({"id": [id]}))
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # fourteen hours before UTC
    with pytest.raises(AnalysisException, match="its type is boolean: give true or false"):
        sql("CALL lake.sys.expire_snapshots('db.t', 1, 1, dry_run => 'ture')")
    before = f"timestamp_millis({table.snapshot(1).time_ms - 1})"
    expired = f"CALL lake.sys.expire_snapshots('db.t', retain_min => 1, older_than => {before}, dry_run => true)"
    assert [row[0] for row in sql(expired)] == [0]
    sql("CALL lake.sys.create_tag('db.t', 'x', (SELECT '1'), INTERVAL '25' HOUR)")
    assert sql("SELECT snapshot_id, time_retained FROM lake.db.t.tags") == [(1, "PT25H")]


def test_an_option_that_means_nothing_is_refused_on_every_path(
    session: SparkSession, sql: Run, lake: Lake, tmp_path: Path
) -> None:
    """Where manifests answer, where Spark reads nothing, in system tables, writes and streams; known ones are taken."""
    sql("CREATE TABLE lake.db.t (id BIGINT)")
    for id in (1, 2):
        sql(f"INSERT INTO lake.db.t VALUES ({id})")
    lake.table("db.t").create_tag("x", snapshot_id=1)
    read = session.read.option("tag", "x").table
    option = session.table("lake.db.t").writeTo("lake.db.t").option("tag", "x")
    following = session.readStream.option("tag", "x").table

    def stream(name: str) -> DataStreamWriter:
        rows = session.readStream.table("lake.db.t")
        return rows.writeStream.queryName(name).option("checkpointLocation", str(tmp_path / name))

    paths: tuple[Callable[[], Any], ...] = (
        lambda: read("lake.db.t").count(),
        lambda: read("lake.db.t").agg({"id": "max"}).collect(),
        lambda: read("lake.db.t").where("false").collect(),
        lambda: read("lake.db.t").limit(0).collect(),
        lambda: read("lake.db.t").collect(),
        lambda: read("lake.db.`t$snapshots`").where("false").collect(),
        lambda: read("lake.db.`t$snapshots`").count(),
        lambda: read("lake.db.`t$audit_log`").collect(),
        lambda: sql("SELECT (SELECT count(*) FROM lake.db.t WITH (tag = 'x'))"),
        lambda: sql("DELETE FROM lake.db.t WITH (tag = 'x') WHERE id = 2"),
        lambda: sql("UPDATE lake.db.t WITH (tag = 'x') SET id = 3"),
        lambda: option.append(),
        lambda: option.overwritePartitions(),
        lambda: session.table("lake.db.t").write.option("tag", "x").mode("append").saveAsTable("lake.db.t"),
        lambda: following("lake.db.t").writeStream.format("noop").start().processAllAvailable(),
        lambda: stream("bad").option("tag", "x").toTable("lake.db.t").processAllAvailable(),
    )
    for number, path in enumerate(paths):
        with pytest.raises((AnalysisException, StreamingQueryException), match=r"option '?tag'?") as refused:
            path()
        assert "Options.check" not in str(refused.value), number
    for query in session.streams.active:
        query.stop()
    assert sql("SELECT id FROM lake.db.t ORDER BY id") == [(1,), (2,)]
    assert session.read.option("versionAsOf", "x").table("lake.db.t").count() == 1
    assert session.read.option("versionasof", 1).table("lake.db.t").where("false").count() == 0
    assert stream("good").trigger(availableNow=True).toTable("lake.db.t").awaitTermination(SECONDS_MAX)
    assert sql("SELECT count(*) FROM lake.db.t") == [(4,)]


@pytest.mark.long
def test_more_unknown_names(sql: Run, lake: Lake, files: Callable[[], dict[str, bytes]]) -> None:
    """As above."""
    for statement, sentence in MORE_NAMES.items():
        check(sql, lake, files, statement, sentence)


@pytest.mark.long
def test_tables_that_go_under_a_running_stream(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """A dropped source or sink, one that was created again, and an offset whose snapshots have expired."""

    def start(checkpoint: str) -> StreamingQuery:
        sql("CREATE TABLE IF NOT EXISTS lake.db.src (id BIGINT)")
        sql("CREATE TABLE IF NOT EXISTS lake.db.dst (id BIGINT)")
        sql("INSERT INTO lake.db.src VALUES (1)")
        rows = session.readStream.table("lake.db.src")
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(processingTime="100 milliseconds").toTable("lake.db.dst")
        query.processAllAvailable()
        return query

    def ends(query: StreamingQuery, sentence: str) -> None:
        try:
            with pytest.raises(StreamingQueryException, match=sentence) as raised:
                query.awaitTermination(SECONDS_MAX)
            assert "Refused" not in str(raised.value)
        finally:
            query.stop()

    query = start("source")
    sql("DROP TABLE lake.db.src")
    ends(query, "has no table db.src")

    query = start("sink")
    sql("DROP TABLE lake.db.dst")
    sql("INSERT INTO lake.db.src VALUES (2)")
    ends(query, "has no table db.dst")

    query = start("again")
    sql("DROP TABLE lake.db.dst")
    sql("CREATE TABLE lake.db.dst (id BIGINT)")
    sql("INSERT INTO lake.db.src VALUES (3)")
    ends(query, "The table db.dst was dropped and created again")
    assert sql("SELECT * FROM lake.db.dst") == []

    start("expired").stop()
    for id in (4, 5):
        sql(f"INSERT INTO lake.db.src VALUES ({id})")
    sql("CALL lake.sys.expire_snapshots('db.src', 1, 1)")
    with pytest.raises(StreamingQueryException, match=r"have expired .* start again with a new checkpoint and mode="):
        start("expired")
