"""Differences of two metaranges: what they say, what they read, what is remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Corruption
from lakebed.repo.committed import diff as diffing
from lakebed.repo.committed import segment_rows, windows
from lakebed.repo.committed.diff import diff_metaranges, has_difference
from lakebed.repo.committed.segments import cut_segments
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.layout import range_path
from lakebed.repo.model.model import DIFF_SCHEMA, DiffKind, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.runtime import Environment
from worlds.repo.states import entry_value, many, open_committed, write_state

X, Y = entry_value("x"), entry_value("y")


@pytest.fixture
def committed() -> Iterator[Committed]:
    """A repository in memory, with small ranges."""
    with open_committed() as opened:
        yield opened


def listed(
    committed: Committed, left: MetarangeRef, right: MetarangeRef, **bounds: Any
) -> list[tuple[bytes, DiffKind, bytes | None, bytes | None]]:
    """All differences, in order."""
    rows = []
    for batch in diff_metaranges(committed, left, right, **bounds):
        assert batch.schema.equals(DIFF_SCHEMA)
        assert batch.num_rows
        rows += [(row["path"], DiffKind(row["kind"]), row["left"], row["right"]) for row in batch.to_pylist()]
    return rows


def changed(state: Mapping[bytes, bytes], **news: bytes | None) -> dict[bytes, bytes]:
    """A state with other entries at paths ``f/<number>``, None: without the path."""
    new = {**state, **{f"f/{key.strip('_')}".encode(): value for key, value in news.items()}}  # type: ignore[dict-item]
    return {path: value for path, value in new.items() if value is not None}


def test_added_changed_and_removed_in_the_order_of_paths(committed: Committed) -> None:
    """Every difference is there once, with both its entries, sorted by path."""
    left = write_state(committed, {b"a": X, b"b": X, b"c": X, b"e": X})
    right = write_state(committed, {b"a": X, b"b": Y, b"d": X, b"e": X, b"f": Y})
    assert listed(committed, left, right) == [
        (b"b", DiffKind.CHANGED, X, Y),
        (b"c", DiffKind.REMOVED, X, None),
        (b"d", DiffKind.ADDED, None, X),
        (b"f", DiffKind.ADDED, None, Y),
    ]


def test_an_entry_elsewhere_is_no_difference(committed: Committed) -> None:
    """Entries are compared by identity: the same bytes uploaded again, to another address, changed nothing."""
    left = write_state(committed, {b"a": entry_value("x", place=1), b"b": X})
    right = write_state(committed, {b"a": entry_value("x", place=2), b"b": X})
    assert left.id != right.id
    assert listed(committed, left, right) == []
    assert not has_difference(committed, left, right)


def test_the_same_entry_at_another_path_is_a_difference(committed: Committed) -> None:
    """Paths are compared, not only what they hold: a renamed file is removed and added."""
    left, right = write_state(committed, {b"a": X}), write_state(committed, {b"b": X})
    assert [row[:2] for row in listed(committed, left, right)] == [
        (b"a", DiffKind.REMOVED),
        (b"b", DiffKind.ADDED),
    ]


def test_from_nothing_and_to_nothing(committed: Committed) -> None:
    """The empty metarange, which has no file, is a side like any other."""
    state = many(100)
    ref = write_state(committed, state)
    assert [row[0] for row in listed(committed, committed.empty, ref)] == sorted(state)
    assert {row[1] for row in listed(committed, ref, committed.empty)} == {DiffKind.REMOVED}
    assert listed(committed, committed.empty, committed.empty) == []


def test_bounds_are_half_open_and_read_nothing_outside(committed: Committed) -> None:
    """Only paths in [start, end) are compared, and ranges outside are not opened."""
    left, right = write_state(committed, many(500)), write_state(committed, many(500, Y))
    with committed.count() as counts:
        rows = listed(committed, left, right, start=b"f/000100", end=b"f/000103")
    assert [row[0] for row in rows] == [b"f/000100", b"f/000101", b"f/000102"]
    assert counts.ranges_read <= 4
    assert listed(committed, left, right, start=b"g") == []
    assert listed(committed, left, right, end=b"f/") == []
    assert len(listed(committed, left, right, start=b"f/000498")) == 2


def test_ranges_in_common_are_not_read(committed: Committed) -> None:
    """One changed path costs the range it is in, on each side."""
    state = many(1_000)
    left, right = write_state(committed, state), write_state(committed, changed(state, _000500=Y))
    assert left.range_count > 50
    with committed.count() as counts:
        assert [row[0] for row in listed(committed, left, right)] == [b"f/000500"]
    assert counts.ranges_read == 2
    with committed.count() as counts:
        assert listed(committed, left, left) == []
    assert counts.ranges_read == 0


def test_the_first_difference_costs_few_ranges(committed: Committed) -> None:
    """A difference is made while it is taken: to know whether there is one, little is read."""
    left, right = write_state(committed, many(2_000)), write_state(committed, many(2_000, Y))
    with committed.count() as counts:
        assert has_difference(committed, left, right)
    assert counts.ranges_read == 2
    assert left.range_count > 100


def test_a_small_difference_is_remembered(committed: Committed) -> None:
    """The difference of two metaranges, once taken to its end, is not computed again; nor is any part of it."""
    state = many(1_000)
    left = write_state(committed, state)
    right = write_state(committed, changed(state, _000500=Y, _000700=None, _000800x=X))
    before = listed(committed, left, right)
    with committed.count() as counts:
        assert listed(committed, left, right) == before
        assert listed(committed, left, right, start=b"f/0006", end=b"f/0008") == before[1:2]
        assert listed(committed, left, right, start=b"f/0009") == []
    assert counts.ranges_read == 0
    assert [row[1] for row in listed(committed, right, left)] == [DiffKind.CHANGED, DiffKind.ADDED, DiffKind.REMOVED]


def test_a_difference_that_was_not_taken_to_its_end_is_not_remembered(committed: Committed) -> None:
    """What is remembered is complete, wherever an earlier diff stopped, and however small a part was asked for."""
    left, right = write_state(committed, many(800)), write_state(committed, many(800, Y))
    assert next(diff_metaranges(committed, left, right)).num_rows < 800
    assert len(listed(committed, left, right, start=b"f/000799")) == 1
    assert committed.diffs.count == 0
    assert len(listed(committed, left, right)) == 800
    assert committed.diffs.count == 1


def test_a_missing_range_is_corruption(committed: Committed) -> None:
    """A deleted range is reported as missing, with its path; its paths are not reported as removed."""
    left, right = write_state(committed, many(100)), write_state(committed, many(100, Y))
    lost = range_path(committed.open(right).ranges()[1].file.id)
    committed.files.store.delete([lost])
    with pytest.raises(Corruption) as caught:
        listed(committed, left, right)
    assert caught.value.facts["path"] == lost


def test_memory_is_bounded_where_no_cut_is_shared(committed: Committed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two states without a common path may be one segment: they are still compared in windows, and not held."""
    monkeypatch.setattr(windows, "READ_AHEAD_BYTES", 128 << 10)
    monkeypatch.setattr(windows, "WINDOW_ROW_COUNT", 512)
    monkeypatch.setattr(segment_rows, "_AHEAD_ROWS_MAX", 500)
    monkeypatch.setattr(diffing, "DIFF_BYTES_MAX", 0)
    refs = []
    for first, count in ((0, 31), (1, 37)):
        options = RangeOptions(entry_count_min=count, entry_count_max=count)
        other = Committed(committed.files.store, options=options, environment=Environment())
        state = {f"f/{number:06}".encode(): entry_value(number) for number in range(first, 20_000, 2)}
        refs.append(write_state(other, state))
        other.close()
    left, right = refs
    segments = list(cut_segments([committed.open(ref).ranges() for ref in (left, right)]))
    assert len(segments) < 50
    before, row_count, peak = pa.total_allocated_bytes(), 0, 0
    for batch in diff_metaranges(committed, left, right):
        row_count += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert row_count == 20_000
    assert peak < 700_000
    assert sum(len(entry_value(number)) for number in range(20_000)) > 3 * 700_000 // 2
