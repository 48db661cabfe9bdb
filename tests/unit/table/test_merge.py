"""Merging: key order, who survives, sorting a batch."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import UnsupportedFormat
from lakebed.table.merge import encode_keys, is_strictly_increasing, merge_order, sort_unique, survivors

VALUES = {
    "int8": pa.array([-128, -1, 0, 5, 127], pa.int8()),
    "int64": pa.array([-(2**63), -1, 0, 1, 2**63 - 1], pa.int64()),
    "double": pa.array([float("-inf"), -1.5, -0.0, 0.0, 1e300, float("inf"), float("nan")], pa.float64()),
    "float": pa.array([-3.0, -0.5, 0.0, 2.0], pa.float32()),
    "string": pa.array(["", "A", "Z", "a", "aa", "ab", "é", "日本"]),
    "binary": pa.array([b"", b"\x00", b"\x00\x00", b"\x01", b"\x7f", b"\xff"]),
    "bool": pa.array([False, True]),
    "date": pa.array([datetime.date(1900, 1, 1), datetime.date(1970, 1, 1), datetime.date(2013, 5, 4)]),
    "timestamp": pa.array([-5, 0, 7], pa.timestamp("us")),
    "time": pa.array([0, 1, 86_399_999], pa.time32("ms")),
    "decimal": pa.array([decimal.Decimal(x) for x in ("-99999999999999999999.99", "-0.01", "0.00", "0.01", "1e20")],
                        pa.decimal128(38, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_codes_follow_the_order_of_every_key_type(name: str) -> None:
    """Codes of ascending values ascend strictly, for every type a key may have."""
    ordered = VALUES[name]
    (codes,) = encode_keys([[ordered]])
    assert is_strictly_increasing(codes)


@pytest.mark.parametrize("name", VALUES)
def test_codes_compare_across_runs_and_slices(name: str) -> None:
    """Equal values in different runs have equal codes, whatever the slicing and chunking of the columns."""
    ordered = VALUES[name]
    halves = pa.chunked_array([ordered.slice(0, 1), ordered.slice(1)])
    first, second = encode_keys([[halves], [ordered.slice(1)]])
    assert first[1:].tolist() == second.tolist()


def test_several_columns_order_left_to_right() -> None:
    """The first column decides, the second breaks ties, also when both ranges are too wide to pack into one number."""
    wide = pa.array([-(2**62), -(2**62), 2**62, 2**62], pa.int64())
    second = pa.array([-(2**62), 2**62, -(2**62), 2**62], pa.int64())
    third = pa.array(["x", "a", "b", "a"])
    (codes,) = encode_keys([[wide, second, third]])
    assert is_strictly_increasing(codes)


def test_nulls_come_first() -> None:
    """A null key of another client sorts before every value, as that client sorts it."""
    (codes,) = encode_keys([[pa.array([None, -5, 3], pa.int32())]])
    assert is_strictly_increasing(codes)
    (all_null,) = encode_keys([[pa.array([None, None], pa.string())]])
    assert all_null[0] == all_null[1]


def test_nested_keys_are_refused() -> None:
    """A key without an order is refused with its type, instead of being compared somehow."""
    with pytest.raises(UnsupportedFormat, match="list"):
        encode_keys([[pa.array([[1]])]])


def test_sorted_unique_batches_are_left_alone() -> None:
    """A batch already in order costs one pass and no copy."""
    assert sort_unique(np.array([1, 2, 9], np.int64)) is None
    assert sort_unique(np.array([], np.int64)) is None


def test_the_last_row_of_a_key_stays() -> None:
    """Of rows of one key in a batch the one written last is kept, and the result is in key order."""
    order = sort_unique(np.array([5, 1, 5, 3, 1], np.int64))
    assert order is not None
    assert order.tolist() == [4, 3, 2]


def test_survivors_by_age_and_by_sequence() -> None:
    """Without sequence numbers the newer run wins; with them the higher number; on a tie the later run."""
    codes = [np.array([1, 2, 3], np.int64), np.array([2, 3], np.int64)]
    by_age = survivors(codes)
    assert by_age[1] is None
    assert by_age[0] is not None
    assert by_age[0].tolist() == [True, False, False]
    sequences = [np.array([0, 9, 4], np.int64), np.array([5, 4], np.int64)]
    old, new = survivors(codes, sequences=sequences)
    assert old is not None
    assert old.tolist() == [True, True, False]
    assert new is not None
    assert new.tolist() == [False, True]


def test_disjoint_runs_need_no_masks() -> None:
    """Runs whose ranges do not touch are not looked into."""
    assert survivors([np.array([1, 2], np.int64), np.array([3], np.int64), np.array([], np.int64)]) == [None] * 3


def test_merge_order_is_sorted_and_unique() -> None:
    """The ordered merge yields each key once, in order."""
    codes = [np.array([1, 4, 6], np.int64), np.array([2, 4], np.int64), np.array([4], np.int64)]
    assert merge_order(codes).tolist() == [0, 3, 5, 2]
