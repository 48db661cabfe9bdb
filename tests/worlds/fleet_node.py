"""A fleet in one process over memory: storage, log, ledger's rule, nodes, and a dictionary that knows every row by LSN.

Owns: `Fleet` and `Oracle`. The control plane is the least that grants: one open transaction an attachment, base
equality, dooming at attach. Invariants: nothing here looks into a node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from lakebed.clock import SystemClock
from lakebed.errors import NotFound
from lakebed.fleet.layout import deadlist_of, log_key
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.manifest import decode_deadlist, decode_referenced
from lakebed.fleet.model import MAIN, AttachmentMode, Manifest, ManifestRef, NodeRecord, Policy
from lakebed.fleet.node.indices import all_paths
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.ports import (
    AckReply,
    AckRequest,
    CommitReply,
    CommitRequest,
    ControlPort,
    Heartbeat,
    HeartbeatReply,
    Location,
    NodeReport,
    TimelineChange,
)
from lakebed.ids import new_uuid
from lakebed.key_value.memory import MemoryKeyValue
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

TENANT = "acme"
_NUMBERS = count()

SMALL = NodeOptions(
    memtable_bytes=1 << 14,
    memtable_bytes_max=1 << 20,
    cache_bytes=1 << 20,
    run_file_bytes=1 << 12,
    block_bytes=256,
    l0_compaction_count=3,
    read_wait_ms=200,
    change_wait_ms=2_000,
)
"""So small that a few hundred rows make several files and runs."""


class ShiftedClock(SystemClock):
    """The system's clock, and as much later as a test wants."""

    def __init__(self) -> None:
        self._shift_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self._shift_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._shift_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._shift_s += seconds


@dataclass
class Opened:
    """A transaction, as the control of these tests keeps it."""

    base: int
    node: str
    generation: int
    state: str = "open"
    manifest: ManifestRef | None = None
    has_deadlist: bool = False
    following: int | None = None


@dataclass
class GrantControl(ControlPort):
    """`ControlPort`: grants when the transaction is open and its base is the last committed one."""

    policy: Policy = field(default_factory=Policy)
    next_txn: int = 1
    generation: int = 0
    committed: int = 0
    manifest: ManifestRef | None = None
    transactions: dict[int, Opened] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda call: None
    """Called before each call has its effect; may raise."""
    after: Callable[[str], None] = lambda call: None
    """Called before the reply; may raise."""
    nodes: dict[str, NodeRecord] = field(default_factory=dict)

    def register(self, node: NodeRecord) -> None:
        self.before("register")
        self.nodes[node.node] = node
        self.after("register")

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        self.before("heartbeat")
        return HeartbeatReply(is_known=heartbeat.node in self.nodes)

    def attached(self, report: NodeReport) -> list[Location]:
        self.before("attached")
        resumed = {(one.generation, one.txn) for one in report.resumed}
        found = []
        for txn, one in list(self.transactions.items()):
            if one.node == report.node and one.state in ("open", "pending") and (one.generation, txn) not in resumed:
                was_open, one.state = one.state == "open", "acknowledged"
                if was_open:
                    found.append(self.attach(report.node))
            elif one.node == report.node and one.state == "open":
                found.append(self.location(txn))
        self.after("attached")
        return found

    def attach(self, node: str) -> Location:
        """Doom what is open, and begin."""
        for one in self.transactions.values():
            if one.state == "open":
                one.state = "pending"
        self.generation += 1
        return self.location(self._begin(node, self.generation))

    def _begin(self, node: str, generation: int) -> int:
        txn, self.next_txn = self.next_txn, self.next_txn + 1
        self.transactions[txn] = Opened(self.committed, node, generation)
        return txn

    def location(self, txn: int) -> Location:
        """What the node of a transaction is told."""
        one = self.transactions[txn]
        return Location(
            TENANT,
            one.generation,
            AttachmentMode.SINGLE,
            txn=txn,
            base=self.committed,
            manifest=self.manifest,
            policy=self.policy,
        )

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        self.before("commit")
        replies = [self._commit(one) for one in requests]
        self.verdicts += [one.verdict for one in replies]
        self.after("commit")
        return replies

    def _commit(self, request: CommitRequest) -> CommitReply:
        one = self.transactions[request.txn]
        if one.state == "committed" and one.manifest == request.manifest:
            return CommitReply("granted", txn=one.following, generation=one.generation)
        if one.state != "open" or one.base != self.committed:
            one.state = "pending" if one.state == "open" else one.state
            return CommitReply("rejected", reason="not open")
        one.state, one.manifest, one.has_deadlist = "committed", request.manifest, request.has_deadlist
        for other in self.transactions.values():
            if other.state == "open":
                other.state = "pending"
        self.committed, self.manifest = request.txn, request.manifest
        one.following = self._begin(request.node, request.generation)
        return CommitReply("granted", txn=one.following, generation=one.generation)

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        self.before("ack")
        for one in requests:
            found = self.transactions[one.txn]
            if found.state in ("open", "pending"):
                found.state = "acknowledged"
        return [AckReply(self.transactions[one.txn].state) for one in requests]


