"""Concurrency as an argument: threads, locks, conditions, events and pools come from an injected `Runtime`.

Owns: the `Runtime` protocol, the production `ThreadRuntime`, and `Environment`, the bundle of clock, randomness
and runtime that every store takes. The simulator's runtime (greenlets, one switching point a call) is in
`lakebed.testing`; with it every store runs deterministically.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from lakebed.clock import Clock, SystemClock
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
        """A `threading.Lock`."""
        return threading.Lock()

    def condition(self, lock: AbstractContextManager[Any] | None = None) -> Condition:
        """A `threading.Condition`."""
        return threading.Condition(cast(Any, lock))

    def pool(self, worker_count_max: int) -> Pool:
        """A pool of at most `worker_count_max` threads."""
        return _ThreadPool(worker_count_max)

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Run `function` in a daemon thread; the returned call joins it."""
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        if stop is not None:
            join_before_exit(thread, stop)
        return thread.join


def map_in_pool(runtime: Runtime, function: Callable[[T], R], items: Sequence[T], *, worker_count_max: int) -> list[R]:
    """Call a function for each item and return the results in the order of the items; several run on a pool.

    Raises: the first error of a call.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    pool = runtime.pool(min(worker_count_max, len(items)))
    try:
        return list(pool.map(function, items))
    finally:
        pool.close()


@dataclass(frozen=True, slots=True)
class Environment:
    """Time, randomness and concurrency, handed to every store at construction."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    runtime: Runtime = field(default_factory=ThreadRuntime)
