"""Minimum, maximum and null count of columns, for manifests. Pure.

Owns: how statistics are computed, shortened and merged.

Invariants:
- A bound is null when it is unknown: all values are null, the type is nested, or the values are floats with NaN,
  bytes of 0x80 and above, which other engines order differently, or texts that are not UTF-8.
- A shortened bound is still a bound: the minimum is a prefix, the maximum a prefix with its last character raised.
- A bound that is unknown for rows with values is unknown for every set of rows that contains them.
- A minimum of zero is -0.0 and a maximum of zero is 0.0, as Parquet requires, so that readers that order -0.0 below 0.0
  find both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows, encode_plain_rows, encode_rows
from lakebed.table.model.model import DataField, Stats
from lakebed.table.model.types import arrow_type, parse_type

TRUNCATED_LENGTH: Final = 16
"""Characters (bytes) kept of string (binary) bounds by default: option ``metadata.stats-mode`` = truncate(16)."""

EMPTY_STATS: Final = Stats(EMPTY_ROW, EMPTY_ROW, ())


def compute_stats(table: pa.Table, fields: Sequence[DataField], *, truncate: int | None = TRUNCATED_LENGTH) -> Stats:
    """Statistics of some columns of a table.

    Args:
        table: has a column of every field's name.
        fields: in the order of the resulting rows.
        truncate: characters kept of string and binary bounds; None: whole (keys need exact bounds).

    Returns:
        Bounds as BinaryRows of `fields`, null counts in the same order.
    """
    if not fields:
        return EMPTY_STATS
    bounds, null_counts = [], []
    for field in fields:
        column = table.column(field.name)
        minimum, maximum = _bounds(column, field.type)
        if truncate is not None:
            minimum, maximum = shorten_bounds(minimum, maximum, truncate)
        bounds.append((minimum, maximum))
        null_counts.append(column.null_count)
    types = [field.type for field in fields]
    rows = encode_plain_rows(list(zip(*bounds, strict=True)), types)
    if rows is None:
        columns = [pa.array(ends, arrow_type(text)) for ends, text in zip(bounds, types, strict=True)]
        rows = encode_rows(columns, types).to_pylist()
    min_values, max_values = rows
    return Stats(min_values, max_values, tuple(null_counts))


def stats_of_mode(table: pa.Table, fields: Sequence[DataField], *, mode: str) -> Stats:
    """`compute_stats` in a mode of the option ``metadata.stats-mode``: counts, full or truncate(length)."""
    if mode == "counts" and fields:
        null_bounds = [pa.nulls(2, arrow_type(field.type)) for field in fields]
        low, high = encode_rows(null_bounds, [field.type for field in fields]).to_pylist()
        return Stats(low, high, tuple(table.column(field.name).null_count for field in fields))
    length = int(mode.removeprefix("truncate(").removesuffix(")")) if mode.startswith("truncate(") else None
    return compute_stats(table, fields, truncate=length)


def _bounds(column: pa.ChunkedArray, type_text: str) -> tuple[object, object]:
    data_type = parse_type(type_text)
    if data_type.is_nested or data_type.root in ("VARIANT", "BLOB") or column.null_count == len(column):
        return None, None
    values = column if column.type == arrow_type(type_text) else column.cast(arrow_type(type_text))
    if pa.types.is_binary(values.type) and has_high_byte(values):
        # The Java implementation compares bytes as signed numbers. With such bounds it would skip matching rows.
        return None, None
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return None, None
    extremes = pc.min_max(values)
    if pa.types.is_floating(values.type):
        return sign_zeros(extremes["min"].as_py(), extremes["max"].as_py())
    if pa.types.is_temporal(values.type):
        # Python's datetime has neither nanoseconds nor years above 9999, so these stay Arrow scalars.
        return extremes["min"], extremes["max"]
    try:
        return extremes["min"].as_py(), extremes["max"].as_py()
    except UnicodeDecodeError:  # other writers store such texts; lakebed refuses them
        return None, None


def sign_zeros(minimum: float, maximum: float) -> tuple[float, float]:
    """The bounds with the signs that include both zeros; Arrow returns the first zero it finds."""
    return (-0.0 if minimum == 0 else minimum), (0.0 if maximum == 0 else maximum)


def has_high_byte(values: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a byte of 0x80 or more occurs in bytes or texts. Cost: 0.03 ns a byte."""
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        _, offsets, body = chunk.buffers()
        if body is None:
            continue
        ends = np.frombuffer(offsets, np.int32, count=chunk.offset + len(chunk) + 1)
        used_bytes = np.frombuffer(body, np.int8)[ends[chunk.offset] : ends[-1]]
        if used_bytes.size and used_bytes.min() < 0:
            return True
    return False


