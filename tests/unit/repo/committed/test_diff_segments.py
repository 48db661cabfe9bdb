"""Cutting lists of ranges, and sources of rows, into stretches that can be looked at alone."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.lsm.model import FileMeta
from lakebed.repo.committed import windows
from lakebed.repo.committed.segments import cut_segments
from lakebed.repo.committed.windows import match_paths, order_of, side_by_side
from lakebed.repo.model.model import RangeMeta
from lakebed.repo.model.rows import rows_of
from lakebed.testing import seed_count


def a_range(first: int, last: int, name: str = "") -> RangeMeta:
    """A range from one number to another, of that name."""
    file = FileMeta(
        id=f"{first}-{last}{name}",
        size_bytes=1,
        tail_offset=0,
        row_count=1,
        first_key=b"%04d" % first,
        last_key=b"%04d" % last,
        min_sequence=0,
        max_sequence=0,
    )
    return RangeMeta(id=file.id, file=file, size_bytes=0)


@st.composite
def range_lists(draw: st.DrawFn) -> list[list[RangeMeta]]:
    """Two or three sorted lists of ranges that do not overlap within a list."""
    lists = []
    for _ in range(draw(st.integers(2, 3))):
        edges = sorted(draw(st.lists(st.integers(0, 40), max_size=12)))
        ranges = []
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            if not ranges or b"%04d" % start > ranges[-1].file.last_key:
                ranges.append(a_range(start, end))
        lists.append(ranges)
    return lists


@settings(max_examples=seed_count(40), deadline=None)
@given(range_lists())
def test_segments_are_the_finest_cuts(lists: list[list[RangeMeta]]) -> None:
    """Every range is in one segment, no range straddles a cut, and no segment could be cut again."""
    segments = list(cut_segments(lists))
    assert all(before.last < behind.first for before, behind in pairwise(segments))
    for number, ranges in enumerate(lists):
        assert [part for segment in segments for part in segment.ranges[number]] == ranges
    for segment in segments:
        assert segment.ids == tuple(tuple(part.id for part in ranges) for ranges in segment.ranges)
        files = [part.file for ranges in segment.ranges for part in ranges]
        assert segment.first == min(file.first_key for file in files)
        assert segment.last == max(file.last_key for file in files)
        for cut in range(int(segment.first) + 1, int(segment.last) + 1):  # before this number
            at = b"%04d" % cut
            straddled = any(file.first_key < at <= file.last_key for file in files)
            assert straddled or not any(file.first_key >= at for file in files)


def test_a_range_in_common_is_a_segment_alone() -> None:
    """What two lists share is distinguished from its neighbours, which differ."""
    left = [a_range(0, 9), a_range(10, 19), a_range(20, 29)]
    right = [a_range(0, 9, "changed"), a_range(10, 19), a_range(18 + 2, 35)]
    segments = list(cut_segments([left, right]))
    assert [segment.ids[0] == segment.ids[1] for segment in segments] == [False, True, False]


@pytest.mark.parametrize(
    ("start", "end", "overlaps", "inside"),
    [
        (None, None, True, None),
        (b"0010", b"0020", True, True),
        (b"0010", b"0019", True, False),
        (b"0011", None, True, False),
        (b"0019", b"0020", True, False),
        (b"0020", None, False, False),
        (b"0000", b"0010", False, False),
        (b"0000", b"0011", True, False),
        (b"", None, True, True),
    ],
)
def test_bounds_of_a_segment(start: bytes | None, end: bytes | None, overlaps: bool, inside: bool | None) -> None:
    """Bounds are half-open, and the paths of a segment go from its first to its last, inclusive."""
    (segment,) = cut_segments([[a_range(10, 19)], []])
    assert segment.overlaps(start, end) is overlaps
    if start is not None:
        assert segment.inside(start, end) is inside


@settings(max_examples=seed_count(30), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 200), unique=True, max_size=60), min_size=2, max_size=3),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_windows_hold_the_same_stretch_of_every_source(sources: list[list[int]], step: int, row_count: int) -> None:
    """Windows are not empty, do not overlap, and lose no row, however the rows come in batches."""
    paths = [[b"%04d" % number for number in sorted(numbers)] for numbers in sources]
    batches = [
        [rows_of(some[at : at + step], some[at : at + step]) for at in range(0, len(some), step)] for some in paths
    ]
    result = list(side_by_side(batches, first_row_count=row_count))
    for number, some in enumerate(paths):
        assert [path for window in result for path in window[number].column(0).to_pylist()] == some
    spans = []
    for window in result:
        values = [path for rows in window for path in rows.column(0).to_pylist()]
        assert values
        spans.append((min(values), max(values)))
    assert all(before[1] < behind[0] for before, behind in pairwise(spans))


def test_windows_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first window is small, so that the first result comes soon; later ones are larger, and bounded."""
    monkeypatch.setattr(windows, "WINDOW_ROW_COUNT", 1_000)
    paths = [b"%06d" % number for number in range(5_000)]
    batches = [[rows_of(paths[at : at + 10], paths[at : at + 10]) for at in range(0, 5_000, 10)]] * 2
    counts = [window[0].num_rows for window in side_by_side(batches, first_row_count=10)]
    assert counts[0] == 10
    assert max(counts) == 1_000
    assert sum(counts) == 5_000


@given(
    st.lists(st.binary(max_size=6), unique=True, max_size=30), st.lists(st.binary(max_size=6), unique=True, max_size=30)
)
def test_paths_are_matched_as_bytes(left: list[bytes], right: list[bytes]) -> None:
    """A path is found at its place on the other side, for any bytes; the order of paths is that of bytes."""
    left, right = sorted(left), sorted(right)
    columns = pa.array(left, pa.binary()), pa.array(right, pa.binary())
    assert match_paths(*columns).tolist() == [right.index(path) if path in right else -1 for path in left]
    mixed = [*left, *(path for path in right if path not in left)]
    order = order_of(pa.array(mixed, pa.binary()))
    assert (mixed if order is None else [mixed[at] for at in order]) == sorted(mixed)
