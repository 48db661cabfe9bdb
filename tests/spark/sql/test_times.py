"""Times that a session shows mean, given back to it, the instants that they are, in every time zone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake, open_lake
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock

Run = Callable[[str], list[tuple[Any, ...]]]

HOURS = 8
BEFORE_CHANGE = dt.datetime(2025, 11, 2, 2, 30, 0, 123_000, tzinfo=dt.UTC)
"""At 6:00 UTC on that day clocks in New York go back from 2:00 to 1:00."""


@pytest.fixture
def hourly(lake: Lake) -> Table:
    """A table with a snapshot in each hour, whose ids count from 1 as its rows do."""
    clock = ManualClock(start_ms=int(BEFORE_CHANGE.timestamp() * 1000))
    table = open_lake(lake.url, environment=Environment(clock=clock)).create_table(
        "db.t", pa.schema([("id", pa.int32())])
    )
    for number in range(1, HOURS + 1):
        table.append(pa.table({"id": pa.array([number], pa.int32())}))
        clock.advance(3600)
    return table


@pytest.fixture(params=["America/New_York", "Asia/Kolkata"])
def zoned(request: pytest.FixtureRequest, session: SparkSession, hourly: Table) -> Iterator[SparkSession]:
    """A session in a time zone, with the table."""
    session.conf.set("spark.sql.session.timeZone", request.param)
    yield session
    session.conf.unset("spark.sql.session.timeZone")


def shown_times(session: SparkSession) -> dict[int, str]:
    """The times that DESCRIBE HISTORY shows, as text, by snapshot."""
    history = session.sql("DESCRIBE HISTORY lake.db.t")
    return {
        row.snapshot_id: row.text
        for row in history.selectExpr("snapshot_id", "CAST(commit_time AS STRING) AS text").collect()
    }


def test_a_time_that_is_shown_reads_the_version_that_it_was_shown_of(
    zoned: SparkSession, sql: Run, lake: Lake, hourly: Table
) -> None:
    """TIMESTAMP AS OF, a tag, a rollback and expiry take the text of DESCRIBE HISTORY, also when clocks change."""
    times = shown_times(zoned)
    zone = zoned.conf.get("spark.sql.session.timeZone")
    assert times[1] == {"America/New_York": "2025-11-01 22:30:00.123", "Asia/Kolkata": "2025-11-02 08:00:00.123"}[zone]
    # The hour that New York has twice: its text means the first one.
    expected = {number: number for number in times}
    if zone == "America/New_York":
        assert times[4] == times[5]
        expected[5] = 4
    for number, text in times.items():
        assert sql(f"SELECT max(id) FROM lake.db.t TIMESTAMP AS OF '{text}'") == [(expected[number],)], text
        assert sql(f"CALL lake.sys.create_tag_from_timestamp('db.t', 't{number}', '{text}')") == [
            (f"t{number}", expected[number])
        ]
    tags = zoned.sql("SHOW TAGS lake.db.t").selectExpr("snapshot_id", "CAST(commit_time AS STRING)").collect()
    assert all(times[row[0]] == row[1] for row in tags)
    sql(f"CALL lake.sys.rollback_to_timestamp('db.t', '{times[7]}')")
    assert sql("SELECT max(id) FROM lake.db.t") == [(7,)]
    sql(f"CALL lake.sys.expire_snapshots('db.t', retain_min => 1, retain_max => 9, older_than => '{times[3]}')")
    assert sql("SELECT min(snapshot_id) FROM lake.db.t.snapshots") == [(3,)]


def test_dates_and_other_values_are_in_the_zone_of_the_session(zoned: SparkSession, sql: Run) -> None:
    """Midnight is the session's; a TIMESTAMP, a text with a zone and milliseconds are the same instant everywhere."""
    zone = zoned.conf.get("spark.sql.session.timeZone")
    midnight = {"America/New_York": 2, "Asia/Kolkata": None}[zone]
    if midnight is None:
        with pytest.raises(AnalysisException, match="Nothing is kept from"):
            sql("CALL lake.sys.create_tag_from_timestamp('db.t', 'day', '2025-11-02')")
    else:
        assert sql("CALL lake.sys.create_tag_from_timestamp('db.t', 'day', '2025-11-02')") == [("day", midnight)]
    for number, text in enumerate(
        (
            "'2025-11-02T05:00:00Z'",
            "'2025-11-02 06:00:00+01:00'",
            "TIMESTAMP'2025-11-02 05:00:00Z'",
            str(int(BEFORE_CHANGE.timestamp() * 1000) + 2 * 3_600_000),
            f"to_timestamp('{ {'America/New_York': '2025-11-02 01:00', 'Asia/Kolkata': '2025-11-02 10:30'}[zone] }')",
        )
    ):
        assert sql(f"CALL lake.sys.create_tag_from_timestamp('db.t', 'x{number}', {text})") == [(f"x{number}", 3)], text
    for text in ("yesterday", "20251102T050000"):
        with pytest.raises(AnalysisException, match="is not a valid time"):
            sql(f"CALL lake.sys.create_tag_from_timestamp('db.t', 'y', '{text}')")


