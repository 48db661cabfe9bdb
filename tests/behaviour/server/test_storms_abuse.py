"""Clients that break off, lie, creep and flood, and bytes that no client sends: one real process takes all of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.clock import SystemClock
from lakebed.repo import open_all
from worlds.repo.client import QUIET, check_sound
from worlds.repo.server_process import HttpClient, ServerProcess, memory_of
from worlds.waiting import wait_until

# Each worker with one of these tests would start the server, and look through all of it at the end.
pytestmark = pytest.mark.xdist_group("storms of abuse")

CREATION = json.dumps({"name": "storm", "storage_namespace": "local://storm"})
OBJECTS = "/api/v1/repositories/storm/branches/main/objects"
READ = "/api/v1/repositories/storm/refs/main/objects"
MIB = 1 << 20
WAITS_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests; at the end it is sound, and no reply held a traceback."""
    folder = tmp_path_factory.mktemp("abused")
    with ServerProcess(str(folder / "lake"), folder / "logs") as server:
        HttpClient([server.endpoint], server.headers).ask("POST", "/api/v1/repositories", CREATION)
        yield server
        assert server.stop() == 0
        assert not server.tracebacks(), server.tracebacks()[:2]
        assert "lakebed serve:" not in server.errors.read_text()
        with open_all(folder / "lake", options=QUIET) as home:
            check_sound(home.repository("storm"))


@pytest.fixture
def web(served: ServerProcess) -> HttpClient:
    """A client that behaves."""
    return HttpClient([served.endpoint], served.headers)


class Line:
    """A connection of its own, on which anything can be said."""

    def __init__(self, served: ServerProcess, *, buffer_bytes: int | None = None) -> None:
        self._served = served
        self.socket = socket.socket()
        if buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(WAITS_S)
        self.socket.connect(("127.0.0.1", served.port))

    def say(self, method: str, target: str, *headers: str, body: bytes = b"") -> Line:
        """A request's head, with the access key, and the beginning of a body."""
        named = [f"Host: 127.0.0.1:{self._served.port}", f"Authorization: {self._served.headers['authorization']}"]
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *named, *headers])
        self.socket.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)
        return self

    def status(self) -> int:
        """Of the reply; 0: the connection ended without one."""
        try:
            with self.socket.makefile("rb") as replies:
                while (line := replies.readline()).startswith(b"HTTP/1.1 100"):
                    replies.readline()
                return int(line.split()[1]) if line else 0
        except ConnectionError:
            return 0

    def close(self) -> None:
        """Go away."""
        self.socket.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def told(served: ServerProcess, method: str, target: str, *headers: str, body: bytes = b"") -> int:
    """The status of one request on a connection of its own."""
    with Line(served) as line:
        return line.say(method, target, "Connection: close", *headers, body=body).status()


def files_of(served: ServerProcess) -> set[str]:
    """Everything in the repository's folder."""
    return {str(path) for path in (served.folder.parent / "lake").rglob("*") if path.is_file() and "storm" in str(path)}


@pytest.mark.parametrize("sent", [0, 1_000, 2 * MIB, 20 * MIB])
@pytest.mark.parametrize("framing", ["Content-Length: 30000000", "Transfer-Encoding: chunked"])
def test_clients_that_break_off(served: ServerProcess, web: HttpClient, sent: int, framing: str) -> None:
    """A client that disconnects in the middle of its upload has uploaded nothing: no path, and no file."""
    before = files_of(served)
    with Line(served) as line:
        body = b"x" * sent
        if "chunked" in framing and sent:
            body = b"%x\r\n%b" % (sent + 1_000, body)
        line.say("POST", f"{OBJECTS}?path=broken-off", framing, body=body)
    wait_until(lambda: files_of(served) == before, timeout_s=WAITS_S)
    assert "broken-off" not in web.show("main", "")


