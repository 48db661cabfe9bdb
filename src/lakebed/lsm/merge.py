"""Merging sorted sources, many rows at a time.

Owns: cutting sources into windows, and making one sorted table of a window.

Invariants: all versions of a key, from all sources, are in one window. Windows follow one another in ascending or
descending order of keys, and do not overlap. The rows that a source has read ahead are bounded, and so is a window,
unless a single key has more versions than that.

How a cut is found: a source that may have more rows is complete only before (in reverse: after) the last key that it
has shown. The smallest of these keys is the cut. Windows of readers begin small, so that the first row comes quickly,
and grow, so that the fixed work for each window does not matter. This module knows no visibility: rows of all versions
go in, and all come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed.lsm.columns import indices_of
from lakebed.lsm.model import ROW_SCHEMA
from lakebed.lsm.sort import KeyColumn, sort_rows

FIRST_ROW_COUNT: Final = 32
"""Rows that each source shows before the first cut. Only a source that has no more rows shows fewer."""
WINDOW_ROW_COUNT: Final = 65_536
"""Rows that each source shows before a cut, once windows have grown."""
WINDOW_GROWTH: Final = 4
READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes that all sources together show before a cut. Each shows at least one batch."""
CONCATENATED_BYTES_MAX: Final = 1 << 30
"""Rows that are larger together are ordered without being copied, because 2 GiB is the limit of Arrow's offsets."""


class Part(NamedTuple):
    """Consecutive sorted rows of one source."""

    rows: pa.RecordBatch
    plain: bool
    """Whether every row is visible: a PUT without an expiry, old enough for the reader, and the only version of its key
    in its source."""
    size_bytes: int
    """Approximate size of the rows."""

    def slice(self, start: int, end: int) -> Part:
        """Return rows [start, end), without a copy."""
        size_bytes = self.size_bytes * (end - start) // self.rows.num_rows
        return Part(self.rows.slice(start, end - start), self.plain, size_bytes)


def first_key(rows: pa.RecordBatch) -> bytes:
    """Return the smallest key of sorted rows, of which there must be at least one."""
    key: bytes = rows.column(0)[0].as_py()
    return key


def last_key(rows: pa.RecordBatch) -> bytes:
    """Return the largest key of sorted rows, of which there must be at least one."""
    key: bytes = rows.column(0)[rows.num_rows - 1].as_py()
    return key


@dataclass(frozen=True, slots=True)
class Window:
    """All versions of all keys of a range, from all sources."""

    parts: list[Part]
    row_count: int
    of_one_source: bool
    """Whether all parts are of one source. Then they are in the order of their keys."""

    def parts_in_order(self) -> list[Part] | None:
        """Return the parts in the order of their keys if they are of one source or do not overlap, otherwise None."""
        if self.of_one_source:
            return self.parts
        ends = sorted((first_key(part.rows), last_key(part.rows), number) for number, part in enumerate(self.parts))
        if all(before[1] < after[0] for before, after in pairwise(ends)):
            return [self.parts[number] for _, _, number in ends]
        return None

    def merge_parts(self) -> pa.Table:
        """Return the rows, sorted by (key ascending, sequence descending), without a copy if parts do not overlap."""
        parts = self.parts_in_order()
        if parts is not None:
            return pa.Table.from_batches([part.rows for part in parts], schema=ROW_SCHEMA)
        batches = [part.rows for part in self.parts]
        # The exact size of the rows takes 40 us for each batch, so it is computed only if the estimate is large.
        may_be_huge = sum(part.size_bytes for part in self.parts) > CONCATENATED_BYTES_MAX
        if may_be_huge and sum(batch.nbytes for batch in batches) > CONCATENATED_BYTES_MAX:
            return _in_order_without_copy(batches)
        rows = pa.concat_batches(batches)
        order = sort_rows(rows)
        return pa.Table.from_batches([rows if order is None else rows.take(indices_of(order))], schema=ROW_SCHEMA)


