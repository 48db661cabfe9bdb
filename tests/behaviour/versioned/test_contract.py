"""The `Versioned` contract: one suite that every store of a lake passes unchanged."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.fleet.client import Tenant
from lakebed.fleet.layout import layer_path
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.timeline import Timeline, TimelineView
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.options import DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects import open_store
from lakebed.reclaim.model import CollectionPlan, Explanation, Pin, Version
from lakebed.reclaim.versioned import Versioned
from lakebed.repo import Branch, Reference, Repositories, Repository, RepositoryOptions
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock
from worlds.fleet_in_process import FleetInProcess
from worlds.memory_key_value import MemoryKeyValue


@dataclass
class Subject:
    """A store under test: how to write one more item to it, and how to see what it holds."""

    store: Any
    write: Callable[[Any, int], None]
    """Add one item to the store, or to a fork of it."""
    items: Callable[[Any], list[int]]
    """Items of the store, of a fork, or of a view of one version, sorted."""
    an_object: Callable[[Any], str]
    """Path of some object that the newest version needs."""
    clock: ManualClock

    def fill(self, *items: int) -> list[str]:
        """Write items one by one; the version ids that came of it."""
        ids = []
        for item in items:
            self.clock.advance(1)
            self.write(self.store, item)
            ids.append([version.id for version in self.store.versions()][-1])
        return ids


def a_table() -> Subject:
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(3))
    table = Table.create(
        open_store(f"memory://{uuid.uuid4()}", environment=environment),
        name="db.t",
        schema=pa.schema([("id", pa.int64())]),
        environment=environment,
    )
    return Subject(
        store=table,
        write=lambda store, item: store.append(pa.table({"id": pa.array([item], pa.int64())})),
        items=lambda store: sorted(store.read()["id"].to_pylist()),
        an_object=lambda store: next(meta.path for meta in store.store.list() if "/data-" in meta.path),
        clock=clock,
    )


def a_database() -> Subject:
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(uuid.uuid4().int))

    def write(store: DatabaseAdmin, item: int) -> None:
        with store.open(options=DatabaseOptions(background=False)) as database:
            database.put(item.to_bytes(8), b"")
            database.flush(memtable=True)

    def items(store: DatabaseAdmin | DatabaseReader) -> list[int]:
        if isinstance(store, DatabaseReader):
            return [int.from_bytes(key) for key, _ in store.scan()]
        with store.reader(options=ReaderOptions(background=False)) as reader:
            return items(reader)

    return Subject(
        store=DatabaseAdmin(DatabaseLocation.at(f"memory://{uuid.uuid4()}/numbers", environment=environment)),
        write=write,
        items=items,
        an_object=lambda store: sst_path(store.show_manifest().l0[0].id),
        clock=clock,
    )


def a_repository() -> Subject:
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(uuid.uuid4().int))
    home = Repositories(
        LocalCatalog(
            open_store(f"memory://{uuid.uuid4()}", environment=environment),
            MemoryKeyValue(environment=environment),
            options=RepositoryOptions(background=False),
            environment=environment,
        )
    )

    def write(store: Repository | Branch, item: int) -> None:
        branch = store.branch() if isinstance(store, Repository) else store
        branch.put(f"items/{item:05}", item.to_bytes(8))
        branch.commit(f"add {item}")

    def items(store: Repository | Reference) -> list[int]:
        reading = store.branch() if isinstance(store, Repository) else store
        return [int.from_bytes(reading.get(listed.path)) for listed in reading.list("items/")]

    return Subject(
        store=home.create("numbers"),
        write=write,
        items=items,
        an_object=lambda store: next(listed.entry.address for listed in store.branch().list()),
        clock=clock,
    )


def a_tenant() -> Subject:
    fleet = FleetInProcess()
    tenant = fleet.tenant("numbers")
    tenant.create(policy=Policy(retain_rows=1_000))

    def write(store: Tenant | Timeline, item: int) -> None:
        timeline = store.main if isinstance(store, Tenant) else store
        timeline.put(item.to_bytes(8), b"")
        timeline.checkpoint()

    def items(store: Tenant | Timeline | TimelineView) -> list[int]:
        reading = store.main if isinstance(store, Tenant) else store
        return [int.from_bytes(key) for key, _ in reading.scan()]

    def an_object(store: Tenant) -> str:
        main = next(element for element in store.state().manifest.timelines if element.name == MAIN)
        origin, (file_id, *_) = next(iter(main.origins.items()))
        txn, _, timeline = origin.partition("/")
        return layer_path(store.name, int(txn), timeline, file_id).partition("/")[2]

    return Subject(store=tenant, write=write, items=items, an_object=an_object, clock=fleet.clock)


@pytest.fixture(params=[a_table, a_database, a_repository, a_tenant], ids=["table", "database", "repository", "tenant"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each kind of store, empty."""
    return request.param()


def test_it_answers_the_contract(subject: Subject) -> None:
    """Every verb of the contract is there, and the store knows its name."""
    assert isinstance(subject.store, Versioned)
    assert subject.store.name


