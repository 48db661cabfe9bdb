"""The mutations of the simulations fit the code: one that does not is noticed here, before any simulation runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SIMULATION = Path(__file__).parents[1] / "simulation"


def load(name: str) -> ModuleType:
    """A module of tests, read from its file."""
    spec = importlib.util.spec_from_file_location(f"tidy_{name}", SIMULATION / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["test_kv_mutations", "test_repo_mutations"])
def test_every_mutation_fits_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutation replaces is there."""
    wrong = []
    for mutation, _ in load(name).MUTATIONS:
        with monkeypatch.context() as patch:
            try:
                mutation(patch)
            except (AssertionError, AttributeError) as error:
                wrong.append(f"{mutation.__name__}: {error}")
    assert not wrong, "\n".join(wrong)
