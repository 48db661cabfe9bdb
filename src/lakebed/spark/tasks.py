"""Work in Spark's tasks: what is shipped to them, and what they return.

Owns: how a store is shipped (`ship`), how work is distributed over tasks (`packed`, `dealt`), and how the changes of
tasks reach the driver (`collect_changes`, `changes_of_units`). For a store in a branch, tasks get access to the bytes
and not to the branch: the driver resolves what they read (`located`) and stages what they upload, in one change.
Invariants: a store, with its credentials, is only ever part of a pickled function; an error of a task that a retry
would repeat is returned as the same `LakebedError`, Spark retries after every other error; only uploads of attempts
that Spark accepted are staged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.errors import Corruption, InvalidRequest, LakebedError, OutcomeUnknown, UnsupportedFormat
from lakebed.objects.memory import absent
from lakebed.objects.port import ObjectStore
from lakebed.repo.model import Entry
from lakebed.repo.task_store import EntryStore, TaskStore
from lakebed.spark.relation import is_available
from lakebed.table.model import BucketChange, Split
from lakebed.table.read import data_path

Batches = Iterator[pa.RecordBatch]
Unit = TypeVar("Unit")

TASK_BYTES_MAX = 128 << 20
OPEN_BYTES = 4 << 20
"""The cost of opening a file, in bytes that could be read meanwhile: it bounds how many small files make one task."""

_RESULT = "result binary"

_STAGE_TRIES_MAX: Final = 3
"""How often uploads are staged when the reply is lost."""

LASTING = (InvalidRequest, Corruption, UnsupportedFormat)
"""Errors of a task that a retry would repeat."""


def ship(store: ObjectStore, *, writes: bool = False) -> bytes:
    """Pickle a store for executors. Capture the bytes in a function; never put them into a column or a setting.

    Args:
        store: of a table; a folder of a branch is shipped as access to its bytes alone (`TaskStore`).
        writes: refuse a read-only store now, not after the job.

    Raises:
        InvalidRequest: a store in this process's memory; a commit or a protected branch, with `writes`.
        NotFound: the branch is gone.
    """
    bytes_url = store.root_url
    if isinstance(store, EntryStore):
        bytes_url = store.inside_url() or bytes_url
        store = store.for_tasks(writes=writes)
    if bytes_url.startswith("memory:"):
        raise InvalidRequest(
            f"The table is at {bytes_url}, in this process's memory, where Spark's workers cannot see it: keep "
            "tables for Spark in a folder or a bucket.",
            kind="memory_store",
            url=bytes_url,
        )
    return pickle.dumps(store)


def located(
    store: ObjectStore, packs: Sequence[Sequence[Unit]], *, files: Callable[[Unit], Iterable[Sequence[str]]]
) -> list[Mapping[str, Entry]]:
    """Locate the files of each task, for stores whose paths are entries; empty for all others.

    Args:
        store: of the table, on the driver.
        packs: the units of each task.
        files: the files that a unit reads, each as its possible paths; see `split_files`.

    Raises `NotFound`: a file is gone. Cost: that of `EntryStore.entries` for all paths together; for other stores none.
    """
    url = store.root_url
    if not isinstance(store, EntryStore):
        return [{} for _ in packs]
    wanted = [[file for unit in pack for file in files(unit)] for pack in packs]
    there = store.entries(list(dict.fromkeys(path for pack in wanted for file in pack for path in file)))
    for pack in wanted:
        for file in pack:
            if not any(path in there for path in file):
                raise absent(file[0], url)
    return [{path: there[path] for file in pack for path in file if path in there} for pack in wanted]


def opened_in_task(shipped: bytes, entries: Mapping[str, Entry] | None = None) -> ObjectStore:
    """Open a shipped store in a task, with the files of the task."""
    store: ObjectStore = pickle.loads(shipped)
    return store.with_entries(entries) if entries and isinstance(store, TaskStore) else store


def split_files(split: Split) -> list[tuple[str, ...]]:
    """Return the files of a split in its store, each as its possible paths."""
    return [
        (data_path(split, file), *(f"{folder}/{file.file_name}" for folder in split.other_folders))
        for file in split.files
        if not file.external_path
    ]


def packed(units: Sequence[Unit], *, size_bytes: Callable[[Unit], int], task_count_min: int) -> list[list[Unit]]:
    """Group units into tasks: large ones alone, small neighbours together, at least as many as can run at once."""
    weights = [size_bytes(unit) + OPEN_BYTES for unit in units]
    task_bytes = min(TASK_BYTES_MAX, max(OPEN_BYTES, sum(weights) // max(1, task_count_min)))
    packs: list[list[Unit]] = []
    filled = 0
    for unit, weight in zip(units, weights, strict=True):
        if packs and filled + weight <= task_bytes:
            packs[-1].append(unit)
            filled += weight
        else:
            packs.append([unit])
            filled = weight
    return packs


def split_bytes(split: Split) -> int:
    """Return the encoded bytes of a split's files."""
    return sum(file.file_size for file in split.files)


