"""The process of a node: its workers, its heartbeats, and its HTTP service.

Owns: `NodeThreads`, which runs the node's steps, and the order of a shutdown:

1. Requests end.
2. The workers end.
3. What is ingested is committed, within a bounded time.
4. The local state is released.

A node that is killed instead loses nothing: uncommitted rows are read from the log again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from traceback import format_exception
from typing import Any, Final

from lakebed.errors import Closed, Conflict, InternalError, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.address import is_served
from lakebed.fleet.http_ports import RETRY_S, HttpControl
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.service import ROUTES, NodeCall, NodeSite
from lakebed.fleet.ports import FleetAddress
from lakebed.fleet.service import RunningService, ServiceSettings, open_serving, run_service, start_service
from lakebed.http.options import HttpOptions
from lakebed.objects.open import open_store
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

NAME: Final = "lakebed fleet node"
"""Prefix of messages on standard error."""

_CONTROL_RETRY_S: Final = 1.0
"""How long one request to the control plane is retried. The step that made it is tried again in any case."""
_LOG_RETRY_S: Final = 2.0
"""The same for the log. A read that waits for an LSN ends soon after `NodeOptions.read_wait_ms`."""
_IDLE_S: Final = 0.02
"""Pause of a worker that found nothing to do."""
_WATCH_S: Final = 5.0
"""Longest single wait for the log. A tenant that is attached meanwhile is watched from the next wait on."""
_END_S: Final = 10.0
"""How long the commits of a shutdown may take."""
_DEFECTS_MAX: Final = 100
"""Most different defects that are remembered in order to report each once."""
_DEFAULT_HTTP: Final = HttpOptions(quick_threads=32, uploads_max=8)
_DEFAULT_OPTIONS: Final = NodeOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(ServiceSettings):
    """Settings of a node's process.

    Attributes:
        control: URL of the control plane, or several with commas between them. It tells where storage and log are.
        local: the folder of the local state.
        name: unique in the fleet; None: the name of the folder.
        log: URL of the log with its credentials; None: as the control plane says.
        advertised: the URL at which others reach the node; None: the address on which it listens.
    """

    control: str
    local: str
    name: str | None = None
    log: str | None = None
    advertised: str | None = None
    options: NodeOptions = _DEFAULT_OPTIONS
    http: HttpOptions = _DEFAULT_HTTP


class NodeThreads:
    """The threads of a node: workers, one that watches the log, one for heartbeats. `close` ends them.

    No error ends a thread: it is reported, and the thread continues.

    Args:
        on_defect: called once with each unexpected error; None: print it with its traceback.
    """

    def __init__(
        self,
        node: Node,
        *,
        options: NodeOptions,
        environment: Environment,
        on_defect: Callable[[Exception], None] | None = None,
    ) -> None:
        self._node = node
        self._options = options
        self._clock = environment.clock
        self._changed = environment.runtime.condition()
        self._is_over = False
        self._on_defect = on_defect or _print_defect
        self._told: dict[str, str] = {}
        """The last error of each kind of work."""
        self._defects: set[str] = set()
        node.watches_in_background = True
        loops: list[tuple[str, Callable[[], None]]] = [
            ("heartbeats", self._beat),
            ("watch", self._watch),
            *((f"worker-{number}", self._work) for number in range(options.worker_count)),
        ]
        self._joins = [environment.runtime.spawn(loop, name=f"lakebed-node-{name}") for name, loop in loops]

    def _pause(self, seconds: float) -> bool:
        """Wait. Return whether to continue."""
        with self._changed:
            if not self._is_over:
                self._changed.wait(seconds)
            return not self._is_over

    def _try(self, what: str, call: Callable[[], object]) -> bool:
        """Call a function. Report its error unless it equals the last one. Return whether the result is true."""
        try:
            result = call()
        except Exception as error:
            self._report(what, error)
            return False
        self._told.pop(what, None)
        return bool(result)

    def _report(self, what: str, error: Exception) -> None:
        text = repr(error)
        with self._changed:
            is_defect = not isinstance(error, LakebedError) or isinstance(error, InternalError)
            is_known = text in self._defects or text == self._told.get(what)
            self._told[what] = text
            if is_defect and len(self._defects) < _DEFECTS_MAX:
                self._defects.add(text)
        if is_known or (isinstance(error, Conflict) and error.kind == "node_decommissioned"):
            return  # a decommissioned node still serves reads
        if self._is_over and isinstance(error, Closed):
            return  # the log was closed while a thread watched it
        if is_defect:
            self._on_defect(error)
        else:
            sys.stderr.write(f"{NAME}: {what}: {error}\n")

    def _beat(self) -> None:
        while self._pause(self._options.heartbeat_ms / 1000):
            self._try("no heartbeat", self._node.heartbeat_once)

    def _watch(self) -> None:
        subject = "the log is not watched"
        while self._pause(self._options.poll_ms / 1000):
            self._try(subject, lambda: self._node.watch_once(timeout_s=_WATCH_S))
            if subject in self._told:
                self._pause(1.0)

    def _work(self) -> None:
        while not self._is_over:
            if not self._try("a step failed", self._node.work_once) and not self._pause(_IDLE_S):
                return

    def close(self) -> None:
        """End all threads except the one that watches the log, and commit what is ingested, within a bounded time."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for join in self._joins[2:]:
            join()
        ends_s = self._clock.monotonic_s() + _END_S
        for location in self._node.locations():
            if location.txn is not None and self._clock.monotonic_s() < ends_s:
                self._try(f"{location.tenant} was not committed", partial(self._node.commit_once, location.tenant))
        self._joins[0]()

    def join(self) -> None:
        """Wait for the thread that watches the log. It ends once the log is closed."""
        self._joins[1]()


