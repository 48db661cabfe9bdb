"""A block: rows that are cached and scanned together, as one Arrow record batch.

Owns: finding a key in a decoded block, and the bytes of a block in files of version 1 (one IPC record batch message of
`ROW_SCHEMA`, without its schema message, compressed as a whole; they are read, and no longer written). Since version 2
a block is stored in pages (`lakebed.lsm.page`).

Invariants: rows are sorted by (key ascending, sequence descending). A block is immutable, and so is its batch, of which
slices are views.

A search bisects over the offsets of the keys, so only rows that are returned become Python objects. The second search
of a block makes Python objects of every sixteenth key. Later searches bisect over these first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.lsm.columns import flags_of, mask_of, numbers_of
from lakebed.lsm.key_batch import WORD_BYTES, KeyBatch, count_common, cut, words_at
from lakebed.lsm.model import ROW_SCHEMA, ROWS_DECIDE, Kind, Row, RowsDecide

PLAIN: Final = 1
"""Flag of a block: only PUT, no row has a TTL, each key once in the whole file. On disk: DO NOT CHANGE."""
TOMBSTONES_ONLY: Final = 2
"""Flag of a block: only DELETE. On disk: DO NOT CHANGE."""
CONTINUES: Final = 4
"""Flag of a block: its first key may be the last key of the block before. On disk: DO NOT CHANGE."""

Compression = Literal["lz4", "zstd"]
"""How blocks may be compressed: an LZ4 block without frame, or a Zstandard frame."""

NOT_COMPRESSED: Final = 0
"""The codec of uncompressed bytes. On disk: DO NOT CHANGE."""
CODEC_NUMBERS: Final[dict[Compression, int]] = {"lz4": 1, "zstd": 2}  # on disk: DO NOT CHANGE
CODECS: Final = {1: pa.Codec("lz4_raw"), 2: pa.Codec("zstd")}

_PYTHON_BYTES_OF_BLOCK: Final = 4096
"""Memory of a block in addition to its columns: the message's metadata, batch, buffers, views."""

_MARK_ROWS: Final = 16
"""Rows from one mark to the next."""
_PYTHON_BYTES_OF_MARK: Final = 48
"""Memory of a mark in addition to its bytes: a bytes object and its slot in a list."""

_FEW_KEYS: Final = 16
"""Up to this count, keys are searched one by one, because setting up arrays would take longer."""

_PUT: Final = int(Kind.PUT)
_MERGE: Final = int(Kind.MERGE)
_NOTHING: Final = memoryview(b"")
_new_row: Final = tuple.__new__


class BlockEntry(NamedTuple):
    """The entry of a block in the index of a file."""

    offset: int
    length: int
    row_count: int
    checksum: int
    """xxh3-64 of its bytes, seeded with its offset."""
    min_sequence: int
    max_sequence: int
    flags: int
    codec: int
    """0: not compressed, 1: LZ4 block, 2: Zstandard frame."""
    raw_length: int
    """Bytes before compression."""


class _Point(NamedTuple):
    """Views for finding single rows, made when a block is first searched."""

    rows: range
    text: bytes
    """The keys, one after another."""
    offsets: memoryview
    """The offset at which each key begins in `text`, and finally the end of the last one."""
    key_at: Callable[[int], bytes]
    sequences: memoryview
    kinds: memoryview
    value_offsets: memoryview
    values: memoryview
    expires: memoryview
    ends: bytes
    """One byte for each row: whether `expires` is valid for it. Both are empty if no row of the block has a TTL."""


