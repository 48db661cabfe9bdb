"""Where ranges break, what is taken over, and in which order things become durable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption, InternalError, InvalidRequest, Unavailable
from lakebed.repo.committed.store import EMPTY_METARANGE, Committed
from lakebed.repo.model.entry import SIZE_BYTES_MAX, encode_entries
from lakebed.repo.model.layout import metarange_path, range_path
from lakebed.repo.model.model import TOMBSTONE, Entry
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.testing import RecordingStore
from lakebed.testing.faulty import Fault, FaultyStore
from worlds.errors import raises


@pytest.mark.parametrize(
    "options",
    [
        RangeOptions(entry_count_min=1, raggedness=1, entry_count_max=9),
        RangeOptions(entry_count_min=5, raggedness=20, entry_count_max=30),
        RangeOptions(entry_count_min=50, raggedness=20, entry_count_max=60),
        RangeOptions(entry_count_min=3, raggedness=20, entry_count_max=1000, bytes_max=2000),
        RangeOptions(entry_count_min=9, raggedness=10, entry_count_max=4),
    ],
    ids=["every", "usual", "rare", "bytes", "maximum-below-minimum"],
)
def test_ranges_break_by_the_rules(
    options: RangeOptions, rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Every range but the last ends at the first path at which a rule holds; the last says that it is open."""
    committed = opened_on(repository_store, options=options)
    values = rows.values(range(1500 if options.raggedness > 1 else 300))
    ranges = committed.open(rows.write(committed, values)).ranges()
    paths = sorted(values)
    start = 0
    for part in ranges:
        count = size = 0
        for path in paths[start:]:
            count, size = count + 1, size + len(path) + len(values[path])
            by_hash = xxh3_64_intdigest(path) % options.raggedness == 0 and count >= options.entry_count_min
            if by_hash or count >= options.entry_count_max or size >= options.bytes_max:
                break
        else:
            assert part.ends_open
        assert (part.file.first_key, part.file.last_key) == (paths[start], paths[start + count - 1])
        assert part.entry_count == count
        start += count
    assert start == len(paths)
    assert [item.ends_open for item in ranges[:-1]] == [False] * (len(ranges) - 1)


@pytest.mark.parametrize("bytes_max", [(1 << 30) + 1, 1 << 63])
def test_ranges_that_no_commit_could_write_are_refused(bytes_max: int) -> None:
    """A range of 2 GiB is more than Arrow joins: the option says so, not the commit that comes to it."""
    with raises(InvalidRequest, "invalid_option", match="bytes_max"):
        RangeOptions(bytes_max=bytes_max)
    assert RangeOptions(bytes_max=1 << 30).bytes_max == 1 << 30


@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.long) for size in (1, 63)), 7, 100_000])
def test_how_rows_are_cut_into_batches_makes_no_difference(size: int, rows: Any, committed: Committed) -> None:
    """A metarange is a function of its rows."""
    values = rows.values(range(3000))
    ref = rows.write(committed, values, size=size)
    again = rows.write(committed, values, size=500)
    assert ref.id == again.id
    assert (ref.entry_count, ref.range_count) == (again.entry_count, again.range_count)
    assert ref.size_bytes == sum(number % 1000 for number in range(3000))
    assert rows.read(committed.open(ref)) == values


def test_an_object_is_taken_over_only_through_the_base(rows: Any, committed: Committed) -> None:
    """Equal ranges outside the base are written again, under names of their own; those of the base are named again."""
    values = rows.values(range(500))
    first, second = rows.write(committed, values), rows.write(committed, values)
    files = [{part.file.id for part in committed.open(ref).ranges()} for ref in (first, second)]
    assert not files[0] & files[1]
    assert [part.id for part in committed.open(first).ranges()] == [part.id for part in committed.open(second).ranges()]
    assert rows.write(committed, values, base=first) is first
    with committed.count() as counts:
        grown = rows.write(committed, {**values, **rows.values([777])}, base=first)
    assert counts.ranges_written == 1
    assert {part.file.id for part in committed.open(grown).ranges()[:-1]} <= files[0]


def test_a_range_right_behind_a_break_is_taken_over_unread(rows: Any, committed: Committed) -> None:
    """Taking over every range reads none and gives the same metarange, but for its file."""
    ref = rows.write(committed, rows.values(range(1000)))
    ranges = committed.open(ref).ranges()
    with committed.count() as counts:
        writer = committed.writer()
        for part in ranges:
            writer.reuse(part)
        again = writer.finish()
    assert (counts.ranges_read, counts.ranges_written) == (0, 0)
    assert again.id == ref.id
    assert committed.open(again).ranges() == ranges


def test_rows_before_a_range_are_written_with_it_up_to_the_next_break(rows: Any, committed: Committed) -> None:
    """Behind rows that no break has ended, a range is read in; from the next break on ranges are taken over again."""
    values = rows.values(range(10, 1000))
    ranges = committed.open(rows.write(committed, values)).ranges()
    added = rows.values([1])
    with committed.count() as counts:
        writer = committed.writer()
        for batch in rows.batches(added):
            writer.write_rows(batch)
        for part in ranges:
            writer.reuse(part)
        ref = writer.finish()
    assert (counts.ranges_read, counts.ranges_written) == (1, 1)
    assert ref.id == rows.write(committed, {**values, **added}).id


