"""Branches of a table: forks with their own snapshots, schemas and tags, which share main's data files.

Owns: opening, creating, listing and deleting ``branch/branch-<name>/{schema,snapshot,tag}``, and the hidden pin that a
branch keeps in main.

Invariants:
- A branch starts as a copy of one snapshot (its *fork snapshot*, with main's id and lists) and every schema up to the
  newest.
- Data files, manifests and index files of all branches lie in main's folders. While a branch exists, the hidden tag
  ``lakebed.pin.branch.<name>`` in main holds its fork snapshot, so main's collectors keep what the branch shares.
- A branch's own expiry never deletes a file of its fork snapshot: those are main's.
- The pin is put, create-only, before the branch appears, and removed after the branch is gone. A crash can leave a pin
  without a branch, never a branch without its pin. `delete_branch` of the incomplete branch removes such a pin.
- A branch exists while it has a schema: schemas are put last and deleted first. A writer looks for its schema after
  its commit (`SnapshotLog.append`), and a deletion lists the folder after it has deleted the schemas. One of the two
  sees the other, so no commit is acknowledged to a branch that is gone.
- A deletion removes only the pin that it read when it began. So a delayed deletion does not remove the pin of a new
  branch of the same name.
- A rename gives the branch another folder and another pin (`renames`). An interrupted rename is finished by the next
  process that opens, lists, creates, deletes or renames a branch, or that collects.
- A branch that was published (`fast_forward`) has a mark in main until it is deleted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment
from lakebed.table.branch.branch_folder import (
    branch_exists,
    branch_names,
    branch_not_found,
    clear_branch,
    delete_files,
    fork_pin,
    has_pin,
    mark_path,
)
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.renames import (
    claim,
    finish_rename,
    finish_renames,
    read_created_ms,
    release_name,
    take_name,
    was_renamed,
)
from lakebed.table.branch.tags import Source, check_tag_name
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.model.layout import MAIN_BRANCH, Layout, parse_schema
from lakebed.table.model.model import TableSchema
from lakebed.table.schema.schema_log import SchemaLog
from lakebed.texts import did_you_mean


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch and where it started."""

    name: str
    fork_snapshot_id: int | None
    """None for a branch of another client that left no pin."""
    created_ms: int
    """When the branch was created, Unix ms, UTC, by the store's clock. A rename does not change it."""


