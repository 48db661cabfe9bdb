"""Background threads, which wait until a step is due, run it, and report errors.

Owns: when each step runs. The owner of the threads provides the steps, and may also run them itself at any time.

Invariants: a step to which the store did not reply is tried again, after longer and longer pauses. Any other error is
reported, and the step is tried again after a pause. `Fenced` ends a thread. No lock is held during a step.
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
"""Takes the monotonic time of now and returns the time when the step is due. A time in the past means at once, None
that the step is not due before the next call. Called under the tree's lock."""


class Stopped(Exception):  # ends a long step between its parts
    """The database is being closed."""


Step = tuple[Due, Callable[[], object]]


class _Duty(NamedTuple):
    """The work of one thread: steps, with the functions that say when they are due."""

    name: str
    steps: tuple[Step, ...]
    beginnings: tuple[Step, ...] = ()
    """Steps that begin other threads. The pause after a step's error does not delay them."""


class Background:
    """The threads of one database.

    Args:
        wanted: a condition on `lock`, notified when a step may have become due.
        report: called under the lock with an error that a retry does not fix.
        at_exit: called instead of `end` if the interpreter ends while threads run. It must call `end`.
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
        """Long steps check it and raise `Stopped`."""

    def start(self, name: str, *steps: Step, later: Mapping[str, Sequence[Step]] | None = None) -> None:
        """Start a thread for some steps. Of several steps that are due, the first one runs first.

        Args:
            later: steps of further threads, by the thread's name. Each thread starts when one of its steps is due for
                the first time.
        """
        others = [_Duty(other, tuple(rest)) for other, rest in (later or {}).items()]
        with self._lock:
            now_s = self._environment.clock.monotonic_s()
            due = [any((at_s := due(now_s)) is not None and at_s <= now_s for due, _ in duty.steps) for duty in others]
        idle_duties = [duty for duty, is_due in zip(others, due, strict=True) if not is_due]
        self._spawn(_Duty(name, steps, tuple(map(self._beginning_of, idle_duties))))
        for duty in others:
            if duty not in idle_duties:
                self._spawn(duty)

    def _spawn(self, duty: _Duty) -> None:
        join = self._environment.runtime.spawn(lambda: self._run(duty), name=duty.name, stop=self._at_exit)
        self._joins.append(join)

    def _beginning_of(self, duty: _Duty) -> Step:
        """Return a step that starts a thread. It is due once, when the first step of that thread is due."""
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
        """Make every thread end after its current step."""
        with self._lock:
            self.is_stopping = True
            self._wanted.notify_all()

    def stop(self) -> None:
        """As `end`, and wait for the threads."""
        self.end()
        while self._joins:  # the first thread may have started another one just before it ended
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
                return  # the step has reported it to the waiting threads
            except (Unavailable, OutcomeUnknown):
                pause_s = min(_PAUSE_MAX_S, max(_PAUSE_FIRST_S, 2 * pause_s))
            except Exception as error:
                pause_s = _PAUSE_MAX_S
                with self._lock:
                    self._report(_as_lakebed_error(duty.name, error))

    def _next(self, duty: _Duty, pause_s: float) -> Callable[[], object] | None:
        """Wait at least for the pause, then for the next step that is due, and return it; None: stop."""
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
