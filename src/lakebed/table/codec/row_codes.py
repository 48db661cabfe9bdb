"""Integer codes of rows by a few key columns: equal rows have equal codes. Pure.

Owns: `row_codes`, which replaces joins and groupings by the identity of files. Those of Arrow start a plan and threads,
which costs milliseconds, and a usual change has a few rows.
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
"""Up to so many values are numbered by a dictionary of Python: as fast, and Arrow's takes 20 ms to load."""


def row_codes(columns: Sequence[str], *tables: pa.Table) -> list[IntArray]:
    """One array of codes a table; two rows of any of them have the same code iff all `columns` are equal.

    Args:
        columns: integers, strings or binary, without nulls.

    Cost: one hashing of every string column.
    """
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


def _numbers(chunks: list[Any]) -> tuple[IntArray, int]:
    """Distinct non-negative numbers for the distinct values of a column, and a number above all of them."""
    if not chunks:
        return np.zeros(0, np.int64), 1
    whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if len(whole) == 0:
        return np.zeros(0, np.int64), 1
    if pa.types.is_integer(whole.type):
        values = whole.to_numpy().astype(np.int64)
        least = int(values.min())
        return values - least, int(values.max()) - least + 1
    numbers, distinct = number_values(whole)
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
