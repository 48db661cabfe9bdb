"""What is deleted, when, and with how many requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from lakebed.errors import NotFound, Unavailable
from lakebed.fleet import layout
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.model import TransactionState
from lakebed.metrics import default_registry
from lakebed.testing import Crashed, Fault, FaultyStore
from worlds.fleet_control import CountedKeyValue, World
from worlds.memory_key_value import MemoryKeyValue

SETTLE_S = 2.0


def fleet(**options: int) -> World:
    world = World(options=ControlOptions(grace_ms=round(SETTLE_S * 1000), **options))
    world.add("a", "b", "c")
    world.wait(0.5)
    world.control.create_tenant("t")
    return world


def layers(world: World, tenant: str, txn: int, count: int) -> list[str]:
    paths = [layout.layer_path(tenant, txn, "main", f"{number:04}") for number in range(count)]
    for path in paths:
        world.store.put(path, b"rows")
    return paths


def paths(world: World, folder: str = "t.tenant") -> list[str]:
    return [entry.path for entry in world.store.list(folder)]


def test_a_committed_transaction_costs_one_get_and_a_delete_a_thousand() -> None:
    """No LIST: its deadlist says all. The manifest and the deadlist of its base go with it."""
    world = fleet()
    node = world.node_of("t")
    dead = layers(world, "t", 1, 1_500)
    kept = layers(world, "t", 1, 1_501)[-1]
    node.commit("t")
    first = node.held["t"].manifest
    assert first is not None
    node.commit("t", dead=dead)
    world.wait(SETTLE_S / 2)
    assert kept in paths(world)
    assert dead[0] in paths(world)
    with world.store.count() as counts:
        world.wait(SETTLE_S)
    assert (counts.get, counts.list, counts.delete, counts.put) == (1, 0, 2, 0)
    left = paths(world)
    assert kept in left
    assert not set(dead) & set(left)
    assert first.path not in left
    assert world.control.transactions("t").to_collect == ()
    deadlist = world.control.tenant("t").deadlist
    assert deadlist in left, "it goes with the next commit"
    node.commit("t")
    with world.store.count() as counts:
        world.wait(SETTLE_S + 0.5)
    assert (counts.get, counts.list, counts.delete) == (0, 0, 1)
    assert paths(world) == [kept, world.control.tenant("t").manifest.path]  # type: ignore[union-attr]


def test_nothing_is_deleted_before_the_settle_time() -> None:
    """A put of a path on the deadlist may still land."""
    world = fleet()
    node = world.node_of("t")
    dead = layers(world, "t", 1, 1)
    node.commit("t", dead=dead)
    with world.store.count() as counts:
        world.wait(SETTLE_S - 0.3)
    assert counts.total == 0
    world.wait(0.6)
    assert not set(dead) & set(paths(world))


def test_each_commit_has_a_settle_time_of_its_own() -> None:
    """What a later commit replaced waits longer than what an earlier one did."""
    world = fleet()
    node = world.node_of("t")
    first, second = layers(world, "t", 1, 2)
    node.commit("t", dead=[first])
    world.wait(SETTLE_S - 0.5)
    node.commit("t", dead=[second])
    world.wait(1.0)
    assert first not in paths(world)
    assert second in paths(world)
    world.wait(SETTLE_S)
    assert second not in paths(world)


def test_a_rejected_transaction_is_listed_twice_and_not_before_it_is_acknowledged() -> None:
    """Until then its node may write; between the lists a put may land."""
    world = fleet()
    old = world.node_of("t")
    layers(world, "t", 1, 3)
    old.is_down = True
    world.wait(2.5)
    with world.store.count() as counts:
        world.wait(5)
    assert counts.total == 0, "rejected and not acknowledged: nothing"
    assert old.ack("t", 1, 1) == "reject_acknowledged"
    with world.store.count() as counts:
        world.wait(0.3)
    assert (counts.list, counts.delete, counts.get) == (1, 1, 0)
    assert paths(world, layout.txn_folder("t", 1)) == []
    layers(world, "t", 1, 1)
    world.wait(SETTLE_S + 0.3)
    assert paths(world, layout.txn_folder("t", 1)) == []
    states = {transaction.id: transaction.state for transaction in world.control.transactions("t").finished}
    assert states[1] is TransactionState.GARBAGE_COLLECTED
    with world.store.count() as counts:
        world.wait(5)
    assert counts.total == 0, "never looked at again"


def test_a_reader_delays_the_deletion_of_what_it_may_read() -> None:
    """For a bounded time."""
    world = fleet()
    node = world.node_of("t")
    reader = next(name for name in "abc" if name != node.name)
    dead = layers(world, "t", 1, 1)
    node.commit("t")
    world.control.attach_reader("t", reader)
    assert world.nodes[reader].held["t"].base == 1
    node.commit("t", dead=dead)
    world.wait(SETTLE_S + 1)
    assert world.nodes[reader].held["t"].base == 2, "it is told of every commit"
    assert set(dead) <= set(paths(world))
    world.wait(60)
    assert not set(dead) & set(paths(world))


def test_a_new_control_plane_continues_the_collection() -> None:
    """The tasks are in the ledger."""
    world = fleet()
    node = world.node_of("t")
    dead = layers(world, "t", 1, 2)
    node.commit("t", dead=dead)
    world.start()
    world.wait(SETTLE_S + 1)
    assert not set(dead) & set(paths(world))


FAULTS = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.CRASH_LATE,
    Fault.ERROR_BEFORE,
    Fault.LOST_REQUEST,
    Fault.LOST_REPLY,
    Fault.LATE,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_at_any_request_of_a_collection_is_continued(fault: Fault) -> None:
    """Whichever request of the collector fails or is its last: the same objects are left at the end."""
    for at in range(20):
        world = fleet(decommission_wait_ms=0)
        inner = world.store
        node = world.node_of("t")
        dead = layers(world, "t", 1, 3)
        node.commit("t")
        node.commit("t", dead=dead)
        layers(world, "t", 3, 2)
        world.control_store = faulty = FaultyStore(inner, faults={at: fault})
        world.start()
        try:
            node.is_down = True
            world.control.decommission(node.name)
            world.wait(SETTLE_S + 1)
        except Crashed:
            world.control_store = inner
            world.start()
        world.wait(2 * SETTLE_S + 2)
        faulty.land()  # a delete that was under way: what it names is gone, or is deleted again
        record = world.control.tenant("t")
        assert record.manifest is not None
        assert paths(world) == sorted(item for item in (record.deadlist, record.manifest.path) if item is not None)
        assert record.tenant not in {task.tenant for task in world.ledger.tasks()}
        if faulty.call_count <= at:
            break
    assert at > 4


@pytest.mark.parametrize("happens", [False, True])
def test_a_crash_at_any_call_of_the_ledger_is_continued(happens: bool) -> None:
    """Of failover, relocation and collection: a control plane that ends at its n-th call is continued by the next."""
    for at in range(200):
        key_value = CountedKeyValue(MemoryKeyValue())
        world = World(key_value=key_value, options=ControlOptions(grace_ms=1_000, relocation_drain_ms=200))
        world.add("a", "b", "c")
        world.wait(0.5)
        for number in range(3):
            world.control.create_tenant(f"t{number}")
        node = world.node_of("t0")
        node.commit("t0")
        node.commit("t0", dead=layers(world, "t0", 1, 2))
        key_value.calls.clear()
        key_value.crash_at, key_value.happens = at, happens
        try:
            world.control.migrate("t1", next(name for name in "abc" if name != world.node_of("t1").name))
            node.is_down = True
            world.wait(4)
        except Crashed:
            key_value.crash_at = None
            world.start()
        is_over = len(key_value.calls) <= at
        node.is_down = True
        key_value.crash_at = None
        world.wait(6)
        for number in range(3):
            home = world.node_of(f"t{number}")
            assert home is not node
            assert home.commit(f"t{number}").verdict == "granted"
            assert world.control.tenant(f"t{number}").relocation is None
        assert layout.layer_path("t0", 1, "main", "0000") not in paths(world, "t0.tenant")
        if is_over:
            break
    assert at > 10


def deletion(world: World) -> None:
    """A tenant with commits that are not collected is deleted; its node acknowledges, and all is removed."""
    node = world.node_of("t")
    node.commit("t", dead=layers(world, "t", 1, 2))
    node.commit("t", dead=layers(world, "t", 2, 2))
    layers(world, "t", 3, 1)
    world.control.delete_tenant("t")
    world.wait(0.5)
    node.ack("t", 3, 1)
    world.wait(2 * SETTLE_S + 1)


def removed(world: World, land: Callable[[], object]) -> None:
    """Whatever happened before: the tenant goes; one that is created again keeps what it has, whatever lands late."""
    world.wait(1)
    if world.ledger.floor("t") is None:
        world.control.delete_tenant("t")
        world.wait(0.5)
        with suppress(NotFound):  # it had no transaction left, and is removed
            for transaction in world.control.tenant("t").transactions:
                world.control.force_ack("t", transaction.id)
        world.wait(2 * SETTLE_S + 2)
    with pytest.raises(NotFound):
        world.control.tenant("t")
    assert paths(world) == []
    assert list(world.ledger.tasks_of("t")) == []
    dropped = set(world.log.dropped)
    assert dropped == {"t/main"}
    record = world.control.create_tenant("t")
    txn = record.transactions[0].id
    kept = layers(world, "t", txn, 2)
    world.node_of("t").commit("t")
    land()
    world.wait(2 * SETTLE_S + 2)
    assert set(kept) <= set(paths(world))
    assert world.log.dropped == dropped


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_at_any_request_of_a_deletion_is_continued(fault: Fault) -> None:
    """Of the store: a control plane that ends there, an answer that is lost, a delete that lands later."""
    for at in range(20):
        world = fleet()
        world.control_store = faulty = FaultyStore(world.store, faults={at: fault})
        world.start()
        with suppress(Crashed):
            deletion(world)
        is_over = faulty.call_count <= at
        world.control_store = None
        world.start()
        removed(world, faulty.land)
        if is_over:
            break
    assert at > 3


@pytest.mark.parametrize("happens", [False, True])
def test_a_crash_at_any_call_of_the_ledger_in_a_deletion_is_continued(happens: bool) -> None:
    """Of the ledger: before the effect, and after it."""
    for at in range(100):
        key_value = CountedKeyValue(MemoryKeyValue())
        world = World(key_value=key_value, options=ControlOptions(grace_ms=round(SETTLE_S * 1000)))
        world.add("a", "b")
        world.wait(0.5)
        world.control.create_tenant("t")
        key_value.calls.clear()
        key_value.crash_at, key_value.happens = at, happens
        with suppress(Crashed):
            deletion(world)
        is_over = len(key_value.calls) <= at
        key_value.crash_at = None
        world.start()
        removed(world, lambda: None)
        if is_over:
            break
    assert at > 8


def test_a_deleted_tenant_leaves_nothing() -> None:
    """Nodes are told, objects, logs and records go, once no node can write any more; a new one begins above it."""
    world = fleet()
    node = world.node_of("t")
    layers(world, "t", 1, 3)
    node.commit("t")
    layers(world, "t", 2, 1)
    world.control.delete_tenant("t")
    world.wait(1)
    assert "t" not in node.held
    assert world.control.tenant("t").is_deleted, "its node has not acknowledged"
    with pytest.raises(Unavailable):
        world.control.change_timeline("t", None)  # type: ignore[arg-type]
    assert node.ack("t", 2, 1) == "reject_acknowledged"
    world.wait(SETTLE_S + 2)
    with pytest.raises(NotFound):
        world.control.tenant("t")
    assert paths(world) == []
    assert world.log.dropped == {"t/main"}
    assert list(world.ledger.tasks_of("t")) == []
    record = world.control.create_tenant("t")
    assert (record.transactions[0].id, record.attachments[0].generation) == (4, 2)


def test_a_control_plane_that_hung_deletes_nothing_of_a_tenant_created_again() -> None:
    """It was about to remove the deleted one; meanwhile another did, and the name was given again."""
    world = fleet()
    node = world.node_of("t")
    node.commit("t")
    world.control.delete_tenant("t")
    assert node.ack("t", 2, 1) == "reject_acknowledged"
    assert world.control.tenant("t").transactions == ()
    hung = world.control
    world.start()
    world.wait(2 * SETTLE_S + 2)
    record = world.control.create_tenant("t")
    kept = layers(world, "t", record.transactions[0].id, 2)
    assert world.node_of("t").commit("t").verdict == "granted"
    hung.collect_once()
    assert set(kept) <= set(paths(world))


def test_a_deleted_tenant_stays_until_its_rejected_transactions_are_collected() -> None:
    """A put that lands after the first LIST of a rejected transaction is found by the second: nothing is left."""
    world = fleet()
    node = world.node_of("t")
    layers(world, "t", 1, 2)
    world.control.delete_tenant("t")
    assert node.ack("t", 1, 1) == "reject_acknowledged"
    world.wait(SETTLE_S / 2)
    assert world.control.tenant("t").is_deleted
    layers(world, "t", 1, 1)
    world.wait(SETTLE_S + 2)
    with pytest.raises(NotFound):
        world.control.tenant("t")
    assert paths(world) == []


def test_a_new_control_plane_waits_before_the_second_list() -> None:
    """The settle time of a rejected transaction counts from its first LIST, also for a process that just began."""
    world = fleet()
    old = world.node_of("t")
    layers(world, "t", 1, 2)
    old.is_down = True
    world.wait(2.5)
    assert old.ack("t", 1, 1) == "reject_acknowledged"
    world.wait(0.3)
    world.start()
    world.wait(SETTLE_S / 2)
    layers(world, "t", 1, 1)
    world.wait(SETTLE_S)
    assert paths(world, layout.txn_folder("t", 1)) == []


def test_a_tenant_created_again_has_a_log_of_its_own() -> None:
    """A request to drop or prune the log of the deleted one may still be on its way: it names another timeline."""
    world = fleet()
    names = [dict(world.control.tenant("t").names)]
    for _ in range(3):
        world.control.delete_tenant("t")
        for node in world.nodes.values():
            node.is_down = not node.held.get("t")
        world.wait(1)
        for transaction in world.control.tenant("t").transactions:
            world.control.force_ack("t", transaction.id)
        world.wait(SETTLE_S + 2)
        for node in world.nodes.values():
            node.is_down = len(names) == 2  # the third one is never attached
        world.wait(3)
        names.append(dict(world.control.create_tenant("t").names))
    assert names[0] == {"main": "main"}
    assert len({name["main"] for name in names}) == len(names)


def test_the_log_is_pruned_to_the_committed_lsn_only() -> None:
    """Not to what a node has ingested, and not to what a rejected transaction had."""
    world = fleet()
    node = world.node_of("t")
    node.lags["t"] = 0
    world.wait(3)
    assert world.log.pruned == {}
    request = node.request("t", lsn=500)
    world.control.set_policy("t", world.control.tenant("t").policy)
    node.is_down = True
    world.wait(2.5)
    assert world.control.commit([request])[0].verdict == "rejected"
    world.wait(3)
    assert world.log.pruned == {}
    world.node_of("t").commit("t", lsn=40)
    world.wait(3)
    assert world.log.pruned == {"t/main": 40}


def test_a_second_list_comes_no_part_of_a_second_early() -> None:
    """A process that begins shortly before the settle time is over still waits for the rest of it: a put may land."""
    world = fleet()
    old = world.node_of("t")
    layers(world, "t", 1, 2)
    old.is_down = True
    world.wait(2.5)
    assert old.ack("t", 1, 1) == "reject_acknowledged"
    world.wait(0.3)
    world.wait(SETTLE_S - 0.9)
    world.start()
    world.wait(0.2)
    layers(world, "t", 1, 1)
    world.wait(SETTLE_S)
    assert paths(world, layout.txn_folder("t", 1)) == []


def test_what_is_collected_is_counted() -> None:
    """By how its transaction ended: once for each, in what the control plane exports."""
    counter = default_registry.counter("lakebed_fleet_collected_total", help_text="")
    world = fleet()
    node = world.node_of("t")
    before = counter.value("committed")
    for _ in range(3):
        node.commit("t")
    world.wait(SETTLE_S + 0.5)
    assert world.control.transactions("t").to_collect == ()
    assert counter.value("committed") > before


def test_a_decommissioned_node_is_acknowledged_for_after_the_wait() -> None:
    """Its tenants move at once; its transactions wait until its credentials are revoked everywhere; then they go."""
    world = fleet(decommission_wait_ms=4_000)
    old = world.node_of("t")
    layers(world, "t", 1, 2)
    old.is_down = True
    world.control.decommission(old.name)
    world.wait(1)
    assert world.node_of("t") is not old
    assert world.control.transactions("t").unfinished[0].node == old.name
    world.wait(4)
    assert old.name not in [transaction.node for transaction in world.control.transactions("t").unfinished]
    world.wait(SETTLE_S + 1)
    assert paths(world) == []


def test_force_ack_is_for_a_rejected_transaction_only() -> None:
    """An open one may still be granted."""
    world = fleet()
    old = world.node_of("t")
    assert not world.control.force_ack("t", 1).is_accepted
    old.is_down = True
    world.wait(2.5)
    assert world.control.force_ack("t", 1).is_accepted
    assert world.control.force_ack("t", 1).is_accepted
    assert not world.control.force_ack("t", 77).is_accepted
    world.wait(SETTLE_S + 1)
    states = {transaction.id: transaction.state for transaction in world.control.transactions("t").finished}
    assert states == {1: TransactionState.GARBAGE_COLLECTED}
