"""The bytes of entries: each upload gets a new name, and bytes are read from the address in an entry.

Owns: uploads, downloads, copies and signed URLs. Invariants:

- An entry is made only for bytes that are durable, so a staged entry never refers to a missing object.
- A name (``data/<ulid>``) is used once and put create-only, so a failed, repeated or late upload overwrites nothing.
- A copy copies the bytes.
- Imported objects are read at their places, and never written.
- A stream holds a few parts of an object, however large the object is.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import msgspec
from typing_extensions import Buffer

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.create_once import put_new, put_new_each
from lakebed.objects.memory import exists_error
from lakebed.objects.path import parse_url
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, ObjectStore, has_object
from lakebed.objects.streaming import byte_view
from lakebed.repo.model.entry import address_ulid, is_upload, new_address, new_upload
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.intact import read_object, read_object_ranges, read_resident_object, stream_object
from lakebed.repo.outside.foreign import is_foreign
from lakebed.repo.records.context import RepositoryContext
from lakebed.runtime import Environment

R = TypeVar("R")

CONTENT_TYPE: Final = "application/octet-stream"
"""The content type of an object without one."""

METADATA_BYTES_MAX: Final = 64 << 10
"""Largest size of an entry's metadata and content type, in UTF-8: every range and every listing contains them."""

LOOKS_MAX: Final = 8
"""Most entries of a path whose bytes a read tries: a collection may have deleted the bytes of each earlier entry."""

READ_AHEAD_BYTES: Final = 1 << 20
"""Bytes that an open file reads at least, and buffers."""


def upload(
    context: RepositoryContext,
    content: Buffer | Iterable[Buffer],
    *,
    content_type: str = CONTENT_TYPE,
    metadata: Mapping[str, str] | None = None,
) -> Entry:
    """Store bytes under a new address.

    Args:
        content: the whole body, or its chunks in order. An error of the iterator is passed on, and leaves nothing.
        content_type: the object's content type, such as ``text/csv``.

    Returns:
        The entry, to be staged. Its bytes are durable. Until it is staged nothing refers to them, and a collection
        deletes them when they are old enough.

    Raises:
        InvalidRequest: kind ``invalid_body``, ``invalid_metadata``.
        Unavailable: the store failed. At most bytes are left that a collection finds.
    Cost: 1 PUT; for chunks that are together larger than a part, as `ObjectStore.put_stream`. Memory: about two parts.
    """
    return upload_to(
        context.store, content, content_type=content_type, metadata=metadata, environment=context.environment
    )


def upload_to(
    store: ObjectStore,
    content: Buffer | Iterable[Buffer],
    *,
    content_type: str = CONTENT_TYPE,
    metadata: Mapping[str, str] | None = None,
    environment: Environment,
) -> Entry:
    """As `upload`, with only the storage namespace: for tasks of a job, which have no records."""
    checked_metadata = check_metadata(metadata, content_type=content_type)
    address = new_address(environment)
    digest = hashlib.md5(usedforsecurity=False)
    body = whole_body(content)
    if body is not None:
        digest.update(body)
        put_new(store, address, body)
        size_bytes = len(body)
    else:
        chunks = _digest_chunks(cast(Iterable[Buffer], content), digest.update)
        size_bytes = store.put_stream(address, chunks, create_only=True)
    return Entry(address, size_bytes, digest.hexdigest(), environment.clock.now_ms(), content_type, checked_metadata)


def upload_each(context: RepositoryContext, objects: Iterable[tuple[Buffer, str, dict[str, str]]]) -> list[Entry]:
    """Store small objects. All are durable when this returns.

    Args:
        objects: bytes, content type and metadata of each, as `check_metadata` returns it.

    Raises as `upload`; then there are no entries, and a collection finds the bytes that were stored.
    Cost: 1 PUT an object. In a local folder they are synced together, which takes hardly longer than one sync.
    """
    environment = context.environment
    now_ms = environment.clock.now_ms()
    bodies: list[tuple[str, memoryview]] = []
    entries: list[Entry] = []
    for body, content_type, metadata in objects:
        address, view = new_address(environment), byte_view(body)
        bodies.append((address, view))
        checksum = hashlib.md5(view, usedforsecurity=False).hexdigest()
        entries.append(Entry(address, len(view), checksum, now_ms, content_type, metadata))
    put_new_each(context.store, bodies)
    return entries


