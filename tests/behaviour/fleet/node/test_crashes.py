"""A node that crashes at each call of store, control plane or local state: nothing committed is lost, nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from lakebed.errors import Conflict, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.layout import deadlist_of, log_key, manifest_path
from lakebed.fleet.model import MAIN, AttachmentMode, Policy
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.node import Node
from lakebed.fleet.ports import CommitReply, Location
from lakebed.objects.port import ObjectStore
from lakebed.testing import Call, Crashed, Fault, FaultyStore, RecordingStore, seed_count
from worlds.errors import raises
from worlds.fleet_node import SMALL, TENANT, Fleet


def work(fleet: Fleet, node: Node, *, round: int = 0) -> None:
    """Layers, a compaction, a commit, a branch, a compaction of what was committed, a commit with a deadlist."""
    for _ in range(3):
        fleet.ingest(node, rows=12)
        node.flush_once(TENANT)
    node.compact_once(TENANT)
    fleet.ingest(node, rows=5)
    node.commit_once(TENANT)
    fleet.change(node, "branch", f"branch-{round}", parent=MAIN)
    fleet.ingest(node, rows=7)
    node.flush_once(TENANT)
    node.compact(TENANT, MAIN)
    node.commit_once(TENANT)


def finish(fleet: Fleet, *, how: str, store: FaultyStore | None) -> None:
    """Restart the node or fail over; then all is read, more is written, and nothing is left over."""
    committed = fleet.record.timelines[MAIN].lsn if MAIN in fleet.record.timelines else 0
    fleet.crash("a")
    name = "a" if how == "restart" else "b"
    node = fleet.node(name, attach=how != "restart")
    if not any(location.tenant == TENANT for location in node.locations()):
        node.put_location(fleet.attach(name))
    fleet.check(node, every=19)
    if store is not None:
        store.land()
    fleet.ingest(node, rows=9)
    node.checkpoint(TENANT)
    assert fleet.record.timelines[MAIN].lsn == fleet.oracle.last(MAIN) >= committed
    work(fleet, node, round=1)
    if store is not None:
        store.land()
    fleet.check(node, every=19)
    fleet.end()
    # What another node finds: the committed state alone.
    fresh = fleet.node("c", log=fleet.log)
    fleet.check(fresh, every=29)


@cache
def calls() -> list[Call]:
    """Every call of the store in `work`."""
    fleet = Fleet()
    store = RecordingStore(fleet.storage)
    work(fleet, fleet.node("a", storage=store))
    return [item.call for item in store.trace]


def crash_points(*, kind: Fault, how: str) -> list[int]:
    """The calls that are the last of a node. In a long run all of them.

    A crash at a read, or before a change, leaves the store as a crash after the change before it. So each change is
    struck by the two other kinds, of which one is followed by a restart and the other by a failover.
    """
    if seed_count(1) > 1 or kind is Fault.CRASH_BEFORE:
        return list(range(len(calls())))
    changes = [point for point, call in enumerate(calls()) if call.changes]
    return changes[(kind is Fault.CRASH_LATE) ^ (how == "failover") :: 2]


@pytest.mark.parametrize("how", ["restart", "failover"])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(Fault.CRASH_BEFORE, marks=pytest.mark.long), Fault.CRASH_AFTER, Fault.CRASH_LATE],
    ids=lambda kind: kind.name,
)
def test_crash_at_every_store_call(kind: Fault, how: str) -> None:
    """Whichever call is the last: another process goes on, and every object is referenced in the end."""
    points = crash_points(kind=kind, how=how)
    assert len(points) >= 6
    for point in points:
        fleet = Fleet()
        store = FaultyStore(fleet.storage, faults={point: kind})
        with pytest.raises(Crashed):
            work(fleet, fleet.node("a", storage=store))
        finish(fleet, how=how, store=store)


@pytest.mark.parametrize(
    "kind",
    [
        Fault.ERROR_BEFORE,
        pytest.param(Fault.LOST_REQUEST, marks=pytest.mark.long),  # the store is as after an error before
        Fault.LOST_REPLY,
        Fault.LATE,
    ],
)
def test_a_fault_at_every_store_call(kind: Fault) -> None:
    """A request that fails or whose reply is lost is made again; late ones change nothing and leave nothing.

    Two calls in a row are struck; of each kind every fourth point, and in a long run every second, which are all calls.
    """
    start, step = 0 if kind is Fault.ERROR_BEFORE else 2, 4 if seed_count(1) == 1 else 2
    for point in range(start, len(calls()), step):
        fleet = Fleet()
        store = FaultyStore(fleet.storage, faults={point: kind, point + 1: kind})
        node = fleet.node("a", storage=store)
        for _ in range(4):
            try:
                work(fleet, node, round=len(fleet.record.names))
                break
            except (Unavailable, OutcomeUnknown):
                continue
        else:
            raise AssertionError("the work did not come to an end")
        assert store.met
        node.checkpoint(TENANT)
        fleet.check(node, every=23)
        store.land()
        node.checkpoint(TENANT)
        fleet.check(node, every=23)
        fleet.end()


class Stumbling:
    """Fails the n-th call that it is told of."""

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.left = at
        self.error = error

    def __call__(self, call: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error()


@pytest.mark.parametrize("how", ["restart", "failover"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_crash_at_every_call_of_the_control_plane(side: str, how: str) -> None:
    """Before the effect, and with the reply lost."""
    for at in range(1, 6):
        fleet = Fleet(seed=at)
        node = fleet.node("a")
        setattr(fleet.control, side, Stumbling(at, lambda: Crashed("here")))
        try:
            work(fleet, node)
        except Crashed:
            pass
        else:
            assert at > 3
        fleet.control.before = fleet.control.after = lambda call: None
        finish(fleet, how=how, store=None)


@pytest.mark.parametrize(
    ("side", "error"),
    [("before", Unavailable("no answer")), ("before", OutcomeUnknown("no answer")), ("after", OutcomeUnknown("lost"))],
)
def test_a_lost_answer_is_asked_again(side: str, error: LakebedError) -> None:
    """R9: the same request with the same manifest, until it is answered; then it is the same answer."""
    fleet = Fleet()
    node = fleet.node("a")
    fleet.ingest(node, rows=10)
    setattr(fleet.control, side, Stumbling(1, lambda: error))
    with pytest.raises((Unavailable, OutcomeUnknown)):
        node.commit_once(TENANT)
    fleet.ingest(node, rows=10)
    assert not node.flush_once(TENANT)  # nothing is uploaded from the freeze to the answer
    before = {meta.path for meta in fleet.storage.list()}
    assert node.commit_once(TENANT)
    assert {meta.path for meta in fleet.storage.list()} == before
    assert fleet.record.committed == 1
    assert fleet.record.timelines[MAIN].lsn == 10
    assert node.commit_once(TENANT)
    assert fleet.record.timelines[MAIN].lsn == 20
    fleet.check(node)
    fleet.end()


def test_rejection_is_remembered() -> None:
    """R10: rejected, the node writes nothing any more, also after a restart; it reads until it is detached."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.flush_once(TENANT)
    b = fleet.node("b")
    b.checkpoint(TENANT)
    with raises(Unavailable, "not_attached"):
        a.commit_once(TENANT)
    assert a.locations()[0].is_broken
    written = {meta.path for meta in fleet.storage.list()}
    fleet.check(a)
    fleet.work("a")
    assert [transaction.id for transaction in fleet.record.transactions if transaction.node == "a"] == []
    assert not a.flush_once(TENANT)
    assert not a.commit_once(TENANT)
    assert {meta.path for meta in fleet.storage.list()} == written
    generation = a.locations()[0].generation
    fleet.crash("a")
    a = fleet.node("a", attach=False)
    assert a.locations() == []
    with raises(Conflict, "stale_generation"):
        a.put_location(Location(TENANT, generation, AttachmentMode.SINGLE, txn=1))
    fleet.crash("b")
    a.put_location(fleet.attach("a"))
    fleet.check(a)
    a.checkpoint(TENANT)
    fleet.end()


