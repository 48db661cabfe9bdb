"""The Python data source ``lakebed``: tables in any session of Spark, without a jar and without Hadoop.

Owns: the options of ``spark.read.format("lakebed")`` and ``df.write.format("lakebed")``, and how a plan of readers and
a write of tasks become what Spark's data sources ask for. Uses the public API of PySpark only.

Invariants:
- A DataFrame reads one version: the one that was the newest when it was made, or the one that its options name.
- A job makes one snapshot, on the driver, or none. Only files of tasks that Spark accepted are committed.
- An executor without this version of lakebed is an error of one sentence (`_unpacked_by`).
- Credentials come from the environment of the driver and are part of pickled functions, never of an option or a plan.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

import lakebed
from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.spark.carried import carried_rows, carried_schema
from lakebed.spark.committing import commit_changes
from lakebed.spark.filters import from_filter, translate
from lakebed.spark.plan import Pack, plan_readers
from lakebed.spark.shipping import opened_in_task, ship
from lakebed.spark.tasks import LASTING
from lakebed.spark.types import arrow_schema_of, spark_schema
from lakebed.spark.write_tasks import WriteTask, write_task
from lakebed.table.discard import discard_changes
from lakebed.table.model import BucketChange, Snapshot
from lakebed.table.overwrite import Overwrite
from lakebed.table.predicate_text import parse_predicate
from lakebed.table.predicate_tree import Predicate, all_of
from lakebed.table.read import ReadPlan, read_split
from lakebed.table.scan import Scan, scan_snapshot
from lakebed.table.table import Table
from lakebed.table.travel import resolve
from lakebed.table.types import arrow_schema
from lakebed.texts import shown

READ_OPTIONS: Final = ("path", "version", "tag", "branch", "timestamp", "columns", "where", "tasks", "pushfilters")
WRITE_OPTIONS: Final = ("path", "branch", "partitions")


class LakebedSource(DataSource):
    """``format("lakebed")``; ``load`` and ``save`` name the table's folder."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "lakebed"

    def schema(self) -> StructType:
        """The columns of the version that the options name. Raises `InvalidRequest`, `NotFound`."""
        scan = self._scan()
        # The version stays: Spark pickles this object and plans with it whenever the DataFrame is used.
        self.options[_PINNED] = str(0 if scan.snapshot is None else scan.snapshot.id)
        return spark_schema(scan.table_schema.named(scan.schema.names))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of some columns of that version. Raises `InvalidRequest`: columns or types that the table lacks."""
        scan = self._scan(schema.names)
        wanted = spark_schema(scan.table_schema.named(schema.names))
        for asked, there in zip(schema, wanted, strict=True):
            if asked.dataType != there.dataType or (there.nullable and not asked.nullable):
                raise InvalidRequest(
                    f"Column {asked.name!r} is {_text(there)}, but the schema given to Spark says {_text(asked)}: "
                    "give the table's type, or no schema, and cast afterwards.",
                    kind="type_mismatch",
                    column=asked.name,
                )
        table, tasks = self._table(), _number(self.options, "tasks", os.cpu_count() or 1)
        kind = LakebedReader if _flag(self.options, "pushfilters", True) else PlainReader
        return kind(table, scan, schema, tasks=tasks, where=self._where())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of rows. Raises `InvalidRequest`: columns that do not fit the table."""
        _check_options(self.options, WRITE_OPTIONS, "df.write")
        table = self._table()
        found = self.options.get("partitions", "replaced")
        if found not in ("replaced", "kept"):
            raise InvalidRequest(
                f"The option partitions={found!r} is invalid: use 'replaced' (an overwrite replaces the whole table) "
                "or 'kept' (only the partitions that the rows are in).",
                kind="invalid_option",
            )
        replaced = Overwrite(dynamic=found == "kept") if overwrite else None
        task = write_task(table, starts_anew=overwrite)
        task.check(table.store, arrow_schema_of(schema))
        return LakebedWriter(ship(table.store, writes=True), task, replaced, dict(self.options))

    def _table(self) -> Table:
        path = self.options.get("path")
        if not path:
            raise InvalidRequest(
                "The source 'lakebed' needs the folder of a table: load('/data/lake/flights') or "
                "save('s3://bucket/lake/flights').",
                kind="missing_option",
            )
        return _opened(self.options)

    def _where(self) -> Predicate | None:
        text = self.options.get("where")
        return None if text is None else parse_predicate(text)

    def _scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The scan of the version that the options name; of the columns of the option, if none are given."""
        _check_options(self.options, READ_OPTIONS, "spark.read")
        table = self._table()
        if columns is None and "columns" in self.options:
            columns = [name.strip() for name in self.options["columns"].split(",")]
        snapshot, schema_id = self._version(table)
        return scan_snapshot(table.context, snapshot, schema_id=schema_id, columns=columns, where=self._where())

    def _version(self, table: Table) -> tuple[Snapshot | None, int | None]:
        """The snapshot to read, and whose columns; None: the newest ones."""
        named = [name for name in ("version", "tag", "timestamp") if name in self.options]
        if len(named) > 1:
            raise InvalidRequest(
                f"The options {' and '.join(named)} name a version each: give one of them.", kind="ambiguous_version"
            )
        if not named:
            pinned = self.options.get(_PINNED)
            if pinned is None:
                return table.latest(), None
            return (None if pinned == "0" else resolve(table.context, version=int(pinned)).snapshot), None
        name, value = named[0], self.options[named[0]]
        if name == "timestamp":
            found = resolve(table.context, timestamp=value)
        else:
            found = resolve(table.context, version=f"tag.{value}" if name == "tag" else value)
        if found.branch is not None:
            raise InvalidRequest(
                f"version={value!r} names a branch: give it as the option branch.", kind="ambiguous_version"
            )
        return found.snapshot, found.snapshot.schema_id

    def __reduce__(self) -> tuple[Any, ...]:
        return _packed(type(self).__name__, (dict(self.options),))


class PlainReader(DataSourceReader):
    """Reads one version; Spark keeps its filters to itself."""

    def __init__(self, table: Table, scan: Scan, schema: StructType, *, tasks: int, where: Predicate | None) -> None:
        self._table = table
        self._scan = scan
        columns = carried_schema(scan.table_schema.named(schema.names))
        self._arrow = pa.schema([a.with_nullable(b.nullable) for a, b in zip(columns, schema, strict=True)])
        self._tasks = tasks
        self._where = where

    def _narrow(self, where: Predicate | None) -> None:
        """Also leave out what a predicate excludes."""
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
        """One for each task; none for a version without rows. Cost: that of planning the scan."""
        readers = plan_readers(
            self._table.store, self._scan.splits(), self._scan.plan, reaches=None, task_count_min=self._tasks
        )
        return [InputPartition(pickle.dumps(pack)) for pack in readers.packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Refused: in a task this object is a `TaskReader`."""
        raise AssertionError("a reader reads where it was unpickled, as _TaskReader")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (ship(self._table.store), self._scan.plan, self._arrow)
        return _packed("TaskReader", state)


