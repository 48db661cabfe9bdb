"""The facade's verbs on columns and rows: schema changes, writing, reading, comparing, compaction. Delegates only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa
from typing_extensions import Unpack

from lakebed.errors import InvalidRequest
from lakebed.table.model import (
    Rows,
    Snapshot,
    TableSchema,
)
from lakebed.table.schema import (
    add_column,
    drop_column,
    move_column,
    remove_options,
    rename_column,
    set_options,
    widen_column,
)
from lakebed.table.table_rooms import TableRooms
from lakebed.table.travel import Time
from lakebed.texts import names_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

    from lakebed.table.compact import CompactProgress, CompactReport
    from lakebed.table.incremental import TableDiff
    from lakebed.table.predicate import Predicate
    from lakebed.table.row_verbs import CommitOptions
    from lakebed.table.scan import Scan
    from lakebed.table.write import TableWriter

__all__ = ["ReadOptions", "TableRows"]


class ReadOptions(TypedDict, total=False):
    """What to read of a table, as keywords; `TableRows.scan` describes them."""

    version: int | str | None
    tag: str | None
    timestamp_ms: Time | None
    columns: str | Sequence[str] | None
    where: Predicate | str | None
    limit: int | None


class TableRows(TableRooms):
    """Verbs on columns and rows; part of `Table`."""

    # ---- changing what it is: each is one new schema object; no data file is rewritten. Raises `InvalidRequest`.

    def add_column(
        self, name: str, type: str, *, comment: str | None = None, after: str | None = None, first: bool = False
    ) -> TableSchema:
        """Add a nullable column, by default at the end; rows already there have null in it."""
        return self._change_schema(
            lambda schema: add_column(schema, name, type, comment=comment, after=after, first=first)
        )

    def drop_column(self, name: str) -> TableSchema:
        """Remove a column; older versions keep it, and adding one of the same name does not bring its values back."""
        return self._change_schema(lambda schema: drop_column(schema, name))

    def rename_column(self, old: str, new: str) -> TableSchema:
        """Give a column another name; its values stay."""
        return self._change_schema(lambda schema: rename_column(schema, old, new))

    def widen_column(self, name: str, type: str) -> TableSchema:
        """Give a column a wider type, such as INT to BIGINT."""
        return self._change_schema(lambda schema: widen_column(schema, name, type))

    def move_column(self, name: str, *, after: str | None = None) -> TableSchema:
        """Put a column behind another one, or first."""
        return self._change_schema(lambda schema: move_column(schema, name, after=after))

    def set_options(self, options: Mapping[str, str]) -> TableSchema:
        """Set options; an unknown one is refused with the nearest name."""
        return self._change_schema(lambda schema: set_options(schema, options))

    def remove_options(self, names: Collection[str]) -> TableSchema:
        """Give options their defaults again."""
        return self._change_schema(lambda schema: remove_options(schema, names))

    def _change_schema(self, change: Callable[[TableSchema], TableSchema]) -> TableSchema:
        self._schema = self.schemas.change(change, time_ms=self.environment.clock.now_ms())
        return self._schema

    # ---- rows

    def new_writer(self) -> TableWriter:
        """A writer on the newest snapshot: ``.write(rows, deletes=None)``, then ``commit(writer.finish())``."""
        return self.rows.new_writer()

    def write(self, rows: Rows, *, deletes: str | None = None, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append to an append table, upsert into a primary-key table.

        Args:
            rows: Arrow data, a DataFrame of pandas or polars, a relation of DuckDB, or another object that exports an
                Arrow stream, with the table's column names; values are cast when nothing is lost by it.
            deletes: name of a boolean column: true deletes the row's key (primary-key tables).
            **options: of the commit: see `CommitOptions`.

        Raises:
            InvalidRequest: the rows do not fit the table.
        """
        return self.rows.write(rows, deletes=deletes, **options)

    def append(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Add rows to an append table. Raises `InvalidRequest` for a primary-key table."""
        return self.rows.append(rows, **options)

    def upsert(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Insert or replace rows by primary key; of equal keys the last row wins. Raises `InvalidRequest`."""
        return self.rows.upsert(rows, **options)

    def delete(
        self,
        where: Predicate | str | None = None,
        *,
        keys: Rows | None = None,
        **options: Unpack[CommitOptions],
    ) -> Snapshot | None:
        """Delete rows by predicate, or (primary-key tables) by key.

        Returns:
            The snapshot; None when no row matched the predicate.

        Raises:
            InvalidRequest: neither or both are given, or keys on an append table.
        """
        return self.rows.delete(where, keys=keys, **options)

    def overwrite(
        self,
        rows: Rows,
        *,
        partition: Mapping[str, object] | None = None,
        dynamic: bool = False,
        **options: Unpack[CommitOptions],
    ) -> Snapshot:
        """Replace all rows, those of one partition, or (`dynamic`) those of every partition the new rows lie in."""
        return self.rows.overwrite(rows, partition=partition, dynamic=dynamic, **options)

    def scan(
        self,
        *,
        version: int | str | None = None,
        tag: str | None = None,
        timestamp_ms: Time | None = None,
        columns: str | Sequence[str] | None = None,
        where: Predicate | str | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Plan a read of a version (the newest by default): ``.splits() .to_batches() .to_arrow() .count()``.

        Args:
            version, timestamp_ms: as `resolve`. A version is read with the columns it had; the newest with today's.
            tag: the version that a tag holds; of these three give at most one.
            columns: one name, or several in the order wanted; None: all.
            where: a predicate or its text, such as ``carrier = 'UA' AND month >= 2``.
            limit: at most so many rows, of which any may come; files are opened until there are enough.
        """
        from lakebed.table.scan import ScanRequest  # who asks only for versions reads no rows

        request = ScanRequest(columns=columns, where=where, limit=limit)
        if tag is not None:
            if version is not None or timestamp_ms is not None:
                raise InvalidRequest("Give a version, a tag or a timestamp, not several.", kind="ambiguous_version")
            version = f"tag.{tag}"
        if version is None and timestamp_ms is None:
            return self.rows.scan(snapshot=self.log.latest(), request=request)
        found = self.locate(version=version, timestamp_ms=timestamp_ms)
        table = self if found.branch is None else self.of_branch(found.branch)
        return table.rows.scan(snapshot=found.snapshot, request=request, schema_id=found.snapshot.schema_id)

    def read(self, **options: Unpack[ReadOptions]) -> pa.Table:
        """The rows of a version in memory; arguments as `scan`. No order is promised."""
        return self.scan(**options).to_arrow()

    def to_pandas(self, **options: Unpack[ReadOptions]) -> pd.DataFrame:
        """The rows of a version as a pandas DataFrame; arguments as `scan`."""
        return self.scan(**options).to_pandas()

    def to_polars(self, **options: Unpack[ReadOptions]) -> pl.DataFrame:
        """The rows of a version as a polars DataFrame; arguments as `scan`."""
        return self.scan(**options).to_polars()

    def to_duckdb(
        self, table_name: str, connection: DuckDBPyConnection | None = None, **options: Unpack[ReadOptions]
    ) -> DuckDBPyConnection:
        """The rows of a version as a view in DuckDB, as `Scan.to_duckdb`; other arguments as `scan`."""
        return self.scan(**options).to_duckdb(table_name, connection)

    def to_spark(
        self,
        spark: SparkSession,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: str | Sequence[str] | None = None,
        where: Predicate | str | None = None,
        system: str | None = None,
    ) -> DataFrame:
        """The rows of a version, or a system table, as a DataFrame; see `lakebed.spark.read`.

        Raises:
            InvalidRequest: also when PySpark is not installed.
        """
        # By name: Spark is a face above tables, and loaded only by those who use it.
        frame: DataFrame = importlib.import_module("lakebed.spark").read(
            spark,
            self,
            version=version,
            timestamp_ms=timestamp_ms,
            columns=columns,
            where=where,
            system=system,
        )
        return frame

    def changes(self, start: int | str | None, end: int | str | None = None) -> pa.Table:
        """The rows written after version `start` (None: ever) up to version `end` (None: the newest).

        Returns:
            Append tables: the appended rows. Primary-key tables: the last row of each key written, with ``_row_kind``
            (``+I``, ``+U``, ``-D``). Compactions are left out, and what overwrites and rollbacks took away: see `diff`.

        Raises:
            NotFound: no such version, or snapshots in between have expired.
        """
        return self.rows.changes(None if start is None else self.resolve(version=start), self.resolve(version=end))

    def diff(
        self, start: int | str, end: int | str | None = None, *, keys: str | Sequence[str] | None = None
    ) -> TableDiff:
        """Rows added, removed and changed from version `start` to version `end` (None: the newest).

        Args:
            start, end: snapshot ids, tags or branches; any versions, whatever happened in between.
            keys: columns that identify a row; by default the primary key, in append tables the whole row.
        """
        names = None if keys is None else names_of(keys)
        return self.rows.diff(self.resolve(version=start), self.resolve(version=end), keys=names)

    # ---- maintenance of files

    def compact(
        self,
        *,
        full: bool = False,
        where: Mapping[str, object] | None = None,
        dry_run: bool = False,
        progress: Callable[[CompactProgress], None] | None = None,
    ) -> CompactReport:
        """Rewrite small and overlapping files as fewer, larger ones, in one COMPACT snapshot; no row changes.

        Args:
            full: everything, whatever the triggers say.
            where: values of partition columns; only such partitions.
            dry_run: plan only.
            progress: called after each bucket.
        """
        return self.rows.compact(full=full, where=where, dry_run=dry_run, progress=progress)
