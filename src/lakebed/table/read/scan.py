"""Snapshot -> live files -> pruned splits -> rows.

Owns: `Scan`, a planned read of one version; `plan_scan` and `scan_snapshot`, which make one; and the check whether
lakebed can read a table (`check_readable`).

Invariants:
- Pruning drops only files without matching rows. Predicates on partitions drop files in all tables; predicates on key
  columns drop files by key range. Other predicates drop a file by its statistics only if no older row of a key can
  reappear: the file needs no merge, or `splits.find_unneeded` says so.
- A scan is bound to one snapshot and always reads the same rows, until the files of that snapshot expire.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Unpack

import lakebed.compute as pc
from lakebed.arguments import check_keywords, check_limit
from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.runtime import kept_property, map_in_pool
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import Time, find_schema_id, resolve
from lakebed.table.codec.manifest import NO_ENTRIES
from lakebed.table.engines.registry import check_mergeable, engine_of
from lakebed.table.files.data_file import cast_stored
from lakebed.table.files.splits import plan_splits
from lakebed.table.model.frames import into_duckdb, into_pandas, into_polars
from lakebed.table.model.model import Snapshot, Split, TableSchema, VectorPlace
from lakebed.table.model.options import (
    READ_BATCH_SIZE,
    TableOptions,
)
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_text import as_predicate
from lakebed.table.model.predicate_tree import Predicate, columns_of
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.file_stats import may_match
from lakebed.table.read.read import ReadPlan, newest_survives, read_split, read_split_table
from lakebed.table.read.scan_pruning import prune_files, prune_manifests
from lakebed.table.read.vectors import count_deleted, skips_level_0, vectors_of, with_vectors
from lakebed.table.schema.schema import require_column, unknown_column
from lakebed.texts import names_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection

READ_WORKERS_MAX = max(1, min(8, os.cpu_count() or 1))
"""Splits that `Scan.to_arrow` decodes at the same time."""


class RowOptions(TypedDict, total=False):
    """Which columns and rows of a version to read, as keywords."""

    columns: str | Sequence[str] | None
    """One name, or several in the order of the result; None: all."""
    where: Predicate | str | None
    """A predicate or its text, such as ``carrier = 'UA' AND month >= 2``."""
    limit: int | None
    """At most this many rows, of which any may come; files are opened until there are enough."""


class ReadOptions(RowOptions, total=False):
    """What to read of a table, as keywords."""

    version: int | str | None
    """As `Table.resolve`; of `version`, `tag` and `timestamp_ms` at most one is given."""
    tag: str | None
    """The version that a tag holds."""
    timestamp_ms: Time | None
    """As `Table.resolve`."""


class Scan:
    """A read of one snapshot. It is planned once, when first needed; data files are opened only when rows are read.

    Args:
        branch: the branch whose files are read.
        snapshot: the snapshot to read; None: a table without snapshots, which has no rows.
        schema: the schema whose columns are returned.
        rows: which columns and rows.
        merges_new: merge rows of level 0 also where readers leave them out (`vectors.skips_level_0`).
    """

    def __init__(
        self,
        branch: TableBranch,
        *,
        snapshot: Snapshot | None,
        schema: TableSchema,
        rows: RowOptions,
        merges_new: bool = False,
    ) -> None:
        check_readable(schema)
        self.snapshot = snapshot
        self.table_schema = schema
        self._branch = branch
        self._where = _bind(rows.get("where"), schema)
        self._columns = _check_columns(rows.get("columns"), schema)
        self._limit = check_limit(rows.get("limit"))
        self._skips_new = bool(schema.primary_keys) and skips_level_0(branch.schema) and not merges_new

    def __repr__(self) -> str:
        version = None if self.snapshot is None else self.snapshot.id
        return f"Scan(snapshot={version}, columns={list(self._columns)}, where={self._where!r})"

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "A scan cannot be copied or sent to another process: send the table, and scan it there with the version "
            "and the arguments of this scan.",
            kind="not_picklable",
        )

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        return arrow_schema([require_column(self.table_schema, name) for name in self._columns])

    @kept_property
    def plan(self) -> ReadPlan:
        """The plan for `read.read_split`; picklable. Cost: 1 GET a schema not cached.

        Raises `InvalidRequest`: options of the table's merge engine contradict each other or its columns.
        """
        if self.table_schema.primary_keys:
            engine_of(self.table_schema)  # refuse at once, not at the first split that needs a merge
        ids = {*self._entries.column("schema_id").unique().to_pylist(), self.table_schema.id}
        schemas = {schema_id: self._schema_of(schema_id) for schema_id in sorted(ids)}
        return ReadPlan(schema=self.table_schema, schemas=schemas, columns=self._columns, where=self._where)

    def splits(self) -> list[Split]:
        """The units of reading, for executors, with `plan`; the limit does not apply to them.

        Cost: see `ManifestReader.live_entries`; once a scan.
        """
        return list(self._splits)

    def entries(self) -> pa.Table:
        """The live files after pruning by partition and key range (`manifest.ENTRY_SCHEMA`)."""
        return self._entries

    def vectors(self) -> dict[str, VectorPlace]:
        """Where the deletion vectors of the version are, by name of the data file. Cost: see `vectors.vectors_of`."""
        return vectors_of(self._branch, self.snapshot)

    def to_batches(self, *, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Stream the rows, split by split, in bounded memory. Reading ends when the caller stops, or at the limit.

        Args:
            batch_rows: rows a batch at most; None: the option ``read.batch-size``.
        """
        rows_left = self._limit
        if rows_left == 0:
            return
        batch_rows = batch_rows or TableOptions(self.table_schema.options).get(READ_BATCH_SIZE)
        # With a limit, splits that need no merge come first.
        splits = self._splits if rows_left is None else sorted(self._splits, key=lambda split: split.needs_merge)
        for split in splits:
            for batch in read_split(self._branch.store, split, plan=self.plan, batch_rows=batch_rows):
                if rows_left is None:
                    yield batch
                    continue
                yield batch.slice(0, rows_left)
                rows_left -= min(rows_left, batch.num_rows)
                if rows_left == 0:
                    return

    def to_reader(self) -> pa.RecordBatchReader:
        """`to_batches` as an Arrow reader."""
        return pa.RecordBatchReader.from_batches(self.schema, (batch for batch in self.to_batches()))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export `to_reader` as an Arrow C stream, in a capsule: polars, DuckDB and others read a scan as it is."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows in memory, decoded in parallel; in no particular order."""
        if not self._columns:
            # Arrow loses the number of rows when it concatenates tables without columns.
            return pa.table([pa.nulls(self.count())], names=["rows"]).select([])
        if self._limit is not None:
            first = [cast_stored(pa.Table.from_batches([batch]), self.schema) for batch in self.to_batches()]
            return pa.concat_tables(first or [self.schema.empty_table()])
        splits, plan, store = self._splits, self.plan, self._branch.store
        if not splits:
            return self.schema.empty_table()
        if len(splits) == 1:
            return cast_stored(read_split_table(store, splits[0], plan=plan, threads=True), self.schema)
        tables = map_in_pool(
            self._branch.environment.runtime,
            lambda split: read_split_table(store, split, plan=plan),
            splits,
            worker_count_max=READ_WORKERS_MAX,
        )
        return pa.concat_tables([cast_stored(table, self.schema) for table in tables])

    def to_pandas(self) -> pd.DataFrame:
        """As `to_arrow`, as a pandas DataFrame. Raises `InvalidRequest` when pandas is not installed."""
        return into_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """As `to_arrow`, as a polars DataFrame. Raises `InvalidRequest` when polars is not installed."""
        return into_polars(self.to_arrow())

    def to_duckdb(self, table_name: str, connection: DuckDBPyConnection | None = None) -> DuckDBPyConnection:
        """As `to_arrow`, as a view of this name in a DuckDB connection, by default a new one in memory; returns that.

        Raises `InvalidRequest` when DuckDB is not installed.
        """
        return into_duckdb(self.to_arrow(), table_name, connection)

    def count(self) -> int:
        """The number of rows.

        Without a predicate, files that need no merge are counted by their manifest entries and deletion vectors.
        """
        if self._limit is not None and (self._limit == 0 or self._where is not None):
            return sum(batch.num_rows for batch in self.to_batches())
        number = self._count()
        return number if self._limit is None else min(number, self._limit)

    def _count(self) -> int:
        if self._where is not None:
            narrow = replace(self.plan, columns=())
            return sum(
                batch.num_rows for split in self._splits for batch in read_split(self._branch.store, split, plan=narrow)
            )
        alone = [split for split in self._splits if not split.needs_merge]
        row_count: int = sum(split.row_count - count_deleted(self._branch.store, split) for split in alone)
        merged_splits = [split for split in self._splits if split.needs_merge]
        if not merged_splits:
            return row_count
        narrow = replace(self.plan, columns=self.table_schema.trimmed_primary_keys)
        for split in merged_splits:
            row_count += sum(batch.num_rows for batch in read_split(self._branch.store, split, plan=narrow))
        return row_count

    @kept_property
    def _entries(self) -> pa.Table:
        if self.snapshot is None:
            return NO_ENTRIES
        where, schema = self._where, self.table_schema
        if where is None:
            return self._visible(self._branch.manifests.live_entries(self.snapshot))
        names: frozenset[str] | None = None
        if schema.partition_keys:
            metas = self._branch.manifests.all_metas(self.snapshot)
            names = prune_manifests(metas, where=where, schema=schema)
        entries = self._branch.manifests.live_entries(
            self.snapshot, keep_manifest=lambda meta: names is None or meta.file_name in names
        )
        return prune_files(self._visible(entries), where=where, schema=schema, schema_of=self._schema_of)

    def _visible(self, entries: pa.Table) -> pa.Table:
        """Leave out files that no client reads: in primary-key tables with deletion vectors, those of level 0.

        The rows of a level-0 file become visible when a compaction has marked the older rows of their keys; with the
        option ``deletion-vectors.merge-on-read`` they are visible at once.
        """
        if not self._skips_new:
            return entries
        return entries.filter(pc.greater(entries["level"], 0))

    @kept_property
    def _splits(self) -> tuple[Split, ...]:
        keys = self.table_schema.primary_keys
        judges_files = bool(keys) and self._where is not None and self._entries.num_rows > 0
        if self._where is not None and columns_of(self._where) <= set(keys):
            judges_files = False  # `prune_files` has judged keys and partitions already
        splits = plan_splits(
            self._entries,
            schema=self.table_schema,
            may_match=self._may_match() if judges_files else None,
            newest_survives=judges_files and newest_survives(engine_of(self.table_schema)),
            is_marked=self._skips_new,
        )
        return tuple(with_vectors(splits, self.vectors()))

    def _may_match(self) -> npt.NDArray[np.bool_]:
        assert self._where is not None
        return may_match(self._entries, self._where, schema=self.table_schema, schema_of=self._schema_of)

    def _schema_of(self, schema_id: int) -> TableSchema:
        return self.table_schema if schema_id == self.table_schema.id else self._branch.schemas.load(schema_id)


