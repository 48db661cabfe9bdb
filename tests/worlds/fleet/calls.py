"""The ports of a fleet over a lossy network: control planes and nodes as actors of other processes call them.

Owns: `ControlCalls` and `NodeCalls`. A call reaches a process that runs at that moment; one that is dead refuses, one
that stands still answers too late. Invariants: what the callee raises travels back; a lost change is `OutcomeUnknown`,
a lost read `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Protocol, TypeVar

import pyarrow as pa

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.model import Manifest, NodeRecord, Policy, TenantRecord
from lakebed.fleet.node.node import Node
from lakebed.fleet.ports import (
    AckReply,
    AckRequest,
    CommitReply,
    CommitRequest,
    ControlPort,
    Event,
    FleetAddress,
    Found,
    FoundMany,
    Heartbeat,
    HeartbeatReply,
    Held,
    Location,
    NodePort,
    NodeReport,
    NodeStatus,
    OperatorPort,
    Route,
    TimelineChange,
    TimelineInfo,
    TransactionList,
)
from lakebed.testing.actor_loop import ActorLoop
from lakebed.testing.scheduled_calls import CallErrors, ScheduledCalls

R = TypeVar("R")
S = TypeVar("S")

RETRY_S = 4.0
"""How long a caller waits for an answer."""


class Network(Protocol):
    """What calls need of a world."""

    network: Random
    numbers: Iterator[int]
    frozen: set[str]
    controls: dict[str, ControlPlane]
    nodes: dict[str, Node]
    node_processes: dict[str, str]

    @property
    def loop(self) -> ActorLoop:
        """Runs the processes."""
        ...

    def is_alive(self, process: str) -> bool:
        """Whether a process runs; one that stands still does."""
        ...


def _unanswered(label: str) -> LakebedError:
    return Unavailable(f"no answer to {label}")


READ_ERRORS = CallErrors(_unanswered, _unanswered)


class _Calls:
    """Calls of the parts of one world."""

    def __init__(self, world: Network, calls: ScheduledCalls) -> None:
        self.world = world
        self._calls = calls

    def ask(self, label: str, find: Callable[[], tuple[str, S]], function: Callable[[S], R], *, changes: bool) -> R:
        """Make a call of the process that `find` names when the request arrives."""
        errors = None if changes else READ_ERRORS

        def arrive() -> R:
            process, part = find()
            return self._served(process, label, lambda: function(part), changes=changes)

        if errors is None:
            return self._calls.call(label, arrive)
        return self._calls.call(label, arrive, changes=False, errors=errors)

    def _served(self, process: str, label: str, function: Callable[[], R], *, changes: bool) -> R:
        world, loop = self.world, self.world.loop
        if loop.current is None:
            return function()
        results: list[R] = []
        failures: list[LakebedError] = []

        def serve() -> None:
            loop.wait_until(lambda: process not in world.frozen, label=f"{label} reaches {process}")
            try:
                results.append(function())
            except LakebedError as error:
                failures.append(error)

        serving = loop.spawn(f"{process}: {label} {next(world.numbers)}", serve, process=process)
        serving.is_crashed = not world.is_alive(process)
        loop.wait_until(lambda: serving.is_done, label=f"{label} at {process}", timeout_s=RETRY_S)
        if failures:
            raise failures[0]
        if not results:
            raise OutcomeUnknown(f"the reply to {label} was lost") if changes else _unanswered(label)
        return results[0]


class ControlCalls(_Calls, ControlPort, OperatorPort):
    """`ControlPort`, and what clients and operators use of `OperatorPort`: any control plane that runs answers."""

    def _ask(self, label: str, function: Callable[[ControlPlane], R], *, changes: bool = True) -> R:
        return self.ask(label, self._find, function, changes=changes)

    def _find(self) -> tuple[str, ControlPlane]:
        running = [(process, plane) for process, plane in self.world.controls.items() if self.world.is_alive(process)]
        if not running:
            raise Unavailable("no control plane answers")
        return running[self.world.network.randrange(len(running))]

    def register(self, node: NodeRecord) -> None:
        self._ask(f"register {node.node}", lambda plane: plane.register(node))

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        return self._ask(f"heartbeat of {heartbeat.node}", lambda plane: plane.heartbeat(heartbeat))

    def attached(self, report: NodeReport) -> list[Location]:
        return self._ask(f"attached {report.node}", lambda plane: plane.attached(report))

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        asked = ",".join(f"{request.tenant}/{request.txn}" for request in requests)
        return self._ask(f"commit {asked}", lambda plane: plane.commit(requests))

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        asked = ",".join(f"{request.tenant}/{request.txn}" for request in requests)
        return self._ask(f"ack {asked}", lambda plane: plane.ack(requests))

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        return self._ask(f"create {tenant}", lambda plane: plane.create_tenant(tenant, policy))

    def delete_tenant(self, tenant: str) -> None:
        self._ask(f"delete {tenant}", lambda plane: plane.delete_tenant(tenant))

    def tenants(self) -> list[TenantRecord]:
        return self._ask("tenants", lambda plane: plane.tenants(), changes=False)

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        return self._ask(f"set policy {tenant}", lambda plane: plane.set_policy(tenant, policy))

    def transactions(self, tenant: str) -> TransactionList:
        return self._ask(f"transactions {tenant}", lambda plane: plane.transactions(tenant), changes=False)

    def nodes(self) -> list[NodeStatus]:
        return self._ask("nodes", lambda plane: plane.nodes(), changes=False)

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, Event]]:
        return self._ask("events", lambda plane: plane.events(after=after, limit=limit), changes=False)

    def address(self) -> FleetAddress:
        return self._ask("address", lambda plane: plane.address(), changes=False)

    def tenant(self, tenant: str) -> TenantRecord:
        return self._ask(f"tenant {tenant}", lambda plane: plane.tenant(tenant), changes=False)

    def route(self, tenant: str) -> Route:
        return self._ask(f"route {tenant}", lambda plane: plane.route(tenant), changes=False)

    def manifest(self, tenant: str) -> Manifest:
        return self._ask(f"manifest {tenant}", lambda plane: plane.manifest(tenant), changes=False)

    def change_timeline(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        return self._ask(f"{change.kind} {tenant}/{change.name}", lambda plane: plane.change_timeline(tenant, change))

    def migrate(self, tenant: str, node: str) -> None:
        self._ask(f"migrate {tenant} to {node}", lambda plane: plane.migrate(tenant, node))

    def attach_reader(self, tenant: str, node: str) -> None:
        self._ask(f"attach reader {node} of {tenant}", lambda plane: plane.attach_reader(tenant, node))

    def drain(self, node: str, *, undo: bool = False) -> None:
        self._ask(f"drain {node} {undo}", lambda plane: plane.drain(node, undo=undo))

    def decommission(self, node: str) -> None:
        self._ask(f"decommission {node}", lambda plane: plane.decommission(node))

    def force_ack(self, tenant: str, txn: int) -> AckReply:
        return self._ask(f"force {tenant}/{txn}", lambda plane: plane.force_ack(tenant, txn))


class NodeCalls(_Calls, NodePort):
    """`NodePort` of one node: the process that has its name now, if one has."""

    def __init__(self, world: Network, calls: ScheduledCalls, node: str) -> None:
        super().__init__(world, calls)
        self.node = node

    def _ask(self, label: str, function: Callable[[Node], R], *, changes: bool = False) -> R:
        return self.ask(f"{label} of {self.node}", self._find, function, changes=changes)

    def _find(self) -> tuple[str, Node]:
        process = self.world.node_processes.get(self.node, "")
        if not self.world.is_alive(process):
            raise Unavailable(f"{self.node} does not answer")
        return process, self.world.nodes[process]

    def put_location(self, location: Location) -> None:
        what = f"location {location.tenant} {location.generation} {location.mode}"
        self._ask(what, lambda node: node.put_location(location), changes=True)

    def locations(self) -> list[Held]:
        return self._ask("locations", lambda node: node.locations())

    def timelines(self, tenant: str) -> list[TimelineInfo]:
        return self._ask(f"timelines {tenant}", lambda node: node.timelines(tenant))

    def change(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        return self._ask(
            f"{change.kind} {tenant}/{change.name}", lambda node: node.change(tenant, change), changes=True
        )

    def get(self, tenant: str, timeline: str, key: bytes, *, lsn: int | None = None, at_least: int = 0) -> Found:
        return self._ask(
            f"get {tenant}/{timeline} {key!r}", lambda node: node.get(tenant, timeline, key, lsn=lsn, at_least=at_least)
        )

    def get_many(
        self, tenant: str, timeline: str, keys: Sequence[bytes], *, lsn: int | None = None, at_least: int = 0
    ) -> FoundMany:
        return self._ask(
            f"get_many {tenant}/{timeline}",
            lambda node: node.get_many(tenant, timeline, keys, lsn=lsn, at_least=at_least),
        )

    def scan(
        self,
        tenant: str,
        timeline: str,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        lsn: int | None = None,
        at_least: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        return iter(
            self._ask(
                f"scan {tenant}/{timeline}",
                lambda node: list(node.scan(tenant, timeline, start, end, lsn=lsn, at_least=at_least)),
            )
        )

    def checkpoint(self, tenant: str) -> int:
        return self._ask(f"checkpoint {tenant}", lambda node: node.checkpoint(tenant), changes=True)

    def compact(self, tenant: str, timeline: str) -> None:
        self._ask(f"compact {tenant}", lambda node: node.compact(tenant, timeline), changes=True)

    def lag(self, tenant: str) -> dict[str, int]:
        return self._ask(f"lag {tenant}", lambda node: node.lag(tenant))
