"""A tenant moves between nodes that both have it; drains; what happens when one of them is gone on the way."""

from __future__ import annotations

import pytest

from lakebed.errors import Conflict, NotFound, Unavailable
from lakebed.fleet import machine
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.model import AttachmentMode, Policy, TransactionState
from lakebed.fleet.ports import Heartbeat
from worlds.errors import raises
from worlds.fleet_control import ToldNode, World


def fleet(**options: int) -> World:
    world = World(options=ControlOptions(relocation_drain_ms=1_000, **options))
    world.add("a", "b", "c")
    world.wait(0.5)
    world.control.create_tenant("t", Policy(relocation_wait_max_ms=5_000))
    return world


def pair(world: World) -> tuple[ToldNode, ToldNode]:
    """The node that has the tenant, and another."""
    source = world.node_of("t")
    return source, next(node for node in world.nodes.values() if node is not source)


def test_a_relocation_from_begin_to_end() -> None:
    """Both have the tenant, the target commits, clients go over, the source serves reads for a while, then not."""
    world = fleet()
    source, target = pair(world)
    source.commit("t", lsn=10)
    target.lags["t"] = 5_000
    world.control.migrate("t", target.name)
    world.wait(1)
    assert world.node_of("t") is source
    assert (source.held["t"].mode, target.held["t"].mode) == (AttachmentMode.MULTI, AttachmentMode.MULTI)
    assert target.held["t"].base == 1
    request = source.request("t", lsn=20)
    assert world.control.commit([request])[0].verdict == "wait"
    target.lags["t"] = 900
    world.wait(0.2)
    assert world.node_of("t") is target
    assert source.held["t"].mode is AttachmentMode.STALE
    assert world.control.commit([request])[0].verdict == "rejected"
    assert world.control.tenant("t").holds
    world.wait(1.5)
    assert "t" not in source.held
    assert target.held["t"].mode is AttachmentMode.SINGLE
    assert world.control.tenant("t").relocation is None
    assert target.commit("t", lsn=21).verdict == "granted"
    assert [event.kind for _, event in world.control.events()] == ["relocated"]


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_target_of_a_relocation_is_asked_for_its_load(number: int) -> None:
    """With the answer to its heartbeat; the source and nodes that have no part in it have nothing to report."""
    world = fleet()
    source = world.node_of("t")
    target = [node for node in world.nodes.values() if node is not source][number]
    target.lags["t"] = 1_000_000
    world.control.migrate("t", target.name)
    for node in world.nodes.values():
        heartbeat = Heartbeat(node.name, node.incarnation, tenant_count=len(node.held), unflushed_bytes=0)
        assert world.control.heartbeat(heartbeat).report == (("t",) if node is target else ())


def test_a_source_that_must_commit_dooms_the_target_which_is_attached_again() -> None:
    """In the same write; the target goes on from the new base, and the source waits anew."""
    world = fleet()
    source, target = pair(world)
    target.lags["t"] = 5_000
    world.control.migrate("t", target.name)
    world.wait(0.5)
    doomed = target.held["t"]
    world.wait(5)
    assert source.commit("t", lsn=30).verdict == "granted"
    world.wait(0.2)
    again = target.held["t"]
    assert again.generation > doomed.generation
    assert again.base == world.control.tenant("t").committed
    states = {transaction.id: transaction.state for transaction in world.control.tenant("t").transactions}
    assert states[doomed.txn or 0] is TransactionState.REJECT_PENDING
    assert world.control.commit([source.request("t", lsn=31)])[0].verdict == "wait"
    target.lags["t"] = 0
    world.wait(0.3)
    assert world.node_of("t") is target


@pytest.mark.parametrize("set_s", [0, -86_400, 86_400])
def test_a_target_that_does_not_come_near_gets_help_and_is_given_up(set_s: int) -> None:
    """The source stops ingesting for a bounded time; after the last limit everything is as before.

    Also when the clock of the control plane is set meanwhile.
    """
    world = fleet(relocation_pause_after_ms=1_000, relocation_pause_max_ms=2_000, relocation_give_up_ms=6_000)
    source, target = pair(world)
    target.lags["t"] = 9_000
    world.control.migrate("t", target.name)
    world.clock.set_s = set_s
    world.wait(0.5)
    assert source.beat().pause == ()
    assert target.beat().report == ("t",)
    world.wait(1)
    assert source.beat().pause == ("t",)
    world.wait(2)
    assert source.beat().pause == ()
    world.wait(4)
    assert "t" not in target.held
    assert world.node_of("t") is source
    assert source.held["t"].mode is AttachmentMode.SINGLE
    assert source.commit("t").verdict == "granted"
    assert [event.kind for _, event in world.control.events()] == ["relocation_given_up"]


