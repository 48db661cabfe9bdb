"""What all tenants of one node share."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakebed.fleet.log.port import Log
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
    """The parts that a tenant uses.

    Attributes:
        name: the node's.
        is_reported: the control plane knows what this process has resumed: before that nothing is committed.
        control_is_away: the last heartbeat was not answered: no new request to commit is made.
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
    paused: frozenset[str] = field(default_factory=frozenset)

    @property
    def file_options(self) -> FileOptions:
        """How layers are written."""
        return FileOptions(block_bytes=self.options.block_bytes, bits_per_key=self.options.filter_bits_per_key)

    def now_ms(self) -> int:
        """Unix milliseconds, UTC."""
        return self.environment.clock.now_ms()

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start. For waits and ages: they do not follow a wall clock that is set."""
        return int(self.environment.clock.monotonic_s() * 1000)
