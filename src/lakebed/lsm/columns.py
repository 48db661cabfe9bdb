"""Conversions of Arrow columns from and to numpy and Python.

Arrow's own functions (`pa.array`, `pa.scalar`, `to_numpy`) load pandas if it is installed: half a second and 50 MB the
first time. The functions here do not, so a process that opens, reads and writes databases does not load it either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InternalError

_INT64, _BOOL, _BINARY = pa.int64(), pa.bool_(), pa.binary()
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
_JOINED_BYTES_MAX: Final = 1 << 20
_JOINED_COUNT: Final = 512
"""Items that are joined at once, in memory that is reused for the next ones."""


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the elements of a column of integers without nulls: a view, or a copy if there are several chunks.

    Cost: nothing.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [numbers_of(chunk) for chunk in column.chunks]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    kind, count = np.dtype(str(column.type)), len(column)
    return (
        np.frombuffer(column.buffers()[1], kind, count, kind.itemsize * column.offset) if count else np.empty(0, kind)
    )


def indices_of(places: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Return row numbers as a column, for Arrow's `take`."""
    return pa.Array.from_buffers(_INT64, len(places), [None, pa.py_buffer(np.ascontiguousarray(places))])


def mask_of(is_kept: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return which rows are kept as a column, for Arrow's `filter`."""
    return pa.Array.from_buffers(_BOOL, len(is_kept), [None, pa.py_buffer(np.packbits(is_kept, bitorder="little"))])


def ends_of(ends_ms: Sequence[int] | npt.NDArray[np.int64], is_valid: npt.NDArray[np.bool_]) -> pa.Int64Array:
    """Return the expiries of rows as a column; null where `is_valid` is False."""
    bits = np.packbits(is_valid, bitorder="little")
    ends = np.ascontiguousarray(ends_ms, np.int64)
    return pa.Array.from_buffers(_INT64, len(is_valid), [pa.py_buffer(bits), pa.py_buffer(ends)])


def column_of(items: Sequence[bytes]) -> pa.BinaryArray:
    """Return keys or values as a column. Raises `InternalError` for more than 2 GiB.

    Cost: about 0.03 us each.
    """
    count = len(items)
    lengths = list(map(len, items))
    total = sum(lengths)
    if total > _COLUMN_BYTES_MAX:
        raise InternalError("more rows were asked for than one batch can hold")
    offsets = np.zeros(count + 1, np.int32)
    try:
        np.cumsum(np.frombuffer(bytes(lengths), np.uint8), dtype=np.int32, out=offsets[1:])
    except ValueError:  # some have more than 255 bytes
        np.cumsum(np.array(lengths, np.int32), out=offsets[1:])
    return pa.Array.from_buffers(_BINARY, count, [None, pa.py_buffer(offsets), _join(items, total)])


def _join(items: Sequence[bytes], total: int) -> pa.Buffer:
    """Join all items into one buffer of `total` bytes. A large one is in memory that Arrow keeps and reuses."""
    if total <= _JOINED_BYTES_MAX:
        return pa.py_buffer(b"".join(items))
    buffer = pa.allocate_buffer(total)
    body = memoryview(buffer).cast("B")
    position = 0
    for start in range(0, len(items), _JOINED_COUNT):
        part = b"".join(items[start : start + _JOINED_COUNT])
        body[position : position + len(part)] = part
        position += len(part)
    return buffer


def mark_changes(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each element of a column without nulls whether it differs from the previous one, as the first does."""
    if len(column) < 2:
        return np.ones(len(column), np.bool_)
    changes = flags_of(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return np.concatenate([[True], changes])


def flags_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return the elements of a column of booleans without nulls."""
    flags = np.empty(len(column), np.bool_)
    position = 0
    for part in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if len(part):
            bits = np.unpackbits(np.frombuffer(part.buffers()[1], np.uint8), bitorder="little")
            flags[position : position + len(part)] = bits[part.offset : part.offset + len(part)]
            position += len(part)
    return flags


def keys_of(array: pa.BinaryArray) -> list[bytes]:
    """Return the elements of an array without nulls, as Python bytes; `to_pylist` takes 600 ns for each.

    Arrow's conversion by numpy loads pandas, so it is used only if pandas is loaded already.

    Cost: about 15 ns for each; 60 ns for elements of different lengths if pandas is not loaded.
    """
    count = len(array)
    keys: list[bytes] = []
    if not count:
        return keys
    if "pandas" in sys.modules:
        keys = array.to_numpy(zero_copy_only=False).tolist()
        return keys
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * array.offset)
    start, length = int(ends[0]), int(ends[1]) - int(ends[0])
    if length and bool((np.diff(ends) == length).all()):
        keys = np.frombuffer(content, f"V{length}", count, start).tolist()
        return keys
    text = memoryview(content or b"")[start : int(ends[-1])].tobytes()
    return [text[first:stop] for first, stop in pairwise((ends - start).tolist())]
