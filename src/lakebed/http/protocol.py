"""HTTP on one connection, with bounds that the parser below does not have: how large and how late a head may be.

Owns: these two bounds. A head is everything before a request's body. Without them whoever can connect could fill the
memory with one endless header, or all connections with heads that never end, without an access key. Does not know:
requests; bodies have bounds of their own (`lakebed.http.call`).
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakebed.http.errors import ErrorBody
from lakebed.http.options import HttpOptions
from lakebed.http.replies import encode

__all__ = ["bounded_http"]

_TOO_LARGE: Final = "The head of the request is larger than {:,} bytes, the most that is read."
_TOO_LATE: Final = "The head of the request has not come within {:g} s."
_NO_HTTP: Final = "What was sent is no HTTP/1.1 request."


class BoundedHttp(HttpToolsProtocol):
    """See the module."""

    options: ClassVar[HttpOptions]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._head_bytes = 0
        self._in_head = True
        self._waiting: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: its first head must come in time."""
        super().connection_made(transport)
        self._wait()

    @override
    def data_received(self, data: bytes) -> None:
        """Bytes of a head are counted; those of a body are bounded by whoever reads it."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.options.head_bytes_max:
            self._refuse(431, "Request Header Fields Too Large", _TOO_LARGE.format(self.options.head_bytes_max))
        elif self._in_head and self._head_bytes and self._waiting is None:
            self._wait()

    @override
    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = max(self._head_bytes, 1)

    @override
    def on_headers_complete(self) -> None:
        """The head is whole: from here on the body has its own bounds."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.options.head_s, self._late)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _late(self) -> None:
        self._waiting = None
        if self._head_bytes:
            self._refuse(408, "Request Timeout", _TOO_LATE.format(self.options.head_s))
        else:
            self.transport.close()

    @override
    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(400, "Bad Request", _NO_HTTP)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Say why, and end the connection: what is left of the head is not read.

        Nothing is said in the middle of the reply to the request before.
        """
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = encode(ErrorBody(message))
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


def bounded_http(options: HttpOptions) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    return type("BoundedHttp", (BoundedHttp,), {"options": options})
