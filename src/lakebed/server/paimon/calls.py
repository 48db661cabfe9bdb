"""The common functions of handlers of the Paimon interface: the names in a path, and the objects that they name.

Invariant: a handler gets the names of a database and a table only from here, as the client meant them, and only if the
access key may see them.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from starlette.responses import Response

from lakebed.errors import NotFound
from lakebed.http.declaration import Parameter, Route, Routes
from lakebed.http.openapi import Service, describe
from lakebed.http.pages import AMOUNT_MAX
from lakebed.http.replies import json
from lakebed.server.auth import check_database, check_table
from lakebed.server.paimon.catalog import PaimonCatalog
from lakebed.server.site import RepositoryCall

DATABASES: Final = "/v1/{prefix}/databases"
DATABASE: Final = "/v1/{prefix}/databases/{database}"
TABLES: Final = "/v1/{prefix}/databases/{database}/tables"
TABLE: Final = "/v1/{prefix}/databases/{database}/tables/{table}"
PAGE: Final = (
    Parameter("maxResults", f"The most rows of the page; at most {AMOUNT_MAX}.", kind="integer"),
    Parameter("pageToken", "`nextPageToken` of the page before."),
)


def name_of(call: RepositoryCall, parameter: str) -> str:
    """Return a name in the path as the client meant it: clients write a space as ``+``, and a plus as ``%2B``."""
    value = call.path[parameter]
    if "+" not in value:
        return value
    raw = call.scope.get("raw_path", b"").decode("ascii", "replace").split("/")
    return next((unquote_plus(segment) for segment in raw if unquote(segment) == value), value)


def catalog_of(call: RepositoryCall) -> PaimonCatalog:
    """Return the catalog that the path names. Raises `NotFound` for another prefix."""
    check_prefix(call, call.site.paimon.name)
    return call.site.paimon


def check_prefix(call: RepositoryCall, name: str) -> None:
    """Refuse a path that names a catalog other than this one."""
    prefix = name_of(call, "prefix")
    if prefix != name:
        raise NotFound(
            f"This server has no catalog {prefix!r}: it serves {name!r}; ask for its config first.",
            kind="catalog_not_found",
        )


def check_warehouse(call: RepositoryCall, *, name: str, url: str) -> None:
    """Refuse a client that is configured for another warehouse than the one with this name and URL."""
    warehouse = call.query.get("warehouse") or name
    names = (name, url, url.removeprefix("file://"))
    if warehouse not in names and unquote(warehouse) not in names:  # some client encodes it twice
        raise NotFound(f"This server has no warehouse {warehouse!r}: it serves {name!r}.", kind="catalog_not_found")


async def refuse_path(call: RepositoryCall) -> Response:
    """Answer that no such path exists."""
    raise NotFound(
        f"There is no route {call.scope['method']} {call.scope['path']}: look whether a name holds a slash.",
        kind="no_route",
    )


def database_of(call: RepositoryCall, *, whole: bool = False) -> tuple[PaimonCatalog, str]:
    """Return the catalog, and the name of the database in the path. Note the name for the audit log.

    Args:
        whole: the request concerns the database itself, and not only some of its tables.

    Raises `InvalidRequest` (``forbidden``) if the key may not see it.
    """
    catalog, database = catalog_of(call), name_of(call, "database")
    check_database(call.caller, database, whole=whole)
    call.subject = database
    return catalog, database


def table_of(call: RepositoryCall) -> tuple[PaimonCatalog, str, str]:
    """Return the catalog, and the names of database and table in the path. Note the names for the audit log.

    Raises `InvalidRequest` (``forbidden``) if the key may not see the table; `NotFound` for a name with a dot, which no
    table has.
    """
    catalog, database, table = catalog_of(call), name_of(call, "database"), name_of(call, "table")
    if "." in table:  # Flink looks for a table with the name of a branch before it looks for that database
        raise NotFound(
            f"There is no table {table!r} in {database!r}: no table has a name with a dot.",
            kind="table_not_found",
            name=table,
        )
    check_named(call, database, table)
    return catalog, database, table


def check_named(call: RepositoryCall, database: str, object_name: str) -> None:
    """Refuse a key that may not see a table, which may be named with a branch. Note the name for the audit log."""
    check_table(call.caller, database, object_name.partition("$")[0])
    call.subject = f"{database}.{object_name}"


def with_description(
    prefix: str, service: Service, about: Routes[RepositoryCall], name: str, *groups: Routes[RepositoryCall]
) -> tuple[Route[RepositoryCall], ...]:
    """Return the routes of a catalog, preceded by a route for the OpenAPI description of those not always refused.

    Args:
        about: gets the route of the description, whose operation is `name`.
    """

    @cache
    def description() -> dict[str, Any]:
        return describe(service, {prefix: [route for route in routes if route.endpoint.gives]})

    @about.add("GET", "/openapi.json", name, needs=None, gives={200: dict})
    async def openapi(call: RepositoryCall) -> Response:
        """Get the OpenAPI description of the catalog."""
        return json(description())

    routes = tuple(itertools.chain(about, *groups))
    return routes