def test_a_rejection_is_written_down_before_it_is_acknowledged() -> None:
    """R10: a node that is killed between the rejection and its acknowledgement does not go on after a restart."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.flush_once(TENANT)
    fleet.node("b").checkpoint(TENANT)
    with pytest.raises(Unavailable):
        a.commit_once(TENANT)
    fleet.crash("a")

    def away(call: str) -> None:
        raise Unavailable("away")

    fleet.control.before = away
    a = fleet.node("a", attach=False)
    assert a.locations() == []
    fleet.control.before = lambda call: None
    a.heartbeat_once()
    assert not any(transaction.node == "a" for transaction in fleet.record.transactions)
    fleet.end()


def test_only_one_process_uses_a_local_state() -> None:
    """R15: without the exclusive lock a process does not start."""
    fleet = Fleet()
    fleet.node("a")
    with raises(Conflict, "local_state_locked"):
        fleet.node("a", attach=False)


def test_a_restart_without_the_control_plane() -> None:
    """R15, R13: the open transaction goes on, reads work, and nothing is committed before the control plane answers."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.flush_once(TENANT)
    txn = fleet.record.transactions[0].id
    fleet.crash("a")

    def away(call: str) -> None:
        raise Unavailable("away")

    fleet.control.before = away
    a = fleet.node("a", attach=False)
    fleet.check(a)
    fleet.append(rows=5)
    fleet.check(a)
    assert not a.commit_once(TENANT)
    a.heartbeat_once()
    fleet.control.before = lambda call: None
    a.heartbeat_once()
    a.checkpoint(TENANT)
    assert (fleet.record.committed, fleet.record.timelines[MAIN].lsn) == (txn, 25)
    fleet.end()


