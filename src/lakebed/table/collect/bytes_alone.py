"""How many bytes each tag alone holds: what deleting only this tag would free.

Owns: `bytes_alone`, which judges all tags in one pass, each as if it alone were deleted. A preview of the deletion of
each would list and read the same versions again for every tag.

Method: a tag alone holds something only if its snapshot has expired and no other tag has its version. The files that
such a version alone has were added after the version before it. So only the manifests that came after that version are
read. The files of all such versions are folded together as columns, and so are those of each next version, which may
have the same files. `reachability.judge_each` then applies the rules that do not depend on these two neighbours.

Invariant: what cannot be read may need any file, so a tag whose neighbour is unreadable counts as holding nothing
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from lakebed.objects.port import read_each
from lakebed.table.branch.branch_folder import with_fork_point
from lakebed.table.branch.candidates import UNKNOWN, BoolArray, IntArray, Role, candidates_of, concat
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.branch.tags import is_hidden
from lakebed.table.codec.manifest import ADD, IDENTITY
from lakebed.table.codec.row_codes import first_and_last, row_codes
from lakebed.table.collect.live_versions import LiveVersions, read_live_versions
from lakebed.table.collect.reachability import judge_each
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.model import ManifestMeta, Snapshot

_PLACE: Final = ("partition", "bucket", "file_name")
_COLUMNS: Final = (*IDENTITY, "kind", "file_size", "commit_snapshot", "external_path", "extra_files")

T = TypeVar("T")
R = TypeVar("R")


def bytes_alone(branch: TableBranch, names: Collection[str] | None = None) -> dict[str, int]:
    """Bytes that each tag alone holds, by its name: data files, changelogs, manifests and lists.

    Args:
        names: of the tags to judge; None: all. Names without a tag are left out.

    Cost: 7 LISTs, 1 GET for each tag that is not cached. For a tag whose snapshot has expired: its two lists and those
    of its neighbours, and the manifests that were written between these, as far as they are not cached. After a
    rollback, and with branches that were published or that another client made, the files of every version are read
    once.
    """
    branch.refresh()
    branch = with_fork_point(branch)
    versions = read_live_versions(branch)
    holder_count = Counter(tag.snapshot_id for tag in versions.tags)
    visible_tags = [tag for tag in versions.tags if not is_hidden(tag.name) and (names is None or tag.name in names)]
    sole = {
        tag.snapshot_id: tag.name
        for tag in visible_tags
        if holder_count[tag.snapshot_id] == 1 and not versions.is_live(tag.snapshot_id)
    }
    result = dict.fromkeys((tag.name for tag in visible_tags), 0)
    if sole:
        for snapshot_id, size_bytes in _Pass(branch, versions).bytes_of(sorted(sole)).items():
            result[sole[snapshot_id]] = size_bytes
    return result


@dataclass(slots=True)
class _Version:
    """A version that only one tag holds, and its neighbours among all versions."""

    id: int
    before: int
    """`UNKNOWN` where there is none."""
    after: int
    """`UNKNOWN` where there is none."""


@dataclass(slots=True)
class _Entries:
    """The entries of many manifests, one after the other."""

    rows: pa.Table
    identities: IntArray
    places: IntArray
    kinds: IntArray
    ranges: dict[str, tuple[int, int]]
    """The rows of each manifest, by its name; unreadable ones are missing."""


@dataclass(slots=True)
class _Pass:
    """One judgement of all tags."""

    branch: TableBranch
    versions: LiveVersions
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    metas: dict[int, list[ManifestMeta]] = field(default_factory=dict)
    """The manifests of the versions that could be read, by id."""

    def bytes_of(self, ids: Sequence[int]) -> dict[int, int]:
        """The bytes that each of these versions alone has. One tag holds each version; `ids` ascend."""
        every = self.versions.ids
        places = np.searchsorted(every, ids)
        padded = np.concatenate([[UNKNOWN], every, [UNKNOWN]])
        judged = [_Version(*row) for row in zip(ids, padded[places].tolist(), padded[places + 2].tolist(), strict=True)]
        self._load(judged)
        judged = [
            version
            for version in judged
            if version.id in self.metas and (version.after == UNKNOWN or version.after in self.metas)
        ]
        referenced = ReferencedFiles(self.branch)
        parts = [self._data(judged, referenced), self._manifests(judged), self._lists(judged, referenced)]
        owners = np.concatenate([owner for owner, _ in parts])
        candidates = concat(table for _, table in parts)
        if candidates.num_rows == 0:
            return {}
        alone = judge_each(candidates, owners, branch=self.branch, versions=self.versions, referenced=referenced)
        sizes = candidates["size_bytes"].to_numpy()
        version_ids, numbers = np.unique(owners[alone], return_inverse=True)
        sums = np.bincount(numbers, weights=sizes[alone]).astype(np.int64)
        return dict(zip(version_ids.tolist(), sums.tolist(), strict=True))

    @property
    def has_holes(self) -> bool:
        """Whether rollbacks restored files, so that a file may be missing between two versions that have it."""
        return len(self.versions.restored_ids) > 0

    def _load(self, versions: Sequence[_Version]) -> None:
        """Read the snapshots and the lists of the versions and their neighbours."""
        needed_ids = {
            version_id for version in versions for version_id in (version.id, version.before, version.after)
        } - {UNKNOWN}
        self.snapshots = {tag.snapshot.id: tag.snapshot for tag in self.branch.tags.list_all()}
        live_ids = [version_id for version_id in needed_ids if self.versions.is_live(version_id)]
        for snapshot in self._each(self.branch.snapshots.find, live_ids):
            if snapshot is not None:
                self.snapshots[snapshot.id] = snapshot
        snapshots = [self.snapshots[version_id] for version_id in sorted(needed_ids) if version_id in self.snapshots]
        lists = self.branch.manifests.all_metas_of_each(snapshots)
        self.metas = {snapshot.id: metas for snapshot, metas in zip(snapshots, lists, strict=True) if metas is not None}

    def _each(self, read: Callable[[T], R], items: Sequence[T]) -> list[R | None]:
        """The results of `read` for each item; None where it is unreadable."""

        def attempt(item: T) -> R | None:
            try:
                return read(item)
            except Unreadable:
                return None

        return read_each(self.branch.store, attempt, items, environment=self.branch.environment)

    def _manifests(self, versions: Sequence[_Version]) -> tuple[IntArray, pa.Table]:
        """Manifests that neither neighbour has."""
        owners: list[int] = []
        new: list[ManifestMeta] = []
        for version in versions:
            metas = self.metas[version.id]
            names = {meta.file_name for meta in self.metas.get(version.after, ())}
            if self.has_holes or any(meta.added_snapshot is None for meta in metas):
                if version.before != UNKNOWN and version.before not in self.metas:
                    continue  # unreadable: it may have all of them
                names.update(meta.file_name for meta in self.metas.get(version.before, ()))
            new_metas = [meta for meta in self._since(metas, version) if meta.file_name not in names]
            owners += [version.id] * len(new_metas)
            new += new_metas
        numbers = np.array(owners, np.int64)
        table = candidates_of(
            Role.MANIFEST,
            [self.branch.layout.manifest(meta.file_name) for meta in new],
            size_bytes=[meta.file_size for meta in new],
            born=[UNKNOWN if meta.added_snapshot is None else meta.added_snapshot for meta in new],
            dead=numbers + 1,
        )
        return numbers, table

    def _lists(self, versions: Sequence[_Version], referenced: ReferencedFiles) -> tuple[IntArray, pa.Table]:
        """Lists and changelogs, which belong to one version. A version whose changelog is unreadable is left out."""
        snapshots = [self.snapshots[version.id] for version in versions]
        try:
            table = referenced.own_lists(snapshots)
        except Unreadable:
            tables = self._each(lambda snapshot: referenced.own_lists([snapshot]), snapshots)
            table = concat(part for part in tables if part is not None)
        return table["born"].to_numpy(), table

    def _since(self, metas: Iterable[ManifestMeta], version: _Version) -> list[ManifestMeta]:
        """The manifests that came after the previous version."""
        return [meta for meta in metas if meta.added_snapshot is None or meta.added_snapshot > version.before]

    def _data(self, versions: Sequence[_Version], referenced: ReferencedFiles) -> tuple[IntArray, pa.Table]:
        """Data files that neither neighbour has."""
        metas_of = {version.id: self._since(self.metas[version.id], version) for version in versions}
        after = {version.id: self._since(self.metas.get(version.after, ()), version) for version in versions}
        entries = self._entries([meta for part in (metas_of, after) for metas in part.values() for meta in metas])
        readable = {
            version.id
            for version in versions
            if all(meta.file_name in entries.ranges for meta in (*metas_of[version.id], *after[version.id]))
        }
        owners, rows = _live(
            entries, {version_id: metas_of[version_id] for version_id in metas_of if version_id in readable}
        )
        later_owners, later_rows = _live(
            entries, {version_id: after[version_id] for version_id in after if version_id in readable}
        )
        place_count = int(entries.places.max(initial=0)) + 1
        has_died = ~np.isin(
            owners * place_count + entries.places[rows], later_owners * place_count + entries.places[later_rows]
        )
        owners, rows = owners[has_died], rows[has_died]
        before = {version.id: version.before for version in versions}
        before_ids = np.array([before[owner] for owner in owners.tolist()], np.int64)
        born = entries.rows["commit_snapshot"].to_numpy()[rows]
        is_new = np.ones(len(rows), np.bool_) if self.has_holes else (born == UNKNOWN) | (born > before_ids)
        owners, rows, born, before_ids = owners[is_new], rows[is_new], born[is_new], before_ids[is_new]
        is_unknown = (born == UNKNOWN) & (before_ids != UNKNOWN) & (not self.has_holes)
        stays = ~self._in_version_before(entries.rows, rows, np.where(is_unknown, before_ids, UNKNOWN))
        owners, rows = owners[stays], rows[stays]
        files = referenced.paths_of(entries.rows.take(pa.array(rows)))
        owners = owners[files["row"].to_numpy()]
        table = candidates_of(
            Role.DATA, files["path"], size_bytes=files["size_bytes"], born=files["born"], dead=pa.array(owners + 1)
        )
        return owners, table

    def _entries(self, metas: Iterable[ManifestMeta]) -> _Entries:
        joined_entries = self.branch.manifests.entries_of_each(metas, _COLUMNS)
        rows = joined_entries.rows
        (identities,), (places,) = row_codes(IDENTITY, rows), row_codes(_PLACE, rows)
        return _Entries(rows, identities, places, rows["kind"].to_numpy(), joined_entries.ranges)

    def _in_version_before(self, entries: pa.Table, rows: IntArray, versions: IntArray) -> BoolArray:
        """Which files of unknown birth the previous version has, or may have. Where `versions` is `UNKNOWN`: False.

        Cost: the manifests of each such version.
        """
        result = np.zeros(len(rows), np.bool_)
        for version in np.unique(versions[versions != UNKNOWN]).tolist():
            positions = np.flatnonzero(versions == version)
            snapshot = self.snapshots.get(version)
            tables: list[Any] = [] if snapshot is None else self._each(self.branch.manifests.live_entries, [snapshot])
            if not tables or tables[0] is None:
                result[positions] = True
                continue
            live_codes, here = row_codes(_PLACE, tables[0], entries.take(pa.array(rows[positions])))
            result[positions] = np.isin(here, live_codes)
        return result


def _live(entries: _Entries, metas: dict[int, list[ManifestMeta]]) -> tuple[IntArray, IntArray]:
    """The files that each owner's manifests add and do not delete, as owners and rows of `entries`."""
    ranges = [(owner, *entries.ranges[meta.file_name]) for owner, part in metas.items() for meta in part]
    if not ranges:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    owners, starts, ends = np.array(ranges, np.int64).T
    counts = ends - starts
    before = np.cumsum(counts) - counts
    rows = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    row_owners = np.repeat(owners, counts)
    _, last = first_and_last(row_owners * (int(entries.identities.max(initial=0)) + 1) + entries.identities[rows])
    positions = last[entries.kinds[rows[last]] == ADD]
    return row_owners[positions], rows[positions]
