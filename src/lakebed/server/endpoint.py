"""An endpoint: its path, its handler, who may call it, and what it takes and gives, declared in one place.

Owns: the declaration from which both the route and its OpenAPI description are made, and what happens around every
handler: authentication, the check of roles, the line of the audit log, and errors becoming replies.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from lakebed.errors import LakebedError
from lakebed.server.audit import AuditLine
from lakebed.server.auth import check_role
from lakebed.server.call import Call, ClientGone
from lakebed.server.errors import error_reply, status_of
from lakebed.server.keys import Principal, Role
from lakebed.server.replies import Receive, Reply, Scope, Send, StreamedReply
from lakebed.server.site import Site

__all__ = ["TRACE", "Endpoint", "EndpointApp", "Parameter", "RequestTrace", "endpoint"]

Handler = Callable[[Call], Awaitable[Reply | StreamedReply]]

TRACE: Final = "lakebed.trace"
"""Where the scope of a request holds its `RequestTrace`."""


@dataclass(slots=True)
class RequestTrace:
    """What the access log wants to know of a request, filled in as it goes along."""

    request_id: str
    route: str = ""
    access_key: str = ""
    error: str = ""
    status: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query, or a header."""

    name: str
    description: str
    kind: Literal["string", "integer", "boolean"] = "string"
    required: bool = False
    place: Literal["query", "header"] = "query"
    bounds: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """One operation of the interface.

    Attributes:
        path: with parameters in braces; ``{ref:path}`` may hold slashes.
        name: the operation's id.
        needs: the least role; None: anybody, without authentication.
        takes: the struct of the JSON body, or ``bytes`` for a raw one; None: no body.
        body_required: whether the body may be absent.
        gives: status to the struct of its JSON body, ``str`` or ``bytes``, or None for an empty one.
        audited: whether the audit log has a line of it.
        statuses: kinds of errors that clients expect another status of than `lakebed.server.errors` gives.
    """

    method: str
    path: str
    name: str
    handler: Handler
    summary: str
    tag: str
    needs: Role | None
    takes: Any = None
    body_required: bool = True
    gives: Mapping[int, Any] = None  # type: ignore[assignment]
    parameters: tuple[Parameter, ...] = ()
    audited: bool = False
    statuses: Mapping[str, int] = field(default_factory=dict)


def endpoint(
    registry: list[Endpoint],
    method: str,
    path: str,
    *,
    name: str,
    tag: str,
    needs: Role | None,
    gives: Mapping[int, Any],
    takes: Any = None,
    body_required: bool = True,
    parameters: tuple[Parameter, ...] = (),
    audited: bool = False,
    statuses: Mapping[str, int] = {},
) -> Callable[[Handler], Handler]:
    """Declare a handler; the first line of its docstring is the summary. Arguments as `Endpoint` has them."""

    def declare(handler: Handler) -> Handler:
        summary = (handler.__doc__ or "").strip().split("\n")[0]
        registry.append(
            Endpoint(
                method,
                path,
                name,
                handler,
                summary,
                tag,
                needs,
                takes,
                body_required,
                gives,
                parameters,
                audited,
                statuses,
            )
        )
        return handler

    return declare


class EndpointApp:
    """The ASGI application of one path: its endpoints by method."""

    def __init__(self, site: Site, template: str, endpoints: Mapping[str, Endpoint]) -> None:
        self._site = site
        self._template = template
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        trace: RequestTrace = scope[TRACE]
        method = scope["method"]
        trace.route = self._template
        statuses: Mapping[str, int] = {}
        try:
            found = self._endpoints["GET" if method == "HEAD" and method not in self._endpoints else method]
            statuses = found.statuses
            principal = None if found.needs is None else await self._authenticate(scope, found, trace)
            call = Call(self._site, scope, receive, principal=principal, request_id=trace.request_id)
            reply = await found.handler(call)
            if found.audited and reply.status < 300 and principal is not None:
                await self._audit(call, found, reply.status, principal)
        except ClientGone:
            trace.status, trace.error = 499, "client_gone"
            return
        except Exception as error:
            reply = self._explain(error, trace, statuses=statuses)
        reply.headers.append((b"x-request-id", trace.request_id.encode()))
        trace.status = reply.status
        trace.bytes_out = await reply.send(send, with_body=method != "HEAD")

    async def _authenticate(self, scope: Scope, found: Endpoint, trace: RequestTrace) -> Principal:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        principal = await self._site.principal_of(header)
        trace.access_key = principal.id
        assert found.needs is not None
        check_role(principal, needed=found.needs, repository=scope["path_params"].get("repository"))
        return principal

    async def _audit(self, call: Call, found: Endpoint, status: int, principal: Principal) -> None:
        parts = call.path
        subject = call.subject or next((parts[name] for name in ("branch", "tag", "access_key") if name in parts), "")
        line = AuditLine(
            self._site.environment.clock.now_ms(),
            principal.id,
            found.name,
            parts.get("repository", ""),
            subject,
            status,
            call.request_id,
        )
        try:
            await call.quick(self._site.audit.append, line)
        except LakebedError as error:  # the change is made, and its reply must say so
            self._site.complain(f"no audit line of {found.name}: {error}", request_id=call.request_id)

    def _explain(self, error: Exception, trace: RequestTrace, *, statuses: Mapping[str, int]) -> Reply:
        if isinstance(error, LakebedError) and status_of(error) != 500:
            trace.error = error.kind
        else:
            trace.error = "".join(traceback.format_exception(error))
        root_url = self._site.repositories.url
        return error_reply(error, request_id=trace.request_id, statuses=statuses, root_url=root_url)
