"""One tenant that fails, or a defect in a step, does not stop a node: others are served, and it is tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace as copy_of
from typing import Any

import pytest

from lakebed.errors import Unavailable
from lakebed.fleet import machine
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.node import serve
from lakebed.fleet.node.serve import NodeThreads
from lakebed.fleet.node.timeline import Timeline
from lakebed.fleet.ports import CommitReply, Location, TimelineChange
from lakebed.ids import new_uuid
from worlds.errors import raises
from worlds.fleet_node import SMALL, TENANT, Fleet
from worlds.waiting import HANG_S, pause, wait_until

OTHER = "other"


def second_tenant(fleet: Fleet, node: str = "a", *, name: str = OTHER) -> None:
    """Attach another tenant to a node."""
    fleet.log.create(log_key(name, MAIN))
    fleet.plane.create_tenant(name, Policy(retain_rows=1 << 30))
    record = fleet.ledger.node(node)
    assert record is not None
    location = fleet.ledger.change(
        name, lambda tenant: machine.attach(tenant, record, now_ms=fleet.environment.clock.now_ms())
    )
    fleet.nodes[node].put_location(location)


def append_to(fleet: Fleet, tenant: str, *, rows: int = 10, size: int = 10) -> int:
    """Append rows of a size to a tenant's first timeline; the last LSN."""
    keys = [b"key-%04d" % number for number in range(rows)]
    values = [fleet.rng.randbytes(size) for _ in keys]
    return fleet.log.append(log_key(tenant, MAIN), rows_of(keys, values), write_id=new_uuid(fleet.rng))


def failing(error: Callable[[], BaseException]) -> Callable[..., Any]:
    """A function that raises."""

    def call(*arguments: object, **named: object) -> Any:
        raise error()

    return call


@pytest.fixture
def fleet() -> Fleet:
    """One node with two tenants."""
    fleet = Fleet()
    fleet.node("a")
    second_tenant(fleet)
    return fleet


def test_a_defect_in_a_step_of_one_tenant_is_reported_once_and_waits(fleet: Fleet) -> None:
    """The others are served, and the tenant with the defect is tried again after waits that grow, not in a loop."""
    node, tries = fleet.nodes["a"], 0

    def ingest_once() -> bool:
        nonlocal tries
        tries += 1
        raise ZeroDivisionError("a defect")

    def work() -> int:
        """Work until nothing is due; how many steps failed."""
        for failed in range(20):
            try:
                fleet.work("a")
            except ZeroDivisionError:
                continue
            return failed
        raise AssertionError("it is tried in a loop")

    fleet.work("a")
    node._tenants[TENANT].ingest_once = ingest_once  # type: ignore[method-assign]
    fleet.append(rows=10)
    last = append_to(fleet, OTHER)
    fleet.clock.advance(0.1)
    assert work() == tries == 1
    assert node.timelines(OTHER)[0].lsn == last
    for _ in range(100):
        fleet.clock.advance(0.1)
        work()
    assert 4 <= tries <= 9
    problem = node.utilization().problems[TENANT]
    assert "internal_error" in problem
    assert "ingest" in problem
    del node._tenants[TENANT].ingest_once  # type: ignore[method-assign]
    fleet.clock.advance(10)
    fleet.work("a")
    fleet.check(node)


class Threads:
    """The threads of a node, with what they report."""

    def __init__(self, fleet: Fleet) -> None:
        self.told: list[Exception] = []
        self.threads = NodeThreads(
            fleet.nodes["a"], options=fleet.options, environment=fleet.environment, on_defect=self.told.append
        )


@pytest.fixture
def threads(fleet: Fleet) -> Iterator[Threads]:
    """They run until the end of the test."""
    running = Threads(fleet)
    yield running
    running.threads.close()
    fleet.log.close()
    running.threads.join()


def test_a_defect_ends_no_thread(fleet: Fleet, threads: Threads) -> None:
    """Heartbeats, the look at the log, and workers: each reports a defect once, and continues."""
    node, calls = fleet.nodes["a"], {"heartbeat_once": 0, "watch_once": 0, "work_once": 0}

    def breaking(name: str) -> Callable[..., bool]:
        def fail(**named: object) -> bool:
            calls[name] += 1
            raise ZeroDivisionError(f"a defect in {name}")

        return fail

    for name in calls:
        setattr(node, name, breaking(name))
    least = {"heartbeat_once": 1, "watch_once": 1, "work_once": 2 * fleet.options.worker_count}
    wait_until(lambda: all(calls[name] > least[name] for name in calls))
    assert sorted(str(error) for error in threads.told) == sorted(f"a defect in {name}" for name in calls)
    for name in calls:
        delattr(node, name)
    last = append_to(fleet, OTHER)
    wait_until(lambda: node.timelines(OTHER)[0].lsn == last)
    heard: list[str] = []
    fleet.control.before = heard.append
    wait_until(lambda: "heartbeat" in heard)


