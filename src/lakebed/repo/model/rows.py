"""Sorted rows of paths and values: overlay and cut them, and convert them to and from the rows of sorted files.

Owns: the result of reading a stack of layers. Invariants: rows are batches of `ROWS_SCHEMA`, sorted, each path once in
a source. For each path, the newest source that has it decides, with an entry or a tombstone. `lakebed.lsm.merge` bounds
the memory. No row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.kv.ranges import prefix_end
from lakebed.lsm.block import offsets_of
from lakebed.lsm.merge import Part, Window, cut_windows
from lakebed.lsm.model import ROW_SCHEMA, Kind
from lakebed.lsm.resolve import visible
from lakebed.lsm.sort import KeyColumn
from lakebed.repo.model.model import ROWS_SCHEMA

GATHERED_ROW_COUNT: Final = 8_192
"""Most rows of a gathered batch: some megabytes."""

Interval = tuple[bytes, bytes | None]
"""Half-open range of paths or keys. An end of None means up to the last."""


def overlay(sources: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Overlay sorted sources: for every path, return the row of the newest source that has it.

    Args:
        sources: newest first. Each has batches of `ROWS_SCHEMA`, sorted within and across batches, each path once.

    Returns:
        Batches of `ROWS_SCHEMA`, none empty, sorted, each path once, tombstones included. The first batches need only a
        few rows of every source. Rows of a single source are passed on without a copy.

    Cost: about 0.05 us a row where sources do not overlap, 0.3 us where they do; memory as
    `lakebed.lsm.merge.cut_windows`.
    """
    layers = [layer for layer in map(_begin, sources) if layer is not None]
    if len(layers) == 1:
        yield from layers[0]
        return
    newest = len(layers)
    for window in cut_windows([_parts(layer, newest - age) for age, layer in enumerate(layers)]):
        yield from _newest(window)


def _begin(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches of a source that are not empty; None: there are none.

    Reads the first batch: usually only one layer has rows in a stretch, and then no overlay is needed.
    """
    batches = (batch for batch in source if batch.num_rows)
    first = next(batches, None)
    return None if first is None else chain((first,), batches)


def _parts(source: Iterable[pa.RecordBatch], sequence: int) -> Iterator[Part]:
    for batch in source:
        yield Part(lsm_rows(batch, sequence=sequence), True, batch.get_total_buffer_size())


def _newest(window: Window) -> Iterator[pa.RecordBatch]:
    """The newest row of every path of a window."""
    parts = window.parts_in_order()
    if parts is not None:
        yield from (path_rows(part.rows) for part in parts)
        return
    # These rows never expire and are not combined. Tombstones of paths are rows like others, with an empty value.
    for batch in visible(window.merge_parts(), sequence=None, now_ms=0, operator=None).to_batches():
        yield pa.RecordBatch.from_arrays(batch.columns, schema=ROWS_SCHEMA)


def prefix_range(prefix: bytes) -> Interval:
    """The half-open range of the paths or keys that begin with a prefix. An end of None means up to the last."""
    return prefix, prefix_end(prefix)


def join_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Join half-open ranges to as few as possible: sorted, disjoint, not touching, none empty. Cost: a sort."""
    spans: list[Interval] = []
    for start, end in sorted(intervals, key=lambda interval: interval[0]):
        if end is not None and start >= end:
            continue
        before = spans[-1][1] if spans else b""
        if spans and (before is None or start <= before):
            spans[-1] = (spans[-1][0], None if before is None or end is None else max(before, end))
        else:
            spans.append((start, end))
    return tuple(spans)


def without_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are entries; the batch itself if all are. Cost: about 2 ns a row, 20 ns if some are not."""
    if not batch.num_rows:
        return batch
    present = np.diff(offsets_of(batch.column(1))) > 0
    return batch if present.all() else batch.filter(pa.array(present))


def gather_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gather rows in fewer batches, because handling a batch costs some 10 us.

    The first batch is unchanged, so that a caller that wants few rows does not wait for many. Each next batch has up to
    twice as many rows, up to `GATHERED_ROW_COUNT`. Cost: a copy.
    """
    pending: list[pa.RecordBatch] = []
    held_count = wanted_count = 0
    for batch in batches:
        pending.append(batch)
        held_count += batch.num_rows
        if held_count >= wanted_count:
            yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)
            wanted_count = min(2 * held_count, GATHERED_ROW_COUNT)
            pending, held_count = [], 0
    if pending:
        yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)


def clip_rows(batch: pa.RecordBatch, *, start: bytes | None = None, end: bytes | None = None) -> pa.RecordBatch:
    """A view of the rows with paths in [start, end); None: open. Cost: some 10 us, whatever the size."""
    paths = KeyColumn(batch.column(0))
    low = 0 if start is None else paths.lower_bound(start)
    high = batch.num_rows if end is None else paths.lower_bound(end)
    return batch.slice(low, max(high - low, 0))


def rows_of(paths: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """A batch of `ROWS_SCHEMA` from Python bytes. There must be as many values as paths."""
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.binary()), pa.array(values, pa.binary())], schema=ROWS_SCHEMA)


def lsm_rows(batch: pa.RecordBatch, *, sequence: int = 0) -> pa.RecordBatch:
    """Rows of `ROWS_SCHEMA` as rows of sorted files (`lakebed.lsm.model.ROW_SCHEMA`), all with one sequence number.

    Paths and values are shared, not copied. Cost: some 10 us, 2 ns a row.
    """
    count = batch.num_rows
    columns = [
        batch.column(0),
        pa.array(np.full(count, sequence, np.uint64)),
        pa.array(np.full(count, int(Kind.PUT), np.uint8)),
        batch.column(1),
        pa.nulls(count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def path_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of sorted files as rows of `ROWS_SCHEMA`: views of the same bytes."""
    return pa.RecordBatch.from_arrays([batch.column(0), batch.column(3)], schema=ROWS_SCHEMA)
