"""Java's archive of the classes that Spark loads, with which a JVM starts in half the processor time.

``python -m worlds.spark_archive FILE`` runs a few statements and writes the classes that they loaded; ``make test``
does it once. A JVM that is given the archive (`java_options`) uses it if its version and class path are those of the
archive. Otherwise it is as slow as without, and says nothing of that, since tests compare what programs print.

``python -m worlds.spark_archive pyspark.worker`` is PySpark's daemon, for the session of tests: it forks the Python
processes of tasks (`fork_workers`).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m"
"""Tests run each plan once or twice: what Java's second compiler would gain, it never earns back. With the first one
alone Java keeps 48 MB of compiled code, which a hundred tests fill: what was dropped is then compiled again.
"""
ARCHIVE: Final = Path(__file__).parents[2] / "build" / "spark.jsa"


def java_options() -> str:
    """The options of the JVMs of tests."""
    if not ARCHIVE.exists():
        return OPTIONS
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def write(file: Path) -> None:
    """Start Spark with a lake as a catalog, let it do what most tests do, and write the archive when the JVM ends."""
    new = file.with_suffix(".new")
    quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={new.absolute()} {quiet}"
    import lakebed.spark  # reads the variable when it starts the JVM

    with tempfile.TemporaryDirectory() as folder:
        session = lakebed.spark.session("archive", cores=2, catalogs={"lake": f"{folder}/lake"})
        session.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, s STRING").createOrReplaceTempView("two")
        session.sql("CREATE TABLE lake.db.t (id BIGINT NOT NULL, s STRING) TBLPROPERTIES ('primary-key' = 'id')")
        session.sql("INSERT INTO lake.db.t SELECT id, s FROM two")
        session.sql("UPDATE lake.db.t SET s = 'c' WHERE id = 2")
        session.sql("MERGE INTO lake.db.t t USING two j ON t.id = j.id WHEN MATCHED THEN UPDATE SET s = j.s")
        session.sql("DELETE FROM lake.db.t WHERE id = 1")
        session.sql("SELECT s, count(*) FROM lake.db.t JOIN two USING (id, s) GROUP BY s ORDER BY s").collect()
        gateway = session.sparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        session.stop()
        process.stdin.close()  # the JVM ends when nobody can speak to it
        process.wait()
    new.replace(file)


def fork_workers(module: str) -> None:
    """Serve as PySpark's daemon, whose forks have imported what tasks need.

    After each task a worker of PySpark collects all garbage, and looks at no object that was frozen before the fork.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no thread is to run where processes are forked
    for name in (module, "pandas", "pyarrow.compute", "pyarrow.parquet", "lakebed.spark.datasource"):
        importlib.import_module(name)
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    if sys.argv[1].startswith("pyspark."):
        fork_workers(sys.argv[1])
    else:
        write(Path(sys.argv[1]))
