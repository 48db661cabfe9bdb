"""Work in Spark's tasks: what is shipped to them, and what they return.

Owns: how units of work get to their tasks (`deal`), and how the changes of tasks get to the driver (`collect_changes`,
`changes_of_units`). For a store in a branch, tasks can access the bytes and not the branch. The driver resolves what
they read (`shipping.locate`), and stages what they upload, in one change.

Invariants: an error of a task that a retry would repeat is returned as the same `LakebedError`; Spark retries after
every other error. Only uploads of attempts that Spark accepted are staged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.errors import Corruption, InvalidRequest, LakebedError, OutcomeUnknown, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.task_store import EntryStore, TaskStore
from lakebed.spark.plan.relation import is_available
from lakebed.spark.plan.shipping import Unit, locate, open_in_task, pack_units, ship
from lakebed.table.model.model import BucketChange

Batches = Iterator[pa.RecordBatch]

_RESULT = "result binary"

_STAGE_TRIES_MAX: Final = 3
"""How often uploads are staged if replies are lost."""

LASTING = (InvalidRequest, Corruption, UnsupportedFormat)
"""Errors of a task that a retry would repeat."""


def deal(
    spark: SparkSession, packs: Sequence[Sequence[Unit]], function: Callable[[Iterator[Unit]], Batches]
) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """Return a DataFrame with one task for each pack, and the function for its `mapInArrow` that passes the units."""
    pickled = [pickle.dumps(list(pack)) for pack in packs]

    def lakebed_task(batches: Batches) -> Batches:
        positions = (position for batch in batches for position in batch.column(0).to_pylist())
        yield from function(unit for position in positions for unit in pickle.loads(pickled[position]))

    return spark.range(0, len(pickled), 1, numPartitions=len(pickled)), lakebed_task


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once. Spark Connect does not report it; then return the tasks of a shuffle."""
    if is_available(spark):
        return int(spark.sparkContext.defaultParallelism)
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def changes_of_units(
    spark: SparkSession,
    units: Sequence[Unit],
    *,
    size_bytes: Callable[[Unit], int],
    files: Callable[[Unit], Iterable[Sequence[str]]],
    store: ObjectStore,
    function: Callable[[Unit, ObjectStore], BucketChange | None],
    discard: Callable[[list[BucketChange]], None],
) -> list[BucketChange]:
    """Run a function that rewrites units in tasks, and return the changes. Raises its errors.

    Args:
        size_bytes: the bytes of a unit.
        files: the files that a unit reads; see `locate`.
        function: maps a unit, and the store as a task sees it, to the change.
        discard: as of `collect_changes`.
    """
    if not units:
        return []
    shipped_store = ship(store, writes=True)
    packs = pack_units(units, size_bytes=size_bytes, task_count_min=parallelism(spark))
    entries = locate(store, packs, files=files)

    def rewrite(assigned: Iterator[tuple[list[Unit], Mapping[str, Entry]]]) -> Batches:
        ((pack, pack_entries),) = assigned
        task_store = open_in_task(shipped_store, pack_entries)
        changes = (function(unit, task_store) for unit in pack)
        yield from returning_changes(lambda: [change for change in changes if change is not None], store=task_store)

    frame, task = deal(
        spark, [[(pack, pack_entries)] for pack, pack_entries in zip(packs, entries, strict=True)], rewrite
    )
    return collect_changes(frame, task, into=store, discard=discard)


def collect_changes(
    frame: DataFrame,
    function: Callable[[Batches], Batches],
    *,
    into: ObjectStore | None = None,
    discard: Callable[[list[BucketChange]], None] | None = None,
) -> list[BucketChange]:
    """Run one task for each partition of `frame`, each ending in `returning_changes`, and return the changes.

    Args:
        into: the table's store. The uploads of tasks for a branch are staged there, in one atomic change, before the
            changes are returned. None: tasks do not write to a branch.
        discard: deletes the files of the other tasks' changes if one task returned an error. If Spark itself ends a
            job, a collection deletes them later, because the files of its tasks are not known here.

    Only the attempt that Spark accepted for a partition counts. Raises the first lasting error of a task.
    """
    names = frame.columns

    def lakebed_task(batches: Batches) -> Batches:
        yield from function(batch.rename_columns(names) for batch in batches)

    # PySpark parses names of columns as SQL, in which a point and a backquote have a meaning.
    renamed_frame = frame.toDF(*(f"c{position}" for position in range(len(names))))
    changes: list[BucketChange] = []
    uploads: list[tuple[str, Entry]] = []
    error: LakebedError | None = None
    for row in renamed_frame.mapInArrow(lakebed_task, _RESULT).collect():
        result = pickle.loads(row[0])
        if isinstance(result, LakebedError):
            error = error or result
        else:
            changes.extend(result.changes)
            uploads.extend(result.uploads)
    if error is not None:
        if discard is not None and not uploads:  # uploads for a branch are not yet in it
            discard(changes)
        raise error
    if uploads:
        assert isinstance(into, EntryStore), "tasks have uploaded files for a branch, and no branch was named"
        _stage(into, uploads)
    return changes


def _stage(store: EntryStore, uploads: Sequence[tuple[str, Entry]]) -> None:
    """Stage uploads. No other writer uses their new paths, so staging again after a lost reply is harmless."""
    for tries_left in reversed(range(_STAGE_TRIES_MAX)):
        try:
            store.stage_entries(uploads)
        except OutcomeUnknown:
            if tries_left == 0:
                raise
        else:
            return


class _Result(NamedTuple):
    """The result of a task."""

    changes: list[Any]
    uploads: list[tuple[str, Entry]]


def returning_changes(
    work: Callable[[], list[Any]],
    *,
    lasting: tuple[type[LakebedError], ...] = LASTING,
    store: ObjectStore | None = None,
) -> Batches:
    """End a task: yield its changes, or its lasting error, as the one row that the driver collects.

    Args:
        work: runs the task.
        lasting: errors that are returned and not retried.
        store: the store that the task wrote to. Uploads for a branch are returned with the changes.
    """
    result: _Result | LakebedError
    try:
        changes = work()
        result = _Result(changes, store.uploads() if isinstance(store, TaskStore) else [])
    except lasting as error:
        result = error
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])
