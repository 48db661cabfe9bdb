"""What a service has to provide: the protocol `Site`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.http.call import Call
from lakebed.http.declaration import Endpoint
from lakebed.http.serving import Serving


class Principal(Protocol):
    """An authenticated caller."""

    @property
    def id(self) -> str:
        """The caller's name in the access log. Not a secret."""


P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call, covariant=True)


@dataclass(frozen=True, slots=True)
class Change:
    """A successful request of an endpoint that is audited."""

    endpoint: Endpoint
    principal_id: str
    path: Mapping[str, str]
    subject: str
    status: int
    request_id: str


class Site(Protocol[P, C]):
    """A service, as `lakebed.http` serves it. `P` is its type of caller, `C` the type of its handlers' calls."""

    @property
    def serving(self) -> Serving:
        """Limits, threads and logs."""

    async def authenticate(self, header: bytes | None) -> P:
        """The caller who sends an ``Authorization`` header. Raises `InvalidRequest` (``unauthorized``)."""

    def authorize(self, principal: P, endpoint: Endpoint, scope: Scope) -> None:
        """Refuse a request that a caller may not make. Raises `InvalidRequest` (``forbidden``).

        Args:
            endpoint: its `Endpoint.needs` is not None.
            scope: scope of the request, with the path's parameters, decoded.
        """

    def new_call(self, scope: Scope, receive: Receive, *, principal: P | None, request_id: str) -> C:
        """The call that a handler takes; `principal` is None for public endpoints."""

    async def audit(self, change: Change) -> None:
        """Record a change after it was made, and before its reply is sent, except with `Endpoint.audited_after`.

        An error is logged, and does not change the reply.
        """

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """The reply to a request that failed, usually made by `lakebed.http.errors.error_reply`.

        Args:
            statuses: the endpoint's own statuses, by error kind.
        """

    def close(self) -> None:
        """Wait for running calls, then close everything in the order of dependence, the log last."""
