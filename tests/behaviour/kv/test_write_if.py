"""`write_if`, conditional on several keys, and linearizable snapshots: in memory, in files, when others interfere."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest

from lakebed import kv
from lakebed.errors import Closed, Conflict, Fenced, InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.kv import Database, DatabaseOptions, WriteBatch
from lakebed.kv.database_location import DatabaseLocation
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore, ManualClock
from lakebed.testing.between import Between
from worlds.errors import raises

BY_HAND = DatabaseOptions(background=False)


def batch_of(puts: Mapping[bytes, bytes | None]) -> WriteBatch:
    """A batch of puts, and deletes where the value is None."""
    batch = WriteBatch()
    for key, value in puts.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


@pytest.fixture
def place(tmp_path: Path) -> DatabaseLocation:
    """A place for a database."""
    return DatabaseLocation.at(tmp_path / "db", durable=False)


@pytest.mark.parametrize("wal_enabled", [True, False], ids=["log", "no log"])
@pytest.mark.parametrize("where", ["memory", "files", "files, read before"])
def test_every_expected_key_must_hold(place: DatabaseLocation, where: str, wal_enabled: bool) -> None:
    """Values and absences are compared at every level; one that differs is named, and nothing is written."""
    with Database.open(place, options=DatabaseOptions(background=False, wal_enabled=wal_enabled)) as db:
        db.write(batch_of({b"a": b"1", b"b": b"2", b"gone": b"0"}))
        db.delete(b"gone")
        if where != "memory":
            db.flush(memtable=True)
        if where == "files, read before":
            assert db.get_many([b"a", b"b"]) == [db.get(b"a"), db.get(b"b")]
        for expected, key in (
            ({b"a": b"1", b"b": b"x"}, b"b"),
            ({b"a": None, b"b": b"2"}, b"a"),
            ({b"a": b"1", b"c": b""}, b"c"),
            ({b"gone": b"0"}, b"gone"),
        ):
            with raises(Conflict, "unexpected_value", key=key):
                db.write_if(batch_of({b"c": b"3", b"a": None}), expected=expected)
        assert dict(db.scan()) == {b"a": b"1", b"b": b"2"}
        db.write_if(batch_of({b"c": b"3", b"a": None}), expected={b"a": b"1", b"b": b"2", b"c": None, b"gone": None})
        assert dict(db.scan()) == {b"b": b"2", b"c": b"3"}


def test_a_write_costs_one_request(place: DatabaseLocation) -> None:
    """What memory knows of the expected keys is not asked for; a check of nothing to write is one HEAD."""
    with Database.open(place, options=BY_HAND) as db:
        db.write(batch_of({b"a": b"1", b"b": b"2"}))
        with place.store.count() as requests:
            db.write_if(batch_of({b"c": b"3"}), expected={b"a": b"1", b"b": b"2", b"c": None})
        assert (requests.put, requests.total) == (1, 1)
        with place.store.count() as requests:
            db.write_if(WriteBatch(), expected={b"a": b"1", b"none": None})
        assert (requests.head, requests.total) == (1, 1)
        db.put(b"a", b"soft", await_durable=False)
        with place.store.count() as requests:
            db.write_if(WriteBatch(), expected={b"b": b"2"})
        assert requests.put == 0  # nothing that it rests on was pending
        with place.store.count() as requests:
            db.write_if(WriteBatch(), expected={b"a": b"soft", b"b": b"2"})
        assert requests.put == 1


def test_a_writer_that_was_taken_over_answers_nothing(place: DatabaseLocation) -> None:
    """Success, Conflict and a mere check are `Fenced` once another writer has opened, for any expected values."""
    old = Database.open(place, options=BY_HAND)
    old.write(batch_of({b"a": b"1", b"b": b"2"}))
    new = Database.open(place, options=BY_HAND, take_over=True)
    new.put(b"a", b"9")
    for batch, expected in (
        (batch_of({b"c": b"3"}), {b"a": b"1"}),
        (batch_of({b"c": b"3"}), {b"a": b"9"}),
        (WriteBatch(), {b"a": b"1"}),
        (WriteBatch(), {b"b": b"0"}),
    ):
        with pytest.raises(Fenced):
            old.write_if(batch, expected=expected)
    with pytest.raises(Fenced):
        old.snapshot(linearizable=True)
    assert dict(new.scan()) == {b"a": b"9", b"b": b"2"}
    old.close()  # every write was told
    new.close()
    with pytest.raises(Closed):
        new.write_if(batch_of({b"c": b"3"}), expected={})
    with pytest.raises(Closed):
        new.snapshot(linearizable=True)


def test_a_value_that_has_ended_is_none(tmp_path: Path) -> None:
    """An expected value with an end of its own counts until that, in memory and in files, and not a moment longer."""
    clock = ManualClock()
    place = DatabaseLocation.at(tmp_path / "db", durable=False, environment=Environment(clock=clock))
    with Database.open(place, options=BY_HAND) as db:
        for flushed in (False, True):
            db.put(b"lease", b"me", ttl=timedelta(seconds=10))
            db.flush(memtable=flushed)
            db.write_if(batch_of({b"k": b"1"}), expected={b"lease": b"me"})
            clock.advance(seconds=10)
            with pytest.raises(Conflict):
                db.write_if(batch_of({b"k": b"2"}), expected={b"lease": b"me"})
            db.write_if(batch_of({b"k": b"3"}), expected={b"lease": None, b"k": b"1"})
            db.delete(b"k")


@pytest.mark.parametrize("operand", [b"", b"+"], ids=["alone", "below an operand"])
def test_a_value_that_ends_between_look_and_write_is_looked_at_again(tmp_path: Path, operand: bytes) -> None:
    """The end of an expected value counts at the moment of the write, to the millisecond; also of a part of it."""
    clock = ManualClock()
    environment = Environment(clock=clock)
    plain = DatabaseLocation.at(tmp_path / "db", durable=False, environment=environment)
    options = replace(
        BY_HAND, transaction_history_bytes_max=0, cache_bytes=0, row_cache_bytes=0, merge_operator="append"
    )
    with Database.open(plain, options=options) as db:
        db.put(b"lease", b"me", ttl=timedelta(seconds=10))
        if operand:
            db.merge(b"lease", operand)
        db.flush(memtable=True)
        older = {meta.path for meta in plain.store.list("sst")}
        db.put(b"other", b"1")
        db.flush(memtable=True)
        [newer] = {meta.path for meta in plain.store.list("sst")} - older
    # The expected values are read in this order, and the second is in a file of its own.
    between = Between(plain.store, kind="get", prefix=newer, happens=lambda: clock.advance(10))
    with Database.open(DatabaseLocation(between, environment, plain.open_url), options=options) as db:
        with pytest.raises(Conflict) as refusal:
            db.write_if(batch_of({b"k": b"1"}), expected={b"lease": b"me" + operand, b"other": b"1"})
        assert between.happened
        assert (refusal.value.kind, refusal.value.facts["key"]) == ("unexpected_value", b"lease")
        assert db.get(b"k") is None


@pytest.mark.parametrize("flush", [False, True], ids=["in memory", "flushed and forgotten"])
@pytest.mark.parametrize("key", [b"a", b"b", b"z"])
def test_what_others_write_meanwhile_counts(tmp_path: Path, key: bytes, flush: bool) -> None:
    """A key that is written between look and write is looked at again, also when its memtable has gone already."""
    plain = DatabaseLocation.at(tmp_path / "db", durable=False)
    options = DatabaseOptions(background=False, transaction_history_bytes_max=0, cache_bytes=0, row_cache_bytes=0)
    with Database.open(plain, options=options) as db:
        db.write(batch_of({b"a": b"1", b"b": b"2"}))
        db.flush(memtable=True)

    def interfere() -> None:
        db.put(key, b"other")
        if flush:
            db.flush(memtable=True)

    expected = {b"a": b"1", b"b": b"2", b"z": None}
    between = Between(plain.store, kind="get", prefix="sst/", happens=interfere)
    with Database.open(DatabaseLocation(between, plain.environment, plain.open_url), options=options) as db:
        with pytest.raises(Conflict) as refusal:
            db.write_if(batch_of({b"c": b"3"}), expected=expected)
        assert between.happened
        assert (refusal.value.kind, refusal.value.facts["key"]) == ("unexpected_value", key)
        db.write_if(batch_of({b"c": b"3"}), expected={**expected, key: b"other"})
        assert dict(db.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3", key: b"other"}


@pytest.mark.parametrize("flushing", [False, True])
def test_there_is_no_write_skew(place: DatabaseLocation, flushing: bool) -> None:
    """Two threads, each writing its key when the other's is still absent: one of them wins each turn."""
    barrier, turns = Barrier(2), 100
    with Database.open(place) as db:

        def skew(own: bytes, other: bytes) -> list[bool]:
            won = []
            for number in range(turns):
                barrier.wait()
                if flushing and number % 10 == 0 and own == b"l":
                    db.flush(memtable=True)
                try:
                    db.write_if(batch_of({own + b"%d" % number: b"1"}), expected={other + b"%d" % number: None})
                except Conflict:
                    won.append(False)
                else:
                    won.append(True)
            return won

        with ThreadPoolExecutor(2) as pool:
            left, right = pool.map(skew, (b"l", b"r"), (b"r", b"l"))
    assert all(a != b for a, b in zip(left, right, strict=True))


