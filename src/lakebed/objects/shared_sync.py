"""Syncs of folders, shared by all threads that wait for a sync of the same folder.

Owns: the choice of the thread that syncs. Invariants: a call returns after a sync that began after the call, so the
sync covers what the caller did before. A failed sync fails for all callers that shared it, because a system reports
such an error only once. One thread at a time syncs a folder. Callers that come in the meantime share the next sync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from lakebed.runtime import Condition, Runtime


@dataclass(slots=True)
class _Round:
    """One sync, and its outcome."""

    has_ended: bool = False
    error: OSError | None = field(
        default_factory=lambda: OSError(errno.EINTR, "the sync of the folder was interrupted")
    )
    """The error of the sync. It is set until the flush succeeds: a signal handler may end the flush with any error."""


@dataclass(slots=True)
class _Folder:
    """The syncs of one folder."""

    running: _Round | None = None
    following: _Round | None = None
    """The next sync, which has not begun. New callers share it."""


@dataclass(slots=True)
class _Process:
    """The state that the threads of one process share."""

    id: int
    lock: AbstractContextManager[Any]
    ended: Condition
    folders: dict[tuple[int, int], _Folder] = field(default_factory=dict)


class SharedSyncs:
    """The syncs of one process. Thread-safe.

    Args:
        flush: syncs an open folder.
    """

    def __init__(self, flush: Callable[[int], None], *, runtime: Runtime) -> None:
        self._flush = flush
        self._runtime = runtime
        self._process = self._new_process()

    def _new_process(self) -> _Process:
        lock = self._runtime.lock()
        return _Process(os.getpid(), lock, self._runtime.condition(lock))

    def sync(self, descriptor: int) -> None:
        """Sync an open folder. Raises `OSError`.

        Cost: 1 fsync. Callers that come while one is under way share the next one.
        """
        process = self._process
        if process.id != os.getpid():
            # A fork has none of the threads for which this process waits, and possibly their locks. Two of its threads
            # may both come here. Then each continues with the state that it made, and the later one stays.
            process = self._process = self._new_process()
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        own_round = None
        try:  # from here on an interrupt (Ctrl-C) must not leave a round that seems to run
            with process.lock:
                folder = process.folders.setdefault(key, _Folder())
                next_round = folder.following = folder.following or _Round()
                while folder.running is not None and not next_round.has_ended:
                    process.ended.wait()
                if not next_round.has_ended:
                    folder.running, folder.following, own_round = next_round, None, next_round
            if own_round is not None:
                self._flush(descriptor)
                own_round.error = None
        except OSError as error:
            if own_round is None:
                raise
            own_round.error = error
        finally:
            if own_round is not None:
                with process.lock:
                    own_round.has_ended, folder.running = True, None
                    if folder.following is None:
                        del process.folders[key]
                    process.ended.notify_all()
        if next_round.error is not None:
            raise next_round.error
