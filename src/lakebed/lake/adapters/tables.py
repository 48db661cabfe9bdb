"""The adapter of tables: newest snapshot and tags. Collection expires versions, deletes orphans and finishes drops."""

from __future__ import annotations

from dataclasses import replace

from lakebed.errors import Corruption, InvalidRequest, UnsupportedFormat
from lakebed.lake.adapters.port import Collection, StoreAdapter, StoreSummary
from lakebed.lake.drop import drop_table, is_dropped
from lakebed.lake.names import split_path
from lakebed.lake.stores import Stores, list_dropped_tables
from lakebed.reclaim.model import CollectionReport, Explanation, Pin, Version
from lakebed.table.branch.branch_folder import branch_names
from lakebed.table.table import Table

_NOT_COLLECTABLE = frozenset(("unsupported_option", "unsupported_partition", "invalid_option"))
"""Kinds of `InvalidRequest` for a table whose options leave the location of its files undetermined."""

_COUNTED_BYTES_MAX = 16 * 1024 * 1024
"""Rows that need a merge are counted exactly only if their files have at most this total size."""


def _rows_of(table: Table) -> tuple[int | None, bool]:
    """Return the row count of the newest version, and whether it is exact; None: lakebed cannot read this version."""
    try:
        splits = table.scan().splits()
    except UnsupportedFormat:
        return None, False
    to_merge = sum(file.file_size for split in splits if split.needs_merge for file in split.files)
    if to_merge <= _COUNTED_BYTES_MAX:
        return table.scan().count(), True
    return sum(split.row_count for split in splits), False


class TableAdapter(StoreAdapter):
    """As `StoreAdapter`."""

    def summary(self, lake: Stores, name: str) -> StoreSummary:
        """Cost: 4 LIST + 2 GET, 1 LIST a branch, 1 GET a manifest that is not cached; keys of small files."""
        table = lake.table(name)
        newest = table.latest()
        pin_count = len(table.tags()) + len(branch_names(table.store))
        if newest is None:
            return StoreSummary("table", name, None, None, 0, 0, pin_count)
        size_bytes = int(table.context.manifests.live_entries(newest).column("file_size").to_numpy().sum())
        row_count, is_exact = _rows_of(table)
        if row_count is None:
            row_count = newest.total_record_count
        return StoreSummary(
            "table",
            name,
            str(newest.id),
            newest.time_ms,
            row_count,
            size_bytes,
            pin_count,
            row_count_is_exact=is_exact,
        )

    def disk_bytes(self, lake: Stores, name: str) -> int:
        return sum(meta.size_bytes for meta in lake.table(name).store.list(""))

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Cost: 2 LIST + 1 GET a version."""
        return list(lake.table(name).versions())

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Cost: that of `bytes_alone`, and 1 GET a consumer."""
        from lakebed.table.collect.bytes_alone import bytes_alone

        table = lake.table(name)
        alone = bytes_alone(table.context)
        return [replace(pin, bytes_alone=alone.get(pin.name)) if pin.kind == "tag" else pin for pin in table.pins()]

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Cost: as `Table.why`."""
        parts = split_path(path)
        if parts is None or not parts[1]:
            return None
        name, inner_path = parts
        if lake.has_table(str(name)):
            return lake.table(str(name)).why(inner_path)
        if is_dropped(lake.store, name):
            return Explanation(path, (), "Its table was dropped: the next collection deletes it.")
        return None

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Delete expired tags, snapshots and orphans of each table, then the remains of dropped tables."""
        from lakebed.table.collect.expire import expire_by_options

        dry_run, progress = collection.dry_run, collection.progress
        reports: list[CollectionReport] = []
        for name in lake.tables():
            try:
                table = lake.table(name)
                reports += expire_by_options(table.context, dry_run=dry_run, progress=progress)
                reports.append(table.collect(grace_ms=collection.grace_ms, dry_run=dry_run))
            except (InvalidRequest, UnsupportedFormat, Corruption) as error:
                if isinstance(error, InvalidRequest) and error.kind not in _NOT_COLLECTABLE:
                    raise
                # The other tables of the lake are still collected.
                reports.append(CollectionReport.not_collected(name, error, dry_run=dry_run))
        for table_name in list_dropped_tables(lake):
            try:
                report = drop_table(
                    lake.store,
                    table_name,
                    environment=lake.environment,
                    dry_run=dry_run,
                    progress=progress,
                    only_remains=True,
                )
            except (UnsupportedFormat, Corruption) as error:
                report = CollectionReport.not_collected(str(table_name), error, dry_run=dry_run)
            reports.append(report)
        return reports
