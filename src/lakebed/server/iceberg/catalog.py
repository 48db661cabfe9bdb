"""`IcebergCatalog`: the tables of a lake as Iceberg's clients name and load them.

Owns: the tables that are published in this process (`PublishedTable`). Names of databases and opened tables are those
of `PaimonCatalog`: both protocols serve the same tables, but for those in branches of repositories, which Iceberg's
clients do not see: their metadata would be staged on the branch by a read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lakebed.errors import InvalidRequest, NotFound
from lakebed.server.iceberg.errors import namespace_not_found, table_not_found
from lakebed.server.paimon.catalog import DatabaseRecord, PaimonCatalog, is_in_reference
from lakebed.table.iceberg.published import Metadata, PublishedTable
from lakebed.table.table import Table

ICEBERG_TAG: Final = "iceberg"
"""Of the endpoints of this interface."""

_PUBLISHED_MAX: Final = 256
"""Published tables that are kept: about 2 kB a snapshot of each."""


class IcebergCatalog:
    """The tables of a lake by the protocol's names. Thread-safe."""

    def __init__(self, tables: PaimonCatalog) -> None:
        self._tables = tables
        self._published: dict[tuple[str, str], tuple[Table, PublishedTable]] = {}

    @property
    def name(self) -> str:
        """The prefix of the catalog's paths."""
        return self._tables.name

    @property
    def url(self) -> str:
        """The lake's."""
        return self._tables.url

    def namespaces(self) -> list[str]:
        """Names of all namespaces, ascending. Cost: as `PaimonCatalog.databases`."""
        return self._tables.databases()

    def namespace(self, name: str) -> DatabaseRecord:
        """A namespace. Raises `NotFound`, also for what can be no name. Cost: as `PaimonCatalog.database`."""
        if is_in_reference(name):
            raise namespace_not_found(name)
        try:
            return self._tables.database(name)
        except (InvalidRequest, NotFound) as error:
            raise namespace_not_found(name) from error

    def table_names(self, namespace: str) -> Iterator[str]:
        """Names of folders of a namespace, ascending; see `has_table`. Raises `NotFound`."""
        self.namespace(namespace)
        return self._tables.table_names(namespace)

    def has_table(self, namespace: str, table: str) -> bool:
        """Whether there is such a table. Cost: 1 LIST."""
        try:
            return "$" not in table and not is_in_reference(namespace) and self._tables.has_table(namespace, table)
        except InvalidRequest:
            return False

    def load(self, namespace: str, name: str) -> Metadata:
        """The metadata of a table. Raises `NotFound`. Cost: as `PublishedTable.load`."""
        if "$" in name or is_in_reference(namespace):
            raise table_not_found(namespace, name)
        try:
            try:
                return self._publish(namespace, name).load()
            except NotFound:  # dropped, and perhaps created again under another one's objects
                self._tables.forget(namespace, name)
                return self._publish(namespace, name).load()
        except (InvalidRequest, NotFound) as error:
            raise table_not_found(namespace, name) from error

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
    """The protocol's ``LoadTableResult``."""
    body = metadata.body_of_references if references_only else metadata.body
    return b'{"metadata-location":%b,"metadata":%b,"config":{}}' % (msgspec.json.encode(metadata.location), body)