def test_clients_that_stop_sending_and_listen(served: ServerProcess, web: HttpClient) -> None:
    """A body that ends before its Content-Length, at a client that still listens, is not stored."""
    for size in (10, 3 * MIB):
        with Line(served) as line:
            line.say("POST", f"{OBJECTS}?path=half", f"Content-Length: {size}", body=b"x" * (size - 1))
            line.socket.shutdown(socket.SHUT_WR)
            assert line.status() in (0, 400)
    assert "half" not in web.show("main", "")


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: -1"],
        ["Content-Length: ten"],
        ["Content-Length: 1e3"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Content-Length: 99999999999999999999999"],
        ["Transfer-Encoding: gzip"],
    ],
)
def test_lengths_that_cannot_be(served: ServerProcess, web: HttpClient, headers: list[str]) -> None:
    """A body whose length cannot be known, or cannot be, is refused, and the connection ends: nothing is stored."""
    assert told(served, "POST", f"{OBJECTS}?path=length", *headers, body=b"12345") in (0, 400, 413, 501)
    assert "length" not in web.show("main", "")


def test_more_than_was_announced(served: ServerProcess, web: HttpClient) -> None:
    """Bytes after the announced length belong neither to the object nor to a request."""
    with Line(served) as line:
        line.say("POST", f"{OBJECTS}?path=announced", "Content-Length: 5", body=b"12345GARBAGE / HTTP/1.1\r\n\r\n")
        status = line.status()
    assert status in (0, 201, 400)  # what lies behind it may end the connection first
    if status == 201 or "announced" in web.show("main", "announced"):
        assert web.ask("GET", "/refs/main/objects", path="announced").data == b"12345"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 0"], b""),
        (["Transfer-Encoding: chunked"], b"0\r\n\r\n"),
        ([], b""),
    ],
)
def test_empty_objects(served: ServerProcess, web: HttpClient, headers: list[str], body: bytes) -> None:
    """No byte at all is an object like every other, however it is sent."""
    path = f"empty/{len(headers)}{len(body)}"
    assert told(served, "POST", f"{OBJECTS}?path={path}", *headers, body=body) == 201
    assert web.ask("GET", "/refs/main/objects", path=path).data == b""
    assert told(served, "GET", f"{READ}?path={path}", "Range: bytes=0-0") == 416
    assert told(served, "HEAD", f"{READ}?path={path}") == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("bytes=0-0", 206),
        ("bytes=-1", 206),
        ("bytes=-99999999999999999999", 206),
        ("bytes=2-99999999999999999999", 206),
        ("bytes=5-", 416),
        ("bytes=99999999999999999999-", 416),
        ("bytes=-0", 416),
        ("bytes=3-2", 200),
        ("bytes=", 200),
        ("bytes=-", 200),
        ("bytes=a-b", 200),
        ("bytes=0-1,3-4", 200),
        ("bytes=0x0-0x1", 200),
        ("bytes=+1-+2", 200),
        ("bytes=\u00b2-\u00b3", 200),
        ("lines=0-1", 200),
        ("bytes=" + "1" * 5_000 + "-", 416),
        ("bytes=0-" + "1" * 5_000, 206),
        (", ".join(["bytes=0-1"] * 1_000), 200),
    ],
)
def test_ranges_that_cannot_be(served: ServerProcess, web: HttpClient, header: str, status: int) -> None:
    """A range is served, or past the end (416), or ignored where it is malformed, as HTTP demands."""
    web.put("main", "ranges", b"01234")
    for method in ("GET", "HEAD"):
        got = told(served, method, f"{READ}?path=ranges", f"Range: {header}")
        assert got == status or (got == 400 and status == 200), (method, got)


