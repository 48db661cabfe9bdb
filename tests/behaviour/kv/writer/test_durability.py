"""What a returned write means: counted requests, shared appends, lost replies, crashes at every call, new owners."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from lakebed.errors import (
    Conflict,
    Fenced,
    InternalError,
    InvalidRequest,
    LakebedError,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.kv import Database, DatabaseOptions, DatabaseReader, ReaderOptions, WriteBatch, writer
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import Process, read_lease, this_process
from lakebed.kv.wal import WalLog
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import Call, Crashed, Fault, FaultyStore, ManualClock, RecordingStore
from lakebed.testing.wrapper import StoreWrapper
from worlds.errors import raises
from worlds.waiting import wait_until

R = TypeVar("R")

Opener = Callable[..., Database]


def through(place: DatabaseLocation, store: ObjectStore, environment: Environment | None = None) -> DatabaseLocation:
    """The same place by another way to its store."""
    return DatabaseLocation(store, environment or place.environment, place.open_url)


def in_log(place: DatabaseLocation) -> list[tuple[int, list[bytes]]]:
    """Keys in each log object with rows."""
    wal = WalLog(place)
    records = [wal.read(wal_id) for wal_id in wal.ids()]
    return [(record.id, record.rows.column("key").to_pylist()) for record in records if record.rows is not None]


def wal_faults(fault: Fault, *indexes: int) -> Callable[[int, Call], Fault | None]:
    """Strike the creates of log objects of these indexes, counted from 0."""
    seen = -1

    def decide(index: int, call: Call) -> Fault | None:
        nonlocal seen
        if call.kind != "put" or not call.path.startswith("wal/"):
            return None
        seen += 1
        return fault if seen in indexes else None

    return decide


class Gate(StoreWrapper):
    """Holds creates of log objects back until it is opened, or their replies."""

    def __init__(self, inner: ObjectStore, *, holds_replies: bool = False) -> None:
        super().__init__(inner)
        self.holds_replies = holds_replies
        self.is_open = threading.Event()
        self.is_open.set()
        self.arrived = threading.Event()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Wait, if it is one of those."""
        if call.kind == "put" and call.path.startswith("wal/") and not self.is_open.is_set():
            result = perform() if self.holds_replies else None
            self.arrived.set()
            assert self.is_open.wait(30)
            if self.holds_replies:
                return cast(R, result)
        return perform()


