"""Statements that Spark's grammar lacks, and what an error of lakebed says to a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def sql(sql: Run, lake: Lake) -> Run:
    """With a table of two snapshots."""
    sql("CREATE TABLE lake.db.t (tag INT)")
    for value in (1, 2):
        sql(f"INSERT INTO lake.db.t VALUES ({value})")
    return sql


def test_tags_and_branches_are_statements(sql: Run, session: SparkSession, lake: Lake) -> None:
    """They mean what their procedures do; names are found as in any other statement."""
    sql("USE lake.db")
    assert sql("-- a comment\n/* and one */ alter table t create tag `it's` as of version 1;") == [("it's", 1)]
    assert sql("ALTER TABLE db.t CREATE TAG IF NOT EXISTS `it's`") == [("it's", 1)]
    assert sql("ALTER TABLE `lake`.db.`t`\nREPLACE  TAG `it's` RETAIN 2 HOURS") == [("it's", 2)]
    assert lake.table("db.t").tag("it's").lifetime_ms == 7_200_000
    assert sql("ALTER TABLE t CREATE TAG IF NOT EXISTS more") == [("more", 2)]
    assert [row.tag_name for row in session.sql("SHOW TAGS IN t").collect()] == ["it's", "more"]
    assert sql("ALTER TABLE t CREATE BRANCH b AS OF TAG more") == [("b",)]
    assert [row[0] for row in sql("SHOW BRANCHES t")] == ["b"]
    sql("ALTER TABLE t DELETE BRANCH b")
    sql("ALTER TABLE t DELETE TAG `it's`")
    sql("ALTER TABLE t DROP TAG more")
    assert sql("SHOW TAGS lake.db.t") == []


def test_tags_in_plans_scripts_and_with_parameters(sql: Run, session: SparkSession, lake: Lake) -> None:
    """EXPLAIN runs nothing; words of scripts may be names; a parameter may be a name, a version or a lifetime."""
    assert "create_tag" in sql("EXPLAIN ALTER TABLE lake.db.t CREATE TAG x")[0][0]
    assert "Plan" in sql("-- why\nEXPLAIN FORMATTED SHOW TAGS lake.db.t")[0][0]
    assert sql("SHOW TAGS lake.db.t") == []
    script = """BEGIN
      DECLARE n INT DEFAULT 1; -- a comment; with a semicolon
      IF n = 1 THEN ALTER TABLE lake.db.t CREATE TAG do; END IF;
      SELECT ';BEGIN ALTER TABLE lake.db.t CREATE TAG no;';
      ALTER TABLE lake.db.t CREATE TAG `a;b` AS OF VERSION 1;
      SELECT tag_name, snapshot_id FROM lake.db.t.tags;
    END"""
    assert sql(script) == [("a;b", 1), ("do", 2)]
    named = {"tag": "x", "id": 1, "life": "2 days"}
    session.sql("ALTER TABLE lake.db.t CREATE TAG :tag AS OF VERSION :id RETAIN :life", args=named).collect()
    assert (lake.table("db.t").tag("x").snapshot.id, lake.table("db.t").tag("x").lifetime_ms) == (1, 172_800_000)
    session.sql("ALTER TABLE lake.db.t RENAME TAG ? TO ?", args=["x", "y"]).collect()
    assert [row.tag_name for row in session.sql("SHOW TAGS lake.db.t").collect()] == ["a;b", "y", "do"]
    assert sql("-- many comments\n" * 5000 + "SELECT 1") == [(1,)]


def test_keys_are_found_in_any_case(sql: Run, lake: Lake) -> None:
    """As columns are in all of Spark SQL: a key in other letters is the column's."""
    sql("CREATE TABLE lake.db.a (Id INT, Day INT, v INT, PRIMARY KEY (ID, day)) PARTITIONED BY (DAY)")
    sql("CREATE TABLE lake.db.b (Id INT, v INT) TBLPROPERTIES ('primary-key' = 'ID')")
    assert lake.table("db.a").schema.primary_keys == ("Id", "Day")
    assert lake.table("db.b").schema.primary_keys == ("Id",)


