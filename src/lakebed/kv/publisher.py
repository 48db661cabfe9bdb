"""Publishing: the engine's files become a version of a database by the next manifest.

Owns: `WriterPublisher` for the writer (flushes, its checkpoint), and `CompactorPublisher` for the compactor (jobs,
runs). A writer that compacts has a `CompactorPublisher` inside. Each implements its part of
`lakebed.lsm.publisher.VersionPublisher`.

Invariants:
- Each update checks its preconditions in the newest manifest: the role's epoch, and for a compaction that its job and
  its inputs are still there. So a role that was taken over publishes nothing, however long its process slept.
- After an unclear outcome, a retry detects a change that is already in the newest manifest: a flush if `newest_l0_id`
  has reached its file, a compaction if its run is there. Only the role's owner changes either.
- A file id is greater than every id in the newest manifest seen (files, jobs, `newest_l0_id`), and than every id that
  was minted here before. The files of a compaction have ids after the `start_id` of its job, which is in a manifest
  before the first of them is written.
- The writer's checkpoint moves with every change of the files that it shows. `CheckpointRefs` knows which older
  checkpoints are in use.
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
    """Return the greatest id that a manifest names. Cost: some microseconds for each hundred files."""
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
    """A compaction whose job is in the manifest."""

    __slots__ = ("_last_id", "_location", "id")

    def __init__(self, location: DatabaseLocation, *, id: str, start_id: str) -> None:
        self._location = location
        self.id = id
        self._last_id = start_id

    def next_file_id(self) -> str:
        """Mint an id greater than `start_id` and all ids minted before."""
        self._last_id = mint_file_id(self._last_id, environment=self._location.environment)
        return self._last_id


class CompactorPublisher:
    """The compactor's changes of the manifest. One compaction at a time.

    Args:
        log: the manifests of the database; other objects may use it too.
        epoch: the compactor's epoch, if the role is claimed already; None: `claim` or the first job claims it.
    """

    def __init__(self, location: DatabaseLocation, *, log: ManifestLog, epoch: int | None = None) -> None:
        self._location = location
        self._log = log
        self._epoch = epoch

    @property
    def epoch(self) -> int | None:
        """Our epoch; None before the role is claimed."""
        return self._epoch

    def claim(self) -> int:
        """Become the compactor, and return the epoch. Every older compactor is fenced, and its jobs are dropped.

        Raises:
            InvalidRequest: kind ``invalid_db_state``; the database is destroyed, or an unfinished clone.
            OutcomeUnknown: the role may be claimed by an epoch that no process uses. Claim again.
        Cost: 1 PUT + 1 LIST, and 1 LIST + 1 GET before.
        """

        def change(manifest: Manifest) -> Manifest:
            check_open(manifest, self._location.url)
            jobs = tuple(job for job in manifest.jobs if job.kind != _JOB_KIND)
            return msgspec.structs.replace(manifest, compactor_epoch=manifest.compactor_epoch + 1, jobs=jobs)

        self._epoch = self._log.update(change, fresh=True).compactor_epoch
        return self._epoch

    def begin_compaction(self, task: CompactionTask) -> CompactionJob:
        """Record a job in the manifest, in place of an earlier one of ours. Claim the role if it is not ours yet.

        Raises `Fenced`, and `Conflict` if an input is gone already. Cost: 1 PUT + 1 LIST if no other process wrote.
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
            other_jobs = tuple(other for other in manifest.jobs if other.kind != _JOB_KIND)
            return msgspec.structs.replace(manifest, jobs=(*other_jobs, job))

        self._log.update(change)
        return _Job(self._location, id=job_id, start_id=start_id)

    def replace_inputs(
        self, manifest: Manifest, job: CompactionJob, task: CompactionTask, run: Run | None
    ) -> Manifest | None:
        """Return the manifest with a compaction's output in place of its inputs; None if it has the output. Pure.

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
                return None  # inputs and job have been removed together: an earlier attempt of ours succeeded
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
        """Remove a job from the manifest. If the store does not answer, the next job or epoch removes it."""
        assert isinstance(job, _Job), "the job was begun by another publisher"

        def change(manifest: Manifest) -> Manifest | None:
            jobs = tuple(other for other in manifest.jobs if other.id != job.id)
            if manifest.compactor_epoch != self._epoch or len(jobs) == len(manifest.jobs):
                return None
            return msgspec.structs.replace(manifest, jobs=jobs)

        try:
            self._log.update(change)
        except (Unavailable, OutcomeUnknown):
            return  # the only effect is that its files stay for longer

    def check_epoch(self, manifest: Manifest) -> None:
        """Raise `Fenced` if a manifest names another compactor."""
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
    """A writer's `VersionPublisher`. A token is the last log id of a memtable; None without a log.

    Args:
        log: the manifests, as `claim_writer` left them.
        manifest: the manifest of the claim, whose files are shown first.
        checkpoint_id: our checkpoint on that manifest.
        refs: knows which of our checkpoints are in use. Every set is published to it before the tree shows the set.
        file_count_max: most files of one version.
        compactor: publishes compactions of this process.
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
        """The set returned last, at first that of the claim. The tree must begin with exactly this object."""
        return self._published[0]

    def next_file_id(self) -> str:
        """Mint an id greater than all in the newest manifest seen, and than all minted before. Cost: no request."""
        seen = self._log.seen
        newest = "" if seen is None else newest_file_id(seen)
        self._last_id = mint_file_id(max(self._last_id, newest) or None, environment=self._location.environment)
        return self._last_id

    def publish_flush(self, file: FileMeta | None, *, last_sequence: int, token: object) -> FileSet:
        """Put a file in front of level 0, and move the beginning of the log behind the file's rows.

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
        """As `CompactorPublisher.publish_compaction`, and move the writer's checkpoint. `Fenced` for either role."""

        def change(manifest: Manifest) -> Manifest | None:
            self._check_epoch(manifest)
            compacted = self._compactor.replace_inputs(manifest, job, task, run)
            if compacted is not None:
                return self._add_checkpoint(compacted)
            return None if self._is_pinned(manifest) else self._add_checkpoint(manifest)

        return self._publish(change)

    def abandon(self, job: CompactionJob) -> None:
        """As `CompactorPublisher.abandon`."""
        self._compactor.abandon(job)

    def publish_refresh(self) -> FileSet:
        """Pin the newest files with our checkpoint, and return them. Remove checkpoints that are not in use any more.

        Raises `Fenced`. Cost: 1 LIST, and 1 GET if there is a newer manifest; 1 PUT + 1 LIST more if files have changed
        or a checkpoint can be removed.
        """
        self._log.latest()

        def change(manifest: Manifest) -> Manifest | None:
            self._check_epoch(manifest)
            if not self._is_pinned(manifest):
                return self._add_checkpoint(manifest)
            checkpoints = self._checkpoints_to_keep(manifest)
            if len(checkpoints) == len(manifest.checkpoints):
                return None
            return msgspec.structs.replace(manifest, checkpoints=checkpoints)

        return self._publish(change)

    def _publish(self, change: Callable[[Manifest], Manifest | None]) -> FileSet:
        """Update the manifest, and publish the new set with its checkpoint to `refs` before the tree shows the set."""
        manifest = self._log.update(change)
        _LOG.info("published", database=self._location.url, version=manifest.manifest_id)
        checkpoint = self._own_checkpoint(manifest)
        assert checkpoint is not None, "every change that is published leaves the writer a checkpoint"
        if self._published[1] != checkpoint.id:
            self._published = manifest.file_set, checkpoint.id
            self._refs.publish(*self._published)
        return self._published[0]

    def _own_checkpoint(self, manifest: Manifest) -> Checkpoint | None:
        """Return the newest of the writer's checkpoints, which pins the files that are shown next."""
        return next(
            (checkpoint for checkpoint in reversed(manifest.checkpoints) if checkpoint.owner == self._owner), None
        )

    def _is_pinned(self, manifest: Manifest) -> bool:
        """Whether the newest of our checkpoints pins a version with exactly these files."""
        checkpoint = self._own_checkpoint(manifest)
        if checkpoint is None:
            return False
        file_set, own_id = self._published
        return checkpoint.manifest_id >= manifest.content_since or (
            checkpoint.id == own_id and file_set == manifest.file_set
        )

    def _add_checkpoint(self, manifest: Manifest) -> Manifest:
        """Return the manifest with our checkpoint on the version that it becomes, and without those not in use."""
        checkpoint = Checkpoint(
            id=new_uuid(self._location.environment.rng),
            manifest_id=manifest.manifest_id + 1,
            created_at_ms=self._location.environment.clock.now_ms(),
            owner=self._owner,
        )
        return msgspec.structs.replace(manifest, checkpoints=(*self._checkpoints_to_keep(manifest), checkpoint))

    def _checkpoints_to_keep(self, manifest: Manifest) -> tuple[Checkpoint, ...]:
        """Return all checkpoints of other owners, and those of ours that are in use."""
        ids_in_use = self._refs.ids_in_use()
        return tuple(
            checkpoint
            for checkpoint in manifest.checkpoints
            if checkpoint.owner != self._owner or checkpoint.id in ids_in_use
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
