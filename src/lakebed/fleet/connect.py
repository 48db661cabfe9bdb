"""`Fleet`: a running fleet, as clients and operators of one process use it.

Owns: the connections to control plane, nodes and log, shared by all tenants of the fleet. Does not know: lakes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Self

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.address import LOG_VARIABLE, control_url, shown
from lakebed.fleet.client import Tenant
from lakebed.fleet.http_ports import HttpControl, HttpNode
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import Policy, TenantRecord
from lakebed.fleet.ports import NodePort, OperatorPort
from lakebed.fleet.routing import DEFAULTS, ClientOptions
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Listing
from lakebed.runtime import Environment

TOKEN_VARIABLE: Final = "LAKEBED_FLEET_TOKEN"
"""The environment variable with the token that the parts of a fleet send each other."""

_NODE_S: Final = 3.0
"""How long a read waits for the first byte of a node that hangs, before it asks where the tenant is now. Longer than a
node's own wait for an LSN (`NodeOptions.read_wait_ms`)."""

_CONTROL_S: Final = 2.0
"""How long one call to the control plane or to the log is repeated: clients have a patience of their own."""


class Fleet:
    """A running fleet. Thread-safe. Close it, or use it in a ``with``.

    Args:
        operator: its control plane.
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
        nodes: Callable[[str], NodePort],
        log: Log,
        storage: ObjectStore,
        environment: Environment,
        options: ClientOptions = DEFAULTS,
        url: str = "",
        close: Callable[[], None] | None = None,
    ) -> None:
        self._close = close
        self.operator = operator
        self.url = url
        self.environment = environment
        self._nodes = nodes
        self._log = log
        self._storage = storage
        self._options = options

    def __repr__(self) -> str:
        return f"Fleet({self.url!r})"

    def tenant(self, name: str) -> Tenant:
        """A tenant by name. Raises `InvalidRequest` for an invalid name. Cost: no request."""
        return Tenant(
            name,
            control=self.operator,
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
        """The records of all tenants, by name. Cost: 1 request."""
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
        Unavailable: ``fleet_not_running``: nothing answers there.

    Cost: 1 GET, and 1 request to the control plane.
    """
    environment = environment or Environment()
    url = control_url(storage, control)
    token = os.environ.get(TOKEN_VARIABLE) or None
    operator = HttpControl(url, token=token, environment=environment, patience_s=_CONTROL_S)
    try:
        address = operator.address()
    except Unavailable as problem:
        raise Unavailable(
            f"The fleet of {storage.root_url} does not run: its control plane was at {url} and does not answer. Start "
            f"it with lakebed fleet up {shown(storage)}.",
            kind="fleet_not_running",
            url=url,
        ) from problem
    except InvalidRequest as problem:
        if problem.kind != "unauthorized":
            raise
        raise InvalidRequest(
            f"The control plane at {url} needs the token of its fleet, and {'another' if token else 'none'} was sent: "
            f"set {TOKEN_VARIABLE}.",
            kind="unauthorized",
            url=url,
        ) from problem
    log = open_log(
        os.environ.get(LOG_VARIABLE) or address.log,
        token=token,
        environment=environment,
        patience_s=_CONTROL_S,
    )
    known: dict[str, HttpNode] = {}

    def nodes(at: str) -> NodePort:
        node = known.get(at)
        if node is None:
            node = known[at] = HttpNode(at, token=token, read_s=_NODE_S, environment=environment)
        return node

    def close() -> None:
        for node in known.values():
            node.close()
        operator.close()

    return Fleet(
        operator=operator,
        nodes=nodes,
        log=log,
        storage=storage,
        environment=environment,
        options=options,
        url=url,
        close=close,
    )
