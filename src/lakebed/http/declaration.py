"""Endpoints, declared in one place: path, name, who may call, request body and replies. Pure data.

Owns: the declarations from which both the routes and the OpenAPI description are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints

from starlette.responses import Response
from typing_extensions import Unpack

C = TypeVar("C")
"""The class of calls that a service's handlers take."""

P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[Concatenate[C, P], R]
"""Answers a request. Takes the call and, as a second argument, the body, if the endpoint takes one.

A coroutine runs in the event loop; any other function runs as `Call.quick`, and may wait for a store. A `Response` is
sent as it is. Any other result is sent with the first status of `Endpoint.gives`, as JSON, or with an empty body if
that status has none."""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a protocol that has its own form of errors reports them.

    Attributes:
        statuses: statuses by error kind, for kinds whose status differs from the service's table.
        reshape: makes the reply to a failed request from the error and the reply that the service would send. The
            status, headers and message of the latter reveal nothing that a client may not see.
    """

    statuses: Mapping[str, int]
    reshape: Callable[[BaseException, Response], Response]


Role = Literal["read", "write", "admin"]
"""What a caller may do: read; read and change; everything."""
ROLES: Final[tuple[Role, ...]] = ("read", "write", "admin")
"""Each role includes the roles before it."""


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The declaration of one operation.

    Attributes:
        path: the path, with parameters in braces; ``{ref:path}`` may hold slashes.
        name: the operation's id.
        needs: the least role of a caller; None: public, without authentication.
        gives: for each status the type of the reply's body: a struct (sent as JSON), ``str`` or ``bytes``; None: an
            empty body. A result that is not a `Response` is sent with the first status.
        takes: the struct of the JSON body, or ``bytes`` for a raw body; None: no body.
        body_required: whether the body must be present.
        audited: whether a success is passed to `Site.audit`.
        audited_after: the reply does not wait for the audit log: the change itself records who made it.
        frees_space: the lookup of the caller may use the reserve of a full disk; an earlier change may delay it.
        statuses: statuses by error kind, for kinds whose status differs from the service's table.
        errors: the form of errors, of a protocol that has its own; None: as `Site.error_reply`.
    """

    method: str
    path: str
    name: str
    tag: str
    needs: Role | None
    gives: Mapping[int, Any]
    takes: Any = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    audited: bool = False
    audited_after: bool = False
    frees_space: bool = False
    statuses: Mapping[str, int] = field(default_factory=dict)
    errors: ErrorForm | None = None


@dataclass(frozen=True, slots=True)
class Route(Generic[C]):
    """An endpoint and its handler; the first line of the handler's docstring is the summary.

    Attributes:
        reads_body: the handler takes the body, decoded as `Endpoint.takes`.
        is_quick: the handler is a plain function, not a coroutine.
    """

    endpoint: Endpoint
    handler: Handler[C, ..., Any]
    summary: str
    reads_body: bool
    is_quick: bool


class Details(TypedDict, total=False):
    """Optional attributes of a declaration, as in `Endpoint`."""

    takes: Any
    body_required: bool
    parameters: tuple[Parameter, ...]
    audited: bool
    audited_after: bool
    frees_space: bool
    statuses: Mapping[str, int]


class Routes(Generic[C]):
    """Routes in the order in which they are declared, which is the order in which paths are tried.

    Args:
        tag: tag of the endpoints that name none.
        errors: `Endpoint.errors` of all endpoints.
    """

    def __init__(self, tag: str, *, errors: ErrorForm | None = None) -> None:
        self._tag = tag
        self._errors = errors
        self._routes: list[Route[C]] = []

    def add(
        self,
        method: str,
        path: str,
        name: str,
        *,
        needs: Role | None,
        gives: Mapping[int, Any] | None = None,
        tag: str | None = None,
        **details: Unpack[Details],
    ) -> Callable[[Handler[C, P, R]], Handler[C, P, R]]:
        """Declare the decorated function as the handler of an `Endpoint`.

        The type of a handler's second parameter is `Endpoint.takes`. Without `gives`, a handler with a result answers
        200 with a body of that type, and a handler without a result answers 204 without a body.
        """

        def declare(handler: Handler[C, P, R]) -> Handler[C, P, R]:
            reads_body = handler.__code__.co_argcount > 1
            hints = get_type_hints(handler) if reads_body or gives is None else {}
            result = hints.pop("return", None)
            if reads_body:
                details["takes"] = list(hints.values())[1]
            replies = gives if gives is not None else {204: None} if result is type(None) else {200: result}
            endpoint = Endpoint(method, path, name, tag or self._tag, needs, replies, errors=self._errors, **details)
            summary = (handler.__doc__ or "").strip().split("\n")[0]
            self._routes.append(Route(endpoint, handler, summary, reads_body, not iscoroutinefunction(handler)))
            return handler

        return declare

    def __iter__(self) -> Iterator[Route[C]]:
        return iter(self._routes)
