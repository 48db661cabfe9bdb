"""A pool of threads of which few work at a time: a call that waits for somebody outside leaves its slot meanwhile.

Owns: `SlotPool` and `leave_slot`. The calls of a pool share the processor, so it has few slots. A webhook may take a
minute, and its owner decides how long: were its call to keep the slot, two of them would stop the calls of everybody.
So it works in a slot, leaves that while it waits, and takes one again. Invariants: never more calls work than there
are slots; calls that wait outside never take all threads, and those of one owner only a part of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from lakebed.errors import Unavailable

P = ParamSpec("P")
R = TypeVar("R")

OUTSIDE_MAX: Final = 64
"""Calls of all pools that wait outside at a time. Each pool has as many threads more than slots."""

OUTSIDE_OF_OWNER_MAX: Final = 24
"""Calls of one owner that wait outside at a time."""


class _Here(threading.local):
    """What the thread works in."""

    slots: threading.BoundedSemaphore | None = None


_HERE: Final = _Here()
_OUTSIDE: Final[Counter[str]] = Counter()
_LOCK: Final = threading.Lock()


class SlotPool(ThreadPoolExecutor):
    """Threads of which `slot_count` work at a time. Threads start when they are needed."""

    def __init__(self, slot_count: int, name: str) -> None:
        super().__init__(slot_count + OUTSIDE_MAX, name)
        self._slots = threading.BoundedSemaphore(slot_count)
        self._waiting_count = 0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call once there is a slot."""
        run: Callable[..., R] = self._run
        return super().submit(run, fn, args, kwargs)

    @property
    def waiting_count(self) -> int:
        """Calls that wait for a slot, on a thread of their own."""
        return self._waiting_count

    def _run(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if not self._slots.acquire(blocking=False):
            with _LOCK:
                self._waiting_count += 1
            self._slots.acquire()
            with _LOCK:
                self._waiting_count -= 1
        _HERE.slots = self._slots
        try:
            return function(*args, **kwargs)
        finally:
            _HERE.slots = None
            self._slots.release()


@contextmanager
def leave_slot(owner: str) -> Iterator[None]:
    """Leave the slot of this thread, if it has one, while the block waits for somebody outside.

    Args:
        owner: on whose behalf it waits, such as a repository.

    Raises `Unavailable` (``busy_outside``): too many calls wait already, of this owner or in all; the block has not
    begun.
    """
    slots = _HERE.slots
    if slots is None:
        yield
        return
    with _LOCK:
        if _OUTSIDE[owner] >= OUTSIDE_OF_OWNER_MAX or _OUTSIDE.total() >= OUTSIDE_MAX:
            raise Unavailable("was not called: too many calls wait for an answer already", kind="busy_outside")
        _OUTSIDE[owner] += 1
    slots.release()
    try:
        yield
    finally:
        with _LOCK:
            _OUTSIDE[owner] -= 1
            if not _OUTSIDE[owner]:
                del _OUTSIDE[owner]
        slots.acquire()
