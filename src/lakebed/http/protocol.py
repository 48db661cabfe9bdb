"""HTTP on one connection, with bounds that the parser lacks: the size of a head, and the time of reading and writing.

A head is everything before a request's body. Without these bounds a client without credentials could fill the memory
with one endless header. It could also occupy all connections: with heads that never end, with bodies that continue
after a reply, or with replies that it does not read. Does not know: requests. A body has other bounds while its request
is answered (`lakebed.http.call`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lakebed.http.errors import ErrorBody
from lakebed.http.options import HttpOptions
from lakebed.http.replies import ARRIVAL, HAS_PIECE, IS_GONE, SEND_CHUNK, SEND_WHOLE, Arrivals, Piece, encode

_TOO_LARGE: Final = "The head of the request is larger than the limit of {:,} bytes: send fewer or shorter headers."
_TOO_LATE: Final = "The head of the request was not complete within {:g} s: send it again."
_NO_HTTP: Final = "The bytes received are not a valid HTTP/1.1 request."
_BODILESS: Final = frozenset((204, 304))
"""Statuses of replies that have no body, and need no length."""
_FRAMING: Final = frozenset((b"connection", b"transfer-encoding"))
"""Headers that say how a reply is framed. Replies with these are left to the cycle."""
_JOINED_BYTES_MAX: Final = 64 << 10
"""Largest body that is copied behind its head: up to this size, the copy costs less than a second write."""


class _ReplyTransport:
    """The transport of a reply. It sends the head together with the first piece of the body.

    A separate write of the head wakes a client that cannot continue yet: a third of the time of a small reply. A reply
    with a body is never only a head: `RequestResponseCycle` writes the body even if it is empty.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        has_body = cycle.scope["method"] != "HEAD"  # the reply to HEAD ends with its head
        self._head: bytes | None = b"" if has_body else None  # empty: not written yet; None: sent

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Keep a head; send everything else, while the client is connected."""
        if self._transport.is_closing():
            return
        if self._head is None or not self._cycle.response_started:  # the latter: 100 Continue
            self._transport.write(piece)
        elif not self._head:
            self._head = bytes(piece)
        else:
            head, self._head = self._head, None
            self._transport.writelines((head, piece))

    def writelines(self, pieces: Piece) -> None:
        """Send a part of a body, after the head if it is kept."""
        if self._head:
            pieces = (self._head, *pieces)
        self._head = None
        if not self._transport.is_closing():
            self._transport.writelines(pieces)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """End the connection after what was written, so that an incomplete reply does not look complete."""
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._transport.close()


async def _send_chunk(cycle: RequestResponseCycle, buffers: Piece, size_bytes: int) -> None:
    """Send a chunk of a body as its cycle would, without joining it."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if not cycle.disconnected and size_bytes:  # a chunk of no bytes would end the reply
        cycle.transport.writelines((b"%x\r\n" % size_bytes, *buffers, b"\r\n"))


def _send_whole(
    cycle: RequestResponseCycle,
    transport: asyncio.Transport,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes | memoryview,
) -> bool:
    """Send a reply as its cycle would, in one write and without a message for each part of it.

    Returns:
        False: nothing was sent, because this is not a plain reply with a length, or its client is slow.
    """
    if transport.is_closing():  # the cycle learns it one step of the loop later
        cycle.disconnected = True
    if cycle.disconnected:
        return True
    is_bodiless = status in _BODILESS
    if cycle.response_started or cycle.waiting_for_100_continue or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    pieces, length = [STATUS_LINE[status]], b""
    for name, value in (*cycle.default_headers, *headers):
        if name == b"content-length":
            length = value
        elif name in _FRAMING:
            return False
        pieces += (name, b": ", value, b"\r\n")
    pieces.append(b"\r\n")
    head = b"".join(pieces)
    size_bytes = len(body)
    line_count = len(pieces) // 4 + 2
    if head.count(b"\r") != line_count or head.count(b"\n") != line_count or b"\0" in head:
        return False  # a header that would end early: the cycle refuses it
    if (size_bytes or length) if is_bodiless else length != b"%d" % size_bytes:
        return False
    cycle.response_started = cycle.response_complete = True
    if size_bytes <= _JOINED_BYTES_MAX:
        transport.write(head + body)
    else:
        transport.writelines((head, body))
    cycle.message_event.set()
    cycle.on_response()
    return True


