"""Merge small files into fewer, larger, sorted ones: the plan (pure) and the merge itself (in bounded memory).

Owns: `plan_compaction`, `run_task`, and `compact`, which runs a plan and commits it as one COMPACT snapshot.
Primary-key tables compact as the format's other clients do ("universal"): the newest sorted runs of a bucket are merged
into the level below them when there are ``num-sorted-run.compaction-trigger`` of them, all of them when the newer ones
outgrow ``compaction.max-size-amplification-percent`` of the oldest. Append tables concatenate small files, and rewrite
files of which many rows are deleted.

Invariants:
- A compaction changes no row: merged files hold exactly what a reader saw before. Rows that deletion vectors delete
  are left out, and the vectors end with their files.
- Deletes are dropped only in the highest level, below which nothing older can lie, and only where the table's merge
  engine allows it (`MergeEngine.drops_deletes`).
- With the changelog producer ``full-compaction``, a compaction into the highest level also writes how the rows there
  change (`changelog`); everything else changes rows only below that level.
- A file that needs no rewriting is only moved to its level (DELETE + ADD of one name), and keeps its `commit_snapshot`.
- When another writer replaced a file meanwhile, the compaction is planned again from the newest snapshot. Appends never
  replace files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Conflict, InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.changelog import changelog_settings, log_rewrite
from lakebed.table.changelog_options import Producer, level_count_of, producer_of
from lakebed.table.commit import CommitRequest, commit
from lakebed.table.context import TableBranch
from lakebed.table.data_file import RollingWriter
from lakebed.table.discard import discard, discard_changes
from lakebed.table.engines.engine import MergeEngine
from lakebed.table.engines.registry import engine_of
from lakebed.table.external import targets_of
from lakebed.table.external_paths import ExternalPaths
from lakebed.table.file_stats import partition_columns
from lakebed.table.layout import Layout
from lakebed.table.manifest import files_of
from lakebed.table.model import BucketChange, DataFile, FileSource, Snapshot, Split, TableSchema, VectorPlace
from lakebed.table.options import (
    COMPACTION_MAX_FILES,
    COMPACTION_MAX_SIZE_AMPLIFICATION,
    COMPACTION_MIN_FILES,
    COMPACTION_SIZE_RATIO,
    COMPACTION_SORTED_RUN_TRIGGER,
    TableOptions,
)
from lakebed.table.read import ReadPlan, merged_windows, read_split
from lakebed.table.scan import check_readable
from lakebed.table.splits import bucket_groups, is_plain, key_sections, merge_rank, sorted_runs, states_deletes
from lakebed.table.vectors import vectors_of
from lakebed.table.write_settings import check_writable, file_settings

COMPACT_TRIES_MAX = 5
"""How often a compaction is planned again because another writer replaced its files."""

DELETED_SHARE = 0.2
"""An append file of whose rows deletion vectors delete at least this share is worth rewriting alone."""

SMALL_FILE_SHARE = 0.7
"""A file below this share of ``target-file-size`` is worth rewriting together with others."""

PARALLEL_TASK_BYTES_MAX = 64 * 1024 * 1024
"""Tasks run side by side while none is larger than this (encoded); above it one by one, to bound memory."""

COMPACT_WINDOW_BYTES = 64 * 1024 * 1024
"""Arrow bytes a task's merge reads ahead over all its runs."""


_NO_VECTORS: Mapping[str, VectorPlace] = {}


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Files of one bucket to become fewer. Picklable: executors run it with `run_task`."""

    split: Split
    """The files to rewrite, in merge order; may be empty when files are only moved."""
    total_buckets: int
    output_level: int
    drop_deletes: bool
    moved: tuple[DataFile, ...] = ()
    """Files that only change their level."""
    logs_changes: bool = False
    """Whether the changes of the rows of its level are written to changelog files."""

    @property
    def inputs(self) -> tuple[DataFile, ...]:
        """All files that the task replaces."""
        return (*self.split.files, *self.moved)

    @property
    def input_bytes(self) -> int:
        """Encoded bytes that are read."""
        return sum(file.file_size for file in self.split.files)


@dataclass(frozen=True, slots=True)
class CompactProgress:
    """How far a compaction is."""

    tasks_done: int
    task_count: int
    bytes_done: int
    bytes_total: int

    @property
    def done_count(self) -> int:
        """Bytes read so far: what a progress bar shows, as of every other long verb."""
        return self.bytes_done

    @property
    def total_count(self) -> int:
        """Bytes to read in all."""
        return self.bytes_total


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did, or (`dry_run`) would read."""

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
    """Files that only changed their level, counted before and after."""
    seconds: float
    dry_run: bool

    def __repr__(self) -> str:
        made = "dry_run=True" if self.dry_run else f"snapshot={self.snapshot.id if self.snapshot else None}"
        return (
            f"CompactReport({made}, tasks={len(self.tasks)}, files={self.files_before} -> {self.files_after}, "
            f"bytes={self.bytes_before} -> {self.bytes_after})"
        )


