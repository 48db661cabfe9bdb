"""Carry out a compaction: merge the files that its plan names, in bounded memory, and commit.

Owns: `run_task`, and `compact`, which runs a plan (`compact_plan`) and commits it as one COMPACT snapshot.

Invariants:
- A compaction changes no row: merged files hold exactly what a reader saw before. Rows that deletion vectors delete are
  left out, and the vectors end with their files.
- In a primary-key table with deletion vectors a compaction makes the rows of level 0 visible. In one commit it writes
  them above level 0 and marks the older rows of their keys, so a key has at most one visible row.
- With the changelog producer ``full-compaction``, a compaction into the highest level also writes how the rows there
  change (`changelog`). Every other operation changes rows only below that level.
- A file that is only moved to another level keeps its `commit_snapshot`.
- If another writer replaced a file meanwhile, the compaction is planned again from the newest snapshot. Appends never
  replace files. The same happens if the options by which it writes have changed. Columns that were added meanwhile do
  not matter, because the files that it read do not have them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.errors import Conflict, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard, discard_changes
from lakebed.table.commit.commit import CommitRequest, OwnFiles, commit
from lakebed.table.compaction.compact_plan import CompactTask, plan_compaction
from lakebed.table.compaction.lookup import Lookup
from lakebed.table.files.data_file import RollingWriter
from lakebed.table.files.external import targets_of
from lakebed.table.model.model import BucketChange, DataFile, FileSource, Snapshot, TableSchema, VectorPlace
from lakebed.table.read.file_stats import partition_columns
from lakebed.table.read.partitions import equal_value, partition_scalars
from lakebed.table.read.read import ReadPlan, merge_windows, read_split
from lakebed.table.read.scan import check_readable
from lakebed.table.read.vectors import vectors_of
from lakebed.table.write.changelog import changelog_settings, log_rewrite
from lakebed.table.write.write_settings import check_writable, file_settings

COMPACT_TRIES_MAX = 5
"""How often a compaction is planned, when other writers replace its files or change the options by which it writes."""

_PLANNED_AGAIN: Final = ("file_gone", "keys_overlap", "rows_changed", "schema_changed")

PARALLEL_TASK_BYTES_MAX = 64 * 1024 * 1024
"""Tasks run in parallel while none is larger than this (encoded); larger ones run one by one, to limit memory."""

COMPACT_WINDOW_BYTES = 64 * 1024 * 1024
"""Arrow bytes that a task's merge reads ahead, in all its runs together."""


