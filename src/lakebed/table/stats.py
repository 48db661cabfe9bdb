"""Minimum, maximum and null count of columns, for manifests. Pure.

Owns: how statistics are computed and shortened. Invariants: a bound is null when it is unknown (all values null, a
nested type, floats with NaN, whose order other engines define differently); a shortened bound still bounds: the
minimum is a prefix, the maximum is a prefix with its last character raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.table.binary_row import EMPTY_ROW, encode_rows
from lakebed.table.model import DataField, Stats
from lakebed.table.types import arrow_type, parse_type

__all__ = ["EMPTY_STATS", "TRUNCATED_LENGTH", "compute_stats", "merge_partition_stats"]

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
            minimum, maximum = _shortened(minimum, maximum, truncate)
        bounds.append(pa.array([minimum, maximum], arrow_type(field.type)))
        null_counts.append(column.null_count)
    min_values, max_values = encode_rows(bounds, [field.type for field in fields]).to_pylist()
    return Stats(min_values, max_values, tuple(null_counts))


def _bounds(column: pa.ChunkedArray, type_text: str) -> tuple[object, object]:
    parsed = parse_type(type_text)
    if parsed.is_nested or parsed.root in ("VARIANT", "BLOB") or column.null_count == len(column):
        return None, None
    values = column if column.type == arrow_type(type_text) else column.cast(arrow_type(type_text))
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return None, None
    both = pc.min_max(values)
    if pa.types.is_timestamp(values.type):
        # Python's datetime cannot hold nanoseconds: let Arrow scalars travel.
        return both["min"], both["max"]
    return both["min"].as_py(), both["max"].as_py()


def _shortened(minimum: object, maximum: object, length: int) -> tuple[object, object]:
    if isinstance(minimum, str) and isinstance(maximum, str):
        raised = maximum if len(maximum) <= length else _raised_text(maximum[:length])
        return minimum[:length], raised
    if isinstance(minimum, bytes) and isinstance(maximum, bytes):
        raised_bytes = maximum if len(maximum) <= length else _raised_bytes(maximum[:length])
        return minimum[:length], raised_bytes
    return minimum, maximum


def _raised_text(prefix: str) -> str | None:
    """The smallest text of at most that length above every text with this prefix; None when there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000
        if code <= 0x10FFFF:
            return prefix[:index] + chr(code)
    return None


def _raised_bytes(prefix: bytes) -> bytes | None:
    for index in range(len(prefix) - 1, -1, -1):
        if prefix[index] < 0xFF:
            return prefix[:index] + bytes([prefix[index] + 1])
    return None


def merge_partition_stats(columns: Sequence[pa.Array], types: Sequence[str]) -> Stats:
    """Statistics over decoded partition values (one array a partition column): what a manifest list entry carries."""
    if not types:
        return EMPTY_STATS
    fields = [DataField(index, str(index), text) for index, text in enumerate(types)]
    return compute_stats(pa.table(list(columns), names=[field.name for field in fields]), fields, truncate=None)
