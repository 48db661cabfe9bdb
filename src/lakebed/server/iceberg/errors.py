"""Errors as clients of Iceberg's REST protocol read them: ``{"error": {message, type, code}}``.

Owns: the protocol's name of each error. Clients decide by the status, and by the name of a 404.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.asking import KIND_HEADER
from lakebed.http.declaration import ErrorForm
from lakebed.http.replies import json

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
    503: "ServiceUnavailableException",
}


class IcebergError(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    code: int


class IcebergErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: IcebergError


def _reshape(error: BaseException, plain: Response) -> Response:
    """The reply to a request that failed, in the protocol's form."""
    status = plain.status_code
    name = _BY_STATUS.get(status, "InternalServerError")
    if isinstance(error, LakebedError):
        name = _BY_KIND.get(error.kind, name)
    body = msgspec.json.decode(plain.body)
    message = body.get("explanation") or body["message"]
    reply = json(IcebergErrorBody(IcebergError(message, name, status)), status)
    for header, value in plain.headers.items():
        if header in ("www-authenticate", "retry-after", "allow", KIND_HEADER.lower()):
            reply.headers[header] = value
    return reply


ERRORS: Final = ErrorForm(_STATUSES, _reshape)
"""Of every route of this interface."""


def read_only(what: str) -> InvalidRequest:
    """The error for a request that would change something."""
    return InvalidRequest(
        f"{what} is not served: Iceberg's clients read here. Write with lakebed, or through its catalog for Paimon's "
        "clients.",
        kind="read_only",
    )


def namespace_not_found(name: str) -> NotFound:
    """The error for a missing namespace."""
    return NotFound(
        f"There is no namespace {name!r}: list the namespaces. One level is a database of the lake, two are a "
        "repository and a branch, tag or commit of it.",
        kind="catalog_database_not_found",
        database=name,
    )


def table_not_found(namespace: str, table: str) -> NotFound:
    """The error for a missing table."""
    return NotFound(
        f"There is no table {table!r} in {namespace!r}: list the tables.", kind="table_not_found", table=table
    )
