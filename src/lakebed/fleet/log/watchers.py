"""Waiters for a change of a timeline's last LSN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from lakebed.fleet.log.changes import Signal
from lakebed.runtime import Condition


class ThreadSignal:
    """Wakes a thread that waits under the log's lock."""

    __slots__ = ("changed",)

    def __init__(self, changed: Condition) -> None:
        self.changed = changed

    def wake(self) -> None:
        """See `Signal`."""
        self.changed.notify_all()


class Watcher:
    """Waits for changes of some timelines.

    Args:
        after: the last known LSN of each timeline.
        signal: wakes the waiter.
    """

    __slots__ = ("after", "signal")

    def __init__(self, after: Mapping[str, int], signal: Signal) -> None:
        self.after = after
        self.signal = signal


class Watchers:
    """All watchers of a log.

    Args:
        lock: the log's lock.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._by_timeline: dict[str, set[Watcher]] = {}

    def add(self, watcher: Watcher) -> None:
        """Begin to wake a watcher at every change of its timelines."""
        with self._lock:
            for timeline in watcher.after:
                self._by_timeline.setdefault(timeline, set()).add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Stop waking a watcher."""
        with self._lock:
            for timeline in watcher.after:
                watchers = self._by_timeline.get(timeline)
                if watchers is not None:
                    watchers.discard(watcher)
                    if not watchers:
                        del self._by_timeline[timeline]

    def wake(self, timelines: Iterable[str]) -> None:
        """Wake the watchers of some timelines. Called under the lock."""
        for timeline in timelines:
            for watcher in self._by_timeline.get(timeline, ()):
                watcher.signal.wake()

    def wake_all(self) -> None:
        """Wake every watcher. Called under the lock."""
        self.wake(list(self._by_timeline))
