"""Dropping a table: everything in its folder goes, in an order that a crash cannot leave half visible.

Owns: the mark ``lakebed/dropped`` inside the table's folder, which is there from before the first deletion to the last.
Invariants: the mark is durable before the schemas go (a table without a schema is invisible to every client); the
mark itself goes last. So remains are recognised and finished by dropping again or by `Lake.clean`, and a folder
that lacks the mark is never taken for remains. Does not know: pins; `Lake.drop_table` asks about them first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lakebed.errors import AlreadyExists, NotFound
from lakebed.lake.names import TableName
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Doomed, ReclaimPlan, ReclaimReport
from lakebed.reclaim.sweep import Sweeper, notes_on
from lakebed.runtime import Environment

__all__ = ["drop_table", "is_dropped", "leftover", "plan_drop"]

_MARK: Final = "lakebed/dropped"
_SCHEMA_FOLDER: Final = "schema/"


def is_dropped(store: ObjectStore, name: TableName) -> bool:
    """Whether a folder holds the remains of a table whose drop did not finish. Cost: 1 HEAD."""
    try:
        store.head(f"{name.folder}/{_MARK}")
    except NotFound:
        return False
    return True


def leftover(name: TableName, *, url: str) -> AlreadyExists:
    """The error for a folder that is in the way of a new table."""
    return AlreadyExists(
        f"{url}/{name.folder} holds files but no table (perhaps one whose drop did not finish): drop the table {name} "
        "again, or move the files away.",
        kind="folder_not_empty",
        table=str(name),
    )


def plan_drop(store: ObjectStore, name: TableName) -> ReclaimPlan:
    """What dropping would delete, the mark excepted; schemas are hidden first. Cost: 1 LIST a thousand objects."""
    hide, doomed = [], []
    for meta in store.sub(name.folder).list(""):
        if meta.path.startswith(_SCHEMA_FOLDER):
            hide.append(meta.path)
        elif meta.path != _MARK:
            doomed.append(Doomed(meta.path, meta.size_bytes, "the table is dropped"))
    return ReclaimPlan(store=str(name), hide=tuple(hide), doomed=tuple(doomed), notes=notes_on(store, doomed))


def drop_table(
    store: ObjectStore,
    name: TableName,
    *,
    environment: Environment,
    dry_run: bool,
    progress: Callable[[Any], None] | None = None,
) -> ReclaimReport:
    """Delete everything in a table's folder, or with `dry_run` only plan it. `store` is the lake's root."""
    folder = store.sub(name.folder)
    if dry_run:
        return Sweeper(folder, environment).sweep(plan_drop(store, name), dry_run=True)
    if not is_dropped(store, name):
        folder.put(_MARK, b"")
    plan = plan_drop(store, name)
    sweeper = Sweeper(folder, environment, progress)
    report = sweeper.sweep(plan)
    if report.hidden_count == len(plan.hide) and report.deleted_count == len(plan.doomed):
        sweeper.delete_all([Doomed(_MARK, 0, "the drop is complete")])
    return report
