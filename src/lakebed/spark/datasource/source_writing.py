"""The files that tasks of the data source write, and which of them are committed or deleted, for jobs and streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.runtime import Environment
from lakebed.spark.plan.shipping import open_in_task
from lakebed.spark.tasks.tasks import LASTING
from lakebed.spark.tasks.write_tasks import WriteTask
from lakebed.table.branch.discard import discard_changes
from lakebed.table.model.model import BucketChange
from lakebed.table.table import Table


class Written(WriterCommitMessage):
    """The changes of a task, or the error that a retry would repeat."""

    def __init__(self, changes: list[BucketChange], error: LakebedError | None) -> None:
        self.changes = changes
        self.error = error


def write_rows(task: WriteTask, shipped: bytes, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of a task. Return an error that a retry would repeat; raise all others."""
    writer = task.writer(open_in_task(shipped), Environment())
    try:
        for batch in batches:
            task.add(writer, batch)
        return Written(writer.finish(), None)
    except LASTING as error:
        for _ in batches:
            pass  # Spark requires that its rows are consumed, also after an error
        return Written([], error)


def accept_results(table: Table, task: WriteTask, messages: Sequence[WriterCommitMessage | None]) -> list[BucketChange]:
    """Return the changes of a job's tasks. If a task returned an error, delete the files of the others and raise it."""
    results = [message for message in messages if isinstance(message, Written)]
    changes = [change for message in results for change in message.changes]
    error = next((message.error for message in results if message.error is not None), None) or _bucket_error(
        results, task
    )
    if error is not None:
        discard_changes(table.context, changes)
        raise error
    return changes


def discard_written(table: Table, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the files of a job's tasks that are not committed."""
    changes = [change for message in messages if isinstance(message, Written) for change in message.changes]
    discard_changes(table.context, changes)


def _bucket_error(results: Sequence[Written], task: WriteTask) -> InvalidRequest | None:
    """Return the error of a job in which several tasks wrote rows of one bucket, whose rows one task must number."""
    if task.settings.dynamic is not None:  # a key's bucket is chosen by one task
        writers = sum(1 for message in results if message.changes)
    elif task.settings.bucket_count > 0:
        counts = Counter((change.partition, change.bucket) for message in results for change in message.changes)
        writers = max(counts.values(), default=0)
    else:
        return None
    if writers < 2:
        return None
    return InvalidRequest(
        "Several tasks brought rows of one bucket, and a data source cannot shuffle them: write with "
        "lakebed.spark.write, which does, or df.coalesce(1).write for few rows.",
        kind="bucket_in_several_tasks",
    )
