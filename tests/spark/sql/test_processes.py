"""The bridge and the workers end, stop, or are of another lakebed, while statements run."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import stat
import sys
import tempfile
import termios
import textwrap
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakebed
from lakebed.lake.lake import Lake
from lakebed.spark.jar import find_jar
from worlds.waiting import wait_until

Run = Callable[[str], list[tuple[Any, ...]]]

BRIDGE = "lakebed.spark.bridge"
WORKER = "lakebed.spark.worker"


def processes(spark: SparkSession, module: str, *, python: str = sys.executable) -> list[int]:
    """The ids of the JVM's own children that run a module."""
    jvm: Any = spark._jvm
    result = []
    for child in jvm.java.lang.ProcessHandle.current().children().toArray():
        command = Path(f"/proc/{child.pid()}/cmdline").read_bytes().split(b"\0")
        if module.encode() in command and python.encode() in command:
            result.append(int(child.pid()))
    return result


def script(path: Path, body: str) -> str:
    """An executable that stands for an interpreter."""
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def catalog(session: SparkSession, name: str, lake: Lake, **settings: str) -> None:
    """Name one more catalog of the lake, with settings of its own."""
    for key, value in {"": "org.lakebed.spark.LakebedCatalog", ".url": lake.url, **settings}.items():
        session.conf.set(f"spark.sql.catalog.{name}{key}", value)


