"""`ReferenceObjects`: what is made for Iceberg's clients of a table in a branch of a repository.

Owns: the folder ``derived`` of a repository, whose objects are named ``<digest of the bytes>-<ulid>.<extension>``. They
are not in a branch, which a read does not change, and a tag or a commit has them too. Manifests name the bytes of data
files where they are, below ``data/`` of the repository, as the branch has them at the moment: bytes at an address never
change.

Invariants:
- An object is found again by its bytes, so one that names other addresses, or is of another state, is another one.
- An object that was made less than `REUSE_MS` ago is used again; a later one is made for an older one. A collection
  deletes what was made longer ago than its grace: a client has the rest of that time to read.
- Nothing refers to an object but the replies of the catalog. So a crash leaves at most objects that the collection
  deletes, and any of them may be deleted at any time at the cost of a client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import Buffer

from lakebed.lsm.file_id import file_id_at, is_file_id, mint_file_id
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.layout import name_ulid
from lakebed.repo.transport.branch_store import BranchStore
from lakebed.runtime import Environment
from lakebed.table.iceberg.derived import digest_of

REUSE_MS: Final = 3_600_000
"""An hour, of the day that collections have as their grace."""


class ReferenceObjects:
    """The objects of one table, for one load. Not thread-safe.

    Args:
        table: the table's folder in the branch, the tag or the commit.
        store: the folder for derived objects of the repository.
    """

    def __init__(self, table: BranchStore, store: ObjectStore, *, environment: Environment) -> None:
        self._table = table
        self._store = store
        self._environment = environment
        self._made: dict[str, tuple[str, int]] = {}  # by what it is called here: its name in the folder, its size
        self._fresh: dict[str, tuple[str, int]] | None = None  # the same by digest, of the folder
        self.written_count = 0

    def path(self, source: str, name: str) -> str:
        """What an object is called here: the same as in a table's own folder. Pure."""
        return f"{source}~{name}"

    def size_of(self, path: str) -> int | None:
        """Size in bytes; None: it was not made in this load. Cost: nothing."""
        known = self._made.get(path)
        return None if known is None else known[1]

    def ensure(self, path: str, encode: Callable[[], bytes]) -> int:
        """The size in bytes of an object, which is made. Cost: nothing, or 1 durable PUT; once 1 LIST a thousand."""
        known = self._made.get(path)
        if known is None:
            body = encode()
            digest = digest_of(body)
            fresh = self._list_fresh()
            known = fresh.get(digest)
            if known is None:
                extension = path.rpartition("~")[2].partition(".")[2]  # Java's client goes by it
                name = f"{digest}-{mint_file_id(environment=self._environment)}.{extension}"
                self._store.put(name, body, create_only=True)
                self.written_count += 1
                known = fresh[digest] = name, len(body)
            self._made[path] = known
        return known[1]

    def defer(self, path: str, encode: Callable[[], bytes]) -> None:
        """As `ensure`, at once."""
        self.ensure(path, encode)

    def write_deferred(self) -> None:
        """Nothing: nothing waits."""

    def get(self, path: str) -> Buffer:
        """An object of this load. Cost: 1 GET."""
        return self._store.get(self._made[path][0])

    def url(self, path: str) -> str:
        """Where clients find an object of this load. Pure."""
        return self._store.url(self._made[path][0])

    def urls_of_files(self, paths: Sequence[str]) -> list[str]:
        """Where the bytes of files of the table are now. Raises `NotFound`. Cost: as `BranchStore.entries`."""
        return [*self._table.urls(paths)]

    def forget_many(self) -> None:
        """Nothing: it is kept for one load."""

    def _list_fresh(self) -> dict[str, tuple[str, int]]:
        """What of the folder may be used again."""
        if self._fresh is None:
            since = file_id_at(self._environment.clock.now_ms() - REUSE_MS)
            self._fresh = {}
            for meta in self._store.list():
                ulid = name_ulid(meta.path)
                if is_file_id(ulid) and ulid >= since:
                    self._fresh[meta.path.partition("-")[0]] = meta.path, meta.size_bytes
        return self._fresh
