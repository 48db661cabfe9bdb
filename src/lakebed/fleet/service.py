"""The common parts of a fleet's three services: one token for all callers, routes about the process, how it runs.

Owns: `FleetSite` and `FleetCall`, which control plane, node and log extend; `ServiceSettings`; `run_service` and
`start_service`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope

import lakebed
from lakebed.http import errors
from lakebed.http.application import build
from lakebed.http.authentication import TokenCaller, check_token
from lakebed.http.call import Call
from lakebed.http.declaration import Endpoint, Route, Routes
from lakebed.http.listening import bind, check_host, url_of
from lakebed.http.memory import save_memory
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer, serve
from lakebed.http.replies import json
from lakebed.http.serving import Serving
from lakebed.http.site import Change
from lakebed.metrics import render
from lakebed.runtime import Environment

NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
"""Pattern of names in paths, for descriptions."""
_CALLER: Final = TokenCaller("fleet")
_DEFAULT_HTTP: Final = HttpOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The settings that every process of a fleet has.

    Attributes:
        token: the fleet's token, which the process expects and sends; None: it has none.
        storage_options: settings of the object store.
        durable: whether a write is synced before it is acknowledged.
        access_log: as `Serving.open` takes it.
        allow_remote: listen without a certificate at an address that other machines can reach.
    """

    token: str | None = None
    storage_options: Mapping[str, str] | None = None
    durable: bool = True
    access_log: str | None = None
    allow_remote: bool = False
    http: HttpOptions = _DEFAULT_HTTP


C = TypeVar("C", bound=Call)


class FleetSite(Generic[C]):
    """One part of a fleet, as `lakebed.http` serves it.

    Args:
        serving: limits, threads and logs.
        token: callers must send ``Authorization: Bearer <token>``; None: they need none.

    Attributes:
        on_fenced: called when another process has taken over what is served.
        on_close: called when no request runs any longer.
    """

    title: ClassVar[str]
    """Title in messages, such as ``The log``."""
    statuses: ClassVar[Mapping[str, int]] = {}
    """HTTP statuses of kinds of errors that differ from the general table."""

    def __init__(self, serving: Serving, *, token: str | None) -> None:
        self.serving = serving
        self._token = token
        self.on_fenced: Callable[[], None] = _nothing
        self.on_close: Callable[[], None] = _nothing

    async def authenticate(self, header: bytes | None) -> TokenCaller:
        """Return the caller that sends the token. Raises `InvalidRequest` (``unauthorized``)."""
        check_token(header, self._token, service=self.title)
        return _CALLER

    def authorize(self, principal: TokenCaller, endpoint: Endpoint, scope: Scope) -> None:
        """Allow everything: a caller with the token has all permissions."""

    def new_call(self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str) -> C:
        """Make the object that handlers take."""
        raise NotImplementedError

    async def audit(self, change: Change) -> None:
        """Do nothing: ledger and log record the changes."""

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """Return the reply to an error, by the general table of statuses and the service's own."""
        return errors.error_reply(error, request_id=request_id, statuses={**self.statuses, **statuses})

    def health(self) -> dict[str, str]:
        """Return the process's answer to a health check, in addition to its version."""
        return {"status": "ok"}

    def close(self) -> None:
        """Wait for running calls. Then close what is served, and the access log last."""
        self.serving.pools.close()
        try:
            self.on_close()
        finally:
            self.serving.close_log()


def _nothing() -> None:
    """Do nothing."""


S = TypeVar("S", bound=FleetSite[Any])


class FleetCall(Call, Generic[S]):
    """A request to a service."""

    __slots__ = ("site",)

    def __init__(self, site: S, scope: Scope, receive: Receive, *, request_id: str) -> None:
        super().__init__(site.serving, scope, receive, request_id=request_id)
        self.site = site


F = TypeVar("F", bound=FleetCall[Any])


