"""Streams of the catalog's tables and of the data source: rows once, whatever ends between data, snapshot and log."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakebed.spark
from lakebed.lake.lake import Lake
from lakebed.table.table import Table

Run = Callable[[str], list[tuple[Any, ...]]]
SECONDS_MAX = 300


def finish(writer: DataStreamWriter, checkpoint: Path, to: str | None = None, **options: str) -> None:
    """Run a query until it has read what is there; raise what ended it."""
    writer = writer.option("checkpointLocation", str(checkpoint)).options(**options).trigger(availableNow=True)
    query = writer.start() if to is None else writer.toTable(to)
    try:
        assert query.awaitTermination(SECONDS_MAX)
    finally:
        query.stop()


def forget(checkpoint: Path, log: str, number: int) -> None:
    """Remove a batch from a log of a query, as if Spark had ended before it wrote that."""
    for path in (checkpoint / log).glob(f"*{number}*"):
        if path.name in (str(number), f".{number}.crc"):
            path.unlink()


def data_files(table: Table) -> set[str]:
    return {path.name for path in folder_of(table).rglob("*.parquet")}


def folder_of(table: Table) -> Path:
    return Path(str(table.url).removeprefix("file://"))


def test_streams_in_sql(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """A stream between tables, and its replay; MERGE and upserts of batches."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    sql("CREATE TABLE lake.db.src (id BIGINT, v STRING)")
    sql("CREATE TABLE lake.db.dst (id BIGINT, v STRING)")
    sql("CREATE TABLE lake.db.agg (v STRING NOT NULL, n BIGINT) TBLPROPERTIES ('primary-key' = 'v', 'bucket' = '1')")
    for k in range(3):
        sql(f"INSERT INTO lake.db.src SELECT id, 'b{k}' FROM range({k * 10}, {k * 10 + 10})")
    count = "SELECT count(*), count(DISTINCT id) FROM lake.db.dst"

    def copy(**options: str) -> None:
        result = session.readStream.options(**options).table("lake.db.src").where("id >= 5")
        finish(result.writeStream, tmp_path / "copy", "lake.db.dst")

    copy(maxFilesPerTrigger="4")
    assert sql(count) == [(25, 25)]
    sql("INSERT INTO lake.db.src SELECT id, 'c' FROM range(30, 35)")
    copy()
    assert sql(count) == [(30, 30)]
    forget(tmp_path / "copy", "commits", max(int(path.name) for path in (tmp_path / "copy" / "commits").glob("[0-9]*")))
    files = data_files(lake.table("db.dst"))
    copy()
    assert sql(count) == [(30, 30)]
    assert data_files(lake.table("db.dst")) == files
    batches = len(list((tmp_path / "copy" / "commits").glob("[0-9]*")))
    assert batches > 2
    assert sql("SELECT commit_kind, count(*) FROM lake.db.dst.snapshots GROUP BY 1") == [("APPEND", batches)]

    def merge(df: DataFrame, batch: int) -> None:
        df.createOrReplaceTempView("b")
        df.sparkSession.sql(
            "MERGE INTO lake.db.agg t USING (SELECT v, count(*) n FROM b GROUP BY v) s ON t.v = s.v "
            "WHEN MATCHED THEN UPDATE SET n = t.n + s.n WHEN NOT MATCHED THEN INSERT *"
        )

    totals = "SELECT * FROM lake.db.agg ORDER BY v"
    finish(session.readStream.table("lake.db.src").writeStream.foreachBatch(merge), tmp_path / "merge")
    assert sql(totals) == [("b0", 10), ("b1", 10), ("b2", 10), ("c", 5)]

    table = lake.table("db.agg")
    rows = session.readStream.table("lake.db.src").where("id % 10 = 0").selectExpr("v", "id AS n").writeStream
    upserts = rows.foreachBatch(lakebed.spark.upsert_stream(table))
    finish(upserts, tmp_path / "upserts")
    assert sql(totals) == [("b0", 0), ("b1", 10), ("b2", 20), ("c", 30)]
    sql("DELETE FROM lake.db.agg WHERE v = 'c'")
    forget(tmp_path / "upserts", "commits", 0)
    finish(upserts, tmp_path / "upserts")
    assert sql(totals) == [("b0", 0), ("b1", 10), ("b2", 20)]


