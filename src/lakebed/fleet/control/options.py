"""Settings of a control plane. Pure data. Each states what a change of it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.fleet.ports import FleetAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """Times and limits of a control plane. Those of a tenant are in its `Policy`."""

    address: FleetAddress | None = None
    """The URLs of storage and log, for nodes and clients."""

    tick_ms: int = 100
    """Interval of the rounds. Shorter: silence is noticed sooner, at more processor time."""

    silent_ms: int = 1_500
    """A node that sent nothing for this time, in which the control plane itself ran, is silent.

    Shorter: a slow node is considered dead more often, which costs its work since the last commit.
    """

    doubt_ms: int = 10_000
    """How long the control plane waits before it acts when more than half of the nodes fall silent at once."""

    grace_ms: int = 60_000
    """How long a put that was sent may still take effect.

    This is the wait before the deletion of what a commit replaced, and between the two LISTs of a rejected transaction.
    """

    decommission_wait_ms: int = 60_000
    """How long the revocation of a node's credentials may take to have effect."""

    scan_interval_ms: int = 30_000
    """How often the whole ledger is read, to find what other control planes or an earlier process left undone.

    Cost: a scan of all tenants, and one request to each node.
    """

    retry_ms: int = 500
    """Pause after an unanswered call, for each node, tenant or task."""

    attaches_max: int = 16
    """Most concurrent calls to nodes. This limits the speed of a failover of many tenants."""

    batch_tenants: int = 64
    """Tenants that one write of a failover attaches."""

    relocation_lag_rows: int = 1_000
    """The target of a relocation commits when it is at most this many rows behind the log."""

    relocation_pause_after_ms: int = 3_000
    """A target that is not near after this time gets help: the source stops ingesting ..."""

    relocation_pause_max_ms: int = 3_000
    """... for at most this time."""

    relocation_drain_ms: int = 2_000
    """How long the source serves reads after the target has taken over, so that all clients can go over."""

    relocation_give_up_ms: int = 300_000
    """A relocation whose target is not near after this time is given up."""

    prune_interval_ms: int = 2_000
    """Least time between two prunes of one tenant's log."""

    events_max: int = 10_000
    """Events that are kept."""

    @property
    def retry_s(self) -> float:
        """`retry_ms` in seconds."""
        return self.retry_ms / 1000


DEFAULT: Final = ControlOptions()
