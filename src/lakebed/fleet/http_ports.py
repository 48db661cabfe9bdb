"""The ports of a fleet over HTTP: for its parts among each other, and for clients.

Owns: `Asker`, which sends requests to one part of the fleet at one or several URLs, and `HttpControl`. A call whose
repetition gives the same answer is repeated, within bounds, when no process answered it; errors come back as they were
raised. Invariants: the token is in no error, log or `repr`.

Does not know: what the parts do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError

from lakebed.errors import InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.model import Manifest, NodeRecord, Policy, TenantRecord
from lakebed.fleet.ports import (
    AckReply,
    AckRequest,
    CommitReply,
    CommitRequest,
    ControlPort,
    Event,
    FleetAddress,
    Heartbeat,
    HeartbeatReply,
    Location,
    NodeReport,
    NodeStatus,
    OperatorPort,
    PlacedEvent,
    Route,
    TenantRequest,
    TimelineChange,
    TimelineInfo,
    TransactionList,
)
from lakebed.http.asking import check_endpoint, encoded, error_of, read_reply
from lakebed.runtime import Environment

T = TypeVar("T")

PATIENCE_S: Final = 8.0
"""How long a call is repeated: longer than the lease of a control plane that was killed."""
_CONNECT_S: Final = 1.0
_READ_S: Final = 10.0
_HEARTBEAT_S: Final = 1.0
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_CONNECTIONS_MAX: Final = 64
_PAGE: Final = 1_000
_REPEATED: Final = {"unavailable", "control_standby", "outcome_unknown", "commit_unanswered", "contention", "no_answer"}
"""Kinds of errors after which another process may answer, or the same one later."""


class Asker:
    """Sends requests to a part of a fleet. Thread-safe.

    Args:
        urls: of its processes, several with commas between them: the one that answered last is asked first.
        token: of the fleet; None: it needs none.
        environment: clock and randomness.
        patience_s: how long a call is repeated.

    Raises `InvalidRequest` (``invalid_url``). Cost: no request.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        environment: Environment | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        listed = urls.split(",") if isinstance(urls, str) else urls
        self.endpoints = tuple(check_endpoint(one.strip()) for one in listed if one.strip())
        if not self.endpoints:
            raise InvalidRequest("There is no URL: write http://host:port.", kind="invalid_url")
        self._environment = environment or Environment()
        self._patience_s = patience_s
        self._headers = {
            "user-agent": "lakebed",
            "content-type": "application/json",
            **({"authorization": f"Bearer {token}"} if token else {}),
        }
        self._pool = urllib3.PoolManager(num_pools=len(self.endpoints), maxsize=_CONNECTIONS_MAX)
        self._preferred = 0

    def __repr__(self) -> str:
        return f"Asker({', '.join(self.endpoints)})"

    def close(self) -> None:
        """Close all connections; again is a no-op."""
        self._pool.clear()

    def ask(
        self,
        method: str,
        path: str,
        kind: Any = None,
        body: Any = None,
        *,
        query: dict[str, Any] | None = None,
        again: bool = True,
        read_s: float = _READ_S,
    ) -> Any:
        """One call; its reply, decoded as `kind` (None: it has no body).

        Args:
            body: sent as JSON.
            again: the call may be repeated: its repetition gives the same answer.
            read_s: how long a process may be silent.

        Raises:
            The error of the process that answered; `Unavailable`, or `OutcomeUnknown` when it may have had its effect.
        """
        if query:
            path += "?" + urlencode({name: _text(value) for name, value in query.items()})
        content = None if body is None else msgspec.json.encode(body)
        clock, rng = self._environment.clock, self._environment.rng
        ends_s = clock.monotonic_s() + self._patience_s
        pause_s, turn = _PAUSE_S, 0
        unclear: OutcomeUnknown | None = None
        while True:
            number = (self._preferred + turn) % len(self.endpoints)
            try:
                reply = self.send(self.endpoints[number], method, path, content, again=again, read_s=read_s)
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    if not again:
                        raise
                    unclear = error
                if error.kind not in _REPEATED or clock.monotonic_s() + pause_s >= ends_s:
                    raise (unclear or error) from error
            else:
                self._preferred = number
                return None if kind is None else read_reply(reply.data, kind)
            turn += 1
            if turn % len(self.endpoints) == 0:
                clock.sleep(pause_s * rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def send(
        self, endpoint: str, method: str, path: str, content: bytes | None, *, again: bool, read_s: float
    ) -> urllib3.BaseHTTPResponse:
        """One request to one process. Raises as `ask`."""
        try:
            reply = self._pool.request(
                method,
                endpoint + path,
                body=content,
                headers=self._headers,
                retries=False,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
                redirect=False,
            )
        except HTTPError as error:
            cause = error.reason if isinstance(error, MaxRetryError) else error
            if method == "GET" or isinstance(cause, NewConnectionError):
                raise Unavailable(
                    f"{endpoint} does not answer: check that it runs, then try again.", kind="no_answer"
                ) from error
            raise OutcomeUnknown(
                f"{endpoint} did not answer a request that changes something: it may have happened; look before you "
                "try again.",
                kind="outcome_unknown",
            ) from error
        if reply.status < 300:
            return reply
        raise error_of(reply, endpoint=endpoint, again=again)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class HttpControl(ControlPort, OperatorPort):
    """The control plane behind HTTP. Thread-safe.

    Args:
        urls: of its processes, several with commas between them; heartbeats go to all of them.
        token: of the fleet; None: it needs none.
        environment: clock and randomness.
        patience_s: how long a call is repeated while no process answers.

    Raises `InvalidRequest` (``invalid_url``). Cost: no request.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        environment: Environment | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._asker = Asker(urls, token=token, environment=environment, patience_s=patience_s)

    def __repr__(self) -> str:
        return f"HttpControl({', '.join(self._asker.endpoints)})"

    def close(self) -> None:
        """Close all connections; again is a no-op."""
        self._asker.close()

    # ---- ControlPort

    def register(self, node: NodeRecord) -> None:
        self._asker.ask("POST", "/upcall/v1/register", body=node)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Goes to every process, so that each knows who is alive; one answer is enough."""
        content = msgspec.json.encode(heartbeat)
        replies: list[HeartbeatReply] = []
        failure: LakebedError | None = None
        for endpoint in self._asker.endpoints:
            try:
                reply = self._asker.send(
                    endpoint, "POST", "/upcall/v1/heartbeat", content, again=True, read_s=_HEARTBEAT_S
                )
            except (Unavailable, OutcomeUnknown) as error:
                failure = error
            else:
                replies.append(read_reply(reply.data, HeartbeatReply))
        if not replies:
            raise Unavailable("No control plane answers a heartbeat.", kind="no_answer") from failure
        return HeartbeatReply(
            is_known=all(one.is_known for one in replies),
            report=tuple(dict.fromkeys(tenant for one in replies for tenant in one.report)),
            pause=tuple(dict.fromkeys(tenant for one in replies for tenant in one.pause)),
        )

    def attached(self, report: NodeReport) -> list[Location]:
        return cast(list[Location], self._asker.ask("POST", "/upcall/v1/attached", list[Location], report))

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        return cast(list[CommitReply], self._asker.ask("POST", "/upcall/v1/commit", list[CommitReply], requests))

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        return cast(list[AckReply], self._asker.ask("POST", "/upcall/v1/ack", list[AckReply], requests))

    # ---- OperatorPort

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        asked = TenantRequest(tenant, policy)
        return self._one(TenantRecord, "POST", "/v1/tenant", asked, again=False)

    def delete_tenant(self, tenant: str) -> None:
        self._asker.ask("DELETE", f"/v1/tenant/{encoded(tenant)}")

    def tenants(self) -> list[TenantRecord]:
        """Cost: 1 request a thousand tenants."""
        found: list[TenantRecord] = []
        while True:
            query = {"limit": _PAGE, "after": found[-1].tenant if found else ""}
            page = self._asker.ask("GET", "/v1/tenant", list[TenantRecord], query=query)
            found += page
            if len(page) < _PAGE:
                return found

    def tenant(self, tenant: str) -> TenantRecord:
        return self._one(TenantRecord, "GET", f"/v1/tenant/{encoded(tenant)}")

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        return self._one(TenantRecord, "PUT", f"/control/v1/tenant/{encoded(tenant)}/policy", policy)

    def route(self, tenant: str) -> Route:
        return self._one(Route, "GET", f"/v1/tenant/{encoded(tenant)}/route")

    def change_timeline(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        path = f"/v1/tenant/{encoded(tenant)}/timeline"
        return cast(TimelineInfo, self._asker.ask("POST", path, TimelineInfo, change, read_s=60.0))

    def manifest(self, tenant: str) -> Manifest:
        return self._one(Manifest, "GET", f"/v1/tenant/{encoded(tenant)}/manifest")

    def transactions(self, tenant: str) -> TransactionList:
        return self._one(TransactionList, "GET", f"/control/v1/tenant/{encoded(tenant)}/txns")

    def nodes(self) -> list[NodeStatus]:
        return cast(list[NodeStatus], self._asker.ask("GET", "/control/v1/node", list[NodeStatus]))

    def migrate(self, tenant: str, node: str) -> None:
        self._asker.ask("POST", f"/control/v1/tenant/{encoded(tenant)}/migrate", query={"node": node})

    def attach_reader(self, tenant: str, node: str) -> None:
        self._asker.ask("POST", f"/control/v1/tenant/{encoded(tenant)}/reader", query={"node": node})

    def drain(self, node: str, *, undo: bool = False) -> None:
        self._asker.ask("POST", f"/control/v1/node/{encoded(node)}/drain", query={"undo": undo})

    def decommission(self, node: str) -> None:
        self._asker.ask("POST", f"/control/v1/node/{encoded(node)}/decommission")

    def force_ack(self, tenant: str, txn: int) -> AckReply:
        return self._one(AckReply, "POST", f"/control/v1/txn/{encoded(tenant)}/{txn}/force_ack")

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, Event]]:
        query = {"after": after, "limit": limit}
        found = self._asker.ask("GET", "/control/v1/event", list[PlacedEvent], query=query)
        return [(one.position, one.event) for one in found]

    def address(self) -> FleetAddress:
        return self._one(FleetAddress, "GET", "/v1/fleet")

    def _one(self, kind: type[T], method: str, path: str, body: Any = None, *, again: bool = True) -> T:
        found: T = self._asker.ask(method, path, kind, body, again=again)
        return found