@contextmanager
def running(*works: Callable[[], None]) -> Iterator[None]:
    """Threads that run during the block, joined at its end."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_durable_write_is_exactly_one_put(place: DatabaseLocation, open_at: Opener) -> None:
    """One create of a log object, nothing else, for put, delete, batch and compare-and-set; none without waiting."""
    db = open_at(place, l0_sst_bytes=1 << 20, unflushed_bytes_max=1 << 20)
    batch = WriteBatch()
    batch.put_many([b"%d" % i for i in range(50)], [b"x"] * 50)
    writes: list[Callable[[], None]] = [
        lambda: db.put(b"a", b"1"),
        lambda: db.delete(b"a"),
        lambda: db.write(batch),
        lambda: db.set_if(b"c", b"1", expected=None),
    ]
    for write in writes:
        with place.store.count() as requests:
            write()
        assert (requests.put, requests.total) == (1, 1)
    with place.store.count() as requests:
        for i in range(20):
            db.put(b"%d" % i, b"y", await_durable=False)
            db.get(b"%d" % i)
    assert requests.total == 0
    with place.store.count() as requests:
        db.flush()
        db.flush()
    assert (requests.put, requests.total) == (1, 1)


def test_waiting_threads_share_one_put(place: DatabaseLocation) -> None:
    """All that wait while an append is under way go into the next one, each with its own answer."""
    gate = Gate(place.store)
    with Database.open(through(place, gate), options=DatabaseOptions(background=False)) as db:
        gate.is_open.clear()
        with place.store.count() as requests, running(lambda: db.put(b"first", b"1")):
            assert gate.arrived.wait(30)
            with running(*(lambda i=i: db.put(b"%02d" % i, b"x") for i in range(16))):  # type: ignore[misc]
                wait_until(lambda: db.stats().last_sequence == 17)
                assert db.stats().durable_sequence == 0
                gate.is_open.set()
        assert requests.put == 2
        groups = [keys for _, keys in in_log(place)]
        assert groups[0] == [b"first"]
        assert sorted(groups[1]) == [b"%02d" % i for i in range(16)]


def test_spacing_limits_log_objects(place: DatabaseLocation, open_at: Opener, clock: ManualClock) -> None:
    """With a spacing, a second durable write waits as long, by the injected clock."""
    db = open_at(place, wal_flush_spacing_ms=500)
    start = clock.now_ms()
    for i in range(4):
        db.put(b"%d" % i, b"x")
    assert clock.now_ms() - start == 1500


def test_a_lost_reply_is_no_failure(place: DatabaseLocation) -> None:
    """The append whose reply was lost is found to be ours: the write returns, once in the log."""
    store = FaultyStore(place.store, faults=wal_faults(Fault.LOST_REPLY, 1, 3))
    with Database.open(through(place, store), options=DatabaseOptions(background=False)) as db:
        db.put(b"a", b"1")
        db.put(b"b", b"2")
    assert [keys for _, keys in in_log(place)] == [[b"a"], [b"b"]]
    assert len(store.met) == 2


@pytest.mark.parametrize("lands", [False, True])
def test_an_unclear_record_stays_first_with_its_id_and_bytes(place: DatabaseLocation, lands: bool) -> None:
    """A write that raised OutcomeUnknown is tried again before anything else, and cannot be there twice."""
    store = FaultyStore(place.store, faults=wal_faults(Fault.LATE if lands else Fault.LOST_REQUEST, *range(1, 13)))
    with Database.open(through(place, store), options=DatabaseOptions(background=False)) as db:
        with pytest.raises(OutcomeUnknown):
            db.put(b"a", b"1")
        assert db.get(b"a") == b"1", "it is seen here, durable or not"
        if lands:
            store.land()
        db.put(b"b", b"2")
    assert [keys for _, keys in in_log(place)] == [[b"a"], [b"b"]]
    assert [wal_id for wal_id, _ in in_log(place)] == [2, 3]


def test_followers_of_a_failing_leader_are_told(place: DatabaseLocation, clock: ManualClock) -> None:
    """All callers with rows in the failed attempt get its error; a later caller leads, and brings all through."""
    faulty = FaultyStore(place.store, faults=wal_faults(Fault.LOST_REQUEST, *range(1, 13)))
    gate = Gate(faulty)
    outcomes: dict[bytes, str] = {}

    def write(key: bytes) -> None:
        try:
            db.put(key, b"x")
            outcomes[key] = "ok"
        except LakebedError as error:
            outcomes[key] = error.kind

    with Database.open(through(place, gate), options=DatabaseOptions(background=False)) as db:
        gate.is_open.clear()
        db.put(b"nobody waits", b"x", await_durable=False)
        with running(lambda: write(b"leader")):
            assert gate.arrived.wait(30)
            with running(lambda: write(b"later 1"), lambda: write(b"later 2"), lambda: write(b"later 3")):
                wait_until(lambda: db.stats().last_sequence == 5)
                gate.is_open.set()
        assert outcomes == {b"leader": "outcome_unknown", b"later 1": "ok", b"later 2": "ok", b"later 3": "ok"}
        assert db.stats().durable_sequence == 5
    assert sorted(key for _, keys in in_log(place) for key in keys) == sorted([b"nobody waits", *outcomes])


# ---- what cannot be encoded

NO_TIME = 2**63
"""An end of a row that no column of the log can hold: a row with it cannot be encoded."""


def write_badly(db: Database, *keys: bytes, wait: bool = True) -> None:
    """Write rows that no log record can hold, as a check that is missing somewhere would."""
    count = len(keys)
    db._writer.append_rows(keys, [b"bad"] * count, [0] * count, [NO_TIME] * count, check=None, await_durable=wait)


def test_rows_that_cannot_be_encoded_fail_their_own_writer(place: DatabaseLocation, open_at: Opener) -> None:
    """Its writer gets the reason, the rows are gone, and everything before and after is there, here and elsewhere."""
    db = open_at(place)
    db.put(b"file", b"1")
    db.flush(memtable=True)
    db.put(b"memory", b"1")
    for keys in ((b"new",), (b"memory", b"file"), (b"memory", b"memory")):
        with raises(InternalError, "unencodable_rows", match="nothing of them was written"):
            write_badly(db, *keys)
        db.put(b"after " + keys[0], b"1")
    rows = {b"file": b"1", b"memory": b"1", b"after new": b"1", b"after memory": b"1"}
    for _ in range(2):
        assert dict(db.scan()) == {key: db.get(key) for key in rows} == rows
        assert db.get(b"new") is None
        assert db.get_many([b"new", b"memory"]) == [None, b"1"]
        with DatabaseReader.open(place, options=ReaderOptions(background=False, follow_latest=True)) as reader:
            assert dict(reader.scan()) == rows
        db.flush(memtable=True)
    assert db.stats().durable_sequence == db.stats().last_sequence
    with db.transaction("serializable") as t:
        t.put(b"t", t.get(b"file") or b"")
    db.set_if(b"memory", b"2", expected=b"1")
    db.close()
    assert dict(open_at(place).scan()) == {**rows, b"t": b"1", b"memory": b"2"}


def test_after_rows_that_cannot_be_encoded_a_crash_loses_nothing(place: DatabaseLocation, open_at: Opener) -> None:
    """The log has no gap: an empty record takes the place of those rows."""
    db = open_at(place)
    db.put(b"a", b"1")
    with pytest.raises(InternalError):
        write_badly(db, b"a", b"bad")
    db.put(b"b", b"2")
    assert [keys for _, keys in in_log(place)] == [[b"a"], [b"b"]]
    ids = WalLog(place).ids()
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    again = open_at(place, take_over=True)
    assert dict(again.scan()) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("waited", [1, 2])
@pytest.mark.parametrize("unwaited", [1, 2, 3])
def test_rows_that_nobody_waited_for_are_told_of_beside_those_that_someone_did(
    place: DatabaseLocation, open_at: Opener, unwaited: int, waited: int
) -> None:
    """They were lost together: one writer has heard of its own rows, and the next flush tells of the others, once."""
    db = open_at(place)
    for number in range(unwaited):
        db.put(b"unwaited %d" % number, b"1", await_durable=False)
    with raises(InternalError, "unencodable_rows"):
        write_badly(db, *(b"waited %d" % number for number in range(waited)))
    assert list(db.scan()) == []
    with raises(InternalError, "unencodable_rows"):
        db.flush()
    db.flush()


def test_writers_behind_rows_that_cannot_be_encoded_go_on(place: DatabaseLocation, open_at: Opener) -> None:
    """Groups behind it become durable; who did not wait for the lost rows learns of them from the next flush, once."""
    db = open_at(place, l0_sst_bytes=2_000)
    write_badly(db, b"k", wait=False)
    db.put(b"big", bytes(3_000), await_durable=False)  # in the same group, which ends with the memtable
    db.put(b"behind", b"1")
    assert dict(db.scan()) == {b"behind": b"1"}
    with pytest.raises(InternalError, match="nothing of them was written"):
        db.flush()
    db.flush(memtable=True)
    write_badly(db, b"k", wait=False)
    with pytest.raises(InternalError, match="nothing of them was written"):
        db.close()
    assert dict(open_at(place).scan()) == {b"behind": b"1"}


def test_a_condition_does_not_rest_on_rows_that_were_taken_back(place: DatabaseLocation, open_at: Opener) -> None:
    """A conditional write behind lost rows, and a transaction that may have read them, are refused as conflicts."""
    db = open_at(place, l0_sst_bytes=2_000)
    db.put(b"k", b"old")
    write_badly(db, b"k", wait=False)
    transaction = db.transaction()
    assert transaction.get(b"k") == b"bad"
    transaction.put(b"copied", b"bad")
    db.put(b"big", bytes(3_000), await_durable=False)
    with raises(Conflict, "write_taken_back", match="read and write again"):
        db.set_if(b"k", b"rests on it", expected=b"bad")
    with pytest.raises(Conflict, match="taken back"):
        transaction.commit()
    assert db.get(b"k", linearizable=True) == b"old"
    db.set_if(b"k", b"new", expected=b"old")
    db.transact(lambda t: t.put(b"copied", t.get(b"k") or b""))
    with suppress(InternalError):
        db.flush()
    assert dict(db.scan()) == {b"k": b"new", b"copied": b"new"}


def test_threads_beside_rows_that_cannot_be_encoded(place: DatabaseLocation, open_at: Opener) -> None:
    """Each thread finds the writes that were reported done, and none that were reported not done."""
    db = open_at(place, background=True, l0_sst_bytes=20_000)
    numbers: list[dict[bytes, bytes]] = [{} for _ in range(4)]
    kinds: set[str] = set()

    def work(number: int) -> None:
        rng, mine = random.Random(number), numbers[number]
        for step in range(80):
            key, value = b"%d %d" % (number, rng.randrange(6)), b"%d" % step
            verb = rng.randrange(8)
            try:
                if verb == 0:
                    write_badly(db, key, b"%d bad" % number)
                elif verb == 1:
                    db.set_if(key, value, expected=mine.get(key))
                elif verb == 2:
                    db.transact(lambda t, key=key, value=value: t.put(key, (t.get(key) or b"") + value))  # type: ignore[misc]
                    value = mine.get(key, b"") + value
                else:
                    db.put(key, value)
                mine[key] = value
            except (InternalError, Conflict) as error:
                kinds.add(error.kind)

    with running(*(partial(work, number) for number in range(len(numbers)))):
        pass
    assert "unencodable_rows" in kinds
    assert kinds <= {"unencodable_rows", "write_taken_back", "history_gone", "unexpected_value"}
    rows = {key: value for mine in numbers for key, value in mine.items()}
    assert dict(db.scan()) == rows
    db.close()
    assert dict(open_at(place).scan()) == rows


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.LATE])
def test_the_record_in_place_of_lost_rows_survives_faults(place: DatabaseLocation, fault: Fault) -> None:
    """With any outcome of its request, the log goes on without a gap and without those rows."""
    store = FaultyStore(place.store, faults=wal_faults(fault, *range(2, 14)))
    with Database.open(through(place, store), options=DatabaseOptions(background=False)) as db:
        db.put(b"a", b"1")
        with pytest.raises(InternalError, match="nothing of them was written"):
            write_badly(db, b"bad")
        store.land()
        db.put(b"b", b"2")
    assert [keys for _, keys in in_log(place)] == [[b"a"], [b"b"]]
    with Database.open(place, options=DatabaseOptions(background=False)) as db:
        assert dict(db.scan()) == {b"a": b"1", b"b": b"2"}


def test_a_new_owner_ends_the_old_one(place: DatabaseLocation, open_at: Opener) -> None:
    """Every write of the old one raises Fenced with the new epoch; only plain reads go on, out of date."""
    old = open_at(place)
    old.put(b"k", b"old")
    old.put(b"pending", b"1", await_durable=False)
    new = open_at(place, take_over=True)
    new.put(b"k", b"new")
    with pytest.raises(Fenced) as refusal:
        old.get(b"k", linearizable=True)
    assert refusal.value.facts["new_epoch"] == 2
    writes: list[Callable[[], Any]] = [
        lambda: old.put(b"x", b"1"),
        lambda: old.put(b"x", b"1", await_durable=False),
        lambda: old.delete(b"k"),
        lambda: old.set_if(b"k", b"x", expected=b"old"),
        lambda: old.flush(),
        lambda: old.flush(memtable=True),
        lambda: old.create_checkpoint(),
        lambda: old.renew_once(),
        lambda: old.poll_once(),
    ]
    for write in writes:
        with pytest.raises(Fenced, match="taken over"):
            write()
    assert old.get(b"k") == b"old"
    assert old.stats().fenced
    with pytest.raises(Fenced):
        old.close()
    old.close()
    assert dict(new.scan()) == {b"k": b"new"}


def test_a_fenced_write_finds_out_by_itself(place: DatabaseLocation, open_at: Opener) -> None:
    """The first to notice is the append: the write that meets the fence is not acknowledged, nor found later."""
    old = open_at(place)
    new = open_at(place, take_over=True)
    with pytest.raises(Fenced) as refusal:
        old.put(b"k", b"1")
    assert refusal.value.facts["new_epoch"] == 2
    old.close()  # whoever wrote was told: nothing is left to say
    new.close()
    assert open_at(place).get(b"k") is None


def test_a_close_tells_of_fenced_rows_that_nobody_waited_for(place: DatabaseLocation, open_at: Opener) -> None:
    """Once, and also where another writer was told of its own rows."""
    old = open_at(place)
    open_at(place, take_over=True).close()
    old.put(b"pending", b"1", await_durable=False)
    with pytest.raises(Fenced):
        old.put(b"k", b"1")
    with pytest.raises(Fenced):
        old.close()
    old.close()


def test_a_linearizable_get_costs_one_head(place: DatabaseLocation, open_at: Opener) -> None:
    """1 HEAD of the next log id, and the append of what it saw; without a log 1 LIST."""
    db = open_at(place)
    db.put(b"a", b"1")
    with place.store.count() as requests:
        assert db.get(b"a", linearizable=True) == b"1"
    assert (requests.head, requests.total) == (1, 1)
    db.put(b"b", b"2", await_durable=False)
    with place.store.count() as requests:
        assert db.get(b"a", linearizable=True) == b"1"
        assert db.get(b"b", linearizable=True) == b"2"
    assert (requests.put, requests.head, requests.total) == (1, 2, 3), "only what was seen has to be durable"
    db.close()
    db = open_at(place, wal_enabled=False)
    with place.store.count() as requests:
        assert db.get(b"a", linearizable=True) == b"1"
    assert (requests.list, requests.total) == (1, 1)


def test_a_linearizable_get_beside_an_append(place: DatabaseLocation) -> None:
    """A pending append is recognized as its own, before and after it has landed."""
    gate = Gate(place.store)
    with Database.open(through(place, gate), options=DatabaseOptions(background=False)) as db:
        db.put(b"k", b"1")
        gate.is_open.clear()
        with running(lambda: db.put(b"other", b"2")):
            assert gate.arrived.wait(30)
            assert db.get(b"k", linearizable=True) == b"1"
            assert in_log(place) == [(2, [b"k"])]
            gate.is_open.set()
        assert db.get(b"other", linearizable=True) == b"2"


@pytest.mark.parametrize("holds_replies", [False, True], ids=["before it lands", "after it landed"])
def test_a_linearizable_get_beside_an_append_sees_a_newer_owner(place: DatabaseLocation, holds_replies: bool) -> None:
    """Its fence is at the number of the append, or right behind it: what the older owner has is not the newest."""
    gate = Gate(place.store, holds_replies=holds_replies)
    db = Database.open(through(place, gate), options=DatabaseOptions(background=False))
    for _ in range(5):
        db.put(b"k", b"1")
    gate.is_open.clear()
    answers: list[str] = []

    def put() -> None:
        try:
            db.put(b"other", b"2")
            answers.append("durable")
        except Fenced:
            answers.append("fenced")

    with running(put):
        assert gate.arrived.wait(30)
        with Database.open(place, options=DatabaseOptions(background=False), take_over=True) as newer:
            newer.put(b"k", b"9")
            with pytest.raises(Fenced):
                db.get(b"k", linearizable=True)
            assert newer.get(b"other") == (b"2" if holds_replies else None)
        gate.is_open.set()
    assert len(answers) == 1
    assert (answers == ["fenced"]) or holds_replies
    with suppress(Fenced):
        db.close()


def test_without_a_log_files_make_writes_durable(place: DatabaseLocation, open_at: Opener) -> None:
    """await_durable forces a file, close flushes, and no log object is written after the fence."""
    db = open_at(place, wal_enabled=False)
    db.put(b"a", b"1")
    assert (db.stats().l0_count, db.stats().durable_sequence) == (1, 1)
    db.put(b"b", b"2", await_durable=False)
    db.put(b"c", b"3", await_durable=False)
    assert db.stats().durable_sequence == 1
    db.flush()
    assert (db.stats().l0_count, db.stats().durable_sequence) == (2, 3)
    db.put(b"d", b"4", await_durable=False)
    db.close()
    assert in_log(place) == []
    assert dict(open_at(place).scan()) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}


@pytest.mark.parametrize(("wal_enabled", "left_max"), [(True, 64), (True, 0), (False, 64)])
# A crash before a call leaves what the crash after the call before it leaves.
@pytest.mark.parametrize(
    "fault", [pytest.param(Fault.CRASH_BEFORE, marks=pytest.mark.long), Fault.CRASH_AFTER, Fault.CRASH_LATE]
)
def test_a_crash_at_any_store_call_loses_nothing_acknowledged(
    clock: ManualClock,
    open_at: Opener,
    fault: Fault,
    wal_enabled: bool,
    left_max: int,
    tell: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acknowledged writes are there after every crash, batches whole or not at all, and nothing else was changed.

    With `left_max` 0 the close puts the rest of the log into a file, in several steps.
    """
    monkeypatch.setattr(writer, "LOG_OBJECTS_LEFT_MAX", left_max)
    environment = Environment(clock=clock)
    options = DatabaseOptions(
        background=False, l0_sst_bytes=2_000, l0_compaction_count=2, block_bytes=256, wal_enabled=wal_enabled
    )

    def scenario(db: Database, asked: dict[bytes, bytes], told: dict[bytes, bytes]) -> None:
        for i in range(4):
            asked[b"k%d" % i] = b"%d" % i
            db.put(b"k%d" % i, b"%d" % i)
            told[b"k%d" % i] = b"%d" % i
            batch = WriteBatch()
            for half in (b"x", b"y"):
                batch.put(half, b"%d" % i)
                asked[half + b"%d" % i] = b""
            db.write(batch)
            told[b"x"] = told[b"y"] = b"%d" % i
            if i in (0, 2):
                db.flush(memtable=True)
                db.compact_once()
        db.close()

    def run(store: ObjectStore, healthy: DatabaseLocation) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        asked: dict[bytes, bytes] = {}
        errors: dict[bytes, bytes] = {}
        with suppress(Crashed):
            scenario(Database.open(through(healthy, store), options=options), asked, errors)
        return asked, errors

    recorded = DatabaseLocation.at(
        f"memory://crash-record-{fault.name}-{wal_enabled}-{left_max}", environment=environment
    )
    recording = RecordingStore(recorded.store)
    run(recording, recorded)
    call_count = len(recording.trace)
    assert call_count > 20
    for index in range(call_count):
        place = DatabaseLocation.at(
            f"memory://crash-{fault.name}-{wal_enabled}-{left_max}-{index}", environment=environment
        )
        store = FaultyStore(place.store, faults={index: fault})
        asked, messages = run(store, place)
        # A call whose answer is an error (the probe's) passes it on, and the run goes on.
        assert store.is_crashed or recording.trace[index].outcome != "ok"
        store.land()
        with Database.open(place, options=options, take_over=True) as db:
            scan = dict(db.scan())
        assert scan.get(b"x") == scan.get(b"y"), f"half a batch after a crash at call {index}"
        for key, value in messages.items():
            if key not in (b"x", b"y"):
                assert scan.get(key) == value, f"{key!r} was acknowledged before the crash at call {index}"
        if b"x" in messages:
            assert int(scan[b"x"]) >= int(messages[b"x"])
        assert set(scan) <= set(asked) | {b"x", b"y"}
    tell(f"{fault.name}, log {wal_enabled}: crashed at each of {call_count} store calls")


