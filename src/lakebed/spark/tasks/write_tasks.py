"""The tasks of a write: which task gets which row, and what it does with the row.

Owns: `WriteTask` and `distribute`. Invariants: each bucket of a table with fixed buckets is written by exactly one
task. With dynamic buckets one task places all rows of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.shipping import open_in_task
from lakebed.spark.tasks.tasks import Batches, returning_changes
from lakebed.table.codec.index_manifest import IndexEntry
from lakebed.table.files.bucket import bucket_of
from lakebed.table.files.dynamic_bucket import HashIndex
from lakebed.table.model.model import BucketChange, DataField, TableSchema
from lakebed.table.model.options import TableOptions
from lakebed.table.model.types import arrow_type
from lakebed.table.rows.rows import inside_partition
from lakebed.table.table import Table
from lakebed.table.write.write import BucketIndex, TableWriter, as_table
from lakebed.table.write.write_settings import WriteSettings

_BUFFER_BYTES_MAX = 96 << 20
"""Arrow bytes that a task collects before it writes. One task runs on each core, and takes about twice this."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Everything except the store that an executor needs to write its share of the rows. Picklable."""

    schema: TableSchema
    settings: WriteSettings
    index: BucketIndex | None
    """The state from which row numbers continue; None: not needed."""
    starts_anew: bool = False
    deletes: str | None = None
    keys_only: bool = False
    """Whether the rows contain keys to delete."""
    partition: Mapping[str, object] = field(default_factory=dict)
    """For a static overwrite: the partition in which every row must be."""

    def writer(self, store: ObjectStore, environment: Environment) -> TableWriter:
        """Return a writer for this share."""
        return TableWriter(
            store,
            schema=self.schema,
            settings=self.settings,
            environment=environment,
            index=lambda: self.index or BucketIndex(None),
            starts_anew=self.starts_anew,
        )

    def add(self, writer: TableWriter, rows: pa.Table | pa.RecordBatch) -> None:
        """Pass rows to a writer, which writes them or deletes their keys."""
        if self.partition:
            rows = inside_partition(as_table(rows), partition=self.partition, schema=self.schema)
        if self.keys_only:
            writer.delete(rows)
        else:
            writer.write(rows, deletes=self.deletes)

    def check(self, store: ObjectStore, brought: pa.Schema) -> None:
        """Refuse columns that do not fit, before any job runs. Raises the same errors as the local verbs."""
        self.add(self.writer(store, Environment()), brought.empty_table())

    def function(self, store: bytes) -> Callable[[Batches], Batches]:
        """Return the function for `mapInArrow`: it takes all rows of one partition and yields one result."""
        task = self

        def lakebed_write(batches: Batches) -> Batches:
            task_store = open_in_task(store)

            def work() -> list[BucketChange]:
                writer = task.writer(task_store, Environment())
                for batch in batches:
                    task.add(writer, batch)
                return writer.finish()

            yield from returning_changes(work, store=task_store)
            for _ in batches:
                pass  # Spark requires that its rows are consumed, also after an error

        return lakebed_write


def write_task(
    table: Table,
    *,
    deletes: str | None = None,
    keys_only: bool = False,
    starts_anew: bool = False,
    partition: Mapping[str, object] | None = None,
    schema: TableSchema | None = None,
) -> WriteTask:
    """Prepare the tasks of one write: the newest schema, and the state of the buckets from which they continue.

    Args:
        deletes, keys_only, starts_anew, partition: as in `WriteTask`.
        schema: the schema of the files, if the commit changes it; None: the newest.

    Cost: 1 LIST (schema); with fixed buckets also the manifests of the newest snapshot, unless all rows are replaced.
    """
    schema = table.refresh() if schema is None else schema
    settings = WriteSettings.of(schema)
    settings = replace(settings, buffer_bytes=min(settings.buffer_bytes, _BUFFER_BYTES_MAX), worker_count_max=1)
    if settings.dynamic is not None:
        settings = replace(settings, dynamic=settings.dynamic.with_tasks(TableOptions(schema.options)))
    index = None
    if (settings.bucket_count > 0 or settings.dynamic is not None) and not starts_anew:
        head = table.latest()
        key_files: Sequence[IndexEntry] = ()
        if head is not None and settings.dynamic is not None:
            key_files = HashIndex(table.store, table.context.layout).entries(head.index_manifest)
        index = BucketIndex(None if head is None else table.context.manifests.live_entries(head), key_files=key_files)
    return WriteTask(
        schema=schema,
        settings=settings,
        index=index,
        starts_anew=starts_anew,
        deletes=deletes,
        keys_only=keys_only,
        partition=dict(partition or {}),
    )


def distribute(df: DataFrame, task: WriteTask, *, order_by: Sequence[str]) -> DataFrame:
    """Shuffle rows so that each bucket is in one task. For tables that place rows anywhere, return `df` unchanged."""
    settings, partition_keys = task.settings, task.schema.partition_keys
    if settings.bucket_count < 1 and settings.dynamic is None:
        return df
    shares = settings.share_count
    if shares == 1 and not partition_keys:
        distributed = df.repartition(1)
    else:
        distributed, _ = place_buckets(df, _bucket_number(task), partition_keys=partition_keys, bucket_count=shares)
    return distributed.sortWithinPartitions(*(exact_column(name) for name in order_by)) if order_by else distributed


def place_buckets(
    df: DataFrame, bucket: Column, *, partition_keys: Sequence[str], bucket_count: int
) -> tuple[DataFrame, int]:
    """Bring the rows of each bucket of a partition into one task. Also return the number of tasks."""
    tasks_max = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    task_count = tasks_max if partition_keys else min(bucket_count, tasks_max)
    number = bucket
    if partition_keys:
        # As 64-bit numbers: a hash near the end of its range must not overflow.
        number = functions.hash(*(exact_column(name) for name in partition_keys)).cast("bigint") + bucket
    return df.repartitionById(task_count, functions.pmod(number, functions.lit(task_count)).cast("int")), task_count


def _bucket_number(task: WriteTask) -> Column:
    """Compute the share of each row. With dynamic buckets one task gets all rows of a key, and places that key."""
    if task.settings.share_count == 1:
        return functions.lit(0)
    fields = task.schema.select_fields(task.settings.bucket_keys)
    function: Any = _bucket_function(fields, task.settings)
    placing = arrow_udf(function, IntegerType())  # type: ignore[call-overload]
    bucket: Column = placing(*(exact_column(field.name) for field in fields))
    return bucket


def _bucket_function(fields: Sequence[DataField], settings: WriteSettings) -> Callable[..., pa.Array]:
    targets = [arrow_type(field.type) for field in fields]
    types = [field.type for field in fields]
    bucket_count, function = settings.share_count, settings.bucket_function

    def lakebed_bucket(*columns: pa.Array) -> pa.Array:
        try:
            cast = [column.cast(target) for column, target in zip(columns, targets, strict=True)]
        except pa.ArrowInvalid:
            # A value does not fit its column. The writer that gets the row reports this, in any task.
            return pa.array([0] * len(columns[0]), pa.int32())
        return pa.array(bucket_of(cast, types, bucket_count=bucket_count, function=function), pa.int32())

    return lakebed_bucket
