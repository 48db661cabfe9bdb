"""Which snapshots are tagged, without reading each tag: one LIST, one small hint object, and the tags not in it.

Owns: ``lakebed/tag-index``. Format: ``LBTAGIX2``, 8 bytes of SHA-256 over the rest, then zstandard of three
little-endian int64 columns one after the other, sorted by the second: key, snapshot id, expiry time in Unix ms (-1:
never). The key is 64 bits of SHA-256 over the listing of a tag's file (name, size, modification time, etag): a listed
tag with a known key is unchanged. (``LBTAGIX1`` had no checksum, and counts as missing.)

Invariants:
- The index is only a hint, and says nothing without the listing. Tags that are missing in it are read.
- An unreadable or damaged index counts as missing: collectors keep the files of the versions that it names.
- It is rewritten when it lacks a tag, or when more than half of its rows are of deleted tags. That is a plain
  overwriting put: the last one wins, and each is right.
- A store that is versioned as a whole never gets one: it would be one more difference between versions.
- It has about 10 bytes a tag, so expiring with a thousand tags reads little more than with none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import zstandard

from lakebed.errors import LakebedError, NotFound
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.runtime import Environment
from lakebed.table.codec.snapshot_json import decode_tag
from lakebed.table.model.layout import Layout, parse_tag

_MAGIC = b"LBTAGIX2"
_BYTES_MAX = 64 << 20
_FRESH_MS = 5_000
"""Without etags, a younger file could be replaced without any change in its listing. It is read and not remembered."""


@dataclass(frozen=True, slots=True)
class TagEntry:
    """What is known of a tag without reading its file."""

    snapshot_id: int
    name: str
    expires_ms: int | None
    """Unix ms, UTC; None: never."""


def load_entries(
    store: ObjectStore, *, layout: Layout, environment: Environment, listed: Iterable[ObjectMeta] | None = None
) -> tuple[TagEntry, ...]:
    """All tags of a branch, lakebed's hidden pins included, by snapshot id, then name.

    Args:
        listed: a listing of the tag folder that the caller has just taken; None: it is taken here.

    Raises `Corruption`: a tag that the index does not know is unreadable; nothing may be deleted then. Cost: 1 LIST a
    thousand tags + 1 GET of the index; 1 GET an unknown tag and 1 PUT when there were any.
    """
    metas = store.list(layout.tag_folder) if listed is None else listed
    by_name = {name: meta for meta in metas if (name := parse_tag(meta.path)) is not None}
    if not by_name:
        return ()
    stored_rows = _load_known(store, layout.tag_index)
    keys = {name: _key(meta) for name, meta in by_name.items()}
    entries = []
    # Rows of deleted tags do no harm. So deleting one tag of many need not rewrite the whole index.
    stale = len(stored_rows) > 2 * len(by_name)
    for name, meta in by_name.items():
        row = stored_rows.get(keys[name])
        if row is None:
            stale = True
            entry = _read(store, name=name, path=meta.path)
            if entry is None:
                continue  # deleted since the listing
        else:
            entry = TagEntry(snapshot_id=row[0], name=name, expires_ms=None if row[1] < 0 else row[1])
        entries.append(entry)
    entries.sort(key=lambda entry: (entry.snapshot_id, entry.name))
    if stale and not store.is_versioned:
        now_ms = environment.clock.now_ms()
        lasting = [entry for entry in entries if _is_settled(by_name[entry.name], now_ms)]
        _store_known(store, layout.tag_index, [(keys[entry.name], entry) for entry in lasting])
    return tuple(entries)


def _key(meta: ObjectMeta) -> int:
    text = f"{meta.path}\0{meta.size_bytes}\0{meta.modified_ms}\0{meta.etag or ''}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _is_settled(meta: ObjectMeta, now_ms: int) -> bool:
    return meta.etag is not None or now_ms - meta.modified_ms > _FRESH_MS


def _read(store: ObjectStore, *, name: str, path: str) -> TagEntry | None:
    try:
        tag = decode_tag(bytes(store.get(path)), name=name, path=path)
    except NotFound:
        return None
    return TagEntry(snapshot_id=tag.snapshot.id, name=name, expires_ms=tag.expires_ms)


def _load_known(store: ObjectStore, path: str) -> dict[int, tuple[int, int]]:
    """Key -> (snapshot id, expiry or -1); empty when the index is missing or unreadable: it is only a hint."""
    try:
        body = bytes(store.get(path))
    except NotFound:
        return {}
    packed = body[len(_MAGIC) + 8 :]
    if body[: len(_MAGIC) + 8] != _head_of(packed):
        return {}
    try:
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_BYTES_MAX)
    except zstandard.ZstdError:
        return {}
    if len(raw) % 24:
        return {}
    keys, deltas, expiries = np.frombuffer(raw, dtype="<i8").reshape(3, -1)
    return dict(zip(keys.tolist(), zip(np.cumsum(deltas).tolist(), expiries.tolist(), strict=True), strict=True))


def _head_of(packed: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(packed).digest()[:8]


def _store_known(store: ObjectStore, path: str, rows: list[tuple[int, TagEntry]]) -> None:
    """Write the index, best effort: without it the next call only reads more."""
    ids = np.array([entry.snapshot_id for _, entry in rows], dtype="<i8")
    columns = [
        np.array([key for key, _ in rows], dtype="<i8"),
        np.diff(ids, prepend=0),
        np.array([-1 if entry.expires_ms is None else entry.expires_ms for _, entry in rows], dtype="<i8"),
    ]
    raw = b"".join(column.astype("<i8").tobytes() for column in columns)
    packed = zstandard.ZstdCompressor().compress(raw)
    try:
        store.put(path, _head_of(packed) + packed, durable=False)
    except LakebedError:
        return
