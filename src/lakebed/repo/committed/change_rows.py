"""Changes as `lakebed.repo.committed.apply` reads them: rows taken from the front, and stretches that are cleared.

Owns: the check of the changes' order, and the pieces in which rows are returned. Invariants: each row is returned once,
as a view. At most one batch of rows is held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InternalError
from lakebed.lsm.block import offsets_of
from lakebed.lsm.merge import first_key, last_key
from lakebed.lsm.sort import KeyColumn
from lakebed.repo.model.model import ROWS_SCHEMA
from lakebed.repo.model.rows import Interval, join_intervals

_BATCH_ROWS_MAX: Final = 65_536
"""Most rows of changes that are handled together."""
_BATCH_BYTES_MAX: Final = 64 << 20
"""About the most bytes of these rows; a single row may be larger."""


@dataclass(frozen=True)
class Changes:
    """What to do to a metarange.

    Attributes:
        clears: half-open stretches of paths, sorted, disjoint; an end of None is open. The base's paths there are
            removed, except those that `rows` put.
        rows: makes batches of `ROWS_SCHEMA`, sorted, each path once, with a tombstone for each path to remove. Called
            once each time that the changes are applied.
        by_value: replace an entry of the same identity, too, if any other field differs, such as its address.
    """

    clears: tuple[Interval, ...]
    rows: Callable[[], Iterator[pa.RecordBatch]]
    by_value: bool = False


class _Head(NamedTuple):
    """The batch whose rows are being returned."""

    batch: pa.RecordBatch
    paths: KeyColumn


class ChangeRows:
    """The rows of changes, taken from the front.

    Args:
        batches: of `ROWS_SCHEMA`, sorted, each path once.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._pieces = _pieces(batches)
        self._head: _Head | None = None
        self._place = 0  # of the first remaining row of the head
        self._next: bytes | None = None
        self._advance(None)

    def next_path(self) -> bytes | None:
        """The path of the first remaining row; None: there is none."""
        return self._next

    def ready_count(self, last: bytes) -> int:
        """The number of rows up to a path, inclusive, that were read already. There may be more."""
        return 0 if self._head is None else _through(self._head, last) - self._place

    def path_behind(self, last: bytes) -> bytes | None:
        """The first path behind `last` among the rows that were read already; None: none is known."""
        if self._head is None:
            return None
        position = _through(self._head, last)
        return self._head.paths[position] if position < self._head.paths.count else None

    def take_before(self, path: bytes) -> Iterator[pa.RecordBatch]:
        """Take all rows before a path."""
        while self._head is not None and self._next is not None and self._next < path:
            yield self._take_rows(self._head, self._head.paths.lower_bound(path))

    def take_through(self, last: bytes) -> pa.RecordBatch | None:
        """Take some rows up to a path, inclusive; None: no row up to it remains."""
        if self._head is None or self._next is None or self._next > last:
            return None
        return self._take_rows(self._head, _through(self._head, last))

    def take_rest(self) -> Iterator[pa.RecordBatch]:
        """Take all remaining rows."""
        while self._head is not None:
            yield self._take_rows(self._head, self._head.paths.count)

    def drop_tombstones(self, last: bytes) -> None:
        """Drop the tombstones that come next, up to a path, inclusive."""
        while self._head is not None and self._next is not None and self._next <= last:
            end = _through(self._head, last)
            values = self._head.batch.column(1).slice(self._place, end - self._place)
            puts = np.flatnonzero(np.diff(offsets_of(values)))
            if len(puts):
                if puts[0]:
                    self._take_rows(self._head, self._place + int(puts[0]))
                return
            self._take_rows(self._head, end)

    def _take_rows(self, head: _Head, end: int) -> pa.RecordBatch:
        """Take the rows of the head up to a position."""
        taken_rows = head.batch.slice(self._place, end - self._place)
        if end == head.paths.count:
            self._advance(head)
        else:
            self._place, self._next = end, head.paths[end]
        return taken_rows

    def _advance(self, before: _Head | None) -> None:
        """Make the next batch the head."""
        batch = next(self._pieces, None)
        if batch is None:
            self._head = self._next = None
            return
        self._head = _Head(batch, KeyColumn(batch.column(0)))
        self._place, self._next = 0, self._head.paths[0]
        if before is not None and self._next <= before.paths[before.paths.count - 1]:
            raise InternalError(f"changes are not sorted: {self._next!r} came behind a path that is not smaller")


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches into pieces that are neither empty nor large."""
    for batch in batches:
        if not batch.schema.equals(ROWS_SCHEMA):
            raise InternalError(f"changes have the columns {batch.schema}, and need {ROWS_SCHEMA}")
        count = batch.num_rows
        rows_max = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES_MAX * count // max(batch.nbytes, 1)))
        for start in range(0, count, rows_max):
            yield batch.slice(start, rows_max)


def _through(head: _Head, last: bytes) -> int:
    """The position in the head behind its rows up to a path, inclusive."""
    return head.paths.lower_bound(last + b"\0")


class Clearing(Enum):
    """How much of a stretch of paths is cleared."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


class Clears:
    """Cleared stretches of paths; adjacent stretches are joined."""

    def __init__(self, clears: Sequence[Interval]) -> None:
        stretches = join_intervals(clears)
        self._starts = [start for start, _ in stretches]
        self._ends = [end for _, end in stretches]

    def over(self, first: bytes, last: bytes) -> Clearing:
        """How much of the paths from the first to the last, inclusive, is cleared."""
        position = bisect_right(self._starts, first) - 1
        if position >= 0:
            end = self._ends[position]
            if end is None or end > last:
                return Clearing.ALL
            if end > first:
                return Clearing.SOME
        return Clearing.SOME if bisect_right(self._starts, last) > position + 1 else Clearing.NONE

    def mask(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """For each row, whether it is cleared; None: no row is."""
        if not self._starts or not rows.num_rows:
            return None
        first, last = first_key(rows), last_key(rows)
        if self.over(first, last) is Clearing.NONE:
            return None
        cleared = np.zeros(rows.num_rows, np.bool_)
        paths = KeyColumn(rows.column(0))
        low = max(bisect_right(self._starts, first) - 1, 0)
        for position in range(low, bisect_right(self._starts, last)):
            end = self._ends[position]
            cleared[
                paths.lower_bound(self._starts[position]) : paths.count if end is None else paths.lower_bound(end)
            ] = True
        return cleared
