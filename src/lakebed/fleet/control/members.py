"""Nodes as the control plane knows them: which are alive, and which gets the next tenant.

Owns: heartbeats, and the verdict that a node is silent. Invariants: silence is measured in the time in
which the control plane itself ran, so after a start or a standstill every node gets a fresh interval. When more than
half of the nodes fall silent at once, the control plane first suspects itself and waits. A wrong verdict costs work,
never data.

Does not know: tenants, the ledger. Several threads may call it: each access to its maps is one step of the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakebed.clock import Clock
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.ports import Heartbeat, NodeStatus, TenantLoad

_BYTES_OF_A_TENANT = 64 << 20
"""This many bytes in memtables weigh as much as one more tenant."""


@dataclass(slots=True, eq=False)
class Member:
    """One node."""

    record: NodeRecord
    heard_s: float
    is_ready: bool = False
    """Its process has asked for its locations, or sent a heartbeat: it takes locations."""
    is_synced: bool = False
    """Its tenants were compared with the ledger."""
    tenant_count: int = 0
    promised: int = 0
    """Tenants attached to it since its last heartbeat."""
    unflushed_bytes: int = 0
    loads: dict[str, TenantLoad] = field(default_factory=dict)
    retry_at_s: float = 0.0
    """It did not answer a call: call it again from this time on."""

    @property
    def is_usable(self) -> bool:
        """Whether tenants may stay on it."""
        return not (self.record.is_silent or self.record.is_decommissioned)

    @property
    def weight(self) -> float:
        """A measure of its load."""
        return self.tenant_count + self.promised + self.unflushed_bytes / _BYTES_OF_A_TENANT


class Members:
    """All nodes.

    Args:
        clock: of the control plane.
    """

    def __init__(self, *, clock: Clock, options: ControlOptions) -> None:
        self._clock = clock
        self._options = options
        self._members: dict[str, Member] = {}
        self._looked_s = clock.monotonic_s()
        self._doubts_since_s: float | None = None

    def all(self) -> list[Member]:
        """Return all nodes, by name."""
        return [member for _, member in sorted(self._members.items())]

    def get(self, node: str) -> Member | None:
        """Return a node by name."""
        return self._members.get(node)

    def learn(self, record: NodeRecord) -> Member:
        """Keep a node's record. Reset the member for a new incarnation, and for a node that is no longer silent."""
        member = self._members.get(record.node)
        if member is not None and member.record.incarnation == record.incarnation:
            if member.record.is_silent and not record.is_silent:
                member.heard_s, member.is_synced, member.retry_at_s = self._clock.monotonic_s(), False, 0.0
            member.record = record
            return member
        new = self._members[record.node] = Member(record, self._clock.monotonic_s())
        return new

    def hear(self, heartbeat: Heartbeat) -> bool:
        """Record that a node is alive. Return whether it is known with its incarnation."""
        member = self._members.get(heartbeat.node)
        if member is None or member.record.incarnation != heartbeat.incarnation or member.record.is_silent:
            return False
        member.heard_s = self._clock.monotonic_s()
        member.is_ready = True
        member.tenant_count, member.promised = heartbeat.tenant_count, 0
        member.unflushed_bytes = heartbeat.unflushed_bytes
        member.loads = {load.tenant: load for load in heartbeat.loads}
        return True

    def overdue(self) -> list[Member]:
        """Return nodes that have fallen silent, for the caller to mark. Call this every `ControlOptions.tick_ms`."""
        now_s, silent_s = self._clock.monotonic_s(), self._options.silent_ms / 1000
        slept, self._looked_s = now_s - self._looked_s > silent_s, now_s
        alive = [member for member in self.all() if member.is_usable]
        if slept:
            for member in alive:
                member.heard_s = now_s
            self._doubts_since_s = None
            return []
        late = [member for member in alive if now_s - member.heard_s > silent_s]
        if len(late) * 2 <= len(alive):
            self._doubts_since_s = None
            return late
        if self._doubts_since_s is None:
            self._doubts_since_s = now_s
        return late if now_s - self._doubts_since_s >= self._options.doubt_ms / 1000 else []

    def is_usable(self, node: str) -> bool:
        """Whether tenants may stay on a node. An unknown node is gone."""
        member = self._members.get(node)
        return member is not None and member.is_usable

    def answers(self, node: str) -> Member | None:
        """Return a node, if it can be called now; else None."""
        member = self._members.get(node)
        if member is None or not member.is_ready or not member.is_usable:
            return None
        return member if member.retry_at_s <= self._clock.monotonic_s() else None

    def note_failure(self, node: str) -> None:
        """Pause calls of a node that did not answer one."""
        member = self._members.get(node)
        if member is not None:
            member.retry_at_s = self._clock.monotonic_s() + self._options.retry_s

    def choose(self, *, not_on: Iterable[str] = ()) -> Member | None:
        """Return the node with the least load; None: no node can take a tenant."""
        excluded_nodes = set(not_on)
        candidates = [
            member
            for member in self.all()
            if member.is_usable
            and member.is_ready
            and not member.record.is_draining
            and member.record.node not in excluded_nodes
        ]
        return min(candidates, key=lambda candidate: (candidate.weight, candidate.record.node), default=None)

    def statuses(self) -> list[NodeStatus]:
        """Return the status of all nodes."""
        now_s = self._clock.monotonic_s()
        return [
            NodeStatus(
                member.record.node,
                member.record.url,
                _state(member),
                tenant_count=member.tenant_count + member.promised,
                silent_ms=max(0, round((now_s - member.heard_s) * 1000)),
                unflushed_bytes=member.unflushed_bytes,
            )
            for member in self.all()
        ]


def _state(member: Member) -> str:
    if member.record.is_decommissioned:
        return "decommissioned"
    if member.record.is_silent:
        return "silent"
    return "draining" if member.record.is_draining else "alive"