def _in_order_without_copy(batches: list[pa.RecordBatch]) -> pa.Table:
    """Order few, huge rows, with one slice for each row."""
    order = sort_rows(pa.concat_batches([batch.select(["key", "sequence"]) for batch in batches]))
    rows = [batch.slice(row, 1) for batch in batches for row in range(batch.num_rows)]
    return pa.Table.from_batches(rows if order is None else [rows[i] for i in order], schema=ROW_SCHEMA)


class _Source:
    """One source, with the `parts` that it has shown and no window has taken yet, in the order of keys."""

    __slots__ = ("_bytes", "_edge", "_iterator", "_reverse", "exhausted", "parts", "row_count")

    def __init__(self, parts: Iterable[Part], *, reverse: bool) -> None:
        self._iterator = iter(parts)
        self._reverse = reverse
        self._edge: bytes | None = None
        self._bytes = 0
        self.parts: list[Part] = []
        self.row_count = 0
        self.exhausted = False

    def fill(self, row_count: int, size_bytes: int) -> None:
        """Show more parts until there are so many rows or bytes, or no more rows."""
        while not self.exhausted and (not self.parts or (self.row_count < row_count and self._bytes < size_bytes)):
            self.show_more()

    def show_more(self) -> None:
        """Show one more part."""
        part = next(self._iterator, None)
        if part is None:
            self.exhausted = True
        elif part.rows.num_rows:
            self.parts.insert(0 if self._reverse else len(self.parts), part)
            self.row_count += part.rows.num_rows
            self._bytes += part.size_bytes
            self._edge = None

    def edge(self) -> bytes:
        """Return the key before which (in reverse: after which) this source is complete, unless it is exhausted."""
        if self._edge is None:
            self._edge = first_key(self.parts[0].rows) if self._reverse else last_key(self.parts[-1].rows)
        return self._edge

    @property
    def is_whole(self) -> bool:
        """Whether the source has shown all rows of the last key that it has shown."""
        return self.exhausted or self.parts[0 if self._reverse else -1].plain

    def take(self, bound: bytes | None) -> list[Part]:
        """Remove and return the rows before the bound (in reverse: after it); None: all."""
        if bound is None:
            parts, self.parts = self.parts, []
        elif self._reverse:
            self.parts, parts = _cut(self.parts, bound + b"\0")
        else:
            parts, self.parts = _cut(self.parts, bound)
        self.row_count = sum(part.rows.num_rows for part in self.parts)
        self._bytes = sum(part.size_bytes for part in self.parts)
        return parts


def _cut(parts: list[Part], key: bytes) -> tuple[list[Part], list[Part]]:
    """Split the parts of one source into those before a key and those from the key on."""
    place = len(parts)
    while place and first_key(parts[place - 1].rows) >= key:
        place -= 1
    if not place:
        return [], parts
    part, count = parts[place - 1], parts[place - 1].rows.num_rows
    position = KeyColumn(part.rows.column(0)).lower_bound(key)
    if position == count:
        return parts[:place], parts[place:]
    return [*parts[: place - 1], part.slice(0, position)], [part.slice(position, count), *parts[place:]]