@dataclass
class Oracle:
    """Every row of every timeline: a list of (LSN, key, value) each. A branch begins with its parent's."""

    rows: dict[str, list[tuple[int, bytes, bytes | None]]] = field(default_factory=lambda: {MAIN: []})

    def last(self, timeline: str) -> int:
        """The newest LSN."""
        return self.rows[timeline][-1][0] if self.rows[timeline] else 0

    def state(self, timeline: str, lsn: int) -> dict[bytes, bytes]:
        """All keys as of an LSN."""
        found: dict[bytes, bytes] = {}
        for at, key, value in self.rows[timeline]:
            if at > lsn:
                break
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found

    def branch(self, parent: str, lsn: int, new: str) -> None:
        """A timeline that begins with the parent's rows."""
        self.rows[new] = [row for row in self.rows[parent] if row[0] <= lsn]


class Fleet:
    """One tenant, any number of nodes."""

    def __init__(self, *, policy: Policy | None = None, seed: int = 1, options: NodeOptions = SMALL) -> None:
        self.clock = ShiftedClock()
        self.environment = Environment(clock=self.clock, rng=random.Random(seed))
        self.storage: ObjectStore = open_store(f"memory://node-{next(_NUMBERS)}", environment=self.environment)
        self.log = KeyValueLog([MemoryKeyValue()], environment=self.environment)
        self.log.create(log_key(TENANT, MAIN))
        self.control = GrantControl(policy or Policy(retain_rows=1 << 30))
        self.options = options
        self.locals: dict[str, LocalState] = {}
        self.nodes: dict[str, Node] = {}
        self.oracle = Oracle()
        self.rng = random.Random(seed)

    def node(self, name: str = "a", *, storage: ObjectStore | None = None, attach: bool = True) -> Node:
        """Start a node, and attach the tenant to it."""
        node = Node(
            name,
            url=f"http://{name}",
            storage=storage or self.storage,
            control=self.control,
            log=self.log,
            local=self.locals.setdefault(name, LocalState.in_memory()),
            options=self.options,
            environment=self.environment,
        )
        node.start()
        self.nodes[name] = node
        if attach:
            node.put_location(self.control.attach(name))
        return node

    def crash(self, name: str) -> None:
        """The process is gone; the system releases its lock."""
        del self.nodes[name]
        self.locals[name].release()

    def append(self, timeline: str = MAIN, rows: int = 10, keys: int = 40) -> int:
        """Random puts and deletes; the last LSN."""
        names = [b"key-%04d" % self.rng.randrange(keys) for _ in range(rows)]
        values = [None if self.rng.random() < 0.2 else self.rng.randbytes(self.rng.randrange(60)) for _ in names]
        last = self.log.append(
            log_key(TENANT, timeline), rows_of(names, values), write_id=new_uuid(self.environment.rng)
        )
        own = self.oracle.rows[timeline]
        own += zip(range(last - rows + 1, last + 1), names, values, strict=True)
        return last

    def work(self, name: str = "a", *, rounds: int = 200) -> None:
        """Run steps until nothing is due."""
        node = self.nodes[name]
        for _ in range(rounds):
            if not node.work_once():
                return
        raise AssertionError("the node does not come to an end")

    def change(self, node: Node, kind: str, name: str, **facts: object) -> None:
        """Make a change; what it makes has the name as its id."""
        node.change(TENANT, TimelineChange(kind=kind, name=name, id=name if "id" not in facts else "", **facts))  # type: ignore[arg-type]

    # ---- checks

    def check(self, node: Node, timeline: str = MAIN, *, every: int = 1) -> None:
        """Every read at every LSN that is kept equals the oracle."""
        info = next(one for one in node.timelines(TENANT) if one.name == timeline)
        newest = self.oracle.last(timeline)
        node.get(TENANT, timeline, b"x", at_least=info.branch_lsn if info.is_read_only else newest)
        info = next(one for one in node.timelines(TENANT) if one.name == timeline)
        top = info.lsn if info.is_read_only else newest
        assert info.lsn == top
        lsns = sorted({*range(info.cutoff, top + 1, every), top})
        for lsn in lsns:
            expected = self.oracle.state(timeline, lsn)
            found = self.scan(node, timeline, lsn)
            assert found == expected, (timeline, lsn)
        keys = [b"key-%04d" % number for number in range(42)]
        for lsn in (lsns[0], lsns[len(lsns) // 2], top):
            expected = self.oracle.state(timeline, lsn)
            assert node.get_many(TENANT, timeline, keys, lsn=lsn) == [expected.get(key) for key in keys]
            for key in keys:
                assert node.get(TENANT, timeline, key, lsn=lsn).value == expected.get(key)
        assert self.scan(node, timeline, None) == self.oracle.state(timeline, top)

    def scan(self, node: Node, timeline: str, lsn: int | None) -> dict[bytes, bytes]:
        """All rows as a dictionary."""
        found: dict[bytes, bytes] = {}
        for batch in node.scan(TENANT, timeline, lsn=lsn):
            found |= zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        return found

    def manifest(self) -> Manifest | None:
        """The committed state."""
        reference = self.control.manifest
        return None if reference is None else decode_referenced(self.storage.get(reference.path), reference)

    def collect(self) -> None:
        """Delete what the ledger's rules allow, as the collector does."""
        kept: set[str] = set()
        for txn, one in sorted(self.control.transactions.items()):
            if one.state == "committed" and one.manifest is not None:
                if txn != self.control.committed:
                    kept.add(one.manifest.path)
                if one.has_deadlist:
                    path = deadlist_of(one.manifest.path)
                    try:
                        dead = decode_deadlist(self.storage.get(path), path=path).paths
                    except NotFound:
                        continue
                    self.storage.delete(dead)
                    if txn != self.control.committed:
                        kept.add(path)
            elif one.state == "acknowledged":
                prefix = f"{TENANT}.tenant/{txn:016}"
                self.storage.delete([meta.path for meta in self.storage.list(prefix)])
        self.storage.delete(kept)

    def check_references(self) -> None:
        """After a collection every object is referenced, and everything referenced is there (I2, I11)."""
        self.collect()
        found = {meta.path for meta in self.storage.list()}
        still_open = {
            f"{TENANT}.tenant/{txn:016}/"
            for txn, one in self.control.transactions.items()
            if one.state in ("open", "pending")
        }
        manifest, reference = self.manifest(), self.control.manifest
        named: set[str] = set()
        if manifest is not None and reference is not None:
            named = set(all_paths(TENANT, manifest.timelines).values()) | {reference.path}
            assert named <= found, named - found
            named.add(deadlist_of(reference.path))
        left = {path for path in found - named if not any(path.startswith(prefix) for prefix in still_open)}
        assert not left, left


def with_policy(location: Location, policy: Policy) -> Location:
    """The location with other settings."""
    return replace(location, policy=policy)
