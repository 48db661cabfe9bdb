"""A Spark session for lakebed: useful settings, a quiet console, no files left behind.

Owns: the settings of a local session (each with its reason), and the location of its temporary files.

Invariants: a running session is used unchanged. The caller's settings take precedence. A local session listens only on
the loopback address. Except for its tables, it writes only into one temporary folder, which is removed when the
interpreter exits.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.runtime import ThreadRuntime
from lakebed.spark.jar import CATALOGS, JARS, catalog_settings, merge_settings
from lakebed.spark.java import require_java

_LOGGING = Path(__file__).parent / "log4j2.properties"
QUIET = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
"""The JVM's option that keeps Spark's log off the console."""
_UNAVOIDABLE = b"WARNING: Using incubator modules: jdk.incubator.vector"
"""Printed by the JVM itself at every start of Spark 4, before logging is configured. It means nothing to a user."""


def session(
    app_name: str = "lakebed",
    *,
    cores: int | None = None,
    memory: str | None = None,
    catalogs: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running Spark session, or start one with settings for lakebed.

    Args:
        app_name: the name that Spark shows.
        cores: threads of a local session; None: every core that this process may use. Ignored with another master.
        memory: heap of the JVM, such as ``"2g"``; None: Spark's default, 1 GB. The Python worker of each core comes on
            top.
        catalogs: names of catalogs in SQL, and the lake of each: ``{"lake": "s3://bucket/lake"}``.
        settings: Spark settings that override lakebed's, such as ``{"spark.master": "spark://host:7077"}``. In a
            session that is running already, only the SQL settings that are named here change.

    Raises:
        InvalidRequest: Java 17 or PySpark 4.1 is missing or too old, `cores` is not positive, there is no jar for
            `catalogs`, or the running session was started without it.
        Unavailable: the JVM did not start. Its output is on the console.

    Cost: the first start takes 4 to 6 s; a running session costs nothing.
    """
    if cores is not None and cores < 1:
        raise InvalidRequest(f"A Spark session needs at least one core, but cores={cores} was asked for.", cores=cores)
    wanted_settings = dict(settings or {})
    running = find_session()
    if catalogs:
        defaults = catalog_settings(catalogs)
        if running is not None and defaults[JARS] not in (running.conf.get(JARS, "") or ""):
            raise InvalidRequest(
                "The running Spark session was started without lakebed's jar, so it cannot have catalogs: stop it, or "
                "name them where it is started, in lakebed.spark.session(catalogs=...).",
                kind="jar_not_loaded",
            )
        wanted_settings = merge_settings(defaults, wanted_settings)
    if running is not None:
        for name, value in wanted_settings.items():
            # Spark knows no settings of catalogs before they are used.
            if running.conf.isModifiable(name) or name.startswith(CATALOGS):
                running.conf.set(name, value)
        return running
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(_settings(app_name, cores=cores, memory=memory, wanted_settings=wanted_settings).items()))
    if conf.get("spark.master", "").startswith("local"):
        # Python workers must be this interpreter, with this lakebed; Spark's default is whatever python3 is on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for logger in query_loggers():
            logger.disabled = True
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
        SparkContext._ensure_initialized(gateway=launch(conf), conf=conf)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def find_session() -> SparkSession | None:
    """Return the session of this thread, or else the one that another thread started; None: no session is running."""
    active = SparkSession.getActiveSession()
    if (
        active is None
        and SparkContext._active_spark_context is not None
        and SparkSession._instantiatedSession is not None
    ):
        return SparkSession.builder.getOrCreate()
    return active


def query_loggers() -> list[logging.Logger]:
    """Return the loggers with which PySpark prints a page of JSON on the console for every error about SQL.

    The error itself has the same text. These loggers have PySpark's own class, which takes arguments that no other
    logger takes.
    """
    names = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
    return [PySparkLogger.getLogger(name) for name in names]


