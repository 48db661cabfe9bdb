"""`StoreAdapter`: what a lake asks of every kind of store, and the types of the answers.

Owns: the contract that makes `lakebed.lake.questions` one loop over kinds. Knows no store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lakebed.lake.stores import Stores
from lakebed.reclaim.model import Explanation, Pin, ReclaimReport, Version

__all__ = ["Cleaning", "StoreAdapter", "StoreSummary"]


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store of a lake, as `Lake.ls` lists it."""

    kind: str
    """``table``, ``database`` or ``repository``."""
    name: str
    version: str | None
    """Id of the newest version, or ``destroyed``; None when nothing was ever written."""
    changed_ms: int | None
    """When that version was made, Unix ms, UTC."""
    row_count: int | None
    """Rows that a read gives, or objects of a repository; None where counting would mean reading everything."""
    size_bytes: int
    """Of the files that the newest version needs, those of other stores included."""
    pin_count: int
    """Pins that somebody made: tags; branches of a repository; checkpoints of people and of clones."""
    problem: str | None = None
    """Why the store could not be read, in one sentence; the numbers are then zero."""
    row_count_is_exact: bool = True
    """False: at most so many rows; some may replace others, and telling would mean reading large files."""
    shared_bytes: int = 0
    """Of `size_bytes`, what lies in other stores: files that a clone shares with its parent."""
    disk_bytes: int | None = None
    """Of every object in the store's folder: all versions, and what no version needs any more. None: not counted."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How a lake is to be cleaned."""

    dry_run: bool = False
    """Only say what would go."""
    orphans_older_than_ms: int | None = None
    """Files of tables that nobody names go when last changed before this Unix time (ms, UTC); None: a day ago."""
    progress: Callable[[Any], None] | None = None
    """Called after each batch of deletes."""


class StoreAdapter(Protocol):
    """One kind of store. Without state; every call is told the lake."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """A store's line in the list of all; None for one that is gone but for a mark that it was there."""
        ...

    def disk_bytes(self, lake: Stores, name: str) -> int:
        """Bytes of all objects in a store's folder. Cost: 1 LIST a thousand objects."""
        ...

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """A store's versions that can be read, oldest first."""
        ...

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """What keeps versions of a store alive, with the bytes that each pin alone holds where that is known."""
        ...

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Who needs an object, by its path in the lake; None when it lies in no store of the kind."""
        ...

    def clean(self, lake: Stores, cleaning: Cleaning) -> list[ReclaimReport]:
        """Delete what nobody needs any more in all stores of the kind: one report a deleting step."""
        ...
