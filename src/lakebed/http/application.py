"""The ASGI application of a service: its routes, and the replies where there is none.

Owns: how declared endpoints become routes. A route is an ASGI application of its own: handlers read their requests and
encode their replies themselves, with msgspec. One route holds all methods of a path; routes are tried in the order of
declaration, so declare the most frequent first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.call import Call
from lakebed.http.declaration import Route
from lakebed.http.endpoint import EndpointApp
from lakebed.http.errors import error_reply
from lakebed.http.gate import Gate
from lakebed.http.site import Principal, Site

__all__ = ["build"]

P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call)


def build(site: Site[P, C], routes: Mapping[str, Iterable[Route[C]]]) -> Gate[P, C]:
    """The ASGI application that serves a site; `routes` by the prefix of their paths."""
    by_path: dict[str, dict[str, Route[C]]] = {}
    for prefix, declared in routes.items():
        for one in declared:
            by_path.setdefault(prefix + one.endpoint.path, {})[one.endpoint.method] = one
    app = Starlette(
        routes=[
            StarletteRoute(path, EndpointApp(site, path, methods), methods=list(methods))
            for path, methods in by_path.items()
        ],
        exception_handlers={404: _refuse, 405: _refuse},
    )
    app.router.redirect_slashes = False
    return Gate(app, site=site)


async def _refuse(request: Request, error: Exception) -> Response:
    """The router's own refusals, in the shape of every other error."""
    where = f"{request.method} {request.url.path}"
    if isinstance(error, HTTPException) and error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        problem: LakebedError = InvalidRequest(
            f"{where} is not possible: use {allow}.", kind="method_not_allowed", allow=allow
        )
    else:
        problem = NotFound(f"There is nothing at {where}: /openapi.json lists what there is.", kind="no_route")
    reply = error_reply(problem, request_id="")
    response = Response(bytes(memoryview(reply.body)), reply.status)
    response.raw_headers.extend(reply.headers)
    return response
