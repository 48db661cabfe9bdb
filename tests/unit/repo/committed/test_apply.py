"""Changes applied to metaranges: what is read and written, what stays as it is, and what faults leave behind."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lakebed.errors import InternalError, LakebedError
from lakebed.objects import open_store
from lakebed.repo.committed.apply import Applied, Changes, apply_changes
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.layout import metarange_path, range_path
from lakebed.repo.model.model import TOMBSTONE, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.testing import FaultRates, Scheduler


@pytest.fixture
def applied(rows: Any) -> Callable[..., Applied]:
    """``(committed, base, put={}, clears=())``: changes given as a dictionary."""

    def apply(
        committed: Committed, base: MetarangeRef, put: Mapping[bytes, bytes] = {}, *, clears: Any = (), size: int = 64
    ) -> Applied:
        return apply_changes(committed, base, Changes(tuple(clears), lambda: rows.batches(put, size=size)))

    return apply


def test_scattered_updates_touch_a_range_each(
    rows: Any, applied: Callable[..., Applied], opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """A hundred updates of 40,000 entries read and write at most 101 ranges, each read by one request."""
    committed = opened_on(repository_store, options=RangeOptions(entry_count_min=24, raggedness=80))
    base = rows.write(committed, rows.values(range(40_000)))
    assert base.range_count > 350
    choice = sorted(random.Random(11).sample(range(40_000), 100))
    committed.open(base).ranges()
    with committed.count() as counts, repository_store.count() as requests:
        result = applied(committed, base, rows.values(choice, tag=1))
    assert (result.added, result.changed, result.removed) == (0, 100, 0)
    assert 80 < counts.ranges_read <= 101
    assert counts.ranges_written <= 101
    assert requests.get == counts.ranges_read
    assert requests.put == counts.ranges_written + 1
    assert rows.read(committed.open(result.ref)) == {**rows.values(range(40_000)), **rows.values(choice, tag=1)}


def test_cleared_ranges_are_dropped_unread(
    rows: Any, applied: Callable[..., Applied], committed: Committed, repository_store: Any
) -> None:
    """Of a long cleared stretch only the ranges at its ends are read; what went is counted all the same."""
    values = rows.values(range(4000))
    base = rows.write(committed, values)
    paths = sorted(values)
    with committed.count() as counts:
        result = applied(committed, base, clears=[(paths[100], paths[3900])])
    assert (result.added, result.changed, result.removed) == (0, 0, 3800)
    assert counts.ranges_read <= 4
    assert counts.ranges_written <= 2
    assert list(rows.read(committed.open(result.ref))) == paths[:100] + paths[3900:]
    with committed.count() as counts, repository_store.count() as requests:
        result = applied(committed, base, {paths[7]: TOMBSTONE, paths[2000]: TOMBSTONE}, clears=[(b"", None)])
    assert result == Applied(committed.empty, 0, 0, 4000)
    assert (counts.ranges_read, requests.total) == (0, 0)


def test_what_is_put_into_a_cleared_stretch_is_compared_with_what_was_there(
    rows: Any, applied: Callable[..., Applied], committed: Committed
) -> None:
    """Overwriting a folder with the same and other objects: the same ones stay, at their old addresses."""
    values = rows.values(range(1000))
    base = rows.write(committed, values)
    kept, other = rows.values(range(0, 1000, 2), place=5), rows.values(range(1, 1000, 4), tag=1)
    new = rows.values(range(2000, 2100))
    result = applied(committed, base, {**kept, **other, **new}, clears=[(b"data/", b"data0")])
    assert (result.added, result.changed, result.removed) == (100, 250, 250)
    expected = {path: value for path, value in values.items() if path in kept}
    assert rows.read(committed.open(result.ref)) == {**expected, **other, **new}


def test_the_same_objects_again_change_nothing(
    rows: Any, applied: Callable[..., Applied], committed: Committed, repository_store: Any
) -> None:
    """An upload of equal content, a deletion of what is not there, and no change at all give the base itself."""
    base = rows.write(committed, rows.values(range(0, 1000, 2)))
    absent = dict.fromkeys(rows.values(range(1, 1000, 2)), TOMBSTONE)
    for put in ({}, rows.values(range(0, 1000, 2), place=9), absent, {b"a": TOMBSTONE, b"zzz": TOMBSTONE}):
        with committed.count() as counts, repository_store.count() as requests:
            result = applied(committed, base, put, clears=[(b"a", b"b"), (b"x", None)])
        assert result.ref is base
        assert (result.added, result.changed, result.removed) == (0, 0, 0)
        assert counts.ranges_written == requests.put == 0
    assert applied(committed, committed.empty, absent).ref is committed.empty


def test_what_is_behind_the_last_range_reads_only_that(
    rows: Any, applied: Callable[..., Applied], committed: Committed
) -> None:
    """New paths behind all others go on where the last range ended for want of rows."""
    values = rows.values(range(1000))
    base = rows.write(committed, values)
    with committed.count() as counts:
        result = applied(committed, base, rows.values(range(1000, 1100)))
    assert (result.added, result.changed, result.removed) == (100, 0, 0)
    assert counts.ranges_read == 1
    assert result.ref.id == rows.write(committed, {**values, **rows.values(range(1000, 1100))}).id


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_edits_that_are_undone_leave_no_trace(
    seed: int, rows: Any, applied: Callable[..., Applied], committed: Committed
) -> None:
    """Whatever was put, changed and taken away in between, equal rows are the same metarange, by its id."""
    chance = random.Random(seed)
    values = rows.values(range(0, 2000, 2))
    base = ref = rows.write(committed, values)
    state = dict(values)
    for step in range(6):
        numbers = chance.sample(range(2000), chance.choice([1, 30, 700]))
        change = {path: chance.choice([TOMBSTONE, value]) for path, value in rows.values(numbers, tag=step).items()}
        state = {path: value for path, value in {**state, **change}.items() if value}
        ref = applied(committed, ref, change).ref
        assert ref.id == rows.write(committed, state).id
    undo = {path: values.get(path, TOMBSTONE) for path in {*values, *state}}
    undone = applied(committed, ref, undo).ref
    assert undone.id == base.id
    assert (undone.entry_count, undone.range_count, undone.size_bytes) == (
        base.entry_count,
        base.range_count,
        base.size_bytes,
    )


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 17, 100_000])
def test_many_rows_between_two_neighbours(
    size: int, rows: Any, applied: Callable[..., Applied], committed: Committed
) -> None:
    """A load into one place, in batches of any size, reads the range around it and no other."""
    values = rows.values([*range(500), *range(9000, 9500)])
    base = rows.write(committed, values)
    new = rows.values(range(500, 3000))
    with committed.count() as counts:
        result = applied(committed, base, new, size=size)
    assert (result.added, result.changed, result.removed) == (2500, 0, 0)
    assert counts.ranges_read <= 2
    assert result.ref.id == rows.write(committed, {**values, **new}).id


def test_changes_that_are_no_changes_are_a_bug(rows: Any, committed: Committed) -> None:
    """Rows out of order or of another form are refused, not applied in part."""
    base = rows.write(committed, rows.values(range(100)))
    value = next(iter(rows.values([1]).values()))
    for batches in ([rows_of([b"b"], [value]), rows_of([b"a"], [value])], [rows_of([b"a"], [value]).select(["path"])]):
        with pytest.raises(InternalError):
            apply_changes(committed, base, Changes((), lambda batches=batches: iter(batches)))


@pytest.mark.parametrize(
    "clears", [[(b"m", b"a")], [(b"b", b"c"), (b"a", b"b")], [(b"a", b"z"), (b"b", b"c")], [(b"a", None), (b"b", b"c")]]
)
def test_clears_may_touch_overlap_or_be_empty(
    clears: list[tuple[bytes, bytes | None]], rows: Any, applied: Callable[..., Applied], committed: Committed
) -> None:
    """Stretches mean the union of what they hold, in whatever order and form they come."""
    value = next(iter(rows.values([1]).values()))
    values = {bytes([letter]): value for letter in b"abcdefgz"}
    base = rows.write(committed, values)
    expected = {
        path: value
        for path, value in values.items()
        if not any(start <= path and (end is None or path < end) for start, end in clears)
    }
    assert rows.read(committed.open(applied(committed, base, clears=clears).ref)) == expected


@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(16, 40))])
def test_faults_and_crashes_leave_whole_metaranges(seed: int, rows: Any, opened_on: Callable[..., Committed]) -> None:
    """Under any faults a metarange that was returned, or that is in the store, names only objects that are there."""
    inner = open_store(f"memory://{uuid.uuid4().hex}")
    values = rows.values(range(120))
    base = rows.write(opened_on(inner), values)
    change = {**rows.values(range(0, 200, 9), tag=1), **dict.fromkeys(rows.values([4, 50]), TOMBSTONE)}
    expected = {path: value for path, value in {**values, **change}.items() if value}
    scheduler = Scheduler(
        seed, faults=FaultRates(error_before=0.03, lost_request=0.03, lost_reply=0.05, late=0.03, crash=0.02)
    )
    store, returned = scheduler.store(inner), []

    def work(name: str) -> None:
        committed = opened_on(store, environment=scheduler.environment())
        for _ in range(20):
            try:
                returned.append(apply_changes(committed, base, Changes((), lambda: rows.batches(change, size=5))).ref)
            except LakebedError:
                continue
            return

    for name in ("a", "b"):
        scheduler.spawn(name, lambda name=name: work(name))
    scheduler.run()
    for ref in returned:
        assert rows.read(opened_on(inner).open(ref)) == expected
        assert inner.head(metarange_path(ref.file.id)).size_bytes == ref.file.size_bytes
    assert len({ref.id for ref in returned}) <= 1
    assert {entry.path for entry in inner.list("metaranges")} >= {metarange_path(ref.file.id) for ref in returned}
    for ref in [base, *returned]:
        for part in opened_on(inner).open(ref).ranges():
            assert inner.head(range_path(part.file.id)).size_bytes == part.file.size_bytes
