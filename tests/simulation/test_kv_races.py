"""Databases in a world of processes that race, crash, sleep and come back, with every fault of the store.

What is promised, and how it is judged, is written down in `worlds.kv.model`, `monitor` and `world`;
who is there in `scenarios`. Here the seeds are run, and what they met is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from lakebed.objects import create_once
from lakebed.testing import seed_count
from worlds.kv.scenarios import SCENARIOS, SIMULATION

SEEDS_DEFAULT = 16
LONG_START, LONG_COUNT = 100_000, 1_000
CHUNK_COUNT = 2


@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_no_race_breaks_a_promise(chunk: int, tell: Callable[[str], None]) -> None:
    """However processes interleave and fail, nothing promised is lost, and nothing unneeded is left."""
    size = -(-seed_count(SEEDS_DEFAULT) // CHUNK_COUNT)
    numbers = range(chunk * size, (chunk + 1) * size)
    counts = SIMULATION.play_turns(numbers, what="databases", tell=tell)
    for what in ("durable writes", "databases reopened", "collected on the way", "opened"):
        assert counts[what] >= size, f"{what}: {counts[what]} in {size} races"


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_a_thousand_seeds(chunk: int, tell: Callable[[str], None]) -> None:
    """The same, of other seeds and more of them."""
    size = LONG_COUNT // CHUNK_COUNT
    numbers = range(LONG_START + chunk * size, LONG_START + (chunk + 1) * size)
    SIMULATION.play_turns(numbers, what="databases", tell=tell)


IMPATIENT_SEEDS = 2


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_no_promise_rests_on_patience(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when every unclear answer is passed on at once, nothing promised is lost."""
    monkeypatch.setattr(create_once, "TRIES_MAX", 1)
    counts: Counter[str] = Counter()
    for seed in range(2, 3 * IMPATIENT_SEEDS, 3):  # the stormy ones
        counts += SIMULATION.play(seed, scenario).counts
    assert counts["databases reopened"] > 0


def test_the_same_seed_is_the_same_run() -> None:
    """Also in another process, whose PYTHONHASHSEED is another, and after other runs."""
    assert SIMULATION.traces_elsewhere(hash_seed="1") == SIMULATION.traces()