class FullDisk:
    """The files of a local state, on a disk that is full from some write on."""

    def __init__(self, files: Any, at: int) -> None:
        self.files = files
        self.left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def write(self, name: str, body: bytes) -> None:
        """Write, or fail without an effect."""
        self.left -= 1
        if self.left < 0:
            raise Unavailable("the disk is full", kind="disk_full")
        self.files.write(name, body)


def test_a_full_disk_of_the_local_state() -> None:
    """At each write: the step fails without an effect, reads go on, and when there is space again all goes on."""
    for at in range(0, 26, 2):
        fleet = Fleet(seed=at, options=replace(SMALL, change_wait_ms=200))
        node = fleet.node("a")
        local = fleet.locals["a"]
        disk = FullDisk(local._files, at)
        local._files = disk
        try:
            work(fleet, node)
        except Unavailable:
            assert disk.left < 0
            fleet.check(node, every=31)
        disk.left = 10_000
        node.checkpoint(TENANT)
        finish(fleet, how="restart" if at % 4 else "failover", store=None)


def test_a_node_starts_on_a_full_disk() -> None:
    """A restart writes nothing: it resumes and reads, and commits once there is space."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.flush_once(TENANT)
    fleet.crash("a")
    local = fleet.locals["a"]
    disk = FullDisk(local._files, 0)
    local._files = disk
    a = fleet.node("a", attach=False)
    fleet.check(a)
    with pytest.raises(Unavailable):
        a.commit_once(TENANT)
    disk.left = 10_000
    a.checkpoint(TENANT)
    assert fleet.record.timelines[MAIN].lsn == 20
    fleet.end()


def test_a_folder_survives_the_process(tmp_path: Any) -> None:
    """The local state of a real process: records come back, the lock is exclusive and ends with its holder."""
    fleet = Fleet()
    fleet.locals["a"] = LocalState(tmp_path / "a")
    node = fleet.node("a")
    fleet.ingest(node, rows=20)
    node.flush_once(TENANT)
    twin = LocalState(tmp_path / "a")
    with pytest.raises(Conflict):
        twin.acquire(fleet.environment, fleet="memory:")
    fleet.crash("a")
    fleet.locals["a"] = twin
    node = fleet.node("a", attach=False)
    assert twin.is_held
    assert [tenant.txn for tenant in twin.tenants()] == [1]
    fleet.check(node)
    node.checkpoint(TENANT)
    (tmp_path / "a" / "tenants" / f"{TENANT}.json").write_bytes(b"\x00garbage")
    fleet.crash("a")
    node = fleet.node("a", attach=False)
    assert [location.txn for location in node.locations()] == [
        3
    ]  # what cannot be read is not resumed: a new transaction
    fleet.check(node)
    fleet.end()


def test_unknown_objects_are_deleted_after_a_restart() -> None:
    """R15: one LIST to see that the layers are there, one of what is unknown to the local state, which goes."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.flush_once(TENANT)
    stranger = f"{manifest_path(TENANT, 1, 9)}"
    fleet.storage.put(stranger, b"from before")
    fleet.crash("a")
    with fleet.storage.count() as counts:
        a = fleet.node("a", attach=False)
        fleet.work("a")
        assert counts.list == 2
    assert stranger not in {meta.path for meta in fleet.storage.list()}
    fleet.check(a)
    a.checkpoint(TENANT)
    fleet.end()


