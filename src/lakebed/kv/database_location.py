"""Where a database is, and how the databases it shares files with are reached. Every verb of `kv` takes one.

Invariants: two locations with one URL are the same database. It has no secrets but those of its stores.
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
        open_url: how other databases' folders are opened, by URL: with the same credentials.
        is_probed: the store is known to honour create-only puts, since a lake around the folder was probed.
        keeps_reserve: the folder is reached by a path of its own, and not in a lake, which has a reserve of disk space
            for all its stores (`lakebed.objects.reserve`).
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
        """The location at a URL, or in an open store, such as a branch of a repository. Arguments as `open_store`.

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
        """Keep space for collections on a full disk. Cost: nothing on object stores; else 1 HEAD, at first 1 PUT."""
        if self.keeps_reserve:
            keep_reserve(self.store, size_bytes=DATABASE_RESERVE_BYTES)

    def drop_reserve(self) -> None:
        """Let the space go, after a destruction. Cost: nothing on object stores; else 1 DELETE."""
        if self.keeps_reserve:
            drop_reserve(self.store)

    @property
    def url(self) -> str:
        """The database's URL, as manifests of its clones name it."""
        return self.store.root_url

    def probe(self) -> None:
        """Raise `InvalidRequest` when the store ignores create-only puts. Cost: nothing in a lake, else the probe's."""
        if not self.is_probed:
            probe_create_only(self.store, environment=self.environment)

    def require_folder(self, *, held: bool) -> DatabaseLocation:
        """The same place for who keeps it open; see `ObjectStore.require_folder`."""
        return replace(self, store=self.store.require_folder(held=held))

    def other(self, url: str) -> DatabaseLocation:
        """Another database's location, in the same environment."""
        return DatabaseLocation(self.open_url(url), self.environment, self.open_url)
