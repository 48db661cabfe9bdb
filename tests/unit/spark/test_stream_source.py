"""Streams of the data source without a session: offsets, batches, sinks, and a query that is killed at every point."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructType

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.lake.lake import open_lake
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.spark.catalog.streams import StreamFirst, StreamNewest, StreamNext, StreamSink
from lakebed.spark.catalog.verb import Session
from lakebed.spark.catalog.writes import Batch, BeginWrite, Commit, Replaced
from lakebed.spark.datasource.source import LakebedSource
from lakebed.spark.datasource.stream_source import StreamTaskReader
from lakebed.spark.plan.types import spark_schema
from lakebed.spark.streams.stream_commits import user_of
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def made(folder: Path, name: str = "t", **more: Any) -> Table:
    return Table.create(open_store(folder / name, durable=False), name=name, schema=SCHEMA, **more)


def rows(*ids: int, v: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.string())})


def source(table: Table, **options: str) -> LakebedSource:
    return LakebedSource({"path": str(table.url), **{name.lower(): value for name, value in options.items()}})


def reader_of(found: LakebedSource, schema: StructType | None = None) -> Any:
    """The reader as Spark makes it: the schema is asked in one process, the reader made in another."""
    schema = schema or found.schema()
    return cloudpickle.loads(cloudpickle.dumps(found)).streamReader(schema)


def batches_of(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[pa.RecordBatch]:
    """What tasks read between two offsets, which went through a checkpoint."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    in_task = cloudpickle.loads(cloudpickle.dumps(reader))
    assert isinstance(in_task, StreamTaskReader)
    partitions = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return [batch for partition in partitions for batch in in_task.read(partition)]


def ids_of(batches: list[pa.RecordBatch]) -> list[int]:
    return sorted(key for batch in batches for key in batch.column("id").to_pylist())


def test_batches_and_limits(tmp_path: Path) -> None:
    """Limits of options, everything where the trigger wants it, nothing beyond the version that was the newest."""
    table = made(tmp_path)
    for number in range(4):
        table.write(rows(number))
    reader = reader_of(source(table, mode="from-snapshot", version="1", maxFilesPerTrigger="3"))
    assert reader.getDefaultReadLimit() == ReadMaxFiles(3)
    first = reader.initialOffset()
    assert first["snapshot"] == 0
    end = reader.latestOffset(first, ReadMaxFiles(3))
    assert ids_of(batches_of(reader, first, end)) == [0, 1, 2]
    reader.prepareForTriggerAvailableNow()
    table.write(rows(9))
    later = reader.latestOffset(end, ReadAllAvailable())
    assert ids_of(batches_of(reader, end, later)) == [3]
    assert reader.latestOffset(later, ReadAllAvailable()) == later
    assert batches_of(reader, later, later) == []
    other = reader_of(source(table, maxRowsPerTrigger="2"))
    assert other.getDefaultReadLimit() == ReadMaxRows(2)
    assert reader_of(source(table)).getDefaultReadLimit() == ReadAllAvailable()
    assert reader_of(source(table, maxSnapshotsPerTrigger="1")).getDefaultReadLimit() == ReadMaxFiles(2**31 - 1)


