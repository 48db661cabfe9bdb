"""`Tenure`: how a process works with something that one process owns at a time, and waits while another owns it.

Owns: the life of an ownership (open, work, lose, close, open again) in a thread of its own; the verdict that another
process's ownership is over; and the report of problems. An ownership is over when its process has ended, gave it up,
let its lease end, or hangs. A process hangs if it answered health checks and does not answer any more. A wrong verdict
costs work, never data: an open fences the earlier owner. Invariants: only `close` ends the thread. A step that fails is
reported and tried again; an unexpected error is reported with its traceback. Nothing is handed over: the next owner
reads all state from what it opens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from traceback import format_exception
from typing import Final, Generic, Protocol, TypeVar

from lakebed.errors import Closed, Conflict, Fenced, LakebedError
from lakebed.http.asking import OK, ask_health
from lakebed.kv.lease import this_process
from lakebed.runtime import Environment

_LOOK_S: Final = 0.25
"""How often a standby checks whether the owner, a process of this machine, has ended. Costs no request."""
_ASK_S: Final = 1.0
"""How often a standby tries to open before the owner's lease ends: the owner may have given it up."""
_HEALTH_S: Final = 0.3
"""How long an owner may take to answer a health check."""
_SILENCES: Final = 3
"""An owner that does not answer so many health checks in a row hangs."""
_HANGS_LOOK_S: Final = 0.05
"""Pause before the next health check of an owner that did not answer one."""
_TRUST_S: Final = 10.0
"""How long a process that lost an ownership waits for the next owner's lease, and does not check its health.

Two processes that do not reach each other do not take turns faster than this.
"""
_SAY_AGAIN_S: Final = 60.0
"""How long a problem that was reported is not reported again."""
_SAID_COUNT_MAX: Final = 100


class Owned(Protocol):
    """What a process opens. It is closed when it is lost, and at the end."""

    def close(self) -> None:
        """Give it back."""


T = TypeVar("T", bound=Owned)
R = TypeVar("R")


