"""Branches of a table: forks with snapshots, schemas and tags of their own, over the same data files.

Owns: opening, creating, listing and deleting ``branch/branch-<name>/{schema,snapshot,tag}``, and the hidden pin that a
branch keeps in main.

Invariants:
- A branch starts as a copy of one snapshot (its *fork snapshot*, with main's id and lists) and every schema up to the
  newest.
- Data files, manifests and index files of all branches lie in main's folders. While a branch exists, the hidden tag
  ``lakebed.pin.branch.<name>`` in main holds its fork snapshot, so main's collectors keep what the branch shares.
- A branch's own expiry never deletes a file of its fork snapshot: those are main's.
- The pin is put, create-only, before the branch appears and removed after it is gone. A crash can leave a pin without a
  branch, never a branch without its pin; `delete_branch` of the incomplete branch removes it.
- A branch exists while it has a schema: schemas are put last and deleted first. A writer looks for its schema after
  its commit (`SnapshotLog.append`), and deletion lists the folder after the schemas were deleted: one of the two sees
  the other, so no commit is acknowledged to a branch that is gone.
- A deletion removes only the pin that it found when it began: one that was delayed does not remove the pin of a new
  branch of the same name.
- A branch that was published (`fast_forward`) has a mark in main until it is deleted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import HIDDEN_PREFIX, TAG_ID, Source, check_tag_name
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.model.layout import MAIN_BRANCH, Layout, parse_branch, parse_schema
from lakebed.table.model.model import TableSchema, Tag
from lakebed.table.schema.schema_log import SchemaLog
from lakebed.texts import did_you_mean

PUBLISHED_FOLDER = "lakebed/published"
"""Of the marks of branches that were published. DO NOT CHANGE: on disk."""

_CLEAR_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch and where it started."""

    name: str
    fork_snapshot_id: int | None
    """None for a branch of another client that left no pin."""
    created_ms: int
    """Unix ms, UTC, by the store's clock."""


def fork_pin(name: str) -> str:
    """The full name of the hidden tag in main that holds a branch's fork snapshot."""
    return f"{HIDDEN_PREFIX}branch.{name}"


def mark_path(name: str, pin: Tag) -> str:
    """Where main notes that it has files of a branch, so that its collectors read the branch's versions.

    Each branch has a mark of its own, named after its pin: a delayed deletion leaves the mark of a later branch alone.
    """
    return f"{PUBLISHED_FOLDER}/{name}/{pin.snapshot.properties.get(TAG_ID, '0')}"