def test_versions_come_oldest_first(subject: Subject) -> None:
    """Each write makes one version; ids are distinct and times do not decrease."""
    ids = subject.fill(1, 2, 3)
    versions = list(subject.store.versions())
    assert [version.id for version in versions][-3:] == ids
    assert len(set(ids)) == 3
    assert all(isinstance(version, Version) and version.store == subject.store.name for version in versions)
    times = [version.created_ms for version in versions]
    assert times == sorted(times)


def test_an_old_version_reads_as_it_was(subject: Subject) -> None:
    """Later writes do not change what a version holds."""
    ids = subject.fill(1, 2, 3)
    assert subject.items(subject.store.at(ids[0])) == [1]
    assert subject.items(subject.store.at(ids[1])) == [1, 2]
    assert subject.items(subject.store) == [1, 2, 3]


def test_a_missing_version_is_not_found(subject: Subject) -> None:
    """An unknown id and an unknown name are both NotFound."""
    subject.fill(1)
    for version in ("987654321", "nobody"):
        with pytest.raises(NotFound):
            subject.store.at(version)


def test_a_pin_keeps_its_name_and_version(subject: Subject) -> None:
    """A pin is listed, read by name, and gone after unpin."""
    ids = subject.fill(1, 2)
    pin = subject.store.pin("before", version=ids[0])
    assert isinstance(pin, Pin)
    assert (pin.store, pin.name, pin.version, pin.expires_ms) == (subject.store.name, "before", ids[0], None)
    assert [(item.name, item.version) for item in subject.store.pins()] == [("before", ids[0])]
    assert subject.items(subject.store.at("before")) == [1]
    subject.store.unpin("before")
    assert subject.store.pins() == []
    with pytest.raises(NotFound):
        subject.store.at("before")


def test_a_pin_is_the_newest_version_by_default(subject: Subject) -> None:
    """Without a version the state of now is pinned; a lifetime gives it an end."""
    ids = subject.fill(1, 2)
    pin = subject.store.pin("now", lifetime_ms=5000)
    assert pin.version == ids[-1]
    assert pin.expires_ms == subject.clock.now_ms() + 5000


def test_wrong_pins_are_refused(subject: Subject) -> None:
    """A taken name, a missing version, a missing pin: the kind of error says what to do."""
    subject.fill(1)
    subject.store.pin("p")
    with pytest.raises(AlreadyExists):
        subject.store.pin("p")
    with pytest.raises(NotFound):
        subject.store.pin("q", version="987654321")
    with pytest.raises(InvalidRequest):
        subject.store.pin("12")
    with pytest.raises(NotFound):
        subject.store.unpin("nobody")
    assert [pin.name for pin in subject.store.pins()] == ["p"]


def test_a_fork_lives_its_own_life(subject: Subject) -> None:
    """Writes to a fork and to its origin do not meet; the fork holds a pin of its origin."""
    ids = subject.fill(1, 2)
    fork = subject.store.create_branch("experiment", version=ids[0])
    subject.clock.advance(1)
    subject.write(fork, 10)
    subject.write(subject.store, 3)
    assert subject.items(fork) == [1, 10]
    assert subject.items(subject.store) == [1, 2, 3]
    assert ids[0] in [pin.version for pin in subject.store.pins()]
    with pytest.raises(AlreadyExists):
        subject.store.create_branch("experiment")


def test_restoring_makes_an_old_version_the_newest(subject: Subject) -> None:
    """History is kept: what was there between is still readable, and writing goes on from the old state."""
    ids = subject.fill(1, 2, 3)
    subject.clock.advance(1)
    restored = subject.store.restore(ids[0])
    assert restored.id not in ids
    assert subject.items(subject.store) == [1]
    assert subject.items(subject.store.at(ids[2])) == [1, 2, 3]
    subject.fill(4)
    assert subject.items(subject.store) == [1, 4]


def test_planning_deletes_nothing(subject: Subject) -> None:
    """A plan says what cleaning would do; afterwards every version reads as before."""
    ids = subject.fill(1, 2, 3)
    plan = subject.store.plan_collection()
    assert isinstance(plan, CollectionPlan)
    assert plan.store == subject.store.name
    for number, version in enumerate(ids, start=1):
        assert subject.items(subject.store.at(version)) == list(range(1, number + 1))


def test_why_answers_for_an_object(subject: Subject) -> None:
    """Who needs an object is said in a sentence."""
    subject.fill(1)
    subject.store.pin("keep")
    verdict = subject.store.why(subject.an_object(subject.store))
    assert isinstance(verdict, Explanation)
    assert verdict.sentence
    assert verdict.pins


def test_why_answers_for_a_version(subject: Subject) -> None:
    """Its pins are named while they are there, and not those of other versions."""
    first, second = subject.fill(1, 2)
    for name, version in (("one", first), ("also-one", first), ("two", second)):
        subject.store.pin(name, version=version)

    def names(version: str) -> set[str]:
        answer = subject.store.why_version(version)
        assert isinstance(answer, Explanation)
        assert answer.sentence
        return {pin.name for pin in answer.pins} & {"one", "also-one", "two"}

    # what a commit of a repository has, its ancestors' pins do not keep, and the other way round they do
    assert names(first) >= {"one", "also-one"}
    assert names(second) == {"two"}
    subject.store.unpin("one")
    assert "one" not in names(first)
    with pytest.raises(NotFound):
        subject.store.why_version("no-such-version")
