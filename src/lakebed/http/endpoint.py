"""The steps around every handler: authentication, authorization, auditing, and replies to errors."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakebed.errors import LakebedError
from lakebed.http.access_log import TRACE, RequestTrace
from lakebed.http.call import Call, ClientGone
from lakebed.http.declaration import Endpoint, Route
from lakebed.http.replies import empty, json, send_reply
from lakebed.http.site import Change, Principal, Site
from lakebed.objects.reserve import freeing_space

P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call)


def reply_of(answer: Any, endpoint: Endpoint) -> Response:
    """The reply for what a handler returned (`Handler`)."""
    if isinstance(answer, Response):
        return answer
    status, kind = next(iter(endpoint.gives.items()))
    return empty(status) if kind is None else json(answer, status)


class EndpointApp(Generic[P, C]):
    """The ASGI application of one path."""

    def __init__(self, site: Site[P, C], template: str, routes: Mapping[str, Route[C]]) -> None:
        self._site = site
        self._template = template
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        trace: RequestTrace = scope[TRACE]
        method = scope["method"]
        trace.route = self._template
        endpoint: Endpoint | None = None
        late: Change | None = None
        try:
            route = self._routes["GET" if method == "HEAD" and method not in self._routes else method]
            endpoint = route.endpoint
            principal = None if endpoint.needs is None else await self._authenticate(scope, endpoint, trace)
            call = self._site.new_call(scope, receive, principal=principal, request_id=trace.request_id)
            body = (await call.read(endpoint.takes),) if route.reads_body else ()
            answer = call.quick(route.handler, call, *body) if route.is_quick else route.handler(call, *body)
            reply = reply_of(await answer, endpoint)
            if endpoint.audited and reply.status_code < 300 and principal is not None:
                change = Change(endpoint, principal.id, call.path, call.subject, reply.status_code, call.request_id)
                if endpoint.audited_after:
                    late = change
                else:
                    await self._audit(change)
        except ClientGone:
            trace.status, trace.error = 499, "client_gone"
            return
        except Exception as error:
            reply = self._explain(error, trace, endpoint)
        reply.raw_headers.append((b"x-request-id", trace.request_id.encode()))
        try:
            trace.sent(reply.status_code, await send_reply(reply, scope, receive, send))
        finally:
            if late is not None:
                await self._audit(late)

    async def _authenticate(self, scope: Scope, endpoint: Endpoint, trace: RequestTrace) -> P:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        with freeing_space() if endpoint.frees_space else nullcontext():
            principal = await self._site.authenticate(header)
        trace.access_key = principal.id
        self._site.authorize(principal, endpoint, scope)
        return principal

    async def _audit(self, change: Change) -> None:
        try:
            await self._site.audit(change)
        except LakebedError as error:  # the change has been made, and its reply must say so
            problem = f"no audit line of {change.endpoint.name}: {error}"
            self._site.serving.log_problem(problem, request_id=change.request_id)

    def _explain(self, error: Exception, trace: RequestTrace, endpoint: Endpoint | None) -> Response:
        form = None if endpoint is None else endpoint.errors
        statuses = {} if endpoint is None else endpoint.statuses
        if form is not None:
            statuses = {**form.statuses, **statuses}
        reply = self._site.error_reply(error, request_id=trace.request_id, statuses=statuses)
        if form is not None:
            reply = form.reshape(error, reply)
        if isinstance(error, LakebedError) and reply.status_code != 500:
            trace.error = error.kind
        else:
            trace.error = "".join(traceback.format_exception(error))
        return reply
