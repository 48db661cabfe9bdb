"""The upkeep of open repositories: steps that keep reads fast and free what is not needed, and their threads.

Owns: how often each step runs. There are two threads because a maintenance of the records takes seconds and must not
delay a compaction. Invariants: if a step fails for a repository, other repositories do not wait for it, and the step is
tried again. When the context is closed, a step ends after its current part. No lock is held during a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lakebed.errors import LakebedError
from lakebed.key_value.port import KeyValue
from lakebed.kv.background import Background, Stopped
from lakebed.repo.heads.compact import run_compactor_once
from lakebed.repo.heads.importing import trim_imports
from lakebed.repo.heads.multipart import trim_uploads
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.reflog import trim_reflog
from lakebed.repo.records.superseded import trim_superseded
from lakebed.repo.records.tasks import trim_tasks
from lakebed.repo.references.history import index_history
from lakebed.repo.staging.cleanup import clean_once, clean_orphans_once
from lakebed.runtime import Environment

_COMPACTION_PAUSE_S: Final = 1.0
_QUIET_LOOK_S: Final = 60.0
"""How often a repository is checked to which this process does not write: another process may write to it."""
_CLEANING_PAUSE_S: Final = 60.0
_INDEXED_COUNT_MIN: Final = 64
"""Fewest new commits that are worth a write of the index. Fewer are read quickly without it."""
_ORPHANS_PAUSE_S: Final = 3600.0
"""Pause between two searches for unmarked rows: these are rare, and a search costs a seek a token."""
_MAINTENANCE_PAUSE_S: Final = 3600.0
_FIRST_MAINTENANCE_S: Final = 300.0
"""Time from opening to the first maintenance. Short, because a process that restarts every half hour needs it, too."""

Homes = Callable[[], Sequence[RepositoryContext]]


class Upkeep:
    """The upkeep of the repositories of one storage.

    Args:
        key_value: the records of all of them.
        open_contexts: the repositories that this process has used: only these can need a compaction.
        all_contexts: all repositories.

    Attributes:
        last_failure: the last error of a thread; None: none yet. A step that failed is tried again.
    """

    def __init__(
        self, key_value: KeyValue, *, open_contexts: Homes, all_contexts: Homes, environment: Environment
    ) -> None:
        self._key_value = key_value
        self._open_contexts = open_contexts
        self._all_contexts = all_contexts
        self._clock = environment.clock
        self.last_failure: LakebedError | None = None
        self._compacted_s = self._cleaned_s = self._swept_s = environment.clock.monotonic_s()
        self._maintenance_s = self._compacted_s + _FIRST_MAINTENANCE_S
        self._quiet: dict[str, tuple[int, float]] = {}
        """By repository, the counted changes when no branch needed a compaction, and until when that is valid."""
        lock = environment.runtime.lock()
        self._background = Background(
            lock=lock, wanted=environment.runtime.condition(lock), report=self._report, environment=environment
        )

    def start(self, name: str) -> None:
        """Start the threads; `name` is part of their names."""
        self._background.start(
            f"lakebed repositories of {name}",
            (lambda now_s: self._compacted_s + _COMPACTION_PAUSE_S, self.compact_changed),
            (lambda now_s: self._cleaned_s + _CLEANING_PAUSE_S, self._clean),
            (lambda now_s: self._swept_s + _ORPHANS_PAUSE_S, self._sweep),
        )
        self._background.start(f"lakebed records of {name}", (lambda now_s: self._maintenance_s, self._maintain))

    def stop(self) -> None:
        """Stop every thread after the current part of its step, and wait for it. A second call is a no-op."""
        self._background.stop()

    def step_once(self) -> None:
        """Run every step once, in this thread. Raises the first error after all repositories were tried."""
        self._each(self._open_contexts(), run_compactor_once)
        self._clean()
        self._sweep()
        self._maintain()

    def compact_changed(self) -> None:
        """Compact the branches that need it.

        Checks each repository that was written to since its last check, and every repository once a minute. Raises as
        `step_once`. Cost: for an idle repository 1 check a minute, so an idle server makes almost no requests to its
        store.
        """
        try:
            contexts = self._open_contexts()
            open_ids = {context.record.uid for context in contexts}
            self._quiet = {uid: state for uid, state in self._quiet.items() if uid in open_ids}
            self._each(contexts, self._compact_one)
        finally:
            self._compacted_s = self._clock.monotonic_s()

    def _compact_one(self, context: RepositoryContext) -> None:
        changes, now_s = context.counters.changes, self._clock.monotonic_s()
        change_count, until_s = self._quiet.pop(context.record.uid, (-1, 0.0))
        if changes == change_count and now_s < until_s:
            self._quiet[context.record.uid] = (change_count, until_s)
            return
        if not run_compactor_once(context):  # a branch that needs a compaction and cools down is checked again
            self._quiet[context.record.uid] = (changes, now_s + _QUIET_LOOK_S)

    def _clean(self) -> None:
        try:
            self._each(self._all_contexts(), self._clean_one)
        finally:
            self._cleaned_s = self._clock.monotonic_s()

    def _clean_one(self, context: RepositoryContext) -> None:
        """Delete unneeded records: rows of dropped tokens, old lines, imports and uploads. Index the history."""
        while not clean_once(context).is_done:
            self._stop_if_closing()
        trim_reflog(context)
        trim_superseded(context)
        trim_imports(context)
        trim_tasks(context)
        trim_uploads(context)
        index_history(context, count_min=_INDEXED_COUNT_MIN, pause=self._stop_if_closing)

    def _sweep(self) -> None:
        try:
            self._each(self._all_contexts(), self._sweep_one)
        finally:
            self._swept_s = self._clock.monotonic_s()

    def _sweep_one(self, context: RepositoryContext) -> None:
        """Delete rows that no branch names and no mark covers."""
        while not clean_orphans_once(context).is_done:
            self._stop_if_closing()

    def _maintain(self) -> None:
        try:
            self._key_value.maintain()
        finally:
            self._maintenance_s = self._clock.monotonic_s() + _MAINTENANCE_PAUSE_S

    def _each(self, contexts: Sequence[RepositoryContext], step: Callable[[RepositoryContext], object]) -> None:
        failure: LakebedError | None = None
        for context in contexts:
            self._stop_if_closing()
            try:
                step(context)
            except LakebedError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _stop_if_closing(self) -> None:
        if self._background.is_stopping:
            raise Stopped

    def _report(self, error: LakebedError) -> None:
        self.last_failure = error
