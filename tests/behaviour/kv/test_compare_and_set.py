"""`set_if` and linearizable reads when the database changes hands: in threads, in forked processes, by zombies."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lakebed import kv
from lakebed.errors import Closed, Conflict, Fenced, OutcomeUnknown
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore, ManualClock

BY_HAND = DatabaseOptions(background=False)
PROCESSES = 4

COUNT = """
import sys
from lakebed import kv
from lakebed.clock import SystemClock
from lakebed.errors import Conflict, Fenced
from worlds.waiting import pause
import random

url, said, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
rng, clock = random.Random(seed), SystemClock()
ends, acknowledged = clock.monotonic_s() + seconds, 0


def goes_on():  # for so long, and on a busy machine until something was acknowledged, within reason
    now_s = clock.monotonic_s()
    return now_s < ends or (not acknowledged and now_s < ends + 60)


with open(said, "ab", buffering=0) as log:
    while goes_on():
        try:
            with kv.open(url, take_over=rng.random() < 0.3) as db:
                while goes_on() and rng.random() < 0.99:
                    now = db.get(b"counter", linearizable=rng.random() < 0.5)
                    following = b"%d" % (int(now or 0) + 1)
                    log.write(b"? ")
                    try:
                        db.set_if(b"counter", following, expected=now)
                    except Conflict:
                        log.write(b"= ")
                        continue
                    log.write(following + b" ")
                    acknowledged += 1
        except Fenced:
            log.write(b"fenced ")
        except Conflict:
            pause(rng.random() * 0.02)
"""


def open_at(place: DatabaseLocation, **settings: Any) -> Database:
    """A writer without threads; it takes over from any earlier owner."""
    return Database.open(place, options=BY_HAND, take_over=True, **settings)


@pytest.fixture
def place(tmp_path: Path) -> DatabaseLocation:
    """A place for a database."""
    return DatabaseLocation.at(tmp_path / "db", durable=False)


@pytest.mark.parametrize("wal_enabled", [True, False], ids=["log", "no log"])
def test_a_fenced_writer_does_not_say_what_the_value_is(place: DatabaseLocation, wal_enabled: bool) -> None:
    """set_if of a writer that was taken over, and does not know it yet, is Fenced, not a Conflict with an old value."""
    old = Database.open(place, options=DatabaseOptions(background=False, wal_enabled=wal_enabled))
    old.put(b"k", b"1")
    new = open_at(place)
    new.put(b"k", b"2")
    with pytest.raises(Fenced) as refusal:
        old.set_if(b"k", b"3", expected=b"2")  # which is what it is
    assert refusal.value.facts["new_epoch"] == new.epoch
    assert new.get(b"k") == b"2"
    old.close()
    new.close()
    with pytest.raises(Closed):
        new.set_if(b"k", b"3", expected=b"1")


def test_a_conflict_costs_one_head(place: DatabaseLocation) -> None:
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
    plain = DatabaseLocation.at(url, durable=False, environment=Environment(clock=ManualClock()))
    failing = False
    store = FaultyStore(
        plain.store, faults=lambda index, call: Fault.LOST_REQUEST if failing and call.kind == "put" else None
    )
    db = open_at(DatabaseLocation(store, plain.environment, plain.open_url))
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


def test_threads_count_exactly(place: DatabaseLocation) -> None:
    """Compare-and-set of one key by eight threads: every acknowledged increment counts once."""
    with Database.open(place) as db:

        def count(_: int) -> int:
            done = 0
            for _ in range(40):
                now = db.get(b"counter")
                try:
                    db.set_if(b"counter", b"%d" % (int(now or 0) + 1), expected=now)
                except Conflict:
                    continue
                done += 1
            return done

        with ThreadPoolExecutor(8) as pool:
            done = sum(pool.map(count, range(8)))
        assert db.get(b"counter") == b"%d" % done


def test_processes_that_take_over_from_each_other_count_exactly(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Four processes, stopped, killed and fenced at random: no number is acknowledged twice, none is lost."""
    url, rng = str(tmp_path / "db"), random.Random(5)
    said = [tmp_path / f"said-{i}" for i in range(PROCESSES)]
    running = [
        subprocess.Popen([sys.executable, "-c", COUNT, url, str(path), str(i), "3"]) for i, path in enumerate(said)
    ]
    while alive := [process for process in running if process.poll() is None]:
        signals = [signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT] if running[-1] in alive else [signal.SIGCONT]
        rng.choice(alive).send_signal(rng.choice(signals))
        if rng.random() < 0.02:
            running[0].kill()
        with suppress(subprocess.TimeoutExpired):
            alive[-1].wait(0.05)
    words = [word for path in said for word in path.read_text().split()]
    numbers = [int(word) for word in words if word.isdigit()]
    unanswered = words.count("?") - words.count("=") - len(numbers)
    with kv.open(url, take_over=True) as db:
        last = int(db.get(b"counter") or 0)
    tell(f"counter of {PROCESSES} processes: {len(numbers)} acknowledged, {unanswered} unanswered, {last} counted, "
         f"{words.count('fenced')} times fenced")  # fmt: skip
    assert len(set(numbers)) == len(numbers)
    assert numbers
    assert max(numbers) <= last <= len(numbers) + unanswered
