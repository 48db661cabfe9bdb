"""All routes of the Paimon interface, in the order in which they are tried, and its OpenAPI description.

Owns: what the protocol has and a lake lacks: views and functions, whose lists are empty; and unknown paths.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

import lakebed
from lakebed.errors import NotFound
from lakebed.http.declaration import Routes
from lakebed.http.openapi import PathParameter, Service
from lakebed.http.replies import json
from lakebed.server.paimon import commits, databases, partitions, references, tables
from lakebed.server.paimon.calls import (
    DATABASE,
    PAGE,
    TABLE,
    catalog_of,
    database_of,
    name_of,
    refuse_path,
    table_of,
    with_description,
)
from lakebed.server.paimon.catalog import PAIMON_TAG
from lakebed.server.paimon.errors import ERRORS, PaimonError, not_served
from lakebed.server.site import RepositoryCall

__all__ = ["PREFIX", "ROUTES"]

PREFIX: Final = "/paimon"

_SERVICE: Final = Service(
    title="lakebed: Paimon's REST catalog",
    version=lakebed.__version__,
    description="Tables of a lake, for clients of Paimon. Requests that are always refused are not described.",
    path_parameters={
        "prefix": PathParameter("The name of the lake, as the config gives it."),
        "database": PathParameter("A database, or repository.branch."),
        "table": PathParameter("A table; with $branch_x behind it a branch of it."),
        "version": PathParameter("EARLIEST, LATEST, the id of a snapshot, or a tag."),
    },
    error=PaimonError,
)

_REFUSALS: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)
"""The last routes. A request that no other route takes gets an error in the protocol's form."""


async def _list_none(call: RepositoryCall) -> Response:
    """List what a lake has none of."""
    if "database" in call.path:
        catalog, database = database_of(call)
        await call.quick(catalog.database, database)
    else:
        catalog_of(call)
    member = {"view-details": "viewDetails", "function-details": "functionDetails"}
    last = call.scope["path"].rpartition("/")[2]
    return json({member.get(last, last): [], "nextPageToken": None})


async def _get_none(call: RepositoryCall) -> Response:
    """Say that there is no such view or function."""
    database_of(call)
    kind = "view" if "view" in call.path else "function"
    name = name_of(call, kind)
    raise NotFound(f"There is no {kind} {name!r}: a lake has tables alone.", kind=f"{kind}_not_found", **{kind: name})


async def _refuse(call: RepositoryCall) -> Response:
    """Refuse what is not served."""
    if "table" in call.path:
        table_of(call)
    elif "database" in call.path:
        database_of(call)
    raise not_served(
        "This server does not serve that part of the protocol: views, functions, permissions, consumers, registration "
        "of tables, tokens for object stores, rollbacks of schemas. Use the table itself, or lakebed's own commands."
    )


for _kind in ("view", "function"):
    for _where in (DATABASE, "/v1/{prefix}"):
        _REFUSALS.add(
            "GET",
            f"{_where}/{_kind}s",
            f"paimonList{_kind}s{len(_where)}",
            needs="read",
            gives={200: dict},
            parameters=PAGE,
        )(_list_none)
    _REFUSALS.add("GET", f"{DATABASE}/{_kind}-details", f"paimonList{_kind}Details", needs="read", gives={200: dict})(
        _list_none
    )
    _REFUSALS.add("GET", f"{DATABASE}/{_kind}s/{{{_kind}}}", f"paimonGet{_kind}", needs="read", gives={})(_get_none)
    _REFUSALS.add("POST", f"{DATABASE}/{_kind}s", f"paimonCreate{_kind}", needs="write", gives={})(_refuse)

for _method, _path in (
    ("GET", f"{TABLE}/token"),
    ("POST", f"{TABLE}/auth"),
    ("POST", f"{TABLE}/rollback-schema"),
    ("POST", f"{TABLE}/partitions/mark"),
    ("GET", f"{TABLE}/consumers"),
    ("POST", f"{DATABASE}/register"),
    ("GET", "/v1/{prefix}/tables/id/{id}"),
    ("GET", "/v1/{prefix}/permissions"),
):
    _REFUSALS.add(_method, _path, f"paimonRefuse{_path.rpartition('/')[2]}", needs="read", gives={})(_refuse)

for _method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
    _REFUSALS.add(_method, "/{rest:path}", f"paimonNoRoute{_method}", needs=None, gives={})(refuse_path)

ROUTES: Final = with_description(
    PREFIX,
    _SERVICE,
    Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS),
    "paimonOpenapi",
    commits.ROUTES,
    tables.ROUTES,
    databases.ROUTES,
    references.ROUTES,
    partitions.ROUTES,
    _REFUSALS,
)
