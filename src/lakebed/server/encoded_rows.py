"""Rows of listings as JSON, kept for the blocks that they were made of.

Owns: which encoded rows are kept, within a bound. Invariants: a block of committed data never changes, and a kept block
is held together with its rows, so the address of its memory, by which it is known, is not used for another one
meanwhile. Does not know: what a row looks like; that batches are views of blocks, and not of rows made for one request,
is for the caller to see to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed.bounded_cache import BoundedCache

_ROW_BYTES: Final = 41
"""What one row costs in addition to its JSON: a bytes object and its slot in a list."""

_BLOCK_BYTES: Final = 600
"""What a block costs in addition to its rows and its memory."""


class _Kept(NamedTuple):
    """The rows of a block that were listed; None: it was not listed yet."""

    block: pa.Buffer
    rows: list[bytes | None]


class EncodedRows:
    """A bounded map from a row of a block to its JSON. Thread-safe.

    The block that was listed least recently goes first.

    Args:
        bytes_max: bound of the sum of sizes, the held blocks included; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        self.cache: Final = BoundedCache(bytes_max)

    def rows(
        self, batch: pa.RecordBatch, *, shape: str, encode: Callable[[pa.RecordBatch], Sequence[bytes]]
    ) -> Sequence[bytes]:
        """The JSON of the rows of a batch.

        Args:
            batch: a view of rows of a block of committed data, not empty.
            shape: what the encoding depends on besides the rows, such as whether they have metadata.
            encode: makes the JSON of the rows that are not kept.

        Cost: of kept rows about 10 us, whatever their number.
        """
        paths = batch.column(0)
        block = paths.buffers()[2]
        if block is None:
            return encode(batch)
        key = (block.address, shape)
        first, last = paths.offset, paths.offset + len(paths)
        kept: _Kept | None = self.cache.get(key)
        if kept is not None:
            known = kept.rows[first:last]
            if len(known) == last - first and None not in known:
                return known  # type: ignore[return-value]  # none is None
        rows = encode(batch)
        merged: list[bytes | None] = [] if kept is None else list(kept.rows)
        merged += [None] * (last - len(merged))
        merged[first:last] = rows
        self.cache.put(key, _Kept(block, merged), size_bytes=_size_of(batch, merged))
        return rows


def _size_of(batch: pa.RecordBatch, rows: Sequence[bytes | None]) -> int:
    """What rows hold in memory, and their block, which may be in no cache any more."""
    rows_bytes = sum(_ROW_BYTES + len(row) for row in rows if row is not None)
    return _BLOCK_BYTES + int(batch.get_total_buffer_size()) + rows_bytes
