"""What keeps the records of a long-running server small: `KeyValue.maintain`, and the background that calls it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import lakebed.kv
from lakebed.key_value import database as key_value_database
from lakebed.key_value.database import DatabaseKeyValue
from lakebed.kv import DatabaseOptions, collect
from lakebed.kv.reclaim import Found, plan_collection
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan
from lakebed.repo import RepositoryOptions
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.memory_key_value import MemoryKeyValue

HOUR_S = 3_600


@pytest.fixture
def environment() -> Environment:
    """A clock that the tests move, and the memory whose objects have its times."""
    return Environment(clock=ManualClock())


def database(store: ObjectStore, environment: Environment) -> DatabaseKeyValue:
    """Records that make many small objects: each write is one of the log, and a few hundred make a file."""
    options = DatabaseOptions(background=False, l0_sst_bytes=4_096)
    return DatabaseKeyValue(lakebed.kv.open(store, options=options, environment=environment), is_local=True)


def count_of(store: ObjectStore) -> int:
    """Objects that are there, but for the empty markers of which a collection leaves one."""
    return sum(1 for meta in store.list() if "boundary/" not in meta.path)


def test_many_writes_leave_few_objects(environment: Environment) -> None:
    """However many writes there were, an hour later only what the newest version needs is left; nothing is lost."""
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    records = database(store, environment)
    counts = []
    for hour in range(4):
        for number in range(150):
            records.set(b"key %d" % (number % 10), b"%d of hour %d" % (number, hour))
        records.database.flush(memtable=True)
        records.database.compact()
        environment.clock.sleep(2 * HOUR_S)
        records.maintain()
        counts.append(count_of(store))
    assert max(counts) < 30, counts  # of more than 600 that were written
    assert counts[3] <= counts[0] + 4, counts
    with records.snapshot() as now:
        assert now.get(b"key 3") == b"143 of hour 3"
        assert sum(1 for _ in now.scan()) == 10
    before = count_of(store)
    for number in range(100):
        records.set(b"key", b"%d" % number)
    records.maintain()
    assert count_of(store) >= before + 100  # younger than an hour: a reader may just be reading them
    records.close()


@pytest.mark.parametrize("is_pinned", [False, True], ids=["free", "pinned"])
def test_a_long_log_is_collected_in_parts(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """The memory of a collection does not grow with what was written since the last; a pinned part is passed over."""
    monkeypatch.setattr(key_value_database, "LOG_COUNT_MAX", 20)
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    records = database(store, environment)
    if is_pinned:
        for number in range(30):
            records.set(b"pinned %d" % number, b"")
        records.database.create_checkpoint()
    for number in range(200):
        records.set(b"key %d" % number, b"")
    records.database.flush(memtable=True)
    environment.clock.sleep(2 * HOUR_S)
    judged: list[int] = []

    def judge(objects: Found, **settings: Any) -> CollectionPlan:
        judged.append(len(objects.logs))
        return plan_collection(objects, **settings)

    monkeypatch.setattr(collect, "plan_collection", judge)
    records.maintain()
    assert max(judged) <= (30 if is_pinned else 0) + 20 + 5  # a fence, and what else is pinned
    left = sum(1 for _ in store.list("wal"))
    assert left <= (30 if is_pinned else 0) + 3
    records.close()


def test_memory_has_nothing_to_give_back() -> None:
    """Where no object is kept that is not needed, nothing happens."""
    records = MemoryKeyValue()
    records.set(b"k", b"v")
    records.maintain()
    assert records.get(b"k") == b"v"


def test_a_step_of_the_background_maintains_the_records(environment: Environment) -> None:
    """A caller that runs the background's steps also frees what the records' database no longer needs."""
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    place = store.sub("_repositories")
    options = RepositoryOptions(background=False)
    with Repositories(
        LocalCatalog(store, database(place, environment), options=options, environment=environment)
    ) as home:
        main = home.create("analytics").branch()
        for number in range(60):
            main.put(f"{number}", b"x")
        key_value = local_catalog(home).key_value
        assert isinstance(key_value, DatabaseKeyValue)
        key_value.database.flush(memtable=True)
        before = count_of(place)
        environment.clock.sleep(2 * HOUR_S)
        home.step_once()
        assert count_of(place) < before / 3
        assert len(list(main.list())) == 60
