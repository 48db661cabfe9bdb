"""One owner with eight threads, killed at random and opened again: see `worlds.repo.workload`."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lakebed.repo import Access, open_all
from worlds.repo.client import QUIET, LibraryClient, check_sound
from worlds.repo.workload import LIBRARY_WORKLOADS, start_workloads


def storm(
    folder: Path, url: str, *, seed: int, rounds: int, round_s: float, options: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Kill an owner again and again; what was done in the rounds that ended by themselves."""
    said = folder / "said"
    said.mkdir()
    rng = random.Random(seed)
    for number in range(rounds):
        is_last = number == rounds - 1
        program = [sys.executable, "-W", "error", "-m", "worlds.repo.workload", url, str(said), f"{seed}{number}"]
        command = [*program, str(round_s if is_last else 600), json.dumps(dict(options or {}))]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert owner.stdout is not None
        ready = owner.stdout.readline()
        if ready and not is_last:
            try:
                owner.wait(rng.uniform(0.05, round_s))
            except subprocess.TimeoutExpired:
                owner.send_signal(signal.SIGKILL)
        _, error = owner.communicate()
        violations = "\n".join(path.read_text() for path in said.glob("violations.*"))
        assert not violations, f"seed {seed}, round {number}: {violations}"
        assert owner.returncode == (0 if is_last else -signal.SIGKILL), f"seed {seed}: {error.decode()[-4000:]}"
    assert_nothing_lost(said, url, seed=seed, options=options)
    counts: Counter[str] = Counter()
    for path in said.glob("report.*"):
        for workload in json.loads(path.read_text()).values():
            counts.update(workload)
    return dict(sorted(counts.items()))


def assert_nothing_lost(said: Path, url: str, *, seed: int, options: Mapping[str, str] | None = None) -> None:
    """The next open sees every acknowledged write, byte for byte; a collection leaves no garbage."""
    with open_all(url, options=QUIET, access=Access(take_over=True), storage_options=options) as home:
        repository = home.repository("storm")
        workloads = start_workloads(LibraryClient(repository), said, seed, names=LIBRARY_WORKLOADS)
        check_sound(repository, tidy=False)
        for workload in workloads:
            workload.check(bodies=True)
        assert check_sound(repository) > 0
        for workload in workloads:
            workload.check(bodies=True)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_a_storm_in_one_owner(tmp_path: Path, tell: Callable[[str], None], seed: int) -> None:
    """Killed at any moment, an owner has lost nothing acknowledged and torn nothing; then nothing is left over."""
    rounds, round_s = (3, 1.2) if seed == 1 else (12, 4.0)
    counts = storm(tmp_path, str(tmp_path / "lake"), seed=seed, rounds=rounds, round_s=round_s)
    tell(f"repository storm {seed}: {counts}")