@pytest.fixture
def keyed(lake: Lake) -> Lake:
    """A lake with a table whose rows need a merge."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = lake.create_table("db.k", schema, primary_keys="id", options={"bucket": "1"})
    for value in ("old", "new"):
        table.upsert(pa.table({"id": [1, 2], "v": [value] * 2}))
    return lake


def test_one_bridge_serves_all_sessions_and_a_killed_one_is_started_again(
    spark: SparkSession, sql: Run, keyed: Lake
) -> None:
    """A statement that reads is asked again of the new one."""
    assert sql("SELECT v FROM lake.db.k ORDER BY id") == [("new",), ("new",)]
    (bridge,) = processes(spark, BRIDGE)
    (folder,) = Path(tempfile.gettempdir()).glob(f"lakebed-bridge-{bridge}-*")
    os.kill(bridge, signal.SIGKILL)
    assert sql("SELECT count(*) FROM lake.db.k") == [(2,)]
    assert bridge not in processes(spark, BRIDGE)
    assert len(processes(spark, BRIDGE)) == 1
    wait_until(lambda: not folder.exists())


def unread(process: int) -> int:
    """The bytes that wait in the pipe to a process's standard input."""
    pipe = os.open(f"/proc/{process}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        count = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, count)
        return count[0]
    finally:
        os.close(pipe)


@pytest.mark.parametrize("then", [signal.SIGKILL, signal.SIGCONT])
def test_a_query_waits_for_a_slow_bridge_and_outlives_a_killed_one(
    spark: SparkSession, sql: Run, keyed: Lake, then: signal.Signals
) -> None:
    """Its request is on the way when the process stops."""
    assert sql("SELECT count(*) FROM lake.db.k") == [(2,)]
    (bridge,) = processes(spark, BRIDGE)
    items: list[list[tuple[Any, ...]]] = []
    query = threading.Thread(target=lambda: items.append(sql("SELECT v FROM lake.db.k WHERE id = 1")))
    os.kill(bridge, signal.SIGSTOP)
    try:
        query.start()
        wait_until(lambda: unread(bridge))
    finally:
        os.kill(bridge, then)
        query.join()
    assert items == [[("new",)]]
    assert (bridge in processes(spark, BRIDGE)) == (then is signal.SIGCONT)


def test_a_killed_worker_is_replaced(spark: SparkSession, sql: Run, keyed: Lake) -> None:
    """Idle ones are looked at before they get a task."""
    sql("SELECT v FROM lake.db.k")
    killed = processes(spark, WORKER)
    assert killed
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    assert sql("SELECT v FROM lake.db.k ORDER BY id") == [("new",), ("new",)]


def test_a_bridge_that_does_not_answer_is_ended(session: SparkSession, sql: Run, keyed: Lake, tmp_path: Path) -> None:
    """It is stopped while the statement waits; programs are told that the statement may be run again."""
    hello = f'{{"lakebed": "{lakebed.__version__}"}}'
    python = script(tmp_path / "slow", f"echo '{hello}'\nexec sleep 600")
    catalog(session, "slow", keyed, **{".python": python, ".timeout": "1"})
    with pytest.raises(PySparkException, match="did not answer load within 1 s") as caught:
        session.sql("SELECT * FROM slow.db.k")
    assert caught.value.getSqlState() == "58030"
    assert sql("SELECT count(*) FROM lake.db.k") == [(2,)]


def test_a_stopped_bridge_is_ended_and_replaced(
    spark: SparkSession, session: SparkSession, keyed: Lake, tmp_path: Path
) -> None:
    """It is alive and does not answer; the next statement has a new one."""
    python = script(tmp_path / "python", f'exec {sys.executable} "$@"')
    catalog(session, "calm", keyed, **{".python": python})
    catalog(session, "hasty", keyed, **{".python": python, ".timeout": "2"})
    before = set(processes(spark, BRIDGE))
    assert session.sql("SHOW TABLES IN calm.db").count() == 1
    (bridge,) = set(processes(spark, BRIDGE)) - before
    os.kill(bridge, signal.SIGSTOP)
    with pytest.raises(PySparkException, match="did not answer load within 2 s"):
        session.sql("SELECT * FROM hasty.db.k")
    assert session.sql("SHOW TABLES IN calm.db").count() == 1
    (replaced,) = set(processes(spark, BRIDGE)) - before
    assert replaced != bridge


def test_another_lakebed_is_refused(session: SparkSession, keyed: Lake, tmp_path: Path) -> None:
    """The jar and the Python package are of one version."""
    python = script(tmp_path / "other", """echo '{"lakebed": "0.0.1"}'\nexec sleep 600""")
    catalog(session, "other", keyed, **{".python": python})
    with pytest.raises(PySparkException, match=rf"The jar is of lakebed {lakebed.__version__}, .* has lakebed 0.0.1"):
        session.sql("SELECT * FROM other.db.k")


def test_a_missing_python_and_one_without_lakebed_are_sentences(
    session: SparkSession, keyed: Lake, tmp_path: Path
) -> None:
    """Each says which setting to change."""
    catalog(session, "none", keyed, **{".python": str(tmp_path / "missing")})
    with pytest.raises(PySparkException, match="cannot be started"):
        session.sql("SELECT * FROM none.db.k")
    catalog(session, "bare", keyed, **{".python": script(tmp_path / "bare", "exit 1")})
    with pytest.raises(PySparkException, match="did not start"):
        session.sql("SELECT * FROM bare.db.k")


def test_a_catalog_without_a_lake_is_a_sentence(session: SparkSession) -> None:
    """It names the setting."""
    session.conf.set("spark.sql.catalog.empty", "org.lakebed.spark.LakebedCatalog")
    with pytest.raises(PySparkException, match=r"set spark.sql.catalog.empty.url"):
        session.sql("SELECT * FROM empty.db.k")


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_bridge_that_ends_in_a_commit_leaves_the_table_whole(
    session: SparkSession, sql: Run, keyed: Lake, tmp_path: Path, moment: str
) -> None:
    """The outcome is unknown, and so no file is deleted; the rows are there wholly, or not at all."""
    dying = tmp_path / "dying.py"
    run = "original(self, session, lake_url)" if moment == "after" else "None"
    dying.write_text(
        "import os\n"
        "from lakebed.spark import bridge\n"
        "from lakebed.spark.catalog import VERBS\n"
        "original = VERBS['commit'].run\n"
        f"VERBS['commit'].run = lambda self, session, lake_url: ({run}, os._exit(1))\n"
        "bridge.main()\n"
    )
    python = script(
        tmp_path / "python",
        f'if [ "$2" = {BRIDGE} ]; then exec {sys.executable} {dying}; fi\nexec {sys.executable} "$@"',
    )
    catalog(session, "dying", keyed, **{".python": python})
    with pytest.raises(PySparkException, match="It is not known whether commit has changed the table"):
        session.sql("INSERT INTO dying.db.k SELECT id, 'lost' FROM range(1, 4)")
    expected = ["lost"] * 3 if moment == "after" else ["new"] * 2
    assert [row[0] for row in sql("SELECT v FROM lake.db.k")] == expected


SESSIONS = 8


def test_eight_sessions_write_tag_and_travel_at_the_same_time(spark: SparkSession, sql: Run, lake: Lake) -> None:
    """No row is lost, in either kind of table; a tag reads what its session saw, and older tags keep their version."""
    sql("CREATE TABLE lake.db.t (writer INT, n INT)")
    sql("CREATE TABLE lake.db.k (writer INT NOT NULL, n INT) TBLPROPERTIES ('primary-key' = 'writer', 'bucket' = '1')")
    sql("INSERT INTO lake.db.t VALUES (-1, -1)")
    sql("CALL lake.sys.create_tag('db.t', 'start')")
    sessions = [spark.newSession() for _ in range(SESSIONS)]
    for session in sessions:
        catalog(session, "lake", lake, **{".python": sys.executable})
    problems: list[BaseException] = []
    seen: dict[int, list[int]] = {}

    def rows_at(session: SparkSession, tag: str) -> list[int]:
        rows = session.sql(f"SELECT writer FROM lake.db.t VERSION AS OF '{tag}'").collect()
        return sorted(row[0] for row in rows)

    def write(writer: int, session: SparkSession) -> None:
        try:
            session.sql(f"INSERT INTO lake.db.t VALUES ({writer}, 0)")
            session.sql(f"CALL lake.sys.create_tag('db.t', 'of-{writer}')")
            session.sql(f"INSERT INTO lake.db.k VALUES ({writer}, {writer})")
            seen[writer] = rows_at(session, f"of-{writer}")
            assert writer in seen[writer]
            assert rows_at(session, "start") == [-1]
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=each) for each in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(sql("SELECT writer, n FROM lake.db.t")) == [(-1, -1), *((n, 0) for n in range(SESSIONS))]
    assert sorted(sql("SELECT writer, n FROM lake.db.k")) == [(n, n) for n in range(SESSIONS)]
    table = lake.table("db.t")
    assert {n: sorted(table.read(version=f"of-{n}")["writer"].to_pylist()) for n in range(SESSIONS)} == seen
    assert [snapshot.id for snapshot in table.snapshots()] == list(range(1, SESSIONS + 2))


