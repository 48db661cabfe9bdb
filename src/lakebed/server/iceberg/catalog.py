"""`IcebergCatalog`: the tables of a lake as Iceberg's clients name and load them.

Owns: the tables that are published in this process (`PublishedTable`), and the namespaces. A namespace is a database of
the lake, or a branch of a repository below the repository's namespace. The tables of a branch are those in
`ReferenceTables`. `PaimonCatalog` owns the names of databases and the opened tables: both protocols serve the same
tables.

Invariant: the metadata of a table in a branch is of one moment of the branch, and includes staged changes. None of it
is kept for the next request, because a reset or a merge may replace files under their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.transport.branch_store import BranchStore
from lakebed.server.iceberg.errors import namespace_not_found, table_not_found
from lakebed.server.iceberg.reference_objects import ReferenceObjects
from lakebed.server.paimon.catalog import DatabaseRecord, PaimonCatalog
from lakebed.server.reference_tables import Namespace, parse_namespace
from lakebed.table.iceberg.published import Metadata, PublishedTable
from lakebed.table.table import Table

ICEBERG_TAG: Final = "iceberg"
"""OpenAPI tag of the endpoints of this interface."""

_PUBLISHED_MAX: Final = 256
"""Most published tables that are kept. Each takes about 2 kB for each snapshot."""


class IcebergCatalog:
    """The tables of a lake under the protocol's names. Thread-safe."""

    def __init__(self, tables: PaimonCatalog) -> None:
        self._tables = tables
        self._published: dict[tuple[str, str], tuple[Table, PublishedTable]] = {}

    @property
    def name(self) -> str:
        """The prefix of the catalog's paths."""
        return self._tables.name

    @property
    def url(self) -> str:
        """The lake's URL."""
        return self._tables.url

    def namespaces(self) -> list[str]:
        """Return the names of databases, ascending. Cost: as `PaimonCatalog.databases`."""
        return self._tables.databases()

    def repositories(self) -> list[str]:
        """Return the names of repositories, whose branches are namespaces, ascending. Cost: 1 scan."""
        return self._tables.references.repositories()

    def branches(self, name: str) -> list[str]:
        """Return the names of a repository's branches, ascending; none for a database. Raises `NotFound`.

        Cost: 1 scan.
        """
        self.namespace(name)
        return self._tables.references.branches(name) if name in self.repositories() else []

    def namespace(self, name: str) -> DatabaseRecord:
        """Return a namespace: a database, a repository, or ``repository.reference``.

        Raises `NotFound`, also for an invalid name. Cost: as `PaimonCatalog.database`, and 1 scan.
        """
        try:
            return self._tables.database(name)
        except (InvalidRequest, NotFound) as error:
            if name in self.repositories():
                return DatabaseRecord()
            raise namespace_not_found(name) from error

    def table_names(self, namespace: str) -> Iterator[str]:
        """Return the names of the folders of a namespace, ascending; see `has_table`. Raises `NotFound`."""
        self.namespace(namespace)
        return self._tables.table_names(namespace)

    def has_table(self, namespace: str, table: str) -> bool:
        """Whether a table exists. Cost: 1 LIST."""
        try:
            return "$" not in table and self._tables.has_table(namespace, table)
        except (InvalidRequest, NotFound):
            return False

    def load(self, namespace: str, name: str) -> Metadata:
        """Return the metadata of a table. Raises `NotFound`.

        Cost: as `PublishedTable.load`. A load from a branch always costs as much as a first one.
        """
        if "$" in name:
            raise table_not_found(namespace, name)
        reference = parse_namespace(namespace)
        try:
            if reference is not None:
                return self._load_in_reference(reference, name)
            try:
                return self._publish(namespace, name).load()
            except NotFound:  # dropped, and perhaps created again under the name of other objects
                self._tables.forget(namespace, name)
                return self._publish(namespace, name).load()
        except (InvalidRequest, NotFound) as error:
            raise table_not_found(namespace, name) from error

    def _load_in_reference(self, namespace: Namespace, name: str) -> Metadata:
        """Return the metadata of a table in a branch, as of one moment of the branch."""
        references = self._tables.references
        context = references.look(namespace, name).context
        store = context.store
        assert isinstance(store, BranchStore)
        folder = references.open_derived(namespace)
        objects = ReferenceObjects(store, folder, environment=context.environment)
        # Java's client chooses its reader by the location, so this must be in the storage of the files. A client that
        # deletes unknown files in the location deletes objects that are made again.
        return PublishedTable(context, objects=objects, location=folder.root_url).load_settled()

    def _publish(self, namespace: str, name: str) -> PublishedTable:
        table = self._tables.table(namespace, name)
        known = self._published.get((namespace, name))
        if known is not None and known[0] is table:
            return known[1]
        if len(self._published) >= _PUBLISHED_MAX:
            self._published = {}
        published = PublishedTable(table.context)
        self._published[namespace, name] = (table, published)
        return published


def load_reply(metadata: Metadata, *, references_only: bool) -> bytes:
    """Encode the protocol's ``LoadTableResult``."""
    body = metadata.body_of_references if references_only else metadata.body
    return b'{"metadata-location":%b,"metadata":%b,"config":{}}' % (msgspec.json.encode(metadata.location), body)
