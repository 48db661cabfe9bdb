"""The tags of a listing, read with few requests: the listing shows which tags were read before and have not changed.

Owns: `load_tags` and the process's cache of decoded tags, which is limited in bytes.

Invariants:
- A tag file can be replaced. A cached tag is used only while the listing shows the same path, size, modification time
  and etag as when it was read.
- A tag is cached only if its file had not changed for `SETTLED_MS` when it was listed. A later replacement then gets a
  later modification time, even where times have whole seconds. So no replacement looks like the cached tag, nor does a
  file that was replaced between listing and reading and later gets its old bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import NotFound
from lakebed.objects.port import ObjectMeta, ObjectStore, read_each
from lakebed.runtime import Environment
from lakebed.table.codec.snapshot_json import decode_tag
from lakebed.table.model.model import Tag

SETTLED_MS: Final = 5_000
"""Once a file has this age, any later replacement has another modification time."""

TAG_CACHE: Final = BoundedCache(32 << 20)
"""The decoded tags of this process, about 10,000."""

_TAG_BYTES: Final = 2_000
"""Approximate memory of a decoded tag, in addition to the bytes of its file."""


def load_tags(store: ObjectStore, listed: Sequence[tuple[str, ObjectMeta]], *, environment: Environment) -> list[Tag]:
    """The tags of some names, in order. Tags that were deleted since the listing are left out.

    Args:
        listed: name and listing of each tag file.

    Raises `Corruption`, `UnsupportedFormat`: see `decode_tag`. Cost: 1 GET for each tag that is not cached, up to 16 at
    once; in local folders one after the other, where threads would only wait for each other.
    """
    now_ms = environment.clock.now_ms()

    def load(named: tuple[str, ObjectMeta]) -> Tag | None:
        name, meta = named
        try:
            body = bytes(store.get(meta.path))
        except NotFound:
            return None
        tag = decode_tag(body, name=name, path=meta.path)
        if now_ms - meta.modified_ms > SETTLED_MS:
            TAG_CACHE.put(_key(root_url, meta), tag, size_bytes=len(body) + _TAG_BYTES)
        return tag

    root_url = store.root_url
    tags: list[Tag | None] = [TAG_CACHE.get(_key(root_url, meta)) for _, meta in listed]
    missing = [position for position, tag in enumerate(tags) if tag is None]
    missing_files = [listed[position] for position in missing]
    for position, tag in zip(missing, read_each(store, load, missing_files, environment=environment), strict=True):
        tags[position] = tag
    return [tag for tag in tags if tag is not None]


def _key(root_url: str, meta: ObjectMeta) -> tuple[str, str, int, int, str | None]:
    return root_url, meta.path, meta.size_bytes, meta.modified_ms, meta.etag
