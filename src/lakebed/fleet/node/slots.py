"""Limits for all tenants of a node together: concurrent operations, and memory of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakebed.runtime import Runtime


class Slots:
    """Admits at most `count` callers at the same time. The others wait."""

    def __init__(self, count: int, *, runtime: Runtime) -> None:
        self._free = max(1, count)
        self._changed = runtime.condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot."""
        with self._changed:
            while not self._free:
                self._changed.wait()
            self._free -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


class MemtableBudget:
    """Memory of rows that are not in a file, by timeline. Thread-safe."""

    def __init__(self, bytes_max: int, *, runtime: Runtime) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        """Memory of the rows of all timelines."""
        self._sizes: dict[tuple[str, str], int] = {}
        self._lock = runtime.lock()

    @property
    def is_full(self) -> bool:
        """Whether ingestion must pause."""
        return self.size_bytes >= self.bytes_max

    @property
    def is_tight(self) -> bool:
        """Whether the largest memtable must be flushed."""
        return self.size_bytes >= self.bytes_max * 3 // 4

    def note(self, tenant: str, timeline: str, size_bytes: int) -> None:
        """Set the size of one timeline's rows; 0 forgets the timeline."""
        with self._lock:
            self.size_bytes += size_bytes - self._sizes.pop((tenant, timeline), 0)
            if size_bytes:
                self._sizes[tenant, timeline] = size_bytes

    def forget(self, tenant: str) -> None:
        """Forget all timelines of a tenant. Cost: O(timelines with rows)."""
        with self._lock:
            for key in [key for key in self._sizes if key[0] == tenant]:
                self.size_bytes -= self._sizes.pop(key)

    def largest(self) -> list[tuple[str, str]]:
        """Return the tenants and timelines that have rows, largest first."""
        with self._lock:
            return sorted(self._sizes, key=lambda key: -self._sizes[key])
