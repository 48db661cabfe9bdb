"""The memtable: the newest rows, as a log of columns with an index.

Owns:
- `keys` and `values`, two lists in the order of writing. Row ``i`` has sequence ``first_sequence + i``. The value None
  is a tombstone.
- `index`, from a key to its newest row.
- `older`, from a row to the previous row of the same key.
- `special`, from a row that is an operand or has an expiry to (kind, expires_at_ms).

So a put is two appends and a dict store, a slice of the log is one Arrow batch, and the sorted form is one sort, kept
in growing pieces.

Invariants: one writer at a time (the tree's lock); readers need no lock. The parts of a row are stored in the order
special, older, value, key, index. So a reader that finds a row by the index finds all of it, and the number of rows is
the number of keys. Rows never change; `take_back` hides some that never became durable. Knows no visibility beyond
"written up to sequence s", no operators, no files.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InternalError
from lakebed.lsm.columns import column_of, ends_of, indices_of, mask_of, numbers_of
from lakebed.lsm.model import ROW_SCHEMA, Kind, Row
from lakebed.lsm.sort import KeyColumn, sort_rows

ROW_OVERHEAD_BYTES: Final = 192
"""Memory of a row in addition to its bytes: two bytes objects (33 each), two list slots, a dict entry, an int."""

TAIL_ROW_COUNT_MAX: Final = 256
"""Most of the newest rows that scans search one by one. More are sorted into a piece."""

_SORTED_BY_ARROW_MIN: Final = 4096
"""From this number of keys on, an Arrow batch of them is sorted faster than a list."""

_PARTS_MAX: Final = 32
"""Most parts into which two sorted pieces are cut to be interleaved without sorting."""

PIECE_BYTES_MAX: Final = 1 << 30
"""Largest sorted piece, because 2 GiB is the limit of Arrow's offsets."""

