"""Windows: the same stretch of paths of several sorted sources together, and which of their rows match.

Owns: cutting sources into stretches that are complete in all of them, and matching two sorted columns of paths.
Invariants: windows are in the order of paths, and do not overlap. Every row of every source is in one window. Memory is
bounded by the rows that are read ahead. Columns are matched as columns: no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.lsm.sort import KeyColumn, sort_rows
from lakebed.repo.model.model import ROWS_SCHEMA

Positions = npt.NDArray[np.int64]
"""Row numbers; -1: no row."""
Flags = npt.NDArray[np.bool_]
"""One boolean a row."""
Identities = npt.NDArray[np.uint64]
"""Shape (n, 2): the identity of the entry of each row."""

FIRST_ROW_COUNT: Final = 64
"""Rows that are read from each source before the first window, so that the first result comes soon."""
WINDOW_ROW_COUNT: Final = 65_536
"""Rows that are read from each source before a window, once windows have grown."""
WINDOW_GROWTH: Final = 8
READ_AHEAD_BYTES: Final = 24 << 20
"""Most bytes that are read from all sources together before a window, but at least one batch of each."""

_NO_ROWS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, pa.binary())] * 2, schema=ROWS_SCHEMA)
"""Made without a Python list: making an array from a list loads pandas, which takes half a second."""


class _Source:
    """The rows of one source that were read and are not in a window yet."""

    __slots__ = ("_batches", "_bytes", "_iterator", "_row_count", "exhausted")

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._iterator = iter(batches)
        self._batches: list[pa.RecordBatch] = []
        self._row_count = 0
        self._bytes = 0
        self.exhausted = False

    def fill(self, row_count: int, size_bytes: int) -> None:
        """Read more batches until there are this many rows or bytes, or the source ends."""
        while not self.exhausted and (not self._batches or (self._row_count < row_count and self._bytes < size_bytes)):
            batch = next(self._iterator, None)
            if batch is None:
                self.exhausted = True
            elif batch.num_rows:
                self._batches.append(batch)
                self._row_count += batch.num_rows
                self._bytes += batch.get_total_buffer_size()

    @property
    def has_rows(self) -> bool:
        """Whether there are rows that are not in a window yet."""
        return bool(self._batches)

    def last(self) -> bytes:
        """The largest path that was read. Up to it, inclusive, this source is complete."""
        path: bytes = self._batches[-1].column(0)[-1].as_py()
        return path

    def take(self, bound: bytes | None) -> pa.RecordBatch:
        """Remove and return the rows up to the bound, inclusive; None: all."""
        batches, self._batches = self._batches, []
        if bound is not None:
            while batches and batches[-1].column(0)[0].as_py() > bound:
                self._batches.insert(0, batches.pop())
            if batches:
                batch = batches.pop()
                count = KeyColumn(batch.column(0)).lower_bound(bound + b"\0")
                if count:
                    batches.append(batch.slice(0, count))
                if count < batch.num_rows:
                    self._batches.insert(0, batch.slice(count))
        self._row_count = sum(batch.num_rows for batch in self._batches)
        self._bytes = sum(batch.get_total_buffer_size() for batch in self._batches)
        if not batches:
            return _NO_ROWS
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def side_by_side(
    sources: Sequence[Iterable[pa.RecordBatch]], *, first_row_count: int = FIRST_ROW_COUNT
) -> Iterator[list[pa.RecordBatch]]:
    """Iterate over windows of sorted sources.

    Args:
        sources: batches of `ROWS_SCHEMA`, sorted within and across batches, each path once in a source.
        first_row_count: rows of each source to read for the first window. With few rows, the first result comes soon.
            Windows then grow to `WINDOW_ROW_COUNT`.

    Returns:
        For each window one batch for each source, perhaps empty, but not all empty: all rows up to some path.
    Cost: memory for at most `READ_AHEAD_BYTES` and one batch for each source, and for a copy of the window.
    """
    live_sources = [_Source(source) for source in sources]
    share_bytes = READ_AHEAD_BYTES // len(live_sources)
    row_count = first_row_count
    while True:
        for source in live_sources:
            source.fill(row_count, share_bytes)
        if not any(source.has_rows for source in live_sources):
            return
        bounds = [source.last() for source in live_sources if not source.exhausted]
        bound = min(bounds, default=None)
        yield [source.take(bound) for source in live_sources]
        row_count = min(row_count * WINDOW_GROWTH, WINDOW_ROW_COUNT)


def match_paths(left: pa.BinaryArray, right: pa.BinaryArray) -> Positions:
    """For each path on the left, its row number on the right; -1: it is missing. Each side has a path at most once.

    Cost: 2 ns a row if the columns are equal, else about 0.1 us for each row of both.
    """
    if not len(left) or not len(right):
        return np.full(len(left), -1, np.int64)
    if len(left) == len(right) and left.equals(right):
        return np.arange(len(left))
    rows: Positions = pc.index_in(left, value_set=right).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return rows


def same(left: Identities, right: Identities, at: Positions) -> Flags:
    """For each row on the left, whether the row `at` on the right exists and has the same entry.

    Args:
        left, right: the identities of both sides' values (`lakebed.repo.model.entry.identities`).
        at: from `match_paths`.
    """
    flags: Flags = at >= 0
    if flags.any():
        flags &= (left == right[at]).all(axis=1)  # -1 reads the last row, but its flag is False already
    return flags


def order_of(paths: pa.BinaryArray) -> Positions | None:
    """The order that sorts distinct paths; None: they are sorted. Cost: 0.1 us a path, and more for long ones."""
    zeros = pa.array(np.zeros(len(paths), np.uint64))
    return sort_rows(pa.RecordBatch.from_arrays([paths, zeros], names=["key", "sequence"]))
