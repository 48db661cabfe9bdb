"""The key-value port over a database: ownership, requests, and answers while writes are under way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TypeVar

import pytest

from lakebed.errors import Conflict, Fenced, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.key_value.database import DATABASE_OPTIONS
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import Call, Fault, FaultyStore, ManualClock, StoreWrapper
from worlds.errors import raises

R = TypeVar("R")

OWN = """
import sys
from lakebed.key_value.open import open_key_value

key_value = open_key_value(sys.argv[1], endpoint="http://127.0.0.1:8123", take_over=True)
key_value.set(b"k", b"theirs")
print("owned", flush=True)
sys.stdin.readline()
key_value.set(b"k", b"last")
key_value.close()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A folder for a database."""
    return str(tmp_path / "records")


def owner(url: str) -> subprocess.Popen[str]:
    """Another process that owns the database now, and wrote to it."""
    process = subprocess.Popen([sys.executable, "-c", OWN, url], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def test_who_was_taken_over_answers_nothing_stale(url: str) -> None:
    """After another process has taken the database over, reads that promise truth, and all writes, are Fenced."""
    old = open_key_value(url)
    old.set(b"k", b"ours")
    with old.snapshot() as before:
        process = owner(url)
        calls: list[Callable[[], object]] = [
            lambda: old.get(b"k"),
            old.snapshot,
            lambda: old.set_if(b"k", b"again", expected=b"ours"),
            lambda: old.set_if(b"k", b"again", expected=b"other"),
            lambda: old.write([(b"x", b"1")], expected={b"k": b"ours"}),
            lambda: old.write(expected={b"k": b"ours"}),
            lambda: old.put_columns([b"x"], [b"1"]),
            lambda: old.delete(b"k"),
        ]
        for call in calls:
            with pytest.raises(Fenced):
                call()
        assert before.get(b"k") == b"ours"
        assert old.peek(b"k") == b"ours", "peek promises only what this process knows"
    process.communicate("\n")
    with pytest.raises(Fenced):
        old.get(b"k")
    old.close()
    new = open_key_value(url)
    assert (new.get(b"k"), new.get(b"x")) == (b"last", None)
    new.close()


def test_a_living_owner_is_named(url: str) -> None:
    """An open that finds an owner names in one sentence who serves the repositories, where, and what to do."""
    process = owner(url)
    with pytest.raises(Conflict) as refusal:
        open_key_value(url)
    error = refusal.value
    assert error.kind == "owned"
    assert error.facts["endpoint"] == "http://127.0.0.1:8123"
    assert error.facts["pid"] == process.pid
    for words in (
        f"process {process.pid}",
        "http://127.0.0.1:8123",
        "in place of the lake",
        "lakebed.repo.open",
        "take_over=True",
    ):
        assert words in str(error)
    process.communicate("\n")
    key_value = open_key_value(url)
    assert key_value.get(b"k") == b"last"
    with pytest.raises(Conflict) as refusal:
        open_key_value(url)
    assert (refusal.value.kind, refusal.value.facts["endpoint"], refusal.value.facts["pid"]) == (
        "owned",
        None,
        os.getpid(),
    )
    key_value.close()


def test_what_calls_cost(url: str) -> None:
    """A linearizable read is 1 HEAD, a peek nothing, a write of any size 1 PUT; none more."""
    store = open_store(url)
    key_value = open_key_value(store, options=DATABASE_OPTIONS)
    rows = [b"row%05d" % number for number in range(10_000)]
    with store.count() as requests:
        key_value.write([(b"a", b"1")], expected={b"boundary": None})
        key_value.put_columns(rows, rows, expected={b"a": b"1"})
    assert (requests.put, requests.total) == (2, 2)
    with store.count() as requests:
        assert key_value.get(b"a") == b"1"
        with key_value.snapshot() as snapshot:
            assert snapshot.get_many([b"a", b"b", rows[7]]) == [b"1", None, rows[7]]
            assert sum(batch.num_rows for batch in snapshot.scan_arrow(b"row", b"rox")) == len(rows)
    assert (requests.head, requests.total) == (2, 2)
    with store.count() as requests:
        assert key_value.peek(b"a") == b"1"
    assert requests.total == 0
    key_value.close()


class Gate(StoreWrapper):
    """Holds every put of the log back until it is opened."""

    entered = Event()
    opened = Event()
    is_shut = False

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Wait at the gate, if it is shut."""
        if self.is_shut and call.kind == "put" and call.path.startswith("wal/"):
            self.entered.set()
            assert self.opened.wait(30)
        return perform()


def test_reads_wait_for_no_write_and_show_none_that_is_under_way(url: str) -> None:
    """While a write is on its way to the log, get and snapshots answer at once, without it; then with it."""
    gate = Gate(open_store(url))
    gate.entered, gate.opened = Event(), Event()
    key_value = open_key_value(gate)  # type: ignore[arg-type]
    key_value.set(b"k", b"1")
    gate.is_shut = True
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: key_value.set(b"k", b"2"))
        assert gate.entered.wait(30)
        assert key_value.get(b"k") == b"1"
        with key_value.snapshot() as snapshot:
            assert dict(snapshot.scan()) == {b"k": b"1"}
        assert not writing.done()
        gate.opened.set()
        writing.result(30)
    assert key_value.get(b"k") == b"2"
    key_value.close()


def test_an_unclear_write_is_settled_by_the_next_read(url: str) -> None:
    """After OutcomeUnknown, get raises Unavailable while the server is down, then returns the outcome, for good."""
    plain = open_store(url)
    failing = False
    faults = FaultyStore(plain, faults=lambda index, call: Fault.LOST_REQUEST if failing else None)
    environment = Environment(clock=ManualClock())
    key_value = open_key_value(faults, environment=environment)  # type: ignore[arg-type]
    key_value.set(b"k", b"1")
    failing = True
    with pytest.raises(OutcomeUnknown):
        key_value.set_if(b"k", b"2", expected=b"1")
    for read in (lambda: key_value.get(b"k"), key_value.snapshot):
        with pytest.raises(Unavailable):
            read()
    failing = False
    assert key_value.get(b"k") == b"2"
    key_value.close()
    again = open_key_value(plain)
    assert again.get(b"k") == b"2"
    again.close()


def test_places_and_arguments(url: str, tmp_path: Path) -> None:
    """What is not there is not made unasked; a store brings its own credentials; local places say that they are."""
    with raises(NotFound, "database_not_found"):
        open_key_value(url, create=False)
    with raises(InvalidRequest, "two_credentials"):
        open_key_value(open_store(url), storage_options={"aws_region": "x"})
    opened: list[KeyValue] = [open_key_value(tmp_path / "a"), open_key_value("memory://is-it-local/x")]
    assert [element.is_local for element in opened] == [True, True]
    for item in opened:
        item.close()