def open_branch(store: ObjectStore, *, name: str, branch: str | None, environment: Environment) -> TableBranch:
    """The context of a branch (None is main) with its newest schema. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
    schemas = SchemaLog(store, Layout(branch=None if branch == MAIN_BRANCH else branch))
    if schemas.latest() is None:
        subject, hint = f"table {name!r}", ""
        if branch:
            main = open_branch(store, name=name, branch=None, environment=environment)
            if finish_renames(main) and schemas.latest() is not None:
                return TableBranch.of(store, name=name, schemas=schemas, branch=branch, environment=environment)
            subject, hint = f"branch {branch!r} of table {name!r}", did_you_mean(branch, branch_names(store))
        raise NotFound(
            f"There is no {subject} at {store.root_url}.{hint}",
            kind="table_not_found",
            table=name,
            branch=branch,
        )
    return TableBranch.of(store, name=name, schemas=schemas, branch=branch, environment=environment)


def reopen_branch(
    store: ObjectStore, *, name: str, schema: TableSchema, branch: str | None, environment: Environment
) -> TableBranch:
    """The context of a branch that was opened before, with the schema that was the newest then. Cost: no request."""
    schemas = SchemaLog(store, Layout(branch=branch), newest=schema)
    return TableBranch.of(store, name=name, schemas=schemas, branch=branch, environment=environment)


def create_main(store: ObjectStore, *, name: str, schema: TableSchema, environment: Environment) -> TableBranch:
    """Create a table by its first schema; see `Table.create`.

    Raises `AlreadyExists`. Cost: 1 LIST + 1 PUT.
    """
    log = SchemaLog(store, Layout())
    error = AlreadyExists(
        f"There is a table at {store.root_url} already: open it, or create {name!r} elsewhere.",
        kind="table_exists",
        table=name,
    )
    if log.ids():
        raise error
    try:
        log.store_next(schema)
    except Conflict as faster:
        raise error from faster
    return TableBranch.of(store, name=name, schemas=log, environment=environment)


def every_branch(branch: TableBranch) -> list[TableBranch]:
    """Main and every branch of the table, each with its own newest schema. Does not look up fork snapshots.

    Cost: as `branch_names`, and 1 LIST + 1 GET a branch.
    """
    main = branch.main
    if branch.branch is not None:
        main.refresh()
    branches = [main]
    for name in branch_names(branch.store):
        other_branch = main.of_branch(name)
        with suppress(NotFound):  # deleted since it was listed
            other_branch.refresh()
            branches.append(other_branch)
    return branches


def list_branches(main: TableBranch) -> list[Branch]:
    """All branches but main, sorted by name. Cost: 3 LISTs + 1 LIST and 1 GET a branch."""
    finish_renames(main)
    return [_load_branch(main, name) for name in branch_names(main.store)]


def create_branch(main: TableBranch, name: str, *, source: Source) -> Branch:
    """Create a branch that starts from `source` (the file of a snapshot or of a tag).

    Raises `InvalidRequest`: the name breaks the rules of tag names, or is ``main``; `AlreadyExists`: the branch exists;
    `Conflict`: the source expired meanwhile. Cost: 1 pin + 1 COPY a schema + 1 PUT.
    """
    check_branch_name(name)
    if branch_exists(main.store, name):
        raise _exists_error(name)
    if finish_renames(main) and branch_exists(main.store, name):
        raise _exists_error(name)
    snapshot = decode_snapshot(source.body, path=source.path)
    try:
        main.tags.pin_hidden(f"branch.{name}", source=source)  # create-only: of two creators only one gets past here
    except AlreadyExists as error:
        raise AlreadyExists(
            f"The branch {name!r} is being created by another process, or its creation was interrupted: in the latter "
            "case delete it, then create it again.",
            kind="branch_exists",
            branch=name,
        ) from error
    layout = Layout(branch=name)
    # Late writers may have left files of an earlier branch of this name.
    clear_branch(main, name, pin=main.tags.find(fork_pin(name)))
    main.store.put(layout.snapshot(snapshot.id), source.body)
    for meta in main.store.list(Layout().schema_folder):
        schema_id = parse_schema(meta.path)
        if schema_id is not None:
            main.store.put(layout.schema(schema_id), main.store.get(meta.path))
    return Branch(name=name, fork_snapshot_id=snapshot.id, created_ms=main.now_ms())


@freeing_space()
def delete_branch(main: TableBranch, name: str) -> None:
    """Delete a branch. Its schemas go first, so that it cannot be opened; then its snapshots, the rest, and its pin.

    Data files that only the branch used become orphans of the table, for `remove_orphan_files`. Raises `NotFound`;
    `Conflict`: finishing an interrupted rename has just created a branch of this name.
    """
    check_branch_name(name)
    if any(rename.new == name for rename in finish_renames(main)):
        raise Conflict(
            f"The branch {name!r} was not deleted: an unfinished rename has just given it this name. Delete it again "
            "if you want to delete it.",
            kind="branch_renamed",
            branch=name,
        )
    pin = main.tags.find(fork_pin(name))
    decision = None if pin is None else claim(main, name, pin, to=None)
    if decision is not None and decision.new is not None:
        finish_rename(main, decision)
        raise branch_not_found(main.store, name)
    if not clear_branch(main, name, pin=pin) and pin is None:
        raise branch_not_found(main.store, name)
    if decision is not None and has_pin(main, name, pin):
        assert pin is not None
        mark = Deletable(mark_path(name, pin), 0, f"of the deleted branch {name}")
        Sweeper(main.store).delete_all([mark])
        if has_pin(main, name, pin):
            paths = [main.layout.tag(fork_pin(name)), decision.mark]
            delete_files(main.store, paths, reason=f"of the deleted branch {name}")


@freeing_space()
def rename_branch(main: TableBranch, old: str, new: str) -> Branch:
    """Rename a branch; see `Table.rename_branch`."""
    if old == MAIN_BRANCH:
        raise InvalidRequest("The main branch cannot be renamed: name another branch.", kind="invalid_branch_name")
    check_branch_name(old)
    check_branch_name(new)
    finish_renames(main)
    pin = main.tags.find(fork_pin(old))
    if not branch_exists(main.store, old):
        earlier = main.tags.find(fork_pin(new)) if pin is None else None
        if earlier is None or not was_renamed(earlier, old):  # else it is repeated, after a lost reply
            raise branch_not_found(main.store, old)
        return _load_branch(main, new)
    if pin is None:
        raise InvalidRequest(
            f"The branch {old!r} was made by another client, so which of its files are main's is unknown: it cannot be "
            "renamed here.",
            kind="foreign_branch",
            branch=old,
        )
    if branch_exists(main.store, new):
        raise _exists_error(new)
    take_name(main, old, pin, new)
    decision = claim(main, old, pin, to=new)
    if decision.new != new:
        release_name(main, old, pin, new)
    if decision.new is None and branch_exists(main.store, old):
        raise Conflict(
            f"The branch {old!r} was not renamed: it is being deleted, or its deletion was interrupted. In the latter "
            "case delete it again.",
            kind="branch_deleting",
            branch=old,
        )
    if decision.new is not None:
        finish_rename(main, decision)
    if decision.new != new or not branch_exists(main.store, new):
        raise branch_not_found(main.store, old)
    return _load_branch(main, new)


def _load_branch(main: TableBranch, name: str) -> Branch:
    pin = main.tags.find(fork_pin(name))
    fork_snapshot_id = pin.snapshot.id if pin else None
    return Branch(name=name, fork_snapshot_id=fork_snapshot_id, created_ms=read_created_ms(main, name, pin))


def branch_of_branch(name: str) -> InvalidRequest:
    """The error for a fork of a branch that is not main."""
    return InvalidRequest(
        f"A branch cannot have branches ({name!r} is one): create a branch of main.",
        kind="branch_of_branch",
        branch=name,
    )


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
