"""A node that does not answer: its tenants are attached elsewhere, one write each, and it is told when it is back."""

from __future__ import annotations

import pytest

from lakebed.errors import Unavailable
from lakebed.fleet import machine, records
from lakebed.fleet.control.reconciler import UNFINISHED_COUNT_MAX
from lakebed.fleet.ports import TimelineChange
from worlds.fleet_control import World
from worlds.fleet_in_process import FleetInProcess


def test_a_silent_node_is_replaced_and_told_when_it_answers() -> None:
    """The new node has the last committed state; the old one is rejected, and detached when it is back."""
    world = World()
    world.add("a", "b", "c")
    world.control.create_tenant("t")
    old = world.node_of("t")
    assert old.held["t"].txn == 1
    assert old.commit("t").verdict == "granted"
    old.is_down = True
    world.wait(2.5)
    new = world.node_of("t")
    assert new is not old
    assert (new.held["t"].base, new.held["t"].manifest) == (1, old.held["t"].manifest)
    late = old.request("t", lsn=9)
    assert new.commit("t", lsn=2).verdict == "granted"
    assert world.control.commit([late])[0].verdict == "rejected"
    old.is_down = False
    world.wait(3.0)
    assert "t" not in old.held
    assert [event.kind for _, event in world.control.events()] == ["node_silent"]
    assert world.log.pruned == {"t/main": 2}


@pytest.mark.parametrize("what", ["generation", "mode"])
def test_a_node_is_told_what_the_control_plane_before_had_decided(what: str) -> None:
    """A process that dies between the ledger's write and the word to the node: the next one finds what differs."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    node = world.node_of("t")
    target = next(item for item in world.nodes.values() if item is not node)
    if what == "generation":
        world.ledger.change("t", lambda record: machine.attach(record, node.record(), now_ms=0))
    else:
        world.ledger.change("t", lambda record: machine.relocate(record, target.record(), now_ms=0))
    decided = records.attachment_of(world.control.tenant("t"), node.name)
    assert decided is not None
    node.calls.clear()
    world.start()
    world.wait(1)
    assert (decided.generation, decided.mode) in [(location.generation, location.mode) for location in node.calls]


def test_a_node_that_was_told_to_forget_a_tenant_takes_it_again() -> None:
    """It refuses what is older than the detach, not the attachment that comes next."""
    fleet = FleetInProcess()
    tenant = fleet.tenant()
    tenant.create()
    tenant.main.put(b"k", b"1")
    first = fleet.node_of("orders")
    fleet.stopped.add(first)
    fleet.wait(4)
    second = fleet.node_of("orders")
    fleet.stopped.discard(first)
    fleet.wait(5)
    assert second != first
    assert fleet.nodes[first].locations() == []
    fleet.kill(second)
    assert tenant.main.put(b"k", b"2") == 2
    assert tenant.main.get(b"k") == b"2"
    assert fleet.node_of("orders") == first


def test_a_node_that_missed_the_end_of_a_tenant_takes_the_next_of_its_name() -> None:
    """The record was gone when it was told to forget the tenant: that is no newer than what a new one begins with."""
    fleet = FleetInProcess()
    tenant = fleet.tenant()
    tenant.create()
    tenant.main.put(b"k", b"1")
    first = fleet.node_of("orders")
    fleet.stopped.add(first)
    fleet.wait(4)
    second = fleet.node_of("orders")
    tenant.drop()
    for transaction in fleet.control.transactions("orders").unfinished:
        fleet.control.force_ack("orders", transaction.id)
    fleet.wait(5)
    assert fleet.ledger.floor("orders") is not None
    fleet.stopped.discard(first)
    fleet.wait(5)
    assert fleet.nodes[first].locations() == []
    fleet.kill(second)
    fleet.wait(4)
    again = fleet.tenant()
    again.create()
    again.main.put(b"k", b"2")
    assert again.main.get(b"k") == b"2"
    assert fleet.node_of("orders") == first


def test_a_log_that_is_away_delays_new_tenants_alone() -> None:
    """A tenant that was created is reported as created, and comes when the log does; the node serves its others."""
    world = World()
    world.add("a")
    world.control.create_tenant("old")
    create, node = world.log.create, world.nodes["a"]

    def away(timeline: str, *, after: int = 0) -> None:
        raise Unavailable("the log does not answer")

    world.log.create = away  # type: ignore[method-assign]
    record = world.control.create_tenant("new")
    assert record.preferred == "a"
    change = TimelineChange("branch", "x", id="i")
    for _ in range(30):
        world.wait(0.1)
        assert world.control.change_timeline("old", change).name == "x"
    assert "new" not in node.held
    world.log.create = create  # type: ignore[method-assign]
    world.wait(1)
    assert "new" in node.held
    assert "new/main" in world.log.created


def test_a_record_is_bounded_where_a_node_never_acknowledges() -> None:
    """A node that says again and again that it is broken is attached anew until too much is not acknowledged."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    node = world.node_of("t")
    node.broken.add("t")
    world.wait(UNFINISHED_COUNT_MAX)
    assert len(world.control.tenant("t").transactions) == UNFINISHED_COUNT_MAX
    for transaction in world.control.tenant("t").transactions[:-1]:
        node.ack("t", transaction.id, transaction.generation)
    last = world.control.tenant("t").next_txn
    world.wait(world.options.scan_interval_ms / 1000 + 1)
    assert world.control.tenant("t").next_txn > last
