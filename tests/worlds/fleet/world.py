"""A simulated world of fleets: control planes, nodes, a log and a bucket, and what must hold when all have ended.

Owns: `FleetWorld`: the parts that processes share, processes that crash, stand still and start again, and the oracle
that every append and read is judged by. Calls between parts are `worlds.fleet.calls`, what processes do
`worlds.fleet.actors`, the judgement at rest `worlds.fleet.rest`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.fleet.client import Tenant
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.layout import log_key
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import MAIN, NodeRecord, Policy
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.routing import ClientOptions
from lakebed.key_value.port import KeyValue
from lakebed.objects.port import ObjectStore
from lakebed.testing.actor_loop import Actor, ActorLoop
from lakebed.testing.scheduled_calls import FaultRates
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.fleet.calls import ControlCalls, NodeCalls
from worlds.fleet.disk import PoweredState
from worlds.fleet.monitor import FleetMonitor, ObservedLedger
from worlds.fleet.oracle import Appended, Oracle
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue
from worlds.promise import PromiseBroken
from worlds.scheduled_key_value import ScheduledKeyValue
from worlds.world import FAULTS, World

R = TypeVar("R")

EXPECTED: Final = (AlreadyExists, Closed, Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable)
"""Errors that are part of a caller's life; all else is a finding."""

POLICY: Final = Policy(
    commit_bytes=600, commit_age_ms=800, uncommitted_bytes_max=20_000, retain_rows=4, relocation_wait_max_ms=1_500
)
"""So that little happens between two commits."""


def node_options() -> NodeOptions:
    """Settings of a node that make everything small."""
    return NodeOptions(
        memtable_bytes_max=20_000,
        memtable_bytes=300,
        cache_bytes=1 << 16,
        worker_count=1,
        ingest_bytes=400,
        read_wait_ms=1_500,
        change_wait_ms=3_000,
        retry_first_ms=50,
        retry_max_ms=400,
        l0_compaction_count=2,
        run_compaction_count=2,
        run_file_bytes=400,
        block_bytes=100,
    )


def control_options() -> ControlOptions:
    """Settings of a control plane in which everything is soon due."""
    return ControlOptions(
        doubt_ms=3_000,
        grace_ms=2_000,
        decommission_wait_ms=1_000,
        scan_interval_ms=4_000,
        retry_ms=200,
        attaches_max=2,
        relocation_lag_rows=3,
        relocation_pause_after_ms=800,
        relocation_pause_max_ms=800,
        relocation_drain_ms=500,
        relocation_give_up_ms=20_000,
        prune_interval_ms=200,
    )


