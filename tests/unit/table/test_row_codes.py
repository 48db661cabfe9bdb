"""Codes of rows: equal ones for equal rows, whether a dictionary of Python or Arrow makes them."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from lakebed.table.codec.row_codes import distinct_rows, row_codes

KEYS = ("partition", "bucket", "file_name")
SCHEMA = pa.schema([("partition", pa.binary()), ("bucket", pa.int32()), ("file_name", pa.string())])

Row = tuple[bytes, int, str]


def rows_of(count: int, rng: random.Random) -> list[Row]:
    """Few values of each column, so that rows repeat and differ in each of them."""
    return [(rng.choice([b"", b"\x00", b"x"]), rng.randint(-2, 2), rng.choice(["", "a", "b"])) for _ in range(count)]


def table_of(rows: list[Row]) -> pa.Table:
    """In two chunks."""
    halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return pa.concat_tables(
        pa.Table.from_pylist([dict(zip(KEYS, row, strict=True)) for row in half], schema=SCHEMA) for half in halves
    )


@pytest.mark.parametrize("counts", [(0,), (1,), (63, 1), (63, 2), (64,), (65,), (0, 65), (40, 40, 0), (30, 3, 400)])
def test_equal_rows_have_equal_codes(counts: tuple[int, ...]) -> None:
    """Of one table or of several, few or many."""
    rng = random.Random(str(counts))
    lists = [rows_of(count, rng) for count in counts]
    codes = row_codes(KEYS, *map(table_of, lists))
    assert [len(each) for each in codes] == list(counts)
    code_of: dict[Row, Any] = {}
    for row, code in zip(chain(*lists), chain(*(each.tolist() for each in codes)), strict=True):
        assert code_of.setdefault(row, code) == code
    assert len(set(code_of.values())) == len(code_of)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 500])
def test_distinct_rows(count: int) -> None:
    """Each once, and every row's position names it."""
    rows = rows_of(count, random.Random(count))
    distinct, numbers = distinct_rows(KEYS, table_of(rows))
    assert sorted(distinct) == sorted(set(rows))
    assert [distinct[number] for number in numbers.tolist()] == rows