class Tenure(Generic[T]):
    """Opens something as soon as it can, works with it, and opens it again after it was lost. Thread-safe.

    Args:
        what: the name of what is owned, for messages: ``log``.
        opened: opens it; with True, even if another process owns it. Else raises `Conflict` (``owned``) in that case.
        work: works with it, and returns when `waits` is False; another thread closes it afterwards.
        report: receives a message for each problem.
        take_over: open it the first time even if another process owns it.
        health: asks the process at a URL for its health, for at most some seconds; returns its status, or None.

    Raises as `opened`, except when another process owns it. Cost: as `opened`.
    """

    def __init__(
        self,
        what: str,
        opened: Callable[[bool], T],
        work: Callable[[T, Tenure[T]], None],
        *,
        report: Callable[[str], None],
        environment: Environment,
        take_over: bool = False,
        health: Callable[[str, float], str | None] = ask_health,
    ) -> None:
        self._health = health
        self._what = what
        self._opened = opened
        self._work = work
        self._report = report
        self._clock = environment.clock
        self._changed = environment.runtime.condition()
        self._is_lost = False
        self._is_over = False
        self._said: dict[str, float] = {}
        self._owner: Conflict | None = None
        """The owner, as the last attempt to open it reported."""
        self._asked_s = 0.0
        self._watched: Conflict | None = None
        """The last owner that was reported."""
        self._is_watched = False
        """Whether the owner has answered a health check."""
        self._silences = 0
        self._trusts_until_s = 0.0
        first: T | None = None
        try:
            first = opened(take_over)
        except Fenced:
            pass  # another process opened it at the same time, later
        except Conflict as error:
            if error.kind != "owned":
                raise
            self._note_owner(error)
        self._join = environment.runtime.spawn(lambda: self._run(first), name=f"lakebed-{what}-owner")

    def close(self) -> None:
        """End the work, and close what is owned."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._join()

    def lose(self) -> None:
        """End the work because another process owns it now. Open it again when that is possible."""
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def waits(self, seconds: float) -> bool:
        """Wait. Return whether the work continues."""
        with self._changed:
            if not (self._is_lost or self._is_over):
                self._changed.wait(seconds)
            return not (self._is_lost or self._is_over)

    def repeat(self, step: Callable[[], object], *, every_s: float, problem: str = "") -> None:
        """Repeat a step, whatever it raises, until the ownership is lost or closed."""
        while self.waits(every_s):
            self._attempt(step, problem)

    def report_defect(self, error: Exception) -> None:
        """Report an unexpected error, with its traceback."""
        self._say("".join(format_exception(error)), key=repr(error))

    def _run(self, owned: T | None) -> None:
        while True:
            if owned is not None:
                self._attempt(partial(self._work, owned, self), "")
                if self._is_lost and not self._is_over:
                    self._trusts_until_s = self._clock.monotonic_s() + _TRUST_S
                    self._report(f"another process has taken over the {self._what}; this one is a standby now.")
                self._attempt(owned.close, f"the {self._what} was not closed")
            with self._changed:
                if not self._is_over:
                    self._changed.wait(_HANGS_LOOK_S if self._silences else _LOOK_S)
                if self._is_over:
                    return
                self._is_lost = False
            owned = None
            owner, hangs = self._owner, self._hangs()
            if owner is not None and not hangs and not self._may_have_ended(owner):
                continue
            owned = self._attempt(partial(self._open, owner if hangs else None), f"the {self._what} cannot be opened")

    def _open(self, hangs: Conflict | None) -> T:
        """Open it, even if the owner `hangs` still has it. Raises as `opened`."""
        self._owner = None
        try:
            return self._opened(False)
        except Conflict as error:
            if hangs is None or error.kind != "owned" or not _are_one(error, hangs):
                raise
            self._note_owner(error)
        self._report(
            f"the owner of the {self._what}, process {hangs.facts['pid']} on {hangs.facts['host']} at "
            f"{hangs.facts['endpoint']}, does not answer: this process takes it over."
        )
        return self._opened(True)

    def _attempt(self, step: Callable[[], R], problem: str) -> R | None:
        """Return the result of a step; None if it fails. `Fenced` and `Closed` mean that the ownership is lost."""
        try:
            return step()
        except (Fenced, Closed):
            self.lose()
        except LakebedError as error:
            if isinstance(error, Conflict) and error.kind == "owned":
                self._note_owner(error)
            else:
                message = f"{problem}: {error.message}" if problem else error.message
                self._say(message, key=message)
        except Exception as error:
            self.report_defect(error)
        return None

    def _note_owner(self, conflict: Conflict) -> None:
        if self._watched is None or not _are_one(conflict, self._watched):
            self._watched, self._is_watched, self._silences = conflict, False, 0
        self._owner, self._asked_s = conflict, self._clock.monotonic_s()

    def _hangs(self) -> bool:
        """Check the owner's health. Return whether it hangs. Cost: 1 request to the owner, none to the store."""
        endpoint = None if self._owner is None else self._owner.facts.get("endpoint")
        if endpoint is None:
            return False
        status = self._health(endpoint, _HEALTH_S)
        if status is not None:
            self._is_watched, self._silences = status == OK, 0
        elif self._is_watched and self._clock.monotonic_s() >= self._trusts_until_s:
            self._silences += 1
        return self._silences >= _SILENCES

    def _may_have_ended(self, owner: Conflict) -> bool:
        """Whether to try to open it: the owner's process or lease has ended, or the last attempt was a while ago."""
        facts, here = owner.facts, this_process()
        return (
            self._clock.monotonic_s() - self._asked_s >= _ASK_S
            or self._clock.now_ms() >= facts.get("expires_at_ms", 0)
            or (facts.get("host") == here.host and not here.runs(facts["pid"]))
        )

    def _say(self, message: str, *, key: str) -> None:
        now_s = self._clock.monotonic_s()
        with self._changed:
            if now_s - self._said.get(key, -_SAY_AGAIN_S) < _SAY_AGAIN_S:
                return
            if len(self._said) >= _SAID_COUNT_MAX:
                self._said.clear()
            self._said[key] = now_s
        self._report(message)


def _are_one(owner: Conflict, other: Conflict) -> bool:
    """Whether two errors name the same ownership."""
    return all(owner.facts.get(name) == other.facts.get(name) for name in ("host", "pid", "epoch", "endpoint"))
