"""Concurrency as an argument: threads, locks, conditions, events and pools come from an injected `Runtime`.

Owns: the `Runtime` protocol, the production `ThreadRuntime`, and `Environment`, the bundle of clock, randomness
and runtime that every store takes. The simulator's runtime (greenlets, one switching point a call) is in
`lakebed.testing`; with it every store runs deterministically.
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
    """What `threading.Condition` offers, as far as lakebed uses it."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release, wait for a notification or `timeout` seconds, take again; False after a timeout."""

    def notify_all(self) -> None:
        """Wake every waiter."""


class Pool(Protocol):
    """A bounded pool of workers."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in the order of `items`; the first error is raised where its result would be."""

    def close(self) -> None:
        """Wait for running calls and release the workers."""


class _Call(Generic[R]):
    """A call that is made once, by the first thread that comes to it."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._untaken = [function]
        self._outcome: Future[R] = Future()

    def make(self) -> R:
        """The result; of a thread that is at it or was, if there is one."""
        try:
            function = self._untaken.pop()
        except IndexError:
            return self._outcome.result()
        try:
            result = function()
        except BaseException as error:
            self._outcome.set_exception(error)
            del self  # the error refers to this frame, and would keep itself and what it was about
            raise
        self._outcome.set_result(result)
        return result


def begin_call(function: Callable[[], R], pool: Pool | None) -> Iterator[R]:
    """Begin a call in a pool, if there is one. Its result or its error comes when the next item is asked for.

    Without a pool the call is made then. A pool of one worker makes calls one after another, in their order.
    """
    if pool is None:
        return (function() for _ in range(1))
    call = _Call(function)
    # While the interpreter shuts down, or where the system allows no more, no thread can be started.
    with suppress(RuntimeError):
        return pool.map(lambda _: call.make(), range(1))
    # The pool has kept the call all the same, and will come to it. It is made now: later ones may have a worker.
    with suppress(Exception):
        call.make()
    return (call.make() for _ in range(1))


class Runtime(Protocol):
    """Where locks, pools and threads come from."""

    def lock(self) -> AbstractContextManager[Any]:
        """A mutual-exclusion lock, not reentrant."""

    def condition(self, lock: AbstractContextManager[Any] | None = None) -> Condition:
        """A condition on a lock of this runtime, by default on one of its own.

        Several conditions may share one lock; a hot path takes the lock itself, which is cheaper than the condition.
        """

    def pool(self, worker_count_max: int) -> Pool:
        """A pool of at most `worker_count_max` workers."""

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Run `function` in the background; the returned call waits for its end.

        Args:
            stop: makes `function` return soon, without waiting for it. The end of the interpreter calls it and waits
                for the thread, for at most `exiting.WAIT_MAX_S`; afterwards, and without it, the thread is abandoned.
        """


_BEGINNINGS: Final[weakref.WeakKeyDictionary[Any, Callable[[Any], object]]] = weakref.WeakKeyDictionary()


def follow_forks(item: T, begin: Callable[[T], object]) -> None:
    """Let an object, as long as it lives, begin anew in a forked child, which has none of its parent's threads.

    Args:
        begin: called in the child before anything else runs. What a thread of the parent was at is half done, and
            what the parent continues to use is left alone. It takes no lock, and sends no request.
    """
    _BEGINNINGS[item] = begin


def _begin_in_child() -> None:
    for item, begin in list(_BEGINNINGS.items()):
        begin(item)


os.register_at_fork(after_in_child=_begin_in_child)


if sys.version_info >= (3, 14):
    _RLock: Any = type(threading.RLock())

    class _Lock(_RLock):  # type: ignore[misc]
        """A lock that an interrupt (Ctrl-C) leaves free, or held for the body of the `with`, which gives it back.

        From this version of Python on, `with` looks for signals between taking the lock and its body: of a
        `threading.Lock` it would stay held forever. This one knows whether it was taken. Its `__exit__` is the one in
        C, in front of which nothing is looked for.
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
    """A condition that is taken and given back as its lock is.

    Those of the base are functions in Python, at whose beginning an interrupt comes: the lock would stay held.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


def new_lock() -> AbstractContextManager[Any]:
    """A lock for `with`, which is free in a forked child: a thread that holds it runs in the parent only.

    What it guards may be half changed in the child then: a cache or a count may be wrong about its size there, and what
    cannot live with that has to begin anew, by `follow_forks`.
    """
    lock: Any = _Lock()
    follow_forks(lock, _free)
    return lock  # type: ignore[no-any-return]


def new_condition(lock: AbstractContextManager[Any] | None = None) -> Condition:
    """A `threading.Condition` on a lock of `new_lock`; None: on a new one."""
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
        """See `new_condition`."""
        return new_condition(lock)

    def pool(self, worker_count_max: int) -> Pool:
        """A pool of at most `worker_count_max` threads."""
        return _ThreadPool(worker_count_max)

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Run `function` in a daemon thread; the returned call joins it."""
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
    """Call a function for each item and return the results in the order of the items; several run on a pool.

    Where the system starts no thread, or too few, they run in this one. Raises: the first error of a call.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    calls = [_Call(partial(function, item)) for item in items]
    pool = runtime.pool(min(worker_count_max, len(items)))
    try:
        outcomes: Iterable[R] = (call.make() for call in calls)
        with suppress(RuntimeError):  # no thread can be started: what waits for one is made here
            outcomes = pool.map(_Call.make, calls)
        return list(outcomes)
    finally:
        pool.close()
        del calls, outcomes  # as in `_Call.make`


class kept_property(cached_property[T]):  # noqa: N801
    """A property that is computed when it is first asked for, and kept with its object.

    Threads that ask at the same time may each compute it. `cached_property` of Python 3.11 has one lock for all objects
    of the class, and holds it meanwhile: a store that hangs would stop those that use another one, and a process that
    is forked meanwhile would wait forever.
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
