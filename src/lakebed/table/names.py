"""The files that one version needs, by path: data, manifests, lists, index files, statistics, changelog.

Owns: `Names`, which reads them (through the manifest cache), and the candidates that a version leaves behind.

Invariants: a version's names are exactly what reading it opens, plus the files that exist for it only. External files
are not the table's and are left out. Does not know: which versions live; what may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Corruption
from lakebed.table.avro import decode_columns
from lakebed.table.binary_row import decode_row
from lakebed.table.holders import Line
from lakebed.table.manifest import ADD, DELETE
from lakebed.table.model import ManifestMeta, Snapshot
from lakebed.table.reclaim import ROLES, UNKNOWN, Role, candidates_of, concat, fold_deltas, paths_of

__all__ = ["Names", "folder_namer"]


@dataclass(slots=True)
class _Life:
    """When a named object was first and last seen in a walk."""

    size_bytes: int
    born: int
    last: int


def folder_namer(line: Line) -> Callable[[bytes, int], str]:
    """``(partition, bucket)`` -> the bucket's folder."""
    schema = line.schema()
    types = [field.type for name in schema.partition_keys if (field := schema.field_by_name(name))]

    def folder_of(partition: bytes, bucket: int) -> str:
        values = decode_row(partition, types) if types else ()
        return line.layout.bucket_folder(dict(zip(schema.partition_keys, values, strict=True)), bucket)

    return folder_of


