"""Config and databases: list, create, get, alter, drop."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.http.declaration import Parameter, Routes
from lakebed.http.replies import empty, json
from lakebed.server.auth import check_database, may_see_database
from lakebed.server.paimon.calls import DATABASE, DATABASES, PAGE, catalog_of, check_warehouse, database_of
from lakebed.server.paimon.catalog import PAIMON_TAG
from lakebed.server.paimon.errors import ERRORS, HIDDEN
from lakebed.server.paimon.pages import PageOf, pattern_of
from lakebed.server.site import RepositoryCall

ROUTES: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)
_PATTERN: Final = "databaseNamePattern"


class DatabaseCreation(msgspec.Struct, frozen=True):
    """``POST /databases``."""

    name: str
    options: dict[str, str] | None = None


class DatabaseAlteration(msgspec.Struct, frozen=True):
    """``POST /databases/{database}``."""

    removals: list[str] | None = None
    updates: dict[str, str] | None = None


@ROUTES.add("GET", "/v1/config", "paimonConfig", needs="read", gives={200: dict})
async def get_config(call: RepositoryCall) -> Response:
    """Get the prefix of the paths, and where the warehouse is."""
    catalog = call.site.paimon
    check_warehouse(call, name=catalog.name, url=catalog.url)
    return json({"defaults": {"prefix": catalog.name}, "overrides": {}})


@ROUTES.add("GET", DATABASES, "paimonListDatabases", needs="read", gives={200: dict}, parameters=PAGE)
def list_databases(call: RepositoryCall) -> Response:
    """List the databases that the access key may see."""
    catalog, page, caller = catalog_of(call), PageOf.asked(call, _PATTERN), call.caller
    matches = pattern_of(call.query.get(_PATTERN))
    names = (name for name in catalog.databases_and_branches() if matches(name) and may_see_database(caller, name))
    rows, next_token = page.cut(names, lambda name: name)
    return json({"databases": rows, "nextPageToken": next_token})


@ROUTES.add("POST", DATABASES, "paimonCreateDatabase", needs="write", gives={200: None}, audited=True)
async def create_database(call: RepositoryCall, body: DatabaseCreation) -> Response:
    """Create a database."""
    catalog = catalog_of(call)
    check_database(call.caller, body.name, whole=True)
    call.subject = body.name
    now_ms = call.serving.environment.clock.now_ms()
    await call.quick(catalog.create_database, body.name, body.options or {}, by=call.committer, now_ms=now_ms)
    return empty(200)


@ROUTES.add("GET", DATABASE, "paimonGetDatabase", needs="read", gives={200: dict}, statuses=HIDDEN)
async def get_database(call: RepositoryCall) -> Response:
    """Get a database."""
    catalog, name = database_of(call)
    record = await call.quick(catalog.database, name)
    return json(
        {
            "id": name,
            "name": name,
            "location": catalog.location_of(name),
            "options": record.options,
            "owner": record.created_by,
            "createdAt": record.created_at_ms,
            "createdBy": record.created_by,
            "updatedAt": record.updated_at_ms,
            "updatedBy": record.updated_by,
        }
    )


@ROUTES.add("POST", DATABASE, "paimonAlterDatabase", needs="write", gives={200: dict}, audited=True)
async def alter_database(call: RepositoryCall, body: DatabaseAlteration) -> Response:
    """Change properties of a database."""
    catalog, name = database_of(call, whole=True)
    changes = await call.quick(
        catalog.alter_database,
        name,
        removals=body.removals or [],
        updates=body.updates or {},
        by=call.committer,
        now_ms=call.serving.environment.clock.now_ms(),
    )
    return json(changes)


@ROUTES.add("DELETE", DATABASE, "paimonDropDatabase", needs="admin", gives={200: None}, audited=True)
async def drop_database(call: RepositoryCall) -> Response:
    """Drop a database with its tables."""
    catalog, name = database_of(call, whole=True)
    await call.transfer(catalog.drop_database, name)
    return empty(200)


NAME_PATTERNS: Final = (
    Parameter(_PATTERN, "Only databases whose names match it, as SQL's LIKE."),
    Parameter("tableNamePattern", "Only tables whose names match it, as SQL's LIKE."),
)
