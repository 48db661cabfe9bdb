"""Config, namespaces and tables: list, load, exists; metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from lakebed.errors import NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.replies import empty, json
from lakebed.server.auth import check_database, check_table, may_see_database, may_see_table
from lakebed.server.iceberg.catalog import ICEBERG_TAG, IcebergCatalog, load_reply
from lakebed.server.iceberg.errors import ERRORS, namespace_not_found, table_not_found
from lakebed.server.paimon.calls import check_prefix, check_warehouse, name_of
from lakebed.server.paimon.pages import PageOf
from lakebed.server.site import RepositoryCall

ROUTES: Final = Routes[RepositoryCall](ICEBERG_TAG, errors=ERRORS)
NAMESPACES: Final = "/v1/{prefix}/namespaces"
NAMESPACE: Final = "/v1/{prefix}/namespaces/{namespace}"
TABLES: Final = "/v1/{prefix}/namespaces/{namespace}/tables"
TABLE: Final = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"

_SEPARATOR: Final = "\x1f"
_SIZE: Final = "pageSize"
_EVERY_ROW: Final = 2**31
_PAGE: Final = (
    Parameter(_SIZE, "The most rows of the page.", kind="integer"),
    Parameter("pageToken", "`next-page-token` of the page before; missing: the whole list."),
)
_ENDPOINTS: Final = (
    f"GET {NAMESPACES}",
    f"GET {NAMESPACE}",
    f"HEAD {NAMESPACE}",
    f"GET {TABLES}",
    f"GET {TABLE}",
    f"HEAD {TABLE}",
    f"GET {TABLE}/credentials",
    f"POST {TABLE}/metrics",
    f"GET {NAMESPACE}/views",
)
T = TypeVar("T")


def catalog_of(call: RepositoryCall) -> IcebergCatalog:
    """Return the catalog that the path names. Raises `NotFound` for another prefix."""
    check_prefix(call, call.site.iceberg.name)
    return call.site.iceberg


def namespace_of(call: RepositoryCall) -> tuple[IcebergCatalog, str]:
    """Return the catalog and the namespace in the path. A namespace of two levels is a branch of a repository.

    Raises `InvalidRequest` (``forbidden``) if the key may not see it; `NotFound`.
    """
    catalog, name = catalog_of(call), _join_levels(name_of(call, "namespace"))
    check_database(call.caller, name)
    return catalog, name


def _join_levels(name: str) -> str:
    """Return ``repository.reference`` for a namespace that a client sent in levels, or in one level with a dot."""
    return name.replace(_SEPARATOR, ".")


def _levels(call: RepositoryCall) -> list[str]:
    """Return the namespace in the path as the levels that the client sent."""
    return name_of(call, "namespace").split(_SEPARATOR)


def table_of(call: RepositoryCall) -> tuple[IcebergCatalog, str, str]:
    """Return the catalog, and the names of namespace and table in the path.

    Raises `InvalidRequest` (``forbidden``) if the key may not see the table, and `NotFound`.

    A namespace of two levels may name a table instead. If the key may see that table, this raises the `NotFound` of a
    missing table. A client that means the metadata table ``snapshots`` of ``db.table`` needs this: it first
    requests the table ``snapshots`` of the namespace ``db.table``.
    """
    catalog, namespace, table = catalog_of(call), name_of(call, "namespace"), name_of(call, "table")
    if _SEPARATOR in namespace:
        parent, _, rest = namespace.partition(_SEPARATOR)
        namespace = _join_levels(namespace)
        if not may_see_table(call.caller, namespace, table):
            check_table(call.caller, parent, rest)
            raise table_not_found(namespace, table)
    check_table(call.caller, namespace, table)
    call.subject = f"{namespace}.{table}"
    return catalog, namespace, table


def cut_page(
    call: RepositoryCall, names: Iterable[str], row_of: Callable[[str], T | None]
) -> tuple[list[T], str | None]:
    """Return the requested page of rows. Without token and size return the whole list, for clients without pages."""
    page = PageOf.asked(call, "parent", amount=_SIZE)
    if "pageToken" not in call.query and _SIZE not in call.query:
        page = replace(page, amount=_EVERY_ROW)
    return page.cut(names, row_of)


@ROUTES.add("GET", "/v1/config", "icebergConfig", needs="read", gives={200: dict})
async def get_config(call: RepositoryCall) -> Response:
    """Get the prefix of the paths, and which of them are served."""
    catalog = call.site.iceberg
    check_warehouse(call, name=catalog.name, url=catalog.url)
    prefix = quote(catalog.name, safe="")  # clients put it into paths as it is
    return json({"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS})


@ROUTES.add(
    "GET",
    NAMESPACES,
    "icebergListNamespaces",
    needs="read",
    gives={200: dict},
    parameters=(*_PAGE, Parameter("parent", "Only namespaces below this one: branches of a repository.")),
)
def list_namespaces(call: RepositoryCall) -> Response:
    """List the namespaces that the access key may see: databases and repositories, or the branches of one."""
    catalog, caller, parent = catalog_of(call), call.caller, call.query.get("parent") or None
    if parent is None:
        names = {name for name in catalog.namespaces() if may_see_database(caller, name)}
        names |= {name for name in catalog.repositories() if may_see_database(caller, f"{name}.")}
    elif may_see_database(caller, f"{parent}.") and parent in catalog.repositories():
        names = set(catalog.branches(parent))
    else:
        check_database(caller, _join_levels(parent))
        _check_parent(catalog, _join_levels(parent))
        names = set()
    levels = [] if parent is None else [parent]
    rows, next_token = cut_page(call, sorted(names), lambda name: [*levels, name])
    return json({"namespaces": rows, "next-page-token": next_token})


def _check_parent(catalog: IcebergCatalog, name: str) -> None:
    try:
        catalog.namespace(name)
    except NotFound as error:  # a client that lists namespaces needs no advice to list them
        raise namespace_not_found(name, advice="") from error


@ROUTES.add("GET", NAMESPACE, "icebergLoadNamespace", needs="read", gives={200: dict})
async def load_namespace(call: RepositoryCall) -> Response:
    """Get a namespace with its properties."""
    catalog, name = namespace_of(call)
    record = await call.quick(catalog.namespace, name)
    return json({"namespace": _levels(call), "properties": record.options})


@ROUTES.add("HEAD", NAMESPACE, "icebergNamespaceExists", needs="read", gives={204: None})
async def has_namespace(call: RepositoryCall) -> Response:
    """Whether there is a namespace."""
    catalog, name = namespace_of(call)
    await call.quick(catalog.namespace, name)
    return empty()


@ROUTES.add("GET", TABLES, "icebergListTables", needs="read", gives={200: dict}, parameters=_PAGE)
def list_tables(call: RepositoryCall) -> Response:
    """List the tables of a namespace that the access key may see."""
    (catalog, namespace), caller, levels = namespace_of(call), call.caller, _levels(call)

    def row_of(name: str) -> dict[str, Any] | None:
        return {"namespace": levels, "name": name} if catalog.has_table(namespace, name) else None

    names = (name for name in catalog.table_names(namespace) if may_see_table(caller, namespace, name))
    rows, next_token = cut_page(call, names, row_of)
    return json({"identifiers": rows, "next-page-token": next_token})


@ROUTES.add(
    "GET",
    TABLE,
    "icebergLoadTable",
    needs="read",
    gives={200: dict, 304: None},
    parameters=(
        Parameter("snapshots", "`all`, or `refs`: only those of references.", choices=("all", "refs")),
        Parameter("if-none-match", "The ETag of an earlier reply.", place="header"),
    ),
)
async def load_table(call: RepositoryCall) -> Response:
    """Load a table: its metadata as of now, which is written where it is new."""
    catalog, namespace, name = table_of(call)
    references_only = call.query.get("snapshots") == "refs"
    metadata = await call.heavy(catalog.load, namespace, name)
    tag = f"{metadata.etag}-refs" if references_only else metadata.etag
    headers = {"etag": f'"{tag}"'}
    if tag in (call.etags(b"if-none-match") or ()):
        return Response(status_code=304, headers=headers)
    body = load_reply(metadata, references_only=references_only)
    return Response(body, headers=headers, media_type="application/json")


@ROUTES.add("HEAD", TABLE, "icebergTableExists", needs="read", gives={204: None})
async def has_table(call: RepositoryCall) -> Response:
    """Whether there is a table."""
    catalog, namespace, name = table_of(call)
    if not await call.quick(catalog.has_table, namespace, name):
        raise table_not_found(namespace, name)
    return empty()


@ROUTES.add("GET", f"{TABLE}/credentials", "icebergLoadCredentials", needs="read", gives={200: dict})
async def load_credentials(call: RepositoryCall) -> Response:
    """Get no credentials: clients have their own for the lake's store."""
    catalog, namespace, name = table_of(call)
    if not await call.quick(catalog.has_table, namespace, name):
        raise table_not_found(namespace, name)
    return json({"storage-credentials": []})


@ROUTES.add("POST", f"{TABLE}/metrics", "icebergReportMetrics", needs="read", takes=dict, gives={204: None})
async def report_metrics(call: RepositoryCall) -> Response:
    """Take a client's report of a scan, and forget it."""
    table_of(call)
    await call.read(dict)
    return empty()


@ROUTES.add("GET", f"{NAMESPACE}/views", "icebergListViews", needs="read", gives={200: dict}, parameters=_PAGE)
def list_views(call: RepositoryCall) -> Response:
    """List views: a lake has none."""
    catalog, namespace = namespace_of(call)
    catalog.namespace(namespace)
    rows, next_token = cut_page(call, (), lambda name: name)
    return json({"identifiers": rows, "next-page-token": next_token})
