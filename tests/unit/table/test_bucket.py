"""Buckets: the vectorised hash is the row hash, and fast; vectors of another client are in test_golden."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.codec.binary_row import encode_rows
from lakebed.table.files.bucket import bucket_of


def bucket_of_bytes(row: bytes, bucket_count: int) -> int:
    """The definition, word by word."""
    state, words, mask = 42, row[4:], 0xFFFFFFFF
    for (word,) in struct.iter_unpack("<I", words):
        word = word * 0xCC9E2D51 & mask
        word = ((word << 15) | (word >> 17)) & mask
        state ^= word * 0x1B873593 & mask
        state = ((state << 13) | (state >> 19)) & mask
        state = (state * 5 + 0xE6546B64) & mask
    state ^= len(words)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & mask
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & mask
    state ^= state >> 16
    signed = state - 2**32 if state >= 2**31 else state
    return abs(signed) % bucket_count


def test_same_as_the_definition() -> None:
    """Several columns with nulls and long strings, over more than one block of rows."""
    count = 40_000
    numbers = pa.array(np.arange(count), mask=np.arange(count) % 7 == 0)
    texts = pa.array([None if row % 11 == 0 else "x" * (row % 40) for row in range(count)])
    types = ["BIGINT", "STRING", "INT"]
    columns = [numbers, texts, pa.array(np.arange(count, dtype=np.int32))]
    bucket = bucket_of(columns, types, bucket_count=13)
    rows = encode_rows(columns, types)
    for index in [0, 1, 7, 11, 77, 39, 32_767, 32_768, 39_999, *range(100, 400)]:
        assert bucket[index] == bucket_of_bytes(rows[index].as_py(), 13)


def test_no_key_is_handled_alone() -> None:
    """A million keys take a few calls for each block of rows, and none for each row."""
    keys = pa.array(np.arange(1_000_000))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        bucket = bucket_of([keys], ["BIGINT"], bucket_count=16)
    finally:
        sys.setprofile(None)
    assert len(bucket) == len(keys)
    assert 0 < calls < 10_000


def test_no_bucket_is_refused() -> None:
    """Zero buckets, or no key, is the caller's mistake."""
    with pytest.raises(InvalidRequest):
        bucket_of([pa.array([1])], ["BIGINT"], bucket_count=0)
    with pytest.raises(InvalidRequest):
        bucket_of([], [], bucket_count=4)


def test_no_rows() -> None:
    """No rows, no buckets."""
    assert bucket_of([pa.array([], pa.string())], ["STRING"], bucket_count=4).tolist() == []
