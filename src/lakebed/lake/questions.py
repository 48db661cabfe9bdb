"""What is asked of a whole lake: ls, pins, why, clean. One loop over stores of every kind.

Invariants: a store that cannot be read does not keep the others from being listed; nothing is deleted but by `clean`.
Does not know: how any store keeps its versions; it asks them through the `Versioned` contract and their own verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from lakebed.errors import LakebedError, NotFound
from lakebed.kv.options import CollectorOptions
from lakebed.lake.drop import drop_table, is_dropped
from lakebed.lake.marker import MARKER_PATH
from lakebed.lake.names import DATABASE_SUFFIX, StoreName, database_folder, split_path
from lakebed.lake.stores import Stores
from lakebed.reclaim.model import Pin, ReclaimReport, Verdict

__all__ = ["StoreSummary", "clean", "ls", "pins", "why"]


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store of a lake, as `Lake.ls` lists it."""

    kind: str
    """``table`` or ``database``."""
    name: str
    version: str | None
    """Id of the newest version, or ``destroyed``; None when nothing was ever written."""
    changed_ms: int | None
    """When that version was made, Unix ms, UTC."""
    row_count: int | None
    """None where counting would mean reading everything."""
    size_bytes: int
    """Of the files that the newest version needs."""
    pin_count: int
    """Pins that somebody made: tags; checkpoints of people and of clones."""
    problem: str | None = None
    """Why the store could not be read, in one sentence; the numbers are then zero."""


def ls(lake: Stores) -> list[StoreSummary]:
    """Every store with its newest version, rows, bytes and pins, tables first, sorted by name.

    A store that cannot be read is listed with its `problem`.
    Cost: a table: 3 LIST + 2 GET, and 1 GET for each manifest that is not cached; a database: 1 LIST + 1 GET.
    """
    found = lake.each(lambda store: _summary(lake, store), lake.stores())
    return [summary for summary in found if summary is not None]


def _summary(lake: Stores, store: StoreName) -> StoreSummary | None:
    try:
        return _of_table(lake, store.name) if store.kind == "table" else _of_database(lake, store.name)
    except LakebedError as problem:
        return StoreSummary(store.kind, store.name, None, None, None, 0, 0, problem=problem.message)


def _of_table(lake: Stores, name: str) -> StoreSummary:
    table = lake.table(name)
    newest = table.latest()
    pin_count = len(table.tags())
    if newest is None:
        return StoreSummary("table", name, None, None, 0, 0, pin_count)
    size_bytes = pc.sum(table.reader.live_entries(newest).column("file_size")).as_py() or 0
    return StoreSummary("table", name, str(newest.id), newest.time_ms, newest.total_record_count, size_bytes, pin_count)


def _of_database(lake: Stores, name: str) -> StoreSummary | None:
    """None for a destroyed one of which nothing is left but the mark that it was there."""
    manifest = lake.database(name).show_manifest()
    if manifest.destroyed_at_ms is not None:
        remains = list(lake.store.list(f"{database_folder(name)}/sst"))
        size_bytes = sum(meta.size_bytes for meta in remains)
        summary = StoreSummary("database", name, "destroyed", manifest.destroyed_at_ms, None, size_bytes, 0)
        return summary if remains else None
    now_ms = lake.environment.clock.now_ms()
    pin_count = sum(one.is_live(now_ms) and one.owner.kind in ("user", "clone") for one in manifest.checkpoints)
    return StoreSummary(
        "database",
        name,
        str(manifest.manifest_id),
        manifest.created_at_ms,
        None,
        manifest.file_set.size_bytes,
        pin_count,
    )


def pins(lake: Stores, name: str | None = None) -> list[Pin]:
    """Everything that keeps a version alive, in one store or in all, with the bytes that each one alone holds.

    Cost: as `ls`, and the manifests of every pinned version.
    """
    stores = lake.stores() if name is None else [lake.find(name)]
    return [pin for found in lake.each(lambda store: _pins(lake, store), stores) for pin in found]


def _pins(lake: Stores, store: StoreName) -> list[Pin]:
    if store.kind == "database":
        return lake.database(store.name).pins()
    table = lake.table(store.name)
    return [replace(pin, bytes_alone=table.bytes_alone(pin.name)) if pin.kind == "tag" else pin for pin in table.pins()]


def why(lake: Stores, where: str) -> Verdict:
    """Who needs an object, or when it may go.

    Args:
        where: the object's URL, or its path relative to the lake's root.

    Raises:
        InvalidRequest: the URL lies outside this lake.
    """
    path = lake.path_of(where)
    nowhere = Verdict(path, (), "This lies in no store of the lake, so lakebed neither needs nor deletes it.")
    if path == MARKER_PATH:
        return Verdict(path, (), "This is the marker of the lake: it stays as long as the lake does.")
    top, _, rest = path.partition("/")
    if top.endswith(DATABASE_SUFFIX) and top != DATABASE_SUFFIX and rest:
        try:
            return lake.database(top.removesuffix(DATABASE_SUFFIX)).why(rest)
        except NotFound:
            return nowhere
    found = split_path(path)
    if found is None or not found[1]:
        return nowhere
    name, inside = found
    if lake.has_table(str(name)):
        return lake.table(str(name)).why(inside)
    if is_dropped(lake.store, name):
        return Verdict(path, (), "Its table was dropped: the next cleaning deletes it.")
    return nowhere


def clean(
    lake: Stores,
    *,
    dry_run: bool = False,
    orphans_older_than_ms: int | None = None,
    progress: Callable[[Any], None] | None = None,
) -> list[ReclaimReport]:
    """Delete what nobody needs any more, by each store's own retention settings.

    In each table: tags whose lifetime is over, snapshots past their retention, files that nobody names. In each
    database: what its collector finds, by its default settings. Then the remains of dropped tables.

    Args:
        dry_run: only say what would go.
        orphans_older_than_ms: files of tables that nobody names go when last changed before this Unix time (ms, UTC);
            None is a day ago, so that a running writer keeps the files that it is about to commit.
        progress: called after each batch of deletes.

    Returns:
        One report a deleting step, stores in order of their names.
    """
    reports: list[ReclaimReport] = []
    for name in lake.tables():
        table = lake.table(name)
        reports.append(table.expire_tags(dry_run=dry_run))
        reports.append(table.expire(dry_run=dry_run, progress=progress))
        reports.append(table.remove_orphan_files(older_than_ms=orphans_older_than_ms, dry_run=dry_run))
    for name in lake.databases():
        reports.append(lake.database(name).collect_garbage(CollectorOptions(), dry_run=dry_run, progress=progress))
    for dropped in lake.dropped_tables():
        reports.append(
            drop_table(lake.store, dropped, environment=lake.environment, dry_run=dry_run, progress=progress)
        )
    return reports
