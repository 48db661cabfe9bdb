"""What steps cost: requests to the store and writes of the ledger, counted with real nodes and a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from lakebed.fleet.model import MAIN, Policy
from worlds.fleet_control import CountedKeyValue
from worlds.fleet_node import TENANT, Fleet
from worlds.memory_key_value import MemoryKeyValue


@dataclass
class Cost:
    """Of some steps."""

    put: int = 0
    get: int = 0
    list: int = 0
    requests: int = 0
    """To the store, of all kinds."""
    ledger: int = 0
    """Writes."""


class Counted:
    """A fleet over a counting store and a counting ledger."""

    def __init__(self, policy: Policy) -> None:
        self.key_value = CountedKeyValue(MemoryKeyValue())
        self.fleet = Fleet(policy=policy, key_value=self.key_value)

    @contextmanager
    def cost(self) -> Iterator[Cost]:
        """What the block costs, once it has ended."""
        result, before = Cost(), len(self.key_value.calls)
        with self.fleet.storage.count() as counts:
            yield result
        result.put, result.get, result.list, result.requests = counts.put, counts.get, counts.list, counts.total
        result.ledger = sum(call.changes for call in self.key_value.calls[before:])


@pytest.fixture
def counted() -> Counted:
    """A tenant with rows in three timelines, on one node, all committed."""
    counted = Counted(Policy(retain_rows=1 << 20, commit_age_ms=1 << 40))
    fleet = counted.fleet
    node = fleet.node("a")
    for name in ("x", "y"):
        fleet.change(node, "create", name)
        fleet.oracle.rows[name] = []
    for name in (MAIN, "x", "y"):
        fleet.append(name, rows=20)
    node.ingest_once(TENANT)
    node.checkpoint(TENANT)
    return counted


@pytest.mark.parametrize("changed", [(MAIN,), (MAIN, "y"), (MAIN, "x", "y")])
def test_a_commit_puts_its_changed_layers_and_one_manifest(counted: Counted, changed: tuple[str, ...]) -> None:
    """Timelines without new rows cost nothing; the next transaction begins in the write of the grant."""
    fleet = counted.fleet
    node = fleet.nodes["a"]
    for name in changed:
        fleet.append(name, rows=5)
    with counted.cost() as cost:
        node.ingest_once(TENANT)
        assert node.commit_once(TENANT)
    assert cost == Cost(put=len(changed) + 1, requests=len(changed) + 1, ledger=1)
    assert len(fleet.record.transactions) == 1


def test_a_commit_puts_a_deadlist_when_something_died(counted: Counted) -> None:
    """One object more, however many died; and reads of what is merged."""
    fleet = counted.fleet
    node = fleet.nodes["a"]
    for _ in range(3):
        fleet.ingest(node, rows=5)
        node.checkpoint(TENANT)
    node.compact(TENANT, MAIN)
    with counted.cost() as cost:
        assert node.commit_once(TENANT)
    assert cost == Cost(put=2, requests=2, ledger=1)
    assert fleet.record.deadlist is not None


@pytest.mark.parametrize("kind", ["branch", "pin"])
def test_a_branch_or_pin_costs_one_commit_and_no_layer(counted: Counted, kind: str) -> None:
    """Whatever the size of its parent."""
    with counted.cost() as cost:
        counted.fleet.change(counted.fleet.nodes["a"], kind, "new", parent=MAIN, lsn=10)
    assert cost == Cost(put=1, requests=1, ledger=1)


def test_an_attach_costs_one_write_and_one_get(counted: Counted) -> None:
    """No LIST, whatever the other node has left; rows are read from the log."""
    fleet = counted.fleet
    fleet.append(rows=30)
    fleet.nodes["a"].ingest_once(TENANT)
    fleet.nodes["a"].flush_once(TENANT)
    node = fleet.node("b", attach=False)
    with counted.cost() as cost:
        node.put_location(fleet.attach("b"))
        fleet.work("b")
    assert node.timelines(TENANT)[0].lsn == 50
    assert cost == Cost(get=1, requests=1, ledger=1)


def test_an_idle_tenant_costs_nothing(counted: Counted) -> None:
    """Ten minutes of heartbeats: no request to the store, no write of the ledger."""
    fleet = counted.fleet
    node = fleet.nodes["a"]
    fleet.clock.advance(600)
    fleet.plane.scan_once()
    fleet.plane.collect_once()
    with counted.cost() as cost:
        for _ in range(60):
            fleet.clock.advance(10)
            node.heartbeat_once()
            fleet.work("a")
            fleet.plane.reconcile_once()
            fleet.plane.collect_once()
    assert cost == Cost()
