"""Errors in the form of Paimon's REST protocol: ``{message, resourceType, resourceName, code}``.

Owns: the status of each kind of error, and the resource that it concerns. Clients decide by both: a 404 of a SNAPSHOT
means an empty table, a 404 of a TABLE a missing one.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.declaration import ErrorForm
from lakebed.http.errors import reshape_reply

_STATUSES: Final = {
    "branch_busy": 503,
    "branch_deleting": 404,  # deleted while it was renamed; clients read a 409 as "the new name exists"
    "column_exists": 409,
    "insufficient_permissions": 403,  # 401 is only for wrong keys, because clients then fetch another token
    "not_served": 501,
    "protected_branch": 403,
    "read_only_repository": 403,
    "unknown_column": 404,
    "source_expired": 404,  # expired while it was tagged; clients read a 409 as "the tag exists"
    "table_pinned": 400,
}

_RESOURCES: Final = {
    "branch_deleting": ("BRANCH", "branch"),
    "branch_exists": ("BRANCH", "branch"),
    "branch_not_found": ("BRANCH", "branch"),
    "catalog_database_exists": ("DATABASE", "database"),
    "catalog_database_not_found": ("DATABASE", "database"),
    "column_exists": ("COLUMN", "column"),
    "folder_not_empty": ("TABLE", "table"),
    "function_not_found": ("FUNCTION", "function"),
    "snapshot_not_found": ("SNAPSHOT", "snapshot"),
    "source_expired": ("SNAPSHOT", "tag"),
    "table_empty": ("SNAPSHOT", "snapshot"),
    "table_exists": ("TABLE", "table"),
    "table_not_found": ("TABLE", "name"),
    "tag_exists": ("TAG", "tag"),
    "tag_not_found": ("TAG", "tag"),
    "unknown_column": ("COLUMN", "column"),
    "version_not_found": ("TAG", "version"),
    "view_not_found": ("VIEW", "view"),
}
"""By kind of error: the type of the resource, and the fact that contains its name."""

HIDDEN: Final = {"forbidden": 404}
"""Statuses of a request for one database or table: what a key may not see, Flink has to take for missing.

To find a table, Flink first looks for a database with the name of the catalog, and for a table with the name of the
database. It gives up at a 403.
"""


class PaimonError(msgspec.Struct, frozen=True, rename="camel"):
    """The body of every error."""

    message: str
    resource_type: str | None
    resource_name: str | None
    code: int


def _reshape(error: BaseException, plain: Response) -> Response:
    """Return the reply to a failed request in the protocol's form."""
    body = msgspec.json.decode(plain.body)
    resource, name = None, None
    if isinstance(error, LakebedError) and plain.status_code != 500:
        resource, fact = _RESOURCES.get(error.kind, (None, ""))
        name = body.get("facts", {}).get(fact)
    reply = PaimonError(
        body.get("explanation") or body["message"], resource, None if name is None else str(name), plain.status_code
    )
    return reshape_reply(reply, plain)


ERRORS: Final = ErrorForm(_STATUSES, _reshape)
"""The form of the errors of all routes of this interface."""


def not_served(what: str) -> InvalidRequest:
    """Return the error for a request of the protocol that lakebed does not serve, with the reason."""
    return InvalidRequest(what, kind="not_served")


def database_not_found(name: str) -> NotFound:
    """Return the error for a missing database of tables."""
    return NotFound(
        f"There is no database {name!r}: create it, or list the databases.",
        kind="catalog_database_not_found",
        database=name,
    )
