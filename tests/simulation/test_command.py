"""A broken promise says which command runs it again, and that command runs just that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.kv.manifests import ManifestLog
from worlds import simulation
from worlds.kv.scenarios import SIMULATION
from worlds.promise import PromiseBroken

ROOT = Path(__file__).parents[2]


def test_a_broken_promise_says_how_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The note of a violation is a command; what it runs breaks the same promise, and holds when the defect is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(ManifestLog, "raise_boundary", lambda self, below, *, manifest: None)
        seed, broken = next(result for result in map(broken_by, range(200)) if result[1] is not None)
        assert broken is not None
        [note] = broken.__notes__
        said = re.fullmatch(r"Run it again: make simulate SEED=(\d+) SCENE=(\S+)", note)
        assert said is not None
        assert said.groups() == (str(seed), "kv/checkpoints")
        with pytest.raises(PromiseBroken, match=re.escape(str(broken))):
            simulation.main(*said.groups())
    simulation.main(*said.groups())
    assert f"kv/checkpoints, seed {seed}: every promise held in " in capsys.readouterr().out


def broken_by(seed: int) -> tuple[int, PromiseBroken | None]:
    """Which promise a seed breaks."""
    try:
        SIMULATION.play(seed, "checkpoints")
    except PromiseBroken as broken:
        return seed, broken
    return seed, None


def test_the_command_runs_one_seed_of_one_scenario() -> None:
    """What the Makefile runs for SEED and SCENE exits with 0, names both, and imports what it needs."""
    [line] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "worlds.simulation" in line]
    assert line == '\t@PYTHONPATH=tests $(RUN) -m worlds.simulation "$(or $(SEED),0)" "$(SCENE)"'
    done = subprocess.run(
        [sys.executable, "-m", "worlds.simulation", "2", "merges"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.startswith("repo/merges, seed 2: every promise held in ")


@pytest.mark.parametrize(
    ("seed", "scene", "said"),
    [
        ("1", "power", "SCENE=power is a scenario of several stores: use fleet/power or kv/power or repo/power."),
        ("1", "nothing", "SCENE=nothing is not a scenario."),
        ("x", "merges", "SEED=x is not a number from 0 up."),
    ],
)
def test_a_wrong_command_says_what_there_is(seed: str, scene: str, said: str) -> None:
    """A name that is ambiguous or unknown is answered with the names."""
    with pytest.raises(SystemExit) as ended:
        simulation.main(seed, scene)
    assert str(ended.value).startswith(said)