def _settings(
    app_name: str, *, cores: int | None, memory: str | None, wanted_settings: Mapping[str, str]
) -> dict[str, str]:
    """Return every setting of a new session. `wanted_settings` takes precedence."""
    settings = {
        "spark.app.name": app_name,
        # Timestamps with a local time zone print, group and compare the same wherever the job runs.
        "spark.sql.session.timeZone": "UTC",
        # Rows reach Python workers as Arrow batches: larger ones cost fewer crossings (3 M instead of 1 M rows/s) ...
        # Rows are passed to Python workers as Arrow batches. Larger batches are faster (3 M instead of 1 M rows/s) ...
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        # toPandas and createDataFrame by column instead of by row.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Columns of type TIME exist only behind this switch.
        "spark.sql.timeType.enabled": "true",
        # The data source "lakebed" leaves out files by Spark's filters.
        "spark.sql.python.filterPushdown.enabled": "true",
        # No metastore: nothing is looked up in Hive, no derby.log, no metastore_db in the working folder.
        "spark.sql.catalogImplementation": "in-memory",
        # A web server costs a port, a second at the start and megabytes of heap in every script.
        "spark.ui.enabled": "false",
        # The console belongs to the program.
        "spark.ui.showConsoleProgress": "false",
    }
    master = wanted_settings.get("spark.master", os.environ.get("MASTER", "local"))
    if master.startswith("local"):
        settings |= _local_settings(master, cores=cores, memory=memory)
    settings |= wanted_settings
    if master.startswith("local") and "log4j" not in wanted_settings.get("spark.driver.extraJavaOptions", ""):
        options = f"{QUIET} {wanted_settings.get('spark.driver.extraJavaOptions', '')}"
        settings["spark.driver.extraJavaOptions"] = options.strip()
    return settings


def _local_settings(master: str, *, cores: int | None, memory: str | None) -> dict[str, str]:
    core_count = cores or _usable_core_count()
    folder = _temporary_folder()
    return {
        "spark.master": f"local[{core_count}]" if master == "local" else master,
        "spark.driver.memory": memory or "1g",
        # A local session needs no network, and looking up the machine's name can take seconds.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Spark's 200 is for clusters: each shuffle would run 200 tiny tasks. Adaptive execution merges these further.
        "spark.sql.shuffle.partitions": str(max(8, 4 * core_count)),
        "spark.local.dir": str(folder / "local"),
        # Created on the first use of a Spark-managed table, by default in the working folder.
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def _usable_core_count() -> int:
    """Return the number of cores that this process may use; on macOS, which does not report it, the number of all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _temporary_folder() -> Path:
    """Create a folder that is removed, with everything that Spark left in it, when the interpreter exits."""
    folder = Path(tempfile.mkdtemp(prefix="lakebed-spark-"))
    atexit.register(_stop_and_remove, folder)
    return folder


def _stop_and_remove(folder: Path) -> None:
    """Stop the session that writes below `folder`, if it still runs. Then remove the folder."""
    context = SparkContext._active_spark_context
    if context is not None:
        # An error means that the JVM has ended: nothing writes here any more.
        with contextlib.suppress(Py4JError, OSError):
            context.stop()
    shutil.rmtree(folder, ignore_errors=True)


def launch(conf: SparkConf) -> JavaGateway:
    """Start a JVM; its output goes to this process's standard error, except one meaningless line.

    Raises `Unavailable`: it did not start.
    """
    read_end, write_end = os.pipe()
    ThreadRuntime().spawn(lambda: _relay(read_end), name="spark-stderr")
    try:
        return launch_gateway(conf, popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise Unavailable(
            "Spark's JVM ended while it was starting; its output is above. Often the reason is an unknown setting or a "
            "heap larger than the machine's memory: correct it.",
            kind="spark_start",
        ) from error
    finally:
        os.close(write_end)


def _relay(read_end: int) -> None:
    """Copy lines to standard error until the JVM and its workers have closed their end."""
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(_UNAVOIDABLE):
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()
