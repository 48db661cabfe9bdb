"""Where the stores of a lake are: finding tables and databases by name, and each of them.

Invariants: nothing is written. Does not know: how any store keeps its versions, or how a lake is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from lakebed.errors import InvalidRequest, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.place import Place
from lakebed.lake.drop import is_dropped
from lakebed.lake.names import (
    DATABASE_SUFFIX,
    StoreName,
    TableName,
    database_folder,
    nearest_names,
    parse_store_name,
    parse_table_name,
    split_path,
)
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.table import Table

__all__ = ["WAREHOUSE_SUFFIX", "Stores"]

T = TypeVar("T")
R = TypeVar("R")

WAREHOUSE_SUFFIX = ".db"
_CONCURRENT_STORES_MAX = 8


class Stores:
    """The stores of one lake. Thread-safe; holds no state but the lake's own store.

    Attributes:
        store: the lake's root.
        environment: clock, randomness and concurrency, handed on to every store.
        storage_options: what the store was opened with, for databases of other lakes that clones share files with.
    """

    def __init__(
        self, store: ObjectStore, *, environment: Environment, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self.environment = environment
        self.storage_options = storage_options

    @property
    def url(self) -> str:
        """The lake's URL, without credentials and without final slash."""
        return self.store.root_url

    def path_of(self, where: str) -> str:
        """The path inside this lake of a URL or a relative path. Raises `InvalidRequest` for a URL outside of it."""
        if "://" not in where and not where.startswith("/"):
            return where.strip("/")
        url = where if "://" in where else f"file://{where}"
        inside = url.removeprefix(self.url + "/")
        if inside == url:
            raise InvalidRequest(f"{where} does not lie in the lake {self.url}.", kind="outside_lake", url=where)
        return inside.strip("/")

    # ---- tables

    def table(self, name: str, *, branch: str | None = None) -> Table:
        """Open a table.

        Args:
            name: ``flights`` (in database ``default``) or ``db.flights``.
            branch: one of its branches; None is main.

        Raises:
            InvalidRequest: not a table's name.
            NotFound: no such table (with the nearest names), or no such branch.
        Cost: 1 LIST + 1 GET.
        """
        wanted = parse_table_name(name)
        try:
            return Table.open(
                self.store.sub(wanted.folder), name=str(wanted), branch=branch, environment=self.environment
            )
        except NotFound as missing:
            if branch is not None and self.has_table(name):
                raise
            raise self._absent(str(wanted)) from missing

    def has_table(self, name: str) -> bool:
        """Whether there is such a table. Cost: 1 LIST."""
        folder = parse_table_name(name).folder
        return bool(self.store.list_with_delimiter(f"{folder}/schema").objects)

    def tables(self) -> list[str]:
        """Names of all tables, sorted. Cost: 1 LIST + 1 LIST a database + 1 LIST a table, the last ones at once."""
        names = [name for name in self._folders() if self.has_table(str(name))]
        return sorted(str(name) for name in names)

    def dropped(self) -> list[str]:
        """Names of tables whose drop did not finish; `clean` finishes it. Cost: as `tables`, and 1 HEAD each."""
        return [str(name) for name in self.dropped_tables()]

    def folder_of(self, name: str) -> str:
        """Where a table lies, relative to the lake's root. Raises `InvalidRequest` for what is no table's name."""
        return parse_table_name(name).folder

    # ---- databases

    def database(self, name: str) -> DatabaseAdmin:
        """A database by name, without opening it: `DatabaseAdmin.open` makes it when it is not there yet.

        Raises `InvalidRequest` for what is no database's name. Cost: no request.
        """
        return DatabaseAdmin(self._place(database_folder(name)), name=name)

    def databases(self) -> list[str]:
        """Names of all databases, sorted; those being destroyed included. Cost: 1 LIST."""
        return sorted(
            folder.removesuffix(DATABASE_SUFFIX)
            for folder in self.store.list_with_delimiter("").folders
            if folder.endswith(DATABASE_SUFFIX) and folder != DATABASE_SUFFIX
        )

    def _place(self, folder: str) -> Place:
        """A database's place; its clones may lie beside it, or wherever this lake's credentials reach."""
        root = f"{self.url}/"

        def open_url(url: str) -> ObjectStore:
            if url.startswith(root):
                return self.store.sub(url.removeprefix(root))
            return open_store(url, storage_options=self.storage_options, environment=self.environment)

        return Place(self.store.sub(folder), self.environment, open_url)

    # ---- stores of every kind

    def stores(self) -> list[StoreName]:
        """Every store, tables first, sorted by name. Cost: as `tables` and `databases`."""
        tables = [StoreName("table", name) for name in self.tables()]
        return tables + [StoreName("database", name) for name in self.databases()]

    def find(self, name: str) -> StoreName:
        """The store that a name means: ``flights`` (a table, else a database), ``table:flights``, ``database:serving``.

        Raises:
            InvalidRequest: not a store's name.
            NotFound: there is none; with the nearest names.
        """
        kind, plain = parse_store_name(name)
        if kind == "database" or (kind is None and "." not in plain and not self.has_table(plain)):
            database_folder(plain)
            if plain in self.databases():
                return StoreName("database", plain)
        if kind != "database" and self.has_table(plain):
            return StoreName("table", str(parse_table_name(plain)))
        raise self._absent(plain, kind or "table or database")

    def open_store_named(self, store: StoreName) -> Table | DatabaseAdmin:
        """A store of either kind, by what `find` or `stores` said; answers the `Versioned` contract."""
        return self.table(store.name) if store.kind == "table" else self.database(store.name)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function for each item, some at once; results in order."""
        pool = self.environment.runtime.pool(_CONCURRENT_STORES_MAX)
        try:
            return list(pool.map(function, items))
        finally:
            pool.close()

    # ---- inside

    def _folders(self) -> list[TableName]:
        """Every folder where a table may lie. Cost: 1 LIST + 1 LIST a database."""
        names = []
        for database in self.store.list_with_delimiter("").folders:
            if database.endswith(WAREHOUSE_SUFFIX) and database != WAREHOUSE_SUFFIX:
                for folder in self.store.list_with_delimiter(database).folders:
                    found = split_path(folder)
                    if found is not None:
                        names.append(found[0])
        return sorted(names)

    def dropped_tables(self) -> list[TableName]:
        """Folders of tables whose drop did not finish. Cost: as `tables`, and 1 HEAD each."""
        return [name for name in self._folders() if not self.has_table(str(name)) and is_dropped(self.store, name)]

    def _absent(self, name: str, kind: str = "table") -> NotFound:
        """The error for a store that is not there; `kind` says what was looked for."""
        databases = self.databases()
        names = ([] if kind == "database" else self.tables()) + ([] if kind == "table" else databases)
        near = nearest_names(name, names)
        if near:
            there = f"Did you mean {' or '.join(near)}?"
        elif names:
            there = f"It has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        else:
            there = f"It has no {kind} yet."
        if kind == "table" and name in databases:
            there = f"It has a database of this name: database:{name}, or lakebed kv --path {self.url}/{name}.kv."
        return NotFound(
            f"The lake {self.url} has no {kind} {name}. {there}", kind="table_not_found", table=name, nearest=near
        )
