"""BinaryRow: the encoding of partitions, keys and statistics in manifests, vectorised. Pure.

Layout (DO NOT CHANGE: on disk, shared with other clients)::

    arity          int32 big-endian
    header         ((arity + 8 + 63) // 64) * 8 bytes: byte 0 the row kind (0), then one null bit a field from bit 8 on
    slots          8 bytes a field, little-endian
    variable part  whole 8-byte words

A slot holds one of these:

- the value itself: booleans and integers sign-cut to their width, floats, DATE as days, TIME as milliseconds, DECIMAL
  of at most 18 digits as unscaled int64, TIMESTAMP of precision <= 3 as milliseconds;
- at most 7 bytes of a string, with ``0x80 | length`` in the last byte;
- ``offset << 32 | length`` of a longer string;
- ``offset << 32 | nanoseconds of the millisecond`` of a finer timestamp, whose milliseconds are at the offset;
- zero for a null, without a variable part.

Offsets count from the header's first byte. A DECIMAL above 18 digits is stored as big-endian two's complement in 16
bytes. Nested types are encoded as null only: they are never keys and have no statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import Corruption, InvalidRequest
from lakebed.table.codec.ragged import (
    I64,
    U64,
    Bytes,
    binary_array,
    byte_strings,
    gather_bytes,
    pad,
    valid_mask,
    words_at,
)
from lakebed.table.model.types import Type, arrow_type, parse_type

ARITY_BYTES: Final = 4
INLINE_BYTES_MAX: Final = 7
COMPACT_DECIMAL_DIGITS_MAX: Final = 18
COMPACT_TIMESTAMP_PRECISION_MAX: Final = 3
_DECIMAL_TAIL_BYTES: Final = 16
_STRING_ROOTS: Final = ("STRING", "CHAR", "VARCHAR")
_BYTES_ROOTS: Final = ("BYTES", "BINARY", "VARBINARY")
_DTYPE: Final = {
    "TINYINT": "<i1",
    "SMALLINT": "<i2",
    "INT": "<i4",
    "DATE": "<i4",
    "TIME": "<i4",
    "BIGINT": "<i8",
    "FLOAT": "<f4",
    "DOUBLE": "<f8",
}
_PLAIN: Final = {
    "TINYINT": struct.Struct("<b7x"),
    "SMALLINT": struct.Struct("<h6x"),
    "INT": struct.Struct("<i4x"),
    "BIGINT": struct.Struct("<q"),
    "FLOAT": struct.Struct("<f4x"),
    "DOUBLE": struct.Struct("<d"),
}
"""The slots of numbers."""
_PLAIN_ROOTS: Final = {*_PLAIN, *_STRING_ROOTS, *_BYTES_ROOTS}
_PLACE: Final = struct.Struct("<II")
_TICKS_PER_MILLI: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
EMPTY_ROW: Final = bytes(12)
"""The row without fields: arity 0 and an empty header."""


def header_bytes(arity: int) -> int:
    """Bytes of the row kind and the null bits."""
    return (arity + 8 + 63) // 64 * 8


@dataclass(frozen=True, slots=True)
class Slots:
    """One encoded column, before rows are assembled. All arrays have one element a row."""

    words: U64
    """The slot, without the offset of a variable part."""
    valid: npt.NDArray[np.bool_] | None
    """Which values are not null; None: all."""
    tail_lengths: I64 | None = None
    """Bytes of the variable part, multiples of 8, 0 where inline or null; None: no row has one."""
    tail_buffer: Bytes | None = None
    """Padded buffer with the bytes of the variable parts."""
    tail_starts: I64 | None = None
    tail_bytes: I64 | None = None
    """Bytes used; the rest of the variable part is zero."""

    def tail_words(self, rows: I64, word_index: int) -> U64:
        """Word number `word_index` of the variable parts of some rows."""
        assert self.tail_buffer is not None
        assert self.tail_starts is not None
        assert self.tail_bytes is not None
        bytes_left = self.tail_bytes[rows] - 8 * word_index
        # A decimal's part is longer than its bytes: do not read past the buffer for words that are zero anyway.
        starts = np.where(bytes_left > 0, self.tail_starts[rows] + 8 * word_index, 0)
        return words_at(self.tail_buffer, starts, bytes_left)


def slots_of(column: pa.Array | pa.ChunkedArray, type_text: str) -> Slots:
    """One column in BinaryRow form.

    Args:
        column: values; cast to the type's Arrow type when it has another.

    Raises `InvalidRequest`: values of a nested type that are not null, or values that do not fit the type.
    """
    data_type = parse_type(type_text)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if data_type.is_nested or data_type.root in ("VARIANT", "BLOB"):
        if array.null_count != len(array):
            raise InvalidRequest(f"A column of type {type_text} cannot be part of a key.", kind="nested_key")
        return Slots(np.zeros(len(array), np.uint64), np.zeros(len(array), np.bool_))
    if array.type != arrow_type(type_text):
        try:
            array = array.cast(arrow_type(type_text))
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"Values of type {array.type} do not fit {type_text}: {error}.", kind="schema_mismatch"
            ) from error
    valid = None if array.null_count == 0 else valid_mask(array)
    if data_type.root in _STRING_ROOTS or data_type.root in _BYTES_ROOTS:
        return _string_slots(array, valid)
    if data_type.root == "DECIMAL":
        return _decimal_slots(array, valid, data_type)
    if data_type.root.startswith("TIMESTAMP"):
        return _timestamp_slots(array, valid, data_type)
    if data_type.root == "BOOLEAN":
        return Slots(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), valid)
    values = _numbers(array, _DTYPE[data_type.root])
    if values.dtype.itemsize == 8:
        words = values.view(np.uint64)
    else:
        words = values.view(f"<u{values.dtype.itemsize}").astype(np.uint64)
    return Slots(_zero_nulls(words, valid), valid)


def _numbers(array: pa.Array, dtype: str) -> npt.NDArray[Any]:
    """The value buffer of a fixed-width array; values of nulls are arbitrary."""
    width = np.dtype(dtype).itemsize
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * width)


def _zero_nulls(words: U64, valid: npt.NDArray[np.bool_] | None) -> U64:
    return words if valid is None else np.where(valid, words, np.uint64(0))


def _string_slots(array: pa.Array, valid: npt.NDArray[np.bool_] | None) -> Slots:
    buffer, starts, lengths = byte_strings(array)
    inline = lengths <= INLINE_BYTES_MAX
    words = words_at(buffer, starts, lengths) | ((np.uint64(0x80) | lengths.astype(np.uint64)) << np.uint64(56))
    if inline.all():
        return Slots(_zero_nulls(words, valid), valid)
    words = np.where(inline, words, lengths.astype(np.uint64))
    tail = np.where(inline, 0, (lengths + 7) & ~7)
    return Slots(_zero_nulls(words, valid), valid, tail, buffer, starts, lengths)


def _decimal_slots(array: pa.Array, valid: npt.NDArray[np.bool_] | None, data_type: Type) -> Slots:
    halves = (
        _numbers(array, "<u8")
        if len(array) == 0
        else np.frombuffer(array.buffers()[1], dtype="<u8", count=2 * len(array), offset=array.offset * 16)
    )
    if (data_type.precision or 0) <= COMPACT_DECIMAL_DIGITS_MAX:
        return Slots(_zero_nulls(np.ascontiguousarray(halves[::2]), valid), valid)
    big_endian = halves.view(np.uint8).reshape(-1, 16)[:, ::-1]
    sign = np.where(big_endian[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
    # Shortest two's complement: drop leading sign bytes while the next byte still carries the sign in its top bit.
    droppable = (big_endian[:, :-1] == sign[:, None]) & ((big_endian[:, 1:] ^ sign[:, None]) < 0x80)
    dropped_counts = np.cumprod(droppable, axis=1).sum(axis=1).astype(np.int64)
    lengths = 16 - dropped_counts
    rows = np.arange(len(array), dtype=np.int64)
    tail = np.full(len(array), _DECIMAL_TAIL_BYTES, np.int64)
    if valid is not None:
        lengths, tail = np.where(valid, lengths, 0), np.where(valid, tail, 0)
    buffer = pad(np.ascontiguousarray(big_endian).reshape(-1))
    return Slots(lengths.astype(np.uint64), valid, tail, buffer, rows * 16 + dropped_counts, lengths)


def _timestamp_slots(array: pa.Array, valid: npt.NDArray[np.bool_] | None, data_type: Type) -> Slots:
    ticks = _numbers(array, "<i8")
    if valid is not None:
        ticks = np.where(valid, ticks, 0)
    unit = array.type.unit
    if (data_type.precision or 0) <= COMPACT_TIMESTAMP_PRECISION_MAX:
        millis = ticks * 1000 if unit == "s" else ticks
        return Slots(np.ascontiguousarray(millis).view(np.uint64), valid)
    millis, rest = np.divmod(ticks, _TICKS_PER_MILLI[unit])
    nanos = rest * (1_000_000 // _TICKS_PER_MILLI[unit])
    tail = np.full(len(array), 8, np.int64) if valid is None else np.where(valid, 8, 0)
    starts = np.arange(len(array), dtype=np.int64) * 8
    buffer = pad(np.ascontiguousarray(millis).view(np.uint8))
    return Slots(nanos.astype(np.uint64), valid, tail, buffer, starts, tail)


def encode_rows(columns: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[str]) -> pa.Array:
    """One BinaryRow for each row of some columns.

    Args:
        columns: equally long; at least one (a table without partitions has `EMPTY_ROW`).

    Returns:
        ``binary`` array without nulls, in row order.

    Raises `InvalidRequest`: a value does not fit its type, or is of a nested type.
    """
    parts = [slots_of(column, text) for column, text in zip(columns, types, strict=True)]
    count, arity = len(parts[0].words), len(parts)
    fixed_bytes = header_bytes(arity) + 8 * arity
    lengths = np.full(count, ARITY_BYTES + fixed_bytes, dtype=np.int64)
    fixed_part = np.zeros((count, ARITY_BYTES + fixed_bytes), dtype=np.uint8)
    fixed_part[:, :ARITY_BYTES] = np.frombuffer(arity.to_bytes(4, "big"), np.uint8)
    offsets_in_row = []
    for index, part in enumerate(parts):
        words = part.words
        offsets_in_row.append(lengths - ARITY_BYTES)
        if part.tail_lengths is not None:
            shifted = (lengths - ARITY_BYTES).astype(np.uint64) << np.uint64(32)
            words = np.where(part.tail_lengths > 0, words | shifted, words)
            lengths = lengths + part.tail_lengths
        start = ARITY_BYTES + header_bytes(arity) + 8 * index
        fixed_part[:, start : start + 8] = np.ascontiguousarray(words).view(np.uint8).reshape(count, 8)
        if part.valid is not None:
            bit = index + 8
            fixed_part[~part.valid, ARITY_BYTES + bit // 8] |= np.uint8(1 << bit % 8)
    if all(part.tail_lengths is None for part in parts):
        return binary_array(fixed_part.reshape(-1), lengths)
    return binary_array(_with_tails(fixed_part, parts, lengths, offsets_in_row), lengths)


def encode_plain_rows(rows: Sequence[Sequence[Any]], types: Sequence[str]) -> list[bytes] | None:
    """As `encode_rows`, for a few rows of Python values, in a tenth of the fixed cost of arrays.

    Args:
        rows: for each type a value that it can have, or None.

    Returns:
        A BinaryRow for each row; None: some value is not an integer, float, text or bytes.
    """
    roots = [parse_type(text).root for text in types]
    other_indices = [index for index, root in enumerate(roots) if root not in _PLAIN_ROOTS]
    if any(row[index] is not None for row in rows for index in other_indices):
        return None
    return [_encode_plain_row(row, roots) for row in rows]


def _encode_plain_row(values: Sequence[Any], roots: Sequence[str]) -> bytes:
    header, slots, tails = bytearray(header_bytes(len(roots))), bytearray(), bytearray()
    tails_start = len(header) + 8 * len(roots)
    for index, (value, root) in enumerate(zip(values, roots, strict=True)):
        if value is None:
            header[(index + 8) // 8] |= 1 << index % 8
            slots += bytes(8)
        elif root in _PLAIN:
            slots += _PLAIN[root].pack(value)
        else:
            content: bytes = value.encode() if isinstance(value, str) else value
            if len(content) <= INLINE_BYTES_MAX:
                slots += content.ljust(7, b"\0") + bytes([0x80 | len(content)])
            else:
                slots += _PLACE.pack(len(content), tails_start + len(tails))
                tails += content.ljust(-len(content) // 8 * -8, b"\0")
    return b"".join((len(roots).to_bytes(ARITY_BYTES, "big"), header, slots, tails))


def _with_tails(fixed: Bytes, parts: list[Slots], lengths: I64, offsets_in_row: list[I64]) -> Bytes:
    """Assemble rows of different lengths; every piece is a whole number of 4-byte words."""
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()) // 4, dtype="<u4")
    fixed_words = np.ascontiguousarray(fixed).view("<u4")
    for word in range(fixed_words.shape[1]):
        out[starts // 4 + word] = fixed_words[:, word]
    for part, offset in zip(parts, offsets_in_row, strict=True):
        if part.tail_lengths is None:
            continue
        rows, word_index = np.flatnonzero(part.tail_lengths), 0
        while len(rows):
            words = part.tail_words(rows, word_index)
            places = (starts[rows] + ARITY_BYTES + offset[rows] + 8 * word_index) // 4
            out[places] = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            out[places + 1] = (words >> np.uint64(32)).astype(np.uint32)
            word_index += 1
            rows = rows[part.tail_lengths[rows] > 8 * word_index]
    return out.view(np.uint8)


def decode_rows(rows: pa.Array, types: Sequence[str]) -> list[pa.Array]:
    """The columns of some BinaryRows; inverse of `encode_rows`.

    Raises `Corruption`: a row has another arity or points outside itself. The caller adds the path.
    """
    return decode_columns(rows, types, range(len(types)))


def decode_columns(rows: pa.Array, types: Sequence[str], indices: Sequence[int]) -> list[pa.Array]:
    """Some columns of BinaryRows that all have `types`; see `decode_rows`. Cost grows with ``len(indices)`` only."""
    if not len(indices):
        return []
    buffer, starts, lengths = byte_strings(rows)
    arity = len(types)
    fixed_bytes = header_bytes(arity) + 8 * arity
    if len(rows) and int(lengths.min()) < ARITY_BYTES + fixed_bytes:
        raise Corruption(f"A binary row of {arity} fields has only {int(lengths.min())} bytes.")
    arities = (words_at(buffer, starts, np.full(len(starts), 4)) & np.uint64(0xFFFFFFFF)).astype("<u4").byteswap()
    if len(rows) and not (arities == arity).all():
        raise Corruption(f"A binary row has {int(arities[arities != arity][0])} fields, not {arity}.")
    return [_decode_column(buffer, starts, lengths, index, arity, types[index]) for index in indices]


def _decode_column(buffer: Bytes, starts: I64, lengths: I64, index: int, arity: int, text: str) -> pa.Array:
    data_type, target = parse_type(text), arrow_type(text)
    bodies = starts + ARITY_BYTES
    bit = index + 8
    null = (buffer[bodies + bit // 8] & (1 << bit % 8)) != 0
    mask = null if null.any() else None
    words = words_at(buffer, bodies + header_bytes(arity) + 8 * index)
    if data_type.is_nested or data_type.root in ("VARIANT", "BLOB"):
        return pa.nulls(len(starts), target)
    if data_type.root in _STRING_ROOTS or data_type.root in _BYTES_ROOTS:
        slot_starts = bodies + header_bytes(arity) + 8 * index
        inline = words >= np.uint64(1 << 63)
        size = np.where(inline, (words >> np.uint64(56)) & np.uint64(0x7F), words & np.uint64(0xFFFFFFFF))
        sizes = np.where(null, 0, size.astype(np.int64))
        offsets = (words >> np.uint64(32)).astype(np.int64)
        places = np.where(inline | null, slot_starts, bodies + offsets)
        _check_inside(places, sizes, starts + lengths)
        if len(inline) and int(sizes[inline].max(initial=0)) > INLINE_BYTES_MAX:
            raise Corruption("A binary row has an inline string of more than 7 bytes.")
        content = gather_bytes(buffer, places, sizes)
        try:
            return binary_array(content, sizes, mask=mask, text=data_type.root in _STRING_ROOTS)
        except pa.ArrowInvalid as error:
            raise Corruption(f"A binary row has a string that is not UTF-8: {error}.") from error
    if data_type.root == "DECIMAL":
        return _decode_decimal(buffer, bodies, starts + lengths, words, null, data_type)
    if data_type.root.startswith("TIMESTAMP"):
        return _decode_timestamp(buffer, bodies, starts + lengths, words, null, data_type)
    if data_type.root == "BOOLEAN":
        return pa.array((words & np.uint64(1)).astype(np.bool_), mask=mask)
    dtype = np.dtype(_DTYPE[data_type.root])
    values = np.ascontiguousarray(words).view(dtype)[:: 8 // dtype.itemsize]
    return pa.array(np.ascontiguousarray(values), mask=mask).cast(target)


def _check_inside(places: I64, sizes: I64, ends: I64) -> None:
    if len(places) and ((places + sizes > ends) | (places < 0)).any():
        raise Corruption("A binary row points outside itself.")


def _decode_decimal(buffer: Bytes, bodies: I64, ends: I64, words: U64, null: Any, data_type: Type) -> pa.Array:
    low, high = words, np.where(words >> np.uint64(63), np.uint64(2**64 - 1), np.uint64(0))
    if (data_type.precision or 0) > COMPACT_DECIMAL_DIGITS_MAX:
        sizes = np.where(null, 0, (words & np.uint64(0xFFFFFFFF)).astype(np.int64))
        places = np.where(null, bodies, bodies + (words >> np.uint64(32)).astype(np.int64))
        _check_inside(places, sizes, ends)
        if len(sizes) and int(sizes.max()) > _DECIMAL_TAIL_BYTES:
            raise Corruption("A binary row has a decimal of more than 16 bytes.")
        sign = np.where((sizes > 0) & (buffer[places] >= 0x80), 0xFF, 0).astype(np.uint8)
        digits = np.repeat(sign[:, None], 16, axis=1)
        for byte in range(_DECIMAL_TAIL_BYTES):
            rows = np.flatnonzero(sizes > byte)
            digits[rows, byte] = buffer[places[rows] + sizes[rows] - 1 - byte]
        halves = digits.reshape(-1).view("<u8")
    else:
        halves = np.stack([low, high], axis=1).reshape(-1)
    validity = pa.array(~null).buffers()[1]
    target = pa.decimal128(data_type.precision, data_type.scale)
    return pa.Array.from_buffers(target, len(words), [validity, pa.py_buffer(np.ascontiguousarray(halves))])


def _decode_timestamp(buffer: Bytes, bodies: I64, ends: I64, words: U64, null: Any, data_type: Type) -> pa.Array:
    target = arrow_type(data_type.text)
    if (data_type.precision or 0) <= COMPACT_TIMESTAMP_PRECISION_MAX:
        millis = words.view(np.int64)
        ticks = millis // 1000 if target.unit == "s" else millis
    else:
        places = np.where(null, bodies, bodies + (words >> np.uint64(32)).astype(np.int64))
        _check_inside(places, np.where(null, 0, 8), ends)
        millis = words_at(buffer, places).view(np.int64)
        factor = _TICKS_PER_MILLI[target.unit]
        nanos = (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ticks = millis * factor + nanos // (1_000_000 // factor)
    return pa.array(np.where(null, 0, ticks), type=pa.int64(), mask=null).cast(target)
