"""An in-memory cache of decoded manifests, lists and live files, limited in bytes.

Owns: the cache shared by all tables of a process. Manifests are immutable and their names unique, so an entry is never
stale. The key is the object's full URL and what its decoding depends on, or a digest of these. Invariants: the sum of
sizes stays within the limit; a larger item is not cached; the least recently used is evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

from lakebed.runtime import Runtime, ThreadRuntime

CACHE_BYTES_MAX_DEFAULT: Final = 256 << 20


class ManifestCache:
    """A bounded map from key to an immutable value of known size. Thread-safe.

    Args:
        bytes_max: limit of the sum of sizes; 0 caches nothing.
        runtime: provides the lock.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX_DEFAULT, *, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self._items: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._size_bytes = 0
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: Hashable) -> Any | None:
        """The value kept under `key`, or None."""
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
            replaced = self._items.pop(key, None)
            self._size_bytes += size_bytes - (replaced[0] if replaced else 0)
            self._items[key] = (size_bytes, value)
            while self._size_bytes > self._bytes_max:
                _, (evicted_bytes, _) = self._items.popitem(last=False)
                self._size_bytes -= evicted_bytes

    def discard(self, key: Hashable) -> None:
        """Remove a value; a no-op if it is missing."""
        with self._lock:
            size_bytes, _ = self._items.pop(key, (0, None))
            self._size_bytes -= size_bytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._size_bytes = 0


PROCESS_CACHE: Final = ManifestCache()
"""The cache of this process, used wherever no other is given."""
