"""The order of rows is exact, whatever the keys are."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from lakebed.lsm.sort import KeyColumn, sort_rows


def rows_of(keys: list[bytes], sequences: list[int]) -> pa.RecordBatch:
    """Rows with these keys and sequences."""
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "sequence": pa.array(sequences, pa.uint64())})


def check(keys: list[bytes], sequences: list[int]) -> None:
    """Sorted is what Python's own comparison says."""
    order = sort_rows(rows_of(keys, sequences))
    result = range(len(keys)) if order is None else order.tolist()
    expected = sorted(range(len(keys)), key=lambda i: (keys[i], -sequences[i]))
    assert [(keys[i], sequences[i]) for i in result] == [(keys[i], sequences[i]) for i in expected]


@pytest.mark.parametrize(
    "keys",
    [
        [b"b", b"a", b"a\0", b"a\0\0", b"", b"\0", b"a\0\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0"],
        [b"12345678", b"1234567", b"12345678\0", b"123456789", b"12345677\xff"],
        [b"common prefix of many bytes " + tail for tail in (b"", b"\0", b"zz", b"z", b"a", b"\xff" * 9)],
        [b"same"] * 9,
        [bytes([255 - i]) * 40 for i in range(200)],
    ],
)
def test_hard_keys(keys: list[bytes]) -> None:
    """Prefixes of one another, trailing zero bytes, common beginnings and equal keys are in order."""
    check(keys, list(range(1, len(keys) + 1)))
    check(keys[::-1], list(range(1, len(keys) + 1)))


def test_random_keys() -> None:
    """Any alphabet, length, common prefix and range of sequences."""
    rng = random.Random(1)
    for _ in range(400):
        count, longest = rng.randrange(60), rng.choice([1, 3, 8, 9, 17, 40])
        alphabet = rng.choice([b"\0", b"\0a", b"ab\xff", bytes(range(256))])
        prefix = rng.choice([b"", b"user:", b"0123456789abcdef"])
        keys = [prefix + bytes(rng.choices(alphabet, k=rng.randrange(longest + 1))) for _ in range(count)]
        check(keys, rng.sample(range(10 ** rng.choice([3, 18])), count))


def test_sequences_up_to_the_last() -> None:
    """The largest sequences are not taken for small ones."""
    check([b"k"] * 4, [2**64 - 1, 0, 2**63, 1])


@pytest.mark.parametrize("strays", [0, 1, 5, 60, 500])
def test_keys_written_in_one_run(strays: int) -> None:
    """With the keys as Python has them the order is the same, whatever was written before, within and behind a run."""
    rng = random.Random(strays)
    for count in (2, 40, 1_000, 5_000):
        keys = [b"staging/0123456789abcdef/lake/one/%06d" % number for number in range(count)]
        for _ in range(strays):
            stray = rng.choice(
                [*keys[:2], b"branch/main", b"zz", b"staging/0123456789abcdef/lake/one/%06d" % rng.randrange(count)]
            )
            keys.insert(rng.choice([0, rng.randrange(len(keys)), len(keys)]), stray)
        order = sort_rows(rows_of(keys, list(range(7, 7 + len(keys)))), log=keys)
        expected = sorted(range(len(keys)), key=lambda i: (keys[i], -i))
        assert (list(range(len(keys))) if order is None else order.tolist()) == expected
        assert strays or order is None


def test_sorted_rows_stay() -> None:
    """Rows that are sorted already, as after writes in the order of keys, are recognized without sorting."""
    assert sort_rows(rows_of([b"user%09d" % i for i in range(100)], list(range(100)))) is None
    assert sort_rows(rows_of([], [])) is None
    assert sort_rows(rows_of([b"k", b"k"], [1, 2])) is not None


def test_slices_are_read_where_they_lie() -> None:
    """A slice of a batch sorts by its own keys, not by those before it."""
    keys = [b"zz", b"yy", b"b", b"a\0", b"a", b"xx"]
    part = rows_of(keys, list(range(6))).slice(2, 3)
    order = sort_rows(part)
    assert order is not None
    assert np.asarray(part.column("key"))[order].tolist() == [b"a", b"a\0", b"b"]


def test_lower_bound_counts_smaller_keys() -> None:
    """Finding agrees with counting, in whole columns and in slices."""
    keys = sorted([b"", b"a", b"a\0", b"ab", b"b", b"c" * 20, b"d"])
    column = pa.array(keys, pa.binary())
    for start in range(len(keys)):
        part = KeyColumn(column.slice(start))
        for key in [*keys, b"a\0\0", b"\xff", b"bb"]:
            assert part.lower_bound(key) == sum(item < key for item in keys[start:])
    assert KeyColumn(pa.array([], pa.binary())).lower_bound(b"a") == 0
