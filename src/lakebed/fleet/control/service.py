"""The control plane as an HTTP service: its part of `lakebed.http`, and its routes.

Owns: the site, the only token, and the path of each call. While this process does not own the ledger
(`lakebed.fleet.control.serve`), every call gets the status 503 (``control_standby``), and callers try another URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.errors import Closed, Fenced, InvalidRequest, Unavailable
from lakebed.fleet import layout, ports
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.model import Manifest, NodeRecord, Policy, TenantRecord
from lakebed.fleet.service import NAME_PATTERN, FleetCall, FleetSite, add_process_routes
from lakebed.http.asking import check_endpoint
from lakebed.http.authentication import TokenCaller
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.openapi import PathParameter
from lakebed.http.serving import Serving

UPCALL_PREFIX: Final = "/upcall/v1"
CONTROL_PREFIX: Final = "/control/v1"
CLIENT_PREFIX: Final = "/v1"
PAGE_COUNT_MAX: Final = 1_000
"""Most tenants or events of one reply."""
_TXN_DIGITS: Final = 16


class ControlSite(FleetSite["ControlCall"]):
    """The site of a control plane. Also takes the arguments of `FleetSite`.

    Args:
        known: where storage and log are; None: only the control plane knows.

    Attributes:
        control: the control plane that is served; None: another process owns the ledger.
    """

    title = "The control plane"

    def __init__(self, serving: Serving, *, token: str | None, known: ports.FleetAddress | None = None) -> None:
        super().__init__(serving, token=token)
        self._known = known
        self.control: ControlPlane | None = None

    def require_control(self) -> ControlPlane:
        """Return the control plane. Raises `Unavailable` (``control_standby``)."""
        if self.control is None:
            raise Unavailable(
                "This process waits to take over the ledger from its owner: ask the owner, or try again.",
                kind="control_standby",
            )
        return self.control

    def address(self) -> ports.FleetAddress:
        """Return where storage and log are. Raises as `require_control` and `ControlPlane.address`."""
        return self._known or self.require_control().address()

    def new_call(
        self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str
    ) -> ControlCall:
        """Make the object that handlers take."""
        return ControlCall(self, scope, receive, request_id=request_id)

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """As `FleetSite`. A lost ledger also makes this process a standby."""
        if isinstance(error, Fenced | Closed):
            self.on_fenced()
            error = Unavailable("Another process has taken over the ledger: ask it.", kind="control_standby")
        return super().error_reply(error, request_id=request_id, statuses=statuses)

    def health(self) -> dict[str, str]:
        """Report whether this process owns the ledger."""
        return {"status": "standby" if self.control is None else "ok"}


class ControlCall(FleetCall[ControlSite]):
    """A request to a control plane."""

    __slots__ = ()

    @property
    def control(self) -> ControlPlane:
        """The control plane. Raises `Unavailable` (``control_standby``)."""
        return self.site.require_control()

    @property
    def tenant(self) -> str:
        """The tenant in the path. Raises `InvalidRequest`."""
        return layout.check_name(self.path["tenant"], what="tenant")

    @property
    def node(self) -> str:
        """The node in the path. Raises `InvalidRequest`."""
        return layout.check_name(self.path["node"], what="node")

    @property
    def txn(self) -> int:
        """The transaction in the path. Raises `InvalidRequest` (``invalid_transaction``)."""
        text = self.path["txn"]
        if not (text.isascii() and text.isdigit() and len(text) <= _TXN_DIGITS):
            raise InvalidRequest(f"{text!r} is not a transaction: use its number.", kind="invalid_transaction")
        return int(text)


# ---- nodes

UPCALLS: Final = Routes[ControlCall]("upcalls")


@UPCALLS.add("POST", "/commit", "commit", needs="write")
async def commit(call: ControlCall, requests: list[ports.CommitRequest]) -> list[ports.CommitReply]:
    """Decide a batch of requests to commit; the replies are in their order."""
    return await call.quick(call.control.commit, requests)


@UPCALLS.add("POST", "/heartbeat", "heartbeat", needs="write")
async def heartbeat(call: ControlCall, body: ports.Heartbeat) -> ports.HeartbeatReply:
    """Say that a node is alive."""
    return await call.quick(call.control.heartbeat, body)


@UPCALLS.add("POST", "/ack", "ack", needs="write")
async def ack(call: ControlCall, requests: list[ports.AckRequest]) -> list[ports.AckReply]:
    """Acknowledge a batch of rejections; the replies are in their order."""
    return await call.quick(call.control.ack, requests)


@UPCALLS.add("POST", "/attached", "attached", needs="write")
async def attached(call: ControlCall, body: ports.NodeReport) -> list[ports.Location]:
    """Get what a node has, after the start of its process."""
    return await call.quick(call.control.attached, body)


@UPCALLS.add("POST", "/register", "register", needs="write")
async def register(call: ControlCall, node: NodeRecord) -> None:
    """Make a node known, with a new incarnation."""
    check_endpoint(node.url)
    await call.quick(call.control.register, node)


# ---- operators

CONTROLS: Final = Routes[ControlCall]("operators")


@CONTROLS.add("GET", "/node", "listNodes", needs="read")
async def list_nodes(call: ControlCall) -> list[ports.NodeStatus]:
    """List the nodes."""
    return await call.quick(call.control.nodes)


@CONTROLS.add(
    "POST",
    "/node/{node}/drain",
    "drain",
    needs="admin",
    parameters=(Parameter("undo", "Let the node have tenants again, and move them back.", "boolean"),),
)
async def drain(call: ControlCall) -> None:
    """Move all tenants off a node, one by one."""
    await call.quick(call.control.drain, call.node, undo=call.flag("undo"))


@CONTROLS.add("POST", "/node/{node}/decommission", "decommission", needs="admin")
async def decommission(call: ControlCall) -> None:
    """Acknowledge for a node that will never write again."""
    await call.quick(call.control.decommission, call.node)


_NODE: Final = Parameter("node", "The node.", required=True)


@CONTROLS.add("POST", "/tenant/{tenant}/migrate", "migrate", needs="admin", parameters=(_NODE,))
async def migrate(call: ControlCall) -> None:
    """Begin to move a tenant to a node."""
    node = layout.check_name(call.required("node"), what="node")
    await call.quick(call.control.migrate, call.tenant, node)


@CONTROLS.add("POST", "/tenant/{tenant}/reader", "attachReader", needs="admin", parameters=(_NODE,))
async def attach_reader(call: ControlCall) -> None:
    """Attach a tenant to a further node, read-only."""
    node = layout.check_name(call.required("node"), what="node")
    await call.quick(call.control.attach_reader, call.tenant, node)


@CONTROLS.add("PUT", "/tenant/{tenant}/policy", "setPolicy", needs="admin")
async def set_policy(call: ControlCall, policy: Policy) -> TenantRecord:
    """Replace a tenant's settings."""
    return await call.quick(call.control.set_policy, call.tenant, policy)