@pytest.mark.parametrize("entry", ["LakebedExtensions", "LakebedCatalog"])
def test_the_jar_works_on_when_its_class_loader_is_closed(spark: SparkSession, lake: Lake, entry: str) -> None:
    """The Thrift server closes it with the first connection that PyHive ends: all classes are loaded before."""
    jvm: Any = spark._jvm
    urls = spark._sc._gateway.new_array(jvm.java.net.URL, 1)  # type: ignore[union-attr]
    urls[0] = jvm.java.io.File(str(find_jar())).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getSystemClassLoader())
    made = (
        loader.loadClass(f"org.lakebed.spark.{entry}")
        .getConstructors()[0]
        .newInstance(
            spark._sc._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
        )
    )
    if entry == "LakebedCatalog":
        options = jvm.java.util.HashMap({"url": lake.url})
        made.initialize("lake", jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options))
    else:
        made.apply(jvm.org.apache.spark.sql.SparkSessionExtensions())
    loader.close()
    with zipfile.ZipFile(find_jar()) as jar:
        names = [name for name in jar.namelist() if name.endswith(".class")]
    assert len(names) > 100
    for name in names:
        loaded = loader.loadClass(name.removesuffix(".class").replace("/", "."))
        assert loaded.getClassLoader().equals(loader)
