"""The object-storage port: the protocol with which all stores are used.

Owns: the operations, the promises of each, and the types that they exchange. Does not know vendors; drivers are in
other modules.

Invariants:
- A path is relative, ``/``-separated, UTF-8, without empty, ``.`` or ``..`` segments; all else is `InvalidRequest`.
- Every operation is synchronous and thread-safe, and raises only `lakebed.errors`.
- ``put(create_only=True)`` has exactly one winner; all others get `AlreadyExists`.
- An object put with ``durable=True`` survives power loss once the call has returned.
- A streamed object appears as a whole or not at all. A stream holds a few parts in memory, however large the object is.
- A listing never shows a half-written object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec
from typing_extensions import Buffer

from lakebed.errors import NotFound
from lakebed.runtime import Environment, map_in_pool

T = TypeVar("T")
R = TypeVar("R")

_READS_AT_ONCE: Final = 16

STREAM_CHUNK_BYTES: Final = 8 << 20
"""The default size of a stream's reads."""

ByteRange = tuple[int, int]
"""Half-open ``(start, end)`` in bytes."""


LASTING_KINDS: Final = frozenset({"disk_full", "folder_moved"})
"""Kinds of `Unavailable` that do not end by waiting. Such a request had no effect, and is not repeated."""


class ObjectMeta(msgspec.Struct, frozen=True):
    """The metadata of an object. Listings create one for every name, so it is cheap."""

    path: str
    size_bytes: int
    modified_ms: int
    """Unix time in milliseconds, UTC, by the store's clock."""
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One level of a hierarchy: objects directly below the prefix, and the folders below it (without final slash)."""

    objects: tuple[ObjectMeta, ...]
    folders: tuple[str, ...]


@dataclass(slots=True)
class RequestCounts:
    """Requests and bytes of one store (or of one ``with store.count()`` block), by kind.

    A LIST counts one for each page of 1000 names, a DELETE one for each batch of 1000 paths (Azure: 256, Google: 1),
    a streamed PUT one for each part and those that open and close it.
    `errors` counts calls that the store refused or did not answer. A missing or existing object is not an error.
    """

    get: int = 0
    head: int = 0
    put: int = 0
    list: int = 0
    delete: int = 0
    copy: int = 0
    errors: int = 0
    retries: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Total time spent in seconds, by kind of operation."""

    @property
    def total(self) -> int:
        """All requests of every kind."""
        return self.get + self.head + self.put + self.list + self.delete + self.copy


class Upload(Protocol):
    """An object that is being written, invisible before `finish`. One thread at a time uses it.

    It ends with `finish` or `abandon`. After an error it must be abandoned.
    """

    def write(self, part: memoryview) -> None:
        """Append bytes. The caller may reuse them after the call."""

    def finish(self) -> None:
        """Make the object visible, replacing an existing one. With create-only, raise `AlreadyExists` instead."""

    def abandon(self) -> None:
        """Discard the upload. Nothing visible remains."""


