"""The Python data source ``lakebed``: tables in any session of Spark, without a jar and without Hadoop.

Owns: the options of ``spark.read.format("lakebed")`` and ``df.write.format("lakebed")``, and how a plan of readers and
the tasks of a write are presented in the form of Spark's data sources. Uses only the public API of PySpark.

Invariants:
- A DataFrame reads one version: the newest one when it was made, or the one that its options name.
- A job makes one snapshot, on the driver, or none. Only files of tasks that Spark accepted are committed.
- If an executor does not have this version of lakebed, the error is one sentence (`pack_as`).
- Credentials come from the environment of the driver. They are part of pickled functions, never of an option or a plan.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

import lakebed
from lakebed.errors import InvalidRequest
from lakebed.spark.datasource.source_writing import accept_results, discard_written, write_rows
from lakebed.spark.plan.carried import transfer_schema
from lakebed.spark.plan.change_rows import change_fields
from lakebed.spark.plan.filters import from_filter, translate
from lakebed.spark.plan.plan import Pack, plan_readers
from lakebed.spark.plan.shipping import ship
from lakebed.spark.plan.types import arrow_schema_of, spark_schema
from lakebed.spark.streams.source_options import PINNED, check_options, flag, number, open_table, without_frames
from lakebed.spark.streams.stream_commits import APPLICATION, CHECKPOINT, user_of
from lakebed.spark.streams.stream_options import CONSUMER, OWN_OPTIONS, limits_of, stream_columns, stream_settings
from lakebed.spark.tasks.committing import commit_changes, discarding
from lakebed.spark.tasks.write_tasks import WriteTask, write_task
from lakebed.table.branch.travel import find_schema_id, resolve
from lakebed.table.model.model import Snapshot
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.model.predicate_tree import Predicate, all_of
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.scan import Scan, check_readable, scan_snapshot
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.schema.schema import require_column
from lakebed.table.table import Table

STREAM_OPTIONS: Final = ("path", "branch", "version", "timestamp", "columns", "tasks", *map(str.lower, OWN_OPTIONS))
SINK_OPTIONS: Final = ("path", "branch", CHECKPOINT.lower(), APPLICATION, "queryname")
READ_OPTIONS: Final = ("path", "version", "tag", "branch", "timestamp", "columns", "where", "tasks", "pushfilters")
WRITE_OPTIONS: Final = ("path", "branch", "partitions")


class LakebedSource(DataSource):
    """``format("lakebed")``. The argument of ``load`` and ``save`` is the table's folder."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "lakebed"

    @without_frames
    def schema(self) -> StructType:
        """Return the columns of the options' version, or of a stream. Raises `InvalidRequest`, `NotFound`."""
        if {name.lower() for name in self.options} & set(map(str.lower, OWN_OPTIONS)):
            return self._stream_schema()
        scan = self._scan()
        # Fix the version: Spark pickles this object, and plans with it whenever the DataFrame is used.
        self.options[PINNED] = str(0 if scan.snapshot is None else scan.snapshot.id)
        return spark_schema(scan.table_schema.select_fields(scan.schema.names))

    @without_frames
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of some columns of that version. Raises `InvalidRequest`: columns or types do not fit."""
        scan = self._scan(schema.names)
        expected_schema = spark_schema(scan.table_schema.select_fields(schema.names))
        for asked_field, field in zip(schema, expected_schema, strict=True):
            _check_type(asked_field, field)
        table, tasks = self._table(), number(self.options, "tasks", os.cpu_count() or 1)
        kind = LakebedReader if flag(self.options, "pushfilters", True) else PlainReader
        return kind(table, scan, schema, tasks=tasks, where=self._where())

    @without_frames
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer of rows. Raises `InvalidRequest`: columns do not fit the table."""
        check_options(self.options, WRITE_OPTIONS, "df.write")
        table = self._table()
        mode = self.options.get("partitions", "replaced")
        if mode not in ("replaced", "kept"):
            raise InvalidRequest(
                f"The option partitions={mode!r} is invalid: use 'replaced' (an overwrite replaces the whole table) "
                "or 'kept' (only the partitions that the rows are in).",
                kind="invalid_option",
            )
        overwritten = Overwrite(dynamic=mode == "kept") if overwrite else None
        task = write_task(table, starts_anew=overwrite)
        task.check(table.store, arrow_schema_of(schema))
        return LakebedWriter(ship(table.store, writes=True), task, overwritten, dict(self.options))

    @without_frames
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return a reader that follows the table. Raises `InvalidRequest`: options, columns or types do not fit."""
        streams = _streams()
        fields = {field.name: field for field in self._stream_schema(every=True)}
        for asked_field in schema:
            _check_type(asked_field, fields.get(asked_field.name))
        table = self._table()
        reader: DataSourceStreamReader = streams.StreamReader(
            table,
            stream_settings(self.options),
            schema=table.schema,
            columns=schema.names,
            limits=limits_of(self.options),
            consumer=self.options.get(CONSUMER),
            tasks=number(self.options, "tasks", os.cpu_count() or 1),
        )
        return reader

    @without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """Return a writer of batches. Raises `InvalidRequest`: columns do not fit, or nothing identifies batches."""
        streams = _streams()
        check_options(self.options, SINK_OPTIONS, "df.writeStream")
        table = self._table()
        task = write_task(table, starts_anew=overwrite)
        task.check(table.store, arrow_schema_of(schema))
        shipped_store, user = ship(table.store, writes=True), user_of(self.options)
        writer: DataSourceStreamWriter = streams.StreamWriter(shipped_store, task, user, overwrite, dict(self.options))
        return writer

    def _stream_schema(self, *, every: bool = False) -> StructType:
        """Return the columns of a stream: those of the option, or with `every` all."""
        check_options(self.options, STREAM_OPTIONS, "spark.readStream")
        settings, schema = stream_settings(self.options), self._table().schema
        check_readable(schema)
        columns: Sequence[str] = stream_columns(schema, settings)
        if "columns" in self.options and not every:
            names = [name.strip() for name in self.options["columns"].split(",")]
            for name in names:
                require_column(schema, name)
            columns = [*names, *columns[len(schema.fields) :]]
        fields = change_fields(schema, columns)
        return spark_schema(fields if settings.changes else schema.select_fields(columns))

    def _table(self) -> Table:
        path = self.options.get("path")
        if not path:
            raise InvalidRequest(
                "The source 'lakebed' needs the folder of a table: load('/data/lake/flights') or "
                "save('s3://bucket/lake/flights').",
                kind="missing_option",
            )
        return open_table(self.options)

    def _where(self) -> Predicate | None:
        text = self.options.get("where")
        return None if text is None else parse_predicate(text)

    def _scan(self, columns: Sequence[str] | None = None) -> Scan:
        """Return the scan of the options' version. If no columns are given, it reads those of the option."""
        check_options(self.options, READ_OPTIONS, "spark.read")
        table = self._table()
        if columns is None and "columns" in self.options:
            columns = [name.strip() for name in self.options["columns"].split(",")]
        snapshot, schema_id = self._version(table)
        return scan_snapshot(table.context, snapshot, schema_id=schema_id, columns=columns, where=self._where())

    def _version(self, table: Table) -> tuple[Snapshot | None, int | None]:
        """Return the snapshot to read, and the id of the schema whose columns it has; None: the newest ones."""
        names = [name for name in ("version", "tag", "timestamp") if name in self.options]
        if len(names) > 1:
            raise InvalidRequest(
                f"The options {' and '.join(names)} name a version each: give one of them.", kind="ambiguous_version"
            )
        if not names:
            pinned_version = self.options.get(PINNED)
            if pinned_version is None:
                return table.latest(), None
            return (
                None if pinned_version == "0" else resolve(table.context, version=int(pinned_version)).snapshot
            ), None
        name, value = names[0], self.options[names[0]]
        if name == "timestamp":
            version = resolve(table.context, timestamp=value)
        else:
            version = resolve(table.context, version=f"tag.{value}" if name == "tag" else value)
        if version.branch is not None:
            raise InvalidRequest(
                f"version={value!r} names a branch: give it as the option branch.", kind="ambiguous_version"
            )
        return version.snapshot, find_schema_id(table.context, version.snapshot)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack_as(type(self), (dict(self.options),))


