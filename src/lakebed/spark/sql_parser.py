"""Spark's own SQL parser, without a session: to say whether a text is SQL before anything runs.

Owns: starting a JVM for that (about 2 s, less memory than a session), or using the one that runs. Only the grammar is
checked: tables and columns are not looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import ParseException

from lakebed.spark.java import require_java, require_pyspark
from lakebed.spark.messages import first_line
from lakebed.spark.start import QUIET, launch

__all__ = ["Parse", "sql_parser"]

Parse = Callable[[Literal["expression", "query"], str], str | None]
"""Kind and text -> what is wrong with it, in Spark's first words; None: it is SQL."""

_EXIT_SECONDS_MAX = 10


@contextmanager
def sql_parser() -> Iterator[Parse]:
    """The parser, for as long as the context lasts.

    Raises:
        InvalidRequest: no Java or no PySpark; says what to install.
        Unavailable: the JVM did not start.
    """
    require_pyspark()
    running = SparkContext._gateway
    if running is None:
        require_java()
    settings = {"spark.driver.memory": "256m", "spark.driver.extraJavaOptions": QUIET}
    gateway: Any = running or launch(SparkConf(loadDefaults=False).setAll([*settings.items()]))
    try:
        parser = gateway.jvm.org.apache.spark.sql.execution.SparkSqlParser()

        def parse(kind: Literal["expression", "query"], text: str) -> str | None:
            try:
                (parser.parseExpression if kind == "expression" else parser.parsePlan)(text)
            except (Py4JJavaError, ParseException) as error:
                # PySpark turns what the JVM throws into its own errors once a session was made.
                message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
                return first_line(message) or "it is no SQL"
            return None

        yield parse
    finally:
        if running is None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # which ends the JVM
            gateway.proc.wait(_EXIT_SECONDS_MAX)
