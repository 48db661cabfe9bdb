"""Drop a table: delete everything in its folder, in an order in which a crash leaves no half-visible table.

Owns: the mark ``lakebed/dropped`` inside the table's folder. It exists from before the first deletion until the last.

Invariants of a drop:
- The mark is durable before the schemas are deleted. A table without a schema is invisible to every client.
- The mark is deleted last. By the mark the remains of a table are recognised, and another drop or `Lake.collect`
  finishes the drop. A folder without the mark counts as remains only when a caller forces that (`is_left`).
- Each batch of deletions first checks that the mark still exists. If another process finished the drop while this one
  slept, this process deletes nothing of a table that was created since. The exception is a sleep between the check and
  the one request that follows it (docs/design/0018).
- The folder is listed again after the schemas are deleted, because a commit checks for its schema once more after its
  put, and withdraws the commit if the schema is gone.
- The mark lists the URLs of the table's own files outside its folder. These are deleted too, and nothing else outside.

`take_back_table` drops a table that the caller created, unless others have put something there:
- This is decided after the schemas are deleted, when no commit of others can be acknowledged any more. If there is
  anything of others, the schemas are put back.
- The mark contains the schemas and the list of what the creator has put, so every process can finish such a drop.
- Processes may disagree, because only some of them see a commit that is under way. So the first process that creates
  the decision, an object named by the mark's nonce, decides for all.
- The decision is deleted after the mark has changed. A process that then creates it again sees the changed mark, and
  deletes the decision.

Does not know: pins. `Lake.drop_table` checks for pins, and for stores inside the folder, before it drops.

Format of the mark: empty, or the JSON of `_Mark`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from lakebed.errors import AlreadyExists, Corruption, NotFound, UnsupportedFormat
from lakebed.ids import new_uuid
from lakebed.kv.layout import LEASE_PATH
from lakebed.lake.marker import MARKER_PATH
from lakebed.lake.names import WAREHOUSE_SUFFIX, TableName
from lakebed.objects.document import decode_object
from lakebed.objects.port import ObjectStore, has_object
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Sweeper, notes_on
from lakebed.repo.model.layout import MARKER_PATH as REPOSITORY_MARKER_PATH
from lakebed.runtime import Environment
from lakebed.table.branch.branches import every_branch
from lakebed.table.files.external import roots_of
from lakebed.table.model.layout import Layout, parse_bucket_folder
from lakebed.table.table import Table

_MARK: Final = "lakebed/dropped"
_SCHEMA_FOLDER: Final = "schema/"
_TABLE_FOLDERS: Final = frozenset(
    ("branch", "changelog", "consumer", "index", "lakebed", "manifest", "snapshot", "statistics", "tag")
)
_OWN_FOLDER: Final = re.compile("schema$|service$|bucket-|[^=]+=")
"""Further folders of a table, among them those of buckets and of partitions."""
_STORE_MARKERS: Final = frozenset((LEASE_PATH, MARKER_PATH, REPOSITORY_MARKER_PATH))
"""The markers of a database that has been written to, of a lake and of a repository."""


class Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the creator of a table has put into its folder."""

    schemas: dict[str, str]
    """Bodies by path."""
    snapshots: tuple[int, ...]
    tags: tuple[str, ...]


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a mark. An empty mark has the defaults. DO NOT CHANGE."""

    external: dict[str, int] = {}
    """The table's own files outside its folder: sizes in bytes by URL."""
    own: Own | None = None
    """Set: a take-back that is not decided yet. None: a drop."""
    nonce: str = ""
    """Names the decision; new for each take-back."""

    def encode(self) -> bytes:
        """The mark's body. An older lakebed that cannot read it ends with an error."""
        members = {"external": self.external} | ({} if self.own is None else {"own": self.own, "nonce": self.nonce})
        return msgspec.json.encode(members) if self.external or self.own else b""


def is_dropped(store: ObjectStore, name: TableName) -> bool:
    """Return whether a folder contains the remains of a table whose drop did not finish. Cost: 1 HEAD."""
    return has_object(store, f"{name.folder}/{_MARK}")


