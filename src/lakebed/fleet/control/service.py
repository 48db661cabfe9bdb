"""The control plane as an HTTP service: what `lakebed.http` needs of it, and its routes.

Owns: the site, the one token, and which call has which path. While this process does not own the ledger
(`lakebed.fleet.control.serve`), every call is answered 503 (``control_standby``), and callers try another URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope

import lakebed
from lakebed.errors import Closed, Fenced, InvalidRequest, Unavailable
from lakebed.fleet import layout
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.model import Manifest, NodeRecord, Policy, TenantRecord
from lakebed.fleet.ports import (
    AckReply,
    AckRequest,
    CommitReply,
    CommitRequest,
    FleetAddress,
    Heartbeat,
    HeartbeatReply,
    Location,
    NodeReport,
    NodeStatus,
    PlacedEvent,
    Route,
    TenantRequest,
    TimelineChange,
    TimelineInfo,
    TransactionList,
)
from lakebed.http import errors
from lakebed.http.application import build
from lakebed.http.asking import check_endpoint
from lakebed.http.authentication import TokenCaller, check_token
from lakebed.http.call import Call
from lakebed.http.declaration import Endpoint, Parameter, Routes
from lakebed.http.gate import Gate
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.replies import empty, json
from lakebed.http.serving import Serving
from lakebed.http.site import Change
from lakebed.metrics import render

UPCALL_PREFIX: Final = "/upcall/v1"
CONTROL_PREFIX: Final = "/control/v1"
CLIENT_PREFIX: Final = "/v1"
PAGE_COUNT_MAX: Final = 1_000
"""Most tenants or events of one reply."""
_TXN_DIGITS: Final = 16


_CALLER: Final = TokenCaller("fleet")


class ControlSite:
    """A control plane, as `lakebed.http` serves it.

    Args:
        serving: limits, threads and logs.
        token: what callers send as ``Authorization: Bearer <token>``; None: they need none.
        known: where storage and log are; None: only the control plane knows.

    Attributes:
        control: what is served; None: another process owns the ledger.
        on_fenced: called when the ledger turns out to be another process's.
        on_close: called when no request runs any more.
    """

    def __init__(self, serving: Serving, *, token: str | None, known: FleetAddress | None = None) -> None:
        self.serving = serving
        self._token = token
        self._known = known
        self.control: ControlPlane | None = None
        self.on_fenced: Callable[[], None] = _nothing
        self.on_close: Callable[[], None] = _nothing

    def require_control(self) -> ControlPlane:
        """The control plane. Raises `Unavailable` (``control_standby``)."""
        if self.control is None:
            raise Unavailable(
                "This process waits to take over the ledger from its owner: ask the owner, or try again.",
                kind="control_standby",
            )
        return self.control

    def address(self) -> FleetAddress:
        """Where storage and log are. Raises as `opened` and `ControlPlane.address`."""
        return self._known or self.require_control().address()

    async def authenticate(self, header: bytes | None) -> TokenCaller:
        """The caller who sends the token. Raises `InvalidRequest` (``unauthorized``)."""
        check_token(header, self._token, service="The control plane")
        return _CALLER

    def authorize(self, principal: TokenCaller, endpoint: Endpoint, scope: Scope) -> None:
        """Who knows the token may do everything."""

    def new_call(
        self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str
    ) -> ControlCall:
        """What handlers take."""
        return ControlCall(self, scope, receive, request_id=request_id)

    async def audit(self, change: Change) -> None:
        """The events of the ledger say what changed."""

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """The generic table of statuses. A lost ledger makes this process a standby."""
        if isinstance(error, Fenced | Closed):
            self.on_fenced()
            error = Unavailable("Another process has taken over the ledger: ask it.", kind="control_standby")
        return errors.error_reply(error, request_id=request_id, statuses=statuses)

    def close(self) -> None:
        """Wait for running calls, then close the control plane, the log last."""
        self.serving.pools.close()
        try:
            self.on_close()
        finally:
            self.serving.close_log()


def _nothing() -> None:
    """Do nothing."""


class ControlCall(Call):
    """A request of a control plane."""

    __slots__ = ("site",)

    def __init__(self, site: ControlSite, scope: Scope, receive: Receive, *, request_id: str) -> None:
        super().__init__(site.serving, scope, receive, request_id=request_id)
        self.site = site

    @property
    def control(self) -> ControlPlane:
        """The control plane. Raises `Unavailable` (``control_standby``)."""
        return self.site.require_control()

    @property
    def tenant(self) -> str:
        """The tenant of the path. Raises `InvalidRequest`."""
        return layout.check_name(self.path["tenant"], what="tenant")

    @property
    def node(self) -> str:
        """The node of the path. Raises `InvalidRequest`."""
        return layout.check_name(self.path["node"], what="node")

    @property
    def txn(self) -> int:
        """The transaction of the path. Raises `InvalidRequest` (``invalid_transaction``)."""
        text = self.path["txn"]
        if not (text.isascii() and text.isdigit() and len(text) <= _TXN_DIGITS):
            raise InvalidRequest(f"{text!r} is not a transaction: use its number.", kind="invalid_transaction")
        return int(text)


# ---- nodes

UPCALLS: Final = Routes[ControlCall]("upcalls")


@UPCALLS.add("POST", "/commit", "commit", needs="write", takes=list[CommitRequest], gives={200: list[CommitReply]})
async def commit(call: ControlCall) -> Response:
    """Decide a batch of requests to commit; the replies are in their order."""
    requests = await call.read(list[CommitRequest])
    return json(await call.quick(call.control.commit, requests))


@UPCALLS.add("POST", "/heartbeat", "heartbeat", needs="write", takes=Heartbeat, gives={200: HeartbeatReply})
async def heartbeat(call: ControlCall) -> Response:
    """Say that a node is alive."""
    return json(await call.quick(call.control.heartbeat, await call.read(Heartbeat)))


@UPCALLS.add("POST", "/ack", "ack", needs="write", takes=list[AckRequest], gives={200: list[AckReply]})
async def ack(call: ControlCall) -> Response:
    """Acknowledge a batch of rejections; the replies are in their order."""
    requests = await call.read(list[AckRequest])
    return json(await call.quick(call.control.ack, requests))


@UPCALLS.add("POST", "/attached", "attached", needs="write", takes=NodeReport, gives={200: list[Location]})
async def attached(call: ControlCall) -> Response:
    """Get what a node has, after the start of its process."""
    return json(await call.quick(call.control.attached, await call.read(NodeReport)))


@UPCALLS.add("POST", "/register", "register", needs="write", takes=NodeRecord, gives={204: None})
async def register(call: ControlCall) -> Response:
    """Make a node known, with a new incarnation."""
    node = await call.read(NodeRecord)
    check_endpoint(node.url)
    await call.quick(call.control.register, node)
    return empty()


# ---- operators

CONTROLS: Final = Routes[ControlCall]("operators")


@CONTROLS.add("GET", "/node", "listNodes", needs="read", gives={200: list[NodeStatus]})
async def list_nodes(call: ControlCall) -> Response:
    """List the nodes."""
    return json(await call.quick(call.control.nodes))


@CONTROLS.add(
    "POST", "/node/{node}/drain", "drain", needs="admin", gives={204: None},
    parameters=(Parameter("undo", "Let the node have tenants again, and move them back.", "boolean"),),
)  # fmt: skip
async def drain(call: ControlCall) -> Response:
    """Move all tenants off a node, one by one."""
    await call.quick(call.control.drain, call.node, undo=call.flag("undo"))
    return empty()


@CONTROLS.add("POST", "/node/{node}/decommission", "decommission", needs="admin", gives={204: None})
async def decommission(call: ControlCall) -> Response:
    """Acknowledge for a node that will never write again."""
    await call.quick(call.control.decommission, call.node)
    return empty()


_NODE: Final = Parameter("node", "The node.", required=True)


@CONTROLS.add("POST", "/tenant/{tenant}/migrate", "migrate", needs="admin", gives={204: None}, parameters=(_NODE,))
async def migrate(call: ControlCall) -> Response:
    """Begin to move a tenant to a node."""
    node = layout.check_name(call.required("node"), what="node")
    await call.quick(call.control.migrate, call.tenant, node)
    return empty()


@CONTROLS.add("POST", "/tenant/{tenant}/reader", "attachReader", needs="admin", gives={204: None}, parameters=(_NODE,))
async def attach_reader(call: ControlCall) -> Response:
    """Attach a tenant to a further node, read-only."""
    node = layout.check_name(call.required("node"), what="node")
    await call.quick(call.control.attach_reader, call.tenant, node)
    return empty()


@CONTROLS.add("PUT", "/tenant/{tenant}/policy", "setPolicy", needs="admin", takes=Policy, gives={200: TenantRecord})
async def set_policy(call: ControlCall) -> Response:
    """Replace a tenant's settings."""
    policy = await call.read(Policy)
    return json(await call.quick(call.control.set_policy, call.tenant, policy))


