"""Opening again: after a close, after a crash, with a living owner or a sleeping one, with other settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from lakebed.errors import Conflict, Fenced, InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.kv import CollectorOptions, Database, DatabaseOptions, writer
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import Process, read_lease, this_process
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.wal import WalLog
from lakebed.kv.writer import LOG_OBJECTS_LEFT_MAX
from lakebed.lsm.operators import OPERATORS, MergeOperator, register_operator
from lakebed.testing import Fault, FaultyStore, ManualClock
from worlds.errors import raises

Opener = Callable[..., Database]
ROOMY = {"l0_sst_bytes": 1 << 20, "unflushed_bytes_max": 1 << 21, "l0_count_max": 2}
AT_ONCE = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))


def test_what_was_closed_opens_with_everything(place: DatabaseLocation, open_at: Opener) -> None:
    """Log, files of every level and sequences go on, over many openings; each opening is a new epoch."""
    rng, rows = random.Random(1), {}
    for epoch in range(1, 13):
        db = open_at(place)
        assert db.epoch == epoch
        assert dict(db.scan()) == rows
        before = db.stats().last_sequence
        for _ in range(rng.randrange(60)):
            key = b"%02d" % rng.randrange(40)
            rows[key] = b"%d" % rng.randrange(1000)
            db.put(key, rows[key], await_durable=False)
        assert db.stats().last_sequence >= before
        db.close()
    assert open_at(place).stats().file_count > 0


def test_closing_leaves_no_fences_to_look_through(place: DatabaseLocation, open_at: Opener) -> None:
    """Where files have every row, the fences of earlier openings are settled; rows in the log are not."""
    db = open_at(place)
    db.put(b"a", b"1")
    db.flush(memtable=True)
    db.close()
    for _ in range(3):
        open_at(place).close()
    assert ManifestLog(place).latest().replay_after_wal_id == WalLog(place).last_id()
    db = open_at(place)
    db.put(b"b", b"2")
    db.close()
    assert ManifestLog(place).latest().replay_after_wal_id < WalLog(place).last_id()
    assert dict(open_at(place).scan()) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("fails", ["sst/", "manifest/"])
def test_closing_after_a_failed_flush_keeps_the_log(place: DatabaseLocation, open_at: Opener, fails: str) -> None:
    """An acknowledged row that is in no file yet is still read from the log: closing does not settle past it."""
    failing: list[Fault] = []
    store = FaultyStore(
        place.store,
        faults=lambda _, call: failing[0] if failing and call.kind == "put" and call.path.startswith(fails) else None,
    )
    db = open_at(DatabaseLocation(store, place.environment, lambda url: store))
    db.put(b"acknowledged", b"1")
    failing.append(Fault.ERROR_BEFORE)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        db.flush(memtable=True)
    failing.clear()
    assert db.stats().memtables_waiting == 1
    db.close()
    assert dict(open_at(place).scan()) == {b"acknowledged": b"1"}


def test_short_lived_writers_keep_the_log_short(place: DatabaseLocation, open_at: Opener) -> None:
    """Open, put, close, hundreds of times: an opening never has more than the stated number of objects to read."""
    longest = 0
    for number in range(200):
        db = open_at(place, **ROOMY)
        db.put(b"%03d" % number, b"x")
        db.close()
        longest = max(longest, WalLog(place).last_id() - ManifestLog(place).latest().replay_after_wal_id)
    assert LOG_OBJECTS_LEFT_MAX - 2 <= longest <= LOG_OBJECTS_LEFT_MAX
    db = open_at(place, **ROOMY)
    assert len(dict(db.scan())) == 200
    assert db.stats().file_count > 0


def test_a_short_log_costs_a_close_no_request(place: DatabaseLocation, open_at: Opener) -> None:
    """A file is written for a long log only."""
    db = open_at(place, **ROOMY)
    for number in range(LOG_OBJECTS_LEFT_MAX - 1):  # and the fence
        db.put(b"%03d" % number, b"x")
    db.close()
    assert list(place.store.list("sst")) == []
    open_at(place, **ROOMY).close()
    assert list(place.store.list("sst")) == []
    db = open_at(place, **ROOMY)
    db.put(b"one more", b"x")
    db.close()
    assert len(list(place.store.list("sst"))) == 1
    assert ManifestLog(place).latest().replay_after_wal_id == WalLog(place).last_id()


def test_closing_succeeds_though_the_log_cannot_be_shortened(
    place: DatabaseLocation, open_at: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged is in the log; the next close puts it into files."""
    monkeypatch.setattr(writer, "LOG_OBJECTS_LEFT_MAX", 2)
    store = FaultyStore(
        place.store, faults=lambda _, call: Fault.ERROR_BEFORE if call.path.startswith("sst/") else None
    )
    db = open_at(DatabaseLocation(store, place.environment, lambda url: store))
    for number in range(5):
        db.put(b"%d" % number, b"x")
    db.close()
    assert list(place.store.list("sst")) == []
    db = open_at(place)
    assert len(dict(db.scan())) == 5
    db.close()
    assert len(list(place.store.list("sst"))) == 1


