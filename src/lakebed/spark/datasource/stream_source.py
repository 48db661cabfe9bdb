"""Streams of the Python data source: ``readStream.format("lakebed")`` and ``writeStream.format("lakebed")``.

Owns: `StreamReader` and `StreamWriter`. Invariants: offsets are those of `table.stream`, so rows are read once. A batch
of a sink is one snapshot that names the query and the batch, so it is not committed twice. Needs PySpark 4.2, which has
admission control.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lakebed.spark.datasource.source import pack_as
from lakebed.spark.datasource.source_writing import accept_results, discard_written, write_rows
from lakebed.spark.plan.carried import transfer_schema
from lakebed.spark.plan.change_rows import ChangeRows, Committed, deletions_of, pack_changes
from lakebed.spark.plan.plan import plan_readers
from lakebed.spark.plan.shipping import ship
from lakebed.spark.streams.source_options import open_table
from lakebed.spark.streams.stream_commits import commit_batch
from lakebed.spark.tasks.committing import discarding
from lakebed.spark.tasks.write_tasks import WriteTask
from lakebed.table.changes.stream import StreamOffset, StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.model.model import TableSchema
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.table import Table

_ANY: Final = 2**31 - 1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a table, on the driver.

    Args:
        schema: the table's schema, whose columns are read.
        columns: the columns of the result, in order.
        limits: limits of a batch, unless the trigger asks for everything.
        consumer: the name under which snapshots are kept until they were read; None: they are not kept.
        tasks: the least number of tasks, if there are enough files.
    """

    def __init__(
        self,
        table: Table,
        settings: StreamSettings,
        *,
        schema: TableSchema,
        columns: Sequence[str],
        limits: Limits,
        consumer: str | None,
        tasks: int,
    ) -> None:
        self._table = table
        self._settings = settings
        self._columns = tuple(columns)
        self._limits = limits
        self._consumer = consumer
        self._tasks = tasks
        self._stream = TableStream(table.context, settings, schema=schema)
        self._until: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the offset at which a new query begins."""
        first = self._stream.first()
        self._hold(first)
        return first.members()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return a limit, so that Spark explicitly says when a trigger asks for everything."""
        limits = self._limits
        if limits == Limits():
            return ReadAllAvailable()
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        return ReadMaxFiles(_ANY if limits.files is None else limits.files)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Set the newest version of now as the end of the stream."""
        self._until = self._stream.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next batch; `start` if there is nothing new."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        offset = StreamOffset.of(start)
        end = self._stream.advance(offset, limits, until=self._until)
        return start if end == offset else end.members()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what each task of a batch reads."""
        if start == end:
            return []
        store = self._table.store
        table_columns = [name for name in self._columns if self._table.schema.field_by_name(name) is not None]
        batch = self._stream.plan(StreamOffset.of(start), StreamOffset.of(end), columns=table_columns)
        if batch.units:
            rows = ChangeRows(batch.plan, self._columns, deletions_of(self._settings))
            units = [Committed(unit, 0, 0) for unit in batch.units]
            packs: Sequence[Any] = pack_changes(store, units, task_count_min=self._tasks)
            return [InputPartition(pickle.dumps((rows, pack))) for pack in packs]
        readers = plan_readers(store, batch.splits, batch.plan, reaches=None, task_count_min=self._tasks)
        return [InputPartition(pickle.dumps((batch.plan, pack))) for pack in readers.packs]

    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark will not read anything before `end` again."""
        self._hold(StreamOffset.of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fail: in a task this object is a `StreamTaskReader`."""
        raise AssertionError("a reader reads where it was unpickled, as StreamTaskReader")

    def _hold(self, offset: StreamOffset) -> None:
        if self._consumer is not None:
            self._stream.hold(self._consumer, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack_as(StreamTaskReader, (ship(self._table.store),))


class StreamTaskReader(DataSourceStreamReader):
    """A reader in a task. It has the pickled store; a partition contains the plan."""

    def __init__(self, shipped: bytes) -> None:
        self._shipped = shipped

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in batches."""
        if partition.value is None:  # a batch without rows
            return
        plan, pack = pickle.loads(partition.value)
        if isinstance(plan, ChangeRows):
            yield from plan.read(self._shipped, pack)
        else:
            yield from pack.read(self._shipped, plan, transfer_schema(plan.fields))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a batch in tasks. The driver commits each batch once.

    Args:
        user: the commit user, which identifies the query.
        replaces: whether each batch replaces all rows.
        options: the options of the sink.
    """

    def __init__(self, shipped: bytes, task: WriteTask, user: str, replaces: bool, options: Mapping[str, str]) -> None:
        self._shipped = shipped
        self._task = task
        self._user = user
        self._replaces = replaces
        self._options = dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Return an error that a retry would repeat; raise all others."""
        return write_rows(self._task, self._shipped, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch as one snapshot, unless it is already committed. Raises a lasting error of a task."""
        table = open_table(self._options)
        changes = accept_results(table, self._task, messages)
        overwrite = Overwrite() if self._replaces else None
        with discarding(table, changes):
            commit_batch(table, changes, user=self._user, batch_id=batchId, overwrite=overwrite)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the files of a failed batch. Keep them after a failed commit, whose snapshot may exist."""
        if None in messages:
            discard_written(open_table(self._options), messages)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._shipped, self._task, self._user, self._replaces, self._options)
        return pack_as(type(self), state)
