"""Merging sorted sources, many rows at a time.

Owns: cutting sources into windows, and making one sorted table of a window. Invariants: all versions of a key, from all
sources, are in one window; windows follow one another in the order of keys (or against it), and do not overlap; what a
source has read ahead is bounded, and so is a window, unless a single key has more versions than that.

How a cut is found: a source that may have more is complete only before (in reverse: behind) the last key it has shown.
The smallest of those keys is the cut. Windows of readers begin small, so that the first row comes quickly, and grow, so
that the work done once a window does not count. Knows no visibility: rows of all versions go in, and all come out.
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
"""Rows that each source shows before the first cut; fewer only from a source that has no more."""
WINDOW_ROW_COUNT: Final = 65_536
"""Rows that each source shows before a cut, once windows have grown."""
WINDOW_GROWTH: Final = 4
READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes that all sources together show before a cut; each shows at least one batch."""
CONCATENATED_BYTES_MAX: Final = 1 << 30
"""Arrow's offsets end at 2 GiB: rows that are larger together are put in order without being copied."""


class Part(NamedTuple):
    """Sorted rows of one source that follow one another."""

    rows: pa.RecordBatch
    plain: bool
    """Nothing hides in here: every row is a PUT without an end, old enough for the reader, and the only version of its
    key in its source."""
    size_bytes: int
    """Of the rows, about."""

    def slice(self, start: int, end: int) -> Part:
        """Rows [start, end), without a copy."""
        size_bytes = self.size_bytes * (end - start) // self.rows.num_rows
        return Part(self.rows.slice(start, end - start), self.plain, size_bytes)


def first_key(rows: pa.RecordBatch) -> bytes:
    """The smallest key of sorted rows, of which there must be one."""
    key: bytes = rows.column(0)[0].as_py()
    return key


def last_key(rows: pa.RecordBatch) -> bytes:
    """The largest key of sorted rows, of which there must be one."""
    key: bytes = rows.column(0)[rows.num_rows - 1].as_py()
    return key


@dataclass(frozen=True, slots=True)
class Window:
    """All versions of all keys of a range, from all sources."""

    parts: list[Part]
    row_count: int
    of_one_source: bool
    """Then the parts stand in the order of their keys."""

    def parts_in_order(self) -> list[Part] | None:
        """The parts in the order of their keys, when they are of one source or do not overlap; else None."""
        if self.of_one_source:
            return self.parts
        ends = sorted((first_key(part.rows), last_key(part.rows), number) for number, part in enumerate(self.parts))
        if all(before[1] < behind[0] for before, behind in pairwise(ends)):
            return [self.parts[number] for _, _, number in ends]
        return None

    def merge_parts(self) -> pa.Table:
        """The rows, sorted by (key ascending, sequence descending). No copy where parts do not overlap."""
        parts = self.parts_in_order()
        if parts is not None:
            return pa.Table.from_batches([part.rows for part in parts], schema=ROW_SCHEMA)
        batches = [part.rows for part in self.parts]
        # To ask the rows themselves takes 40 us a batch.
        may_be_huge = sum(part.size_bytes for part in self.parts) > CONCATENATED_BYTES_MAX
        if may_be_huge and sum(batch.nbytes for batch in batches) > CONCATENATED_BYTES_MAX:
            return _in_order_without_copy(batches)
        rows = pa.concat_batches(batches)
        order = sort_rows(rows)
        return pa.Table.from_batches([rows if order is None else rows.take(indices_of(order))], schema=ROW_SCHEMA)


def _in_order_without_copy(batches: list[pa.RecordBatch]) -> pa.Table:
    """Few, huge rows in order: one slice a row."""
    order = sort_rows(pa.concat_batches([batch.select(["key", "sequence"]) for batch in batches]))
    rows = [batch.slice(row, 1) for batch in batches for row in range(batch.num_rows)]
    return pa.Table.from_batches(rows if order is None else [rows[i] for i in order], schema=ROW_SCHEMA)


class _Source:
    """What one source has shown and no window has taken yet: `parts`, in the order of keys."""

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
        """Show more until there are so many rows or bytes, or no more rows."""
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
        """The key before which (in reverse: behind which) this source is complete, unless it is exhausted."""
        if self._edge is None:
            self._edge = first_key(self.parts[0].rows) if self._reverse else last_key(self.parts[-1].rows)
        return self._edge

    @property
    def is_whole(self) -> bool:
        """Whether it has shown all rows of the last key that it has shown."""
        return self.exhausted or self.parts[0 if self._reverse else -1].plain

    def take(self, bound: bytes | None) -> list[Part]:
        """Remove and return the rows before the bound (in reverse: behind it); None: all."""
        if bound is None:
            taken, self.parts = self.parts, []
        elif self._reverse:
            self.parts, taken = _cut(self.parts, bound + b"\0")
        else:
            taken, self.parts = _cut(self.parts, bound)
        self.row_count = sum(part.rows.num_rows for part in self.parts)
        self._bytes = sum(part.size_bytes for part in self.parts)
        return taken


