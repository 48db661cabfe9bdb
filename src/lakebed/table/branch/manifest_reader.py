"""Manifests and lists of one table, read through the cache.

Owns: which objects are read for a snapshot, and how many in parallel.

Invariants:
- A manifest is read and decoded once a process, as long as the cache holds it.
- Sizes recorded in snapshots and lists are checked: a truncated object is `Corruption`.
- Base manifests come before delta manifests, in committed order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from typing_extensions import Buffer

import lakebed.compute as pc
from lakebed.errors import Corruption
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, map_in_pool
from lakebed.table.branch.manifest_cache import PROCESS_CACHE, ManifestCache
from lakebed.table.codec.index_manifest import IndexEntry, decode_index_manifest
from lakebed.table.codec.manifest import ENTRY_SCHEMA, decode_manifest, decode_manifest_list, live_after
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import ManifestMeta, Snapshot

_WORKER_COUNT_MAX: Final = 16
"""Concurrent GETs for one snapshot's manifests."""

_COLUMN_OVERHEAD_BYTES: Final = 1000
"""Memory of a chunk of a column without its values (measured); most of the memory of small manifests."""

_META_BYTES: Final = 600
"""Approximate memory of one `ManifestMeta`."""

_RANGE_BYTES: Final = 300
"""Approximate memory of one `VectorRange`."""