@CONTROLS.add("GET", "/tenant/{tenant}/txns", "listTransactions", needs="read")
async def list_transactions(call: ControlCall) -> ports.TransactionList:
    """List the transactions of a tenant."""
    return await call.quick(call.control.transactions, call.tenant)


@CONTROLS.add("POST", "/txn/{tenant}/{txn}/force_ack", "forceAck", needs="admin")
async def force_ack(call: ControlCall) -> ports.AckReply:
    """Acknowledge one rejected transaction for its node."""
    return await call.quick(call.control.force_ack, call.tenant, call.txn)


_LIMIT: Final = Parameter("limit", "At most so many.", "integer", bounds=(1, PAGE_COUNT_MAX))


@CONTROLS.add(
    "GET", "/event", "listEvents", needs="read", parameters=(Parameter("after", "Behind this position."), _LIMIT)
)
async def list_events(call: ControlCall) -> list[ports.PlacedEvent]:
    """List events, oldest first."""
    limit = call.integer("limit", default=PAGE_COUNT_MAX, low=1, high=PAGE_COUNT_MAX)
    events = await call.quick(call.control.events, after=call.query.get("after", ""), limit=limit)
    return [ports.PlacedEvent(position, event) for position, event in events]


# ---- clients

CLIENTS: Final = Routes[ControlCall]("tenants")


@CLIENTS.add("GET", "/tenant/{tenant}/route", "route", needs="read")
async def route(call: ControlCall) -> ports.Route:
    """Find where a tenant is."""
    return await call.quick(call.control.route, call.tenant)


@CLIENTS.add("GET", "/fleet", "fleet", needs="read")
async def fleet(call: ControlCall) -> ports.FleetAddress:
    """Find where storage and log are. A standby answers too."""
    return call.site.address()


@CLIENTS.add(
    "GET", "/tenant", "listTenants", needs="read", parameters=(Parameter("after", "Behind this tenant."), _LIMIT)
)
async def list_tenants(call: ControlCall) -> list[TenantRecord]:
    """List tenants, by name."""
    limit = call.integer("limit", default=PAGE_COUNT_MAX, low=1, high=PAGE_COUNT_MAX)
    return await call.quick(call.control.some_tenants, after=call.query.get("after", ""), limit=limit)


@CLIENTS.add("POST", "/tenant", "createTenant", needs="write", gives={201: TenantRecord})
async def create_tenant(call: ControlCall, asked: ports.TenantRequest) -> TenantRecord:
    """Make a tenant and attach it."""
    return await call.quick(call.control.create_tenant, asked.tenant, asked.policy)


@CLIENTS.add("GET", "/tenant/{tenant}", "getTenant", needs="read")
async def get_tenant(call: ControlCall) -> TenantRecord:
    """Get the record of a tenant."""
    return await call.quick(call.control.tenant, call.tenant)


@CLIENTS.add("DELETE", "/tenant/{tenant}", "deleteTenant", needs="admin", gives={202: None})
async def delete_tenant(call: ControlCall) -> None:
    """Detach a tenant, and delete its objects and logs."""
    await call.quick(call.control.delete_tenant, call.tenant)


@CLIENTS.add("GET", "/tenant/{tenant}/manifest", "getManifest", needs="read")
async def get_manifest(call: ControlCall) -> Manifest:
    """Get the last committed manifest."""
    return await call.quick(call.control.manifest, call.tenant)


@CLIENTS.add("POST", "/tenant/{tenant}/timeline", "changeTimeline", needs="write")
async def change_timeline(call: ControlCall, change: ports.TimelineChange) -> ports.TimelineInfo:
    """Hand a change of the set of timelines to the tenant's node."""
    return await call.transfer(call.control.change_timeline, call.tenant, change)


ROUTES: Final = {UPCALL_PREFIX: UPCALLS, CONTROL_PREFIX: CONTROLS, CLIENT_PREFIX: CLIENTS}

_PARTS: Final = {
    "tenant": PathParameter("A tenant.", f"^{NAME_PATTERN}$"),
    "node": PathParameter("A node.", f"^{NAME_PATTERN}$"),
    "txn": PathParameter("A transaction's number.", "^[0-9]{1,16}$"),
}
description: Final = add_process_routes(ROUTES, "lakebed fleet control", "The control plane of a fleet.", _PARTS)
