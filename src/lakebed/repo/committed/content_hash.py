"""The names of ranges and metaranges: a hash of their contents, not of the bytes of their files.

Owns: the two hashes. Equal paths and values give equal names, whatever compression, block size or release wrote the
file. Layout: docs/format/repository.md. DO NOT CHANGE: names are stored. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.lsm.block import offsets_of
from lakebed.repo.model.model import ROWS_SCHEMA, RangeMeta

_COUNT: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")
_FIRST_OFFSET: Final = bytes(4)


def range_hash(batches: Sequence[pa.RecordBatch]) -> str:
    """The hash of the rows of a range: 64 hexadecimal digits.

    Args:
        batches: all rows, in batches of `ROWS_SCHEMA`, sorted, none empty. Where they are cut does not matter.

    Cost: about 0.1 us a row, outside of the interpreter's lock.
    """
    digest = hashlib.sha256(_COUNT.pack(sum(batch.num_rows for batch in batches)))
    for number in range(len(ROWS_SCHEMA)):
        columns = [batch.column(number) for batch in batches]
        digest.update(_FIRST_OFFSET)
        end = 0
        for column in columns:
            offsets = offsets_of(column)
            digest.update((offsets[1:] + np.int32(end - int(offsets[0]))).astype("<i4", copy=False).data)
            end += int(offsets[-1]) - int(offsets[0])
        for column in columns:
            offsets = offsets_of(column)
            digest.update(memoryview(column.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])])
    return digest.hexdigest()


def metarange_hash(ranges: Iterable[RangeMeta]) -> str:
    """The hash of a list of ranges: 64 hexadecimal digits. Cost: about 1 us a range."""
    digest = hashlib.sha256()
    for meta in ranges:
        path = meta.file.last_key
        digest.update(_LENGTH.pack(len(path)) + path + bytes.fromhex(meta.id))
    return digest.hexdigest()


EMPTY_METARANGE_ID: Final = metarange_hash(())
"""The hash of an empty list."""
