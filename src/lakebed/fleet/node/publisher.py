"""How the engine's files become part of the open transaction: the granted publisher.

Owns: `GrantedPublisher`, the `lakebed.lsm.publisher.VersionPublisher` of one timeline. A set of files is published by
replacing the timeline in the working set, in memory and in the local state: no request. It becomes visible to others
when the transaction is committed.

Invariants: the caller of every step holds the tenant's turn, so no transaction is frozen or exchanged during a step; a
file id is greater than all ids minted here before. Does not know: when to flush or compact, what is committed.
"""

from __future__ import annotations

from typing import Protocol

from lakebed.errors import Conflict, Fenced, InternalError
from lakebed.fleet.layout import layer_path
from lakebed.fleet.model import LogMark, TimelineIndex
from lakebed.fleet.node.indices import with_file, with_files
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.publisher import CompactionJob
from lakebed.runtime import Environment


class Owner(Protocol):
    """What a publisher needs of its tenant."""

    @property
    def transaction(self) -> OpenTransaction | None:
        """The open transaction; None: nothing may be written."""

    def note_path(self, file_id: str, path: str) -> None:
        """A new file is at this path."""


class GrantedPublisher:
    """Publishes one timeline's files.

    Args:
        timeline: its id.
        tenant: its name, for paths and errors.
    """

    def __init__(self, owner: Owner, timeline: str, *, tenant: str, environment: Environment) -> None:
        self._owner = owner
        self._timeline = timeline
        self._tenant = tenant
        self._environment = environment
        self._last_id: str | None = None
        self.cutoff = 0
        """The oldest LSN for which the steps that run now keep versions (`Tree.retain_since_sequence`)."""

    def path_of(self, file_id: str) -> str:
        """The path of a new file, recorded before it is returned."""
        transaction = self._open()
        path = transaction.mint(layer_path(self._tenant, transaction.txn, self._timeline, file_id))
        self._owner.note_path(file_id, path)
        return path

    def next_file_id(self) -> str:
        """An id greater than all given out before. Cost: no request."""
        self._last_id = mint_file_id(self._last_id, environment=self._environment)
        return self._last_id

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Put a file in front of level 0; `token` is the `LogMark` at the memtable's end."""
        index = self._index()
        if index.lsn >= last_sequence:
            return index.files
        if not isinstance(token, LogMark) or token.lsn != last_sequence:
            raise InternalError(f"the token of a memtable that ends at {last_sequence} is {token!r}")
        cutoff = min(self.cutoff, last_sequence)
        return self._publish(with_file(index, file, txn=self._open().txn, mark=token, cutoff=cutoff))

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Only check that the transaction is open: one compaction runs at a time."""
        self._open()
        return self

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """Put a compaction's output in the place of its inputs. Raises `Conflict` when an input is gone."""
        index = self._index()
        if run is not None and run in index.files.runs:
            return index.files
        files = task.apply_to(index.files, run)
        if files is None:
            raise Conflict(
                f"Files of timeline {self._timeline} of {self._tenant} that were to be merged are gone: plan it again.",
                kind="inputs_gone",
            )
        cutoff = min(self.cutoff, index.lsn)
        return self._publish(with_files(index, files, txn=self._open().txn, cutoff=cutoff))

    def abandon(self, job: CompactionJob) -> None:
        """Nothing: what was written is recorded, and goes on the deadlist."""

    def publish_refresh(self) -> FileSet:
        """The files of the working set."""
        return self._index().files

    def _publish(self, index: TimelineIndex) -> FileSet:
        self._open().publish(index)
        return index.files

    def _index(self) -> TimelineIndex:
        return self._open().timelines[self._timeline]

    def _open(self) -> OpenTransaction:
        transaction = self._owner.transaction
        if transaction is None or self._timeline not in transaction.timelines:
            raise Fenced(
                f"Nothing is written for timeline {self._timeline} of {self._tenant} on this node any more.",
                kind="no_transaction",
                tenant=self._tenant,
            )
        return transaction
