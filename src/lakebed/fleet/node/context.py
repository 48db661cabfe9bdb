"""The parts of a node that all its tenants share."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakebed.fleet.log.port import Log
from lakebed.fleet.model import NUMBER_MAX
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.slots import MemtableBudget, Slots
from lakebed.fleet.ports import ControlPort
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_writer import FileOptions
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment


@dataclass(slots=True)
class NodeContext:
    """The parts of a node that a tenant uses.

    Attributes:
        name: the node's name.
        is_reported: the control plane knows what this process has resumed. Nothing is committed before that.
        control_is_away: the last heartbeat was not answered. Then no new request to commit is made.
        control_ahead_ms: the control plane's Unix time minus `monotonic_ms`, by its last answer; None: no answer yet.
        paused: tenants whose ingestion the control plane has paused.
    """

    name: str
    storage: ObjectStore
    control: ControlPort
    log: Log
    local: LocalState
    options: NodeOptions
    environment: Environment
    cache: BlockCache
    budget: MemtableBudget
    loading: Slots
    catching_up: Slots
    is_reported: bool = False
    control_is_away: bool = False
    control_ahead_ms: int | None = None
    paused: frozenset[str] = field(default_factory=frozenset)

    @property
    def file_options(self) -> FileOptions:
        """How to write layers."""
        return FileOptions(block_bytes=self.options.block_bytes, bits_per_key=self.options.filter_bits_per_key)

    def now_ms(self) -> int:
        """Unix milliseconds, UTC."""
        return self.environment.clock.now_ms()

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start, for waits and ages. Setting the wall clock does not change them."""
        return int(self.environment.clock.monotonic_s() * 1000)

    # Neither clock is trusted alone: a wrong clock, here or at the control plane, ends nothing too early.

    def agreed_ms(self) -> int:
        """Unix milliseconds, UTC, that both our clock and the control plane's have reached; 0: it never answered."""
        return 0 if self.control_ahead_ms is None else min(self.now_ms(), self._control_ms())

    def end_ms(self, lifetime_ms: int) -> int:
        """Return when a lifetime that begins now ends, by the later of the two clocks."""
        return min(max(self.now_ms(), self._control_ms()) + lifetime_ms, NUMBER_MAX)

    def _control_ms(self) -> int:
        return 0 if self.control_ahead_ms is None else self.control_ahead_ms + self.monotonic_ms()
