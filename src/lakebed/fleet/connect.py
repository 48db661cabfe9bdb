"""`Fleet`: the connections of one process to a running fleet, for clients and operators.

Owns: the connections to control plane, nodes and log, shared by all tenants of the fleet. Does not know: lakes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Self

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.address import CONTROL_VARIABLE, LOG_VARIABLE, control_url, display_url, is_served, read_address
from lakebed.fleet.client import Tenant
from lakebed.fleet.http_ports import HttpControl, HttpNode
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import Policy, TenantRecord
from lakebed.fleet.ports import FleetAddress, NodePort, OperatorPort
from lakebed.fleet.routing import DEFAULTS, ClientOptions
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Listing
from lakebed.runtime import Environment

TOKEN_VARIABLE: Final = "LAKEBED_FLEET_TOKEN"
"""The environment variable with the token that the parts of a fleet send each other."""

_NODE_S: Final = 1.0
"""How long a read waits for a node's first byte before it asks where the tenant is now.

It is longer than a node's own wait for an LSN (`NodeOptions.read_wait_ms`), so only a node that hangs takes so long.
"""

_START_S: Final = 2.0
"""How long the first request to the control plane is retried, before the fleet counts as not running."""
_CALL_S: Final = 0.5
"""How long a tenant's call to the control plane is retried here. The tenant itself retries for longer."""
_LOG_S: Final = 2.0
"""How long a tenant's call to the log is retried here."""


class Fleet:
    """A running fleet. Thread-safe. Close it, or use it in a ``with``.

    Args:
        operator: its control plane.
        control: the same for tenants, which repeat their calls themselves; None: `operator`.
        nodes: the port of the node at a URL.
        log: closed with this.
        close: releases the other connections.
        storage: of the fleet.

    Attributes:
        operator: its control plane, for operators.
        url: where the control plane answers.
    """

    def __init__(
        self,
        *,
        operator: OperatorPort,
        control: OperatorPort | None = None,
        nodes: Callable[[str], NodePort],
        log: Log,
        storage: ObjectStore,
        environment: Environment,
        options: ClientOptions = DEFAULTS,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._close = close
        self.operator = operator
        self._control = control or operator
        self.url = ""
        self.environment = environment
        self._nodes = nodes
        self._log = log
        self._storage = storage
        self._options = options

    def __repr__(self) -> str:
        return f"Fleet({self.url!r})"

    def tenant(self, name: str) -> Tenant:
        """Return a tenant by name. Raises `InvalidRequest` for an invalid name. Cost: no request."""
        return Tenant(
            name,
            control=self._control,
            nodes=self._nodes,
            log=self._log,
            environment=self.environment,
            storage=self._storage,
            options=self._options,
        )

    def create_tenant(self, name: str, *, policy: Policy | None = None, if_not_exists: bool = False) -> Tenant:
        """Create a tenant, as `Tenant.create`."""
        tenant = self.tenant(name)
        tenant.create(policy=policy, if_not_exists=if_not_exists)
        return tenant

    def tenants(self) -> list[TenantRecord]:
        """Return the records of all tenants, by name. Cost: 1 request."""
        return Listing(self.operator.tenants())

    def close(self) -> None:
        """Release the connections. Closing twice is a no-op."""
        self._log.close()
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(
    storage: ObjectStore,
    *,
    control: str | None = None,
    environment: Environment | None = None,
    options: ClientOptions = DEFAULTS,
) -> Fleet:
    """Find the running fleet of a storage.

    Args:
        control: URL of its control plane; None: ``LAKEBED_FLEET_CONTROL``, or what the last one wrote down.

    Raises:
        NotFound: ``fleet_not_found``: the storage never had a fleet.
        InvalidRequest: ``unauthorized``: the fleet has another token than ``LAKEBED_FLEET_TOKEN``.
        Unavailable: ``fleet_not_running``: no process listens there, or the one that does serves another storage, and
            it was found by what is written down. ``fleet_hangs``: one does, and does not answer.

    Cost: 1 GET, and 1 request to the control plane.
    """
    environment = environment or Environment()
    url = control_url(storage, control)
    token = os.environ.get(TOKEN_VARIABLE) or None

    is_named = bool(control or os.environ.get(CONTROL_VARIABLE))
    operator, address = _connect_control(storage, url, is_named=is_named, token=token, environment=environment)
    log = open_log(
        os.environ.get(LOG_VARIABLE) or address.log,
        token=token,
        environment=environment,
        retry_s=_LOG_S,
    )
    nodes_by_url: dict[str, HttpNode] = {}

    def nodes(at: str) -> NodePort:
        node = nodes_by_url.get(at)
        if node is None:
            node = nodes_by_url[at] = HttpNode(at, token=token, read_s=_NODE_S, environment=environment)
        return node

    def close() -> None:
        for node in nodes_by_url.values():
            node.close()
        operator.close()

    fleet = Fleet(
        operator=operator,
        control=operator.retry_for(_CALL_S),
        nodes=nodes,
        log=log,
        storage=storage,
        environment=environment,
        options=options,
        close=close,
    )
    fleet.url = url
    return fleet


def _connect_control(
    storage: ObjectStore, url: str, *, is_named: bool, token: str | None, environment: Environment
) -> tuple[HttpControl, FleetAddress]:
    """Return a client of the control plane at `url`, and what the control plane says of itself.

    Args:
        is_named: the user named `url`. Otherwise it is what the storage says, which is read again when a call fails.

    Raises: as `connect`.
    """

    def find() -> str:
        address = read_address(storage)  # another control plane may have taken over and written its own URL
        return url if address is None else address.url

    operator = HttpControl(url, token=token, environment=environment, find=None if is_named else find)
    try:
        address = operator.retry_for(_START_S).address()
    except Unavailable as problem:
        raise _not_answering(storage, url, problem) from problem
    except InvalidRequest as problem:
        if problem.kind != "unauthorized":
            raise
        raise InvalidRequest(
            f"The control plane at {url} needs the token of its fleet, and {'another' if token else 'none'} was sent: "
            f"set {TOKEN_VARIABLE}.",
            kind="unauthorized",
            url=url,
        ) from problem
    if not is_named and not is_served(storage, url=address.storage, folder=address.folder):
        raise _serving_another(storage, url, address.storage)
    return operator, address


def _serving_another(storage: ObjectStore, url: str, served: str) -> Unavailable:
    """Return the error for a copy of a storage, whose address is that of the original's control plane."""
    return Unavailable(
        f"The fleet of {storage.root_url} does not run: the control plane at {url}, which is written down there, "
        f"serves {served}. Of a copy, start a fleet of its own with lakebed fleet up {display_url(storage)}; "
        f"if both are the same storage, name its control plane in {CONTROL_VARIABLE}.",
        kind="fleet_not_running",
        url=url,
    )


def _not_answering(storage: ObjectStore, url: str, problem: Unavailable) -> Unavailable:
    """Return why no control plane of a fleet answers: it does not run, or it hangs."""
    if problem.kind == "no_reply":
        return Unavailable(
            f"The control plane of {storage.root_url} at {url} does not answer in time: its process hangs or is cut "
            f"off. Look at it, start it again, or name another one in {CONTROL_VARIABLE}.",
            kind="fleet_hangs",
            url=url,
        )
    return Unavailable(
        f"The fleet of {storage.root_url} does not run: its control plane was at {url} and does not answer. Start it "
        f"with lakebed fleet up {display_url(storage)}.",
        kind="fleet_not_running",
        url=url,
    )