def test_columns_kinds_and_consumers(tmp_path: Path) -> None:
    """Some columns; changes with their kinds, also of a primary-key table; a consumer holds what was not read."""
    table = made(tmp_path, primary_keys=["id"], options={"bucket": "1"})
    table.upsert(rows(1, 2))
    result = source(table, changes="true", columns="id", consumer="nightly")
    assert result.schema().names == ["id", "_row_kind"]
    reader = reader_of(result)
    start = reader.initialOffset()
    assert table.system("consumers")["next_snapshot_id"].to_pylist() == [1]
    table.delete(keys=pa.table({"id": [1]}))
    full = reader.latestOffset(start, ReadAllAvailable())
    assert ids_of(batches_of(reader, start, full)) == [1, 2]
    end = reader.latestOffset(full, ReadAllAvailable())
    (batch,) = batches_of(reader, full, end)
    assert batch.to_pylist() == [{"id": 1, "_row_kind": "-D"}]
    reader.commit(end)
    assert table.system("consumers")["next_snapshot_id"].to_pylist() == [3]
    plain = reader_of(source(table))
    with pytest.raises(InvalidRequest, match="were deleted"):
        batches_of(plain, full, end)
    assert ids_of(batches_of(reader_of(source(table, removals="skip")), full, end)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "newest"}, "mode='newest' is invalid: use latest-full, latest"),
        ({"mode": "from-snapshot"}, "needs the option version"),
        ({"mode": "from-snapshot", "version": "9"}, "has no snapshot 9"),
        ({"mode": "from-timestamp"}, "needs the option timestamp"),
        ({"mode": "from-timestamp", "timestamp": "yesterday"}, "is not a valid time"),
        ({"mode": "latest", "version": "1"}, "mode=from-snapshot"),
        ({"maxFilesPerTrigger": "0"}, "maxfilespertrigger"),
        ({"changes": "yes"}, "use true or false"),
        ({"removals": "ignore"}, "use fail, skip"),
        ({"mode": "latest", "where": "id > 1"}, "no option 'where'"),
        ({"mode": "latest", "columns": "id, w"}, "'w'"),
        ({"mode": "latest", "consumer": "a/b"}, "consumer's name"),
    ],
)
def test_mistakes(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """An option or a value that a stream does not have: one sentence."""
    table = made(tmp_path)
    table.write(rows(1))
    with pytest.raises((InvalidRequest, NotFound), match=message):
        reader_of(source(table, **options)).initialOffset()


def checkpoint(folder: Path, query: str = "7a31") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return str(folder)


def test_who_commits(tmp_path: Path) -> None:
    """The option, else the query that the checkpoint names; without both a sentence says what to give."""
    present = checkpoint(tmp_path / "a b")
    for location in (present, Path(present).as_uri(), f"file:{present}".replace(" ", "%20")):
        assert user_of({"checkpointlocation": location}) == "7a31"
    assert user_of({"checkpointLocation": present, "TXN-app-id": "mine"}) == "mine"
    for options in ({}, {"checkpointlocation": str(tmp_path / "none")}, {"checkpointlocation": "hdfs://h/c"}):
        with pytest.raises(InvalidRequest, match="txn-app-id"):
            user_of(options)


class Killed(Exception):
    """The process ends here."""


POINTS = ("offset not logged", "offset logged", "some data", "all data", "snapshot", "batch logged")


class Query:
    """A query as Spark runs it: its logs are folders, and it may be killed at any point of any batch."""

    def __init__(self, folder: Path, reading: Table, writing: Table, **options: str) -> None:
        self.folder = folder
        checkpoint(folder)
        self.reading, self.writing, self.options = reading, writing, options

    def _logged(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.folder / log).glob("*"))

    def _log(self, log: str, number: int, content: object) -> None:
        (self.folder / log).mkdir(exist_ok=True)
        (self.folder / log / str(number)).write_text(json.dumps(content))

    def _offset(self, number: int) -> Any:
        return json.loads((self.folder / "offsets" / str(number)).read_text())

    def run(self, killed: tuple[int, str] | None = None) -> None:
        """Run all batches that are due, or until the process is killed."""
        reader = reader_of(source(self.reading, **self.options))
        number = len(self._logged("commits"))
        while True:
            if number in self._logged("offsets"):
                end = self._offset(number)
            else:
                start = self._offset(number - 1) if number else reader.initialOffset()
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    return
                self._at(killed, number, "offset not logged")
                if number == 0:
                    self._log(".", 0, start)
                self._log("offsets", number, end)
            self._at(killed, number, "offset logged")
            start = self._offset(number - 1) if number else json.loads((self.folder / "0").read_text())
            self._batch(reader, start, end, number, killed)
            self._at(killed, number, "snapshot")
            self._log("commits", number, {})
            self._at(killed, number, "batch logged")
            number += 1

    def _batch(self, reader: Any, start: Any, end: Any, number: int, killed: tuple[int, str] | None) -> None:
        source = LakebedSource({"path": str(self.writing.url), "checkpointlocation": str(self.folder)})
        writer = source.streamWriter(LakebedSource({"path": str(self.writing.url)}).schema(), False)
        messages = []
        for batch in batches_of(reader, start, end):
            in_task = cloudpickle.loads(cloudpickle.dumps(writer))
            messages.append(pickle.loads(pickle.dumps(in_task.write(iter([batch])))))
            self._at(killed, number, "some data")
        self._at(killed, number, "all data")
        cloudpickle.loads(cloudpickle.dumps(writer)).commit(messages, number)

    @staticmethod
    def _at(killed: tuple[int, str] | None, number: int, point: str) -> None:
        if killed == (number, point):
            raise Killed


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_a_query_that_is_killed_anywhere_commits_each_batch_once(tmp_path: Path, point: str, keyed: bool) -> None:
    """In the first or a later batch, once or again and again; rows are counted by a dictionary."""
    keys = {"primary_keys": ["id"], "options": {"bucket": "1"}} if keyed else {}
    reading, writing = made(tmp_path, "from"), made(tmp_path, "to", **keys)
    expected: Counter[int] = Counter()
    query = Query(tmp_path / "query", reading, writing, maxFilesPerTrigger="1")
    for number in range(3):
        reading.write(rows(number, 10 + number))
        expected.update([number, 10 + number])
    for killed in ((0, point), (0, point), (1, point), (2, point)):
        with pytest.raises(Killed):
            query.run(killed)
        if point == "batch logged" and killed == (0, point):
            break
    query.run()
    query.run()
    assert Counter(writing.read()["id"].to_pylist()) == expected
    commits = [(snapshot.commit_user, snapshot.commit_identifier) for snapshot in writing.snapshots()]
    assert commits == [("7a31", number) for number in range(3)]
    live = set(writing.system("files")["file_path"].to_pylist())
    if point in ("snapshot", "batch logged", "offset logged", "offset not logged"):
        assert {Path(name).name for name in live} == {path.name for path in (tmp_path / "to").rglob("*.parquet")}


