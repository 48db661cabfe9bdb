"""PostgreSQL under the key-value port: lost connections and commits, many servers, what is said when it cannot be."""

from __future__ import annotations

import re
import select
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier, Event, Thread
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from lakebed.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.key_value import postgres_connections
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.key_value.postgres import PostgresKeyValue
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.forks import answer_in_fork

COMMIT = b"COMMIT\x00"


class Wire:
    """A way to PostgreSQL that can be cut at a word that a client sends: before it arrives, or before its reply does.

    Attributes:
        word: what to wait for; None: nothing is cut.
        arrives: whether the word still reaches the server.
        is_down: whether every connection fails.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.word: bytes | None = None
        self.arrives = False
        self.is_down = False
        self.goes_down = False
        self.cut_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_over = Event()
        self._open: list[socket.socket] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    words = ready.recv(1 << 20)
                    if not words:
                        return
                    if ready is client and self.word is not None and self.word in words:
                        self.word = None
                        self.cut_count += 1
                        self.is_down = self.goes_down
                        if self.arrives:
                            server.sendall(words)
                            server.settimeout(0.5)  # a message that goes on in the next packet has no reply
                            server.recv(1 << 20)  # the reply: it was done
                        return
                    (server if ready is client else client).sendall(words)

    def cut(self, word: bytes, *, arrives: bool, goes_down: bool = False) -> None:
        """Cut the next connection that sends this word, and all that come later too if it goes down."""
        self.word, self.arrives, self.goes_down = word, arrives, goes_down

    def cut_all(self) -> None:
        """Cut every connection there is."""
        for item in self._open:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let no connection through any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` would take one more
        self._listener.close()
        self.cut_all()


def with_port(url: str, port: int) -> str:
    """The same database by another port."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))


@pytest.fixture
def url(postgresql: Any) -> str:
    """A new database."""
    return str(postgresql.make_database())


@pytest.fixture
def wire(postgresql: Any) -> Iterator[Wire]:
    """A way to it that can be cut."""
    wire = Wire(postgresql.port)
    yield wire
    wire.close()


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., KeyValue]]:
    """Opens the database, by another URL if one is given; closed at the end."""
    with ExitStack() as handles:

        def open_it(by: str | None = None, **facts: Any) -> KeyValue:
            handle = open_key_value(by or url, **facts)
            handles.callback(handle.close)
            return handle

        yield open_it


@pytest.mark.parametrize("arrives", [True, False], ids=["the commit arrives", "the commit is lost"])
def test_a_lost_reply_is_looked_up(opened: Callable[..., KeyValue], url: str, wire: Wire, arrives: bool) -> None:
    """When the reply to a commit is lost, PostgreSQL states its outcome: success, or Unavailable; never a guess."""
    key_value, other = opened(with_port(url, wire.port)), opened()
    for number in range(3):
        key = b"k%d" % number
        wire.cut(COMMIT, arrives=arrives)
        if arrives:
            key_value.set_if(key, b"1", expected=None)
        else:
            with pytest.raises(Unavailable):
                key_value.set_if(key, b"1", expected=None)
        assert other.get(key) == key_value.get(key) == (b"1" if arrives else None)
    assert wire.cut_count == 3


@pytest.mark.parametrize("arrives", [True, False], ids=["the commit arrives", "the commit is lost"])
def test_an_unclear_commit_is_settled_before_any_read(
    opened: Callable[..., KeyValue], url: str, wire: Wire, arrives: bool
) -> None:
    """OutcomeUnknown when the server is down; then no read is answered until the write's outcome is known."""
    key_value, other = opened(with_port(url, wire.port)), opened()
    key_value.set(b"other", b"0")
    wire.cut(COMMIT, arrives=arrives, goes_down=True)
    with raises(OutcomeUnknown, "commit_unanswered"):
        key_value.write([(b"k", b"1")], expected={b"k": None})
    for read in (lambda: key_value.get(b"other"), key_value.snapshot, lambda: key_value.peek(b"other")):
        with pytest.raises(Unavailable):
            read()
    wire.is_down = False
    expected = b"1" if arrives else None
    with key_value.snapshot() as snapshot:
        assert snapshot.get(b"k") == expected
    assert key_value.get(b"k") == other.get(b"k") == expected
    assert key_value.get(b"other") == b"0"


