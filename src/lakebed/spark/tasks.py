"""Work in Spark's tasks: what is shipped to them, and what comes back.

Owns: how a store travels (`ship`), how work is dealt out to tasks (`packed`, `dealt`), and how the changes that tasks
made reach the driver (`collect_changes`, `changes_of_units`). Invariants: a store, with its credentials, is only ever
part of a pickled function; a task's mistake that trying again would not heal comes back as the `LakebedError` it is,
every other error is Spark's to retry.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.errors import Corruption, InvalidRequest, LakebedError, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.spark.relation import is_available
from lakebed.table.model import BucketChange, Split

__all__ = [
    "LASTING",
    "Batches",
    "changes_of_units",
    "collect_changes",
    "dealt",
    "packed",
    "parallelism",
    "returning_changes",
    "ship",
    "split_bytes",
]

Batches = Iterator[pa.RecordBatch]
Unit = TypeVar("Unit")

TASK_BYTES_MAX = 128 << 20
OPEN_BYTES = 4 << 20
"""What opening a file costs, in bytes that could be read meanwhile: so many small ones make one task."""

_RESULT = "result binary"
LASTING = (InvalidRequest, Corruption, UnsupportedFormat)
"""Errors of a task that would come again with every try."""


def ship(store: ObjectStore) -> bytes:
    """A store as bytes that an executor opens; to be captured in a function, never put into a column or a setting.

    Raises:
        InvalidRequest: a store that only this process can see.
    """
    if store.root_url.startswith("memory:"):
        raise InvalidRequest(
            f"The table is at {store.root_url}, in this process's memory, where Spark's workers cannot see it: keep "
            "tables for Spark in a folder or a bucket.",
            kind="memory_store",
            url=store.root_url,
        )
    return pickle.dumps(store)


def packed(units: Sequence[Unit], *, size_bytes: Callable[[Unit], int], task_count_min: int) -> list[list[Unit]]:
    """Units of work as tasks: large ones alone, small neighbours together, but no fewer tasks than can run at once."""
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
    """Encoded bytes of a split's files."""
    return sum(file.file_size for file in split.files)


def dealt(
    spark: SparkSession, packs: Sequence[Sequence[Unit]], function: Callable[[Iterator[Unit]], Batches]
) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """A DataFrame with one task a pack, and the function for its `mapInArrow` that hands each task its units."""
    pickled = [pickle.dumps(list(pack)) for pack in packs]

    def lakebed_task(batches: Batches) -> Batches:
        positions = (position for batch in batches for position in batch.column(0).to_pylist())
        yield from function(unit for position in positions for unit in pickle.loads(pickled[position]))

    return spark.range(0, len(pickled), 1, numPartitions=len(pickled)), lakebed_task


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; over Spark Connect, where that is not told, how many a shuffle would have."""
    if is_available(spark):
        return int(spark.sparkContext.defaultParallelism)
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def changes_of_units(
    spark: SparkSession,
    units: Sequence[Unit],
    *,
    size_bytes: Callable[[Unit], int],
    store: bytes,
    function: Callable[[Unit, ObjectStore], BucketChange | None],
) -> list[BucketChange]:
    """Run a function that rewrites units in tasks, and bring the changes to the driver. Raises what it raised."""
    if not units:
        return []

    def rewrite(assigned: Iterator[Unit]) -> Batches:
        opened: ObjectStore = pickle.loads(store)
        changes = (function(unit, opened) for unit in assigned)
        return returning_changes(lambda: [change for change in changes if change is not None])

    packs = packed(units, size_bytes=size_bytes, task_count_min=parallelism(spark))
    return collect_changes(*dealt(spark, packs, rewrite))


def collect_changes(frame: DataFrame, function: Callable[[Batches], Batches]) -> list[BucketChange]:
    """Run one task a partition of `frame`, each ending in `returning_changes`, and bring the changes to the driver.

    Only the attempt that Spark accepted for a partition is heard. Raises the first lasting error of a task.
    """
    changes: list[BucketChange] = []
    for row in frame.mapInArrow(function, _RESULT).collect():
        result = pickle.loads(row[0])
        if isinstance(result, LakebedError):
            raise result
        changes.extend(result)
    return changes


def returning_changes(
    work: Callable[[], list[BucketChange]], *, lasting: tuple[type[LakebedError], ...] = LASTING
) -> Batches:
    """The end of a task: its changes, or its lasting error, as the one row that the driver collects."""
    result: list[BucketChange] | LakebedError
    try:
        result = work()
    except lasting as error:
        result = error
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])