def test_complete_mode_and_failed_batches(tmp_path: Path) -> None:
    """Each batch replaces all rows; a batch with a bad row or a failed task leaves nothing."""
    table = made(tmp_path)
    source = LakebedSource({"path": str(table.url), "txn-app-id": "totals"})
    schema = LakebedSource({"path": str(table.url)}).schema()
    for number, ids in enumerate(((1, 2), (3,))):
        writer: Any = source.streamWriter(schema, True)
        writer.commit([writer.write(iter(rows(*ids).to_batches()))], number)
    assert table.read()["id"].to_pylist() == [3]
    files = len(list(tmp_path.rglob("*.parquet")))
    writer = source.streamWriter(schema, False)
    wrong = pa.table({"id": ["x"], "v": ["x"]})
    messages = [writer.write(iter(rows(7).to_batches())), writer.write(iter(wrong.to_batches()))]
    with pytest.raises(InvalidRequest, match="'id'"):
        writer.commit(messages, 2)
    message = writer.write(iter(rows(8).to_batches()))
    writer.abort([message, None], 2)
    writer.commit([], 3)
    assert len(list(tmp_path.rglob("*.parquet"))) == files
    assert table.latest().id == 2
    with pytest.raises(LakebedError, match="no option 'mode'"):
        LakebedSource({"path": str(table.url), "mode": "x"}).streamWriter(schema, False)


def test_an_executor_without_this_lakebed(tmp_path: Path) -> None:
    """A reader and a writer of a stream that are unpickled where another version is say so in one sentence."""
    table = made(tmp_path)
    fake = tmp_path / "elsewhere" / "lakebed"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("__version__ = '0.0.1'\n")
    schema = source(table).schema()
    sink = LakebedSource({"path": str(table.url), "txn-app-id": "x"})
    for shipped in (reader_of(source(table)), sink.streamWriter(schema, False)):
        ran = subprocess.run(
            [sys.executable, "-c", "import sys, pickle; pickle.loads(sys.stdin.buffer.read())"],
            input=cloudpickle.dumps(shipped),
            env={**os.environ, "PYTHONPATH": str(fake.parent)},
            capture_output=True,
            check=False,
            timeout=60,
        )
        last = ran.stderr.decode().strip().splitlines()[-1]
        assert last.startswith("RuntimeError: This executor's Python (")
        assert "has lakebed 0.0.1" in last


