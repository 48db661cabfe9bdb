"""Load on an HTTP server: many connections, each with one request under way, from one thread.

Owns: sending prepared requests and finding the ends of replies, with as little work as possible: on a small machine
this process and the server that it measures share the cores. Knows no server.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_RECEIVE_BYTES = 1 << 18
_DRAINED_BYTES = 1 << 20
_SILENT_S = 60.0


@dataclass(slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes


@dataclass(slots=True)
class _Connection:
    """One connection, and the reply that it waits for."""

    socket: socket.socket
    started_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    body_at: int = 0
    """Where the body begins; 0: the head is not complete."""
    body_bytes: int | None = None
    """None: it comes in chunks."""

    def send(self, request: bytes) -> None:
        self.received.clear()
        self.body_at = 0
        self.started_s = time.perf_counter()
        self.socket.sendall(request)

    def is_complete(self) -> bool:
        """Receive once; whether the reply is there."""
        piece = self.socket.recv(_RECEIVE_BYTES)
        if not piece:
            raise ConnectionError(f"the server hung up after {bytes(self.received[:200])!r}")
        self.received += piece
        if not self.body_at:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.body_at = end + 4
            head = bytes(self.received[:end])
            length = _LENGTH.search(head)
            self.body_bytes = None if _CHUNKED.search(head) else int(length.group(1)) if length else 0
        if self.body_bytes is None:
            return self.received.endswith(_LAST_CHUNK)
        return len(self.received) >= self.body_at + self.body_bytes

    def reply(self) -> Reply:
        raw = bytes(self.received[self.body_at :])
        return Reply(int(self.received[9:12]), _join_chunks(raw) if self.body_bytes is None else raw)


def _join_chunks(raw: bytes) -> bytes:
    pieces, at = [], 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(raw[end + 2 : end + 2 + size])
        at = end + 4 + size


def connect(port: int) -> socket.socket:
    """A connection to a server of this machine."""
    made = socket.create_connection(("127.0.0.1", port), timeout=_SILENT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def ask(port: int, request: bytes) -> Reply:
    """One request on a connection of its own."""
    with connect(port) as made:
        connection = _Connection(made)
        connection.send(request)
        while not connection.is_complete():
            pass
        return connection.reply()


def drain(port: int, request: bytes) -> tuple[int, int]:
    """One request on a connection of its own, whose reply is counted and not kept: status, and bytes of the body.

    Keeping 100 MB takes this process three times as long as sending them takes a server.
    """
    buffer = memoryview(bytearray(_DRAINED_BYTES))
    with connect(port) as made:
        connection = _Connection(made)
        connection.send(request)
        while not connection.is_complete() and not connection.body_at:
            pass
        assert connection.body_bytes is not None, "a reply in chunks has no length"
        size_bytes = len(connection.received) - connection.body_at
        while size_bytes < connection.body_bytes:
            count = made.recv_into(buffer)
            if not count:
                raise ConnectionError(f"the server hung up behind {size_bytes:,} of {connection.body_bytes:,} bytes")
            size_bytes += count
        return int(connection.received[9:12]), size_bytes


@dataclass(frozen=True, slots=True)
class Load:
    """What a load has measured."""

    count: int
    seconds: float
    latencies_ms: list[float]

    @property
    def us_a_request(self) -> float:
        """Of the whole: a request of 16 clients takes 16 times as long."""
        return self.seconds / self.count * 1e6

    @property
    def p99_ms(self) -> float:
        """The latency below which 99 % of the requests stayed."""
        return sorted(self.latencies_ms)[len(self.latencies_ms) * 99 // 100]


def run_load(
    port: int,
    make_request: Callable[[], bytes | None],
    *,
    client_count: int,
    expected: int,
    seconds: float | None = None,
) -> Load:
    """Keep a number of connections busy.

    Args:
        make_request: the next request, whole; None: there is no more.
        expected: the status of every reply; another one is an error.
        seconds: how long; None: until there are no more requests.
    """
    latencies_ms: list[float] = []
    selector = selectors.EpollSelector()
    connections = [_Connection(connect(port)) for _ in range(client_count)]
    busy = 0
    started_s = time.perf_counter()
    end_s = None if seconds is None else started_s + seconds
    try:
        for connection in connections:
            request = make_request()
            if request is not None:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.send(request)
                busy += 1
        while busy:
            ready = selector.select(_SILENT_S)
            if not ready:
                raise TimeoutError(f"no reply came for {_SILENT_S:g} s")
            for key, _ in ready:
                connection = key.data
                if not connection.is_complete():
                    continue
                now_s = time.perf_counter()
                latencies_ms.append((now_s - connection.started_s) * 1e3)
                if int(connection.received[9:12]) != expected:
                    raise RuntimeError(f"not {expected}: {bytes(connection.received[:500])!r}")
                request = make_request() if end_s is None or now_s < end_s else None
                if request is None:
                    selector.unregister(connection.socket)
                    busy -= 1
                else:
                    connection.send(request)
        return Load(len(latencies_ms), time.perf_counter() - started_s, latencies_ms)
    finally:
        selector.close()
        for connection in connections:
            connection.socket.close()