class Names:
    """Reads what versions name. One instance serves one verb; paths of data files are kept for its time."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._layout = line.layout
        self._folder_of = folder_namer(line)
        self._deltas: dict[str, pa.Table] = {}

    def of(self, snapshot: Snapshot, roles: Iterable[str] = ROLES) -> pa.Array:
        """Paths of the files of some roles that a version needs.

        Raises:
            Corruption, UnsupportedFormat, NotFound: something it names is unreadable.
        Cost: only what the roles need: nothing for lists and statistics, the lists for manifests, all manifests for
        data.
        """
        wanted = frozenset(roles)
        parts: list[pa.Array] = [pa.array(self._few(snapshot, wanted), pa.string())]
        if Role.DATA in wanted:
            parts.append(_whole(paths_of(self._line.reader.live_entries(snapshot), self._folder_of)["path"]))
        if Role.CHANGELOG in wanted and snapshot.changelog_manifest_list:
            parts.append(_whole(self._changelog(snapshot)["path"]))
        return pa.concat_arrays(parts)

    def added(self, snapshot: Snapshot) -> pa.Array:
        """Paths of the data files that a version itself added. Cost: its delta manifests."""
        delta = self.delta(snapshot)
        return _whole(delta.filter(pc.equal(delta["kind"], ADD))["path"])

    def delta(self, snapshot: Snapshot) -> pa.Table:
        """A version's own entries, as `reclaim.paths_of` names them. Cost: 1 GET + 1 a delta manifest, once."""
        found = self._deltas.get(snapshot.delta_manifest_list)
        if found is None:
            found = paths_of(self._line.reader.delta_entries(snapshot), self._folder_of)
            self._deltas[snapshot.delta_manifest_list] = found
        return found

    # ---- what is left behind

    def left_by_walk(self, gone: Sequence[Snapshot], survivor: Snapshot, *, before: Snapshot | None = None) -> pa.Table:
        """Candidates when consecutive versions vanish: everything they named that the survivor does not.

        Args:
            gone: ascending, every snapshot of the line from one id up to the survivor.
            survivor: the first that stays; its delta is read too, for it names what died at it.
            before: the last snapshot that stays before `gone`, if any. Without one, what the first of `gone` deleted
                was seen by an earlier walk.
        Cost: the lists of all of them, the delta manifests of all but the first; across a gap, both file lists.
        """
        if not gone:
            return concat([])
        walk = [*gone, survivor]
        chain = walk if before is None else [before, *walk]
        data = fold_deltas([(after.id, self.between(earlier, after)) for earlier, after in pairwise(chain)])
        return concat([data, self._manifests_left(walk), self._own_lists(gone), *self._carried_left(walk)])

    def between(self, before: Snapshot, after: Snapshot) -> pa.Table:
        """What changed from one version to the next, as `delta`.

        Across a gap (a rollback took versions away, and their deltas) it is the difference of both file lists.
        """
        if after.id == before.id + 1:
            return self.delta(after)
        had, has = (paths_of(self._line.reader.live_entries(version), self._folder_of) for version in (before, after))
        died = had.filter(pc.invert(pc.is_in(had["path"], value_set=has["path"])))
        return died.set_column(0, "kind", pa.array([DELETE] * died.num_rows, died.schema.field("kind").type))

    def check_readable(self, snapshot: Snapshot, *, after: Snapshot | None) -> None:
        """Raise what `left_by_walk` would raise at this step of a walk. Cost: what it reads, which is then kept."""
        if after is not None:
            self.between(after, snapshot)
        self._few(snapshot, frozenset((Role.MANIFEST, Role.INDEX)))
        if snapshot.changelog_manifest_list:
            self._changelog(snapshot)

    def left_by_tag(self, snapshot: Snapshot) -> pa.Table:
        """Candidates when the last tag of an expired snapshot goes: all that it names, alive at it, death unknown."""
        files = paths_of(self._line.reader.live_entries(snapshot), self._folder_of)
        dead = snapshot.id + 1
        metas = self._line.reader.all_metas(snapshot)
        carried = self._few(snapshot, frozenset((Role.INDEX_MANIFEST,)))
        parts = [
            candidates_of(Role.DATA, files["path"], size_bytes=files["size_bytes"], born=files["born"], dead=dead),
            candidates_of(
                Role.MANIFEST,
                [self._layout.manifest(meta.file_name) for meta in metas],
                size_bytes=[meta.file_size for meta in metas],
                born=[_born(meta) for meta in metas],
                dead=dead,
            ),
            self._own_lists([snapshot]),
            candidates_of(Role.INDEX_MANIFEST, carried, born=UNKNOWN, dead=dead),
            candidates_of(Role.INDEX, self._few(snapshot, frozenset((Role.INDEX,))), born=UNKNOWN, dead=dead),
            candidates_of(Role.STATISTICS, self._few(snapshot, frozenset((Role.STATISTICS,))), born=UNKNOWN, dead=dead),
        ]
        return concat(parts)

    # ---- parts

    def _manifests_left(self, walk: Sequence[Snapshot]) -> pa.Table:
        lives: dict[str, _Life] = {}
        for snapshot in walk[:-1]:
            for meta in self._line.reader.all_metas(snapshot):
                life = lives.setdefault(meta.file_name, _Life(meta.file_size, _born(meta), snapshot.id))
                life.last = snapshot.id
        for meta in self._line.reader.all_metas(walk[-1]):
            lives.pop(meta.file_name, None)
        return self._of_lives(Role.MANIFEST, {self._layout.manifest(name): life for name, life in lives.items()}, walk)

    def _carried_left(self, walk: Sequence[Snapshot]) -> list[pa.Table]:
        """Objects that versions hand on by name: index manifests, index files, statistics."""
        tables = []
        for role in (Role.INDEX_MANIFEST, Role.INDEX, Role.STATISTICS):
            lives: dict[str, _Life] = {}
            for snapshot in walk[:-1]:
                for path in self._few(snapshot, frozenset((role,))):
                    lives.setdefault(path, _Life(0, UNKNOWN, snapshot.id)).last = snapshot.id
            for path in self._few(walk[-1], frozenset((role,))) if lives else ():
                lives.pop(path, None)
            tables.append(self._of_lives(role, lives, walk))
        return tables

    def _of_lives(self, role: str, lives: dict[str, _Life], walk: Sequence[Snapshot]) -> pa.Table:
        following = {before.id: after.id for before, after in pairwise(walk)}
        return candidates_of(
            role,
            list(lives),
            size_bytes=[life.size_bytes for life in lives.values()],
            born=[life.born for life in lives.values()],
            dead=[following[life.last] for life in lives.values()],
        )

    def _own_lists(self, gone: Sequence[Snapshot]) -> pa.Table:
        """What belongs to one version alone: its lists and its changelog live in [id, id + 1)."""
        tables = []
        for snapshot in gone:
            lists = {
                self._layout.manifest(snapshot.base_manifest_list): snapshot.base_manifest_list_size or 0,
                self._layout.manifest(snapshot.delta_manifest_list): snapshot.delta_manifest_list_size or 0,
            }
            life = {"born": snapshot.id, "dead": snapshot.id + 1}
            tables.append(candidates_of(Role.LIST, list(lists), size_bytes=list(lists.values()), **life))
            if snapshot.changelog_manifest_list:
                manifests = self._few(snapshot, frozenset((Role.CHANGELOG_MANIFEST,)))
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

    def _few(self, snapshot: Snapshot, roles: frozenset[str]) -> list[str]:
        """Paths of everything but data files."""
        reader, manifest = self._line.reader, self._layout.manifest
        paths: list[str] = []
        if Role.LIST in roles:
            paths += [manifest(snapshot.base_manifest_list), manifest(snapshot.delta_manifest_list)]
        if Role.MANIFEST in roles:
            paths += [manifest(meta.file_name) for meta in reader.all_metas(snapshot)]
        if snapshot.index_manifest:
            if Role.INDEX_MANIFEST in roles:
                paths.append(manifest(snapshot.index_manifest))
            if Role.INDEX in roles:
                paths += self._index_files(manifest(snapshot.index_manifest))
        if snapshot.statistics and Role.STATISTICS in roles:
            paths.append(self._layout.statistics(snapshot.statistics))
        if snapshot.changelog_manifest_list:
            if Role.CHANGELOG_LIST in roles:
                paths.append(manifest(snapshot.changelog_manifest_list))
            if Role.CHANGELOG_MANIFEST in roles:
                paths += [manifest(meta.file_name) for meta in reader.metas(snapshot.changelog_manifest_list)]
        return paths

    def _changelog(self, snapshot: Snapshot) -> pa.Table:
        assert snapshot.changelog_manifest_list is not None
        metas = self._line.reader.metas(snapshot.changelog_manifest_list)
        return paths_of(self._line.reader.concatenated(metas), self._folder_of)

    def _index_files(self, path: str) -> list[str]:
        """Index files that an index manifest names."""
        count, columns = decode_columns(self._line.store.get(path), path=path)
        if count == 0:
            return []
        if "_FILE_NAME" not in columns:
            raise Corruption(f"{path} has no field _FILE_NAME, which the format requires.", path=path)
        return [self._layout.index(name) for name in columns["_FILE_NAME"].to_pylist()]


def _born(meta: ManifestMeta) -> int:
    return UNKNOWN if meta.added_snapshot is None else meta.added_snapshot


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
