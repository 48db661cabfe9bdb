"""The upkeep of open repositories: what it costs while idle, and that no work is missed for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from lakebed.objects import open_store
from lakebed.repo.collect.upkeep import Upkeep
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.references.branches import load_branch
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.memory_key_value import MemoryKeyValue


class Asked(MemoryKeyValue):
    """Records that count the looks at them."""

    looks = 0

    def snapshot(self) -> Any:
        """As `MemoryKeyValue.snapshot`."""
        self.looks += 1
        return super().snapshot()


@pytest.fixture
def environment() -> Environment:
    """A clock that the test moves."""
    return Environment(clock=ManualClock())


@pytest.fixture
def home(environment: Environment) -> Iterator[Repositories]:
    """Repositories that compact at three tombstones."""
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    options = RepositoryOptions(background=False, compaction_tombstones_min=3)
    with Repositories(LocalCatalog(store, Asked(), options=options, environment=environment)) as opened:
        yield opened


def test_an_idle_repository_costs_a_look_a_minute(home: Repositories, environment: Environment) -> None:
    """An idle repository costs one request a minute; a write is seen at the next look."""
    repo = home.create("analytics")
    records = local_catalog(home).key_value
    assert isinstance(records, Asked)
    context = context_of(repo)
    upkeep = Upkeep(records, open_contexts=lambda: [context], all_contexts=lambda: [context], environment=environment)

    def seconds(count: int) -> int:
        before = records.looks
        for _ in range(count):
            environment.clock.sleep(1)
            upkeep.compact_changed()
        return records.looks - before

    seconds(5)  # its branches are counted from the store
    assert seconds(50) == 0
    assert 1 <= seconds(180) <= 4
    main = repo.branch()
    for number in range(5):
        main.put(f"{number}", b"x")
    main.commit("five")
    main.delete_many([f"{number}" for number in range(4)])
    seconds(1)
    record = load_branch(context_of(repo), "main")[0]
    assert record.compacted is not None
    assert record.sealed == ()
    main.put("5", b"x")
    main.commit("six")
    main.delete_many(["4", "5"])
    main.put("6", b"x")
    main.delete("6")
    for number in range(3):
        main.put(f"7{number}", b"x")
    main.commit("three")
    main.delete_many([f"7{number}" for number in range(3)])
    assert load_branch(context_of(repo), "main")[0].compacted is None
    seconds(70)  # it is looked at until the cooldown is over, though nothing is written meanwhile
    assert load_branch(context_of(repo), "main")[0].compacted is not None


def test_a_repository_that_goes_is_forgotten(home: Repositories, environment: Environment) -> None:
    """What is known of repositories that are no longer open is not kept."""
    repo = home.create("analytics")
    open_homes = [context_of(repo)]
    upkeep = Upkeep(
        local_catalog(home).key_value,
        open_contexts=lambda: open_homes,
        all_contexts=lambda: [],
        environment=environment,
    )
    upkeep.compact_changed()
    open_homes.clear()
    upkeep.compact_changed()
    assert upkeep.last_failure is None
    upkeep.step_once()
