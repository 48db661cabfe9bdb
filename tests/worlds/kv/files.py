"""Log records and sorted files as plain rows, read whole and without any cache: what the monitor reads.

Owns: nothing but the way from bytes to rows. Checks what the formats check, and that the rows are in their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from lakebed.kv.wal_record import decode_record
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.model import FileMeta, Kind
from lakebed.objects.port import ObjectStore
from worlds.promise import PromiseBroken


class LoggedRow(NamedTuple):
    """A row as it is stored."""

    key: bytes
    sequence: int
    kind: Kind
    value: bytes
    expires_at_ms: int | None


class LoggedRecord(NamedTuple):
    """A log object: whose it is, and its rows in the order of writing; a fence has none."""

    epoch: int
    rows: list[LoggedRow]


def read_log_record(body: bytes, *, path: str) -> LoggedRecord:
    """The rows of a log object. Raises `Corruption`."""
    record = decode_record(body, path=path)
    return LoggedRecord(record.epoch, [] if record.rows is None else rows_of(record.rows))


def read_file(store: ObjectStore, path: str, *, meta: FileMeta) -> list[LoggedRow]:
    """All rows of a sorted file.

    Raises:
        Corruption: it is damaged, or not the file that `meta` tells of.
        PromiseBroken: it is whole, and its rows are not sorted by (key ascending, sequence descending).
    """
    reader = FileReader(store, path, meta=meta, cache=BlockCache(0))
    rows = [row for block in reader.batches(None, None) for row in rows_of(block.batch)]
    places = [(row.key, -row.sequence) for row in rows]
    if any(left >= right for left, right in pairwise(places)):
        raise PromiseBroken(f"the rows of {path} are not sorted")
    return rows


def rows_of(batch: pa.RecordBatch) -> list[LoggedRow]:
    """The rows of a batch of `ROW_SCHEMA`."""
    keys, sequences, kinds, values, ends = (column.to_pylist() for column in batch.columns)
    return [LoggedRow(*row) for row in zip(keys, sequences, map(Kind, kinds), values, ends, strict=True)]