def test_procedures_find_tables_as_statements_do(sql: Run, lake: Lake) -> None:
    """With the catalog, in backquotes, in the current database, on a branch; another catalog's are refused."""
    sql("CREATE TABLE lake.t (id INT)")
    sql("INSERT INTO lake.t VALUES (1)")
    sql("CALL lake.sys.create_branch('lake.db.t', 'dev')")
    sql("INSERT INTO lake.db.`t$branch_dev` VALUES (3)")
    names = {
        "db.t": 2,
        "lake.db.t": 2,
        " `lake` .db.`t`": 2,
        "t": 1,
        "lake.t": 1,
        "db.t$branch_dev": 3,
        "`lake`.`db`.`t$branch_dev`": 3,
    }
    for number, (name, snapshot) in enumerate(names.items()):
        assert sql(f"CALL lake.sys.create_tag('{name}', 'a{number}')") == [(f"a{number}", snapshot)], name
    sql("ALTER TABLE lake.db.`t$branch_dev` CREATE TAG b")
    assert [row[:2] for row in sql("SHOW TAGS lake.db.`t$branch_dev`")] == [("a5", 3), ("a6", 3), ("b", 3)]
    sql("USE lake.db")
    for number, (name, snapshot) in enumerate({"t": 2, "default.t": 1, "lake.t": 1}.items()):
        assert sql(f"CALL sys.create_tag(table => '{name}', tag => 'c{number}')") == [(f"c{number}", snapshot)], name
    assert sql("ALTER TABLE lake.t CREATE TAG d") == [("d", 1)]
    assert [tag.name for tag in lake.table("t").tags()] == ["a3", "a4", "c1", "c2", "d"]
    for name, sentence in (
        ("spark_catalog.db.t", "is of the catalog spark_catalog, and the procedure of the catalog lake"),
        ("other.db.t", "has more than one dot"),
        ("db.`t", "has no table db.`t"),
        ("db.t$branch_no", "no branch 'no' of table 'db.t'"),
    ):
        with pytest.raises(AnalysisException, match=sentence):
            sql(f"CALL sys.create_tag('{name}', 'e')")
    with pytest.raises(AnalysisException, match="import_table works on the main branch"):
        sql("CALL sys.import_table('new$branch_dev', 'nowhere', 'parquet')")


def test_other_statements_are_sparks_own(sql: Run) -> None:
    """Also those that begin alike, and those on tables of other catalogs."""
    with pytest.raises(ParseException):
        sql("ALTER TABLE spark_catalog.default.t CREATE TAG x")
    with pytest.raises(ParseException):
        sql("SHOW TAGS spark_catalog.default.t")
    with pytest.raises(ParseException):
        sql("ALTER TABLE lake.db.t CREATE INDEX x")
    assert sql("SELECT 'ALTER TABLE lake.db.t CREATE TAG x', 'SHOW TAGS lake.db.t'")[0][1] == "SHOW TAGS lake.db.t"
    sql("ALTER TABLE lake.db.t RENAME COLUMN tag TO branch")
    assert sql("SELECT max(branch) FROM lake.db.t") == [(2,)]


def test_an_error_says_to_a_program_what_happened(sql: Run) -> None:
    """Each getter of PySpark answers, and none fails."""
    for statement, state, kind, sentence in (
        ("SELECT * FROM lake.db.t VERSION AS OF 'x'", "42704", "version_not_found", "has no tag or branch 'x'"),
        ("ALTER TABLE lake.db.t CREATE TAG y AS OF VERSION 8", "42704", "snapshot_not_found", "no snapshot 8"),
        ("ALTER TABLE lake.db.t CREATE BRANCH main", "42000", "invalid_branch_name", "main"),
        ("ALTER TABLE lake.db.t DROP TAG a b", "42000", "invalid_request", "DROP TAG a b is not a statement"),
    ):
        with pytest.raises(AnalysisException, match=sentence) as raised:
            sql(statement)
        error = raised.value
        assert (error.getSqlState(), error.getMessageParameters()["kind"]) == (state, kind)
        assert error.getCondition() == "USER_RAISED_EXCEPTION"
        assert error.getMessageParameters()["errorMessage"] == str(error)
        assert str(error) in error.getMessage()