class Block:
    """A decoded block, or a run of rows of one.

    Attributes:
        batch: the rows, of `ROW_SCHEMA`, sorted.
        flags: `PLAIN`, `TOMBSTONES_ONLY`, `CONTINUES`; of the whole block, so true of its runs of rows too.
        min_sequence, max_sequence: bounds of the sequences in the whole block, inclusive.
    """

    __slots__ = ("_first_row", "_marks", "_point", "_words", "batch", "flags", "max_sequence", "min_sequence")

    def __init__(self, batch: pa.RecordBatch, *, flags: int, min_sequence: int, max_sequence: int) -> None:
        self.batch = batch
        self.flags = flags
        self.min_sequence = min_sequence
        self.max_sequence = max_sequence
        self._first_row = 0  # where the rows begin in the buffers of the batch
        self._point: _Point | None = None
        self._marks: list[bytes] | None = None
        self._words: tuple[int, npt.NDArray[np.uint64]] | None = None
        """The length of the prefix that all keys share, and the 8 bytes of each key after it as one number."""

    @property
    def plain(self) -> bool:
        """Whether there are only PUT rows without a TTL, and each key occurs once in the whole file."""
        return self.flags & PLAIN != 0

    @property
    def tombstones_only(self) -> bool:
        """Whether there are only DELETE rows."""
        return self.flags & TOMBSTONES_ONLY != 0

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.batch.num_rows)

    @property
    def size_bytes(self) -> int:
        """Memory of the block, including what searches make of it: the copy of its keys, marks and words."""
        point = self._point or self._make_point()
        key_bytes, row_count = len(point.text), len(point.rows)
        marks_bytes = (key_bytes + row_count * _PYTHON_BYTES_OF_MARK) // _MARK_ROWS
        made_bytes = key_bytes + marks_bytes + WORD_BYTES * row_count
        return int(self.batch.get_total_buffer_size()) + made_bytes + _PYTHON_BYTES_OF_BLOCK

    def slice(self, start: int, end: int) -> Block:
        """Return rows [start, end), without a copy."""
        if start == 0 and end == self.batch.num_rows:
            return self
        block = Block(
            self.batch.slice(start, end - start),
            flags=self.flags,
            min_sequence=self.min_sequence,
            max_sequence=self.max_sequence,
        )
        block._first_row = self._first_row + start
        return block

    def through(self, sequence: int) -> Block:
        """Return the rows whose sequences are at most `sequence`; a copy if any is larger."""
        if self.max_sequence <= sequence:
            return self
        visible_rows = self.batch.filter(mask_of(numbers_of(self.batch.column(1)) <= sequence))
        return Block(visible_rows, flags=self.flags, min_sequence=self.min_sequence, max_sequence=sequence)

    def find(self, key: bytes) -> int:
        """Return the position of the first row whose key is `key` or greater; the row count if there is none."""
        point = self._point or self._make_point()
        return self._seek(key, point)

    def find_value(self, key: bytes, *, sequence: int | None = None) -> bytes | RowsDecide | None:
        """Return the value of a key whose only row is a PUT that does not expire.

        Args:
            sequence: as for `rows_of`.

        Returns:
            None if the key is not here; `ROWS_DECIDE` if the caller has to use `rows_of`.

        Cost: about 0.8 us; 20 us for a block that is searched for the first time.
        """
        if not self.flags & PLAIN or (sequence is not None and self.max_sequence > sequence):
            return ROWS_DECIDE
        point, marks = self._point or self._make_point(), self._marks
        rows, text, offsets, key_at = point[:4]
        if marks:
            # Search for the bytes of the key among the keys after a mark. This is one call; a bisection would make a
            # Python object of a key at each step.
            last = bisect_right(marks, key) * _MARK_ROWS
            first = last - _MARK_ROWS
            last = min(last, len(rows))
            place = text.find(key, offsets[first], offsets[last]) if first >= 0 else -1
            if place < 0:
                return None
            row = bisect_left(offsets, place, first, last)
            if offsets[row] != place or offsets[row + 1] - place != len(key):
                return ROWS_DECIDE
        else:
            row = self._seek(key, point)
            if row == len(rows) or key_at(row) != key:
                return None
        return point.values[point.value_offsets[row] : point.value_offsets[row + 1]].tobytes()

    def find_values(
        self, batch: KeyBatch, values: dict[bytes, bytes], *, sequence: int | None = None
    ) -> Sequence[bytes]:
        """As `find_value`, for several keys.

        Args:
            values: receives the values.

        Returns:
            The keys for which the caller has to use `rows_of`.
        """
        keys = batch.keys
        if not self.flags & PLAIN or (sequence is not None and self.max_sequence > sequence):
            return keys
        if len(keys) >= _FEW_KEYS:
            keys = self._find_by_words(batch, values)
        undecided: list[bytes] = []
        for key in keys:
            value = self.find_value(key, sequence=sequence)
            if value is ROWS_DECIDE:
                undecided.append(key)
            elif value is not None:
                values[key] = value
        return undecided

    def _find_by_words(self, batch: KeyBatch, values: dict[bytes, bytes]) -> Sequence[bytes]:
        """Add the values of keys whose row is identified by eight of its bytes. Return the keys that are left.

        A key is not in the block if no row has its eight bytes.
        """
        point, words = self._point or self._make_point(), self._words
        if words is None:
            words = self._words = _make_words(point)
        common, numbers = words
        wanted_words = batch.words(common)
        rows = numbers.searchsorted(wanted_words)
        is_here = numbers.take(rows, mode="clip") == wanted_words
        keys_left: Sequence[bytes] = ()
        if len(numbers) > 1:
            is_tie = numbers.take(rows + 1, mode="clip") == wanted_words
            is_tie &= is_here
            if is_tie.any():
                keys_left = batch.select(is_tie.nonzero()[0]).keys
                is_here &= ~is_tie
        if not is_here.all():
            rows = rows[is_here]
            if not len(rows):
                return keys_left
            batch = batch.select(is_here.nonzero()[0])
        offsets, value_offsets = np.asarray(point.offsets), np.asarray(point.value_offsets)
        keys, next_rows = batch.keys, rows + 1
        texts = cut(point.text, offsets.take(rows), offsets.take(next_rows))
        contents = cut(point.values, value_offsets.take(rows), value_offsets.take(next_rows))
        if texts == keys:
            values.update(zip(keys, contents, strict=True))
        else:
            # A key that is not here may have the same eight bytes as another key, so compare the whole key.
            triples = zip(keys, texts, contents, strict=True)
            values.update([(key, value) for key, text, value in triples if text == key])
        return keys_left

    def rows_of(self, key: bytes, *, sequence: int | None = None) -> tuple[list[Row], bool]:
        """Return the rows of one key, newest first, down to the first that is not a MERGE.

        Args:
            sequence: newer rows are skipped; None: no row is skipped.

        Returns:
            The rows, and whether more of them may be in the next block, because this one ended before that first row.
        """
        point = self._point or self._make_point()
        rows, _, _, key_at, sequences, kinds, value_offsets, values, expires, ends = point
        position = self._seek(key, point)
        versions: list[Row] = []
        count = len(rows)
        is_plain = self.flags & PLAIN
        while position < count:
            if key_at(position) != key:
                return versions, False
            number = sequences[position]
            if is_plain and (sequence is None or number <= sequence):
                # As `Row(...)`, without its Python-level constructor, which takes a third of the time of a look-up.
                value = values[value_offsets[position] : value_offsets[position + 1]].tobytes()
                return [_new_row(Row, (key, number, _PUT, value, None))], False
            if sequence is None or number <= sequence:
                kind = kinds[position]
                value = values[value_offsets[position] : value_offsets[position + 1]].tobytes()
                end = expires[position] if ends and ends[position] else None
                versions.append(_new_row(Row, (key, number, kind, value, end)))
                if kind != _MERGE:
                    return versions, False
            position += 1
        return versions, True

    def _seek(self, key: bytes, point: _Point) -> int:
        """As `find`. The first search bisects over all rows, because it may be the only one. The second makes marks."""
        rows, marks = point.rows, self._marks
        if not marks:
            if marks is None:
                self._marks = []
                return bisect_left(rows, key, key=point.key_at)
            marks = self._make_marks()
        high = bisect_left(marks, key) * _MARK_ROWS
        # The previous mark is smaller than the key, and the mark found is not. After the last mark fewer rows follow.
        return bisect_left(rows, key, high - _MARK_ROWS + 1 if high else 0, min(high, len(rows)), key=point.key_at)

    def _make_marks(self) -> list[bytes]:
        point = self._point or self._make_point()
        self._marks = marks = list(map(point.key_at, point.rows[::_MARK_ROWS]))
        return marks

    def _make_point(self) -> _Point:
        """Make the views, and keep them. Two threads may both make them: these are equal, and one is kept."""
        batch, first = self.batch, self._first_row
        last = first + batch.num_rows
        # Get validity, offsets and content of all columns by one call. One call for each column takes five times as
        # long.
        (_, _, key_offsets, keys, _, sequences, _, kinds, _, value_offsets, values, _, expires) = (
            batch.to_struct_array().buffers()
        )
        offsets = memoryview(key_offsets).cast("i")
        start, end = offsets[first], offsets[last]
        text = keys.slice(start, end - start).to_pybytes() if end > start else b""
        if start or first:
            offsets = (np.asarray(offsets[first : last + 1]) - start).data
        ends = b""
        if not self.flags & (PLAIN | TOMBSTONES_ONLY) and batch.column(4).null_count < last - first:
            ends = flags_of(batch.column(4).is_valid()).tobytes()
        self._point = point = _Point(
            range(last - first),
            text,
            offsets,
            lambda row: text[offsets[row] : offsets[row + 1]],
            memoryview(sequences).cast("Q")[first:],
            memoryview(kinds).cast("B")[first:],
            memoryview(value_offsets).cast("i")[first:],
            memoryview(values or b""),
            memoryview(expires).cast("q")[first:] if ends else _NOTHING,
            ends,
        )
        return point


