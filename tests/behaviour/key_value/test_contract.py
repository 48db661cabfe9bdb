"""What every implementation of the key-value port promises; this file runs unchanged against all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Closed, Conflict, InvalidRequest
from lakebed.key_value.port import (
    BOUND_BYTES_MAX,
    KEY_BYTES_MAX,
    PAIR_SCHEMA,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    KeyValue,
    KeyValueSnapshot,
)
from worlds.errors import raises

Opener = Callable[[], KeyValue]

ODD_KEYS = sorted(
    [b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"a\x00b", b"a/b", b"a\xff", b"a\xff\xff", b"b", b"\x7f",
     b"\x80", "ü/ß".encode(), b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff"]
)  # fmt: skip
BIG = 100_000
RACERS = 16
ROUNDS = 12


def rows_of(snapshot: KeyValueSnapshot, start: bytes | None = None, end: bytes | None = None) -> dict[bytes, bytes]:
    """All rows of a range, read in both ways."""
    pairs = list(snapshot.scan(start, end))
    batches = list(snapshot.scan_arrow(start, end))
    assert all(batch.schema == PAIR_SCHEMA and batch.num_rows for batch in batches)
    columns = [zip(*(batch.column(at).to_pylist() for at in (0, 1)), strict=True) for batch in batches]
    assert [pair for column in columns for pair in column] == pairs
    assert all(before[0] < after[0] for before, after in pairwise(pairs))
    return dict(pairs)


def content(key_value: KeyValue) -> dict[bytes, bytes]:
    """Everything there is."""
    with key_value.snapshot() as snapshot:
        return rows_of(snapshot)


def test_a_value_is_what_was_set_last(key_value: KeyValue) -> None:
    """get, peek and snapshots see every write that has returned, deletes and empty values included."""
    assert key_value.get(b"k") is None
    key_value.set(b"k", b"1")
    key_value.set(b"k", b"")
    assert (key_value.get(b"k"), key_value.peek(b"k"), content(key_value)) == (b"", b"", {b"k": b""})
    key_value.set(b"k", bytes(range(256)))
    assert (key_value.get(b"k"), key_value.peek(b"k")) == (bytes(range(256)), bytes(range(256)))
    key_value.delete(b"k")
    key_value.delete(b"k")
    assert (key_value.get(b"k"), key_value.peek(b"k"), content(key_value)) == (None, None, {})


def test_keys_are_ordered_as_bytes(key_value: KeyValue) -> None:
    """Scans return keys in byte order, for any bytes, and half-open ranges cut them there."""
    shuffled = random.Random(1).sample(ODD_KEYS, len(ODD_KEYS))
    for key in shuffled[:5]:
        key_value.set(key, key)
    key_value.write([(key, key) for key in shuffled[5:]])
    with key_value.snapshot() as snapshot:
        assert list(rows_of(snapshot)) == ODD_KEYS
        ends = [None, b"", *ODD_KEYS, b"a\x00\x00", b"zz"]
        for start in ends:
            for end in ends:
                wanted = [key for key in ODD_KEYS if (start or b"") <= key and (end is None or key < end)]
                assert list(rows_of(snapshot, start, end)) == wanted, (start, end)
        assert snapshot.get_many([*shuffled, b"no", shuffled[0]]) == [*shuffled, None, shuffled[0]]
        assert [snapshot.get(key) for key in ODD_KEYS] == ODD_KEYS


def test_a_snapshot_does_not_change(key_value: KeyValue) -> None:
    """Scans that are half read, begun later, and gets of a snapshot all show its own moment."""
    keys = [b"k%05d" % number for number in range(5_000)]
    key_value.put_columns(keys, keys)
    with key_value.snapshot() as snapshot:
        pairs, batches = snapshot.scan(b"k00010"), snapshot.scan_arrow(b"k00010")
        seen = [next(pairs) for _ in range(20)]
        first = next(batches)
        key_value.write([(b"a", b"new"), (b"k00500x", b"new"), (b"z", b"new")], keys[400:4_000])
        key_value.set(keys[4_500], b"other")
        rest = list(pairs)
        assert [key for key, _ in [*seen, *rest]] == keys[10:]
        assert all(key == value for key, value in [*seen, *rest])
        assert sum(batch.num_rows for batch in [first, *batches]) == len(keys) - 10
        assert rows_of(snapshot) == dict(zip(keys, keys, strict=True))
        assert snapshot.get_many([b"a", keys[3_000], keys[4_500]]) == [None, keys[3_000], keys[4_500]]
        assert snapshot.get(keys[401]) == keys[401]
    now = content(key_value)
    assert len(now) == 5_000 - 3_600 + 3
    assert now[keys[4_500]] == b"other"


def test_a_write_happens_whole_or_not_at_all(key_value: KeyValue) -> None:
    """Conditions on several keys, absent ones included: all must hold, or nothing is written and one is named."""
    key_value.write([(b"a", b"1"), (b"b", b"2")])
    key_value.write([(b"c", b"3")], [b"b"], expected={b"a": b"1", b"b": b"2", b"absent": None})
    before = {b"a": b"1", b"c": b"3"}
    assert content(key_value) == before
    for expected, wrong in (
        ({b"a": b"1", b"b": b"2"}, {b"b"}),
        ({b"a": None}, {b"a"}),
        ({b"absent": b""}, {b"absent"}),
        ({b"a": b"x", b"c": b"y"}, {b"a", b"c"}),
        ({b"c": b"3", b"a": b"1", b"absent": b"x"}, {b"absent"}),
    ):
        with raises(Conflict, "unexpected_value") as refusal:
            key_value.write([(b"d", b"4"), (b"a", b"5")], [b"c"], expected=expected)
        assert refusal.value.facts["key"] in wrong
        with pytest.raises(Conflict):
            key_value.put_columns([b"d"], [b"4"], expected=expected)
        with pytest.raises(Conflict):
            key_value.write(expected=expected)
        assert content(key_value) == before
    key_value.write(expected={b"a": b"1", b"absent": None})
    key_value.put_columns(pa.array([b"a", b"d"]), pa.array([b"6", b"7"]), expected={b"a": b"1", b"d": None})
    assert content(key_value) == {b"a": b"6", b"c": b"3", b"d": b"7"}


def test_set_if_replaces_just_what_is_there(key_value: KeyValue) -> None:
    """set_if creates, replaces and deletes, each only from the value that it names."""
    key_value.set_if(b"k", b"1", expected=None)
    for value, expected in ((b"2", None), (b"2", b"0"), (None, b""), (None, None)):
        with raises(Conflict, "unexpected_value", key=b"k"):
            key_value.set_if(b"k", value, expected=expected)
    key_value.set_if(b"k", b"", expected=b"1")
    key_value.set_if(b"k", None, expected=b"")
    assert key_value.get(b"k") is None
    key_value.set_if(b"k", None, expected=None)
    assert content(key_value) == {}


def test_the_last_put_of_a_key_counts(key_value: KeyValue) -> None:
    """Of puts of one key the last wins, a put wins over a delete, and writing nothing is fine."""
    key_value.set(b"a", b"0")
    key_value.write([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], [b"a", b"a", b"c"])
    key_value.put_columns([b"c", b"c"], [b"1", b"2"])
    key_value.write()
    key_value.put_columns([], [])
    key_value.put_columns(pa.array([], pa.binary()), pa.array([], pa.binary()))
    assert content(key_value) == {b"a": b"2", b"b": b"1", b"c": b"2"}


def test_big_batches_are_atomic(key_value: KeyValue) -> None:
    """While batches of 100 thousand rows are written, every snapshot has all rows of one batch."""
    keys = [b"row/%08d" % number for number in range(BIG)]
    column = pa.array(keys, pa.binary())
    key_value.put_columns(column, [b"0" * 20] * BIG)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: key_value.put_columns(column, [b"1" * 20] * BIG))
        looks = 0
        while not writing.done() or not looks:
            with key_value.snapshot() as snapshot:
                batches = list(snapshot.scan_arrow(b"row/", b"row0"))
            assert sum(batch.num_rows for batch in batches) == BIG
            assert len({value for batch in batches for value in batch.column(1).unique().to_pylist()}) == 1
            looks += 1
        writing.result()
    with pytest.raises(Conflict):
        key_value.put_columns(column, [b"never"] * BIG, expected={keys[-1]: b"other"})
    key_value.write(deletes=keys[1:], expected={keys[0]: b"1" * 20})
    assert content(key_value) == {keys[0]: b"1" * 20}


def test_one_of_many_racers_wins(key_value: KeyValue) -> None:
    """Sixteen threads that replace one value at once: each round has exactly one winner, who is there then."""
    barrier = Barrier(RACERS)

    def race(racer: int) -> list[int]:
        won = []
        for number in range(ROUNDS):
            expected = key_value.get(b"prize")
            barrier.wait()
            try:
                key_value.set_if(b"prize", b"%d by %d" % (number, racer), expected=expected)
            except Conflict:
                pass
            else:
                won.append(number)
                assert key_value.get(b"prize") == b"%d by %d" % (number, racer)
            barrier.wait()
        return won

    with ThreadPoolExecutor(RACERS) as pool:
        wins = sorted(item for won in pool.map(race, range(RACERS)) for item in won)
    assert wins == list(range(ROUNDS))


def test_every_acknowledged_increment_counts(key_value: KeyValue) -> None:
    """A counter that sixteen threads raise by peek and compare-and-set ends as many as were acknowledged."""

    def count(_: int) -> int:
        done = 0
        for _ in range(10):
            now = key_value.peek(b"counter")
            try:
                key_value.write([(b"counter", b"%d" % (int(now or 0) + 1))], expected={b"counter": now})
            except Conflict:
                continue
            done += 1
        return done

    with ThreadPoolExecutor(RACERS) as pool:
        done = sum(pool.map(count, range(RACERS)))
    assert done >= 10
    assert int(key_value.get(b"counter") or 0) == done


@pytest.mark.parametrize("before", [None, b"off"], ids=["absent", "present"])
def test_there_is_no_write_skew(key_value: KeyValue, before: bytes | None) -> None:
    """Of two writers that each expect the other's key unchanged, one at most succeeds, also when both are absent."""
    barrier = Barrier(2)
    pairs = ((b"left", b"right"), (b"right", b"left"))

    def skew(own: bytes, other: bytes) -> list[bool]:
        outcomes = []
        for number in range(2 * ROUNDS):
            barrier.wait()
            suffix = b"%d" % number
            try:
                key_value.write([(own + suffix, b"on")], expected={other + suffix: before})
            except Conflict:
                outcomes.append(False)
            else:
                outcomes.append(True)
        return outcomes

    if before is not None:
        key_value.write([(key + b"%d" % number, before) for key, _ in pairs for number in range(2 * ROUNDS)])
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(skew, *zip(*pairs, strict=True))
    assert all(a != b for a, b in zip(left, right, strict=True)), "one writer, and only one, wins each turn"


