"""Requests and bytes of a commit, an attach, a branch, a pin and a collection; manifests' share of what is written.

One tenant, one node, a control plane and a log in this process, over memory: the counts do not depend on the machine.
Requests are those of the store; writes of the ledger are counted at the key-value port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from fleet_parts import Size, say
from lakebed.fleet.layout import parse_layer_path
from lakebed.fleet.model import Policy
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.options import NodeOptions
from lakebed.key_value.port import KeyValue
from lakebed.objects.port import RequestCounts
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.fleet_node import TENANT, Fleet
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper

R = TypeVar("R")

KINDS = ("get", "head", "put", "list", "delete", "copy")
ROWS = 1_000
SETTLED_S = 120.0


class _CountedLedger(KeyValueWrapper):
    """Counts writes."""

    def __init__(self, inner: KeyValue) -> None:
        super().__init__(inner)
        self.writes = 0

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        self.writes += call.changes
        return perform()


@dataclass
class _Cost:
    """What an operation asked."""

    counts: RequestCounts
    ledger_writes: int = 0

    def say(self, workload: str, figure: float, unit: str, *, target: str) -> None:
        """Write it, with all requests."""
        requests = {kind: getattr(self.counts, kind) for kind in KINDS if getattr(self.counts, kind)}
        moved = {"read": self.counts.bytes_read, "written": self.counts.bytes_written}
        facts = {"requests": {**requests, "ledger writes": self.ledger_writes}, "bytes": moved}
        say(workload, unit, [figure], target=target, durable=True, **facts)


class _Costs:
    """A fleet whose requests are counted."""

    def __init__(self) -> None:
        self.fleet = Fleet(options=NodeOptions(l0_compaction_count=1_000))
        self.ledger = self.fleet.ledger.key_value = _CountedLedger(self.fleet.ledger.key_value)
        self.node = self.fleet.node("a")
        self.fleet.work("a")

    @contextmanager
    def counted(self) -> Iterator[_Cost]:
        """Count what happens in the ``with``."""
        before = self.ledger.writes
        with self.fleet.storage.count() as counts:
            cost = _Cost(counts)
            yield cost
        cost.ledger_writes = self.ledger.writes - before

    def commit(self, *, rows: int = ROWS) -> _Cost:
        """Commit rows more."""
        lsn = self.fleet.append(rows=rows, keys=10 * ROWS)
        self.node.get(TENANT, "main", b"key", at_least=lsn)
        with self.counted() as cost:
            self.node.checkpoint(TENANT)
        return cost


def requests(_: Size) -> None:
    """Of each operation."""
    costs = _Costs()
    fleet, node = costs.fleet, costs.node
    cost = costs.commit()
    cost.say("commit_1_layer", cost.counts.total, "requests", target="<= 2")
    node.compact(TENANT, "main")
    for _ in range(3):
        costs.commit()
    with costs.counted() as cost:
        node.compact(TENANT, "main")
        node.checkpoint(TENANT)
    cost.say("commit_1_layer_and_dead", cost.counts.put, "PUTs", target="<= 3")
    for kind in ("branch", "pin"):
        with costs.counted() as cost:
            fleet.change(node, kind, f"a-{kind}", parent="main", lsn=fleet.oracle.last("main"))
        cost.say(f"{kind}_1_commit", cost.counts.total, "requests", target="<= 1")
    _collection(costs)
    other = fleet.node("b", attach=False)
    with costs.counted() as cost:
        other.put_location(fleet.attach("b"))
        fleet.work("b")
    cost.say("attach_requests", cost.counts.total, "requests", target="<= 1")
    cost.say("attach_ledger_writes", cost.ledger_writes, "writes", target="<= 1")


def _collection(costs: _Costs) -> None:
    """Collect a commit that a compaction of many small files made."""
    fleet, node, dead = costs.fleet, costs.node, 40
    for _ in range(dead):
        costs.commit(rows=10)
    fleet.collect()
    node.compact(TENANT, "main")
    node.checkpoint(TENANT)
    fleet.clock.advance(SETTLED_S)
    before = len(list(fleet.storage.list()))
    with costs.counted() as cost:
        fleet.plane.collect_once()
    deleted = before - len(list(fleet.storage.list()))
    assert deleted >= dead, deleted
    assert not cost.counts.list
    cost.say(f"collection_of_{deleted}", cost.counts.total, "requests", target="<= 2")


class _ByKind(StoreWrapper):
    """Adds up what is put, by kind of object."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.storage)
        self.bytes: Counter[str] = Counter()
        self.count: Counter[str] = Counter()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind == "put":
            name = call.path.rpartition("/")[2].partition(".")[0]
            kind = "layers" if parse_layer_path(call.path) is not None else f"{name}s"
            self.bytes[kind] += call.size_bytes
            self.count[kind] += 1
        return perform()


def manifest_share(size: Size) -> None:
    """Bytes of manifests against bytes of layers, over a load with branches that commits as often as it may."""
    policy = Policy(retain_rows=10_000, commit_bytes=64 << 10)
    options = NodeOptions(memtable_bytes=256 << 10, run_file_bytes=1 << 20)
    fleet = Fleet(policy=policy, options=options)
    store = _ByKind(fleet)
    node = fleet.node("a", storage=store)
    rows = size.count(400_000, least=20_000)
    for turn in range(rows // 1_000):
        fleet.append(rows=1_000, keys=100_000)
        fleet.work("a")
        if turn % max(1, rows // 20_000) == 0:
            _branch(fleet, node, f"branch-{turn}")
        fleet.clock.advance(1.0)
    fleet.work("a")
    facts = {"bytes": dict(store.bytes), "requests": dict(store.count), "rows": rows}
    say("manifest_share", "of layers", [store.bytes["manifests"] / store.bytes["layers"]], target="<= 0.25", **facts)


def _branch(fleet: Fleet, node: Node, name: str) -> None:
    node.checkpoint(TENANT)
    lsn = node.timelines(TENANT)[0].committed_lsn
    fleet.change(node, "branch", name, parent="main", lsn=lsn)
