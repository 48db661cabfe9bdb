"""The granted publisher: it makes the engine's files part of the open transaction.

Owns: `GrantedPublisher`, the `lakebed.lsm.publisher.VersionPublisher` of one timeline. It publishes a set of files by
replacing the timeline in the working set, in memory and in the local state, without a request. Others see the files
when the transaction is committed.

Invariants:
- The caller of every step holds the tenant's turn, so no transaction is frozen or replaced during a step.
- A file id is greater than all ids that were minted here before.

Does not know: when to flush or compact, what is committed.
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
    """The part of a tenant that a publisher uses."""

    @property
    def transaction(self) -> OpenTransaction | None:
        """The open transaction; None: nothing may be written."""

    def note_path(self, file_id: str, path: str) -> None:
        """Record the path of a new file."""


class GrantedPublisher:
    """Publishes the files of one timeline.

    Args:
        timeline: the timeline's id.
        tenant: the tenant's name, for paths and errors.
    """

    def __init__(self, owner: Owner, timeline: str, *, tenant: str, environment: Environment) -> None:
        self._owner = owner
        self._timeline = timeline
        self._tenant = tenant
        self._environment = environment
        self._last_id: str | None = None
        self.cutoff = 0
        """The oldest LSN for which the running steps keep versions (`Tree.retain_since_sequence`)."""

    def path_of(self, file_id: str) -> str:
        """Return the path of a new file. Record it first."""
        transaction = self._open()
        path = transaction.mint(layer_path(self._tenant, transaction.txn, self._timeline, file_id))
        self._owner.note_path(file_id, path)
        return path

    def next_file_id(self) -> str:
        """Return an id that is greater than all ids returned before. Cost: no request."""
        self._last_id = mint_file_id(self._last_id, environment=self._environment)
        return self._last_id

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Put a file at the front of level 0. `token` is the `LogMark` at the memtable's end."""
        index = self._index()
        if index.lsn >= last_sequence:
            return index.files
        if not isinstance(token, LogMark) or token.lsn != last_sequence:
            raise InternalError(f"the token of a memtable that ends at {last_sequence} is {token!r}")
        cutoff = min(self.cutoff, last_sequence)
        return self._publish(with_file(index, file, txn=self._open().txn, mark=token, cutoff=cutoff))

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Check that the transaction is open. Nothing else is needed: one compaction runs at a time."""
        self._open()
        return self

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """Replace a compaction's inputs by its output. Raises `Conflict` if an input is gone."""
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
        """Do nothing: the written files are recorded, and go on the deadlist."""

    def publish_refresh(self) -> FileSet:
        """Return the files of the working set."""
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
