"""Every verb of the control plane whose reply is lost is asked again: the answer is the same, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, LakebedError
from lakebed.fleet import layout
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.service import ROUTES
from lakebed.fleet.model import Policy
from lakebed.fleet.ports import AckRequest, Heartbeat, NodeReport, TimelineChange
from worlds.fleet_control import CountedKeyValue, World
from worlds.memory_key_value import MemoryKeyValue

OWN = {"health", "metrics", "openapi", "fleet"}
"""Of the process: these ask nothing of the ledger."""


@dataclass(frozen=True)
class Verb:
    """A call, and what it answers the second time, if that is another answer."""

    ask: Callable[[World], Any]
    again: tuple[type[LakebedError], str] | None = None
    renews: bool = False
    """Each call gives a new generation."""


def prepared() -> World:
    """Tenants in all states: one that has committed, one with a rejected transaction, one that goes to another node."""
    world = World(key_value=CountedKeyValue(MemoryKeyValue()), options=ControlOptions(grace_ms=1_000))
    world.add("a", "b", "c")
    for tenant in ("t", "rejected", "other", "commits", "gone"):
        world.control.create_tenant(tenant)
    for tenant in ("rejected", "t"):
        world.node_of(tenant).commit(tenant, lsn=3)
    old = world.node_of("rejected")
    world.control.migrate("rejected", next(name for name in world.nodes if name != old.name))
    world.wait(4)
    return world


def rejected(world: World) -> Any:
    """The transaction that is rejected and not acknowledged."""
    return next(
        transaction
        for transaction in world.control.tenant("rejected").transactions
        if transaction.state == "reject_pending"
    )


def other(world: World, tenant: str) -> str:
    """A node that does not have a tenant."""
    nodes = {attachment.node for attachment in world.control.tenant(tenant).attachments}
    return next(name for name in sorted(world.nodes) if name not in nodes)


def acknowledged(world: World) -> Any:
    item = known(world, "rejected", lambda: rejected(world))
    return world.control.ack([AckRequest("rejected", item.id, item.node, item.generation)])


def known(world: World, name: str, find: Callable[[], Any]) -> Any:
    """An argument of a call: found the first time, the same the second time."""
    kept: dict[str, Any] = world.__dict__.setdefault("kept", {})
    if name not in kept:
        kept[name] = find()
    return kept[name]


def committed(world: World) -> Any:
    node = world.node_of("commits")
    return world.control.commit([known(world, "request", lambda: node.request("commits", lsn=5))])


def heartbeat(world: World) -> Any:
    node = world.nodes["a"]
    return world.control.heartbeat(Heartbeat("a", node.incarnation, tenant_count=len(node.held), unflushed_bytes=0))


VERBS = {
    "commit": Verb(committed),
    "heartbeat": Verb(heartbeat),
    "ack": Verb(acknowledged),
    "attached": Verb(
        lambda w: w.control.attached(NodeReport("a", w.nodes["a"].incarnation, w.nodes["a"].local_id)), renews=True
    ),
    "register": Verb(lambda w: w.control.register(w.nodes["a"].record())),
    "listNodes": Verb(lambda w: w.control.nodes()),
    "drain": Verb(lambda w: w.control.drain("a")),
    "decommission": Verb(lambda w: w.control.decommission("c")),
    "migrate": Verb(lambda w: w.control.migrate("t", known(w, "to", lambda: other(w, "t")))),
    "attachReader": Verb(lambda w: w.control.attach_reader("other", known(w, "to", lambda: other(w, "other")))),
    "setPolicy": Verb(lambda w: w.control.set_policy("t", Policy(retain_rows=5))),
    "listTransactions": Verb(lambda w: w.control.transactions("rejected")),
    "forceAck": Verb(lambda w: w.control.force_ack("rejected", known(w, "txn", lambda: rejected(w)).id)),
    "listEvents": Verb(lambda w: w.control.events()),
    "route": Verb(lambda w: w.control.route("t")),
    "listTenants": Verb(lambda w: w.control.tenants()),
    "createTenant": Verb(lambda w: w.control.create_tenant("new"), again=(AlreadyExists, "tenant_exists")),
    "getTenant": Verb(lambda w: w.control.tenant("t")),
    "deleteTenant": Verb(lambda w: w.control.delete_tenant("gone")),
    "getManifest": Verb(lambda w: w.control.manifest("t")),
    "changeTimeline": Verb(lambda w: w.control.change_timeline("t", TimelineChange("branch", "x", id="i"))),
}


def ledger_of(world: World) -> dict[bytes, bytes]:
    """All that is stored."""
    with world.key_value.snapshot() as now:
        return dict(now.scan())


def outcome(ask: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of its error."""
    try:
        return ask()
    except LakebedError as error:
        return type(error), error.kind


def test_every_verb_is_here() -> None:
    """A new verb gets a line above."""
    served = {route.endpoint.name for routes in ROUTES.values() for route in routes}
    assert set(VERBS) | OWN == served


@pytest.mark.parametrize("later_s", [0.0, 3.0], ids=["at once", "later"])
@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_verb_that_is_asked_again(name: str, later_s: float) -> None:
    """At once it has the same answer. Then and later the ledger has what it had."""
    verb, world = VERBS[name], prepared()
    first = outcome(lambda: verb.ask(world))
    assert not is_error(first), first
    world.wait(later_s)
    before = ledger_of(world)
    second = outcome(lambda: verb.ask(world))
    if verb.renews:
        assert [item.tenant for item in second] == [item.tenant for item in first]
        assert all(item.generation > old.generation for item, old in zip(second, first, strict=True))
        return
    if name == "register":  # its time is the last one
        before[layout.node_key("a")] = ledger_of(world)[layout.node_key("a")]
    assert ledger_of(world) == before
    if verb.again is not None:
        assert second == verb.again
    else:
        assert not is_error(second)
        assert later_s or second == first
    world.wait(0.3)
    noted = [(event.kind, event.tenant, event.node) for _, event in world.control.events()]
    assert len(noted) == len(set(noted))


@pytest.mark.parametrize("happens", [True, False], ids=["reply lost", "request lost"])
@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_lost_call_of_the_ledger_inside_a_verb(name: str, happens: bool) -> None:
    """Each call of the store that a verb makes is lost once; asked again, the ledger is as without the loss."""
    verb = VERBS[name]
    expected_world = prepared()
    outcome(lambda: verb.ask(expected_world))
    expected = stripped(ledger_of(expected_world))
    count, number = 1, 0
    while number < count:
        world = prepared()
        assert isinstance(world.key_value, CountedKeyValue)
        begun = len(world.key_value.calls)
        world.key_value.lost_at, world.key_value.happens = begun + number, happens
        first = outcome(lambda: verb.ask(world))  # noqa: B023
        count = max(count, len(world.key_value.calls) - begun)
        world.key_value.lost_at = None
        second = outcome(lambda: verb.ask(world))  # noqa: B023
        assert not is_error(second) or second == verb.again, (number, first, second)
        if not verb.renews:
            assert stripped(ledger_of(world)) == expected, (number, first, second)
        number += 1


def is_error(answer: Any) -> bool:
    """Whether an outcome is an error."""
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], type)


def stripped(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without events."""
    return {key: value for key, value in rows.items() if not key.startswith(layout.EVENTS)}
