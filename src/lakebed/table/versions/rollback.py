"""Roll back: `rollback_to` (later versions are deleted) and `rollback_to_as_latest` (history is kept).

Owns: both verbs up to the commit. `recovery.finish_rollback` does the rest; after a crash, a later verb calls it. The
order:

1. Store the intent.
2. Pin the target with a hidden tag, by the protocol of `Tags.create`, so that expiry and rollback see each other.
3. Commit latest + 1, equal to the target.
4. Remove the pin, and the later snapshots and tags.

A crash before the commit changes nothing that a reader sees. After the commit, the target is the newest version, and
the next verb completes the rest.

Invariants:
- The commit's delta is exactly the difference to the newest snapshot; restored files carry their first commit snapshot.
  Its base is written anew, so that no file is both deleted and added in it: clients that read manifests as sets agree.
- Before each try the mark of its id is written: from then on every judgement knows that lives may have holes.
- Ids are never used again; gaps between them are legal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from msgspec import structs

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.ids import new_uuid
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan
from lakebed.table.branch.branch_folder import confirm_branch, with_fork_point
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import HIDDEN_PREFIX, is_hidden
from lakebed.table.branch.travel import Resolved, Time, resolve
from lakebed.table.branch.unfinished import Deletion, HiddenTag, RollbackIntent, store_deletion
from lakebed.table.codec.manifest import IDENTITY, NO_ENTRIES, as_deletes
from lakebed.table.codec.row_codes import row_codes
from lakebed.table.collect.deletion import ProgressCall, forget, open_for_deletion, tag_now
from lakebed.table.collect.expire import preview
from lakebed.table.collect.live_versions import LiveVersions, mark_restored, read_live_versions
from lakebed.table.collect.recovery import finish_rollback, recover
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.commit.commit import CommitRequest, Derive, StagedChange, commit
from lakebed.table.model.model import ROLLED_BACK_TO, Snapshot

_BRANCH_PIN = f"{HIDDEN_PREFIX}branch."


@freeing_space()
def roll_back(
    branch: TableBranch,
    version: int | str | None,
    *,
    timestamp_ms: Time | None = None,
    keeps_history: bool,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
    only_from: int | None = None,
) -> Snapshot:
    """Make a version the newest again.

    Args:
        version, timestamp_ms: the version to go back to, as in `travel.resolve`; exactly one is given.
        keeps_history: keep later snapshots and tags. Otherwise they, and the files that only they needed, are deleted.
        dry_run: only check that it is possible.
        only_from: the id that the newest snapshot must have; None: any.

    Returns the new snapshot; the target itself when it is the newest already, or with `dry_run`.

    Raises:
        NotFound: no such version.
        InvalidRequest: the target is another branch, or a branch started after it (unless history is kept).
        Conflict: the target expired meanwhile, or (kind ``moved_on``) the newest snapshot is not `only_from`; nothing
            was changed.
    Cost: the manifests of both versions, 1 commit; without history, the lists and deltas of the later snapshots.
    """
    target = _target(branch, version, timestamp_ms)
    branch = open_for_deletion(branch)
    if dry_run:
        if not keeps_history:
            _plan(branch, target.snapshot)
        return target.snapshot
    return _roll_back(branch, target, keeps_history=keeps_history, progress=progress, only_from=only_from)


def _roll_back(
    branch: TableBranch,
    resolved: Resolved,
    *,
    keeps_history: bool,
    progress: ProgressCall | None,
    only_from: int | None,
) -> Snapshot:
    target, tag = resolved.snapshot, resolved.tag
    recover(branch)
    versions = read_live_versions(branch)
    newest = branch.snapshots.latest()
    if newest is not None and only_from is not None and newest.id != only_from:
        raise _moved_on(newest, only_from)
    if newest is None:
        confirm_branch(branch)  # it may have been renamed, and its folder emptied
    if newest is None or newest.id == target.id:
        return target
    if not keeps_history:
        _check_branches(versions, target)
    deletion = _intent(branch, versions, target, newest=newest, keeps_history=keeps_history)
    intent = deletion.rollback
    assert intent is not None
    store_deletion(branch.store, branch.layout, deletion)
    _pin(branch, deletion, intent, target, tag)
    request = CommitRequest(
        kind="OVERWRITE",
        derive=_derive(branch, target, only_from=only_from),
        options={"commit_user": intent.commit_user, "properties": {ROLLED_BACK_TO: str(target.id)}},
    )
    try:
        snapshot = commit(branch, request)
    except Conflict:
        # The commit certainly failed: delete the pin like a tag, and forget the intent.
        finish_rollback(branch, structs.replace(deletion, rollback=structs.replace(intent, keeps_history=True)), newest)
        raise
    finish_rollback(branch, deletion, snapshot, progress=progress)
    return snapshot


def plan_rollback(
    branch: TableBranch, version: int | str | None, *, timestamp_ms: Time | None = None
) -> CollectionPlan:
    """What `roll_back` without history would hide and delete. Deletes nothing. Raises as `roll_back`."""
    branch.refresh()
    return _plan(with_fork_point(branch), _target(branch, version, timestamp_ms).snapshot)


def _target(branch: TableBranch, version: int | str | None, timestamp_ms: Time | None) -> Resolved:
    """The snapshot to go back to, and the tag that holds it when its snapshot may have expired."""
    if version is None and timestamp_ms is None:
        raise InvalidRequest("A rollback needs its target: give a version or a timestamp.", kind="no_version")
    target = resolve(branch, version=version, timestamp=timestamp_ms)
    if target.branch is not None:
        raise InvalidRequest(
            f"{version!r} is a branch: go back to a snapshot or a tag of this branch.", kind="rollback_to_branch"
        )
    return target


def _plan(branch: TableBranch, target: Snapshot) -> CollectionPlan:
    """What `roll_back` without history would hide and delete now. Deletes nothing. Raises `InvalidRequest`."""
    versions = read_live_versions(branch)
    newest = branch.snapshots.latest()
    if newest is None or newest.id == target.id:
        return CollectionPlan(branch.name, (), ())
    _check_branches(versions, target)
    removed_snapshots = [
        branch.snapshots.snapshot(int(snapshot_id))
        for snapshot_id in versions.snapshot_ids[versions.snapshot_ids > target.id]
    ]
    earlier = versions.snapshot_ids[versions.snapshot_ids <= target.id]
    before = branch.snapshots.snapshot(int(earlier[-1])) if len(earlier) else None
    referenced = ReferencedFiles(branch)
    # Treated as if the target had been committed again, after a gap, so that it is compared by its files.
    survivor = replace(target, id=newest.id + 2)
    deletion = _intent(branch, versions, target, newest=newest, keeps_history=False)
    deletion = structs.replace(
        deletion, snapshot_ids=tuple(snapshot.id for snapshot in removed_snapshots), rollback=None
    )
    candidates = referenced.candidates_of_walk(removed_snapshots, survivor, before=before)
    report = preview(branch, structs.replace(deletion, candidates=candidates), referenced)
    return report.plan or CollectionPlan(branch.name, (), ())


def _intent(
    branch: TableBranch, versions: LiveVersions, target: Snapshot, *, newest: Snapshot, keeps_history: bool
) -> Deletion:
    uuid = new_uuid(branch.environment.rng)
    tags: list[HiddenTag] = []
    for entry in versions.tags if not keeps_history else ():
        if entry.snapshot_id > target.id and not is_hidden(entry.name):
            state = tag_now(branch, entry.name)
            tags += [state[0]] if state is not None else []
    return Deletion(
        kind="rollback",
        id=uuid,
        walk_end=newest.id,
        tags=tuple(tags),
        rollback=RollbackIntent(
            target_id=target.id,
            commit_user=new_uuid(branch.environment.rng),
            after_id=newest.id,
            pin=f"rollback.{uuid}",
            keeps_history=keeps_history,
        ),
    )


def _check_branches(versions: LiveVersions, target: Snapshot) -> None:
    for entry in versions.tags:
        if entry.name.startswith(_BRANCH_PIN) and entry.snapshot_id > target.id:
            branch = entry.name.removeprefix(_BRANCH_PIN)
            raise InvalidRequest(
                f"The branch {branch!r} started from snapshot {entry.snapshot_id}, which rolling back to {target.id} "
                "would remove: delete the branch first, or keep history (rollback_to_as_latest, --as-latest).",
                kind="below_branch",
                branch=branch,
                snapshot=target.id,
            )


def _pin(branch: TableBranch, deletion: Deletion, intent: RollbackIntent, target: Snapshot, tag: str | None) -> None:
    try:
        pin = branch.tags.pin_hidden(
            intent.pin, source=branch.tags.source(snapshot_id=None if tag else target.id, tag=tag)
        )
    except (Conflict, NotFound):
        forget(branch, deletion)
        raise
    if pin.snapshot.id != target.id:
        finish_rollback(branch, structs.replace(deletion, rollback=structs.replace(intent, keeps_history=True)), target)
        raise Conflict(
            f"The tag {tag!r} was pointed at another snapshot meanwhile: nothing was changed, try again.",
            kind="tag_replaced",
            tag=tag,
        )


def _moved_on(newest: Snapshot | None, only_from: int) -> Conflict:
    return Conflict(
        f"The rollback is only from snapshot {only_from}, and the newest is now "
        f"{'none' if newest is None else newest.id}: nothing was changed.",
        kind="moved_on",
        newest=None if newest is None else newest.id,
        only_from=only_from,
    )


def _derive(branch: TableBranch, target: Snapshot, *, only_from: int | None) -> Derive:
    """Return a function that computes, at each try, the difference between the newest snapshot and the target."""

    def derive(head: Snapshot | None) -> StagedChange:
        if only_from is not None and (head is None or head.id != only_from):
            raise _moved_on(head, only_from)
        target_entries = branch.manifests.live_entries(target)
        live_entries = NO_ENTRIES if head is None else branch.manifests.live_entries(head)
        mark_restored(branch, 1 if head is None else head.id + 1)
        removed_entries = _without(live_entries, target_entries)
        restored_entries = _without(target_entries, live_entries)
        return StagedChange(
            entries=pa.concat_tables([as_deletes(removed_entries), restored_entries]),
            base=head,
            keeps=target,
            restored=True,
            restores=target,
            fold_base=True,
        )

    return derive


def _without(entries: pa.Table, other_entries: pa.Table) -> pa.Table:
    """Entries whose file, at its level, is not among the others; order is kept."""
    entry_codes, other_codes = row_codes(IDENTITY, entries, other_entries)
    return entries.filter(pa.array(~np.isin(entry_codes, other_codes)))