def is_left(store: ObjectStore, name: TableName) -> bool:
    """Return whether a folder has only files of a table, but no schema: what a writer left that died after the drop.

    Cost: 1 LIST a thousand objects.
    """
    paths = [meta.path for meta in store.sub(name.folder).list("")]
    return bool(paths) and all(
        not path.startswith(_SCHEMA_FOLDER)
        and (path.partition("/")[0] in _TABLE_FOLDERS or parse_bucket_folder(path.rpartition("/")[0]) is not None)
        for path in paths
    )


def list_stores_inside(store: ObjectStore, name: TableName) -> list[str]:
    """List the folders of databases, repositories and lakes directly in a table's folder.

    They are there by mistake, and a drop deletes them. Cost: 1 LIST, and 1 for each folder that is not a table's own.
    """
    folder = store.sub(name.folder)
    return [
        subfolder
        for subfolder in folder.list_with_delimiter("").folders
        if subfolder not in _TABLE_FOLDERS and not _OWN_FOLDER.match(subfolder) and _is_store(folder.sub(subfolder))
    ]


def _is_store(folder: ObjectStore) -> bool:
    top = folder.list_with_delimiter("")
    return any(name.endswith(WAREHOUSE_SUFFIX) for name in top.folders) or not _STORE_MARKERS.isdisjoint(
        meta.path for meta in top.objects
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
    deletables = [Deletable(url, size_bytes, "the table is dropped") for url, size_bytes in external.items()]
    for meta in store.sub(name.folder).list(""):
        if meta.path.startswith(_SCHEMA_FOLDER):
            hide.append(meta.path)
        elif meta.path != _MARK:
            deletables.append(Deletable(meta.path, meta.size_bytes, "the table is dropped"))
    return CollectionPlan(
        store=str(name), hide=tuple(hide), doomed=tuple(deletables), notes=notes_on(store, deletables)
    )


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
    mark = _load_mark(folder)
    empty_plan = CollectionPlan(store=str(name), hide=(), doomed=())
    sweeper = Sweeper(folder, progress, reaches_outside=True)
    if only_remains and mark is None:
        return sweeper.sweep(empty_plan, dry_run=dry_run)
    if mark is not None and mark.own is not None and not dry_run:
        if not list(folder.list(_SCHEMA_FOLDER[:-1])):
            return _finish_taking_back(store, name, mark, environment=environment)
        if only_remains:  # the table has been put back
            return sweeper.sweep(empty_plan)
    external, warnings = _external_files(folder, name, environment)
    external = {**({} if mark is None else mark.external), **external}  # schemas may be gone since the mark
    if not dry_run and mark != _Mark(external):
        folder.put(_MARK, _Mark(external).encode())
    plan = plan_drop(store, name, external=external)
    plan = replace(plan, warnings=warnings)

    def is_current() -> bool:  # if not, another process finished the drop, and the listed objects may be a new table's
        return is_dropped(store, name)

    report = sweeper.sweep(plan, dry_run=dry_run, is_current=is_current)
    if dry_run:
        return report
    is_complete = report.hidden_count == len(plan.hide) and report.deleted_count == len(plan.doomed)
    if is_complete and plan.hide:
        # Objects that were put since the listing. A writer that checks from now on finds no schema, and withdraws.
        late = plan_drop(store, name, external={})
        late_report = sweeper.sweep(late, is_current=is_current)
        is_complete = late_report.hidden_count == len(late.hide) and late_report.deleted_count == len(late.doomed)
        report = replace(
            report,
            deleted_count=report.deleted_count + late_report.deleted_count,
            deleted_bytes=report.deleted_bytes + late_report.deleted_bytes,
            warnings=(*report.warnings, *late_report.warnings),
        )
    if is_complete:
        sweeper.delete_all([Deletable(_MARK, 0, "the drop is complete")])
    return report


@freeing_space()
def take_back_table(
    store: ObjectStore, name: TableName, *, snapshots: Collection[int], tags: Collection[str], environment: Environment
) -> bool:
    """Drop a table that the caller has created, unless others have put something there. Return whether it is gone.

    This finds every acknowledged commit, because a commit checks for its schema after its put. During the call the
    table does not exist for other clients. A process that dies during the call leaves a drop that `Lake.collect`
    finishes or undoes.

    Args:
        store: the lake's root.
        snapshots, tags: all that the caller has made.

    Cost: as `drop_table`, 1 GET a schema and 1 LIST more.
    """
    folder = store.sub(name.folder)
    external, _ = _external_files(folder, name, environment)
    schemas = {meta.path: bytes(folder.get(meta.path)).decode() for meta in folder.list(_SCHEMA_FOLDER[:-1])}
    mark = _Mark(external, Own(schemas, tuple(snapshots), tuple(tags)), new_uuid(environment.rng))
    folder.put(_MARK, mark.encode())
    folder.delete(list(schemas))
    _finish_taking_back(store, name, mark, environment=environment)
    return not list(folder.list(_SCHEMA_FOLDER[:-1]))


def _finish_taking_back(
    store: ObjectStore, name: TableName, mark: _Mark, *, environment: Environment
) -> CollectionReport:
    """Drop a table whose schemas are deleted, or put them back if it has something that its creator did not put."""
    folder, own_objects = store.sub(name.folder), mark.own
    assert own_objects is not None
    layout = Layout()
    own_paths = {*map(layout.snapshot, own_objects.snapshots), *map(layout.tag, own_objects.tags)}
    folders = (_SCHEMA_FOLDER[:-1], layout.snapshot_folder, layout.tag_folder, "branch")
    hints = (layout.latest_hint, layout.earliest_hint)
    paths = [meta.path for subfolder in folders for meta in folder.list(subfolder)]
    other_paths = [path for path in paths if path not in own_paths and path not in hints]
    is_kept = _decide(folder, mark, keep=bool(other_paths))
    if is_kept is None:  # another process finished it since: the listed objects may be another table's
        return CollectionReport(str(name), 0, 0, 0, {}, (), dry_run=False)
    if not is_kept:
        folder.put(_MARK, _Mark(mark.external).encode())  # it is decided
        return drop_table(store, name, environment=environment, dry_run=False)
    for path, body in own_objects.schemas.items():
        with suppress(AlreadyExists):
            folder.put(path, body.encode(), create_only=True)
    folder.delete([_MARK])
    folder.delete([_decision_path(mark)])
    description = other_paths[0] if other_paths else "a version that was being committed"
    warning = f"The table {name} is not dropped: it has {description}, which others than its maker put there."
    return CollectionReport(str(name), 0, 0, 0, {}, (warning,), dry_run=False)


def _decide(folder: ObjectStore, mark: _Mark, *, keep: bool) -> bool | None:
    """Return whether a table is kept, as the first process decided; None: its take-back is over.

    Cost: 1 PUT and 1 GET.
    """
    path, is_first = _decision_path(mark), True
    try:
        folder.put(path, b"keep" if keep else b"drop", create_only=True)
    except AlreadyExists:
        is_first = False
        try:
            keep = bytes(folder.get(path)) == b"keep"
        except NotFound:
            return None
    if _load_mark(folder) == mark:
        return keep
    if is_first:
        folder.delete([path])
    return None


def _decision_path(mark: _Mark) -> str:
    return f"lakebed/decision-{mark.nonce}"


def _external_files(
    folder: ObjectStore, name: TableName, environment: Environment
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return a table's own files outside its folder, as sizes in bytes by URL, and a warning when they are unknown."""
    try:
        if not roots_of(folder).every:
            return {}, ()
        from lakebed.table.collect.orphans import own_external_files  # loads all that deletes versions

        table = Table.open(folder, name=str(name), environment=environment)
        return own_external_files(every_branch(table.context)), ()
    except (Corruption, NotFound, UnsupportedFormat) as error:
        return {}, (f"The table cannot be read, so files that it may have outside its folder are left: {error}",)


def _load_mark(folder: ObjectStore) -> _Mark | None:
    """Load the mark of an earlier attempt; None when there is no mark. Raises as `decode_object`. Cost: 1 GET."""
    try:
        body = bytes(folder.get(_MARK))
    except NotFound:
        return None
    return decode_object(body, _Mark, path=folder.url(_MARK)) if body else _Mark()
