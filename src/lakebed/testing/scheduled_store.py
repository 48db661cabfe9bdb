"""A store inside a simulation: each call is two switching points, and fails as the seed wills.

Owns: where faults strike. Invariants: a call of a crashed actor has no effect, but for a change that was already under
way, which may land at any later time; `AlreadyExists` of such a landing reaches nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lakebed.errors import LakebedError, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.testing.actor_loop import Actor, ActorLoop
from lakebed.testing.faulty import Crashed, lost
from lakebed.testing.wrapper import Call, StoreWrapper

__all__ = ["FaultRates", "ScheduledStore"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probability of each fault, per call of a store. Zero by default."""

    error_before: float = 0.0
    """The store answers that it cannot now; no effect."""
    lost_request: float = 0.0
    """No answer and no effect."""
    lost_reply: float = 0.0
    """No answer, and the effect is there."""
    late: float = 0.0
    """No answer, and a change lands at any later time."""
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


class ScheduledStore(StoreWrapper):
    """The store that actors call; made by `Scheduler.store`."""

    def __init__(self, inner: ObjectStore, *, loop: ActorLoop, faults: FaultRates, page_count: int) -> None:
        super().__init__(inner, page_count=page_count)
        self._loop = loop
        self._faults = faults

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Give way, make the call, give way again; or fail."""
        loop, actor = self._loop, self._loop.current
        if actor is None:
            return perform()
        self._strike(actor, call, perform)
        loop.switch(str(call))
        fault = self._drawn()
        if fault == "error_before":
            raise Unavailable(f"the store cannot {call} now", path=call.path)
        if fault == "lost_request":
            raise lost(call)
        if fault == "late":
            self._land_later(actor, call, perform)
            raise lost(call)
        try:
            result = perform()
        finally:
            # Also an error travels back: its receiver may be gone, or late, when it comes.
            self._strike(actor, call, None)
            loop.switch(f"{call} done")
        if self._faults.slow and loop.rng.random() < self._faults.slow:
            loop.wait_until(None, label=f"slow {call}", timeout_s=loop.rng.random() * self._faults.slow_s_max)
        if fault == "lost_reply":
            raise lost(call)
        return result

    def _drawn(self) -> str | None:
        draw = self._loop.rng.random()
        for name in ("error_before", "lost_request", "lost_reply", "late"):
            draw -= getattr(self._faults, name)
            if draw < 0:
                return name
        return None

    def _strike(self, actor: Actor, call: Call, perform: Callable[[], object] | None) -> None:
        """Perhaps crash or pause the actor here; `perform` is the change that a crash leaves under way."""
        rng, faults = self._loop.rng, self._faults
        if faults.crash and rng.random() < faults.crash / 2:
            if perform is not None and call.changes and rng.random() < 0.5:
                self._land_later(actor, call, perform)
            self._loop.crash(actor.process)
            raise Crashed(f"{actor.name} crashed at {call}")
        if faults.pause and rng.random() < faults.pause / 2:
            self._loop.pause(actor, steps=rng.randrange(1, faults.pause_steps_max + 1))

    def _land_later(self, actor: Actor, call: Call, perform: Callable[[], object]) -> None:
        if not call.changes:
            return
        name = f"{actor.name}, late {len(self._loop.actors)}"

        def land() -> None:
            self._loop.switch(f"late {call}")
            try:
                perform()
            except LakebedError:
                return  # nobody waits for the answer

        late = self._loop.spawn(name, land, process=f"network {name}")
        late.is_crashed = False
        self._loop.pause(late, steps=self._loop.rng.randrange(self._faults.pause_steps_max + 1))
