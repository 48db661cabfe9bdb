"""The upkeep of open repositories: what it costs while idle, and that no work is missed for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lakebed.objects import open_store
from lakebed.repo.collect.upkeep import Upkeep
from lakebed.repo.drop import sweep_deleted
from lakebed.repo.heads import multipart
from lakebed.repo.model.layout import CLOCK_PATH
from lakebed.repo.model.options import DAY_MS, RepositoryOptions
from lakebed.repo.records.runs import ActionRun, list_runs, new_run_id, store_run, trim_runs
from lakebed.repo.records.superseded import list_superseded
from lakebed.repo.records.tasks import load_task, record_task
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


def test_a_clock_that_is_set_forward_gives_nothing_up(home: Repositories) -> None:
    """Of two processes one is nine days ahead: what all of them keep for a week is there after its upkeep and sweep."""
    catalog = local_catalog(home)
    repo = home.create("analytics")
    context = context_of(repo)
    repo.branch().put("kept", b"1")
    repo.branch().commit("one")
    repo.create_branch("dev").put("a", b"2")
    last = repo.branch("dev").commit("two")
    repo.create_tag("v1", ref=last.id)
    repo.delete_branch("dev")
    repo.delete_tag("v1")
    upload = multipart.begin_upload(
        context, branch="main", path="big", content_type="text/plain", metadata={}, owner=""
    )
    task = record_task(context, "dump")
    run = new_run_id(context)
    store_run(context, run, ActionRun("post-commit", "main", last.id, context.now_ms()))
    home.create("old").branch().put("b", b"3")
    home.delete("old")
    ahead = Environment(clock=ManualClock(start_ms=context.now_ms() + 9 * DAY_MS))
    far_ahead = Environment(clock=ManualClock(start_ms=context.now_ms() + 40 * DAY_MS))
    other = LocalCatalog(
        catalog.store, catalog.key_value, options=RepositoryOptions(background=False), environment=ahead
    )
    other.step_once()
    assert sweep_deleted(Repositories(other)) == []
    assert [deleted.name for deleted in home.deleted()] == ["old"]
    assert list(open_store(home.url + "/old.repo", environment=catalog.environment).list("data"))
    assert [id for id, _ in multipart.list_uploads(context, branch=None, prefix="")] == [upload]
    assert load_task(context, task.id) == task
    assert trim_runs(replace(context, environment=far_ahead)) == 0
    assert [id for id, _ in list_runs(context)] == [run]
    with context.key_value.snapshot() as snapshot:
        assert [line.name for line in list_superseded(context, snapshot, since_ms=0)] == ["v1"]
    assert repo.undelete_branch("dev").commit_id == last.id
    catalog.environment.clock.sleep(9 * 86_400)
    other.step_once()
    assert multipart.list_uploads(context, branch=None, prefix="") == []
    assert [report.store for report in sweep_deleted(Repositories(other))] == ["old"]


def test_a_dry_run_shows_what_the_sweep_deletes(home: Repositories, environment: Environment) -> None:
    """Also where another one has asked for the store's time and died; its folder is empty then."""
    home.create("old").branch().put("b", b"3")
    home.delete("old")
    environment.clock.sleep(9 * 86_400)
    store = open_store(home.url + "/old.repo", environment=environment)
    (first,) = sweep_deleted(home, dry_run=True)
    store.put(CLOCK_PATH, b"")
    (planned,), (swept,) = sweep_deleted(home, dry_run=True), sweep_deleted(home)
    assert planned.deleted_count == first.deleted_count == swept.deleted_count > 0
    assert planned.plan == swept.plan
    assert not list(store.list(""))
