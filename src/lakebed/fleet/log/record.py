"""The bytes of a record of the log, and the chain of a timeline's records. Pure.

Format (version 1, little-endian, DO NOT CHANGE)::

    offset bytes
         0     8  checksum of the record before it; of the first record: xxh3-64 of ``<timeline> <after>``
         8     8  its own checksum: xxh3-64 of bytes 0 to 7 and 16 to 103
        16        a log record of a database (docs/format/wal.md): id is the LSN of the last row, epoch is 0, sequences
                  are LSNs

Invariants: the header of the inner record has the checksum of its rows, so a record's checksum stands for its bytes
and, through the one before it, for the whole history of the timeline. Two histories with the same checksum at an LSN
are equal. A record without rows is a fence of a database: it says after which LSN a timeline begins, or, with a
required feature, that it ends here. So a lakebed that does not know ends refuses such a timeline instead of appending.

Format page: docs/format/fleet-log.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from typing_extensions import Buffer

from lakebed.errors import Corruption
from lakebed.fleet.model import LogMark
from lakebed.kv.wal_record import FENCE_BYTES, decode_record, encode_fence, encode_record
from lakebed.lsm.model import ROW_SCHEMA, Kind

CHAIN_BYTES: Final = 16
"""Bytes before the inner record."""


class End(IntEnum):
    """Whether a timeline has ended, and how. Stored: DO NOT CHANGE."""

    OPEN = 0
    SEALED = 1
    """It can be read, and takes no rows."""
    DROPPED = 2
    """Nothing of it is left; its id is never used again."""


_CHAIN: Final = struct.Struct("<QQ")
_ID: Final = struct.Struct("<Q")
_ID_OFFSET: Final = CHAIN_BYTES + 32
_FEATURES: Final = struct.Struct("<I")
_FEATURES_OFFSET: Final = CHAIN_BYTES + 12


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Rows that were appended together."""

    write_id: str
    first_lsn: int
    """LSN of the first row; in a record without rows, one more than `last_lsn`."""
    last_lsn: int
    rows: pa.RecordBatch
    """`ROW_SCHEMA`; the sequences are LSNs."""
    previous: str
    """Checksum of the record before it."""
    checksum: str
    size_bytes: int
    end: End = End.OPEN
    """How the timeline has ended, in a record without rows that no record follows."""

    @property
    def mark(self) -> LogMark:
        """The position at its end."""
        return LogMark(lsn=self.last_lsn, checksum=self.checksum)

    def columns(self) -> tuple[list[bytes], list[bytes | None]]:
        """Keys and values as lists; None is a delete. Cost: 0.1 us a row."""
        keys, values = self.rows.column(0).to_pylist(), self.rows.column(3).to_pylist()
        kinds = np.frombuffer(self.rows.column(2).buffers()[1], np.uint8, len(keys), self.rows.column(2).offset)
        for place in np.flatnonzero(kinds == Kind.DELETE).tolist():
            values[place] = None
        return keys, values


def begin(timeline: str, *, after: int) -> LogMark:
    """Return the position at which a timeline begins.

    Its first record begins at `after + 1` and continues this checksum.
    """
    return LogMark(lsn=after, checksum=_hex(xxhash.xxh3_64_intdigest(f"{timeline} {after}".encode())))


def encode_log_record(rows: pa.RecordBatch, *, before: LogMark, write_id: str) -> bytes:
    """Return the bytes of a record.

    Args:
        rows: at least one; sequences are replaced.
        before: the position behind which it is appended: the mark of the record there, or `begin`.
        write_id: a UUID.
    """
    numbered = rows_numbered(rows, before.lsn + 1)
    inner = encode_record(numbered, id=before.lsn + rows.num_rows, epoch=0, write_id=write_id)
    return _chain(inner, previous=before.checksum)


