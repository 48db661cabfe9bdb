"""Transactions: what they see, what they may overwrite, and how they end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import Closed, Conflict, InvalidRequest
from lakebed.kv import Database
from lakebed.kv.place import Place
from lakebed.lsm.memtable import Memtable
from lakebed.testing import ManualClock


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


def test_a_commit_is_one_durable_write(db: Database, place: Place) -> None:
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
    with pytest.raises(Conflict, match="begin it again") as refused:
        second.commit()
    assert refused.value.kind == "transaction_conflict"
    assert (db.get(b"k"), db.get(b"other")) == (b"1", None)
    with pytest.raises(Closed):
        second.commit()


def test_write_skew_is_allowed_under_snapshot_and_refused_under_serializable(db: Database) -> None:
    """Each of two transactions reads what the other writes."""
    for isolation, passes in (("snapshot", True), ("serializable", False)):
        db.put(b"a", b"1")
        db.put(b"b", b"1")
        one, two = db.transaction(isolation), db.transaction(isolation)  # type: ignore[arg-type]
        assert one.get(b"a") == two.get(b"b") == b"1"
        one.put(b"b", b"0")
        two.put(b"a", b"0")
        one.commit()
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
    """A key that somebody wrote into what was read refuses the commit; a neighbour does not."""
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
    place: Place, open_at: Callable[..., Database], clock: ManualClock
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


def test_a_transaction_that_outlives_its_history_is_refused(place: Place, open_at: Callable[..., Database]) -> None:
    """When what was written since is no longer in memory, nobody can say that there is no conflict."""
    db = open_at(place, transaction_history_bytes_max=5_000)
    t = db.transaction()
    t.put(b"k", b"1")
    for i in range(300):
        db.put(b"%03d" % i, bytes(50), await_durable=False)
    with pytest.raises(Conflict, match="begin the transaction again") as refused:
        t.commit()
    assert refused.value.kind == "history_gone"
    assert db.get(b"k") is None


def test_forgotten_transactions_hold_no_history(place: Place, open_at: Callable[..., Database]) -> None:
    """Flushed memtables stay in memory for an open transaction, and go when it has ended or was let go."""
    db = open_at(place)

    def memtables() -> int:
        return sum(isinstance(one, Memtable) for one in gc.get_objects())

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
