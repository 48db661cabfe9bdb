"""How a reply is written to its connection: the head together with the first piece of the body, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from lakebed.http.options import HttpOptions
from lakebed.http.protocol import BoundedHttp
from lakebed.http.replies import IS_GONE, SEND_WHOLE, Arrivals, send_reply

STEPS = 50
"""Turns of the event loop, far more than any of these requests takes."""


class Recorder(asyncio.Transport):
    """A transport that keeps what is written, one element a write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False
        self.is_lost = False

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.is_lost:
            raise RuntimeError("the handler is closed")  # as uvloop says
        self.writes.append(b"".join(map(bytes, list_of_data)))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """Nothing reads."""

    def resume_reading(self) -> None:
        """Nothing reads."""


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with the path, in two pieces for /long; /broken fails behind its head, /read reads the body first."""
    path: str = scope["path"]
    body = path.encode()
    if path.startswith(("/whole", "/parts")):
        if path.startswith("/parts"):
            scope.pop(SEND_WHOLE, None)
        headers = dict(pair.split("=", 1) for pair in unquote(scope["query_string"].decode()).split("&") if pair)
        status = int(headers.pop("status", "200"))
        await send_reply(Response(None if status == 204 else b"a body", status, headers), scope, receive, send)
        return
    if path == "/read":
        body = (await receive())["body"]
    size = 2 * len(body) if path == "/long" else len(body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    if path == "/broken":
        raise ValueError("a fault of the application")
    if path == "/long":
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": body})


def connect(application: Any) -> Any:
    """A connection whose requests an application answers."""
    config = uvicorn.Config(application, log_config=None, access_log=False, server_header=False, date_header=False)
    config.load()
    kind = type("Connection", (BoundedHttp,), {"options": HttpOptions(), "arrivals": Arrivals()})
    return kind(config=config, server_state=ServerState(), app_state={})


def exchange(*received: bytes) -> Recorder:
    """What a connection writes that receives these pieces."""

    async def run() -> Recorder:
        connection = connect(answer)
        recorder = Recorder()
        connection.connection_made(recorder)
        for piece in received:
            connection.data_received(piece)
            for _ in range(STEPS):
                await asyncio.sleep(0)
        connection.connection_lost(None)
        return recorder

    return asyncio.run(run())


def test_a_head_is_written_with_the_first_piece_of_its_body() -> None:
    """A small reply is one write, which wakes its client once; a long one has its other pieces behind it."""
    small = exchange(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
    [reply] = small.writes
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert reply.endswith(b"\r\n\r\n/small")
    first, rest, *_ = exchange(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n").writes
    assert first.endswith(b"\r\n\r\n/long")
    assert rest == b"/long"


def test_every_request_of_a_connection_has_its_reply() -> None:
    """HEAD has only a head; two requests in one piece have two replies, in order."""
    [head] = exchange(b"HEAD /head HTTP/1.1\r\nHost: x\r\n\r\n").writes
    assert head.endswith(b"\r\n\r\n")
    two = exchange(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [reply.rpartition(b"\r\n")[2] for reply in two.writes] == [b"/a", b"/b"]


def test_who_waits_for_100_continue_gets_it() -> None:
    """It is not taken for a head, and is sent before the body comes."""
    head = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    goes_on, reply = exchange(head, b"body").writes
    assert goes_on == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert reply.endswith(b"\r\n\r\nbody")


@pytest.mark.filterwarnings("ignore")
def test_half_a_reply_ends_its_connection() -> None:
    """The client sees a head whose body is missing, and no whole reply."""
    broken = exchange(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    [head] = broken.writes
    assert b"content-length: 7" in head
    assert broken.is_closed


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("query", ["", "status=204", "status=304&content-length=0", "x-a=1&x-b=2", "connection=close"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_reply_in_one_piece_is_the_same(method: str, query: str, version: str) -> None:
    """Byte for byte what the messages of ASGI give, to clients that keep their connection and to those that do not."""
    whole, parts = (
        exchange(f"{method} {path}?{query} HTTP/{version}\r\nHost: x\r\n\r\n".encode()) for path in ("/whole", "/parts")
    )
    assert b"".join(whole.writes) == b"".join(parts.writes)
    assert whole.is_closed == parts.is_closed
    assert b"HTTP/1.1" in whole.writes[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mark", ["%0D%0A", "%0A", "%00"])
def test_no_header_of_a_reply_in_one_piece_ends_early(mark: str) -> None:
    """A value with an end of line is refused, and nothing of it is sent."""
    sent = exchange(f"GET /whole?x-a=1{mark}x-evil:2 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert not any(b"x-evil" in piece for piece in sent.writes)


def test_pipelined_requests_have_their_replies_in_order() -> None:
    """A reply in one piece goes to the request that it is for."""
    two = exchange(b"GET /whole?x-a=1 HTTP/1.1\r\nHost: x\r\n\r\nGET /whole?x-a=2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [reply.partition(b"x-a: ")[2][:1] for reply in two.writes] == [b"1", b"2"]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("path", ["/whole", "/parts", "/long", "/small"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_nothing_is_written_to_a_client_that_is_gone(
    caplog: pytest.LogCaptureFixture, *, method: str, path: str, is_known: bool
) -> None:
    """Neither of its requests fails, which it sent one behind the other: the log of the server had a traceback."""
    gone: list[bool] = []

    async def run() -> Recorder:
        is_gone = asyncio.Event()

        async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
            await is_gone.wait()
            gone.append(scope[IS_GONE]())
            await answer(scope, receive, send)

        connection = connect(answer_late)
        recorder = Recorder()
        connection.connection_made(recorder)
        connection.data_received(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 2)
        recorder.is_closed = recorder.is_lost = True
        if is_known:
            connection.connection_lost(None)
        is_gone.set()
        for _ in range(STEPS):
            await asyncio.sleep(0)
        return recorder

    assert asyncio.run(run()).writes == []
    assert gone[0] == is_known
    assert [record.getMessage() for record in caplog.records] == []