def test_system_tables_of_a_version(sql: Run, lake: Lake) -> None:
    """By id, tag, branch and time, and written in both ways; those that snapshots do not hold are refused."""
    lake.table("db.t").create_tag("v1", snapshot_id=1)
    sql("CALL lake.sys.create_branch('db.t', 'dev', 'v1')")
    sql("INSERT INTO lake.db.`t$branch_dev` VALUES (3)")
    sql("ALTER TABLE lake.db.t ADD COLUMN v STRING")
    time = f"timestamp_millis({lake.table('db.t').snapshot(1).time_ms})"
    for table, version in (
        ("lake.db.t.{}", "VERSION AS OF 'v1'"),
        ("lake.db.`t${}`", "VERSION AS OF 1"),
        ("lake.db.`t${}`", f"TIMESTAMP AS OF {time}"),
    ):
        assert sql(f"SELECT snapshot_id, commit_kind FROM {table.format('snapshots')} {version}") == [(1, "APPEND")]
        assert sql(f"SELECT commit_snapshot FROM {table.format('files')} {version}") == [(1,)], version
        assert sql(f"SELECT schema_id FROM {table.format('schemas')} {version}") == [(0,)], version
    assert sql("SELECT count(*) FROM lake.db.t.statistics VERSION AS OF 1") == [(0,)]
    assert sql("SELECT snapshot_id FROM lake.db.t.snapshots VERSION AS OF 'dev' ORDER BY 1") == [(1,), (2,)]
    assert sql("SELECT commit_snapshot FROM lake.db.t.files VERSION AS OF 'dev' ORDER BY 1") == [(1,), (2,)]
    assert len(sql("SELECT * FROM lake.db.t.schemas")) == 2
    for name in ("tags", "branches", "consumers"):
        for version in ("VERSION AS OF 1", f"TIMESTAMP AS OF {time}"):
            with pytest.raises(AnalysisException, match=f"snapshots do not hold {name}, .* Leave the version out"):
                sql(f"SELECT * FROM lake.db.t.{name} {version}")
    with pytest.raises(AnalysisException, match="the earliest time that can be read is"):
        sql("SELECT * FROM lake.db.t.snapshots TIMESTAMP AS OF '1999-01-01'")


def test_readers_that_are_kept_follow_the_settings(session: SparkSession, sql: Run) -> None:
    """A filter needs no broadcast; other columns, another setting of the session and one of Hadoop need one each."""
    sql("CREATE TABLE lake.db.kept AS SELECT id, id % 7 AS v FROM range(1000)")
    context: Any = session.sparkContext._jsc.sc()
    kind = context.getClass().getClassLoader().loadClass("java.lang.String")
    tag = session._jvm.scala.reflect.ClassTag.apply(kind)

    def broadcasts(where: str, columns: str = "v") -> int:
        """The broadcasts of a statement whose rows are right, and one that counts them."""
        before = int(context.broadcast("x", tag).id())
        assert sql(f"SELECT {columns} FROM lake.db.kept WHERE {where}")[0][-1] == int(where.split()[-1]) % 7
        return int(context.broadcast("x", tag).id()) - before

    first = broadcasts("id = 8")
    assert broadcasts("id = 10") == first - 1
    assert broadcasts("id = 11", "id, v") == first - 1  # the filter's column was read before, too
    assert broadcasts("v = 6", "v") == first
    context.hadoopConfiguration().set("a.setting.of.hadoop", "1")
    try:
        assert broadcasts("id = 13") == first
        session.conf.set("spark.sql.parquet.filterPushdown", "false")
        assert broadcasts("id = 13") == first
        assert broadcasts("id = 12") == first - 1
    finally:
        context.hadoopConfiguration().unset("a.setting.of.hadoop")
