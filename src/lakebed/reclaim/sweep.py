"""The sweeper: the one place that deletes data. Owns batches, progress, dry runs and the report.

Invariants:
- Only paths of a `CollectionPlan` are deleted, in the plan's order, in batches of at most `BATCH_COUNT_MAX` objects.
- It deletes inside its store only: a path that leads outside (absolute, a URL, with ``..``) is refused before anything
  is deleted. A sweeper with `reaches_outside` also deletes the objects that URLs name.
- A missing object counts as deleted. An error in one batch is reported and the other batches continue. Then the sweep
  is not `complete`, and the caller keeps its plan.
- If names can be used again, the caller passes a check that they still mean what was listed, and the check precedes
  each request. A store deletes the object that has the name at that moment, whatever it is. So a process that sleeps
  between the check and the request may delete the objects of that one request after others have put them anew
  (docs/design/0018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

from lakebed.errors import InternalError, LakebedError
from lakebed.log import logger
from lakebed.objects.open import place_of
from lakebed.objects.path import is_url
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable

_LOG: Final = logger("reclaim")

BATCH_COUNT_MAX = 1000
"""Objects in one request: the limit of the large stores."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a sweep."""

    done_count: int
    total_count: int
    done_bytes: int


@dataclass(slots=True)
class Sweep:
    """The counts of one sweep, during it and after."""

    deleted_count: int = 0
    deleted_bytes: int = 0
    errors: list[str] = field(default_factory=list)
    is_ended: bool = False
    """Whether the sweep ended early: the remaining names belonged to other objects by then, and were not deleted."""

    @property
    def complete(self) -> bool:
        """Whether every batch succeeded."""
        return not self.errors and not self.is_ended


class Sweeper:
    """Deletes the objects of a plan.

    Args:
        store: the folder to which every path of a plan is relative.
        progress: called after each batch.
        reaches_outside: a path may be the URL of an object outside the store; the caller has proven that it owns it.
    """

    def __init__(
        self,
        store: ObjectStore,
        progress: Callable[[Progress], None] | None = None,
        *,
        reaches_outside: bool = False,
    ) -> None:
        self._reaches_outside = reaches_outside
        self._store = store
        self._progress = progress

    def sweep(
        self, plan: CollectionPlan, *, dry_run: bool = False, is_current: Callable[[], bool] | None = None
    ) -> CollectionReport:
        """Delete the objects of `plan`, those of `hide` first; with `dry_run` only report them.

        Args:
            is_current: called before each request; whether the names still belong to the objects that were planned. If
                not, the sweep ends, and fewer objects are deleted than were planned.

        Cost: 1 DELETE for each thousand objects.
        """
        if dry_run:
            return report_of(plan, Sweep(), hidden_count=0, dry_run=True)
        sweep = Sweep()
        hidden_count = 0
        if plan.hide:
            hidden = self.delete_all((Deletable(path, 0, "hidden") for path in plan.hide), is_current=is_current)
            hidden_count, sweep.is_ended = hidden.deleted_count, hidden.is_ended
            sweep.errors += hidden.errors
        if sweep.complete:  # otherwise a version may still be visible, and its files must stay
            self.delete_all(plan.doomed, into=sweep, is_current=is_current)
        return report_of(plan, sweep, hidden_count=hidden_count, dry_run=False)

    def delete_all(
        self,
        doomed: Iterable[Deletable],
        *,
        into: Sweep | None = None,
        is_current: Callable[[], bool] | None = None,
    ) -> Sweep:
        """Delete objects in order, in batches; collect errors and continue. `is_current` as for `sweep`."""
        every = list(doomed)
        for deletable in every:
            _check_path(deletable.path, may_be_url=self._reaches_outside)
        sweep = Sweep() if into is None else into
        done_count = done_bytes = 0
        for batch in batches(every, BATCH_COUNT_MAX):
            for store, names, part in self._by_store(batch):
                if is_current is not None and not is_current():
                    sweep.is_ended = True
                    return sweep
                try:
                    store.delete(names)
                except LakebedError as error:
                    sweep.errors.append(f"{len(part)} objects from {part[0].path} on could not be deleted: {error}")
                else:
                    sweep.deleted_count += len(part)
                    sweep.deleted_bytes += sum(deletable.size_bytes for deletable in part)
            done_count, done_bytes = (
                done_count + len(batch),
                done_bytes + sum(deletable.size_bytes for deletable in batch),
            )
            if self._progress is not None:
                self._progress(Progress(done_count, len(every), done_bytes))
        if every:
            _LOG.info("deleted", objects=sweep.deleted_count, bytes=sweep.deleted_bytes, errors=len(sweep.errors))
        return sweep

    def _by_store(self, batch: Sequence[Deletable]) -> Iterator[tuple[ObjectStore, list[str], list[Deletable]]]:
        """Group a batch by store. Outside objects come first, before the objects inside that may name them."""
        own_files: list[Deletable] = []
        outside: dict[str, tuple[ObjectStore, list[str], list[Deletable]]] = {}
        for deletable in batch:
            if not is_url(deletable.path):
                own_files.append(deletable)
                continue
            store, name = place_of(self._store, deletable.path)
            _, names, part = outside.setdefault(store.root_url, (store, [], []))
            names.append(name)
            part.append(deletable)
        yield from outside.values()
        if own_files:
            yield self._store, [deletable.path for deletable in own_files], own_files


def report_of(plan: CollectionPlan, sweep: Sweep, *, hidden_count: int, dry_run: bool) -> CollectionReport:
    """Return the report of a sweep that executed `plan`, or with `dry_run` would execute it."""
    return CollectionReport(
        store=plan.store,
        hidden_count=len(plan.hide) if dry_run else hidden_count,
        deleted_count=len(plan.doomed) if dry_run else sweep.deleted_count,
        deleted_bytes=plan.bytes_freed if dry_run else sweep.deleted_bytes,
        kept=dict(plan.kept),
        warnings=(*plan.warnings, *sweep.errors),
        dry_run=dry_run,
        plan=plan,
        notes=plan.notes,
    )


def notes_on(store: ObjectStore, doomed: Sequence[Deletable]) -> tuple[str, ...]:
    """Return notes about deletions in `store`; none if nothing is deleted or the deletions are final."""
    if not doomed or not store.is_versioned:
        return ()
    return (
        f"{store.root_url} is a branch of a repository: deleted files are kept in its commits, and only the "
        "repository's collection frees their bytes.",
    )


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield consecutive lists of at most `size` items."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def _check_path(path: str, *, may_be_url: bool) -> None:
    is_outside = is_url(path)
    segments = (path.partition(":/")[2].removeprefix("/") if is_outside else path).split("/")
    if (is_outside and not may_be_url) or not all(segments) or any(segment in (".", "..") for segment in segments):
        raise InternalError(
            f"a plan names {path!r}, which is not inside its store: nothing of it was deleted.", path=path
        )