def test_level_0_stays_below_its_limit_where_another_process_compacts(place: DatabaseLocation, open_at: Opener) -> None:
    """A compactor that is behind makes the log longer, and no writer is refused."""
    for number in range(200):
        db = open_at(place, compaction=False, **ROOMY)
        db.put(b"%03d" % number, b"x")
        db.close()
    db = open_at(place, compaction=False, **ROOMY)
    assert (db.stats().l0_count, len(dict(db.scan()))) == (2, 200)


def test_a_crash_keeps_what_was_durable_and_drops_the_rest(place: DatabaseLocation, open_at: Opener) -> None:
    """The log is replayed; rows neither waited for nor flushed are gone; new writes come after the old."""
    db = open_at(place)
    db.put(b"a", b"1")
    db.delete(b"a")
    db.put(b"b", b"2", ttl=timedelta(days=1))
    db.put(b"lost", b"x", await_durable=False)
    again = open_at(place, take_over=True)
    assert dict(again.scan()) == {b"b": b"2"}
    assert again.stats().last_sequence == 3
    again.put(b"a", b"3")
    third = open_at(place, take_over=True)
    assert dict(third.scan()) == {b"a": b"3", b"b": b"2"}


def test_small_recoveries_write_nothing(place: DatabaseLocation, open_at: Opener) -> None:
    """What a crash left in the log goes on in memory: opening flushes no file, and the log need not be read twice."""
    open_at(place).put(b"a", b"1")
    for i in range(5):
        db = open_at(place, take_over=True)
        assert (db.stats().file_count, db.stats().memtables_waiting) == (0, 0)
        db.put(b"%d" % i, b"x")
    db.flush(memtable=True)
    manifest = ManifestLog(place).latest()
    assert manifest.replay_after_wal_id == WalLog(place).last_id()
    assert len(dict(open_at(place, take_over=True).scan())) == 6


def test_recovery_larger_than_a_memtable(place: DatabaseLocation, open_at: Opener) -> None:
    """Replayed tables keep to the limit, wait for their files, and are all readable meanwhile."""
    db = open_at(place, l0_sst_bytes=1 << 20, unflushed_bytes_max=1 << 20)
    for i in range(200):
        db.put(b"%03d" % i, bytes(50))
    again = open_at(place, take_over=True)
    assert again.stats().memtables_waiting > 5
    assert len(list(again.scan())) == 200
    again.put(b"new", b"1")
    while again.flush_once():
        assert len(list(again.scan())) == 201
    assert again.stats().memtables_waiting == 0


def test_a_living_owner_is_not_robbed(place: DatabaseLocation, open_at: Opener, clock: ManualClock) -> None:
    """Conflict names the owner and changes nothing; take_over, close, or the lease's end let the next one in."""
    first = open_at(place)
    with raises(Conflict, "owned", match="owned by process", epoch=1):
        open_at(place)
    first.put(b"a", b"1")
    assert first.get(b"a", linearizable=True) == b"1"
    first.close()
    second = open_at(place)
    clock.advance(20)
    assert second.renew_once()
    clock.advance(20)
    with pytest.raises(Conflict):
        open_at(place)
    clock.advance(11)
    third = open_at(place)
    with pytest.raises(Fenced):
        second.put(b"b", b"2")
    open_at(place, take_over=True)
    clock.advance(15)
    with pytest.raises(Fenced):
        third.renew_once()


