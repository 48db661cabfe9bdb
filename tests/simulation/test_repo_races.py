"""A repository in a world of processes that race, crash, sleep and come back, with every fault of both stores.

What is promised is written down in `worlds.repo.model_verbs` and `head_verbs`, as dictionaries; how it is watched in
`monitor`; who is there in `scenarios`. Here the seeds are run, and what they met is reported.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.testing import seed_count
from worlds.repo.scenarios import SCENARIOS, SIMULATION

SEEDS_DEFAULT = 8
LONG_START, LONG_COUNT = 100_000, 1_000
CHUNK_COUNT = 1

MET = {
    "put": 1.0,
    "put many": 0.5,
    "delete": 0.5,
    "list": 0.3,
    "uncommitted": 0.3,
    "commit": 0.5,
    "compaction published": 0.2,
    "rows cleaned": 0.3,
    "collected on the way": 0.3,
    "put if absent": 0.1,
    "delete prefix": 0.1,
    "merge": 0.05,
    "create branch": 0.1,
    "delete branch": 0.1,
    "crashes": 0.2,
    "bodies read": 5.0,
    "commits read again": 5.0,
    "worlds judged": 1.0,
}
"""How often each has to be met at least, by race."""


@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_no_race_breaks_a_promise(chunk: int, tell: Callable[[str], None]) -> None:
    """However processes interleave and fail, everything promised holds, and nothing unneeded is left."""
    size = -(-seed_count(SEEDS_DEFAULT) // CHUNK_COUNT)
    numbers = range(chunk * size, (chunk + 1) * size)
    counts = SIMULATION.play_turns(numbers, what="repositories", tell=tell)
    if size >= len(SCENARIOS) * 4:
        for what, share in MET.items():
            assert counts[what] >= share * size, f"{what}: {counts[what]} in {size} races"


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_a_thousand_seeds(chunk: int, tell: Callable[[str], None]) -> None:
    """The same, of other seeds and more of them."""
    size = LONG_COUNT // CHUNK_COUNT
    numbers = range(LONG_START + chunk * size, LONG_START + (chunk + 1) * size)
    SIMULATION.play_turns(numbers, what="repositories", tell=tell)


def test_the_same_seed_is_the_same_run() -> None:
    """Also in another process, whose PYTHONHASHSEED is another, and after other runs."""
    assert SIMULATION.traces_elsewhere(hash_seed="1") == SIMULATION.traces()
