"""Finish the deletions that a crash left: every deleting verb begins with it.

Owns: `recover`, and `finish_rollback`, the second half of a rollback, which the verb itself and recovery share. It also
withdraws snapshots that were put late, below the boundary, after their writer died (`lineage`).

Invariants:
- Recovery makes no new decision.
- A stored expiry is carried out, except for snapshots that a consumer claimed meanwhile.
- A tag is deleted only while its file is unchanged.
- A rollback is completed if and only if its commit exists. A rollback without a commit is left to its owner; the
  collection of orphans forgets it by age.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakebed.errors import Corruption, NotFound, UnsupportedFormat
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionReport
from lakebed.table.branch.candidates import CANDIDATES
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.branch.tags import HIDDEN_PREFIX
from lakebed.table.branch.unfinished import Deletion, HiddenTag, RollbackIntent, load_deletions, store_deletion
from lakebed.table.collect.deletion import ProgressCall, carry_out, forget, tag_now
from lakebed.table.collect.lineage import expiry_limit, withdraw_late
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.model import Snapshot

_TRIES_MAX = 8


@freeing_space()
def recover(branch: TableBranch) -> list[CollectionReport]:
    """Finish the unfinished deletions of a branch.

    Returns:
        One report each, with a warning for what could not be finished.
    Cost: 3 LISTs + 1 GET when there is nothing to finish.
    """
    reports = withdraw_late(branch)
    deletions = list(load_deletions(branch.store, branch.layout))
    begun_ids = {deletion.id for deletion in deletions if isinstance(deletion, Deletion)}
    for deletion in deletions:
        if isinstance(deletion, Corruption | UnsupportedFormat):
            reports.append(_warning(branch, f"an unfinished deletion was skipped: {deletion}"))
        elif deletion.rollback is not None:
            if f"{deletion.id}.files" in begun_ids:  # its candidates are stored as a deletion of their own
                forget(branch, deletion)
                continue
            commit = _commit_of(branch, deletion.rollback)
            if commit is not None:
                reports += finish_rollback(branch, deletion, commit)
        elif deletion.kind == "expire":
            reports.append(_finish_expiry(branch, deletion))
        else:
            reports.append(carry_out(branch, deletion))
    return reports


def _finish_expiry(branch: TableBranch, deletion: Deletion) -> CollectionReport:
    try:
        limit_id = expiry_limit(branch)
    except Corruption as error:
        return _warning(branch, f"an unfinished expiry waits: {error}")
    ids = tuple(snapshot_id for snapshot_id in deletion.snapshot_ids if limit_id is None or snapshot_id < limit_id)
    return carry_out(branch, replace(deletion, snapshot_ids=ids))


def _commit_of(branch: TableBranch, intent: RollbackIntent) -> Snapshot | None:
    later = [snapshot_id for snapshot_id in branch.snapshots.ids() if snapshot_id > intent.after_id]
    return next(
        (snapshot for snapshot in branch.snapshots.walk(later) if snapshot.commit_user == intent.commit_user), None
    )


def finish_rollback(
    branch: TableBranch, deletion: Deletion, commit: Snapshot, *, progress: ProgressCall | None = None
) -> list[CollectionReport]:
    """After a rollback's commit: delete its pin and, unless history is kept, what came after the target.

    Tags are deleted first, so that the files of later snapshots are judged without them.
    """
    intent = deletion.rollback
    assert intent is not None
    referenced = ReferencedFiles(branch)
    steps = [_tags_step(branch, deletion, intent, commit)]
    warnings: list[CollectionReport] = []
    if not intent.keeps_history:
        step, warning = _files_step(branch, deletion, intent, commit, referenced)
        steps.append(step)
        warnings = [_warning(branch, warning)] if warning else []
    for step in steps:
        store_deletion(branch.store, branch.layout, step)
    forget(branch, deletion)
    return [*(carry_out(branch, step, referenced=referenced, progress=progress) for step in steps), *warnings]


def _tags_step(branch: TableBranch, deletion: Deletion, intent: RollbackIntent, commit: Snapshot) -> Deletion:
    going = {tag.name: tag for tag in deletion.tags} if not intent.keeps_history else {}
    tags: list[HiddenTag] = []
    released: list[str] = []
    for name in (HIDDEN_PREFIX + intent.pin, *going):
        now = tag_now(branch, name)
        if now is not None and going.get(name, now[0]) == now[0]:
            tags.append(now[0])
            released.append(now[1])
    return Deletion(
        kind="delete-tag", id=f"{deletion.id}.tags", walk_end=commit.id, tags=tuple(tags), released=tuple(released)
    )


def _files_step(
    branch: TableBranch, deletion: Deletion, intent: RollbackIntent, commit: Snapshot, referenced: ReferencedFiles
) -> tuple[Deletion, str | None]:
    """The deletion of the snapshots between target and commit, and a warning."""
    warning = None
    candidates = CANDIDATES.empty_table()
    gone_ids: list[int] = []
    for _ in range(_TRIES_MAX):
        ids = branch.snapshots.ids()
        gone_ids = [snapshot_id for snapshot_id in ids if intent.target_id < snapshot_id < commit.id]
        earlier = [snapshot_id for snapshot_id in ids if snapshot_id <= intent.target_id]
        try:
            gone_snapshots = [branch.snapshots.snapshot(snapshot_id) for snapshot_id in gone_ids]
            before = branch.snapshots.snapshot(earlier[-1]) if earlier else None
            candidates = referenced.candidates_of_walk(gone_snapshots, commit, before=before)
            warning = None
        except Unreadable as error:
            warning = f"files of the snapshots rolled back are left to orphan cleaning: {error}"
            if isinstance(error, NotFound):
                continue  # expired meanwhile: look again
        break
    step = Deletion(
        kind="rollback",
        id=f"{deletion.id}.files",
        walk_end=commit.id,
        snapshot_ids=tuple(gone_ids),
        candidates=candidates,
        survivor=commit.base_manifest_list,
    )
    return step, warning


def _warning(branch: TableBranch, sentence: str) -> CollectionReport:
    return CollectionReport(branch.name, 0, 0, 0, {}, (sentence,), False)
