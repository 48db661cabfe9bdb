"""A table, at any of its versions, as a DataFrame.

Owns: the choice of a reader for each split. Files that need no merge are read by Spark's own vectorised Parquet reader
(`relation`), one scan for each schema they were written with, renamed and widened to the table's newest. Splits that
need a merge, and everything in a store that Spark cannot reach, are read by lakebed on the executors, which return
Arrow batches. Invariants: the version is resolved, and its files are listed, when the DataFrame is made: every action
on it sees the same rows. Columns, order and nullability are the table's with both readers. Credentials are part of the
pickled function, never of a path, a plan or an event log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.repo.model import Entry
from lakebed.repo.task_store import EntryStore
from lakebed.spark.expression import column_of, is_small, quoted
from lakebed.spark.relation import ParquetFile, exact_files, spark_root
from lakebed.spark.tasks import (
    Batches,
    dealt,
    located,
    opened_in_task,
    packed,
    parallelism,
    ship,
    split_bytes,
    split_files,
)
from lakebed.spark.types import carried_schema, is_native, spark_schema
from lakebed.table.model import DataField, DataFile, Split, TableSchema
from lakebed.table.predicate_tree import Predicate
from lakebed.table.read import ReadPlan, data_path, read_split
from lakebed.table.table import Table
from lakebed.table.travel import Time
from lakebed.table.types import arrow_schema, parse_type


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
    """A version of a table as a DataFrame.

    Args:
        spark: any Spark 4 session.
        table: the table, or one of its branches.
        version: a snapshot id or the name of a tag or branch; with neither this nor `timestamp_ms` the newest.
        timestamp_ms: the newest version committed at or before this time.
        columns: the columns to read, in this order; None: all. Name them when rows need merging: Spark's own column
            pruning applies only to the files that need none.
        where: the rows to read, a predicate or its text (``"month >= 2"``); prunes partitions, buckets and files before
            Spark starts. Later filters on the DataFrame still prune row groups of files that need no merge.
        system: read a system table (``"tags"``, ``"snapshots"``, ``"files"``, ...) instead of the rows.
        native: False: never use Spark's own Parquet reader; None: use it wherever possible.

    Returns a DataFrame that stays at that version. Rows come in no particular order. Raises `NotFound`: no such
    version, column or system table; `InvalidRequest`: `system` together with another argument, or a ``memory://``
    table, which other processes cannot see. Cost: that of planning a scan; nothing more until an action runs.
    """
    if system is not None:
        if any(argument is not None for argument in (version, timestamp_ms, columns, where)):
            raise InvalidRequest(
                f"The system table {system!r} is read whole and as it is now: filter the DataFrame instead of giving "
                "version, timestamp_ms, columns or where.",
                kind="system_arguments",
                system=system,
            )
        return local_frame(spark, table.system(system))
    scan = table.scan(version=version, timestamp_ms=timestamp_ms, columns=columns, where=where)
    return read_splits(spark, table, splits=scan.splits(), plan=scan.plan, native=native)


def local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Arrow rows of this process as a DataFrame; timestamps without a time zone stay so."""
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema=schema) if rows.num_rows else spark.createDataFrame([], schema)


def read_splits(
    spark: SparkSession, table: Table, *, splits: Sequence[Split], plan: ReadPlan, native: bool | None = None
) -> DataFrame:
    """The rows of some splits, in `plan.columns`; `read` with the planning done by the caller."""
    is_native = native is not False and (plan.where is None or is_small(plan.where))
    files = _files_of(spark, table.store, splits) if is_native else None
    frames = []
    merges = list(splits)
    if files is not None:
        groups, merges = _native_groups(splits, plan, files)
        frames = [_native_frame(spark, schema_id, found, plan) for schema_id, found in groups.items()]
    if merges:
        frames.append(_merged_frame(spark, table, merges, plan))
    if not frames:
        return spark.createDataFrame([], spark_schema(plan.fields))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


# ---- Spark's own reader


@dataclass(frozen=True, slots=True)
class _Files:
    """The URLs of a store's files for Spark's own reader.

    Attributes:
        root: the URL that paths are below.
        addresses: in a branch of a repository: the address of each path's object; None: the path itself.
    """

    root: str
    addresses: Mapping[str, str] | None = None

    def url(self, path: str) -> str | None:
        """The URL of a file; None: it is outside of the store and may need other credentials."""
        if self.addresses is not None:
            path = self.addresses[path]
        return None if "://" in path else f"{self.root}/{path}"


