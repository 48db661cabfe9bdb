"""The databases of a lake: their locations, their collection, and the remains of destroyed databases.

Loaded on first use. Does not know: the names of databases; callers pass folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.collect import Collector
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import find_objects
from lakebed.kv.model import Manifest
from lakebed.kv.reclaim import is_taken_apart
from lakebed.lake.root import LakeRoot
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionReport


def location(root: LakeRoot, folder: str) -> DatabaseLocation:
    """Return the location of a database. Its clones may be anywhere that the lake's credentials give access to."""
    prefix = f"{root.store.root_url}/"

    def open_url(url: str) -> ObjectStore:
        if url.startswith(prefix):
            return root.store.sub(url.removeprefix(prefix))
        return open_store(url, storage_options=root.storage_options, environment=root.environment)

    return DatabaseLocation(root.store.sub(folder), root.environment, open_url, is_probed=root.is_probed)


def admin(root: LakeRoot, folder: str, *, name: str) -> DatabaseAdmin:
    """Return the administration of a database, without opening it. Cost: no request."""
    return DatabaseAdmin(location(root, folder), name=name)


def collect(
    locations: Sequence[DatabaseLocation], *, dry_run: bool, progress: Callable[[Any], None] | None
) -> list[CollectionReport]:
    """Collect databases with the default settings. The report of a database that was not collected says why."""
    collector = Collector(locations, dry_run=dry_run, progress=progress)
    return [
        result.report
        if result.error is None or result.gone
        else CollectionReport.not_collected(result.report.store, result.error, dry_run=dry_run)
        for result in collector.collect_once().values()
    ]


def remaining_bytes(database: DatabaseAdmin, manifest: Manifest, *, now_ms: int) -> int | None:
    """Return the bytes of a destroyed database that are not deleted yet; None when only its tombstone is left."""
    objects = find_objects(database.location)
    if is_taken_apart(objects, manifest, now_ms=now_ms):
        return None
    return sum(meta.size_bytes for meta in (*objects.files, *objects.logs))
