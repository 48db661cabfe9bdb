"""Who is silent, by the control plane's own waking time; and what happens to the tenants of a silent node."""

from __future__ import annotations

import pytest

from lakebed.errors import NotFound, Unavailable
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.ports import Heartbeat, TimelineChange
from worlds.errors import raises
from worlds.fleet_control import TICK_S, CountedKeyValue, World
from worlds.memory_key_value import MemoryKeyValue


def states(world: World) -> dict[str, str]:
    return {node.node: node.state for node in world.control.nodes()}


def fleet(*names: str, **options: int) -> World:
    world = World(options=ControlOptions(**options))
    world.add(*names)
    world.wait(0.5)
    return world


def test_a_node_is_silent_after_its_interval_and_not_before() -> None:
    """1.5 s after its last heartbeat, within one look."""
    world = fleet("a", "b", "c")
    world.wait(1.0, silent=["a"])
    assert states(world) == dict.fromkeys("abc", "alive")
    world.wait(0.6, silent=["a"])
    assert states(world) == {"a": "silent", "b": "alive", "c": "alive"}


def test_a_control_plane_that_stood_still_gives_a_fresh_interval() -> None:
    """An hour in which it did not look is no silence of the nodes."""
    world = fleet("a", "b", "c")
    world.clock.advance(3_600)
    world.tick()
    assert states(world) == dict.fromkeys("abc", "alive")
    world.wait(1.4, silent=["a"])
    assert states(world) == dict.fromkeys("abc", "alive")
    world.wait(0.6, silent=["a"])
    assert states(world)["a"] == "silent"


def test_a_control_plane_that_has_just_started_gives_a_fresh_interval() -> None:
    """It has heard none of them, and finds only the dead one silent."""
    world = fleet("a", "b", "c")
    world.control.create_tenant("t")
    dead = world.node_of("t")
    dead.is_down = True
    world.start()
    world.wait(1.4)
    assert states(world) == dict.fromkeys("abc", "alive")
    world.wait(1.0)
    assert states(world)[dead.name] == "silent"
    assert world.node_of("t") is not dead


def test_it_doubts_itself_when_more_than_half_fall_silent_at_once() -> None:
    """For ten seconds; when they are heard again, nothing has happened; else it believes it."""
    world = fleet("a", "b", "c")
    world.control.create_tenant("t")
    home = world.node_of("t")
    world.wait(8, silent=["a", "b", "c"])
    assert states(world) == dict.fromkeys("abc", "alive")
    world.wait(1)
    assert (states(world), world.node_of("t")) == (dict.fromkeys("abc", "alive"), home)
    home.is_down = True
    others = [name for name in "abc" if name != home.name]
    world.wait(11, silent=others[:1])
    assert states(world)[home.name] == "alive"
    world.wait(2, silent=others[:1])
    assert states(world)[home.name] == "silent"
    assert world.node_of("t").name == others[1]


def test_half_of_the_nodes_is_not_more_than_half() -> None:
    """Of two nodes one may die."""
    world = fleet("a", "b")
    world.wait(2.0, silent=["a"])
    assert states(world) == {"a": "silent", "b": "alive"}


def test_a_silent_node_gets_no_tenants_until_it_has_answered() -> None:
    """Then it is one like the others."""
    world = fleet("a", "b", "c")
    world.nodes["a"].is_down = True
    world.wait(2.5)
    for number in range(4):
        world.control.create_tenant(f"t{number}")
        assert world.node_of(f"t{number}").name != "a"
    world.nodes["a"].is_down = False
    world.wait(1)
    assert states(world)["a"] == "alive"
    world.control.create_tenant("u")
    assert world.node_of("u").name == "a"


def test_how_long_a_node_was_not_heard_is_shown() -> None:
    """In milliseconds since its last heartbeat, of every node."""
    world = fleet("a", "b", "c")
    for node in world.nodes.values():
        node.beat()
    world.clock.advance(0.25)
    world.nodes["b"].beat()
    world.clock.advance(1.125)
    assert {status.node: status.silent_ms for status in world.control.nodes()} == {"a": 1_375, "b": 1_125, "c": 1_375}