@pytest.mark.parametrize("source_commits", [False, True])
def test_a_target_that_has_nothing_to_commit_takes_over(source_commits: bool) -> None:
    """It has what the last committed transaction has; not when the source has committed once more meanwhile."""
    world = fleet()
    source, target = pair(world)
    source.commit("t", lsn=10)
    before = source.held["t"].base
    commits = iter([source_commits])
    world.control.set_policy("t", Policy(relocation_wait_max_ms=0))

    def checkpoint(tenant: str) -> int:
        if next(commits, False):
            assert source.commit("t", lsn=11).verdict == "granted"
        return 0

    target.checkpoint = checkpoint  # type: ignore[method-assign]
    world.control.migrate("t", target.name)
    world.control.reconcile_once()
    world.control.relocate_once()
    assert (world.node_of("t") is target) is not source_commits
    assert world.control.tenant("t").committed == before + source_commits
    world.wait(2)
    assert world.node_of("t") is target
    assert target.commit("t", lsn=12).verdict == "granted"


@pytest.mark.parametrize("who", ["source", "target"])
@pytest.mark.parametrize("has_moved", [False, True])
def test_one_of_both_dies_on_the_way(who: str, has_moved: bool) -> None:
    """The other one goes on, and commits."""
    world = fleet()
    source, target = pair(world)
    target.lags["t"] = 0 if has_moved else 9_000
    world.control.migrate("t", target.name)
    world.wait(0.5)
    assert (world.node_of("t") is target) is has_moved
    dead, left = (source, target) if who == "source" else (target, source)
    dead.is_down = True
    world.wait(3)
    home = world.node_of("t")
    if not (has_moved and who == "target"):
        assert home is left
    assert home is not dead
    assert world.control.tenant("t").relocation is None
    assert home.commit("t", lsn=3).verdict == "granted"


def test_a_new_control_plane_continues_a_relocation() -> None:
    """It is in the record."""
    world = fleet()
    source, target = pair(world)
    target.lags["t"] = 9_000
    world.control.migrate("t", target.name)
    world.start()
    world.wait(0.5)
    target.lags["t"] = 0
    world.wait(2)
    assert world.node_of("t") is target
    assert "t" not in source.held


def test_a_broken_target_ends_the_relocation_and_a_broken_node_is_attached_anew() -> None:
    """Whoever was rejected waits for a new attachment, and gets it."""
    world = fleet()
    source, target = pair(world)
    target.lags["t"] = 9_000
    world.control.migrate("t", target.name)
    world.wait(0.5)
    target.broken.add("t")
    world.wait(1)
    assert world.control.tenant("t").relocation is None
    assert "t" not in target.held
    generation = source.held["t"].generation
    source.broken.add("t")
    world.wait(0.5)
    source.broken.clear()
    assert world.node_of("t").held["t"].generation > generation
    assert world.node_of("t").commit("t").verdict == "granted"


def test_a_drain_moves_all_tenants_one_by_one_and_back() -> None:
    """Never two at once; the node gets no new ones meanwhile."""
    world = fleet()
    for number in range(8):
        world.control.create_tenant(f"t{number}")
    node = world.node_of("t")
    home = {tenant.tenant for tenant in world.control.tenants() if tenant.preferred == node.name}
    world.control.drain(node.name)
    for _ in range(200):
        world.wait(0.1)
        assert sum(1 for tenant in world.control.tenants() if tenant.relocation is not None) <= 1
    assert node.held == {}
    world.control.create_tenant("new")
    assert world.node_of("new") is not node
    world.control.drain(node.name, undo=True)
    world.wait(20)
    assert {tenant.tenant for tenant in world.control.tenants() if tenant.preferred == node.name} == home
    assert all(tenant.home is None for tenant in world.control.tenants())


def test_a_new_control_plane_continues_a_drain() -> None:
    """By the node's record."""
    world = fleet()
    for number in range(5):
        world.control.create_tenant(f"t{number}")
    node = world.node_of("t")
    world.control.drain(node.name)
    world.wait(0.5)
    world.start()
    world.wait(20)
    assert node.held == {}


