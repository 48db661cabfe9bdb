"""The staged rows of tokens, and their combined changes: tokens are layers, newest first.

Owns: reading a token's rows from a snapshot, and the effect of a ``clears``: it hides everything below its prefix in
every older layer, and nothing in its own token. Cleared stretches are never read: they are cut out of the ranges that
are read from older layers.

Invariants: all rows are of one key-value snapshot. Rows stay columns; no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

import lakebed.compute as pc
from lakebed.key_value.port import KEY_BYTES_MAX, KeyValueSnapshot
from lakebed.repo.committed.apply import Changes
from lakebed.repo.model.model import ROWS_SCHEMA, StagingToken
from lakebed.repo.model.rows import Interval, gather_batches, join_intervals, overlay, prefix_range
from lakebed.repo.records.context import RepositoryContext

Bounds = tuple[bytes | None, bytes | None]
"""As `Interval`, but the start may also be None: from the first path."""

Rows = Callable[[bytes | None, bytes | None], Iterator[pa.RecordBatch]]
"""Rows of a range ``[start, end)``, as batches of `ROWS_SCHEMA`, sorted, each path once."""


def clears_of(tokens: Iterable[StagingToken]) -> tuple[Interval, ...]:
    """The intervals that tokens hide in the layers below them, sorted and disjoint. Cost: a sort."""
    return join_intervals(prefix_range(token.clears.encode()) for token in tokens if token.clears is not None)


def cut_intervals(start: bytes | None, end: bytes | None, cleared: Sequence[Interval]) -> list[Bounds]:
    """Cut sorted, disjoint intervals out of a range. Returns the remaining ranges in order, none empty."""
    bounds_left: list[Bounds] = []
    for low, high in cleared:
        if end is not None and low >= end:
            break
        if low > (start or b""):
            bounds_left.append((start, low))
        if high is None:
            return bounds_left
        start = max(start or b"", high)
    if end is None or (start or b"") < end:
        bounds_left.append((start, end))
    return bounds_left


def is_cleared(path: bytes, cleared: Sequence[Interval]) -> bool:
    """Whether a path is in one of the intervals."""
    return any(low <= path and (high is None or path < high) for low, high in cleared)


def scan_token(
    context: RepositoryContext,
    snapshot: KeyValueSnapshot,
    token: StagingToken,
    *,
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one token with paths in ``[start, end)``, tombstones included, as batches of `ROWS_SCHEMA`.

    Cost: 1 scan of the key-value store, about 15 ns a row.
    """
    first, last = prefix_range(context.keys.token(token.id))
    for batch in gather_batches(snapshot.scan_arrow(first + (start or b""), last if end is None else first + end)):
        # Without a stop, pyarrow 26 computes a negative size for columns whose values are little more than the prefix.
        paths = pc.binary_slice(batch.column(0), len(first), KEY_BYTES_MAX)
        yield pa.RecordBatch.from_arrays([paths, batch.column(1)], schema=ROWS_SCHEMA)


def token_sources(
    context: RepositoryContext,
    snapshot: KeyValueSnapshot,
    tokens: Sequence[StagingToken],
    *,
    below: Rows | None = None,
    start: bytes | None = None,
    end: bytes | None = None,
) -> list[Iterator[pa.RecordBatch]]:
    """The rows of every layer that the layers above it do not hide, in ``[start, end)``.

    Args:
        tokens: newest first.
        below: the layer under them; None: it is not read.

    Returns:
        One source for each token, newest first, then that of `below`; for `lakebed.repo.model.rows.overlay`. Nothing is
        read yet.
    """

    def of_token(token: StagingToken) -> Rows:
        return lambda low, high: scan_token(context, snapshot, token, start=low, end=high)

    sources: list[Iterator[pa.RecordBatch]] = []
    clearing: list[StagingToken] = []
    bounds_left = cut_intervals(start, end, ())
    for token in tokens:
        sources.append(_of_ranges(of_token(token), bounds_left))
        if token.clears is not None:
            clearing.append(token)
            bounds_left = cut_intervals(start, end, clears_of(clearing))
    if below is not None:
        sources.append(_of_ranges(below, bounds_left))
    return sources


def _of_ranges(rows: Rows, ranges: Sequence[Bounds]) -> Iterator[pa.RecordBatch]:
    for start, end in ranges:
        yield from rows(start, end)


def changes_of(context: RepositoryContext, snapshot: KeyValueSnapshot, tokens: Sequence[StagingToken]) -> Changes:
    """The combined changes of tokens to the layers below them.

    Args:
        snapshot: for complete changes, taken after the tokens were sealed. Keep it open while rows are read.
        tokens: newest first.

    Cost: none until the rows are read. They can be read more than once.
    """
    return Changes(clears=clears_of(tokens), rows=lambda: overlay(token_sources(context, snapshot, tokens)))