def test_a_closed_zombie_leaves_the_new_owner_alone(place: DatabaseLocation, open_at: Opener) -> None:
    """A close that comes after a take-over removes neither the new owner's checkpoint nor its lease."""
    old = open_at(place)
    for number in range(LOG_OBJECTS_LEFT_MAX + 1):
        old.put(b"%d" % number, b"x")
    new = open_at(place, take_over=True)
    before = ManifestLog(place).latest()
    old.close()
    assert ManifestLog(place).latest() == before
    stranger = Process("elsewhere", 1, None, None, this_process().runs)
    assert read_lease(place, process=stranger).owner is not None
    new.put(b"a", b"1")


def test_a_zombie_meets_the_fence_wherever_it_wakes(place: DatabaseLocation, open_at: Opener) -> None:
    """However long it slept, through flushes, compactions and collections: Fenced, and nothing of it is ever read."""
    for wake in (
        lambda db: db.put(b"z", b"zombie"),
        lambda db: db.flush(memtable=True),
        lambda db: db.compact(full=True),
        lambda db: db.poll_once(),
        lambda db: db.get(b"a", linearizable=True),
        lambda db: list(db.scan()),
        lambda db: db.get_many([b"000", b"001"]),
    ):
        old = open_at(place, take_over=True)
        for i in range(150):
            old.put(b"%03d" % i, b"old", await_durable=False)
        old.flush(memtable=True)
        old.compact_once()
        old.put(b"z", b"pending", await_durable=False)
        new = open_at(place, take_over=True)
        for i in range(150):
            new.put(b"%03d" % i, b"new", await_durable=False)
        new.compact(full=True)
        new.admin.collect(AT_ONCE)
        new.poll_once()
        new.admin.collect(AT_ONCE)
        with pytest.raises(Fenced):
            wake(old)
        assert dict(new.scan()) == {b"%03d" % i: b"new" for i in range(150)}
        assert old.stats().fenced


def test_the_log_can_be_switched_off_and_on(place: DatabaseLocation, open_at: Opener) -> None:
    """Each opening says whether there is a log; what the other kind left is recovered."""
    rows = {}
    for i, wal_enabled in enumerate([True, False, True, False, False, True]):
        db = open_at(place, wal_enabled=wal_enabled, take_over=True)
        assert dict(db.scan()) == rows
        rows[b"%d" % i] = b"x"
        db.put(b"%d" % i, b"x")
        db.put(b"lost", b"x", await_durable=False)


def test_a_failed_opening_is_in_nobodys_way(place: DatabaseLocation, open_at: Opener) -> None:
    """An operator that is not registered is refused before anything changes; a damaged log gives the lease back."""
    newest = MergeOperator("for one test", lambda key, base, operands: operands[-1])
    register_operator(newest)
    db = open_at(place, merge_operator="for one test")
    db.merge(b"k", b"1")
    del OPERATORS["for one test"]
    with pytest.raises(InvalidRequest, match="for one test"):
        open_at(place, take_over=True)
    db.put(b"k", b"2")
    db.close()
    register_operator(newest)
    path = max(meta.path for meta in place.store.list("wal"))
    body = bytes(place.store.get(path))
    place.store.put(path, body[:-1] + bytes([body[-1] ^ 1]))
    for _ in range(2):
        with raises(Exception, "corruption", match="damaged"):
            open_at(place)
    place.store.put(path, body)
    assert open_at(place).get(b"k") == b"2"
    del OPERATORS["for one test"]


def test_opening_costs_the_same_however_much_there_is(place: DatabaseLocation, open_at: Opener) -> None:
    """Requests of an opening do not depend on rows or files."""
    costs = []
    for rows in (10, 3000):
        db = open_at(place, take_over=True)
        for i in range(rows):
            db.put(b"%05d" % i, b"x" * 20, await_durable=False)
        db.flush(memtable=True)
        db.close()
        with place.store.count() as requests:
            Database.open(place, options=DatabaseOptions(background=False)).close()
        costs.append(requests.total)
    assert costs[0] == costs[1] <= 20