def test_refusals() -> None:
    """Nothing changes."""
    world = fleet()
    source, target = pair(world)
    before = world.control.tenant("t")
    third = next(node for node in world.nodes.values() if node not in (source, target))
    with pytest.raises(NotFound):
        world.control.migrate("u", target.name)
    with pytest.raises(NotFound):
        world.control.migrate("t", "z")
    world.control.drain(third.name)
    with raises(Unavailable, "node_unusable"):
        world.control.migrate("t", third.name)
    world.control.migrate("t", source.name)
    assert world.control.tenant("t") == before
    target.lags["t"] = 9_000
    world.control.migrate("t", target.name)
    world.control.drain(third.name, undo=True)
    with raises(Conflict, "relocation_running"):
        world.control.migrate("t", third.name)
    with pytest.raises(Conflict):
        world.control.attach_reader("t", source.name)


# ---- what nodes ask


def test_a_restarted_node_keeps_its_tenants_with_new_transactions() -> None:
    """The old ones are acknowledged when its local state is the same, and wait when it is another."""
    world = fleet()
    node = world.node_of("t")
    node.restart()
    assert node.held["t"].txn == 2
    assert world.control.tenant("t").transactions[0].id == 2
    node.restart(local_id="another")
    assert [transaction.id for transaction in world.control.tenant("t").transactions] == [2, 3]
    assert node.commit("t").verdict == "granted"


def test_a_node_that_was_failed_over_restarts_empty_and_is_acknowledged() -> None:
    """Its process holds the lock of the local state that its transaction began with."""
    world = fleet()
    node = world.node_of("t")
    node.is_down = True
    world.wait(2.5)
    node.restart()
    assert node.held == {}
    assert [transaction.node for transaction in world.control.tenant("t").transactions] == [world.node_of("t").name]


def test_a_node_without_attachment_is_refused_and_told_again() -> None:
    """Its request shows that it can be reached."""
    world = fleet()
    source, target = pair(world)
    lost = source.held["t"]
    source.is_down = True
    world.wait(2.5)
    source.is_down = False
    world.wait(1)
    assert "t" not in source.held
    source.held["t"] = lost
    assert source.commit("t").verdict == "rejected"
    world.wait(0.2)
    assert "t" not in source.held
    assert source.calls[-1].mode is None
    assert target.name


def test_a_clean_detach_moves_the_tenant() -> None:
    """A node that ends acknowledges its open transaction: its tenants are attached elsewhere at once."""
    world = fleet()
    node = world.node_of("t")
    world.control.drain(node.name)
    assert node.ack("t", 1, 1) == "reject_acknowledged"
    world.wait(0.2)
    assert world.node_of("t") is not node


def test_tenants_wait_for_a_node() -> None:
    """One that is created while there is none is attached when there is one."""
    world = World()
    world.control.create_tenant("t")
    assert world.control.route("t").node is None
    world.add("a")
    world.wait(0.5)
    assert world.node_of("t").held["t"].txn == 1
    assert world.log.created == {"t/main"}


def test_a_new_control_plane_continues_the_way_back() -> None:
    """By the tenants' records, also while one is on its way."""
    world = fleet()
    for number in range(5):
        world.control.create_tenant(f"t{number}")
    node = world.node_of("t")
    home = {tenant.tenant for tenant in world.control.tenants() if tenant.preferred == node.name}
    world.control.drain(node.name)
    world.wait(20)
    world.control.drain(node.name, undo=True)
    world.start()
    world.wait(40)
    assert {tenant.tenant for tenant in world.control.tenants() if tenant.preferred == node.name} == home
    assert all(tenant.home is None for tenant in world.control.tenants())


def test_a_node_that_is_drained_is_reported_once() -> None:
    """Not at every scan of the ledger."""
    world = fleet(scan_interval_ms=1_000)
    node = world.node_of("t")
    world.control.drain(node.name)
    world.wait(20)
    assert [event.kind for _, event in world.control.events()].count("drained") == 1


def test_a_tenant_that_is_home_again_is_not_moved_back_again() -> None:
    """An operator moved it there while the drain was undone: no scan says that the node has its tenants back."""
    world = fleet(scan_interval_ms=500)
    node = world.node_of("t")
    world.ledger.change("t", lambda record: machine.set_home(record, node.name))
    world.start()
    world.wait(3)
    assert world.node_of("t") is node
    assert world.control.events() == []


@pytest.mark.parametrize("commits", [1, 300])
def test_a_target_without_a_commit_takes_over_after_any_number_of_transactions(commits: int) -> None:
    """However many transactions the tenant has had: it has what the last committed one has."""
    world = fleet()
    source = world.node_of("t")
    for lsn in range(commits):
        source.commit("t", lsn=lsn)
    target = next(node for node in world.nodes.values() if node is not source)
    target.checkpoint = lambda tenant: 0  # type: ignore[method-assign]
    world.control.migrate("t", target.name)
    world.wait(1)
    assert world.node_of("t") is target
    assert world.control.tenant("t").committed == source.held["t"].base