def dealt(
    spark: SparkSession, packs: Sequence[Sequence[Unit]], function: Callable[[Iterator[Unit]], Batches]
) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """Return a DataFrame with one task a pack, and the function for its `mapInArrow` that gives each task its units."""
    pickled = [pickle.dumps(list(pack)) for pack in packs]

    def lakebed_task(batches: Batches) -> Batches:
        positions = (position for batch in batches for position in batch.column(0).to_pylist())
        yield from function(unit for position in positions for unit in pickle.loads(pickled[position]))

    return spark.range(0, len(pickled), 1, numPartitions=len(pickled)), lakebed_task


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once; over Spark Connect, which does not say, how many a shuffle would have."""
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
) -> list[BucketChange]:
    """Run a function that rewrites units in tasks, and return the changes. Raises its errors.

    Args:
        size_bytes: the bytes of a unit.
        files: the files that a unit reads; see `located`.
        function: maps a unit, and the store as a task sees it, to the change.
    """
    if not units:
        return []
    shipped = ship(store, writes=True)
    packs = packed(units, size_bytes=size_bytes, task_count_min=parallelism(spark))
    entries = located(store, packs, files=files)

    def rewrite(assigned: Iterator[tuple[list[Unit], Mapping[str, Entry]]]) -> Batches:
        ((pack, there),) = assigned
        opened = opened_in_task(shipped, there)
        changes = (function(unit, opened) for unit in pack)
        yield from returning_changes(lambda: [change for change in changes if change is not None], store=opened)

    frame, task = dealt(spark, [[(pack, there)] for pack, there in zip(packs, entries, strict=True)], rewrite)
    return collect_changes(frame, task, into=store)


def collect_changes(
    frame: DataFrame, function: Callable[[Batches], Batches], *, into: ObjectStore | None = None
) -> list[BucketChange]:
    """Run one task a partition of `frame`, each ending in `returning_changes`, and return the changes.

    Args:
        into: the table's store: the uploads of tasks for a branch are staged there, in one atomic change, before the
            changes are returned. None: tasks do not write to a branch.

    Only the attempt that Spark accepted for a partition counts. Raises the first lasting error of a task.
    """
    changes: list[BucketChange] = []
    uploads: list[tuple[str, Entry]] = []
    for row in frame.mapInArrow(function, _RESULT).collect():
        result = pickle.loads(row[0])
        if isinstance(result, LakebedError):
            raise result
        changes.extend(result.changes)
        uploads.extend(result.uploads)
    if uploads:
        assert isinstance(into, EntryStore), "tasks have uploaded files for a branch, and no branch was named"
        _stage(into, uploads)
    return changes


def _stage(store: EntryStore, uploads: Sequence[tuple[str, Entry]]) -> None:
    """Stage uploads. Their paths are new and ours alone, so staging them again after a lost reply is harmless."""
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
        work: does the task.
        lasting: errors that are returned, and not retried.
        store: that the task wrote to; uploads for a branch are returned with the changes.
    """
    result: _Result | LakebedError
    try:
        changes = work()
        result = _Result(changes, store.uploads() if isinstance(store, TaskStore) else [])
    except lasting as error:
        result = error
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])
