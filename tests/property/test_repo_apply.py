"""Laws of committed data: a metarange is a function of its rows, and reads and changes as a dictionary does."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.lsm.cache import BlockCache
from lakebed.objects import open_store
from lakebed.repo.committed.apply import Applied, Changes, apply_changes
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import IDENTITY_BYTES, encode_entry
from lakebed.repo.model.model import TOMBSTONE, Entry, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.runtime import Environment
from lakebed.testing import seed_count

Rows = dict[bytes, bytes]

PATHS = st.one_of(
    st.integers(0, 60).map(lambda number: b"k%02d" % number),
    st.sampled_from([b"", b"k", b"k10\0", b"k10\0\0", b"k10\xff", b"\xff", b"\xff\xff", b"a" * 300]),
)
VALUES = st.builds(
    lambda size, place, long: encode_entry(Entry(f"data/{place}", size, f"c{size}", place, "", {"m": "x" * 90 * long})),
    st.integers(0, 2),
    st.integers(0, 3),
    st.booleans(),
)
"""Few objects, each at several places: equal identities with unequal bytes."""
CHANGES = st.dictionaries(PATHS, st.one_of(st.just(TOMBSTONE), VALUES), max_size=40)
OPTIONS = st.builds(
    RangeOptions,
    entry_count_min=st.sampled_from([1, 2, 5]),
    raggedness=st.sampled_from([1, 3, 8, 20]),
    entry_count_max=st.sampled_from([3, 7, 1000]),
    bytes_max=st.sampled_from([200, 1000, 1 << 20]),
    block_bytes=st.sampled_from([100, 600, 65_536]),
)


@st.composite
def stretches(draw: st.DrawFn) -> tuple[tuple[bytes, bytes | None], ...]:
    """Sorted, disjoint, half-open."""
    bounds: list[bytes | None] = [*sorted(draw(st.sets(PATHS, max_size=6)))]
    if draw(st.booleans()):
        bounds.append(None)
    return tuple((low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=False) if low is not None)


def batches(rows: Mapping[bytes, bytes], size: int) -> Iterator[pa.RecordBatch]:
    """The rows of a dictionary, in batches of a size."""
    paths = sorted(rows)
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        yield rows_of(some, [rows[path] for path in some])


def written(committed: Committed, rows: Mapping[bytes, bytes], size: int = 1000) -> MetarangeRef:
    """A metarange of these rows, from nothing."""
    writer = committed.writer()
    for batch in batches(rows, size):
        writer.write_rows(batch)
    return writer.finish()


def outcome(base: Rows, changes: Rows, clears: tuple[tuple[bytes, bytes | None], ...]) -> tuple[Rows, int, int, int]:
    """What changes make of a dictionary, and how many paths they add, change and remove."""
    result: Rows = {}
    counts = [0, 0, 0]
    for path in {*base, *changes}:
        before, change = base.get(path), changes.get(path)
        is_cleared = any(start <= path and (end is None or path < end) for start, end in clears)
        after: bytes | None
        if change is None:
            after = None if is_cleared else before
        elif change == TOMBSTONE:
            after = None
        else:
            is_same = before is not None and before[:IDENTITY_BYTES] == change[:IDENTITY_BYTES]
            after = before if is_same else change
        if after is not None:
            result[path] = after
        if before != after:
            counts[0 if before is None else 2 if after is None else 1] += 1
    return result, *counts


@settings(max_examples=seed_count(20), deadline=None)
@given(
    options=OPTIONS,
    base=st.dictionaries(PATHS, VALUES, max_size=60),
    steps=st.lists(st.tuples(CHANGES, stretches(), st.sampled_from([1, 4, 100])), min_size=1, max_size=3),
    bounds=st.lists(st.tuples(st.none() | PATHS, st.none() | PATHS), max_size=3),
    cache_bytes=st.sampled_from([0, 20_000, 1 << 20]),
)
def test_changes_do_what_they_do_to_a_dictionary(
    options: RangeOptions,
    base: Rows,
    steps: list[tuple[Rows, tuple[tuple[bytes, bytes | None], ...], int]],
    bounds: list[tuple[bytes | None, bytes | None]],
    cache_bytes: int,
) -> None:
    """Rows, counts and every way of reading agree with the model after each step; so does the id of the same rows."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    environment = Environment(rng=random.Random(1))
    committed = Committed(store, options=options, cache=BlockCache(cache_bytes), environment=environment)
    model, ref = base, written(committed, base)
    for change, clears, size in steps:
        expected, added, changed, removed = outcome(model, change, clears)
        before = ref
        applied = apply_changes(committed, ref, Changes(clears, lambda change=change, size=size: batches(change, size)))
        model, ref = expected, applied.ref
        assert applied == Applied(ref, added, changed, removed)
        assert (ref is before) == (not (added or changed or removed))
        assert ref.id == written(committed, model, size).id
        assert ref.entry_count == len(model)
        check_reads(committed, ref, model, bounds)
    committed.close()


def check_reads(
    committed: Committed, ref: MetarangeRef, model: Rows, bounds: list[tuple[bytes | None, bytes | None]]
) -> None:
    """Every way of reading a metarange against a dictionary."""
    metarange = committed.open(ref)
    asked = sorted({*model, b"", b"k", b"k10\0", b"k555", b"\xff\xff\xff"})
    assert metarange.get_many(asked) == [model.get(path) for path in asked]
    assert [metarange.get(path) for path in asked[::3]] == [model.get(path) for path in asked[::3]]
    for start, end in [(None, None), *bounds]:
        inside = {k: v for k, v in model.items() if (start is None or k >= start) and (end is None or k < end)}
        rows = [
            row for batch in metarange.rows(start, end) for row in zip(*map(pa.Array.to_pylist, batch), strict=True)
        ]
        assert rows == sorted(inside.items())
    ranges = metarange.ranges()
    assert sum(part.entry_count for part in ranges) == len(model)
    assert len(ranges) == ref.range_count


@settings(max_examples=seed_count(10), deadline=None)
@given(
    options=OPTIONS,
    first=st.dictionaries(PATHS, VALUES, max_size=40),
    second=st.dictionaries(PATHS, VALUES, max_size=40),
    cut=PATHS,
)
def test_ranges_of_several_metaranges_join_to_what_their_rows_would_give(
    options: RangeOptions, first: Rows, second: Rows, cut: bytes
) -> None:
    """Taking over ranges of two metaranges one behind the other is writing their rows: ends that were open close up."""
    environment = Environment(rng=random.Random(1))
    committed = Committed(open_store(f"memory://{uuid.uuid4().hex}"), options=options, environment=environment)
    low = {path: value for path, value in first.items() if path < cut}
    high = {path: value for path, value in second.items() if path >= cut}
    writer = committed.writer()
    for rows in (low, high):
        for part in committed.open(written(committed, rows)).ranges():
            writer.reuse(part)
    assert writer.finish().id == written(committed, {**low, **high}).id
    committed.close()
