"""The contract of every store of a lake: `Versioned`. One test suite runs over all stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from lakebed.reclaim.model import CollectionPlan, Explanation, Pin, Version


@runtime_checkable
class Versioned(Protocol):
    """A store whose versions can be pinned, branched, restored and collected."""

    @property
    def name(self) -> str:
        """The store's name inside its lake."""
        ...

    def versions(self) -> Iterator[Version]:
        """Iterate over the readable versions, oldest first, including pinned ones."""
        ...

    def at(self, version: str) -> Any:
        """Return a read-only view of one version (an id or a pin's name). Raises `NotFound`."""
        ...

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive under a name; by default the latest. Raises `AlreadyExists`, `NotFound`."""
        ...

    def pins(self) -> list[Pin]:
        """Return everything that keeps a version alive now."""
        ...

    def unpin(self, name: str) -> None:
        """Remove a pin by name. Raises `NotFound`."""
        ...

    def create_branch(self, name: str, *, version: str | None = None) -> Any:
        """Create a writable branch that starts from a version of this store and shares its objects."""
        ...

    def restore(self, version: str) -> Version:
        """Make an older version the newest one. History is kept."""
        ...

    def plan_collection(self) -> CollectionPlan:
        """Plan what a collection would delete now, with the store's own retention settings. Delete nothing."""
        ...

    def why(self, path: str) -> Explanation:
        """Explain what needs an object, or when it may be deleted. ``path`` is relative to the store's root."""
        ...

    def why_version(self, version: str) -> Explanation:
        """Explain which pins keep a version, and what would free it. Raises `NotFound`."""
        ...
