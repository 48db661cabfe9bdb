"""A fleet in one process over memory: storage, log, control plane, nodes, and a dictionary of every row by LSN.

Owns: `Fleet` and `Oracle`. Invariants: nothing here looks into a node; the control plane does nothing that a test did
not ask for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count

from lakebed.clock import Clock, SystemClock
from lakebed.fleet import machine
from lakebed.fleet.collect import OrphanCollector, Reason
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.layout import log_key, txn_folder
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.manifest import decode_referenced
from lakebed.fleet.model import MAIN, Manifest, NodeRecord, Policy, TenantRecord
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
from lakebed.key_value.port import KeyValue
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from worlds.fleet.disk import PoweredState
from worlds.fleet.monitor import layers
from worlds.memory_key_value import MemoryKeyValue

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
        self._wall_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round((self._shift_s + self._wall_s) * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._shift_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._shift_s += seconds

    def set_wall(self, seconds: float) -> None:
        """Move the wall clock alone: ahead, or back when negative."""
        self._wall_s += seconds


@dataclass
class WatchedControl(ControlPort):
    """The control plane as nodes ask it; a test may fail a call before its effect, or lose its reply."""

    plane: ControlPlane
    verdicts: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda call: None
    after: Callable[[str], None] = lambda call: None
    replace: Callable[[CommitReply], CommitReply] = lambda reply: reply

    def register(self, node: NodeRecord) -> None:
        self.before("register")
        self.plane.register(node)
        self.after("register")

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        self.before("heartbeat")
        return self.plane.heartbeat(heartbeat)

    def attached(self, report: NodeReport) -> list[Location]:
        self.before("attached")
        result = self.plane.attached(report)
        self.after("attached")
        return result

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        self.before("commit")
        replies = [self.replace(item) for item in self.plane.commit(requests)]
        self.verdicts += [reply.verdict for reply in replies]
        self.after("commit")
        return replies

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        self.before("ack")
        replies = self.plane.ack(requests)
        self.after("ack")
        return replies


@dataclass
class Oracle:
    """Every row of every timeline: a list of (LSN, key, value) each. A branch begins with its parent's."""

    rows: dict[str, list[tuple[int, bytes, bytes | None]]] = field(default_factory=lambda: {MAIN: []})

    def last(self, timeline: str) -> int:
        """The newest LSN."""
        return self.rows[timeline][-1][0] if self.rows[timeline] else 0

    def state(self, timeline: str, lsn: int) -> dict[bytes, bytes]:
        """All keys as of an LSN."""
        result: dict[bytes, bytes] = {}
        for at, key, value in self.rows[timeline]:
            if at > lsn:
                break
            if value is None:
                result.pop(key, None)
            else:
                result[key] = value
        return result

    def branch(self, parent: str, lsn: int, new: str) -> None:
        """A timeline that begins with the parent's rows."""
        self.rows[new] = [row for row in self.rows[parent] if row[0] <= lsn]