def _cut(parts: list[Part], key: bytes) -> tuple[list[Part], list[Part]]:
    """The parts of one source before a key, and from it on."""
    at = len(parts)
    while at and first_key(parts[at - 1].rows) >= key:
        at -= 1
    if not at:
        return [], parts
    part, count = parts[at - 1], parts[at - 1].rows.num_rows
    position = KeyColumn(part.rows.column(0)).lower_bound(key)
    if position == count:
        return parts[:at], parts[at:]
    return [*parts[: at - 1], part.slice(0, position)], [part.slice(position, count), *parts[at:]]


def _split_windows(taken: list[list[Part]], *, size_bytes: int, reverse: bool) -> Iterator[Window]:
    """What sources gave at once, which may be several times what they were asked for, as windows of about one size.

    Merging copies a window twice. Sources that read in step, as all do where a scan begins, give all that each has read
    at once. What one source gives alone is not copied, and stays whole.
    """
    while len(taken) > 1:
        row_count = sum(map(_count_rows, taken))
        piece_count = round(sum(part.size_bytes for parts in taken for part in parts) / size_bytes)
        piece_count = min(piece_count, row_count // FIRST_ROW_COUNT)  # the sizes of rows may be those of larger buffers
        if piece_count < 2:
            break
        key = _key_at(max(taken, key=_count_rows), 1 - 1 / piece_count if reverse else 1 / piece_count)
        halves = [_cut(parts, key) for parts in taken]
        first, others = (
            [parts for half in halves if (parts := half[side])] for side in ((1, 0) if reverse else (0, 1))
        )
        if not first or not others:  # rows of one key stay together
            break
        yield _window(first)
        taken = others
    yield _window(taken)


def _key_at(parts: list[Part], share: float) -> bytes:
    """The key before which a share of the rows of one source are."""
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
    """Windows over sorted sources, each with all versions of its keys.

    Args:
        sources: parts in the order of keys; in reverse the last part first, the rows within a part ascending still.
        reverse: from the largest keys to the smallest.
        size_bytes: what all sources together may show before a cut, and about the most that a window of several of
            them has; None: `READ_AHEAD_BYTES`.
        growing: windows begin small, for who waits for the first row.

    Cost: at most `size_bytes` and a part a source are held; some 10 us a window and source.
    """
    live = [_Source(source, reverse=reverse) for source in sources]
    bytes_max = size_bytes or READ_AHEAD_BYTES
    share_bytes = bytes_max // max(1, len(live))
    row_count = FIRST_ROW_COUNT if growing else WINDOW_ROW_COUNT
    while True:
        for source in live:
            source.fill(row_count, share_bytes)
        live = [source for source in live if source.parts]
        if not live:
            return
        if len(live) == 1 and live[0].is_whole:
            bound = None
        else:
            edges = [source.edge() for source in live if not source.exhausted]
            bound = None if not edges else max(edges) if reverse else min(edges)
        taken = [parts for source in live if (parts := source.take(bound))]
        if taken:
            yield from _split_windows(taken, size_bytes=bytes_max, reverse=reverse)
        else:
            for source in live:
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
    """All rows of all sources, sorted by (key ascending, sequence descending).

    Args:
        sources: batches of `ROW_SCHEMA`, sorted each and one behind another; in reverse the last batch first, the rows
            within a batch ascending still.
        reverse: tables with the largest keys first; the rows within a table ascend still.
        size_bytes, growing: as `cut_windows`.

    Returns:
        Tables of `ROW_SCHEMA`, none empty, with all versions of a key in one of them. One source alone passes through
        without copies.

    Cost: about 0.15 us a row where sources overlap; bounded memory, see `cut_windows`.
    """
    # What the buffers hold may be more than the rows, where they are slices: windows are only smaller then.
    parts = [(Part(rows, False, rows.get_total_buffer_size()) for rows in source) for source in sources]
    for window in cut_windows(parts, reverse=reverse, size_bytes=size_bytes, growing=growing):
        yield window.merge_parts()