@pytest.mark.long
def test_output_modes(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """Aggregates: updated by key, replaced as a whole, upserted by batch, also when the batch runs again."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    sql("CREATE TABLE lake.db.src AS SELECT id, concat('b', id % 3) AS v FROM range(30)")
    sql("CREATE TABLE lake.db.agg (v STRING NOT NULL, n BIGINT) TBLPROPERTIES ('primary-key' = 'v')")
    totals = "SELECT * FROM lake.db.agg ORDER BY v"

    def counted(add: int) -> DataStreamWriter:
        groups = session.readStream.table("lake.db.src").groupBy("v").count()
        return groups.selectExpr("v", f"`count` + {add} AS n").writeStream

    upserts = counted(100).outputMode("update").foreachBatch(lakebed.spark.upsert_stream(lake.table("db.agg")))
    finish(upserts, tmp_path / "upserts")
    forget(tmp_path / "upserts", "commits", 0)
    snapshots = lake.table("db.agg").latest().id  # type: ignore[union-attr]
    finish(upserts, tmp_path / "upserts")
    assert lake.table("db.agg").latest().id == snapshots  # type: ignore[union-attr]
    assert sql(totals) == [("b0", 110), ("b1", 110), ("b2", 110)]
    finish(counted(200).outputMode("update"), tmp_path / "update", "lake.db.agg")
    assert sql(totals) == [("b0", 210), ("b1", 210), ("b2", 210)]
    sql("INSERT INTO lake.db.agg VALUES ('z', 1)")
    finish(counted(300).outputMode("complete"), tmp_path / "complete", "lake.db.agg")
    assert sql(totals) == [("b0", 310), ("b1", 310), ("b2", 310)]


def test_mistakes_in_streams(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """An option, a mode, a column or a version that is not there; a table that is dropped: one sentence each."""
    sql("CREATE TABLE lake.db.src (id BIGINT)")
    sql("INSERT INTO lake.db.src VALUES (1)")
    sql("CREATE TABLE lake.db.dst (id BIGINT)")
    source = session.readStream.table("lake.db.src")
    stream = session.readStream
    for number, (frame, message) in enumerate(
        (
            (session.readStream.option("mod", "x").table("lake.db.src"), "has no option 'mod'"),
            (session.readStream.option("changes", "true").table("lake.db.src"), "readStream.changes"),
            (stream.options(mode="from-snapshot", version="7").table("lake.db.src"), "has no snapshot 7"),
            (source.selectExpr("id", "id AS w"), "'w'"),
            (source.selectExpr("CAST(id AS STRING) AS id"), "cast it"),
        )
    ):
        with pytest.raises(PySparkException, match=message):
            finish(frame.writeStream, tmp_path / str(number), "lake.db.dst")
    with pytest.raises(PySparkException, match=r"(?i)does not support update"):
        finish(source.groupBy("id").count().writeStream.outputMode("update"), tmp_path / "u", "lake.db.dst")
    assert lake.table("db.dst").latest() is None
    assert data_files(lake.table("db.dst")) == set()
    finish(source.writeStream, tmp_path / "c", "lake.db.dst")
    sql("DROP TABLE lake.db.src")
    sql("CREATE TABLE lake.db.src (id BIGINT)")
    with pytest.raises(PySparkException, match="was dropped and created again"):
        finish(session.readStream.table("lake.db.src").writeStream, tmp_path / "c", "lake.db.dst")


# ---- a query that ends at every point of a batch

POINTS = ("nothing is logged", "the offset is logged", "data is written", "the snapshot is there", "a task failed")


class Copied:
    """A query between two tables, of which the second batch is undone down to a point."""

    def __init__(self, session: SparkSession, lake: Lake, kind: str, keyed: bool, folder: Path) -> None:
        self.session, self.lake, self.kind, self.checkpoint = session, lake, kind, folder / "checkpoint"
        keys = "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '2')" if keyed else ""
        session.sql("CREATE TABLE lake.db.src (id BIGINT NOT NULL, n INT)")
        session.sql(f"CREATE TABLE lake.db.dst (id BIGINT NOT NULL, n INT) {keys}")
        self.expected: Counter[int] = Counter()

    def add(self, start: int) -> None:
        self.session.sql(f"INSERT INTO lake.db.src SELECT id, 1 FROM range({start}, {start + 10})")
        self.expected.update(range(start, start + 10))

    def run(self, failing: bool = False) -> None:
        source, sink = self.lake.table("db.src"), self.lake.table("db.dst")
        options = {"mode": "from-snapshot", "version": "1", "maxSnapshotsPerTrigger": "1"}
        reading = self.session.readStream.options(**options)
        is_catalog = self.kind == "catalog"
        df = reading.table("lake.db.src") if is_catalog else reading.format("lakebed").load(str(source.url))
        if failing:
            df = df.selectExpr("id", "CAST(if(id % 10 = 7, raise_error('no'), n) AS INT) AS n").repartition(2)
        if is_catalog:
            finish(df.writeStream, self.checkpoint, "lake.db.dst")
        elif self.kind == "source":
            df = df.coalesce(1) if sink.schema.primary_keys else df
            finish(df.writeStream.format("lakebed"), self.checkpoint, path=str(sink.url))
        else:
            finish(df.writeStream.foreachBatch(lakebed.spark.upsert_stream(sink)), self.checkpoint)

    def undo(self, point: str) -> None:
        """Go back from the end of batch 1 to a point within it."""
        table = self.lake.table("db.dst")
        forget(self.checkpoint, "commits", 1)
        if point == "the snapshot is there":
            return
        newest = table.latest()
        assert newest is not None
        before = table.context.manifests.live_entries(table.snapshot(newest.id - 1))["file_name"].to_pylist()
        for name in (f"snapshot-{newest.id}", "LATEST"):
            (folder_of(table) / "snapshot" / name).unlink(missing_ok=True)
        if point == "data is written":
            return
        for path in folder_of(table).rglob("*.parquet"):
            if path.name not in before:
                path.unlink()
        if point != "the offset is logged":
            forget(self.checkpoint, "offsets", 1)


def restarts() -> Iterator[Any]:
    quick = {("catalog", False, point) for point in POINTS[2:]}
    for kind in ("catalog", "source", "upserts"):
        for keyed in (False, True) if kind != "upserts" else (True,):
            for point in POINTS:
                marks = () if (kind, keyed, point) in quick else (pytest.mark.long,)
                yield pytest.param(kind, keyed, point, marks=marks)


@pytest.mark.parametrize(("kind", "keyed", "point"), list(restarts()))
def test_a_query_that_ended_anywhere_commits_its_batch_once(
    session: SparkSession, lake: Lake, tmp_path: Path, kind: str, keyed: bool, point: str
) -> None:
    """Started again with its checkpoint, it writes the rows that are missing and no others."""
    query = Copied(session, lake, kind, keyed, tmp_path)
    query.add(0)
    table = lake.table("db.dst")
    if point == "a task failed":
        query.run()
        query.add(10)
        before, snapshot = data_files(table), table.latest()
        with pytest.raises(PySparkException):
            query.run(failing=True)
        assert lake.table("db.dst").latest() == snapshot
        assert kind == "upserts" or data_files(table) == before
    else:
        query.add(10)
        query.run()
        query.undo(point)
    query.add(20)
    query.run()
    rows = lake.table("db.dst").read()["id"].to_pylist()
    assert Counter(rows) == query.expected
    commits = [snapshot.commit_identifier for snapshot in lake.table("db.dst").snapshots()]
    assert commits == [0, 1, 2]
    users = {snapshot.commit_user for snapshot in lake.table("db.dst").snapshots()}
    assert users == {re.findall(r'"id":"([^"]+)"', (query.checkpoint / "metadata").read_text())[0]}
    shutil.rmtree(query.checkpoint)


@pytest.mark.long
def test_the_guide(spark: SparkSession, tmp_path: Path) -> None:
    """The examples of the page on streams run; their assertions are its results."""
    page = (Path(__file__).parents[3] / "docs" / "guide" / "streaming.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        shown = block.replace('"/data/', f'"{tmp_path}/').replace('catalogs={"lake"', 'catalogs={"streams"')
        exec(compile(shown.replace("lake.shop", "streams.shop"), "streaming.md", "exec"), names)
    assert names["spark"] is not None
