"""Transactions: what they see, what they may overwrite, and how they end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import Closed, Conflict, InvalidRequest
from lakebed.kv import Database, batch
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.transaction import Transaction
from lakebed.lsm.memtable import Memtable
from lakebed.testing import ManualClock
from worlds.errors import raises


def test_a_transaction_reads_its_version_and_its_own_writes(db: Database) -> None:
    """get, get_many and scans show the version at the beginning under the transaction's own writes; others see none."""
    for key in (b"a", b"c", b"e"):
        db.put(key, b"0")
    with db.transaction() as t:
        db.put(b"b", b"later")
        db.delete(b"e")
        t.put(b"c", b"1")
        t.put(b"d", b"1")
        t.delete(b"a")
        expected = [(b"c", b"1"), (b"d", b"1"), (b"e", b"0")]
        assert list(t.scan()) == expected
        assert list(t.scan(reverse=True)) == expected[::-1]
        for limit in range(len(expected) + 2):
            assert list(t.scan(limit=limit)) == expected[:limit]
            assert list(t.scan(reverse=True, limit=limit)) == expected[::-1][:limit]
        assert list(t.scan(b"d")) == expected[1:]
        assert list(t.scan_prefix(b"d")) == expected[1:2]
        assert list(t.scan(b"x", b"a")) == []
        table = t.scan_arrow().read_all()
        assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
        assert t.scan_arrow(b"e", columns=("key", "sequence")).read_all()["sequence"].to_pylist() == [3]
        assert t.get_many([b"a", b"b", b"c", b"e"]) == [None, None, b"1", b"0"]
        assert (t.get(b"a"), t.get(b"b"), t.get(b"d")) == (None, None, b"1")
        assert db.get(b"d") is None
    assert dict(db.scan()) == {b"b": b"later", b"c": b"1", b"d": b"1"}


def test_a_commit_is_one_durable_write(db: Database, place: DatabaseLocation) -> None:
    """All writes of a transaction lie in one log object, so a crash keeps all of them or none."""
    with place.store.count() as requests, db.transaction() as t:
        for i in range(10):
            t.put(b"%d" % i, b"x")
    assert (requests.put, requests.total) == (1, 1)
    assert db.stats().durable_sequence == 10


