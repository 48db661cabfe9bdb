"""Syncs of folders, shared by all threads that wait for one of the same folder.

Owns: who syncs. Invariants: a sync that a caller returns from has begun after the call began, so it covers what the
caller did before; a sync that failed fails for all that shared it, for a system reports such an error only once; one
thread at a time syncs a folder, and while it does, those that come wait for the next one together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from lakebed.runtime import Runtime


@dataclass(slots=True)
class _Round:
    """One sync, and what became of it."""

    has_ended: bool = False
    error: OSError | None = None


@dataclass(slots=True)
class _Folder:
    """The syncs of one folder."""

    running: _Round | None = None
    following: _Round | None = None
    """Has not begun: those that come now share it."""


class SharedSyncs:
    """The syncs of one process. Thread-safe."""

    def __init__(self, flush: Callable[[int], None], *, runtime: Runtime) -> None:
        self._flush = flush
        self._runtime = runtime
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = self._runtime.lock()
        self._ended = self._runtime.condition(self._lock)
        self._folders: dict[tuple[int, int], _Folder] = {}

    def sync(self, descriptor: int) -> None:
        """Sync an open folder. Raises `OSError`.

        Cost: 1 fsync; of callers that come while one is under way 1 for all of them together.
        """
        if self._process != os.getpid():
            self._begin()  # a fork has none of the threads that this process waits for
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        with self._lock:
            folder = self._folders.setdefault(key, _Folder())
            shared = folder.following = folder.following or _Round()
            while folder.running is not None and not shared.has_ended:
                self._ended.wait()
            is_ours = not shared.has_ended
            if is_ours:
                folder.running, folder.following = shared, None
        if is_ours:
            try:
                self._flush(descriptor)
            except OSError as error:
                shared.error = error
            finally:
                with self._lock:
                    shared.has_ended, folder.running = True, None
                    if folder.following is None:
                        del self._folders[key]
                    self._ended.notify_all()
        if shared.error is not None:
            raise shared.error
