"""The location of a database, through which the databases that share files with it are reached too.

Every verb of `kv` takes a location. Invariants: two locations with the same URL are the same database. A location
contains no secrets other than those of its stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import probe_create_only
from lakebed.objects.reserve import DATABASE_RESERVE_BYTES, drop_reserve, keep_reserve
from lakebed.runtime import Environment


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """One database's folder.

    Attributes:
        open_url: opens the folder of another database by URL, with the same credentials.
        is_probed: whether the store is known to honour create-only puts, because the lake of the folder was probed.
        keeps_reserve: whether the folder was reached by a path of its own, so that the database keeps its own reserve
            of disk space. False in a lake, which has one reserve for all its stores (`lakebed.objects.reserve`).
    """

    store: ObjectStore
    environment: Environment
    open_url: Callable[[str], ObjectStore]
    is_probed: bool = False
    keeps_reserve: bool = False

    @classmethod
    def at(
        cls,
        url: str | os.PathLike[str] | ObjectStore,
        *,
        storage_options: Mapping[str, str] | None = None,
        environment: Environment | None = None,
        durable: bool = True,
        create: bool = True,
    ) -> DatabaseLocation:
        """Return the location at a URL, or in an open store such as a repository's branch. Arguments as `open_store`.

        Cost: no request.
        """
        environment = environment or Environment()

        def open_url(other: str) -> ObjectStore:
            return open_store(other, storage_options=storage_options, environment=environment, durable=durable)

        if isinstance(url, ObjectStore):
            return cls(url, environment, open_url)
        store = open_store(
            url, storage_options=storage_options, environment=environment, durable=durable, create=create
        )
        return cls(store, environment, open_url, keeps_reserve=True)

    def keep_reserve(self) -> None:
        """Reserve space for collections on a full disk. Cost: nothing on object stores; else 1 HEAD, at first 1 PUT."""
        if self.keeps_reserve:
            keep_reserve(self.store, size_bytes=DATABASE_RESERVE_BYTES)

    def drop_reserve(self) -> None:
        """Release the reserved space, after a destruction. Cost: nothing on object stores; else 1 DELETE."""
        if self.keeps_reserve:
            drop_reserve(self.store)

    @property
    def url(self) -> str:
        """The database's URL, as manifests of its clones name it."""
        return self.store.root_url

    def probe(self) -> None:
        """Raise `InvalidRequest` if the store ignores create-only puts. Cost: nothing in a lake, else the probe's."""
        if not self.is_probed:
            probe_create_only(self.store, environment=self.environment)

    def require_folder(self, *, with_descriptor: bool) -> DatabaseLocation:
        """Return this location for a caller that keeps it open; see `ObjectStore.require_folder`."""
        return replace(self, store=self.store.require_folder(with_descriptor=with_descriptor))

    def other(self, url: str) -> DatabaseLocation:
        """Return the location of another database, in the same environment."""
        return DatabaseLocation(self.open_url(url), self.environment, self.open_url)