class PlainReader(DataSourceReader):
    """Reads one version, without Spark's filters."""

    def __init__(self, table: Table, scan: Scan, schema: StructType, *, tasks: int, where: Predicate | None) -> None:
        self._table = table
        self._scan = scan
        columns = transfer_schema(scan.table_schema.select_fields(schema.names))
        self._arrow = pa.schema([a.with_nullable(b.nullable) for a, b in zip(columns, schema, strict=True)])
        self._tasks = tasks
        self._where = where

    def _narrow(self, where: Predicate | None) -> None:
        """Narrow the scan by a further predicate."""
        self._where = all_of([self._where, where])
        scan = self._scan
        self._scan = scan_snapshot(
            self._table.context,
            scan.snapshot,
            schema_id=scan.table_schema.id,
            columns=scan.schema.names,
            where=self._where,
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each task; none for a version without rows. Cost: that of planning the scan."""
        readers = plan_readers(
            self._table.store, self._scan.splits(), self._scan.plan, reaches=None, task_count_min=self._tasks
        )
        return [InputPartition(pickle.dumps(pack)) for pack in readers.packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fail: in a task this object is a `TaskReader`."""
        raise AssertionError("a reader reads where it was unpickled, as _TaskReader")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (ship(self._table.store), self._scan.plan, self._arrow)
        return pack_as(TaskReader, state)


class LakebedReader(PlainReader):
    """Also excludes files and rows by Spark's filters, if ``spark.sql.python.filterPushdown.enabled`` is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Narrow the scan by filters. Return all filters, so that Spark evaluates them again."""
        columns = arrow_schema(self._scan.table_schema.fields)
        self._narrow(translate([from_filter(item) for item in filters], columns).where)
        return iter(filters)


class TaskReader(DataSourceReader):
    """A reader in a task. It has the pickled store and the plan, without the table."""

    def __init__(self, shipped: bytes, plan: ReadPlan, schema: pa.Schema) -> None:
        self._shipped = shipped
        self._plan = plan
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in batches."""
        if partition.value is None:  # a version without rows
            return
        pack: Pack = pickle.loads(partition.value)
        yield from pack.read(self._shipped, self._plan, self._schema)


class LakebedWriter(DataSourceArrowWriter):
    """Writes rows in tasks. The driver commits them once."""

    def __init__(
        self, shipped: bytes, task: WriteTask, overwrite: Overwrite | None, options: Mapping[str, str]
    ) -> None:
        self._shipped = shipped
        self._task = task
        self._overwrite = overwrite
        self._options = dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Returns errors that a retry would repeat; raises others."""
        return write_rows(self._task, self._shipped, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the tasks' files as one snapshot. Raises a task's lasting error, and as `commit_changes`."""
        table = open_table(self._options)
        changes = accept_results(table, self._task, messages)
        with discarding(table, changes):
            commit_changes(table, changes, options={}, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed job. Keep them after a failed commit, whose snapshot may exist."""
        if None not in messages:
            return
        discard_written(open_table(self._options), messages)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._shipped, self._task, self._overwrite, self._options)
        return pack_as(type(self), state)


def _text(field: StructField) -> str:
    return field.dataType.simpleString() + ("" if field.nullable else " not null")


def _check_type(asked_field: StructField, field: StructField | None) -> None:
    """Refuse a column of a schema that the user gave, if the table lacks it or has another type."""
    if field is None:
        raise InvalidRequest(
            f"The table has no column {asked_field.name!r}: leave it out of the schema given to Spark.",
            kind="unknown_column",
            column=asked_field.name,
        )
    if asked_field.dataType != field.dataType or (field.nullable and not asked_field.nullable):
        raise InvalidRequest(
            f"Column {asked_field.name!r} is {_text(field)}, but the schema given to Spark says {_text(asked_field)}: "
            "give the table's type, or no schema, and cast afterwards.",
            kind="type_mismatch",
            column=asked_field.name,
        )


def _streams() -> ModuleType:
    """Return the module of streams, which PySpark before 4.2 cannot load. Raises `InvalidRequest`."""
    try:
        return importlib.import_module("lakebed.spark.datasource.stream_source")
    except ImportError as error:
        raise InvalidRequest(
            "Streams of format('lakebed') need PySpark 4.2 or newer; with an older one use foreachBatch and "
            "lakebed.spark.upsert_stream.",
            kind="unsupported_spark",
        ) from error


def pack_as(kind: type, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the result of `__reduce__` for an object that is unpickled as `kind` with the arguments `state`.

    The state is pickled separately, so that it is unpickled after the check of the version.
    """
    return _unpacker(lakebed.__version__), (kind.__module__, kind.__name__, pickle.dumps(state))


def _unpacker(version: str) -> Callable[[str, str, bytes], Any]:
    """Return the function that makes an object in another process, if that process has this version of lakebed.

    It is pickled as code and not by its name, so that it also runs where lakebed is missing.
    """

    def lakebed_unpacked(module: str, name: str, state: bytes) -> Any:
        try:
            worker_version = importlib.import_module("lakebed").__version__
        except ImportError:
            worker_version = None
        if worker_version != version:
            problem = "has no package lakebed" if worker_version is None else f"has lakebed {worker_version}"
            raise RuntimeError(
                f"This executor's Python ({sys.executable}) {problem}, and the driver has {version}: install lakebed "
                f"{version} on all executors, or send it with the job (spark.archives)."
            )
        return getattr(importlib.import_module(module), name)(*pickle.loads(state))

    return lakebed_unpacked
