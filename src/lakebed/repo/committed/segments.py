"""Segments: where several sorted lists of ranges can be cut, so that no range is on both sides of a cut. Pure.

Owns: the cuts. Invariants: segments are in the order of paths, and do not overlap. Every range of every list is in
exactly one segment, together with all ranges of the other lists that it overlaps. The cuts are the finest possible, so
a range that two lists share is a segment by itself if the third list has no other range there. The ids of a segment's
ranges show which lists are equal in it, without reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import repeat

from lakebed.repo.model.model import RangeMeta


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of paths: no range is partly inside it.

    Attributes:
        first, last: the smallest and the largest path of its ranges, both inclusive.
        ranges: for each list, in order, its ranges in the segment; at least one list has ranges.
        ids: for each list, the ids of these ranges. Equal ids mean equal rows.
    """

    first: bytes
    last: bytes
    ranges: tuple[tuple[RangeMeta, ...], ...]
    ids: tuple[tuple[str, ...], ...]

    def overlaps(self, start: bytes | None, end: bytes | None) -> bool:
        """Whether a path of the segment can be in [start, end); None: open."""
        return (start is None or self.last >= start) and (end is None or self.first < end)

    def inside(self, start: bytes, end: bytes | None) -> bool:
        """Whether all paths of the segment are in [start, end); None: open."""
        return self.first >= start and (end is None or self.last < end)


def cut_segments(lists: Sequence[Sequence[RangeMeta]]) -> Iterator[Segment]:
    """Cut sorted lists of ranges into segments.

    Args:
        lists: each sorted by path, its ranges not overlapping one another.

    Returns:
        Segments in the order of paths, none without ranges.
    Cost: about 2 us a range; lazily.
    """
    sources = [zip(repeat(number), ranges) for number, ranges in enumerate(lists)]
    groups: list[list[RangeMeta]] = [[] for _ in lists]
    first = last = b""
    is_open = False
    for number, meta in merge(*sources, key=lambda item: item[1].file.first_key):
        start = meta.file.first_key
        if is_open and start > last:
            yield _segment(first, last, groups)
            groups = [[] for _ in lists]
            is_open = False
        if not is_open:
            first, last, is_open = start, meta.file.last_key, True
        groups[number].append(meta)
        last = max(last, meta.file.last_key)
    if is_open:
        yield _segment(first, last, groups)


def _segment(first: bytes, last: bytes, groups: list[list[RangeMeta]]) -> Segment:
    return Segment(
        first=first,
        last=last,
        ranges=tuple(tuple(ranges) for ranges in groups),
        ids=tuple(tuple(meta.id for meta in ranges) for ranges in groups),
    )
