"""The outermost layer: every request gets an id, is counted, timed and written into the access log.

Owns: the ASGI application that is served. Invariants: every request writes exactly one line, however it ends; an error
that no inner layer turned into a reply becomes a reply here or, when the reply has begun, ends the connection.
"""

from __future__ import annotations

import asyncio
import traceback
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar
from urllib.parse import quote, unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakebed.http.access_log import TRACE, AccessLine, RequestTrace
from lakebed.http.call import Call
from lakebed.http.site import Principal, Site
from lakebed.metrics import default_registry

_REQUESTS: Final = default_registry.counter(
    "lakebed_http_requests_total",
    help_text="Requests by method, route and status.",
    label_names=("method", "route", "status"),
)
_SECONDS: Final = default_registry.histogram(
    "lakebed_http_request_seconds",
    help_text="From a request's headers to the last byte of its reply.",
    label_names=("method", "route"),
)
_METHODS: Final = {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"}
_NOWHERE: Final = "(none)"
_OBJECT_CHARACTERS_MAX: Final = 1_024


P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call)


class Gate(Generic[P, C]):
    """A service as an ASGI application, around the application with the routes."""

    def __init__(self, inner: ASGIApp, *, site: Site[P, C]) -> None:
        self._inner = inner
        self._site = site
        self._serving = site.serving
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan of the process."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serving.run_lifespan(receive, send)
        else:  # web sockets are not served
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, clock = self._serving, self._serving.environment.clock
        started_s = clock.monotonic_s()
        self._number += 1
        trace = RequestTrace(f"{serving.instance}-{self._number:x}")
        scope[TRACE] = trace
        began = False

        async def watch_and_send(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                trace.status = message["status"]
            else:
                trace.bytes_out += len(message["body"])
            await send(message)

        serving.running += 1
        try:
            await self._inner(scope, receive, watch_and_send)
        except asyncio.CancelledError:
            trace.error = "cancelled"
            raise
        except Exception as error:
            trace.error = "".join(traceback.format_exception(error))
            if began:
                raise  # part of a reply was sent: end the connection, so that the client sees that it is incomplete
            reply = self._site.error_reply(error, request_id=trace.request_id, statuses={})
            await reply(scope, receive, watch_and_send)
        finally:
            serving.running -= 1
            self._note(scope, trace, seconds=clock.monotonic_s() - started_s)

    def _note(self, scope: Scope, trace: RequestTrace, *, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else _NOWHERE  # the number of labels is bounded
        route = trace.route or _NOWHERE
        _REQUESTS.add(1, method, route, str(trace.status))
        _SECONDS.observe(seconds, method, route)
        log = self._serving.access_log
        if log is None:
            if trace.status == 500:  # the reply says that the log has the reason
                self._serving.log_problem(trace.error, request_id=trace.request_id)
            return
        client = scope.get("client")
        log.add(
            AccessLine(
                time=_format_time(self._serving.environment.clock.now_ms()),
                request_id=trace.request_id,
                client=client[0] if client else "",
                method=scope["method"],
                path=quote(scope["path"], safe="/~^@$"),
                status=trace.status,
                ms=round(seconds * 1000, 3),
                bytes_out=0 if scope["method"] == "HEAD" else trace.bytes_out,
                access_key=trace.access_key,
                object=_object_of(scope["query_string"]),
                error=trace.error,
            )
        )


def _format_time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _object_of(query: bytes) -> str:
    """The value of ``path`` in a query. The rest is not logged: it may hold a signature."""
    for part in query.split(b"&"):
        if part.startswith(b"path="):
            object_path = unquote_to_bytes(part[5:].replace(b"+", b" ")).decode(errors="replace")
            return object_path[:_OBJECT_CHARACTERS_MAX]
    return ""
