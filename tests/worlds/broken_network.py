"""TCP connections that a test breaks: a proxy in front of a server, for one client of it.

Owns: `Link`. Nothing here knows what is sent.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from urllib.parse import urlsplit


class Fault(Enum):
    """What a link does with connections, also with those that are open."""

    REFUSED = "closed at once"
    SILENT = "accepted, and nothing arrives on either side"
    REPLIES_LOST = "requests arrive; instead of the reply the connection ends"


class Link:
    """A proxy on a free port of this machine.

    Args:
        target: URL of the server.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = parts.hostname, parts.port
        self._fault: Fault | None = None
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self.met = 0
        """Connections and pieces of data that met a fault."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def _spawn(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, daemon=True)
        self._threads.append(thread)
        thread.start()

    def break_with(self, fault: Fault | None) -> None:
        """Begin a fault; None: connections work again. Those that were silent are closed."""
        with self._changed:
            self._fault = fault
            self.met = 0
            self._changed.notify_all()
            if fault is not Fault.REPLIES_LOST:
                self._close_all()

    def close(self) -> None:
        """End all connections, and every thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            self._close_all()
        _close(self._listener)
        for thread in list(self._threads):
            thread.join(30)
            assert not thread.is_alive()

    def _close_all(self) -> None:
        for item in self._open:
            _close(item)
        self._open.clear()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._is_over or self._fault is Fault.REFUSED:
                    self.met += 1
                    _close(client)
                    continue
            try:
                server = socket.create_connection(self._target, timeout=30)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._changed:
                if self._is_over:
                    _close(client)
                    _close(server)
                    return
                self._open |= {client, server}
            self._spawn(lambda pair=(client, server): self._copy(*pair, is_reply=False))  # type: ignore[misc]
            self._spawn(lambda pair=(server, client): self._copy(*pair, is_reply=True))  # type: ignore[misc]

    def _copy(self, source: socket.socket, target: socket.socket, *, is_reply: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if not self._passes(is_reply=is_reply):
                    break
                target.sendall(data)
        except OSError:
            pass
        finally:
            with self._changed:
                self._open -= {source, target}
            _close(source)
            _close(target)

    def _passes(self, *, is_reply: bool) -> bool:
        """Whether data may go on; waits while the link is silent."""
        with self._changed:
            if self._fault is None:
                return True
            self.met += 1
            if self._fault is Fault.REPLIES_LOST:
                return not is_reply
            while self._fault is Fault.SILENT and not self._is_over:
                self._changed.wait()
            return False


def _close(one: socket.socket) -> None:
    with suppress(OSError):  # it may not be connected any more
        one.shutdown(socket.SHUT_RDWR)
    one.close()
