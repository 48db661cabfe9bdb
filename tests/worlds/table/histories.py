"""Many random histories of `world.TableWorld`, and what they met.

Owns: `run_histories`, which other processes can be asked for too, and `Histories`, what it counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakebed.errors import LakebedError
from worlds.table.world import TableWorld


@dataclass(frozen=True, slots=True)
class Histories:
    """What some histories met, and the processor time they took."""

    counts: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def __add__(self, other: Histories) -> Histories:
        return Histories(self.counts + other.counts, self.cpu_s + other.cpu_s)

    def __str__(self) -> str:
        met = ", ".join(f"{what} {count:,}" for what, count in self.counts.most_common())
        return f"{self.counts['histories'] / max(self.cpu_s, 1e-9):.1f} histories a processor second; {met}"


def run_histories(seeds: Iterable[int], *, step_count: int) -> Histories:
    """Run a history for each seed.

    Raises:
        AssertionError: the law was broken; names the seed and the steps.
    """
    counts: Counter[str] = Counter()
    start_s = time.process_time()
    for seed in seeds:
        world = TableWorld(seed)
        try:
            world.run(step_count=step_count)
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"seed {seed}: {error}; history: {world.log}") from error
        # Memory stores live as long as the process: what a finished history leaves would add up over thousands.
        world.store.delete([meta.path for meta in world.store.list()])
        counts += world.counts
        counts["histories"] += 1
        counts["excused at the end"] += world.excused_count
    return Histories(counts, time.process_time() - start_s)
