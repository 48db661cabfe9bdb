"""The adapter of databases: their newest manifest, checkpoints of users and clones, and collection."""

from __future__ import annotations

import lakebed.lake
from lakebed.errors import NotFound
from lakebed.lake.adapters.port import Collection, StoreAdapter, StoreSummary
from lakebed.lake.names import DATABASE_SUFFIX, database_folder, split_top
from lakebed.lake.stores import Stores
from lakebed.reclaim.model import CollectionReport, Explanation, Pin, Version


class DatabaseAdapter(StoreAdapter):
    """As `StoreAdapter`."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Cost: 1 LIST + 1 GET; for a destroyed database 3 LIST more, and 1 LIST a thousand objects."""
        database = lake.database(name)
        manifest = database.show_manifest()
        now_ms = lake.environment.clock.now_ms()
        pin_count = sum(
            checkpoint.is_live(now_ms) and checkpoint.owner.kind in ("user", "clone")
            for checkpoint in manifest.checkpoints
        )
        if manifest.destroyed_at_ms is not None:
            size_bytes = lakebed.lake.databases.remaining_bytes(database, manifest, now_ms=now_ms)
            if size_bytes is None:
                return None
            return StoreSummary("database", name, "destroyed", manifest.destroyed_at_ms, None, size_bytes, pin_count)
        elsewhere = {id for entry in manifest.external_databases for id in entry.file_ids}
        return StoreSummary(
            "database",
            name,
            str(manifest.content_since),
            manifest.created_at_ms,
            None,
            manifest.file_set.size_bytes,
            pin_count,
            shared_bytes=sum(file.size_bytes for file in manifest.file_set.files() if file.id in elsewhere),
        )

    def disk_bytes(self, lake: Stores, name: str) -> int:
        return sum(meta.size_bytes for meta in lake.store.list(database_folder(name)))

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Cost: 2 LIST + 1 GET a version."""
        return list(lake.database(name).versions())

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Cost: 1 LIST + 1 GET, and the manifest of every pinned version."""
        return lake.database(name).pins()

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Cost: as `DatabaseAdmin.why`."""
        parts = split_top(path, DATABASE_SUFFIX)
        if parts is None:
            return None
        try:
            return lake.database(parts[0]).why(parts[1])
        except NotFound:
            return None

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Collect every database with the default settings. A report says why its database was not collected."""
        locations = [lake.database(name).location for name in lake.databases()]
        if not locations:
            return []
        return lakebed.lake.databases.collect(locations, dry_run=collection.dry_run, progress=collection.progress)