def plan_scan(branch: TableBranch, options: ReadOptions) -> Scan:
    """Plan a read of a version; see `Table.scan`.

    Raises:
        InvalidRequest: more than one of version, tag and time is given; or columns or a predicate do not fit.
        NotFound: no such version.
    """
    check_keywords(options, ReadOptions)
    version, tag, timestamp_ms = options.get("version"), options.get("tag"), options.get("timestamp_ms")
    rows = RowOptions(columns=options.get("columns"), where=options.get("where"), limit=options.get("limit"))
    if tag is not None:
        if version is not None or timestamp_ms is not None:
            raise InvalidRequest("Give a version, a tag or a timestamp, not several.", kind="ambiguous_version")
        version = f"tag.{tag}"
    if version is None and timestamp_ms is None:
        newest = branch.snapshots.latest()
        return scan_snapshot(branch.look(), newest, **rows)
    target = resolve(branch, version=version, timestamp=timestamp_ms)
    if target.branch is not None:
        branch = branch.of_branch(target.branch)
    view = branch.look()
    return scan_snapshot(view, target.snapshot, schema_id=find_schema_id(view, target.snapshot), **rows)


def scan_snapshot(
    branch: TableBranch,
    snapshot: Snapshot | None,
    *,
    schema_id: int | None = None,
    merges_new: bool = False,
    **rows: Unpack[RowOptions],
) -> Scan:
    """Plan a read of one snapshot.

    Args:
        snapshot: None for a table without a snapshot, which has no rows.
        schema_id: the schema whose columns are returned (time travel: the snapshot's own); None: the newest schema.
        merges_new: see `Scan`: for callers that change rows on the basis of what they read.
    """
    schema = branch.schema
    if snapshot is not None and schema_id is None and snapshot.schema_id > schema.id:
        schema_id = snapshot.schema_id
    if schema_id is not None:
        schema = branch.schemas.load(schema_id)
    return Scan(branch, snapshot=snapshot, schema=schema, rows=rows, merges_new=merges_new)


def check_readable(schema: TableSchema) -> None:
    """Refuse a table that this version of lakebed would read incorrectly.

    Raises:
        UnsupportedFormat: another merge engine, another order of a key's rows, or data evolution.
    """
    if schema.primary_keys:
        check_mergeable(schema)
    name = "data-evolution.enabled"
    if schema.options.get(name, "false").lower() == "true":
        raise UnsupportedFormat(f"The table has {name}=true, which this version cannot read.", option=name)


def _bind(where: Predicate | str | None, schema: TableSchema) -> Predicate | None:
    if where is None:
        return None
    return bind(as_predicate(where), arrow_schema(schema.fields))


def _check_columns(columns: str | Sequence[str] | None, schema: TableSchema) -> tuple[str, ...]:
    names = [field.name for field in schema.fields]
    if columns is None:
        return tuple(names)
    columns = names_of(columns)
    for name in columns:
        if name not in names:
            raise unknown_column(name, names)
    return tuple(dict.fromkeys(columns))
