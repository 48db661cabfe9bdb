"""The files that one version references, by path: data, manifests, lists, index files, statistics, changelog.

Owns: `ReferencedFiles`, which reads them (through the manifest cache), and the candidates that a version leaves behind.

Invariants:
- The files of a version are exactly those that reading it opens, plus the files that exist only for it.
- A file whose bucket has several folders has a path in each of them.
- The path of an external file is its URL. Only external files that `OwnFiles` recognises are candidates: the others do
  not belong to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.branch.candidates import ROLES, UNKNOWN, Role, candidates_of, concat, fold_deltas, paths_of
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.manifest import ADD, DELETE
from lakebed.table.codec.ragged import one_array
from lakebed.table.files.external import OwnFiles
from lakebed.table.files.placement import Placement, bucket_folders
from lakebed.table.model.model import ManifestMeta, Snapshot

_CARRIED_ON: Final = (Role.INDEX_MANIFEST, Role.INDEX, Role.STATISTICS)
"""Roles of objects that a version may reference again from the version before."""


@dataclass(slots=True)
class _Life:
    """When an object was first and last referenced in a walk."""

    size_bytes: int
    born: int
    last: int


@lru_cache(maxsize=10_000)
def _partition_folders(placement: Placement, partition: bytes) -> tuple[str, ...]:
    """Folders of a partition.

    Cached: Arrow decodes one value as slowly as a thousand, and every verb needs the same ones.
    """
    return placement.partition_folders(pa.array([partition], pa.binary()))[0]


def folder_namer(branch: TableBranch) -> Callable[[bytes, int], tuple[str, ...]]:
    """A function ``(partition, bucket)`` -> the bucket's folders, as `Placement.folders`. Decodes each partition once.

    A branch whose options differ from main's has its own files where its options say, and the files of its fork
    snapshot where main's options say. So its buckets have both folders.
    """
    placements = dict.fromkeys(Placement.of(table_branch.schema) for table_branch in (branch, branch.main))
    folder_cache: dict[bytes, tuple[str, ...]] = {}

    def folders_of(partition: bytes, bucket: int) -> tuple[str, ...]:
        folders = folder_cache.get(partition)
        if folders is None:
            candidate_folders = (
                folder for placement in placements for folder in _partition_folders(placement, partition)
            )
            folders = folder_cache[partition] = tuple(dict.fromkeys(candidate_folders))
        return bucket_folders(folders, bucket)

    return folders_of


class ReferencedFiles:
    """Reads what versions reference. One instance serves one verb and keeps the paths of deltas that it has read."""

    def __init__(self, branch: TableBranch) -> None:
        self._branch = branch
        self._layout = branch.layout
        self._folders_of = folder_namer(branch)
        self._own_files = OwnFiles(branch.store, self._folders_of)
        self._deltas: dict[str, pa.Table] = {}

    def paths_of(self, entries: pa.Table) -> pa.Table:
        """As `candidates.paths_of`. Cost: that of `OwnFiles` when there are external files, once."""
        return paths_of(entries, self._folders_of, own_outside=self._own_files.among)

    def _all_paths_of(self, entries: pa.Table) -> pa.Array:
        """Paths of all files of entries, external ones of any owner included, and of their sidecar files."""
        return one_array(
            paths_of(entries, self._folders_of, own_outside=lambda files: np.ones(len(files), np.bool_))["path"]
        )

    def of(self, snapshot: Snapshot, roles: Iterable[str] = ROLES) -> pa.Array:
        """Paths of the files of some roles that a version needs.

        Raises `Corruption`, `UnsupportedFormat`, `NotFound`: something it references is unreadable. Cost: only what the
        roles need: nothing for lists and statistics, the lists for manifests, all manifests for data.
        """
        role_set = frozenset(roles)
        parts: list[pa.Array] = [pa.array(self._few(snapshot, role_set), pa.string())]
        if Role.DATA in role_set:
            live_entries = self._branch.manifests.live_entries(snapshot)
            parts.append(self._all_paths_of(live_entries))
        if Role.CHANGELOG in role_set and snapshot.changelog_manifest_list:
            parts.append(self._all_paths_of(self._branch.manifests.changelog_entries(snapshot)))
        return pa.concat_arrays(parts)

    def own_external(self, snapshot: Snapshot) -> pa.Table:
        """The external files of a version that are the table's own, in the form of `candidates.paths_of`.

        Cost: as `of` for data and changelogs.
        """
        manifests = self._branch.manifests
        parts = [manifests.live_entries(snapshot), manifests.changelog_entries(snapshot)]
        outside = [part.filter(pc.is_valid(part["external_path"])) for part in parts]
        return pa.concat_tables([self.paths_of(part) for part in outside])

    def find_added(self, snapshot: Snapshot) -> pa.Array:
        """Paths of the data files that a version itself added. Cost: its delta manifests."""
        delta, entries = self.delta(snapshot), self._branch.manifests.delta_entries(snapshot)
        is_new = pc.and_(pc.equal(entries["kind"], ADD), pc.is_valid(entries["external_path"]))
        external = self._all_paths_of(entries.filter(is_new))
        return pa.concat_arrays([one_array(delta.filter(pc.equal(delta["kind"], ADD))["path"]), external])

    def delta(self, snapshot: Snapshot) -> pa.Table:
        """The entries of a version's own change, in the form of `candidates.paths_of`.

        Cost: 1 GET + 1 a delta manifest, once.
        """
        paths = self._deltas.get(snapshot.delta_manifest_list)
        if paths is None:
            paths = self.paths_of(self._branch.manifests.delta_entries(snapshot))
            self._deltas[snapshot.delta_manifest_list] = paths
        return paths

    # ---- what is left behind

    def candidates_of_walk(
        self, gone: Sequence[Snapshot], survivor: Snapshot, *, before: Snapshot | None = None
    ) -> pa.Table:
        """Candidates when consecutive versions are removed: everything they reference that the survivor does not.

        Args:
            gone: ascending, every snapshot of the branch from one id up to the survivor.
            survivor: the first that stays; its delta is read too, because it lists what died at it.
            before: the last snapshot that stays before `gone`, if any. Without it, an earlier walk has handled what the
                first of `gone` deleted.
        Cost: the lists of all of them, the delta manifests of all but the first; across a gap, both file lists.
        """
        if not gone:
            return concat([])
        walk = [*gone, survivor]
        chain = walk if before is None else [before, *walk]
        data = fold_deltas([(after.id, self.between(earlier, after)) for earlier, after in pairwise(chain)])
        return concat([data, self._manifests_left(walk), self.own_lists(gone), *self._candidates_carried_on(walk)])

    def between(self, before: Snapshot, after: Snapshot) -> pa.Table:
        """What changed from one version to the next, as `delta`.

        Across a gap (a rollback removed versions with their deltas) it is the difference of both file lists.
        """
        if after.id == before.id + 1:
            return self.delta(after)
        paths_before, paths_after = (
            self.paths_of(self._branch.manifests.live_entries(version)) for version in (before, after)
        )
        died = paths_before.filter(pc.invert(pc.is_in(paths_before["path"], value_set=paths_after["path"])))
        return died.set_column(0, "kind", pa.array([DELETE] * died.num_rows, died.schema.field("kind").type))

    def check_readable(self, snapshot: Snapshot, *, after: Snapshot | None) -> None:
        """Raise what `candidates_of_walk` would raise at this step. Cost: that of reading it; the result is kept."""
        if after is not None:
            self.between(after, snapshot)
        self._few(snapshot, {Role.MANIFEST, Role.INDEX})
        if snapshot.changelog_manifest_list:
            self._changelog(snapshot)

    def candidates_of_tag(self, snapshot: Snapshot) -> pa.Table:
        """Candidates when the last tag of an expired snapshot is deleted: all its files, with an unknown death."""
        files = self.paths_of(self._branch.manifests.live_entries(snapshot))
        dead = snapshot.id + 1
        metas = self._branch.manifests.all_metas(snapshot)
        parts = [
            candidates_of(Role.DATA, files["path"], size_bytes=files["size_bytes"], born=files["born"], dead=dead),
            candidates_of(
                Role.MANIFEST,
                [self._layout.manifest(meta.file_name) for meta in metas],
                size_bytes=[meta.file_size for meta in metas],
                born=[_birth_of(meta) for meta in metas],
                dead=dead,
            ),
            self.own_lists([snapshot]),
            *(candidates_of(role, self._few(snapshot, {role}), born=UNKNOWN, dead=dead) for role in _CARRIED_ON),
        ]
        return concat(parts)

    # ---- parts

    def _manifests_left(self, walk: Sequence[Snapshot]) -> pa.Table:
        lives: dict[str, _Life] = {}
        for snapshot in walk[:-1]:
            for meta in self._branch.manifests.all_metas(snapshot):
                life = lives.setdefault(meta.file_name, _Life(meta.file_size, _birth_of(meta), snapshot.id))
                life.last = snapshot.id
        for meta in self._branch.manifests.all_metas(walk[-1]):
            lives.pop(meta.file_name, None)
        return self._of_lives(Role.MANIFEST, {self._layout.manifest(name): life for name, life in lives.items()}, walk)

    def _candidates_carried_on(self, walk: Sequence[Snapshot]) -> list[pa.Table]:
        """Objects of the roles in `_CARRIED_ON`."""
        tables = []
        for role in _CARRIED_ON:
            lives: dict[str, _Life] = {}
            for snapshot in walk[:-1]:
                for path in self._few(snapshot, {role}):
                    lives.setdefault(path, _Life(0, UNKNOWN, snapshot.id)).last = snapshot.id
            for path in self._few(walk[-1], {role}) if lives else ():
                lives.pop(path, None)
            tables.append(self._of_lives(role, lives, walk))
        return tables

    def _of_lives(self, role: str, lives: dict[str, _Life], walk: Sequence[Snapshot]) -> pa.Table:
        next_ids = {before.id: after.id for before, after in pairwise(walk)}
        return candidates_of(
            role,
            list(lives),
            size_bytes=[life.size_bytes for life in lives.values()],
            born=[life.born for life in lives.values()],
            dead=[next_ids[life.last] for life in lives.values()],
        )

    def own_lists(self, gone: Sequence[Snapshot]) -> pa.Table:
        """The files that belong to one version alone: its lists and its changelog live in [id, id + 1)."""
        lists = {
            self._layout.manifest(name): (size_bytes or 0, snapshot.id)
            for snapshot in gone
            for name, size_bytes in (
                (snapshot.base_manifest_list, snapshot.base_manifest_list_size),
                (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
            )
        }
        sizes, ids = np.array(list(lists.values()), np.int64).reshape(-1, 2).T
        tables = [candidates_of(Role.LIST, list(lists), size_bytes=sizes, born=ids, dead=ids + 1)]
        for snapshot in gone:
            life = {"born": snapshot.id, "dead": snapshot.id + 1}
            if snapshot.changelog_manifest_list:
                manifests = self._few(snapshot, {Role.CHANGELOG_MANIFEST})
                path = self._layout.manifest(snapshot.changelog_manifest_list)
                files = self._changelog(snapshot)
                tables += [
                    candidates_of(Role.CHANGELOG, files["path"], size_bytes=files["size_bytes"], **life),
                    candidates_of(Role.CHANGELOG_MANIFEST, manifests, **life),
                    candidates_of(
                        Role.CHANGELOG_LIST, [path], size_bytes=snapshot.changelog_manifest_list_size or 0, **life
                    ),
                ]
        return concat(tables)

    def _few(self, snapshot: Snapshot, roles: Collection[str]) -> list[str]:
        """Paths of everything but data files."""
        manifests, manifest = self._branch.manifests, self._layout.manifest
        paths: list[str] = []
        if Role.LIST in roles:
            paths += [manifest(snapshot.base_manifest_list), manifest(snapshot.delta_manifest_list)]
        if Role.MANIFEST in roles:
            paths += [manifest(meta.file_name) for meta in manifests.all_metas(snapshot)]
        if snapshot.index_manifest:
            if Role.INDEX_MANIFEST in roles:
                paths.append(manifest(snapshot.index_manifest))
            if Role.INDEX in roles:
                paths += self._index_files(snapshot.index_manifest)
        if snapshot.statistics and Role.STATISTICS in roles:
            paths.append(self._layout.statistics(snapshot.statistics))
        if snapshot.changelog_manifest_list:
            if Role.CHANGELOG_LIST in roles:
                paths.append(manifest(snapshot.changelog_manifest_list))
            if Role.CHANGELOG_MANIFEST in roles:
                paths += [manifest(meta.file_name) for meta in manifests.metas(snapshot.changelog_manifest_list)]
        return paths

    def _changelog(self, snapshot: Snapshot) -> pa.Table:
        return self.paths_of(self._branch.manifests.changelog_entries(snapshot))

    def _index_files(self, name: str) -> list[str]:
        """Index files that an index manifest names, except those outside the table, which belong to others."""
        entries = self._branch.manifests.index_entries(name)
        return [self._layout.index(entry.file_name) for entry in entries if entry.external_path is None]


def _birth_of(meta: ManifestMeta) -> int:
    return UNKNOWN if meta.added_snapshot is None else meta.added_snapshot