def run_node(
    settings: NodeSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] | None = None,
) -> int:
    """Serve a node over HTTP until SIGTERM or SIGINT. Arguments and result as `run_service`.

    Raises:
        InvalidRequest: as `run_service`; or the URL of storage or log is wrong.
        Conflict: kind ``local_state_locked``, ``node_decommissioned``.
        Unavailable: as `run_service`; or the control plane does not tell where storage and log are, and the local state
            has no address from an earlier start.
    """
    return run_service(partial(_open, settings), ROUTES, settings, host=host, port=port, started=started)


def start_node(settings: NodeSettings, *, port: int = 0) -> RunningService[NodeCall]:
    """Serve in a thread of this process, for tests and notebooks. Raises as `run_node`."""
    return start_service(partial(_open, settings), ROUTES, settings, port=port)


def _open(settings: NodeSettings, endpoint: str, environment: Environment) -> NodeSite:
    local = LocalState(settings.local)
    address = _address(settings, local, environment)
    storage = open_store(
        address.storage, storage_options=settings.storage_options, environment=environment, durable=settings.durable
    )
    control = ControlOfStorage(
        settings.control, token=settings.token, environment=environment, retry_s=_CONTROL_RETRY_S, storage=storage
    )
    log: Log = open_log(
        settings.log or address.log, token=settings.token, environment=environment, retry_s=_LOG_RETRY_S
    )
    name = settings.name or os.path.basename(os.path.abspath(settings.local))
    node = Node(
        name,
        url=settings.advertised or endpoint,
        storage=storage,
        control=control,
        log=log,
        local=local,
        options=settings.options,
        environment=environment,
    )
    try:
        node.start()
        local.store_address(address)
    except BaseException:
        node.close()
        log.close()
        raise
    threads = NodeThreads(node, options=settings.options, environment=environment)

    def close() -> None:
        with ExitStack() as ends:
            for end in (control.close, threads.join, log.close, node.close, threads.close):
                ends.callback(end)

    reads_inline = parse_url(address.storage).scheme in ("file", "memory")
    serving = open_serving(NAME, settings, endpoint, environment=environment, reads_inline=reads_inline)
    site = NodeSite(serving, node, token=settings.token)
    site.on_close = close
    return site


class ControlOfStorage(HttpControl):
    """The control plane at a URL, as long as it serves the storage that the node writes to.

    If another fleet has taken over the URL, it could not read what this node writes.
    """

    def __init__(self, url: str, *, storage: ObjectStore, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._storage = storage

    def register(self, node: NodeRecord) -> None:
        """As `HttpControl`. Raises `Conflict` (``another_fleet``). Cost: 1 more request."""
        address = self.address()
        if not is_served(self._storage, url=address.storage, folder=address.folder):
            raise Conflict(
                f"This node writes to {self._storage.root_url}, and the control plane serves {address.storage} now: "
                "start the node again to join that fleet.",
                kind="another_fleet",
                url=address.storage,
            )
        super().register(node)


def _address(settings: NodeSettings, local: LocalState, environment: Environment) -> FleetAddress:
    """Return where storage and log are, as the control plane says now or said at an earlier start of this node.

    A node that has never started retries for longer, because the control plane may be starting at the same time.
    """
    saved = local.address()
    retry_s = RETRY_S if saved is None else _CONTROL_RETRY_S
    control = HttpControl(settings.control, token=settings.token, environment=environment, retry_s=retry_s)
    try:
        return control.address()
    except (Unavailable, OutcomeUnknown):
        if saved is None:
            raise
        return saved
    finally:
        control.close()


def _print_defect(error: Exception) -> None:
    sys.stderr.write(f"{NAME}: {''.join(format_exception(error))}")
