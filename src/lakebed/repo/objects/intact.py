"""Read an entry's bytes, and detect bytes that are not those that the entry was made for.

Owns: the comparison of an entry with its store's answers.

Invariants:
- A read returns as many bytes as the entry states, or fails.
- A read of an imported object fails if the source has another size or etag than at the import. The source is checked
  after its bytes were read, so a change before or during the read is detected.
- No checksum is computed: a deep check does that (`lakebed.fsck.repository`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from typing_extensions import Buffer

from lakebed.errors import Corruption, InvalidRequest
from lakebed.objects.port import ByteRange, ObjectMeta, ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.repo.outside.foreign import is_foreign

_FILE_ETAG: Final = re.compile("[0-9a-f]+-([0-9a-f]+-[0-9a-f]+)")
"""Etag of a file: inode, time and size. A file restored from a backup has another inode, and the same time and size."""
_S3_ETAG: Final = re.compile("[0-9a-f]{32}(-[0-9]+)?")


def read_object(store: ObjectStore, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
    """Read the bytes of an entry, or a range of them.

    Raises:
        InvalidRequest: kind ``invalid_range``: it is empty, or starts past the entry's end.
        NotFound: the object is missing.
        Corruption: kind ``wrong_size``, or for an imported object ``import_changed``.
    Cost: 1 GET; for an imported object also 1 HEAD.
    """
    size_bytes = _length(entry, byte_range)
    with _inside(store, path, entry):
        body = store.get(path, byte_range=byte_range)
    _check_read(store, path, entry, [(body, size_bytes)])
    return body


def read_resident_object(
    store: ObjectStore, path: str, entry: Entry, *, byte_range: ByteRange | None = None
) -> Buffer | None:
    """As `read_object` for an uploaded object, without waiting; None: call `read_object`. Cost: 1 GET or none."""
    size_bytes = _length(entry, byte_range)
    body = store.get_resident(path, byte_range=byte_range)
    return body if body is not None and memoryview(body).nbytes == size_bytes else None


def read_object_ranges(store: ObjectStore, path: str, entry: Entry, ranges: Sequence[ByteRange]) -> list[Buffer]:
    """Read several ranges, in the order of `ranges`. Raises as `read_object`.

    Cost: 1 GET a joined range; for an imported object also 1 HEAD.
    """
    sizes = [_length(entry, byte_range) for byte_range in ranges]
    with _inside(store, path, entry):
        bodies = store.get_ranges(path, ranges)
    _check_read(store, path, entry, zip(bodies, sizes, strict=True))
    return bodies


def stream_object(
    store: ObjectStore, path: str, entry: Entry, *, byte_range: ByteRange | None = None, chunk_bytes: int
) -> Iterator[Buffer]:
    """Iterate over the bytes in chunks. The call itself reads the first chunk. Raises as `read_object`.

    Cost: 1 GET a chunk; for an imported object also 1 HEAD, and another before the last of several chunks.
    """
    size_bytes = _length(entry, byte_range)
    if size_bytes == 0:
        if store.head(path).size_bytes:
            raise _wrong_size(store, path, entry)
        return iter(())
    with _inside(store, path, entry):
        start = byte_range[0] if byte_range else 0
        chunks = store.get_stream(path, byte_range=(start, start + size_bytes), chunk_bytes=chunk_bytes)
    if is_foreign(entry.address):
        check_source(entry, store.head(path))
    return _check(store, path, entry, chunks, size_bytes)


def _check(store: ObjectStore, path: str, entry: Entry, chunks: Iterator[Buffer], size_bytes: int) -> Iterator[Buffer]:
    given_bytes = 0
    for chunk in chunks:
        is_first, given_bytes = given_bytes == 0, given_bytes + memoryview(chunk).nbytes
        if given_bytes >= size_bytes and not is_first and is_foreign(entry.address):
            check_source(entry, store.head(path))
        yield chunk
    if given_bytes != size_bytes:
        raise _wrong_size(store, path, entry)


def check_source(entry: Entry, meta: ObjectMeta) -> None:
    """Fail if an imported object is no longer the same as at the import.

    Compares the size, and the etag if the entry has one. An entry that a client staged may have the client's checksum
    instead. It is not compared if its form differs from the etag's, or if the object is older than the entry.

    Args:
        meta: the store's present data of the object.

    Raises:
        Corruption: kind ``import_changed``.
    """
    if meta.size_bytes == entry.size_bytes and _is_same_etag(entry, meta):
        return
    raise Corruption(
        f"{entry.address} was imported with {entry.size_bytes:,} bytes, and it changed since: it has "
        f"{meta.size_bytes:,} bytes and another time or etag now. Put the earlier object back with its time, or import "
        "it again.",
        kind="import_changed",
        path=entry.address,
        address=entry.address,
    )


def _is_same_etag(entry: Entry, meta: ObjectMeta) -> bool:
    before, now = entry.checksum.strip('"'), (meta.etag or "").strip('"')
    if not before or not now or before == now:
        return True
    files = _FILE_ETAG.fullmatch(before), _FILE_ETAG.fullmatch(now)
    if files[0] and files[1]:
        return files[0][1] == files[1][1]
    is_etag = not any(files) and (_S3_ETAG.fullmatch(before) is None) == (_S3_ETAG.fullmatch(now) is None)
    return not is_etag or meta.modified_ms < entry.modified_ms


def _length(entry: Entry, byte_range: ByteRange | None) -> int:
    """The number of bytes in a range of an entry. Raises `InvalidRequest` (``invalid_range``)."""
    if byte_range is None:
        return entry.size_bytes
    start, end = byte_range
    if not 0 <= start < end or start >= entry.size_bytes:
        raise InvalidRequest(
            f"Bytes {start} to {end} were asked for of an object of {entry.size_bytes:,} bytes: a range starts before "
            "its end and holds at least a byte.",
            kind="invalid_range",
            size_bytes=entry.size_bytes,
        )
    return min(end, entry.size_bytes) - start


def _check_read(store: ObjectStore, path: str, entry: Entry, bodies: Iterable[tuple[Buffer, int]]) -> None:
    """Compare the sizes of bodies with the expected ones, and check the source of an imported object."""
    if is_foreign(entry.address):
        check_source(entry, store.head(path))
    if any(memoryview(body).nbytes != size_bytes for body, size_bytes in bodies):
        raise _wrong_size(store, path, entry)


@contextmanager
def _inside(store: ObjectStore, path: str, entry: Entry) -> Iterator[None]:
    """Turn the store's ``invalid_range`` into ``wrong_size``: the range is in the entry, so the object is too short."""
    try:
        yield
    except InvalidRequest as error:
        if error.kind != "invalid_range":
            raise
        raise _wrong_size(store, path, entry) from error


def _wrong_size(store: ObjectStore, path: str, entry: Entry) -> Corruption:
    meta = store.head(path)
    if is_foreign(entry.address):
        check_source(entry, meta)
    return Corruption(
        f"The object {store.url(path)} is damaged: it was stored with {entry.size_bytes:,} bytes and has "
        f"{meta.size_bytes:,} now. Restore it from a backup; `lakebed fsck --deep` finds other damaged objects.",
        kind="wrong_size",
        path=entry.address,
    )