@runtime_checkable
class ObjectStore(Protocol):
    """A folder of immutable objects: local, in memory, S3, GCS, Azure, or a fault-injecting wrapper of one."""

    @property
    def root_url(self) -> str:
        """The URL of this store's root, without credentials and without final slash."""

    @property
    def is_versioned(self) -> bool:
        """Whether versions of the whole store keep deleted and replaced objects.

        True in a branch of a repository. There a deletion frees no bytes by itself, and every unneeded object is a
        further difference between versions, so hints should not be written. False for an ordinary store.
        """

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        """Read an object (a read-only buffer; ``memoryview(x)``, ``pa.py_buffer(x)`` and ``bytes(x)`` work).

        Raises:
            NotFound: no such object.
            InvalidRequest: the range starts past the end or is empty.
        Cost: 1 GET.
        """

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges of one object, in the given order. Close ranges are read together.

        Cost: 1 GET for each joined range.
        """

    def get_resident(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer | None:
        """As `get`, of at most about 64 KiB that are in this machine's memory; None: `get` may have to wait for them.

        For an event loop, in which other requests wait. Raises `NotFound`. Cost: 1 GET; none if the result is None.
        """
        return None

    def map(self, path: str) -> Buffer | None:
        """Map an object into memory, if the store is a folder of this machine that can; None: read it by ranges.

        The buffer stays valid when the object is deleted or replaced, and keeps its disk space until it is released.
        Never map a file that another program may truncate: accessing missing bytes ends the process.

        Raises `NotFound`. Cost: 1 GET; accesses to the buffer are not counted.
        """
        return None

    def head(self, path: str) -> ObjectMeta:
        """Return size and time of one object. Raises `NotFound`. Cost: 1 HEAD."""

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        """Write one whole object.

        Args:
            create_only: fail with `AlreadyExists` if the object exists. Only such puts decide races.
            durable: return only when the object survives power loss (local folders: fsync of file and folder).

        Raises:
            AlreadyExists: ``create_only`` and the object exists. After a lost reply it may be ours (`create_once`).
            Unavailable, OutcomeUnknown: the store failed; with OutcomeUnknown the object may exist. Kinds of
                `LASTING_KINDS` stay until an operator acts.
        Cost: 1 PUT.
        """

    def put_each(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        """Write several small objects, each create-only. All of them survive power loss when this returns.

        Args:
            objects: path and body of each. Nothing may refer to them yet, because until this returns a power loss may
                leave one of them truncated under its name.

        Raises:
            AlreadyExists: one of the paths is taken. Other objects of this call may exist.
            Unavailable, OutcomeUnknown: the store failed; any of the objects may exist.
        Cost: 1 PUT for each object. On local folders they are synced concurrently, which takes hardly longer than one.
        To a remote store 16 are sent concurrently.
        """
        for path, body in objects:
            self.put(path, body, create_only=True, durable=False)
        self.sync([path for path, _ in objects])

    def begin_put(self, path: str, *, durable: bool = True) -> Upload | None:
        """Begin a create-only put whose bytes arrive one after another, if the store can write them as they arrive.

        Returns:
            The upload; None if a put is one request in this store: collect the bytes, and `put` them.
        Raises as `put`. Cost: 1 PUT, when it is finished.
        """
        return None

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        """Write one object of any size, chunk by chunk, replacing an existing one. Return its size in bytes.

        After an error of the iterator, or a crash, the earlier object, if any, is unchanged. About two parts
        (`StoreLimits.upload_part_bytes`) and one chunk are in memory.

        Args:
            create_only: fail with `AlreadyExists` if the object exists at the end of the stream, and leave it
                unchanged. Vendors have no condition for objects in parts. There a HEAD precedes the last request, so
                use a unique name if two streams may race for it. After a lost reply the object may be ours.

        Raises:
            AlreadyExists: ``create_only`` and the object exists.
            InvalidRequest: a chunk is not bytes, or the object is too large for the vendor in parts of this size.
            Unavailable: the store failed. The iterator is consumed, so only single parts are retried.
        Cost: a body of at most one part 1 PUT; otherwise a PUT for each part, and 2 more (Azure: 1). With
        ``create_only`` 1 HEAD.
        """

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        """Read an object in chunks of `chunk_bytes` (the last may be shorter; an empty object yields no chunks).

        The call itself reads the first chunk, so that its errors are raised before any byte is returned.

        Raises:
            NotFound, InvalidRequest: as `get`.
        Cost: 1 GET for each chunk, when the chunk is requested; without a range 1 HEAD.
        """

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """List the objects below a folder, at any depth, lazily, in lexicographic order of their UTF-8 path.

        ``prefix`` is a folder (whole segments; ``""`` is the root). A missing folder lists nothing.
        ``start_after`` is a full path, exclusive. Cost: 1 LIST for 1000 names.
        """

    def list_paths(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[str]:
        """As `list`, for a caller that needs only paths: a local folder does not read the metadata of its files."""
        return (meta.path for meta in self.list(prefix, start_after=start_after))

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        """List one level below a folder. Cost: 1 LIST for 1000 names."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Deleting a missing one is a no-op. Deletions survive power loss. Cost: 1 DELETE for 1000."""

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        """Copy one object inside the store.

        Raises `NotFound`, and `AlreadyExists` with ``create_only``. Cost: 1 COPY; with ``create_only``, which most
        vendors lack for copies, 1 GET + 1 PUT in a bucket.
        """

    def sync(self, paths: Iterable[str]) -> None:
        """Make objects that another engine wrote in place durable, as if put with ``durable=True``.

        Raises `NotFound` for a missing one. Cost: on local folders one fsync for each file and each folder; elsewhere,
        and in a store opened with ``durable=False``, nothing.
        """

    def url(self, path: str) -> str:
        """Return the object's URL, for another engine. It contains no credential."""

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        """Return a URL with an expiring permission. Raises `InvalidRequest` if the vendor has no such URLs."""

    def sub(self, prefix: str) -> ObjectStore:
        """Return a view of one folder that cannot leave it. It shares counters and limits with this store."""

    def require_folder(self, *, with_descriptor: bool = True) -> ObjectStore:
        """Return a view of the same folder for an object that stays open, such as a database.

        Once a local folder was renamed or removed, the view does not create it again, because an acknowledged write
        there would not be found. It raises `Unavailable`, kind ``folder_moved``. A folder that does not exist yet is
        created once.

        Args:
            with_descriptor: keep the folder open, so that nothing is written or deleted in another folder in its place.

        Cost: a descriptor, if requested, until `release_folder`, and a system call for each write. On object stores
        nothing.
        """
        return self

    def release_folder(self) -> None:
        """Close the descriptor that `require_folder` opened, for this view and all views that were made from it."""
        return

    def count(self) -> AbstractContextManager[RequestCounts]:
        """Count requests made inside the ``with`` block, by this store and its sub-stores, from all threads."""


def has_object(store: ObjectStore, path: str) -> bool:
    """Return whether an object exists. Cost: 1 HEAD."""
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def read_each(store: ObjectStore, read: Callable[[T], R], items: Sequence[T], *, environment: Environment) -> list[R]:
    """Read many objects of a store, and return what `read` returns for each item, in order.

    Cost: that of `read`, 16 at once. In local folders one after the other, because threads would only wait there.
    """
    if store.root_url.startswith(("file:", "memory:")):
        return [read(item) for item in items]
    return map_in_pool(environment.runtime, read, items, worker_count_max=_READS_AT_ONCE)