def test_batches_that_cannot_be_are_refused(place: DatabaseLocation) -> None:
    """Something else than a batch, and keys or values that cannot be expected, change nothing."""
    with Database.open(place, options=BY_HAND) as db:
        for batch, expected in (
            ({b"a": b"1"}, {}),
            (batch_of({b"a": b"1"}), {b"": None}),
            (batch_of({b"a": b"1"}), {"a": None}),
            (batch_of({b"a": b"1"}), {b"a": "1"}),
        ):
            with pytest.raises(InvalidRequest):
                db.write_if(batch, expected=expected)  # type: ignore[arg-type]
        assert db.get(b"a") is None


# ---- linearizable snapshots


@pytest.mark.parametrize("wal_enabled", [True, False], ids=["log", "no log"])
def test_a_proved_snapshot_shows_what_is_durable(place: DatabaseLocation, wal_enabled: bool) -> None:
    """Rows not yet waited for are not in it, older values of their keys are, and it forces no flush."""
    with Database.open(place, options=DatabaseOptions(background=False, wal_enabled=wal_enabled)) as db:
        db.write(batch_of({b"a": b"1", b"b": b"2"}))
        db.put(b"a", b"soft", await_durable=False)
        db.delete(b"b", await_durable=False)
        db.put(b"c", b"soft", await_durable=False)
        with place.store.count() as requests, db.snapshot(linearizable=True) as proved, db.snapshot() as plain:
            assert dict(proved.scan()) == {b"a": b"1", b"b": b"2"}
            assert proved.get_many([b"a", b"b", b"c"]) == [b"1", b"2", None]
            assert proved.scan_arrow().read_all().num_rows == 2
            assert dict(plain.scan()) == {b"a": b"soft", b"c": b"soft"}
            assert requests.put == 0
            db.flush(memtable=True)
            assert dict(proved.scan()) == {b"a": b"1", b"b": b"2"}
        with db.snapshot(linearizable=True) as proved:
            assert dict(proved.scan()) == {b"a": b"soft", b"c": b"soft"}


