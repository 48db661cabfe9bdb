"""Sorted rows laid over one another, cut, and turned round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.lsm.model import ROW_SCHEMA
from lakebed.repo.model.model import ROWS_SCHEMA
from lakebed.repo.model.rows import clip_rows, lsm_rows, overlay, path_rows, prefix_range, rows_of, without_tombstones

PATHS = st.one_of(st.binary(max_size=2), st.sampled_from([b"", b"a", b"a\0", b"a\0\0", b"\xff", b"\xff\xff"]))
LAYERS = st.lists(st.dictionaries(PATHS, st.binary(max_size=3), max_size=30), max_size=4)


def batches(rows: Mapping[bytes, bytes], size: int) -> Iterator[pa.RecordBatch]:
    """Rows in batches of a size, with an empty one before each."""
    paths = sorted(rows)
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        yield rows_of([], [])
        yield rows_of(some, [rows[path] for path in some])


def pairs(source: Iterator[pa.RecordBatch]) -> list[tuple[bytes, bytes]]:
    """Path and value of every row; none of the batches is empty."""
    result = []
    for batch in source:
        assert batch.num_rows
        assert batch.schema.equals(ROWS_SCHEMA)
        result += list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return result


@given(layers=LAYERS, size=st.sampled_from([1, 3, 100]))
def test_the_newest_layer_that_has_a_path_decides(layers: list[dict[bytes, bytes]], size: int) -> None:
    """Layers read as dictionaries would that are laid over one another; tombstones come out too."""
    expected: dict[bytes, bytes] = {}
    for layer in reversed(layers):
        expected.update(layer)
    assert pairs(overlay([batches(layer, size) for layer in layers])) == sorted(expected.items())


def test_what_one_source_has_alone_is_not_copied() -> None:
    """Rows that nothing lies over pass through as views of the same memory."""
    rows = [
        rows_of([b"%06d" % (number + at) for at in range(1000)], [b"v" * 100] * 1000) for number in range(0, 9000, 1000)
    ]
    places = {batch.column(1).buffers()[2].address for batch in rows}
    assert {batch.column(1).buffers()[2].address for batch in overlay([rows[:4], rows[4:]])} <= places
    assert {batch.column(1).buffers()[2].address for batch in overlay([rows])} == places


def test_the_first_rows_come_before_sources_are_read_to_their_ends() -> None:
    """Who wants the first rows of endless layers gets them."""
    taken = [0, 0]

    def endless(source: int) -> Iterator[pa.RecordBatch]:
        while True:
            taken[source] += 1
            yield rows_of([b"%09d" % (2 * taken[source] + source)], [b"v"])

    assert next(overlay([endless(0), endless(1)])).num_rows
    assert max(taken) < 100


@given(prefix=st.binary(max_size=4), path=st.binary(max_size=6))
def test_the_range_of_a_prefix_holds_what_begins_with_it(prefix: bytes, path: bytes) -> None:
    """A path is inside exactly when it begins with the prefix, whatever bytes it ends with."""
    start, end = prefix_range(prefix)
    assert (start <= path and (end is None or path < end)) == path.startswith(prefix)
    assert start <= prefix + path
    assert end is None or prefix + path < end


@given(rows=st.dictionaries(PATHS, st.binary(max_size=2)), start=st.none() | PATHS, end=st.none() | PATHS)
def test_rows_are_cut_at_paths(rows: dict[bytes, bytes], start: bytes | None, end: bytes | None) -> None:
    """What is left lies in the half-open range, also when that is empty or turned round."""
    batch = rows_of(sorted(rows), [rows[path] for path in sorted(rows)])
    kept = clip_rows(batch, start=start, end=end)
    expected = [path for path in sorted(rows) if (start is None or path >= start) and (end is None or path < end)]
    assert kept.column(0).to_pylist() == expected


@pytest.mark.parametrize("values", [[], [b"a"], [b""], [b"", b"a", b"", b"bb"]])
def test_tombstones_are_dropped(values: list[bytes]) -> None:
    """Only entries stay; a batch of entries alone is not copied."""
    batch = rows_of([b"%d" % number for number in range(len(values))], values)
    kept = without_tombstones(batch)
    assert kept.column(1).to_pylist() == [value for value in values if value]
    assert (kept is batch) == all(values)


def test_rows_of_files_are_rows_of_paths() -> None:
    """Rows go into files and come back, as views of the same memory."""
    batch = rows_of([b"a", b"b"], [b"1", b""])
    stored = lsm_rows(batch, sequence=7)
    assert stored.schema.equals(ROW_SCHEMA)
    assert stored.column(1).to_pylist() == [7, 7]
    assert path_rows(stored).equals(batch)
    assert path_rows(stored).column(0).buffers()[2].address == batch.column(0).buffers()[2].address