# ---- with threads of its own


class Failing(StoreWrapper):
    """Raises an error for uploads of sorted files while it has any."""

    def __init__(self, inner: ObjectStore, errors: list[LakebedError]) -> None:
        super().__init__(inner)
        self.errors = errors

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Fail or pass."""
        if call.kind == "put" and call.path.startswith("sst/") and self.errors:
            raise self.errors.pop()
        return perform()


def lease_end(place: DatabaseLocation) -> int:
    """When the owner's lease ends, as another machine sees it; 0 without an owner."""
    owner = read_lease(place, process=Process("elsewhere", 1, None, None, this_process().runs)).owner
    return 0 if owner is None else owner.expires_at_ms


@pytest.fixture
def real(place: DatabaseLocation) -> DatabaseLocation:
    """The place with the machine's clock, for threads that wait."""
    return through(place, place.store, Environment())


def test_what_nobody_waits_for_becomes_durable_by_itself(real: DatabaseLocation) -> None:
    """The log thread flushes after the interval, and again after a pause."""
    with Database.open(real, options=DatabaseOptions(wal_flush_interval_ms=5)) as db:
        for i in range(3):
            db.put(b"%d" % i, b"x", await_durable=False)
            wait_until(lambda i=i: db.stats().durable_sequence == i + 1)  # type: ignore[misc]


