"""Settings of a control plane. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.fleet.ports import FleetAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """Times and limits. Those of a tenant are in its `Policy`."""

    address: FleetAddress | None = None
    """Where storage and log are, for nodes and clients that ask."""

    tick_ms: int = 100
    """How often nodes are looked after. Shorter: silence is noticed sooner, at more processor time."""

    silent_ms: int = 1_500
    """A node that was not heard for so long, of the control plane's own waking time, is silent. Shorter: a slow node is
    taken for dead more often, which costs its work since the last commit."""

    doubt_ms: int = 10_000
    """When more than half of the nodes fall silent at once, the control plane waits so long before it believes it."""

    grace_ms: int = 60_000
    """How long a put that was sent may still land: before what a commit replaced is deleted, and between the first and
    the second LIST of a rejected transaction."""

    decommission_wait_ms: int = 60_000
    """How long the revocation of a node's credentials may take to work."""

    scan_interval_ms: int = 30_000
    """How often the whole ledger is read, for what other control planes or an earlier process left undone. Cost: a scan
    of all tenants, and one request a node."""

    retry_ms: int = 500
    """Pause after a call that was not answered, a node, tenant or task."""

    attaches_max: int = 16
    """Calls to nodes at once: a failover of many tenants is bounded by it."""

    batch_tenants: int = 64
    """Tenants that one write of a failover attaches."""

    relocation_lag_rows: int = 1_000
    """The target of a relocation commits when it is at most so far behind the log."""

    relocation_pause_after_ms: int = 3_000
    """A target that is not near after so long gets help: the source stops ingesting ..."""

    relocation_pause_max_ms: int = 3_000
    """... for at most so long."""

    relocation_drain_ms: int = 2_000
    """How long the source serves reads after the target has taken over, until all clients have gone over."""

    relocation_give_up_ms: int = 300_000
    """A relocation whose target has not come near is given up."""

    prune_interval_ms: int = 2_000
    """How often the log of one tenant is pruned at most."""

    events_max: int = 10_000
    """Events that are kept."""

    @property
    def retry_s(self) -> float:
        """`retry_ms` in seconds."""
        return self.retry_ms / 1000


DEFAULT: Final = ControlOptions()
