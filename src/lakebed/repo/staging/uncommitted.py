"""The uncommitted changes of a branch: staged layers over the difference between its compacted metarange and its head.

Owns: the combination of the two, where later layers override earlier ones.

Invariant: a path differs exactly if the entry that the branch shows is not the same as the head's entry, whatever
happened in between. A path that was added and deleted again, changed and changed back, or removed and restored is not a
difference, in whichever layers that happened.

Method: only paths that some layer touches can differ. They come from three sources, which are read in parallel: rows of
the tokens; the difference between head and compacted metarange; and the head's own rows where a ``clears`` hides them.
For each window of paths, both states are assembled as columns and compared. Only the touched parts of the head are
read: the ranges that hold a staged path, and those below a cleared prefix.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Final

import pyarrow as pa

from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.columns import keys_of
from lakebed.lsm.merge import last_key
from lakebed.repo.committed.diff import diff_metaranges, diff_rows
from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.committed.windows import match_paths, order_of, side_by_side
from lakebed.repo.model.model import ROWS_SCHEMA, Branch, MetarangeRef, StagingToken
from lakebed.repo.model.rows import Interval, overlay, rows_of, without_tombstones
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.staging.changes import Bounds, clears_of, cut_intervals, token_sources

DENSE: Final = 8
"""If a range has fewer than so many entries for each staged path, its rows are read as columns, not path by path."""


def uncommitted(
    context: RepositoryContext,
    snapshot: KeyValueSnapshot,
    record: Branch,
    *,
    tokens: Sequence[StagingToken] | None = None,
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """The difference from a branch's head to what the branch shows.

    Args:
        snapshot: from a moment at which the record was as given. Keep it open while the result is read.
        tokens: the tokens to include, newest first; None: all, staging and sealed. The compacted metarange is always
            included.
        start, end: only paths in ``[start, end)``; None: open.

    Returns:
        Batches of `DIFF_SCHEMA`, none empty, sorted by path, each path once. ``left`` is the head's entry.

    Raises:
        Corruption: something stored is damaged.
        Conflict: ``version_went``: the state that is read was replaced, and has been collected since.
    Cost: 1 scan for each token; the ranges of the head that hold touched paths (3 us a path, 0.5 us where they are
        dense); and the difference between compacted metarange and head, which is cached if it is small.
    """
    if tokens is None:
        tokens = (record.staging, *record.sealed)
    head = load_commit(context, record.commit_id, snapshot=snapshot).metarange
    cleared = clears_of(tokens)
    metarange = context.committed.open(head)
    between, compacted_again = tee(_diff_compacted(context, head, record.compacted, cut_intervals(start, end, cleared)))
    sources = (
        overlay(token_sources(context, snapshot, tokens, start=start, end=end)),
        (_side(batch, "left") for batch in between),
        (_side(batch, "right") for batch in compacted_again),
        _below(metarange, cleared, start, end),
    )
    with explaining_missing(context, head, *([] if record.compacted is None else [record.compacted])):
        for staged_rows, before, compacted, hidden_rows in side_by_side(sources):
            known_rows = _sort([before, hidden_rows])
            unknown_rows = _without_paths_of(staged_rows, before)
            looked_up = _of_head(metarange, _outside(unknown_rows, cleared))
            left = _sort([known_rows, looked_up])
            right = _sort([staged_rows, _without_paths_of(compacted, staged_rows)])
            batch = diff_rows(without_tombstones(left), without_tombstones(right))
            if batch.num_rows:
                yield batch


def is_dirty(
    context: RepositoryContext,
    snapshot: KeyValueSnapshot,
    record: Branch,
    *,
    tokens: Sequence[StagingToken] | None = None,
) -> bool:
    """Whether there is any difference. Arguments and errors as `uncommitted`.

    Cost: as `uncommitted` up to the first difference. If nothing is staged, sealed or compacted, only tokens are read.
    """
    return next(uncommitted(context, snapshot, record, tokens=tokens), None) is not None


def _diff_compacted(
    context: RepositoryContext, head: MetarangeRef, compacted: MetarangeRef | None, ranges: Sequence[Bounds]
) -> Iterator[pa.RecordBatch]:
    """The difference between head and compacted metarange, where no ``clears`` hides it."""
    if compacted is not None:
        for start, end in ranges:
            yield from diff_metaranges(context.committed, head, compacted, start=start, end=end)


def _side(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """One side of a difference as rows, with a tombstone where it has no entry."""
    return pa.RecordBatch.from_arrays([batch.column("path"), batch.column(name).fill_null(b"")], schema=ROWS_SCHEMA)


def _below(
    metarange: Metarange, cleared: Sequence[Interval], start: bytes | None, end: bytes | None
) -> Iterator[pa.RecordBatch]:
    """The head's rows that a ``clears`` hides."""
    for low, high in cleared:
        first = low if start is None else max(low, start)
        last = high if end is None else end if high is None else min(high, end)
        if last is None or first < last:
            yield from metarange.rows(first or None, last)


def _without_paths_of(rows: pa.RecordBatch, other_rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose path the others do not have."""
    if not rows.num_rows or not other_rows.num_rows:
        return rows
    return rows.filter(pa.array(match_paths(rows.column(0), other_rows.column(0)) < 0))


def _outside(rows: pa.RecordBatch, cleared: Sequence[Interval]) -> list[bytes]:
    """The paths of rows outside of all intervals, ascending."""
    paths = keys_of(rows.column(0)) if rows.num_rows else []
    for low, high in reversed(cleared):
        del paths[bisect_left(paths, low) : len(paths) if high is None else bisect_left(paths, high)]
    return paths


def _of_head(metarange: Metarange, paths: list[bytes]) -> pa.RecordBatch:
    """The rows of some paths, ascending; missing paths are left out. Only ranges that may hold a path are read."""
    batches: list[pa.RecordBatch] = []
    position = 0
    ranges = metarange.ranges() if paths else ()
    last_paths = [meta.file.last_key for meta in ranges]
    while position < len(paths):
        number = bisect_left(last_paths, paths[position])
        if number == len(ranges):
            break
        range_meta = ranges[number]
        first = bisect_left(paths, range_meta.file.first_key, position)
        position = bisect_right(paths, range_meta.file.last_key, position)
        block_paths = paths[first:position]
        if len(block_paths) * DENSE > range_meta.entry_count:
            batches += _select_rows(
                metarange.rows_of(range_meta, start=block_paths[0], end=block_paths[-1] + b"\0"), block_paths
            )
        elif block_paths:
            values = metarange.get_many(block_paths)
            pairs = [(path, value) for path, value in zip(block_paths, values, strict=True) if value is not None]
            batches.append(rows_of([path for path, _ in pairs], [value for _, value in pairs]))
    return pa.concat_batches(batches) if batches else rows_of((), ())


def _select_rows(rows: Iterator[pa.RecordBatch], paths: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Select from sorted rows those with the given paths, which ascend."""
    position = 0
    for batch in rows:
        end = bisect_right(paths, last_key(batch), position)
        wanted_paths = pa.array(paths[position:end], pa.binary())
        position = end
        if len(wanted_paths):
            yield batch.filter(pa.array(match_paths(batch.column(0), wanted_paths) >= 0))


def _sort(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Sort the rows of batches that have no path in common."""
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return rows_of((), ())
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches(batches)
    order = order_of(rows.column(0))
    return rows if order is None else rows.take(pa.array(order))
