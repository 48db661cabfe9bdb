"""Tables: list, list with details, get, create, alter, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.declaration import Routes
from lakebed.http.replies import empty, json
from lakebed.server.auth import may_see_table
from lakebed.server.paimon.calls import (
    DATABASE,
    PAGE,
    TABLE,
    TABLES,
    catalog_of,
    check_named,
    database_of,
    table_of,
)
from lakebed.server.paimon.catalog import PAIMON_TAG, PaimonCatalog, describe, split_object
from lakebed.server.paimon.changes import SchemaChange, apply_changes, columns_of
from lakebed.server.paimon.databases import NAME_PATTERNS
from lakebed.server.paimon.errors import ERRORS, HIDDEN, not_served
from lakebed.server.paimon.pages import PageOf, pattern_of
from lakebed.server.site import RepositoryCall

ROUTES: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)
_PATTERN: Final = "tableNamePattern"


class Identifier(msgspec.Struct, frozen=True):
    """The name of a table."""

    database: str
    object: str


class NewSchema(msgspec.Struct, frozen=True, rename="camel"):
    """The schema of a new table."""

    fields: list[dict[str, Any]]
    partition_keys: list[str] | None = None
    primary_keys: list[str] | None = None
    options: dict[str, str] | None = None
    comment: str | None = None


class TableCreation(msgspec.Struct, frozen=True):
    """``POST .../tables``."""

    identifier: Identifier
    schema: NewSchema


class TableAlteration(msgspec.Struct, frozen=True):
    """``POST .../tables/{table}``."""

    changes: list[SchemaChange]


class TableRename(msgspec.Struct, frozen=True):
    """``POST .../tables/rename``."""

    source: Identifier
    destination: Identifier


@ROUTES.add("GET", TABLE, "paimonGetTable", needs="read", gives={200: dict}, statuses=HIDDEN)
async def get_table(call: RepositoryCall) -> Response:
    """Get a table: its id, path and schema."""
    catalog, database, name = table_of(call)
    return json(await call.quick(_describe, catalog, database, name))


def _describe(catalog: PaimonCatalog, database: str, name: str) -> dict[str, Any]:
    table, schema = catalog.look(database, name)
    return describe(catalog, table, schema, database=database, name=name)


def _list(call: RepositoryCall, member: str, row_of: Callable[[PaimonCatalog, str, str], Any]) -> Response:
    (catalog, database), caller = database_of(call), call.caller
    page = PageOf.asked(call, _PATTERN, "tableType")
    matches = pattern_of(call.query.get(_PATTERN))
    is_other_type = call.query.get("tableType", "table") not in ("", "table")
    catalog.database(database)
    table_names = () if is_other_type else catalog.table_names(database)
    names = (name for name in table_names if matches(name) and may_see_table(caller, database, name))
    rows, next_token = page.cut(names, lambda name: row_of(catalog, database, name))
    return json({member: rows, "nextPageToken": next_token})


@ROUTES.add("GET", TABLES, "paimonListTables", needs="read", gives={200: dict}, parameters=(*PAGE, NAME_PATTERNS[1]))
def list_tables(call: RepositoryCall) -> Response:
    """List the tables of a database that the access key may see."""
    return _list(call, "tables", _name_row)


def _name_row(catalog: PaimonCatalog, database: str, name: str) -> str | None:
    return name if catalog.has_table(database, name) else None


@ROUTES.add(
    "GET",
    f"{DATABASE}/table-details",
    "paimonListTableDetails",
    needs="read",
    gives={200: dict},
    parameters=(*PAGE, NAME_PATTERNS[1]),
)
def list_table_details(call: RepositoryCall) -> Response:
    """List the tables of a database with their schemas."""
    return _list(call, "tableDetails", _detail_row)


def _detail_row(catalog: PaimonCatalog, database: str, name: str) -> dict[str, Any] | None:
    with suppress(NotFound, InvalidRequest):  # dropped since it was listed, or a folder that is not a table
        return _describe(catalog, database, name)
    return None


@ROUTES.add(
    "GET",
    "/v1/{prefix}/tables",
    "paimonListAllTables",
    needs="read",
    gives={200: dict},
    parameters=(*PAGE, *NAME_PATTERNS),
)
def list_all_tables(call: RepositoryCall) -> Response:
    """List the tables of all databases that the access key may see."""
    catalog, caller, page = catalog_of(call), call.caller, PageOf.asked(call, "databaseNamePattern", _PATTERN)
    in_database = pattern_of(call.query.get("databaseNamePattern"))
    matches = pattern_of(call.query.get(_PATTERN))

    def names() -> Iterator[str]:
        for database in filter(in_database, catalog.databases_and_branches()):
            with suppress(NotFound):  # a branch that was deleted since it was listed
                for name in filter(matches, catalog.table_names(database)):
                    if may_see_table(caller, database, name):
                        yield f"{database}\0{name}"

    def row_of(full: str) -> Identifier | None:
        database, _, name = full.partition("\0")
        with suppress(NotFound):
            return Identifier(database, name) if catalog.has_table(database, name) else None
        return None

    rows, next_token = page.cut(sorted(names()), row_of)
    return json({"tables": rows, "nextPageToken": next_token})


@ROUTES.add("POST", TABLES, "paimonCreateTable", needs="write", gives={200: None}, audited=True)
def create_table(call: RepositoryCall, body: TableCreation) -> Response:
    """Create a table."""
    catalog, database = database_of(call)
    name = body.identifier.object
    check_named(call, database, name)
    if body.identifier.database != database:
        raise InvalidRequest(
            f"The path names the database {database!r} and the body {body.identifier.database!r}: name one.",
            kind="invalid_body",
        )
    if split_object(name)[1] is not None:
        raise InvalidRequest(
            f"{name!r} names a branch: create the table, then a branch of it.", kind="invalid_table_name"
        )
    schema = body.schema
    if not schema.fields:  # a table of objects has no columns
        raise InvalidRequest(
            f"The table {name!r} has no columns: a lake has tables with columns alone, and none of objects.",
            kind="invalid_body",
        )
    catalog.create_table(
        database,
        name,
        columns_of(schema.fields),
        primary_keys=schema.primary_keys or (),
        partition_keys=schema.partition_keys or (),
        options=schema.options or {},
        comment=schema.comment or "",
    )
    return empty(200)


@ROUTES.add("POST", "/v1/{prefix}/tables/rename", "paimonRenameTable", needs="write", takes=TableRename, gives={})
async def rename_table(call: RepositoryCall) -> Response:
    """Refuse to rename a table."""
    await call.read(TableRename)
    raise not_served(
        "A table cannot be renamed: its folder is its identity, and object stores have no atomic rename of folders. "
        "Create another table and copy the rows."
    )


@ROUTES.add("POST", TABLE, "paimonAlterTable", needs="write", gives={200: None}, audited=True)
def alter_table(call: RepositoryCall, body: TableAlteration) -> Response:
    """Change columns, options and comments, all or none."""
    catalog, database, name = table_of(call)
    table, _ = catalog.look(database, name)
    table.context.schemas.change(lambda schema: apply_changes(schema, body.changes), time_ms=table.context.now_ms())
    return empty(200)


@ROUTES.add("DELETE", TABLE, "paimonDropTable", needs="admin", gives={200: None}, audited=True)
async def drop_table(call: RepositoryCall) -> Response:
    """Drop a table, unless tags or branches pin versions of it."""
    catalog, database, name = table_of(call)
    if split_object(name)[1] is not None:
        raise InvalidRequest(f"{name!r} is a branch: drop the branch of the table.", kind="invalid_table_name")

    await call.transfer(catalog.drop_table, database, name)
    return empty(200)