def test_a_node_that_started_again_elsewhere_is_not_silent_for_its_old_process() -> None:
    """Another control plane knows the new process: one that heard only the old one does not undo that."""
    world = fleet("a", "b", "c")
    missed = world.control
    world.start()
    world.wait(1)
    world.nodes["a"].restart()
    node = Ledger(world.key_value).node("a")
    assert node is not None
    assert (node.incarnation, node.is_silent) == (world.nodes["a"].incarnation, False)
    for _ in range(10):  # a second more than when it was heard last
        world.clock.advance(TICK_S)
        for name in "bc":
            incarnation = world.nodes[name].incarnation
            missed.heartbeat(Heartbeat(name, incarnation, tenant_count=0, unflushed_bytes=0))
        missed.detect_once()
    assert Ledger(world.key_value).node("a") == node
    assert {status.node: status.state for status in missed.nodes()} == dict.fromkeys("abc", "alive")


def test_a_node_is_not_called_before_it_was_heard() -> None:
    """A control plane that has just started knows its record, and not whether its process is ready; nor a stranger."""
    world = fleet("a", "b")
    world.control.create_tenant("t")
    world.wait(1)
    home = world.node_of("t")
    other = next(name for name in world.nodes if name != home.name)
    for node in world.nodes.values():
        node.calls.clear()
    world.start()
    world.wait(1, silent=["a", "b"])
    with raises(Unavailable, "not_attached"):
        world.control.change_timeline("t", TimelineChange("branch", "x", id="i"))
    with raises(Unavailable, "node_unusable"):
        world.control.attach_reader("t", other)
    with raises(Unavailable, "node_unusable"):
        world.control.migrate("t", other)
    with raises(NotFound, "node_not_found"):
        world.control.attach_reader("t", "stranger")
    assert [node.calls for node in world.nodes.values()] == [[], []]
    world.wait(0.1)
    assert world.control.change_timeline("t", TimelineChange("branch", "x", id="i")).name == "x"
    world.control.attach_reader("t", other)
    assert {name for name, node in world.nodes.items() if "t" in node.held} == {"a", "b"}


@pytest.mark.parametrize("tenant_count", [1, 100, 300])
def test_a_failover_is_one_write_a_tenant_and_few_writes_in_all(tenant_count: int) -> None:
    """All tenants of the node are attached elsewhere, evenly, in batches."""
    world = fleet("a", "b", "c")
    for number in range(tenant_count):
        world.control.create_tenant(f"t{number:03}")
    before = {element.tenant: element for element in world.control.tenants()}
    world.nodes["a"].is_down = True
    lost = {tenant for tenant, element in before.items() if element.preferred == "a"}
    world.wait(2.5)
    after = {element.tenant: element for element in world.control.tenants()}
    for tenant, item in after.items():
        assert item.preferred in ("b", "c")
        assert item.next_generation == before[tenant].next_generation + (tenant in lost)
        assert item.next_txn == before[tenant].next_txn + (tenant in lost)
        assert world.nodes[item.preferred].held[tenant].generation == item.next_generation - 1
    spread = [sum(1 for element in after.values() if element.preferred == name) for name in "bc"]
    assert max(spread) - min(spread) <= 1 + tenant_count // 20


def test_the_writes_of_a_failover_are_counted() -> None:
    """One of the node's record, one a batch of tenants, one of the events."""
    key_value = CountedKeyValue(MemoryKeyValue())
    world = World(key_value=key_value)
    world.add("a", "b", "c")
    world.wait(0.5)
    for number in range(90):
        world.control.create_tenant(f"t{number:03}")
    world.nodes["a"].is_down = True
    world.wait(1.0)
    key_value.calls.clear()
    world.wait(1.5)
    writes = [call for call in key_value.calls if call.changes]
    assert len(writes) == 3


def test_idle_time_asks_nothing_of_the_ledger() -> None:
    """Heartbeats and looks cost no request, until the next scan of all."""
    key_value = CountedKeyValue(MemoryKeyValue())
    world = World(key_value=key_value, options=ControlOptions(scan_interval_ms=10_000))
    world.add("a", "b")
    for number in range(10):
        world.control.create_tenant(f"t{number}")
    world.wait(5)
    key_value.calls.clear()
    world.wait(4)
    assert key_value.calls == []