class Fleet:
    """One tenant, any number of nodes, a control plane that acts only when it is told to."""

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        seed: int = 1,
        options: NodeOptions = SMALL,
        key_value: KeyValue | None = None,
    ) -> None:
        self.clock = ShiftedClock()
        self.environment = Environment(clock=self.clock, rng=random.Random(seed))
        self.storage: ObjectStore = open_store(f"memory://node-{next(_NUMBERS)}", environment=self.environment)
        self.log = KeyValueLog([MemoryKeyValue()], environment=self.environment)
        self.log.create(log_key(TENANT, MAIN))
        self.ledger = Ledger(key_value or MemoryKeyValue())
        self.plane = ControlPlane(
            self.ledger,
            storage=self.storage,
            log=self.log,
            nodes=lambda record: self.nodes[record.node],
            options=ControlOptions(scan_interval_ms=1),
            environment=self.environment,
        )
        self.plane.create_tenant(TENANT, policy or Policy(retain_rows=1 << 30))
        self.control = WatchedControl(self.plane)
        self.options = options
        self.locals: dict[str, LocalState] = {}
        self.nodes: dict[str, Node] = {}
        self.oracle = Oracle()
        self.rng = random.Random(seed)

    @property
    def record(self) -> TenantRecord:
        """The tenant in the ledger."""
        return self.ledger.tenant(TENANT, fresh=True)

    def node(
        self,
        name: str = "a",
        *,
        storage: ObjectStore | None = None,
        log: Log | None = None,
        clock: Clock | None = None,
        attach: bool = True,
    ) -> Node:
        """Start a node, and attach the tenant to it; `clock`: another than that of all others."""
        node = Node(
            name,
            url=f"http://{name}",
            storage=storage or self.storage,
            control=self.control,
            log=log or self.log,
            local=self.locals.setdefault(name, PoweredState()),
            options=self.options,
            environment=self.environment if clock is None else replace(self.environment, clock=clock),
        )
        self.nodes[name] = node
        node.start()
        if attach:
            node.put_location(self.attach(name))
        return node

    def attach(self, name: str) -> Location:
        """Give the tenant to a node alone; what it is to be told."""
        record = self.ledger.node(name)
        assert record is not None
        return self.ledger.change(
            TENANT, lambda tenant: machine.attach(tenant, record, now_ms=self.environment.clock.now_ms())
        )

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
        mine = self.oracle.rows[timeline]
        mine += zip(range(last - rows + 1, last + 1), names, values, strict=True)
        return last

    def ingest(self, node: Node, timeline: str = MAIN, rows: int = 10, keys: int = 40) -> None:
        """Random puts and deletes, which a node has read when this returns."""
        self.append(timeline, rows, keys)
        node.ingest_once(TENANT)

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
        info = next(item for item in node.timelines(TENANT) if item.name == timeline)
        newest = self.oracle.last(timeline)
        node.get(TENANT, timeline, b"x", at_least=info.branch_lsn if info.is_read_only else newest)
        info = next(item for item in node.timelines(TENANT) if item.name == timeline)
        top = info.lsn if info.is_read_only else newest
        assert info.lsn == top
        lsns = sorted({*range(info.cutoff, top + 1, every), top})
        for lsn in lsns:
            expected = self.oracle.state(timeline, lsn)
            scan = self.scan(node, timeline, lsn)
            assert scan == expected, (timeline, lsn)
        keys = [b"key-%04d" % number for number in range(42)]
        for lsn in (lsns[0], lsns[len(lsns) // 2], top):
            expected = self.oracle.state(timeline, lsn)
            assert node.get_many(TENANT, timeline, keys, lsn=lsn).values == tuple(map(expected.get, keys))
            for key in keys:
                assert node.get(TENANT, timeline, key, lsn=lsn).value == expected.get(key)
        assert self.scan(node, timeline, None) == self.oracle.state(timeline, top)

    def scan(self, node: Node, timeline: str, lsn: int | None) -> dict[bytes, bytes]:
        """All rows as a dictionary."""
        result: dict[bytes, bytes] = {}
        for batch in node.scan(TENANT, timeline, lsn=lsn):
            result |= zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        return result

    def manifest(self) -> Manifest | None:
        """The committed state."""
        reference = self.record.manifest
        return None if reference is None else decode_referenced(self.storage.get(reference.path), reference)

    def collect(self) -> None:
        """Let the collector do everything that may be done, also what has to settle."""
        for _ in range(4):
            self.clock.advance(200)
            self.plane.scan_once()
            self.plane.collect_once()

    def check_references(self) -> None:
        """After a collection every object is referenced, and everything referenced is there (I2, I11)."""
        self.collect()
        record, manifest = self.record, self.manifest()
        paths = {meta.path for meta in self.storage.list()}
        named: set[str] = set()
        if manifest is not None and record.manifest is not None:
            named = layers(TENANT, manifest) | {record.manifest.path}
            assert named <= paths, named - paths
        if record.deadlist is not None:
            named.add(record.deadlist)
        unfinished = [txn_folder(TENANT, transaction.id) + "/" for transaction in record.transactions]
        left = {path for path in paths - named if not any(path.startswith(folder) for folder in unfinished)}
        assert not left, left
        report = OrphanCollector(self.ledger, self.storage, grace=timedelta(0), environment=self.environment).collect()
        assert report.is_clean, report
        assert set(report.found) <= {Reason.REFERENCED, *([Reason.UNFINISHED] if unfinished else [])}, report

    def end(self) -> None:
        """Every node ends for good and its transactions are acknowledged: what is left is what was committed."""
        for name in list(self.nodes):
            self.crash(name)
        for node in self.ledger.nodes():
            self.plane.decommission(node.node)
        self.clock.advance(120)
        for _ in range(3):
            self.plane.scan_once()
            self.plane.reconcile_once()
        assert not self.record.transactions
        self.check_references()
