"""The order of keys, and rows of sorted runs grouped by key, as whole columns.

Owns: codes of keys (`encode_keys`) and the order in which a merge takes rows (`group_by_key`). The table's merge engine
decides what becomes of the rows of one key (`engines`). Pure numpy and Arrow; knows no files and no table.

Invariants:
- Keys are ordered as the table format orders them: numbers by value, strings and binaries by their bytes, columns from
  left to right, nulls first. Codes of one call preserve that order and equality across all runs of the call.
- The rows of one key are ordered by sequence number, and rows with equal numbers by their run. So callers pass runs
  oldest first. Where a table orders the rows of a key by its own columns, callers pass the numbers of
  `sequence.sequence_codes` as sequence numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import UnsupportedFormat
from lakebed.table.codec.ragged import one_array

Codes: TypeAlias = npt.NDArray[np.int64]
"""One int64 for each row; codes of one `encode_keys` call compare as their keys do."""

Positions: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

Columns: TypeAlias = Sequence["pa.ChunkedArray | pa.Array"]

CODE_SPAN_MAX = 2**62
"""Codes are combined only while their product stays below this limit, so that no intermediate code overflows int64."""


def encode_keys(runs: Sequence[Columns], *, descending: Sequence[bool] = ()) -> list[Codes]:
    """Order-preserving int64 codes of the keys of several runs.

    Args:
        runs: for each run its key columns, all runs with the same column types; any lengths.
        descending: for each column whether the order of its values is reversed; nulls come first in both orders.
            Empty: no column is reversed.

    Returns one array a run. A single integer-like key column costs nothing (the array is the column's memory). Anything
    else is ranked over all runs together, so codes of different calls are not comparable. Raises `UnsupportedFormat`:
    the type of a key column has no order (arrays, maps, rows).
    """
    if not runs:
        return []
    lengths = [len(columns[0]) for columns in runs]
    if len(runs[0]) == 1 and not any(descending) and all(columns[0].null_count == 0 for columns in runs):
        plain_codes = [_plain_codes(one_array(columns[0])) for columns in runs]
        if all(codes is not None for codes in plain_codes):
            return [codes for codes in plain_codes if codes is not None]
    combined: Codes | None = None
    span = 1
    for position in range(len(runs[0])):
        chunks = [chunk for columns in runs for chunk in _chunks(columns[position])]
        column = one_array(pa.chunked_array(chunks, type=runs[0][position].type))
        is_reversed = position < len(descending) and descending[position]
        for part, part_span in _parts_of_column(column, is_reversed=is_reversed):
            combined, span = _append_digit(combined, span, part, part_span)
    if combined is None:
        combined = np.zeros(sum(lengths), np.int64)
    return np.split(combined, np.cumsum(lengths)[:-1])


def is_strictly_increasing(codes: Codes) -> bool:
    """Whether every code is above the one before it."""
    return bool(np.all(codes[1:] > codes[:-1]))


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Rows ordered by key, the rows of one key oldest first."""

    order: Positions
    """Positions of the rows."""
    is_last: Mask
    """For each element of `order` whether the next one has another key."""

    @property
    def last(self) -> Positions:
        """The position of the newest row of every key, in key order."""
        return self.order[self.is_last]

    def at(self, positions: Positions | None) -> KeyGroups:
        """The groups after row i has become row ``positions[i]``; None: unchanged."""
        return self if positions is None else KeyGroups(positions[self.order], self.is_last)


def group_by_key(codes: Sequence[Codes], *, sequences: Sequence[Positions] | None = None) -> KeyGroups:
    """The rows of some runs by key, as positions in the concatenation of the runs.

    Args:
        codes: of the keys of each run, in any order; runs oldest first.
        sequences: in the shape of `codes`, greater for later rows of a key; equal numbers are ordered by position.
            None: only the position orders the rows.

    Cost: a stable sort of already sorted stretches, which is a merge.
    """
    together = codes[0] if len(codes) == 1 else np.concatenate(codes)
    if sequences is None:
        order = np.argsort(together, kind="stable")
    else:
        order = np.lexsort((np.concatenate(sequences), together))
    ordered_codes = together[order]
    return KeyGroups(order, np.append(ordered_codes[1:] != ordered_codes[:-1], True)[: len(ordered_codes)])


def _append_digit(combined: Codes | None, span: int, part: Codes, part_span: int) -> tuple[Codes, int]:
    """Append a less significant part to codes; parts that do not fit in 62 bits are ranked first."""
    if combined is None:
        return part, part_span
    if span * part_span >= CODE_SPAN_MAX:
        combined, span = _rank(combined)
    if span * part_span >= CODE_SPAN_MAX:
        part, part_span = _rank(part)
    return combined * np.int64(part_span) + part, span * part_span


def _rank(codes: Codes) -> tuple[Codes, int]:
    distinct, ranks = np.unique(codes, return_inverse=True)
    return ranks.astype(np.int64, copy=False), len(distinct)


def _parts_of_column(column: pa.Array, *, is_reversed: bool = False) -> list[tuple[Codes, int]]:
    """A column as non-negative int64 parts, most significant first, with the span of each."""
    validity: list[tuple[Codes, int]] = []
    if column.null_count:
        validity.append((np.asarray(column.is_valid()).astype(np.int64), 2))
        column = _fill_nulls(column)
    plain_codes = _plain_codes(column)
    if plain_codes is not None:
        parts = [_from_zero(plain_codes)]
    elif pa.types.is_decimal(column.type):
        parts = _decimal_parts(column)
    elif _is_bytes_like(column.type):
        parts = [_bytes_rank(column)]
    else:
        raise UnsupportedFormat(
            f"A key column of type {column.type} has no order; a primary key needs numbers, strings, binaries, dates "
            "or times.",
            type=str(column.type),
        )
    if is_reversed:
        parts = [(np.int64(span - 1) - part, span) for part, span in parts]
    return [*validity, *parts]


def _from_zero(codes: Codes) -> tuple[Codes, int]:
    """Shift codes so that the smallest is 0; wide ranges are ranked instead."""
    if len(codes) == 0:
        return codes, 1
    low, high = int(codes.min()), int(codes.max())
    if high - low >= CODE_SPAN_MAX:
        return _rank(codes)
    return codes - np.int64(low), high - low + 1


def _plain_codes(column: pa.Array) -> Codes | None:
    """The values as int64, if the type is stored as integers; None for other types."""
    kind = column.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        values = column.to_numpy(zero_copy_only=False)
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = column.view(pa.int32()).to_numpy()
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_date64(kind):
        values = column.view(pa.int64()).to_numpy()
    elif pa.types.is_boolean(kind):
        values = column.to_numpy(zero_copy_only=False)
    elif pa.types.is_floating(kind):
        return _float_codes(column.cast(pa.float64()).to_numpy())
    else:
        return None
    codes: Codes = values.astype(np.int64, copy=False)
    return codes


def _float_codes(values: npt.NDArray[np.float64]) -> Codes:
    """IEEE bits as ordered integers, as other clients order: -0.0 before 0.0, all NaN equal and last."""
    canonical = np.where(np.isnan(values), np.nan, values)
    bits = canonical.view(np.int64)
    codes: Codes = bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return codes


def _decimal_parts(column: pa.Array) -> list[tuple[Codes, int]]:
    """High and low half of 128-bit decimals. The low half is unsigned, so its sign bit is flipped to order it."""
    words = np.frombuffer(column.cast(pa.decimal128(38, column.type.scale)).buffers()[1], np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)] if len(words) > len(column) else words[: len(column)]
    low = words[:, 0] ^ np.int64(-(2**63))
    return [_from_zero(words[:, 1].copy()), _from_zero(low)]


def _bytes_rank(column: pa.Array) -> tuple[Codes, int]:
    """Strings and binaries by the rank of their bytes among the distinct values."""
    encoded = column.dictionary_encode()
    dictionary = encoded.dictionary
    if not pa.types.is_large_binary(dictionary.type) and not pa.types.is_binary(dictionary.type):
        dictionary = dictionary.cast(pa.large_binary())
    order = pc.sort_indices(dictionary).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order), dtype=np.int64)
    return ranks[encoded.indices.to_numpy()], max(1, len(order))


def _is_bytes_like(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _fill_nulls(column: pa.Array) -> pa.Array:
    """Fill nulls with any value of the type: the validity part already decides their order."""
    present = column.drop_null()
    filler: Any = present[0] if len(present) else None
    if filler is None:
        return pa.array(np.zeros(len(column), np.int64))
    return column.fill_null(filler)


def _chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
