"""The ASGI application of a service: its routes, and the replies to requests without a route.

Owns: how declared endpoints become routes, and how the route of a path is found. One regular expression finds it among
all routes, because trying a hundred in turn took longer than most requests. A route is an ASGI application: handlers
read their requests and encode their replies themselves, with msgspec. One route holds all methods of a path. If several
routes match a path, the first declared one that has the method answers. A path whose name has a slash may also match
another route. Then the path as the client wrote it decides, where the slash in a name is ``%2F``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote

from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

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

    A path is looked up only among the routes of its longest prefix, so one interface does not slow another.

    Args:
        routes: by the prefix of their paths.
        claiming: is asked first; None: all requests go to the routes.
    """
    tables = {
        f"{prefix}/": _route_table(site, prefix, routes[prefix]) for prefix in sorted(routes, key=len, reverse=True)
    }

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if claiming is not None and claiming.claims(scope):
            await claiming(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        table = next((table for prefix, table in tables.items() if path.startswith(prefix)), _NOWHERE)
        try:
            place, scope["path_params"] = table.find(path, method, scope.get("raw_path"))
        except LakebedError as refusal:
            await error_reply(refusal, request_id="")(scope, receive, send)
            return
        await place.answer(scope, receive, send)

    return Gate(application, site=site)


@dataclass(frozen=True, slots=True)
class _Place:
    """A path with its methods, and what answers there."""

    pattern: re.Pattern[str]
    written: re.Pattern[str]
    """Pattern of the path as a client writes it: a slash in a name is encoded, so a name is one segment."""
    with_slashes: frozenset[str]
    """Names that may have slashes."""
    methods: frozenset[str]
    answer: ASGIApp


class RouteTable:
    """The places of one prefix.

    Args:
        places: by template, such as ``/refs/{ref:path}/objects``, in the order in which they are preferred: methods,
            and what answers.
    """

    def __init__(self, places: Mapping[str, tuple[Iterable[str], ASGIApp]]) -> None:
        self._places: list[_Place] = []
        self._names: dict[int, tuple[int, tuple[str, ...]]] = {}
        patterns: list[str] = []
        group = 1
        for number, (template, (methods, answer)) in enumerate(places.items()):
            pattern = compile_path(template)[0]
            words = frozenset(methods)
            path_pattern = compile_path(template.replace(":path}", "}"))[0]
            with_slashes = frozenset(_NAME_WITH_SLASHES.findall(template))
            place = _Place(pattern, path_pattern, with_slashes, words | {"HEAD"} if "GET" in words else words, answer)
            self._places.append(place)
            self._names[group] = number, tuple(pattern.groupindex)
            patterns.append(f"({_GROUP_NAME.sub('(', pattern.pattern)})")
            group += 1 + pattern.groups
        self._any: re.Pattern[str] | None = re.compile("|".join(patterns)) if patterns else None

    def find(self, path: str, method: str, raw_path: bytes | None = None) -> tuple[_Place, dict[str, str]]:
        """The place of a path and method, and the path's parameters.

        Args:
            raw_path: the path as the client wrote it; None: only the decoded one is known.

        Raises:
            NotFound: kind ``no_route``.
            InvalidRequest: kind ``method_not_allowed``, with the methods of the path.
        Cost: 2 us, however many places there are.
        """
        match = None if self._any is None else self._any.match(path)
        if match is None:
            raise NotFound(f"There is no route {method} {path}: see /openapi.json.", kind="no_route")
        group = match.lastindex  # the group of the place's whole pattern; its parameters are groups inside that group
        assert group is not None
        number, names = self._names[group]
        place = self._places[number]
        values = match.groups()[group : group + len(names)]
        if raw_path is not None and any("/" in value for value in values):
            as_written = self._find_as_written(raw_path, method)
            if as_written is not None:
                return as_written
        if method in place.methods:
            return place, dict(zip(names, values, strict=True))
        return self._find_later(path, method, number)

    def _find_as_written(self, raw_path: bytes, method: str) -> tuple[_Place, dict[str, str]] | None:
        """The place of a path with names whose slashes are encoded; None: some are not, or there is none."""
        text = raw_path.decode("latin-1")
        for place in self._places:
            match = place.written.match(text) if method in place.methods else None
            if match is None:
                continue
            values = {name: unquote(value) for name, value in match.groupdict().items()}
            if all(name in place.with_slashes or "/" not in value for name, value in values.items()):
                return place, values
        return None

    def _find_later(self, path: str, method: str, first: int) -> tuple[_Place, dict[str, str]]:
        """Another place that has the path, and the method too."""
        for place in self._places[first + 1 :]:
            match = place.pattern.match(path) if method in place.methods else None
            if match is not None:
                return place, match.groupdict()
        allow = ", ".join(sorted(self._places[first].methods))
        raise InvalidRequest(f"{method} {path} is not supported: use {allow}.", kind="method_not_allowed", allow=allow)


_GROUP_NAME: Final = re.compile(r"\(\?P<\w+>")
_NAME_WITH_SLASHES: Final = re.compile(r"{(\w+):path}")
_NOWHERE: Final = RouteTable({})


def _route_table(site: Site[P, C], prefix: str, routes: Iterable[Route[C]]) -> RouteTable:
    """One place for each path, with all methods of the path."""
    by_path: dict[str, dict[str, Route[C]]] = {}
    for route in routes:
        by_path.setdefault(prefix + route.endpoint.path, {})[route.endpoint.method] = route
    return RouteTable({path: (methods, EndpointApp(site, path, methods)) for path, methods in by_path.items()})