def test_requests_of_each_step() -> None:
    """Objects a commit: changed layers and one, and one more when something died; attach 1 GET; branch 1 object."""
    fleet = Fleet()
    a = fleet.node("a")
    with fleet.storage.count() as counts:
        fleet.ingest(a, rows=20)
        a.commit_once(TENANT)
    assert (counts.put, counts.total) == (2, 2)  # a layer and the manifest
    with fleet.storage.count() as counts:
        fleet.change(a, "branch", "b", parent=MAIN)
        fleet.change(a, "pin", "p", parent="b", lsn=15)
    assert (counts.put, counts.total) == (2, 2)  # a manifest each, no layer
    for _ in range(2):
        fleet.ingest(a, rows=20)
        a.flush_once(TENANT)
    fleet.change(a, "delete", "b")
    fleet.change(a, "delete", "p")
    with fleet.storage.count() as counts:
        a.compact(TENANT, MAIN)
        a.commit_once(TENANT)
    manifest = fleet.manifest()
    assert manifest is not None
    assert counts.put == len(manifest.timelines[0].files.files()) + 2  # the run, the deadlist, the manifest
    assert (counts.list, counts.delete) == (0, 0)
    with fleet.storage.count() as counts:
        b = fleet.node("b")
        fleet.work("b")
    assert (counts.get, counts.total) == (1, 1)  # the manifest
    with fleet.storage.count() as counts:
        for _ in range(50):
            fleet.clock.advance(60)
            fleet.work("b")
            b.heartbeat_once()
    assert counts.total == 0  # idle: ten minutes and more without a request
    fleet.crash("a")
    fleet.end()


def test_late_landing_after_the_commit() -> None:
    """A put that was given up and lands after the commit is on the deadlist, so it is found without a LIST."""
    fleet = Fleet()
    fails = {"on": True}

    def decide(index: int, call: Call) -> Fault | None:
        return Fault.LATE if fails["on"] and call.kind == "put" and call.path.endswith(".sst") else None

    store: ObjectStore = FaultyStore(fleet.storage, faults=decide)
    a = fleet.node("a", storage=store)
    fleet.ingest(a, rows=20)
    fails["on"] = False
    a.flush_once(TENANT)
    fleet.ingest(a, rows=5)
    a.flush_once(TENANT)
    fails["on"] = True
    with pytest.raises(OutcomeUnknown):
        a.compact(TENANT, MAIN)
    fails["on"] = False
    a.commit_once(TENANT)
    reference = fleet.record.manifest
    assert reference is not None
    assert fleet.record.deadlist == deadlist_of(reference.path)
    assert isinstance(store, FaultyStore)
    assert store.land()
    fleet.append(rows=5)
    a.checkpoint(TENANT)
    fleet.check(a)
    fleet.end()


def test_a_manifest_that_was_exchanged_is_refused() -> None:
    """A commit pins the manifest by its checksum: other bytes under its name are not read."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    a.checkpoint(TENANT)
    reference = fleet.record.manifest
    assert reference is not None
    body = bytes(fleet.storage.get(reference.path)).replace(b'"min_reader":1', b'"min_reader":9')
    fleet.storage.put(reference.path, body)
    b = fleet.node("b")
    with raises(LakebedError, "corruption"):
        b.get(TENANT, MAIN, b"key-0001")


def test_waiting_source_asks_again() -> None:
    """The source of a relocation is told to wait: it serves on, and asks later with the same manifest."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=20)
    fleet.control.replace = lambda reply: CommitReply("wait")
    assert not a.commit_once(TENANT)
    fleet.check(a)
    fleet.control.replace = lambda reply: reply
    assert a.commit_once(TENANT)
    fleet.check(a)
    assert fleet.log.bounds(log_key(TENANT, MAIN)).last == 20
    fleet.end()


def test_idle_policies() -> None:
    """R14: rows are committed at their age, and a tenant without rows never is."""
    fleet = Fleet(policy=Policy(commit_age_ms=1_000, retain_rows=1 << 20))
    a = fleet.node("a")
    fleet.work("a")
    fleet.clock.advance(100)
    fleet.work("a")
    assert fleet.control.verdicts == []
    fleet.append(rows=3)
    fleet.clock.advance(0.1)
    fleet.work("a")
    assert (a.timelines(TENANT)[0].lsn, fleet.control.verdicts) == (3, [])
    fleet.clock.advance(1.1)
    fleet.work("a")
    assert fleet.control.verdicts == ["granted"]
