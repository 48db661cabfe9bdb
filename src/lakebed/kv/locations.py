"""The locations of a version's files: this database's folder, or the folder of an ancestor.

Owns: the mapping from a file id to a store and a path, and to the ancestor that owns a clone's file. A clone's manifest
has one entry for each ancestor that owns files of it. So no look-up goes through a database in between, which may be
destroyed.

Invariants: a file that no entry lists belongs to this database. An id always denotes the same file, so a result never
becomes stale, and a `Locations` object of a manifest serves its later versions too. Opening an ancestor costs no
request. Does not know: what keeps the files alive (a checkpoint of this database in each ancestor).
"""

from __future__ import annotations

from collections.abc import Set

from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.model import ExternalDatabase, Manifest
from lakebed.objects.port import ObjectStore


class Locations:
    """The files of one database. Thread-safe.

    Args:
        manifest: one of the database's versions. Later ones name no other ancestors.
    """

    def __init__(self, location: DatabaseLocation, manifest: Manifest) -> None:
        self._location = location
        self._url_of = {id: entry.url for entry in manifest.external_databases for id in entry.file_ids}
        self._stores: dict[str, ObjectStore] = {}

    def owner(self, file_id: str) -> str:
        """Return the URL of the database whose folder contains a file."""
        return self._url_of.get(file_id, self._location.url)

    def locate(self, file_id: str) -> tuple[ObjectStore, str]:
        """Return the store and the path from which a file is read. Cost: no request."""
        url = self._url_of.get(file_id)
        if url is None:
            return self._location.store, sst_path(file_id)
        store = self._stores.get(url)
        if store is None:
            store = self._stores.setdefault(url, self._location.open_url(url))
        return store, sst_path(file_id)


def file_ids(manifest: Manifest) -> frozenset[str]:
    """Return the ids of all files that a version names, in any folder."""
    return frozenset(file.id for file in manifest.file_set.files())


def entries_of_files(manifest: Manifest, named: Set[str]) -> list[tuple[ExternalDatabase, tuple[str, ...]]]:
    """Return the ancestors that own some of the files `named`, each with these files in the order of its entry."""
    entries = []
    for entry in manifest.external_databases:
        ids = tuple(id for id in entry.file_ids if id in named)
        if ids:
            entries.append((entry, ids))
    return entries