def shorten_bounds(minimum: object, maximum: object, length: int) -> tuple[object, object]:
    """The bounds with texts and bytes cut to a length; a cut maximum is raised, or None where that cannot be done."""
    if isinstance(minimum, str | bytes):
        minimum = minimum[:length]
    if isinstance(maximum, str) and len(maximum) > length:
        return minimum, _raise_text(maximum[:length])
    if isinstance(maximum, bytes) and len(maximum) > length:
        return minimum, _raise_bytes(maximum[:length])
    return minimum, maximum


def _raise_text(prefix: str) -> str | None:
    """The smallest text, not longer than the prefix, above every text with this prefix; None if there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000
        if code <= 0x10FFFF:
            return prefix[:index] + chr(code)
    return None


def _raise_bytes(prefix: bytes) -> bytes | None:
    for index in range(len(prefix) - 1, -1, -1):
        if prefix[index] < 0x7F:  # a higher byte is negative where bytes are compared as signed numbers
            return prefix[:index] + bytes([prefix[index] + 1])
    return None


def merge_stats(parts: Sequence[Stats], row_counts: Sequence[int], fields: Sequence[DataField]) -> Stats:
    """Statistics of the union of some sets of rows.

    Args:
        parts: the statistics of each set, over `fields`, already shortened; at least one.
        row_counts: the rows in each set, in the same order.
        fields: the columns, in the order of the statistics.

    A bound of the result is null when it is null in a set that has values of the column. Null counts are summed;
    unknown ones make the sum unknown.
    """
    if len(parts) == 1 or not fields:
        return parts[0]
    types = [field.type for field in fields]
    counts = [part.null_counts or (None,) * len(fields) for part in parts]
    ends = []
    for name in ("min", "max"):
        rows = pa.array([getattr(part, f"{name}_values") for part in parts], pa.binary())
        ends.append(
            [
                _merge_bound(bounds, name, [row[position] for row in counts], row_counts)
                for position, bounds in enumerate(decode_rows(rows, types))
            ]
        )
    bounds = [pa.concat_arrays([low, high]) for low, high in zip(*ends, strict=True)]
    min_values, max_values = encode_rows(bounds, types).to_pylist()
    columns = zip(*counts, strict=True)
    summed = tuple(None if None in column else sum(c for c in column if c is not None) for column in columns)
    return Stats(min_values, max_values, summed)


def _merge_bound(bounds: pa.Array, name: str, null_counts: Sequence[int | None], row_counts: Sequence[int]) -> pa.Array:
    """The least or greatest of some bounds, as an array of one; null when a set with values has no bound."""
    no_bound = pa.nulls(1, bounds.type)
    for is_known, nulls, rows in zip(bounds.is_valid().to_pylist(), null_counts, row_counts, strict=True):
        if not is_known and nulls != rows:
            return no_bound
    if bounds.null_count == len(bounds):
        return no_bound
    low, high = (pc.min_max(bounds)[end] for end in ("min", "max"))
    if pa.types.is_floating(bounds.type):
        lowest, highest = sign_zeros(low.as_py(), high.as_py())
        low, high = pa.scalar(lowest, bounds.type), pa.scalar(highest, bounds.type)
    return pa.array([low if name == "min" else high], bounds.type)
