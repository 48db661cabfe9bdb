"""A block: rows that are stored, checked, cached and read together, as one Arrow record batch.

Owns: the bytes of a block (one IPC record batch message of `ROW_SCHEMA`, whose schema message is not repeated in the
file) and finding a key in a decoded one. Invariants: rows are sorted by (key ascending, sequence descending); a block
is immutable, and so is its batch, of which slices are views.

Finding bisects over the offsets of the keys: rows do not become Python objects but for those that are returned.
Does not know: files, indexes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption
from lakebed.lsm.model import ROW_SCHEMA, Kind, Row

__all__ = [
    "CONTINUES",
    "PLAIN",
    "TOMBSTONES_ONLY",
    "Block",
    "BlockEntry",
    "decode_blocks",
    "encode_blocks",
    "keys_of",
    "offsets_of",
]

PLAIN: Final = 1
"""Flag of a block: only PUT, no row ends by itself, each key once in the whole file. On disk: DO NOT CHANGE."""
TOMBSTONES_ONLY: Final = 2
"""Flag of a block: only DELETE. On disk: DO NOT CHANGE."""
CONTINUES: Final = 4
"""Flag of a block: its first key may be the last key of the block before. On disk: DO NOT CHANGE."""

_SCHEMA_MESSAGE: Final = ROW_SCHEMA.serialize().to_pybytes()
"""Stands before the messages of blocks while they are encoded and decoded; not stored."""

# One core: a block is far too small to be worth waking the pool of threads that Arrow would use for its columns.
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)

_PYTHON_BYTES_OF_BLOCK: Final = 2048
"""What the objects around one block cost: batch, columns, buffers, views."""

_MERGE: Final = int(Kind.MERGE)


class BlockEntry(NamedTuple):
    """What the index of a file says of a block."""

    offset: int
    length: int
    row_count: int
    checksum: int
    """xxh3-64 of its bytes, seeded with its offset."""
    min_sequence: int
    max_sequence: int
    flags: int


class _Point(NamedTuple):
    """Views for finding single rows, made when a block is first searched."""

    rows: range
    key_at: Callable[[int], bytes]
    sequences: memoryview
    kinds: memoryview
    value_offsets: memoryview
    values: memoryview
    expires: memoryview
    ends: bytes
    """One byte a row: whether `expires` holds for it. Empty when no row of the block ends by itself."""


class Block:
    """A decoded block, or a run of rows of one.

    Attributes:
        batch: the rows, of `ROW_SCHEMA`, sorted.
        flags: `PLAIN`, `TOMBSTONES_ONLY`, `CONTINUES`; of the whole block, so true of its runs of rows too.
        min_sequence, max_sequence: bounds of the sequences in the whole block, inclusive.
    """

    __slots__ = ("_point", "batch", "flags", "max_sequence", "min_sequence")

    def __init__(self, batch: pa.RecordBatch, *, flags: int, min_sequence: int, max_sequence: int) -> None:
        self.batch = batch
        self.flags = flags
        self.min_sequence = min_sequence
        self.max_sequence = max_sequence
        self._point: _Point | None = None

    @property
    def plain(self) -> bool:
        """Only PUT, no row ends by itself, each key once in the whole file."""
        return self.flags & PLAIN != 0

    @property
    def tombstones_only(self) -> bool:
        """Only DELETE."""
        return self.flags & TOMBSTONES_ONLY != 0

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.batch.num_rows)

    @property
    def size_bytes(self) -> int:
        """What it holds in memory, the copy of its keys included that searching makes."""
        keys = self.batch.column(0).buffers()[2]
        return int(self.batch.get_total_buffer_size()) + (keys.size if keys else 0) + _PYTHON_BYTES_OF_BLOCK

    def slice(self, start: int, end: int) -> Block:
        """Rows [start, end), without a copy."""
        if start == 0 and end == self.batch.num_rows:
            return self
        return Block(
            self.batch.slice(start, end - start),
            flags=self.flags,
            min_sequence=self.min_sequence,
            max_sequence=self.max_sequence,
        )

    def find(self, key: bytes) -> int:
        """Position of the first row whose key is `key` or greater; the row count when there is none."""
        point = self._point or self._make_point()
        return bisect_left(point.rows, key, key=point.key_at)

    def rows_of(self, key: bytes, *, sequence: int | None = None) -> tuple[list[Row], bool]:
        """Rows of one key, newest first, down to the first that is no MERGE.

        Args:
            sequence: rows above it are passed over; None: none is.

        Returns:
            The rows, and whether more of them may stand in the next block: this one ended before that first row.
        """
        point = self._point or self._make_point()
        rows, key_at, sequences, kinds, value_offsets, values, expires, ends = point
        position = bisect_left(rows, key, key=key_at)
        found: list[Row] = []
        count = len(rows)
        while position < count:
            if key_at(position) != key:
                return found, False
            number = sequences[position]
            if sequence is None or number <= sequence:
                kind = kinds[position]
                value = bytes(values[value_offsets[position] : value_offsets[position + 1]])
                found.append(Row(key, number, kind, value, expires[position] if ends and ends[position] else None))
                if kind != _MERGE:
                    return found, False
            position += 1
        return found, True

    def _make_point(self) -> _Point:
        """The views, kept for the next search. Two threads may both make them: they are equal, and one stays."""
        keys, sequences, kinds, values, expires = self.batch.columns
        text, key_offsets = _letters(keys)
        value_buffer = values.buffers()[2]
        ends = b""
        if not self.flags & (PLAIN | TOMBSTONES_ONLY) and expires.null_count < len(expires):
            ends = np.asarray(expires.is_valid()).tobytes()
        self._point = point = _Point(
            range(len(keys)),
            lambda row: text[key_offsets[row] : key_offsets[row + 1]],
            _numbers(sequences, "Q"),
            _numbers(kinds, "B"),
            offsets_of(values).data,
            memoryview(value_buffer) if value_buffer else memoryview(b""),
            _numbers(expires, "q"),
            ends,
        )
        return point


def offsets_of(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each element of an array begins in its data buffer, and where the last ends: a view, one longer."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def keys_of(array: pa.BinaryArray) -> list[bytes]:
    """The elements of an array without nulls, as Python bytes; about 50 ns each, where `to_pylist` takes 250."""
    text, offsets = _letters(array)
    return [text[start:end] for start, end in pairwise(offsets.tolist())]


def _letters(array: pa.BinaryArray) -> tuple[bytes, memoryview]:
    """The elements of an array one after the other, copied, and where each begins there, and where the last ends."""
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - offsets[0]
    return (array.buffers()[2].slice(first, last - first).to_pybytes() if last > first else b""), offsets.data


def _numbers(array: pa.Array, code: Literal["Q", "q", "B"]) -> memoryview:
    """The elements of an array of numbers: what stands under a null is anything."""
    view: memoryview = memoryview(array.buffers()[1]).cast(code)
    return view[array.offset : array.offset + len(array)]


def encode_blocks(batch: pa.RecordBatch, *, ends: Sequence[int], compression: str | None) -> list[memoryview]:
    """The bytes of neighbouring blocks.

    Args:
        batch: rows of `ROW_SCHEMA`, sorted.
        ends: the row before which each block ends, ascending; the last is the batch's row count.
        compression: what Arrow calls it: ``lz4``, ``zstd`` or None.
    """
    sink = pa.BufferOutputStream()
    places = [len(_SCHEMA_MESSAGE)]
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    writer = pa.ipc.new_stream(sink, ROW_SCHEMA, options=options)
    start = 0
    for end in ends:
        writer.write_batch(batch.slice(start, end - start))
        places.append(sink.tell())
        start = end
    stream = memoryview(sink.getvalue()).cast("B")  # Arrow calls its bytes signed
    assert stream[: places[0]] == _SCHEMA_MESSAGE, "Arrow wrote another schema message than it tells of"
    return [stream[start:end] for start, end in pairwise(places)]


def decode_blocks(window: memoryview, *, entries: Sequence[BlockEntry], path: str) -> list[Block]:
    """Check and decode neighbouring blocks. Their batches do not hold on to `window`.

    Args:
        window: the bytes of exactly these blocks.
        entries: what the index says of each, in the order of the file.

    Raises:
        Corruption: they are not what was written.
    """
    base = entries[0].offset
    for entry in entries:
        place = entry.offset - base
        if xxh3_64_intdigest(window[place : place + entry.length], seed=entry.offset) != entry.checksum:
            raise _damaged(path, entry, "its checksum is wrong")
    blocks: list[Block] = []
    stream = pa.py_buffer(b"".join((_SCHEMA_MESSAGE, window)))
    try:
        with pa.ipc.open_stream(stream, options=_READ_OPTIONS) as reader:
            for entry in entries:
                batch = reader.read_next_batch()
                if batch.num_rows != entry.row_count:
                    raise _damaged(path, entry, f"it has {batch.num_rows} rows, and the index says {entry.row_count}")
                blocks.append(
                    Block(batch, flags=entry.flags, min_sequence=entry.min_sequence, max_sequence=entry.max_sequence)
                )
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise _damaged(path, entries[len(blocks)], f"it cannot be decoded ({error})") from error
    return blocks


def _damaged(path: str, entry: BlockEntry, what: str) -> Corruption:
    return Corruption(
        f"The block at byte {entry.offset:,} of {path} is damaged: {what}.", path=path, offset=entry.offset
    )
