"""HTTP servers that answer as a test says, also not at all; a proxy that loses replies is one of them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """What a client has sent; `port` is the client's."""

    method: str
    path: str
    headers: Message
    body: bytes
    port: int


class Reply(NamedTuple):
    """What it gets."""

    status: int = 200
    body: bytes | Iterator[bytes] = b""
    """Parts are sent as they come; their length together is then among the headers."""
    headers: Mapping[str, str] = {}


Answer = Callable[[Request], Reply | None]


@contextmanager
def listen(answer: Answer) -> Iterator[int]:
    """A server on a port of loopback that keeps connections; it cuts them where the answer is None."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = answer(Request(self.command, self.path, self.headers, body, self.client_address[1]))
            if reply is None:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            parts = iter([reply.body]) if isinstance(reply.body, bytes) else reply.body
            length = {"Content-Length": str(len(reply.body))} if isinstance(reply.body, bytes) else {}
            for name, value in {**length, **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in parts:
                self.wfile.write(part)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = reply  # noqa: N815 - the names are the library's

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has gone
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def pass_on(port: int, *, loses: Callable[[Request], bool]) -> Answer:
    """What a proxy of another port answers: nothing where `loses` says so, after the server has done what was asked."""

    def answer(request: Request) -> Reply | None:
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            upstream.request(request.method, request.path, body=request.body or None, headers=dict(request.headers))
            reply = upstream.getresponse()
            body = reply.read()
        finally:
            upstream.close()
        if loses(request):
            return None
        dropped = {"transfer-encoding", "connection"} | ({"content-length"} if request.method != "HEAD" else set())
        headers = {name.title(): value for name, value in reply.getheaders() if name.lower() not in dropped}
        return Reply(reply.status, body, headers)

    return answer