_LIVE_CHUNKS_MAX: Final = 16
"""Live files of more chunks are copied into one: every operation on a column has a cost for each chunk."""


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
        cache: ManifestCache = PROCESS_CACHE,
    ) -> None:
        self._store = store
        self._layout = layout
        self._environment = environment
        self._cache = cache

    def index_entries(self, name: str) -> tuple[IndexEntry, ...]:
        """The entries of an index manifest.

        Raises `NotFound`: no such manifest; `Corruption`, `UnsupportedFormat`: it is unreadable. Cost: 1 GET, none when
        cached.
        """
        path = self._layout.manifest(name)
        key = (self._store.url(path), None)
        cached: tuple[IndexEntry, ...] | None = self._cache.get(key)
        if cached is None:
            cached = decode_index_manifest(self._read(path, None), path=path)
            size_bytes = sum(_META_BYTES + _RANGE_BYTES * len(entry.ranges) for entry in cached)
            self._cache.put(key, cached, size_bytes=size_bytes)
        return cached

    def metas(self, list_name: str, *, size_bytes: int | None = None) -> list[ManifestMeta]:
        """The manifests of a list, in order.

        Raises `NotFound`: no such list; `Corruption`, `UnsupportedFormat`: see `decode_manifest_list`. Cost: 1 GET,
        none when cached.
        """
        path = self._layout.manifest(list_name)
        key = (self._store.url(path), None)
        cached = self._cache.get(key)
        if cached is None:
            body = self._read(path, size_bytes)
            cached = tuple(decode_manifest_list(body, path=path))
            self._cache.put(key, cached, size_bytes=_META_BYTES * (len(cached) + 1))
        return list(cached)

    def entries(self, meta: ManifestMeta) -> pa.Table:
        """The entries of one manifest, as `decode_manifest` returns them.

        Raises `NotFound`: no such manifest; `Corruption`: unreadable, or its size or number of entries differs from the
        list. Cost: 1 GET, none when cached.
        """
        path = self._layout.manifest(meta.file_name)
        key = (self._store.url(path), meta.added_snapshot)
        cached: pa.Table | None = self._cache.get(key)
        if cached is None:
            body = self._read(path, meta.file_size)
            cached = decode_manifest(body, path=path, added_snapshot=meta.added_snapshot)
            if cached.num_rows != meta.added_file_count + meta.deleted_file_count:
                raise Corruption(
                    f"{path} has {cached.num_rows} entries; its manifest list states "
                    f"{meta.added_file_count + meta.deleted_file_count}.",
                    path=path,
                )
            self._cache.put(key, cached, size_bytes=_resident_bytes(cached))
        return cached

    def remember_list(self, list_name: str, metas: Sequence[ManifestMeta]) -> None:
        """Cache a list that this process just committed, so that the next commit does not read it. No request."""
        key = (self._store.url(self._layout.manifest(list_name)), None)
        self._cache.put(key, tuple(metas), size_bytes=_META_BYTES * (len(metas) + 1))

    def remember_entries(self, meta: ManifestMeta, entries: pa.Table) -> None:
        """Cache a manifest: `entries` as written (null: inherited), `meta.added_snapshot` as committed. No request."""
        place = ENTRY_SCHEMA.get_field_index("commit_snapshot")
        resolved = pc.fill_null(entries.column(place), meta.added_snapshot)
        key = (self._store.url(self._layout.manifest(meta.file_name)), meta.added_snapshot)
        entries = entries.set_column(place, ENTRY_SCHEMA.field(place), resolved)
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

        Raises `Corruption`: a manifest is unreadable. Cost: 1 GET a manifest not cached, up to 16 in parallel, and the
        two lists. The files of a snapshot are cached; if a later snapshot only adds manifests to its list, those alone
        are read.
        """
        metas = self.all_metas(snapshot)
        kept = metas if keep_manifest is None else [meta for meta in metas if keep_manifest(meta)]
        if len(kept) < len(metas):
            known: pa.Table | None = self._cache.get(_live_keys(self._store.root_url, metas)[-1])
            if known is not None:
                return known
            return live_after(ENTRY_SCHEMA.empty_table(), self.concat_entries(kept))
        return self.live_of(metas)

    def live_of(self, metas: Sequence[ManifestMeta]) -> pa.Table:
        """The live files of a list of manifests, computed from its longest cached prefix; columns as `live_entries`."""
        keys = _live_keys(self._store.root_url, metas)
        live, known_count = ENTRY_SCHEMA.empty_table(), 0
        for count in range(len(metas), 0, -1):
            cached: pa.Table | None = self._cache.get(keys[count - 1])
            if cached is not None:
                live, known_count = cached, count
                break
        if known_count == len(metas):
            return live
        live = live_after(live, self.concat_entries(metas[known_count:]))
        if live.num_rows and live.column(0).num_chunks > _LIVE_CHUNKS_MAX:
            live = live.combine_chunks()
        self._cache.put(keys[-1], live, size_bytes=_resident_bytes(live))
        if known_count:
            self._cache.discard(keys[known_count - 1])
        return live

    def delta_entries(self, snapshot: Snapshot) -> pa.Table:
        """The entries of a snapshot's own change, in committed order, not folded. Cost: 1 GET + 1 a manifest."""
        return self.concat_entries(self._delta_metas(snapshot))

    def changelog_entries(self, snapshot: Snapshot) -> pa.Table:
        """The changelog files of a snapshot; none where it names none. Cost: 1 GET + 1 GET a manifest, cached."""
        if snapshot.changelog_manifest_list is None:
            return self.concat_entries([])
        size_bytes = snapshot.changelog_manifest_list_size
        return self.concat_entries(self.metas(snapshot.changelog_manifest_list, size_bytes=size_bytes))

    def concat_entries(self, metas: Sequence[ManifestMeta]) -> pa.Table:
        """The entries of several manifests one after the other."""
        if not metas:
            return ENTRY_SCHEMA.empty_table()
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


def _live_keys(root_url: str, metas: Sequence[ManifestMeta]) -> list[tuple[str, bytes]]:
    """The cache key of the live files of each prefix of a list of manifests.

    Names of manifests are unique and their bytes never change, so the key identifies the content. Snapshot ids would
    not: another client reuses them after a rollback.
    """
    digest = hashlib.blake2b(digest_size=16)
    keys = []
    for meta in metas:
        digest.update(f"{meta.file_name}\0{meta.file_size}\0{meta.added_snapshot}\0".encode())
        keys.append((root_url, digest.digest()))
    return keys


def _resident_bytes(entries: pa.Table) -> int:
    """The memory of a table: its whole buffers, even if it uses a slice of them, and Arrow's overhead."""
    chunk_count = entries.num_columns * entries.column(0).num_chunks
    return int(entries.get_total_buffer_size() + _COLUMN_OVERHEAD_BYTES * chunk_count)
