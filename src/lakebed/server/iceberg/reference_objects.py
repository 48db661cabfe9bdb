"""`ReferenceObjects`: the objects that are derived for Iceberg's clients from a table in a branch of a repository.

Owns: the folder ``derived`` of a repository, whose objects are named ``<digest of the bytes>-<ulid>.<extension>``. The
name of metadata begins with ``1-``, because ClickHouse reads only metadata that has a number in its name. The objects
are not in a branch, because a read does not change a branch, and because tags and commits have derived objects too.
Manifests name data files at their physical addresses, below ``data/`` of the repository, as the branch has them at that
moment. Bytes at an address never change.

Invariants:
- An object is recognized by its bytes, so an object with other addresses, or of another state, is a different one.
- An object that was made less than `REUSE_MS` ago is used again; an older one is replaced by a new one. A collection
  deletes objects that are older than its grace, so a client has the rest of the grace to read.
- Only replies of the catalog refer to an object. So a crash leaves at most objects that the collection deletes, and
  deleting an object at any time only harms a client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import Buffer

from lakebed.lsm.file_id import file_id_at, is_file_id, mint_file_id
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.layout import NUMBER_OF_METADATA, name_ulid
from lakebed.repo.transport.branch_store import BranchStore
from lakebed.runtime import Environment
from lakebed.table.iceberg.derived import digest_of

_METADATA: Final = "metadata.json"
REUSE_MS: Final = 3_600_000
"""How long an object is used again: an hour, out of the day that is the grace of collections."""


class ReferenceObjects:
    """The objects of one table, for one load. Not thread-safe.

    Args:
        table: the table's folder in the branch, the tag or the commit.
        store: the repository's folder for derived objects.
    """

    def __init__(self, table: BranchStore, store: ObjectStore, *, environment: Environment) -> None:
        self._table = table
        self._store = store
        self._environment = environment
        self._made: dict[str, tuple[str, int]] = {}  # by `path`: its name in the folder, its size
        self._fresh: dict[str, tuple[str, int]] | None = None  # the same for reusable objects in the folder, by digest
        self.written_count = 0

    def path(self, source: str, name: str) -> str:
        """Return the name of an object within this class, as in a table's own folder. Pure."""
        return f"{source}~{name}"

    def path_of_metadata(self, source: str, number: int, digest: str) -> str:
        """What the metadata is called here. Pure."""
        return self.path(source, f"{digest}.{_METADATA}")

    def size_of(self, path: str) -> int | None:
        """Return the size in bytes; None: this load did not make the object. Cost: nothing."""
        size_bytes = self._made.get(path)
        return None if size_bytes is None else size_bytes[1]

    def ensure(self, path: str, encode: Callable[[], bytes]) -> int:
        """Make an object if needed. Return its size in bytes.

        Cost: nothing, or 1 durable PUT. The first call also needs 1 LIST for 1000 objects.
        """
        size_bytes = self._made.get(path)
        if size_bytes is None:
            body = encode()
            digest = digest_of(body)
            recent_paths = self._list_fresh()
            size_bytes = recent_paths.get(digest)
            if size_bytes is None:
                extension = path.rpartition("~")[2].partition(".")[2]  # Java's client chooses its reader by it
                name = f"{digest}-{mint_file_id(environment=self._environment)}.{extension}"
                if extension == _METADATA:
                    name = NUMBER_OF_METADATA + name
                self._store.put(name, body, create_only=True)
                self.written_count += 1
                size_bytes = recent_paths[digest] = name, len(body)
            self._made[path] = size_bytes
        return size_bytes[1]

    def renew(self, path: str, body: bytes) -> None:
        """As `ensure`."""
        self.ensure(path, lambda: body)

    def defer(self, path: str, encode: Callable[[], bytes]) -> None:
        """As `ensure`, immediately."""
        self.ensure(path, encode)

    def write_deferred(self) -> None:
        """Do nothing: no write is deferred."""

    def get(self, path: str) -> Buffer:
        """Return an object of this load. Cost: 1 GET."""
        return self._store.get(self._made[path][0])

    def url(self, path: str) -> str:
        """Return the URL at which clients find an object of this load. Pure."""
        return self._store.url(self._made[path][0])

    def urls_of_files(self, paths: Sequence[str]) -> list[str]:
        """Return the current URLs of the bytes of files of the table. Raises `NotFound`.

        Cost: as `BranchStore.entries`.
        """
        return [*self._table.urls(paths)]

    def forget_many(self) -> None:
        """Do nothing: objects are remembered for one load."""

    def _list_fresh(self) -> dict[str, tuple[str, int]]:
        """Return the objects of the folder that may be used again, by digest."""
        if self._fresh is None:
            since = file_id_at(self._environment.clock.now_ms() - REUSE_MS)
            self._fresh = {}
            for meta in self._store.list():
                ulid = name_ulid(meta.path)
                if is_file_id(ulid) and ulid >= since:
                    digest, _, _ = meta.path.removeprefix(NUMBER_OF_METADATA).partition("-")
                    self._fresh[digest] = meta.path, meta.size_bytes
        return self._fresh
