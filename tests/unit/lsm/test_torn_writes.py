"""Writes to a memtable that are torn apart at any step, checks of keys and values, ends of values that were read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lakebed.errors import InternalError, InvalidRequest
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import KEY_BYTES_MAX, VALUE_BYTES_MAX, FileSet, check_key, check_value
from lakebed.lsm.view import Ends, View
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises


class Interrupt(BaseException):
    """What tears a write, as Ctrl-C does."""


class Torn(bytes):
    """A key or value at one of whose uses an interrupt comes, once.

    Attributes:
        left: uses before it; negative: it has come, or never does.
    """

    left = -1

    def _use(self) -> None:
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                raise Interrupt

    def __hash__(self) -> int:
        self._use()
        return hash(bytes(self))

    def __len__(self) -> int:
        self._use()
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        return bytes(self) == other


def torn(text: bytes, left: int) -> Torn:
    """Such a key or value."""
    made = Torn(text)
    made.left = left
    return made


def state_of(table: Memtable) -> tuple[Any, ...]:
    """Everything that a memtable has of its rows."""
    keys = [bytes(key) for key in table.keys]
    values = [None if value is None else bytes(value) for value in table.values]
    index = {bytes(key): row for key, row in table.index.items()}
    return keys, values, index, dict(table.special), dict(table.older), table.payload_bytes, table.last_sequence


def written(rows: list[tuple[bytes, bytes | None, int | None]]) -> Memtable:
    """A memtable to which these rows were written one by one: key, value, end."""
    table = Memtable(5)
    for key, value, end_ms in rows:
        table.delete(key) if value is None else table.put(key, value, end_ms)
    return table


@pytest.mark.parametrize("end_ms", [None, 9])
@pytest.mark.parametrize("key", [b"new", b"a", b"b"])
@pytest.mark.parametrize("tears", ["key", "value"])
def test_a_torn_put_is_whole_or_nothing(tears: str, key: bytes, end_ms: int | None) -> None:
    """At each use of its key or value: the row is there with all of it, or not at all; later rows are their own."""
    before: list[tuple[bytes, bytes | None, int | None]] = [(b"a", b"1", None), (b"b", None, None), (b"a", b"22", 7)]
    outcomes = set()
    for left in range(10):
        table = written(before)
        row = (torn(key, left) if tears == "key" else key, torn(b"333", left) if tears == "value" else b"333")
        try:
            table.put(*row, end_ms)
        except Interrupt:
            outcomes.add(len(table.keys) - len(before))
        whole = [*before, (key, b"333", end_ms)][: len(table.keys)]
        assert state_of(table) == state_of(written(whole)), left
        table.put(key, b"later")
        assert state_of(table) == state_of(written([*whole, (key, b"later", None)])), left
    assert outcomes == ({0, 1} if tears == "key" else {1})


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_torn_batch_is_whole_or_nothing(at: int) -> None:
    """Also where a key repeats, is there already, or has an end."""
    before: list[tuple[bytes, bytes | None, int | None]] = [(b"a", b"1", None), (b"b", b"2", 7)]
    rows: list[tuple[bytes, bytes | None, int | None]] = [
        (b"new", b"333", 9), (b"a", None, None), (b"new", b"4", None), (b"b", b"55555", 8),
    ]  # fmt: skip
    outcomes = set()
    for left in range(16):
        table = written(before)
        keys = [torn(key, left) if number == at else key for number, (key, _, _) in enumerate(rows)]
        try:
            table.extend(keys, [value for _, value, _ in rows], None, [end_ms for _, _, end_ms in rows])
        except Interrupt:
            outcomes.add(len(table.keys) - len(before))
        assert len(table.keys) in (2, 6)
        whole = [*before, *rows][: len(table.keys)]
        assert state_of(table) == state_of(written(whole)), left
        table.extend([b"z"], [b"later"])
        assert state_of(table) == state_of(written([*whole, (b"z", b"later", None)])), left
    assert outcomes == {0, 4}


def test_columns_of_a_batch_are_as_long() -> None:
    """Else nothing is written."""
    for columns in (([b"a"], []), ([b"a"], [b"1"], []), ([b"a"], [b"1"], None, [1, 2]), ([], [b"1"])):
        table = Memtable(1)
        with pytest.raises(InternalError):
            table.extend(*columns)  # type: ignore[arg-type]
        assert state_of(table) == state_of(Memtable(1))


@pytest.mark.parametrize("limit", [1, 3, None])
def test_keys_and_values_are_bytes_of_some_length(limit: int | None) -> None:
    """A key has at least one; at the limit both are taken, and one more is refused with advice."""
    limits: dict[str, Any] = {} if limit is None else {"bytes_max": limit, "advice": "make it shorter"}
    for check, bytes_max in ((check_key, KEY_BYTES_MAX), (check_value, VALUE_BYTES_MAX)):
        most = limit or (bytes_max if check is check_key else None)
        for wrong in ("a", None, 1, bytearray(b"a"), memoryview(b"a")):
            with raises(InvalidRequest, "wrong_type"):
                check(wrong, **limits)
        assert check(b"a", **limits) == b"a"
        if most is not None:
            kind = "oversized_key" if check is check_key else "oversized_value"
            assert len(check(b"a" * most, **limits)) == most
            with raises(InvalidRequest, kind, match="make it shorter" if limit else None):
                check(b"a" * (most + 1), **limits)
    assert check_value(b"") == b""
    with raises(InvalidRequest, "empty_key"):
        check_key(b"", **limits)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_end_of_what_was_read_is_noted(seed: int) -> None:
    """Of rows that have not ended at the moment of the view, whichever way they are read; of no others."""
    rng = random.Random(seed)
    clock = ManualClock()
    now_ms = clock.now_ms()
    for _ in range(40):
        table = Memtable(1)
        expected: dict[bytes, int | None] = {}
        for key in rng.sample([b"a", b"b", b"c", b"d"], rng.randint(1, 4)):
            end_ms = rng.choice([None, now_ms - 1, now_ms, now_ms + 1, now_ms + 5, now_ms + 9])
            table.put(key, b"v", end_ms)
            expected[key] = end_ms
        ends = Ends(now_ms)
        view = View(
            memtables=[table],
            file_set=FileSet(),
            sequence=None,
            operator=None,
            files=FileStore(
                open_store("memory://ends"), path_of=str, cache=BlockCache(0), options=FileOptions(),
                environment=Environment(clock=clock),
            ),
            environment=Environment(clock=clock),
        ).noting(ends)  # fmt: skip
        assert (ends.now_ms(), ends.first_ms) == (now_ms, None)
        keys = rng.sample(list(expected), rng.randint(1, len(expected)))
        how = rng.choice(["get", "get_many", "scan"])
        if how == "get":
            shown = {key: view.get(key) for key in keys}
        elif how == "get_many":
            shown = dict(zip(keys, view.get_many(keys), strict=True))
        else:
            keys = list(expected)
            shown = dict.fromkeys(keys) | dict(view.scan())
        living = {key: end_ms for key, end_ms in expected.items() if end_ms is None or end_ms > now_ms}
        assert {key for key, value in shown.items() if value is not None} == living.keys() & set(keys)
        later = [end_ms for key in keys if (end_ms := expected[key]) is not None and end_ms > now_ms]
        assert ends.first_ms == min(later, default=None)
