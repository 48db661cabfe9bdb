"""The plan of a compaction: which files become fewer, larger, sorted ones. Pure.

Owns: `CompactTask` and `plan_compaction`. Primary-key tables compact as the format's other clients do ("universal"):
the newest sorted runs of a bucket are merged into the level below them when there are
``num-sorted-run.compaction-trigger`` of them. All runs are merged when the newer ones outgrow
``compaction.max-size-amplification-percent`` of the oldest. With deletion vectors every plan takes all files of level
0, whatever the triggers say, and names the older files in which their keys are looked up (`lookup`). Append tables
concatenate small files, and rewrite files of which many rows are deleted.

Invariants:
- Deletes are dropped only where no older row lies below that they hide, and only where the table's merge engine allows
  it (`MergeEngine.drops_deletes`): that is in the highest level. With deletion vectors, which mark the older rows, it
  is in all levels.
- A file that needs no rewriting is only moved to its level (DELETE + ADD of one name).
- Files that a task writes do not overlap in their keys with any file that stays or is moved: a task merges only
  neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakebed.table.codec.manifest import files_of
from lakebed.table.engines.engine import MergeEngine
from lakebed.table.engines.registry import engine_of
from lakebed.table.files.splits import bucket_groups, is_plain, key_sections, merge_rank, sort_into_runs, states_deletes
from lakebed.table.model.changelog_options import Producer, level_count_of, producer_of
from lakebed.table.model.external_paths import ExternalPaths
from lakebed.table.model.model import DataFile, Split, TableSchema, VectorPlace
from lakebed.table.model.options import (
    COMPACTION_MAX_FILES,
    COMPACTION_MAX_SIZE_AMPLIFICATION,
    COMPACTION_MIN_FILES,
    COMPACTION_SIZE_RATIO,
    COMPACTION_SORTED_RUN_TRIGGER,
    TableOptions,
)
from lakebed.table.read.vectors import has_option
from lakebed.table.write.write_settings import file_settings

DELETED_SHARE = 0.2
"""An append file is worth rewriting alone when deletion vectors delete at least this share of its rows."""

SMALL_FILE_SHARE = 0.7
"""A file below this share of ``target-file-size`` is worth rewriting together with others."""

_NO_VECTORS: Mapping[str, VectorPlace] = {}


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Files of one bucket to be replaced by fewer. Picklable: executors run it with `run_task`."""

    split: Split
    """The files to rewrite, in merge order; may be empty when files are only moved."""
    total_buckets: int
    output_level: int
    drop_deletes: bool
    moved: tuple[DataFile, ...] = ()
    """Files that only change their level."""
    logs_changes: bool = False
    """Whether the changes of the rows of its output level are written to changelog files."""
    older: Split | None = None
    """With deletion vectors: the files below the output, for the lookup; None: no file there can have a key of `split`.

    The keys of `split` are looked up in them, and their rows marked.
    """

    @property
    def inputs(self) -> tuple[DataFile, ...]:
        """All files that the task replaces."""
        return (*self.split.files, *self.moved)

    @property
    def input_bytes(self) -> int:
        """Encoded bytes to read, without older files, of which mostly only the keys are read."""
        return sum(file.file_size for file in self.split.files)

    @property
    def reads(self) -> tuple[Split, ...]:
        """The splits that the task reads."""
        return (self.split,) if self.older is None else (self.split, self.older)


