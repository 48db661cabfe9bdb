"""Replies: Starlette's responses, with JSON by msgspec, and bodies that are streamed from a store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
encode: Final = msgspec.json.Encoder().encode
"""A value as JSON."""


class StreamedResponse(StreamingResponse):
    """A reply whose body comes in pieces; its headers hold its length.

    A client that goes away is noticed when the next piece is sent, so no task listens for it.
    """

    def __init__(self, chunks: AsyncIterator[memoryview], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, status, headers)

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.stream_response(send)


def json(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(encode(value), status, media_type="application/json")


def empty(status: int = 204) -> Response:
    """Nothing but a status."""
    return Response(status_code=status)


def printable(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers whose values users may have chosen: only printable ASCII is left, so that no value ends its header."""
    return {name: _UNPRINTABLE.sub("", value) for name, value in headers.items()}
