"""Laws of differences and merges: what they undo, what they leave unread."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.committed.diff import diff_metaranges, has_difference
from lakebed.repo.committed.merge import merge_metaranges
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.model import ROWS_SCHEMA, TOMBSTONE, DiffKind, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.testing import seed_count
from worlds.repo.states import SMALL_RANGES, TINY_RANGES, entry_value, open_committed, write_state

State = dict[bytes, bytes]

VALUES = [entry_value(content) for content in "xyz"]
PATHS = st.one_of(
    st.binary(min_size=1, max_size=5),
    st.builds(b"%s/%03d".__mod__, st.tuples(st.sampled_from([b"a", b"a/b", b"c"]), st.integers(0, 400))),
)
STATES = st.dictionaries(PATHS, st.sampled_from(VALUES), max_size=120)
RANGES = st.sampled_from([SMALL_RANGES, TINY_RANGES, RangeOptions()])

BASE_COUNT = 100_000


@st.composite
def pairs(draw: st.DrawFn) -> tuple[State, State]:
    """Two states: related, or having nothing in common."""
    left = draw(STATES)
    if draw(st.booleans()):
        return left, draw(STATES)
    gone = set(draw(st.lists(st.sampled_from(sorted(left))))) if left else set()
    right = {path: value for path, value in left.items() if path not in gone}
    right.update(draw(st.dictionaries(PATHS, st.sampled_from(VALUES), max_size=5)))
    return left, right


def changes_of(committed: Committed, left: MetarangeRef, right: MetarangeRef) -> Changes:
    """The difference as something to apply: entries to put, and tombstones."""

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in diff_metaranges(committed, left, right):
            values = pc.fill_null(batch.column("right"), TOMBSTONE)
            yield pa.RecordBatch.from_arrays([batch.column("path"), values], schema=ROWS_SCHEMA)

    return Changes(clears=(), rows=rows)


@settings(max_examples=seed_count(20), deadline=None)
@given(pairs(), RANGES)
def test_a_difference_is_what_the_dictionaries_say(pair: tuple[State, State], ranges: RangeOptions) -> None:
    """Sorted, each path once, with both entries; and nothing else, in any part of the paths."""
    left, right = pair
    want = [
        (path, left.get(path), right.get(path)) for path in sorted({*left, *right}) if left.get(path) != right.get(path)
    ]
    kinds = [
        DiffKind.ADDED if was is None else DiffKind.REMOVED if now is None else DiffKind.CHANGED for _, was, now in want
    ]
    with open_committed(ranges) as committed:
        refs = write_state(committed, left), write_state(committed, right)
        start, end = b"a/b", b"b"
        for bounds in ({"start": start}, {"end": end}, {"start": start, "end": end}, {}, {"start": start}):
            rows = [row for batch in diff_metaranges(committed, *refs, **bounds) for row in batch.to_pylist()]
            some = [
                number
                for number, (path, _, _) in enumerate(want)
                if path >= bounds.get("start", b"") and ("end" not in bounds or path < bounds["end"])
            ]
            assert [(row["path"], row["left"], row["right"]) for row in rows] == [want[number] for number in some]
            assert [row["kind"] for row in rows] == [kinds[number] for number in some]
        assert has_difference(committed, *refs) == bool(want)


@settings(max_examples=seed_count(15), deadline=None)
@given(pairs(), RANGES)
def test_applying_a_difference_gives_the_other_side(pair: tuple[State, State], ranges: RangeOptions) -> None:
    """The difference from left to right, applied to left, is right, to the id; and the way back is the inverse."""
    with open_committed(ranges) as committed:
        left, right = (write_state(committed, state) for state in pair)
        forth = apply_changes(committed, left, changes_of(committed, left, right))
        back = apply_changes(committed, right, changes_of(committed, right, left))
        assert forth.ref.id == right.id
        assert back.ref.id == left.id
        assert (forth.added, forth.changed, forth.removed) == (back.removed, back.changed, back.added)


@settings(max_examples=seed_count(10), deadline=None)
@given(STATES, STATES, RANGES)
def test_what_is_equal_is_not_read(base: State, other: State, ranges: RangeOptions) -> None:
    """A state does not differ from itself, and a side that changed nothing leaves the other's: without reading."""
    with open_committed(ranges) as committed:
        was, now = write_state(committed, base), write_state(committed, other)
        with committed.count() as counts:
            assert list(diff_metaranges(committed, now, now)) == []
            for source, destination in ((now, was), (was, now), (now, now)):
                outcome = merge_metaranges(committed, base=was, source=source, destination=destination)
                assert outcome.ref is not None
                assert outcome.ref.id == now.id
        assert counts.ranges_read == counts.ranges_written == 0


