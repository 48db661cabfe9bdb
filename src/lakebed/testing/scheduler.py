"""`Scheduler`: a simulation from one seed, with clock, randomness, runtime and stores."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeVar

from lakebed.errors import Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing.actor_loop import ActorLoop
from lakebed.testing.clock import START_MS
from lakebed.testing.faulty import lost
from lakebed.testing.scheduled_calls import CallErrors, FaultRates, ScheduledCalls
from lakebed.testing.simulated_runtime import SimulatedClock, SimulatedRuntime
from lakebed.testing.wrapper import Call, StoreWrapper


def seed_count(default: int) -> int:
    """Return how many seeds or examples a test should run: ``LAKEBED_SEEDS`` from the environment, else `default`."""
    return int(os.environ.get("LAKEBED_SEEDS", default))


class Scheduler(ActorLoop):
    """Runs actors in an order drawn from a seed, with faults drawn from the same seed.

    Actors give way at every call of a store made by `store` (before its effect and before its reply) and at every
    operation of a lock, condition, pool or thread of `environment().runtime`. Locks made outside may be held across no
    store call. Outside of actors, in set-up and checking code, nothing switches and nothing fails.

    Args:
        seed: decides everything that chance decides.
        faults: how often calls of stores fail, crash or stall their caller.
        start_ms: wall time at the start, Unix milliseconds.

    Example, two writers that race for one name:
        >>> from lakebed.errors import AlreadyExists
        >>> from lakebed.objects import open_store
        >>> def race(seed):
        ...     scheduler = Scheduler(seed)
        ...     store, winners = scheduler.store(open_store(f"memory://race-{seed}")), []
        ...     def write(name):
        ...         try:
        ...             store.put("prize", name.encode(), create_only=True)
        ...             winners.append(name)
        ...         except AlreadyExists:
        ...             pass
        ...     for name in ("a", "b"):
        ...         scheduler.spawn(name, lambda name=name: write(name))
        ...     scheduler.run()
        ...     return winners
        >>> all(len(race(seed)) == 1 for seed in range(8))
        True
    """

    def __init__(self, seed: int, *, faults: FaultRates | None = None, start_ms: int = START_MS) -> None:
        super().__init__(seed, start_ms=start_ms)
        self.faults = faults or FaultRates()
        self._environment = Environment(
            clock=SimulatedClock(self),
            rng=random.Random(f"actors {seed}"),
            runtime=SimulatedRuntime(self),
        )

    def environment(self) -> Environment:
        """Return clock, randomness and runtime of this simulation, for the objects under test."""
        return self._environment

    def store(self, inner: ObjectStore, *, faults: FaultRates | None = None, page_count: int = 1000) -> ScheduledStore:
        """Return a store for actors over any store, by default with this scheduler's faults.

        Open `inner` without this scheduler's environment, so that its own locks are no switching points.
        """
        return ScheduledStore(inner, calls=self.calls(faults=faults), page_count=page_count)

    def calls(self, *, faults: FaultRates | None = None) -> ScheduledCalls:
        """Return calls between parts of this simulation, by default with this scheduler's faults."""
        return ScheduledCalls(self, faults=faults or self.faults)


R = TypeVar("R")


class ScheduledStore(StoreWrapper):
    """The store that actors call. `Scheduler.store` makes it."""

    def __init__(self, inner: ObjectStore, *, calls: ScheduledCalls, page_count: int) -> None:
        super().__init__(inner, page_count=page_count)
        self._calls = calls

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        errors = CallErrors(
            refused=lambda label: Unavailable(f"the store cannot {label} now", path=call.path),
            lost=lambda label: lost(call),
        )
        return self._calls.call(str(call), perform, changes=call.changes, errors=errors)
