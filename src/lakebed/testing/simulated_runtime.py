"""Clock, locks, conditions, pools and threads of a simulation. Each of their operations is a switching point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from lakebed.clock import Clock
from lakebed.errors import Closed
from lakebed.runtime import Condition, Pool, Runtime
from lakebed.testing.actor_loop import Actor, ActorLoop

T = TypeVar("T")
R = TypeVar("R")


class SimulatedClock(Clock):
    """`Clock` of a simulation: a sleeping actor gives way, and time jumps when all sleep."""

    def __init__(self, loop: ActorLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return self._loop.start_ms + round(self._loop.now_s * 1000)

    def monotonic_s(self) -> float:
        return self._loop.now_s

    def sleep(self, seconds: float) -> None:
        self._loop.wait_until(None, label="sleep", timeout_s=seconds)


class _Lock:
    """Not reentrant: if an actor takes it twice, this is a deadlock, which the loop reports."""

    def __init__(self, loop: ActorLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._held = False

    def __enter__(self) -> _Lock:
        self._loop.switch(f"take {self._name}")
        self.take()
        return self

    def __exit__(self, *exc: object) -> None:
        self._held = False
        if exc[0] is None:
            self._loop.switch(f"leave {self._name}")

    def take(self) -> None:
        while self._held:
            self._loop.wait_until(lambda: not self._held, label=f"wait for {self._name}")
        self._held = True

    def leave(self) -> None:
        self._held = False


class _Condition(Condition):
    def __init__(self, loop: ActorLoop, name: str, lock: _Lock) -> None:
        self._loop = loop
        self._name = name
        self._lock = lock
        self._notified = 0

    def __enter__(self) -> _Condition:
        self._lock.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.__exit__(*exc)

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        self._lock.leave()
        try:
            return self._loop.wait_until(
                lambda: self._notified != before, label=f"wait on {self._name}", timeout_s=timeout
            )
        finally:
            # An actor that crashed here unwinds with the lock taken, as `with` expects, and then releases it at once.
            actor = self._loop.current
            if actor is None or not actor.is_crashed:
                self._lock.take()

    def notify_all(self) -> None:
        self._notified += 1


class _InlinePool(Pool):
    """Runs items one after another when their results are requested, with a switch before each."""

    def __init__(self, loop: ActorLoop) -> None:
        self._loop = loop
        self._is_closed = False

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        if self._is_closed:
            raise Closed("the pool was closed")
        outcomes: list[tuple[R | None, Exception | None]] = []
        for item in items:
            self._loop.switch("pool")
            try:
                outcomes.append((function(item), None))
            except Exception as error:
                outcomes.append((None, error))
        return _replay(outcomes)

    def close(self) -> None:
        self._is_closed = True


def _replay(outcomes: list[tuple[Any, Exception | None]]) -> Iterator[Any]:
    for result, error in outcomes:
        if error is not None:
            raise error
        yield result


class SimulatedRuntime(Runtime):
    """`Runtime` of a simulation: taking and leaving locks are switching points, and pools run their items inline."""

    def __init__(self, loop: ActorLoop) -> None:
        self._loop = loop
        self._made = 0

    def _next(self, what: str) -> str:
        self._made += 1
        return f"{what} {self._made}"

    def lock(self) -> AbstractContextManager[Any]:
        return _Lock(self._loop, self._next("lock"))

    def condition(self, lock: AbstractContextManager[Any] | None = None) -> _Condition:
        name = self._next("condition")
        assert lock is None or isinstance(lock, _Lock), "the lock comes from another runtime"
        return _Condition(self._loop, name, lock or _Lock(self._loop, name))

    def pool(self, worker_count_max: int) -> _InlinePool:
        return _InlinePool(self._loop)

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        actor: Actor = self._loop.spawn(self._next(name), function)

        def join() -> None:
            self._loop.wait_until(lambda: actor.is_done, label=f"join {actor.name}")

        return join
