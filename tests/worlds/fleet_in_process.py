"""A whole fleet of real parts in one process: control plane, nodes and log over memory, called directly.

The client's clock drives it: while a client waits, nodes send heartbeats and work, and the control plane makes its
rounds. So a test waits for nothing, and a failover takes as long as it takes in time of the clock.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from lakebed.errors import Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.routing import ClientOptions
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.fleet.disk import PoweredState
from worlds.memory_key_value import MemoryKeyValue

STEP_S = 0.1
WORK_STEPS_MAX = 200


class DrivingClock:
    """`Clock` of a client: time passes for everyone, and the fleet works meanwhile."""

    def __init__(self, clock: ManualClock, work: Callable[[], None]) -> None:
        self._clock = clock
        self._work = work

    def now_ms(self) -> int:
        """As the fleet's."""
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        """As the fleet's."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Let time pass in steps of which each gives every part a turn."""
        while seconds > 0:
            step_s = min(seconds, STEP_S)
            self._clock.advance(step_s)
            seconds -= step_s
            self._work()


class Lossy:
    """A part that does not answer while `is_down`, and whose replies are lost as often as `lost_count` says."""

    def __init__(self, inner: Any, *, lost: Callable[[str], Exception | None]) -> None:
        self.inner = inner
        self._lost = lost
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        result = getattr(self.inner, name)
        if not callable(result):
            return result

        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_down:
                raise Unavailable(f"{name}: no answer")
            reply = result(*arguments, **named)
            problem = self._lost(name)
            if problem is not None:
                raise problem
            return reply

        return call


class ClockedLog(KeyValueLog):
    """A log that waits by the manual clock."""

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        result = super().wait_many(after, timeout_s=0)
        if not result:
            self.clock.advance(timeout_s)
        return result

    clock: ManualClock


class FleetInProcess:
    """The parts.

    Attributes:
        nodes: by name, those that run.
        lose: what a call of a client to a part raises after it had its effect, by the name of the call.
    """

    def __init__(self, *, nodes: int = 2, seed: int = 0, retry_s: float = 30.0) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.environment = Environment(clock=self.clock, rng=self.rng)
        self.client_environment = Environment(
            clock=DrivingClock(self.clock, self.work), rng=random.Random(uuid.uuid4().int)
        )
        self.storage = open_store(f"memory://{uuid.uuid4()}", environment=self.environment)
        self.ledger = Ledger(MemoryKeyValue(environment=self.environment))
        self.log = ClockedLog([MemoryKeyValue(environment=self.environment)], environment=self.environment)
        self.log.clock = self.clock
        self.lose: dict[str, list[Exception]] = {}
        self.nodes: dict[str, Node] = {}
        self.stopped: set[str] = set()
        """Nodes that neither work nor answer, but are not dead."""
        self.locals: dict[str, LocalState] = {}
        self.options = ClientOptions(retry_s=retry_s)
        self.control = self.make_control()
        self.reachable = Lossy(self.control, lost=self._lost)
        self.reachable_log = Lossy(self.log, lost=self._lost)
        for number in range(1, nodes + 1):
            self.start(f"n{number}")

    def _lost(self, name: str) -> Exception | None:
        waiting = self.lose.get(name)
        return waiting.pop(0) if waiting else None

    def make_control(self, *, log: Any = None) -> ControlPlane:
        """A control plane over the ledger; `log` as it reaches the log, None: as all do."""
        return ControlPlane(
            self.ledger,
            storage=self.storage,
            log=log or self.log,
            nodes=lambda record: self.port(record.url),
            options=ControlOptions(grace_ms=1_000),
            environment=self.environment,
        )

    def restart_control(self) -> None:
        """A new process of the control plane, over the same ledger."""
        self.control.close()
        self.control = self.make_control()
        self.reachable.inner = self.control

    # ---- nodes

    def start(self, name: str) -> Node:
        """Start a node, with the local state it had."""
        local = self.locals.setdefault(name, PoweredState())
        node = Node(
            name,
            url=f"memory://{name}",
            storage=self.storage,
            control=Lossy(_Late(lambda: self.control), lost=lambda _: None),
            log=self.log,
            local=local,
            options=NodeOptions(),
            environment=self.environment,
        )
        node.start()
        self.nodes[name] = node
        self.stopped.discard(name)
        return node

    def kill(self, name: str) -> None:
        """End a node without a word."""
        self.nodes.pop(name)
        self.locals[name].release()

    def port(self, url: str) -> Any:
        """A node, as others call it."""
        name = url.rpartition("/")[2]
        node = self.nodes.get(name)
        if node is None or name in self.stopped:
            raise Unavailable(f"{name}: connection refused")
        return Lossy(node, lost=self._lost)

    def node_of(self, tenant: str) -> str:
        """The name of the node that clients are sent to."""
        result = self.control.tenant(tenant).preferred
        assert result is not None
        return result

    # ---- time

    def work(self) -> None:
        """Give every part a turn."""
        for name, node in list(self.nodes.items()):
            if name in self.stopped:
                continue
            node.heartbeat_once()
            for _ in range(WORK_STEPS_MAX):
                if not node.work_once():
                    break
        self.control.tick_once()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.client_environment.clock.sleep(seconds)

    # ---- clients

    def tenant(self, name: str = "orders") -> Tenant:
        """A client."""
        return Tenant(
            name,
            control=self.reachable,
            nodes=self.port,
            log=self.reachable_log,
            environment=self.client_environment,
            storage=self.storage,
            options=self.options,
        )


class _Late:
    """Whatever a function returns at the time of a call."""

    def __init__(self, current: Callable[[], Any]) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)
