"""Merging sorted runs of keyed rows, as whole columns.

Owns: the order of keys (`encode_keys`), who survives when several runs hold one key (`survivors`, `merge_order`), and
the sort of a batch about to be written (`sort_unique`). Pure numpy and Arrow; knows no files and no table.

Invariants:
- Keys are ordered as the table format orders them: numbers by value, strings and binaries by their bytes, columns from
  left to right, nulls first. Codes of one call preserve that order and equality across all runs of the call.
- Within a run keys are strictly increasing (a data file holds a key once, the files of a run do not overlap).
- Of the rows of one key the one with the highest sequence number survives; on a tie the row of the later run. So
  callers pass runs oldest first. Where a table orders the rows of a key by columns of its own, callers pass the numbers
  of `sequence.sequence_codes` as sequence numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import UnsupportedFormat

__all__ = ["Codes", "Columns", "encode_keys", "is_strictly_increasing", "merge_order", "sort_unique", "survivors"]

Codes: TypeAlias = npt.NDArray[np.int64]
"""One int64 a row; comparing codes of one `encode_keys` call compares keys."""

Columns: TypeAlias = Sequence["pa.ChunkedArray | pa.Array"]

CODE_SPAN_MAX = 2**62
"""Mixed-radix packing stops below this product, so that no intermediate code overflows int64."""


def encode_keys(runs: Sequence[Columns], *, descending: Sequence[bool] = ()) -> list[Codes]:
    """Order-preserving int64 codes of the keys of several runs.

    Args:
        runs: for each run its key columns, all runs with the same column types; any lengths.
        descending: for each column whether the order of its values is reversed; nulls come first in both orders.
            Empty: no column is reversed.

    Returns:
        One array a run. A single integer-like key column costs nothing (it is the column's own memory); anything else
        is ranked over all runs together, so codes of different calls must not be compared.

    Raises:
        UnsupportedFormat: a key column has a type that has no order (arrays, maps, rows).
    """
    if not runs:
        return []
    lengths = [len(columns[0]) for columns in runs]
    if len(runs[0]) == 1 and not any(descending) and all(columns[0].null_count == 0 for columns in runs):
        plain = [_plain_codes(_one_array(columns[0])) for columns in runs]
        if all(codes is not None for codes in plain):
            return [codes for codes in plain if codes is not None]
    combined: Codes | None = None
    span = 1
    for position in range(len(runs[0])):
        chunks = [chunk for columns in runs for chunk in _chunks(columns[position])]
        column = _one_array(pa.chunked_array(chunks, type=runs[0][position].type))
        is_reversed = position < len(descending) and descending[position]
        for part, part_span in _ordered_parts(column, is_reversed=is_reversed):
            combined, span = _append_digit(combined, span, part, part_span)
    if combined is None:
        combined = np.zeros(sum(lengths), np.int64)
    return np.split(combined, np.cumsum(lengths)[:-1])


def is_strictly_increasing(codes: Codes) -> bool:
    """Whether every code is above the one before it."""
    return bool(np.all(codes[1:] > codes[:-1]))


def sort_unique(codes: Codes, *, sequences: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64] | None:
    """Positions that sort a batch and keep the newest row of every key; None when the batch is already so.

    Args:
        codes: of the keys.
        sequences: the higher, the newer the row, and the last one of equals; None: the last row of a key is the newest.

    Cost: one pass when sorted, else a stable sort (which is one pass over each ascending stretch and their merging).
    """
    if is_strictly_increasing(codes):
        return None
    order = np.argsort(codes, kind="stable") if sequences is None else np.lexsort((sequences, codes))
    ordered = codes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    kept: npt.NDArray[np.int64] = order[is_last]
    return kept


def survivors(
    codes: Sequence[Codes], *, sequences: Sequence[npt.NDArray[np.int64]] | None = None
) -> list[npt.NDArray[np.bool_] | None]:
    """Which rows of each run survive the merge, leaving every run in its own order.

    The cheapest merge for a reader who needs no order across runs: a small run is looked up in a big one by binary
    search, nothing is sorted or moved.

    Args:
        codes: of each run, strictly increasing; runs oldest first.
        sequences: sequence numbers in the shape of `codes`; None when each run is newer than all runs before it.

    Returns:
        For each run a mask of its rows, or None when all its rows survive.
    """
    masks: list[npt.NDArray[np.bool_] | None] = [None] * len(codes)
    for newer in range(1, len(codes)):
        for older in range(newer):
            _mark_losers(codes, sequences, masks, older=older, newer=newer)
    return masks


def merge_order(
    codes: Sequence[Codes], *, sequences: Sequence[npt.NDArray[np.int64]] | None = None
) -> npt.NDArray[np.int64]:
    """Positions in the concatenation of all runs, in key order, one a key: the row that survives.

    Args and ties as `survivors`. Cost: a stable sort of already sorted stretches, that is a merge.
    """
    together = np.concatenate(codes)
    if sequences is None:
        order = np.argsort(together, kind="stable")
    else:
        order = np.lexsort((np.concatenate(sequences), together))
    ordered = together[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    winners: npt.NDArray[np.int64] = order[is_last]
    return winners


def _mark_losers(
    codes: Sequence[Codes],
    sequences: Sequence[npt.NDArray[np.int64]] | None,
    masks: list[npt.NDArray[np.bool_] | None],
    *,
    older: int,
    newer: int,
) -> None:
    """Mask out the losing row of every key that two runs share."""
    old, new = codes[older], codes[newer]
    if len(old) == 0 or len(new) == 0 or old[-1] < new[0] or new[-1] < old[0]:
        return
    big, small = (older, newer) if len(old) >= len(new) else (newer, older)
    at_big = np.searchsorted(codes[big], codes[small])
    at_big[at_big == len(codes[big])] = 0
    at_small = np.flatnonzero(codes[big][at_big] == codes[small])
    if len(at_small) == 0:
        return
    shared = {small: at_small, big: at_big[at_small]}
    if sequences is None:
        _drop(masks, codes, older, shared[older])
        return
    newer_wins = sequences[newer][shared[newer]] >= sequences[older][shared[older]]
    _drop(masks, codes, older, shared[older][newer_wins])
    _drop(masks, codes, newer, shared[newer][~newer_wins])


def _drop(
    masks: list[npt.NDArray[np.bool_] | None], codes: Sequence[Codes], run: int, positions: npt.NDArray[np.int64]
) -> None:
    if len(positions) == 0:
        return
    mask = masks[run]
    if mask is None:
        mask = masks[run] = np.ones(len(codes[run]), np.bool_)
    mask[positions] = False


def _append_digit(combined: Codes | None, span: int, part: Codes, part_span: int) -> tuple[Codes, int]:
    """Combine codes with a less significant part: packed while it fits in 62 bits, else ranked anew first."""
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


def _ordered_parts(column: pa.Array, *, is_reversed: bool = False) -> list[tuple[Codes, int]]:
    """A column as one or more non-negative int64 parts (most significant first) with the span of each."""
    validity: list[tuple[Codes, int]] = []
    if column.null_count:
        validity.append((np.asarray(column.is_valid()).astype(np.int64), 2))
        column = _fill_nulls(column)
    plain = _plain_codes(column)
    if plain is not None:
        parts = [_from_zero(plain)]
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
    """The column's own values as int64 when they are integers underneath; None for other types."""
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
    """IEEE bits as ordered integers: -0.0 before 0.0, every NaN equal and last, as the format's other clients order."""
    canonical = np.where(np.isnan(values), np.nan, values)
    bits = canonical.view(np.int64)
    codes: Codes = bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return codes


def _decimal_parts(column: pa.Array) -> list[tuple[Codes, int]]:
    """High and low half of 128-bit decimals; the low half is unsigned, so its sign bit is flipped to order it."""
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
    """Any value of the type in place of nulls: the validity part before it already decides their order."""
    present = column.drop_null()
    filler: Any = present[0] if len(present) else None
    if filler is None:
        return pa.array(np.zeros(len(column), np.int64))
    return column.fill_null(filler)


def _chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