class ObservedLog(KeyValueWrapper):
    """The log's store below all users: every record is noted when it becomes durable.

    Args:
        inner: the real store.
        world: whose oracle learns.
    """

    def __init__(self, inner: KeyValue, world: FleetWorld) -> None:
        super().__init__(inner)
        self._world = world
        self.quiet = KeyValueLog([inner], environment=world.quiet, is_shared=True, recent_bytes_max=0)

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call, then read what is new."""
        result = perform()
        if call.changes:
            self._world.monitor.judged(self._look, by=str(call))
        return result

    def _look(self) -> None:
        oracle = self._world.oracle
        for timeline in self._world.all_timelines():
            try:
                first, last = KeyValueLog([self.inner], environment=self._world.quiet, is_shared=True).bounds(timeline)
            except NotFound:
                continue
            self._check_first(timeline, first)
            known = oracle.last(timeline) if timeline in oracle.rows else first - 1
            if last <= known:
                continue
            log = KeyValueLog([self.inner], environment=self._world.quiet, is_shared=True)
            for record in log.read(timeline, known):
                keys, values = record.columns()
                oracle.observe(timeline, record.first_lsn, list(map(Appended, keys, values)))

    def _check_first(self, timeline: str, first: int) -> None:
        """I5: the log begins at most one behind the committed LSN."""
        tenant, _, id = timeline.partition("/")
        record = self._world.monitor.records.get(tenant)
        progress = None if record is None else record.timelines.get(id)
        if progress is None and id != MAIN:
            return  # a branch that is not committed: its log begins where it will be branched
        if record is None and timeline not in self._world.timelines:
            return  # of a tenant that was deleted
        committed = 0 if progress is None else progress.lsn
        if first > committed + 1:
            raise PromiseBroken(f"I5: the log of {timeline} begins at {first}, and {committed} is committed")


class _NodeStore(StoreWrapper):
    """The store as one node's process uses it: notes the puts under way, and refuses once credentials are revoked."""

    def __init__(self, inner: ObjectStore, world: FleetWorld, node: str, process: str) -> None:
        super().__init__(inner)
        self._world = world
        self._node = node
        self._process = process

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, unless the node may no longer."""
        world = self._world
        if self._node in world.revoked:
            raise Unavailable(f"the credentials of {self._node} are revoked")
        if call.kind != "put":
            return perform()
        number = next(world.numbers)
        world.monitor.in_flight[number] = (call.path, lambda: world.is_alive(self._process))
        try:
            return perform()
        finally:
            world.monitor.in_flight.pop(number, None)


class FleetWorld(World):
    """One simulation of a fleet.

    Args:
        seed: decides everything.
        faults: of every call of a process: of the store, the ledger, the log and of other processes.
    """

    def __init__(self, seed: int, *, faults: FaultRates = FAULTS) -> None:
        super().__init__(seed, faults=faults)
        self.network = random.Random(f"network {seed}")
        self.numbers: Iterator[int] = itertools.count()
        self.oracle = Oracle()
        self._monitor = FleetMonitor(self.power, oracle=self.oracle, now_ms=self.now_ms)
        self.timelines: dict[str, None] = {}
        """Log keys of all timelines that were ever asked for."""
        self.ledger = ObservedLedger(MemoryKeyValue(), monitor=self._monitor)
        self.log_store = ObservedLog(MemoryKeyValue(), self)
        self._monitor.log_first = lambda timeline: self._first_of(timeline)
        self.controls: dict[str, ControlPlane] = {}
        """By process."""
        self.nodes: dict[str, Node] = {}
        """By process."""
        self.node_processes: dict[str, str] = {}
        """The process that has each node's name now."""
        self.locals: dict[str, PoweredState] = {}
        self.node_names: list[str] = []
        self.frozen: set[str] = set()
        """Processes that stand still."""
        self._held: dict[str, list[tuple[Actor, Callable[[], bool] | None, float | None]]] = {}
        """Actors of those, with what they waited for."""
        self.revoked: set[str] = set()
        """Nodes whose credentials are revoked."""
        self.gone: set[str] = set()
        """Nodes that never come back; a person decommissions them at rest."""
        self.mains: dict[str, Actor] = {}
        """The first actor of each process."""
        self.resting: set[str] = set()
        """Processes that run when all others have ended."""
        self.working = 0
        """Clients and operators that are not finished: nodes and control planes run as long."""
        self.keys = [b"k%d" % number for number in range(6)]
        self.tenants: list[str] = []
        self.closed: set[str] = set()
        """Log keys of timelines that have lost their names, of which a caller was told: they take no rows any more."""
        self.forbidden_events: set[str] = set()
        """Kinds of events that must not happen in this scenario."""

    @property
    def monitor(self) -> FleetMonitor:
        """What watches the shared store and the ledger."""
        return self._monitor

    @property
    def loop(self) -> ActorLoop:
        """Runs the processes."""
        return self.scheduler

    def _first_of(self, timeline: str) -> int:
        try:
            return KeyValueLog([self.log_store.inner], environment=self.quiet, is_shared=True).bounds(timeline).first
        except NotFound:
            return 0

    # ---- parts, as a process sees them

    def control_options(self) -> ControlOptions:
        """Settings of control planes."""
        return control_options()

    def shared_store(self, faults: FaultRates | None = None) -> ObjectStore:
        """The bucket."""
        return self.scheduler.store(self.monitor, faults=faults or self.faults)

    def node_store(self, node: str, process: str) -> ObjectStore:
        """The bucket with a node's credentials."""
        return _NodeStore(self.shared_store(), self, node, process)

    def log(self) -> Log:
        """The log."""
        store = ScheduledKeyValue(self.log_store, scheduler=self.scheduler, faults=self.faults)
        return KeyValueLog([store], environment=self.environment, is_shared=True)

    def control(self) -> ControlCalls:
        """The control planes, over the network."""
        return ControlCalls(self, self.scheduler.calls(faults=self.faults))

    def node(self, name: str) -> NodeCalls:
        """A node, over the network."""
        return NodeCalls(self, self.scheduler.calls(faults=self.faults), name)

    def make_control(self) -> ControlPlane:
        """A control plane of the running process."""
        store = ScheduledKeyValue(self.ledger, scheduler=self.scheduler, faults=self.faults)

        def nodes(record: NodeRecord) -> NodeCalls:
            return self.node(record.node)

        return ControlPlane(
            Ledger(store),
            storage=self.shared_store(),
            log=self.log(),
            nodes=nodes,
            options=self.control_options(),
            environment=self.environment,
        )

    def make_node(self, name: str, process: str, *, keeps_local: bool = True) -> Node:
        """A node of a process. If the one before it has ended, the system has released its lock."""
        old = self.locals.get(name)
        if old is not None and not self.is_alive(self.node_processes.get(name, "")):
            old.release()
        if old is None or not keeps_local:
            self.locals[name] = PoweredState()
        node = Node(
            name,
            url=f"simulated://{name}",
            storage=self.node_store(name, process),
            control=self.control(),
            log=self.log(),
            local=self.locals[name],
            options=node_options(),
            environment=self.environment,
        )
        return node

    # ---- processes

    def is_alive(self, process: str) -> bool:
        """Whether a process runs; one that stands still does."""
        if process in self.resting:
            return True
        main = self.mains.get(process)
        return main is not None and not main.is_crashed and not main.is_done

    def freeze(self, process: str) -> None:
        """Let a process stand still, as SIGSTOP does; the world's clock goes on."""
        if process in self.frozen:
            return
        self.frozen.add(process)
        for actor in self.scheduler.actors:
            if actor.process == process and not actor.is_done:
                self._hold(actor, process)
        self.counts["processes stopped"] += 1

    def _hold(self, actor: Actor, process: str) -> None:
        """Let an actor wait for the end of the stop, with what it waited for kept."""
        self._held.setdefault(process, []).append((actor, actor.ready, actor.wake_s))
        actor.ready, actor.wake_s = (lambda: False), None

    def thaw(self, process: str) -> None:
        """Let it go on: what it waited for by the clock may be long due."""
        self.frozen.discard(process)
        for actor, ready, wake_s in self._held.pop(process, ()):
            if not actor.is_done:
                actor.ready, actor.wake_s = ready, wake_s

    def lose_local_power(self) -> None:
        """The power of every node's disk was lost too."""
        for local in self.locals.values():
            local.disk.lose_power(self.rng)
        self.frozen.clear()
        self._held.clear()

    def tell_names(self, tenant: str, names: dict[str, str]) -> None:
        """A caller was shown which timelines have the names of a tenant."""
        monitor = self.monitor
        for key, (owner, name) in monitor.lost_names.items():
            holder = log_key(tenant, names.get(name, ""))
            if owner == tenant and monitor.named.get(holder, -1) > monitor.named[key]:
                self.closed.add(key)

    def tell_change(self, timeline: str, *, is_deleted: bool) -> None:
        """A caller was told that a timeline was made under its name, or deleted."""
        tenant = timeline.partition("/")[0]
        before = self.monitor.lost_before.get(timeline, frozenset())
        self.closed |= {key for key in before if key.partition("/")[0] == tenant}
        if is_deleted:
            self.closed.add(timeline)

    def tell_end(self, tenant: str, life: int) -> None:
        """A caller was told that a tenant is deleted."""
        if self.monitor.lives[tenant] == life:
            self.closed |= {key for key, (owner, _) in self.monitor.lost_names.items() if owner == tenant}

    def acknowledge(self, timeline: str, last_lsn: int, rows: list[Appended], *, closed: frozenset[str]) -> None:
        """A client was told of its append. `closed` is from when it began."""
        if timeline in closed:
            raise PromiseBroken(f"{timeline} acknowledged {rows} at {last_lsn}, and had lost its name before")
        self.oracle.acknowledged(timeline, last_lsn, rows)

    def tenant(self, name: str) -> Tenant:
        """A client as users have it, which keeps its route as long as it may."""
        return Tenant(
            name,
            control=self.control(),
            nodes=lambda url: self.node(url.removeprefix("simulated://")),
            log=self.log(),
            environment=self.environment,
            options=ClientOptions(retry_s=6.0, change_retry_s=8.0, route_s=20.0),
        )

    def all_timelines(self) -> dict[str, None]:
        """Log keys of all timelines that were asked for, or that a record names."""
        named = {
            log_key(record.tenant, id): None for record in self.monitor.records.values() for id in record.timelines
        }
        return {**self.timelines, **named}

    def main_of(self, tenant: str) -> str:
        """The id of the timeline that is named `MAIN` in the last committed state, or in the first."""
        record = self.monitor.records.get(tenant)
        return MAIN if record is None else record.names.get(MAIN, MAIN)

    def log_rows(self, timeline: str) -> dict[bytes, bytes]:
        """Everything that the log's store has of a timeline."""
        name = timeline.encode()
        with self.log_store.inner.snapshot() as now:
            return {key: value for key, value in now.scan() if name in key}

    def lose_log(self, timeline: str, kept: dict[bytes, bytes]) -> None:
        """The log is as it was earlier, though what came since was acknowledged."""
        gone = [key for key in self.log_rows(timeline) if key not in kept]
        self.log_store.inner.write(list(kept.items()), gone)
        log = KeyValueLog([self.log_store.inner], environment=self.quiet, is_shared=True)
        self.oracle.lose(timeline, log.bounds(timeline).last)
        self.counts["logs lost"] += 1

    # ---- errors that are part of life

    def expecting(self, call: Callable[[], R]) -> R | None:
        """Call; an error that is part of life is counted."""
        try:
            return call()
        except LakebedError as error:
            self.met(error)
            return None

    def met(self, error: LakebedError) -> None:
        """Count an error that is part of life; raise any other."""
        is_forked = error.kind == "log_forked" and bool(self.oracle.lost)
        if not is_forked and not isinstance(error, EXPECTED):
            raise error
        self.counts[f"error {error.kind}"] += 1
