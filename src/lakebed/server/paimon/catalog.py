"""`PaimonCatalog`: the tables of a lake, and its databases, under the names of Paimon's REST protocol.

Owns: names (``database`` and ``table``, ``table$branch_x`` for a branch), opened tables, ids of tables, and the records
of databases. A database with a dot in its name is a branch of a repository (`lakebed.server.reference_tables`). A
database exists if it has a record or a table; ``default`` always exists. Its properties are in the server's records,
below ``catalog/databases/`` (DO NOT CHANGE: stored).

Invariant: a table's id is derived from its location and its first schema. So it needs no write, and a table that was
dropped and created again has another id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.key_value.port import KeyValue
from lakebed.kv.ranges import prefix_end
from lakebed.lake.lake import Lake
from lakebed.lake.names import DEFAULT_DATABASE, WAREHOUSE_SUFFIX, parse_table_name
from lakebed.repo.records.records import decode_record
from lakebed.server.clients import name_of_folder
from lakebed.server.paimon.errors import database_not_found, not_served
from lakebed.server.reference_tables import ReferenceTables, parse_namespace
from lakebed.table.model.layout import MAIN_BRANCH
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.schema.schema import encode_schema
from lakebed.table.table import Table

PAIMON_TAG: Final = "paimon"
"""OpenAPI tag of the endpoints of this interface."""

_RECORDS: Final = b"catalog/databases/"
_BRANCH_MARK: Final = "branch_"
_TABLES_MAX: Final = 1_000
"""Most open tables that are kept. Each takes a few kB."""
_TRIES_MAX: Final = 16
_FOR_CLIENTS: Final = {"snapshot.expire.limit": "0"}
"""Options that clients get in place of the table's own.

Clients expire snapshots after their commits, and then delete files. They do not know which of them a rollback has made
live again, or a branch shares with main.
"""

_GONE: Final = {"table_not_found", "branch_not_found", "schema_changed"}
"""Kinds of errors of a table that was dropped, and perhaps created again, since it was opened."""

R = TypeVar("R")


class DatabaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of a database of tables."""

    options: dict[str, str] = {}
    created_at_ms: int = 0
    updated_at_ms: int = 0
    created_by: str = ""
    updated_by: str = ""


