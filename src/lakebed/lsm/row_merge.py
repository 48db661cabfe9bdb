"""Merging sorted sources row by row, for windows of so few rows that setting up columns would cost more.

Owns: the conversion of a batch to Python rows, and the grouping of the versions of a few keys. Invariant: the result is
that of `lakebed.lsm.merge`; `lakebed.lsm.resolve` interprets both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from lakebed.lsm.columns import keys_of, numbers_of
from lakebed.lsm.model import Row


def rows_of_batch(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch of `ROW_SCHEMA`, in its order. Cost: about 10 us, and 0.4 us for each row."""
    keys, sequences, kinds, values, expires = batch.columns
    ends = [None] * len(keys) if expires.null_count == len(keys) else expires.to_pylist()
    columns = (keys_of(keys), numbers_of(sequences).tolist(), numbers_of(kinds).tolist(), keys_of(values), ends)
    return list(map(Row._make, zip(*columns, strict=True)))


def newest_first(rows: list[Row]) -> None:
    """Sort the rows of one key from several sources, newest first. Of rows with equal sequences an operand is last."""
    rows.sort(key=lambda row: (-row.sequence, row.kind))


def merge_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, list[Row]]]:
    """Yield the rows of all batches by key: keys ascending, the versions of each key newest first."""
    rows = [row for batch in batches for row in rows_of_batch(batch)]
    rows.sort(key=itemgetter(0))
    for key, group in groupby(rows, itemgetter(0)):
        versions = list(group)
        if len(versions) > 1:
            newest_first(versions)
        yield key, versions