def test_threads_flush_compact_and_renew(real: DatabaseLocation) -> None:
    """With small limits, files are written and merged, and the lease is renewed, without any call."""
    options = DatabaseOptions(
        l0_sst_bytes=20_000, unflushed_bytes_max=60_000, l0_compaction_count=2, l0_count_max=4, lease_lifetime_ms=300
    )
    with Database.open(real, options=options) as db:
        first_end = lease_end(real)
        for i in range(3000):
            db.put(b"%05d" % i, b"x" * 50, await_durable=False)
        wait_until(
            lambda: db.stats().run_count > 0 and db.stats().memtables_waiting == 0, timeout_s=30, interval_s=0.001
        )
        wait_until(lambda: lease_end(real) > first_end)
        assert sum(1 for _ in db.scan()) == 3000


def test_a_store_that_comes_back_is_tried_again(real: DatabaseLocation) -> None:
    """Unavailable is not an error for the writer: the flush happens when the store answers again."""
    store = Failing(real.store, [Unavailable("not now") for _ in range(3)])
    with Database.open(through(real, store), options=DatabaseOptions(l0_sst_bytes=5_000)) as db:
        for i in range(100):
            db.put(b"%d" % i, b"x" * 50, await_durable=False)
        wait_until(lambda: db.stats().file_count > 0)  # compaction may have emptied level 0 again
        assert store.errors == []