class PaimonCatalog:
    """The tables of a lake under the protocol's names. Thread-safe.

    Args:
        open_lake: opens the lake at the first use.
        records: the server's records.
        url: the lake's URL.
        references: the tables in branches of repositories.
    """

    def __init__(
        self, open_lake: Callable[[], Lake], *, records: KeyValue, url: str, references: ReferenceTables
    ) -> None:
        self._open_lake = open_lake
        self._lake: Lake | None = None
        self._records = records
        self._references = references
        self._tables: dict[tuple[str, str | None], Table] = {}
        self._ids: dict[str, tuple[TableSchema, str]] = {}  # by URL: the first schema, and the id derived from it
        self.url = url
        self.name = name_of_folder(url)

    @property
    def lake(self) -> Lake:
        """The lake. Cost: as `Lake.open` at the first use."""
        if self._lake is None:
            self._lake = self._open_lake()
        return self._lake

    @property
    def references(self) -> ReferenceTables:
        """The tables in branches of repositories."""
        return self._references

    # ---- tables

    def table(self, database: str, object_name: str) -> Table:
        """Return a table, or a branch of one, by the protocol's name.

        Raises `NotFound`: ``table_not_found``, also for names of system tables, which clients make themselves; or
        ``branch_not_found``. `InvalidRequest`: an invalid name. Cost: nothing if it was opened before.
        """
        table, branch = split_object(object_name)
        namespace = parse_namespace(database)
        if namespace is not None:
            return self._references.open(namespace, table, branch=branch)
        name = table_name(database, table)
        open_table = self._tables.get((name, branch))
        if open_table is None:
            open_table = self.lake.table(name, branch=branch)
            if len(self._tables) >= _TABLES_MAX:
                self._tables = {}
            self._tables[(name, branch)] = open_table
        return open_table

    def with_table(self, database: str, object_name: str, use: Callable[[Table], R]) -> R:
        """Return the result of `use` for a table. `use` itself finds out whether the opened table still exists.

        Raises as `table`, and the errors of `use`. If `use` fails because the table was dropped, or is another one by
        now, open the table again and call `use` once more. Cost: that of `use` if the table was opened before.
        """
        table = self.table(database, object_name)
        try:
            return use(table)
        except (NotFound, Conflict) as error:
            if is_in_reference(database) or error.kind not in _GONE:
                raise
        self.forget(database, object_name)
        return use(self.table(database, object_name))

    def look(self, database: str, object_name: str) -> tuple[Table, TableSchema]:
        """Return a table with its newest schema. Raises as `table`. Cost: 1 LIST, and 1 GET if there is a newer one."""
        table = self.table(database, object_name)
        if is_in_reference(database):
            return table, table.schema
        try:
            return table, table.refresh()
        except NotFound:  # dropped, and perhaps created again under the name of other objects
            self.forget(database, object_name)
            table = self.table(database, object_name)
            return table, table.schema

    def forget(self, database: str, object_name: str) -> None:
        """Close a table that was dropped or created."""
        if is_in_reference(database):
            return
        name = table_name(database, split_object(object_name)[0])
        self._tables = {key: table for key, table in self._tables.items() if key[0] != name}

    def table_names(self, database: str) -> Iterator[str]:
        """Return the names of the folders of a database, ascending; see `has_table`. Cost: 1 LIST."""
        namespace = parse_namespace(database)
        if namespace is not None:
            yield from self._references.names(namespace)
            return
        folder = table_name(database, "t") and f"{database}{WAREHOUSE_SUFFIX}"
        for name in sorted(self.lake.store.list_with_delimiter(folder).folders):
            yield name.rpartition("/")[2]

    def has_table(self, database: str, table: str) -> bool:
        """Whether a table exists. Cost: 1 LIST."""
        namespace = parse_namespace(database)
        try:
            if namespace is not None:
                return self._references.has_table(namespace, table)
            return self.lake.has_table(table_name(database, table))
        except InvalidRequest:  # a folder whose name is not valid for a table
            return False

    def id_of(self, table: Table) -> str:
        """Return the id of a table, which all its branches share. Cost: 1 GET, once."""
        first = table.context.main.schemas.load(0)
        table_id = self._ids.get(table.url)
        if table_id is None or table_id[0] is not first:
            table_id = first, str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.url}\n{encode_schema(first).decode()}"))
            if len(self._ids) >= _TABLES_MAX:
                self._ids = {}
            self._ids[table.url] = table_id
        return table_id[1]

    def url_of(self, database: str, table: Table) -> str:
        """Return the URL at which clients find the files of a table."""
        namespace = parse_namespace(database)
        return table.url if namespace is None else self._references.url(namespace, table.url.rpartition("/")[2])

    def create_table(self, database: str, name: str, columns: Sequence[DataField], **details: Any) -> None:
        """Create a table. Arguments and errors as `Lake.create_table`. Raises `NotFound` if its database is missing."""
        namespace = parse_namespace(database)
        if namespace is None:
            self.database(database)
            self.lake.create_table(table_name(database, name), columns, **details)
        else:
            folder = self._references.folder_to_create(namespace, name)
            environment = self.lake.environment
            Table.create(folder, name=f"{database}.{name}", schema=columns, environment=environment, **details)
        self.forget(database, name)

    def drop_table(self, database: str, name: str) -> None:
        """Drop a table, unless tags or branches pin versions of it. Errors as `Lake.drop_table`.

        Raises `InvalidRequest` (``not_served``) for a table in a branch.
        """
        if is_in_reference(database):
            raise not_served(
                "A table in a branch is dropped with its repository's means: delete its folder, then commit the branch."
            )
        self.lake.drop_table(table_name(database, name))
        self.forget(database, name)

    # ---- databases

    def databases(self) -> list[str]:
        """Return the names of all databases of the lake, ascending. Cost: 1 LIST, 1 scan."""
        folders = self.lake.store.list_with_delimiter("").folders
        names = {DEFAULT_DATABASE, *(name.removesuffix(WAREHOUSE_SUFFIX) for name in folders if _is_database(name))}
        with self._records.snapshot() as snapshot:
            for key, _ in snapshot.scan(_RECORDS, prefix_end(_RECORDS)):
                names.add(key.removeprefix(_RECORDS).decode())
        return sorted(names)

    def databases_and_branches(self) -> list[str]:
        """As `databases`, including those of branches. Cost: as `databases`, and 1 scan for each repository."""
        return sorted([*self.databases(), *map(str, self._references.namespaces())])

    def database(self, name: str) -> DatabaseRecord:
        """Return a database. Raises `NotFound`, `InvalidRequest`. Cost: 1 read; without a record also 1 LIST."""
        namespace = parse_namespace(name)
        if namespace is not None:
            self._references.check(namespace)
            return DatabaseRecord()
        record = self._load(name)
        if record is not None:
            return record[1]
        if name != DEFAULT_DATABASE and not self.lake.store.list_with_delimiter(f"{name}{WAREHOUSE_SUFFIX}").folders:
            raise database_not_found(name)
        return DatabaseRecord()

    def location_of(self, name: str) -> str:
        """Return the URL at which clients find the files of a database."""
        namespace = parse_namespace(name)
        return f"{self.url}/{name}{WAREHOUSE_SUFFIX}" if namespace is None else self._references.url(namespace)

    def create_database(self, name: str, options: Mapping[str, str], *, by: str, now_ms: int) -> None:
        """Create a database. Raises `AlreadyExists`, also for the name of a branch, and `InvalidRequest`.

        Cost: as `database`, and 1 write.
        """
        exists = AlreadyExists(f"There is a database {name!r} already.", kind="catalog_database_exists", database=name)
        try:
            self.database(name)
        except NotFound:
            _check_in_lake(name)
            record = DatabaseRecord(dict(options), now_ms, now_ms, by, by)
            try:
                self._records.set_if(_key(name), msgspec.json.encode(record), expected=None)
            except Conflict as faster:
                raise exists from faster
            return
        raise exists

    def alter_database(
        self, name: str, *, removals: list[str], updates: Mapping[str, str], by: str, now_ms: int
    ) -> dict[str, list[str]]:
        """Change properties of a database. Return the names that were removed, updated and missing.

        Raises `NotFound`.
        """
        _check_in_lake(name)
        for _ in range(_TRIES_MAX):
            raw, record = self._load(name) or (None, self.database(name))
            options = {key: value for key, value in record.options.items() if key not in removals}
            new_record = msgspec.structs.replace(
                record, options={**options, **updates}, updated_at_ms=now_ms, updated_by=by
            )
            try:
                self._records.set_if(_key(name), msgspec.json.encode(new_record), expected=raw)
            except Conflict:
                continue
            removed_keys = [key for key in removals if key in record.options]
            return {
                "removed": removed_keys,
                "updated": list(updates),
                "missing": [key for key in removals if key not in record.options],
            }
        raise Conflict(f"The database {name!r} is being changed by others: try again.", kind="database_changed")

    def drop_database(self, name: str) -> None:
        """Drop a database with all its tables. If one of them is pinned, drop nothing.

        Raises `NotFound`, `InvalidRequest` (kind ``table_pinned``). Cost: that of its tables.
        """
        _check_in_lake(name)
        self.database(name)
        tables = [table for table in self.table_names(name) if self.has_table(name, table)]
        for table in tables:
            self.lake.drop_table(table_name(name, table), dry_run=True)  # raises if tags or branches pin it
        for table in tables:
            self.lake.drop_table(table_name(name, table))
            self.forget(name, table)
        self._records.delete(_key(name))

    def _load(self, name: str) -> tuple[bytes, DatabaseRecord] | None:
        table_name(name, "t")  # raises if the name is invalid
        raw = self._records.get(_key(name))
        return None if raw is None else (raw, decode_record(raw, DatabaseRecord, key=_key(name)))