def _split_windows(taken: list[list[Part]], *, size_bytes: int, reverse: bool) -> Iterator[Window]:
    """Split what sources gave together, which may be several times the requested size, into windows of similar size.

    Merging copies a window twice. Sources that read in step, as all do at the beginning of a scan, together give all
    that each has read. The rows of a single source are not copied, and are not split.
    """
    while len(taken) > 1:
        row_count = sum(map(_count_rows, taken))
        piece_count = round(sum(part.size_bytes for parts in taken for part in parts) / size_bytes)
        piece_count = min(piece_count, row_count // FIRST_ROW_COUNT)  # sizes may be those of larger, shared buffers
        if piece_count < 2:
            break
        key = _key_at(max(taken, key=_count_rows), 1 - 1 / piece_count if reverse else 1 / piece_count)
        halves = [_cut(parts, key) for parts in taken]
        first, later_parts = (
            [parts for half in halves if (parts := half[side])] for side in ((1, 0) if reverse else (0, 1))
        )
        if not first or not later_parts:  # rows of one key stay together
            break
        yield _window(first)
        taken = later_parts
    yield _window(taken)


def _key_at(parts: list[Part], share: float) -> bytes:
    """Return the key before which a given share of the rows of one source are."""
    place = int(share * _count_rows(parts))
    for part in parts:
        if place < part.rows.num_rows:
            break
        place -= part.rows.num_rows
    return first_key(part.rows.slice(place))


def _count_rows(parts: list[Part]) -> int:
    return sum(part.rows.num_rows for part in parts)


def _window(taken: list[list[Part]]) -> Window:
    parts = [part for parts in taken for part in parts]
    return Window(parts, _count_rows(parts), len(taken) == 1)


def cut_windows(
    sources: Sequence[Iterable[Part]],
    *,
    reverse: bool = False,
    size_bytes: int | None = None,
    growing: bool = True,
) -> Iterator[Window]:
    """Yield windows over sorted sources, each with all versions of its keys.

    Args:
        sources: parts in the order of keys; in reverse the last part comes first, but rows within a part ascend.
        reverse: from the largest keys to the smallest.
        size_bytes: most bytes that all sources together show before a cut, and about the most bytes of a window of
            several sources; None: `READ_AHEAD_BYTES`.
        growing: windows begin small, for callers that wait for the first row.

    Cost: memory of `size_bytes` and one part for each source; some 10 us for each window and source.
    """
    live_sources = [_Source(source, reverse=reverse) for source in sources]
    bytes_max = size_bytes or READ_AHEAD_BYTES
    share_bytes = bytes_max // max(1, len(live_sources))
    row_count = FIRST_ROW_COUNT if growing else WINDOW_ROW_COUNT
    while True:
        for source in live_sources:
            source.fill(row_count, share_bytes)
        live_sources = [source for source in live_sources if source.parts]
        if not live_sources:
            return
        if len(live_sources) == 1 and live_sources[0].is_whole:
            bound = None
        else:
            edges = [source.edge() for source in live_sources if not source.exhausted]
            bound = None if not edges else max(edges) if reverse else min(edges)
        parts_of_window = [parts for source in live_sources if (parts := source.take(bound))]
        if parts_of_window:
            yield from _split_windows(parts_of_window, size_bytes=bytes_max, reverse=reverse)
        else:
            for source in live_sources:
                if not source.exhausted and source.edge() == bound:
                    source.show_more()
        row_count = min(row_count * WINDOW_GROWTH, WINDOW_ROW_COUNT)


def merge_windows(
    sources: Sequence[Iterable[pa.RecordBatch]],
    *,
    reverse: bool = False,
    size_bytes: int | None = None,
    growing: bool = True,
) -> Iterator[pa.Table]:
    """Yield all rows of all sources, sorted by (key ascending, sequence descending).

    Args:
        sources: sorted batches of `ROW_SCHEMA`, in the order of keys; in reverse the last batch comes first, but rows
            within a batch ascend.
        reverse: tables with the largest keys come first, but rows within a table ascend.
        size_bytes, growing: as `cut_windows`.

    Returns:
        Tables of `ROW_SCHEMA`, none empty, with all versions of a key in one of them. One source alone passes through
        without copies.

    Cost: about 0.15 us for each row if sources overlap; bounded memory, see `cut_windows`.
    """
    # If batches are slices, their buffers may have more than the rows. Then windows are only smaller.
    parts = [(Part(rows, False, rows.get_total_buffer_size()) for rows in source) for source in sources]
    for window in cut_windows(parts, reverse=reverse, size_bytes=size_bytes, growing=growing):
        yield window.merge_parts()