class LakebedReader(PlainReader):
    """Also leaves out files and rows by Spark's filters, where ``spark.sql.python.filterPushdown.enabled`` is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Leave out what filters exclude, and return them all: Spark evaluates them again."""
        columns = arrow_schema(self._scan.table_schema.fields)
        self._narrow(translate([from_filter(found) for found in filters], columns).where)
        return iter(filters)


class TaskReader(DataSourceReader):
    """A reader in a task: the store's bytes and what to read, without the table."""

    def __init__(self, shipped: bytes, plan: ReadPlan, schema: pa.Schema) -> None:
        self._shipped = shipped
        self._plan = plan
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in batches."""
        if partition.value is None:  # a version without rows
            return
        pack: Pack = pickle.loads(partition.value)
        store = opened_in_task(self._shipped, pack.entries)
        for split in pack.splits:
            for rows in read_split(store, split, plan=self._plan):
                yield carried_rows(rows, self._schema)


class Written(WriterCommitMessage):
    """What a task wrote, or the error that a retry would repeat."""

    def __init__(self, changes: list[BucketChange], error: LakebedError | None) -> None:
        self.changes = changes
        self.error = error


class LakebedWriter(DataSourceArrowWriter):
    """Writes rows in tasks, and commits once on the driver."""

    def __init__(
        self, shipped: bytes, task: WriteTask, overwrite: Overwrite | None, options: Mapping[str, str]
    ) -> None:
        self._shipped = shipped
        self._task = task
        self._overwrite = overwrite
        self._options = dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Returns errors that a retry would repeat; raises others."""
        writer = self._task.writer(opened_in_task(self._shipped), Environment())
        try:
            for batch in iterator:
                self._task.add(writer, batch)
            return Written(writer.finish(), None)
        except LASTING as error:
            for _ in iterator:
                pass  # Spark requires that its rows are consumed, also after an error
            return Written([], error)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks wrote as one snapshot. Raises a lasting error of a task, and as `Table.commit`."""
        written = [message for message in messages if isinstance(message, Written)]
        changes = [change for message in written for change in message.changes]
        table = _opened(self._options)
        error = next((message.error for message in written if message.error is not None), None) or _doubled(
            written, self._task
        )
        if error is not None:
            discard_changes(table.context, changes)
            raise error
        try:
            commit_changes(table, changes, options={}, overwrite=self._overwrite)
        except Conflict as lost:
            if lost.kind == "index_changed":  # another writer placed keys; nothing was committed
                discard_changes(table.context, changes)
            raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what a failed job wrote. After a commit that failed, nothing: its snapshot may be there."""
        if None not in messages:
            return
        changes = [change for message in messages if isinstance(message, Written) for change in message.changes]
        discard_changes(_opened(self._options).context, changes)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._shipped, self._task, self._overwrite, self._options)
        return _packed(type(self).__name__, state)


