"""The interface through which the engine makes a new set of files the version of the store that it serves.

Owns: `VersionPublisher` and `CompactionJob`. `lakebed.kv` publishes by create-only manifests. Any store that can make
one set of files the successor of another can use the same engine.

Invariants on which the engine depends:
- A call returns the newest version at some moment of the call. Each set returned is the same as, or newer than, every
  set returned before.
- Of two sets returned by `publish_flush` or `publish_compaction`, the later differs from the earlier only by flushed
  files and by compactions, in any process. So the result of reading a key changes only by the flushed rows. After
  `publish_refresh` it may change in other ways.
- A call that raised `Unavailable` or `OutcomeUnknown` is repeated with the same arguments, whether or not it took
  effect, and takes effect once.
- The tree calls `publish_flush`, `publish_compaction` and `publish_refresh` one at a time, and shows a set before the
  next call.
"""

from __future__ import annotations

from typing import Protocol

from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask


class CompactionJob(Protocol):
    """An announced compaction. Files with its ids are not treated as garbage before it ends."""

    def next_file_id(self) -> str:
        """Mint a new id (`lakebed.lsm.file_id`) for an output file or run. Cost: no request."""
        ...


class VersionPublisher(Protocol):
    """Makes sets of files versions. Every error except `OutcomeUnknown` leaves the version unchanged."""

    def next_file_id(self) -> str:
        """Mint an id for a file to flush, in the order of publishing, greater than every id of the version."""
        ...

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Publish a memtable's file as the newest one.

        Args:
            file: the file, which is durable already; None if no row of the memtable needs to be kept.
            last_sequence: the memtable's last sequence. In this version everything up to it is in files.
            token: the argument of `Tree.rotate`.

        Returns:
            The newest set, with the file or with its rows in the output of a compaction.

        Raises:
            Fenced: another writer has taken over.
            InvalidRequest: the version would have too many files.
        """
        ...

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Announce a compaction. Raises `Fenced` if another compactor has taken over."""
        ...

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """Publish a compaction, with the output, if any, in place of the inputs, and end the job.

        Raises:
            Conflict: an input or the job is not in the newest version any more. The output is garbage.
            Fenced: another compactor has taken over.
        """
        ...

    def abandon(self, job: CompactionJob) -> None:
        """End a job without output. Does not raise if the store does not answer: a later job also ends this one."""
        ...

    def publish_refresh(self) -> FileSet:
        """Pin the newest set of any publisher, so that it can be read from now on, and return it."""
        ...
