"""The application: FastAPI with our routes, and what it says where there is none.

Owns: how declared endpoints become routes. Handlers read their requests themselves and encode their replies with
msgspec, so that the paths that are called most cost least: a route is an ASGI application of its own, without the
framework's reading of signatures; one route holds all methods of a path; and routes are tried in the order in which
they are declared, the busiest first.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.server.endpoint import Endpoint, EndpointApp
from lakebed.server.errors import error_reply
from lakebed.server.gate import Gate
from lakebed.server.openapi import describe
from lakebed.server.routes import ENDPOINTS, PREFIX, ROOT_ENDPOINTS
from lakebed.server.site import Site

__all__ = ["build", "description"]


def description() -> dict[str, Any]:
    """The OpenAPI description."""
    found = describe(ENDPOINTS, prefix=PREFIX)
    found["paths"] |= describe(ROOT_ENDPOINTS, prefix="")["paths"]
    return found


def build(site: Site) -> Gate:
    """The ASGI application that serves a site."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = site.description  # type: ignore[method-assign]
    by_path: dict[str, dict[str, Endpoint]] = {}
    for prefix, endpoints in ((PREFIX, ENDPOINTS), ("", ROOT_ENDPOINTS)):
        for one in endpoints:
            by_path.setdefault(prefix + one.path, {})[one.method] = one
    for path, methods in by_path.items():
        app.add_route(path, EndpointApp(site, path, methods), methods=list(methods))  # type: ignore[arg-type]
    for status in (404, 405):
        app.add_exception_handler(status, _explain)
    return Gate(app, site=site)


async def _explain(request: Request, error: Any) -> Response:
    """What the router has to say, in the shape of every other error."""
    where = f"{request.method} {request.url.path}"
    if error.status_code == 405:
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
