"""One run of one scenario from one seed, for every store; ``make simulate SEED=17 SCENE=kv/power`` runs this module.

Owns: `Simulation`, the scenarios of one store and the faults that they meet; and the command that repeats a run, which
every broken promise carries. Invariants: a scenario and a seed are one run, whatever ran before.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lakebed.testing.scheduled_calls import FaultRates
from lakebed.testing.scheduler import seed_count
from worlds.promise import PromiseBroken
from worlds.world import World

W = TypeVar("W", bound=World)

_STORES: Final = ("fleet", "kv", "repo")


@dataclass(frozen=True)
class Simulation(Generic[W]):
    """The scenarios of one store.

    Attributes:
        store: the package below `worlds`, such as ``kv``.
        scenarios: by name; each spawns the processes of a new world.
        faults: one of them is chosen by the seed.
        make: a world from seed, faults and the scenario's name.
    """

    store: str
    scenarios: Mapping[str, Callable[[W], None]]
    faults: Sequence[FaultRates]
    make: Callable[[int, FaultRates, str], W]

    def play(self, seed: int, scenario: str) -> W:
        """Run one scenario.

        Raises:
            PromiseBroken: with the command that repeats the run as a note.
        """
        world = self.make(seed, self.faults[seed % len(self.faults)], scenario)
        try:
            self.scenarios[scenario](world)
            return world.run()
        except PromiseBroken as broken:
            broken.add_note(f"Run it again: make simulate SEED={seed} SCENE={self.store}/{scenario}")
            raise

    def play_turn(self, number: int) -> W:
        """Run the scenario whose turn it is: numbers count through all scenarios, and then through the seeds."""
        seed, place = divmod(number, len(self.scenarios))
        return self.play(seed, list(self.scenarios)[place])

    def play_turns(
        self,
        numbers: range,
        *,
        what: str,
        tell: Callable[[str], None],
        more: Callable[[W], Mapping[str, int]] = lambda world: {},
    ) -> Counter[str]:
        """Run many turns, tell what they met, and return it.

        Args:
            what: the stores, such as ``databases``.
            more: what to count of a world, in addition to its own counts.
        """
        start_s = time.process_time()
        counts: Counter[str] = Counter()
        pairs: set[tuple[str, str]] = set()
        for number in numbers:
            world = self.play_turn(number)
            counts.update(world.counts)
            counts.update(more(world))
            counts["steps"] += world.scheduler.step_count
            pairs |= world.pairs()
        speed = len(numbers) / (time.process_time() - start_s)
        met = ", ".join(f"{name} {count:,}" for name, count in counts.most_common() if not name.startswith("error"))
        tell(
            f"{what}, runs {numbers.start}-{numbers.stop - 1}: {speed:.1f} a processor second "
            f"({speed * 3600:,.0f} an hour), {len(pairs):,} pairs of switching points; {met}"
        )
        return counts

    def first_failing_seed(self, scenario: str, *, tries: int, known: int | None = None) -> tuple[int, str] | None:
        """The first seed whose run breaks a promise, and which; None: none does.

        Args:
            known: a seed that did so before, which is tried first; as code changes, so do the runs. A long run
                searches from the first seed, and tells which ones are to be known.
        """
        is_known = known is not None and seed_count(1) == 1
        for seed in (*([known] if is_known else []), *range(tries)):
            try:
                self.play(seed, scenario)
            except PromiseBroken as violation:
                return seed, str(violation)
        return None

    def traces(self, *, reverse: bool = False) -> list[str]:
        """The hash of the switches of a seed of a fifth of the scenarios, by name; in a long run of all of them."""
        scenarios = sorted(self.scenarios)[:: 1 if seed_count(1) > 1 else 5]
        scenarios.sort(reverse=reverse)
        return [f"{scenario} {self.play(1, scenario).scheduler.trace_hash()}" for scenario in scenarios]

    def traces_elsewhere(self, *, hash_seed: str) -> list[str]:
        """The same, taken by a new process with this PYTHONHASHSEED, the last scenario first."""
        code = f"from worlds.simulation import print_traces; print_traces({self.store!r})"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[::-1]


def print_traces(store: str) -> None:
    """Print the traces of a store's simulation, the last one first."""
    simulation: Simulation[Any] = importlib.import_module(f"worlds.{store}.scenarios").SIMULATION
    print(*simulation.traces(reverse=True), sep="\n")


def find(scene: str) -> tuple[Simulation[Any], str]:
    """The simulation and the name of a scenario: ``kv/power``, or ``merges`` where one store alone has it."""
    simulations: list[Simulation[Any]] = [
        importlib.import_module(f"worlds.{store}.scenarios").SIMULATION for store in _STORES
    ]
    named = {
        f"{simulation.store}/{name}": (simulation, name) for simulation in simulations for name in simulation.scenarios
    }
    result = [full for full in named if full == scene or full.partition("/")[2] == scene]
    if len(result) != 1:
        several = f" is a scenario of several stores: use {' or '.join(result)}." if result else " is not a scenario."
        sys.exit(f"SCENE={scene}{several} The scenarios are: {', '.join(sorted(named))}.")
    return named[result[0]]


def main(seed: str, scene: str) -> None:
    """Run one seed of one scenario and print what it met; a broken promise is a traceback with the command."""
    if not seed.isdecimal():
        sys.exit(f"SEED={seed} is not a number from 0 up.")
    simulation, scenario = find(scene)
    world = simulation.play(int(seed), scenario)
    met = ", ".join(f"{what} {count:,}" for what, count in world.counts.most_common())
    print(
        f"{simulation.store}/{scenario}, seed {seed}: every promise held in {world.scheduler.step_count:,} steps; {met}"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
