"""Streams over single requests, for every store.

Owns: the division of a stream into requests. Invariants: a range is read by one request after another, each when its
chunk is needed, so a stream never has more than one chunk in memory. A short body is detected before an upload is
begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from typing_extensions import Buffer

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ByteRange, ObjectStore


def byte_view(body: Buffer) -> memoryview:
    """Return a read-only one-dimensional view of a buffer's bytes.

    Raises:
        InvalidRequest: not a buffer, or not contiguous.
    """
    try:
        view = memoryview(body)
        return (view if view.format == "B" and view.ndim == 1 else view.cast("B")).toreadonly()
    except TypeError as error:
        raise InvalidRequest(
            f"a body must be contiguous bytes, not {type(body).__name__}: pass bytes, a memoryview or an Arrow buffer",
            kind="invalid_body",
        ) from error


def check_chunks(chunks: Iterable[Buffer]) -> None:
    """Raise `InvalidRequest` if a whole body was given instead of its chunks."""
    if isinstance(chunks, bytes | bytearray | memoryview | str) or not isinstance(chunks, Iterable):
        raise InvalidRequest(
            f"a stream is an iterable of chunks, not {type(chunks).__name__}: put whole bodies with put",
            kind="invalid_body",
        )


def take_first(chunks: Iterable[Buffer], *, bytes_max: int) -> bytearray | Iterator[memoryview]:
    """Return the whole stream if it has at most `bytes_max`; otherwise an equal stream, including its beginning.

    Raises `InvalidRequest`.
    """
    check_chunks(chunks)
    views = map(byte_view, chunks)
    first = bytearray()
    for view in views:
        if len(first) + len(view) > bytes_max:
            return _again([memoryview(first), view], views)
        first += view
    return first


def _again(taken: list[memoryview], views: Iterator[memoryview]) -> Iterator[memoryview]:
    """Yield the chunks already taken, each released when it is yielded, then the others."""
    while taken:
        yield taken.pop(0)
    yield from views


def stream_ranges(store: ObjectStore, path: str, *, byte_range: ByteRange | None, chunk_bytes: int) -> Iterator[Buffer]:
    """`ObjectStore.get_stream` over `ObjectStore.get`."""
    if chunk_bytes < 1:
        raise InvalidRequest(f"chunk_bytes is {chunk_bytes}: a chunk has at least a byte", kind="invalid_chunk")
    if byte_range is None:
        size_bytes = store.head(path).size_bytes
        if size_bytes == 0:
            return iter(())
        start, end = 0, size_bytes
    else:
        start, end = byte_range
    first = store.get(path, byte_range=(start, min(end, start + chunk_bytes) if start < end else end))
    return _rest(store, path, first, start, end, chunk_bytes)


def _rest(store: ObjectStore, path: str, chunk: Buffer, start: int, end: int, chunk_bytes: int) -> Iterator[Buffer]:
    while True:
        wanted_bytes, size_bytes = min(end - start, chunk_bytes), memoryview(chunk).nbytes
        yield chunk
        start += size_bytes
        if size_bytes < wanted_bytes or start == end:
            return
        try:
            chunk = store.get(path, byte_range=(start, min(end, start + chunk_bytes)))
        except InvalidRequest as error:
            if error.kind == "invalid_range":  # the object ends at the end of a chunk, before the end of the range
                return
            raise