def test_an_exception_rolls_back(db: Database) -> None:
    """Nothing of a block that raised is written, and the transaction is over."""
    t = db.transaction()

    def block() -> None:
        with t:
            t.put(b"a", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert db.get(b"a") is None
    for call in (lambda: t.get(b"a"), lambda: t.put(b"a", b"1"), t.commit, lambda: t.scan(), lambda: t.delete(b"a")):
        with pytest.raises(Closed, match="has ended"):
            call()
    t.rollback()


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("flushed", [False, True])
def test_the_first_committer_wins(db: Database, isolation: Any, flushed: bool) -> None:
    """Two transactions that write one key: the second commit is refused, though the first is in a file already."""
    first, second = db.transaction(isolation), db.transaction(isolation)
    first.put(b"k", b"1")
    second.put(b"k", b"2")
    second.put(b"other", b"2")
    first.commit()
    if flushed:
        db.flush(memtable=True)
    with raises(Conflict, "transaction_conflict", match="begin it again"):
        second.commit()
    assert (db.get(b"k"), db.get(b"other")) == (b"1", None)
    with pytest.raises(Closed):
        second.commit()


def test_write_skew_is_allowed_under_snapshot_and_refused_under_serializable(db: Database) -> None:
    """Each of two transactions reads what the other writes."""
    for isolation, passes in (("snapshot", True), ("serializable", False)):
        db.put(b"a", b"1")
        db.put(b"b", b"1")
        item, two = db.transaction(isolation), db.transaction(isolation)  # type: ignore[arg-type]
        assert item.get(b"a") == two.get(b"b") == b"1"
        item.put(b"b", b"0")
        two.put(b"a", b"0")
        item.commit()
        if passes:
            two.commit()
        else:
            with pytest.raises(Conflict):
                two.commit()
        assert db.get(b"a") == (b"0" if passes else b"1")


@pytest.mark.parametrize(
    ("scan", "phantom", "refused"),
    [
        (lambda t: list(t.scan(b"b", b"d")), b"c", True),
        (lambda t: list(t.scan(b"b", b"d")), b"d", False),
        (lambda t: list(t.scan_prefix(b"b")), b"bb", True),
        (lambda t: list(t.scan_prefix(b"b")), b"c", False),
        (lambda t: t.scan_arrow(prefix=b"b").read_all(), b"bb", True),
        (lambda t: t.scan_arrow(b"b", b"c").read_all(), b"bb", True),
        (lambda t: list(t.scan(reverse=True)), b"zz", True),
        (lambda t: t.get_many([b"x", b"y"]), b"y", True),
        (lambda t: t.get_many([b"x", b"y"]), b"z", False),
        (lambda t: t.get(b"absent"), b"absent", True),
    ],
)
def test_serializable_sees_phantoms(db: Database, scan: Callable[[Any], Any], phantom: bytes, refused: bool) -> None:
    """Another write to a key in the range that was read refuses the commit; one to a neighbour does not."""
    db.put(b"bb", b"0")
    t = db.transaction("serializable")
    scan(t)
    t.put(b"result", b"1")
    db.put(phantom, b"1")
    db.flush(memtable=True)
    if refused:
        with pytest.raises(Conflict):
            t.commit()
    else:
        t.commit()
    assert db.get(b"result") == (None if refused else b"1")


READS: dict[str, Callable[[Transaction], object]] = {
    "get": lambda t: t.get(b"lease"),
    "get_many": lambda t: t.get_many([b"a", b"lease"]),
    "scan": lambda t: dict(t.scan(b"l", b"m")),
    "scan backwards": lambda t: dict(t.scan(reverse=True)),
    "scan_arrow": lambda t: t.scan_arrow(prefix=b"l").read_all().to_pylist(),
}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("row_count", [0, 500])
@pytest.mark.parametrize("read", sorted(READS))
def test_the_end_of_a_value_that_was_read_is_a_change(
    db: Database, clock: ManualClock, read: str, row_count: int, flushed: bool
) -> None:
    """A serializable transaction that has read a value which expires before its commit is refused; earlier it passes.

    What it reads stays as it was when it began, and snapshot isolation does not mind.
    """
    many = batch.WriteBatch()
    for number in range(row_count):
        many.put(b"l%03d" % number, b"0")
    if row_count:
        db.write(many)
    for isolation, waits_s, passes in (("serializable", 9, True), ("serializable", 11, False), ("snapshot", 11, True)):
        db.put(b"lease", b"mine", ttl=timedelta(seconds=10))
        db.flush(memtable=flushed)
        t = db.transaction(isolation)  # type: ignore[arg-type]
        before = READS[read](t)
        t.put(b"work", isolation.encode())
        clock.advance(waits_s)
        if isolation == "serializable":
            assert READS[read](t) == before or read == "scan backwards"  # with its own write
        if passes:
            t.commit()
            assert db.get(b"work") == isolation.encode()
        else:
            with pytest.raises(Conflict, match="has expired since"):
                t.commit()


def test_a_value_that_had_expired_before_is_no_change(db: Database, clock: ManualClock) -> None:
    """What a serializable transaction found expired already is absent, and stays so."""
    db.put(b"lease", b"mine", ttl=timedelta(seconds=10))
    clock.advance(11)
    with db.transaction("serializable") as t:
        assert (t.get(b"lease"), dict(t.scan())) == (None, {})
        t.put(b"work", b"1")
        clock.advance(60)
    assert db.get(b"work") == b"1"


def test_a_reader_always_commits(db: Database) -> None:
    """A serializable transaction that wrote nothing is as if it had happened when it began."""
    with db.transaction("serializable") as t:
        list(t.scan())
        db.put(b"a", b"1")
        assert t.get(b"a") is None


def test_deletes_and_own_reads_count_as_writes(db: Database) -> None:
    """Deleting conflicts like putting; reading one's own write rests on nothing."""
    db.put(b"a", b"1")
    t = db.transaction("serializable")
    t.delete(b"a")
    assert t.get(b"a") is None
    db.put(b"a", b"2")
    with pytest.raises(Conflict):
        t.commit()
    t = db.transaction("serializable")
    t.put(b"mine", b"1")
    assert t.get(b"mine") == b"1"
    t.commit()


def test_merges_and_lifetimes_in_transactions(
    place: DatabaseLocation, open_at: Callable[..., Database], clock: ManualClock
) -> None:
    """Operands stack on what is below and on own puts; lifetimes count from the commit; a wrong operand is refused."""
    db = open_at(place, merge_operator="append")
    db.put(b"log", b"a")
    with db.transaction() as t:
        t.merge(b"log", b"b")
        t.merge(b"log", b"c")
        t.put(b"new", b"x")
        t.merge(b"new", b"y")
        t.put(b"short", b"1", ttl=timedelta(seconds=10))
        assert (t.get(b"log"), t.get(b"new"), t.get(b"short")) == (b"abc", b"xy", b"1")
        assert list(t.scan(b"l", b"o")) == [(b"log", b"abc"), (b"new", b"xy")]
        clock.advance(60)
        with pytest.raises(InvalidRequest, match="key and value"):
            t.scan_arrow(columns=("key", "sequence"))
    assert (db.get(b"log"), db.get(b"new"), db.get(b"short")) == (b"abc", b"xy", b"1")
    clock.advance(10)
    assert db.get(b"short") is None


@pytest.mark.parametrize("lifetime_ms", [1, 999, 10_000, 4_194_303])
def test_a_value_of_a_transaction_ends_to_the_millisecond(db: Database, clock: ManualClock, lifetime_ms: int) -> None:
    """So long after the commit, at any time of day."""
    for part_s in (0.0, 1.023, 7.777, 63.999):
        clock.advance(part_s)
        with db.transaction() as t:
            t.put(b"k", b"v", ttl=timedelta(milliseconds=lifetime_ms))
        clock.advance((lifetime_ms - 1) / 1000)
        assert db.get(b"k") == b"v"
        clock.advance(0.001)
        assert db.get(b"k") is None


def test_a_transaction_that_outlives_its_history_is_refused(
    place: DatabaseLocation, open_at: Callable[..., Database]
) -> None:
    """When what was written since is no longer in memory, the absence of a conflict cannot be shown."""
    db = open_at(place, transaction_history_bytes_max=5_000)
    t = db.transaction()
    t.put(b"k", b"1")
    for i in range(300):
        db.put(b"%03d" % i, bytes(50), await_durable=False)
    with raises(Conflict, "history_gone", match="begin the transaction again"):
        t.commit()
    assert db.get(b"k") is None


def test_forgotten_transactions_hold_no_history(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """Flushed memtables stay in memory for an open transaction, and go when it has ended or was let go."""
    db = open_at(place)

    def memtables() -> int:
        return sum(isinstance(candidate, Memtable) for candidate in gc.get_objects())

    gc.collect()  # memtables of other tests go now, not while these are counted
    before = memtables()
    kept = db.transaction()
    for i in range(200):
        t = db.transaction()
        t.put(b"%03d" % i, bytes(50))
        if i % 3 == 0:
            t.commit()
        elif i % 3 == 1:
            t.rollback()
        del t
    db.flush(memtable=True)
    assert memtables() >= before + 3, "the first transaction is still open"
    del kept
    for i in range(40):
        db.put(b"%03d" % i, bytes(50))
    db.flush(memtable=True)
    assert memtables() <= before + 1


def test_commits_can_be_left_to_the_log(db: Database) -> None:
    """await_durable=False: visible at once, durable after flush."""
    with db.transaction(await_durable=False) as t:
        t.put(b"a", b"1")
    assert db.get(b"a") == b"1"
    assert db.stats().durable_sequence == 0
    db.flush()
    assert db.stats().durable_sequence == 1


@pytest.mark.parametrize("isolation", [None, "snapshot"])
def test_transact_runs_again_after_a_conflict(db: Database, isolation: Any) -> None:
    """The function runs until its commit goes through, and what it returned then is the answer."""
    settings = {} if isolation is None else {"isolation": isolation}
    met: list[bytes | None] = []

    def work(t: Transaction) -> int:
        met.append(t.get(b"k"))
        t.put(b"k", b"%d" % (int(met[-1] or b"0") + 10))
        t.put(b"tries", b"%d" % len(met))
        if len(met) < 4:
            db.put(b"k", b"%d" % len(met))  # another writer, in between
        return len(met)

    assert db.transact(work, **settings) == 4
    assert met == [None, b"1", b"2", b"3"]
    assert dict(db.scan()) == {b"k": b"13", b"tries": b"4"}


def test_transact_is_serializable_unless_told_otherwise(db: Database) -> None:
    """A read that was overtaken makes it run again, also when other keys are written."""
    runs: list[int] = []

    def work(t: Transaction) -> None:
        t.put(b"copy", t.get(b"k") or b"-")
        runs.append(1)
        if len(runs) == 1:
            db.put(b"k", b"1")

    db.transact(work)
    assert (len(runs), db.get(b"copy")) == (2, b"1")


def test_transact_gives_up_and_leaves_nothing(db: Database) -> None:
    """Raise after the stated number of tries; pass on at once what the function raises; a roll-back is not an error."""
    runs: list[int] = []

    def overtaken(t: Transaction) -> None:
        runs.append(1)
        t.put(b"k", b"mine")
        db.put(b"k", b"theirs")

    with pytest.raises(Conflict) as error:
        db.transact(overtaken, tries_max=3)
    assert (error.value.kind, len(runs)) == ("transaction_conflict", 3)

    def refuse(t: Transaction) -> None:
        runs.append(1)
        t.put(b"k", b"mine")
        raise Conflict("of its own")

    with pytest.raises(Conflict, match="of its own"):
        db.transact(refuse)
    assert len(runs) == 4
    assert db.transact(lambda t: (t.put(b"k", b"mine"), t.rollback(), "left")[-1]) == "left"
    assert dict(db.scan()) == {b"k": b"theirs"}
    with pytest.raises(Conflict):
        db.transact(overtaken, tries_max=1)
    assert len(runs) == 5
    assert db.transact(lambda t: t.get(b"k"), tries_max=1) == b"theirs"
    for tries in (0, -1, None):
        with pytest.raises(InvalidRequest, match="tries_max"):
            db.transact(overtaken, tries_max=tries)  # type: ignore[arg-type]


def test_threads_that_transact_lose_no_increment(db: Database) -> None:
    """A counter that many threads raise at once counts each of them."""

    def raise_by_one(t: Transaction) -> None:
        t.put(b"n", b"%d" % (int(t.get(b"n") or b"0") + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: db.transact(raise_by_one, tries_max=10_000), range(40)))
    assert db.get(b"n") == b"40"


def test_an_oversized_transaction_is_refused_before_it_is_written(
    db: Database, place: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no record of the log could hold fails its own writer only: nothing is written, later writes are durable."""
    monkeypatch.setattr(batch, "BATCH_BYTES_MAX", 10_000)
    before = [meta.path for meta in place.store.list("")]
    for write in (lambda t, key: t.put(key, bytes(100)), lambda t, key: t.delete(key + bytes(100))):
        t = db.transaction()
        for number in range(100):
            write(t, b"%03d" % number)
        with raises(InvalidRequest, "oversized_batch", match="10,000 are possible"):
            t.commit()
        assert not t.is_open
    assert [meta.path for meta in place.store.list("")] == before
    db.put(b"later", b"1")
    with db.transaction() as t:
        t.put(b"small", b"1")
    assert dict(db.scan()) == {b"later": b"1", b"small": b"1"}
