"""Repairs that are undone, by patching them out: what the mutations of every store's simulation share.

Owns: `Undone`, the mutations of one store and the search for a run that misses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from worlds.simulation import Simulation

SEEDS_MAX: Final = 200

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


@dataclass(frozen=True)
class Undone:
    """The mutations of one store.

    Attributes:
        simulation: its scenarios.
        what: the stores, such as ``databases``.
        cases: for ``parametrize``: mutation, scenario and the seed where it was found last.
    """

    simulation: Simulation[Any]
    what: str
    cases: list[Any] = field(default_factory=list)

    def in_scenario(
        self, scenario: str, *, seed: int | None = None, is_long: bool = False
    ) -> Callable[[Mutation], Mutation]:
        """Note a mutation and the scenario in which it must be found.

        Args:
            seed: where a late one was found last: tried first, to save time alone. A long run searches anew and tells
                the seeds.
            is_long: it takes ten seconds and more to be found: run by ``make test-long``.
        """

        def note(mutation: Mutation) -> Mutation:
            marks = [pytest.mark.long] if is_long else []
            self.cases.append(pytest.param(mutation, scenario, seed, id=mutation.__name__, marks=marks))
            return mutation

        return note

    def find(
        self,
        mutation: Mutation,
        scenario: str,
        seed: int | None,
        patch: Patch,
        found_at_seed: Callable[[str, str, int], None],
    ) -> None:
        """Undo one repair: some run of its scenario breaks a promise within two hundred seeds."""
        mutation(patch)
        result = self.simulation.first_failing_seed(scenario, tries=SEEDS_MAX, known=seed)
        assert result is not None, f"{SEEDS_MAX} runs of {scenario} did not miss the repair"
        assert "TypeError" not in result[1], f"{mutation.__name__} does not fit what it patches: {result[1]}"
        found_at_seed(f"repairs of {self.what} undone", mutation.__name__, result[0])
