"""What does not answer is asked again after a pause, no sooner and no later; what has a period keeps to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

import pytest

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.fleet import layout, machine
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.model import AttachmentMode
from lakebed.testing.wrapper import Call, CallKind, StoreWrapper
from worlds.fleet_control import TICK_S, CountedKeyValue, ToldNode, World
from worlds.memory_key_value import MemoryKeyValue

R = TypeVar("R")

RETRY_S = 1.0
SETTLE_S = 0.3


@dataclass
class Silent:
    """Is asked, and does not answer."""

    world: World
    asked_s: list[float] = field(default_factory=list)
    """When it was."""

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        self.asked_s.append(self.world.clock.monotonic_s())
        raise Unavailable("no answer")


class SilentStore(StoreWrapper):
    """A store that does not answer requests of a kind."""

    def __init__(self, world: World, kind: CallKind, *, folder: str = "") -> None:
        super().__init__(world.store)
        self.silent = Silent(world)
        self._kind, self._folder = kind, folder

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Answer the others."""
        if call.kind == self._kind and call.path.startswith(self._folder):
            self.silent()
        return perform()


def fleet() -> tuple[World, ToldNode, ToldNode]:
    """Two nodes, and a tenant on the first of them that has committed once."""
    options = ControlOptions(retry_ms=round(RETRY_S * 1000), grace_ms=round(SETTLE_S * 1000))
    world = World(key_value=CountedKeyValue(MemoryKeyValue()), options=options)
    world.add("a", "b")
    world.wait(0.5)
    world.control.create_tenant("t")
    node = world.node_of("t")
    node.commit("t")
    world.wait(1)
    return world, node, next(other for other in world.nodes.values() if other is not node)


def silence_store(world: World, kind: CallKind, folder: str = "") -> Silent:
    """The control plane starts again over a store that does not answer all requests."""
    world.control_store = store = SilentStore(world, kind, folder=folder)
    world.start()
    return store.silent


def attach(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """A node is to have a tenant."""
    node.put_location = silent = Silent(world)  # type: ignore[method-assign]
    node.restart()
    node.held.clear()
    world.start()
    return silent


def detach(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """A node is to forget a tenant."""
    node.put_location = silent = Silent(world)  # type: ignore[method-assign]
    world.control.delete_tenant("t")
    return silent


def compare(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """A node is asked what it has."""
    other.locations = silent = Silent(world)  # type: ignore[method-assign]
    world.start()
    return silent


def relocate(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """The target of a relocation is asked how near it is."""
    other.lag = silent = Silent(world)  # type: ignore[method-assign]
    world.control.migrate("t", other.name)
    return silent


def begin(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """The log is to begin a timeline."""
    world.log.create = silent = Silent(world)  # type: ignore[method-assign]
    world.control.create_tenant("u")
    return silent


def seal(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """The log is to seal a timeline, whose tenant was deleted by a caller who does not ask again."""
    world.log.seal = silent = Silent(world)  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        world.control.delete_tenant("t")
    node.is_down = True  # so that the tenant stays
    return silent


def prune(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """The log is to be pruned."""
    world.log.prune = silent = Silent(world)  # type: ignore[method-assign]
    node.commit("t", lsn=7)
    return silent


def collect_commit(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """A deadlist is read."""
    silent = silence_store(world, "get", "t.tenant")
    node.commit("t", dead=[layout.layer_path("t", 1, "main", "dead")])
    return silent


def collect_rejected(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """A prefix is listed."""
    txn = world.control.tenant("t").transactions[0]
    world.ledger.change("t", lambda record: machine.attach(record, other.record(), now_ms=0))
    silent = silence_store(world, "list")
    assert node.ack("t", txn.id, txn.generation) == "reject_acknowledged"
    return silent


def remove(world: World, node: ToldNode, other: ToldNode) -> Silent:
    """All that a deleted tenant has left is listed."""
    txn = world.control.tenant("t").transactions[0]
    world.control.delete_tenant("t")
    node.ack("t", txn.id, txn.generation)
    silent = silence_store(world, "list", "t.tenant")
    for task in list(world.ledger.tasks_of("t")):
        world.ledger.replace_task(task, None)
    return silent


@pytest.mark.parametrize(
    "ask",
    [attach, detach, compare, relocate, begin, seal, prune, collect_commit, collect_rejected, remove],
    ids=lambda ask: ask.__name__,
)
def test_what_does_not_answer_is_asked_again_after_a_pause(ask: Callable[[World, ToldNode, ToldNode], Silent]) -> None:
    """Each time after `ControlOptions.retry_ms`: a node, the log, the store, and the ledger not in every round."""
    world, node, other = fleet()
    silent = ask(world, node, other)
    silent.asked_s.clear()
    assert isinstance(world.key_value, CountedKeyValue)
    reading_rounds = 0
    for _ in range(round(7 * RETRY_S / TICK_S)):
        world.key_value.calls.clear()
        world.wait(TICK_S)
        reading_rounds += bool(world.key_value.calls)
    assert reading_rounds <= 10
    gaps_s = [behind - before for before, behind in pairwise(silent.asked_s)]
    assert len(gaps_s) >= 4
    late_s = 1.5 * TICK_S
    assert all(RETRY_S - 1e-6 < gap_s < RETRY_S + late_s for gap_s in gaps_s), gaps_s


def test_a_log_is_pruned_at_once_and_then_once_in_an_interval() -> None:
    """However often its tenant commits, and always up to what was committed by then."""
    world, node, _ = fleet()
    pruned: list[tuple[float, int]] = []
    world.log.prune = lambda timeline, through: pruned.append(  # type: ignore[method-assign]
        (world.clock.monotonic_s(), through)
    )
    world.start()
    began_s = world.clock.monotonic_s()
    for lsn in range(1, 71):
        node.commit("t", lsn=lsn)
        world.wait(TICK_S)
    times_s = [at_s - began_s for at_s, _ in pruned]
    assert times_s == pytest.approx([TICK_S, TICK_S + 2, TICK_S + 4, TICK_S + 6], abs=2.5 * TICK_S)
    assert [lsn for _, lsn in pruned] == pytest.approx([at_s / TICK_S for at_s in times_s])


def test_the_source_of_a_relocation_serves_reads_until_clients_have_gone_over() -> None:
    """For `ControlOptions.relocation_drain_ms` after the target has committed; the event says how long it took."""
    world, source, target = fleet()
    target.lags["t"] = 1_000_000
    world.control.migrate("t", target.name)
    world.wait(1.5)
    assert [event.kind for _, event in world.control.events()] == []
    target.lags["t"] = world.options.relocation_lag_rows
    moved_s = served_s = 0.0
    for _ in range(50):
        world.wait(TICK_S)
        if "t" in source.held and source.held["t"].mode is AttachmentMode.STALE:
            moved_s = moved_s or world.clock.monotonic_s()
            served_s = world.clock.monotonic_s() - moved_s
    assert "t" not in source.held
    assert served_s == pytest.approx(world.options.relocation_drain_ms / 1000, abs=2.5 * TICK_S)
    [event] = [event for _, event in world.control.events()]
    assert (event.kind, event.tenant, event.node) == ("relocated", "t", target.name)
    assert event.took_ms == pytest.approx(1_500, abs=2_500 * TICK_S)
    assert event.message == f"{target.name} has taken over t from {source.name}."