def plan_compaction(
    entries: pa.Table,
    *,
    schema: TableSchema,
    full: bool = False,
    vectors: Mapping[str, VectorPlace] = _NO_VECTORS,
) -> list[CompactTask]:
    """Decide what to rewrite; pure.

    Args:
        entries: live ADD entries (`manifest.ENTRY_SCHEMA`).
        schema: the newest: keys, partition columns, options.
        full: everything in a bucket that is not in its final form, whatever the triggers say.
        vectors: where deletion vectors are, by name of the data file; a compaction applies them.

    Returns:
        Any number of tasks for each bucket; no two share a file.
    """
    if entries.num_rows == 0:
        return []
    files = files_of(entries)
    totals = entries.column("total_buckets").to_numpy()
    options = TableOptions(schema.options)
    tasks: list[CompactTask] = []
    for group in bucket_groups(entries, schema=schema):
        members = [files[i] for i in group.members]
        split = group.split((), needs_merge=bool(schema.primary_keys), schema_id=schema.id, row_count=0)
        total = int(totals[group.members[0]])
        if schema.primary_keys:
            bucket = _Bucket(members, schema, options, split, total, vectors)
            tasks.extend(bucket.tasks(full=full))
        else:
            packs = _small_file_packs(members, schema=schema, options=options, full=full)
            for pack in [*packs, *_files_to_rewrite(members, packs, vectors, full=full)]:
                part = _with_files(split, pack, vectors)
                tasks.append(CompactTask(part, total, output_level=0, drop_deletes=False))
    return tasks


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket of a primary-key table, to be planned."""

    files: Sequence[DataFile]
    schema: TableSchema
    options: TableOptions
    split: Split
    """The split of the bucket, without files."""
    total_buckets: int
    vectors: Mapping[str, VectorPlace]

    def tasks(self, *, full: bool) -> list[CompactTask]:
        """What to merge into which level; with `full` everything that is not in its final form."""
        engine, marks = engine_of(self.schema), has_option(self.schema)
        level_max = max(level_count_of(self.options) - 1, max(file.level for file in self.files))
        runs = sort_into_runs(self.files, schema=self.schema)[::-1]
        picked_count = len(runs) if full else _choose_run_count(runs, self.options, all_new=marks)
        if picked_count == 0:
            return []
        output_level = level_max
        if picked_count < len(runs):
            # Level 0 cannot be an output: add newer runs until the next older run leaves a level free above it.
            while picked_count < len(runs) and runs[picked_count][0].level <= 1:
                picked_count += 1
            output_level = level_max if picked_count == len(runs) else runs[picked_count][0].level - 1
        picked_files = [file for run in runs[:picked_count] for file in run]
        if picked_count < len(runs) and not marks and _needs_oldest(picked_files, engine):
            picked_count, output_level = len(runs), level_max
            picked_files = [file for run in runs for file in run]
        older_levels = [run[0].level for run in runs[picked_count:]]
        older = [file for run in runs[picked_count:] for file in run] if marks else []
        groups, moved_files = self._groups(picked_files, older, output_level=output_level, engine=engine, full=full)
        drop_deletes = (marks or not older_levels) and engine.drops_deletes
        logs_changes = output_level == level_max and producer_of(self.schema) is Producer.FULL_COMPACTION
        tasks = [
            CompactTask(
                split=_with_files(self.split, sorted(group, key=merge_rank), self.vectors),
                total_buckets=self.total_buckets,
                output_level=output_level,
                drop_deletes=drop_deletes,
                logs_changes=logs_changes,
                older=self._look_up(group, older),
            )
            for group in groups
        ]
        if moved_files and tasks:
            tasks[0] = replace(tasks[0], moved=tuple(moved_files))
        elif moved_files:
            tasks = [
                CompactTask(
                    self.split, self.total_buckets, output_level, drop_deletes, tuple(moved_files), logs_changes
                )
            ]
        return tasks

    def _groups(
        self,
        picked: Sequence[DataFile],
        older: Sequence[DataFile],
        *,
        output_level: int,
        engine: MergeEngine,
        full: bool,
    ) -> tuple[list[list[DataFile]], list[DataFile]]:
        """Which of the files are merged with which, and which need only change their level (or nothing at all).

        A file whose keys overlap with no other file is as good as merged. It is moved, unless it holds deletes that are
        to be dropped, has keys to look up in `older`, or is so small that it should be joined with small neighbours.
        Files that are merged together are adjacent in key order: a file that stayed between two of them would overlap
        with their merge.
        """
        is_final = is_plain if engine.drops_deletes else states_deletes
        small_bytes = file_settings(self.schema).target_file_bytes * SMALL_FILE_SHARE
        sections = key_sections(picked, schema=self.schema)

        new_files = [file for file in picked if file.level == 0]
        looked_up, _ = _sharing_keys(new_files, older, schema=self.schema)

        def stays(file: DataFile) -> bool:
            return is_final(file) and file.file_name not in looked_up and not _is_worn(file, self.vectors, full=full)

        groups: list[list[DataFile]] = [[]]
        alone: list[DataFile] = []
        for position, section in enumerate(sections):
            if len(section) > 1 or not stays(section[0]):
                groups[-1].extend(section)
                continue
            neighbours = sections[max(0, position - 1) : position] + sections[position + 1 : position + 2]
            is_small = section[0].file_size < small_bytes
            if is_small and any(len(neighbour) > 1 or neighbour[0].file_size < small_bytes for neighbour in neighbours):
                groups[-1].extend(section)
            else:
                alone.extend(section)
                groups.append([])
        alone.extend(group[0] for group in groups if len(group) == 1 and stays(group[0]))
        merged_groups = [group for group in groups if len(group) > 1 or (group and not stays(group[0]))]
        return merged_groups, [file for file in alone if file.level != output_level]

    def _look_up(self, files: Sequence[DataFile], older: Sequence[DataFile]) -> Split | None:
        """The older files that may have keys of the new files among `files`.

        New are those of level 0; others need no lookup.
        """
        new_files = [file for file in files if file.level == 0]
        _, matches = _sharing_keys(new_files, older, schema=self.schema)
        return _with_files(self.split, matches, self.vectors) if matches else None


def _sharing_keys(
    new_files: Sequence[DataFile], older: Sequence[DataFile], *, schema: TableSchema
) -> tuple[set[str], list[DataFile]]:
    """The names of the new files that may share keys with older ones, and those older ones."""
    if not new_files or not older:
        return set(), []
    names = {file.file_name for file in new_files}
    sharing_names: set[str] = set()
    older_files: list[DataFile] = []
    for section in key_sections([*new_files, *older], schema=schema):
        new = {file.file_name for file in section} & names
        if new and len(new) < len(section):
            sharing_names |= new
            older_files.extend(file for file in section if file.file_name not in names)
    return sharing_names, older_files


def _needs_oldest(newer: Sequence[DataFile], engine: MergeEngine) -> bool:
    """Whether the newer files of a bucket may be merged only together with all older ones."""
    with_deletes = not all(is_plain(file) for file in newer)
    return engine.keeps_levels_apart or not engine.merges_apart(with_deletes=with_deletes)


def _choose_run_count(runs: Sequence[Sequence[DataFile]], options: TableOptions, *, all_new: bool) -> int:
    """How many of a bucket's runs, newest first, are worth merging now; 0: none.

    Args:
        all_new: take at least all runs of level 0.
    """
    trigger = options.get(COMPACTION_SORTED_RUN_TRIGGER)
    sizes = [sum(file.file_size for file in run) for run in runs]
    new_count = sum(run[0].level == 0 for run in runs) if all_new else 0
    if len(runs) < trigger:
        picked_count = 0
    elif sum(sizes[:-1]) * 100 > options.get(COMPACTION_MAX_SIZE_AMPLIFICATION) * sizes[-1]:
        return len(runs)
    else:
        picked_count = _grown(max(1, len(runs) - trigger + 1), sizes, options)
    return max(picked_count if picked_count > 1 else 0, _grown(new_count, sizes, options) if new_count else 0)


def _grown(picked: int, sizes: Sequence[int], options: TableOptions) -> int:
    """How many runs to merge when the newest `picked` runs are: older runs that are not much larger are added."""
    total = sum(sizes[:picked])
    while picked < len(sizes) and total * (100 + options.get(COMPACTION_SIZE_RATIO)) >= sizes[picked] * 100:
        total += sizes[picked]
        picked += 1
    return picked


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


def _files_to_rewrite(
    files: Sequence[DataFile],
    packs: Sequence[Sequence[DataFile]],
    vectors: Mapping[str, VectorPlace],
    *,
    full: bool,
) -> Iterator[list[DataFile]]:
    """Files that are in no pack and worth rewriting alone."""
    packed_names = {file.file_name for pack in packs for file in pack}
    for file in files:
        if file.file_name not in packed_names and _is_worn(file, vectors, full=full):
            yield [file]


def _is_worn(file: DataFile, vectors: Mapping[str, VectorPlace], *, full: bool) -> bool:
    """Whether vectors delete many rows of a file; with `full`, any row."""
    place = vectors.get(file.file_name)
    if place is None:
        return False
    return full or place.cardinality is None or place.cardinality >= DELETED_SHARE * max(1, file.row_count)


def _is_ordered(files: Sequence[DataFile]) -> bool:
    """Whether sequence numbers order the files (numbered buckets). In bucket -1 every file starts at 0."""
    return len({file.min_sequence_number for file in files}) == len(files)


def _with_files(split: Split, files: Sequence[DataFile], vectors: Mapping[str, VectorPlace]) -> Split:
    return replace(
        split,
        files=tuple(files),
        row_count=sum(file.row_count for file in files),
        vectors={file.file_name: vectors[file.file_name] for file in files if file.file_name in vectors},
    )
