"""Concurrency as an argument: threads, locks, conditions, events and pools come from an injected `Runtime`.

Owns: the `Runtime` protocol, the production `ThreadRuntime`, and `Environment`, the bundle of clock, randomness
and runtime that every store takes. The simulator's runtime (greenlets, one switching point at each call) is in
`lakebed.testing`. With it every store runs deterministically.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from lakebed.clock import Clock, SystemClock
from lakebed.errors import Unavailable
from lakebed.exiting import join_before_exit

T = TypeVar("T")
R = TypeVar("R")


class Condition(Protocol):
    """The part of `threading.Condition` that lakebed uses."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for a notification or `timeout` seconds, and take it again; False after a timeout."""

    def notify_all(self) -> None:
        """Wake every waiter."""


class Pool(Protocol):
    """A bounded pool of workers."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Iterate over the results in the order of `items`; the first error is raised in place of its result."""

    def close(self) -> None:
        """Wait for running calls and release the workers."""


class _Call(Generic[R]):
    """A call that is made only once, by the first thread that calls `make`."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._untaken = [function]
        self._outcome: Future[R] = Future()

    def make(self) -> R:
        """Make the call and return its result. If another thread makes or made the call, wait for that result."""
        try:
            function = self._untaken.pop()
        except IndexError:
            return self._outcome.result()
        try:
            result = function()
        except BaseException as error:
            self._outcome.set_exception(error)
            del self  # the error references this frame: it would keep itself and the call's objects alive
            raise
        self._outcome.set_result(result)
        return result


def _make_only(calls: list[_Call[R]]) -> R:
    """Make the call of a list of one, and empty the list.

    Since Python 3.14 an error references a pool's frame, and so the item of the pool. If that item referenced the call,
    and thereby its error, the error would keep itself and the call's objects alive.
    """
    return calls.pop().make()


def begin_call(function: Callable[[], R], pool: Pool | None) -> Iterator[R]:
    """Begin a call in a pool, if there is one. The next item of the iterator is its result, or raises its error.

    Without a pool, the call is made when that item is requested. A pool of one worker makes calls one after another, in
    their order.
    """
    if pool is None:
        return (function() for _ in range(1))
    call = _Call(function)
    # No thread can be started while the interpreter shuts down, or if the system allows no more threads.
    with suppress(RuntimeError):
        return pool.map(_make_only, [[call]])
    # The pool has queued the call nevertheless. Make it now, so that a worker of a later call does not make it later.
    with suppress(Exception):
        call.make()
    return (call.make() for _ in range(1))


class Runtime(Protocol):
    """The source of locks, pools and threads."""

    def lock(self) -> AbstractContextManager[Any]:
        """Return a mutual-exclusion lock, not reentrant."""

    def condition(self, lock: AbstractContextManager[Any] | None = None) -> Condition:
        """Return a condition on a lock of this runtime, by default on a new one.

        Several conditions may share one lock. A hot path takes the lock itself, which is cheaper than the condition.
        """

    def pool(self, worker_count_max: int) -> Pool:
        """Return a pool of at most `worker_count_max` workers."""

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Run `function` in the background. Return a function that waits for its end.

        Args:
            stop: makes `function` return soon, and does not wait for it. The end of the interpreter calls it and waits
                for the thread, for at most `exiting.WAIT_MAX_S`. After that time, or without `stop`, the thread is
                abandoned.
        """


_BEGINNINGS: Final[weakref.WeakKeyDictionary[Any, Callable[[Any], object]]] = weakref.WeakKeyDictionary()


def follow_forks(item: T, begin: Callable[[T], object]) -> None:
    """Let an object, as long as it lives, begin anew in a forked child, which has none of its parent's threads.

    Args:
        begin: called with the object in the child before anything else runs. It must assume that the work of the
            parent's threads is half done, must leave alone what the parent continues to use, must take no lock and must
            send no request.
    """
    _BEGINNINGS[item] = begin


def _begin_in_child() -> None:
    for item, begin in list(_BEGINNINGS.items()):
        begin(item)


os.register_at_fork(after_in_child=_begin_in_child)