RunTasks = Callable[[Sequence[CompactTask], ReadPlan], list[BucketChange]]
"""Runs the tasks of a compaction, each by `run_task`."""


def plan_compaction(
    entries: pa.Table,
    *,
    schema: TableSchema,
    layout: Layout,
    full: bool = False,
    vectors: Mapping[str, VectorPlace] = _NO_VECTORS,
) -> list[CompactTask]:
    """Decide what to rewrite; pure.

    Args:
        entries: live ADD entries (`manifest.ENTRY_SCHEMA`).
        schema: the newest: keys, partition columns, options.
        layout: gives the folders.
        full: everything of a bucket that is not in its final form, whatever the triggers say.
        vectors: where the deletion vectors of append files are; a compaction applies them.

    Returns:
        At most one task a bucket of a primary-key table; any number a bucket of an append table.
    """
    if entries.num_rows == 0:
        return []
    files = files_of(entries)
    totals = entries.column("total_buckets").to_numpy()
    options = TableOptions(schema.options)
    tasks: list[CompactTask] = []
    for group in bucket_groups(entries, schema=schema, layout=layout):
        members = [files[i] for i in group.members]
        split = Split(
            partition=group.partition,
            partition_values=group.partition_values,
            bucket=group.bucket,
            folder=group.folder,
            files=(),
            needs_merge=bool(schema.primary_keys),
            schema_id=schema.id,
            row_count=0,
            other_folders=group.other_folders,
        )
        total = int(totals[group.members[0]])
        if schema.primary_keys:
            task = _plan_keyed(members, schema=schema, options=options, split=split, total_buckets=total, full=full)
            tasks.extend([task] if task is not None else [])
        else:
            packs = _small_file_packs(members, schema=schema, options=options, full=full)
            for pack in [*packs, *_worn_files(members, packs, vectors, full=full)]:
                of_pack = {file.file_name: vectors[file.file_name] for file in pack if file.file_name in vectors}
                part = replace(_with_files(split, pack), vectors=of_pack)
                tasks.append(CompactTask(part, total, output_level=0, drop_deletes=False))
    return tasks


def _plan_keyed(
    files: Sequence[DataFile],
    *,
    schema: TableSchema,
    options: TableOptions,
    split: Split,
    total_buckets: int,
    full: bool,
) -> CompactTask | None:
    level_max = max(level_count_of(options) - 1, max(file.level for file in files))
    runs = sorted_runs(files, schema=schema)[::-1]
    picked_count = len(runs) if full else _picked_count(runs, options)
    if picked_count == 0:
        return None
    output_level = level_max
    if picked_count < len(runs):
        # Level 0 cannot be an output: take newer runs in until the next older one leaves a level free above it.
        while picked_count < len(runs) and runs[picked_count][0].level <= 1:
            picked_count += 1
        output_level = level_max if picked_count == len(runs) else runs[picked_count][0].level - 1
    engine = engine_of(schema)
    picked = [file for run in runs[:picked_count] for file in run]
    if picked_count < len(runs) and _needs_oldest(picked, engine):
        picked_count, output_level = len(runs), level_max
        picked = [file for run in runs for file in run]
    older_levels = [run[0].level for run in runs[picked_count:]]
    rewritten, moved = _rewritten_and_moved(picked, schema=schema, output_level=output_level, engine=engine)
    if not rewritten and not moved:
        return None
    return CompactTask(
        split=_with_files(split, sorted(rewritten, key=merge_rank)),
        total_buckets=total_buckets,
        output_level=output_level,
        drop_deletes=not older_levels and engine.drops_deletes,
        moved=tuple(moved),
        logs_changes=output_level == level_max and producer_of(schema) is Producer.FULL_COMPACTION,
    )


def _needs_oldest(newer: Sequence[DataFile], engine: MergeEngine) -> bool:
    """Whether the newer files of a bucket may be merged only together with all older ones."""
    with_deletes = not all(is_plain(file) for file in newer)
    return engine.keeps_levels_apart or not engine.merges_apart(with_deletes=with_deletes)


def _picked_count(runs: Sequence[Sequence[DataFile]], options: TableOptions) -> int:
    """How many of a bucket's runs, newest first, are worth merging now; 0: none."""
    trigger = options.get(COMPACTION_SORTED_RUN_TRIGGER)
    if len(runs) < trigger:
        return 0
    sizes = [sum(file.file_size for file in run) for run in runs]
    if sum(sizes[:-1]) * 100 > options.get(COMPACTION_MAX_SIZE_AMPLIFICATION) * sizes[-1]:
        return len(runs)
    picked = max(1, len(runs) - trigger + 1)
    total = sum(sizes[:picked])
    while picked < len(runs) and total * (100 + options.get(COMPACTION_SIZE_RATIO)) >= sizes[picked] * 100:
        total += sizes[picked]
        picked += 1
    return picked if picked > 1 else 0


