"""The facade's verbs on columns and rows: schema changes, writing, reading, comparing, compaction. Delegates only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import Unpack

from lakebed.table.compact import CompactProgress, CompactReport
from lakebed.table.incremental import TableDiff
from lakebed.table.model import (
    Rows,
    Snapshot,
    TableSchema,
)
from lakebed.table.predicate import Predicate
from lakebed.table.row_verbs import CommitOptions
from lakebed.table.scan import Scan, ScanRequest
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
from lakebed.table.write import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TableRows"]


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
            rows: Arrow data with the table's column names; values are cast when nothing is lost by it.
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
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        where: Predicate | str | None = None,
    ) -> Scan:
        """Plan a read of a version (the newest by default): ``.splits() .to_batches() .to_arrow() .count()``.

        Args:
            version, timestamp_ms: as `resolve`. A version is read with the columns it had; the newest with today's.
            columns: names, in the order wanted; None: all.
            where: a predicate or its text, such as ``carrier = 'UA' AND month >= 2``.
        """
        request = ScanRequest(columns=columns, where=where)
        if version is None and timestamp_ms is None:
            return self.rows.scan(snapshot=self.log.latest(), request=request)
        found = self.locate(version=version, timestamp_ms=timestamp_ms)
        table = self if found.branch is None else self.of_branch(found.branch)
        return table.rows.scan(snapshot=found.snapshot, request=request, schema_id=found.snapshot.schema_id)

    def read(
        self,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        where: Predicate | str | None = None,
    ) -> pa.Table:
        """The rows of a version in memory; arguments as `scan`. No order is promised."""
        return self.scan(version=version, timestamp_ms=timestamp_ms, columns=columns, where=where).to_arrow()

    def to_spark(
        self,
        spark: SparkSession,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
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

    def diff(self, start: int | str, end: int | str | None = None, *, keys: Sequence[str] | None = None) -> TableDiff:
        """Rows added, removed and changed from version `start` to version `end` (None: the newest).

        Args:
            start, end: snapshot ids, tags or branches; any versions, whatever happened in between.
            keys: columns that identify a row; by default the primary key, in append tables the whole row.
        """
        return self.rows.diff(self.resolve(version=start), self.resolve(version=end), keys=keys)

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