def test_a_connection_lost_before_the_commit_changes_nothing(
    opened: Callable[..., KeyValue], url: str, wire: Wire
) -> None:
    """Lost while the change is made: it is tried again on a new connection, or it is Unavailable and did not happen."""
    key_value, other = opened(with_port(url, wire.port)), opened()
    key_value.set(b"k", b"0")
    wire.cut(b"lakebed_write", arrives=True)
    key_value.set_if(b"k", b"1", expected=b"0")
    wire.cut(b"lakebed_write", arrives=True, goes_down=True)
    with pytest.raises(Unavailable):
        key_value.set_if(b"k", b"2", expected=b"1")
    wire.is_down = False
    assert wire.cut_count == 2
    assert other.get(b"k") == key_value.get(b"k") == b"1"
    key_value.set_if(b"k", b"3", expected=b"1")
    many = [b"row%05d" % number for number in range(25_000)]
    wire.cut(b"unnest", arrives=False, goes_down=True)
    with pytest.raises(Unavailable):
        key_value.put_columns(many, many)
    wire.is_down = False
    with other.snapshot() as snapshot:
        assert dict(snapshot.scan()) == {b"k": b"3"}


def test_connections_that_died_while_idle_are_replaced(opened: Callable[..., KeyValue], url: str, wire: Wire) -> None:
    """After a restart of the server, or a firewall's cut, the next call of each kind works."""
    key_value = opened(with_port(url, wire.port))
    calls: list[Callable[[], object]] = [
        lambda: key_value.get(b"k"),
        lambda: key_value.set(b"k", b"1"),
        lambda: key_value.put_columns([b"k%d" % n for n in range(100)], [b"v"] * 100),
        lambda: key_value.snapshot().close(),
    ]
    for call in calls:
        key_value.set(b"k", b"0")
        with key_value.snapshot() as snapshot:
            assert snapshot.get(b"k") == b"0"
        wire.cut_all()
        call()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(opened: Callable[..., KeyValue]) -> None:
    """The child does not send on its parent's connections, on which each would read replies to the other."""
    key_value = opened()
    key_value.set(b"k", b"1")

    def use() -> set[int]:
        key_value.set(b"k", b"2")
        sessions = _sessions(key_value)
        with pytest.raises(Closed, match="forked"):
            snapshot.get(b"k")
        snapshot.close()
        key_value.close()
        return sessions

    before = _sessions(key_value)
    with key_value.snapshot() as snapshot:
        numbers = re.findall(r"\d+", answer_in_fork(use))
        assert snapshot.get(b"k") == b"1"
    assert numbers
    assert before.isdisjoint(map(int, numbers))
    assert _sessions(key_value) == before
    assert key_value.get(b"k") == b"2"


def _sessions(key_value: Any) -> set[int]:
    """The processes of the server at the ends of the connections that reads, and that snapshots, get."""
    pools = key_value._connections, key_value._for_snapshots
    return {pool.ask(lambda it: it.execute("SELECT pg_backend_pid()").fetchone()[0]) for pool in pools}


def test_a_snapshot_whose_connection_is_gone_says_so(opened: Callable[..., KeyValue], url: str, wire: Wire) -> None:
    """A snapshot cannot go on with another connection, which would be another moment: it is Unavailable."""
    key_value = opened(with_port(url, wire.port))
    key_value.put_columns([b"k%05d" % number for number in range(2_000)], [b"v"] * 2_000)
    with key_value.snapshot() as snapshot:
        rows = snapshot.scan()
        assert next(rows) == (b"k00000", b"v")
        wire.cut_all()
        with pytest.raises(Unavailable):
            list(rows)
        with pytest.raises(Unavailable):
            snapshot.get(b"k")
    assert key_value.get(b"k00001") == b"v"


def test_many_servers_share_one_set_of_tables(opened: Callable[..., KeyValue]) -> None:
    """Four servers open the tables at once and count together: every acknowledged increment counts."""
    barrier = Barrier(4)

    def serve(_: int) -> int:
        barrier.wait()
        key_value, done = opened(), 0
        for _ in range(40):
            with key_value.snapshot() as snapshot:
                now = snapshot.get(b"counter")
            try:
                key_value.set_if(b"counter", b"%d" % (int(now or 0) + 1), expected=now)
            except Conflict:
                continue
            done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(serve, range(4)))
    assert done >= 40
    assert opened().get(b"counter") == b"%d" % done


