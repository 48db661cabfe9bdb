"""Requests that no client sends, byte by byte, at every route: each gets a reply or the connection's end, no 500."""

from __future__ import annotations

import json
import random
import re
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

WAITS_S = 30.0
UPLOAD = "POST /api/v1/repositories/analytics/branches/main/objects?path=a"
CHUNKED = "Transfer-Encoding: chunked"
FORM = "Content-Type: multipart/form-data; boundary="


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, connect: Callable[[Running], Any]) -> Iterator[Raw]:
    """One server for all requests, with a repository; at the end it answers, and has logged no bug."""
    folder = tmp_path_factory.mktemp("malformed")
    log = folder / "access.log"
    with start_server(folder / "lake", access_log=log, options=ServerOptions(durable=False)) as running:
        client = connect(running)
        client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
        client.put("staged")
        client.commit()
        yield Raw(client)
        assert client.ask("GET", "/user").status == 200
    assert "Traceback" not in log.read_text()


class Raw:
    """Bytes to the server, each request on a connection of its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        where = urllib.parse.urlsplit(client.endpoint)
        self.place = where.hostname, where.port
        self.authorization = f"Authorization: {client.headers['authorization']}"

    def say(self, line: str, *headers: str, body: bytes = b"") -> bytes:
        """The reply to a request's line, headers and body, after which nothing more is sent."""
        head = "\r\n".join([f"{line} HTTP/1.1", "Host: x", "Connection: close", self.authorization, *headers, "", ""])
        return self.send(head.encode("utf-8", "surrogateescape") + body)

    def send(self, request: bytes) -> bytes:
        """The reply to some bytes; empty: the connection ended without one."""
        with socket.create_connection(self.place, timeout=WAITS_S) as line:
            try:
                line.sendall(request)
                return line.makefile("rb").read()
            except ConnectionError:
                return b""
            except TimeoutError as error:
                raise AssertionError(f"no reply within {WAITS_S:g} s: {request[:300]!r}") from error


@pytest.mark.parametrize(
    "body",
    [
        *(b"zz\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"\r\n\r\n", b"1\r\nx0\r\n\r\n"),
        *(b"fffffffffffffffff\r\nx", b"0x5\r\nabcde\r\n0\r\n\r\n", b"5;\x00\r\nabcde\r\n0\r\n\r\n", b" 5\r\nabcde\r\n"),
        *(b"5\nabcde\n0\n\n", b"1\r\nx\r\n0\r\nbad trailer\r\n\r\n", b"1\r\nx\r\ng\r\n", b"\xff\r\n"),
    ],
)
def test_a_body_with_wrong_chunks_is_refused(raw: Raw, body: bytes) -> None:
    """A chunk that is none is a mistake of this request: 400 and one sentence, and nothing is stored."""
    reply = raw.say(UPLOAD, CHUNKED, body=body)
    assert reply.startswith(b"HTTP/1.1 400 "), reply
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["message"]
    assert raw.client.listed() == ["staged"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([f"{FORM}{'b' * 257}"], b"--" + b"b" * 257 + b"\r\n"),
        ([f"{FORM}{'b' * 20_000}"], b"x"),
        ([f"{FORM}"], b"x"),
        ([f'{FORM}"'], b"x"),
        ([f"{FORM}\xff"], b"--\xff\r\n"),
        ([f"{FORM}b"], b""),
        ([f"{FORM}b"], b"--b--\r\n"),
        ([f"{FORM}b"], b"--b\r\n\r\n\r\n--b--\r\n"),
        ([f"{FORM}b"], b"--b\r\nContent-Disposition: form-data; name=content\r\n\r\nx"),
        ([f"{FORM}b"], b"--b\r\nContent-Disposition: form-data; name*=utf-8''%ff\"\r\n\r\nx\r\n--b--\r\n"),
        ([f"{FORM}b"], b"--b\r\n" + b"A" * 100_000 + b": x\r\n\r\nx\r\n--b--\r\n"),
        ([f"{FORM}b"], b"--b\r\n: x\r\n\r\nx\r\n--b--\r\n"),
        ([f"{FORM}b"], b"--b\r\nContent-Disposition: form-data; name=content\r\nX\xff\x00: x\r\n\r\nx\r\n--b--\r\n"),
        (["Content-Type: multipart/form-data"], b"x"),
        (["Content-MD5: x"], b"x"),
    ],
)
def test_a_form_that_is_none_is_refused(raw: Raw, headers: list[str], body: bytes) -> None:
    """Whatever is wrong with a form, the status is 400 with one sentence."""
    reply = raw.say(UPLOAD, f"Content-Length: {len(body)}", *headers, body=body)
    assert reply.startswith(b"HTTP/1.1 400 "), reply
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["message"]
    assert raw.client.listed() == ["staged"]