TARGETS = [
    f"{READ}?path=../../etc/passwd",
    f"{READ}?path=..%2f..%2fetc%2fpasswd",
    f"{READ}?path=a/%2e%2e/b",
    f"{READ}?path=%00",
    f"{READ}?path=a%00b",
    f"{READ}?path=%ff%fe",
    f"{READ}?path=%c0%ae%c0%ae/",
    f"{READ}?path=%ed%a0%80",
    f"{READ}?path=%",
    f"{READ}?path=%zz",
    f"{READ}?path=" + "%41" * 20_000,
    f"{READ}?path=" + "a" * 60_000,
    f"{READ}?" + "&".join(f"p{number}=1" for number in range(5_000)),
    f"{READ}/ls?prefix=" + "%00" * 100,
    f"{READ}/ls?prefix=../",
    f"{READ}/ls?after=%00",
    f"{READ}/ls?delimiter=%ff",
    f"{READ}/ls?amount=99999999999999999999999999",
    f"{READ}/ls?amount=-99999999999999999999999999",
    f"{READ}/ls?amount=" + "9" * 50_000,
    f"{READ}/ls?amount=1e3",
    f"{READ}/ls?amount=%d9%a1",
    f"{READ}/ls?amount=NaN",
    "/api/v1/repositories/storm/refs/main~99999999999999999999999/objects/ls",
    "/api/v1/repositories/storm/refs/main^99999999999999999999999/objects/ls",
    "/api/v1/repositories/storm/refs/" + "~1" * 20_000 + "/objects/ls",
    "/api/v1/repositories/storm/refs/main" + "~" * 20_000 + "/objects/ls",
    "/api/v1/repositories/storm/refs/%00/objects/ls",
    "/api/v1/repositories/storm/refs/main%2f..%2f..%2fx/objects/ls",
    "/api/v1/repositories/..%2f..%2f_repositories/branches",
    "/api/v1/repositories/_repositories/branches",
    "/api/v1/repositories/%e2%80%ae/branches",
    "/api/v1/repositories/storm/branches/%2e%2e",
    "/api/v1/repositories/storm/tags/" + "t" * 50_000,
    "/api/v1/repositories?after=%00&amount=1&prefix=%ff",
    "/api/v1/repositories/storm/commits/" + "0" * 60_000,
    "http://169.254.169.254/latest/meta-data",
    "*",
    "/\\..\\..\\etc\\passwd",
    "//etc/passwd",
    "/api/v1/../../etc/passwd",
    "/static/../../../etc/passwd",
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
def test_targets_that_no_client_sends(served: ServerProcess, web: HttpClient, method: str) -> None:
    """Steps upwards, NUL, bytes that are not text, endless names and numbers: each a clean refusal; nothing changes."""
    web.put("main", "stays", b"1")
    before = web.show("main", "")
    wrong = []
    for target in TARGETS:
        status = told(served, method, target, "Content-Length: 0")
        is_listing = status == 200 and method in ("GET", "HEAD")
        if not (is_listing or 400 <= status < 500):
            wrong.append((target[:100], status))
    assert not wrong
    assert web.show("main", "") == before
    assert list(web.names("branch", "")) == ["main"]


def test_heads_that_are_too_large(served: ServerProcess, web: HttpClient) -> None:
    """A megabyte of query, of one header, of a thousand headers: refused or passed over, and others are served."""
    for target, headers in (
        (f"{READ}?path=" + "a" * MIB, []),
        (f"{READ}/ls?" + "a=1&" * (MIB // 4), []),
        (READ, ["X-Bomb: " + "a" * MIB]),
        (READ, [f"X-Bomb-{number}: " + "a" * 1_000 for number in range(1_000)]),
        (READ, ["Authorization: Basic " + "a" * MIB]),
        (READ, ["Cookie: " + "a=b; " * 200_000]),
    ):
        with Line(served) as line:
            try:
                line.say("GET", target, "Connection: close", *headers)
            except ConnectionError:
                continue
            assert line.status() in (0, 400, 401, 404, 414, 431), target[:50]
    assert web.ask("GET", "").status == 200
    with Line(served) as line:  # an endless header is ended by the server, not by its memory
        before = memory_of(served.pid, "VmRSS")
        line.say("GET", READ)
        with Line(served) as other:
            try:
                other.socket.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
                for _ in range(256):
                    other.socket.sendall(b"a" * MIB)
                ended = other.status()
            except ConnectionError:
                ended = 0
        assert ended in (0, 400, 431)
        assert memory_of(served.pid, "VmRSS") - before < 100 * MIB


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 1_000,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"G\xff\xfe / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"TRACE /api/v1/user HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"CONNECT example.invalid:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_no_http(served: ServerProcess, web: HttpClient, request_bytes: bytes) -> None:
    """A malformed request ends in 4xx or a closed connection, and others are served."""
    with Line(served) as line:
        line.socket.sendall(request_bytes)
        line.socket.shutdown(socket.SHUT_WR)
        assert line.status() in (0, 400, 404, 405, 426, 501)
    assert web.ask("GET", "").status == 200


def test_bodies_on_requests_that_take_none(served: ServerProcess, web: HttpClient) -> None:
    """A body on GET, HEAD or DELETE is not read as the next request on the same connection."""
    web.put("main", "body/kept", b"kept")
    for method, target in (("GET", f"{READ}?path=body/kept"), ("HEAD", f"{READ}?path=body/kept")):
        with Line(served) as line:
            line.say(method, target, "Content-Length: 23", body=b"GET /healthcheck HTTP/1")
            line.say("GET", f"{READ}?path=body/missing", "Connection: close")
            with line.socket.makefile("rb") as replies:
                every = replies.read()
            assert every.startswith(b"HTTP/1.1 200")
            assert every.count(b"HTTP/1.1 ") == 2
            assert b"HTTP/1.1 404" in every


def test_head_wherever_get_is(served: ServerProcess, web: HttpClient) -> None:
    """HEAD has GET's status and no body, for what is there and for what is not."""
    web.put("main", "head", b"01234")
    here = "/api/v1/repositories/storm"
    for target in (
        "/api/v1/user", "/api/v1/config", "/api/v1/repositories", here, f"{here}/branches", f"{here}/branches/main",
        f"{here}/tags", f"{here}/commits/main", f"{here}/refs/main/commits", f"{here}/refs/main/diff/main",
        f"{READ}?path=head", f"{READ}?path=missing", f"{READ}/stat?path=head", f"{READ}/ls", f"{here}/branches/none",
        "/nothing", "/openapi.json", "/metrics", "/healthcheck",
    ):  # fmt: skip
        replies = []
        for method in ("GET", "HEAD"):
            with Line(served) as line:
                line.say(method, target, "Connection: close")
                with line.socket.makefile("rb") as reading:
                    replies.append(reading.read())
        got, head = replies
        assert head.split(b"\r\n")[0] == got.split(b"\r\n")[0], target
        assert head.endswith(b"\r\n\r\n"), target
        assert head.count(b"\r\n\r\n") == 1, target


def chunked(line: Line, path: str, total: int) -> str:
    """Send an object in chunks; its checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    line.say("POST", f"{OBJECTS}?path={path}", "Transfer-Encoding: chunked")
    for number in range(total // MIB):
        piece = (b"%08d" % number) * (MIB // 8)
        digest.update(piece)
        line.socket.sendall(b"%x\r\n%b\r\n" % (MIB, piece))
    line.socket.sendall(b"0\r\n\r\n")
    return digest.hexdigest()


def round_trip(served: ServerProcess, web: HttpClient, path: str, total: int) -> tuple[int, int]:
    """An object up in chunks, and down; by how much the server has grown, and its largest size, in bytes."""
    before = memory_of(served.pid, "VmRSS")
    with Line(served) as line:
        checksum = chunked(line, path, total)
        assert line.status() == 201
    reply = urllib3.request(
        "GET", f"{served.endpoint}{READ}?path={path}", headers=served.headers, preload_content=False, retries=False
    )
    digest = hashlib.md5(usedforsecurity=False)
    for piece in reply.stream(MIB):
        digest.update(piece)
    assert digest.hexdigest() == checksum == reply.headers["ETag"].strip('"')
    most = memory_of(served.pid)
    return most - before, most


@pytest.mark.parametrize("size_mib", [300, pytest.param(2048, marks=pytest.mark.long)])
def test_large_objects_in_little_memory(
    served: ServerProcess, web: HttpClient, tell: Callable[[str], None], size_mib: int
) -> None:
    """In chunks, up and down, the server's memory grows by less than 150 MB and stays below 500 MB."""
    growth, most = round_trip(served, web, "large", size_mib * MIB)
    tell(f"{size_mib} MB up and down: the server grew by {growth / MIB:.0f} MB to at most {most / MIB:.0f} MB")
    assert growth < 150 * MIB
    assert most < 500 * MIB


def test_a_client_that_reads_slowly(served: ServerProcess, web: HttpClient) -> None:
    """Clients that request a large object and read nothing cost a few pieces each, and do not block others."""
    with Line(served) as line:
        chunked(line, "slow", 64 * MIB)
        assert line.status() == 201
    before = memory_of(served.pid, "VmRSS")
    lines = [Line(served, buffer_bytes=4_096) for _ in range(16)]
    for line in lines:
        line.say("GET", f"{READ}?path=slow")
    for line in lines:
        assert line.socket.recv(15) == b"HTTP/1.1 200 OK"
    for number in range(50):
        web.put("main", f"beside/{number}", b"x" * 1_000)
    assert memory_of(served.pid, "VmRSS") - before < 16 * 6 * MIB
    for line in lines:
        line.close()


def test_slow_clients_do_not_stop_others(served: ServerProcess, web: HttpClient, tell: Callable[[str], None]) -> None:
    """200 clients that send a byte now and then, in heads, small and large bodies: others are served as before."""
    clock = SystemClock()
    lines = []
    for number in range(200):
        line = Line(served)
        lines.append(line)
        if number % 4 == 0:
            line.socket.sendall(b"POST / HTTP/1.1\r\nX-Slow: ")
        elif number % 4 == 1:
            line.say("POST", f"{OBJECTS}?path=slow/{number}", "Content-Length: 1000", body=b"x")
        else:
            line.say("POST", f"{OBJECTS}?path=slow/{number}", "Content-Length: 9000000", body=b"x" * (2 * MIB))
    wait_until(lambda: memory_of(served.pid, "VmRSS") > 0, timeout_s=WAITS_S)
    web.put("main", "quick/large", b"y" * (3 * MIB))
    began_s = clock.monotonic_s()
    for number in range(20):
        web.put("main", f"quick/{number}", b"x" * 1_000)
        assert web.ask("GET", "/refs/main/objects", path=f"quick/{number}").data == b"x" * 1_000
        for line in lines[number::20]:
            line.socket.sendall(b"x")
    small_s = clock.monotonic_s() - began_s
    began_s = clock.monotonic_s()
    web.put("main", "quick/large again", b"y" * (3 * MIB))
    assert web.ask("GET", "/refs/main/objects", path="quick/large").data == b"y" * (3 * MIB)
    large_s = clock.monotonic_s() - began_s
    for line in lines:
        line.close()
    tell(f"beside 200 slow clients: 40 small calls {small_s:.2f} s, a large up and down {large_s:.2f} s")
    assert large_s < 20
    assert small_s < 20
    assert not web.show("main", "slow/")


def test_forms_that_never_end(served: ServerProcess, web: HttpClient) -> None:
    """A form whose headers never end is refused before it fills the memory; one that breaks off stores nothing."""
    before = memory_of(served.pid, "VmRSS")
    kind = "Content-Type: multipart/form-data; boundary=b"
    with Line(served) as line:
        line.say("POST", f"{OBJECTS}?path=form", kind, "Transfer-Encoding: chunked")
        try:
            piece = b"--b\r\nContent-Disposition: form-data; name=" + b"a" * MIB
            for _ in range(256):
                line.socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
                piece = b"a" * MIB
            line.socket.sendall(b"0\r\n\r\n")
        except ConnectionError:
            pass
        assert line.status() in (0, 400, 413)
    assert memory_of(served.pid, "VmRSS") - before < 100 * MIB
    for body in (b"", b"--b", b"--b\r\n\r\n", b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\nhalf'):
        assert told(served, "POST", f"{OBJECTS}?path=form", kind, f"Content-Length: {len(body)}", body=body) == 400
    assert "form" not in web.show("main", "")


def test_a_repository_goes_during_uploads(served: ServerProcess, tmp_path: Path) -> None:
    """Deleted while clients upload, a repository is gone, and one of the same name starts empty: no object crosses."""
    web = HttpClient([served.endpoint], served.headers)
    numbers = itertools.count()

    def body() -> Iterator[bytes]:
        for _ in range(4):
            yield b"x" * MIB

    def put(number: int) -> int:
        url = f"{served.endpoint}/api/v1/repositories/passing/branches/main/objects?path=old/{number}"
        content: Any = body() if number % 2 else b"x" * 1_000
        return urllib3.request("POST", url, body=content, headers=served.headers, retries=False).status

    for item in range(3):
        name = {"name": "passing", "storage_namespace": f"local://passing-{item}"}
        web.ask("POST", "/api/v1/repositories", name)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(put, next(numbers)) for _ in range(24)]
            waiting[0].result()
            web.ask("DELETE", "/api/v1/repositories/passing")
            web.ask("POST", "/api/v1/repositories", {**name, "storage_namespace": f"local://again-{item}"})
            statuses = {element.result() for element in waiting}
        assert statuses <= {201, 404, 409}, statuses
        again = HttpClient([served.endpoint], served.headers, repository="passing")
        for path in again.show("main", ""):  # those that began after the new one was made
            assert again.ask("GET", "/refs/main/objects", path=path).data[:1] == b"x"
        web.ask("DELETE", "/api/v1/repositories/passing")