PUT: Final = int(Kind.PUT)
DELETE: Final = int(Kind.DELETE)
MERGE: Final = int(Kind.MERGE)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, end) of the log, sorted."""

    start: int
    end: int
    rows: pa.RecordBatch
    keys: KeyColumn


class Memtable:
    """Rows in memory. A caller may inline the hot path of a put, in the order of the attributes above."""

    __slots__ = (
        "_hidden",
        "_ordered",
        "_pieces",
        "first_sequence",
        "index",
        "keys",
        "last_wal_id",
        "older",
        "payload_bytes",
        "special",
        "values",
    )

    def __init__(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.index: dict[bytes, int] = {}
        self.older: dict[int, int] = {}
        self.special: dict[int, tuple[int, int | None]] = {}
        self.payload_bytes = 0
        """Bytes of keys and values."""
        self.last_wal_id: int | None = None
        """Last log object whose rows are in this table. For the store above; the engine does not read it."""
        self._hidden: tuple[tuple[int, int], ...] = ()
        """Ranges of rows that were taken back, ascending."""
        self._ordered: tuple[int, list[bytes], list[bytes]] = (0, [], [])
        """The count of rows whose keys are ordered, and the two lists of keys, which are never changed."""
        self._pieces: tuple[tuple[tuple[int, int], ...], tuple[Piece, ...]] = ((), ())
        """The ranges that were hidden when the pieces were made, and the sorted pieces."""

    def put(self, key: bytes, value: bytes, expires_at_ms: int | None = None) -> None:
        """Write a PUT row, which gets the next sequence. Cost: about 0.25 us."""
        keys = self.keys
        row = len(keys)
        index = self.index
        try:
            if expires_at_ms is not None:
                self.special[row] = (PUT, expires_at_ms)
            if key in index:
                self.older[row] = index[key]
            self.values.append(value)
            keys.append(key)
            index[key] = row
            self.payload_bytes += len(key) + len(value)
        except BaseException:  # an interrupt, or no memory
            self._mend(row)
            raise

    def delete(self, key: bytes) -> None:
        """Write a tombstone."""
        self.extend([key], [None])

    def merge(self, key: bytes, operand: bytes) -> None:
        """Write an operand, for the database's operator."""
        self.extend([key], [operand], [MERGE])

    def extend(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        kinds: Sequence[int] | None = None,
        expires: Sequence[int | None] | None = None,
    ) -> None:
        """Write many rows, with the next sequences in their order. Cost: about 0.2 us for each row of a new key.

        Args:
            keys: may repeat.
            values: one for each key; None is a tombstone.
            kinds: a `Kind` for each row; None: tombstones for values None, otherwise puts.
            expires: Unix milliseconds or None for each row; None: no row expires.
        """
        base, count = len(self.keys), len(keys)
        if any(len(column) != count for column in (values, kinds, expires) if column is not None):
            raise InternalError("columns of rows to write differ in length")
        try:
            if kinds is not None:
                values = [None if kind == DELETE else value for kind, value in zip(kinds, values, strict=True)]
                self.special.update({base + i: (MERGE, None) for i, kind in enumerate(kinds) if kind == MERGE})
            if expires is not None:
                for i, expires_at_ms in enumerate(expires):
                    if expires_at_ms is not None and values[i] is not None:
                        self.special[base + i] = (PUT if kinds is None else int(kinds[i]), expires_at_ms)
            new_rows = dict(zip(keys, range(base, base + count), strict=True))
            index = self.index
            if len(new_rows) < count or not index.keys().isdisjoint(new_rows):
                newest = {key: index[key] for key in new_rows if key in index}
                for row, key in enumerate(keys, base):
                    if key in newest:
                        self.older[row] = newest[key]
                    newest[key] = row
            self.values.extend(values)
            self.keys.extend(keys)
            index.update(new_rows)
            self.payload_bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))
        except BaseException:  # an interrupt, or no memory
            self._mend(base)
            raise

    def _mend(self, base: int) -> None:
        """Repair an interrupted write: keep all of it if its keys are here from row `base` on, otherwise nothing.

        Otherwise parts that it has stored of rows that are not here would become parts of the next rows with the same
        numbers. Cost: about 0.1 us for each row of the memtable.
        """
        end = len(self.keys)
        del self.values[end:]
        for rows in (self.special, self.older):
            for row in [row for row in rows if row >= end]:
                del rows[row]
        self.index.update(zip(self.keys[base:], range(base, end), strict=True))
        self.payload_bytes = sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))

    def take_back(self, start: int, end: int) -> None:
        """Hide rows [start, end) by position, as if they had never been written. Their sequences stay unused.

        Under the lock of the writers. Cost: about 1 us for each row.
        """
        hidden_ranges = self._hidden = tuple(sorted({*self._hidden, (start, end)}))
        for key in set(self.keys[start:end]):
            rows_left: list[int] = []
            row = self.index.get(key)
            while row is not None:
                if not any(low <= row < high for low, high in hidden_ranges):
                    rows_left.append(row)
                row = self.older.get(row)
            for newer, older in pairwise(rows_left):
                self.older[newer] = older
            if rows_left:
                self.older.pop(rows_left[-1], None)
                self.index[key] = rows_left[0]
            else:
                self.index.pop(key, None)

    @property
    def row_count(self) -> int:
        """Number of rows written, including superseded ones."""
        return len(self.keys)

    @property
    def is_empty(self) -> bool:
        """Whether no row was written."""
        return not self.keys

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest row; ``first_sequence - 1`` if the memtable is empty."""
        return self.first_sequence + len(self.keys) - 1

    @property
    def size_bytes(self) -> int:
        """Estimated memory of rows and index, without the sorted pieces, which only scans make."""
        return self.payload_bytes + ROW_OVERHEAD_BYTES * len(self.keys)

    def _row(self, position: int) -> Row:
        value = self.values[position]
        kind, expires_at_ms = self.special.get(position, (PUT, None)) if value is not None else (DELETE, None)
        return Row(self.keys[position], self.first_sequence + position, kind, value or b"", expires_at_ms)

    def rows_of(self, key: bytes, sequence: int | None = None) -> list[Row]:
        """Return the versions of a key, newest first, down to the first that is not an operand.

        Args:
            sequence: Newest sequence that counts, inclusive; None: all.
        """
        position = self.index.get(key)
        if position is None:
            return []
        if sequence is not None:
            limit = sequence - self.first_sequence
            while position is not None and position > limit:
                position = self.older.get(position)
        rows = []
        while position is not None:
            row = self._row(position)
            rows.append(row)
            if row.kind != MERGE:
                break
            position = self.older.get(position)
        return rows

    def find_all(self, keys: Sequence[bytes], *, sequence: int | None = None) -> list[bytes | None] | None:
        """Return the values of keys, in order, if all keys are here and the newest row of each decides alone.

        None: use `find_values`.

        Args:
            sequence: as for `rows_of`.

        Cost: about 0.1 us for each key; 1 us if a key is not here.
        """
        try:
            rows = list(map(self.index.__getitem__, keys))
        except KeyError:
            return None
        if (
            sequence is not None
            and self.last_sequence > sequence
            and max(rows, default=-1) > sequence - self.first_sequence
        ):
            return None
        if self.special and not self.special.keys().isdisjoint(rows):
            return None
        return list(map(self.values.__getitem__, rows))

    def find_values(
        self, keys: Sequence[bytes], values: dict[bytes, bytes] | None, *, sequence: int | None = None
    ) -> dict[bytes, list[Row]]:
        """As `rows_of`, for several keys; keys for which a value suffices get no rows.

        Args:
            values: receives the values of keys whose newest row is a PUT that does not expire; None: return rows for
                these keys too.
            sequence: as for `rows_of`.

        Returns:
            The rows of the other keys that are here.

        Cost: about 0.2 us for each key whose value is added, 1 us for each key with rows.
        """
        limit = len(self.keys) if sequence is None else sequence - self.first_sequence
        special, texts = self.special, self.values
        rows: dict[bytes, list[Row]] = {}
        for key, row in zip(keys, map(self.index.get, keys), strict=True):
            if row is None:
                continue
            if values is not None and row <= limit and row not in special and (value := texts[row]) is not None:
                values[key] = value
            elif key_rows := self.rows_of(key, sequence):
                rows[key] = key_rows
        return rows

    def newest_sequence(self, key: bytes) -> int | None:
        """Return the sequence of the last write to a key; None if this table has none."""
        position = self.index.get(key)
        return None if position is None else self.first_sequence + position

    def written_since(self, sequence: int) -> Iterable[bytes]:
        """Return the keys of the rows with a larger sequence, oldest first. A key may occur more than once."""
        return self.keys[max(0, sequence + 1 - self.first_sequence) :]

    def log(self, start: int, end: int) -> pa.RecordBatch:
        """Return rows [start, end) by position, in the order of writing, as a batch of `ROW_SCHEMA`.

        Raises `InternalError` for more than 2 GiB of keys or values. Cost: about 0.05 us for each row.
        """
        keys = self.keys[start:end]
        count = len(keys)
        values = self.values[start:end]
        kinds = np.zeros(count, np.uint8)
        expires = pa.nulls(count, pa.int64())
        if None in values:
            kinds[[i for i, value in enumerate(values) if value is None]] = DELETE
            values = [b"" if value is None else value for value in values]
        special = self.special
        if special:
            special_rows = self._special_within(start, start + count)
            if special_rows:
                ends: list[int | None] = [None] * count
                for position, (kind, expires_at_ms) in special_rows:
                    kinds[position - start] = kind
                    ends[position - start] = expires_at_ms
                expires = _column_of_ends(ends)
        first = self.first_sequence + start
        sequences = np.arange(first, first + count, dtype=np.uint64)
        return _form_batch(keys, sequences, kinds, cast("list[bytes]", values), expires)

    def _special_within(self, start: int, end: int) -> list[tuple[int, tuple[int, int | None]]]:
        """Return the entries of `special` for rows [start, end). Iterate over the entries or the rows, if fewer."""
        special = self.special
        if end - start < len(special):
            return [(row, special[row]) for row in range(start, end) if row in special]
        return [entry for entry in special.copy().items() if start <= entry[0] < end]

    def order_keys(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of all rows so far, including hidden ones: two ascending lists, of which the second is short.

        Each key occurs once. Cost: nothing without new rows; otherwise a copy of the short list, 1 us for each new row,
        and from time to time 0.1 us for each of all rows.
        """
        count, keys, late = self._ordered
        end = len(self.keys)
        if end > count:
            new = self.keys[count:end]
            if len(late) + len(new) > max(TAIL_ROW_COUNT_MAX, len(keys) // 8):
                order = sort_rows(self.log(count, end), log=new) if len(new) > _SORTED_BY_ARROW_MIN else None
                new = sorted(new) if order is None else list(map(new.__getitem__, order.tolist()))
                keys, late = list(dict.fromkeys(sorted(keys + late + new))), []
            else:
                late = late.copy()
                for key in new:
                    if not _has(keys, key) and not _has(late, key):
                        insort(late, key)
            # Two readers may do this at the same time. The result of either is right.
            self._ordered = (end, keys, late)
        return keys, late

    def sorted(
        self, start: bytes | None = None, end: bytes | None = None, *, sequence: int | None = None
    ) -> list[pa.RecordBatch]:
        """Return all versions of the keys in [start, end), as batches of `ROW_SCHEMA`, each of which is sorted.

        Args:
            start: First key; None: from the smallest.
            end: Key behind the last; None: to the largest.
            sequence: Newest visible sequence, inclusive; None: all.

        Returns:
            At most about log2(rows) batches, none empty. They are slices without copies, except for the newest rows.

        Cost: if scans and puts alternate, every row is sorted about log2(rows) times in the life of the memtable; if it
        is scanned after it was filled, once. Without new rows 10 us for each batch.
        """
        count = self.row_count
        if sequence is not None:
            count = min(count, sequence + 1 - self.first_sequence)
        if count <= 0:
            return []
        hidden_ranges = self._hidden
        made_with, pieces = self._pieces
        if made_with is not hidden_ranges:
            pieces = ()
        covered_end = pieces[-1].end if pieces else 0
        if count - covered_end > TAIL_ROW_COUNT_MAX:
            pieces = self._with_rows(pieces, count, hidden_ranges)
            self._pieces = (hidden_ranges, pieces)
            covered_end = count
        parts = []
        for piece in pieces:
            if piece.start >= count:
                break
            low = 0 if start is None else piece.keys.lower_bound(start)
            high = piece.rows.num_rows if end is None else piece.keys.lower_bound(end)
            if low < high:
                rows = piece.rows.slice(low, high - low)
                parts.append(rows if piece.end <= count else self._rows_before(rows, count))
        if covered_end < count:
            parts.append(self._tail(covered_end, count, start, end))
        return [rows for rows in parts if rows.num_rows]

    def _with_rows(
        self, pieces: tuple[Piece, ...], count: int, hidden: tuple[tuple[int, int], ...]
    ) -> tuple[Piece, ...]:
        """Return the pieces, extended to cover `count` rows. Two readers may do this at once; either is right."""
        pieces_left = list(pieces)
        position = pieces_left[-1].end if pieces_left else 0
        while position < count:
            end = self._end_of_batch(position, count)
            start, rows = position, _sort(self._visible_log(position, end, hidden), log=self.keys[position:end])
            keys, is_sorted = KeyColumn(rows.column("key")), True
            while pieces_left and pieces_left[-1].end - pieces_left[-1].start <= 2 * (end - start):
                if pieces_left[-1].rows.nbytes + rows.nbytes > PIECE_BYTES_MAX:
                    break
                last_piece = pieces_left.pop()
                parts = _interleave(last_piece.rows, last_piece.keys, rows, keys) if is_sorted else None
                is_sorted = parts is not None
                start, rows = last_piece.start, pa.concat_batches(parts or [last_piece.rows, rows])
                keys = KeyColumn(rows.column("key"))
            if not is_sorted:
                rows = _sort(rows)
                keys = KeyColumn(rows.column("key"))
            pieces_left.append(Piece(start, end, rows, keys))
            position = end
        return tuple(pieces_left)

    def _visible_log(self, start: int, end: int, hidden: tuple[tuple[int, int], ...]) -> pa.RecordBatch:
        """Return rows [start, end) as `log`, without the hidden ones."""
        parts: list[pa.RecordBatch] = []
        for low, high in hidden:
            if low < end and high > start:
                parts.append(self.log(start, max(start, low)))
                start = high
        if start < end or not parts:
            parts.append(self.log(min(start, end), end))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _end_of_batch(self, position: int, count: int) -> int:
        """Return the end of the rows from `position` on that fit into one piece."""
        if self.payload_bytes <= PIECE_BYTES_MAX:
            return count
        sizes: npt.NDArray[np.int64] = np.fromiter(
            (
                len(key) + len(value or b"")
                for key, value in zip(self.keys[position:count], self.values[position:count], strict=True)
            ),
            np.int64,
        )
        row_count = int(np.searchsorted(np.cumsum(sizes), PIECE_BYTES_MAX))
        return min(count, position + max(1, row_count))

    def _rows_before(self, rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
        """Return those of the rows that are among the first `count` rows of the log."""
        early = numbers_of(rows.column("sequence")) < self.first_sequence + count
        return rows.filter(mask_of(early))

    def _tail(self, covered: int, count: int, start: bytes | None, end: bytes | None) -> pa.RecordBatch:
        """Return the rows [covered, count) of the log whose keys are in [start, end), sorted."""
        low = b"" if start is None else start
        hidden_ranges = self._hidden
        positions: Iterator[tuple[bytes, int]] = (
            (key, -position)
            for position, key in enumerate(self.keys[covered:count], covered)
            if key >= low
            and (end is None or key < end)
            and not any(first <= position < after for first, after in hidden_ranges)
        )
        rows = [self._row(-position) for _, position in sorted(positions)]
        return batch_of(rows)


def _sort(rows: pa.RecordBatch, *, log: Sequence[bytes] = ()) -> pa.RecordBatch:
    """Sort rows by `sort_rows`. A `log` with hidden rows is ignored, because it has more keys than there are rows."""
    order = sort_rows(rows, log=log)
    return rows if order is None else rows.take(indices_of(order))


def _interleave(
    old: pa.RecordBatch, old_keys: KeyColumn, new: pa.RecordBatch, new_keys: KeyColumn
) -> list[pa.RecordBatch] | None:
    """Cut two sorted batches, of which one is newer, into parts that are sorted if they are taken alternately.

    Rows that are written together often have neighbouring keys, such as objects that are staged on one branch. To sort
    all rows again because of them took half of the time of a commit.

    Returns:
        None if there would be more than `_PARTS_MAX` parts.

    Cost: about 10 us for each part.
    """
    parts: list[pa.RecordBatch] = []
    old_at = new_at = 0
    while old_at < old_keys.count and new_at < new_keys.count:
        if len(parts) >= _PARTS_MAX:
            return None
        old_end = old_keys.lower_bound(new_keys[new_at])
        is_last = old_end == old_keys.count
        new_end = new_keys.count if is_last else new_keys.lower_bound(old_keys[old_end] + b"\0")  # newer rows first
        parts += [old.slice(old_at, old_end - old_at), new.slice(new_at, new_end - new_at)]
        old_at, new_at = old_end, new_end
    return [*parts, old.slice(old_at), new.slice(new_at)]


def _has(keys: Sequence[bytes], key: bytes) -> bool:
    """Whether a key is in an ascending list."""
    place = bisect_left(keys, key)
    return place < len(keys) and keys[place] == key


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return a few rows as a batch of `ROW_SCHEMA`, in their order."""
    if not rows:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in ROW_SCHEMA], schema=ROW_SCHEMA)
    keys, sequences, kinds, values, ends = zip(*rows, strict=True)
    return _form_batch(keys, np.array(sequences, np.uint64), np.array(kinds, np.uint8), values, _column_of_ends(ends))


def _form_batch(
    keys: Sequence[bytes],
    sequences: npt.NDArray[np.uint64],
    kinds: npt.NDArray[np.uint8],
    values: Sequence[bytes],
    ends: pa.Int64Array,
) -> pa.RecordBatch:
    """Form a batch of `ROW_SCHEMA` from columns, without loading pandas (see `lakebed.lsm.columns`)."""
    numbers = [
        pa.Array.from_buffers(field.type, len(keys), [None, pa.py_buffer(column)])
        for field, column in ((ROW_SCHEMA.field(1), sequences), (ROW_SCHEMA.field(2), kinds))
    ]
    columns = [column_of(keys), *numbers, column_of(values), ends]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _column_of_ends(ends_ms: Sequence[int | None]) -> pa.Int64Array:
    is_valid = np.array([end is not None for end in ends_ms], np.bool_)
    return ends_of([end or 0 for end in ends_ms], is_valid)