def test_transfers_keep_the_sum(key_value: KeyValue) -> None:
    """Threads move money between accounts conditionally; every snapshot, and the end, has all of it."""
    accounts = [b"account/%d" % number for number in range(6)]
    key_value.write([(account, b"100") for account in accounts])

    def move(worker: int) -> int:
        rng, done = random.Random(worker), 0
        for _ in range(12):
            source, target = rng.sample(accounts, 2)
            with key_value.snapshot() as snapshot:
                assert sum(int(value) for _, value in snapshot.scan(b"account/", b"account0")) == 600
                here, present = snapshot.get_many([source, target])
            assert here is not None
            assert present is not None
            amount = rng.randrange(int(here) + 1)
            puts = [(source, b"%d" % (int(here) - amount)), (target, b"%d" % (int(present) + amount))]
            try:
                key_value.write(puts, expected={source: here, target: present})
            except Conflict:
                continue
            done += 1
        return done

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(move, range(6))) > 0
    assert sum(int(value) for value in content(key_value).values()) == 600


def test_what_was_acknowledged_is_there_after_reopening(opened: Opener) -> None:
    """Closed and opened again, everything is as it was."""
    first = opened()
    first.write([(key, key) for key in ODD_KEYS])
    first.put_columns([b"n/%05d" % number for number in range(3_000)], [b"v"] * 3_000)
    first.delete(ODD_KEYS[3])
    before = content(first)
    first.close()
    second = opened()
    assert content(second) == before
    assert second.get(ODD_KEYS[3]) is None
    second.set_if(ODD_KEYS[3], b"back", expected=None)
    second.close()
    assert opened().get(ODD_KEYS[3]) == b"back"


