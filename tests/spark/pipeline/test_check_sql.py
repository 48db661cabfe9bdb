"""SQL of a pipeline is read by Spark's own parser when it is checked; times without a zone are stored in UTC."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.lake.lake import open_lake
from lakebed.pipeline import check_file
from lakebed.spark.dataframe.writing import write_arrow
from lakebed.table.model.model import DataField
from lakebed.table.table import Table

TEXT = """\
name: checked
lake: ${here}/lake
steps:
  - step: ingest
    from: ${here}/in.csv
    as: delivery
    select: SELECT *, id * 2 AS twice FROM files QUALIFY row_number() OVER (PARTITION BY id ORDER BY at DESC) = 1
  - step: audit
    from: delivery
    where: at >= current_date() - INTERVAL 1 DAY
    every_row:
      a name: name RLIKE '^[a-z]+$' AND name NOT ILIKE ALL ('x%', 'y%')
    overall:
      enough: count(*) FILTER (WHERE id IS DISTINCT FROM 0) > approx_percentile(id, 0.5)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline whose SQL is all of it valid."""
    (tmp_path / "in.csv").write_text("id,name,at\n")
    (tmp_path / "checked.yaml").write_text(TEXT)
    return tmp_path / "checked.yaml"


def test_sql_that_spark_understands_is_no_mistake(spark: SparkSession, file: Path) -> None:
    """Whatever of Spark's language it uses."""
    assert check_file(file).sql_unchecked is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("RLIKE", "RLIEK", "line 8: expectation 'a name' is not SQL that Spark understands: [PARSE_SYNTAX_ERROR]"),
        ("FILTER (", "FILTER (((", "line 8: expectation 'enough' is not SQL"),
        ("at >= current", "at BETWEN current", "line 8: 'where' is not SQL"),
        ("* 2 AS twice", "* 2 twice twice", "line 4: 'select' is not SQL"),
    ],
)
def test_sql_that_does_not_parse_is_found(spark: SparkSession, file: Path, old: str, new: str, words: str) -> None:
    """With the step's line and Spark's words, in one line."""
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(InvalidRequest) as caught:
        check_file(file)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


QUERIES = (
    TEXT[: TEXT.index("  - step: audit")]
    + """\
  - step: audit
    query: >
      WITH few AS (SELECT id FROM trips LIMIT 3), none AS (SELECT * FROM few)
      SELECT *, (SELECT max(id) FROM Delivery) AS top FROM none JOIN range(3) ON true
      WHERE id IN (SELECT t.id FROM trips t) OR EXISTS (SELECT 1 FROM VALUES (1) AS v(x))
        OR id IN (SELECT id FROM csv.`a`)
    every_row: {an id: id IS NOT NULL}
"""
)


def test_the_tables_of_a_query_are_looked_up(spark: SparkSession, file: Path) -> None:
    """Views of earlier steps, tables of the lake and of the file; names that the query gives itself are none."""
    lake = open_lake(str(file.parent / "lake"))
    file.write_text(QUERIES)
    with pytest.raises(InvalidRequest, match=r"line 8: 'query' reads 'trips': there is neither a table nor a view"):
        check_file(file)
    lake.create_table("trips", pa.schema([pa.field("id", pa.int64())]))
    assert check_file(file).sql_unchecked is None
    lake.drop_table("trips")
    file.write_text(QUERIES.replace("steps:", "tables: {trips: {schema: {id: BIGINT}}}\nsteps:"))
    assert check_file(file).sql_unchecked is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("FROM trips LIMIT", "FROM trops LIMIT", "'query' reads 'trops': there is neither a table nor a view"),
        ("FROM Delivery", "FROM deliverys", "Did you mean 'delivery'?"),
        ("FROM trips t", "FROM trops t", "'query' reads 'trops'"),
        ("FROM files", "FROM file", "line 5: 'select' reads 'file': there is neither a table nor a view"),
    ],
)
def test_a_query_of_a_table_that_is_not_there_is_found(
    spark: SparkSession, file: Path, old: str, new: str, words: str
) -> None:
    """Also in a subquery and in a common table expression, with the nearest name."""
    text = QUERIES.replace("steps:", "tables: {trips: {schema: {id: BIGINT}}}\nsteps:")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    with pytest.raises(InvalidRequest) as caught:
        check_file(file)
    assert words in caught.value.message


@pytest.mark.xdist_group("spark of a check")
def test_a_check_starts_a_jvm_when_none_runs(file: Path) -> None:
    """In a process of its own: quiet, and nothing of it stays."""
    file.write_text(TEXT.replace("RLIKE", "RLIEK"))
    command = [sys.executable, "-W", "error", "-m", "lakebed.cli", "pipeline", "run", str(file), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "expectation 'a name' is not SQL that Spark understands" in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) < 5, done.stderr


@pytest.mark.parametrize("local", [True, False])
def test_a_timestamp_is_stored_in_utc_where_the_table_has_no_zone(
    spark: SparkSession, make_table: Callable[..., Table], local: bool
) -> None:
    """What a clock in UTC showed, to the millisecond; in a session of another zone it is refused."""
    schema = [DataField(0, "id", "BIGINT", nullable=False), DataField(1, "at", "TIMESTAMP(3)")]
    table = make_table(schema, primary_keys=["id"], options={"bucket": "1"})
    if local:
        rows = pa.table({"id": [1], "at": pa.array([1356998400123000], pa.timestamp("us", tz="UTC"))})
        write_arrow(rows, table)
    else:
        frame = spark.sql("SELECT 1L AS id, timestamp_micros(1356998400123000) AS at")
        lakebed.spark.upsert(frame, table)
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        try:
            with pytest.raises(InvalidRequest, match="session is Europe/Berlin, not UTC: cast it to timestamp_ntz"):
                lakebed.spark.upsert(frame, table)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert table.read()["at"].to_pylist() == [datetime.datetime(2013, 1, 1, 0, 0, 0, 123000)]
