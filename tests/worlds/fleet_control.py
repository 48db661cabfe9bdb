"""A control plane with nodes that only remember what they were told, over memory: no engine, no HTTP, no waiting."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.fleet import layout
from lakebed.fleet.control.context import ManagedLog
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.port import LogBounds
from lakebed.fleet.manifest import Deadlist, encode_deadlist, encode_manifest, refer
from lakebed.fleet.model import Manifest, NodeRecord, Progress, TimelineIndex
from lakebed.fleet.ports import (
    AckRequest,
    CommitReply,
    CommitRequest,
    Heartbeat,
    HeartbeatReply,
    Held,
    Location,
    NodePort,
    NodeReport,
    TenantLoad,
    TimelineChange,
    TimelineInfo,
)
from lakebed.key_value.port import KeyValue
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import Crashed, ManualClock
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue

R = TypeVar("R")

TICK_S = 0.1


class ToldNode:
    """A node as far as a control plane calls it. It commits when it is told to."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.url = f"memory://{name}"
        self.incarnation = f"{name}-1"
        self.local_id = f"{name}-disk"
        self.held: dict[str, Location] = {}
        self.calls: list[Location] = []
        self.lags: dict[str, int] = {}
        self.is_down = False
        self.is_retired = False
        """Whether it says so of every tenant."""
        self.broken: set[str] = set()
        self.attempt = 0

    # ---- as the control plane calls it

    def put_location(self, location: Location) -> None:
        """Have it."""
        self._answer()
        self.calls.append(location)
        known = self.held.get(location.tenant)
        if known is not None and location.generation < known.generation:
            raise Conflict("older", kind="stale_generation")
        if location.mode is None:
            self.held.pop(location.tenant, None)
        else:
            self.held[location.tenant] = location

    def locations(self) -> list[Held]:
        """What it has."""
        self._answer()
        return [
            Held(
                item.tenant,
                item.generation,
                item.mode,
                base=item.base,
                txn=item.txn,
                is_broken=item.tenant in self.broken,
                is_retired=self.is_retired,
                policy=item.policy,
            )
            for item in self.held.values()
            if item.mode is not None
        ]

    def lag(self, tenant: str) -> dict[str, int]:
        """As the test says."""
        self._answer()
        if tenant not in self.held:
            raise Unavailable("not here", kind="not_attached")
        return {"main": self.lags.get(tenant, 0)}

    def checkpoint(self, tenant: str) -> int:
        """Commit."""
        self._answer()
        reply = self.commit(tenant)
        return 0 if reply.txn is None else reply.txn

    def change(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """Answer as if it was made."""
        self._answer()
        return TimelineInfo(id=change.id, name=change.name, lsn=0, committed_lsn=0, cutoff=0)

    def _answer(self) -> None:
        if self.is_down:
            raise Unavailable(f"{self.name} does not answer")

    # ---- as a process

    def record(self) -> NodeRecord:
        """What it registers as."""
        return NodeRecord(self.name, self.url, self.incarnation, self.local_id, registered_ms=0)

    def start(self) -> None:
        """Register, ask what it has, send a heartbeat."""
        self.world.control.register(self.record())
        result = self.world.control.attached(NodeReport(self.name, self.incarnation, self.local_id))
        self.held = {item.tenant: item for item in result}
        self.beat()

    def restart(self, *, local_id: str | None = None) -> None:
        """A new process; with the same local state unless another is given."""
        number = int(self.incarnation.rpartition("-")[2]) + 1
        self.incarnation, self.local_id = f"{self.name}-{number}", local_id or self.local_id
        self.is_down = False
        self.start()

    def beat(self) -> HeartbeatReply:
        """Send a heartbeat."""
        loads = tuple(
            TenantLoad(
                item.tenant, item.generation, self.lags.get(item.tenant, 0), is_broken=item.tenant in self.broken
            )
            for item in self.held.values()
        )
        return self.world.control.heartbeat(
            Heartbeat(self.name, self.incarnation, tenant_count=len(self.held), unflushed_bytes=0, loads=loads)
        )

    def request(self, tenant: str, *, lsn: int | None = None, dead: Sequence[str] = ()) -> CommitRequest:
        """Write what a commit has to have in the store; the request."""
        location = self.held.get(tenant)
        if location is None or location.txn is None:
            raise Unavailable(f"{self.name} is not the writer of {tenant}", kind="not_attached")
        main = self.world.control.tenant(tenant).names["main"]
        if lsn is None:
            lsn = self.world.control.tenant(tenant).timelines[main].lsn
        self.attempt += 1
        path = layout.manifest_path(tenant, location.txn, self.attempt)
        index = TimelineIndex(id=main, name="main", created_ms=0, lsn=lsn, cutoff=0)
        body = encode_manifest(Manifest(tenant, location.txn, location.base, (index,)))
        self.world.store.put(path, body)
        if dead:
            deadlist = encode_deadlist(Deadlist(tenant, location.txn, tuple(dead)))
            self.world.store.put(layout.deadlist_path(tenant, location.txn, self.attempt), deadlist)
        return CommitRequest(
            tenant,
            location.txn,
            self.name,
            location.generation,
            refer(path, body),
            timelines={main: Progress(lsn, 0)},
            names={"main": main},
            has_deadlist=bool(dead),
        )

    def take(self, request: CommitRequest, reply: CommitReply) -> None:
        """Go on after an answer."""
        location = self.held.get(request.tenant)
        if location is None:  # detached meanwhile
            return
        if reply.verdict == "granted":
            self.held[request.tenant] = Location(
                request.tenant,
                location.generation,
                location.mode,
                txn=reply.txn,
                base=request.txn,
                manifest=request.manifest,
            )
        elif reply.verdict == "rejected":
            self.broken.add(request.tenant)

    def commit(self, tenant: str, *, lsn: int | None = None, dead: Sequence[str] = ()) -> CommitReply:
        """Commit, and go on."""
        request = self.request(tenant, lsn=lsn, dead=dead)
        reply = self.world.control.commit([request])[0]
        self.take(request, reply)
        return reply

    def ack(self, tenant: str, txn: int, generation: int) -> str:
        """Acknowledge; the state, or why not."""
        reply = self.world.control.ack([AckRequest(tenant, txn, self.name, generation)])[0]
        return reply.state if reply.is_accepted else reply.reason


class CountedKeyValue(KeyValueWrapper):
    """Notes every call; loses the reply to one of them when it is told to."""

    def __init__(self, inner: KeyValue) -> None:
        super().__init__(inner, page_count=None)
        self.calls: list[KeyValueCall] = []
        self.lost_at: int | None = None
        """Number of the call whose reply is lost, from 0."""
        self.crash_at: int | None = None
        """Number of the call in which the caller's process ends."""
        self.happens = True
        """Whether a change whose reply is lost has its effect."""

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call."""
        self.calls.append(call)
        if self.crash_at is not None and len(self.calls) > self.crash_at:
            if self.happens and len(self.calls) - 1 == self.crash_at:
                perform()
            raise Crashed(f"at {call}")
        if len(self.calls) - 1 != self.lost_at:
            return perform()
        if not call.changes:
            raise Unavailable("no answer")
        if self.happens:
            perform()
        raise OutcomeUnknown("the reply was lost")


class NotedLog(ManagedLog):
    """Remembers how a control plane manages the log."""

    def __init__(self) -> None:
        self.pruned: dict[str, int] = {}
        self.created: set[str] = set()
        self.dropped: set[str] = set()
        self.sealed: set[str] = set()

    def create(self, timeline: str, *, after: int = 0) -> None:
        self.created.add(timeline)

    def bounds(self, timeline: str) -> LogBounds:
        return LogBounds(1, 0)

    def prune(self, timeline: str, through: int) -> None:
        self.pruned[timeline] = through

    def seal(self, timeline: str) -> int:
        self.sealed.add(timeline)
        return 0

    def drop(self, timeline: str) -> None:
        self.dropped.add(timeline)


class SetClock(ManualClock):
    """A clock whose wall time is set, ahead or back."""

    set_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_s * 1000


@dataclass
class World:
    """A control plane and its nodes; time moves by `wait`."""

    key_value: KeyValue = field(default_factory=MemoryKeyValue)
    store: ObjectStore = field(default_factory=lambda: open_store(f"memory://control-{random.getrandbits(64)}"))
    options: ControlOptions = field(default_factory=ControlOptions)
    clock: SetClock = field(default_factory=SetClock)
    nodes: dict[str, ToldNode] = field(default_factory=dict)
    log: NotedLog = field(default_factory=NotedLog)
    control_store: ObjectStore | None = None
    """As the control plane reaches the store; None: as all do."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new control plane, which knows nothing but the ledger."""
        self.ledger = Ledger(self.key_value)
        self.control = ControlPlane(
            self.ledger,
            storage=self.control_store or self.store,
            log=self.log,
            nodes=lambda record: cast(NodePort, self.nodes[record.node]),
            options=self.options,
            environment=Environment(clock=self.clock, rng=random.Random(1)),
        )

    def add(self, *names: str) -> list[ToldNode]:
        """Nodes that have started."""
        for name in names:
            self.nodes[name] = ToldNode(self, name)
            self.nodes[name].start()
        return [self.nodes[name] for name in names]

    def wait(self, seconds: float, *, silent: Sequence[str] = ()) -> None:
        """Let time pass: nodes send heartbeats unless they are silent or down, the control plane looks after all."""
        for number in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            if number % 5 == 0:
                for node in self.nodes.values():
                    if node.name not in silent and not node.is_down and not node.beat().is_known:
                        self.control.register(node.record())
            self.control.tick_once()

    def tick(self) -> None:
        """One round, without time."""
        self.control.tick_once()

    def node_of(self, tenant: str) -> ToldNode:
        """The node that clients are sent to."""
        name = self.control.route(tenant).node
        assert name is not None
        return self.nodes[name]