def test_a_closed_store_says_so(key_value: KeyValue) -> None:
    """After close every call is `Closed`; closing again is fine, and a closed snapshot is closed alone."""
    key_value.set(b"k", b"1")
    snapshot = key_value.snapshot()
    snapshot.close()
    snapshot.close()
    for call in (
        lambda: snapshot.get(b"k"),
        lambda: snapshot.get_many([b"k"]),
        lambda: list(snapshot.scan()),
        lambda: list(snapshot.scan_arrow()),
    ):
        with pytest.raises(Closed):
            call()
    assert key_value.get(b"k") == b"1"
    key_value.close()
    key_value.close()
    calls: list[Callable[[], Any]] = [
        lambda: key_value.get(b"k"),
        lambda: key_value.peek(b"k"),
        lambda: key_value.snapshot(),
        lambda: key_value.set(b"k", b"2"),
        lambda: key_value.set_if(b"k", b"2", expected=b"1"),
        lambda: key_value.delete(b"k"),
        lambda: key_value.write([(b"k", b"2")]),
        lambda: key_value.put_columns([b"k"], [b"2"]),
    ]
    for refused in calls:
        with pytest.raises(Closed):
            refused()


WRONG_KEYS: list[Any] = [b"", "text", None, 7, b"k" * (KEY_BYTES_MAX + 1)]
WRONG_VALUES: list[Any] = ["text", 7, b"v" * (VALUE_BYTES_MAX + 1)]


