"""A database goes on after Ctrl-C: what was interrupted is there or not, and the rest is as written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count

import pytest

from lakebed.errors import LakebedError
from lakebed.kv import Database, WriteBatch
from worlds.interrupts import interrupt_at
from worlds.kv.manual_database import ManualDatabase


def write_batch(db: Database) -> None:
    """Three rows at once, of known and of new keys."""
    batch = WriteBatch()
    batch.put(b"known", b"2")
    batch.delete(b"gone")
    batch.put(b"new", b"2")
    db.write(batch)


VERBS: dict[str, Callable[[Database], object]] = {
    "put": lambda db: db.put(b"known", b"2"),
    "put that ends": lambda db: db.put(b"new", b"2", ttl=timedelta(seconds=1), await_durable=False),
    "merge": lambda db: db.merge(b"new", b"2", await_durable=False),
    "batch": write_batch,
    "flush": lambda db: db.flush(memtable=True),
}
MAY_BE: dict[bytes, set[bytes | None]] = {b"known": {b"1", b"2"}, b"gone": {b"1", None}, b"new": {b"2", None}}
"""What keys that a verb may write are after it was interrupted."""
WRITING = ["kv/group_commit.py", "kv/writer.py", "kv/wal.py", "lsm/memtable.py", "lsm/tree.py"]
"""Where rows are between a verb and the store. What comes before and after holds no state."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # some moments are in a generator's end
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_verb_changes_no_other_row(verb: str) -> None:
    """At whatever moment it was stopped: later writes are acknowledged, and read as they were written.

    So they are after opening again, and a snapshot of before shows none of them.
    """
    for moment in count(1):
        manual = ManualDatabase.new()
        db = manual.open(merge_operator="append")
        for key in (b"gone", b"known", b"stays"):
            db.put(key, b"1", await_durable=False)
        where = interrupt_at(moment, partial(VERBS[verb], db), within=WRITING)
        with db.snapshot() as before:
            db.put(b"later", b"L")
            db.delete(b"stays")
            assert (before.get(b"later"), before.get(b"stays")) == (None, b"1"), where
        manual.clock.advance(2)
        check_rows(db, where)
        db.close()
        with manual.open() as again:
            check_rows(again, where)
        if where is None:
            break
    assert moment > 10


def check_rows(db: Database, where: str | None) -> None:
    """All rows are as the test wrote them, but those that the verb may have written."""
    rows = dict(db.scan())
    assert rows == {key: value for key in rows if (value := db.get(key)) is not None}, where
    for key, values in MAY_BE.items():
        assert rows.pop(key, None) in values, where
    assert rows == {b"later": b"L"}, where
    assert db.get(b"stays") is None, where


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_give_up_acknowledges_no_lost_row() -> None:
    """At whatever moment rows that cannot be encoded are taken back: none of them is read, or written later."""
    for moment in count(1):
        manual = ManualDatabase.new()
        db = manual.open(l0_sst_bytes=2_000)
        db.put(b"stays", b"1")
        db._writer.append_rows([b"bad"], [b"1"], [0], [2**63], check=None, await_durable=False)
        db.put(b"behind", bytes(3_000), await_durable=False)  # ends the memtable, and with it the group
        where = None
        with suppress(LakebedError):  # why the rows were lost, unless the interrupt came when that was about to be told
            where = interrupt_at(moment, db.flush, within=WRITING)
            db.flush()
        db.put(b"later", b"L")
        assert dict(db.scan()) == {b"stays": b"1", b"later": b"L"}, where
        db.close()
        with manual.open() as again:
            assert dict(again.scan()) == {b"stays": b"1", b"later": b"L"}, where
        if where is None:
            break
    assert moment > 10
