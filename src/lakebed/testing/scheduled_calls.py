"""Calls between the parts of a simulation. Each is two switching points, and fails as the seed decides.

Owns: `FaultRates`, and where faults affect a call: before its effect, between effect and reply, or after its caller has
given up.

Invariants: a call of a crashed actor has no effect, except for a change that was already in flight, which may land at
any later time. No caller gets the error of such a landing. Does not know what is called: a store, a key-value store and
the parts of a service all use this.

Example, a request that reaches the server twice:
    >>> from lakebed.testing import FaultRates, ScheduledCalls, Scheduler
    >>> scheduler, sums = Scheduler(3), []
    >>> calls = ScheduledCalls(scheduler, faults=FaultRates(repeated=1.0))
    >>> _ = scheduler.spawn("client", lambda: calls.call("add 1", lambda: sums.append(1), server="server"))
    >>> scheduler.run()
    >>> sums
    [1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.testing.actor_loop import Actor, ActorLoop
from lakebed.testing.faulty import Crashed

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probability of each fault, per call. Zero by default."""

    error_before: float = 0.0
    """The other part answers that it cannot now; no effect."""
    lost_request: float = 0.0
    """No answer and no effect."""
    lost_reply: float = 0.0
    """No answer, and the effect is there."""
    late: float = 0.0
    """No answer, and a change lands at any later time."""
    repeated: float = 0.0
    """An answer, and the same change lands once more at any later time."""
    crash: float = 0.0
    """The actor's whole process is gone: before the effect, after it, or with its change still under way."""
    pause: float = 0.0
    """The actor stands still between effect and reply, or before the effect."""
    pause_steps_max: int = 200
    """Longest pause, in steps of other actors."""
    slow: float = 0.0
    """The reply takes its time, by the clock."""
    slow_s_max: float = 10.0
    """Longest time that a slow reply takes, in seconds."""


class CallErrors(NamedTuple):
    """What a caller gets instead of an answer; each is given the label of the call."""

    refused: Callable[[str], LakebedError]
    """The call had no effect and will have none."""
    lost: Callable[[str], LakebedError]
    """The caller cannot know whether the call had its effect."""


def _refuse(label: str) -> LakebedError:
    return Unavailable(f"the server cannot {label} now")


def _reply_error(label: str) -> LakebedError:
    return OutcomeUnknown(f"the reply to {label} was lost")


ERRORS = CallErrors(_refuse, _reply_error)


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A change that may not have happened yet, and whose caller has given up."""

    perform: Callable[[], object]
    is_over: bool = False

    def land(self) -> None:
        """Make the change unless it was made. Drop its error, such as `Conflict`, because no caller is left for it."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.perform()
        except LakebedError:
            return


class ScheduledCalls:
    """Makes calls for the actors of one loop. Outside of actors nothing switches and nothing fails.

    Args:
        loop: whose actors call.
        faults: how often calls fail, crash or stall their caller.
    """

    def __init__(self, loop: ActorLoop, *, faults: FaultRates) -> None:
        self._loop = loop
        self._faults = faults
        self._under_way: list[_UnderWay] = []

    def call(
        self,
        label: str,
        perform: Callable[[], R],
        *,
        changes: bool = True,
        errors: CallErrors = ERRORS,
        server: str | None = None,
    ) -> R:
        """Let others run, make the call, and let others run again; or fail.

        Args:
            label: names the call in the trace and in errors.
            perform: makes the call.
            changes: whether the call can have an effect. A call without one is never late and never repeated.
            errors: what the caller gets instead of an answer.
            server: the process that performs the call, as an actor of its own. If it crashes meanwhile, the reply is
                lost. None: the call takes effect at once, in one step.
        """
        loop, actor = self._loop, self._loop.current
        if actor is None:
            return perform()
        serve = perform if server is None else partial(self._serve, label, perform, server=server, errors=errors)
        self._strike(actor, label, serve if changes else None)
        loop.switch(label)
        fault = self._draw()
        if fault == "error_before":
            raise errors.refused(label)
        if fault == "late" and changes:
            self._land_later(actor, label, serve)
        if fault in ("lost_request", "late"):
            raise errors.lost(label)
        try:
            result = serve()
        finally:
            # An error is sent back too. Its receiver may be crashed or paused when it arrives.
            self._strike(actor, label, None)
            loop.switch(f"{label} done")
        if self._faults.slow and loop.rng.random() < self._faults.slow:
            loop.wait_until(None, label=f"slow {label}", timeout_s=loop.rng.random() * self._faults.slow_s_max)
        if fault == "repeated" and changes:
            self._land_later(actor, label, serve)
        if fault == "lost_reply":
            raise errors.lost(label)
        return result

    def settle(self) -> None:
        """Let each change that is under way happen now or never. What became of it, a later read shows."""
        under_way, self._under_way = self._under_way, []
        for change in under_way:
            if self._loop.rng.random() < 0.5:
                change.land()
            change.is_over = True

    def _serve(self, label: str, perform: Callable[[], R], *, server: str, errors: CallErrors) -> R:
        results: list[R] = []
        name = f"{server}: {label} {len(self._loop.actors)}"
        serving = self._loop.spawn(name, lambda: results.append(perform()), process=server)
        serving.is_crashed = False  # whatever happened to the caller
        self._loop.wait_until(lambda: serving.is_done, label=f"{label} at {server}")
        error, serving.error = serving.error, None
        if error is not None:
            raise error
        if not results:
            raise errors.lost(label)
        return results[0]

    def _draw(self) -> str | None:
        draw = self._loop.rng.random()
        for name in ("error_before", "lost_request", "lost_reply", "late", "repeated"):
            draw -= getattr(self._faults, name)
            if draw < 0:
                return name
        return None

    def _strike(self, actor: Actor, label: str, perform: Callable[[], object] | None) -> None:
        """Perhaps crash or pause the actor here. A crash leaves `perform`, a change, in flight."""
        rng, faults = self._loop.rng, self._faults
        if faults.crash and rng.random() < faults.crash / 2:
            if perform is not None and rng.random() < 0.5:
                self._land_later(actor, label, perform)
            self._loop.crash(actor.process)
            raise Crashed(f"{actor.name} crashed at {label}")
        if faults.pause and rng.random() < faults.pause / 2:
            self._loop.pause(actor, steps=rng.randrange(1, faults.pause_steps_max + 1))

    def _land_later(self, actor: Actor, label: str, perform: Callable[[], object]) -> None:
        change = _UnderWay(perform)
        self._under_way.append(change)
        name = f"{actor.name}, late {len(self._loop.actors)}"

        def land() -> None:
            self._loop.switch(f"late {label}")
            change.land()

        late = self._loop.spawn(name, land, process=f"network {name}")
        late.is_crashed = False
        self._loop.pause(late, steps=self._loop.rng.randrange(self._faults.pause_steps_max + 1))