def _make_words(point: _Point) -> tuple[int, npt.NDArray[np.uint64]]:
    """Return the length of the prefix that all keys share, and `words_of` all keys after it."""
    count = len(point.rows)
    common = count_common(point.key_at(0), point.key_at(count - 1))
    offsets = np.asarray(point.offsets)[: count + 1].astype(np.int64)
    starts = offsets[:-1] + common
    return common, words_at(point.text, starts, offsets[1:] - starts)


def offsets_of(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Return a view of the offsets at which the elements of a non-empty array begin, and of the end of the last one."""
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def decode_block(body: memoryview, *, entry: BlockEntry, path: str) -> Block:
    """Check and decode a block. The result does not reference `body`.

    Args:
        entry: the entry of the block in the index.
        path: path of the file, for errors.

    Raises:
        Corruption: the bytes are not those that were written.
        UnsupportedFormat: the block was compressed in a way that this code does not know.
    """
    if xxh3_64_intdigest(body, seed=entry.offset) != entry.checksum:
        raise damage_error(path, entry.offset, "its checksum is wrong")
    try:
        if entry.codec == NOT_COMPRESSED:
            message = pa.py_buffer(body.tobytes())
        else:
            message = CODECS[entry.codec].decompress(body, entry.raw_length)
        batch = pa.ipc.read_record_batch(message, ROW_SCHEMA)
    except KeyError as error:
        raise unknown_codec_error(path, entry.offset, entry.codec) from error
    except (pa.ArrowException, OSError, EOFError) as error:
        raise damage_error(path, entry.offset, f"it cannot be decoded ({error})") from error
    if batch.num_rows != entry.row_count:
        raise damage_error(path, entry.offset, f"it has {batch.num_rows} rows, and the index says {entry.row_count}")
    return Block(batch, flags=entry.flags, min_sequence=entry.min_sequence, max_sequence=entry.max_sequence)


def damage_error(path: str, offset: int, what: str) -> Corruption:
    """Return the error for a damaged block or page that begins at `offset`."""
    return Corruption(f"The block at byte {offset:,} of {path} is damaged: {what}.", path=path, offset=offset)


def unknown_codec_error(path: str, offset: int, codec: int) -> UnsupportedFormat:
    """Return the error for bytes that a newer lakebed compressed."""
    return UnsupportedFormat(
        f"The block at byte {offset:,} of {path} is compressed with codec {codec}, which this lakebed does not know: "
        "upgrade.",
        path=path,
        offset=offset,
    )