def _doubled(written: Sequence[Written], task: WriteTask) -> InvalidRequest | None:
    """The error of a job in which several tasks wrote rows of one bucket, which each must number alone."""
    if task.settings.dynamic is not None:  # a key's bucket is chosen by one task
        writers = sum(1 for message in written if message.changes)
    elif task.settings.bucket_count > 0:
        found = Counter((change.partition, change.bucket) for message in written for change in message.changes)
        writers = max(found.values(), default=0)
    else:
        return None
    if writers < 2:
        return None
    return InvalidRequest(
        "Several tasks brought rows of one bucket, and a data source cannot shuffle them: write with "
        "lakebed.spark.write, which does, or df.coalesce(1).write for few rows.",
        kind="bucket_in_several_tasks",
    )


# ---- options


_PINNED: Final = "lakebed.snapshot"
"""The snapshot that was the newest when the DataFrame was made; 0: there was none."""


def _text(field: StructField) -> str:
    return field.dataType.simpleString() + ("" if field.nullable else " not null")


def _opened(options: Mapping[str, str]) -> Table:
    path = options["path"].rstrip("/")
    return Table.open(open_store(path), name=path.rpartition("/")[2], branch=options.get("branch"))


def _check_options(options: Mapping[str, str], known: Sequence[str], verb: str) -> None:
    for name in options:
        if name.lower() not in known and name != _PINNED:
            raise InvalidRequest(
                f"{verb}.format('lakebed') has no option {name!r}: it has {', '.join(known)}.", kind="unknown_option"
            )


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not int(text[:9]) >= 1:
        raise InvalidRequest(
            f"The option {name}={shown(text)} is invalid: use a number, at least 1.", kind="invalid_option"
        )
    return int(text[:9])


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"The option {name}={shown(text)} is invalid: use true or false.", kind="invalid_option")
    return text == "true"


# ---- in other processes


def _packed(name: str, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` returns for an object that a function of this module makes of some state.

    The state is bytes: it is unpickled after the check of the version.
    """
    return _unpacked_by(lakebed.__version__), (name, pickle.dumps(state))


def _unpacked_by(version: str) -> Callable[[str, bytes], Any]:
    """The function that makes an object of this module in another process, if lakebed is there in this version.

    It is pickled as code, not by its name, so that it also runs where lakebed is missing.
    """

    def lakebed_unpacked(name: str, state: bytes) -> Any:
        try:
            found = importlib.import_module("lakebed").__version__
        except ImportError:
            found = None
        if found != version:
            there = "has no package lakebed" if found is None else f"has lakebed {found}"
            raise RuntimeError(
                f"This executor's Python ({sys.executable}) {there}, and the driver has {version}: install lakebed "
                f"{version} on all executors, or send it with the job (spark.archives)."
            )
        return getattr(importlib.import_module("lakebed.spark.source"), name)(*pickle.loads(state))

    return lakebed_unpacked
