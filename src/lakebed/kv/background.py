"""Background threads: they wait until a step is due, run it, and report errors.

Owns: when each step runs. The steps are the owner's, and a caller may run them at any time as well.

Invariants: a step that the store did not answer is tried again, after longer and longer pauses; any other error is
reported, and the step is tried again after a pause; `Fenced` ends a thread. No lock is held during a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from lakebed.errors import Fenced, InternalError, LakebedError, OutcomeUnknown, Unavailable
from lakebed.runtime import Condition, Environment

_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 10.0

Due = Callable[[float], float | None]
"""From the monotonic time now to the time when the step is due (in the past: at once); None: not before the next call.
Called under the tree's lock."""


class Stopped(Exception):  # ends a long step between its parts
    """The database is being closed."""


Step = tuple[Due, Callable[[], object]]


class _Duty(NamedTuple):
    """One thread's work: steps with the times when they are due."""

    name: str
    steps: tuple[Step, ...]
    beginnings: tuple[Step, ...] = ()
    """Of other threads. An error of a step does not put them off."""


class Background:
    """The threads of one database.

    Args:
        wanted: a condition on it, notified when something may have become due.
        report: called under the lock with an error that a retry does not fix.
        at_exit: called when the interpreter ends while threads run, instead of `end`, which it calls.
    """

    def __init__(
        self,
        *,
        lock: AbstractContextManager[Any],
        wanted: Condition,
        report: Callable[[LakebedError], None],
        environment: Environment,
        at_exit: Callable[[], None] | None = None,
    ) -> None:
        self._lock = lock
        self._wanted = wanted
        self._report = report
        self._environment = environment
        self._at_exit = at_exit or self.end
        self._joins: list[Callable[[], None]] = []
        self.is_stopping: bool = False
        """Long steps look at it and raise `Stopped`."""

    def start(self, name: str, *steps: Step, later: Mapping[str, Sequence[Step]] | None = None) -> None:
        """Begin a thread for some steps; of those that are due, the first one runs first.

        Args:
            later: steps of further threads, by name; each begins when a step of its own is due for the first time, at
                once if one is due already.
        """
        others = [_Duty(other, tuple(rest)) for other, rest in (later or {}).items()]
        with self._lock:
            now_s = self._environment.clock.monotonic_s()
            due = [any((at_s := due(now_s)) is not None and at_s <= now_s for due, _ in duty.steps) for duty in others]
        waiting = [duty for duty, is_due in zip(others, due, strict=True) if not is_due]
        self._spawn(_Duty(name, steps, tuple(map(self._beginning_of, waiting))))
        for duty in others:
            if duty not in waiting:
                self._spawn(duty)

    def _spawn(self, duty: _Duty) -> None:
        join = self._environment.runtime.spawn(lambda: self._run(duty), name=duty.name, stop=self._at_exit)
        self._joins.append(join)

    def _beginning_of(self, duty: _Duty) -> Step:
        """A step that begins a thread, due once, when the first step of that thread is."""
        has_begun = False

        def due_of_first(now_s: float) -> float | None:
            times = [] if has_begun else [due(now_s) for due, _ in duty.steps]
            return min((due_s for due_s in times if due_s is not None), default=None)

        def begin() -> None:
            nonlocal has_begun
            self._spawn(duty)
            has_begun = True

        return due_of_first, begin

    def end(self) -> None:
        """Let every thread end after the step it is in."""
        with self._lock:
            self.is_stopping = True
            self._wanted.notify_all()

    def stop(self) -> None:
        """As `end`, and wait for the threads."""
        self.end()
        while self._joins:  # the first one may have begun another just before it ended
            self._joins.pop(0)()

    def _run(self, duty: _Duty) -> None:
        pause_s = 0.0
        while True:
            step = self._next(duty, pause_s)
            if step is None:
                return
            try:
                step()
                pause_s = 0.0
            except (Fenced, Stopped):
                return  # the step has reported it to those who wait
            except (Unavailable, OutcomeUnknown):
                pause_s = min(_PAUSE_MAX_S, max(_PAUSE_FIRST_S, 2 * pause_s))
            except Exception as error:
                pause_s = _PAUSE_MAX_S
                with self._lock:
                    self._report(_as_lakebed_error(duty.name, error))

    def _next(self, duty: _Duty, pause_s: float) -> Callable[[], object] | None:
        """Wait for the next step that is due, at least for the pause; None: stop."""
        clock = self._environment.clock
        with self._lock:
            earliest_s = clock.monotonic_s() + pause_s
            while not self.is_stopping:
                now_s = clock.monotonic_s()
                waits: list[float] = []
                for steps, not_before_s in ((duty.beginnings, now_s), (duty.steps, earliest_s)):
                    for due, step in steps:
                        due_s = due(now_s)
                        if due_s is None:
                            continue
                        due_s = max(due_s, not_before_s)
                        if due_s <= now_s:
                            return step
                        waits.append(due_s - now_s)
                self._wanted.wait(min(waits, default=None))
        return None


def _as_lakebed_error(name: str, error: Exception) -> LakebedError:
    if isinstance(error, LakebedError):
        return error
    failure = InternalError(f"{name} failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
