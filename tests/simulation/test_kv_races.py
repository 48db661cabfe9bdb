"""Databases in a world of processes that race, crash, sleep and come back, with every fault of the store.

What is promised, and how it is judged, is written down in `worlds.kv.model`, `monitor` and `world`;
who is there in `scenarios`. Here the seeds are run, and what they met is reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from lakebed.objects import create_once
from lakebed.testing import seed_count
from worlds.kv.scenarios import SCENARIOS, SIMULATION

SEEDS_DEFAULT = 900
CHUNK_COUNT = 6


@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
def test_no_race_breaks_a_promise(chunk: int, tell: Callable[[str], None]) -> None:
    """However processes interleave and fail, nothing promised is lost, and nothing unneeded is left."""
    size = -(-seed_count(SEEDS_DEFAULT) // CHUNK_COUNT)
    numbers = range(chunk * size, (chunk + 1) * size)
    start_s = time.process_time()
    counts: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    for number in numbers:
        world = SIMULATION.play_turn(number)
        counts += world.counts
        counts["steps"] += world.scheduler.step_count
        pairs |= world.pairs()
    spent_s = time.process_time() - start_s
    met = ", ".join(f"{what} {count:,}" for what, count in counts.most_common() if not what.startswith("error"))
    tell(
        f"databases, runs {numbers.start}-{numbers.stop - 1}: {size / spent_s:.1f} a processor second "
        f"({size / spent_s * 3600:,.0f} an hour), {len(pairs):,} pairs of switching points; {met}"
    )
    for what in ("durable writes", "databases reopened", "collected on the way", "opened"):
        assert counts[what] >= size, f"{what}: {counts[what]} in {size} races"


IMPATIENT_SEEDS = 4


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_no_promise_rests_on_patience(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when every unclear answer is passed on at once, nothing promised is lost."""
    monkeypatch.setattr(create_once, "TRIES_MAX", 1)
    counts: Counter[str] = Counter()
    for seed in range(2, 3 * IMPATIENT_SEEDS, 3):  # the stormy ones
        counts += SIMULATION.play(seed, scenario).counts
    assert counts["databases reopened"] > 0


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_the_same_seed_is_the_same_run(scenario: str) -> None:
    """Two runs of one seed take the same switches, after any other runs."""
    assert SIMULATION.play(5, scenario).scheduler.trace_hash() == SIMULATION.play(5, scenario).scheduler.trace_hash()


TRACES = """
from worlds.kv.scenarios import SCENARIOS, SIMULATION
print([SIMULATION.play(seed, scenario).scheduler.trace_hash() for scenario in sorted(SCENARIOS) for seed in (1, 2)])
"""


def test_a_run_does_not_depend_on_hashes() -> None:
    """The same seeds are the same runs under another PYTHONHASHSEED."""

    def traces(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", TRACES], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert traces("1") == traces("2")
