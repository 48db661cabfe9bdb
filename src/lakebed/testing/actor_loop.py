"""Actors as greenlets. They run one at a time, in an order drawn from a seed.

Owns: which actor runs next, the time, which actors are crashed, paused or waiting, and the trace. Does not know stores
and locks, which are built on `ActorLoop.switch` and `ActorLoop.wait_until`.

Invariants:
- The same seed and the same actors give the same trace, whatever PYTHONHASHSEED is.
- Between two switching points an actor runs alone.
- Time passes only when no actor can run.
- `Crashed` unwinds a crashed actor at its next switching point. After that it never runs again.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lakebed.testing.clock import START_MS
from lakebed.testing.faulty import Crashed

try:
    import greenlet
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "lakebed.testing needs greenlet, which is not installed: pip install 'lakebed[testing]'.", name="greenlet"
    ) from missing

_TAIL_COUNT: Final = 40


class Deadlock(AssertionError):  # a finding, like any other failed assertion
    """No actor can run, and waiting does not help."""


class StepsExceeded(AssertionError):
    """The run took more steps than are allowed: an actor loops."""


@dataclass(eq=False, slots=True)
class Actor:
    """One actor and what it waits for."""

    name: str
    process: str
    """Actors of one process crash together."""
    run: Callable[[], None]
    greenlet: Any = None
    ready: Callable[[], bool] | None = None
    """None: it can run. Otherwise it can run once this returns True, or once `wake_s` has come."""
    wake_s: float | None = None
    paused_until_step: int = 0
    is_crashed: bool = False
    is_done: bool = False
    error: BaseException | None = None
    label: str = "start"

    def can_run(self, now_s: float) -> bool:
        """Return whether the actor waits for nothing."""
        if self.is_crashed or (self.ready is None and self.wake_s is None):
            return True
        return (self.wake_s is not None and self.wake_s <= now_s) or (self.ready is not None and self.ready())


class ActorLoop:
    """Runs actors. `lakebed.testing.Scheduler` builds on it."""

    def __init__(self, seed: int, *, start_ms: int = START_MS) -> None:
        self.seed = seed
        self.rng = random.Random(f"schedule {seed}")
        """Decides which actor runs and what fails. Actors use another generator."""
        self.step_count = 0
        self.actors: list[Actor] = []
        self._names: set[str] = set()
        self._left: list[Actor] = []
        """The actors that are not done, in the order of spawning. A run may have thousands that are done."""
        self.start_ms = start_ms
        self.now_s = 0.0
        self.pairs: Counter[tuple[str, str]] = Counter()
        """How often one switching point was followed by another one of another actor."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._tail: list[str] = []
        self._main: Any = None
        self._current: Actor | None = None

    # Before and between runs

    def spawn(self, name: str, function: Callable[[], object], *, process: str | None = None) -> Actor:
        """Add an actor. It starts when the seed picks it.

        Args:
            name: unique among actors; shown in the trace.
            function: what the actor does.
            process: actors of one process crash together. None: the process of the actor that calls this, else one of
                its own.
        """
        parent = self._current
        if name in self._names:
            raise ValueError(f"there is an actor {name} already")
        actor = Actor(name, process or (parent.process if parent else name), lambda: self._live(actor, function))
        actor.is_crashed = parent is not None and parent.is_crashed
        self.actors.append(actor)
        self._names.add(name)
        self._left.append(actor)
        return actor

    def crash(self, process: str) -> None:
        """End every actor of a process at its next switching point, without any further effect."""
        for actor in self._left:
            if actor.process == process and not actor.is_done:
                actor.is_crashed = True
                actor.paused_until_step = 0

    def crash_all(self) -> None:
        """Crash every process, as a power loss does."""
        for process in {actor.process: None for actor in self.actors}:
            self.crash(process)

    def pause(self, actor: Actor, *, steps: int) -> None:
        """Pause an actor for some steps of others. It may then act on what it knew before."""
        actor.paused_until_step = self.step_count + steps

    def run(self, *, steps_max: int = 200_000) -> None:
        """Run until every actor is done.

        Raises `Deadlock`: the remaining actors wait for each other; `StepsExceeded`: more than `steps_max` switches;
        `BaseException`: the first error of an actor (but `Crashed`).
        """
        last_step = self.step_count + steps_max
        while self.step_once():
            if self.step_count > last_step:
                raise StepsExceeded(f"seed {self.seed}: more than {steps_max} steps\n{self.story()}")
        for actor in self.actors:
            if actor.error is not None:
                actor.error.add_note(f"in actor {actor.name}, seed {self.seed}\n{self.story()}")
                raise actor.error

    def step_once(self) -> bool:
        """Let one actor run to its next switching point. Return False when all are done."""
        if any(actor.is_done for actor in self._left):
            self._left = [actor for actor in self._left if not actor.is_done]
        waiting = self._left
        if not waiting:
            return False
        actor = self._choose(waiting)
        self.step_count += 1
        previous, self._current = self._current, actor
        main, self._main = self._main, greenlet.getcurrent()
        actor.ready, actor.wake_s = None, None
        try:
            if actor.greenlet is None:
                actor.greenlet = greenlet.greenlet(actor.run)
            actor.greenlet.parent = self._main
            actor.greenlet.switch()
        finally:
            self._current, self._main = previous, main
        return True

    def _choose(self, actors: list[Actor]) -> Actor:
        while True:
            able = [actor for actor in actors if actor.can_run(self.now_s)]
            awake = [actor for actor in able if actor.paused_until_step <= self.step_count]
            if awake:
                return awake[self.rng.randrange(len(awake))]
            if able:  # only paused actors are left, so wake the first
                able[0].paused_until_step = 0
                continue
            wakes = [actor.wake_s for actor in actors if actor.wake_s is not None]
            if not wakes:
                names = ", ".join(f"{actor.name} at {actor.label}" for actor in actors)
                raise Deadlock(f"seed {self.seed}: no actor can run ({names})\n{self.story()}")
            self.now_s = max(self.now_s, min(wakes))

    def _live(self, actor: Actor, function: Callable[[], object]) -> None:
        try:
            if not actor.is_crashed:
                function()
        except Crashed:
            actor.is_crashed = True
        except Exception as error:
            actor.error = error
        finally:
            actor.is_done = True

    # From inside an actor

    @property
    def current(self) -> Actor | None:
        """The actor that runs now; None in set-up and checking code."""
        return self._current

    def switch(self, label: str) -> None:
        """Let others run: a switching point. Outside of actors it does nothing.

        Raises `Crashed` if this actor is gone.
        """
        actor = self._current
        if actor is None:
            return
        self._check_alive(actor)
        self._note(actor, label)
        actor.label = label
        self._main.switch()
        self._check_alive(actor)

    def wait_until(self, ready: Callable[[], bool] | None, *, label: str, timeout_s: float | None = None) -> bool:
        """Let others run until `ready()` is true or the time has passed. Return whether it is ready.

        Raises `Crashed` if this actor is gone; `Deadlock` outside of actors, where nothing could make it ready.
        """
        actor = self._current
        if actor is None:
            while ready is not None and not ready():
                if not self.step_once():
                    if timeout_s is None:
                        raise Deadlock(f"seed {self.seed}: set-up code waits for {label}, and no actor is left")
                    break
            if ready is None or not ready():
                self.now_s += timeout_s or 0.0
            return ready is not None and ready()
        self._check_alive(actor)
        self._note(actor, label)
        actor.label = label
        actor.ready = ready
        actor.wake_s = None if timeout_s is None else self.now_s + timeout_s
        self._main.switch()
        self._check_alive(actor)
        return ready is not None and ready()

    @staticmethod
    def _check_alive(actor: Actor) -> None:
        if actor.is_crashed:
            raise Crashed(f"{actor.name} crashed")

    # The trace

    def _note(self, actor: Actor, label: str) -> None:
        line = f"{actor.name}: {label}"
        if self._tail and not self._tail[-1].startswith(f"{actor.name}: "):
            self.pairs[self._tail[-1], line] += 1
        self._digest.update(line.encode() + b"\n")
        self._tail.append(line)
        if len(self._tail) > 2 * _TAIL_COUNT:
            del self._tail[:_TAIL_COUNT]

    def trace_hash(self) -> str:
        """Return a digest of all switches so far. It is equal for equal runs."""
        return self._digest.hexdigest()

    def story(self) -> str:
        """Return the last switches, one a line, for the message of a failure."""
        return "\n".join(self._tail[-_TAIL_COUNT:])
