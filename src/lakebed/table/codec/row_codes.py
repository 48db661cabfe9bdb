"""Integer codes of rows by a few key columns: equal rows have equal codes. Pure.

Owns: `row_codes` and `distinct_rows`, which replace joins and groupings by the identity of files. Arrow's start a plan
and threads, which costs milliseconds, and a typical change has only a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IntArray = npt.NDArray[np.int64]
_PRODUCT_MAX = 1 << 62
_FEW_MAX = 64
"""Up to this many rows are numbered with a Python dictionary.

That is faster, and Arrow's dictionary takes 20 ms to load.
"""


def row_codes(columns: Sequence[str], *tables: pa.Table) -> list[IntArray]:
    """One array of codes for each table. Two rows of any of them have the same code iff all `columns` are equal.

    Args:
        columns: integers, strings or binary, without nulls.

    Cost: one hashing of every string column.
    """
    if sum(table.num_rows for table in tables) <= _FEW_MAX:
        number_of: dict[tuple[Any, ...], int] = {}
        return [_number_few(columns, table, number_of) for table in tables]
    codes: IntArray = np.zeros(sum(table.num_rows for table in tables), np.int64)
    kind_count = 1
    for name in columns:
        numbers, count = _numbers([chunk for table in tables for chunk in table.column(name).chunks])
        if kind_count * count > _PRODUCT_MAX:
            distinct, inverse = np.unique(codes, return_inverse=True)
            codes, kind_count = inverse.astype(np.int64), len(distinct)
        codes = codes * count + numbers
        kind_count *= count
    ends = np.cumsum([table.num_rows for table in tables])
    return np.split(codes, ends[:-1])


def distinct_rows(columns: Sequence[str], table: pa.Table) -> tuple[list[tuple[Any, ...]], IntArray]:
    """The distinct rows by some columns, as Python values, and for each row the position of its values among them.

    Args:
        columns: as `row_codes`.

    Cost: as `row_codes`, and for more than `_FEW_MAX` rows a sort.
    """
    if table.num_rows <= _FEW_MAX:
        number_of: dict[tuple[Any, ...], int] = {}
        numbers = _number_few(columns, table, number_of)
        return list(number_of), numbers
    (codes,) = row_codes(columns, table)
    _, firsts, numbers = np.unique(codes, return_index=True, return_inverse=True)
    distinct = table.select(columns).take(pa.array(firsts))
    return _tuples(columns, distinct), numbers


def _tuples(columns: Sequence[str], table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _number_few(columns: Sequence[str], table: pa.Table, number_of: dict[tuple[Any, ...], int]) -> IntArray:
    """The number of each row, by first appearance.

    `number_of` has the numbers of earlier rows and gets the new ones.
    """
    return np.array([number_of.setdefault(row, len(number_of)) for row in _tuples(columns, table)], np.int64)


def _numbers(chunks: list[Any]) -> tuple[IntArray, int]:
    """Distinct non-negative numbers for the distinct values of a column, and a number above all of them."""
    if not chunks:
        return np.zeros(0, np.int64), 1
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if len(array) == 0:
        return np.zeros(0, np.int64), 1
    if pa.types.is_integer(array.type):
        values = array.to_numpy().astype(np.int64)
        least = int(values.min())
        return values - least, int(values.max()) - least + 1
    numbers, distinct = number_values(array)
    return numbers, len(distinct)


def number_values(values: pa.Array) -> tuple[IntArray, pa.Array]:
    """The number of each value, and the distinct values in the order of their numbers, by first appearance.

    Args:
        values: strings or binary, without nulls.
    """
    if len(values) > _FEW_MAX:
        encoded = values.dictionary_encode()
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    number_of: dict[Any, int] = {}
    numbers = [number_of.setdefault(value, len(number_of)) for value in values.to_pylist()]
    return np.array(numbers, np.int64), pa.array(list(number_of), values.type)


def first_and_last(codes: IntArray) -> tuple[IntArray, IntArray]:
    """First and last position of each distinct code, in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]])) if len(codes) else order
    ends = np.append(starts[1:], len(codes)) - 1 if len(codes) else order
    return order[starts], order[ends]