def open_branch(store: ObjectStore, *, name: str, branch: str | None, environment: Environment) -> TableBranch:
    """The context of a branch (None is main) with its newest schema. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
    schemas = SchemaLog(store, Layout(branch=None if branch == MAIN_BRANCH else branch))
    if schemas.latest() is None:
        what, hint = f"table {name!r}", ""
        if branch:
            open_branch(store, name=name, branch=None, environment=environment)
            what, hint = f"branch {branch!r} of table {name!r}", did_you_mean(branch, branch_names(store))
        raise NotFound(
            f"There is no {what} at {store.root_url}.{hint}",
            kind="table_not_found",
            table=name,
            branch=branch,
        )
    return TableBranch.of(store, name=name, schemas=schemas, branch=branch, environment=environment)


def reopen_branch(
    store: ObjectStore, *, name: str, schema: TableSchema, branch: str | None, environment: Environment
) -> TableBranch:
    """The context of a branch that was opened before, with the schema that was its newest then. Cost: no request."""
    schemas = SchemaLog(store, Layout(branch=branch), newest=schema)
    return TableBranch.of(store, name=name, schemas=schemas, branch=branch, environment=environment)


def create_main(store: ObjectStore, *, name: str, schema: TableSchema, environment: Environment) -> TableBranch:
    """Create a table by its first schema; see `Table.create`.

    Raises `AlreadyExists`. Cost: 1 LIST + 1 PUT.
    """
    log = SchemaLog(store, Layout())
    taken = AlreadyExists(
        f"There is a table at {store.root_url} already: open it, or create {name!r} elsewhere.",
        kind="table_exists",
        table=name,
    )
    if log.ids():
        raise taken
    try:
        log.store_next(schema)
    except Conflict as faster:
        raise taken from faster
    return TableBranch.of(store, name=name, schemas=log, environment=environment)


def branch_names(store: ObjectStore) -> list[str]:
    """Names of all branches but main, sorted. Cost: 1 LIST, and 1 LIST a branch."""
    folders = store.list_with_delimiter(Layout().branch_folder).folders
    names = (name for folder in folders if (name := parse_branch(folder)) is not None)
    return sorted(name for name in names if branch_exists(store, name))


def branch_exists(store: ObjectStore, name: str) -> bool:
    """Whether the branch exists. Cost: 1 LIST."""
    listed = store.list_with_delimiter(Layout(branch=name).schema_folder).objects
    return any(parse_schema(meta.path) is not None for meta in listed)


def every_branch(branch: TableBranch) -> list[TableBranch]:
    """Main and every branch of the table, each with its own newest schema; fork snapshots are not looked up.

    Cost: as `branch_names`, and 1 LIST + 1 GET a branch.
    """
    main = branch.main
    if branch.branch is not None:
        main.refresh()
    branches = [main]
    for name in branch_names(branch.store):
        other = main.of_branch(name)
        with suppress(NotFound):  # it was deleted since it was listed
            other.refresh()
            branches.append(other)
    return branches


def with_fork_point(branch: TableBranch) -> TableBranch:
    """A branch with its fork snapshot, which every deletion in it must know; main as it is.

    Raises `NotFound`: the branch is gone; `InvalidRequest`: another client made the branch and left no pin in main, so
    which files are shared is unknown. Cost: 1 GET and that of `TableBranch.main`; on main no request.
    """
    if branch.branch is None:
        return branch
    pin = branch.main.tags.find(fork_pin(branch.branch))
    if pin is None:
        if not branch_exists(branch.store, branch.branch):
            raise branch_not_found(branch.store, branch.branch)
        raise InvalidRequest(
            f"The branch {branch.branch!r} was made by another client, so which of its files are main's is unknown: "
            "nothing can be deleted in it.",
            kind="foreign_branch",
            branch=branch.branch,
        )
    return replace(branch, fork_point=pin.snapshot, made_by=branch.main)


def list_branches(main: TableBranch) -> list[Branch]:
    """All branches but main, sorted by name. Cost: 2 LISTs + 1 LIST and 1 GET a branch."""
    branches = []
    for name in branch_names(main.store):
        pin = main.tags.find(fork_pin(name))
        times = [meta.modified_ms for meta in main.store.list(Layout(branch=name).schema_folder)]
        branches.append(
            Branch(name=name, fork_snapshot_id=pin.snapshot.id if pin else None, created_ms=min(times, default=0))
        )
    return branches


def create_branch(main: TableBranch, name: str, *, source: Source) -> Branch:
    """Create a branch that starts from `source` (the file of a snapshot or of a tag).

    Raises `InvalidRequest`: the name breaks the rules of tag names, or is ``main``; `AlreadyExists`: the branch exists;
    `Conflict`: the source expired meanwhile. Cost: 1 pin + 1 COPY a schema + 1 PUT.
    """
    check_branch_name(name)
    if branch_exists(main.store, name):
        raise _exists_error(name)
    snapshot = decode_snapshot(source.body, path=source.path)
    try:
        main.tags.pin_hidden(f"branch.{name}", source=source)  # create-only: of two creators one gets past here
    except AlreadyExists as taken:
        raise AlreadyExists(
            f"The branch {name!r} is being created by another, or its creation was cut short: in the latter case "
            "delete it, then create it again.",
            kind="branch_exists",
            branch=name,
        ) from taken
    layout = Layout(branch=name)
    # Late writers may have left files of an earlier branch of this name.
    _clear(main, name, pin=main.tags.find(fork_pin(name)))
    main.store.put(layout.snapshot(snapshot.id), source.body)
    for meta in main.store.list(Layout().schema_folder):
        schema_id = parse_schema(meta.path)
        if schema_id is not None:
            main.store.put(layout.schema(schema_id), main.store.get(meta.path))
    return Branch(name=name, fork_snapshot_id=snapshot.id, created_ms=main.now_ms())


def delete_branch(main: TableBranch, name: str) -> None:
    """Delete a branch: first its schemas, so that it cannot be opened, then its snapshots, the rest, and its pin.

    Data files that only the branch used become orphans of the table, for `remove_orphan_files`.
    Raises `NotFound`.
    """
    check_branch_name(name)
    pin = main.tags.find(fork_pin(name))
    if not _clear(main, name, pin=pin) and pin is None:
        raise branch_not_found(main.store, name)
    if pin is not None and main.tags.find(fork_pin(name)) == pin:
        mark = Deletable(mark_path(name, pin), 0, f"of the deleted branch {name}")
        Sweeper(main.store, main.environment).delete_all([mark])
        main.tags.unpin_hidden(f"branch.{name}")


def _clear(main: TableBranch, name: str, *, pin: Tag | None) -> bool:
    """Delete everything in a branch's folder, until a listing finds nothing; whether there was anything.

    It ends when the pin is another: the branch was deleted and created again meanwhile.

    Raises `Unavailable` when something cannot be deleted: the pin then stays.
    """
    layout = Layout(branch=name)
    had_files = False
    for _ in range(_CLEAR_TRIES_MAX):
        paths = [meta.path for meta in main.store.list(layout.root.removesuffix("/"))]
        if not paths:
            return had_files
        if had_files and main.tags.find(fork_pin(name)) != pin:
            return had_files
        had_files = True
        hide = tuple(path for path in paths if parse_schema(path) is not None)
        rest = tuple(Deletable(path, 0, f"of the deleted branch {name}") for path in paths if path not in set(hide))
        report = Sweeper(main.store, main.environment).sweep(CollectionPlan(store="", hide=hide, doomed=rest))
        if report.warnings:
            raise Unavailable(f"The branch {name!r} is not deleted yet, try again: {report.warnings[0]}")
    raise Unavailable(
        f"The branch {name!r} is not deleted yet: its folder was cleared {_CLEAR_TRIES_MAX} times, and something "
        "was written into it each time. Stop its writers and delete it again."
    )


def branch_of_branch(name: str) -> InvalidRequest:
    """The error for a fork of a branch."""
    return InvalidRequest(
        f"A branch cannot be forked again ({name!r} is one): fork from main.", kind="branch_of_branch", branch=name
    )


def branch_not_found(store: ObjectStore, name: str) -> NotFound:
    """The error for a missing branch, with the names of those that exist."""
    names = branch_names(store)
    choices = f"it has {', '.join(names)}" if names else "it has none but main"
    return NotFound(f"The table has no branch {name!r}: {choices}.", kind="branch_not_found", branch=name)


def check_branch_name(name: str) -> None:
    """Raise `InvalidRequest` unless `name` may be given to a branch: the rules of tag names, and not ``main``."""
    if name == MAIN_BRANCH:
        raise InvalidRequest(
            f"{name!r} is the name of the table's main branch: choose another name.", kind="invalid_branch_name"
        )
    check_tag_name(name, of="branch")


def _exists_error(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"The branch {name!r} exists already: delete it or choose another name.", kind="branch_exists", branch=name
    )