def _rewritten_and_moved(
    files: Sequence[DataFile], *, schema: TableSchema, output_level: int, engine: MergeEngine
) -> tuple[list[DataFile], list[DataFile]]:
    """Which of the files must be merged, and which need only change their level (or nothing at all).

    A file whose keys overlap no other is as good as merged: it is moved, unless it holds deletes that are to be dropped
    or is so small that it should be joined with small neighbours.
    """
    is_final = is_plain if engine.drops_deletes else states_deletes
    small_bytes = file_settings(schema).target_file_bytes * SMALL_FILE_SHARE
    sections = key_sections(files, schema=schema)
    rewritten: list[DataFile] = []
    alone: list[DataFile] = []
    for position, section in enumerate(sections):
        if len(section) > 1 or not is_final(section[0]):
            rewritten.extend(section)
            continue
        neighbours = sections[max(0, position - 1) : position] + sections[position + 1 : position + 2]
        is_small = section[0].file_size < small_bytes
        if is_small and any(len(other) > 1 or other[0].file_size < small_bytes for other in neighbours):
            rewritten.extend(section)
        else:
            alone.extend(section)
    if len(rewritten) == 1 and is_final(rewritten[0]):
        alone, rewritten = alone + rewritten, []
    return rewritten, [file for file in alone if file.level != output_level]


def _small_file_packs(
    files: Sequence[DataFile], *, schema: TableSchema, options: TableOptions, full: bool
) -> list[list[DataFile]]:
    """Small files of an append bucket, packed to about the target size; numbered buckets keep their row order.

    With `full` also imported files that are not in the table's own form, whatever their size.
    """
    target_bytes = file_settings(schema).target_file_bytes
    count_min = 2 if full else options.get(COMPACTION_MIN_FILES)
    count_max = max(count_min, options.get(COMPACTION_MAX_FILES))
    packs: list[list[DataFile]] = [[]]
    for file in sorted(files, key=lambda file: file.min_sequence_number) if _is_ordered(files) else files:
        is_small = file.file_size < target_bytes * SMALL_FILE_SHARE or (full and _is_imported(file, schema))
        if not is_small:
            if _is_ordered(files):
                packs.append([])
            continue
        pack = packs[-1]
        if len(pack) >= count_max or sum(f.file_size for f in pack) + file.file_size > 2 * target_bytes:
            packs.append([])
        packs[-1].append(file)
    return [
        pack for pack in packs if len(pack) >= count_min or (full and any(_is_imported(file, schema) for file in pack))
    ]


def _is_imported(file: DataFile, schema: TableSchema) -> bool:
    """Whether a file lacks partition columns, or is outside of a table that keeps its files in its folder."""
    if file.write_cols is not None and not set(schema.partition_keys) <= set(file.write_cols):
        return True
    return file.external_path is not None and not ExternalPaths.of(schema.options).roots


def _worn_files(
    files: Sequence[DataFile],
    packs: Sequence[Sequence[DataFile]],
    vectors: Mapping[str, VectorPlace],
    *,
    full: bool,
) -> list[list[DataFile]]:
    """Files outside of all packs that are worth rewriting alone: many of their rows are deleted by vectors."""
    packed = {file.file_name for pack in packs for file in pack}
    worn = []
    for file in files:
        place = vectors.get(file.file_name)
        if place is None or file.file_name in packed:
            continue
        share = 1.0 if place.cardinality is None else place.cardinality / max(1, file.row_count)
        if full or share >= DELETED_SHARE:
            worn.append([file])
    return worn


def _is_ordered(files: Sequence[DataFile]) -> bool:
    """Whether sequence numbers order the files (numbered buckets); in bucket -1 every file starts at 0."""
    return len({file.min_sequence_number for file in files}) == len(files)


def _with_files(split: Split, files: Sequence[DataFile]) -> Split:
    return replace(split, files=tuple(files), row_count=sum(file.row_count for file in files))