def test_a_proved_snapshot_settles_what_was_unclear(tmp_path: Path) -> None:
    """After a write without a clear answer the next proved snapshot says whether it happened, for good."""
    plain = DatabaseLocation.at(tmp_path / "db", durable=False, environment=Environment(clock=ManualClock()))
    failing: Fault | None = None
    store = FaultyStore(
        plain.store,
        faults=lambda index, call: None if failing is None else failing if call.kind == "put" else Fault.ERROR_BEFORE,
    )
    db = Database.open(DatabaseLocation(store, plain.environment, plain.open_url), options=BY_HAND)
    db.put(b"k", b"1")
    for number, fault in enumerate((Fault.LOST_REPLY, Fault.LOST_REQUEST)):
        failing = fault
        with pytest.raises(OutcomeUnknown):
            db.write_if(batch_of({b"n%d" % number: b"1"}), expected={b"k": b"1"})
        with pytest.raises((OutcomeUnknown, Unavailable)):
            db.snapshot(linearizable=True)
        failing = None
        with db.snapshot(linearizable=True) as proved:
            assert proved.get(b"n%d" % number) == b"1"
        with kv.open_reader(tmp_path / "db", options=kv.ReaderOptions(background=False)) as reader:
            assert reader.get(b"n%d" % number) == b"1"
    db.close()


def test_proved_snapshots_beside_writers(place: DatabaseLocation) -> None:
    """While threads write pairs and files come and go, snapshots have both of a pair, and what was acknowledged."""
    options = DatabaseOptions(l0_sst_bytes=20_000, l0_compaction_count=2)
    acknowledged = [0] * 4
    with Database.open(place, options=options) as db:

        def write(worker: int) -> None:
            for number in range(1, 80):
                batch = batch_of(
                    {b"l%d" % worker: b"%d" % number, b"r%d" % worker: b"%d" % number, b"x%d" % number: b"y"}
                )
                db.write_if(batch, expected={b"l%d" % worker: b"%d" % (number - 1) if number > 1 else None})
                acknowledged[worker] = number

        def look(seed: int) -> int:
            rng, looks = random.Random(seed), 0
            while min(acknowledged) < 79:
                worker, floor = rng.randrange(4), list(acknowledged)
                with db.snapshot(linearizable=True) as proved:
                    left, right = proved.get_many([b"l%d" % worker, b"r%d" % worker])
                assert left == right
                assert int(left or 0) >= floor[worker]
                looks += 1
            return looks

        with ThreadPoolExecutor(6) as pool:
            writing, looking = (
                [pool.submit(write, worker) for worker in range(4)],
                [pool.submit(look, n) for n in (1, 2)],
            )
            for item in writing:
                item.result()
            assert all(element.result() for element in looking)


def test_an_owner_says_where_it_serves(place: DatabaseLocation) -> None:
    """A caller that the lease refuses gets the endpoint; without one, who the owner is."""
    for endpoint in ("http://127.0.0.1:8000", None):
        with Database.open(place, options=replace(BY_HAND, endpoint=endpoint)), pytest.raises(Conflict) as refusal:
            kv.open(place.url)
        assert refusal.value.facts["endpoint"] == endpoint
        assert (f" at {endpoint}" in str(refusal.value)) == (endpoint is not None)