def _files_of(spark: SparkSession, store: ObjectStore, splits: Sequence[Split]) -> _Files | None:
    """The names of the splits' files; None where Spark cannot reach them. Cost: in a branch as `EntryStore.entries`."""
    if not isinstance(store, EntryStore):
        root = spark_root(spark, store.root_url)
        return None if root is None else _Files(root)
    inside = store.inside_url()
    root = None if inside is None else spark_root(spark, inside)
    if root is None:
        return None
    alone = [split for split in splits if not split.needs_merge]
    (entries,) = located(store, [alone], files=split_files)
    return _Files(root, {path: entry.address for path, entry in entries.items()})


def _native_groups(
    splits: Sequence[Split], plan: ReadPlan, files: _Files
) -> tuple[dict[int, list[tuple[str, DataFile]]], list[Split]]:
    """Files for Spark's reader, as (URL, file) by their schema's id; and the other splits."""
    readable = {schema_id: _reads_natively(schema, plan.decoded) for schema_id, schema in plan.schemas.items()}
    groups: dict[int, list[tuple[str, DataFile]]] = defaultdict(list)
    others = []
    for split in splits:
        is_found = not split.other_folders and not any(file.external_path for file in split.files)
        if split.needs_merge or not is_found or not all(readable[file.schema_id] for file in split.files):
            others.append(split)
            continue
        urls = [files.url(data_path(split, file)) for file in split.files]
        if None in urls:
            others.append(split)
            continue
        for url, file in zip(urls, split.files, strict=True):
            groups[file.schema_id].append((str(url), file))
    return groups, others


def _reads_natively(written_with: TableSchema, wanted: Sequence[DataField]) -> bool:
    """Whether Spark's reader and casts return these columns exactly as lakebed's own reader does."""
    in_file = {field.id: field for field in written_with.fields}
    for field in wanted:
        found = in_file.get(field.id)
        if found is None:
            continue
        if not (is_native(field) and is_native(found)):
            return False
        if parse_type(field.type).is_nested and field.type != found.type:
            return False  # fields inside it were renamed or added, which Spark matches by name
    return True


def _native_frame(
    spark: SparkSession, schema_id: int, files: Sequence[tuple[str, DataFile]], plan: ReadPlan
) -> DataFrame:
    in_file = {field.id: field for field in plan.schemas[schema_id].fields}
    found = [(field, in_file.get(field.id)) for field in plan.decoded]
    physical = [
        DataField(stored.id, stored.name, stored.type, nullable=field.nullable)
        for field, stored in found
        if stored is not None
    ]
    frame = exact_files(
        spark,
        [ParquetFile(url, file.file_size, file.creation_time_ms or 0) for url, file in files],
        schema=spark_schema(physical),
    )
    target = {field.name: field.dataType for field in spark_schema(plan.decoded).fields}
    if physical != list(plan.decoded):
        frame = frame.select([_evolved(field, stored, target[field.name]) for field, stored in found])
    if plan.where is not None:
        frame = frame.filter(column_of(plan.where, arrow_schema(plan.schema.fields)))
    if [field.name for field in plan.decoded] != list(plan.columns):
        frame = frame.select([quoted(name) for name in plan.columns])
    return frame


def _evolved(field: DataField, stored: DataField | None, target: spark_types.DataType) -> Column:
    if stored is None:
        return functions.lit(None).cast(target).alias(field.name)
    column = quoted(stored.name)
    return (column if stored.type == field.type else column.cast(target)).alias(field.name)


# ---- lakebed's own reader, on the executors


def _merged_frame(spark: SparkSession, table: Table, splits: Sequence[Split], plan: ReadPlan) -> DataFrame:
    store, carried = ship(table.store), carried_schema(plan.fields)
    packs = packed(splits, size_bytes=split_bytes, task_count_min=parallelism(spark))
    entries = located(table.store, packs, files=split_files)

    def lakebed_read(assigned: Iterator[tuple[list[Split], Mapping[str, Entry]]]) -> Batches:
        for pack, there in assigned:
            opened = opened_in_task(store, there)
            for split in pack:
                for rows in read_split(opened, split, plan=plan):
                    yield _carried(rows, carried)

    tasks, function = dealt(spark, [[(pack, there)] for pack, there in zip(packs, entries, strict=True)], lakebed_read)
    return tasks.mapInArrow(function, spark_schema(plan.fields))


def _carried(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        # Not safe: digits below a microsecond, which Spark does not keep, are cut.
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
