"""The operations of steps that may need Spark: read files and tables, run SQL over views, check rows, write, compact.

Owns: every use of Spark in a pipeline, the choice between Spark and this process, and the translation of Spark's errors
into one sentence with the step's line.

Invariant: if this process does the work (few rows of a plain kind: see `plain` and `conditions`), the result equals
Spark's.

This is the only module of the pipeline that loads PySpark. It is loaded when a step first needs it. The session starts
when Spark is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.pipeline.bad_rows import BadRow, BadRows, find_lines, local_path, reason_of
from lakebed.pipeline.conditions import all_hold
from lakebed.pipeline.files import FileReading
from lakebed.pipeline.nodes import SourceLocation
from lakebed.pipeline.plain import read_plain_csv
from lakebed.pipeline.report_model import Fingerprint
from lakebed.pipeline.rows import LocalRows, Rows
from lakebed.spark.dataframe.reading import local_frame, read
from lakebed.spark.dataframe.writing import merge, write, write_arrow
from lakebed.spark.jobs import compact_table
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.types import arrow_schema_of
from lakebed.spark.sql_parser import first_line
from lakebed.spark.start import query_loggers
from lakebed.spark.tasks.committing import check_committed
from lakebed.table.commit.commit import CommitOptions
from lakebed.table.compaction.compact import current_tasks
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table

_READER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # A row that does not fit its schema, or a column with another name, must stop the load instead of becoming nulls. A
    # reader that leaves out unused columns does not notice that a row has too few or too many values.
    # A quote inside a quoted value is doubled (RFC 4180), as spreadsheets and databases write it. Spark's default, a
    # backslash before the quote, reads such a value incorrectly and without an error.
    "csv": {"header": "true", "escape": '"', "mode": "FAILFAST", "enforceSchema": "false", "columnPruning": "false"},
    "json": {"mode": "FAILFAST"},
    "parquet": {},
}

_SAMPLE_ROWS = 3


_PLAIN_TIMES: Mapping[str, str] = {
    # These determine the meaning of dates and times in texts.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}

_DRIVER_BYTES_MAX = 32 << 20
"""Most encoded bytes that a compaction rewrites in this process. Above this the executors do it."""


class Engine:
    """The operations of steps on rows and tables, by Spark or in this process.

    Args:
        start_spark: called once, when Spark is first needed.
    """

    def __init__(self, start_spark: Callable[[], SparkSession]) -> None:
        self._start_spark = start_spark
        self._session: SparkSession | None = None

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            self._session = self._start_spark()
        return self._session

    def frame(self, rows: Rows) -> DataFrame:
        """Return rows as a DataFrame; rows of this process are transferred once."""
        if not isinstance(rows, LocalRows):
            return rows
        if rows.frame is None:
            rows.frame = local_frame(self._spark, rows.arrow)
        return rows.frame

    # ---- rows

    def read_plain(self, paths: Sequence[str], reading: FileReading) -> LocalRows | None:
        """Read small CSV files of a plain kind without a job; None: read them with `read_files`."""
        kinds = {kind.strip().lower().partition("_")[0] for kind in reading.columns.values()}
        if kinds & {"date", "timestamp"} and any(
            self._spark.conf.get(name) != text for name, text in _PLAIN_TIMES.items()
        ):
            return None
        rows = read_plain_csv(paths, schema=reading.columns, options=reading.options)
        return None if rows is None else LocalRows(rows)

    def read_files(self, paths: Sequence[str], reading: FileReading) -> DataFrame:
        """Read files with Spark."""
        with _sentences(reading.location):
            options = {**_READER_OPTIONS[reading.file_format], **reading.options}
            reader = self._spark.read.format(reading.file_format).options(**options)
            if reading.schema is not None:
                reader = reader.schema(", ".join(f"`{column}` {kind}" for column, kind in reading.schema.items()))
            return reader.load(list(paths))

    def check_files(self, names: Mapping[str, str], reading: FileReading) -> BadRows:
        """Read every value of CSV or JSON files, and find the rows that do not fit the schema.

        Args:
            names: paths with the names that messages show.

        Cost: one job; if there are bad rows, a second one for the first of them, and a pass over their files here.
        """
        mark, frame = self._read_with_mark([*names], reading)
        # Count every column, because Spark checks only the values that a query uses.
        counts = [functions.count(exact_column(name)) for name in (mark, *reading.columns)]
        with _sentences(reading.location):
            row_count, bad_count = frame.select(functions.count(functions.lit(1)), *counts).collect()[0][:2]
            if not bad_count:
                return BadRows(row_count)
            bad = frame.select("*", "_metadata.file_path").filter(exact_column(mark).isNotNull())
            bad = bad.orderBy("file_path", functions.monotonically_increasing_id()).limit(_SAMPLE_ROWS)
            first = [row.asDict() for row in bad.collect()]
        return BadRows(row_count, bad_count, _explain_rows(first, mark, names, reading))

    def without_bad_rows(self, names: Mapping[str, str], reading: FileReading) -> DataFrame:
        """Return the rows that fit. They are read once, and the executors keep them.

        They are kept because Spark would otherwise decide again in each use, by the columns of that use alone.
        """
        mark, frame = self._read_with_mark([*names], reading)
        with _sentences(reading.location):
            return (
                frame.filter(exact_column(mark).isNull()).select(*map(exact_column, reading.columns)).localCheckpoint()
            )

    def _read_with_mark(self, paths: Sequence[str], reading: FileReading) -> tuple[str, DataFrame]:
        """Read files with one more column (its name comes first): a bad row's text, null for the other rows."""
        mark = "_bad_row"
        while mark.lower() in map(str.lower, reading.columns):
            mark = f"_{mark}"
        options = {**reading.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": mark}
        marked_reading = replace(reading, options=options, schema={**reading.columns, mark: "string"})
        return mark, self.read_files(paths, marked_reading)

    def file_facts(self, pattern: str) -> list[tuple[str, int, int]]:
        """Return path, bytes and time of change (Unix ms) of the files that a URL names, also in folders; sorted."""
        session: Any = self._spark
        path = session._jvm.org.apache.hadoop.fs.Path(pattern)
        system = path.getFileSystem(session._jsc.hadoopConfiguration())
        facts = []
        for status in system.globStatus(path) or ():
            files = system.listFiles(status.getPath(), True)
            while files.hasNext():
                file = files.next()
                facts.append((file.getPath().toString(), int(file.getLen()), int(file.getModificationTime())))
        return sorted(facts)

    def infer_schema(self, paths: Sequence[str], reading: FileReading) -> dict[str, str]:
        """Infer columns with Spark SQL types, in a pass over the files."""
        inferring = {"inferSchema": "true"} if reading.file_format == "csv" else {}
        frame = self.read_files(paths, replace(reading, options={**inferring, **reading.options}))
        return {field.name: field.dataType.simpleString() for field in frame.schema.fields}

    def read_table(self, table: Table, *, version: str | None, where: str | None, location: SourceLocation) -> Rows:
        """Read a version of a table (None: the newest)."""
        return self.filter_rows(read(self._spark, table, version=version), where, location=location)

    def query(self, sql: str, *, views: Mapping[str, Rows], location: SourceLocation) -> DataFrame:
        """Run a SELECT over views of these names."""
        for name, rows in views.items():
            self.frame(rows).createOrReplaceTempView(name)
        with _sentences(location):
            return self._spark.sql(sql)

    def filter_rows(self, rows: Rows, where: str | None, *, location: SourceLocation) -> Rows:
        """Return the rows for which `where` is true; None: all."""
        if where is None:
            return rows
        with _sentences(location):
            return self.frame(rows).filter(where)

    def cache_rows(self, rows: Rows) -> Rows:
        """Cache rows in memory (or on the executors' disks) after their first use."""
        return rows if isinstance(rows, LocalRows) else rows.cache()

    def release_rows(self, rows: Rows) -> None:
        """Release what `cache_rows` cached."""
        if not isinstance(rows, LocalRows):
            rows.unpersist()

    # ---- checking

    def count_when_held(self, rows: Rows, *, every_row: Sequence[str], overall: Sequence[str]) -> int | None:
        """Return the number of rows if this process finds that every condition holds; None: use `one_row`."""
        if isinstance(rows, LocalRows) and all_hold(rows.arrow, every_row=every_row, overall=overall):
            return int(rows.arrow.num_rows)
        return None

    def check_predicate(self, rows: Rows, predicate: str, what: str, *, location: SourceLocation) -> None:
        """Check that SQL fits the rows. Starts no job."""
        with _sentences(location, what):
            self.frame(rows).selectExpr(f"coalesce(({predicate}), false)")

    def one_row(self, rows: Rows, expressions: Sequence[str], *, location: SourceLocation) -> tuple[Any, ...]:
        """Compute aggregates over all rows, in one job."""
        frame = self.frame(rows)
        with _sentences(location):
            # Few rows are one task, so no second stage is needed to combine results.
            frame = frame.coalesce(1) if isinstance(rows, LocalRows) else frame
            return tuple(frame.selectExpr(*expressions).collect()[0])

    def sample(self, rows: Rows, where: str, *, count: int, location: SourceLocation) -> list[dict[str, Any]]:
        """Return at most `count` rows for which `where` is true."""
        with _sentences(location):
            return [row.asDict() for row in self.frame(rows).filter(where).limit(count).collect()]

    def fingerprint(self, table: Table, *, version: str) -> Fingerprint:
        """Compute count and checksum of a version's rows, independent of their order.

        The checksum is the sum of a 64-bit hash (xxHash64) of each row over all columns, as a decimal number.
        """
        rows = read(self._spark, table, version=version)
        columns = ", ".join(f"`{name}`" for name in rows.columns)
        count, checksum = rows.selectExpr(
            "count(*)", f"coalesce(sum(cast(xxhash64({columns}) AS decimal(38, 0))), 0)"
        ).collect()[0]
        return Fingerprint(int(count), str(checksum))

    # ---- writing

    def arrow_schema(self, rows: Rows, *, without: str | None, never_null: Sequence[str]) -> pa.Schema:
        """Return the rows' columns as Arrow fields, to create a table with them."""
        schema = rows.arrow.schema if isinstance(rows, LocalRows) else arrow_schema_of(rows.schema)
        fields = [field.with_nullable(field.name not in never_null) for field in schema if field.name != without]
        return pa.schema(fields)

    def append(
        self, rows: Rows, table: Table, *, location: SourceLocation, commit_user: str, commit_identifier: int
    ) -> Snapshot | None:
        """Append rows (with a primary key: replace the rows of the same key) in one commit.

        None: there was nothing to commit. An earlier commit of the same user and identifier is returned, not repeated.
        """
        identity = CommitOptions(commit_user=commit_user, commit_identifier=commit_identifier)
        with _sentences(location):
            if isinstance(rows, LocalRows):
                return write_arrow(rows.arrow, table, **identity)
            return write(rows, table, **identity)

    def merge(
        self,
        rows: Rows,
        table: Table,
        *,
        deletes: str | None,
        location: SourceLocation,
        commit_user: str,
        commit_identifier: int,
    ) -> Snapshot | None:
        """Insert, update and (where the column `deletes` is true) delete by primary key; otherwise as `append`."""
        identity = CommitOptions(commit_user=commit_user, commit_identifier=commit_identifier)
        with _sentences(location):
            if isinstance(rows, LocalRows) and {field.name for field in table.refresh().fields} <= {
                *rows.arrow.column_names
            }:
                return write_arrow(rows.arrow, table, deletes=deletes, **identity)
            return merge(self.frame(rows), table, deletes=deletes, **identity)

    def compact(self, table: Table, *, full: bool) -> Snapshot | None:
        """Rewrite small files, with one task for each bucket. None: there was nothing to do."""
        tasks = current_tasks(table.context, full=full)
        if sum(task.input_bytes for task in tasks) <= _DRIVER_BYTES_MAX:
            snapshot = table.compact(full=full).snapshot
            if snapshot is not None:
                check_committed(table, snapshot)
            return snapshot
        return compact_table(self._spark, table, full=full).snapshot


def _explain_rows(
    rows: Sequence[dict[str, Any]], mark: str, names: Mapping[str, str], reading: FileReading
) -> tuple[BadRow, ...]:
    """Turn bad rows, as Spark read them, into their files' names, their lines and what is wrong with them."""
    options = {name.lower(): text for name, text in reading.options.items()}
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    lines: dict[str, list[int | None]] = {}
    for url in {row["file_path"] for row in rows}:
        path = local_path(url)
        records = [row[mark] for row in rows if row["file_path"] == url]
        has_lines = path is not None and "linesep" not in options
        lines[url] = find_lines(path, records, encoding=encoding) if path and has_lines else [None] * len(records)
    explained = []
    for row in rows:
        path = local_path(row["file_path"])
        reason = reason_of(
            row[mark],
            file_format=reading.file_format,
            schema=reading.columns,
            values=row,
            options=reading.options,
        )
        file = row["file_path"] if path is None else names.get(path, path)
        explained.append(BadRow(file, lines[row["file_path"]].pop(0), row[mark], reason))
    return tuple(explained)


_CAUSES_MAX = 20
_WORDS_MAX = 400


@contextmanager
def _sentences(location: SourceLocation, what: str = "Spark") -> Iterator[None]:
    """Translate an error of Spark into one sentence with the step's line and the first line of Spark's message."""
    loggers = query_loggers()  # silenced, because the error becomes a sentence here
    were_disabled = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    except (AnalysisException, ParseException) as error:
        raise location.error(f"{what} does not accept this SQL: {_line(str(error)) or type(error).__name__}") from error
    except PySparkException as error:
        raise location.error(f"{what} failed: {_line(str(error)) or type(error).__name__}") from error
    except Py4JJavaError as error:
        words, is_ours = _causes(error.java_exception)
        if is_ours:
            raise location.error(f"{what} failed: {words}") from error
        raise Unavailable(f"{location}: {what} failed: {words}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{location}: {error.message}", kind=error.kind, **error.facts) from error
    finally:
        for logger, was_disabled in zip(loggers, were_disabled, strict=True):
            logger.disabled = was_disabled


def _causes(java_exception: Any) -> tuple[str, bool]:
    """Return the two innermost messages of a failed job, and whether rows, files or SQL caused it, and not the cluster.

    Spark's errors about rows, files and SQL begin with a condition (``[MALFORMED_RECORD_IN_PARSING...]``).
    """
    messages: list[str] = []
    cause = java_exception
    while cause is not None and len(messages) < _CAUSES_MAX:
        message = _line(cause.getMessage() or "")
        if message and message not in messages:
            messages.append(message)
        cause = cause.getCause()
    words = "; ".join(messages[-2:]) or "Spark gave no reason"
    return words, any(message.startswith("[") for message in messages)


def _line(text: str) -> str:
    """Return the first line of Spark's message, without its stack and its plan."""
    first = first_line(text)
    return first if len(first) <= _WORDS_MAX else first[: _WORDS_MAX - 1] + "…"