@pytest.mark.parametrize("before", [b"5", None], ids=["present", "absent"])
def test_what_a_write_expects_is_still_so_when_it_commits(
    opened: Callable[..., KeyValue], monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    """No expected key changes between a write's check and its commit, so no snapshot can lie between them."""
    slow, quick = opened(), opened()
    if before is not None:
        slow.set(b"boundary", before)
    quick.write(expected={b"boundary": before})
    reached, go_on, commit = Event(), Event(), PostgresKeyValue._commit

    def pausing(*facts: Any) -> None:
        reached.set()
        assert go_on.wait(30)
        commit(slow, *facts)  # type: ignore[arg-type]

    monkeypatch.setattr(slow, "_commit", pausing)
    with ThreadPoolExecutor(2) as pool:
        staging = pool.submit(lambda: slow.write([(b"entry", b"1")], expected={b"boundary": before}))
        assert reached.wait(30)
        quick.write([(b"entry 2", b"1")], expected={b"boundary": before})  # a write that expects the same does not wait
        moving = pool.submit(lambda: quick.set_if(b"boundary", b"9", expected=before))
        for _ in range(20):
            assert quick.get(b"boundary") == before
        assert not moving.done()
        go_on.set()
        staging.result(30)
        moving.result(30)
    with quick.snapshot() as snapshot:
        assert snapshot.get_many([b"boundary", b"entry"]) == [b"9", b"1"]


def test_large_writes_never_wait_in_a_circle(opened: Callable[..., KeyValue], postgresql: Any, url: str) -> None:
    """Large writes and deletes of the same rows, expecting some in other orders, all end without a deadlock."""
    key_value = opened()
    keys = [b"k%03d" % number for number in range(200)]

    def write(turn: int) -> None:
        first, rest = (keys[0], keys[1:]) if turn % 2 else (keys[-1], keys[:-1])
        for _ in range(5):
            now = key_value.peek(first)
            with suppress(Conflict):
                key_value.write([(key, b"%d" % turn) for key in reversed(rest)], expected={first: now})
            key_value.write(deletes=reversed(rest[50:]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with key_value.snapshot() as snapshot:
        assert len(list(snapshot.scan())) >= 49
    database = urlsplit(url).path[1:]
    counted = f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{database}'"
    assert postgresql.run(counted, database=database) == [(0,)]


def test_open_snapshots_never_block_writes(opened: Callable[..., KeyValue], monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots have connections of their own; when all are taken the next one waits, and then says why."""
    clock = ManualClock()
    key_value = opened(environment=Environment(clock=clock))
    monkeypatch.setattr(postgres_connections, "WAIT_TIMEOUT_S", 0.0)
    with ExitStack() as stack:
        for _ in range(postgres_connections.CONNECTIONS_MAX):
            stack.enter_context(key_value.snapshot())
        with raises(Unavailable, "no_connection"):
            key_value.snapshot()
        key_value.set(b"k", b"1")
        assert key_value.get(b"k") == b"1"
    with key_value.snapshot() as snapshot:
        assert snapshot.get(b"k") == b"1"


# ---- what cannot be


def test_tables_are_made_only_when_asked(opened: Callable[..., KeyValue], postgresql: Any, url: str) -> None:
    """Without `create` an empty database is NotFound; tables of a newer format are refused."""
    with raises(NotFound, "database_not_found"):
        opened(create=False)
    opened().set(b"k", b"1")
    assert opened(create=False).get(b"k") == b"1"
    postgresql.run("UPDATE lakebed_format SET version = 2", database=urlsplit(url).path[1:])
    with pytest.raises(UnsupportedFormat):
        opened()


def test_no_error_shows_the_password(opened: Callable[..., KeyValue], postgresql: Any, url: str, wire: Wire) -> None:
    """Neither errors, with all that caused them, nor any repr have the password or the URL."""
    database = urlsplit(url).path[1:]
    wire.close()
    secret = "hunter2%2Fsecret"
    wrong = [
        (postgresql.url(database, password=secret), InvalidRequest),
        (postgresql.url("no_such_database"), InvalidRequest),
        (with_port(url, wire.port), Unavailable),
        (f"postgresql://lakebed:{secret}@[::1/x", InvalidRequest),
        (f"postgresql://lakebed:{secret}@127.0.0.1:{postgresql.port}/{database}?no_such_setting=1", InvalidRequest),
    ]
    for bad, kind in wrong:
        with pytest.raises(kind) as refusal:
            open_key_value(bad)
        shown = "".join(traceback.format_exception(refusal.value)) + repr(refusal.value.facts)
        assert isinstance(refusal.value, LakebedError)
        assert "hunter2" not in shown
        assert postgresql.password not in shown
    key_value = opened()
    assert postgresql.password not in repr(key_value) + repr(vars(key_value))
    with raises(InvalidRequest, "two_credentials"):
        open_key_value(url, storage_options={"aws_region": "x"})


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg all else works, and PostgreSQL is refused with what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with raises(InvalidRequest, "missing_package") as refusal:
        open_key_value("postgresql://127.0.0.1/x")
    assert "lakebed[server]" in str(refusal.value)
    with open_key_value("memory://without-psycopg").snapshot() as snapshot:  # type: ignore[attr-defined]
        assert list(snapshot.scan()) == []
