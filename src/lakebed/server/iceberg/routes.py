"""All routes of the Iceberg interface, in the order in which they are tried, and its OpenAPI description.

Owns: the refusals of what the protocol has and this server does not serve: all changes, views, and unknown paths.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

import lakebed
from lakebed.http.declaration import Routes
from lakebed.http.openapi import PathParameter, Service
from lakebed.http.replies import json
from lakebed.server.iceberg import reading
from lakebed.server.iceberg.catalog import ICEBERG_TAG
from lakebed.server.iceberg.errors import ERRORS, IcebergErrorBody, read_only, view_not_found
from lakebed.server.iceberg.reading import NAMESPACE, NAMESPACES, TABLE, TABLES, catalog_of, namespace_of
from lakebed.server.paimon.calls import name_of, refuse_path, with_description
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

_REFUSALS: Final = Routes[RepositoryCall](ICEBERG_TAG, errors=ERRORS)
"""The last routes. A request that no other route takes gets an error in the protocol's form."""

_VIEW: Final = f"{NAMESPACE}/views/{{view}}"
_REFUSED: Final = (
    ("POST", NAMESPACES, "To create a namespace"),
    ("DELETE", NAMESPACE, "To drop a namespace"),
    ("POST", f"{NAMESPACE}/properties", "To change properties of a namespace"),
    ("POST", TABLES, "To create a table"),
    ("POST", f"{NAMESPACE}/register", "To register a table"),
    ("POST", TABLE, "A commit"),
    ("DELETE", TABLE, "To drop a table"),
    ("POST", "/v1/{prefix}/tables/rename", "To rename a table"),
    ("POST", "/v1/{prefix}/transactions/commit", "A transaction"),
    ("POST", f"{TABLE}/plan", "To plan a scan"),
    ("GET", f"{TABLE}/plan/{{plan}}", "To plan a scan"),
    ("DELETE", f"{TABLE}/plan/{{plan}}", "To plan a scan"),
    ("POST", f"{TABLE}/tasks", "To plan a scan"),
    ("POST", f"{NAMESPACE}/views", "To create a view"),
    ("POST", _VIEW, "To replace a view"),
    ("DELETE", _VIEW, "To drop a view"),
    ("POST", "/v1/{prefix}/views/rename", "To rename a view"),
    ("POST", f"{NAMESPACE}/register-view", "To register a view"),
)


_NO_TOKENS: Final = {
    "error": "unsupported_grant_type",
    "error_description": "This catalog issues no tokens: give the client the access key and its secret, with a dot "
    "between them, as its token (the option `token`, not `credential`).",
}


async def _refuse_token(call: RepositoryCall) -> Response:
    """Say which token a client needs, in the form of OAuth's errors."""
    return json(_NO_TOKENS, status=400)


async def _get_view(call: RepositoryCall) -> Response:
    """Say that there is no such view."""
    _, namespace = namespace_of(call)
    raise view_not_found(namespace, name_of(call, "view"))


def _declare_refusal(number: int, method: str, path: str, what: str) -> None:
    @_REFUSALS.add(method, path, f"icebergRefuse{number}", needs="read", gives={})
    async def refuse(call: RepositoryCall) -> Response:
        """Refuse what would change something, or is not served."""
        catalog_of(call)
        raise read_only(what)


for _method in ("GET", "HEAD"):
    _REFUSALS.add(_method, _VIEW, f"icebergGetView{_method}", needs="read", gives={})(_get_view)
_REFUSALS.add("POST", "/v1/oauth/tokens", "icebergGetToken", needs=None, gives={})(_refuse_token)
for _number, (_method, _path, _what) in enumerate(_REFUSED):
    _declare_refusal(_number, _method, _path, _what)
for _method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
    _REFUSALS.add(_method, "/{rest:path}", f"icebergNoRoute{_method}", needs=None, gives={})(refuse_path)

ROUTES: Final = with_description(
    PREFIX,
    _SERVICE,
    Routes[RepositoryCall](ICEBERG_TAG, errors=ERRORS),
    "icebergOpenapi",
    reading.ROUTES,
    _REFUSALS,
)
