"""Which candidates no version reaches: the interval test of `candidates`, and lists of files where ids cannot decide.

Owns: `judge`. It runs **after** hiding, with the live versions read again, and its results are never stored. The rules
for a candidate that lived in [born, dead):

1. Known birth: some version t with ``born <= t < dead`` needs it (two bisections, nothing read).
2. Unknown birth: the files of the nearest version before its death decide. If a rollback ever restored files, a life
   may have holes, and the files of every version are compared.
3. *Open* candidates (of a deleted tag: alive at it, death unknown) are also compared with the nearest version after the
   tag; with holes, with every version.
4. A rollback at or after the death may have restored the file: the files of live restoring snapshots and of the first
   live snapshot are kept. If a restoring snapshot expired since the candidates were gathered, every version is
   compared.
5. A branch never deletes what its fork snapshot had: born at or before it, or referenced by it. While the fork snapshot
   is unknown, nothing of the branch is deleted.
6. Main never deletes what a version of a branch without a pin references: another client made the branch, so which
   files it shares is unknown. The same holds for a branch that was published: main has files of it.
7. A changelog that another client kept beyond its snapshot (``changelog/changelog-<id>``) keeps its own files.
8. Candidates of a walk that is no longer part of the branch are compared with every version.
9. An unreadable version keeps everything it might need; the judgement is then not `complete`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.branch.branch_folder import PUBLISHED_FOLDER, fork_pin
from lakebed.table.branch.candidates import (
    ROLES,
    UNKNOWN,
    BoolArray,
    IntArray,
    Role,
    find_needed_files,
    is_named,
    nearest_earlier,
    nearest_later,
)
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.collect.live_versions import LiveVersions, read_live_versions
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.layout import parse_branch, parse_changelog
from lakebed.table.model.model import Snapshot

_CHANGELOG_ROLES = (Role.CHANGELOG, Role.CHANGELOG_MANIFEST, Role.CHANGELOG_LIST)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which of some candidates may be deleted now."""

    deletable: pa.Table
    """`candidates.CANDIDATES` that nothing needs."""
    kept: dict[str, int]
    """Count of the kept candidates, by reason."""
    warnings: tuple[str, ...]
    complete: bool
    """False: something was unreadable, and candidates were kept only for that reason; judge them again later."""


@dataclass(slots=True)
class _Case:
    """The state of one judgement."""

    branch: TableBranch
    versions: LiveVersions
    referenced: ReferencedFiles
    candidates: pa.Table
    needed: BoolArray
    kept: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    complete: bool = True

    def keep(self, which: BoolArray, reason: str) -> None:
        """Mark candidates as needed; only the first reason for each is counted."""
        newly_needed = which & ~self.needed
        count = int(np.count_nonzero(newly_needed))
        if count:
            self.needed |= newly_needed
            self.kept[reason] = self.kept.get(reason, 0) + count

    def keep_named(self, which: BoolArray, snapshot: Snapshot, reason: str, *, added_only: bool = False) -> None:
        """Mark those of the candidates `which` that a version references; all of them when it is unreadable."""
        undecided = which & ~self.needed
        if not undecided.any():
            return
        rows = self.candidates.filter(pa.array(undecided))
        roles = frozenset(pc.unique(rows["role"]).to_pylist())
        try:
            is_match = np.zeros(rows.num_rows, np.bool_)
            if added_only and Role.DATA in roles:
                is_match |= is_named(rows, self.referenced.find_added(snapshot))
                roles -= {Role.DATA}
            if roles:
                is_match |= is_named(rows, self.referenced.of(snapshot, roles))
        except Unreadable as error:
            self.unreadable(undecided, f"version {snapshot.id}", error)
            return
        mask = np.zeros(len(undecided), np.bool_)
        mask[np.flatnonzero(undecided)[is_match]] = True
        self.keep(mask, reason)

    def unreadable(self, which: BoolArray, what: str, error: Exception) -> None:
        """Mark candidates as needed because something that might need them cannot be read."""
        newly_needed = which & ~self.needed
        self.complete = False
        self.warnings.append(
            f"{what} cannot be read, so {int(np.count_nonzero(newly_needed))} files are kept for it: {error}"
        )
        self.keep(newly_needed, "unreadable")


