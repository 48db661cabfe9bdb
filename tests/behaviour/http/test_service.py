"""A service of its own on `lakebed.http` alone: no repository, no store."""

from __future__ import annotations

import gzip
import itertools
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import urllib3
from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.errors import NotFound
from lakebed.http import errors
from lakebed.http.application import build
from lakebed.http.authentication import parse_credential
from lakebed.http.call import Call
from lakebed.http.declaration import Endpoint, Routes
from lakebed.http.listening import bind, url_of
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer
from lakebed.http.replies import GatheredResponse, StreamedResponse, json
from lakebed.http.serving import Serving
from lakebed.http.site import Change
from lakebed.runtime import Environment
from worlds.waiting import wait_until

TOKEN: Final = "writer.a-secret-that-is-long-enough"


class Note(msgspec.Struct, frozen=True):
    """What the service keeps."""

    text: str


@dataclass(frozen=True)
class Writer:
    """The only caller."""

    id: str


class NoteCall(Call):
    """A request, with the service."""

    def __init__(self, site: NoteSite, scope: Scope, receive: Receive, request_id: str) -> None:
        super().__init__(site.serving, scope, receive, request_id=request_id)
        self.site = site


@dataclass
class NoteSite:
    """Notes by name, in memory."""

    serving: Serving
    notes: dict[str, Note] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    is_reading: threading.Event = field(default_factory=threading.Event)
    may_read: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    piece_count: int = 0

    async def authenticate(self, header: bytes | None) -> Writer:
        """A caller is who knows the token."""
        if parse_credential(header) != tuple(TOKEN.split(".")):
            raise errors.authentication_error("The token is not valid: ask for another.")
        return Writer("writer")

    def authorize(self, principal: Writer, endpoint: Endpoint, scope: Scope) -> None:
        """The caller may write all notes but one."""
        if scope["path_params"]["name"] == "locked":
            raise errors.forbidden("The note is locked.")

    def new_call(self, scope: Scope, receive: Receive, *, principal: Writer | None, request_id: str) -> NoteCall:
        """What handlers take."""
        return NoteCall(self, scope, receive, request_id)

    async def audit(self, change: Change) -> None:
        """Keep the change."""
        self.changes.append(change)

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """The generic table of statuses."""
        return errors.error_reply(error, request_id=request_id, statuses=statuses)

    def close(self) -> None:
        """Wait for calls, then for nothing else."""
        self.serving.pools.close()
        self.is_closed = True
        self.serving.close_log()


NOTES: Final = Routes[NoteCall]("notes")


@NOTES.add("GET", "/notes/{name}", "getNote", needs=None, gives={200: Note})
async def get_note(call: NoteCall) -> Response:
    """Read a note."""

    def read() -> Note:
        call.site.is_reading.set()
        call.site.may_read.wait()
        if call.path["name"] not in call.site.notes:
            raise NotFound(f"There is no note {call.path['name']!r}: write it first.", kind="note_not_found")
        return call.site.notes[call.path["name"]]

    return json(await call.quick(read))


@NOTES.add("PUT", "/notes/{name}", "putNote", needs="write", takes=Note, gives={200: Note}, audited=True)
async def put_note(call: NoteCall) -> Response:
    """Write a note."""
    note = await call.read(Note)
    call.site.notes[call.path["name"]] = note
    return json(note)


@NOTES.add("GET", "/notes/{name}/forever", "streamNote", needs=None, gives={200: bytes})
async def stream_note(call: NoteCall) -> Response:
    """A note's name again and again, without an end."""
    piece = call.path["name"].encode() * 10_000

    def pieces() -> Iterator[bytes]:
        for call.site.piece_count in itertools.count(1):
            yield piece

    return StreamedResponse(await call.download(pieces), 200, {"content-type": "text/plain"})


@NOTES.add("GET", "/notes/{name}/gathered-forever", "gatherNote", needs=None, gives={200: bytes})
async def gather_note(call: NoteCall) -> Response:
    """The same in buffers."""
    buffers = [call.path["name"].encode() * 1_000 for _ in range(10)]

    def pieces() -> Iterator[list[bytes]]:
        for call.site.piece_count in itertools.count(1):
            yield buffers

    return GatheredResponse(await call.download(pieces), 200, {"content-type": "text/plain"})


