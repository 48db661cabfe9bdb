"""All routes of the Paimon interface, in the order in which they are tried, and its OpenAPI description."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.responses import Response

import lakebed
from lakebed.http.declaration import Route, Routes
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.replies import json
from lakebed.server.paimon import absent, commits, databases, partitions, references, tables
from lakebed.server.paimon.catalog import PAIMON_TAG
from lakebed.server.paimon.errors import ERRORS, PaimonError
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
_DESCRIPTION: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)


@cache
def _describe() -> dict[str, Any]:
    return describe(_SERVICE, {PREFIX: [route for route in ROUTES if route.endpoint.gives]})


@_DESCRIPTION.add("GET", "/openapi.json", "paimonOpenapi", needs=None, gives={200: dict})
async def openapi(call: RepositoryCall) -> Response:
    """Get the OpenAPI description of the catalog."""
    return json(_describe())


ROUTES: Final[tuple[Route[RepositoryCall], ...]] = (
    *_DESCRIPTION,
    *commits.ROUTES,
    *tables.ROUTES,
    *databases.ROUTES,
    *references.ROUTES,
    *partitions.ROUTES,
    *absent.ROUTES,
)
