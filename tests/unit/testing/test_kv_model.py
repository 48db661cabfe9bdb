"""The model of databases notices what it is there to notice."""

from __future__ import annotations

import pytest

from lakebed.lsm.model import Kind
from worlds.kv.model import (
    Change,
    DatabaseHistory,
    Event,
    Observation,
    Rows,
    Write,
    apply_change,
    value_of,
    visible,
)
from worlds.promise import PromiseBroken

NOW_MS = 1_000


def put(number: int, *keys: bytes, started: int = 0, **facts: object) -> Write:
    """A write of one value under each key."""
    changes = tuple(Change(key, Kind.PUT, value_of(number, place)) for place, key in enumerate(keys))
    return Write(number, changes, "owner", started, **facts)  # type: ignore[arg-type]


def line_of(*writes: Write) -> DatabaseHistory:
    """A line on which these became durable, each in a log object of its own."""
    history = DatabaseHistory("memory://model")
    for place, write in enumerate(writes, start=1):
        history.add(Event(10 * place, write, write.changes, place), now_ms=NOW_MS)
    return history


def seen(content: dict[bytes, bytes | None], *, floor: int = 0, ended: int = 100, whole: bool = True) -> Observation:
    """A read by a reader that sees only what is durable."""
    return Observation("scan", "reader", floor, 0, ended, NOW_MS, NOW_MS, content, is_durable=True, is_whole=whole)


def check(history: DatabaseHistory, observation: Observation, writes: list[Write]) -> None:
    """Judge one observation."""
    history.observations.append(observation)
    history.check_all(writes)


def test_an_acknowledged_write_must_be_durable() -> None:
    """A write that is acknowledged as durable is durable."""
    first, second = put(1, b"a"), put(2, b"b")
    history = line_of(first)
    history.check_acknowledged(first)
    with pytest.raises(PromiseBroken, match="is not durable"):
        history.check_acknowledged(second)


def test_half_a_write_is_noticed() -> None:
    """A write is durable whole, or not at all."""
    write = put(1, b"a", b"b")
    history = DatabaseHistory("memory://model")
    history.add(Event(1, write, write.changes[:1], 1), now_ms=NOW_MS)
    with pytest.raises(PromiseBroken, match="only 1 changes"):
        history.check_acknowledged(write)


def test_stale_reads_are_noticed() -> None:
    """A read shows nothing older than what its reader knew."""
    history = line_of(put(1, b"a"), put(2, b"a"))
    history.check_read(b"a", value_of(1, 0), floor=1, now_ms=NOW_MS, until_ms=NOW_MS)
    with pytest.raises(PromiseBroken, match="could be"):
        history.check_read(b"a", value_of(1, 0), floor=2, now_ms=NOW_MS, until_ms=NOW_MS)


def test_a_forgotten_own_write_is_noticed() -> None:
    """What a handle wrote before, durable or not, it reads."""
    entry = put(2, b"a", durable=False)
    history = line_of(put(1, b"a"))
    history.check_read(b"a", value_of(2, 0), floor=1, now_ms=NOW_MS, until_ms=NOW_MS, own=[entry], before={2})
    with pytest.raises(PromiseBroken, match="had been written before"):
        history.check_read(b"a", value_of(1, 0), floor=1, now_ms=NOW_MS, until_ms=NOW_MS, own=[entry], before={2})


def test_a_torn_view_is_noticed() -> None:
    """Several keys are seen as they were at one moment."""
    writes = [put(1, b"a", b"b"), put(2, b"a", b"b")]
    check(line_of(*writes), seen({b"a": value_of(2, 0), b"b": value_of(2, 1)}), writes)
    with pytest.raises(PromiseBroken, match="never so"):
        check(line_of(*writes), seen({b"a": value_of(2, 0), b"b": value_of(1, 1)}), writes)


def test_a_view_of_the_future_is_noticed() -> None:
    """What became durable later is not seen as durable."""
    writes = [put(1, b"a"), put(2, b"a")]
    with pytest.raises(PromiseBroken, match="never so"):
        check(line_of(*writes), seen({b"a": value_of(2, 0)}, ended=15), writes)


def test_what_was_refused_must_not_happen() -> None:
    """A refused compare-and-set leaves nothing."""
    write = put(1, b"a", outcome="refused")
    with pytest.raises(PromiseBroken, match="was refused"):
        line_of(write).check_all([write])


def test_a_compare_and_set_replaces_what_it_expected() -> None:
    """Between look and write nothing comes."""
    writes = [put(1, b"a"), put(2, b"a"), put(3, b"a", expected={b"a": value_of(1, 0)})]
    with pytest.raises(PromiseBroken, match="and happened on"):
        line_of(*writes).check_all(writes)


@pytest.mark.parametrize(("serializable", "found"), [(False, False), (True, True)])
def test_transactions_are_isolated_as_asked(serializable: bool, found: bool) -> None:
    """A snapshot transaction guards what it writes, a serializable one what it reads too."""
    read = {b"a": value_of(1, 0)}
    late = put(3, b"b", began=5, read=read, is_serializable=serializable)
    writes = [put(1, b"a"), put(2, b"a"), late]
    history = line_of(*writes)
    if not found:
        history.check_all(writes)
        return
    with pytest.raises(PromiseBroken, match="no moment before it"):
        history.check_all(writes)


def test_operands_outlive_the_value_below_them() -> None:
    """A merge keeps the end of what it is merged with, and nothing else ends; an ended value takes no part."""
    rows: Rows = {}
    apply_change(rows, Change(b"a", Kind.PUT, b"1", NOW_MS + 5), NOW_MS)
    apply_change(rows, Change(b"a", Kind.MERGE, b"2"), NOW_MS)
    apply_change(rows, Change(b"b", Kind.PUT, b"3", NOW_MS + 1), NOW_MS)
    assert visible(rows, NOW_MS + 4) == {b"a": b"12"}
    assert visible(rows, NOW_MS + 5) == {b"a": b"2"}
    apply_change(rows, Change(b"b", Kind.MERGE, b"4"), NOW_MS + 5)
    assert visible(rows, NOW_MS) == {b"a": b"12", b"b": b"4"}


def test_endings_are_known() -> None:
    """What ends by itself may be there or not while it ends, and not afterwards."""
    history = DatabaseHistory("memory://model")
    change = Change(b"a", Kind.PUT, value_of(1, 0), NOW_MS + 5)
    history.add(Event(1, Write(1, (change,), "owner", 0), (change,), 1), now_ms=NOW_MS)
    for value in (None, value_of(1, 0)):
        history.check_read(b"a", value, floor=1, now_ms=NOW_MS, until_ms=NOW_MS + 5)
    with pytest.raises(PromiseBroken, match="could be"):
        history.check_read(b"a", value_of(1, 0), floor=1, now_ms=NOW_MS + 5, until_ms=NOW_MS + 6)
