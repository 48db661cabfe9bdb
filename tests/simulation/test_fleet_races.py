"""Fleets in a world of processes that die, stand still, meet and come back, with every fault of calls between them.

What is promised, and how it is judged, is written down in `worlds.fleet.oracle`, `monitor` and `rest`; who is there in
`scenarios`. Here the seeds are run, and what they met is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from lakebed.testing import seed_count
from worlds.fleet.scenarios import SIMULATION

SEEDS_DEFAULT = 8
LONG_START, LONG_COUNT = 100_000, 1_000
CHUNK_COUNT = 2
MET = ("appends", "reads", "node lives", "checkpoints", "timelines read at rest", "objects at rest")


def run(numbers: range, tell: Callable[[str], None]) -> Counter[str]:
    """Run seeds of all scenarios in turn, and report what they met."""
    return SIMULATION.play_turns(
        numbers, what="fleets", tell=tell, more=lambda world: {"commits": world.monitor.commits}
    )


@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_no_failure_breaks_a_promise(chunk: int, tell: Callable[[str], None]) -> None:
    """However processes interleave and fail, I1 to I11 hold after every step, and L1 and L2 at rest."""
    size = -(-seed_count(SEEDS_DEFAULT) // CHUNK_COUNT)
    counts = run(range(chunk * size, (chunk + 1) * size), tell)
    for what in MET:
        assert counts[what] >= size, f"{what}: {counts[what]} in {size} runs"


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_a_thousand_seeds(chunk: int, tell: Callable[[str], None]) -> None:
    """The same, far more often."""
    size = LONG_COUNT // CHUNK_COUNT
    run(range(LONG_START + chunk * size, LONG_START + (chunk + 1) * size), tell)


def test_the_same_seed_is_the_same_run() -> None:
    """Also in another process, whose PYTHONHASHSEED is another, and after other runs."""
    assert SIMULATION.traces_elsewhere(hash_seed="1") == SIMULATION.traces()