@dataclass(frozen=True, slots=True)
class CompactProgress:
    """The progress of a compaction."""

    tasks_done: int
    task_count: int
    bytes_done: int
    bytes_total: int

    @property
    def done_count(self) -> int:
        """Bytes read so far: a progress bar shows this, as for every other long verb."""
        return self.bytes_done

    @property
    def total_count(self) -> int:
        """Bytes to read in all."""
        return self.bytes_total


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did, or with `dry_run` would read."""

    snapshot: Snapshot | None
    """The COMPACT snapshot; None when there was nothing to do."""
    tasks: tuple[CompactTask, ...]
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows_before: int
    rows_after: int
    moved_count: int
    """Files that only changed their level; they are counted both before and after."""
    seconds: float
    dry_run: bool

    def __repr__(self) -> str:
        outcome = "dry_run=True" if self.dry_run else f"snapshot={self.snapshot.id if self.snapshot else None}"
        return (
            f"CompactReport({outcome}, tasks={len(self.tasks)}, files={self.files_before} -> {self.files_after}, "
            f"bytes={self.bytes_before} -> {self.bytes_after})"
        )


RunTasks = Callable[[Sequence[CompactTask], ReadPlan], list[BucketChange]]
"""Runs the tasks of a compaction, each by `run_task`."""


def run_task(
    store: ObjectStore,
    task: CompactTask,
    *,
    plan: ReadPlan,
    environment: Environment,
    window_bytes: int = COMPACT_WINDOW_BYTES,
) -> BucketChange:
    """Run one task: write the new files and describe the change. Reads only data files and their vectors.

    Args:
        task: from `plan_compaction`.
        plan: schemas by id and the newest schema; its columns and predicate are not used.
        environment: clock and randomness for new files.
        window_bytes: Arrow bytes that the merge reads ahead, in all its runs together.

    Memory: about three times `window_bytes` plus twice one encoded file.
    """
    schema = plan.schema
    plan = replace(plan, where=None, window_bytes=window_bytes)
    moved_files = tuple(replace(file, level=task.output_level) for file in task.moved)
    new_files: Sequence[DataFile] = ()
    changelog: Sequence[DataFile] = ()
    new_writer = partial(
        RollingWriter,
        store,
        folder=task.split.folder,
        schema=schema,
        environment=environment,
        level=task.output_level,
        targets=targets_of(store, schema, rng=environment.rng),
    )
    settings = file_settings(schema)
    writer = new_writer(settings=settings, file_source=FileSource.COMPACT)
    logger = new_writer(settings=changelog_settings(settings, schema))
    marks = _Marked()
    try:
        if task.split.files:
            marks = _rewrite(writer, store, task, plan)
            new_files = writer.close(first_sequence=min(file.min_sequence_number for file in task.split.files))
        if task.logs_changes:
            before = [file for file in task.split.files if file.level == task.output_level]
            changelog = log_rewrite(
                logger, store, task.split, before=before, after=(*new_files, *moved_files), plan=plan
            )
    except BaseException:
        discard(store, (*writer.paths, *logger.paths))
        raise
    return BucketChange(
        partition=task.split.partition,
        bucket=task.split.bucket,
        total_buckets=task.total_buckets,
        added=(*new_files, *moved_files),
        deleted=(*task.inputs, *marks.emptied),
        changelog=tuple(changelog),
        vectors=marks.vectors,
        applied={
            **{file.file_name: task.split.vectors.get(file.file_name) for file in task.split.files},
            **marks.applied,
        },
    )


@dataclass(frozen=True, slots=True)
class _Marked:
    """What a task changes in older files."""

    vectors: Mapping[str, bytes] = field(default_factory=dict)
    emptied: Sequence[DataFile] = ()
    applied: Mapping[str, VectorPlace | None] = field(default_factory=dict)
    """The vectors with which these files were read."""


def _rewrite(writer: RollingWriter, store: ObjectStore, task: CompactTask, plan: ReadPlan) -> _Marked:
    """Write the rows of a task's files, and look up their keys in the task's older files."""
    if not plan.schema.primary_keys:
        full_plan = replace(plan, columns=tuple(field.name for field in plan.schema.fields))
        for batch in read_split(store, task.split, plan=full_plan):
            writer.write(pa.Table.from_batches([batch]))
        return _Marked()
    keep_deletes = not task.drop_deletes
    if task.older is None:
        windows = merge_windows(store, task.split, plan=plan, fields=plan.schema.fields, keep_deletes=keep_deletes)
        for window in windows:
            writer.write(window.combine_chunks())
        return _Marked()
    lookup = Lookup(store, task.split, task.older, plan=plan)
    for window in lookup.windows(keep_deletes=keep_deletes):
        writer.write(window.combine_chunks())
    vectors, emptied = lookup.marks()
    names = sorted({*vectors, *(file.file_name for file in emptied)})
    return _Marked(vectors, emptied, {name: task.older.vectors.get(name) for name in names})


def current_tasks(
    branch: TableBranch, *, full: bool = False, where: Mapping[str, object] | None = None
) -> list[CompactTask]:
    """Plan the compaction of the newest snapshot by the newest schema. `branch` has seen that schema afterwards.

    Args: as of `compact`.

    Raises `UnsupportedFormat`, `InvalidRequest`: the table's options ask for a merge that this package would do wrong.
    """
    newest = branch.snapshots.latest()
    schema = branch.refresh()
    check_readable(schema)
    check_writable(schema)
    if newest is None:
        return []
    entries = branch.manifests.live_entries(newest)
    if where:
        entries = _in_partitions(entries, values=where, schema=schema)
    vectors = vectors_of(branch, newest)
    return plan_compaction(entries, schema=schema, full=full, vectors=vectors)


def compact(
    branch: TableBranch,
    *,
    full: bool = False,
    where: Mapping[str, object] | None = None,
    dry_run: bool = False,
    progress: Callable[[CompactProgress], None] | None = None,
    run_tasks: RunTasks | None = None,
) -> CompactReport:
    """Plan, rewrite, commit; repeat from the newest snapshot while other writers replace the chosen files.

    Args:
        full: compact everything, whatever the triggers say.
        where: values of partition columns; only partitions with these values are compacted.
        dry_run: only plan.
        progress: called after each task that runs here.
        run_tasks: runs the tasks elsewhere, each by `run_task` with the given plan; None: here.

    Raises `Conflict`: other writers replaced the files in `COMPACT_TRIES_MAX` tries.
    """
    branch, clock = branch.detach(), branch.environment.clock
    started_s = clock.monotonic_s()
    run = run_tasks or partial(_run_tasks, branch, progress)
    for tries_left in reversed(range(COMPACT_TRIES_MAX)):
        tasks = current_tasks(branch, full=full, where=where)
        if dry_run or not tasks:
            return _report(tasks, [], None, seconds=clock.monotonic_s() - started_s, dry_run=dry_run)
        changes = run(tasks, _read_plan(branch, tasks))
        own_files = OwnFiles(changes)
        try:
            snapshot = commit(branch, CommitRequest(kind="COMPACT", changes=changes, own_files=own_files))
        except Conflict as error:
            discard_changes(branch, changes)
            if tries_left == 0 or error.kind not in _PLANNED_AGAIN:
                raise
            continue
        except BaseException as error:
            if isinstance(error, NotFound) or not own_files.may_be_named:  # of the table: nothing was committed
                discard_changes(branch, changes)
            raise
        return _report(tasks, changes, snapshot, seconds=clock.monotonic_s() - started_s, dry_run=False)
    raise AssertionError("the last try returns or raises")


def _run_tasks(
    branch: TableBranch,
    progress: Callable[[CompactProgress], None] | None,
    tasks: Sequence[CompactTask],
    plan: ReadPlan,
) -> list[BucketChange]:
    is_light = max(task.input_bytes for task in tasks) <= PARALLEL_TASK_BYTES_MAX
    worker_count = max(1, min(8, os.cpu_count() or 1, len(tasks))) if is_light else 1
    pool = branch.environment.runtime.pool(worker_count)
    total = sum(task.input_bytes for task in tasks)
    changes: list[BucketChange] = []
    finished_changes: list[BucketChange] = []
    bytes_done = 0

    def run(task: CompactTask) -> BucketChange:
        change = run_task(branch.store, task, plan=plan, environment=branch.environment)
        finished_changes.append(change)
        return change

    try:
        try:
            for task, change in zip(tasks, pool.map(run, tasks), strict=True):
                changes.append(change)
                bytes_done += task.input_bytes
                if progress is not None:
                    progress(CompactProgress(len(changes), len(tasks), bytes_done, total))
        finally:
            pool.close()
    except BaseException:
        discard_changes(branch, finished_changes)
        raise
    return changes


def _read_plan(branch: TableBranch, tasks: Sequence[CompactTask]) -> ReadPlan:
    """What `run_task` needs in addition to the store; picklable."""
    schema = branch.schema
    ids = {file.schema_id for task in tasks for split in task.reads for file in split.files}
    ids |= {file.schema_id for task in tasks if task.logs_changes for file in task.moved}
    schemas = {schema_id: branch.schemas.load(schema_id) for schema_id in sorted(ids)}
    schemas[schema.id] = schema
    return ReadPlan(schema=schema, schemas=schemas, columns=())


def _report(
    tasks: Sequence[CompactTask],
    changes: Sequence[BucketChange],
    snapshot: Snapshot | None,
    *,
    seconds: float,
    dry_run: bool,
) -> CompactReport:
    before = [file for task in tasks for file in task.inputs]
    after = [file for change in changes for file in change.added]
    return CompactReport(
        snapshot=snapshot,
        tasks=tuple(tasks),
        files_before=len(before),
        files_after=len(after),
        bytes_before=sum(file.file_size for file in before),
        bytes_after=sum(file.file_size for file in after),
        rows_before=sum(file.row_count for file in before),
        rows_after=sum(file.row_count for file in after),
        moved_count=sum(len(task.moved) for task in tasks),
        seconds=seconds,
        dry_run=dry_run,
    )


def _in_partitions(entries: pa.Table, *, values: Mapping[str, object], schema: TableSchema) -> pa.Table:
    """The entries of the partitions whose columns have the given values.

    Raises `InvalidRequest`: a name that is not a partition column, or a value of another type.
    """
    columns = partition_columns(entries, schema)
    mask = np.ones(entries.num_rows, np.bool_)
    for name, value in partition_scalars(values, schema=schema).items():
        mask &= equal_value(columns[name], value).to_numpy(zero_copy_only=False)
    return entries.filter(pa.array(mask))
