"""Tables inside branches: the tables' own contract, unchanged, on a branch as one more kind of store."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lakebed.objects.port import ObjectStore
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.transport.local_objects import local_store
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.branch.tag_files import TAG_CACHE
from worlds.modules import load_module
from worlds.repo.memory_repository import MemoryRepository, open_context

MODULES = (
    "test_branches",
    "test_commit",
    "test_expire",
    "test_orphans",
    "test_rollback",
    "test_tag_races",
    "test_tags",
)
ABOVE_THE_STORE = (
    "test_data_changes",
    "test_data_compaction",
    "test_data_discarded",
    "test_data_rows",
    "test_other_lifetimes",
    "test_tag_deletion",
    "test_travel",
)
"""Modules that only the long tests run: of a store they use what those before use of it."""
PARAMETERS = {"make": ["memory"]}
OF_OTHER_STORES = {
    # Of hints, which tables do not write inside of branches; what they save is described below.
    "test_the_first_commit_is_snapshot_one",
    "test_an_append_costs_ten_requests_whatever_came_before",
    "test_a_lost_race_rewrites_lists_only",
    "test_the_cost_does_not_grow_with_tags",
    "test_a_thousand_tags_are_known_from_one_listing",
    "test_the_index_notices_every_change",
    "test_a_damaged_index_is_only_a_slower_look",
    "test_the_index_forgets_deleted_tags_once_they_are_most_of_it",
    "test_an_index_with_a_damaged_bit_names_no_other_version",
    # In a branch it ends as ``commit_stuck``: a reset may have taken what is missing; then the snapshot is withdrawn.
    "test_a_commit_on_a_version_that_is_damaged_ends_at_once",
    # Of memory, whatever the store.
    "test_merging_is_bounded_in_memory",
}


class Repositories:
    """A repository for every URL that a test opens, with the table's folder inside of its branch."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._homes: dict[str, RepositoryContext] = {}

    def open_store(self, url: str, *, environment: Environment | None = None, **_: Any) -> ObjectStore:
        """In place of `lakebed.objects.open_store`: the same URL is the same folder of the same branch."""
        if url not in self._homes:
            place = MemoryRepository(environment=environment or Environment())
            if not url.startswith("memory://"):
                place.url = f"{url}.repo"
            self._homes[url] = self._exits.enter_context(open_context(place))
            local_store(self._homes[url], "main", "tables").put("t-beside", b"nobody's")
        return local_store(self._homes[url], "main", "tables/t")

    def close(self) -> None:
        """Let all of them go."""
        self._homes.clear()
        self._exits.close()


REPOSITORIES = Repositories()


def module_of(name: str) -> dict[str, Any]:
    """What a module of the contract defines, with branches where it opens stores."""
    defined = vars(load_module(f"behaviour/table/{name}.py"))
    if "open_store" in defined:
        defined["open_store"] = REPOSITORIES.open_store
    return defined


def is_fixture(value: object) -> bool:
    """Whether pytest made a fixture of it."""
    return type(value).__name__ == "FixtureFunctionDefinition"


def contract(name: str) -> type:
    """A module of the contract as a class, so that fixtures of one name do not meet."""
    members: dict[str, Any] = {}
    for key, value in module_of(name).items():
        if is_fixture(value):
            members[key] = pytest.fixture(params=PARAMETERS.get(key))(staticmethod(inspect.unwrap(value)))
        elif key.startswith("test_") and key not in OF_OTHER_STORES:
            members[key] = staticmethod(value)
    if name in ABOVE_THE_STORE:
        members["pytestmark"] = [pytest.mark.long]
    return type(f"Test{name.removeprefix('test').title().replace('_', '')}", (), members)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """All branches here have one URL, and tests with one seed name their files alike: caches must not mix them up."""
    PROCESS_CACHE.clear()
    TAG_CACHE.clear()


globals().update({key: value for key, value in module_of("conftest").items() if is_fixture(value)})
globals().update({cls.__name__: cls for cls in map(contract, (*MODULES, *ABOVE_THE_STORE))})


@pytest.fixture(autouse=True)
def branches_instead_of_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What opens stores by itself opens branches."""
    monkeypatch.setattr("worlds.table.world.open_store", REPOSITORIES.open_store)
    yield
    REPOSITORIES.close()
