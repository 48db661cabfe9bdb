"""The parts of a branch on the store: its folder, its pin in main, and the mark that main keeps of a published branch.

Owns: whether a branch exists, the identity of a branch, and clearing its folder.

Invariants:
- A branch exists while it has a schema.
- The random id of its pin distinguishes a branch from an earlier or later branch of the same name (`branch_id`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from lakebed.errors import Conflict, InvalidRequest, NotFound, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import HIDDEN_PREFIX, TAG_ID
from lakebed.table.codec.snapshot_json import decode_tag
from lakebed.table.model.layout import Layout, parse_branch, parse_schema
from lakebed.table.model.model import Tag

PUBLISHED_FOLDER = "lakebed/published"
"""Folder of the marks of branches that were published. DO NOT CHANGE: on disk."""

_CLEAR_TRIES_MAX = 100


def fork_pin(name: str) -> str:
    """The full name of the hidden tag in main that holds a branch's fork snapshot."""
    return f"{HIDDEN_PREFIX}branch.{name}"


def branch_id(pin: Tag) -> str:
    """The id of the branch that a pin belongs to. Another branch of the same name has another id."""
    return pin.snapshot.properties.get(TAG_ID, "0")


def find_branch_id(branch: TableBranch) -> str | None:
    """The id of the branch that has this name now; None for main, and for a branch without a pin.

    Cost: 1 GET; none for main.
    """
    if branch.branch is None:
        return None
    path = Layout().tag(fork_pin(branch.branch))
    try:
        return branch_id(decode_tag(branch.store.get(path), name=fork_pin(branch.branch), path=path))
    except NotFound:
        return None


def branch_replaced(name: str | None) -> Conflict:
    """The error for a branch that is no longer the one in which the verb began."""
    return Conflict(
        f"The branch {name!r} was deleted or renamed, and another one of the name was created, while a change of it "
        "was made. Nothing was changed: open it again and redo the change.",
        kind="branch_replaced",
        branch=name,
    )


def mark_path(name: str, pin: Tag) -> str:
    """The path of the mark in main of a published branch. Main's collectors then read the branch's versions too.

    Each branch has its own mark, named after its pin. So a delayed deletion does not delete the mark of a later branch.
    """
    return f"{PUBLISHED_FOLDER}/{name}/{branch_id(pin)}"


def branch_names(store: ObjectStore) -> list[str]:
    """Names of all branches but main, sorted. Cost: 1 LIST, and 1 LIST a branch."""
    folders = store.list_with_delimiter(Layout().branch_folder).folders
    names = (name for folder in folders if (name := parse_branch(folder)) is not None)
    return sorted(name for name in names if branch_exists(store, name))


def branch_exists(store: ObjectStore, name: str) -> bool:
    """Whether the branch exists. Cost: 1 LIST."""
    metas = store.list_with_delimiter(Layout(branch=name).schema_folder).objects
    return any(parse_schema(meta.path) is not None for meta in metas)


def with_fork_point(branch: TableBranch) -> TableBranch:
    """Return the branch with its fork snapshot, which every deletion in it must know; main is returned unchanged.

    Raises `NotFound`: the branch is gone; `InvalidRequest`: another client made the branch and left no pin in main, so
    which files are shared is unknown. Cost: 1 GET and that of `TableBranch.main`; no request for main.
    """
    if branch.branch is None:
        return branch
    pin = branch.main.tags.find(fork_pin(branch.branch))
    if pin is None:
        if not branch_exists(branch.store, branch.branch):
            raise branch_not_found(branch.store, branch.branch)
        raise InvalidRequest(
            f"Another client made the branch {branch.branch!r}, so it is unknown which of its files main needs: "
            "nothing can be deleted in it.",
            kind="foreign_branch",
            branch=branch.branch,
        )
    return replace(branch, fork_point=pin.snapshot, made_by=branch.main)


def confirm_branch(branch: TableBranch) -> None:
    """Raise unless the branch that a deletion opened still exists and is the same branch. Main always passes.

    A verb that deletes files calls this after it has read the live versions. If the branch was renamed or deleted
    meanwhile, that list may be incomplete. Raises `NotFound`, `Conflict`. Cost: 1 GET and 1 LIST; none for main.
    """
    if branch.branch is None or branch.fork_point is None:
        return
    pin = branch.main.tags.find(fork_pin(branch.branch))
    if pin is None or not branch_exists(branch.store, branch.branch):
        raise branch_not_found(branch.store, branch.branch)
    if pin.snapshot != branch.fork_point:
        raise branch_replaced(branch.branch)


def branch_not_found(store: ObjectStore, name: str) -> NotFound:
    """The error for a missing branch, with the names of those that exist."""
    names = branch_names(store)
    choices = f"it has {', '.join(names)}" if names else "it has none but main"
    return NotFound(f"The table has no branch {name!r}: {choices}.", kind="branch_not_found", branch=name)


def delete_files(store: ObjectStore, paths: Iterable[str], *, reason: str) -> None:
    """Delete small files of a branch. Raises `Unavailable`. Cost: 1 DELETE a thousand files."""
    sweep = Sweeper(store).delete_all(Deletable(path, 0, reason) for path in paths)
    if sweep.errors:
        raise Unavailable(f"Not all files of a branch were deleted, try again: {sweep.errors[0]}")


def has_pin(main: TableBranch, name: str, pin: Tag | None) -> bool:
    """Whether the branch of this name still has this pin, and so is the same branch. Cost: 1 GET."""
    return main.tags.find(fork_pin(name)) == pin


def clear_branch(main: TableBranch, name: str, *, pin: Tag | None) -> bool:
    """Delete everything in a branch's folder, until a listing is empty. Return whether there was anything.

    Before each request it checks the pin, and stops when the pin has changed: then the branch was deleted and created
    again meanwhile.

    Raises `Unavailable` when something cannot be deleted: the pin then stays.
    """
    layout = Layout(branch=name)
    had_files = False
    is_current = partial(has_pin, main, name, pin)
    for _ in range(_CLEAR_TRIES_MAX):
        paths = [meta.path for meta in main.store.list(layout.root.removesuffix("/"))]
        if not paths:
            return had_files
        if not is_current():
            return had_files
        had_files = True
        hide = tuple(path for path in paths if parse_schema(path) is not None)
        deletables = tuple(
            Deletable(path, 0, f"of the deleted branch {name}") for path in paths if path not in set(hide)
        )
        plan = CollectionPlan(store="", hide=hide, doomed=deletables)
        report = Sweeper(main.store).sweep(plan, is_current=is_current)
        if report.warnings:
            raise Unavailable(f"The branch {name!r} is not deleted yet, try again: {report.warnings[0]}")
    raise Unavailable(
        f"The branch {name!r} is not deleted yet: its folder was cleared {_CLEAR_TRIES_MAX} times, and something "
        "was written into it each time. Stop its writers and delete it again."
    )