def test_what_cannot_be_is_refused(key_value: KeyValue) -> None:
    """Empty, oversized and mistyped keys and values are `InvalidRequest`, and nothing is written."""
    for key in WRONG_KEYS:
        for call in (
            lambda key=key: key_value.get(key),
            lambda key=key: key_value.peek(key),
            lambda key=key: key_value.set(key, b"v"),
            lambda key=key: key_value.set_if(key, b"v", expected=None),
            lambda key=key: key_value.delete(key),
            lambda key=key: key_value.write([(b"ok", b"v"), (key, b"v")]),
            lambda key=key: key_value.write([(b"ok", b"v")], [key]),
            lambda key=key: key_value.write([(b"ok", b"v")], expected={key: None}),
            lambda key=key: key_value.put_columns([b"ok", key], [b"v", b"v"]),
        ):
            with pytest.raises(InvalidRequest):
                call()
        with key_value.snapshot() as snapshot:
            with pytest.raises(InvalidRequest):
                snapshot.get(key)
            with pytest.raises(InvalidRequest):
                snapshot.get_many([b"ok", key])
    for value in WRONG_VALUES:
        for call in (
            lambda value=value: key_value.set(b"ok", value),
            lambda value=value: key_value.set_if(b"ok", value, expected=None),
            lambda value=value: key_value.write([(b"ok", value)]),
            lambda value=value: key_value.put_columns([b"ok", b"ok2"], [b"v", value]),
        ):
            with pytest.raises(InvalidRequest):
                call()
    assert content(key_value) == {}


def test_mistaken_arguments_are_refused(key_value: KeyValue) -> None:
    """Columns of unequal length, one key instead of several, ends that are text, and too much at once."""
    half = b"v" * VALUE_BYTES_MAX
    with key_value.snapshot() as snapshot:
        for call, kind in (
            (lambda: key_value.put_columns([b"a", b"b"], [b"1"]), "unequal_lengths"),
            (lambda: key_value.put_columns(b"a", [b"1"]), "wrong_type"),
            (lambda: key_value.write(deletes=b"ab"), "wrong_type"),
            (lambda: snapshot.scan("a"), "wrong_type"),  # type: ignore[arg-type]
            (lambda: snapshot.scan_arrow(None, 7), "wrong_type"),  # type: ignore[arg-type]
            (lambda: snapshot.scan(b"k" * (BOUND_BYTES_MAX + 1)), "oversized_key"),
            (lambda: snapshot.scan_arrow(None, b"k" * (BOUND_BYTES_MAX + 1)), "oversized_key"),
            (lambda: snapshot.get_many(b"ab"), "wrong_type"),
            (
                lambda: key_value.write([(b"%d" % n, half) for n in range(WRITE_BYTES_MAX // VALUE_BYTES_MAX + 1)]),
                "oversized_write",
            ),
        ):
            with raises(InvalidRequest, kind):
                call()
    assert content(key_value) == {}


def test_the_largest_there_may_be(key_value: KeyValue) -> None:
    """The longest key, which no compression makes shorter, and the longest value are kept as they are."""
    rng = random.Random(3)
    key, value = rng.randbytes(KEY_BYTES_MAX), rng.randbytes(VALUE_BYTES_MAX)
    key_value.write([(key, value)], expected={key: None})
    assert key_value.get(key) == value
    with key_value.snapshot() as snapshot:
        assert rows_of(snapshot, key, key + b"\x00") == {key: value}