@CONTROLS.add("GET", "/tenant/{tenant}/txns", "listTransactions", needs="read", gives={200: TransactionList})
async def list_transactions(call: ControlCall) -> Response:
    """List the transactions of a tenant."""
    return json(await call.quick(call.control.transactions, call.tenant))


@CONTROLS.add("POST", "/txn/{tenant}/{txn}/force_ack", "forceAck", needs="admin", gives={200: AckReply})
async def force_ack(call: ControlCall) -> Response:
    """Acknowledge one rejected transaction for its node."""
    return json(await call.quick(call.control.force_ack, call.tenant, call.txn))


_LIMIT: Final = Parameter("limit", "At most so many.", "integer", bounds=(1, PAGE_COUNT_MAX))


@CONTROLS.add(
    "GET", "/event", "listEvents", needs="read", gives={200: list[PlacedEvent]},
    parameters=(Parameter("after", "Behind this position."), _LIMIT),
)  # fmt: skip
async def list_events(call: ControlCall) -> Response:
    """List events, oldest first."""
    limit = call.integer("limit", default=PAGE_COUNT_MAX, low=1, high=PAGE_COUNT_MAX)
    events = await call.quick(call.control.events, after=call.query.get("after", ""), limit=limit)
    return json([PlacedEvent(position, event) for position, event in events])


