"""Windows over sorted sources: bounded, quick to begin, and without copies where nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lakebed.lsm import merge as module
from lakebed.lsm.merge import FIRST_ROW_COUNT, WINDOW_ROW_COUNT, Part, cut_windows, merge_windows
from lakebed.lsm.model import ROW_SCHEMA


def batch(keys: list[bytes], first_sequence: int = 1) -> pa.RecordBatch:
    """Puts of these keys."""
    count = len(keys)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(range(first_sequence, first_sequence + count), pa.uint64()),
            pa.array([0] * count, pa.uint8()),
            pa.array([b"v"] * count, pa.binary()),
            pa.nulls(count, pa.int64()),
        ],
        schema=ROW_SCHEMA,
    )


def numbered(low: int, high: int, step: int = 1, *, size: int = 500) -> list[pa.RecordBatch]:
    """Batches of the keys low, low + step, ..."""
    numbers = range(low, high, step)
    return [batch([b"%09d" % n for n in numbers[at : at + size]], 1 + at) for at in range(0, len(numbers), size)]


class Counted:
    """A source that counts what was taken from it."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.taken = 0
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.taken += 1
            yield batch


def test_no_sources_no_windows() -> None:
    """Nothing, or sources of nothing, give nothing."""
    assert list(merge_windows([])) == []
    assert list(merge_windows([iter([]), iter([batch([])])])) == []


def test_the_first_window_needs_one_batch_a_source() -> None:
    """The first row comes before a second batch was asked for."""
    sources = [Counted(numbered(start, 100_000, 4)) for start in range(4)]
    windows = merge_windows(sources)
    assert next(windows).num_rows > 4 * (500 - FIRST_ROW_COUNT)
    assert [source.taken for source in sources] == [1, 1, 1, 1]


@pytest.mark.parametrize("reverse", [False, True])
def test_reading_ahead_is_bounded(reverse: bool) -> None:
    """However much a source has, only a window's rows are held ahead of the caller."""
    batches = numbered(0, 400_000)
    source = Counted(batches[::-1] if reverse else batches)
    seen = 0
    for window in merge_windows([source], reverse=reverse):
        seen += window.num_rows
        assert source.taken * 500 - seen <= WINDOW_ROW_COUNT + 500
    assert seen == 400_000


def test_bytes_bound_a_window_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows make windows of fewer rows."""
    monkeypatch.setattr(module, "READ_AHEAD_BYTES", 100_000)
    source = Counted(numbered(0, 100_000))
    sizes = [window.num_rows for window in merge_windows([source])]
    assert max(sizes) < 5_000
    assert sum(sizes) == 100_000


@pytest.mark.parametrize("reverse", [False, True])
def test_sources_that_read_in_step_do_not_make_a_window_of_all_that_they_have_read(reverse: bool) -> None:
    """Eight sources show five hundred interleaved rows each, and no window has more than one and a half of its size."""
    sources = [[Part(rows, True, 50_000) for rows in numbered(start, 32_000, 8)] for start in range(8)]
    for source in sources if reverse else ():
        source.reverse()
    windows = list(cut_windows(sources, reverse=reverse, size_bytes=80_000))
    keys = [sorted(key for part in window.parts for key in part.rows.column(0).to_pylist()) for window in windows]
    assert [key for some in (keys[::-1] if reverse else keys) for key in some] == [b"%09d" % n for n in range(32_000)]
    assert max(sum(part.size_bytes for part in window.parts) for window in windows) <= 120_000
    assert len(windows) < 80


def test_what_sources_give_one_behind_another_is_not_cut_for_its_size() -> None:
    """Rows that are not copied anyway stay in the pieces in which they were read."""
    sources = [[Part(rows, True, 1 << 20) for rows in numbered(low, low + 2_000)] for low in (2_000, 0)]
    windows = list(cut_windows(sources, size_bytes=1 << 18))
    assert [window.row_count for window in windows if window.of_one_source and window.row_count >= 500][:3] == [500] * 3


def addresses(rows: pa.Table | pa.RecordBatch) -> set[int]:
    """Where the keys of some rows lie in memory."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return {batch.column(0).buffers()[2].address for batch in batches}


@pytest.mark.parametrize("reverse", [False, True])
def test_sources_that_do_not_overlap_are_not_copied(reverse: bool) -> None:
    """Rows of one source, and of sources one behind another, pass through as they lie in memory."""
    first, second = numbered(0, 5_000), numbered(5_000, 9_000)
    whole = {address for item in [*first, *second] for address in addresses(item)}
    sources = [first[::-1], second[::-1]] if reverse else [second, first]
    windows = list(merge_windows(sources, reverse=reverse))
    assert sum(window.num_rows for window in windows) == 9_000
    assert set().union(*map(addresses, windows)) <= whole


def test_all_versions_of_a_key_are_in_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with more versions than any batch, window or source holds is not torn apart."""
    monkeypatch.setattr(module, "WINDOW_ROW_COUNT", 16)
    versions = batch([b"m"] * 1_000).take(pa.array(range(999, -1, -1)))
    long = [batch([b"a"]), *(versions.slice(at, 10) for at in range(0, 1_000, 10)), batch([b"z"])]
    other = [batch([b"b", b"m", b"m\0"], 2_000)]
    windows = list(merge_windows([long, other]))
    holding = [window for window in windows if b"m" in window.column("key").to_pylist()]
    assert len(holding) == 1
    assert holding[0].column("key").to_pylist().count(b"m") == 1_001
    assert sum(window.num_rows for window in windows) == 1_005


def test_rows_too_large_for_one_column_are_merged_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the size that Arrow can concatenate, rows are put in order as slices."""
    monkeypatch.setattr(module, "CONCATENATED_BYTES_MAX", 100)
    keys = [b"%03d" % number for number in range(40)]
    windows = list(merge_windows([[batch(keys[::2])], [batch(keys[1::2], 100)]]))
    assert [key for window in windows for key in window.column("key").to_pylist()] == keys


def test_windows_keep_what_is_known_of_their_parts() -> None:
    """A part that is cut stays plain, and its size goes with its rows."""
    rows = batch([b"%03d" % number for number in range(100)])
    windows = list(
        cut_windows([[Part(rows, True, 1_000), Part(batch([b"x"]), True, 10)], [Part(batch([b"050"]), False, 10)]])
    )
    parts = [part for window in windows for part in window.parts]
    assert sum(part.rows.num_rows for part in parts) == 102
    assert [part.plain for part in parts].count(False) == 1
    assert sum(part.size_bytes for part in parts) == pytest.approx(1_020, abs=5)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_plain_part_of_the_only_source_is_not_cut(reverse: bool) -> None:
    """Its last key cannot go on, so no row of it waits; of another part the last key waits for what follows."""
    first, second = batch([b"a", b"b"]), batch([b"c", b"d"], 100)
    for plain in (True, False):
        parts = [Part(first, plain, 10), Part(second, plain, 10)]
        windows = list(cut_windows([parts[::-1] if reverse else parts], reverse=reverse, size_bytes=1))
        assert sum(window.row_count for window in windows) == 4
        assert [window.row_count for window in windows][:1] == [2 if plain else 1]
