"""`set_if` and linearizable reads when the database changes hands: in threads, in forked processes, by zombies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakebed import kv
from lakebed.errors import Conflict, Fenced, OutcomeUnknown
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.place import Place
from lakebed.testing import Fault, FaultyStore

BY_HAND = DatabaseOptions(background=False)
PROCESSES = 4

COUNT = """
import sys
from lakebed import kv
from lakebed.clock import SystemClock
from lakebed.errors import Conflict, Fenced, OutcomeUnknown, Unavailable
import random

url, said, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
rng, clock = random.Random(seed), SystemClock()
ends = clock.monotonic_s() + seconds
unclear = 0
with open(said, "ab", buffering=0) as log:
    while clock.monotonic_s() < ends:
        try:
            with kv.open(url, take_over=rng.random() < 0.5) as db:
                while clock.monotonic_s() < ends and rng.random() < 0.97:
                    now = db.get(b"counter", linearizable=rng.random() < 0.5)
                    log.write(b"?")
                    try:
                        db.set_if(b"counter", b"%d" % (int(now or 0) + 1), expected=now)
                    except Conflict:
                        log.write(b"c")
                        continue
                    log.write(b"+")
        except Fenced:
            log.write(b"f")
        except Conflict:
            clock.sleep(rng.random() * 0.02)
"""


def open_at(place: Place, **settings: Any) -> Database:
    """A writer without threads, whoever owned the database before."""
    return Database.open(place, options=BY_HAND, take_over=True, **settings)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place for a database."""
    return Place.at(tmp_path / "db", durable=False)


@pytest.mark.parametrize("wal_enabled", [True, False], ids=["log", "no log"])
def test_a_fenced_writer_does_not_say_what_the_value_is(place: Place, wal_enabled: bool) -> None:
    """set_if of a writer that was taken over, and does not know it yet, is Fenced, not a Conflict with an old value."""
    old = Database.open(place, options=DatabaseOptions(background=False, wal_enabled=wal_enabled))
    old.put(b"k", b"1")
    new = open_at(place)
    new.put(b"k", b"2")
    with pytest.raises(Fenced) as told:
        old.set_if(b"k", b"3", expected=b"2")  # which is what it is
    assert told.value.facts["new_epoch"] == new.epoch
    assert new.get(b"k") == b"2"
    with pytest.raises(Fenced):
        old.close()
        old.set_if(b"k", b"3", expected=b"1")
    new.close()


def test_a_conflict_costs_one_head(place: Place) -> None:
    """The proof that we still own the database: 1 HEAD, and no append when what was seen is durable."""
    with open_at(place) as db:
        db.put(b"k", b"1")
        with place.store.count() as requests, pytest.raises(Conflict):
            db.set_if(b"k", b"3", expected=b"2")
        assert (requests.head, requests.total) == (1, 1)
        with place.store.count() as requests, pytest.raises(Conflict):
            db.set_if(b"k", b"3", expected=b"2", await_durable=False)
        assert requests.total == 0


def test_a_conflict_rests_on_what_is_durable(tmp_path: Path) -> None:
    """The value that a Conflict speaks of was durable before it was raised; when it cannot be, that is said instead."""
    url = str(tmp_path / "db")
    plain = Place.at(url, durable=False)
    failing = False
    store = FaultyStore(
        plain.store, faults=lambda index, call: Fault.LOST_REQUEST if failing and call.kind == "put" else None
    )
    db = open_at(Place(store, plain.environment, plain.open_url))
    db.put(b"k", b"1", await_durable=False)
    with pytest.raises(Conflict):
        db.set_if(b"k", b"3", expected=b"2")
    with kv.open_reader(url, options=kv.ReaderOptions(background=False)) as reader:
        assert reader.get(b"k") == b"1"
    db.put(b"k", b"4", await_durable=False)
    failing = True
    with pytest.raises(OutcomeUnknown):
        db.set_if(b"k", b"3", expected=b"2")
    failing = False
    db.close()
