"""Operations of S3. Each is declared in one place: its method, its level, and the conditions that distinguish it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from starlette.responses import Response

from lakebed.http.declaration import Endpoint, Role
from lakebed.server.s3.call import S3Call

Level = Literal["service", "bucket", "object"]
Handler = Callable[[S3Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        level: what its path names: the service, a bucket or an object.
        query: names that the query must have.
        header: a header that the request must have; empty: none.
        endpoint: its name, role and audit, as for REST routes.
    """

    level: Level
    query: frozenset[str]
    header: str
    endpoint: Endpoint
    handler: Handler


class Operations:
    """Operations in the order in which they are tried, which puts those with more conditions first."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []

    def add(
        self,
        method: str,
        level: Level,
        name: str,
        *,
        needs: Role,
        query: tuple[str, ...] = (),
        header: str = "",
        audited: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that declares a function as an operation."""
        path: Final = {"service": "/", "bucket": "/{bucket}", "object": "/{bucket}/{key}"}[level]

        def declare(handler: Handler) -> Handler:
            endpoint = Endpoint(method, path, name, "s3", needs, {}, audited=audited)
            self._operations.append(Operation(level, frozenset(query), header, endpoint, handler))
            return handler

        return declare

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)