def split_object(text: str) -> tuple[str, str | None]:
    """Split ``table`` or ``table$branch_x`` into table and branch; None: main. Raises `NotFound` for system tables."""
    table, mark, rest = text.partition("$")
    if not mark:
        return table, None
    branch = rest.removeprefix(_BRANCH_MARK)
    if branch == rest or "$" in branch or not branch:
        raise NotFound(
            f"{text!r} is not a table of the catalog: clients make system tables themselves, from the table.",
            kind="table_not_found",
            name=text,
        )
    return table, None if branch.lower() == MAIN_BRANCH else branch


@lru_cache(maxsize=_TABLES_MAX)
def table_name(database: str, table: str) -> str:
    """Return the lake's name of a table. Raises `InvalidRequest`."""
    if "." in database or "." in table:
        raise InvalidRequest(
            f"The name {database!r}.{table!r} has a dot inside of a part: choose a name without.",
            kind="invalid_table_name",
        )
    return str(parse_table_name(f"{database}.{table}"))


def is_in_reference(database: str) -> bool:
    """Whether the name is that of a branch, and not of a database of the lake."""
    return parse_namespace(database) is not None


def _check_in_lake(database: str) -> None:
    if is_in_reference(database):
        raise not_served(
            f"The database {database!r} is a branch of a repository: create, change and delete it as a branch, there."
        )


def _is_database(folder: str) -> bool:
    return folder.endswith(WAREHOUSE_SUFFIX) and folder != WAREHOUSE_SUFFIX


def _key(name: str) -> bytes:
    return _RECORDS + name.encode()


def describe(catalog: PaimonCatalog, table: Table, schema: TableSchema, *, database: str, name: str) -> dict[str, Any]:
    """Return a table as the protocol's ``GetTableResponse``."""
    first = table.context.main.schemas.load(0)
    members = msgspec.json.decode(encode_schema(schema))
    options = members["options"] | _FOR_CLIENTS | ({} if table.branch is None else {"branch": table.branch})
    return {
        "id": catalog.id_of(table),
        "database": database,
        "name": name,
        "path": catalog.url_of(database, table),
        "isExternal": False,
        "schemaId": schema.id,
        "schema": {
            "fields": members["fields"],
            "partitionKeys": members["partitionKeys"],
            "primaryKeys": members["primaryKeys"],
            "options": options,
            "comment": members["comment"] or None,
        },
        # Unknown. Clients copy these members into the table's options, and Flink reads no table with an option of null.
        "owner": "",
        "createdAt": first.time_ms,
        "createdBy": "",
        "updatedAt": schema.time_ms,
        "updatedBy": "",
    }
