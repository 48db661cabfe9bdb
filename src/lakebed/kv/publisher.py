"""How the engine's files become versions of a database: by the next manifest.

Owns: `WriterPublisher`, the writer's side (flushes, its checkpoint), and `CompactorPublisher`, the compactor's (jobs,
runs), which a writer that compacts has inside. Both are `lakebed.lsm.publisher.VersionPublisher`s in their parts.

Invariants:
- Each update states what it rests on and decides it from the newest manifest: the role's epoch, and for a compaction
  that its job and its inputs are still there. So a role that was taken over publishes nothing, however long it slept.
- Asked again after an unclear outcome, a change that is in the newest manifest is done: a flush when `newest_l0_id` has
  reached its file, a compaction when its run is there. Only the role's owner moves either.
- A file id is greater than every id in the newest manifest that was seen (files, jobs, `newest_l0_id`), and than every
  id minted here before. A compaction's files come after its job's `start_id`, which is in a manifest before the first
  of them is written.
- The writer's checkpoint moves with every change of the files it shows; `CheckpointRefs` knows the older ones in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from lakebed.errors import Conflict, Fenced, InternalError, InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.ids import new_uuid
from lakebed.kv.checkpoint import check_open
from lakebed.kv.checkpoint_refs import CheckpointRefs
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Job, Manifest, Owner
from lakebed.log import logger
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.publisher import CompactionJob

_LOG: Final = logger("kv")

_JOB_KIND: Final = "compaction"


def newest_file_id(manifest: Manifest) -> str:
    """The greatest id that a manifest names. Cost: some microseconds a hundred files."""
    return max(_ids(manifest))


def _ids(manifest: Manifest) -> Iterator[str]:
    yield manifest.newest_l0_id
    for file in manifest.l0:
        yield file.id
    for run in manifest.runs:
        yield run.id
        for file in run.files:
            yield file.id
    for job in manifest.jobs:
        yield job.start_id


class _Job:
    """A compaction that is recorded in the manifest."""

    __slots__ = ("_last_id", "_location", "id")

    def __init__(self, location: DatabaseLocation, *, id: str, start_id: str) -> None:
        self._location = location
        self.id = id
        self._last_id = start_id

    def next_file_id(self) -> str:
        """The next id behind `start_id` and all ids given out before."""
        self._last_id = mint_file_id(self._last_id, environment=self._location.environment)
        return self._last_id


class CompactorPublisher:
    """The compactor's changes of the manifest. One compaction at a time.

    Args:
        log: its manifests; others may use it too.
        epoch: the compactor's, when it is claimed already; None: `claim` or the first job claims it.
    """

    def __init__(self, location: DatabaseLocation, *, log: ManifestLog, epoch: int | None = None) -> None:
        self._location = location
        self._log = log
        self._epoch = epoch

    @property
    def epoch(self) -> int | None:
        """Ours; None before the role is claimed."""
        return self._epoch

    def claim(self) -> int:
        """Become the compactor: every older one is fenced, and its jobs are dropped. Returns the epoch.

        Raises:
            InvalidRequest: kind ``invalid_db_state``; the database is destroyed, or a clone that is not finished.
            OutcomeUnknown: it may be claimed, without an owner that works; claim again.
        Cost: 1 PUT + 1 LIST, and 1 LIST + 1 GET before.
        """

        def change(manifest: Manifest) -> Manifest:
            check_open(manifest, self._location.url)
            jobs = tuple(job for job in manifest.jobs if job.kind != _JOB_KIND)
            return msgspec.structs.replace(manifest, compactor_epoch=manifest.compactor_epoch + 1, jobs=jobs)

        self._epoch = self._log.update(change, fresh=True).compactor_epoch
        return self._epoch

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Put a job into the manifest, in the place of any earlier one of ours, and claim the role when it is not ours.

        Raises `Fenced`, and `Conflict` when an input is gone already. Cost: 1 PUT + 1 LIST if no other process wrote.
        """
        if self._epoch is None:
            self.claim()
        job_id = new_uuid(self._location.environment.rng)
        start_id = ""

        def change(manifest: Manifest) -> Manifest:
            nonlocal start_id
            self.check_epoch(manifest)
            if task.apply_to(manifest.file_set, None) is None:
                raise _inputs_gone(self._location.url)
            start_id = mint_file_id(newest_file_id(manifest), environment=self._location.environment)
            job = Job(
                id=job_id,
                kind=_JOB_KIND,
                start_id=start_id,
                epoch=manifest.compactor_epoch,
                started_at_ms=self._location.environment.clock.now_ms(),
            )
            others = tuple(other for other in manifest.jobs if other.kind != _JOB_KIND)
            return msgspec.structs.replace(manifest, jobs=(*others, job))

        self._log.update(change)
        return _Job(self._location, id=job_id, start_id=start_id)

    def replace_inputs(
        self, manifest: Manifest, job: CompactionJob, task: CompactionTask, run: Run | None
    ) -> Manifest | None:
        """The manifest with a compaction's output in the place of its inputs; None when it has it already. Pure.

        Raises:
            Fenced: the manifest names another compactor.
            Conflict: the job or an input is gone.
        """
        assert isinstance(job, _Job), "the job was begun by another publisher"
        self.check_epoch(manifest)
        is_running = any(other.id == job.id for other in manifest.jobs)
        file_set = task.apply_to(manifest.file_set, run)
        if not is_running:
            if run is not None and any(other.id == run.id for other in manifest.runs):
                return None
            if run is None and file_set is None:
                return None  # inputs and job went together: that was us
            raise Conflict(
                f"The compaction of {self._location.url} was removed from the manifest, so its files may be collected: "
                "plan it again.",
                kind="job_gone",
                url=self._location.url,
            )
        if file_set is None:
            raise _inputs_gone(self._location.url)
        jobs = tuple(other for other in manifest.jobs if other.id != job.id)
        return msgspec.structs.replace(manifest, l0=file_set.l0, runs=file_set.runs, jobs=jobs)

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """Publish a compaction and end its job. Raises as `replace_inputs`. Cost: 1 PUT + 1 LIST if no other wrote."""
        return self._log.update(lambda manifest: self.replace_inputs(manifest, job, task, run)).file_set

    def abandon(self, job: CompactionJob) -> None:
        """Take a job out of the manifest. Where the store does not answer, the next job or epoch does it."""
        assert isinstance(job, _Job), "the job was begun by another publisher"

        def change(manifest: Manifest) -> Manifest | None:
            jobs = tuple(other for other in manifest.jobs if other.id != job.id)
            if manifest.compactor_epoch != self._epoch or len(jobs) == len(manifest.jobs):
                return None
            return msgspec.structs.replace(manifest, jobs=jobs)

        try:
            self._log.update(change)
        except (Unavailable, OutcomeUnknown):
            return  # its files stay for a while longer, nothing else

    def check_epoch(self, manifest: Manifest) -> None:
        """Raise `Fenced` when a manifest names another compactor."""
        if manifest.compactor_epoch != self._epoch:
            raise Fenced(
                f"Another compactor of {self._location.url} has taken over (epoch {manifest.compactor_epoch}, ours was "
                f"{self._epoch}): stop compacting here, or stop the other one and begin again.",
                kind="compactor_fenced",
                url=self._location.url,
                epoch=manifest.compactor_epoch,
                own_epoch=self._epoch,
            )


