"""Where the files of a version lie: in this database's folder, or in an ancestor's.

Owns: the way from a file id to a store and a path, and which ancestor a clone's file belongs to. A clone's manifest
names one entry for each ancestor that owns files of it, so nothing is ever looked up through a database in between,
which may be destroyed.

Invariants: a file that no entry lists is ours; an id always means the same file, so an answer never goes out of date,
and one made for a manifest serves its later versions too. Opening an ancestor costs no request. Does not know: what
keeps the files alive (a checkpoint of ours in each ancestor).
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
        manifest: one of its versions; later ones name no other ancestors.
    """

    def __init__(self, location: DatabaseLocation, manifest: Manifest) -> None:
        self._location = location
        self._url_of = {id: entry.url for entry in manifest.external_databases for id in entry.file_ids}
        self._stores: dict[str, ObjectStore] = {}

    def owner(self, file_id: str) -> str:
        """URL of the database whose folder holds a file."""
        return self._url_of.get(file_id, self._location.url)

    def locate(self, file_id: str) -> tuple[ObjectStore, str]:
        """The store and the path where a file is read. Cost: no request."""
        url = self._url_of.get(file_id)
        if url is None:
            return self._location.store, sst_path(file_id)
        store = self._stores.get(url)
        if store is None:
            store = self._stores.setdefault(url, self._location.open_url(url))
        return store, sst_path(file_id)


def file_ids(manifest: Manifest) -> frozenset[str]:
    """Ids of every file that a version names, wherever they lie."""
    return frozenset(file.id for file in manifest.file_set.files())


def entries_of_files(manifest: Manifest, named: Set[str]) -> list[tuple[ExternalDatabase, tuple[str, ...]]]:
    """Ancestors that own some of the files `named`, each with those files in the order of its entry."""
    entries = []
    for entry in manifest.external_databases:
        ids = tuple(id for id in entry.file_ids if id in named)
        if ids:
            entries.append((entry, ids))
    return entries
