"""Errors in the form of Iceberg's REST protocol: ``{"error": {message, type, code}}``.

Owns: the protocol's name of each error. Clients decide by the status, and for a 404 also by the name. A message about a
missing object begins with the words of Iceberg's own clients, because their catalog tests and their users look for
them. Advice follows.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.declaration import ErrorForm
from lakebed.http.errors import reshape_reply

_STATUSES: Final = {"insufficient_permissions": 403, "read_only": 406}

_BY_KIND: Final = {
    "table_not_found": "NoSuchTableException",
    "catalog_database_not_found": "NoSuchNamespaceException",
    "view_not_found": "NoSuchViewException",
    "function_not_found": "NoSuchFunctionException",
}
_BY_STATUS: Final = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    406: "UnsupportedOperationException",
    409: "CommitFailedException",
    413: "BadRequestException",
    415: "BadRequestException",
    503: "ServiceUnavailableException",
}
_LEVELS: Final = (
    ". List the namespaces: one level is a database, two are a repository and a branch, tag or commit of it."
)


class IcebergError(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    code: int


class IcebergErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: IcebergError


def _reshape(error: BaseException, reply: Response) -> Response:
    """Return the reply to a failed request in the protocol's form."""
    status = reply.status_code
    name = _BY_STATUS.get(status, "InternalServerError")
    if isinstance(error, LakebedError):
        name = _BY_KIND.get(error.kind, name)
    body = msgspec.json.decode(reply.body)
    message = body.get("explanation") or body["message"]
    return reshape_reply(IcebergErrorBody(IcebergError(message, name, status)), reply)


ERRORS: Final = ErrorForm(_STATUSES, _reshape)
"""The form of the errors of all routes of this interface."""


def read_only(what: str) -> InvalidRequest:
    """Return the error for a request that would change something."""
    return InvalidRequest(
        f"{what} is not served: Iceberg's clients read here. Write with lakebed, or through its catalog for Paimon's "
        "clients.",
        kind="read_only",
    )


def namespace_not_found(name: str, *, advice: str = _LEVELS) -> NotFound:
    """Return the error for a missing namespace."""
    return NotFound(
        f"Namespace does not exist: {_show(name)}{advice}", kind="catalog_database_not_found", database=name
    )


def table_not_found(namespace: str, table: str) -> NotFound:
    """Return the error for a missing table."""
    return NotFound(
        f"Table does not exist: {_show(f'{namespace}.{table}')}. List the tables of the namespace.",
        kind="table_not_found",
        table=table,
    )


def view_not_found(namespace: str, view: str) -> NotFound:
    """Return the error for a view."""
    return NotFound(
        f"View does not exist: {_show(f'{namespace}.{view}')}. A lake has tables alone.",
        kind="view_not_found",
        view=view,
    )


def _show(name: str) -> str:
    """Return a name without quotes, as Iceberg's clients show it. Control characters for terminals are escaped."""
    return name if name.isprintable() else repr(name)
