"""`StoreAdapter`: what a lake needs from every kind of store, and the result types.

Owns: the contract that makes `lakebed.lake.operations` one loop over kinds. Knows no store.

To add a kind of store: name it in `names.KINDS`, implement `StoreAdapter` in a module of this package and enter it in
`operations._ADAPTERS`; a package that is costly to import is loaded through `lakebed.lake`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lakebed.lake.stores import Stores
from lakebed.reclaim.model import CollectionReport, Explanation, Pin, Version


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store of a lake, as `Lake.ls` lists it."""

    kind: str
    """``table``, ``database``, ``repository`` or ``tenant``."""
    name: str
    version: str | None
    """Id of the newest version, or ``destroyed``; None when nothing was ever written."""
    changed_ms: int | None
    """When that version was made, Unix ms, UTC."""
    row_count: int | None
    """Rows that a read returns, or objects of a repository; None where counting would read everything."""
    size_bytes: int
    """Of the files that the newest version needs, including files in other stores."""
    pin_count: int
    """Explicit pins: tags and branches, but a repository's default one; pins of a tenant; checkpoints of users and
    clones."""
    problem: str | None = None
    """Why the store could not be read, in one sentence; the numbers are then zero."""
    row_count_is_exact: bool = True
    """False: an upper bound; some rows may replace others, and counting would read large files."""
    shared_bytes: int = 0
    """The part of `size_bytes` in other stores: files that a clone shares with its parent."""
    disk_bytes: int | None = None
    """Of every object in the store's folder: all versions, and unneeded objects. None: not counted."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The options of a collection."""

    dry_run: bool = False
    """Report what would be deleted; delete nothing."""
    grace_ms: int | None = None
    """Files of tables that no version names stay while they were written within this time (ms); None: a day."""
    progress: Callable[[Any], None] | None = None
    """Called after each batch of deletes."""


class StoreAdapter(Protocol):
    """One kind of store. Stateless; every call takes the lake."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Return a store's line in the list of all; None for a store of which only a tombstone is left."""

    def disk_bytes(self, lake: Stores, name: str) -> int:
        """Return the bytes of all objects in a store's folder. Cost: 1 LIST a thousand objects."""

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Return a store's readable versions, oldest first."""

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Return what keeps versions of a store alive, with the bytes that each pin alone holds, where known."""

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Explain an object, by its path in the lake; None when it is in no store of the kind."""

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Delete what is no longer needed in all stores of the kind. Return one report a deleting step."""
