"""How pytest-xdist spreads the tests over its workers: groups first, then whole files.

Owns: the order and the units of work. A test alone is no unit: what a module's tests share would be set up in every
worker, and a command be sent for each. The groups are the longest chains of a run, so they begin it; files follow as
they were collected, and those of ``tests/unit``, the shortest, end it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

UNIT_TESTS_MAX = 60
"""Tests of one file in one unit."""


class FilesAndGroups(LoadGroupScheduling):  # type: ignore[misc]  # it comes without types
    """Load scheduling over groups and over the files of tests that are in none."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of their tests: the longest files have few
        self._units: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return group if group != nodeid else self._units[nodeid]

    def schedule(self) -> None:
        """Name the units when all workers have collected."""
        if self.collection is None:
            self._units = name_units(next(iter(self.registered_collections.values())))
        super().schedule()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a unit that is complete: the class above counts, after each test, what is left of all units."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def name_units(names: Sequence[str]) -> dict[str, str]:
    """The unit of each test: its file, or a part of a file of many tests."""
    counts: Counter[str] = Counter()
    units = {}
    for name in names:
        file = name.partition("::")[0]
        units[name] = f"{file} {counts[file] // UNIT_TESTS_MAX}"
        counts[file] += 1
    return units


def sort_groups_first(items: list[pytest.Item]) -> None:
    """Move the tests of groups to the head, the largest group first."""
    groups = [marker.args[0] if (marker := item.get_closest_marker("xdist_group")) else None for item in items]
    sizes = Counter(groups)
    order = sorted(range(len(items)), key=lambda index: (groups[index] is None, -sizes[groups[index]]))
    items[:] = [items[index] for index in order]
