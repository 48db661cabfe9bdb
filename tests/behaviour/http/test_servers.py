"""Which of several processes a client asks: one that hangs delays it once, and what is unknown is said."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.http.asking import Connections, Servers, error_of
from lakebed.runtime import Environment
from worlds.errors import raises
from worlds.listener import Reply, Request, listen
from worlds.waiting import wait_until

REPLY_S = 0.3


class Process:
    """A server whose answers a test chooses.

    Attributes:
        asked: methods and paths, without questions for its health.
        health_count: such questions.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.health_count = 0
        self.status = 200
        self.works = threading.Event()
        """While it is not set, nothing is answered: the process hangs."""
        self.works.set()
        self.url = ""


@contextmanager
def process() -> Iterator[Process]:
    """A running one."""
    state = Process()

    def answer(request: Request) -> Reply:
        if request.path == "/healthcheck":
            state.health_count += 1
        else:
            state.asked.append(f"{request.method} {request.path}")
        state.works.wait(30)
        return Reply(200 if request.path == "/healthcheck" else state.status, b"{}")

    with listen(answer) as port:
        state.url = f"http://127.0.0.1:{port}"
        try:
            yield state
        finally:
            state.works.set()


@contextmanager
def processes(count: int) -> Iterator[list[Process]]:
    """Some running ones."""
    with ExitStack() as running:
        yield [running.enter_context(process()) for _ in range(count)]


def client(*servers: Process) -> Servers:
    """Of some processes."""
    urls = [server.url for server in servers]
    return Servers(urls, headers={}, connection_count_max=4, environment=Environment())


def ask(servers: Servers, method: str = "POST", *, retry_s: float = 0.0) -> int:
    """Make one request; the status of the reply."""

    def request(url: str) -> int:
        reply = servers.send(url, method, "/x", b"", reply_s=REPLY_S, changes=method != "GET")
        if reply.status >= 500:
            raise error_of(reply, endpoint=url, again=True)
        return reply.status

    def is_retried(error: LakebedError) -> bool:
        return isinstance(error, Unavailable | OutcomeUnknown)

    return servers.ask(request, retry_s=retry_s, is_retried=is_retried)


def test_a_process_that_hangs_is_asked_once() -> None:
    """The next one answers; the first gets no request before it has answered a question for its health."""
    with processes(2) as (first, second):
        servers = client(first, second)
        first.works.clear()
        for _ in range(20):
            assert ask(servers) == 200
        assert first.asked == ["POST /x"]
        assert second.asked == ["POST /x"] * 20
        first.works.set()
        second.works.clear()
        wait_until(lambda: ask(servers, retry_s=1.0) == 200 and len(first.asked) > 1, interval_s=0.05)
        servers.close()


def test_one_that_answers_last_is_asked_first() -> None:
    """Others that cannot answer now cost a request once."""
    with processes(2) as (first, second):
        servers = client(first, second)
        first.status = 503
        for _ in range(5):
            assert ask(servers) == 200
        assert (len(first.asked), len(second.asked)) == (1, 5)
        servers.close()


def test_what_may_have_happened_is_unknown_until_a_process_knows() -> None:
    """One hangs with the request while the other refuses: unknown. Once nothing is sent to it, nothing has happened."""
    with processes(2) as (first, second):
        servers = client(first, second)
        first.works.clear()
        second.status = 503
        with pytest.raises(OutcomeUnknown):
            ask(servers)
        with pytest.raises(Unavailable):
            ask(servers, retry_s=0.3)
        assert first.asked == ["POST /x"]
        second.status = 200
        assert ask(servers) == 200
        servers.close()


def test_a_process_alone_that_hangs_gets_no_further_request() -> None:
    """Each call ends soon with one question for its health; when it is well again, it is asked."""
    with process() as alone:
        servers = client(alone)
        alone.works.clear()
        for _ in range(4):
            with pytest.raises(LakebedError):
                ask(servers, "GET")
        assert alone.asked == ["GET /x"]
        assert alone.health_count == 3
        alone.works.set()
        wait_until(lambda: ask(servers, "GET", retry_s=1.0) == 200)
        servers.close()


def test_other_urls_are_looked_for_when_no_process_answers() -> None:
    """Another process has taken over, and its URL was written down."""
    with processes(2) as (first, second):
        first.works.clear()
        servers = Servers(
            [first.url], headers={}, connection_count_max=4, environment=Environment(), find=lambda: [second.url]
        )
        assert ask(servers, retry_s=1.0) == 200
        assert second.asked == ["POST /x"]
        servers.close()


def test_a_process_that_has_ended_is_not_one_that_hangs() -> None:
    """Nothing listens there: nothing was sent, and it is asked again without a question for its health."""
    servers = Servers(["http://127.0.0.1:9"], headers={}, connection_count_max=4, environment=Environment())
    for _ in range(3):
        with raises(Unavailable, "no_answer"):
            ask(servers)
    servers.close()


def test_a_silent_process_is_asked_last() -> None:
    """Also before any other one has answered: no question for its health comes before their answer."""
    with processes(2) as (first, second):
        servers = client(first, second)
        first.works.clear()
        second.status = 503
        with pytest.raises(OutcomeUnknown):
            ask(servers)
        second.status = 200
        assert ask(servers) == 200
        assert first.health_count == 0
        servers.close()


def test_a_request_with_a_short_body_is_sent_at_once() -> None:
    """Head and body arrive together, on a new connection and on one that is kept; a long body arrives whole."""
    bodies = [b"short", b"", b"x" * 20_000, b"y" * 300_000, b"again"]
    arrived: list[tuple[bytes, bytes]] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for body in bodies:
                first = connection.recv(1 << 20)
                head, _, received = first.partition(b"\r\n\r\n")
                while len(received) < len(body):
                    received += connection.recv(1 << 20)
                arrived.append((first[len(head) + 4 :], received))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        servers = Servers([url], headers={}, connection_count_max=1, environment=Environment())
        assert [servers.send(url, "POST", "/", body, reply_s=30.0).status for body in bodies] == [200] * len(bodies)
        server.join()
        servers.close()
    assert [hash(received) for _, received in arrived] == [hash(body) for body in bodies]
    assert [len(together) for (together, _), body in zip(arrived, bodies, strict=True) if body[:1] != b"y"] == [
        5,
        0,
        20_000,
        5,
    ]


def test_a_body_that_is_read_while_it_is_sent() -> None:
    """A file and a generator arrive as they are, with and without a length."""
    received: list[bytes] = []

    def answer(request: Request) -> Reply:
        received.append(request.body)
        return Reply(200, b"{}")

    with listen(answer) as port:
        connections = Connections(server_count=1, connection_count_max=1)
        for body, headers in (
            (io.BytesIO(b"file"), {"Content-Length": "4"}),
            (iter([b"a", b"b"]), {"Content-Length": "2"}),
        ):
            reply = connections.request("PUT", f"http://127.0.0.1:{port}", "/", body=body, headers=headers)
            assert reply.status == 200
        connections.close()
    assert received == [b"file", b"ab"]
