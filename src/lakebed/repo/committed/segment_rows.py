"""Read the rows of segments, for all sides together.

Owns: reading ahead. The first segments are read when the caller reaches them, so a caller that wants one row reads
little. For a caller that continues, the next few segments are read while it works. Invariants: rows that are read ahead
are bounded by `_AHEAD_ROWS_MAX` and `_AHEAD_BYTES_MAX` for each segment. Larger segments, and segments that are cut,
are read range by range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import pyarrow as pa

from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.committed.range_files import RangeFiles
from lakebed.repo.committed.segments import Segment
from lakebed.repo.model.model import RangeMeta

Rows = Iterable[pa.RecordBatch]

_LAZY_COUNT: Final = 2
"""So many segments are read when they are due."""
_AHEAD_ROWS_MAX: Final = 200_000
_AHEAD_BYTES_MAX: Final = 16 << 20
"""Of a segment that is read ahead, all sides together: rows, and bytes of its files."""


def rows_of_segments(
    files: RangeFiles,
    metaranges: Sequence[Metarange],
    segments: Iterable[Segment],
    *,
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterator[tuple[Segment, list[Rows]]]:
    """Segments with the rows of every side, in the order of the metaranges.

    Args:
        metaranges: of which the segments were cut, in the same order.
        start, end: only paths in [start, end); None: open.

    Returns:
        Of each side batches of `ROWS_SCHEMA`, to be gone through before the next segment is taken.
    Cost: 1 GET a range, of those that are cut one or more a block read; the next segments are read meanwhile.
    """

    def rows(segment: Segment) -> list[Rows]:
        return [
            rows_of_ranges(metarange, ranges, start=start, end=end)
            for metarange, ranges in zip(metaranges, segment.ranges, strict=True)
        ]

    def load(segment: Segment) -> tuple[Segment, list[Rows]]:
        sides = rows(segment)
        return segment, [list(side) for side in sides] if _is_small(segment, start, end) else sides

    remaining = iter(segments)
    for segment in islice(remaining, _LAZY_COUNT):
        yield segment, rows(segment)
    yield from files.ahead(load, remaining)


def rows_of_ranges(
    metarange: Metarange, ranges: Iterable[RangeMeta], *, start: bytes | None = None, end: bytes | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of some ranges, one behind another, with paths in [start, end); each is opened when it is due."""
    for meta in ranges:
        if (end is None or meta.file.first_key < end) and (start is None or meta.file.last_key >= start):
            yield from metarange.rows_of(meta, start=start, end=end)


def _is_small(segment: Segment, start: bytes | None, end: bytes | None) -> bool:
    """Whether all of it is wanted, and may be held."""
    if (start is not None and segment.first < start) or (end is not None and segment.last >= end):
        return False
    files = [meta.file for meta in chain.from_iterable(segment.ranges)]
    return (
        sum(file.row_count for file in files) <= _AHEAD_ROWS_MAX
        and sum(file.size_bytes for file in files) <= _AHEAD_BYTES_MAX
    )
