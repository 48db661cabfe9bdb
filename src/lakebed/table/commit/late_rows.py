"""Give later sequence numbers to the rows of a change that another commit has overtaken.

Owns: `number_after`. A writer numbers its rows after those of the version that it began with. If others commit first,
their rows have the same numbers, or higher ones. Merged by such numbers, the result would not be what the commits say:

- A batch would be the newest for some keys and not for others, and `changes` would report rows that no version has.
- A compaction gives its result the number of the newest part. A row with a lower number would count as older than all
  parts, even than those that existed when its writer began.

So the files of such rows are written anew, with numbers above all existing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.branch.context import TableBranch
from lakebed.table.engines.registry import engine_of
from lakebed.table.files.data_file import RollingWriter
from lakebed.table.files.external import targets_of
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import BucketChange, DataFile, Snapshot, Split, TableSchema
from lakebed.table.model.row_kinds import SEQUENCE_COLUMN
from lakebed.table.read.read import ReadPlan, merge_windows
from lakebed.table.write.write import BucketIndex
from lakebed.table.write.write_settings import file_settings

_GAP_BITS: Final = 10
_GAP_MAX: Final = 1 << 40


def number_after(
    branch: TableBranch,
    changes: Sequence[BucketChange],
    head: Snapshot,
    *,
    times: int,
    note: Callable[[Sequence[str]], None],
) -> list[BucketChange] | None:
    """Changes whose rows are newer than all rows of a version; None: they are already, or the engine does not need it.

    Args:
        branch: has seen the newest schema.
        changes: add files to level 0 and delete none.
        times: how often the same rows were numbered anew before. A gap is left below the new numbers, larger for more
            rows and larger each time. So a change whose files take long to write is not overtaken again and again.
        note: called with the paths of new files.

    Cost: none when nothing was overtaken; else each file of an overtaken bucket is read and written, one by one.
    """
    if not branch.schema.primary_keys or not engine_of(branch.schema).follows_commits:
        return None
    files: dict[tuple[bytes, int], list[DataFile]] = {}
    for change in changes:
        files.setdefault((change.partition, change.bucket), []).extend(change.added)
    index = BucketIndex(_entries_near(branch.manifests.live_entries(head), files))
    shifts: dict[tuple[bytes, int], int] = {}
    for bucket, added_files in files.items():
        lowest_number = min((file.min_sequence_number for file in added_files), default=None)
        free = index.next_sequence(*bucket)
        if lowest_number is not None and lowest_number < free:
            gap = min(sum(file.row_count for file in added_files) << _GAP_BITS * min(times, 4), _GAP_MAX)
            shifts[bucket] = free - lowest_number + gap
    if not shifts:
        return None
    return [
        replace(change, added=tuple(_renumber(branch, change, shift=shift, note=note)))
        if (shift := shifts.get((change.partition, change.bucket))) is not None
        else change
        for change in changes
    ]


def _entries_near(live_entries: pa.Table, buckets: Collection[tuple[bytes, int]]) -> pa.Table:
    """The entries of some buckets with the columns of `BucketIndex`, perhaps with entries of others.

    A change touches few buckets of many.
    """
    partitions = pa.array({partition for partition, _ in buckets}, live_entries.schema.field("partition").type)
    numbers = pa.array({bucket for _, bucket in buckets}, live_entries.schema.field("bucket").type)
    is_near = pc.and_(
        pc.is_in(live_entries["partition"], value_set=partitions), pc.is_in(live_entries["bucket"], value_set=numbers)
    )
    return live_entries.select(["partition", "bucket", "max_sequence_number", "total_buckets"]).filter(is_near)


def _renumber(
    branch: TableBranch, change: BucketChange, *, shift: int, note: Callable[[Sequence[str]], None]
) -> list[DataFile]:
    """The files of a change written anew, each under its own schema, with all sequence numbers greater by `shift`."""
    files: list[DataFile] = []
    for file in change.added:
        schema = branch.schemas.load(file.schema_id)
        split = _split_of(change, file, schema)
        writer = RollingWriter(
            branch.store,
            folder=split.folder,
            schema=schema,
            settings=file_settings(schema),
            environment=branch.environment,
            targets=targets_of(branch.store, schema, rng=branch.environment.rng),
        )
        plan = ReadPlan(schema=schema, schemas={schema.id: schema}, columns=())
        try:
            # The windows of a single file are its rows, unmerged.
            for rows in merge_windows(branch.store, split, plan=plan, fields=schema.fields, keep_deletes=True):
                position = rows.schema.get_field_index(SEQUENCE_COLUMN)
                numbers = pc.add(rows.column(position), shift)
                writer.write(rows.set_column(position, rows.schema.field(position), numbers).combine_chunks())
            files += writer.close()
        finally:
            note(writer.paths)
    return files


def _split_of(change: BucketChange, file: DataFile, schema: TableSchema) -> Split:
    folder, *other_folders = Placement.of(schema).folders(change.partition, change.bucket)
    return Split(
        partition=change.partition,
        partition_values={},
        bucket=change.bucket,
        folder=folder,
        files=(file,),
        needs_merge=True,
        schema_id=schema.id,
        row_count=file.row_count,
        other_folders=tuple(other_folders),
    )