def test_what_comes_behind_an_open_end_goes_into_the_same_range(rows: Any, committed: Committed) -> None:
    """Rows that are added behind the last range, again and again, leave no trail of short ranges."""
    values: dict[bytes, bytes] = {}
    ref = committed.empty
    for start in range(0, 240, 3):
        added = rows.values(range(start, start + 3))
        values.update(added)
        writer = committed.writer(base=ref)
        with committed.count() as counts:
            for part in committed.open(ref).ranges():
                writer.reuse(part)
            for batch in rows.batches(added):
                writer.write_rows(batch)
            ref = writer.finish()
        assert counts.ranges_read <= 1
        assert counts.ranges_written <= 2
    assert ref.id == rows.write(committed, values).id


def test_an_insertion_near_the_front_leaves_later_ranges_shared(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Of many ranges, writing all rows with one more near the front writes one or two that the base has not."""
    options = dataclasses.replace(RangeOptions(), raggedness=500, entry_count_min=60)
    committed = opened_on(repository_store, options=options)
    values = rows.values(range(0, 40_000, 2))
    ref = rows.write(committed, values)
    assert ref.range_count > 20
    with committed.count() as counts:
        grown = rows.write(committed, {**values, **rows.values([31])}, base=ref)
    assert 1 <= counts.ranges_written <= 2
    shared = {part.file.id for part in committed.open(ref).ranges()} & {
        part.file.id for part in committed.open(grown).ranges()
    }
    assert len(shared) >= ref.range_count - 2


def test_what_is_named_is_durable_before_it_is_named(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """The metarange is put last, after all its ranges, all create-only, and all are synced before it is returned."""
    store = RecordingStore(repository_store)
    ref = rows.write(opened_on(store), rows.values(range(500)))
    puts = [item.call for item in store.trace if item.call.kind == "put"]
    ranges = opened_on(repository_store).open(ref).ranges()
    assert [call.path for call in puts[-1:]] == [metarange_path(ref.file.id)]
    assert {call.path for call in puts[:-1]} == {range_path(part.file.id) for part in ranges}
    assert all(call.create_only for call in puts)
    synced = {path for item in store.trace if item.call.kind == "sync" for path in item.call.paths}
    assert synced == {call.path for call in puts}


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("struck", range(8))
def test_a_store_that_fails_once_leaves_nothing_that_is_referred_to(
    fault: Fault, struck: int, rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Whichever request fails: an unclear put is settled, another is said, and the next try gives the same rows.

    A sync that failed is not asked for again, for the second may succeed although bytes are lost.
    """
    store = FaultyStore(repository_store, faults={struck: fault})
    committed, values = opened_on(store), rows.values(range(100))
    try:
        ref = rows.write(committed, values)
    except Unavailable:
        is_unsynced = bool(list(repository_store.list("metaranges")))
        assert fault is Fault.ERROR_BEFORE or is_unsynced
        ref = rows.write(committed, values)
    assert rows.read(opened_on(repository_store).open(ref)) == values


def test_rows_that_cannot_be_committed_are_a_bug(rows: Any, committed: Committed) -> None:
    """Unsorted rows, tombstones, other columns and overlapping ranges are refused before anything is written."""
    values = rows.values(range(100))
    part = committed.open(rows.write(committed, values)).ranges()[0]
    value = next(iter(values.values()))
    writer = committed.writer()
    writer.write_rows(rows_of([b"b"], [value]))
    with pytest.raises(InternalError, match="not sorted"):
        writer.write_rows(rows_of([b"b"], [value]))
    with pytest.raises(InternalError, match="tombstones"):
        committed.writer().write_rows(rows_of([b"a"], [TOMBSTONE]))
    writer = committed.writer()
    with pytest.raises(InternalError, match="columns"):
        writer.write_rows(rows_of([b"a"], [value]).rename_columns(["key", "value"]))
    writer = committed.writer()
    writer.reuse(part)
    with pytest.raises(InternalError, match="not sorted"):
        writer.reuse(part)
    writer = committed.writer()
    writer.write_rows(rows_of([b"b", b"a"], [value, value]))
    with pytest.raises(InternalError, match="not sorted"):
        writer.finish()


def test_nothing_is_a_metarange_without_a_file(rows: Any, committed: Committed, repository_store: Any) -> None:
    """No rows give the empty metarange, with no object, also as a change of one that has some."""
    assert committed.writer().finish() == EMPTY_METARANGE == committed.empty
    assert not list(repository_store.list())
    ref = rows.write(committed, rows.values(range(10)))
    assert committed.writer(base=ref).finish() == EMPTY_METARANGE
    assert committed.open(committed.empty).ranges() == ()


def test_sums_of_absurd_sizes_stop_at_the_largest_number(committed: Committed) -> None:
    """Sizes that imported objects are said to have neither wrap around nor make a record that cannot be written."""
    entries = [Entry(f"s3://b/{number}", 2**64 - 1 - number, "", 0) for number in range(40)]
    writer = committed.writer()
    writer.write_rows(rows_of([b"%03d" % number for number in range(40)], encode_entries(entries)))
    ref = writer.finish()
    assert ref.size_bytes == SIZE_BYTES_MAX
    assert all(part.size_bytes == SIZE_BYTES_MAX for part in committed.open(ref).ranges())
    negative = encode_entries([Entry("s3://b/k", -1, "", 0)])
    writer = committed.writer()
    writer.write_rows(rows_of([b"a"], negative))
    with pytest.raises(Corruption, match="its size is -1"):
        writer.finish()
