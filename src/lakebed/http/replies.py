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
    """Unix time as a header has it. Kept: objects that were put together have the same."""
    return formatdate(seconds, usegmt=True)


IS_GONE: Final = "lakebed.is_gone"
"""In the scope of a request: whether its client has disconnected, so that the rest of a reply is of no use."""


HAS_PIECE: Final = "lakebed.has_piece"
"""In the scope of a request: whether a piece of its body, or its end, is here already."""


SEND_WHOLE: Final = "lakebed.send_whole"
"""In the scope of a request, where the connection can send a whole reply in one piece: `SendWhole`."""

SendWhole = Callable[[int, Sequence[tuple[bytes, bytes]], bytes | memoryview], bool]
"""Status, headers and body; whether the reply is sent. If not, it has to be sent as ASGI has it."""

SEND_CHUNK: Final = "lakebed.send_chunk"
"""In the scope of a request, where the connection can send a part of a reply without copying it: `SendChunk`."""

Piece = Sequence[bytes | memoryview]
"""A part of a body, in several places of memory; the views are of bytes."""

SendChunk = Callable[[Piece, int], Awaitable[None]]
"""The next part of a body whose length was not stated, and its size in bytes. Waits as ASGI's `send` does."""

ARRIVAL: Final = "lakebed.arrival"
"""In the scope of a request: its number among those that came to the process (`Arrivals`)."""


P = TypeVar("P")


class Arrivals:
    """Counts the requests of an event loop as their heads come in.

    What is looked at after a request had come is new enough for it, however much later it is answered: so those that
    come together can share a look.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        """The number of the request that came just now."""
        self.count += 1
        return self.count


async def send_reply(reply: Response, scope: Scope, receive: Receive, send: Send) -> int:
    """Send a reply, in one piece where that can be.

    Returns:
        The size of its body in bytes, or 0 when `send` was told of all of it.
    """
    send_whole: SendWhole | None = scope.get(SEND_WHOLE)
    is_whole = type(reply) is Response and reply.background is None
    if send_whole is not None and is_whole and send_whole(reply.status_code, reply.raw_headers, reply.body):
        return len(reply.body)
    await reply(scope, receive, send)
    return 0


class _PiecesResponse(StreamingResponse, Generic[P]):
    """A reply whose body comes in pieces.

    A client that goes away is noticed when the next piece is sent, so no task listens for it; the rest is not read.
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
    """A reply whose body comes in pieces; its headers hold its length, where that is known."""

    @override
    async def _send_piece(self, piece: Buffer, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.body", "body": memoryview(piece), "more_body": True})


class GatheredResponse(_PiecesResponse[Piece]):
    """A reply of unknown length each piece of which is several buffers: they are sent from where they are.

    Joined, a piece would be copied twice into new memory, which took a quarter of a node's time for a scan.
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
    """Values as JSON, each. Cost: as of all together; JSON has no line break, so they are encoded as lines."""
    return _ENCODER.encode_lines(values).split(b"\n")[:-1]


def json(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(encode(value), status, media_type="application/json")


def empty(status: int = 204) -> Response:
    """Nothing but a status."""
    return Response(status_code=status)


def printable(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers whose values users may have chosen: only printable ASCII is left, so that no value ends its header."""
    return {name: _UNPRINTABLE.sub("", value) for name, value in headers.items()}