def test_an_error_in_the_background_reaches_the_next_writer(real: DatabaseLocation) -> None:
    """What no retry mends is raised by a write, and the step is tried again afterwards."""
    store = Failing(real.store, [InvalidRequest("the disk is full", kind="disk_full") for _ in range(1)])
    with Database.open(through(real, store), options=DatabaseOptions(l0_sst_bytes=5_000)) as db:

        def write() -> bool:
            try:
                db.put(b"k", b"x" * 100, await_durable=False)
            except InvalidRequest as error:
                return error.kind == "disk_full"
            return False

        wait_until(write)
        db.put(b"k", b"y")
        assert db.get(b"k") == b"y"


def test_a_fenced_database_stops_its_threads(real: DatabaseLocation) -> None:
    """A take-over is noticed without a write, close waits for nothing, and the new owner is left alone."""
    options = DatabaseOptions(manifest_poll_interval_ms=5)
    old = Database.open(real, options=options)
    with Database.open(real, options=DatabaseOptions(background=False), take_over=True) as new:
        new.put(b"k", b"new")
        wait_until(lambda: old.stats().fenced)
        old.close()
        assert new.get(b"k", linearizable=True) == b"new"


def test_rows_are_due_in_the_log_after_its_interval_and_at_once_when_many_wait(
    place: DatabaseLocation, clock: ManualClock, open_at: Callable[..., Database]
) -> None:
    """When the thread of the log looks next: no write before that is put off by a later one."""
    clock.advance(50.0)
    database = open_at(place, wal_bytes_max=2_000, wal_flush_interval_ms=300)
    writer = database._writer
    writer.has_background = True  # whose thread this test is
    database.put(b"a", b"1", await_durable=False)
    assert writer.log_due_s == pytest.approx(50.3)
    clock.advance(0.1)
    for want_ms, due_s in ((300, 50.3), (100, 50.2), (150, 50.2)):
        with writer.lock:
            writer.want_log(within_ms=want_ms)
        assert writer.log_due_s == pytest.approx(due_s)
    for number in range(30):
        database.put(b"%d" % number, bytes(200), await_durable=False)
    assert writer.log_due_s == pytest.approx(50.1)
    writer.has_background = False
    assert all(database.get(b"%d" % number) == bytes(200) for number in range(30))


def test_the_compactors_files_are_looked_for_after_the_interval(
    place: DatabaseLocation, clock: ManualClock, open_at: Callable[..., Database]
) -> None:
    """Counted from the last look, or from the opening."""
    clock.advance(50.0)
    threads = open_at(place, manifest_poll_interval_ms=20_000)._threads
    assert threads._poll_due(clock.monotonic_s()) == 70.0
    clock.advance(25.0)
    threads._poll()
    assert threads._poll_due(clock.monotonic_s()) == 95.0
