"""What the search of a fleet's transactions works on: rules, bounds and the state, as plain tuples.

Does not know: the steps (`worlds.fleet.search`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OPEN, COMMITTED, REJECT_PENDING, ACKNOWLEDGED, COLLECTED = "open", "committed", "pending", "acknowledged", "collected"
RUN, ASKED, REJECTED, DOWN, IDLE = "run", "asked", "rejected", "down", "idle"


@dataclass(frozen=True)
class Rules:
    """What the design does; a test undoes one at a time."""

    base_is_checked: bool = True
    """A grant needs a base that is the last committed transaction."""
    attachment_is_checked: bool = True
    """A grant needs an attachment that may commit."""
    state_is_checked: bool = True
    """A grant needs an open transaction."""
    grant_dooms: bool = True
    """A grant rejects every other open transaction in the same write."""
    prunes_to_committed: bool = True
    """The log is pruned to the committed LSN, not to what a node has ingested."""
    pins_by_commit: bool = True
    """A pin is acknowledged by the commit that has it."""
    pins_keep_layers: bool = True
    """A layer that a pin names does not die."""
    pins_above_cutoff: bool = True
    manifest_is_pinned: bool = True
    """A commit names its manifest by its contents; a late overwrite is another object."""
    relocation_dooms_not: bool = True
    begins_with_grant: bool = True
    """Grant and next transaction are one write, and only attaching begins anew."""
    resumes_with_lock: bool = True
    """A process goes on with the open transaction only when the process before it is dead."""
    takes_once: bool = True
    """A process without the local state of the one that took a transaction gets another transaction."""
    repeats_request: bool = True
    """A process that asked and restarts asks the same again, before anything else."""
    one_manifest: bool = True
    """A process that has no answer does not ask with another manifest."""
    silent_while_asked: bool = True
    """Nothing is uploaded between freeze and answer."""
    notes_paths: bool = True
    """Paths are noted before the put; those in doubt are on the deadlist."""
    deadlists_own: bool = True
    """Layers that died in their own transaction are on its deadlist too, not deleted at once."""
    acks_after_puts: bool = True
    """A rejection is acknowledged when the last put has settled."""
    lists_twice: bool = True
    """A rejected transaction's prefix is listed again after the settle time."""
    settles_committed: bool = True
    """A deadlist is processed after the settle time."""
    forces_dead_only: bool = True
    """Only the transaction of a node that can no longer write is acknowledged for it."""
    honours_holds: bool = True
    """A reader of an older state delays the deletion of what died since."""


@dataclass(frozen=True)
class Bounds:
    """How far a search goes."""

    txns: int = 3
    lsns: int = 2
    nodes: int = 2
    crashes: int = 1
    unclear_puts: int = 0
    """Puts without an answer, in a process that lives on."""
    pins: bool = True
    readers: bool = False
    relocations: bool = True
    states_max: int = 2_000_000


class Layer(NamedTuple):
    """A sorted file."""

    txn: int
    low: int
    high: int
    since: int
    """Of a compaction: the oldest LSN that it still answers correctly."""
    serial: int
    """Makes paths of one transaction differ."""


Layers = frozenset[Layer]
NONE: Layers = frozenset()


class View(NamedTuple):
    """A manifest."""

    lsn: int = 0
    cutoff: int = 0
    layers: Layers = NONE
    pin: int | None = None
    pinned: Layers = NONE

    @property
    def refs(self) -> Layers:
        """What it names."""
        return self.layers | self.pinned


class Transaction(NamedTuple):
    """As the ledger has it."""

    state: str
    base: int
    node: int
    generation: int
    next: int | None = None
    """Committed: the transaction that began with the grant."""
    view: View | None = None
    dead: Layers = NONE
    lists: int = 0
    """Committed: 1 when its deadlist was processed. Rejected: LISTs so far."""
    is_taken: bool = False
    """A process of the node has had it; one without that local state must not take it again."""


class Process(NamedTuple):
    """A node's process with the tenant. Its local state is equal to it at every step."""

    node: int
    generation: int
    txn: int
    view: View
    base_lsn: int
    dead: Layers = NONE
    noted: Layers = NONE
    """Paths minted in the transaction that are neither in the view nor dead."""
    flying: Layer | None = None
    """Its put under way."""
    mode: str = RUN
    was: str = RUN
    """The mode in which it died."""
    serial: int = 0


class Request(NamedTuple):
    """To commit."""

    txn: int
    node: int
    generation: int
    view: View
    dead: Layers


class State(NamedTuple):
    """Everything."""

    last: int
    """H."""
    view: View
    """Of H."""
    txns: tuple[Transaction, ...]
    attached: tuple[tuple[int, int], ...]
    """(node, generation) that may commit."""
    generation: int
    processes: tuple[Process | None, ...]
    """One a node, and one more for a second process of a node."""
    store: Layers
    requests: frozenset[Request]
    late: Layers
    """Puts without a process that waits for them."""
    log_last: int = 0
    log_first: int = 0
    acknowledged: int | None = None
    """The pin that a caller was told of."""
    crashes: int = 0
    unclear: int = 0
    reader: tuple[int, View] | None = None
    draft: tuple[int, View] | None = None
    """An older manifest on its way, with the transaction's name."""


class Found(NamedTuple):
    """How a search ended."""

    state_count: int
    is_complete: bool
    violation: str | None = None
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The violation with the steps that lead to it, or how much was searched."""
        if self.violation is None:
            return f"{self.state_count:,} states, {'all' if self.is_complete else 'the first ones'}: no violation"
        return f"{self.violation}, after {len(self.steps)} steps: {' -> '.join(self.steps)}"


def is_readable(layers: Layers, lsn: int) -> bool:
    """Whether layers have all rows up to `lsn`, and answer at it correctly."""
    reached = 0
    for layer in sorted(layers, key=lambda one: one[1:]):
        if layer.low < lsn and layer.since > lsn:
            return False
        if layer.low <= reached:
            reached = max(reached, layer.high)
    return reached >= lsn
