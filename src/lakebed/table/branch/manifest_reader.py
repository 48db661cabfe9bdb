"""Manifests and manifest lists of one table, read through the cache.

Owns: which objects are read for a snapshot, and how many in parallel.

Invariants:
- A manifest is read and decoded once a process, as long as the cache holds it.
- Sizes recorded in snapshots and lists are checked: a truncated object is `Corruption`.
- Base manifests come before delta manifests, in committed order.
- Many small manifests, or lists, are decoded together: decoding one alone costs as much as reading forty records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from typing_extensions import Buffer

import lakebed.compute as pc
from lakebed.bounded_cache import BoundedCache
from lakebed.errors import Corruption, NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectStore, read_each
from lakebed.runtime import Environment, map_in_pool
from lakebed.table.codec.avro import SMALL_COUNT_MAX
from lakebed.table.codec.index_manifest import IndexEntry, decode_index_manifest
from lakebed.table.codec.manifest import (
    ENTRY_SCHEMA,
    NO_ENTRIES,
    DecodedList,
    decode_extended_list,
    decode_manifest,
    decode_manifest_list,
    decode_manifest_lists,
    decode_manifests,
    live_after,
)
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import ManifestMeta, Snapshot

Unreadable = (Corruption, NotFound, UnsupportedFormat)
"""Errors that mean that a version cannot be read."""

_WORKER_COUNT_MAX: Final = 16
"""Concurrent GETs for one snapshot's manifests."""

_JOINED_COUNT_MAX: Final = 1_000
"""Most files that are decoded together: their content is in memory several times."""

_COLUMN_OVERHEAD_BYTES: Final = 1000
"""Memory of a column's chunk without its values (measured). It is most of the memory of small manifests."""

_META_BYTES: Final = 600
"""Approximate memory of one `ManifestMeta`."""

_RANGE_BYTES: Final = 300
"""Approximate memory of one `VectorRange`."""

_LIVE_CHUNKS_MAX: Final = 16
"""Live files of more chunks are copied into one chunk: every operation on a column has a cost for each chunk."""


