"""BinaryRow: bytes, both ways; damage is found."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakebed.errors import Corruption, InvalidRequest
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_columns, decode_rows, encode_rows
from worlds.binary_rows import decode_row, encode_row


def test_layout_of_a_known_row() -> None:
    """Arity, header, inline string, long string: byte for byte."""
    row = encode_row([1, "abc", "12345678", None], ["INT", "STRING", "STRING", "BIGINT"])
    assert row == (
        bytes.fromhex("00000004")
        + bytes.fromhex("0008000000000000")
        + bytes.fromhex("0100000000000000")
        + b"abc\0\0\0\0\x83"
        + bytes.fromhex("0800000028000000")
        + bytes(8)
        + b"12345678"
    )


def test_empty_row() -> None:
    """A table without partitions has the row of no fields."""
    assert encode_row([], []) == EMPTY_ROW
    assert decode_row(EMPTY_ROW, []) == ()


def test_nanoseconds_survive() -> None:
    """Timestamps of precision 9 keep every nanosecond, before 1970 too."""
    column = pa.array([-1, 1_234_567_890_123_456_789, None], pa.timestamp("ns"))
    assert decode_rows(encode_rows([column], ["TIMESTAMP(9)"]), ["TIMESTAMP(9)"])[0].equals(column)


def test_sliced_and_chunked_columns() -> None:
    """Columns that begin inside their buffers, or come in chunks, are encoded like fresh ones."""
    whole = pa.array(["zero", "one is longer than seven", None, "three", "", "five"])
    expected = encode_rows([pa.array(whole.to_pylist()[1:5])], ["STRING"])
    assert encode_rows([whole.slice(1, 4)], ["STRING"]).equals(expected)
    chunked = pa.chunked_array([whole.slice(1, 1), whole.slice(2, 3)])
    assert encode_rows([chunked], ["STRING"]).equals(expected)
    numbers = pa.array([Decimal("1.5"), Decimal("-2.5"), None]).slice(1)
    assert decode_rows(encode_rows([numbers], ["DECIMAL(25, 1)"]), ["DECIMAL(25, 1)"])[0].to_pylist() == [
        Decimal("-2.5"),
        None,
    ]


def test_negative_decimal_is_shortest_twos_complement() -> None:
    """-128 takes one byte, as Java's BigInteger writes it."""
    row = encode_row([Decimal(-128)], ["DECIMAL(30, 0)"])
    assert row[12:20] == bytes.fromhex("0100000010000000")
    assert row[20:] == b"\x80" + bytes(15)
    assert decode_row(row, ["DECIMAL(30, 0)"]) == (Decimal(-128),)


def test_some_columns_only() -> None:
    """Columns can be decoded alone, in any order."""
    rows = encode_rows([pa.array([1, 2]), pa.array(["a", "bb"])], ["BIGINT", "STRING"])
    assert [column.to_pylist() for column in decode_columns(rows, ["BIGINT", "STRING"], [1])] == [["a", "bb"]]


def test_nested_columns_are_null() -> None:
    """Nested columns have no statistics: null goes in and comes out, a value is refused."""
    nulls = pa.nulls(1, pa.list_(pa.int32()))
    assert decode_row(encode_rows([nulls], ["ARRAY<INT>"])[0].as_py(), ["ARRAY<INT>"]) == (None,)
    with pytest.raises(InvalidRequest, match="cannot be part of a key"):
        encode_row([[1]], ["ARRAY<INT>"])


@pytest.mark.parametrize(
    ("row", "types"),
    [
        (b"", ["INT"]),
        (encode_row([1], ["INT"])[:-1], ["INT"]),
        (encode_row([1], ["INT"]), ["INT", "INT"]),
        (encode_row(["a text of some length"], ["STRING"])[:-8], ["STRING"]),
        (encode_row([b"\xff\xfe"], ["BYTES"]), ["STRING"]),
        (encode_row([datetime.datetime(2020, 1, 1)], ["TIMESTAMP(6)"])[:-8], ["TIMESTAMP(6)"]),
        (encode_row([Decimal(5)], ["DECIMAL(30, 0)"])[:-16], ["DECIMAL(30, 0)"]),
    ],
)
def test_damage_is_corruption(row: bytes, types: list[str]) -> None:
    """A row that is cut, of another arity, or points outside itself is never a value."""
    with pytest.raises(Corruption):
        decode_row(row, types)


def test_misfit_is_refused() -> None:
    """A value that does not fit its type is the caller's mistake."""
    with pytest.raises(InvalidRequest, match="does not fit"):
        encode_row([2**40], ["INT"])