@pytest.fixture(scope="module")
def large() -> Iterator[tuple[Committed, MetarangeRef]]:
    """A base of a hundred thousand entries in a hundred ranges or so."""
    with open_committed(RangeOptions(entry_count_min=128, raggedness=1_024)) as committed:
        writer = committed.writer()
        for start in range(0, BASE_COUNT, 50_000):
            numbers = range(start, start + 50_000)
            paths, values = [a_path(number) for number in numbers], [entry_value(number) for number in numbers]
            writer.write_rows(rows_of(paths, values))
        yield committed, writer.finish()


def a_path(number: int) -> bytes:
    """Of an entry of the large base; an odd number lies between two of them."""
    return b"lake/day=%03d/part-%08d.parquet" % (number // 1_000, number)


def with_changes(committed: Committed, base: MetarangeRef, *, seed: int, share: float, first: int = 0) -> MetarangeRef:
    """The base with a share of its entries changed or removed and as many added, from some entry on."""
    rng = random.Random(seed)
    count = int(BASE_COUNT * share)
    choice = sorted(rng.sample(range(first, min(first + 10 * count, BASE_COUNT) if first else BASE_COUNT), count))
    news = {a_path(number): TOMBSTONE if number % 3 == 0 else entry_value((seed, number)) for number in choice}
    news |= {a_path(number) + b"-%d" % seed: entry_value(number) for number in choice if number % 2}
    paths = sorted(news)
    rows = rows_of(paths, [news[path] for path in paths])
    return apply_changes(committed, base, Changes((), lambda: iter([rows]))).ref


def differing(committed: Committed, *refs: MetarangeRef) -> int:
    """How many ranges are not in all of these states."""
    ids = [{part.id for part in committed.open(ref).ranges()} for ref in refs]
    return len(set.union(*ids) - set.intersection(*ids))


@pytest.mark.parametrize("first", [0, 30_000], ids=["everywhere", "in-one-place"])
def test_a_difference_opens_only_ranges_that_differ(large: tuple[Committed, MetarangeRef], first: int) -> None:
    """0.1 % changed in 100,000 entries: no more ranges are opened than one of the two sides has for itself."""
    committed, base = large
    changed = with_changes(committed, base, seed=1, share=0.001, first=first)
    with committed.count() as counts:
        result = sum(batch.num_rows for batch in diff_metaranges(committed, base, changed))
    assert result > BASE_COUNT // 1_000
    assert 0 < counts.ranges_read <= differing(committed, base, changed)
    if first:
        assert counts.ranges_read < base.range_count / 4


@pytest.mark.parametrize("places", [(0, 0), (30_000, 30_000), (30_000, 75_000)], ids=["everywhere", "one", "two"])
def test_a_merge_opens_only_ranges_that_differ(large: tuple[Committed, MetarangeRef], places: tuple[int, int]) -> None:
    """0.1 % changed by both sides: no more ranges are opened than are not in all three states."""
    committed, base = large
    source = with_changes(committed, base, seed=1, share=0.001, first=places[0])
    destination = with_changes(committed, base, seed=2, share=0.001, first=places[1])
    with committed.count() as counts:
        outcome = merge_metaranges(committed, base=base, source=source, destination=destination, strategy="source-wins")
    assert outcome.ref is not None
    assert counts.ranges_read <= differing(committed, base, source, destination)
    if places == (30_000, 75_000):
        assert counts.ranges_read <= 2  # one behind each change, whose rows are written together with the change's
    sides = [paths_changed(committed, base, ref) for ref in (source, destination, outcome.ref)]
    assert set(sides[2]) <= {*sides[0], *sides[1]}
    assert len(set(sides[2])) >= len({*sides[0], *sides[1]}) - len({*sides[0]} & {*sides[1]})


def paths_changed(committed: Committed, left: MetarangeRef, right: MetarangeRef) -> list[bytes]:
    """The paths that differ."""
    columns = [batch.column("path") for batch in diff_metaranges(committed, left, right)]
    return list(np.concatenate([column.to_numpy(zero_copy_only=False) for column in columns])) if columns else []
