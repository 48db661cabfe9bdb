"""Spark's own SQL parser, without a session: it checks whether a text is SQL before anything runs.

Owns: starting a JVM for the parser (about 2 s, less memory than a session), or using the running JVM. Only the grammar
is checked, and names of tables are listed; neither tables nor columns are looked up. `first_line` shortens Spark's
messages for users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import ParseException

from lakebed.spark.java import require_java, require_pyspark
from lakebed.spark.start import QUIET, launch


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parser's result for a text."""

    wrong: str | None
    """The first line of Spark's error; None: it is SQL."""
    tables: frozenset[str] = frozenset()
    """For a query: names of one part that it reads and does not define itself, as written."""


Parse = Callable[[Literal["expression", "query"], str], Parsed]

_EXIT_SECONDS_MAX = 10
_STATE: Final = re.compile(r"\s*\(?\bSQLSTATE: \w{5}\)?(?=[\s.;,]|$)")


@contextmanager
def sql_parser() -> Iterator[Parse]:
    """Open Spark's parser for the length of the context.

    Raises:
        InvalidRequest: no Java or no PySpark; names what to install.
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

        def parse(kind: Literal["expression", "query"], text: str) -> Parsed:
            try:
                if kind == "expression":
                    parser.parseExpression(text)
                    return Parsed(None)
                return Parsed(None, _tables_of(parser.parsePlan(text)))
            except (Py4JJavaError, ParseException) as error:
                # PySpark turns what the JVM throws into its own errors once a session was made.
                message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
                return Parsed(first_line(message) or "it is not SQL")

        yield parse
    finally:
        if running is None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # which ends the JVM
            gateway.proc.wait(_EXIT_SECONDS_MAX)


def _tables_of(plan: Any) -> frozenset[str]:
    """Names of one part that a parsed query reads, without those that its WITH clauses define."""
    names: set[str] = set()
    defined: set[str] = set()
    pending = [plan]
    while pending:
        node = pending.pop()
        kind = node.getClass().getSimpleName()
        if kind == "UnresolvedRelation" and node.multipartIdentifier().size() == 1:
            names.add(node.multipartIdentifier().head())
        inner = [*_items(node.innerChildren())] if kind == "UnresolvedWith" else []
        defined.update(alias.alias().lower() for alias in inner)
        pending.extend((*_items(node.children()), *_items(node.subqueries()), *inner))
    return frozenset(name for name in names if name.lower() not in defined)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))


def first_line(text: str) -> str:
    """Return the first line with text, without its SQLSTATE; the condition in brackets stays. Empty for none."""
    lines = (_STATE.sub("", line).replace(".;", ";").strip() for line in text.splitlines())
    return next(filter(None, lines), "")
