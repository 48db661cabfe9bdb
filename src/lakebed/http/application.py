"""The ASGI application of a service: its routes, and the replies where there is none.

Owns: how declared endpoints become routes. A route is an ASGI application of its own: handlers read their requests and
encode their replies themselves, with msgspec. One route holds all methods of a path; routes are tried in the order of
declaration, so declare the most frequent first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.call import Call
from lakebed.http.declaration import Route
from lakebed.http.endpoint import EndpointApp
from lakebed.http.errors import error_reply
from lakebed.http.gate import Gate
from lakebed.http.site import Principal, Site

P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call)


class Claiming(Protocol):
    """An ASGI application next to the routes, for the requests that it claims."""

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for this application, whatever its path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


def build(
    site: Site[P, C], routes: Mapping[str, Iterable[Route[C]]], *, claiming: Claiming | None = None
) -> Gate[P, C]:
    """The ASGI application that serves a site.

    A path is looked up among the routes of the longest prefix that it has, so one interface does not slow another.

    Args:
        routes: by the prefix of their paths.
        claiming: is asked first; None: all requests go to the routes.
    """
    routers = {prefix: _router(site, prefix, routes[prefix]) for prefix in sorted(routes, key=len, reverse=True)}
    nowhere = Router(redirect_slashes=False)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if claiming is not None and claiming.claims(scope):
            await claiming(scope, receive, send)
            return
        scope["app"] = application  # with it, the router raises its refusals
        path = scope["path"]
        router = next((routers[prefix] for prefix in routers if path.startswith(f"{prefix}/")), nowhere)
        try:
            await router(scope, receive, send)
        except HTTPException as refusal:
            where = f"{scope['method']} {scope['path']}"
            await error_reply(_router_error(where, refusal), request_id="")(scope, receive, send)

    return Gate(application, site=site)


def _router(site: Site[P, C], prefix: str, routes: Iterable[Route[C]]) -> Router:
    """One route a path, with all its methods."""
    by_path: dict[str, dict[str, Route[C]]] = {}
    for route in routes:
        by_path.setdefault(prefix + route.endpoint.path, {})[route.endpoint.method] = route
    return Router(
        [
            StarletteRoute(path, EndpointApp(site, path, methods), methods=list(methods))
            for path, methods in by_path.items()
        ],
        redirect_slashes=False,
    )


def _router_error(where: str, refusal: HTTPException) -> LakebedError:
    """A refusal of the router as an error of ours."""
    if refusal.status_code == 405:
        allow = (refusal.headers or {}).get("Allow", "")
        return InvalidRequest(f"{where} is not supported: use {allow}.", kind="method_not_allowed", allow=allow)
    return NotFound(f"There is no route {where}: see /openapi.json.", kind="no_route")
