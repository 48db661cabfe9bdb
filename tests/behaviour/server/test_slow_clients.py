"""Clients that hold a connection: what they have not sent after a while is not waited for."""

from __future__ import annotations

import json
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

LIMIT_S = 0.2
RATE = 1_000_000
"""Bytes a second, far more than `trickle` sends."""
STEP_S = 0.02
STEPS_MAX = 1_000
OBJECTS = "/api/v1/repositories/analytics/branches/main/objects?path=a"
ROUTES = {
    "JSON": "POST /api/v1/repositories",
    "small object": f"POST {OBJECTS}",
    "verb": "POST /api/v1/repositories/analytics/verbs/put?branch=main",
    "link": f"PUT {OBJECTS}",
}


@pytest.fixture
def slow(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> Any:
    """A client of a server with short limits, and a repository."""
    client = connect(serve(stalled_s=LIMIT_S, head_s=LIMIT_S, body_bytes_per_s_min=RATE))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    return client


def begin(client: Any, line: str, *headers: str) -> socket.socket:
    """A connection on which the head of a request was sent."""
    where = urllib.parse.urlsplit(client.endpoint)
    authorization = f"Authorization: {client.headers['authorization']}"
    head = "\r\n".join([f"{line} HTTP/1.1", "Host: x", authorization, *headers, "", ""])
    connection = socket.create_connection((where.hostname, where.port), timeout=60)
    connection.sendall(head.encode())
    return connection


def trickle(connection: socket.socket, piece: bytes) -> Iterator[bytes]:
    """Send a piece in each step, and give what the server sends, up to the end of the connection."""
    connection.settimeout(STEP_S)
    for _ in range(STEPS_MAX):
        try:
            reply = connection.recv(1 << 16)
            yield reply
            if not reply:
                return
        except TimeoutError:
            try:
                connection.sendall(piece)
            except ConnectionError:
                return
        except ConnectionError:
            return
    raise AssertionError(f"the connection was open after {STEPS_MAX} pieces")


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_a_head_without_its_body_is_given_up(slow: Any, route: str) -> None:
    """A request whose body never begins is answered with 408 and a sentence, wherever a body is expected."""
    with begin(slow, ROUTES[route], "Content-Length: 100") as connection:
        reply = connection.recv(1 << 16)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert "too slow" in json.loads(reply.partition(b"\r\n\r\n")[2])["message"]
    assert slow.listed() == []


@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_byte_by_byte_is_given_up(slow: Any, framing: str) -> None:
    """A body that never pauses for long, and never gets anywhere, is answered with 408, and its connection ends."""
    piece = b"1\r\nx\r\n" if "chunked" in framing else b"x"
    with begin(slow, ROUTES["small object"], framing) as connection:
        replies = b"".join(trickle(connection, piece))
    assert replies.startswith(b"HTTP/1.1 408 ")
    assert slow.listed() == []


@pytest.mark.parametrize("piece", [b"x", b"\r\n"])
def test_what_comes_behind_a_reply_holds_no_connection(slow: Any, piece: bytes) -> None:
    """A connection ends when behind a reply nothing comes but a body that the request did not need, or blank lines."""
    framing = "Content-Length: 1000000" if piece == b"x" else "Content-Length: 0"
    with begin(slow, "GET /api/v1/user", framing) as connection:
        replies = b"".join(trickle(connection, piece))
    assert replies.startswith(b"HTTP/1.1 200 ")
    assert replies.count(b"HTTP/1.1") == 1


@pytest.mark.long
def test_a_slow_body_that_arrives_is_taken(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> None:
    """A body that takes longer than the limit, but brings what it must each second, is stored."""
    client = connect(serve(stalled_s=3.0, head_s=3.0, body_bytes_per_s_min=10))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    piece, count = b"x" * 100, 120
    with begin(client, ROUTES["small object"], f"Content-Length: {count * len(piece)}") as connection:
        connection.settimeout(0.05)
        for _ in range(count - 1):
            connection.sendall(piece)
            with pytest.raises(TimeoutError):
                connection.recv(1 << 16)
        connection.settimeout(60)
        connection.sendall(piece)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201 ")
    assert client.get("a").body == piece * count
