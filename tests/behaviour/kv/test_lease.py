"""The lease: advisory, readable, never in the way for ever."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import uuid

import pytest

from lakebed.errors import Fenced, InvalidRequest
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import LEASE_LIFETIME_MS_MAX, Process, read_lease, take_lease, this_process
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore, ManualClock

LIFETIME_MS = 30_000
HERE = Process("here", 7, "boot/1", "http://here:1", lambda pid: True)
THERE = Process("there", 8, "boot/2", None, lambda pid: False)


def fresh() -> tuple[DatabaseLocation, ManualClock]:
    """An empty place and its clock."""
    clock = ManualClock()
    store = open_store(f"memory://{uuid.uuid4().hex}/db")
    return DatabaseLocation(store, Environment(clock=clock, rng=random.Random(5)), open_store), clock


def test_a_lease_says_who_owns_the_database() -> None:
    """Endpoint, host, process, epoch and end, as JSON that any tool reads."""
    place, clock = fresh()
    with place.store.count() as counts:
        take_lease(place, process=HERE, epoch=3, lifetime_ms=LIFETIME_MS)
    assert (counts.put, counts.total) == (1, 1)
    fields = json.loads(bytes(place.store.get("lease.json")))
    assert (fields["endpoint"], fields["host"], fields["pid"], fields["epoch"]) == ("http://here:1", "here", 7, 3)
    assert fields["expires_at_ms"] == clock.now_ms() + LIFETIME_MS
    lease = read_lease(place, process=THERE)
    assert lease.owner is not None
    assert (lease.owner.host, lease.warning) == ("here", None)


def test_a_lease_ends_by_the_clock() -> None:
    """Without renewal it lives for its lifetime and no longer."""
    place, clock = fresh()
    take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    clock.advance(LIFETIME_MS / 1000 - 0.001)
    assert read_lease(place, process=THERE).owner is not None
    clock.advance(0.001)
    assert read_lease(place, process=THERE).owner is None


def test_only_an_owner_that_gave_up_is_said_to_have_ended() -> None:
    """A lease that lives, has expired, or belongs to a process that is gone says nothing of what is under way."""
    place, clock = fresh()
    lease, _ = take_lease(place, process=HERE, epoch=4, lifetime_ms=LIFETIME_MS)
    assert read_lease(place, process=THERE).ended_epoch is None
    assert read_lease(place, process=dataclasses.replace(HERE, runs=lambda pid: False)).ended_epoch is None
    clock.advance(LIFETIME_MS / 1000)
    assert read_lease(place, process=THERE).ended_epoch is None
    lease.give_up()
    assert read_lease(place, process=THERE).ended_epoch == 4


def test_renewal_is_a_step_that_knows_when_it_is_due() -> None:
    """Nothing before a third of its life, then 1 GET and 1 PUT."""
    place, clock = fresh()
    lease, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    with place.store.count() as counts:
        assert not lease.renew_once()
        clock.advance(9.999)
        assert not lease.renew_once()
    assert counts.total == 0
    clock.advance(0.001)
    with place.store.count() as counts:
        assert lease.renew_once()
    assert (counts.get, counts.put, counts.total) == (1, 1, 2)
    clock.advance(29)
    assert read_lease(place, process=THERE).owner is not None


def test_renewal_tells_a_writer_that_was_taken_over() -> None:
    """A newer epoch in the lease: the older writer is over, and leaves the lease alone."""
    place, clock = fresh()
    old, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    take_lease(place, process=THERE, epoch=2, lifetime_ms=LIFETIME_MS)
    clock.advance(10)
    with pytest.raises(Fenced, match="there"):
        old.renew_once()
    old.give_up()
    lease = read_lease(place, process=HERE)
    assert lease.owner is not None
    assert lease.owner.epoch == 2


def test_a_lease_that_was_given_up_is_no_ones() -> None:
    """Closing ends it at once."""
    place, _ = fresh()
    lease, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    lease.give_up()
    assert read_lease(place, process=THERE) == (None, None, 1)


def test_a_dead_process_of_this_machine_owns_nothing() -> None:
    """Same host, boot and namespace, and the process is gone: taken over at once, with a word about it."""
    place, _ = fresh()
    take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    asked: list[int] = []
    dead = dataclasses.replace(HERE, pid=9, runs=lambda pid: bool(asked.append(pid)))
    lease = read_lease(place, process=dead)
    assert lease.owner is None
    assert "process 7" in str(lease.warning)
    assert asked == [7]


@pytest.mark.parametrize("other", [{"host": "there"}, {"boot": "boot/2"}, {"boot": None}])
def test_only_the_clock_ends_a_lease_of_elsewhere(other: dict[str, str | None]) -> None:
    """Another host, boot or namespace, or an unknown one: that no such process runs here says nothing."""
    place, _ = fresh()
    take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    elsewhere = dataclasses.replace(HERE, runs=lambda pid: False, **other)
    assert read_lease(place, process=elsewhere).owner is not None


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"nonsense", b"\xff\xfe", b'{"format":1,"host":"h","pid":1,"expires_at_ms":"soon"}']
)
def test_an_unreadable_lease_is_not_in_the_way(body: bytes) -> None:
    """It counts as ended, and says so: it must not keep a database for ever."""
    place, _ = fresh()
    place.store.put("lease.json", body)
    result = read_lease(place, process=HERE)
    assert result.owner is None
    assert "cannot be read" in str(result.warning)
    lease, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    place.store.put("lease.json", body)
    lease.give_up()


def test_a_lease_that_came_late_goes_with_its_successors() -> None:
    """A late claimant writes its lease over a newer one: no process is kept out once that owner is done."""
    place, _ = fresh()
    newer, _ = take_lease(place, process=HERE, epoch=2, lifetime_ms=LIFETIME_MS)
    older, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    newer.give_up()
    assert read_lease(place, process=THERE).owner is None
    take_lease(place, process=HERE, epoch=3, lifetime_ms=LIFETIME_MS)
    older.give_up()
    newer.give_up()
    assert read_lease(place, process=THERE).owner is not None


def test_a_lease_without_end_is_not_in_the_way() -> None:
    """One that ends later than any lease may was written by a wrong clock."""
    place, clock = fresh()
    take_lease(place, process=HERE, epoch=1, lifetime_ms=LEASE_LIFETIME_MS_MAX)
    fields = json.loads(bytes(place.store.get("lease.json")))
    assert read_lease(place, process=THERE).owner is not None
    place.store.put("lease.json", json.dumps({**fields, "expires_at_ms": clock.now_ms() + 10**12}).encode())
    lease = read_lease(place, process=THERE)
    assert lease.owner is None
    assert "clock" in str(lease.warning)


def test_a_newer_lease_is_heeded() -> None:
    """A later format keeps these fields and adds others: an older lakebed still asks."""
    place, _ = fresh()
    take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    fields = json.loads(bytes(place.store.get("lease.json")))
    place.store.put("lease.json", json.dumps({**fields, "format": 2, "zone": "a"}).encode())
    assert read_lease(place, process=THERE).owner is not None


@pytest.mark.parametrize("lifetime_ms", [0, -1, LEASE_LIFETIME_MS_MAX + 1])
def test_a_lease_has_a_sane_lifetime(lifetime_ms: int) -> None:
    """Zero and more than an hour are refused, and nothing is written."""
    place, _ = fresh()
    with pytest.raises(InvalidRequest, match="lease_lifetime_ms"):
        take_lease(place, process=HERE, epoch=1, lifetime_ms=lifetime_ms)
    assert list(place.store.list()) == []


def test_a_lease_that_cannot_be_written_stops_nobody() -> None:
    """It is advisory: the owner gets a warning, goes on, and tries again with its next step."""
    place, _ = fresh()
    faulty = FaultyStore(place.store, faults={0: Fault.ERROR_BEFORE})
    owner = DatabaseLocation(faulty, place.environment, open_store)
    lease, warning = take_lease(owner, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    assert "could not be written" in str(warning)
    assert read_lease(place, process=THERE).owner is None
    assert lease.renew_once()
    assert read_lease(place, process=THERE).owner is not None


def test_this_process_runs() -> None:
    """The process that asks is found running, one that cannot be is not."""
    me = this_process(endpoint="here")
    assert (me.pid, me.endpoint) == (os.getpid(), "here")
    assert me.runs(os.getpid())
    assert not me.runs(2**22 + 1)  # above the largest process id of Linux


class SetBack(ManualClock):
    """A machine whose wall clock is set back an hour at some moment."""

    step_ms = 0

    def now_ms(self) -> int:
        """Unix time by that clock."""
        return super().now_ms() + self.step_ms


def test_a_clock_that_is_set_back_does_not_end_a_lease() -> None:
    """The writer goes on renewing in time, so a process that uses the corrected clock sees an owner."""
    clock = SetBack()
    store = open_store(f"memory://{uuid.uuid4().hex}/db")
    place = DatabaseLocation(store, Environment(clock=clock, rng=random.Random(5)), open_store)
    lease, _ = take_lease(place, process=HERE, epoch=1, lifetime_ms=LIFETIME_MS)
    clock.step_ms = -3_600_000
    for _ in range(5):
        clock.advance(11)
        assert lease.renew_once()
        assert read_lease(place, process=THERE).owner is not None
    assert not lease.renew_once()
