"""Streams whose table or sink is rolled back, expired, replaced, published or altered: each row once, or a sentence."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakebed.lake.lake import Lake

Run = Callable[[str], list[tuple[Any, ...]]]
SECONDS_MAX = 600
SOURCE, SINK = "lake.db.src", "lake.db.dst"


class Followed:
    """A query that has read the rows 0 to 19 of a table of two snapshots, and goes on after something has happened.

    The sink is the table `dst`, by toTable or by foreachBatch with a MERGE.
    """

    def __init__(self, session: SparkSession, sql: Run, folder: Path, *, merges: bool) -> None:
        self.session, self.sql, self.checkpoint, self.merges = session, sql, folder / "checkpoint", merges
        session.conf.set("spark.sql.shuffle.partitions", "1")
        keys = "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')" if merges else ""
        sql(f"CREATE TABLE {SOURCE} (id BIGINT NOT NULL, n INT)")
        sql(f"CREATE TABLE {SINK} (id BIGINT NOT NULL, n INT, times INT) {keys}")
        self.add(0)
        self.add(10)

    def add(self, start: int, table: str = SOURCE) -> None:
        """Insert ten rows, each with a number that follows from its id."""
        self.sql(f"INSERT INTO {table} BY NAME SELECT id, CAST(id * 3 AS INT) AS n FROM range({start}, {start + 10})")

    def run(self, table: str = SOURCE) -> None:
        """Read what is there."""
        rows = self.session.readStream.option("maxSnapshotsPerTrigger", "1").table(table)
        writer = rows.selectExpr("id", "n", "1 AS times").writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(self.merge).start() if self.merges else writer.toTable(SINK)
        try:
            assert query.awaitTermination(SECONDS_MAX)
        finally:
            query.stop()

    def merge(self, rows: DataFrame, batch: int) -> None:
        """Count how often a row came."""
        rows.createOrReplaceTempView("batch_rows")
        rows.sparkSession.sql(
            f"MERGE INTO {SINK} t USING batch_rows s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET times = t.times + s.times WHEN NOT MATCHED THEN INSERT *"
        )

    def check(self, *starts: int) -> None:
        """The sink has ten rows from each start, once, with their numbers if it has a column for them."""
        columns = [name for name in ("id", "n", "times") if name in self.session.table(SINK).columns]
        rows = [{"id": id, "n": id * 3, "times": 1} for start in starts for id in range(start, start + 10)]
        expected = Counter(tuple(row[name] for name in columns) for row in rows)
        assert Counter(self.sql(f"SELECT {', '.join(columns)} FROM {SINK}")) == expected


def publish(query: Followed) -> None:
    """A branch of the source gets rows and becomes main."""
    query.sql("CALL lake.sys.create_branch('db.src', 'b')")
    query.add(20, "lake.db.`src$branch_b`")
    query.sql("CALL lake.sys.fast_forward('db.src', 'b')")


def expire(query: Followed) -> None:
    """The stream has not read the snapshots that go."""
    query.add(20)
    query.add(30)
    bounds = "retain_max => 1, retain_min => 1, older_than => '2200-01-01'"
    query.sql(f"CALL lake.sys.expire_snapshots(table => 'db.src', {bounds})")


def roll_back(query: Followed) -> None:
    """Snapshots of the same ids have other rows."""
    query.sql("CALL lake.sys.rollback('db.src', '1')")
    query.add(40)
    query.add(50)


def replace_sink(query: Followed) -> None:
    """The sink is another table: what the checkpoint has as written does not come again."""
    query.sql(f"DROP TABLE {SINK}")
    query.sql(f"CREATE TABLE {SINK} (n INT, id BIGINT NOT NULL, times INT)")
    query.add(20)


def alter(*changes: str) -> Callable[[Followed], None]:
    """Columns change, then rows come."""

    def change(query: Followed) -> None:
        for item in changes:
            query.sql(f"ALTER TABLE {item}")
        query.add(20)

    return change


def roll_back_as_latest(query: Followed) -> None:
    query.sql("CALL lake.sys.rollback_to_as_latest('db.src', '1')")


def recreate(query: Followed) -> None:
    query.sql(f"DROP TABLE {SOURCE}")
    query.sql(f"CREATE TABLE {SOURCE} (id BIGINT NOT NULL, n INT)")
    for start in (60, 70, 80):
        query.add(start)


def drop(query: Followed) -> None:
    query.sql(f"DROP TABLE {SOURCE}")


def compact(query: Followed) -> None:
    query.add(20)
    query.sql("CALL lake.sys.compact('db.src', full => true)")


ALL = (0, 10, 20)
EVENTS: dict[str, tuple[Callable[[Followed], None], tuple[int, ...] | str]] = {
    "rolled back": (roll_back, "was rolled back|replaced or deleted rows"),
    "published": (publish, ALL),
    "expired": (expire, "have expired"),
    "rolled back as latest": (roll_back_as_latest, "replaced or deleted rows"),
    "created again": (recreate, "was dropped and created again"),
    "dropped": (drop, "cannot be found"),
    "column added": (alter(f"{SOURCE} ADD COLUMN w STRING FIRST"), ALL),
    "column widened": (alter(f"{SOURCE} ALTER COLUMN n TYPE BIGINT", f"{SINK} ALTER COLUMN n TYPE BIGINT"), ALL),
    "column again": (alter(f"{SOURCE} DROP COLUMN n", f"{SOURCE} ADD COLUMN n INT FIRST"), ALL),
    "column moved in the sink": (alter(f"{SINK} ALTER COLUMN n FIRST"), ALL),
    "column dropped in the sink": (alter(f"{SINK} DROP COLUMN n"), "'n'"),
    "compacted": (compact, ALL),
    "sink created again": (replace_sink, (20,)),
}


@pytest.mark.parametrize("merges", [False, True], ids=["table", "batches"])
@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.long
def test_rows_come_once_or_a_sentence_does(
    session: SparkSession, sql: Run, tmp_path: Path, name: str, merges: bool
) -> None:
    """A query with a checkpoint goes on after its table has changed, or ends with the reason and changes nothing."""
    event, expected = EVENTS[name]
    if merges and "sink" in name and isinstance(expected, str):
        expected = ALL  # INSERT * takes the columns that the sink has
    query = Followed(session, sql, tmp_path, merges=merges)
    query.run()
    query.check(0, 10)
    event(query)
    if isinstance(expected, str):
        with pytest.raises(PySparkException, match=expected):
            query.run()
        if "sink" not in name:
            query.check(0, 10)
    else:
        query.run()
        query.check(*expected)
        query.run()
        query.check(*expected)
    shutil.rmtree(query.checkpoint)


@pytest.mark.long
def test_a_stream_of_a_branch_that_is_published(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """It reads each row of the branch once, before and after; of another branch of the name it says so."""
    query = Followed(session, sql, tmp_path, merges=False)
    branch = "lake.db.`src$branch_b`"
    sql("CALL lake.sys.create_branch('db.src', 'b')")
    query.run(branch)
    query.check(0, 10)
    query.add(20, branch)
    query.run(branch)
    sql("CALL lake.sys.fast_forward('db.src', 'b')")
    query.add(30, branch)
    query.run(branch)
    query.check(0, 10, 20, 30)
    sql("CALL lake.sys.delete_branch('db.src', 'b')")
    sql("CALL lake.sys.create_branch('db.src', 'b')")
    query.add(40, branch)
    with pytest.raises(PySparkException, match=r"was rolled back|dropped and created again|have expired"):
        query.run(branch)
    query.check(0, 10, 20, 30)