def add_process_routes(
    routes: dict[str, Routes[F]], title: str, summary: str, parts: Mapping[str, PathParameter]
) -> Callable[[], dict[str, Any]]:
    """Add the routes about the process itself. Return the function that makes the OpenAPI description of all routes.

    Args:
        routes: the service's routes, by the prefix of their paths.
        title: the title of the description, with a sentence as its `summary`.
        parts: the variable parts of paths.
    """
    about = routes[""] = Routes[F]("service")

    def description() -> dict[str, Any]:
        """Return the OpenAPI description."""
        route_lists: Mapping[str, Iterable[Route[Any]]] = routes
        return describe(Service(title, lakebed.__version__, summary, parts), route_lists)

    @about.add("GET", "/healthcheck", "health", needs=None, gives={200: dict[str, str]})
    async def health(call: F) -> Response:
        """Check that the service answers, and whether it owns what it serves."""
        return json({**call.site.health(), "version": lakebed.__version__})

    @about.add("GET", "/metrics", "metrics", needs=None, gives={200: str})
    async def metrics(call: F) -> Response:
        """Get counters and latencies in Prometheus format."""
        return Response(render(with_names=False), media_type="text/plain; version=0.0.4; charset=utf-8")

    @about.add("GET", "/openapi.json", "openapi", needs=None, gives={200: dict[str, Any]})
    async def openapi(call: F) -> Response:
        """Get the OpenAPI description."""
        return json(description())

    return description


def open_serving(
    name: str, settings: ServiceSettings, endpoint: str, *, environment: Environment, reads_inline: bool = False
) -> Serving:
    """Open what a process needs to answer at `endpoint`. `name` is the prefix of its messages on standard error."""
    return Serving.open(
        name,
        options=settings.http,
        environment=environment,
        authority=endpoint.partition("://")[2],
        reads_inline=reads_inline,
        access_log=settings.access_log,
    )


class RunningService(RunningServer[TokenCaller, C]):
    """A part of a fleet, served by a thread of this process.

    Attributes:
        endpoint: its URL.
    """

    def __init__(self, site: FleetSite[C], routes: Mapping[str, Routes[C]], listener: socket.socket, url: str) -> None:
        self.endpoint = url
        super().__init__(build(site, routes), site, listener)


def run_service(
    open_site: Callable[[str, Environment], FleetSite[C]],
    routes: Mapping[str, Routes[C]],
    settings: ServiceSettings,
    *,
    host: str,
    port: int,
    started: Callable[[str], None] | None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 0.

    Args:
        open_site: opens what is served at a URL. Called after the address is bound.
        routes: the routes, by the prefix of their paths.
        host: the address to listen on. One that other machines can reach needs `ServiceSettings.allow_remote`.
        port: 0: a free one.
        started: receives the URL once the process answers; None: print it.

    Raises:
        InvalidRequest: kind ``remote_host``, ``invalid_address``; or as `open_site`.
        Unavailable: kind ``port_in_use``; or as `open_site`.
    """
    check_host(host, allow_remote=settings.allow_remote, tls=settings.http.tls)
    save_memory()
    with bind(host, port, backlog=settings.http.backlog) as listener:
        endpoint = url_of(host, listener, tls=settings.http.tls)
        site = open_site(endpoint, Environment())

        def tell() -> None:
            if started is not None:
                started(endpoint)
                return
            sys.stdout.write(f"{site.title} answers at {endpoint}.{os.linesep}")
            sys.stdout.flush()

        serve(build(site, routes), site, listener, ready=tell)
    return 0


def start_service(
    open_site: Callable[[str, Environment], FleetSite[C]],
    routes: Mapping[str, Routes[C]],
    settings: ServiceSettings,
    *,
    port: int = 0,
) -> RunningService[C]:
    """Serve in a thread of this process. Arguments and errors as `run_service`."""
    listener = bind("127.0.0.1", port, backlog=settings.http.backlog)
    try:
        endpoint = url_of("127.0.0.1", listener, tls=settings.http.tls)
        site = open_site(endpoint, Environment())
        return RunningService(site, routes, listener, endpoint)
    except BaseException:
        listener.close()
        raise