def judge(
    candidates: pa.Table,
    *,
    branch: TableBranch,
    versions: LiveVersions,
    referenced: ReferencedFiles,
    walk_end: int,
    is_open: bool = False,
    is_lost: bool = False,
) -> Judgement:
    """Which candidates nothing needs.

    Args:
        candidates: `candidates.CANDIDATES`.
        versions: read after everything that should be hidden was hidden.
        walk_end: last snapshot of the walk that gathered the candidates; rollbacks up to it are already included.
        is_open: the candidates are what a deleted tag had, and may have lived longer than the tag.
        is_lost: the walk that gathered them is no longer part of the branch (another client may have rolled back
            and used ids again), so no interval can be trusted and every version is compared.

    Cost: 1 LIST for candidates of known birth in a table without rollbacks; see the module's rules for the others.
    """
    case = _Case(branch, versions, referenced, candidates, np.zeros(candidates.num_rows, np.bool_))
    if candidates.num_rows == 0:
        return Judgement(candidates, {}, (), True)
    born = candidates["born"].to_numpy()
    dead = candidates["dead"].to_numpy()
    every_row = np.ones(candidates.num_rows, np.bool_)
    _keep_of_others(case, born)
    is_unknown = born == UNKNOWN
    has_holes = len(versions.restored_ids) > 0
    if is_lost or (is_open and has_holes):
        _keep_every(case, every_row)
    else:
        case.keep(find_needed_files(born, dead, versions.ids) & ~is_unknown, "needed")
        if has_holes:
            _keep_every(case, is_unknown)
            _keep_restored(case, dead, walk_end)
        else:
            _keep_nearest(case, is_unknown, nearest_earlier(dead, versions.ids))
        if is_open:
            _keep_nearest(case, every_row, nearest_later(dead, versions.ids))
    deletable = candidates.filter(pa.array(~case.needed))
    return Judgement(deletable, case.kept, tuple(case.warnings), case.complete)


def judge_each(
    candidates: pa.Table, owners: IntArray, *, branch: TableBranch, versions: LiveVersions, referenced: ReferencedFiles
) -> BoolArray:
    """Which candidates only their own version needs. Each is judged as if that version alone were released.

    Args:
        candidates: `candidates.CANDIDATES` that neither of the versions next to theirs has.
        owners: the version of each, which only one tag holds.

    Cost: 1 LIST in a table without rollbacks; else the files of every version, once.
    """
    case = _Case(branch, versions, referenced, candidates, np.zeros(candidates.num_rows, np.bool_))
    _keep_of_others(case, candidates["born"].to_numpy())
    if len(versions.restored_ids):
        for snapshot_id, added_only in _versions(versions):
            _keep_version(case, owners != snapshot_id, snapshot_id, "needed", added_only=added_only)
    return ~case.needed


def _keep_of_others(case: _Case, born: IntArray) -> None:
    """Keep what other branches and kept changelogs need."""
    every_row = np.ones(len(born), np.bool_)
    if case.branch.branch is None:
        _keep_unpinned(case, every_row)
    elif case.branch.fork_point is not None:
        _keep_forks(case, born, case.branch.fork_point)
    else:
        case.complete = False
        case.warnings.append(f"where the branch {case.branch.branch!r} started is unknown, so its files are kept")
        case.keep(every_row, "of the branch's origin")
    _keep_changelogs(case, born)


def _keep_changelogs(case: _Case, born: IntArray) -> None:
    """Keep files of changelogs that outlive their snapshots. Cost: 1 LIST when there are such candidates."""
    which: BoolArray = pc.is_in(case.candidates["role"], value_set=pa.array(_CHANGELOG_ROLES)).to_numpy()
    if not which.any():
        return
    metas = case.branch.store.list(case.branch.layout.changelog_folder)
    ids = [snapshot_id for meta in metas if (snapshot_id := parse_changelog(meta.path)) is not None]
    case.keep(which & np.isin(born, ids), "of a kept changelog")


def _keep_forks(case: _Case, born: IntArray, fork: Snapshot) -> None:
    case.keep((born != UNKNOWN) & (born <= fork.id), "of the branch's origin")
    case.keep_named(born == UNKNOWN, fork, "of the branch's origin")