SIZES = (0, 1, 1 << 20, 0, 17, 100_000, 3 << 20)


@NOTES.add("GET", "/notes/{name}/sizes", "sizeNote", needs=None, gives={200: bytes})
async def size_note(call: NoteCall) -> Response:
    """A piece without a buffer, then pieces that end with buffers of `SIZES`."""

    def pieces() -> Iterator[list[memoryview | bytes]]:
        yield []
        for number, size in enumerate(SIZES):
            yield [b"<", memoryview(bytes([65 + number]) * size)]

    return GatheredResponse(await call.download(pieces), 200, {"content-type": "text/plain"})


@dataclass
class Running:
    """The service, running, and a client of it."""

    server: RunningServer[Writer, NoteCall]
    site: NoteSite
    url: str
    log: Path
    pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False))

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> urllib3.BaseHTTPResponse:
        """One request."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        sent = None if body is None else msgspec.json.encode(body)
        return self.pool.request(method, self.url + path, body=sent, headers=headers, timeout=30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """The service on a free loopback port."""
    options = HttpOptions(json_bytes_max=1_000, stalled_s=0.2, body_bytes_per_s_min=1)
    listener = bind("127.0.0.1", 0, backlog=options.backlog)
    url = url_of("127.0.0.1", listener)
    log = tmp_path / "access.log"
    serving = Serving.open(
        "notes", options=options, environment=Environment(), authority=url.partition("://")[2], access_log=log
    )
    site = NoteSite(serving)
    site.may_read.set()
    with RunningServer(build(site, {"/v1": NOTES}), site, listener) as server:
        yield Running(server, site, url, log)
        site.may_read.set()  # a test that failed in between leaves no request that waits


def test_two_routes_a_token_and_errors(running: Running) -> None:
    """Handlers, authentication, authorization, limits and the bodies of errors come from the package."""
    assert running.ask("PUT", "/v1/notes/a", Note("first"), TOKEN).json() == {"text": "first"}
    assert running.ask("GET", "/v1/notes/a").json() == {"text": "first"}
    refused = {
        ("PUT", "/v1/notes/a", None): 401,
        ("PUT", "/v1/notes/a", "writer.wrong"): 401,
        ("PUT", "/v1/notes/locked", TOKEN): 403,
        ("GET", "/v1/notes/b", None): 404,
        ("GET", "/elsewhere", None): 404,
        ("DELETE", "/v1/notes/a", TOKEN): 405,
    }
    for (method, path, token), status in refused.items():
        reply = running.ask(method, path, Note("x"), token)
        assert reply.status == status, (method, path)
        assert set(reply.json()) - {"facts"} == {"message"}
        assert reply.headers["x-lakebed-error"]
    assert running.ask("PUT", "/v1/notes/a", Note("x" * 1_000), TOKEN).status == 413
    assert running.ask("PUT", "/v1/notes/a", {"other": 1}, TOKEN).status == 400
    assert [(change.endpoint.name, change.path, change.principal_id) for change in running.site.changes] == [
        ("putNote", {"name": "a"}, "writer")
    ]


def test_a_compressed_body_is_refused_as_such(running: Running) -> None:
    """It is not taken for a damaged one, and changes nothing; a body that says it is not compressed is read."""
    url, token = f"{running.url}/v1/notes/a", {"authorization": f"Bearer {TOKEN}"}
    body = msgspec.json.encode(Note("first"))
    for encoding in ("gzip", "identity, GZIP", "br", "zstd"):
        headers = {**token, "content-encoding": encoding}
        reply = running.pool.request("PUT", url, body=gzip.compress(body), headers=headers)
        assert (reply.status, reply.headers["x-lakebed-error"]) == (415, "encoded_body")
        assert repr(encoding) in reply.json()["message"]
    assert running.ask("GET", "/v1/notes/a").status == 404
    for encoding in ("identity", ""):
        headers = {**token, "content-encoding": encoding}
        assert running.pool.request("PUT", url, body=body, headers=headers).json() == {"text": "first"}


def test_a_request_under_way_ends_before_the_service(running: Running) -> None:
    """Stopping accepts no new connection, lets the running request end with its reply, then closes the service."""
    running.ask("PUT", "/v1/notes/a", Note("first"), TOKEN)
    running.site.may_read.clear()
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(running.ask("GET", "/v1/notes/a").json()))
    asking.start()
    assert running.site.is_reading.wait(30)
    stopping = threading.Thread(target=running.server.stop)
    stopping.start()
    while True:  # until the port is closed
        try:
            urllib3.request("GET", running.url + "/v1/notes/b", retries=False, timeout=0.1)
        except urllib3.exceptions.NewConnectionError:
            break
        except urllib3.exceptions.HTTPError:
            continue
    stopping.join(0.5)  # longer than a server that does not wait takes to cut the request off
    assert not running.site.is_closed
    running.site.may_read.set()
    asking.join(30)
    stopping.join(30)
    assert replies == [{"text": "first"}]
    assert running.site.is_closed
    lines = [msgspec.json.decode(line) for line in running.log.read_bytes().splitlines()]
    assert [line["status"] for line in lines if line["method"] == "GET" and line["path"] == "/v1/notes/a"] == [200]


def test_a_reply_of_buffers_is_whole(running: Running) -> None:
    """It has every byte in order, the connection serves the next request, and the log has its size."""
    expected = b"".join(b"<" + bytes([65 + number]) * size for number, size in enumerate(SIZES))
    for _ in range(2):
        reply = running.ask("GET", "/v1/notes/abc/sizes")
        assert reply.status == 200
        assert reply.data == expected
    assert running.ask("HEAD", "/v1/notes/abc/sizes").status == 200
    running.server.stop()
    lines = [msgspec.json.decode(line) for line in running.log.read_bytes().splitlines()]
    assert [line.get("bytes_out", 0) for line in lines] == [len(expected), len(expected), 0]


def begin_stream(running: Running, kind: str = "forever") -> socket.socket:
    """A connection on which a reply without an end was asked for, and its beginning read."""
    where = urllib.parse.urlsplit(running.url)
    connection = socket.create_connection((where.hostname, where.port), timeout=60)
    connection.sendall(f"GET /v1/notes/abc/{kind} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: running.site.piece_count > 0)  # the status line may come before anything of the reply is made
    return connection


def leave(connection: socket.socket) -> None:
    """Disconnect."""
    connection.close()


def stay(connection: socket.socket) -> None:
    """Keep the connection, and read nothing."""


@pytest.mark.parametrize("kind", ["forever", "gathered-forever"])
@pytest.mark.parametrize("act", [leave, stay])
def test_a_reply_that_is_not_read_ends(running: Running, act: Callable[[socket.socket], None], kind: str) -> None:
    """When its client has disconnected, or reads nothing for a while, a reply holds no thread and no connection."""
    with begin_stream(running, kind) as connection:
        act(connection)
        wait_until(lambda: running.site.serving.running == 0)
        count = running.site.piece_count
        assert count > 0
        assert running.ask("PUT", "/v1/notes/a", Note("first"), TOKEN).status == 200
        assert running.site.piece_count == count


@pytest.mark.parametrize("kind", ["forever", "gathered-forever"])
def test_a_reply_that_is_read_slowly_goes_on(running: Running, kind: str) -> None:
    """A client that reads a little within each limit of time is not cut off."""
    with begin_stream(running, kind) as connection:
        connection.settimeout(0.05)
        began = running.site.piece_count
        while running.site.piece_count < began + 300:
            assert connection.recv(1 << 20)
        assert running.site.serving.running == 1


def test_its_description(running: Running) -> None:
    """The description is made from the same declarations, with the service's own words."""
    service = Service("notes", "1", "Notes by name.", {"name": PathParameter("A note's name.")})
    result = describe(service, {"/v1": NOTES})
    assert result["info"]["title"] == "notes"
    assert set(result["paths"]["/v1/notes/{name}"]) == {"get", "put"}
    assert result["paths"]["/v1/notes/{name}"]["get"]["security"] == []


def test_it_loads_no_store() -> None:
    """The package brings no repository, database or table with it."""
    modules = "application, authentication, listening, multipart, openapi, process, signing, streaming"
    code = f"""
import sys
from lakebed.http import {modules}
stores = {{"repo", "kv", "key_value", "lsm", "table", "lake", "server", "reclaim"}}
print(sorted(name for name in sys.modules if name.startswith("lakebed.") and name.split(".")[1] in stores))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
