"""What ranges and metaranges are named by: the hash of what they say, not of the bytes of their files.

Owns: the two hashes. Equal paths and values give equal names, whatever compression, block size or release wrote the
file. Layout: docs/format/repository.md. DO NOT CHANGE: names are stored. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from lakebed.lsm.block import offsets_of
from lakebed.repo.model import RangeMeta

__all__ = ["EMPTY_METARANGE_ID", "metarange_hash", "range_hash"]

_COUNT: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")


def range_hash(rows: pa.RecordBatch) -> str:
    """The hash of the rows of a range: 64 hexadecimal digits.

    Args:
        rows: all of it, of `ROWS_SCHEMA`, sorted.

    Cost: about 0.1 us a row, outside of the interpreter's lock.
    """
    digest = hashlib.sha256(_COUNT.pack(rows.num_rows))
    for column in rows.columns if rows.num_rows else ():
        offsets = offsets_of(column)
        first, last = int(offsets[0]), int(offsets[-1])
        digest.update((offsets - offsets[0]).astype("<i4", copy=False).data)
        digest.update(memoryview(column.buffers()[2] or b"")[first:last])
    return digest.hexdigest()


def metarange_hash(ranges: Iterable[RangeMeta]) -> str:
    """The hash of a list of ranges: 64 hexadecimal digits. Cost: about 1 us a range."""
    digest = hashlib.sha256()
    for one in ranges:
        path = one.file.last_key
        digest.update(_LENGTH.pack(len(path)) + path + bytes.fromhex(one.id))
    return digest.hexdigest()


EMPTY_METARANGE_ID: Final = metarange_hash(())
"""Of no ranges."""
