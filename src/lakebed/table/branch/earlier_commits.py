"""Recognise a commit that was made before, by its pair of user and identifier. Reads snapshots only.

Invariant: a pair is known while the newest version contains what was committed with it. A rollback forgets the pairs of
the versions that it takes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import InheritedState, is_ours, load_inherited
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, Snapshot


def find_commit(branch: TableBranch, commit_user: str, commit_identifier: int) -> Snapshot | None:
    """The snapshot that was committed with this pair, or the newest one if that has expired; None: not committed yet.

    For callers for which preparing a commit again is expensive. Cost: 1 probe + 1 GET (newest snapshot).
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
    last_commit = inherited.users.get(commit_user)
    if (
        last_commit is None
        or commit_identifier == BATCH_COMMIT_IDENTIFIER
        or commit_identifier > last_commit.identifier
    ):
        return None
    if commit_identifier == last_commit.identifier:
        return branch.snapshots.find(last_commit.snapshot_id) or head
    for snapshot in newest_first(branch, head):
        if (snapshot.commit_user, snapshot.commit_identifier) == (commit_user, commit_identifier):
            return snapshot
    return head


def load_restored(branch: TableBranch, target: Snapshot, head: InheritedState) -> InheritedState:
    """The state of a version that becomes the newest again; `head` is the state of the newest version.

    If no snapshot of lakebed up to that version is left, return the part of `head` that is not newer than the version:
    a pair that was forgotten without need could be committed twice.
    Cost: no further GET when lakebed wrote the version; else as `load_inherited`.
    """
    if any(is_ours(snapshot) for snapshot in newest_first(branch, target)):
        return load_inherited(newest_first(branch, target))
    users = {user: commit for user, commit in head.users.items() if commit.snapshot_id <= target.id}
    return replace(head, users=users).after(target)


def newest_first(branch: TableBranch, head: Snapshot) -> Iterator[Snapshot]:
    """A snapshot and those before it, newest first, lazily."""
    yield head
    older = [snapshot_id for snapshot_id in branch.snapshots.ids() if snapshot_id < head.id]
    yield from branch.snapshots.walk(reversed(older))