def whole_body(content: Buffer | Iterable[Buffer]) -> memoryview | None:
    """The body as a whole; None: it comes in chunks. Raises `InvalidRequest` (``invalid_body``)."""
    try:
        memoryview(content)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        if isinstance(content, Iterable) and not isinstance(content, str):
            return None
    return byte_view(cast(Buffer, content))


def _digest_chunks(chunks: Iterable[Buffer], update: Callable[[Buffer], None]) -> Iterator[Buffer]:
    for chunk in chunks:
        view = byte_view(chunk)
        update(view)
        yield view


def check_metadata(metadata: Mapping[str, str] | None, *, content_type: str = CONTENT_TYPE) -> dict[str, str]:
    """Return a copy of the metadata, if an entry can have it. Raises `InvalidRequest` (``invalid_metadata``)."""
    checked = {} if metadata is None else dict(metadata)
    texts = [content_type, *checked, *checked.values()]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            "An object's metadata and content type are text, names and values alike.", kind="invalid_metadata"
        )
    try:
        size_bytes = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "An object's metadata holds half a character: give valid Unicode.", kind="invalid_metadata"
        ) from error
    if size_bytes > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"The metadata of an object has {size_bytes:,} bytes, and {METADATA_BYTES_MAX:,} are possible: put what is "
            "larger into an object of its own.",
            kind="invalid_metadata",
        )
    return checked


def read_found(find: Callable[[], Entry], read: Callable[[Entry], R]) -> R:
    """Find an entry and read its bytes. If a collection deleted them meanwhile, read the entry that replaced it.

    A staged entry can be overwritten, deleted or reset. Its bytes are collected once they are old enough.

    Args:
        find: returns the path's entry now.
        read: reads an entry's bytes; called at most `LOOKS_MAX` times.

    Raises:
        The errors of both. `NotFound`, kind ``object_gone``: the bytes of the path's present entry are missing.
    """
    entry = find()
    for _ in range(LOOKS_MAX - 1):
        try:
            return read(entry)
        except NotFound as error:
            entry = find_newer(find, entry, gone=error)
    return read(entry)


def find_newer(find: Callable[[], Entry], entry: Entry, *, gone: NotFound) -> Entry:
    """Find the entry that replaced one whose bytes are missing.

    Raises the errors of `find`. Raises `gone` if its kind is not ``object_gone``, or if the entry was not replaced.
    """
    if gone.kind == "object_gone":
        newest = find()
        if newest.address != entry.address:
            return newest
    raise gone


