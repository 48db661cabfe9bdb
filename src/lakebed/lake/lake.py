"""A lake: one URL, its marker, its tables, databases, repositories and tenants.

Owns: opening and creating a lake, creating and dropping its tables. Finding stores by name is in `stores.py`,
operations on a whole lake (`ls`, `pins`, `why`, `collect`) are in `operations.py`. A lake is a warehouse folder of
Paimon, ``<db>.db/<table>``, with a marker ``lakebed.json``; a database is a folder ``<name>.kv`` in it, a repository
``<name>.repo``.

Invariants:
- Opening writes nothing, except the marker of a lake that `create` creates in an empty folder.
- A warehouse of another client is opened unchanged; the first table that lakebed creates in it adds the marker.
- The store is probed before the first marker, at the lake's root: one that ignores create-only puts is refused.
- One create-only put, of its first schema, creates a table and decides races.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import lakebed.lake
from lakebed.arguments import check_arguments, check_function
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.fleet.layout import FLEET_FOLDER
from lakebed.lake import operations
from lakebed.lake.adapters.port import Collection, StoreSummary
from lakebed.lake.drop import drop_table, is_dropped, is_left, leftover, list_stores_inside
from lakebed.lake.marker import MARKER_PATH, check_marker, encode_marker
from lakebed.lake.names import DATABASE_SUFFIX, WAREHOUSE_SUFFIX, TableName, parse_table_name
from lakebed.lake.stores import Stores, root_of
from lakebed.objects.open import open_store
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import is_probe, probe_create_only
from lakebed.objects.reserve import keep_reserve
from lakebed.reclaim.model import CollectionReport, Explanation, Pin, Version
from lakebed.repo.outside.namespace import METADATA_FOLDER
from lakebed.runtime import Environment
from lakebed.table.model.model import DataField
from lakebed.table.table import Table
from lakebed.texts import list_some

if TYPE_CHECKING:  # loaded when a lake has tenants
    from lakebed.fleet.collect import OrphanReport

__all__ = ["Lake", "StoreSummary", "open_lake"]


@check_function
def open_lake(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> Lake:
    """Open the lake at a URL. Create it if the folder is empty or missing.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``memory://name``, ``file:///path`` or a plain path.
        create: False: raise `NotFound` instead of creating a lake.
        storage_options: settings and credentials of the object store, in addition to its environment variables.
        environment: clock, randomness and concurrency; None: those of this machine.

    Raises:
        InvalidRequest: the folder holds something else, or a new lake would be inside the folder of a table, or the
            store ignores create-only puts.
        NotFound: there is no lake, and `create` is False.
        UnsupportedFormat: the lake needs a newer lakebed.
        Unavailable: the store does not answer, or this process may not write to the folder.

    Cost: 1 GET for a lake with a marker, 1 LIST more for one without. To create a lake: the probe of the store and 1
        PUT. A missing lake whose folder is named as a database's costs 1 LIST more.
    """
    environment = environment or Environment()
    try:
        store = open_store(url, storage_options=storage_options, environment=environment, create=create)
        if create:
            _refuse_inside(store.root_url, storage_options=storage_options, environment=environment)
        return Lake.open(store, create=create, environment=environment, storage_options=storage_options)
    except NotFound:
        _refuse_inside(str(parse_url(url)), storage_options=storage_options, environment=environment)
        raise


def _refuse_inside(url: str, *, storage_options: Mapping[str, str] | None, environment: Environment) -> None:
    """Refuse to create a lake in the folder of a table, whose collection and drop take what is not the table's."""
    parts = url.split("/")
    for end in range(2, len(parts)):  # of each folder above, but for those that no table can be
        parent_url = "/".join(parts[:end])
        if parts[end - 2].endswith(WAREHOUSE_SUFFIX):
            with contextlib.suppress(NotFound):
                table = open_store(parent_url, storage_options=storage_options, environment=environment, create=False)
                if "schema" in table.list_with_delimiter("").folders:
                    raise InvalidRequest(
                        f"{url} is inside the folder of the table {parent_url}, whose collections delete such files: "
                        "name a folder outside of the lake that has this table.",
                        kind="not_a_lake",
                        url=url,
                    )