PROCESS_CACHE: Final = BoundedCache(256 << 20)
"""Cache of manifests, lists and live files, shared by all tables of this process, if no other cache is given.

A key is the object's full URL and what its decoding depends on, or a digest of these.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JoinedEntries:
    """The entries of many manifests, one after the other."""

    rows: pa.Table
    ranges: dict[str, tuple[int, int]]
    """The rows of each manifest, by its name; unreadable ones are missing."""


class ManifestReader:
    """Reads the manifests of one table.

    Args:
        layout: of main or a branch; manifests are in main's folder in both cases.
        cache: of decoded manifests; by default shared by the process.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: Layout,
        *,
        environment: Environment,
        cache: BoundedCache = PROCESS_CACHE,
    ) -> None:
        self._store = store
        self._layout = layout
        self._environment = environment
        self._cache = cache
        self._keyed: tuple[list[ManifestMeta], list[tuple[str, bytes]]] = [], []

    def index_entries(self, name: str) -> tuple[IndexEntry, ...]:
        """The entries of an index manifest.

        Raises `NotFound`: no such manifest; `Corruption`, `UnsupportedFormat`: it is unreadable. Cost: 1 GET, none when
        cached.
        """
        path = self._layout.manifest(name)
        key = (self._store.url(path), None)
        entries: tuple[IndexEntry, ...] | None = self._cache.get(key)
        if entries is None:
            entries = decode_index_manifest(self._read(path, None), path=path)
            size_bytes = sum(_META_BYTES + _RANGE_BYTES * len(entry.ranges) for entry in entries)
            self._cache.put(key, entries, size_bytes=size_bytes)
        return entries

    def metas(self, list_name: str, *, size_bytes: int | None = None) -> list[ManifestMeta]:
        """The manifests of a list, in order.

        Raises `NotFound`: no such list; `Corruption`, `UnsupportedFormat`: see `decode_manifest_list`. Cost: 1 GET,
        none when cached.
        """
        path = self._layout.manifest(list_name)
        key = (self._store.url(path), None)
        cached_metas = self._cache.get(key)
        if cached_metas is None:
            body = self._read(path, size_bytes)
            cached_metas = tuple(decode_manifest_list(body, path=path))
            self._cache.put(key, cached_metas, size_bytes=_META_BYTES * (len(cached_metas) + 1))
        return list(cached_metas)

    def extended_metas(
        self, list_name: str, *, size_bytes: int | None = None, parts: Sequence[str] = ()
    ) -> list[ManifestMeta]:
        """As `metas`, for a list of another client that probably begins with the contents of the lists `parts`.

        The base list of a commit repeats the base and delta lists of the commit before. So the shared part is not
        decoded again if this function has read those lists. Cost: as `metas`; in the cache: the list, undecoded.
        """
        key = self._content_key(list_name)
        manifest_list: DecodedList | None = self._cache.get(key)
        if manifest_list is None:
            path = self._layout.manifest(list_name)
            before: list[DecodedList] = []
            for part in map(self._cache.get, map(self._content_key, parts)):
                if part is None:
                    break
                before.append(part)
            manifest_list = decode_extended_list(self._read(path, size_bytes), path=path, parts=before)
            self._cache.put(key, manifest_list, size_bytes=len(manifest_list.content.blocks) + _META_BYTES)
            self.remember_list(list_name, manifest_list.metas)
        return list(manifest_list.metas)

    def _content_key(self, list_name: str) -> tuple[str, str]:
        return self._store.url(self._layout.manifest(list_name)), "content"

    def entries(self, meta: ManifestMeta) -> pa.Table:
        """The entries of one manifest, as `decode_manifest` returns them.

        Raises `NotFound`: no such manifest; `Corruption`: unreadable, or its size or number of entries differs from the
        list. Cost: 1 GET, none when cached.
        """
        path = self._layout.manifest(meta.file_name)
        key = (self._store.url(path), meta.added_snapshot)
        cached_entries: pa.Table | None = self._cache.get(key)
        if cached_entries is None:
            cached_entries = self._decode_entries(meta, self._read(path, meta.file_size))
            self._cache.put(key, cached_entries, size_bytes=_resident_bytes(cached_entries))
        return cached_entries

    def _decode_entries(self, meta: ManifestMeta, body: Buffer) -> pa.Table:
        path = self._layout.manifest(meta.file_name)
        entries = decode_manifest(body, path=path, added_snapshot=meta.added_snapshot)
        if entries.num_rows != _entry_count(meta):
            raise Corruption(
                f"{path} has {entries.num_rows} entries; its manifest list states {_entry_count(meta)}.", path=path
            )
        return entries

    def all_metas_of_each(self, snapshots: Sequence[Snapshot]) -> list[list[ManifestMeta] | None]:
        """As `all_metas`, for many snapshots; None where a list is unreadable. Cost: the same, 16 GETs at once."""
        sizes = {
            name: size_bytes
            for snapshot in snapshots
            for name, size_bytes in (
                (snapshot.base_manifest_list, snapshot.base_manifest_list_size),
                (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
            )
        }
        metas = self._metas_of_each(sizes)
        results: list[list[ManifestMeta] | None] = []
        for snapshot in snapshots:
            base, delta = metas.get(snapshot.base_manifest_list), metas.get(snapshot.delta_manifest_list)
            results.append(None if base is None or delta is None else [*base, *delta])
        return results

    def _metas_of_each(self, sizes: Mapping[str, int | None]) -> dict[str, Sequence[ManifestMeta]]:
        """The manifests of each list that is readable, by the list's name."""
        cached_metas = {name: self._cache.get((self._store.url(self._layout.manifest(name)), None)) for name in sizes}
        results: dict[str, Sequence[ManifestMeta]] = {
            name: metas for name, metas in cached_metas.items() if metas is not None
        }
        for bodies in self._read_each({name: size for name, size in sizes.items() if name not in results}):
            metas_by_position = decode_manifest_lists(list(bodies.values()))
            for position, (name, body) in enumerate(bodies.items()):
                metas = metas_by_position.get(position)
                if metas is None:
                    metas = _attempt(partial(decode_manifest_list, body, path=self._layout.manifest(name)))
                if metas is not None:
                    results[name] = metas
                    self.remember_list(name, metas)
        return results

    def entries_of_each(self, metas: Iterable[ManifestMeta], columns: Sequence[str]) -> JoinedEntries:
        """Some columns of the entries of many manifests, as `entries` returns them, in any order of the manifests.

        Cost: 1 GET for each manifest that is not cached, 16 at once; no GET when the same call is repeated. Memory: the
        result, and `_JOINED_COUNT_MAX` small manifests or one large.
        """
        distinct = {meta.file_name: meta for meta in metas}
        keys = [(self._store.url(self._layout.manifest(name)), meta.added_snapshot) for name, meta in distinct.items()]
        digest = hashlib.blake2b(repr((columns, keys)).encode(), digest_size=16).digest()
        joined_entries: JoinedEntries | None = self._cache.get((self._store.root_url, digest))
        if joined_entries is not None:
            return joined_entries
        cached_tables = {name: self._cache.get(key) for name, key in zip(distinct, keys, strict=True)}
        small = {
            name: meta.file_size
            for name, meta in distinct.items()
            if cached_tables[name] is None and _entry_count(meta) <= SMALL_COUNT_MAX
        }
        parts: list[tuple[Sequence[str], Sequence[int], pa.Table]] = [
            ((name,), (table.num_rows,), table) for name, table in cached_tables.items() if table is not None
        ]
        parts += self._small_entries(distinct, small, columns)
        for name, meta in distinct.items():
            if name not in small and cached_tables[name] is None:
                table = _attempt(partial(self.entries, meta))
                if table is not None:
                    parts.append(((name,), (table.num_rows,), table))
        ranges, end = dict[str, tuple[int, int]](), 0
        for names, counts, _ in parts:
            for name, count in zip(names, counts, strict=True):
                ranges[name] = (end, end + count)
                end += count
        tables = [NO_ENTRIES.select(columns), *(table.select(columns) for _, _, table in parts)]
        result = JoinedEntries(pa.concat_tables(tables).combine_chunks(), ranges)
        if len(ranges) == len(distinct):  # an unreadable manifest may be restored later
            size_bytes = _resident_bytes(result.rows) + _RANGE_BYTES * len(ranges)
            self._cache.put((self._store.root_url, digest), result, size_bytes=size_bytes)
        return result

    def _small_entries(
        self, metas: Mapping[str, ManifestMeta], sizes: Mapping[str, int | None], columns: Sequence[str]
    ) -> Iterator[tuple[Sequence[str], Sequence[int], pa.Table]]:
        """Manifests by name, the number of entries of each, and the entries. Unreadable manifests are left out."""
        for bodies in self._read_each(sizes):
            names = list(bodies)
            added_snapshots = [metas[name].added_snapshot for name in names]
            alone = dict(bodies)
            for group in decode_manifests(list(bodies.values()), added_snapshots=added_snapshots):
                members = [names[position] for position in group.positions]
                if group.counts != [_entry_count(metas[name]) for name in members]:
                    continue  # one of these manifests is damaged
                yield members, group.counts, group.entries.select(columns)
                for name in members:
                    del alone[name]
            for name, body in alone.items():
                entries = _attempt(partial(self._decode_entries, metas[name], body))
                if entries is not None:
                    yield (name,), (entries.num_rows,), entries.select(columns)

    def _read_each(self, sizes: Mapping[str, int | None]) -> Iterator[dict[str, Buffer]]:
        """The bytes of manifests, or lists, by name, in batches. Unreadable ones are left out."""

        def read(name: str) -> Buffer | None:
            return _attempt(lambda: self._read(self._layout.manifest(name), sizes[name]))

        names = list(sizes)
        for start in range(0, len(names), _JOINED_COUNT_MAX):
            batch = names[start : start + _JOINED_COUNT_MAX]
            bodies = read_each(self._store, read, batch, environment=self._environment)
            yield {name: body for name, body in zip(batch, bodies, strict=True) if body is not None}

    def remember_list(self, list_name: str, metas: Sequence[ManifestMeta]) -> None:
        """Cache a list that this process just committed, so that the next commit does not read it. No request."""
        key = (self._store.url(self._layout.manifest(list_name)), None)
        self._cache.put(key, tuple(metas), size_bytes=_META_BYTES * (len(metas) + 1))

    def remember_entries(self, meta: ManifestMeta, entries: pa.Table) -> None:
        """Cache a manifest: `entries` as written (null: inherited), `meta.added_snapshot` as committed. No request."""
        place = ENTRY_SCHEMA.get_field_index("commit_snapshot")
        added_snapshots = pc.fill_null(entries.column(place), meta.added_snapshot)
        key = (self._store.url(self._layout.manifest(meta.file_name)), meta.added_snapshot)
        entries = entries.set_column(place, ENTRY_SCHEMA.field(place), added_snapshots)
        self._cache.put(key, entries, size_bytes=_resident_bytes(entries))

    def all_metas(self, snapshot: Snapshot) -> list[ManifestMeta]:
        """The manifests of a snapshot, base before delta. Cost: 2 GETs, none when cached."""
        base = self.metas(snapshot.base_manifest_list, size_bytes=snapshot.base_manifest_list_size)
        return base + self._delta_metas(snapshot)

    def live_entries(
        self, snapshot: Snapshot, *, keep_manifest: Callable[[ManifestMeta], bool] | None = None
    ) -> pa.Table:
        """The files of a snapshot: all its manifests folded.

        Args:
            keep_manifest: False for a manifest that need not be read. It must depend on the partition statistics only,
                so that a DELETE is skipped exactly when its ADD is. Where all files are cached, all are returned.

        Returns:
            `ENTRY_SCHEMA`, ADD entries only.

        Raises `Corruption`: a manifest is unreadable. Cost: 1 GET for each manifest that is not cached, up to 16 in
        parallel, and the two lists. The files of a snapshot are cached. If a later snapshot only adds manifests to its
        list, only those are read.
        """
        metas = self.all_metas(snapshot)
        kept_metas = metas if keep_manifest is None else [meta for meta in metas if keep_manifest(meta)]
        if len(kept_metas) < len(metas):
            cached_entries: pa.Table | None = self._cache.get(self._live_keys(metas)[-1])
            if cached_entries is not None:
                return cached_entries
            return live_after(NO_ENTRIES, self.concat_entries(kept_metas))
        return self.live_of(metas)

    def live_of(self, metas: Sequence[ManifestMeta]) -> pa.Table:
        """The live files of a list of manifests, computed from its longest cached prefix; columns as `live_entries`."""
        keys = self._live_keys(metas)
        live_entries, known_count = NO_ENTRIES, 0
        for count in range(len(metas), 0, -1):
            cached_entries: pa.Table | None = self._cache.get(keys[count - 1])
            if cached_entries is not None:
                live_entries, known_count = cached_entries, count
                break
        if known_count == len(metas):
            return live_entries
        live_entries = live_after(live_entries, self.concat_entries(metas[known_count:]))
        if live_entries.num_rows and live_entries.column(0).num_chunks > _LIVE_CHUNKS_MAX:
            live_entries = live_entries.combine_chunks()
        self._cache.put(keys[-1], live_entries, size_bytes=_resident_bytes(live_entries))
        if known_count:
            self._cache.discard(keys[known_count - 1])
        return live_entries

    def _live_keys(self, metas: Sequence[ManifestMeta]) -> list[tuple[str, bytes]]:
        """The cache key of the live files of each prefix of a list of manifests.

        Names of manifests are unique and their bytes never change, so the key identifies the content. Snapshot ids
        would not: another client reuses them after a rollback. Cost: 2 us for each manifest that the last call did not
        have.
        """
        keyed, keys = self._keyed
        if len(metas) < len(keyed) or metas[: len(keyed)] != keyed:
            keyed, keys = [], []
        keys, root_url = list(keys), self._store.root_url
        previous = keys[-1][1] if keys else b""
        for meta in metas[len(keyed) :]:
            text = f"{meta.file_name}\0{meta.file_size}\0{meta.added_snapshot}\0"
            previous = hashlib.blake2b(previous + text.encode(), digest_size=16).digest()
            keys.append((root_url, previous))
        self._keyed = list(metas), keys
        return keys

    def delta_entries(self, snapshot: Snapshot) -> pa.Table:
        """The entries of a snapshot's own change, in committed order, not folded. Cost: 1 GET + 1 a manifest."""
        return self.concat_entries(self._delta_metas(snapshot))

    def changelog_entries(self, snapshot: Snapshot) -> pa.Table:
        """The changelog files of a snapshot; empty where it names none. Cost: 1 GET + 1 GET a manifest, cached."""
        if snapshot.changelog_manifest_list is None:
            return self.concat_entries([])
        size_bytes = snapshot.changelog_manifest_list_size
        return self.concat_entries(self.metas(snapshot.changelog_manifest_list, size_bytes=size_bytes))

    def concat_entries(self, metas: Sequence[ManifestMeta]) -> pa.Table:
        """The entries of several manifests one after the other."""
        if not metas:
            return NO_ENTRIES
        if len(metas) == 1:
            return self.entries(metas[0])
        runtime = self._environment.runtime
        return pa.concat_tables(map_in_pool(runtime, self.entries, metas, worker_count_max=_WORKER_COUNT_MAX))

    def _delta_metas(self, snapshot: Snapshot) -> list[ManifestMeta]:
        return self.metas(snapshot.delta_manifest_list, size_bytes=snapshot.delta_manifest_list_size)

    def _read(self, path: str, size_bytes: int | None) -> Buffer:
        body = self._store.get(path)
        actual_bytes = memoryview(body).nbytes
        if size_bytes is not None and actual_bytes != size_bytes:
            raise Corruption(f"{path} has {actual_bytes} bytes; {size_bytes} were committed.", path=path)
        return body


def _entry_count(meta: ManifestMeta) -> int:
    return meta.added_file_count + meta.deleted_file_count


def _attempt(read: Callable[[], T]) -> T | None:
    """The result of `read`; None where it is unreadable."""
    try:
        return read()
    except Unreadable:
        return None


def _resident_bytes(entries: pa.Table) -> int:
    """The memory that a table keeps alive: its whole buffers, also where it uses a slice, and Arrow's overhead."""
    chunk_count = entries.num_columns * entries.column(0).num_chunks
    return int(entries.get_total_buffer_size() + _COLUMN_OVERHEAD_BYTES * chunk_count)
