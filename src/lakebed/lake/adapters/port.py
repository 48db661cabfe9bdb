"""`StoreAdapter`: what a lake needs from every kind of store, and the result types.

Owns: the contract that lets `lakebed.lake.operations` treat all kinds of stores in one loop. Does not know: any kind of
store.

To add a kind of store: name it in `names.KINDS`, implement `StoreAdapter` in a module of this package, and add it to
`operations._ADAPTERS`. Load a package that is expensive to import through `lakebed.lake`.
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
    """The operations on one kind of store. Stateless: every call takes the lake."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Return a store's line in the list of all stores; None when only a tombstone is left of the store."""

    def disk_bytes(self, lake: Stores, name: str) -> int:
        """Return the bytes of all objects in a store's folder. Cost: 1 LIST a thousand objects."""

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Return a store's readable versions, oldest first."""

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Return the pins of a store, each with the bytes that only this pin keeps, where known."""

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Explain why an object exists, by its path in the lake; None when it is not in a store of this kind."""

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Delete what no version needs, in all stores of this kind. Return one report for each deleting step."""
