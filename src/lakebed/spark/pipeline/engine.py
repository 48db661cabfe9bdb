"""What the steps ask of Spark: read files and tables, run SQL over views, judge rows, write tables, compact.

Owns: every use of Spark in a pipeline, and turning what Spark says about bad SQL or bad files into one sentence with
the step's line. The only module of the pipeline that loads PySpark; it is loaded when a step first needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.spark.jobs import compact_table
from lakebed.spark.pipeline.facts import Fingerprint
from lakebed.spark.pipeline.nodes import Place
from lakebed.spark.reading import read
from lakebed.spark.types import arrow_schema_of
from lakebed.spark.writing import merge, write
from lakebed.table.model import Snapshot
from lakebed.table.table import Table

__all__ = ["Engine"]

_READER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # A row that does not fit its schema, or a column of another name, must stop the load, not become nulls.
    "csv": {"header": "true", "mode": "FAILFAST", "enforceSchema": "false"},
    "json": {"mode": "FAILFAST"},
    "parquet": {},
}


class Engine:
    """A Spark session, seen from the pipeline's side."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    # ---- rows

    def read_files(
        self,
        paths: Sequence[str],
        *,
        file_format: str,
        options: Mapping[str, str],
        schema: Mapping[str, str] | None,
        place: Place,
    ) -> DataFrame:
        """Files as rows; `schema` gives columns with Spark SQL types, in the files' order (Parquet knows its own)."""
        with _sentences(place):
            reader = self._spark.read.format(file_format).options(**{**_READER_OPTIONS[file_format], **options})
            if schema is not None:
                reader = reader.schema(", ".join(f"`{column}` {kind}" for column, kind in schema.items()))
            return reader.load(list(paths))

    def infer_schema(
        self, paths: Sequence[str], *, file_format: str, options: Mapping[str, str], place: Place
    ) -> dict[str, str]:
        """Columns with Spark SQL types, from a pass over the files."""
        inferring = {"inferSchema": "true"} if file_format == "csv" else {}
        frame = self.read_files(
            paths, file_format=file_format, options={**inferring, **options}, schema=None, place=place
        )
        return {field.name: field.dataType.simpleString() for field in frame.schema.fields}

    def read_table(self, table: Table, *, version: str | None, where: str | None, place: Place) -> DataFrame:
        """A version of a table (None: the newest)."""
        return self.filtered(read(self._spark, table, version=version), where, place=place)

    def query(self, sql: str, *, views: Mapping[str, DataFrame], place: Place) -> DataFrame:
        """A SELECT over views of these names."""
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        with _sentences(place):
            return self._spark.sql(sql)

    def filtered(self, rows: DataFrame, where: str | None, *, place: Place) -> DataFrame:
        """The rows for which `where` is true; None: all."""
        if where is None:
            return rows
        with _sentences(place):
            return rows.filter(where)

    def kept(self, rows: DataFrame) -> DataFrame:
        """The same rows, kept in memory (or on the executors' disks) after their first use."""
        return rows.cache()

    # ---- judging

    def check_predicate(self, rows: DataFrame, predicate: str, what: str, *, place: Place) -> None:
        """Refuse SQL that does not fit the rows; starts no job."""
        with _sentences(place, what):
            rows.selectExpr(f"coalesce(({predicate}), false)")

    def one_row(self, rows: DataFrame, expressions: Sequence[str], *, place: Place) -> tuple[Any, ...]:
        """Aggregates over all rows, in one job."""
        with _sentences(place):
            return tuple(rows.selectExpr(*expressions).collect()[0])

    def sample(self, rows: DataFrame, where: str, *, count: int, place: Place) -> list[dict[str, Any]]:
        """At most `count` rows for which `where` is true."""
        with _sentences(place):
            return [row.asDict() for row in rows.filter(where).limit(count).collect()]

    def fingerprint(self, table: Table, *, version: str) -> Fingerprint:
        """Count and checksum of a version's rows, whatever their order.

        The checksum is the sum of a 64-bit hash (xxHash64) of each row over all columns, as a decimal number.
        """
        rows = read(self._spark, table, version=version)
        columns = ", ".join(f"`{name}`" for name in rows.columns)
        count, checksum = rows.selectExpr(
            "count(*)", f"coalesce(sum(cast(xxhash64({columns}) AS decimal(38, 0))), 0)"
        ).collect()[0]
        return Fingerprint(int(count), str(checksum))

    # ---- writing

    def arrow_schema(self, rows: DataFrame, *, without: str | None, never_null: Sequence[str]) -> pa.Schema:
        """The rows' columns as Arrow fields, to make a table of them."""
        schema = arrow_schema_of(rows.schema)
        fields = [field.with_nullable(field.name not in never_null) for field in schema if field.name != without]
        return pa.schema(fields)

    def append(
        self, rows: DataFrame, table: Table, *, place: Place, commit_user: str, commit_identifier: int
    ) -> Snapshot | None:
        """Add rows (in a table with a primary key: put them in the place of those of the same key); one commit.

        None: there was nothing to commit. A commit of the same user and identifier is found, not made again.
        """
        with _sentences(place):
            return write(rows, table, commit_user=commit_user, commit_identifier=commit_identifier)

    def merge(
        self,
        rows: DataFrame,
        table: Table,
        *,
        deletes: str | None,
        place: Place,
        commit_user: str,
        commit_identifier: int,
    ) -> Snapshot | None:
        """Insert, update and (where the column `deletes` is true) delete by primary key; otherwise as `append`."""
        with _sentences(place):
            return merge(rows, table, deletes=deletes, commit_user=commit_user, commit_identifier=commit_identifier)

    def compact(self, table: Table, *, full: bool) -> Snapshot | None:
        """Rewrite small files, one task a bucket. None: there was nothing to do."""
        return compact_table(self._spark, table, full=full).snapshot


