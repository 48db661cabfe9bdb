"""The session: what is missing is said in one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.spark import java
from lakebed.table.table import Table

PROGRAM = """
import os
from pathlib import Path
import lakebed.spark
from pyspark.errors import AnalysisException
spark = lakebed.spark.session("once", cores=1)
spark.range(3).mapInArrow(lambda batches: batches, "id bigint").createOrReplaceTempView("three")
spark.sql("create table kept as select * from three")
try:
    spark.sql("select nope from kept")
except AnalysisException as error:
    assert "nope" in str(error)
folder = spark.conf.get("spark.local.dir")
jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
listening = []
open_files = Path(f"/proc/{jvm}/fd")
inodes = {os.readlink(file) for file in open_files.iterdir() if file.is_symlink()}
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            listening.append(fields[1].split(":")[0])
print(folder)
print(",".join(sorted(set(listening))))
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def _java_that_says(folder: Path, text: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no Java here", None),
    ],
)
def test_java_version_is_read(text: str, version: int | None) -> None:
    """Every way a Java states its version is understood, also that of Java 8."""
    assert java.parse_java_version(text) == version


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any Java the error says what is needed and how to get it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequest, match=r"Spark needs Java 17 or newer.*no java on PATH.*install one") as caught:
        java.require_java()
    assert caught.value.kind == "java_missing"


def test_java_home_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A JAVA_HOME without a java is named, instead of Spark's own stack trace."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidRequest, match=r"JAVA_HOME is .*no executable bin/java"):
        java.require_java()


def test_java_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old Java is refused before Spark fails on it, with its version and place."""
    home = _java_that_says(tmp_path, 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(InvalidRequest, match="bin/java is Java 11: install a newer one") as caught:
        java.require_java()
    assert caught.value.kind == "java_too_old"
    assert caught.value.facts["version"] == 11


def test_java_that_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A java that answers something else is quoted."""
    monkeypatch.setenv("JAVA_HOME", str(_java_that_says(tmp_path, "cannot open shared object")))
    with pytest.raises(InvalidRequest, match="answered 'cannot open shared object'"):
        java.require_java()


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark the error says what to install."""
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(
        InvalidRequest, match=r"package pyspark, which is not installed: pip install 'lakebed\[spark\]'"
    ):
        java.require_pyspark()


def test_old_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PySpark from before what lakebed uses is refused with its version."""
    monkeypatch.setattr(java.importlib.metadata, "version", lambda package: "3.5.7")
    with pytest.raises(InvalidRequest, match=r"but 3\.5\.7 is installed"):
        java.require_pyspark()


def test_running_session_is_used(spark: SparkSession) -> None:
    """A second call gives the running session and changes only the settings that it names."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = lakebed.spark.session("another", settings={"spark.sql.ansi.enabled": "true", "spark.driver.memory": "9g"})
    assert again is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.conf.get("spark.driver.memory") == "1g"


def test_a_running_session_is_used_unchanged_in_other_threads(spark: SparkSession, tmp_path: Path) -> None:
    """A thread that started no session uses the running one: its settings stay, and rows are deleted by a predicate."""
    table = Table.create(open_store(tmp_path, durable=False), name="t", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    def work() -> str | None:
        lakebed.spark.delete("id = 1", table)
        return lakebed.spark.session().conf.get("spark.sql.session.timeZone")

    try:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(work).result() == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert table.read().to_pylist() == [{"id": 2}]


def test_settings_that_pay(spark: SparkSession) -> None:
    """The settings that results depend on are in force, and no web server runs."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "100000"
    assert spark.sparkContext.defaultParallelism == 2
    assert spark.sparkContext.uiWebUrl is None


def test_cores_must_be_positive() -> None:
    """Zero cores are refused before a JVM starts."""
    with pytest.raises(InvalidRequest, match="at least one core"):
        lakebed.spark.session(cores=0)


@pytest.mark.xdist_group("spark of a program")
def test_session_is_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    """A program with a session of its own: only loopback sockets, no word on the console, no file left anywhere."""
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    folder, addresses = done.stdout.splitlines()
    assert set(addresses.split(",")) <= LOOPBACK
    assert not Path(folder).exists()
    assert list(work.iterdir()) == []
    assert [path for path in temporary.iterdir() if path.name.startswith(("lakebed-", "spark-", "blockmgr-"))] == []