def rows_numbered(rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the same rows with the sequences `first`, `first + 1`, ..."""
    numbers = np.arange(first, first + rows.num_rows, dtype=np.uint64)
    return rows.set_column(1, ROW_SCHEMA.field(1), pa.array(numbers))


def encode_beginning(timeline: str, *, after: int, write_id: str) -> bytes:
    """Return the bytes of a record without rows, with which a timeline begins."""
    return _chain(encode_fence(id=after, epoch=0, write_id=write_id), previous=begin(timeline, after=after).checksum)


def encode_end(mark: LogMark, end: End, *, write_id: str) -> bytes:
    """Return the bytes of a record without rows, behind the record that ends at `mark`, with which a timeline ends."""
    fence = encode_fence(id=mark.lsn, epoch=0, write_id=write_id, features=int(end))
    return _chain(fence, previous=mark.checksum)


def _chain(inner: bytes, *, previous: str) -> bytes:
    link = int(previous, 16)
    return _CHAIN.pack(link, _link(link, memoryview(inner))) + inner


def _link(previous: int, inner: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(_ID.pack(previous) + inner[:FENCE_BYTES])


def decode_log_record(body: Buffer, *, timeline: str) -> LogRecord:
    """Decode a record. The rows refer to the bytes, without a copy.

    Raises:
        Corruption: these are not the bytes that were appended.
        UnsupportedFormat: written by a newer lakebed.
    """
    view = memoryview(body).cast("B")
    inner = view[CHAIN_BYTES:]
    end = _end_of(view)
    record = decode_record(inner, path=timeline, features=int(end))
    previous, checksum = _CHAIN.unpack_from(view)
    if checksum != _link(previous, inner):
        raise Corruption(
            f"The record of {timeline} that ends at LSN {record.id} is damaged: its own checksum is wrong.",
            path=timeline,
            offset=0,
        )
    if record.id != (record.last_sequence if record.rows is not None else record.id):
        raise Corruption(
            f"The record of {timeline} with LSN {record.last_sequence} at its end is named {record.id}.",
            path=timeline,
            offset=CHAIN_BYTES,
        )
    rows = _NO_ROWS if record.rows is None else record.rows
    has_no_rows = record.rows is None
    return LogRecord(
        write_id=record.write_id,
        first_lsn=record.id + 1 if has_no_rows else record.first_sequence,
        last_lsn=record.id,
        rows=rows,
        previous=_hex(previous),
        checksum=_hex(previous if has_no_rows else checksum),
        size_bytes=view.nbytes,
        end=end,
    )


def _end_of(view: memoryview) -> End:
    """Return how a record without rows ends a timeline; `OPEN` for any other record, and for unknown features."""
    if view.nbytes != CHAIN_BYTES + FENCE_BYTES:
        return End.OPEN
    features = _FEATURES.unpack_from(view, _FEATURES_OFFSET)[0]
    return End(features) if features in tuple(End) else End.OPEN


_NO_ROWS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in ROW_SCHEMA], schema=ROW_SCHEMA)


def mark_of(body: Buffer) -> LogMark:
    """Return the position at the end of a record, from bytes that were checked already. Cost: 1 us."""
    view = memoryview(body).cast("B")
    return LogMark(lsn=_ID.unpack_from(view, _ID_OFFSET)[0], checksum=_hex(_CHAIN.unpack_from(view)[1]))


def check_follows(timeline: str, mark: LogMark, record: LogRecord) -> LogMark:
    """Return the position after a record, if the record continues the history that ends at `mark`.

    Args:
        mark: what was ingested before; without a checksum: the beginning of the timeline.

    Raises:
        Corruption: ``log_forked``, with ``lsn=``: the log has another history than the one that was ingested.
    """
    previous = mark.checksum or begin(timeline, after=mark.lsn).checksum
    if record.first_lsn != mark.lsn + 1 or record.previous != previous:
        raise Corruption(
            f"The record of {timeline} with LSN {record.first_lsn} to {record.last_lsn} does not continue what was "
            f"ingested up to LSN {mark.lsn}: the log has lost or replaced records, so nothing more of it is ingested. "
            "Restore the log, or branch the timeline from its last committed LSN.",
            kind="log_forked",
            path=timeline,
            lsn=mark.lsn,
        )
    return record.mark


def _hex(checksum: int) -> str:
    return f"{checksum:016x}"
