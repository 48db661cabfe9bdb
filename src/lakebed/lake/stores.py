"""The stores of a lake: finding tables, databases, repositories and tenants by name.

Invariants: nothing is written. Does not know: how a store keeps its versions, or how a lake is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import lakebed.lake
from lakebed.arguments import check_arguments
from lakebed.errors import InvalidRequest, NotFound
from lakebed.fleet.layout import FLEET_FOLDER
from lakebed.lake.drop import is_dropped
from lakebed.lake.names import (
    DATABASE_SUFFIX,
    KINDS,
    WAREHOUSE_SUFFIX,
    StoreKind,
    StoreName,
    TableName,
    database_folder,
    nearest_names,
    parse_store_name,
    parse_table_name,
    split_path,
)
from lakebed.lake.root import LakeRoot
from lakebed.objects.port import ObjectStore
from lakebed.repo.outside.namespace import METADATA_FOLDER
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.texts import list_some

if TYPE_CHECKING:  # loaded when a lake has such stores
    from lakebed.fleet.client import Tenant
    from lakebed.fleet.connect import Fleet
    from lakebed.kv.admin import DatabaseAdmin
    from lakebed.lake.tenants import Records
    from lakebed.repo.model.options import RepositoryOptions
    from lakebed.repo.repositories import Repositories
    from lakebed.repo.repository import Repository

T = TypeVar("T")
R = TypeVar("R")

_CONCURRENT_STORES_MAX = 8


@check_arguments
class Stores:
    """The stores of one lake. Its only state is the lake's store. Thread-safe.

    Attributes:
        store: the lake's root.
        environment: clock, randomness and concurrency, for every store of the lake.
        storage_options: settings of the object store, also for databases of other lakes that share files with clones.
    """

    _is_probed = False
    """Whether the lake's marker was seen. The store is probed before its first marker is written."""

    def __init__(
        self, store: ObjectStore, *, environment: Environment, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self.environment = environment
        self.storage_options = storage_options

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address, which another process opens; a store in this process's memory refuses."""
        return _reopen, (type(self), self.store, self.storage_options, self._is_probed)

    @property
    def url(self) -> str:
        """The lake's URL, without credentials and without a final slash."""
        return self.store.root_url

    # ---- tables

    def table(self, name: str, *, branch: str | None = None) -> Table:
        """Open a table, or one of its branches.

        Args:
            name: ``flights`` (in database ``default``) or ``db.flights``.
            branch: name of a branch; None: main.

        Raises:
            InvalidRequest: the name is not a table's name.
            NotFound: there is no such table or no such branch. The message names similar tables.

        Cost: 1 LIST + 1 GET.
        """
        table_name = parse_table_name(name)
        try:
            return Table.open(
                self.store.sub(table_name.folder), name=str(table_name), branch=branch, environment=self.environment
            )
        except NotFound as missing:
            if branch is not None and self.has_table(name):
                raise
            raise self._absent(str(table_name)) from missing

    def has_table(self, name: str) -> bool:
        """Return whether the lake has a table of this name. Cost: 1 LIST."""
        folder = parse_table_name(name).folder
        return bool(self.store.list_with_delimiter(f"{folder}/schema").objects)

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted.

        Cost: 1 LIST, and 1 LIST for each database and each table. The LISTs of tables run concurrently.
        """
        names = [name for name in list_table_folders(self) if self.has_table(str(name))]
        return sorted(str(name) for name in names)

    def list_dropped(self) -> list[str]:
        """Return the names of tables whose drop did not finish. `Lake.collect` finishes it.

        Cost: as `tables`, and 1 HEAD for each table.
        """
        return [str(name) for name in list_dropped_tables(self)]

    # ---- databases

    def database(self, name: str) -> DatabaseAdmin:
        """Return a database by name, without opening it and without looking whether it exists.

        `DatabaseAdmin.open` opens it, and creates it if it is missing. Raises `InvalidRequest` for an invalid name.
        Cost: no request.
        """
        return lakebed.lake.databases.admin(root_of(self), database_folder(name), name=name)

    def databases(self) -> list[str]:
        """Return the names of all databases, sorted, including those that are being destroyed. Cost: 1 LIST."""
        return sorted(
            folder.removesuffix(DATABASE_SUFFIX)
            for folder in self.store.list_with_delimiter("").folders
            if folder.endswith(DATABASE_SUFFIX) and folder != DATABASE_SUFFIX
        )

    # ---- repositories

    def has_repositories(self) -> bool:
        """Return whether the lake holds records of repositories. Cost: 1 LIST."""
        return any(True for _ in self.store.list(METADATA_FOLDER))

    def repositories(self) -> list[str]:
        """Return the names of all repositories whose records are in the lake, sorted.

        Reads the records also while another process owns them.

        Cost: 1 LIST; with repositories also 2 LIST + 1 GET, and 1 GET for each log object of the records.
        """
        with read_repositories(self) as repositories:
            return [] if repositories is None else [repository.name for repository in repositories.list()]

    def open_repositories(self, *, create: bool = True, options: RepositoryOptions | None = None) -> Repositories:
        """Open all repositories of the lake to change them, as `lakebed.repo.open_all`.

        Close the result when it is no longer needed: until then this process owns the lake's repositories.
        """
        return lakebed.lake.repositories.open_all(root_of(self), create=create, options=options)

    def repository(self, name: str, *, create: bool = False, options: RepositoryOptions | None = None) -> Repository:
        """Open a repository to change it. Until it is closed, this process owns all repositories of the lake.

        Close it, or use it in a ``with`` statement.

        Args:
            name: such as ``analytics``.
            create: create the repository if it is missing.
            options: settings of the repository.

        Raises:
            NotFound: there is no such repository, and `create` is False. The message names similar repositories.
            Conflict: kind ``owned``: another process owns the repositories. The message names its endpoint.

        Cost: as `lakebed.kv.open`, and 1 read.
        """
        try:
            repositories = self.open_repositories(create=create, options=options)
        except NotFound as missing:  # the lake has no repository at all
            raise self._absent(name, "repository") from missing
        return lakebed.lake.repositories.sole_repository(repositories, name, create=create)

    # ---- tenants

    def fleet(self, *, control: str | None = None) -> Fleet:
        """Connect to the running fleet that serves the lake's tenants. Close it, or use it in a ``with`` statement.

        Args:
            control: URL of the control plane. None: ``LAKEBED_FLEET_CONTROL``, or the URL that the last control plane
                wrote into the lake.

        Raises:
            NotFound: kind ``fleet_not_found``: the lake never had a fleet.
            Unavailable: kind ``fleet_not_running``.

        Cost: 1 GET, and 1 request to the control plane.
        """
        return lakebed.lake.tenants.connect_fleet(root_of(self), control)

    def tenant(self, name: str, *, create: bool = False) -> Tenant:
        """Return a tenant of the lake's running fleet.

        Args:
            name: the tenant's name.
            create: create the tenant if it is missing.

        Raises:
            NotFound: kind ``tenant_not_found``, with similar names; kind ``fleet_not_found``.
            Unavailable: kind ``fleet_not_running``.

        Cost: as `fleet`, and 1 request.
        """
        tenant = self.fleet().tenant(name)
        if create:
            tenant.create(if_not_exists=True)
            return tenant
        try:
            tenant.record()
        except NotFound as missing:
            raise self._absent(name, "tenant") from missing
        return tenant

    def has_fleet(self) -> bool:
        """Return whether the lake has or had a fleet. Cost: 1 LIST."""
        return FLEET_FOLDER in self.store.list_with_delimiter("").folders

    def tenants(self) -> list[str]:
        """Return the names of all tenants, sorted.

        Raises `Unavailable` (kind ``fleet_not_running``) if only a running fleet knows them.

        Cost: 1 LIST; with a fleet also 2 LIST + 1 GET and 1 GET for each log object of its ledger, or as `fleet`.
        """
        if not self.has_fleet():
            return []
        with read_tenants(self) as records:
            return sorted(record.tenant for record in records.tenants())

    # ---- stores of every kind

    def stores(self) -> list[StoreName]:
        """Return the names of all tables, databases, repositories and tenants, in this order, each kind sorted.

        Cost: as `tables`, `databases`, `repositories` and `tenants`.
        """
        return [StoreName(kind, name) for kind in KINDS for name in self._names(kind)]

    def find(self, name: str) -> StoreName:
        """Find a store by name.

        Args:
            name: ``flights``, which is the first kind in the order of `stores` that has this name, or
                ``database:serving``.

        Raises:
            InvalidRequest: the name is not a store's name.
            NotFound: there is no such store. The message names similar ones.
        """
        kind, bare_name = parse_store_name(name)
        if kind == "database":
            database_folder(bare_name)  # an invalid name is refused, not reported as missing
        for store_kind in KINDS if kind is None else (kind,):
            if store_kind == "table":
                if self.has_table(bare_name):
                    return StoreName("table", str(parse_table_name(bare_name)))
            elif bare_name in self._names(store_kind):
                return StoreName(store_kind, bare_name)
        raise self._absent(bare_name, kind)

    def _names(self, kind: StoreKind) -> list[str]:
        names: dict[StoreKind, Callable[[], list[str]]] = {
            "table": self.tables,
            "database": self.databases,
            "repository": self.repositories,
            "tenant": self.tenants,
        }
        return names[kind]()

    def _absent(self, name: str, kind: StoreKind | None = "table") -> NotFound:
        """Return the error for a missing store of a kind; None: any kind."""
        by_kind = {store_kind: self._names(store_kind) for store_kind in KINDS}
        names = (
            [store_name for names_of_kind in by_kind.values() for store_name in names_of_kind]
            if kind is None
            else by_kind[kind]
        )
        kind_text = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}" if kind is None else kind
        nearest = nearest_names(name, names)
        if nearest:
            hint = f"Did you mean {' or '.join(nearest)}?"
        elif names:
            hint = f"It has {list_some(names)}."
        else:
            hint = f"It has no {kind_text} yet."
        for other_kind in KINDS:
            if kind is not None and other_kind != kind and name in by_kind[other_kind]:
                hint = f"It has a {other_kind} of this name: {other_kind}:{name}."
        return NotFound(
            f"The lake {self.url} has no {kind_text} {name}. {hint}",
            kind=f"{kind or 'store'}_not_found",
            name=name,
            nearest=nearest,
        )


def path_in(lake: Stores, where: str) -> str:
    """Return the path inside this lake of a URL or a relative path.

    Raises `InvalidRequest` for a URL outside of it.
    """
    if "://" not in where and not where.startswith("/"):
        return where.strip("/")
    url = where if "://" in where else f"file://{where}"
    inner_path = url.removeprefix(lake.url + "/")
    if inner_path == url:
        raise InvalidRequest(
            f"{where} is not in the lake {lake.url}: name an object of this lake.", kind="outside_lake", url=where
        )
    return inner_path.strip("/")


def root_of(lake: Stores) -> LakeRoot:
    """Return the root of a lake, as the modules `databases`, `repositories` and `tenants` take it."""
    options = None if lake.storage_options is None else dict(lake.storage_options)
    return LakeRoot(lake.store, lake.environment, options, lake._is_probed)


@contextmanager
def read_repositories(lake: Stores) -> Iterator[Repositories | None]:
    """Open all repositories to read. This works while another process owns them. None: the lake has no repository.

    Raises as `lakebed.kv.open_reader`. Cost: 1 LIST; and of the records 2 LIST + 1 GET, 1 GET a log object.
    """
    if not lake.has_repositories():
        yield None
        return
    with lakebed.lake.repositories.read_all(root_of(lake)) as repositories:
        yield repositories


@contextmanager
def read_tenants(lake: Stores) -> Iterator[Records]:
    """Read the records of the lake's tenants, without taking ownership.

    Raises `Unavailable` (``fleet_not_running``) when only the control plane knows them, and it does not run.
    Cost: 2 LIST + 1 GET, 1 GET a log object; or that of `fleet`.
    """
    with lakebed.lake.tenants.read_records(root_of(lake)) as records:
        yield records


def call_each(lake: Stores, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for each item concurrently. Return the results in the order of the items."""
    pool = lake.environment.runtime.pool(_CONCURRENT_STORES_MAX)
    try:
        return list(pool.map(function, items))
    finally:
        pool.close()


def list_table_folders(lake: Stores) -> list[TableName]:
    """Return every folder where a table may be. Cost: 1 LIST + 1 LIST a database."""
    names = []
    for database in lake.store.list_with_delimiter("").folders:
        if database.endswith(WAREHOUSE_SUFFIX) and database != WAREHOUSE_SUFFIX:
            for folder in lake.store.list_with_delimiter(database).folders:
                parts = split_path(folder)
                if parts is not None:
                    names.append(parts[0])
    return sorted(names)


def list_dropped_tables(lake: Stores) -> list[TableName]:
    """List the tables whose drop did not finish. Cost: as `Stores.tables`, and 1 HEAD for each folder."""
    return [name for name in list_table_folders(lake) if not lake.has_table(str(name)) and is_dropped(lake.store, name)]


def _reopen(
    kind: type[Stores], store: ObjectStore, storage_options: Mapping[str, str] | None, is_probed: bool
) -> Stores:
    """Unpickle a lake. Cost: no request."""
    lake = kind(store, environment=Environment(), storage_options=storage_options)
    lake._is_probed = is_probed
    return lake
