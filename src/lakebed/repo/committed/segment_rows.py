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
"""The first segments, which are read only when the caller reaches them."""
_AHEAD_ROWS_MAX: Final = 200_000
_AHEAD_BYTES_MAX: Final = 16 << 20
"""Most rows, and most bytes of files, of a segment that is read ahead, for all sides together."""


def rows_of_segments(
    files: RangeFiles,
    metaranges: Sequence[Metarange],
    segments: Iterable[Segment],
    *,
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterator[tuple[Segment, list[Rows]]]:
    """Iterate over segments with the rows of every side, in the order of the metaranges.

    Args:
        metaranges: the metaranges from which the segments were cut, in the same order.
        start, end: only paths in [start, end); None: open.

    Returns:
        For each side batches of `ROWS_SCHEMA`, to be read before the next segment is taken.
    Cost: 1 GET a range; for ranges that are cut, 1 or more for each block that is read. The next segments are read
    meanwhile.
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
    """Iterate over the rows of consecutive ranges with paths in [start, end). Opens each range when it is reached."""
    for meta in ranges:
        if (end is None or meta.file.first_key < end) and (start is None or meta.file.last_key >= start):
            yield from metarange.rows_of(meta, start=start, end=end)


def _is_small(segment: Segment, start: bytes | None, end: bytes | None) -> bool:
    """Whether the whole segment is in [start, end), and small enough to be read ahead."""
    if (start is not None and segment.first < start) or (end is not None and segment.last >= end):
        return False
    files = [meta.file for meta in chain.from_iterable(segment.ranges)]
    return (
        sum(file.row_count for file in files) <= _AHEAD_ROWS_MAX
        and sum(file.size_bytes for file in files) <= _AHEAD_BYTES_MAX
    )
