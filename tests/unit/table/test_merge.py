"""Merging: the order of keys, and rows grouped by key."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import UnsupportedFormat
from lakebed.table.engines.merge import encode_keys, group_by_key, is_strictly_increasing

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


def test_groups_are_ordered_by_key_and_age() -> None:
    """Rows come by key, those of one key by sequence number, equal numbers and rows without numbers by position."""
    runs = [np.array([5, 1, 5], np.int64), np.array([3, 1], np.int64)]
    by_position = group_by_key(runs)
    assert by_position.order.tolist() == [1, 4, 3, 0, 2]
    assert by_position.is_last.tolist() == [False, True, True, False, True]
    assert by_position.last.tolist() == [4, 3, 2]
    sequences = [np.array([9, 4, 8], np.int64), np.array([0, 4], np.int64)]
    assert group_by_key(runs, sequences=sequences).order.tolist() == [1, 4, 3, 2, 0]


def test_groups_of_rows_that_stand_elsewhere() -> None:
    """Groups of a selection of rows are groups of the rows selected from."""
    groups = group_by_key([np.array([7, 2], np.int64)])
    assert groups.at(None) is groups
    assert groups.at(np.array([10, 20], np.int64)).last.tolist() == [20, 10]


def test_nothing_has_no_groups() -> None:
    """No rows make no groups."""
    assert group_by_key([np.array([], np.int64)]).last.tolist() == []
