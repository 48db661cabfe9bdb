"""Both clients move, remove and roll back versions of one table, with a brute-force model of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lakebed.errors import LakebedError
from lakebed.testing import seed_count
from worlds.table.foreign_world import ForeignWorld

STEP_COUNT = 30
SEEDS = 5
MET = ("java rolls back", "java expires", "java drops", "files expired", "deleted with a tag", "rolled back")


def run_world(seed: int) -> Counter[str]:
    """One history; a failure names its seed and its last steps."""
    world = ForeignWorld(seed)
    try:
        world.run(step_count=STEP_COUNT)
    except (AssertionError, LakebedError) as error:
        raise AssertionError(f"seed {seed}: {error}; after {world.log[-8:]}") from error
    return world.counts


def test_nothing_needed_goes_whatever_the_other_client_does(tell: Callable[[str], None]) -> None:
    """After every step of either client nothing needed is missing, and lakebed's collections leave nothing unneeded."""
    seeds = range(seed_count(SEEDS))
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += run_world(seed)
    met = ", ".join(f"{what} {count:,}" for what, count in counts.most_common())
    tell(f"both clients, seeds 0-{seeds[-1]}: {met}")
    for what in MET:
        assert counts[what] > 0, f"these histories never met {what!r}"