# ---- clients

CLIENTS: Final = Routes[ControlCall]("tenants")


@CLIENTS.add("GET", "/tenant/{tenant}/route", "route", needs="read", gives={200: Route})
async def route(call: ControlCall) -> Response:
    """Find where a tenant is."""
    return json(await call.quick(call.control.route, call.tenant))


@CLIENTS.add("GET", "/fleet", "fleet", needs="read", gives={200: FleetAddress})
async def fleet(call: ControlCall) -> Response:
    """Find where storage and log are. A standby answers too."""
    return json(call.site.address())


@CLIENTS.add(
    "GET", "/tenant", "listTenants", needs="read", gives={200: list[TenantRecord]},
    parameters=(Parameter("after", "Behind this tenant."), _LIMIT),
)  # fmt: skip
async def list_tenants(call: ControlCall) -> Response:
    """List tenants, by name."""
    limit = call.integer("limit", default=PAGE_COUNT_MAX, low=1, high=PAGE_COUNT_MAX)
    return json(await call.quick(call.control.some_tenants, after=call.query.get("after", ""), limit=limit))


@CLIENTS.add("POST", "/tenant", "createTenant", needs="write", takes=TenantRequest, gives={201: TenantRecord})
async def create_tenant(call: ControlCall) -> Response:
    """Make a tenant and attach it."""
    asked = await call.read(TenantRequest)
    return json(await call.quick(call.control.create_tenant, asked.tenant, asked.policy), 201)


@CLIENTS.add("GET", "/tenant/{tenant}", "getTenant", needs="read", gives={200: TenantRecord})
async def get_tenant(call: ControlCall) -> Response:
    """Get the record of a tenant."""
    return json(await call.quick(call.control.tenant, call.tenant))


@CLIENTS.add("DELETE", "/tenant/{tenant}", "deleteTenant", needs="admin", gives={202: None})
async def delete_tenant(call: ControlCall) -> Response:
    """Detach a tenant, and delete its objects and logs."""
    await call.quick(call.control.delete_tenant, call.tenant)
    return empty(202)


@CLIENTS.add("GET", "/tenant/{tenant}/manifest", "getManifest", needs="read", gives={200: Manifest})
async def get_manifest(call: ControlCall) -> Response:
    """Get the last committed manifest."""
    return json(await call.quick(call.control.manifest, call.tenant))


@CLIENTS.add(
    "POST", "/tenant/{tenant}/timeline", "changeTimeline", needs="write", takes=TimelineChange,
    gives={200: TimelineInfo},
)  # fmt: skip
async def change_timeline(call: ControlCall) -> Response:
    """Hand a change of the set of timelines to the tenant's node."""
    change = await call.read(TimelineChange)
    return json(await call.transfer(call.control.change_timeline, call.tenant, change))


# ---- the process

SERVICE: Final = Routes[ControlCall]("service")


@SERVICE.add("GET", "/healthcheck", "health", needs=None, gives={200: dict[str, str]})
async def health(call: ControlCall) -> Response:
    """Check that the service answers, and whether it owns the ledger."""
    return json({"status": "standby" if call.site.control is None else "ok", "version": lakebed.__version__})


@SERVICE.add("GET", "/metrics", "metrics", needs=None, gives={200: str})
async def metrics(call: ControlCall) -> Response:
    """Get counters and latencies in Prometheus format."""
    return Response(render(with_names=False), media_type="text/plain; version=0.0.4; charset=utf-8")


@SERVICE.add("GET", "/openapi.json", "openapi", needs=None, gives={200: dict[str, Any]})
async def openapi(call: ControlCall) -> Response:
    """Get the OpenAPI description."""
    return json(description())


ROUTES: Final = {UPCALL_PREFIX: UPCALLS, CONTROL_PREFIX: CONTROLS, CLIENT_PREFIX: CLIENTS, "": SERVICE}


def description() -> dict[str, Any]:
    """The OpenAPI description."""
    name = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
    parts = {
        "tenant": PathParameter("A tenant.", name),
        "node": PathParameter("A node.", name),
        "txn": PathParameter("A transaction's number.", "^[0-9]{1,16}$"),
    }
    title = "The control plane of a fleet."
    return describe(Service("lakebed fleet control", lakebed.__version__, title, parts), ROUTES)


def application(site: ControlSite) -> Gate[TokenCaller, ControlCall]:
    """The ASGI application of a site."""
    return build(site, ROUTES)
