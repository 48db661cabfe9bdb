"""Mutations fit the code: one that does not is noticed here, before any simulation or test of a guarantee runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from worlds.modules import TESTS, load_module


@pytest.mark.parametrize("name", ["test_fleet_mutations", "test_kv_mutations", "test_repo_mutations"])
def test_every_mutation_fits_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutation replaces is there."""
    wrong = []
    for case in load_module(f"simulation/{name}.py").UNDONE.cases:
        mutation = case.values[0]
        with monkeypatch.context() as patch:
            try:
                mutation(patch)
            except (AssertionError, AttributeError) as error:
                wrong.append(f"{mutation.__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_defect_of_a_guarantee_fits_the_code(root: Path) -> None:
    """What a defect changes is there, and so are the files of the tests that find it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root / "src", TESTS)))}
    command = [sys.executable, "-m", "mutations.guarantee", "check"]
    checked = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_rooms_name_code_and_tests(root: Path) -> None:
    """Every pattern in the table of rooms names modules, and every path tests."""
    wrong = []
    for room, entry in tomllib.loads((TESTS / "mutations" / "rooms.toml").read_text()).items():
        wrong += [f"{room}: {name}" for name in entry["code"] if not any((root / "src/lakebed").glob(name))]
        for name in entry["tests"]:
            path, _, test = name.partition("::")
            if not (TESTS / path).exists() or (test and f"def {test}(" not in (TESTS / path).read_text()):
                wrong.append(f"{room}: {name}")
    assert not wrong, "\n".join(wrong)