class BoundedHttp(HttpToolsProtocol):
    """A connection with bounded heads, whose client has to read its replies."""

    options: ClassVar[HttpOptions]
    arrivals: ClassVar[Arrivals]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._head_bytes = 0
        self._in_head = True
        self._cycles: list[RequestResponseCycle] = []  # of requests that came: several, if they are pipelined
        self._unread_bytes = 0  # that came behind a reply since the timer was started
        self._waiting: asyncio.TimerHandle | None = None
        self._unsent: asyncio.TimerHandle | None = None  # runs while the client has not read all of a reply

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._wait()

    @override
    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head, and those after a reply. The reader of a body bounds the body."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.options.head_bytes_max:
            self._refuse(431, "Request Header Fields Too Large", _TOO_LARGE.format(self.options.head_bytes_max))
            return
        cycle = self.cycle  # None after a head that was refused
        is_unread = not self._in_head and cycle is not None and cycle.response_complete and not self.pipeline
        if is_unread:
            self._unread_bytes += len(data)
        if self._waiting is None and (is_unread or (self._in_head and self._head_bytes)):
            self._wait()

    @override
    def on_message_begin(self) -> None:
        """Note that a head begins, and start its timer."""
        super().on_message_begin()
        self._stop_waiting()
        if not self.flow.write_paused:
            self._stop_watching()
        self._in_head = True
        self._head_bytes = max(self._head_bytes, 1)

    @override
    def on_headers_complete(self) -> None:
        """Stop counting and timing: the body has other bounds."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None:
            self._cycles = [*(other for other in self._cycles if not other.response_complete), cycle]
            cycle.scope[IS_GONE] = lambda: cycle.disconnected  # type: ignore[typeddict-unknown-key]
            cycle.scope[HAS_PIECE] = cycle.message_event.is_set  # type: ignore[typeddict-unknown-key]
            cycle.scope[ARRIVAL] = self.arrivals.add()  # type: ignore[typeddict-unknown-key]
            if cycle.scope["method"] != "HEAD":
                cycle.scope[SEND_WHOLE] = partial(_send_whole, cycle, self.transport)  # type: ignore[typeddict-unknown-key]
                cycle.scope[SEND_CHUNK] = partial(_send_chunk, cycle)  # type: ignore[typeddict-unknown-key]
            cycle.transport = _ReplyTransport(self.transport, cycle)  # type: ignore[assignment]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_waiting()
        self._stop_watching()
        self._disconnect()
        super().connection_lost(exc)

    def _disconnect(self) -> None:
        """Tell all requests that no client waits for their replies; uvicorn tells only the last one."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    @override
    def pause_writing(self) -> None:
        """Start to watch whether the client reads."""
        super().pause_writing()
        self._stop_watching()
        self._watch()

    @override
    def resume_writing(self) -> None:
        """Stop to watch: the client has read."""
        self._stop_watching()
        super().resume_writing()

    @override
    def on_response_complete(self) -> None:
        """Watch whether the client reads the rest of the reply: a transport that closes waits for that."""
        super().on_response_complete()
        if self._unsent is None and self.transport.get_write_buffer_size():
            self._watch()

    def _watch(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        self._unsent = self.loop.call_later(self.options.stalled_s, self._check_unsent, unsent_bytes)

    def _stop_watching(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None

    def _check_unsent(self, before_bytes: int) -> None:
        self._unsent = None
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0:
            return
        if before_bytes - unsent_bytes >= self.options.stalled_s * self.options.body_bytes_per_s_min:
            self._watch()
        else:
            self.transport.abort()

    def _wait(self) -> None:
        self._unread_bytes = 0
        self._waiting = self.loop.call_later(self.options.head_s, self._late)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _late(self) -> None:
        self._waiting = None
        if self._in_head and self._head_bytes:
            self._refuse(408, "Request Timeout", _TOO_LATE.format(self.options.head_s))
        elif self._unread_bytes >= self.options.head_s * self.options.body_bytes_per_s_min:
            self._wait()  # the rest of a large body whose request is answered: its sender reads the reply after it
        else:
            self.transport.close()

    @override
    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP."""
        self._refuse(400, "Bad Request", _NO_HTTP)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Send the reason and close the connection; the rest of the request is not read.

        Nothing is sent in the middle of a reply, nor before the reply to the previous request. A fault in a body
        belongs to the request that is being answered.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_next = cycle is None or cycle.response_complete or (not self._in_head and not cycle.response_started)
        if is_next and not self.pipeline:
            body = encode(ErrorBody(message))
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._disconnect()  # handlers end, and send nothing more
        self.transport.close()