def routes(client: Any) -> list[tuple[str, str]]:
    """Every method and path that the server describes, with names in place of parameters."""
    names = {"repository": "analytics", "branch": "main", "ref": "main", "tag": "t", "commitId": "main"}
    result = []
    for path, methods in client.ask_root("GET", "/openapi.json").json["paths"].items():
        place = re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], "main"), path)
        result += [(method.upper(), place) for method in methods if method in {"get", "put", "post", "delete", "head"}]
    return [(method, place) for method, place in result if (method, place.count("/")) != ("DELETE", 4)]


HOSTILE = [
    "%00",
    "%2f",
    "%2e%2e",
    "%ff",
    "%ed%a0%80",
    "%0d%0aX:%20y",
    "a" * 3_000,
    "",
    "-1",
    "9" * 40,
    "NaN",
    "%F0%9F%98%80",
]
QUERY = "amount prefix after path delimiter since limit presign type ref id parent_number dest_path expires signature"


def nonsense(method: str, place: str, random: random.Random) -> Iterator[bytes]:
    """Requests at one route, each with one thing wrong."""
    head = "Host: x\r\nConnection: close\r\n"
    for value in HOSTILE:
        parts = place.split("/")
        at = random.randrange(3, len(parts)) if len(parts) > 3 else len(parts) - 1
        parts[at] = value
        query = "&".join(f"{name}={random.choice(HOSTILE)}" for name in QUERY.split())
        yield f"{method} {'/'.join(parts)}?path=a HTTP/1.1\r\n{head}AUTH\r\n\r\n".encode()
        yield f"{method} {place}?{query} HTTP/1.1\r\n{head}AUTH\r\n\r\n".encode()
    bodies = [b"", b"{", b"[]", b"null", b"\xff", b'"\\ud800"', b"[" * 5_000, b'{"name": null}', b"1e999", b"NaN"]
    for body in bodies:
        yield f"{method} {place}?path=a HTTP/1.1\r\n{head}AUTH\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    strange = [
        *("Content-Length: -1", "Content-Length: +1", "Content-Length: 1, 1", "Content-Length: 99999999999999999999"),
        *("Content-Length: 0\r\nContent-Length: 1", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked", "Expect: 200-maybe", "Upgrade: h2c"),
        *(
            "Connection: upgrade\r\nUpgrade: websocket",
            "Range: bytes=9-1",
            "Range: bytes=-",
            "Range: " + "bytes=0-0," * 99,
        ),
        *("Range: bytes=99999999999999999999999-", 'If-Match: "', "If-None-Match: *, *", "Content-Type: \x7f"),
        *("Authorization: Basic ////", "Authorization: Bearer \x80", "X-Lakefs-Meta-: ", "Cookie: " + "a" * 8_000),
        *("A: b\r\n c: d", "Host: ", "Host: x\r\nHost: y", 'X-Forwarded-Proto: "><', ": x", "A B: x", "A:\x00"),
        *(CHUNKED + "\r\nTrailer: x", "Content-MD5: x", "Content-Encoding: gzip", "\r\nGET / HTTP/1.1"),
    ]
    for header in strange:
        body = b"0\r\n\r\n" if "chunked" in header else b""
        yield f"{method} {place}?path=a HTTP/1.1\r\n{head}AUTH\r\n{header}\r\n\r\n".encode("latin-1") + body
    yield f"{method} {place} HTTP/9.9\r\n{head}\r\n".encode()
    yield f"{method} {place}\r\n\r\n".encode()
    yield f"{method.lower()} {place} HTTP/1.1\r\n{head}\r\n".encode()
    yield f"{method} {place} HTTP/1.1\r\n{head}{'A: b' * 50_000}\r\n\r\n".encode()
    yield f"{method} {place} HTTP/1.1\r\n{head}".encode() + b"A: b\r\n" * 5_000 + b"\r\n"
    yield bytes(random.randrange(256) for _ in range(200)) + b"\r\n\r\n"


@pytest.mark.long
def test_every_route_answers_nonsense(raw: Raw) -> None:
    """No route has a request that it answers with a 500, or not at all; 501 is for those that serve nobody."""
    generator = random.Random(20)
    every = routes(raw.client)
    assert len(every) > 60
    for method, place in every:
        for request in nonsense(method, place, generator):
            reply = raw.send(request.replace(b"AUTH", raw.authorization.encode()))
            status = int(reply.split(b" ")[1]) if reply else 0
            refused = (500, 502) if "/gc/prepare_" in place else (500, 501, 502)
            assert status not in refused, (request[:300], reply[-300:])
