"""How a new set of files becomes the version: what the engine asks of the store that it serves.

Owns: `VersionPublisher` and `CompactionJob`. `lakebed.kv` publishes by create-only manifests; any store that has some
way to make one set of files the successor of another can publish with the same engine.

Invariants that the engine rests on:
- What a call returns is the newest version at some moment of the call, and each set returned is newer than, or the same
  as, every set returned before it.
- Of two sets returned by `publish_flush` or `publish_compaction`, the later differs from the earlier only by files
  that were flushed and by compactions, wherever they ran: no key reads otherwise but for the rows flushed. After
  `publish_refresh` it may.
- A call that raised `Unavailable` or `OutcomeUnknown` is made again with the same arguments, whether or not it took
  effect, and takes effect once.
- The tree calls `publish_flush`, `publish_compaction` and `publish_refresh` one at a time, and shows a set before it
calls again.
"""

from __future__ import annotations

from typing import Protocol

from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask


class CompactionJob(Protocol):
    """A compaction that was announced: files with its ids are not taken for garbage before it ends."""

    def next_file_id(self) -> str:
        """A new id (`lakebed.lsm.file_id`) for an output file or run. Cost: no request."""
        ...


class VersionPublisher(Protocol):
    """Makes sets of files versions. Every error leaves the version as it was, but for `OutcomeUnknown`."""

    def next_file_id(self) -> str:
        """An id for a file to be flushed: minted in the order of publishing, greater than every id of the version."""
        ...

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Publish a memtable's file as the newest one.

        Args:
            file: durable already; None when nothing of the memtable needs to be kept.
            last_sequence: the memtable's last: with this version everything up to it is in files.
            token: what `Tree.rotate` was given.

        Returns:
            The newest set, with the file (or with what a compaction has made of it).

        Raises:
            Fenced: another writer has taken over.
            InvalidRequest: the version would have too many files.
        """
        ...

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Announce a compaction. Raises `Fenced` when another compactor has taken over."""
        ...

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """Publish a compaction: the output, if any, in the place of the inputs; ends the job.

        Raises:
            Conflict: an input is not in the newest version any more, or the job is not; the output is garbage.
            Fenced: another compactor has taken over.
        """
        ...

    def abandon(self, job: CompactionJob) -> None:
        """End a job without output. Never raises for a store that does not answer: a later job ends it too."""
        ...

    def publish_refresh(self) -> FileSet:
        """The newest set of any publisher, pinned so that it can be read from now on."""
        ...
