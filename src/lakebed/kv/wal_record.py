"""The bytes of a log record: a header of constant size and the rows of one group as an Arrow record batch. Pure.

Format (version 1, little-endian, DO NOT CHANGE)::

    offset bytes
         0     8  magic "LAKEBWAL"
         8     4  version, 1
        12     4  required features, one bit each; 0
        16    16  write id, a UUID
        32     8  id of the record, as in its name
        40     8  epoch of the writer
        48     8  sequence of the first row; 0 in a fence
        56     8  rows; 0 in a fence
        64     8  bytes of the body; 0 in a fence
        72     8  xxh3-64 of the body
        80     8  xxh3-64 of bytes 0 to 79
        88        body: one Arrow IPC record batch message (no schema before it) of `ROW_SCHEMA`, rows in the order of
                  writing, sequences without gaps

Invariants:
- A fence is exactly `FENCE_BYTES` long, and no other record is, so a listing shows which records are fences.
- Every later version keeps this layout of the header, so a damaged version number is not taken for a newer one.
- A checksum covers every byte. A record whose length differs from the length in its header is `Corruption`.

Format page: docs/format/wal.md.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from typing_extensions import Buffer

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.lsm.model import ROW_SCHEMA

FENCE_BYTES: Final = 88
"""Size of a fence, which is only a header."""

_MAGIC: Final = b"LAKEBWAL"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII16sQQQQQQ")
_CHECKSUM: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class WalRecord:
    """One record of the log."""

    id: int
    write_id: str
    epoch: int
    first_sequence: int
    """Sequence of the first row; 0 in a fence."""
    rows: pa.RecordBatch | None
    """Rows of `ROW_SCHEMA`, in the order of writing, sequences without gaps; None: a fence."""

    @property
    def is_fence(self) -> bool:
        """Whether this record only fences older writers."""
        return self.rows is None

    @property
    def row_count(self) -> int:
        """Number of rows; 0 for a fence."""
        return 0 if self.rows is None else self.rows.num_rows

    @property
    def last_sequence(self) -> int:
        """Sequence of the last row; 0 in a fence."""
        return 0 if self.rows is None else self.first_sequence + self.rows.num_rows - 1


def encode_record(rows: pa.RecordBatch, *, id: int, epoch: int, write_id: str) -> bytes:
    """Return the bytes of a record with rows.

    Args:
        rows: at least one, of `ROW_SCHEMA`, sequences without gaps (a memtable's `log`).
        id: the id with which the record will be appended.
        write_id: a UUID, new for every record.
    """
    assert rows.num_rows > 0, "a record without rows is a fence"
    body = rows.serialize()
    header = _header(
        id=id,
        epoch=epoch,
        write_id=write_id,
        first_sequence=rows.column(1)[0].as_py(),
        row_count=rows.num_rows,
        body=memoryview(body),
    )
    return b"".join((header, memoryview(body)))


def encode_fence(*, id: int, epoch: int, write_id: str, features: int = 0) -> bytes:
    """Return the `FENCE_BYTES` bytes of a fence.

    Args:
        features: features that a reader must know (`decode_record`); a database's log has none.
    """
    body = memoryview(b"")
    return _header(id=id, epoch=epoch, write_id=write_id, first_sequence=0, row_count=0, body=body, features=features)


def _header(
    *, id: int, epoch: int, write_id: str, first_sequence: int, row_count: int, body: memoryview, features: int = 0
) -> bytes:
    fields = _HEADER.pack(
        _MAGIC,
        _VERSION,
        features,
        uuid.UUID(write_id).bytes,
        id,
        epoch,
        first_sequence,
        row_count,
        body.nbytes,
        xxhash.xxh3_64_intdigest(body),
    )
    return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def decode_record(body: Buffer, *, path: str, id: int | None = None, features: int = 0) -> WalRecord:
    """Decode an object of the log. The rows refer to its bytes, without a copy.

    Args:
        id: the id in the object's name; None: not checked.
        features: features that the caller knows, and that the record must have.

    Raises:
        Corruption: the bytes were changed, or are not those of this id.
        UnsupportedFormat: a newer lakebed wrote the record.
    """
    view = memoryview(body).cast("B")
    if view.nbytes < FENCE_BYTES:
        raise _damage_error(path, view.nbytes, f"it has {view.nbytes} bytes, and the header alone has {FENCE_BYTES}")
    if bytes(view[:8]) != _MAGIC:
        raise _damage_error(path, 0, "it does not begin as a log record does")
    fields = view[: _HEADER.size]
    if xxhash.xxh3_64_intdigest(fields) != _CHECKSUM.unpack_from(view, _HEADER.size)[0]:
        raise _damage_error(path, 0, "the checksum of its header is wrong")
    _, version, required, write_id, own_id, epoch, first, row_count, length, checksum = _HEADER.unpack(fields)
    if version != _VERSION or required != features:
        raise UnsupportedFormat(
            f"{path} is a log record of version {version} with features {required:#x}, and this lakebed knows version "
            f"{_VERSION} without features: upgrade lakebed.",
            path=path,
            version=version,
            features=required,
        )
    if id is not None and own_id != id:
        raise _damage_error(path, 32, f"it is the record {own_id} under the name of another")
    rest = view[FENCE_BYTES:]
    if rest.nbytes != length:
        raise _damage_error(
            path, min(view.nbytes, FENCE_BYTES + length), f"{rest.nbytes} bytes follow its header of {length}"
        )
    if xxhash.xxh3_64_intdigest(rest) != checksum:
        raise _damage_error(path, FENCE_BYTES, "the checksum of its rows is wrong")
    rows = _decode_rows(rest, first=first, row_count=row_count, path=path) if length else None
    if rows is None and row_count:
        raise _damage_error(path, 56, f"it says that it has {row_count} rows, and has none")
    return WalRecord(own_id, str(uuid.UUID(bytes=write_id)), epoch, first, rows)


def _decode_rows(body: memoryview, *, first: int, row_count: int, path: str) -> pa.RecordBatch:
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(body), ROW_SCHEMA)
        rows.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damage_error(path, FENCE_BYTES, f"its rows are no Arrow record batch ({error})") from error
    if rows.num_rows != row_count:
        raise _damage_error(path, FENCE_BYTES, f"it has {rows.num_rows} rows, and its header says {row_count}")
    column = rows.column(1)  # read as bytes: Arrow's own conversion loads pandas, which takes half a second
    sequences = np.frombuffer(column.buffers()[1], np.uint64, len(column), 8 * column.offset)
    if sequences[0] != first or not bool(np.all(np.diff(sequences) == 1)):
        raise _damage_error(path, FENCE_BYTES, f"the sequences of its rows do not run on from {first}")
    return rows


def find_write_id(body: Buffer) -> str | None:
    """Return the write id in a record's header; None if the bytes have no whole header."""
    view = memoryview(body).cast("B")
    if view.nbytes < FENCE_BYTES or bytes(view[:8]) != _MAGIC:
        return None
    return str(uuid.UUID(bytes=bytes(view[16:32])))


def _damage_error(path: str, offset: int, problem: str) -> Corruption:
    return Corruption(f"{path} is damaged: {problem}.", path=path, offset=offset)
