"""What Iceberg's protocol has and this server refuses: everything that changes something, views; paths of no route.

The last routes of the interface: what no other one took gets an error in the protocol's form.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.http.declaration import Routes
from lakebed.server.iceberg.catalog import ICEBERG_TAG
from lakebed.server.iceberg.errors import ERRORS, read_only, view_not_found
from lakebed.server.iceberg.reading import NAMESPACE, NAMESPACES, TABLE, TABLES, catalog_of, namespace_of
from lakebed.server.paimon.calls import name_of, refuse_path
from lakebed.server.site import RepositoryCall

ROUTES: Final = Routes[RepositoryCall](ICEBERG_TAG, errors=ERRORS)

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


async def _get_view(call: RepositoryCall) -> Response:
    """Say that there is no such view."""
    _, namespace = namespace_of(call)
    raise view_not_found(namespace, name_of(call, "view"))


def _declare_refusal(number: int, method: str, path: str, what: str) -> None:
    @ROUTES.add(method, path, f"icebergRefuse{number}", needs="read", gives={})
    async def refuse(call: RepositoryCall) -> Response:
        """Refuse what would change something, or is not served."""
        catalog_of(call)
        raise read_only(what)


for _method in ("GET", "HEAD"):
    ROUTES.add(_method, _VIEW, f"icebergGetView{_method}", needs="read", gives={})(_get_view)
for _number, (_method, _path, _what) in enumerate(_REFUSED):
    _declare_refusal(_number, _method, _path, _what)
for _method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
    ROUTES.add(_method, "/{rest:path}", f"icebergNoRoute{_method}", needs=None, gives={})(refuse_path)
