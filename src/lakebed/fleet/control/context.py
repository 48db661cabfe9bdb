"""What the parts of a control plane share: ledger, nodes, settings, events.

Owns: `Events`, which are kept in memory until the end of a round and then written together. They are for operators. No
decision depends on them, so an event that cannot be written is dropped. A new event's position is after all existing
ones, even if a clock was set back, so that a reader that follows the events sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lakebed.errors import LakebedError
from lakebed.fleet.control.members import Member, Members
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.layout import log_key
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.port import LogBounds
from lakebed.fleet.model import NodeRecord, TenantRecord
from lakebed.fleet.ports import Event, NodePort
from lakebed.fleet.records import pending_of
from lakebed.log import logger
from lakebed.metrics import default_registry
from lakebed.runtime import Environment

LOG: Final = logger("fleet.control")

_EVENTS: Final = default_registry.counter(
    "lakebed_fleet_events_total", help_text="Events by kind: failovers, relocations.", label_names=("kind",)
)
_WAITING_MAX: Final = 1_000
_DIGITS: Final = 13


class ManagedLog(Protocol):
    """The part of a log that the control plane needs; see `lakebed.fleet.log.port.Log`."""

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Begin a timeline. Idempotent."""

    def bounds(self, timeline: str) -> LogBounds:
        """Return the LSNs that a timeline has. Raises `NotFound`: it was dropped, or never created."""

    def prune(self, timeline: str, through: int) -> None:
        """Delete the records up to an LSN. Raises `NotFound`: it was dropped."""

    def seal(self, timeline: str) -> int:
        """Let no append succeed any more. Idempotent. Raises `NotFound`: it was dropped, or never created."""

    def drop(self, timeline: str) -> None:
        """Delete a timeline's records, so that it is never created again. Idempotent."""

    def close(self) -> None:
        """Release connections and threads. Idempotent."""


class Events:
    """The events of this control plane, until they are in the ledger."""

    def __init__(self, ledger: Ledger, *, environment: Environment, kept_max: int) -> None:
        self._ledger = ledger
        self._environment = environment
        self._kept_max = kept_max
        self._waiting: list[Event] = []
        self._positions: deque[str] = deque()
        """Positions of the known events, oldest first."""
        self._newest = ""
        """Position of the last known event."""

    def add(self, kind: str, message: str, *, tenant: str = "", node: str = "", took_ms: int = 0) -> None:
        """Note an event."""
        now_ms = self._environment.clock.now_ms()
        _EVENTS.add(1, kind)
        LOG.info(kind, message=message, tenant=tenant, node=node, took_ms=took_ms)
        if len(self._waiting) < _WAITING_MAX:
            self._waiting.append(Event(now_ms, kind, message, tenant=tenant, node=node, took_ms=took_ms))

    def flush(self) -> None:
        """Write the noted events, and delete the oldest. Cost: 1 scan and 1 write, if there are any."""
        events, self._waiting = self._waiting, []
        if not events:
            return
        try:
            since = self._ledger.events(after=self._newest, limit=2 * self._kept_max)  # of all control planes
            if since:
                self._positions += (position for position, _ in since)
                self._newest = since[-1][0]
            old_positions = self._find_oldest(len(events))
            placed_events = [(self._next_position(event.at_ms), event) for event in events]
            self._ledger.add_events(placed_events, forget=old_positions)
            self._positions += (position for position, _ in placed_events)
        except LakebedError as error:
            LOG.info("events not written", error=error.kind)

    def _find_oldest(self, new_count: int) -> list[str]:
        """Return the positions of the events that have to go for some new ones."""
        excess = len(self._positions) + new_count - self._kept_max
        if excess <= 0:
            return []
        oldest = [position for position, _ in self._ledger.events(limit=excess)]
        while self._positions and (not oldest or self._positions[0] < oldest[0]):
            self._positions.popleft()  # another control plane has deleted it
        return oldest[: max(0, len(self._positions) + new_count - self._kept_max)]

    def _next_position(self, at_ms: int) -> str:
        placed_ms = max(at_ms, int(self._newest[:_DIGITS] or 0) + 1)
        self._newest = f"{placed_ms:0{_DIGITS}}-{self._environment.rng.getrandbits(32):08x}"
        return self._newest


@dataclass(frozen=True, slots=True)
class ControlContext:
    """What every part of a control plane uses."""

    ledger: Ledger
    members: Members
    nodes: Callable[[NodeRecord], NodePort]
    options: ControlOptions
    environment: Environment
    events: Events
    log: ManagedLog | None

    def port(self, member: Member) -> NodePort:
        """Return the port of a node."""
        return self.nodes(member.record)

    def begin_log(self, tenant: str, main: str) -> bool:
        """Begin the log of a new tenant's first timeline, by its id. Return whether the log has the timeline now.

        This precedes each location that is sent before the tenant's first commit. So a log that does not answer delays
        the tenant.
        """
        try:
            if self.log is not None:
                self.log.create(log_key(tenant, main))
        except LakebedError as error:
            LOG.info("log not begun", tenant=tenant, error=error.kind)
            return False
        return True

    def has_log(self, tenant: str, main: str) -> bool:
        """Whether the log has or had rows of a new tenant's first timeline; False if the log does not answer."""
        try:
            return self.log is not None and self.log.bounds(log_key(tenant, main)).last > 0
        except LakebedError:
            return False

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self.environment.clock.now_ms()

    def now_s(self) -> float:
        """Seconds from an arbitrary start; monotonic."""
        return self.environment.clock.monotonic_s()

    def retry_at_s(self) -> float:
        """Return when to repeat a call that is not answered now, in the time of `now_s`."""
        return self.now_s() + self.options.retry_s


def tell_of_lost_state(events: Events, record: TenantRecord, node: NodeRecord) -> None:
    """Add an event if a starting node has rejected transactions in a tenant but lost their local state."""
    lost_ids = [
        transaction.id
        for transaction in pending_of(record)
        if transaction.node == node.node and transaction.local_id != node.local_id
    ]
    if not lost_ids:
        return
    ids, noun = ", ".join(map(str, lost_ids)), "transaction" if len(lost_ids) == 1 else "transactions"
    message = (
        f"{node.node} started without its earlier local state, and cannot acknowledge the rejected {noun} {ids} of "
        f"{record.tenant}: what they wrote is kept. When no older process of {node.node} can write any more, "
        f"acknowledge each: lakebed fleet ack LAKE {record.tenant} {lost_ids[0]}"
    )
    events.add("local_state_lost", message, tenant=record.tenant, node=node.node)
