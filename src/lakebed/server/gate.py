"""The outermost layer: every request gets an id, is counted, timed and written into the access log.

Owns: the ASGI application that is served. Invariants: a request leaves exactly one line, whatever happens to it; an
error that nobody below has made a reply of becomes one here, or, when the reply has begun, ends the connection.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from lakebed.metrics import default_registry
from lakebed.server.access_log import AccessLine
from lakebed.server.endpoint import TRACE, RequestTrace
from lakebed.server.errors import error_reply
from lakebed.server.replies import Receive, Scope, Send
from lakebed.server.site import Site

__all__ = ["Gate"]

_REQUESTS: Final = default_registry.counter(
    "lakebed_server_requests_total",
    help_text="Requests by method, route and status.",
    label_names=("method", "route", "status"),
)
_SECONDS: Final = default_registry.histogram(
    "lakebed_server_request_seconds",
    help_text="From a request's headers to the last byte of its reply.",
    label_names=("method", "route"),
)
_METHODS: Final = {"GET", "HEAD", "PUT", "POST", "DELETE"}
_NOWHERE: Final = "(none)"
_OBJECT_CHARACTERS_MAX: Final = 1_024


class Gate:
    """The server as an ASGI application, around the application with the routes."""

    def __init__(self, inner: Any, *, site: Site) -> None:
        self._inner = inner
        self._site = site
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the life of the process."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._site.live(receive, send)
        else:  # web sockets: there are none
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        site, clock = self._site, self._site.environment.clock
        started_s = clock.monotonic_s()
        self._number += 1
        trace = RequestTrace(f"{site.instance}-{self._number:x}")
        scope[TRACE] = trace
        began = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                trace.status = trace.status or message["status"]
            await send(message)

        site.running += 1
        try:
            await self._inner(scope, receive, watched)
        except asyncio.CancelledError:
            trace.error = "cancelled"
            raise
        except Exception as error:
            trace.error = "".join(traceback.format_exception(error))
            if began:
                raise  # half a reply is out: the connection must not look as if it were a whole one
            reply = error_reply(error, request_id=trace.request_id, root_url=self._site.repositories.url)
            trace.status = reply.status
            await reply.send(send)
        finally:
            site.running -= 1
            self._note(scope, trace, seconds=clock.monotonic_s() - started_s)

    def _note(self, scope: Scope, trace: RequestTrace, *, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else _NOWHERE  # labels must not grow without end
        route = trace.route or _NOWHERE
        _REQUESTS.add(1, method, route, str(trace.status))
        _SECONDS.observe(seconds, method, route)
        log = self._site.access_log
        if log is None:
            return
        client = scope.get("client")
        log.add(
            AccessLine(
                time=_shown_time(self._site.environment.clock.now_ms()),
                request_id=trace.request_id,
                client=client[0] if client else "",
                method=scope["method"],
                path=quote(scope["path"], safe="/~^@$"),
                status=trace.status,
                ms=round(seconds * 1000, 3),
                bytes_out=trace.bytes_out,
                access_key=trace.access_key,
                object=_object_of(scope["query_string"]),
                error=trace.error,
            )
        )


def _shown_time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _object_of(query: bytes) -> str:
    """The query's ``path``; everything else of a query may be a signature, and is not told."""
    for part in query.split(b"&"):
        if part.startswith(b"path="):
            shown = unquote_to_bytes(part[5:].replace(b"+", b" ")).decode(errors="replace")
            return shown[:_OBJECT_CHARACTERS_MAX]
    return ""