def _inputs_gone(url: str) -> Conflict:
    return Conflict(
        f"Files that were to be merged are no longer those of the newest version of {url}: plan the compaction again.",
        kind="inputs_gone",
        url=url,
    )


class WriterPublisher:
    """A writer's `VersionPublisher`. A token is the last log id of its memtable; None where there is no log.

    Args:
        log: its manifests, as `claim_writer` left them.
        manifest: the claim's: its files are what is shown first.
        checkpoint_id: ours on that manifest.
        refs: which of our checkpoints are in use; every set is published to it before the tree shows the set.
        file_count_max: most files of one version.
        compactor: for compactions of this process.
    """

    def __init__(
        self,
        location: DatabaseLocation,
        *,
        log: ManifestLog,
        epoch: int,
        manifest: Manifest,
        checkpoint_id: str,
        refs: CheckpointRefs,
        file_count_max: int,
        compactor: CompactorPublisher,
    ) -> None:
        self._location = location
        self._log = log
        self._epoch = epoch
        self._owner = Owner("writer", epoch=epoch)
        self._refs = refs
        self._file_count_max = file_count_max
        self._compactor = compactor
        self._last_id = ""
        self._published = manifest.file_set, checkpoint_id
        refs.publish(*self._published)

    @property
    def file_set(self) -> FileSet:
        """The set returned last, at first the claim's: begin the tree with this very object."""
        return self._published[0]

    def next_file_id(self) -> str:
        """An id greater than all of the newest manifest seen, and than all given out before. Cost: no request."""
        seen = self._log.seen
        newest = "" if seen is None else newest_file_id(seen)
        self._last_id = mint_file_id(max(self._last_id, newest) or None, environment=self._location.environment)
        return self._last_id

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Put a file in front of level 0 and move the log's beginning behind it.

        Raises:
            Fenced: another writer has taken over.
            InvalidRequest: kind ``too_many_files``.
        Cost: 1 PUT + 1 LIST if no other process wrote.
        """
        if token is not None and not isinstance(token, int):
            raise InternalError(f"the token of a memtable is its last log id, not {token!r}")

        def change(manifest: Manifest) -> Manifest | None:
            self._check_epoch(manifest)
            replay_after = max(manifest.replay_after_wal_id, token or 0)
            is_there = file is None or manifest.newest_l0_id >= file.id
            if is_there and replay_after == manifest.replay_after_wal_id and manifest.last_sequence >= last_sequence:
                return None if self._is_pinned(manifest) else self._add_checkpoint(manifest)
            l0 = manifest.l0
            newest_l0_id = manifest.newest_l0_id
            if file is not None and not is_there:
                self._check_count(manifest)
                l0, newest_l0_id = (file, *l0), file.id
            return self._add_checkpoint(
                msgspec.structs.replace(
                    manifest,
                    l0=l0,
                    newest_l0_id=newest_l0_id,
                    replay_after_wal_id=replay_after,
                    wal_id_last_seen=max(manifest.wal_id_last_seen, replay_after),
                    last_sequence=max(manifest.last_sequence, last_sequence),
                )
            )

        return self._publish(change)

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """As `CompactorPublisher.begin_compaction`."""
        return self._compactor.begin_compaction(task)

    def publish_compaction(self, job: CompactionJob, task: CompactionTask, run: Run | None) -> FileSet:
        """As `CompactorPublisher.publish_compaction`, and moves the writer's checkpoint; `Fenced` for either role."""

        def change(manifest: Manifest) -> Manifest | None:
            self._check_epoch(manifest)
            changed = self._compactor.replace_inputs(manifest, job, task, run)
            if changed is not None:
                return self._add_checkpoint(changed)
            return None if self._is_pinned(manifest) else self._add_checkpoint(manifest)

        return self._publish(change)

    def abandon(self, job: CompactionJob) -> None:
        """As `CompactorPublisher.abandon`."""
        self._compactor.abandon(job)

    def publish_refresh(self) -> FileSet:
        """The newest files, under our checkpoint; checkpoints that are not in use any more are left out.

        Raises `Fenced`. Cost: 1 LIST, and 1 GET when there is a newer manifest; 1 PUT + 1 LIST more when files have
        changed or a checkpoint can go.
        """
        self._log.latest()

        def change(manifest: Manifest) -> Manifest | None:
            self._check_epoch(manifest)
            if not self._is_pinned(manifest):
                return self._add_checkpoint(manifest)
            kept = self._checkpoints_to_keep(manifest)
            if len(kept) == len(manifest.checkpoints):
                return None
            return msgspec.structs.replace(manifest, checkpoints=kept)

        return self._publish(change)

    def _publish(self, change: Callable[[Manifest], Manifest | None]) -> FileSet:
        """Make an update, and publish the set under its checkpoint to the references before the tree shows it."""
        manifest = self._log.update(change)
        _LOG.info("published", database=self._location.url, version=manifest.manifest_id)
        checkpoint = self._own_checkpoint(manifest)
        assert checkpoint is not None, "every change that is published leaves the writer a checkpoint"
        if self._published[1] != checkpoint.id:
            self._published = manifest.file_set, checkpoint.id
            self._refs.publish(*self._published)
        return self._published[0]

    def _own_checkpoint(self, manifest: Manifest) -> Checkpoint | None:
        """The newest of the writer's checkpoints: it pins the files that are shown next."""
        return next(
            (checkpoint for checkpoint in reversed(manifest.checkpoints) if checkpoint.owner == self._owner), None
        )

    def _is_pinned(self, manifest: Manifest) -> bool:
        """Whether the newest of our checkpoints is on a version with these very files."""
        checkpoint = self._own_checkpoint(manifest)
        if checkpoint is None:
            return False
        file_set, own_id = self._published
        return checkpoint.manifest_id >= manifest.content_since or (
            checkpoint.id == own_id and file_set == manifest.file_set
        )

    def _add_checkpoint(self, manifest: Manifest) -> Manifest:
        """With a checkpoint of ours on the version that this becomes, in place of those that are not in use."""
        checkpoint = Checkpoint(
            id=new_uuid(self._location.environment.rng),
            manifest_id=manifest.manifest_id + 1,
            created_at_ms=self._location.environment.clock.now_ms(),
            owner=self._owner,
        )
        return msgspec.structs.replace(manifest, checkpoints=(*self._checkpoints_to_keep(manifest), checkpoint))

    def _checkpoints_to_keep(self, manifest: Manifest) -> tuple[Checkpoint, ...]:
        """All of other owners, and ours that are in use."""
        needed = self._refs.ids_in_use()
        return tuple(
            checkpoint
            for checkpoint in manifest.checkpoints
            if checkpoint.owner != self._owner or checkpoint.id in needed
        )

    def _check_count(self, manifest: Manifest) -> None:
        count = len(manifest.l0) + sum(len(run.files) for run in manifest.runs)
        if count >= self._file_count_max:
            raise InvalidRequest(
                f"The database {self._location.url} has {count:,} files, and file_count_max allows "
                f"{self._file_count_max:,}: compact it, raise run_file_bytes, or spread the data over more databases.",
                kind="too_many_files",
                url=self._location.url,
                file_count=count,
            )

    def _check_epoch(self, manifest: Manifest) -> None:
        if manifest.writer_epoch != self._epoch:
            raise Fenced(
                f"Another writer of {self._location.url} has taken over (epoch {manifest.writer_epoch}, ours was "
                f"{self._epoch}): open the database again if it should be written from here.",
                kind="fenced",
                url=self._location.url,
                epoch=manifest.writer_epoch,
                own_epoch=self._epoch,
            )
