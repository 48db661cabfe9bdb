"""Byte strings of different lengths as numpy arrays, without a Python loop over them. Pure.

Owns: the primitives that the codecs of rows, hashes and manifests use. A byte string is a (start, length) pair into a
`uint8` buffer. Invariant: a buffer passed to `words_at` has at least eight bytes of padding after the last byte used
(`padded` adds them), because whole words are read and masked afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_WORD_BYTES = 8
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(_WORD_BYTES)] + [2**64 - 1], dtype=np.uint64)
"""Masks by `count`: each keeps the lowest `count` bytes of a little-endian word."""


def pad(buffer: Bytes) -> Bytes:
    """A copy of `buffer`, followed by eight zero bytes."""
    copy = np.empty(len(buffer) + _WORD_BYTES, dtype=np.uint8)
    copy[: len(buffer)] = buffer
    copy[len(buffer) :] = 0
    return copy


def words_at(buffer: Bytes, starts: I64, lengths: I64 | None = None) -> U64:
    """The little-endian 8-byte words at any byte positions of a padded buffer.

    Args:
        starts: positions, each at most ``len(buffer) - 8``.
        lengths: how many bytes of each word to keep; the rest is zeroed. Below 0 counts as 0, above 8 as 8. None: whole
            words.
    """
    windows: U64 = np.ndarray((max(len(buffer) - 7, 0),), dtype="<u8", buffer=buffer.data, strides=(1,))
    words: U64 = windows[starts]
    return words if lengths is None else words & _LOW_BYTES[np.clip(lengths, 0, _WORD_BYTES)]


def _positions(starts: I64, lengths: I64) -> I64:
    """Position of every byte of every string, string by string."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


def gather_bytes(buffer: Bytes, starts: I64, lengths: I64) -> Bytes:
    """The bytes of the strings, contiguous and in order.

    Strings in ascending order in the buffer (those of consecutive rows or records) are copied by Arrow, one `memcpy`
    each; others byte by byte, through an index of eight times their size.
    """
    ends = starts + lengths
    if len(starts) == 0 or np.array_equal(starts[1:], ends[:-1]):
        return buffer[int(starts[0]) : int(ends[-1])] if len(starts) else buffer[:0]
    if not (starts[1:] >= ends[:-1]).all():
        return buffer[_positions(starts, lengths)]
    # One Arrow array over the buffer: the strings, alternating with the gaps between them.
    offsets = np.empty(2 * len(starts), dtype=np.int64)
    offsets[::2], offsets[1::2] = starts, ends
    alternating = pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )
    pieces = alternating.take(pa.array(np.arange(0, len(offsets), 2)))
    total = int(lengths.sum())
    return np.frombuffer(pieces.buffers()[2], dtype=np.uint8, count=total) if total else buffer[:0]


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """True where a value is present."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    mask: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def byte_strings(array: pa.Array) -> tuple[Bytes, I64, I64]:
    """``(padded buffer, starts, lengths)`` of a string or binary array; nulls have length 0."""
    large = pa.large_binary() if pa.types.is_binary(array.type) or pa.types.is_fixed_size_binary(array.type) else None
    if not (pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)):
        array = array.cast(large or pa.large_string())
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return np.zeros(_WORD_BYTES, dtype=np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(offset_buffer, dtype="<i8", count=len(array) + 1, offset=array.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    source = np.frombuffer(data_buffer, dtype=np.uint8)[first:last] if data_buffer else np.empty(0, np.uint8)
    starts = offsets[:-1] - first
    lengths = np.diff(offsets)
    if array.null_count:
        lengths = np.where(valid_mask(array), lengths, 0)
    return pad(source), starts, lengths


def binary_array(buffer: Bytes, lengths: I64, *, mask: Any = None, text: bool = False) -> pa.Array:
    """Contiguous strings as a ``binary`` (or, with `text`, ``string``) Arrow array; `mask` is True where null.

    Raises:
        pa.ArrowInvalid: `text` and the bytes are not UTF-8.
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    validity = None if mask is None else pa.array(~mask).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(buffer))]
    array = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
    # The cast to text validates UTF-8; both casts refuse more than 2 GiB.
    return array.cast(pa.binary()) if not text else array.cast(pa.large_string()).cast(pa.string())


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array; a column of one chunk is not copied."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