@check_arguments
class Lake(Stores):
    """One lake: its tables, databases, repositories and tenants. Its only state is its store. Thread-safe.

    Attributes:
        store: the lake's root.
        environment: clock, randomness and concurrency, for every store of the lake.
        storage_options: settings of the object store, also for databases of other lakes that share files with clones.
    """

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        *,
        create: bool = True,
        environment: Environment | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Lake:
        """Open the lake in an object store that is already open. Otherwise as `lakebed.open`."""
        lake = cls(store, environment=environment or Environment(), storage_options=storage_options)
        if lake._is_marked():
            return lake
        top = store.list_with_delimiter("")
        objects = [meta.path for meta in top.objects if not is_probe(meta.path)]
        if MARKER_PATH in objects and lake._is_marked():  # another process has created the lake since
            return lake
        if not {METADATA_FOLDER, FLEET_FOLDER}.isdisjoint(top.folders) or any(
            folder.endswith((WAREHOUSE_SUFFIX, DATABASE_SUFFIX)) for folder in top.folders
        ):
            return lake
        if {"manifest", "wal"} <= set(top.folders):
            raise InvalidRequest(
                f"{store.root_url} is a database, not a lake: open the folder above it, or say lakebed kv --path.",
                kind="not_a_lake",
                url=store.root_url,
            )
        if {"schema", "snapshot"} <= set(top.folders):
            raise InvalidRequest(
                f"{store.root_url} is a table, not a lake: open the folder above its '<database>.db'.",
                kind="not_a_lake",
                url=store.root_url,
            )
        names = sorted([*top.folders, *objects])
        if names:
            raise InvalidRequest(
                f"{store.root_url} is not a lake: it contains {list_some(names)}, but neither {MARKER_PATH} nor a "
                f"folder '<database>.db', '<name>.kv' or '{METADATA_FOLDER}'. Name the folder of a lake, or an empty "
                "one to create a lake in.",
                kind="not_a_lake",
                url=store.root_url,
            )
        if not create:
            raise NotFound(
                f"There is no lake at {store.root_url}: the folder is empty or missing.",
                kind="lake_not_found",
                url=store.root_url,
            )
        lake._mark()
        return lake

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    # ---- tables

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Sequence[DataField],
        *,
        primary_keys: str | Sequence[str] = (),
        partition_keys: str | Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str = "",
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table, and mark the folder as a lake if it is not marked yet.

        Args:
            name: ``flights`` (in database ``default``) or ``db.flights``.
            schema: columns, as Arrow fields or as `DataField`.
            primary_keys: one column or several. A table with a primary key has each key once and is upserted; a table
                without one is appended to.
            partition_keys: columns whose values become folders. With a primary key, they must be part of it.
            options: table options by their Paimon names, such as ``{"bucket": "4"}``.
            if_not_exists: open an existing table instead of raising `AlreadyExists`.

        Raises:
            AlreadyExists: the table exists and `if_not_exists` is False, or a drop of a table of this name did not
                finish.
            InvalidRequest: a name, type, key or option is not valid.

        Cost: 2 LIST + 1 GET + 1 PUT. The first table in a warehouse of another client also costs the probe and 1 PUT.
        """
        table_name = parse_table_name(name)
        folder = self.store.sub(table_name.folder)
        listing = folder.list_with_delimiter("")
        # A listing is not atomic: it may contain another creator's first rows, and not the schema written before them.
        if listing.folders or any(not is_probe(meta.path) for meta in listing.objects):
            if not self.has_table(name):
                raise leftover(table_name, url=self.url)
            return self._existing(table_name, if_not_exists=if_not_exists)
        if not self._is_marked():
            self._mark()
        try:
            return Table.create(
                folder,
                name=str(table_name),
                schema=schema,
                primary_keys=primary_keys,
                partition_keys=partition_keys,
                options=dict(options or {}),
                comment=comment,
                environment=self.environment,
            )
        except AlreadyExists:
            return self._existing(table_name, if_not_exists=if_not_exists)

    def drop_table(
        self,
        name: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> CollectionReport:
        """Delete a table with everything in its folder.

        Args:
            force: drop the table even if tags or branches pin its versions, or its folder holds a database, a
                repository or a lake. Also delete files without a schema, which a writer that died left in the folder of
                a dropped table.
            dry_run: report what would be deleted; delete nothing.
            progress: called after each batch of deletes.

        Raises:
            NotFound: there is no such table.
            InvalidRequest: kind ``table_pinned``: without `force`, when tags, branches or other stores are there. The
                message names them.

        Cost: 1 LIST and 1 DELETE for every thousand objects.
        """
        table_name = parse_table_name(name)
        if not self.has_table(name):
            if not is_dropped(self.store, table_name) and not (force and is_left(self.store, table_name)):
                raise self._absent(str(table_name))
        elif not force:
            table = self.table(name)
            pins = [f"tag {tag.name}" for tag in table.tags()]
            pins += [f"branch {branch.name}" for branch in table.branches()]
            pins += [
                f"the store {inner_store} in its folder" for inner_store in list_stores_inside(self.store, table_name)
            ]
            if pins:
                pins_text = list_some(pins)
                raise InvalidRequest(
                    f"The table {table_name} is pinned by {pins_text}: delete these first, or drop it with force "
                    "(--force).",
                    kind="table_pinned",
                    table=str(table_name),
                    pins=pins_text,
                )
        return drop_table(self.store, table_name, environment=self.environment, dry_run=dry_run, progress=progress)

    # ---- the whole lake

    def ls(self, *, disk: bool = True) -> list[StoreSummary]:
        """List all stores with their newest version, rows, bytes and pins, by kind and then by name.

        A store that cannot be read is listed with its `problem`.

        Args:
            disk: also add up the bytes of all objects of each store.

        Cost: the summary of each store; with `disk` also 1 LIST for every thousand objects.
        """
        return operations.ls(self, disk=disk)

    def history(self, name: str) -> list[Version]:
        """Return the readable versions of a store, oldest first. Versions that only a pin keeps are included.

        Raises:
            InvalidRequest: the name is not a store's name.
            NotFound: there is no such store.

        Cost: 2 LIST, and 1 GET for each version.
        """
        return operations.history(self, name)

    def pins(self, name: str | None = None) -> list[Pin]:
        """Return everything that keeps a version alive, with the bytes that only it holds.

        Args:
            name: of a store, as `find`; None: all stores.

        Cost: as `ls`, and the file lists of every pinned version.
        """
        return operations.pins(self, name)

    def why(self, where: str) -> Explanation:
        """Explain which pins need an object, or when it may be deleted.

        Args:
            where: URL of the object, or its path in the lake.
        """
        return operations.why(self, where)

    def collect(
        self,
        *,
        dry_run: bool = False,
        grace_ms: int | None = None,
        progress: Callable[[Any], None] | None = None,
    ) -> list[CollectionReport]:
        """Delete what is no longer needed, by each store's own retention settings. As ``lakebed collect LAKE``.

        Args:
            dry_run: report what would be deleted; delete nothing.
            grace_ms: keep files of tables that no version names if they were written within this time, in milliseconds,
                as a running writer may be about to commit them. None: one day.
            progress: called after each batch of deletes.

        Returns:
            One report for each deleting step.
        """
        return operations.collect(self, Collection(dry_run, grace_ms, progress))

    def collect_tenants(
        self, *, ledger: str | None = None, dry_run: bool = True, grace: timedelta = timedelta(hours=1)
    ) -> OrphanReport:
        """Delete the objects of the lake's tenants that nothing refers to. Needs no running fleet.

        Args:
            ledger: ``postgresql://...``; None: the database in the lake.
            dry_run: report what would be deleted; delete nothing. This is the default.
            grace: keep objects younger than this; the report names them.

        Raises:
            NotFound: kind ``fleet_not_found``: the lake has no fleet.

        Cost: 1 LIST for every thousand objects, and a read of everything that refers to objects
            (`lakebed.fleet.collect.OrphanCollector.collect`).
        """
        return lakebed.lake.tenants.collect_orphans(root_of(self), ledger=ledger, dry_run=dry_run, grace=grace)

    # ---- inside

    def _existing(self, name: TableName, *, if_not_exists: bool) -> Table:
        if if_not_exists:
            return self.table(str(name))
        raise AlreadyExists(
            f"The lake {self.url} has a table {name} already: drop it first, or choose another name.",
            kind="table_exists",
            table=str(name),
        )

    def _is_marked(self) -> bool:
        try:
            body = self.store.get(MARKER_PATH)
        except NotFound:
            return False
        check_marker(body, url=self.url)
        self._is_probed = True
        return True

    def _mark(self) -> None:
        probe_create_only(self.store, environment=self.environment)
        try:
            self.store.put(MARKER_PATH, encode_marker(), create_only=True)
        except AlreadyExists:
            self._is_marked()  # another process created the lake meanwhile; check its marker
        self._is_probed = True
        keep_reserve(self.store)
