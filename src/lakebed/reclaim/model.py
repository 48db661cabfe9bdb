"""What keeps a version alive, and what may go: `Pin` and `ReclaimPlan`. Pure data.

Owns: the vocabulary shared by all stores. Knows no store and does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Doomed", "Pin", "ReclaimPlan", "ReclaimReport", "Verdict", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a store that can be read: a snapshot, a manifest, a commit."""

    store: str
    id: str
    created_ms: int
    """Unix time in milliseconds, UTC."""
    summary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pin:
    """Something that keeps one version alive, whatever its kind (tag, checkpoint, branch, consumer, retention)."""

    store: str
    kind: str
    name: str
    version: str
    owner: str
    created_ms: int | None
    """Unix time in milliseconds, UTC; None when the format does not record it."""
    expires_ms: int | None
    """None: never expires."""
    bytes_alone: int | None = None
    """Bytes that no other pin holds; None when not computed (it costs a read of the version's file list)."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """One object a plan would delete."""

    path: str
    size_bytes: int
    why: str
    """One phrase: what made it dead, such as ``replaced by snapshot 7, no tag in [3, 7)``."""


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """What would be deleted and why; making one deletes nothing.

    Order of execution: every path of `hide` first (versions become invisible), then, after the pins were read
    again, every object of `doomed`.
    """

    store: str
    hide: tuple[str, ...]
    doomed: tuple[Doomed, ...]
    kept: dict[str, int] = field(default_factory=dict)
    """Count of candidates kept, by reason."""
    warnings: tuple[str, ...] = ()
    """Such as an unreadable manifest, with what was therefore kept."""
    notes: tuple[str, ...] = ()
    """What else whoever asked should know, though nothing is wrong: such as when the bytes come back."""

    @property
    def bytes_freed(self) -> int:
        """Sum of the sizes of all doomed objects, in bytes."""
        return sum(doomed.size_bytes for doomed in self.doomed)


@dataclass(frozen=True, slots=True)
class ReclaimReport:
    """What a sweep did."""

    store: str
    hidden_count: int
    deleted_count: int
    deleted_bytes: int
    kept: dict[str, int]
    warnings: tuple[str, ...]
    dry_run: bool
    plan: ReclaimPlan | None = None
    notes: tuple[str, ...] = ()
    """As the plan's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "why is this object still here?"."""

    path: str
    pins: tuple[Pin, ...]
    """Pins and live versions that need it; empty when nothing does."""
    sentence: str
    """One sentence for a person: who needs it, or when it may go."""
