"""Replies: Starlette's responses, with JSON by msgspec, and bodies that are streamed from a store."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import Buffer, override

from lakebed.http.access_log import TRACE, RequestTrace

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_ENCODER: Final = msgspec.json.Encoder()
encode: Final = _ENCODER.encode
"""A value as JSON."""


@lru_cache(maxsize=1_024)
def format_date(seconds: int) -> str:
    """Unix time in the form of a header. Cached: objects that were put at the same time share it."""
    return formatdate(seconds, usegmt=True)


IS_GONE: Final = "lakebed.is_gone"
"""In the scope of a request: whether its client has disconnected, so that the rest of a reply is useless."""


HAS_PIECE: Final = "lakebed.has_piece"
"""In the scope of a request: whether a piece of its body, or the body's end, has arrived."""


SEND_WHOLE: Final = "lakebed.send_whole"
"""In the scope of a request: a `SendWhole`, if the connection can send a whole reply in one piece."""

SendWhole = Callable[[int, Sequence[tuple[bytes, bytes]], bytes | memoryview], bool]
"""Takes status, headers and body; returns whether the reply was sent. If not, send it with ASGI's messages."""

SEND_CHUNK: Final = "lakebed.send_chunk"
"""In the scope of a request: a `SendChunk`, if the connection can send a part of a reply without copying it."""

Piece = Sequence[bytes | memoryview]
"""A part of a body, in several buffers; the items of the views are bytes."""

SendChunk = Callable[[Piece, int], Awaitable[None]]
"""Sends the next part of a body whose length was not stated, given its size in bytes. Waits as ASGI's `send` does."""

ARRIVAL: Final = "lakebed.arrival"
"""In the scope of a request: its number among the requests that came to the process (`Arrivals`)."""


P = TypeVar("P")


class Arrivals:
    """Counts the requests of an event loop as their heads come in.

    A state that was read after a request came is new enough for the request, however much later it is answered. So
    requests that come together can share a read.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        """The number of the request that came just now."""
        self.count += 1
        return self.count


async def send_reply(reply: Response, scope: Scope, receive: Receive, send: Send) -> int:
    """Send a reply, in one piece if possible.

    Returns:
        The size of its body in bytes, or 0 if the whole reply went through `send`.
    """
    send_whole: SendWhole | None = scope.get(SEND_WHOLE)
    is_whole = type(reply) is Response and reply.background is None
    if send_whole is not None and is_whole and send_whole(reply.status_code, reply.raw_headers, reply.body):
        return len(reply.body)
    await reply(scope, receive, send)
    return 0


class _PiecesResponse(StreamingResponse, Generic[P]):
    """A reply whose body comes in pieces.

    The next piece that is sent detects that a client has disconnected, so no task listens for it. The rest is not read.
    """

    def __init__(self, pieces: AsyncGenerator[P, None], status: int, headers: Mapping[str, str]) -> None:
        super().__init__((), status, headers)
        self._pieces = pieces

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._send_pieces(scope, send)

    async def _send_pieces(self, scope: Scope, send: Send) -> None:
        is_gone: Callable[[], bool] = scope.get(IS_GONE, lambda: False)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await self._send_piece(piece, scope, send)
                if is_gone():
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_piece(self, piece: P, scope: Scope, send: Send) -> None:
        raise NotImplementedError


class StreamedResponse(_PiecesResponse[Buffer]):
    """A reply whose body comes in pieces. Its headers hold the length, if it is known."""

    @override
    async def _send_piece(self, piece: Buffer, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.body", "body": memoryview(piece), "more_body": True})


class GatheredResponse(_PiecesResponse[Piece]):
    """A reply of unknown length. Each piece consists of several buffers, which are sent without joining them.

    Joining a piece would copy it twice into new memory, which took a quarter of a node's time for a scan.
    """

    @override
    async def _send_piece(self, piece: Piece, scope: Scope, send: Send) -> None:
        send_chunk: SendChunk | None = scope.get(SEND_CHUNK)
        if send_chunk is None:
            await send({"type": "http.response.body", "body": b"".join(piece), "more_body": True})
            return
        size_bytes = sum(map(len, piece))
        trace: RequestTrace = scope[TRACE]
        trace.bytes_out += size_bytes
        await send_chunk(piece, size_bytes)


def encode_each(values: Sequence[Any]) -> list[bytes]:
    """Each value as JSON. Cost: as one value: they are encoded as lines, because JSON has no line break."""
    return _ENCODER.encode_lines(values).split(b"\n")[:-1]


def json(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(encode(value), status, media_type="application/json")


def empty(status: int = 204) -> Response:
    """A reply that has only a status."""
    return Response(status_code=status)


def printable(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers whose values users may have chosen, reduced to printable ASCII, so that no value ends its header."""
    return {name: _UNPRINTABLE.sub("", value) for name, value in headers.items()}
