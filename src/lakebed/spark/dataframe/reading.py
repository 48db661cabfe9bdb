"""A table, at any of its versions, as a DataFrame.

Owns: how a plan of readers (`plan`) becomes one DataFrame. It has two parts: the files of Spark's own Parquet reader
(`relation`), renamed and widened to the table's newest schema; and the packs that lakebed reads on the executors, which
return Arrow batches.

Invariants: the version is resolved, and its files are listed, when the DataFrame is made, so every action on it sees
the same rows. Both readers give the columns, order and nullability of the table. Credentials are part of the pickled
function, never of a path, a plan or an event log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.spark.plan.carried import show_instants, transfer_schema
from lakebed.spark.plan.expression import column_of, exact_column
from lakebed.spark.plan.plan import FileColumn, NativeScan, Pack, plan_readers
from lakebed.spark.plan.relation import exact_files, is_available, reaches
from lakebed.spark.plan.shipping import ship
from lakebed.spark.plan.types import spark_schema
from lakebed.spark.tasks.tasks import Batches, deal, parallelism
from lakebed.table.branch.travel import Time
from lakebed.table.model.model import Split
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import ReadPlan
from lakebed.table.table import Table


def read(
    spark: SparkSession,
    table: Table,
    *,
    version: int | str | None = None,
    timestamp_ms: Time | None = None,
    columns: str | Sequence[str] | None = None,
    where: Predicate | str | None = None,
    system: str | None = None,
    native: bool | None = None,
) -> DataFrame:
    """Return a version of a table as a DataFrame. The DataFrame stays at that version.

    Args:
        spark: any session of Spark 4.
        table: the table, or one of its branches.
        version: a snapshot id, or the name of a tag or branch. With neither this nor `timestamp_ms`, the newest
            version.
        timestamp_ms: the newest version that was committed at or before this time.
        columns: the columns to read, in this order; None: all. Name them if rows need merging, as Spark's own column
            pruning applies only to files that need none.
        where: the rows to read: a predicate or its text (``"month >= 2"``). It excludes partitions, buckets and files
            before Spark starts. Later filters of the DataFrame still exclude row groups of files that need no merge.
        system: read a system table (``"tags"``, ``"snapshots"``, ``"files"``, ...) instead of the rows.
        native: False: never use Spark's own Parquet reader. None: use it wherever possible.

    Returns:
        The rows in no particular order.

    Raises:
        NotFound: there is no such version, column or system table.
        InvalidRequest: `system` is given with another argument, or the table is in this process's memory
            (``memory://``), which other processes cannot see.

    Cost: the planning of a scan. Data is read when an action runs.
    """
    if system is not None:
        if any(argument is not None for argument in (version, timestamp_ms, columns, where)):
            raise InvalidRequest(
                f"The system table {system!r} is read whole and as it is now: filter the DataFrame instead of giving "
                "version, timestamp_ms, columns or where.",
                kind="system_arguments",
                system=system,
            )
        return local_frame(spark, show_instants(system, table.system(system)))
    scan = table.scan(version=version, timestamp_ms=timestamp_ms, columns=columns, where=where)
    return read_splits(spark, table, splits=scan.splits(), plan=scan.plan, native=native)


def local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return Arrow rows of this process as a DataFrame. Timestamps without a time zone remain so."""
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema=schema) if rows.num_rows else spark.createDataFrame([], schema)


def read_splits(
    spark: SparkSession, table: Table, *, splits: Sequence[Split], plan: ReadPlan, native: bool | None = None
) -> DataFrame:
    """Return the rows of some splits, in `plan.columns`: `read` after the planning, which the caller does."""
    readers = plan_readers(
        table.store,
        splits,
        plan,
        reaches=partial(reaches, spark) if native is not False and is_available(spark) else None,
        task_count_min=parallelism(spark),
    )
    frames = [_native_frame(spark, scan, plan) for scan in readers.natives]
    if readers.packs:
        frames.append(_packs_frame(spark, table.store, readers.packs, plan))
    if not frames:
        return spark.createDataFrame([], spark_schema(plan.fields))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


# ---- Spark's own reader


def _native_frame(spark: SparkSession, scan: NativeScan, plan: ReadPlan) -> DataFrame:
    physical = [column.stored for column in scan.columns if column.stored is not None]
    frame = exact_files(spark, scan.files, schema=spark_schema(physical))
    if not scan.is_current:
        target = {field.name: field.dataType for field in spark_schema(plan.decoded).fields}
        frame = frame.select([_evolve(column, target[column.field.name]) for column in scan.columns])
    if plan.where is not None:
        frame = frame.filter(column_of(plan.where, arrow_schema(plan.schema.fields)))
    if [field.name for field in plan.decoded] != list(plan.columns):
        frame = frame.select([exact_column(name) for name in plan.columns])
    return frame


def _evolve(column: FileColumn, target: spark_types.DataType) -> Column:
    field, stored_field = column.field, column.stored
    if stored_field is None:
        return functions.lit(None).cast(target).alias(field.name)
    source = exact_column(stored_field.name)
    return (source if stored_field.type == field.type else source.cast(target)).alias(field.name)


# ---- lakebed's own reader, on the executors


def _packs_frame(spark: SparkSession, store: ObjectStore, packs: Sequence[Pack], plan: ReadPlan) -> DataFrame:
    shipped_store, schema = ship(store), transfer_schema(plan.fields)

    def lakebed_read(assigned: Iterator[Pack]) -> Batches:
        for pack in assigned:
            yield from pack.read(shipped_store, plan, schema)

    tasks, function = deal(spark, [[pack] for pack in packs], lakebed_read)
    return tasks.mapInArrow(function, spark_schema(plan.fields))
