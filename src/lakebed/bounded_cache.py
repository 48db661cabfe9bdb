"""An in-memory cache of values that never change, limited in bytes and in number.

It keeps manifests, tags, differences, positions and listed rows. A key always names the same value, so an entry is
never stale.

Invariants: the sum of sizes and the number of entries stay within their limits. A value that is larger than the limit
is not kept. The least recently used value is evicted first.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from lakebed.runtime import Runtime, ThreadRuntime


class BoundedCache:
    """A bounded map from key to an immutable value of known size. Thread-safe.

    Args:
        bytes_max: limit of the sum of sizes; with 0 only values of size 0 are kept.
        count_max: limit of the number of values; None: any number.
        runtime: provides the lock.
    """

    def __init__(self, bytes_max: int, *, count_max: int | None = None, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self._count_max = sys.maxsize if count_max is None else count_max
        self._items: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._size_bytes = 0
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def count(self) -> int:
        """Number of values in the cache."""
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of the values in the cache."""
        return self._size_bytes

    def get(self, key: Hashable) -> Any | None:
        """Return the value of `key`, or None."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item[1]

    def put(self, key: Hashable, value: Any, *, size_bytes: int) -> None:
        """Add a value; evict the least recently used ones."""
        if size_bytes > self._bytes_max:
            return
        with self._lock:
            old_item = self._items.pop(key, None)
            self._size_bytes += size_bytes - (old_item[0] if old_item else 0)
            self._items[key] = (size_bytes, value)
            while self._size_bytes > self._bytes_max or len(self._items) > self._count_max:
                _, (evicted_bytes, _) = self._items.popitem(last=False)
                self._size_bytes -= evicted_bytes

    def discard(self, key: Hashable) -> None:
        """Remove a value; a no-op if it is missing."""
        with self._lock:
            size_bytes, _ = self._items.pop(key, (0, None))
            self._size_bytes -= size_bytes

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._items.clear()
            self._size_bytes = 0
