"""The separate compactor, which merges a database's files in a process of its own while another process may write.

Owns: `Compactor`. Invariants: it claims the compactor's epoch before its first compaction, which fences every other
compactor and drops their jobs. It merges only files that a manifest names. It never reads the log, writes no row and
changes no checkpoint: readers and the writer pin what they read with their own checkpoints.

A database is compacted in one place: in the writer's process (`DatabaseOptions.compaction`) or by one separate
compactor. The one that begins later takes over, and the other stops with `Fenced`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound
from lakebed.kv.checkpoint import check_open
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.locations import Locations
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.publisher import CompactorPublisher
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.compact import run_compaction
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.model import FileSet
from lakebed.lsm.operators import MergeOperator, find_operator
from lakebed.lsm.plan import CompactionTask, plan_compaction, plan_full

_CACHE_BYTES: Final = 32 << 20
"""Size of the cache, for the tails of the files that are being merged. Blocks are read once and not kept."""

_TRIES_MAX: Final = 3

Progress = Callable[[int, int], None]


class Compactor:
    """Compacts one database. Not thread-safe.

    Args:
        options: sizes and counts, as for the writer. Other options are ignored.
    """

    def __init__(self, location: DatabaseLocation, *, options: DatabaseOptions | None = None) -> None:
        location = self._location = location.require_folder(with_descriptor=False)
        self._options = options or DatabaseOptions()
        self._plan = partial(
            plan_compaction,
            l0_compaction_count=self._options.l0_compaction_count,
            run_compaction_count=self._options.run_compaction_count,
        )
        self._log = ManifestLog(location)
        self._publisher = CompactorPublisher(location, log=self._log)
        self._cache = BlockCache(_CACHE_BYTES, runtime=location.environment.runtime)

    def compact_once(self, progress: Progress | None = None) -> bool:
        """Claim the role at the first call, then plan one compaction, run it and publish it.

        Args:
            progress: called now and then with the rows read and the bytes written so far.

        Returns:
            False if nothing needs to be merged.

        Raises:
            Fenced: kind ``compactor_fenced``; another compactor has taken over. Stop.
            InvalidRequest: kind ``invalid_db_state``; the database is destroyed, or an unfinished clone.
            NotFound: there is no database.
            Corruption: an input is damaged or missing.
            Unavailable, OutcomeUnknown: nothing is lost. Call again.

        Cost: 1 LIST, and 1 GET if the manifest is new; for a compaction 2 updates of the manifest, and its files.
        """
        return self._compact(self._plan, progress) is not None

    def compact_full(self, progress: Progress | None = None) -> bool:
        """Rewrite all files into one run; False for an empty database. Otherwise as `compact_once`."""
        task = self._compact(plan_full, progress)
        if task is None:
            return False
        while task is not None and not task.rewrite:
            task = self._compact(plan_full, progress)
        return True

    def _compact(
        self, plan: Callable[[FileSet], CompactionTask | None], progress: Progress | None
    ) -> CompactionTask | None:
        if self._publisher.epoch is None:
            self._publisher.claim()
        for _ in range(_TRIES_MAX - 1):
            try:
                return self._plan_and_run(plan, progress)
            except Conflict:
                continue  # the plan was based on an older manifest
        return self._plan_and_run(plan, progress)

    def _plan_and_run(
        self, plan: Callable[[FileSet], CompactionTask | None], progress: Progress | None
    ) -> CompactionTask | None:
        manifest = self._newest()
        file_set = manifest.file_set
        task = plan(file_set)
        if task is None:
            return None
        job = self._publisher.begin_compaction(task)
        is_published = False
        try:
            run = run_compaction(
                task,
                files=self._files(manifest),
                file_set=file_set,
                next_file_id=job.next_file_id,
                run_file_bytes=self._options.run_file_bytes,
                operator=_operator(manifest),
                retain_since_sequence=None,
                progress=progress,
            )
            self._publisher.publish_compaction(job, task, run)
            is_published = True
        except NotFound as error:
            if task.apply_to(self._newest().file_set, None) is None:
                raise Conflict(f"An input was taken away: {error}", kind="inputs_gone") from error
            raise Corruption(
                f"A file of the newest version of {self._location.url} is gone: {error}",
                kind="file_missing",
                **error.facts,
            ) from error
        finally:
            if not is_published:
                self._publisher.abandon(job)
        return task

    def _newest(self) -> Manifest:
        """Return the newest manifest. Raises `Fenced` if it names another compactor."""
        manifest = check_open(self._log.latest(), self._location.url)
        self._publisher.check_epoch(manifest)
        return manifest

    def _files(self, manifest: Manifest) -> FileStore:
        return FileStore(
            self._location.store,
            path_of=sst_path,
            locate=Locations(self._location, manifest).locate,
            cache=self._cache,
            options=FileOptions(block_bytes=self._options.block_bytes, bits_per_key=self._options.filter_bits_per_key),
            environment=self._location.environment,
        )


def _operator(manifest: Manifest) -> MergeOperator | None:
    """Return the database's operator; None if this process does not know it. Operands then stay as they are."""
    if manifest.merge_operator is None:
        return None
    try:
        return find_operator(manifest.merge_operator)
    except InvalidRequest:
        return None
