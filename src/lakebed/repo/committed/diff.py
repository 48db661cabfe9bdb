"""The difference of two metaranges.

Owns: which rows differ. Invariants: rows are compared by path and identity, never by address or time. Ranges that both
sides share are not read. The difference is computed lazily, window by window, in bounded memory, so a caller that needs
only the first row reads one window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.bounded_cache import BoundedCache
from lakebed.repo.committed.segment_rows import rows_of_segments
from lakebed.repo.committed.segments import cut_segments
from lakebed.repo.committed.store import Committed
from lakebed.repo.committed.windows import FIRST_ROW_COUNT, Positions, match_paths, order_of, same, side_by_side
from lakebed.repo.model.entry import identities
from lakebed.repo.model.model import DIFF_SCHEMA, DiffKind, MetarangeRef
from lakebed.repo.model.rows import clip_rows

DIFF_BYTES_MAX: Final = 1 << 20
"""Most bytes of a difference that is kept."""

_BATCH_BYTES: Final = 2_048
"""Bytes of a batch in addition to its columns."""


def diff_metaranges(
    committed: Committed,
    left: MetarangeRef,
    right: MetarangeRef,
    *,
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """The changes from left to right.

    Args:
        start, end: only paths in [start, end); None: open.

    Returns:
        Batches of `DIFF_SCHEMA`, lazily, none empty, sorted by path, each path once.

    Raises:
        Corruption: an object of one of them is damaged, or gone.
    Cost: the ranges that only one side has, and of those only the blocks with paths in [start, end); nothing when the
        ids are equal, or when a small difference of the same two was taken to its end before (`Committed.diffs`).
        About 0.4 us a row that is read; a window of rows a side and a few ranges read ahead are held.
    """
    if left.id == right.id:
        return
    cached = committed.diffs.get((left.id, right.id))
    if cached is not None:
        yield from _clip(cached, start, end)
        return
    differences = _differences(committed, (left, right), start=start, end=end)
    if start is not None or end is not None:
        yield from differences
    else:
        yield from _remember(differences, committed.diffs, (left.id, right.id))


def has_difference(
    committed: Committed,
    left: MetarangeRef,
    right: MetarangeRef,
    *,
    start: bytes | None = None,
    end: bytes | None = None,
) -> bool:
    """Whether anything differs in [start, end), None: open. Cost: as `diff_metaranges` up to its first row."""
    return next(diff_metaranges(committed, left, right, start=start, end=end), None) is not None


def _clip(batches: Iterable[pa.RecordBatch], start: bytes | None, end: bytes | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch if start is None and end is None else clip_rows(batch, start=start, end=end)
        if rows.num_rows:
            yield rows


def _remember(
    differences: Iterator[pa.RecordBatch], cache: BoundedCache, ids: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Pass the batches on. If all of them were read and they are small, keep them."""
    batches: list[pa.RecordBatch] | None = []
    size_bytes = 0
    for batch in differences:
        if batches is not None:
            size_bytes += batch.get_total_buffer_size() + _BATCH_BYTES
            batches = None if size_bytes > DIFF_BYTES_MAX else [*batches, batch]
        yield batch
    if batches is not None:
        cache.put(ids, tuple(batches), size_bytes=size_bytes)


def _differences(
    committed: Committed, sides: tuple[MetarangeRef, MetarangeRef], *, start: bytes | None, end: bytes | None
) -> Iterator[pa.RecordBatch]:
    """Compare segment by segment. Windows continue to grow from one segment to the next."""
    metaranges = [committed.open(ref) for ref in sides]
    segments = (
        segment
        for segment in cut_segments([metarange.ranges() for metarange in metaranges])
        if segment.ids[0] != segment.ids[1] and segment.overlaps(start, end)
    )
    row_count = FIRST_ROW_COUNT
    for _, rows in rows_of_segments(committed.files, metaranges, segments, start=start, end=end):
        for left, right in side_by_side(rows, first_row_count=row_count):
            row_count = max(row_count, left.num_rows, right.num_rows)
            batch = diff_rows(left, right)
            if batch.num_rows:
                yield batch


def diff_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """The changes from one batch of `ROWS_SCHEMA` to another. Both must be sorted, with each path once.

    Returns:
        A batch of `DIFF_SCHEMA`, sorted, perhaps empty.
    Cost: about 0.1 us a row if both have the same paths, else 0.4 us.
    """
    places = match_paths(left.column(0), right.column(0))
    matches = places >= 0
    changed_places = np.flatnonzero(matches & ~same(identities(left.column(1)), identities(right.column(1)), places))
    removed_places = np.flatnonzero(~matches)
    alone = np.ones(right.num_rows, np.bool_)
    alone[places[matches]] = False
    added_places = np.flatnonzero(alone)
    left_rows = np.concatenate([changed_places, removed_places, np.full(len(added_places), -1)])
    right_rows = np.concatenate([places[changed_places], np.full(len(removed_places), -1), added_places])
    kinds = np.repeat(
        np.array([DiffKind.CHANGED, DiffKind.REMOVED, DiffKind.ADDED], np.uint8),
        [len(changed_places), len(removed_places), len(added_places)],
    )
    parts = [
        left.column(0).take(pa.array(np.concatenate([changed_places, removed_places]))),
        right.column(0).take(pa.array(added_places)),
    ]
    paths = pa.concat_arrays(parts)
    is_one_kind = (
        sum(len(part) > 0 for part in (changed_places, removed_places, added_places)) <= 1
    )  # then they are in order
    order = None if is_one_kind else order_of(paths)
    if order is not None:
        paths = paths.take(pa.array(order))
        kinds, left_rows, right_rows = kinds[order], left_rows[order], right_rows[order]
    columns = [paths, pa.array(kinds), _values_at(left, left_rows), _values_at(right, right_rows)]
    return pa.RecordBatch.from_arrays(columns, schema=DIFF_SCHEMA)


def _values_at(rows: pa.RecordBatch, positions: Positions) -> pa.BinaryArray:
    """The values of the rows at these positions; null for no row."""
    return rows.column(1).take(pa.array(positions, mask=positions < 0))
