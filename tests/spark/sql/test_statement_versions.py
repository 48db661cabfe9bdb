"""Another writer commits between the analysis of a statement and its run."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

Run = Callable[[str], list[tuple[Any, ...]]]

PROPERTIES = {
    "append": "",
    "vectors": "TBLPROPERTIES ('deletion-vectors.enabled' = 'true')",
    "keyed": "TBLPROPERTIES ('primary-key' = 'k', 'bucket' = '8')",
}
LARGEST = "(SELECT max(k) FROM {t})"
SOURCE = f"USING {LARGEST.replace('max(k)', 'max(k) AS k')} s ON t.k = s.k"
STATEMENTS = (
    f"DELETE FROM {{t}} WHERE k = {LARGEST}",
    f"UPDATE {{t}} SET v = 100 WHERE k = {LARGEST}",
    f"UPDATE {{t}} SET v = {LARGEST} WHERE k = 1",
    f"MERGE INTO {{t}} t {SOURCE} WHEN MATCHED THEN DELETE",
    f"MERGE INTO {{t}} t {SOURCE} WHEN MATCHED THEN UPDATE SET v = 100 "
    "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, 0)",
)
BRIDGE = """
import sys
from pathlib import Path
import pyarrow as pa
from lakebed.lake.lake import open_lake
from lakebed.spark import bridge
from lakebed.spark.catalog import VERBS

run = VERBS["load"].run

def loading(self, session, lake_url):
    answer = run(self, session, lake_url)
    waiting = Path(sys.argv[1])
    if waiting.exists():
        what = waiting.read_text()
        waiting.unlink()
        table = open_lake(lake_url).table("db.t")
        if what == "a column":
            table.add_column("w", "INT")
        else:
            table.write(pa.table({"k": [9], "v": [9]}, table.arrow_schema))
    return answer

VERBS["load"].run = loading
bridge.main()
"""


def results(statement: str) -> list[list[tuple[Any, ...]]]:
    """What the statement and the other writer's row make of the table, in either order."""
    both = []
    for row_is_first in (False, True):
        with duckdb.connect() as judge:
            judge.execute("CREATE TABLE t AS SELECT * FROM (VALUES (1, 1), (2, 2)) rows(k, v)")
            steps = [statement.format(t="t"), "INSERT INTO t VALUES (9, 9)"]
            for step in reversed(steps) if row_is_first else steps:
                judge.execute(step)
            both.append(sorted(judge.execute("SELECT k, v FROM t").fetchall()))
    return both


@pytest.fixture
def between(session: SparkSession, tmp_path: Path) -> Path:
    """A file that says what the other writer does after the next table is loaded; then it is gone."""
    program, waiting = tmp_path / "program.py", tmp_path / "waiting"
    program.write_text(BRIDGE)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$2" = lakebed.spark.bridge ]; then exec {sys.executable} {program} {waiting}; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.catalog.lake.python", str(python))
    return waiting


def make_table(sql: Run, kind: str) -> None:
    """Two rows in one snapshot."""
    sql(f"CREATE TABLE lake.db.t (k BIGINT NOT NULL, v BIGINT) {PROPERTIES[kind]}")
    sql("INSERT INTO lake.db.t VALUES (1, 1), (2, 2)")


@pytest.mark.parametrize("kind", PROPERTIES)
def test_a_statement_reads_one_version(sql: Run, between: Path, kind: str) -> None:
    """A row that comes between is seen by the target, the subqueries and the source of a statement, or by none."""
    for statement in STATEMENTS:
        make_table(sql, kind)
        between.write_text("a row")
        if statement.startswith("MERGE") and kind != "keyed":  # it refuses where rows were added to its partitions
            with pytest.raises(PySparkException, match="Another writer changed rows"):
                sql(statement.format(t="lake.db.t"))
            assert sorted(sql("SELECT k, v FROM lake.db.t")) == [(1, 1), (2, 2), (9, 9)]
        else:
            sql(statement.format(t="lake.db.t"))
            assert sorted(sql("SELECT k, v FROM lake.db.t")) in results(statement), statement
        assert not between.exists(), "or the other writer was not between"
        sql("DROP TABLE lake.db.t")


def test_a_column_that_comes_while_a_statement_runs(sql: Run, between: Path) -> None:
    """Its rows would empty the column: it is refused as a race, and not as a mistake, and runs when it runs again."""
    make_table(sql, "keyed")
    between.write_text("a column")
    with pytest.raises(AnalysisException, match="The column w was added to") as caught:
        sql("UPDATE lake.db.t SET v = 100 WHERE k = 1")
    assert caught.value.getSqlState() == "40001"
    sql("UPDATE lake.db.t SET v = 100 WHERE k = 1")
    assert sorted(sql("SELECT k, v, w FROM lake.db.t")) == [(1, 100, None), (2, 2, None)]