def test_a_batch_in_sql_is_committed_once(tmp_path: Path) -> None:
    """The message of a commit names the query and the batch; asked again, it answers with the same snapshot."""
    lake = open_lake(str(tmp_path / "lake"))
    lake.create_table("db.t", SCHEMA).write(rows(1))
    session = Session(tmp_path)
    created = StreamSink(table="db.t").run(session, lake.url)["created_ms"]
    for number, snapshots in ((0, 2), (0, 2), (1, 3)):
        asked = Commit(table="db.t", replaced=Replaced(), batch=Batch(user="query", number=number, created_ms=created))
        assert asked.run(session, lake.url) == {"snapshot_id": snapshots}
    empty = Commit(table="db.t", batch=Batch(user="query", number=2, created_ms=created))
    assert empty.run(session, lake.url) == {"snapshot_id": None}
    assert lake.table("db.t").latest().id == 3


def test_a_batch_is_not_committed_into_a_table_that_was_created_again(tmp_path: Path) -> None:
    """It would lack the batches before, and nothing would say so; the batch's files are deleted."""
    clock = ManualClock()
    lake = open_lake(str(tmp_path / "lake"), environment=Environment(clock=clock))
    session = Session(tmp_path)
    lake.create_table("db.t", SCHEMA)
    created = StreamSink(table="db.t").run(session, lake.url)["created_ms"]
    lake.drop_table("db.t")
    clock.sleep(1)
    table = lake.create_table("db.t", SCHEMA)
    columns = spark_schema(table.schema.fields).json()
    begun = BeginWrite(table="db.t", schema=columns).run(session, lake.url)
    shipped, task, _ = pickle.loads(base64.b64decode(begun["writer"]))
    writer = task.writer(pickle.loads(shipped), Environment())
    task.add(writer, rows(1))
    result = base64.b64encode(pickle.dumps(writer.finish())).decode()
    asked = Commit(table="db.t", results=[result], batch=Batch(user="query", number=7, created_ms=created))
    assert list((tmp_path / "lake").rglob("*.parquet"))
    with pytest.raises(Conflict, match=r"created again while a stream wrote into it.*new checkpoint"):
        asked.run(session, lake.url)
    assert table.latest() is None
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_a_trigger_that_wants_everything_gets_it(tmp_path: Path) -> None:
    """Trigger.Once reads all that is there in one batch, whatever the options limit a batch to."""
    table = made(tmp_path)
    for number in range(3):
        table.write(rows(number))
    for limit in ({"maxFilesPerTrigger": "1"}, {"maxSnapshotsPerTrigger": "1"}):
        reader = reader_of(source(table, mode="from-snapshot", version="1", **limit))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert ids_of(batches_of(reader, start, end)) == [0, 1, 2]
        part = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert ids_of(batches_of(reader, start, part)) == [0]


def test_a_trigger_of_what_is_available_has_an_end_in_sql(tmp_path: Path) -> None:
    """AvailableNow reads up to the version that was the newest when it began, although others write on."""
    lake = open_lake(str(tmp_path / "lake"))
    session = Session(tmp_path)
    table = lake.create_table("db.t", SCHEMA)
    table.write(rows(1))
    asked = {"table": "db.t", "schema_id": 0, "options": {"mode": "from-snapshot", "version": "1"}}
    start = StreamFirst(**asked).run(session, lake.url)["offset"]
    until = StreamNewest(**asked).run(session, lake.url)["snapshot_id"]
    table.write(rows(2))
    for everything in (True, False):
        end = StreamNext(**asked, start=start, everything=everything, until=until).run(session, lake.url)["offset"]
        assert json.loads(end)["snapshot"] == until == 1
        last = StreamNext(**asked, start=end, everything=everything, until=until).run(session, lake.url)["offset"]
        assert last == end
