"""Replies: status, headers, body, and how they are sent over ASGI.

Owns: the two kinds of reply (whole, streamed) and the JSON encoding. Knows neither routes nor errors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec
from typing_extensions import Buffer

__all__ = [
    "Headers",
    "Receive",
    "Reply",
    "Scope",
    "Send",
    "StreamedReply",
    "empty",
    "encode",
    "headers_of",
    "json",
    "text",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_JSON: Final = (b"content-type", b"application/json")
_encoder: Final = msgspec.json.Encoder()
encode: Final = _encoder.encode
"""A value of `lakebed.server.bodies` as JSON."""


class Reply:
    """A whole reply."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: Buffer = b"", headers: Headers | None = None) -> None:
        self.status = status
        self.body = body
        self.headers: Headers = [] if headers is None else headers

    async def send(self, send: Send, *, with_body: bool = True) -> int:
        """Send it; the number of bytes of its body. ``with_body=False``: to HEAD, whose headers are those of GET."""
        size = memoryview(self.body).nbytes
        headers = self.headers
        if self.status not in {204, 304} and not any(name == b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body if with_body else b""})
        return size if with_body else 0


class StreamedReply:
    """A reply whose body comes in pieces; its headers hold its length."""

    __slots__ = ("chunks", "headers", "status")

    def __init__(self, status: int, chunks: AsyncIterator[Buffer], headers: Headers) -> None:
        self.status = status
        self.chunks = chunks
        self.headers = headers

    async def send(self, send: Send, *, with_body: bool = True) -> int:
        """Send it piece by piece, as fast as the client takes it; the number of bytes of its body."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        sent = 0
        if with_body:
            async for chunk in self.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                sent += memoryview(chunk).nbytes
        await send({"type": "http.response.body", "body": b""})
        return sent


def json(value: Any, status: int = 200) -> Reply:
    """A value as JSON."""
    return Reply(status, _encoder.encode(value), [_JSON])


def text(body: str, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> Reply:
    """Text."""
    return Reply(status, body.encode(), [(b"content-type", content_type.encode())])


def empty(status: int = 204) -> Reply:
    """Nothing but a status."""
    return Reply(status)


def headers_of(pairs: Mapping[str, str]) -> Headers:
    """Headers of a reply. What users may have chosen cannot end a header: only printable ASCII is left of a value."""
    return [(name.encode(), _UNPRINTABLE.sub("", value).encode()) for name, value in pairs.items()]