def run_task(
    store: ObjectStore,
    task: CompactTask,
    *,
    plan: ReadPlan,
    environment: Environment,
    window_bytes: int = COMPACT_WINDOW_BYTES,
) -> BucketChange:
    """Do one task: write the new files and describe the change. Reads and writes nothing but data files.

    Args:
        task: of `plan_compaction`.
        plan: schemas by id and the newest schema; its columns and predicate are not used.
        environment: clock and randomness for new files.
        window_bytes: Arrow bytes that the merge reads ahead over all its runs.

    Memory: about three times `window_bytes` plus twice one encoded file.
    """
    schema = plan.schema
    plan = replace(plan, where=None, window_bytes=window_bytes)
    moved = tuple(replace(file, level=task.output_level) for file in task.moved)
    added: Sequence[DataFile] = ()
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
    try:
        if task.split.files:
            _rewrite(writer, store, task, plan)
            added = writer.close(first_sequence=min(file.min_sequence_number for file in task.split.files))
        if task.logs_changes:
            before = [file for file in task.split.files if file.level == task.output_level]
            changelog = log_rewrite(logger, store, task.split, before=before, after=(*added, *moved), plan=plan)
    except Exception:
        discard(store, (*writer.paths, *logger.paths), environment=environment)
        raise
    return BucketChange(
        partition=task.split.partition,
        bucket=task.split.bucket,
        total_buckets=task.total_buckets,
        added=(*added, *moved),
        deleted=task.inputs,
        changelog=tuple(changelog),
        applied={file.file_name: task.split.vectors.get(file.file_name) for file in task.split.files},
    )


def _rewrite(writer: RollingWriter, store: ObjectStore, task: CompactTask, plan: ReadPlan) -> None:
    """Write the rows of a task's files."""
    if not plan.schema.primary_keys:
        everything = replace(plan, columns=tuple(field.name for field in plan.schema.fields))
        for batch in read_split(store, task.split, plan=everything):
            writer.write(pa.Table.from_batches([batch]))
        return
    windows = merged_windows(
        store, task.split, plan=plan, fields=plan.schema.fields, keep_deletes=not task.drop_deletes
    )
    for window in windows:
        writer.write(window.combine_chunks())


def current_tasks(
    branch: TableBranch, *, full: bool = False, where: Mapping[str, object] | None = None
) -> list[CompactTask]:
    """Plan the compaction of the newest snapshot; arguments as `compact`.

    Raises `UnsupportedFormat`, `InvalidRequest`: the table's options ask for a merge that this package would do wrong.
    """
    schema = branch.schema
    check_readable(schema)
    check_writable(schema)
    newest = branch.snapshots.latest()
    if newest is None:
        return []
    entries = branch.manifests.live_entries(newest)
    if where:
        entries = _in_partitions(entries, values=where, schema=schema)
    vectors = vectors_of(branch, newest)
    return plan_compaction(entries, schema=schema, layout=branch.layout, full=full, vectors=vectors)


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
        full: everything, whatever the triggers say.
        where: values of partition columns; only such partitions are compacted.
        dry_run: plan only.
        progress: called after each task that runs here.
        run_tasks: runs the tasks elsewhere, each by `run_task` with the plan given; None: here.

    Raises `Conflict`: that happened `COMPACT_TRIES_MAX` times.
    """
    clock = branch.environment.clock
    started_s = clock.monotonic_s()
    run = run_tasks or partial(_run_tasks, branch, progress)
    for tries_left in reversed(range(COMPACT_TRIES_MAX)):
        tasks = current_tasks(branch, full=full, where=where)
        if dry_run or not tasks:
            return _report(tasks, [], None, seconds=clock.monotonic_s() - started_s, dry_run=dry_run)
        changes = run(tasks, _read_plan(branch, tasks))
        try:
            snapshot = commit(branch, CommitRequest(kind="COMPACT", changes=changes))
        except Conflict as lost:
            discard_changes(branch, changes)
            if tries_left == 0 or lost.kind not in ("file_gone", "keys_overlap", "rows_changed"):
                raise
            continue
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
    finished: list[BucketChange] = []
    bytes_done = 0

    def run(task: CompactTask) -> BucketChange:
        change = run_task(branch.store, task, plan=plan, environment=branch.environment)
        finished.append(change)
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
    except Exception:
        discard_changes(branch, finished)
        raise
    return changes


def _read_plan(branch: TableBranch, tasks: Sequence[CompactTask]) -> ReadPlan:
    """What `run_task` needs besides the store; picklable."""
    schema = branch.schema
    ids = {file.schema_id for task in tasks for file in task.inputs}
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

    Raises `InvalidRequest`: a name that is not a partition column.
    """
    columns = partition_columns(entries, schema)
    mask = np.ones(entries.num_rows, np.bool_)
    for name, value in values.items():
        if name not in columns:
            there = ", ".join(schema.partition_keys) or "none"
            raise InvalidRequest(f"{name!r} is not a partition column; the table has {there}.", column=name)
        column = columns[name]
        scalar = pa.scalar(value, column.type)
        same = column.is_null() if not scalar.is_valid else pc.fill_null(pc.equal(column, scalar), False)
        mask &= same.to_numpy(zero_copy_only=False)
    return entries.filter(pa.array(mask))
