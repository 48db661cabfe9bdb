"""Rows of listings as JSON, kept for the blocks that they were made of.

Owns: which encoded rows are kept, within a bound. Invariants: a block of committed data never changes; its memory's
address identifies a kept block, which is held together with its rows, so no other block has the address meanwhile. Does
not know: what a row looks like. The caller has to ensure that batches are views of blocks, and not of rows that were
made for one request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed.bounded_cache import BoundedCache

_ROW_BYTES: Final = 41
"""Memory of a row in addition to its JSON: a bytes object and its slot in a list."""

_BLOCK_BYTES: Final = 600
"""Memory of a kept block in addition to its rows and its buffers."""


class _Kept(NamedTuple):
    """A block, and the JSON of its rows; None: the row was not listed yet."""

    block: pa.Buffer
    rows: list[bytes | None]


class EncodedRows:
    """A bounded map from a row of a block to its JSON. Thread-safe.

    The block that was listed least recently is dropped first.

    Args:
        bytes_max: limit of the sum of sizes, including the held blocks; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        self.cache: Final = BoundedCache(bytes_max)

    def rows(
        self, batch: pa.RecordBatch, *, shape: str, encode: Callable[[pa.RecordBatch], Sequence[bytes]]
    ) -> Sequence[bytes]:
        """Return the JSON of the rows of a batch.

        Args:
            batch: a view of rows of a block of committed data, not empty.
            shape: what the encoding depends on in addition to the rows, such as whether they have metadata.
            encode: makes the JSON of the rows that are not kept.

        Cost: about 10 us for any number of kept rows.
        """
        paths = batch.column(0)
        block = paths.buffers()[2]
        if block is None:
            return encode(batch)
        key = (block.address, shape)
        first, last = paths.offset, paths.offset + len(paths)
        cached: _Kept | None = self.cache.get(key)
        if cached is not None:
            known_rows = cached.rows[first:last]
            if len(known_rows) == last - first and None not in known_rows:
                return known_rows  # type: ignore[return-value]  # none is None
        rows = encode(batch)
        merged_rows: list[bytes | None] = [] if cached is None else list(cached.rows)
        merged_rows += [None] * (last - len(merged_rows))
        merged_rows[first:last] = rows
        self.cache.put(key, _Kept(block, merged_rows), size_bytes=_size_of(batch, merged_rows))
        return rows


def _size_of(batch: pa.RecordBatch, rows: Sequence[bytes | None]) -> int:
    """Return the memory of rows and of their block, which may no longer be in any cache."""
    rows_bytes = sum(_ROW_BYTES + len(row) for row in rows if row is not None)
    return _BLOCK_BYTES + int(batch.get_total_buffer_size()) + rows_bytes