if sys.version_info >= (3, 14):
    _RLock: Any = type(threading.RLock())

    class _Lock(_RLock):  # type: ignore[misc]
        """A lock that an interrupt (Ctrl-C) never leaves held: it is free, or the body of the `with` will release it.

        From this version of Python on, `with` checks for signals between taking the lock and its body. A
        `threading.Lock` would then stay held forever. This lock knows whether it was taken. Its `__exit__` is the
        one in C, and Python does not check for signals before calling it.
        """

        def __enter__(self) -> bool:
            try:
                return bool(self.acquire())
            except BaseException:
                if self._is_owned():
                    self.release()
                raise

else:
    _Lock = threading.Lock


class _Condition(threading.Condition):
    """A condition that takes and releases its lock by the lock's own methods.

    The methods of the base class are Python functions. An interrupt may come at their beginning, and the lock would
    stay held.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


def new_lock() -> AbstractContextManager[Any]:
    """Return a lock for `with` that is free in a forked child: a thread that holds it runs in the parent only.

    The state that the lock guards may then be half changed in the child: a cache or a counter may have a wrong size.
    State for which this matters must begin anew, by `follow_forks`.
    """
    lock: Any = _Lock()
    follow_forks(lock, _free)
    return lock  # type: ignore[no-any-return]


def new_condition(lock: AbstractContextManager[Any] | None = None) -> Condition:
    """Return a `threading.Condition` on a lock of `new_lock`; None: on a new lock."""
    return cast(Condition, _Condition(cast(Any, new_lock() if lock is None else lock)))


def _free(lock: Any) -> None:
    lock._at_fork_reinit()  # as the standard library does with its own


class _ThreadPool:
    """`Pool` over a `ThreadPoolExecutor`."""

    def __init__(self, worker_count_max: int) -> None:
        self._executor = ThreadPoolExecutor(worker_count_max, thread_name_prefix="lakebed")

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return self._executor.map(function, items)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class ThreadRuntime:
    """Real threads."""

    def lock(self) -> AbstractContextManager[Any]:
        """As `new_lock`."""
        return new_lock()

    def condition(self, lock: AbstractContextManager[Any] | None = None) -> Condition:
        """As `new_condition`."""
        return new_condition(lock)

    def pool(self, worker_count_max: int) -> Pool:
        """Return a pool of at most `worker_count_max` threads."""
        return _ThreadPool(worker_count_max)

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Run `function` in a daemon thread. Return a function that joins the thread."""
        thread = threading.Thread(target=function, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Unavailable(
                f"No thread could be started for the {name} ({error}): raise the limit of the system (ulimit -u) or of "
                "the container.",
                kind="no_thread",
            ) from error
        if stop is not None:
            join_before_exit(thread, stop)
        return thread.join


def map_in_pool(runtime: Runtime, function: Callable[[T], R], items: Sequence[T], *, worker_count_max: int) -> list[R]:
    """Call a function for each item on a pool, and return the results in the order of the items.

    If the system starts no threads, or too few, the calls run in this thread. Raises the first error of a call.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    calls = [_Call(partial(function, item)) for item in items]
    pool = runtime.pool(min(worker_count_max, len(items)))
    try:
        outcomes: Iterable[R] = (call.make() for call in calls)
        with suppress(RuntimeError):  # no thread can be started: this thread makes the remaining calls
            outcomes = pool.map(_make_only, [[call] for call in calls])
        return list(outcomes)
    finally:
        pool.close()
        del calls, outcomes  # as in `_Call.make`


class kept_property(cached_property[T]):  # noqa: N801
    """A property that is computed on first use and kept with its object.

    Threads that ask at the same time may each compute it. `cached_property` of Python 3.11 has one lock for all objects
    of the class and holds it during the computation. A store that hangs would then block threads that use another
    store, and a process that is forked at that time would wait forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        super().__init__(compute)
        self.lock = nullcontext()


@dataclass(frozen=True, slots=True)
class Environment:
    """Time, randomness and concurrency, handed to every store at construction."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    runtime: Runtime = field(default_factory=ThreadRuntime)
