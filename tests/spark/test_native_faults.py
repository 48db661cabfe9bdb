"""Native writes whose tasks fail, are killed and are started twice, and what is on disk before the commit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.lake.lake import open_lake
from lakebed.spark.dataframe import writing
from lakebed.table.table import Table

PROGRAM = Path(__file__).parent / "native_faults.py"


@pytest.mark.long
def test_killed_failed_and_slow_tasks_leave_no_double_row(tmp_path: Path) -> None:
    """On executors of their own. A killed attempt leaves files that nothing names, and a collection takes them."""
    done = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], stdout=subprocess.PIPE, check=True, text=True)
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["is_whole"]
    tried = {int(name.split("-")[1]): int(name.split("-")[2]) for name in document["tried"]}
    assert tried[0] >= 1, "the failed task was not run again"
    assert tried[1] >= 1, "the killed task was not run again"
    assert tried[2] >= 1, "the slow task was not run twice"
    assert len(document["live"]) == 4
    assert set(document["live"]) < set(document["files"]), "the killed attempt left no file"
    assert document["has_failed"]
    assert not document["failed_snapshot"]
    table = open_lake(str(tmp_path / "lake")).table("db.t")
    table.collect(grace_ms=0)
    root = Path(table.url.removeprefix("file://"))
    assert sorted(str(path.relative_to(root)) for path in root.rglob("bucket-*/*.parquet")) == document["live"]
    assert table.read().num_rows == 200_000


class Tracer:
    """strace of a JVM."""

    def __init__(self, process: int, log: Path) -> None:
        self.log = log
        calls = "trace=fsync,fdatasync,rename,renameat,renameat2"
        self.process = subprocess.Popen(
            ["strace", "-f", "-y", "-s", "4096", "-e", calls, "-o", str(log), "-p", str(process)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        if "attached" not in first:
            self.stop()
            pytest.skip(f"strace cannot attach here: {first.strip()}")

    def stop(self) -> None:
        """Detach; the log is complete then."""
        self.process.terminate()
        self.process.communicate(timeout=60)


def test_files_and_folders_are_durable_before_the_commit(
    spark: SparkSession, make_table: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, its new folders and those above are synced by the tasks; nothing is renamed."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    jvm: Any = spark._jvm
    schema = pa.schema([("id", pa.int64()), ("p", pa.int32())])
    table = make_table(schema, partition_keys=["p"], name="made")
    root = tmp_path / "made"
    log = tmp_path / "calls"
    tracer = Tracer(int(jvm.java.lang.ProcessHandle.current().pid()), log)
    at_commit: list[str] = []
    commit = writing.commit_changes

    def traced(*arguments: Any, **more: Any) -> Any:
        tracer.stop()
        at_commit.append(log.read_text())
        return commit(*arguments, **more)

    monkeypatch.setattr(writing, "commit_changes", traced)
    try:
        rows = spark.range(0, 100, 1, 2).selectExpr("id", "CAST(id % 2 AS INT) AS p")
        lakebed.spark.write(rows, table)
    finally:
        tracer.stop()
    synced = set(re.findall(r"sync\(\d+<([^>]*)>", at_commit[0]))
    files = set(root.rglob("*.parquet"))
    assert len(files) == 4
    needed = {*files, *(path.parent for path in files), *(path.parent.parent for path in files), root, tmp_path}
    assert {str(path) for path in needed} <= synced
    assert not [line for line in at_commit[0].splitlines() if "rename" in line and str(root) in line]
    assert not list(root.rglob("_temporary"))
