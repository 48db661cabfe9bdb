"""All routes of the Iceberg interface, in the order in which they are tried, and its OpenAPI description."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.responses import Response

import lakebed
from lakebed.http.declaration import Route, Routes
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.replies import json
from lakebed.server.iceberg import reading, refused
from lakebed.server.iceberg.catalog import ICEBERG_TAG
from lakebed.server.iceberg.errors import ERRORS, IcebergErrorBody
from lakebed.server.site import RepositoryCall

__all__ = ["PREFIX", "ROUTES"]

PREFIX: Final = "/iceberg"

_SERVICE: Final = Service(
    title="lakebed: Iceberg's REST catalog, for reading",
    version=lakebed.__version__,
    description="Tables of a lake, for clients of Iceberg. Requests that are always refused are not described.",
    path_parameters={
        "prefix": PathParameter("The name of the lake, as the config gives it."),
        "namespace": PathParameter("A database of the lake: one level."),
        "table": PathParameter("A table."),
    },
    error=IcebergErrorBody,
)
_DESCRIPTION: Final = Routes[RepositoryCall](ICEBERG_TAG, errors=ERRORS)


@cache
def _describe() -> dict[str, Any]:
    return describe(_SERVICE, {PREFIX: [route for route in ROUTES if route.endpoint.gives]})


@_DESCRIPTION.add("GET", "/openapi.json", "icebergOpenapi", needs=None, gives={200: dict})
async def openapi(call: RepositoryCall) -> Response:
    """Get the OpenAPI description of the catalog."""
    return json(_describe())


ROUTES: Final[tuple[Route[RepositoryCall], ...]] = (*_DESCRIPTION, *reading.ROUTES, *refused.ROUTES)
