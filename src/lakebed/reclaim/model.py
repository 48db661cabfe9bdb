"""The data types for keeping and deleting versions, such as `Pin` and `CollectionPlan`. Pure data.

Owns: the types that all stores share. Knows no store and does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar, cast

from lakebed.errors import LakebedError
from lakebed.texts import html_table

HTML_ROWS_MAX: Final = 100
"""Most rows of each kind that a notebook shows."""


T = TypeVar("T")


class Listing(list[T]):
    """A list of dataclasses that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: one row for each item."""
        rows = [[getattr(item, part.name) for part in fields(cast(Any, item))] for item in self[:HTML_ROWS_MAX]]
        names = [part.name for part in fields(cast(Any, self[0]))] if self else []
        return html_table(names, rows, title="" if len(rows) == len(self) else f"{len(rows)} of {len(self):,}")


@dataclass(frozen=True, slots=True)
class Version:
    """One readable state of a store: a snapshot, a manifest, a commit."""

    store: str
    id: str
    created_ms: int
    """Unix time in milliseconds, UTC."""
    summary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pin:
    """Something that keeps one version alive: a tag, a checkpoint, a branch, a consumer or retention."""

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
class Deletable:
    """One object that a plan would delete."""

    path: str
    size_bytes: int
    why: str
    """Why the object is not needed, in one phrase, such as ``replaced by snapshot 7, no tag in [3, 7)``."""


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The objects that would be deleted, and why. Creating a plan deletes nothing.

    Order of execution: first every path of `hide`, which makes versions invisible. Then the pins are read again. Then
    every object of `doomed` is deleted.
    """

    store: str
    hide: tuple[str, ...]
    doomed: tuple[Deletable, ...]
    kept: dict[str, int] = field(default_factory=dict)
    """Number of candidates that are kept, by reason."""
    warnings: tuple[str, ...] = ()
    """Warnings, such as an unreadable manifest, with the objects that were kept because of it."""
    notes: tuple[str, ...] = ()
    """Further information, such as when the bytes become free."""

    @property
    def bytes_freed(self) -> int:
        """Sum of the sizes of the objects of `doomed`, in bytes."""
        return sum(doomed.size_bytes for doomed in self.doomed)

    def __repr__(self) -> str:
        return (
            f"CollectionPlan({self.store!r}, versions={len(self.hide)}, files={len(self.doomed)}, "
            f"bytes={self.bytes_freed}"
            f"{f', warnings={len(self.warnings)}' if self.warnings else ''})"
        )

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: every version and file that would be deleted, and why."""
        hide, doomed = self.hide[:HTML_ROWS_MAX], self.doomed[:HTML_ROWS_MAX]
        rows: list[tuple[object, ...]] = [(path, None, "a version, tag or schema") for path in hide]
        rows += [(deletable.path, deletable.size_bytes, deletable.why) for deletable in doomed]
        return html_table(("path", "bytes", "why"), rows, title=repr(self))


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """The result of a sweep; of a dry run, the numbers of its plan."""

    store: str
    hidden_count: int
    deleted_count: int
    deleted_bytes: int
    kept: dict[str, int]
    warnings: tuple[str, ...]
    dry_run: bool
    plan: CollectionPlan | None = None
    notes: tuple[str, ...] = ()
    """The notes of the plan."""
    problem: str | None = None
    """Why the store was not collected, or only in part; None: it was collected."""
    problem_kind: str | None = None
    """The kind of the error, such as ``owned`` or ``corruption``."""

    @classmethod
    def not_collected(cls, store: str, error: LakebedError, *, dry_run: bool) -> CollectionReport:
        """Return the report of a store that could not be collected: it says that nothing was deleted, and why."""
        return cls(store, 0, 0, 0, {}, (), dry_run, problem=error.message, problem_kind=error.kind)

    def __repr__(self) -> str:
        return (
            f"CollectionReport({self.store!r}, versions={self.hidden_count}, files={self.deleted_count}, "
            f"bytes={self.deleted_bytes}, dry_run={self.dry_run}"
            f"{f', warnings={len(self.warnings)}' if self.warnings else ''}"
            f"{f', not collected: {self.problem_kind}' if self.problem else ''})"
        )

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: what was, or would be, deleted."""
        facts = [
            ("versions and tags", self.hidden_count),
            ("files", self.deleted_count),
            ("bytes", self.deleted_bytes),
            *((f"kept: {reason}", number) for reason, number in sorted(self.kept.items())),
            *(("warning", warning) for warning in self.warnings),
            *(("note", note) for note in self.notes),
            *([("not collected", self.problem)] if self.problem else []),
        ]
        return html_table(("what", "how many"), facts, title=repr(self))


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why is this object still here?"."""

    path: str
    pins: tuple[Pin, ...]
    """Pins and live versions that need the object; empty when none do."""
    sentence: str
    """One sentence: what needs the object, or when it may be deleted."""
