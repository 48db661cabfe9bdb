"""Differences kept in memory: metaranges never change, so neither does the difference of two of them.

Owns: which differences are kept. Invariants: what is kept is complete, small, and named by the content hashes of both
sides; their number and their bytes are bounded, the least recently used go first. Thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa

from lakebed.runtime import Runtime, ThreadRuntime

DIFF_BYTES_MAX: Final = 1 << 20
"""A difference with more bytes is not kept."""

_BATCH_BYTES: Final = 2_048
"""Bytes of a batch besides its columns."""


class DiffCache:
    """Complete, small differences of pairs of metaranges.

    Args:
        count_max: how many are kept (`RepositoryOptions.diff_cache_count`); 0: none.
        bytes_max: bound of all together.
    """

    def __init__(self, *, count_max: int, bytes_max: int = 16 << 20, runtime: Runtime | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[pa.RecordBatch, ...], int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = (runtime or ThreadRuntime()).lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Of all that is kept; at most the bound."""
        return self._size_bytes

    def get(self, left: str, right: str) -> tuple[pa.RecordBatch, ...] | None:
        """The difference of two content hashes, in batches of `DIFF_SCHEMA`; None: it is not kept."""
        with self._lock:
            value = self._kept.get((left, right))
            if value is None:
                return None
            self._kept.move_to_end((left, right))
            return value[0]

    def put(self, left: str, right: str, batches: tuple[pa.RecordBatch, ...]) -> None:
        """Keep a complete difference, if it is small; older ones are evicted."""
        size_bytes = sum(batch.get_total_buffer_size() + _BATCH_BYTES for batch in batches)
        if size_bytes > min(DIFF_BYTES_MAX, self._bytes_max) or not self._count_max:
            return
        with self._lock:
            before = self._kept.pop((left, right), None)
            self._size_bytes += size_bytes - (before[1] if before else 0)
            self._kept[(left, right)] = (batches, size_bytes)
            while len(self._kept) > self._count_max or self._size_bytes > self._bytes_max:
                _, (_, dropped_bytes) = self._kept.popitem(last=False)
                self._size_bytes -= dropped_bytes
