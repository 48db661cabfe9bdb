"""One run of one scenario from one seed, for every store; ``make simulate SEED=17 SCENE=kv/power`` runs this module.

Owns: `Simulation`, the scenarios of one store and the faults that they meet; and the command that repeats a run, which
every broken promise carries. Invariants: a scenario and a seed are one run, whatever ran before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lakebed.testing.scheduled_calls import FaultRates
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


def find(scene: str) -> tuple[Simulation[Any], str]:
    """The simulation and the name of a scenario: ``kv/power``, or ``merges`` where one store alone has it."""
    simulations: list[Simulation[Any]] = [
        importlib.import_module(f"worlds.{store}.scenarios").SIMULATION for store in _STORES
    ]
    named = {f"{one.store}/{name}": (one, name) for one in simulations for name in one.scenarios}
    found = [full for full in named if full == scene or full.partition("/")[2] == scene]
    if len(found) != 1:
        several = f" is a scenario of several stores: use {' or '.join(found)}." if found else " is not a scenario."
        sys.exit(f"SCENE={scene}{several} The scenarios are: {', '.join(sorted(named))}.")
    return named[found[0]]


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
