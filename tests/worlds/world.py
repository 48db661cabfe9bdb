"""A simulated world: processes that crash and restart over one shared store, power loss, and a judgement at the end.

Owns: `World`, the frame of every store's simulation. A store's own world adds what its processes call, what watches
the shared store (a `Monitor`), and what has to hold at rest.

Invariants: what the world does on its own (set-up and the checks at rest) meets no fault; a run ends at the first
broken promise; the cyclic garbage collector stands still during a run, so that the same seed is the same run.
"""

from __future__ import annotations

import gc
import itertools
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Protocol, Self

from lakebed.errors import LakebedError
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.testing.actor_loop import ActorLoop
from lakebed.testing.power_loss import PowerLossStore
from lakebed.testing.scheduled_calls import FaultRates
from lakebed.testing.scheduler import Scheduler
from lakebed.testing.simulated_runtime import SimulatedClock, SimulatedRuntime
from worlds.promise import PromiseBroken

Life = Callable[[str, random.Random], None]
"""What a process does, given the name of this life and what it draws from."""

FAULTS: Final = FaultRates(
    error_before=0.004, lost_request=0.004, lost_reply=0.006, late=0.004, crash=0.004, pause=0.03, pause_steps_max=250
)

_VARIABLE: Final = re.compile(r"[0-9A-Z]{20,}|[0-9a-f]{32,}|[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
_worlds = itertools.count()


class Monitor(Protocol):
    """What watches the shared store, below all processes, and judges every change when it happens."""

    @property
    def violations(self) -> Sequence[PromiseBroken]:
        """Broken promises found so far; the first one ends the run."""
        ...

    def lost(self, paths: Sequence[str]) -> None:
        """Objects were lost or cut short with the power."""
        ...


class World(ABC):
    """One simulation.

    Args:
        seed: decides everything.
        faults: of every call of a process.
    """

    steps_max: ClassVar = 150_000
    """A run that takes more has a process that loops."""

    def __init__(self, seed: int, *, faults: FaultRates = FAULTS) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.faults = faults
        self.scheduler = Scheduler(seed, faults=faults)
        self.environment = self.scheduler.environment()
        self.counts: Counter[str] = Counter()
        self.power_lost_at: int | None = None
        """The step at which the power goes, once."""
        self.revive: Callable[[], None] = lambda: None
        """Spawns the processes that start when the power is back."""
        self._ticks = itertools.count(1)
        # What happens inside the shared store, and what a monitor reads, is one step: no switching points.
        self.quiet = Environment(
            clock=SimulatedClock(self.scheduler), rng=random.Random(seed), runtime=SimulatedRuntime(ActorLoop(0))
        )
        # Names of one length: what names them is of the same size in every run.
        self.memory = open_store(f"memory://simulation-{next(_worlds):09}", environment=self.quiet)
        self.power = PowerLossStore(self.memory)

    @property
    @abstractmethod
    def monitor(self) -> Monitor:
        """What watches the shared store."""

    @abstractmethod
    def check_at_rest(self) -> None:
        """Judge what is stored when every process has ended. Raises `PromiseBroken`."""

    # ---- faults and time

    def set_faults(self, faults: FaultRates) -> None:
        """Use other faults for every process that begins from now on."""
        self.faults = faults

    def tick(self) -> int:
        """The next moment."""
        return next(self._ticks)

    def now_ms(self) -> int:
        """The simulation's time."""
        return self.environment.clock.now_ms()

    def pass_time(self, ms: int) -> None:
        """Advance the clock for every process."""
        self.scheduler.now_s += ms / 1000

    # ---- processes

    def process(self, name: str, life: Life, *, lives: int = 1) -> None:
        """Start a process, and start it again after each crash until it has had its lives."""

        def live(number: int) -> Callable[[], None]:
            rng = random.Random(f"{name} {number} {self.seed}")
            return lambda: life(f"{name}.{number}", rng)

        def restart() -> None:
            for number in range(lives):
                actor = self.scheduler.spawn(f"{name}.{number}", live(number), process=f"{name}.{number}")
                self.scheduler.wait_until(lambda actor=actor: actor.is_done, label="watch")  # type: ignore[misc]
                if not actor.is_crashed:
                    return
                self.counts["crashes"] += 1

        self.scheduler.spawn(f"watch {name}", restart, process=f"watch {name}")

    # ---- running

    def run(self) -> Self:
        """Run every process to its end, then judge. Raises `PromiseBroken`."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            self._run_processes()
            self._raise_found()
            self.check_at_rest()
            self._raise_found()
        except LakebedError as error:
            raise PromiseBroken(f"{type(error).__name__}: {error}") from error
        finally:
            if enabled:
                gc.enable()
            self.counts["crashed actors"] += sum(actor.is_crashed for actor in self.scheduler.actors)
            self.memory.delete([meta.path for meta in self.memory.list()])
        return self

    def _run_processes(self) -> None:
        scheduler = self.scheduler
        while scheduler.step_once():
            if self.monitor.violations:
                return
            if scheduler.step_count > self.steps_max:
                raise PromiseBroken(f"more than {self.steps_max} steps: some process loops")
            if self.power_lost_at is not None and scheduler.step_count >= self.power_lost_at:
                self._lose_power()
        for actor in scheduler.actors:
            if actor.error is not None:
                raise PromiseBroken(f"{actor.name}: {type(actor.error).__name__}: {actor.error}") from actor.error

    def _lose_power(self) -> None:
        """Crash every process at once; what was not durable is lost or cut short."""
        self.power_lost_at = None
        self.scheduler.crash_all()
        while self.scheduler.step_once():
            continue
        lost = self.power.power_loss(self.rng)
        self.counts["power losses"] += 1
        self.counts["objects lost with the power"] += len(lost)
        self.monitor.lost(lost)
        self.revive()

    def _raise_found(self) -> None:
        if self.monitor.violations:
            raise self.monitor.violations[0]

    def pairs(self) -> set[tuple[str, str]]:
        """Pairs of neighbouring switching points of two actors, without what differs from run to run."""
        return {(_VARIABLE.sub("#", left), _VARIABLE.sub("#", right)) for left, right in self.scheduler.pairs}
