"""Recognise a commit that was made before, by its pair of user and identifier. Reads snapshots alone."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import InheritedState, load_inherited
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, Snapshot


def find_commit(branch: TableBranch, commit_user: str, commit_identifier: int) -> Snapshot | None:
    """The snapshot that a pair was committed with, or the newest when that one expired; None: not committed yet.

    For callers to whom preparing a commit again is expensive. Cost: 1 probe + 1 GET (newest snapshot).
    """
    head = branch.snapshots.latest()
    if head is None:
        return None
    inherited = load_inherited(newest_first(branch, head))
    return find_earlier(branch, commit_user, commit_identifier, inherited, head)


def find_earlier(
    branch: TableBranch, commit_user: str, commit_identifier: int, inherited: InheritedState, head: Snapshot
) -> Snapshot | None:
    """As `find_commit`, given the newest snapshot and the state that it inherited."""
    known = inherited.users.get(commit_user)
    if known is None or commit_identifier == BATCH_COMMIT_IDENTIFIER or commit_identifier > known.identifier:
        return None
    if commit_identifier == known.identifier:
        return branch.snapshots.find(known.snapshot_id) or head
    for snapshot in newest_first(branch, head):
        if (snapshot.commit_user, snapshot.commit_identifier) == (commit_user, commit_identifier):
            return snapshot
    return head


def newest_first(branch: TableBranch, head: Snapshot) -> Iterator[Snapshot]:
    """A snapshot and those before it, newest first, lazily."""
    yield head
    older = [snapshot_id for snapshot_id in branch.snapshots.ids() if snapshot_id < head.id]
    yield from branch.snapshots.walk(reversed(older))