@pytest.mark.parametrize("zoned", ["America/New_York"], indirect=True)
def test_every_time_of_a_system_table_is_an_instant(zoned: SparkSession, sql: Run, hourly: Table) -> None:
    """In SQL and in DataFrames; the columns of Python keep the format's type, in UTC."""
    sql("ALTER TABLE lake.db.t CREATE TAG x RETAIN 2 DAYS")
    sql("CALL lake.sys.create_branch('db.t', 'b')")
    for name in ("snapshots", "tags", "branches", "schemas", "files", "partitions"):
        rows = hourly.system(name)
        times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type)]
        assert times
        for frame in (zoned.table(f"lake.db.t.{name}"), lakebed.spark.read(zoned, hourly, system=name)):
            types = dict(frame.dtypes)
            assert {types[column] for column in times} == {"timestamp"}
            shown = frame.selectExpr(*(f"unix_millis({column})" for column in times)).collect()
            instants = [
                [None if time is None else time.replace(tzinfo=dt.UTC) for time in rows[column].to_pylist()]
                for column in times
            ]
            expected = [
                tuple(None if time is None else round(time.timestamp() * 1000) for time in row)
                for row in zip(*instants, strict=True)
            ]
            assert sorted(map(tuple, shown), key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("zoned", ["America/New_York"], indirect=True)
def test_a_stream_begins_at_a_time_of_the_session(zoned: SparkSession, sql: Run, tmp_path: Any) -> None:
    """The option timestamp of a stream takes the text that DESCRIBE HISTORY shows."""
    text = shown_times(zoned)[7]
    reader = zoned.readStream.option("mode", "from-timestamp").option("timestamp", text).table("lake.db.t")
    query = (
        reader.writeStream.format("memory")
        .queryName("begun")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "at"))
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(sql("SELECT id FROM begun")) == [(7,), (8,)]


def test_times_that_python_has_not_are_found_in_rows_that_a_merge_makes(sql: Run) -> None:
    """Tasks in Python get a filter with such a time as it is: SELECT finds its rows, and UPDATE changes them."""
    sql("CREATE TABLE lake.db.far (id INT, z TIMESTAMP, n TIMESTAMP_NTZ, d DATE, v INT, PRIMARY KEY (id))")
    far = "TIMESTAMP'+10000-01-01 00:00:00', TIMESTAMP_NTZ'-0044-03-15 12:00:00', DATE'+10000-01-01'"
    sql(f"INSERT INTO lake.db.far VALUES (1, {far}, 0), (2, {far}, 0), (3, NULL, NULL, NULL, 0)")
    sql("INSERT INTO lake.db.far VALUES (2, TIMESTAMP'2000-01-01 00:00:00', NULL, NULL, 0)")
    for condition in (
        "z = TIMESTAMP'+10000-01-01 00:00:00'",
        "z IN (TIMESTAMP'+10000-01-01 00:00:00', TIMESTAMP'-0044-03-15 12:00:00')",
        "n <= TIMESTAMP_NTZ'-0044-03-15 12:00:00'",
        "d > DATE'+9999-12-31' AND d IN (DATE'+10000-01-01', DATE'-0044-03-15')",
    ):
        assert sql(f"SELECT id FROM lake.db.far WHERE {condition}") == [(1,)], condition
        sql(f"UPDATE lake.db.far SET v = v + 1 WHERE {condition}")
    assert sql("SELECT id, v FROM lake.db.far ORDER BY id") == [(1, 4), (2, 0), (3, 0)]


def test_days_that_the_calendar_of_java_sql_lacks_are_found(sql: Run, session: SparkSession, lake: Lake) -> None:
    """From 5 to 14 October 1582, which java.sql takes for the 15th: a filter leaves out no file of them."""
    days = ("1582-10-04", "1582-10-10", "1582-10-15", "1899-12-31", "2024-02-29")
    for kind in ("DATE", "TIMESTAMP"):
        name = f"lake.db.{kind.lower()}s"
        sql(f"CREATE TABLE {name} (id INT, d {kind}) PARTITIONED BY (id)")  # a file a row, each with bounds
        rows = ", ".join(f"({number}, {kind}'{day}')" for number, day in enumerate(days))
        sql(f"INSERT INTO {name} VALUES {rows}")
        session.read.format("lakebed").load(lake.table(name.removeprefix("lake.")).url).createOrReplaceTempView(
            "source"
        )
        for number, day in enumerate(days):
            for place in (name, "source"):
                found = {
                    op: sorted(row[0] for row in sql(f"SELECT id FROM {place} WHERE d {op} {kind}'{day}'"))
                    for op in ("=", ">=", "<>")
                }
                others = [other for other in range(5) if other != number]
                assert found == {"=": [number], ">=": list(range(number, 5)), "<>": others}, (place, day)