def _keep_unpinned(case: _Case, is_kept: BoolArray) -> None:
    """Keep what is referenced by branches without a fork pin, and by branches that were published."""
    pins = {tag.name for tag in case.versions.tags}
    if not case.branch.store.list_with_delimiter(case.branch.layout.branch_folder).folders:
        return
    marks = _list_published_marks(case.branch)
    while True:
        folders = case.branch.store.list_with_delimiter(case.branch.layout.branch_folder).folders
        published = {path.removeprefix(f"{PUBLISHED_FOLDER}/").partition("/")[0] for path in marks}
        names = [name for folder in folders if (name := parse_branch(folder)) is not None]
        _keep_of_branches(case, is_kept, [n for n in names if n in published or fork_pin(n) not in pins])
        # If a published branch was renamed while it was read, the mark of its new name exists by now.
        before, marks = marks, _list_published_marks(case.branch)
        if marks <= before:
            return


def _list_published_marks(branch: TableBranch) -> frozenset[str]:
    return frozenset(meta.path for meta in branch.store.list(PUBLISHED_FOLDER))


def _keep_of_branches(case: _Case, is_kept: BoolArray, names: Sequence[str]) -> None:
    for name in names:
        branch = case.branch.of_branch(name)
        try:
            versions = read_live_versions(branch)
            for snapshot_id in versions.ids.tolist():
                case.keep_named(is_kept, versions.load(branch, snapshot_id), f"of the branch {name}")
        except Unreadable as error:
            case.unreadable(is_kept, f"the branch {name}", error)


def _keep_nearest(case: _Case, which: BoolArray, nearest: IntArray) -> None:
    undecided = which & ~case.needed & (nearest != UNKNOWN)
    for snapshot_id in np.unique(nearest[undecided]).tolist():
        _keep_version(case, undecided & (nearest == snapshot_id), snapshot_id, "needed")


def _keep_restored(case: _Case, dead: IntArray, walk_end: int) -> None:
    versions = case.versions
    later = versions.restored_ids[versions.restored_ids >= dead.min()]
    if len(later) == 0:
        return
    stale = [int(mark) for mark in later if mark > walk_end and not versions.is_live(int(mark))]
    if stale:
        _keep_every(case, dead <= max(stale))
    live_ids = [int(mark) for mark in later if versions.is_live(int(mark))]
    if len(versions.snapshot_ids):
        live_ids.insert(0, int(versions.snapshot_ids[0]))
    for snapshot_id in dict.fromkeys(live_ids):
        _keep_version(case, np.ones(len(dead), np.bool_), snapshot_id, "restored")


def _keep_every(case: _Case, which: BoolArray) -> None:
    """Compare with every version, until no candidate is left."""
    for snapshot_id, added_only in _versions(case.versions):
        if not (which & ~case.needed).any():
            return
        _keep_version(case, which, snapshot_id, "needed", added_only=added_only)


def _versions(versions: LiveVersions) -> Iterator[tuple[int, bool]]:
    """Every version, and whether comparing only what it added is enough once all older snapshots were compared.

    A live snapshot has what the one before it had, less what died, plus what it added. Without the one before it, or
    after a rollback, all its files are compared.
    """
    restored_ids = set(versions.restored_ids.tolist())
    live_ids = set(versions.snapshot_ids.tolist())
    for snapshot_id in versions.ids.tolist():
        yield snapshot_id, snapshot_id in live_ids and snapshot_id - 1 in live_ids and snapshot_id not in restored_ids


def _keep_version(case: _Case, which: BoolArray, snapshot_id: int, reason: str, *, added_only: bool = False) -> None:
    undecided = which & ~case.needed
    if not undecided.any():
        return
    try:
        snapshot = case.versions.load(case.branch, snapshot_id)
    except Unreadable as error:
        case.unreadable(undecided, f"version {snapshot_id}", error)
        return
    case.keep_named(undecided, snapshot, reason, added_only=added_only)


def names_in_use(branch: TableBranch, versions: LiveVersions, referenced: ReferencedFiles) -> Iterator[pa.Array]:
    """Paths of every file that any version needs, one version after the other.

    Raises `Corruption`, `UnsupportedFormat`, `NotFound`: something cannot be read, so which files are in use is
    unknown.
    """
    for snapshot_id, added_only in _versions(versions):
        snapshot = versions.load(branch, snapshot_id)
        if added_only:
            yield referenced.find_added(snapshot)
            yield referenced.of(snapshot, [role for role in ROLES if role != Role.DATA])
        else:
            yield referenced.of(snapshot)
