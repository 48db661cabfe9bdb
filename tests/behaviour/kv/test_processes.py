"""Real processes on one store, killed, stopped and continued at random: see `storm.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

STORM = Path(__file__).with_name("storm.py")
_TRIES_MAX = 3
_EVERY_KIND = ("writes", "reads", "checkpoints", "clones", "commands", "collected")


def blow(
    folder: Path, *, seconds: float, seed: int, url: str | None = None, settings: Mapping[str, str] | None = None
) -> dict[str, int]:
    """A storm; its counts, after its wrongs were found to be none.

    On a busy machine some process may not have had its turn in that time: then another, longer storm runs.
    """
    for tries in range(_TRIES_MAX):
        counts = _blow(folder / str(tries), seconds=seconds * 2**tries, seed=seed, url=url, settings=settings)
        idle = [what for what in _EVERY_KIND if not counts.get(what)]
        if not idle:
            return counts
    raise AssertionError(f"no {idle} in {counts}")


def _blow(
    folder: Path, *, seconds: float, seed: int, url: str | None, settings: Mapping[str, str] | None
) -> dict[str, int]:
    folder.mkdir()
    url = None if url is None else f"{url}/{folder.name}"
    command = [sys.executable, str(STORM), str(folder / "storm"), url or str(folder / "store"), str(seconds), str(seed)]
    environment = {**os.environ, **(settings or {})}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds * 10 + 120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert not report["wrongs"], f"seed {seed}: " + "\n".join(report["wrongs"])[:8000]
    counts: dict[str, int] = report["counts"]
    return counts


def test_a_storm_of_processes(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Acknowledged writes are there, pins read what they pinned, fsck is content, and nothing is left over."""
    tell(f"storm: {blow(tmp_path, seconds=5, seed=1)}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_longer_storms_of_processes(tmp_path: Path, tell: Callable[[str], None], seed: int) -> None:
    """The same for longer, with other faults."""
    tell(f"storm {seed}: {blow(tmp_path, seconds=30, seed=seed)}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12, 16))
def test_storms_on_a_remote_store(tmp_path: Path, tell: Callable[[str], None], seed: int, s3_server: Any) -> None:
    """The same on an S3 server, whose processes are killed in the middle of requests."""
    settings = {name.upper(): value for name, value in s3_server.options.items()}
    counts = blow(tmp_path, seconds=30, seed=seed, url=s3_server.url(), settings={**settings, "AWS_ALLOW_HTTP": "1"})
    tell(f"storm on S3 {seed}: {counts}")
