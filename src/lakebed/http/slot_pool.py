"""A pool of threads of which few work at a time: a call leaves its slot while it waits for another service.

Owns: `SlotPool` and `leave_slot`. The calls of a pool share the processor, so it has few slots. A webhook may take a
minute, and its owner decides how long. If its call kept the slot, two such calls would stop the calls of all callers.
So a call works in a slot, leaves the slot while it waits, and then takes one again. A call that has left its slot is
outside. Invariants: never more calls work than there are slots; a free slot is handed on at once, first to a call that
comes back, then to one that has not begun; there are no more threads than slots and calls outside; the number of calls
outside is limited, and one owner may have only a part of it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from lakebed.errors import Unavailable

P = ParamSpec("P")
R = TypeVar("R")
Work = Callable[[], None]

OUTSIDE_MAX: Final = 64
"""Most calls of all pools that are outside at a time."""

OUTSIDE_OF_OWNER_MAX: Final = 24
"""Most calls of one owner that are outside at a time."""


class _Here(threading.local):
    """The pool in whose slot this thread works."""

    pool: SlotPool | None = None


_HERE: Final = _Here()
_OUTSIDE: Final[Counter[str]] = Counter()
_OUTSIDE_LOCK: Final = threading.Lock()


class SlotPool(Executor):
    """Threads of which `slot_count` work at a time. Threads start when they are needed."""

    def __init__(self, slot_count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(slot_count + OUTSIDE_MAX, name)
        self._slot_count = self._free_count = slot_count
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Work]] = deque()
        self._returning: deque[threading.Event] = deque()
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Calls that have no slot yet."""
        return len(self._waiting)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call once there is a slot."""
        future: Future[R] = Future()
        work = partial(_fulfil, future, partial(fn, *args, **kwargs))
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the pool was shut down")
            if self._free_count:
                self._free_count -= 1
                self._threads.submit(self._work, work)
            else:
                self._waiting.append((future, work))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait`, wait until all have ended. `cancel_futures` cancels calls without a slot."""
        with self._changed:
            self._is_closed = True
            while cancel_futures and self._waiting:
                self._waiting.popleft()[0].cancel()
            while wait and self._free_count < self._slot_count:
                self._changed.wait()
        self._threads.shutdown(wait=wait)

    def _work(self, work: Work | None) -> None:
        """Run calls in a slot as long as any wait."""
        while work is not None:
            _HERE.pool = self
            work()
            _HERE.pool = None
            work = self._free_slot()

    def _free_slot(self) -> Work | None:
        """Give the slot to a call that comes back; else return the next call, which then has it; else free the slot."""
        with self._changed:
            if self._returning:
                self._returning.popleft().set()
                return None
            if self._waiting:
                return self._waiting.popleft()[1]
            self._free_count += 1
            self._changed.notify_all()
            return None

    def leave_slot(self) -> None:
        """Free the slot of this thread; another thread continues with the calls that wait."""
        work = self._free_slot()
        if work is not None:
            self._threads.submit(self._work, work)

    def take_slot(self, owner: str) -> None:
        """Wait for a slot for an owner's call that comes back from outside.

        The call counts as outside until it has a slot or is the next to get one. Otherwise another call could leave in
        its place, and give its slot to a third call, for which there is no thread.
        """
        handed = threading.Event()
        with self._changed:
            _note_return(owner)
            if self._free_count:
                self._free_count -= 1
                return
            self._returning.append(handed)
        handed.wait()


def _fulfil(future: Future[R], call: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


@contextmanager
def leave_slot(owner: str) -> Iterator[None]:
    """Leave the slot of this thread, if it has one, while the block waits for another service.

    Args:
        owner: the owner of the call, such as a repository.

    Raises `Unavailable` (``busy_outside``): too many calls are outside already, of this owner or in total. The block
    has not begun.
    """
    pool = _HERE.pool
    if pool is None:
        yield
        return
    _note_outside(owner)
    _HERE.pool = None  # a nested block has no slot to leave
    pool.leave_slot()
    try:
        yield
    finally:
        pool.take_slot(owner)
        _HERE.pool = pool


def _note_outside(owner: str) -> None:
    """Raise `Unavailable` as `leave_slot`."""
    with _OUTSIDE_LOCK:
        if _OUTSIDE[owner] >= OUTSIDE_OF_OWNER_MAX or _OUTSIDE.total() >= OUTSIDE_MAX:
            raise Unavailable("was not called: too many calls wait for an answer already", kind="busy_outside")
        _OUTSIDE[owner] += 1


def _note_return(owner: str) -> None:
    with _OUTSIDE_LOCK:
        _OUTSIDE[owner] -= 1
        if not _OUTSIDE[owner]:
            del _OUTSIDE[owner]
