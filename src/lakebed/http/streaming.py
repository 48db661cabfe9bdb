"""Bodies larger than memory: from the event loop to a store that takes an iterator, and back.

Owns: the hand-over between the loop, which receives and sends a client's bytes, and a thread, in which a store works.
Invariants: about three pieces of `ServerOptions.chunk_bytes` are in memory, however large the object is and however
slow either side is: the client waits for the store, and the store for the client. When the client disconnects, the
store's iterator raises an error, so that nothing is left of the upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from typing_extensions import Buffer

from lakebed.errors import Unavailable
from lakebed.http.upload_slots import UploadSlot, UploadSlots

R = TypeVar("R")

_WAITING_MAX: Final = 2
"""Pieces between the loop and the thread."""


class _Ended:
    """The end of a body, or the error that ended it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


async def _gather_chunks(chunks: AsyncIterator[bytes], *, bytes_min: int) -> AsyncIterator[list[bytes]]:
    """Group the chunks into lists of at least `bytes_min`, except the last. Each list costs a hand-over to a thread.

    The chunks are not joined: new pages for each piece, and the copy, took a tenth of an upload's time.
    """
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size >= bytes_min:
            yield pieces
            pieces, size = [], 0
    if pieces:
        yield pieces


async def whole_or_stream(chunks: AsyncIterator[bytes], *, bytes_max: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """Read a body: a body of at most `bytes_max` as bytes and None; a larger one as no bytes and an iterator of it."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            return b"", prepend(pieces, chunks)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), None


async def prepend(pieces: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes of `pieces`, which is emptied, then the rest."""
    first = b"".join(pieces)
    pieces.clear()
    if first:
        yield first
    del first
    async for chunk in rest:
        yield chunk


async def upload(
    chunks: AsyncIterator[bytes], *, into: Callable[[Iterator[Buffer]], R], slots: UploadSlots, piece_bytes: int
) -> R:
    """Pass a body to a call that takes an iterator, while it arrives, in pieces of at least `piece_bytes`.

    Args:
        into: runs in a thread. An error of `chunks` is raised inside its iterator, and then by this function.
        slots: the upload waits for one of them, and holds it.

    Raises:
        InvalidRequest: kind ``stalled``: no piece came for a long time while other uploads waited.
        Whatever `chunks` or `into` raises.
    """
    async with slots.hold() as slot:
        return await _upload(_gather_chunks(chunks, bytes_min=piece_bytes), into=into, slot=slot)


async def _upload(chunks: AsyncIterator[list[bytes]], *, into: Callable[[Iterator[Buffer]], R], slot: UploadSlot) -> R:
    loop = asyncio.get_running_loop()
    pieces: SimpleQueue[list[bytes] | _Ended] = SimpleQueue()
    capacity = asyncio.Semaphore(_WAITING_MAX)

    def arriving() -> Iterator[Buffer]:
        while True:
            piece = pieces.get()
            if isinstance(piece, _Ended):
                if piece.error is not None:
                    raise Unavailable("The client disconnected in the middle of its upload.", kind="client_gone")
                return
            yield from piece
            loop.call_soon_threadsafe(capacity.release)

    running_upload = loop.run_in_executor(slot.pool, into, arriving())
    try:
        async for chunk in chunks:
            await _either(capacity.acquire(), running_upload)
            if running_upload.done():  # the call failed: the rest of the body is not needed
                break
            pieces.put(chunk)
            slot.note_delivery()
    except BaseException as error:
        pieces.put(_Ended(error))
        await asyncio.wait([running_upload])
        running_upload.exception()  # it ends with our own error, which is raised here
        raise
    slot.complete()
    pieces.put(_Ended())
    return await running_upload


async def _either(capacity: Coroutine[Any, Any, bool], future: asyncio.Future[Any]) -> None:
    """Wait for capacity, or for the end of the call that frees it."""
    wait = asyncio.ensure_future(capacity)
    await asyncio.wait([wait, future], return_when=asyncio.FIRST_COMPLETED)
    if not wait.done():
        wait.cancel()


async def download(open_chunks: Callable[[], Iterator[R]], *, pool: Executor) -> AsyncGenerator[R, None]:
    """Pieces of an iterator that blocks, each read in a pool while the one before is sent.

    The first piece is read before this function returns, so that a missing object is an error and not half a reply.
    """
    loop = asyncio.get_running_loop()
    chunks = await loop.run_in_executor(pool, open_chunks)
    first = await loop.run_in_executor(pool, next, chunks, None)

    async def rest() -> AsyncGenerator[R, None]:
        chunk = first
        while chunk is not None:
            next_chunk = loop.run_in_executor(pool, next, chunks, None)
            try:
                yield chunk
                chunk = await next_chunk
            finally:
                if not next_chunk.cancel() and not next_chunk.cancelled():
                    next_chunk.exception()  # the client disconnected: there is no reply for it to end

    return rest()
