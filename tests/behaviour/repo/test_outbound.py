"""Where a webhook may connect: public addresses and listed hosts, and only to an address that was checked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from lakebed.errors import InvalidRequest, Rejected, Unavailable
from lakebed.repo.outside.outbound import parse_allowed, post
from lakebed.repo.records.hooks import Webhook, set_webhooks
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, open_context, put
from worlds.repo.operations import commit
from worlds.waiting import pause

PRIVATE = [
    "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.1.2.3", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "192.0.0.8", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:0.0.0.0", "::ffff:10.0.0.1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
]  # fmt: skip
SPELLED = ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "LOCALHOST"]


class Listener:
    """A port of this machine; whether a client has connected to it."""

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self._socket = socket.socket(family)
        self._socket.bind((address, 0))
        self._socket.listen()
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    def has_caller(self) -> bool:
        """Return whether a client has connected, and forget it."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A port on all IPv4 addresses of this machine."""
    opened = Listener(socket.AF_INET, "0.0.0.0")
    yield opened
    opened.close()


class Names:
    """A name service that answers each question about one name with the next of its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, answers: list[list[str]]) -> None:
        self._real = socket.getaddrinfo
        self._name = name
        self._answers = answers
        self.asked = 0
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: Any, port: Any, *rest: Any, **settings: Any) -> list[Any]:
        if host != self._name:
            return self._real(host, port, *rest, **settings)
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        return [result for address in answer for result in self._real(address, port, type=socket.SOCK_STREAM)]


def refused(url: str, *, allow: tuple[str, ...] = ()) -> bool:
    """Whether a URL is refused before anything is sent."""
    try:
        post(url, b"{}", timeout_ms=50, allowed=parse_allowed(allow), owner="r")
    except (InvalidRequest, Unavailable) as error:
        return error.kind == "webhook_host_refused"
    return False


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str, monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    """Written as an address and as a name that resolves to it; nothing connects."""
    written = f"[{address}]" if ":" in address else address
    assert refused(f"http://{written}:{listener.port}/hook")
    Names(monkeypatch, "public.example", [[address]])
    assert refused(f"http://public.example:{listener.port}/hook")
    assert not listener.has_caller()


@pytest.mark.parametrize("host", SPELLED)
def test_loopback_is_refused_however_it_is_spelled(host: str, listener: Listener) -> None:
    """Short, decimal, hexadecimal and octal forms, and its names: what counts is what it resolves to."""
    assert refused(f"http://{host}:{listener.port}/hook")
    assert not listener.has_caller()


def test_a_name_that_resolves_anew_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    """The connection goes to the address that was checked, even when the name resolves to another a moment later."""
    names = Names(monkeypatch, "rebind.example", [["127.0.0.2"], ["127.0.0.1"]])
    allow = (f"127.0.0.2:{listener.port}",)
    listening = Listener(socket.AF_INET, "127.0.0.1")
    try:
        assert not refused(f"http://rebind.example:{listener.port}/hook", allow=allow)
        assert names.asked == 1
        assert listener.has_caller()  # at 127.0.0.2, where 0.0.0.0 listens
        names.asked = 1  # the name means loopback from now on
        assert refused(f"http://rebind.example:{listening.port}/hook", allow=allow)
        assert not listening.has_caller()
    finally:
        listening.close()


def test_of_several_addresses_only_public_ones_are_used(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    """A name with a listed and a private address is reached at the listed one only."""
    Names(monkeypatch, "both.example", [["127.0.0.1", "127.0.0.9"]])
    assert not refused(f"http://both.example:{listener.port}/hook", allow=("127.0.0.9",))
    assert listener.has_caller()
    assert not listener.has_caller()


@pytest.mark.parametrize(
    ("entry", "host", "is_allowed"),
    [
        ("localhost", "localhost", True),
        ("LocalHost.", "localhost", True),
        ("localhost", "127.0.0.1", False),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.0/8", "127.3.2.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "[::ffff:127.0.0.1]", True),
        ("::1", "127.0.0.1", False),
        ("0.0.0.0/0", "[::1]", False),
    ],
)
def test_listed_hosts_may_be_reached(entry: str, host: str, is_allowed: bool) -> None:
    """Names, addresses and networks; one in the list says nothing of another."""
    assert refused(f"http://{host}:9/hook", allow=(entry,)) is not is_allowed


def test_a_listed_port_is_the_only_one(listener: Listener) -> None:
    """An entry with a port does not open the other services of that host."""
    for entry in (f"localhost:{listener.port}", f"127.0.0.1:{listener.port}"):
        assert not refused(f"http://localhost:{listener.port}/hook", allow=(entry,))
        assert refused("http://localhost:9/hook", allow=(entry,))
    assert not refused("http://[::1]:9/hook", allow=("[::1]:9",))


@pytest.mark.parametrize("entry", ["", "http://host", "host/path", "user@host", "host:port", "a b", "10.0.0.0/40"])
def test_an_entry_that_is_not_a_host_is_refused(entry: str) -> None:
    """When the list is read, with a sentence."""
    with raises(InvalidRequest, "invalid_webhook_host"):
        parse_allowed([entry])


def test_a_commit_says_why_its_webhook_was_not_called(listener: Listener) -> None:
    """By default loopback is refused: the commit is too, the sentence names the setting and no address."""
    with open_context(MemoryRepository()) as home:
        put(home, "main", "a", "1")
        hook = Webhook("gate", f"http://localhost:{listener.port}/hook", ("pre-commit",))
        set_webhooks(home.key_value, keys=home.keys, hooks=[hook])
        with pytest.raises(Rejected) as caught:
            commit(home, "main", message="m")
        assert "--allow-webhook" in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)
        assert "::1" not in str(caught.value)
        assert not listener.has_caller()


def drip(listener: socket.socket) -> None:
    """Answer a request with a head of which a letter comes at a time, for some seconds."""
    with suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            for _ in range(200):
                connection.sendall(b"x")
                pause(0.02)
            connection.sendall(b"\r\n\r\n")


def test_a_reply_that_drips_is_none() -> None:
    """Each letter comes in time, and the head does not: the request ends with its time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,), daemon=True)
        dripping.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(Unavailable, match="did not answer within 300 ms"):
            post(url, b"{}", timeout_ms=300, allowed=parse_allowed(["127.0.0.1"]), owner="r")
        dripping.join()


@pytest.mark.parametrize("body", [b"", b'{"event":"pre-commit"}'])
def test_head_and_body_are_sent_at_once(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """The other side wakes up once for a short request."""
    sent: list[bytes] = []
    send = socket.socket.sendall

    def note(connection: socket.socket, part: Any, *rest: Any) -> None:
        sent.append(bytes(part))
        send(connection, part, *rest)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            connection = listening.accept()[0]
            with connection:
                received = b""
                while not received.endswith(b"\r\n\r\n" + body):
                    received += connection.recv(65_536)
                connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        monkeypatch.setattr(socket.socket, "sendall", note)
        url, allowed = f"http://127.0.0.1:{port}/hook", parse_allowed(("127.0.0.1",))
        assert post(url, body, timeout_ms=30_000, allowed=allowed, owner="r") == 204
        answering.join()
    assert len(sent) == 1
    assert sent[0].endswith(b"\r\n\r\n" + body)