def read(context: RepositoryContext, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
    """Read the bytes of an entry, or a range of them. The result is read-only, as from `ObjectStore.get`.

    Raises:
        InvalidRequest: kind ``invalid_range``: the range is empty or starts past the end; ``import_not_allowed``.
        NotFound: kind ``object_gone``: the bytes are gone; ``import_gone``: an imported object is gone.
        Corruption: kind ``wrong_size``: there are fewer or more bytes than were stored; ``import_changed``: an imported
            object has another size or etag than at the import.
    Cost: 1 GET; for an imported object also 1 HEAD.
    """
    store, path = _locate(context, entry)
    with _explain_missing(context, entry):
        return read_object(store, path, entry, byte_range=byte_range)


def read_resident(context: RepositoryContext, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer | None:
    """As `read`, if the bytes can be read without waiting; None: call `read`, which waits or raises the error.

    For an event loop. Always None for an imported object. Raises as `read`. Cost: 1 GET; none if it returns None.
    """
    if is_foreign(entry.address):
        return None
    with _explain_missing(context, entry):
        return read_resident_object(context.store, entry.address, entry, byte_range=byte_range)


def read_ranges(context: RepositoryContext, entry: Entry, *, ranges: Sequence[ByteRange]) -> list[Buffer]:
    """Read several ranges of an entry's bytes, in the order of `ranges`; near ranges are joined. Raises as `read`.

    Cost: 1 GET a joined range; for an imported object also 1 HEAD.
    """
    store, path = _locate(context, entry)
    with _explain_missing(context, entry):
        return read_object_ranges(store, path, entry, ranges)


def stream(
    context: RepositoryContext,
    entry: Entry,
    *,
    byte_range: ByteRange | None = None,
    chunk_bytes: int = STREAM_CHUNK_BYTES,
) -> Iterator[Buffer]:
    """Iterate over the bytes of an entry in chunks. The call itself reads the first chunk, and so raises its errors.

    Raises:
        As `read`.
    Cost: 1 GET a chunk, lazily; for an imported object also 1 or 2 HEADs. Memory: 1 chunk.
    """
    store, path = _locate(context, entry)
    with _explain_missing(context, entry):
        return stream_object(store, path, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)


def ranges_file(
    read_range: Callable[[ByteRange], Buffer],
    *,
    size_bytes: int,
    look_again: Callable[[NotFound], int] | None = None,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> io.BufferedReader:
    """A seekable file over bytes that are read in ranges, for libraries that need a file.

    Args:
        look_again: called if the bytes are gone at the first read. Makes `read_range` read the bytes that replaced
            them, and returns their size.
        read_ahead_bytes: bytes to read at least, and to buffer until another part of the file is read.

    Cost: 1 GET for every `read_ahead_bytes` read in order, and 1 for each larger read. Opening costs nothing.
    """
    return io.BufferedReader(_RangesFile(read_range, size_bytes, look_again), buffer_size=max(1, read_ahead_bytes))


class _RangesFile(io.RawIOBase):
    """An unbuffered file over bytes that are read in ranges."""

    def __init__(
        self,
        read_range: Callable[[ByteRange], Buffer],
        size_bytes: int,
        look_again: Callable[[NotFound], int] | None,
    ) -> None:
        super().__init__()
        self._look_again = look_again  # None once the caller has seen bytes or the size
        self._read_range = read_range
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        if whence not in origins or origins[whence] + offset < 0:
            raise InvalidRequest(f"A file cannot be sought to {offset} from {whence}.", kind="invalid_seek")
        self._position = origins[whence] + offset
        if whence == io.SEEK_END:
            self._look_again = None
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        body = self._take(len(memoryview(buffer).cast("B")))
        memoryview(buffer).cast("B")[: len(body)] = body
        return len(body)

    def readall(self) -> bytes:
        return bytes(self._take(sys.maxsize))  # a first read may change the size, so no size is computed here

    def _take(self, size_bytes: int) -> memoryview:
        looks_left = LOOKS_MAX - 1
        while True:
            end = min(self._position + size_bytes, self._size_bytes)
            if end <= self._position:
                return memoryview(b"")
            try:
                body = memoryview(self._read_range((self._position, end)))
                break
            except NotFound as error:
                if self._look_again is None or not looks_left:
                    raise
                self._size_bytes = self._look_again(error)
                looks_left -= 1
        self._look_again = None
        self._position += len(body)
        return body


def copy(context: RepositoryContext, entry: Entry) -> Entry:
    """Copy an entry's bytes to a new address, and return the copy's entry, with the same metadata and a new time.

    Raises:
        NotFound: as `read`.
    Cost: 1 HEAD and 1 COPY inside the store; in a local store a read and a write. An imported object is downloaded and
    uploaded, as streams.
    """
    if is_foreign(entry.address):
        return upload(context, stream(context, entry), content_type=entry.content_type, metadata=entry.metadata)
    address = new_address(context.environment)
    with _explain_missing(context, entry):
        _copy_new(context.store, entry.address, address)
    return msgspec.structs.replace(entry, address=address, modified_ms=context.now_ms())


def _copy_new(store: ObjectStore, source: str, address: str) -> None:
    """Copy inside the store to a new address, create-only if that costs no more than a copy.

    In a bucket, the bytes of a create-only copy would go through this process. There the address is checked first,
    which suffices because it is new.
    """
    if parse_url(store.root_url).scheme in ("file", "memory"):
        store.copy(source, address, create_only=True)
        return
    if has_object(store, address):
        raise exists_error(address, store.root_url)
    store.copy(source, address)


def physical_url(context: RepositoryContext, entry: Entry) -> str:
    """The URL of an entry's bytes, for another engine, without credentials."""
    return entry.address if is_foreign(entry.address) else context.store.url(entry.address)


def physical_urls(context: RepositoryContext, entries: Iterable[Entry]) -> list[str]:
    """`physical_url` of many entries. Cost: about 0.1 us each."""
    start = f"{context.store.root_url}/"
    return [entry.address if is_foreign(entry.address) else start + entry.address for entry in entries]


def sign_get(context: RepositoryContext, entry: Entry, *, expires_in_s: int) -> str:
    """Sign a URL with which anyone may read the bytes for a time. Raises `InvalidRequest` if the store has none."""
    store, path = _locate(context, entry)
    return store.signed_url(path, expires_in_s=expires_in_s)


def sign_put(context: RepositoryContext, *, expires_in_s: int) -> tuple[str, str]:
    """A new address, and a URL with which anyone may put bytes there. `link_object` makes an entry of them.

    While the URL is valid, its holder may replace the bytes. So no entry gets this address: `link_object` copies the
    bytes. Raises `InvalidRequest` if the store has no signed URLs.
    """
    address = new_upload(context.environment)
    return address, context.store.signed_url(address, expires_in_s=expires_in_s, method="PUT")


def address_of(context: RepositoryContext, url: str) -> str:
    """The address for an entry whose bytes are at a URL: inside the namespace the path, else the URL itself.

    Raises:
        InvalidRequest: kind ``invalid_address``: the path is in the namespace, and is no object's address;
            ``invalid_url``, ``import_not_allowed``.
    Cost: none.
    """
    address = url.removeprefix(context.store.root_url + "/")
    if is_foreign(address):
        context.foreign.check([address])
        return address
    if address_ulid(address) is None and not is_upload(address):
        raise InvalidRequest(
            f"{url!r} is not an address of an object of repository {context.name}: link what was uploaded to an "
            "address that it gave, or import from outside of its namespace.",
            kind="invalid_address",
            address=url,
        )
    return address


def link_object(
    context: RepositoryContext,
    url: str,
    *,
    checksum: str | None = None,
    content_type: str = CONTENT_TYPE,
    metadata: Mapping[str, str] | None = None,
) -> Entry:
    """Make an entry for bytes that another program has put: to an address of `sign_put`, or outside the repository.

    Args:
        url: an address, or a URL.
        checksum: the checksum that the writer states; None: the store's etag.

    Returns:
        The entry, with the size that the store reports.

    Raises:
        InvalidRequest: as `address_of`.
        NotFound: there are no bytes.
    Cost: 1 HEAD; in a local folder also an fsync; for bytes that were put to a signed URL also 1 HEAD and 1 COPY.
    """
    checked_metadata = check_metadata(metadata, content_type=content_type)
    address = address_of(context, url)
    if is_upload(address):
        address = _take_over(context, address)
    entry = Entry(address, 0, checksum or "", context.now_ms(), content_type, checked_metadata)
    store, path = _locate(context, entry)
    with _explain_missing(context, entry):
        meta = store.head(path)
        if not is_foreign(address):
            store.sync([path])
    etag = (meta.etag or "").strip('"')
    return msgspec.structs.replace(entry, size_bytes=meta.size_bytes, checksum=checksum or etag)


def _take_over(context: RepositoryContext, upload: str) -> str:
    """Copy an object that was put to a signed URL to an address without one. The original is garbage then."""
    address = new_address(context.environment)
    with _explain_missing(context, Entry(upload, 0, "", 0)):
        _copy_new(context.store, upload, address)
    return address


def _locate(context: RepositoryContext, entry: Entry) -> tuple[ObjectStore, str]:
    return context.foreign.locate(entry.address) if is_foreign(entry.address) else (context.store, entry.address)


@contextmanager
def _explain_missing(context: RepositoryContext, entry: Entry) -> Iterator[None]:
    """Turn `NotFound` for missing bytes into an error that explains where they went."""
    try:
        yield
    except NotFound as missing:
        if is_foreign(entry.address):
            raise NotFound(
                f"The object was imported from {entry.address}, and it is not there any more: put it back, or import "
                "it again.",
                kind="import_gone",
                address=entry.address,
            ) from missing
        raise NotFound(
            f"The bytes at {entry.address} of repository {context.name} are not in its storage: a collection takes "
            "those of expired commits, of what was overwritten, deleted or reset before it was committed, and of "
            "uploads that were never staged. Look the path up again.",
            kind="object_gone",
            address=entry.address,
        ) from missing
