"""`TaskStore`: the files of a branch for tasks that run in other processes, without the repository's records.

Owns: what a task may do with these files. It reads paths whose entries it was given, at the addresses in the entries,
and uploads new objects to new addresses. Its uploads are invisible until the process that has the repository stages
them (`EntryStore.stage_entries`).

Invariants: a path reads as the same object for the whole task, even if the branch changes meanwhile. An upload
overwrites nothing. No entry names the uploads of a failed task, and a collection deletes them once they are older than
`CollectionOptions.grace`. A pickled store holds credentials: put it into a function that is sent to a task, never into
a path, a column or a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn, Protocol, runtime_checkable

from typing_extensions import Buffer

from lakebed.errors import InvalidRequest
from lakebed.objects.memory import absent
from lakebed.objects.path import check_path
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, ObjectStore, RequestCounts
from lakebed.objects.streaming import byte_view, stream_ranges
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import upload_to
from lakebed.repo.objects.intact import read_object, read_object_ranges
from lakebed.repo.outside.foreign import ForeignStores, is_foreign
from lakebed.runtime import Environment


@runtime_checkable
class EntryStore(Protocol):
    """A store whose paths have entries: an object's bytes are at the address in its entry."""

    def entries(self, paths: Sequence[str]) -> dict[str, Entry]:
        """Return the entries of paths, all of one moment. Paths without an entry are left out.

        Cost: 1 snapshot of the key-value store, 1 read a staging token for all paths together, and the ranges that may
        hold them; through a server 1 request for up to 100,000 paths.
        """

    def stage_entries(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """Stage entries at many paths in one atomic change. Their bytes must have been uploaded.

        Raises:
            NotFound: kind ``branch_not_found``.
            InvalidRequest: kind ``read_only``, ``protected_branch``, ``reserved_path``, ...
            Conflict: kind ``upload_expired``: a collection may have deleted the bytes; nothing was staged.
            Unavailable, OutcomeUnknown: see `ObjectStore.put`; staging the same entries again is harmless.
        Cost: 1 write of the key-value store; through a server 1 request.
        """

    def for_tasks(self, *, writes: bool = False) -> TaskStore:
        """Return a store with which tasks read and upload, to be pickled.

        Args:
            writes: the tasks will upload: fail now if their uploads could not be staged later.

        Raises:
            NotFound: the branch is gone.
            InvalidRequest: `writes` is set, and this store shows a commit or the branch is protected.
        """

    def inside_url(self) -> str | None:
        """The URL below which uploads are, for engines that read objects themselves; None: they cannot be reached."""


class ObjectBytes(Protocol):
    """Access to the bytes of entries for a process without the repository's records. Picklable."""

    @property
    def url(self) -> str:
        """URL of the place of the bytes, for error messages."""

    def read(self, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
        """Read the bytes of an entry, or a range of them. Raises `NotFound` if they are gone. Cost: 1 GET."""

    def read_ranges(self, path: str, entry: Entry, *, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges, in the order of `ranges`. Raises as `read`. Cost: at most 1 GET a range."""

    def upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        """Store bytes under a new address. Cost: as `lakebed.repo.objects.data.upload`."""


@dataclass(frozen=True, slots=True)
class StorageBytes(ObjectBytes):
    """Bytes in storage that this process reaches directly.

    Attributes:
        foreign: the stores of imported objects.
    """

    store: ObjectStore
    foreign: ForeignStores

    @property
    def url(self) -> str:
        return self.store.root_url

    def read(self, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
        store, address = self._locate(entry)
        return read_object(store, address, entry, byte_range=byte_range)

    def read_ranges(self, path: str, entry: Entry, *, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ObjectBytes.read_ranges`. Near ranges are read together."""
        store, address = self._locate(entry)
        return read_object_ranges(store, address, entry, ranges)

    def upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        return upload_to(self.store, body, environment=Environment())

    def _locate(self, entry: Entry) -> tuple[ObjectStore, str]:
        return self.foreign.locate(entry.address) if is_foreign(entry.address) else (self.store, entry.address)


class TaskStore(ObjectStore):
    """`ObjectStore` over some files of a branch: see the module. Thread-safe.

    Listings, copies, URLs, views of folders and counts are refused.

    Args:
        source: access to the bytes.
        root_url: URL of the branch's folder, for error messages.
        entries: the entries that can be read, by path in the folder.
    """

    def __init__(self, source: ObjectBytes, *, root_url: str, entries: Mapping[str, Entry] | None = None) -> None:
        self._source = source
        self._root_url = root_url
        self._entries = dict(entries or {})
        self._uploads: dict[str, Entry] = {}

    def __repr__(self) -> str:
        return f"TaskStore({self._root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._source, self._root_url, self._entries)

    def with_entries(self, entries: Mapping[str, Entry]) -> TaskStore:
        """Return a store of the same place with other files to read, and no uploads."""
        return TaskStore(self._source, root_url=self._root_url, entries=entries)

    def uploads(self) -> list[tuple[str, Entry]]:
        """The uploads, to be staged: path in the folder and entry, in no order."""
        return list(self._uploads.items())

    @property
    def root_url(self) -> str:
        return self._root_url

    @property
    def is_versioned(self) -> bool:
        """True: see `ObjectStore.is_versioned`."""
        return True

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        return self._source.read(path, self._entry(path), byte_range=byte_range)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return self._source.read_ranges(path, self._entry(path), ranges=ranges) if ranges else []

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)

    def head(self, path: str) -> ObjectMeta:
        """See `ObjectStore.head`. Cost: no request."""
        entry = self._entry(path)
        return ObjectMeta(path, entry.size_bytes, entry.modified_ms, entry.checksum or None)

    def _entry(self, path: str) -> Entry:
        check_path(path)
        entry = self._uploads.get(path) or self._entries.get(path)
        if entry is None:
            raise absent(path, self._root_url)
        return entry

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        """Upload an object, to be staged under `path`. Always durable. Create-only puts are refused: see `_refuse`."""
        check_path(path)
        if create_only:
            self._refuse("decide whether a path is free")
        self._uploads[path] = self._source.upload(byte_view(body))

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        """As `put`, from chunks. Returns the size in bytes."""
        check_path(path)
        if create_only:
            self._refuse("decide whether a path is free")
        self._uploads[path] = entry = self._source.upload(chunks)
        return entry.size_bytes

    def delete(self, paths: Iterable[str]) -> None:
        """Forget uploads; a collection deletes their bytes. Other paths belong to the branch, and are refused."""
        for path in paths:
            if self._uploads.pop(check_path(path), None) is None:
                self._refuse(f"delete {path}")

    def sync(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.sync`. Uploads are durable already."""
        for path in paths:
            self._entry(path)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        self._refuse("list objects")

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        self._refuse("list objects")

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        self._refuse("copy objects")

    def url(self, path: str) -> str:
        self._refuse("name the URL of an object")

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        self._refuse("sign URLs")

    def sub(self, prefix: str) -> TaskStore:
        self._refuse("show a part of it")

    def count(self) -> AbstractContextManager[RequestCounts]:
        """Refused: the requests are those of the repository's storage."""
        self._refuse("count requests")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest(
            f"A task cannot {what} in {self._root_url}: it has the files that it was given, and not the branch. Do it "
            "where the repository is open.",
            kind="task_store",
        )


def _reopen(source: ObjectBytes, root_url: str, entries: Mapping[str, Entry]) -> TaskStore:
    return TaskStore(source, root_url=root_url, entries=entries)
