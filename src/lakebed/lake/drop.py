"""Dropping a table: deletes everything in its folder, in an order in which a crash leaves no half-visible table.

Owns: the mark ``lakebed/dropped`` inside the table's folder, which exists from before the first deletion to the last.
Invariants: the mark is durable before the schemas are deleted (a table without a schema is invisible to every client);
the mark itself is deleted last, and looked for behind each listing: a drop that sleeps while another process finishes
it takes nothing of a table that was made since, unless it sleeps between that look and its deletion. So remains are
recognised, and dropping again or `Lake.collect` finishes the drop; a folder without the mark is taken for remains only
when a caller forces that (`is_left`). The folder is listed again after the schemas are gone, because a commit looks for
its schema once more after its put, and withdraws it. The mark lists the URLs of the table's own files outside its
folder, which are deleted too; nothing else outside is. Does not know: pins; `Lake.drop_table` checks them first.

Format of the mark: empty, or ``{"external": {<url>: <size in bytes>, ...}}``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import AlreadyExists, Corruption, NotFound, UnsupportedFormat
from lakebed.lake.names import TableName
from lakebed.objects.port import ObjectStore
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Sweeper, notes_on
from lakebed.runtime import Environment
from lakebed.table.branch.branches import every_branch
from lakebed.table.files.external import roots_of
from lakebed.table.model.layout import parse_bucket_folder
from lakebed.table.table import Table

_MARK: Final = "lakebed/dropped"
_SCHEMA_FOLDER: Final = "schema/"
_TABLE_FOLDERS: Final = frozenset(
    ("branch", "changelog", "consumer", "index", "lakebed", "manifest", "snapshot", "statistics", "tag")
)


def is_dropped(store: ObjectStore, name: TableName) -> bool:
    """Return whether a folder contains the remains of a table whose drop did not finish. Cost: 1 HEAD."""
    try:
        store.head(f"{name.folder}/{_MARK}")
    except NotFound:
        return False
    return True


def is_left(store: ObjectStore, name: TableName) -> bool:
    """Return whether a folder has files of a table, no schema, and nothing else: a writer died after its drop.

    Cost: 1 LIST a thousand objects.
    """
    paths = [meta.path for meta in store.sub(name.folder).list("")]
    return bool(paths) and all(
        not path.startswith(_SCHEMA_FOLDER)
        and (path.partition("/")[0] in _TABLE_FOLDERS or parse_bucket_folder(path.rpartition("/")[0]) is not None)
        for path in paths
    )


def leftover(name: TableName, *, url: str) -> AlreadyExists:
    """Return the error for a folder that prevents a new table."""
    return AlreadyExists(
        f"{url}/{name.folder} contains files but no table (perhaps one whose drop did not finish, or what a writer put "
        f"there since): drop the table {name} again with force, or move the files away.",
        kind="folder_not_empty",
        table=str(name),
    )


def plan_drop(store: ObjectStore, name: TableName, *, external: dict[str, int]) -> CollectionPlan:
    """Plan the deletions of a drop, except the mark; schemas are hidden first.

    Args:
        external: URLs of the table's own files outside its folder, with their sizes.
    Cost: 1 LIST a thousand objects.
    """
    hide: list[str] = []
    doomed = [Deletable(url, size_bytes, "the table is dropped") for url, size_bytes in external.items()]
    for meta in store.sub(name.folder).list(""):
        if meta.path.startswith(_SCHEMA_FOLDER):
            hide.append(meta.path)
        elif meta.path != _MARK:
            doomed.append(Deletable(meta.path, meta.size_bytes, "the table is dropped"))
    return CollectionPlan(store=str(name), hide=tuple(hide), doomed=tuple(doomed), notes=notes_on(store, doomed))


@freeing_space()
def drop_table(
    store: ObjectStore,
    name: TableName,
    *,
    environment: Environment,
    dry_run: bool,
    progress: Callable[[Any], None] | None = None,
    only_remains: bool = False,
) -> CollectionReport:
    """Delete everything in a table's folder and its own files outside, or with `dry_run` only plan it.

    Args:
        store: the lake's root.
        only_remains: nothing, when another process has finished the drop meanwhile: the folder may have a new table.
    Cost: 1 LIST a thousand objects + 1 DELETE a thousand, 2 LIST and 1 GET a schema; with external
    roots also what `own_external_files` costs.
    """
    folder = store.sub(name.folder)
    marked = _load_mark(folder)
    nothing = CollectionPlan(store=str(name), hide=(), doomed=())
    sweeper = Sweeper(folder, environment, progress, reaches_outside=True)
    if only_remains and marked is None:
        return sweeper.sweep(nothing, dry_run=dry_run)
    external, warnings = _external_files(folder, name, environment)
    external = {**(marked or {}), **external}  # schemas may have been deleted since the mark was written
    if not dry_run and external != marked:
        folder.put(_MARK, msgspec.json.encode({"external": external}) if external else b"")
    plan = plan_drop(store, name, external=external)
    plan = replace(plan, warnings=warnings)
    if not dry_run and not is_dropped(store, name):  # finished since by another process: what was listed may be new
        return sweeper.sweep(nothing)
    report = sweeper.sweep(plan, dry_run=dry_run)
    if dry_run:
        return report
    is_complete = report.hidden_count == len(plan.hide) and report.deleted_count == len(plan.doomed)
    if is_complete and plan.hide:
        # What was put since the listing: a writer that looks from now on finds no schema, and takes its files back.
        late = plan_drop(store, name, external={})
        if not is_dropped(store, name):
            return report
        swept = sweeper.sweep(late)
        is_complete = swept.hidden_count == len(late.hide) and swept.deleted_count == len(late.doomed)
        report = replace(
            report,
            deleted_count=report.deleted_count + swept.deleted_count,
            deleted_bytes=report.deleted_bytes + swept.deleted_bytes,
            warnings=(*report.warnings, *swept.warnings),
        )
    if is_complete:
        sweeper.delete_all([Deletable(_MARK, 0, "the drop is complete")])
    return report


def _external_files(
    folder: ObjectStore, name: TableName, environment: Environment
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the files outside that belong to a table, and a warning when they are unknown."""
    try:
        if not roots_of(folder).every:
            return {}, ()
        from lakebed.table.collect.external_files import own_external_files  # loads all that deletes versions

        table = Table.open(folder, name=str(name), environment=environment)
        return own_external_files(every_branch(table.context)), ()
    except (Corruption, NotFound, UnsupportedFormat) as error:
        return {}, (f"The table cannot be read, so files that it may have outside its folder are left: {error}",)


def _load_mark(folder: ObjectStore) -> dict[str, int] | None:
    """Return the files outside that the mark of an earlier attempt lists; None without a mark. Cost: 1 GET."""
    try:
        body = bytes(folder.get(_MARK))
    except NotFound:
        return None
    return decode_json(body, dict[str, dict[str, int]])["external"] if body else {}
