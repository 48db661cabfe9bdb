"""Objects for Iceberg clients in the table's folder: which exist, and their create-only writing.

Invariants: an object is written once, before any object that names it, and is never replaced. Its name states the
object that it is derived from, and a digest of its inputs. So a server that finds the name need not make the object,
and two servers that write it at once write the same bytes; one of the puts wins. After a crash the objects that exist
are complete, and the next server continues.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from typing_extensions import Buffer

from lakebed.errors import AlreadyExists
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Runtime, map_in_pool
from lakebed.table.model.layout import Layout, derived_path

GENERATION: Final = 1
"""Version of the code that makes these objects. With another number all of them are made again, under other names."""
_SPARE_COUNT: Final = 1_000
"""Most names of objects that are remembered although they may be gone."""
_PUTS_AT_ONCE: Final = 16
_DEFERRED_BYTES_MAX: Final = 16 << 20
"""Most bytes of objects that wait to be written together."""


class Derived(Protocol):
    """Objects that are derived from a table, wherever they are stored."""

    written_count: int

    def path(self, source: str, name: str) -> str:
        """The path here of an object that is derived from the table's object at `source`. Pure."""

    def path_of_metadata(self, source: str, number: int, digest: str) -> str:
        """The path here of a table's metadata: below the location that clients see. Pure."""

    def size_of(self, path: str) -> int | None:
        """Size in bytes; None: the object has to be made."""

    def ensure(self, path: str, encode: Callable[[], bytes]) -> int:
        """The size in bytes of an object. Make the object if it does not exist."""

    def renew(self, path: str, body: bytes) -> None:
        """As `ensure`, also if a client has deleted the object since it was made."""

    def defer(self, path: str, encode: Callable[[], bytes]) -> None:
        """As `ensure`, but the object may be written later, by `write_deferred`.

        No object that names it is written before.
        """

    def write_deferred(self) -> None:
        """Write the deferred objects. After an error they stay deferred until a later call."""

    def get(self, path: str) -> Buffer:
        """An object that `size_of` knows. Cost: 1 GET."""

    def url(self, path: str) -> str:
        """The URL by which clients find an object that `ensure` or `size_of` knows."""

    def urls_of_files(self, paths: Sequence[str]) -> list[str]:
        """The URLs by which clients find files of the table, by their paths in it. Raises `NotFound`."""

    def forget_many(self) -> None:
        """Drop what is remembered of objects that may be gone, once it is much."""


class DerivedObjects:
    """The objects of one table at one URL, in its own folder. Not thread-safe."""

    def __init__(self, store: ObjectStore, *, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._place = digest_of(GENERATION, store.root_url)[:12]
        self._sizes: dict[str, int] | None = None
        self._listed_count = 0
        self._deferred: dict[str, bytes] = {}
        self._deferred_bytes = 0
        self.written_count = 0

    def path(self, source: str, name: str) -> str:
        """Path of an object that is derived from the object at `source`."""
        return derived_path(self._place, source, name)

    def path_of_metadata(self, source: str, number: int, digest: str) -> str:
        """Path of the metadata whose newest version has a number. ClickHouse reads no other names of the file."""
        name = f"{number}-{uuid.UUID(digest.ljust(32, '0'))}.metadata.json"
        return derived_path(f"{Layout.client_folder.rpartition('/')[2]}/{self._place}", source, f"metadata/{name}")

    def size_of(self, path: str) -> int | None:
        """Size in bytes; None: there is no such object. Cost: 1 LIST a thousand objects, once."""
        if self._sizes is None:
            metas = self._store.list(f"{Layout.iceberg_folder}/{self._place}")
            self._sizes = {meta.path: meta.size_bytes for meta in metas}
            self._listed_count = len(self._sizes)
        return self._sizes.get(path)

    def get(self, path: str) -> Buffer:
        """An object. Cost: 1 GET."""
        return self._store.get(path)

    def url(self, path: str) -> str:
        """The URL by which clients find an object. Pure."""
        return self._store.url(path)

    def urls_of_files(self, paths: Sequence[str]) -> list[str]:
        """The URLs by which clients find files of the table. Pure."""
        bases: dict[str, str] = {}
        urls: list[str] = []
        for path in paths:
            folder, _, name = path.rpartition("/")
            if folder not in bases:
                bases[folder] = self._store.url(folder)
            urls.append(f"{bases[folder]}/{name}")
        return urls

    def forget_many(self) -> None:
        """List again before the next use, if far more objects were made than existed: most may have been deleted."""
        if self._sizes is not None and len(self._sizes) > 2 * self._listed_count + _SPARE_COUNT:
            self._sizes = None

    def ensure(self, path: str, encode: Callable[[], bytes]) -> int:
        """The size in bytes of an object. Make the object if it does not exist. Cost: nothing, or 1 durable PUT."""
        size = self.size_of(path)
        if size is None:
            self.written_count += self._put(path, encode())
            size = self.size_of(path)
            assert size is not None
        return size

    def renew(self, path: str, body: bytes) -> None:
        """As `ensure`, also if a client has deleted the object since it was made. Cost: 1 durable PUT."""
        if self._sizes is not None:
            self._sizes.pop(path, None)
        self.ensure(path, lambda: body)

    def defer(self, path: str, encode: Callable[[], bytes]) -> None:
        """Have `write_deferred` write an object, if it does not exist. Cost: nothing, or that of `write_deferred`."""
        if self.size_of(path) is None and path not in self._deferred:
            body = self._deferred[path] = encode()
            self._deferred_bytes += len(body)
            if self._deferred_bytes > _DEFERRED_BYTES_MAX:
                self.write_deferred()

    def write_deferred(self) -> None:
        """Write the deferred objects. Cost: 1 durable PUT each, 16 at once."""
        # Not with `put_each`, which creates a name before its object is durable: here a name means that the object is
        # complete.
        objects = [(path, body) for path, body in self._deferred.items() if self.size_of(path) is None]
        are_new = map_in_pool(self._runtime, lambda pair: self._put(*pair), objects, worker_count_max=_PUTS_AT_ONCE)
        self.written_count += sum(are_new)
        self._deferred, self._deferred_bytes = {}, 0

    def _put(self, path: str, body: bytes) -> bool:
        """Write an object that was not listed; False: it was there."""
        assert self._sizes is not None
        try:
            self._store.put(path, body, create_only=True)
        except AlreadyExists:  # another server was faster, or a reply was lost
            self._sizes[path] = self._store.head(path).size_bytes
            return False
        self._sizes[path] = len(body)
        return True


def digest_of(*parts: object) -> str:
    """A digest of some values, as 24 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