_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark prints every analysis error as a page of JSON through these; here it becomes a sentence."""


_CAUSES_MAX = 20
_WORDS_MAX = 400


@contextmanager
def _sentences(place: Place, what: str = "Spark") -> Iterator[None]:
    """What Spark refuses is an error in the pipeline file: say where, in Spark's first words."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    were_disabled = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    except (AnalysisException, ParseException) as error:
        raise place.error(f"{what} does not accept this SQL: {_first_words(error)}") from error
    except PySparkException as error:
        raise place.error(f"{what} failed: {_first_words(error)}") from error
    except Py4JJavaError as error:
        words, is_ours = _causes(error.java_exception)
        if is_ours:
            raise place.error(f"{what} failed: {words}") from error
        raise Unavailable(f"{place.file}, line {place.line}: {what} failed: {words}") from error
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{place.file}, line {place.line}: {error.message}", kind=error.kind, **error.facts
        ) from error
    finally:
        for logger, was_disabled in zip(loggers, were_disabled, strict=True):
            logger.disabled = was_disabled


def _first_words(error: PySparkException) -> str:
    """The first line of Spark's message, without its stack and its plan."""
    return _line(str(error)) or type(error).__name__


def _causes(java_exception: Any) -> tuple[str, bool]:
    """Why a job failed: the two innermost messages; and whether rows, files or SQL were at fault, not the cluster.

    Spark's own errors about those carry a condition (``[MALFORMED_RECORD_IN_PARSING...]``), which begins the message.
    """
    messages: list[str] = []
    cause = java_exception
    while cause is not None and len(messages) < _CAUSES_MAX:
        message = _line(cause.getMessage() or "")
        if message and message not in messages:
            messages.append(message)
        cause = cause.getCause()
    told = [message for message in messages if message.startswith("[")]
    words = "; ".join(messages[-2:]) or "Spark gave no reason"
    return words, bool(told)


def _line(text: str) -> str:
    """The first line that says something, cut where it gets long."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _WORDS_MAX else first[: _WORDS_MAX - 1] + "…"