def test_a_node_ends_while_its_control_plane_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit at the end waits for an answer that does not come: together they are bounded, and no row is lost."""
    monkeypatch.setattr(serve, "_END_S", 1.0)
    fleet = Fleet()
    node = fleet.node("a")
    tenants = [TENANT, *(f"other-{number}" for number in range(11))]
    for name in tenants[1:]:
        second_tenant(fleet, name=name)
    fleet.work("a")
    asked: list[str] = []

    def away(call: str) -> None:
        asked.append(call)
        pause(0.4)
        raise Unavailable("the control plane does not answer", kind="no_answer")

    fleet.control.before = away
    running = Threads(fleet)
    last = {TENANT: fleet.append(rows=10), **{name: append_to(fleet, name) for name in tenants[1:]}}
    wait_until(lambda: all(node.timelines(name)[0].lsn == last[name] for name in tenants))
    asked.clear()
    running.threads.close()
    assert 0 < asked.count("commit") < len(tenants) / 2
    assert running.told == []
    count = len(asked)
    pause(0.1)
    assert len(asked) == count  # no thread is left that asks
    fleet.control.before = lambda call: None
    node.close()
    fleet.crash("a")
    node = fleet.node("a", attach=False)
    fleet.work("a")
    fleet.check(node)
    assert {name: node.timelines(name)[0].lsn for name in tenants} == last


def test_a_tenant_that_goes_while_the_log_is_watched(fleet: Fleet) -> None:
    """The answer of the log names a timeline of a tenant that was detached meanwhile: it is left out."""
    node = fleet.nodes["a"]
    append_to(fleet, OTHER)
    node.ingest_once(OTHER)
    inner = fleet.log.wait_many

    def wait_many(after: dict[str, int], *, timeout_s: float) -> dict[str, int]:
        generation = next(location.generation for location in node.locations() if location.tenant == OTHER)
        node.put_location(Location(OTHER, generation, None))
        fleet.work("a")
        assert [location.tenant for location in node.locations()] == [TENANT]
        return {**inner(after, timeout_s=timeout_s), log_key(OTHER, MAIN): 0}

    node.watches_in_background = True
    fleet.log.wait_many = wait_many  # type: ignore[method-assign, assignment]
    assert node.watch_once(timeout_s=0)


def test_memory_is_freed_although_one_tenant_cannot_be_flushed() -> None:
    """The largest memtable is of a tenant whose objects cannot be put: the next one is flushed."""
    options = copy_of(SMALL, memtable_bytes=1 << 30, memtable_bytes_max=100_000)
    fleet = Fleet(options=options)
    node = fleet.node("a")
    second_tenant(fleet)
    fleet.work("a")
    attempts = 0
    inner = fleet.storage.put

    def put(path: str, body: Any, **facts: Any) -> Any:
        nonlocal attempts
        if path.startswith(TENANT + "."):
            attempts += 1
            raise Unavailable("this prefix cannot be written")
        return inner(path, body, **facts)

    fleet.storage.put = put  # type: ignore[method-assign]
    append_to(fleet, TENANT, rows=38, size=2_000)
    append_to(fleet, OTHER, rows=10, size=900)
    node.ingest_once(TENANT)
    node.ingest_once(OTHER)
    assert 75_000 < node.utilization().unflushed_bytes < 100_000  # it stays short without the first tenant's flush
    for _ in range(20):
        node.work_once()
    assert node.timelines(OTHER)[0].size_bytes > 0
    assert attempts <= 2  # it waits, as every step that failed does


def test_workers_do_not_wait_for_the_same_tenant() -> None:
    """Memory is short and the largest memtable's tenant has a long step: one worker at most waits for it."""
    options = copy_of(SMALL, memtable_bytes=1 << 30, memtable_bytes_max=60_000)
    fleet = Fleet(options=options)
    node = fleet.node("a")
    second_tenant(fleet)
    fleet.work("a")
    append_to(fleet, TENANT, rows=25, size=2_000)
    node.ingest_once(TENANT)
    node.ingest_once(OTHER)
    item = node._tenants[TENANT]._turn
    with item:
        waiting = [threading.Thread(target=node.work_once, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        wait_until(lambda: sum(thread.is_alive() for thread in waiting) <= 1)
    for thread in waiting:
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_an_attach_during_the_acknowledgement_of_a_detach(fleet: Fleet) -> None:
    """A tenant that comes back while its detach is acknowledged is attached: its new generation is not given up."""
    node = fleet.nodes["a"]
    fleet.ingest(node, rows=10)
    node.flush_once(TENANT)
    generation = node.locations()[0].generation
    back: list[Location] = []

    def before(call: str) -> None:
        if call == "ack" and not back:
            back.append(fleet.attach("a"))
            node.put_location(back[0])

    fleet.control.before = before
    node.put_location(Location(TENANT, generation, None))
    fleet.work("a")
    assert back
    assert [location.generation for location in node.locations() if location.tenant == TENANT] == [back[0].generation]
    node.put_location(back[0])
    fleet.check(node)
    node.checkpoint(TENANT)
    assert fleet.record.timelines[MAIN].lsn == 10


def test_a_detach_before_the_first_step_is_read_as_not_attached(fleet: Fleet) -> None:
    """A tenant whose manifest was never read here is not attached, also while its detach is not acknowledged."""
    node = fleet.nodes["a"]
    fleet.control.before = failing(lambda: Unavailable("away"))
    node.put_location(Location(TENANT, node.locations()[0].generation, None))
    fleet.work("a")
    assert TENANT in [location.tenant for location in node.locations()]
    assert node.is_ready(TENANT, MAIN, 0)  # an answer needs no wait: it is this refusal
    with raises(Unavailable, "not_attached"):
        node.get(TENANT, MAIN, b"k")
    fleet.control.before = lambda call: None
    node.put_location(fleet.attach("a"))
    assert node.get(TENANT, MAIN, b"k").value is None


@pytest.mark.parametrize("late", ["change", "rows"])
def test_rows_that_come_during_a_commit_are_committed_at_their_age(late: str) -> None:
    """R14: rows ingested while a commit is made, or found to be needless, are not forgotten."""
    fleet = Fleet(policy=Policy(commit_age_ms=1_000, retain_rows=1 << 20))
    node = fleet.node("a")
    fleet.work("a")
    attached = node._tenants[TENANT]
    if late == "change":
        fleet.ingest(node, rows=5)
        assert not attached.commit_once(flush=False)
    else:
        fleet.ingest(node, rows=5)
        inner = Timeline.is_flushed.fget
        assert inner is not None

        def is_flushed(timeline: Timeline) -> bool:
            result = inner(timeline)
            if result and fleet.oracle.last(MAIN) == 5:  # the rows come right after this look
                fleet.ingest(node, rows=5)
            return bool(result)

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(Timeline, "is_flushed", property(is_flushed))
            assert attached.commit_once()
        assert fleet.oracle.last(MAIN) == node.timelines(TENANT)[0].lsn == 10
    fleet.clock.advance(2)
    fleet.work("a")
    fleet.clock.advance(2)
    fleet.work("a")
    assert fleet.record.timelines[MAIN].lsn == fleet.oracle.last(MAIN)


def test_rows_that_an_attachment_takes_over_are_committed_at_their_age() -> None:
    """R14: rows in memory that a new attachment keeps are committed, also when no further row comes."""
    fleet = Fleet(policy=Policy(commit_age_ms=1_000, retain_rows=1 << 20))
    node = fleet.node("a")
    fleet.ingest(node, rows=5)
    node.put_location(fleet.attach("a"))
    fleet.work("a")
    assert node.timelines(TENANT)[0].lsn == 5
    fleet.clock.advance(2)
    fleet.work("a")
    assert fleet.record.timelines[MAIN].lsn == 5


@pytest.mark.parametrize("kind", ["detach", "compact"])
def test_a_timeline_that_is_not_committed_yet_is_refused_for_now(kind: str) -> None:
    """A restore is in the working set and its commit failed: a detach or compaction of its name is asked again."""
    fleet = Fleet()
    node = fleet.node("a")
    fleet.ingest(node, rows=20)
    node.checkpoint(TENANT)
    attached = node._tenants[TENANT]
    restore = TimelineChange(kind="restore", name=MAIN, id="back", parent=MAIN, lsn=10, kept_as="old")
    assert not attached.apply_change(restore)
    detach = TimelineChange(kind="detach", name=MAIN)
    with raises(Unavailable, "commit_pending"):
        node.compact(TENANT, MAIN) if kind == "compact" else attached.apply_change(detach)
    node.checkpoint(TENANT)
    node.compact(TENANT, MAIN)
    fleet.end()


def test_a_missing_file_of_a_detach_means_a_rejection() -> None:
    """R20: a detach that reads a file which another node has replaced says where the tenant is, not what is gone."""
    fleet = Fleet(policy=Policy(retain_rows=1 << 20), options=copy_of(SMALL, cache_bytes=0))
    a = fleet.node("a")
    fleet.ingest(a, rows=40)
    a.checkpoint(TENANT)
    fleet.change(a, "branch", "b", parent=MAIN)
    b = fleet.node("b")
    b.change(TENANT, TimelineChange(kind="detach", name="b"))
    b.compact(TENANT, MAIN)
    b.checkpoint(TENANT)
    fleet.collect()
    with raises(Unavailable, "file_gone"):
        a.change(TENANT, TimelineChange(kind="detach", name="b"))
    fleet.work("a")
    assert a.locations()[0].is_broken


def test_retries_do_not_follow_the_wall_clock(fleet: Fleet) -> None:
    """The wall clock is set back by a day: a step that failed is tried again after its wait, rows are committed."""
    node = fleet.nodes["a"]
    fleet.work("a")
    fleet.control.before = failing(lambda: Unavailable("away"))
    fleet.ingest(node, rows=5)
    fleet.clock.advance(60)
    fleet.work("a")
    fleet.control.before = lambda call: None
    fleet.clock.set_wall(-86_400)
    fleet.clock.advance(60)
    fleet.work("a")
    assert fleet.record.timelines[MAIN].lsn == 5


def start_again_and_check(fleet: Fleet) -> None:
    """Start the node again: the 20 rows that were written are there, and are committed."""
    node = fleet.node("a", attach=False)
    fleet.work("a")
    fleet.plane.scan_once()
    fleet.plane.reconcile_once()
    fleet.work("a")
    fleet.check(node)
    node.checkpoint(TENANT)
    assert fleet.record.timelines[MAIN].lsn == 20
    fleet.end()


def test_a_working_set_that_cannot_be_read_is_not_resumed() -> None:
    """The timelines of the local state are damaged: the node waits for an attach instead of failing again and again."""
    for is_asked in (False, True):
        fleet = Fleet()
        node = fleet.node("a")
        fleet.ingest(node, rows=20)
        node.flush_once(TENANT)
        if is_asked:
            fleet.control.replace = lambda reply: CommitReply("wait")
            assert not node.commit_once(TENANT)
            fleet.control.replace = lambda reply: reply
        fleet.locals["a"].store_state(TENANT, b"\x00garbage")
        fleet.crash("a")
        start_again_and_check(fleet)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_transaction_whose_layers_are_gone_is_not_resumed(is_asked: bool) -> None:
    """The storage was put back from a copy that is older than the node's local state, with the same open transaction.

    The rows are in the log, and what is committed names nothing that is missing.
    """
    fleet = Fleet()
    node = fleet.node("a")
    fleet.ingest(node, rows=20)
    before = {meta.path for meta in fleet.storage.list("")}
    node.flush_once(TENANT)
    if is_asked:
        fleet.control.before = failing(lambda: Unavailable("away"))
        with pytest.raises(Unavailable):
            node.commit_once(TENANT)
        fleet.control.before = lambda call: None
    fleet.crash("a")
    newer = [meta.path for meta in fleet.storage.list("") if meta.path not in before]
    assert newer
    fleet.storage.delete(newer)
    start_again_and_check(fleet)


def test_a_local_state_of_another_fleet_is_left_behind() -> None:
    """A folder that another fleet's node used: its tenants are neither served nor asked for again and again."""
    first = Fleet()
    node = first.node("a")
    second_tenant(first)
    first.append(rows=20)
    for tenant in (TENANT, OTHER):
        append_to(first, tenant)
        node.ingest_once(tenant)
        node.flush_once(tenant)
    first.crash("a")
    second = Fleet(seed=2)
    second.locals["a"] = first.locals["a"]
    node = second.node("a")
    second.append(rows=10)
    second.work("a")
    second.check(node)
    node.checkpoint(TENANT)
    for _ in range(20):
        second.clock.advance(10)
        second.work("a")
    assert [location.tenant for location in node.locations()] == [TENANT]
    assert node.utilization().problems == {}
    second.end()


def test_uncommitted_bytes_are_read_while_a_transaction_is_given_up() -> None:
    """A worker looks at the size of a transaction in the moment in which another thread gives it up."""
    fleet = Fleet()
    node = fleet.node("a")
    fleet.work("a")
    attached = node._tenants[TENANT]
    pin = attached.transaction

    class Fleeting:
        """A set of timelines whose transaction goes after one look."""

        timelines = attached.timelines

        def __init__(self) -> None:
            self.looks = 0

        @property
        def transaction(self) -> object:
            self.looks += 1
            return pin if self.looks == 1 else None

    attached._set = Fleeting()  # type: ignore[assignment]
    assert attached.uncommitted_bytes == 0
