"""A lake on S3 with pip alone: Hadoop has no file system for it, and the secret is in no text that others may see."""

from __future__ import annotations

import base64
import random
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake, open_lake
from lakebed.spark.jar import CATALOGS, catalog_settings
from worlds.broken_network import Fault, Link
from worlds.sql.guide import check_guide
from worlds.waiting import pause

SECONDS_MAX = 300
KEYED = "TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')"


@dataclass(frozen=True)
class OnS3:
    """A session whose catalog is a lake on S3, and the lake as Python opens it, with explicit credentials."""

    session: SparkSession
    lake: Lake
    secret: str

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return [tuple(row) for row in self.session.sql(statement).collect()]


@pytest.fixture
def on_s3(spark: SparkSession, s3_server: Any, tmp_path: Path) -> Iterator[OnS3]:
    """The processes of the catalog have the credentials in their environment, as on a machine that is set up so."""
    yield open_session(spark, s3_server, tmp_path)
    spark.createDataFrame([], "id int")  # the active session is again the one that other tests expect


@pytest.fixture
def link(s3_server: Any) -> Iterator[Link]:
    """A network between the catalog's processes and the server."""
    made = Link(s3_server.options["aws_endpoint"])
    yield made
    made.close()


def open_session(spark: SparkSession, s3_server: Any, folder: Path, **options: str) -> OnS3:
    """Open a session; `options` of the store are those of the catalog's processes alone."""
    url = s3_server.url()
    lake = open_lake(url, storage_options=s3_server.options)
    python = folder / "python"
    given = {**s3_server.options, **options}
    exports = "".join(f"export {name.upper()}='{value}'\n" for name, value in given.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    session = spark.newSession()
    for name, value in catalog_settings({"lake": url}, python=str(python)).items():
        if name.startswith(CATALOGS):
            session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return OnS3(session, lake, s3_server.options["aws_secret_access_key"])


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Write Spark's own event log of what happens meanwhile: the listener that `spark.eventLog.enabled` starts."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc.sc()
    folder.mkdir()
    settings = context.getConf().set("spark.eventLog.compress", "false")
    place = jvm.java.net.URI(folder.as_uri())
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener("s3", jvm.scala.Option.empty(), place, settings)
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()


def forms(secret: str) -> list[str]:
    """The secret as text, in hexadecimal digits, and as part of any text in base 64."""
    raw = secret.encode()
    result = [secret, raw.hex()]
    for shift in range(3):
        coded = base64.b64encode(b" " * shift + raw).decode()
        result.append(coded[4 * (shift > 0) : 4 * ((shift + len(raw)) // 3)])
    return result


def command_lines(spark: SparkSession) -> Iterator[str]:
    """Of the JVM and all processes below it. Those of other tests may have the secret of the server that they share."""
    jvm: Any = spark._jvm
    driver = jvm.java.lang.ProcessHandle.current()
    for process in (driver, *driver.descendants().toArray()):
        with suppress(OSError):  # it has ended
            yield Path(f"/proc/{process.pid()}/cmdline").read_bytes().decode(errors="replace")


def test_the_secret_is_found_in_every_form() -> None:
    """The search of the other tests finds what it is for."""
    secret = "secret-of-the-test-server"
    for before in range(6):
        shown = base64.b64encode(b"x" * before + secret.encode() + b"y" * 5).decode()
        assert any(form in shown for form in forms(secret)), before


def check_texts(on_s3: OnS3, spark: SparkSession, folder: Path, shown: list[str]) -> None:
    """The secret is in none of the texts, nor in settings, event logs, checkpoints and command lines."""
    shown += [str(on_s3.sql("SET -v")), str(on_s3.sql("SET")), spark.sparkContext._jsc.sc().getConf().toDebugString()]
    lines = list(command_lines(spark))
    assert any("lakebed.spark.bridge" in line for line in lines)
    shown += lines
    logs = [path.read_text() for path in (folder / "events").rglob("events_*")]
    assert any("lake.db.t" in log for log in logs)
    notes = [path.read_text(errors="replace") for path in folder.glob("checkpoint-*/**/*") if path.is_file()]
    assert not [text for text in (*shown, *logs, *notes) for form in forms(on_s3.secret) if form in text]


def test_tables_are_written_read_and_tagged_and_the_secret_is_in_no_text(
    on_s3: OnS3, spark: SparkSession, tmp_path: Path
) -> None:
    """Also not in the settings, the event log, nor on the command line of any process."""
    sql = on_s3.sql
    with event_log(spark, tmp_path / "events"):
        sql("CREATE TABLE lake.db.t (id BIGINT, v STRING)")
        sql("INSERT INTO lake.db.t SELECT id, concat('v', id) FROM range(100)")
        sql("CALL lake.sys.create_tag('db.t', 'x')")
        sql("INSERT INTO lake.db.t VALUES (100, 'w')")
        assert sql("SELECT sum(id), max(v) FROM lake.db.t") == [(5050, "w")]
        assert sql("SELECT sum(id) FROM lake.db.t VERSION AS OF 'x'") == [(4950,)]
        rows = lakebed.spark.read(on_s3.session, on_s3.lake.table("db.t"))  # which has the credentials as options
        assert rows.count() == 101
        shown = [str(sql("EXPLAIN EXTENDED SELECT * FROM lake.db.t WHERE id > 3"))]
        shown.append(rows._jdf.queryExecution().toString())
        with pytest.raises(PySparkException) as raised:
            sql("SELECT * FROM lake.db.t VERSION AS OF 'nope'")
        shown.append(str(raised.value))
    check_texts(on_s3, spark, tmp_path, shown)


@pytest.mark.long
def test_merges_streams_and_dataframes_show_no_secret(on_s3: OnS3, spark: SparkSession, tmp_path: Path) -> None:
    """By SQL and by Python, which has the credentials as options of the lake."""
    sql = on_s3.sql
    with event_log(spark, tmp_path / "events"):
        sql("CREATE TABLE lake.db.t AS SELECT id, concat('v', id) AS v FROM range(101)")
        sql(f"CREATE TABLE lake.db.k (id BIGINT NOT NULL, v STRING) {KEYED}")
        follow(on_s3.session.readStream.table("lake.db.t"), tmp_path / "checkpoint-1", to="lake.db.k")
        sql(
            "MERGE INTO lake.db.k t USING lake.db.t s ON t.id = s.id WHEN MATCHED AND s.id > 50 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET v = 'merged'"
        )
        assert sql("SELECT count(*), max(v) FROM lake.db.k") == [(51, "merged")]

        table, keyed = on_s3.lake.table("db.t"), on_s3.lake.table("db.k")
        lakebed.spark.write(on_s3.session.range(101, 103).selectExpr("id", "'w' AS v"), table)
        rows = lakebed.spark.read(on_s3.session, table, where="id > 99")
        assert sorted(row.id for row in rows.collect()) == [100, 101, 102]
        upserts = lakebed.spark.upsert_stream(keyed)
        follow(on_s3.session.readStream.table("lake.db.t"), tmp_path / "checkpoint-2", upserts=upserts)
        merged = lakebed.spark.read(on_s3.session, keyed)
        assert merged.count() == 103
        shown = [str(sql("EXPLAIN EXTENDED SELECT * FROM lake.db.k WHERE id > 3"))]
        shown += [frame._jdf.queryExecution().toString() for frame in (rows, merged)]
    check_texts(on_s3, spark, tmp_path, shown)
    assert list(tmp_path.glob("checkpoint-2/offsets/*"))


def follow(rows: DataFrame, checkpoint: Path, *, to: str = "", upserts: Any = None) -> None:
    """Write what a stream has now into a table."""
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.toTable(to) if to else writer.foreachBatch(upserts).start()
    try:
        assert query.awaitTermination(SECONDS_MAX)
    finally:
        query.stop()


@pytest.mark.long
def test_the_guide_on_s3(on_s3: OnS3) -> None:
    """Every statement of the guide gives its result in a bucket too."""
    check_guide(on_s3.sql)
    assert [finding for finding in check_lake(on_s3.lake).findings if finding.kind != "orphan"] == []


MERGE = (
    "MERGE INTO lake.db.t t USING (SELECT id, {n} AS n FROM range({n}, {n} + 10)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET n = t.n + 1000 WHEN NOT MATCHED THEN INSERT *"
)
CHANGES = {
    "UPDATE": "UPDATE lake.db.t SET n = n + {n} WHERE id % 3 = 0",
    "INSERT": "INSERT INTO lake.db.t SELECT id, {n} FROM range(100 * {n}, 100 * {n} + 3)",
    "MERGE": MERGE,
    "DELETE": "DELETE FROM lake.db.t WHERE id % 7 = {n} % 7",
}


@pytest.mark.long
@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
def test_statements_over_a_network_that_breaks(
    spark: SparkSession, s3_server: Any, link: Link, tmp_path: Path, keyed: bool
) -> None:
    """A statement that ends without an error is in the table, and another one wholly or not at all."""
    rng = random.Random(int(keyed))
    with_faults = open_session(spark, s3_server, tmp_path, aws_endpoint=link.url)
    with_faults.sql(f"CREATE TABLE lake.db.t (id BIGINT NOT NULL, n BIGINT) {KEYED * keyed}")
    with_faults.sql("INSERT INTO lake.db.t SELECT id, 0 FROM range(12)")
    expected = dict.fromkeys(range(12), 0)
    for number in range(1, 13):
        name, fault = rng.choice(sorted(CHANGES)), rng.choice((Fault.REFUSED, Fault.REPLIES_LOST))
        after = apply(expected, name, number)
        delay_s, length_s = rng.random() * 2, rng.random()

        def disturb(fault: Fault = fault, delay_s: float = delay_s, length_s: float = length_s) -> None:
            pause(delay_s)
            link.break_with(fault)
            pause(length_s)
            link.break_with(None)

        thread = threading.Thread(target=disturb)
        thread.start()
        is_done = True
        try:
            with_faults.sql(CHANGES[name].format(n=number))
        except PySparkException:
            is_done = False
        finally:
            thread.join()
        result = with_faults.lake.table("db.t").read()
        rows = dict(zip(result["id"].to_pylist(), result["n"].to_pylist(), strict=True))
        assert result.num_rows == len(rows)
        assert rows == after or (not is_done and rows == expected), (number, name, fault)
        expected = rows
    with_faults.sql("CALL lake.sys.remove_orphan_files(table => 'db.t', older_than => '2200-01-01')")
    assert check_lake(with_faults.lake).findings == []


def apply(rows: dict[int, int], name: str, n: int) -> dict[int, int]:
    """The rows of a table, by id, after one of `CHANGES`."""
    match name:
        case "UPDATE":
            return {id: value + n * (id % 3 == 0) for id, value in rows.items()}
        case "INSERT":
            return rows | dict.fromkeys(range(100 * n, 100 * n + 3), n)
        case "DELETE":
            return {id: value for id, value in rows.items() if id % 7 != n % 7}
    return rows | {id: rows[id] + 1000 if id in rows else n for id in range(n, n + 10)}
