"""A store that keeps its version in a variable: the least that publishes with the engine, and what its tests use.

Owns: the rules of `VersionPublisher`, without any object: sets, tokens, jobs. Invariants: as the protocol's. A function
of the test is asked before and after each change, and may raise there: a request that failed, or a reply that was lost.
"""

from __future__ import annotations

from collections.abc import Callable

from lakebed.errors import Conflict, Fenced
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.publisher import CompactionJob
from lakebed.runtime import Environment


class _Job:
    """A compaction under way."""

    def __init__(self, publisher: MemoryPublisher) -> None:
        self._publisher = publisher

    def next_file_id(self) -> str:
        """As the publisher's."""
        return self._publisher.next_file_id()


class MemoryPublisher:
    """`VersionPublisher` in memory.

    Args:
        environment: mints ids.
        at: called with ``before flushed``, ``after flushed``, likewise for ``compacted``, and ``after refreshed``.
    """

    def __init__(self, environment: Environment, *, at: Callable[[str], None] = lambda step: None) -> None:
        self._environment = environment
        self._last_id: str | None = None
        self.at = at
        self.file_set = FileSet()
        self.last_sequence = 0
        self.tokens: list[object] = []
        """Of all memtables that were flushed, in order."""
        self.jobs: list[CompactionJob] = []
        self.published_ids: list[str] = []
        """Of all files of level 0 that ever became visible."""
        self.is_fenced = False

    def next_file_id(self) -> str:
        """Greater than all before."""
        self._last_id = mint_file_id(self._last_id, environment=self._environment)
        return self._last_id

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """See `VersionPublisher.flushed`."""
        self.at("before flushed")
        self._check()
        if self.last_sequence < last_sequence:
            if file is not None:
                self.published_ids.append(file.id)
                self.file_set = FileSet((file, *self.file_set.l0), self.file_set.runs)
            self.last_sequence = last_sequence
            self.tokens.append(token)
        return self._answered("after flushed")

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """See `VersionPublisher.begin_compaction`."""
        self._check()
        self.jobs = [_Job(self)]
        return self.jobs[0]

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """See `VersionPublisher.compacted`."""
        self.at("before compacted")
        self._check()
        if run is None or run not in self.file_set.runs:
            file_set = task.apply_to(self.file_set, run)
            if file_set is None or job not in self.jobs:
                raise Conflict("the inputs are gone")
            self.file_set = file_set
        self.jobs = []
        return self._answered("after compacted")

    def abandon(self, job: CompactionJob) -> None:
        """See `VersionPublisher.abandon`."""
        self.jobs = [item for item in self.jobs if item is not job]

    def publish_refresh(self) -> FileSet:
        """See `VersionPublisher.refreshed`."""
        self._check()
        return self._answered("after refreshed")

    def _answered(self, step: str) -> FileSet:
        """The set as it is now, though others may change it before the answer arrives."""
        file_set = self.file_set
        self.at(step)
        return file_set

    def _check(self) -> None:
        if self.is_fenced:
            raise Fenced("another owner has taken over")
