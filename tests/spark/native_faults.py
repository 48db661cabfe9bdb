"""A program for `test_native_faults`: writes through executors that fail, are killed and are slow.

Its argument is a folder of its own. It prints one JSON object: what the table has, how often tasks were tried, and
which files are below its folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import LongType

import lakebed.spark
from lakebed.lake.lake import open_lake
from lakebed.table.table import Table
from worlds.waiting import wait_until

FOLDER = Path(sys.argv[1])
ROWS = 200_000
TASKS = 4
HOSTS = ("127.0.0.2", "127.0.0.3")
"""Of the workers: Spark starts a second attempt of a slow task on another host only."""
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.task.maxFailures": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    # The rows of the first batches are in a file when a later one makes trouble.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}


def is_first(mark: str) -> bool:
    """Whether nobody has called this with the same mark before."""
    try:
        os.close(os.open(FOLDER / mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def executor() -> int:
    """The id of the JVM that this worker belongs to."""
    process = os.getpid()
    while True:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if b"java" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]:
            return process


def has_open_file(process: int) -> bool:
    """Whether a process writes a data file."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(descriptor).endswith(".parquet"):
                return True
    return False


def troubled(number: int) -> int:
    """Fail, kill the executor, or wait, in the first attempt at the end of the first three tasks."""
    at = number % (ROWS // TASKS)
    task = number // (ROWS // TASKS)
    if at == 0:
        context = TaskContext.get()
        assert context is not None
        is_first(f"tried-{task}-{context.attemptNumber()}")
    if at == ROWS // TASKS - 1:
        if task == 0 and is_first("raised"):
            raise ValueError("the first attempt fails")
        if task == 1 and is_first("killed"):
            process = executor()
            while not has_open_file(process):
                continue  # rows are on their way to it
            os.kill(process, signal.SIGKILL)
        if task == 2 and is_first("slow"):
            (FOLDER / "never").open().close()  # a pipe that nobody writes to
    return number


@contextmanager
def cluster() -> Iterator[str]:
    """Run a master and workers, and give the master's URL."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    log = (FOLDER / "cluster.log").open("w")
    environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(FOLDER / "work")}
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, *arguments: str) -> None:
        mine = [*command, f"org.apache.spark.deploy.{role}", "--webui-port", "0", *arguments]
        started.append(subprocess.Popen(mine, stdout=log, stderr=log, env=environment))

    def url() -> str:
        words = (FOLDER / "cluster.log").read_text().split()
        return next((word for word in words if word.startswith("spark://")), "")

    try:
        start("master.Master", "--host", "127.0.0.1", "--port", "0")
        wait_until(url, timeout_s=300)
        for host in HOSTS:
            start("worker.Worker", "--host", host, "--cores", "1", "--memory", "1g", url())
        yield url()
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        log.close()


def files_of(table: Table) -> list[str]:
    """Every data file below the table's folder."""
    root = Path(table.url.removeprefix("file://"))
    return sorted(str(path.relative_to(root)) for path in root.rglob("bucket-*/*.parquet"))


def main() -> None:
    """Run one job that ends well and one that does not."""
    os.mkfifo(FOLDER / "never")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with cluster() as master:
        catalogs = {"lake": str(FOLDER / "lake")}
        spark = lakebed.spark.session("faults", catalogs=catalogs, settings=SETTINGS | {"spark.master": master})
        result = run(spark)
        spark.stop()
        result["files"] = files_of(open_lake(str(FOLDER / "lake")).table("db.t"))
    print(json.dumps(result))


def run(spark: SparkSession) -> dict[str, object]:
    """Run both jobs and say what they left."""
    lake = open_lake(str(FOLDER / "lake"))
    result: dict[str, object] = {}
    trouble = functions.udf(troubled, LongType())
    rows = spark.range(0, ROWS, 1, TASKS)
    spark.sql("CREATE TABLE lake.db.t (id BIGINT)")
    rows.select(trouble("id").alias("id")).writeTo("lake.db.t").append()
    table = lake.table("db.t")
    result["is_whole"] = sorted(table.read()["id"].to_pylist()) == list(range(ROWS))
    result["tried"] = sorted(path.name for path in FOLDER.glob("tried-*"))
    result["live"] = sorted(table.system("files")["file_path"].to_pylist())
    spark.sql("CREATE TABLE lake.db.failed (id BIGINT)")
    fails = functions.udf(lambda number: 1 // (ROWS - 1 - number), LongType())
    try:
        rows.select(fails("id").alias("id")).writeTo("lake.db.failed").append()
    except PySparkException:
        result["has_failed"] = True
    failed = lake.table("db.failed")
    result["failed_snapshot"] = failed.latest() is not None
    # Tasks of other executors may still run, and delete their files when they notice.
    wait_until(lambda: not files_of(failed), timeout_s=300)
    return result


if __name__ == "__main__":
    main()
