"""Values that end by themselves, and values that are combined from operands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from lakebed.errors import Conflict, InvalidRequest
from lakebed.kv import Database, WriteBatch
from lakebed.kv.database_location import DatabaseLocation
from lakebed.lsm.operators import MergeOperator, register_operator
from lakebed.testing import ManualClock
from worlds.errors import raises

MINUTE = timedelta(minutes=1)

COUNT_UP = MergeOperator("count_up", lambda key, base, operands: b"%d" % (int(base or b"0") + len(operands)))


@pytest.mark.parametrize("where", ["memtable", "file", "run"])
def test_a_value_ends_to_the_millisecond(db: Database, clock: ManualClock, where: str) -> None:
    """Readable before its end, gone from then on, for get, get_many and scans, at every level."""
    db.put(b"k", b"older")
    db.put(b"k", b"v", ttl=MINUTE)
    batch = WriteBatch()
    batch.put(b"b", b"v", ttl=MINUTE)
    batch.put(b"stays", b"v")
    db.write(batch)
    if where != "memtable":
        db.flush(memtable=True)
    if where == "run":
        db.compact(full=True)
    clock.advance(59.999)
    assert (db.get(b"k"), db.get(b"b")) == (b"v", b"v")
    assert len(list(db.scan())) == 3
    clock.advance(0.001)
    assert db.get_many([b"k", b"b", b"stays"]) == [None, None, b"v"]
    assert (db.get(b"k"), db.get(b"b")) == (None, None)
    assert [key for key, _ in db.scan()] == [b"stays"]
    assert db.scan_arrow().read_all()["key"].to_pylist() == [b"stays"]


def test_what_lies_below_an_ended_value_never_comes_back(db: Database, clock: ManualClock) -> None:
    """Compactions that meet the ended value before its older versions do not uncover these."""
    for i in range(4):
        db.put(b"k", b"old %d" % i)
        db.flush(memtable=True)
    db.put(b"k", b"short", ttl=MINUTE)
    db.flush(memtable=True)
    clock.advance(60)
    while db.compact_once():
        assert db.get(b"k") is None
    db.compact(full=True)
    assert db.get(b"k") is None
    assert db.stats().file_count == 0


def test_compare_and_set_respects_ends(db: Database, clock: ManualClock) -> None:
    """A value that has ended is absent for set_if, and set_if can give one a lifetime."""
    db.set_if(b"lock", b"me", expected=None, ttl=MINUTE)
    with pytest.raises(Conflict):
        db.set_if(b"lock", b"you", expected=None)
    clock.advance(60)
    db.set_if(b"lock", b"you", expected=None, ttl=MINUTE)
    assert db.get(b"lock") == b"you"


def number(value: int) -> bytes:
    """As add_int64 takes it."""
    return value.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(
    ("operator", "operands", "result"),
    [
        ("add_int64", [number(5), number(-7), number(100)], number(98)),
        ("append", [b"a", b"b", b"c"], b"abc"),
        ("max", [b"b", b"c", b"a"], b"c"),
        ("min", [b"b", b"c", b"a"], b"a"),
        ("last", [b"b", b"c", b"a"], b"a"),
    ],
)
def test_the_built_in_operators_at_every_level(
    place: DatabaseLocation, open_at: Callable[..., Database], operator: str, operands: list[bytes], result: bytes
) -> None:
    """Operands without a base combine the same in memory, across files, after compaction and after reopening."""
    db = open_at(place, merge_operator=operator)
    for operand in operands:
        db.merge(b"k", operand)
        db.flush(memtable=True)
    assert db.get(b"k") == result
    assert dict(db.scan()) == {b"k": result}
    while db.compact_once():
        assert db.get(b"k") == result
    db.compact(full=True)
    assert db.get_many([b"k"]) == [result]
    db.close()
    assert open_at(place).get(b"k") == result, "the operator's name is stored"


def test_operands_meet_puts_and_deletes(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """A put or delete above operands hides them, one below is their base; in a batch too."""
    db = open_at(place, merge_operator="append")
    db.merge(b"k", b"hidden")
    db.put(b"k", b"base ")
    db.flush(memtable=True)
    db.merge(b"k", b"one ")
    batch = WriteBatch()
    batch.merge(b"k", b"two")
    batch.merge(b"other", b"x")
    db.write(batch)
    assert (db.get(b"k"), db.get(b"other")) == (b"base one two", b"x")
    db.delete(b"k")
    assert db.get(b"k") is None
    db.merge(b"k", b"anew")
    db.compact(full=True)
    assert dict(db.scan()) == {b"k": b"anew", b"other": b"x"}


def test_operands_above_a_value_that_ends(
    place: DatabaseLocation, open_at: Callable[..., Database], clock: ManualClock
) -> None:
    """When the base has ended, only the operands count, before and after compaction."""
    db = open_at(place, merge_operator="append")
    db.put(b"k", b"base ", ttl=MINUTE)
    db.merge(b"k", b"tail")
    db.compact(full=True)
    assert db.get(b"k") == b"base tail"
    clock.advance(60)
    assert db.get(b"k") == b"tail"
    db.compact(full=True)
    assert db.get(b"k") == b"tail"


def test_operators_that_do_not_fit(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """No operator, another than the stored one, an unregistered one, and an operand it cannot use."""
    db = open_at(place)
    batch = WriteBatch()
    batch.merge(b"k", b"x")
    for call in (lambda: db.merge(b"k", b"x"), lambda: db.write(batch), lambda: db.transaction().merge(b"k", b"x")):
        with raises(InvalidRequest, "no_merge_operator", match="has no merge operator"):
            call()
    db.close()
    db = open_at(place, merge_operator="add_int64")
    for wrong in (lambda: db.merge(b"k", b"x"), lambda: db.write(batch), lambda: db.transaction().merge(b"k", b"x")):
        with raises(InvalidRequest, "wrong_operand", match="8 bytes"):
            wrong()
    db.close()
    with raises(InvalidRequest, "merge_operator_mismatch", match="merges with 'add_int64'"):
        open_at(place, merge_operator="append")
    with pytest.raises(InvalidRequest, match="No merge operator 'nobody'"):
        open_at(place, merge_operator="nobody")


def test_an_operator_of_ones_own(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """A registered operator that is not associative reads the same before and after compaction."""
    register_operator(COUNT_UP)
    db = open_at(place, merge_operator="count_up")
    for _ in range(5):
        db.merge(b"k", b"tick")
        db.flush(memtable=True)
    assert db.get(b"k") == b"5"
    db.compact(full=True)
    db.merge(b"k", b"tick")
    assert db.get(b"k") == b"6"
