"""Live files -> splits: which files must be read together. Pure.

Owns: sections (files of a bucket whose key ranges overlap), the order of files in a merge, and packing to a size.

Invariants:
- Files whose keys may overlap are in one split. So splits can be read anywhere, in any order, and concatenated.
- `Split.files` of a merge are oldest first: higher levels before lower ones, then level 0 by sequence number, ties by
  the snapshot that committed them. Files of one level > 0 are adjacent, in key order: they are one sorted run.
- `Split.needs_merge` is False only if every file may be read on its own: either there is one run without deletes, or
  the files are above level 0 and deletion vectors mark the older row of every key.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.row_codes import number_values
from lakebed.table.engines.merge import Codes, encode_keys
from lakebed.table.files.placement import Placement, bucket_folders, partition_values
from lakebed.table.files.planned_files import PlannedFiles
from lakebed.table.model.model import DataFile, Split, TableSchema
from lakebed.table.model.options import SOURCE_SPLIT_OPEN_FILE_COST, SOURCE_SPLIT_TARGET_SIZE, TableOptions

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PAIRS_MAX: Final = 4_000_000
"""Most pairs of files of a section that are compared in order to leave out files; a larger section stays whole."""


def plan_splits(
    entries: pa.Table,
    *,
    schema: TableSchema,
    target_bytes: int | None = None,
    open_cost_bytes: int | None = None,
    may_match: BoolArray | None = None,
    newest_survives: bool = False,
    is_marked: bool = False,
) -> list[Split]:
    """The splits of a set of live files, bucket by bucket.

    Args:
        entries: live ADD entries (`manifest.ENTRY_SCHEMA`).
        schema: names and types of partition columns and keys.
        target_bytes: files are packed together up to this size; a merge is never cut; None: as the options say.
        open_cost_bytes: least weight of a file; None: as the options say.
        may_match: one element for each entry; files that need no merge are dropped where it is False. None keeps all.
        newest_survives: also drop other files, as `find_unneeded` allows.
        is_marked: above level 0, vectors mark all rows of a key except one; only buckets with deletes need a merge
            there.

    Cost: a few sorts over all files, then Python steps for each bucket and each split; no `DataFile` is made.
    """
    if entries.num_rows == 0:
        return []
    options = TableOptions(schema.options)
    target_bytes = options.get(SOURCE_SPLIT_TARGET_SIZE) if target_bytes is None else target_bytes
    open_cost_bytes = options.get(SOURCE_SPLIT_OPEN_FILE_COST) if open_cost_bytes is None else open_cost_bytes
    entries = entries.combine_chunks()
    groups = bucket_groups(entries, schema=schema)
    order = np.concatenate([group.members for group in groups])
    group_of = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    weights = np.maximum(_column(entries, "file_size"), open_cost_bytes)
    is_kept = np.ones(len(order), np.bool_) if may_match is None else may_match
    if schema.primary_keys:
        free = _free_groups(entries, order, group_of) if is_marked else None
        places = _KeyedRows.of(entries, order, group_of, schema, free=free)
        if newest_survives and not is_kept.all():
            places = places.without_unneeded(entries, is_kept)
        packs = _pack_keyed(entries, places, weights, is_kept, target_bytes=target_bytes)
    else:
        order, group_of = order[is_kept[order]], group_of[is_kept[order]]
        starts = _pack_starts(weights[order], group_of, target_bytes)
        packs = [(number, False, rows) for number, rows in _cut(order, group_of, starts)]
    sums = _sums(_column(entries, "row_count"), [rows for _, _, rows in packs])
    return [
        groups[number].split(
            PlannedFiles(entries, rows), needs_merge=needs_merge, schema_id=schema.id, row_count=row_count
        )
        for (number, needs_merge, rows), row_count in zip(packs, sums, strict=True)
    ]


def _sums(values: IntArray, groups: Sequence[IntArray]) -> list[int]:
    """The sum of the values at each group's positions; no group is empty."""
    if not groups:
        return []
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    sums: list[int] = np.add.reduceat(values[np.concatenate(groups)], starts).tolist()
    return sums


@dataclass(frozen=True, slots=True)
class BucketGroup:
    """The entries of one bucket."""

    partition: bytes
    partition_values: dict[str, Any]
    bucket: int
    folder: str
    members: npt.NDArray[np.int64]
    """Positions in the entries, ascending."""
    other_folders: tuple[str, ...] = ()

    def split(self, files: Sequence[DataFile], *, needs_merge: bool, schema_id: int, row_count: int) -> Split:
        """A split of some files of the bucket, to be read together."""
        return Split(
            partition=self.partition,
            partition_values=self.partition_values,
            bucket=self.bucket,
            folder=self.folder,
            files=files,
            needs_merge=needs_merge,
            schema_id=schema_id,
            row_count=row_count,
            other_folders=self.other_folders,
        )


def bucket_groups(entries: pa.Table, *, schema: TableSchema) -> list[BucketGroup]:
    """Live entries by partition and bucket. Cost: one sort; distinct partitions are decoded once."""
    if entries.num_rows == 0:
        return []
    codes, partitions = number_values(entries.column("partition").combine_chunks())
    values = partition_values(partitions, schema)
    folders = Placement.of(schema).partition_folders(partitions)
    names = partitions.to_pylist()
    buckets = entries.column("bucket").to_numpy()
    order = np.lexsort((buckets, codes))
    edges = np.flatnonzero((np.diff(codes[order]) != 0) | (np.diff(buckets[order]) != 0)) + 1
    groups = []
    for members in np.split(order, edges):
        code, bucket = int(codes[members[0]]), int(buckets[members[0]])
        folder, *other_folders = bucket_folders(folders[code], bucket)
        groups.append(BucketGroup(names[code], values[code], bucket, folder, members, tuple(other_folders)))
    return groups


def key_sections(files: Sequence[DataFile], *, schema: TableSchema) -> list[list[DataFile]]:
    """Cut the files of one bucket between key ranges. Sections are in key order, the files of each in merge order."""
    low, high = _ranges_of(files, schema)
    order = np.lexsort((high, low))
    reach = np.maximum.accumulate(high[order])
    cuts = np.flatnonzero(low[order][1:] > reach[:-1]) + 1
    sections = []
    for part in np.split(order, cuts):
        by_age = sorted(part, key=lambda i: (merge_rank(files[i]), low[i]))
        sections.append([files[i] for i in by_age])
    return sections


def _ranges_of(files: Sequence[DataFile], schema: TableSchema) -> tuple[Codes, Codes]:
    low = pa.chunked_array([pa.array([file.min_key for file in files], pa.binary())])
    high = pa.chunked_array([pa.array([file.max_key for file in files], pa.binary())])
    return _key_ranges(low, high, schema)


def in_key_order(splits: Sequence[Split], *, schema: TableSchema) -> list[Split]:
    """The splits of one bucket by their least keys: read in this order, their rows ascend by key.

    Args:
        splits: each a section of its own, as `plan_splits` makes them with ``target_bytes=0``.
    """
    if len(splits) < 2:
        return list(splits)
    low, _ = _ranges_of([file for split in splits for file in split.files], schema)
    starts = np.cumsum([0, *(len(split.files) for split in splits)])[:-1]
    return [splits[i] for i in np.argsort(np.minimum.reduceat(low, starts), kind="stable")]


def merge_rank(file: DataFile) -> tuple[int, int, int, int]:
    """Sort key of the files of a section, oldest first; equal for files of one level > 0."""
    if file.level > 0:
        return (-file.level, 0, 0, 0)
    return (0, file.max_sequence_number, file.min_sequence_number, file.commit_snapshot or 0)


def sort_into_runs(files: Sequence[DataFile], *, schema: TableSchema) -> list[list[DataFile]]:
    """Files of one bucket as sorted runs, oldest first.

    Each level > 0 is one run. Level-0 files of one commit are one run if their keys do not overlap (one sorted batch in
    several files); otherwise each file is a run.
    """
    if len(files) == 1:
        return [list(files)]
    low, high = _ranges_of(files, schema)
    groups: dict[tuple[int, int], list[int]] = {}
    for i, file in enumerate(files):
        commit = file.commit_snapshot
        is_single = file.level == 0 and (commit is None or commit < 0)
        groups.setdefault((file.level, -1 - i if is_single else (commit or 0) if file.level == 0 else 0), []).append(i)
    runs: list[list[DataFile]] = []
    for (level, _), members in groups.items():
        members.sort(key=lambda i: low[i])
        is_apart = all(low[after] > high[before] for before, after in itertools.pairwise(members))
        if level > 0 or is_apart:
            runs.append([files[i] for i in members])
        else:
            runs.extend([files[i]] for i in members)
    return sorted(runs, key=lambda run: max(merge_rank(file) for file in run))


def is_plain(file: DataFile) -> bool:
    """Whether a file may be read on its own, without its row kinds."""
    return states_deletes(file) and file.delete_row_count == 0


def states_deletes(file: DataFile) -> bool:
    """Whether the file's entry states its number of deletes reliably.

    Level-0 files of other clients do not: one client writes deletes and states none.
    """
    is_trusted = file.level > 0 or (file.commit_snapshot is not None and file.commit_snapshot >= 0)
    return is_trusted and file.delete_row_count is not None


def touching(splits: Sequence[Split], files: Sequence[DataFile], *, schema: TableSchema) -> list[Split]:
    """The splits that may have a key between the least and the greatest key of `files`; all are of one bucket."""
    every = [*files, *(file for split in splits for file in split.files)]
    low, high = _ranges_of(every, schema)
    least, greatest = low[: len(files)].min(), high[: len(files)].max()
    matches, start = [], len(files)
    for split in splits:
        end = start + len(split.files)
        if low[start:end].min() <= greatest and high[start:end].max() >= least:
            matches.append(split)
        start = end
    return matches


@dataclass(frozen=True, slots=True)
class _KeyedRows:
    """Entries of a primary-key table by group and least key, and where the sections of overlapping files begin."""

    order: IntArray
    """Positions in the entries."""
    group_of: IntArray
    low: IntArray
    high: IntArray
    """Ranks of the least and greatest keys, by entry."""
    span: int
    """A number above all ranks."""
    free: BoolArray | None
    """For each group, whether its files are read on their own although their keys may overlap; None: in no group."""

    @classmethod
    def of(
        cls, entries: pa.Table, order: IntArray, group_of: IntArray, schema: TableSchema, *, free: BoolArray | None
    ) -> _KeyedRows:
        """Sort entries, given by group."""
        if len(order) == group_of[-1] + 1:  # one file in each bucket: no keys to compare
            low = high = np.zeros(len(order), np.int64)
            span = 1
        else:
            low, high, span = _dense_ranges(entries, schema)
        by_key = np.lexsort((high[order], low[order], group_of))
        return cls(order[by_key], group_of[by_key], low, high, span, free)

    def starts(self) -> IntArray:
        """The first row of every section."""
        if len(self.order) == 0:
            return np.zeros(0, np.int64)
        offsets = self.group_of * self.span
        reach = np.maximum.accumulate(self.high[self.order] + offsets)
        is_start = np.append(True, self.low[self.order][1:] + offsets[1:] > reach[:-1])
        return np.flatnonzero(is_start if self.free is None else is_start | self.free[self.group_of])

    def without_unneeded(self, entries: pa.Table, may_match: BoolArray) -> _KeyedRows:
        """Leave files out as `find_unneeded` says, section by section."""
        first, last = _column(entries, "min_sequence_number"), _column(entries, "max_sequence_number")
        starts = self.starts()
        counts = np.diff(np.append(starts, len(self.order)))
        stays = may_match[self.order]
        has_gaps = np.add.reduceat(~stays, starts) > 0
        stays[np.repeat(counts > 1, counts)] = True
        for section in np.flatnonzero(has_gaps & (counts > 1)):
            span = slice(starts[section], starts[section] + counts[section])
            rows = self.order[span]
            keys = self.low[rows], self.high[rows]
            stays[span] = ~find_unneeded(keys, sequences=(first[rows], last[rows]), may_match=may_match[rows])
        return replace(self, order=self.order[stays], group_of=self.group_of[stays])


def find_unneeded(
    keys: tuple[IntArray, IntArray], *, sequences: tuple[IntArray, IntArray], may_match: BoolArray
) -> BoolArray:
    """Which files of a section a read with a filter leaves out, if the newest row of a key survives unchanged.

    A file is left out if it holds no match, and every other file with keys in its range is left out too or has only
    newer rows. So no older row reappears.

    Args:
        keys: codes of the least and the greatest key of each file.
        sequences: the least and the greatest sequence number of each.
        may_match: whether a file may hold a match.

    Cost: compares each file without a match with each other file, and again each time a file turns out to be needed.
    """
    low, high = keys
    first, last = sequences
    is_unneeded = ~may_match
    while is_unneeded.any():
        stays = ~is_unneeded
        if np.count_nonzero(is_unneeded) * np.count_nonzero(stays) > PAIRS_MAX:
            return np.zeros(len(low), np.bool_)
        has_common_keys = (low[is_unneeded][:, None] <= high[stays]) & (high[is_unneeded][:, None] >= low[stays])
        is_needed = (has_common_keys & (first[stays] <= last[is_unneeded][:, None])).any(axis=1)
        if not is_needed.any():
            break
        is_unneeded[np.flatnonzero(is_unneeded)[is_needed]] = False
    return is_unneeded


def _pack_keyed(
    entries: pa.Table, places: _KeyedRows, weights: IntArray, is_kept: BoolArray, *, target_bytes: int
) -> list[tuple[int, bool, IntArray]]:
    """``(group, needs a merge, rows in merge order)`` of every pack of a primary-key table, in order of the groups.

    In each group sections of one plain file are packed, and sections to merge are packed, both in key order.

    Args:
        weights, is_kept: by row.
    """
    order, group_of, low, starts = places.order, places.group_of, places.low, places.starts()
    if len(order) == 0:
        return []
    counts = np.diff(np.append(starts, len(order)))
    is_single = counts == 1
    is_plain_section = is_single & _plain_rows(entries)[order[starts]]
    plain_starts = starts[is_plain_section & is_kept[order[starts]]]
    rows, row_groups = order[plain_starts], group_of[plain_starts]
    packs = [
        (number, False, part)
        for number, part in _cut(rows, row_groups, _pack_starts(weights[rows], row_groups, target_bytes))
    ]
    if not is_plain_section.all():
        merging = np.repeat(~is_plain_section, counts)
        section = np.repeat(np.arange(len(starts)), counts)[merging]
        rows, row_groups = order[merging], group_of[merging]
        first = np.flatnonzero(np.append(True, np.diff(section) != 0))
        heavy = np.add.reduceat(weights[rows], first)
        pack_starts = first[_pack_starts(heavy, row_groups[first], target_bytes)]
        pack = np.zeros(len(rows), np.int64)
        pack[pack_starts[1:]] = 1
        ages = _merge_ages(entries, rows)
        # Sections of a pack do not overlap, so files of one level are still one run: they are adjacent.
        by_age = np.lexsort((low[rows], section, *reversed(ages), np.cumsum(pack)))
        packs += [(number, True, part) for number, part in _cut(rows[by_age], row_groups, pack_starts)]
        packs.sort(key=lambda pack: pack[:2])
    return packs


def _free_groups(entries: pa.Table, order: IntArray, group_of: IntArray) -> BoolArray:
    """For each group whether all its files are above level 0 and without deletes."""
    is_free = _plain_rows(entries) & (_column(entries, "level") > 0)
    free = np.ones(int(group_of[-1]) + 1, np.bool_)
    free[group_of[~is_free[order]]] = False
    return free


def _pack_starts(weights: IntArray, group_of: IntArray, target_bytes: int) -> IntArray:
    """The starts of packs: neighbours of one group are packed while their weights sum up to at most the target."""
    count = len(weights)
    if count == 0:
        return np.zeros(0, np.int64)
    sums = [0, *np.cumsum(weights).tolist()]
    bounds = [*(np.flatnonzero(np.diff(group_of)) + 1).tolist(), count]
    starts, start = [], 0
    for bound in bounds:
        while start < bound:
            starts.append(start)
            # The first file is taken in any case, others while the sum is within the target.
            start = max(start + 1, bisect_right(sums, sums[start] + target_bytes, start + 1, bound + 1) - 1)
    return np.array(starts, np.int64)


def _cut(rows: IntArray, group_of: IntArray, starts: IntArray) -> list[tuple[int, IntArray]]:
    """The rows from each start to the next, with their group."""
    bounds = [*starts.tolist(), len(rows)]
    parts = [rows[start:end] for start, end in itertools.pairwise(bounds)]
    return list(zip(group_of[starts].tolist(), parts, strict=True))


def _plain_rows(entries: pa.Table) -> BoolArray:
    """`is_plain` of every entry."""
    is_trusted = (_column(entries, "level") > 0) | (_column(entries, "commit_snapshot", absent=-1) >= 0)
    is_plain_row: BoolArray = is_trusted & (_column(entries, "delete_row_count", absent=-1) == 0)
    return is_plain_row


def _merge_ages(entries: pa.Table, rows: IntArray) -> tuple[IntArray, ...]:
    """`merge_rank` of some entries, one array for each of its parts."""
    level = _column(entries, "level")[rows]
    parts = [
        _column(entries, name, absent=0)[rows]
        for name in ("max_sequence_number", "min_sequence_number", "commit_snapshot")
    ]
    return (-level, *(np.where(level > 0, 0, part) for part in parts))


def _dense_ranges(entries: pa.Table, schema: TableSchema) -> tuple[IntArray, IntArray, int]:
    """Ranks, from 0 on, of the least and greatest keys of all files, and a number above all ranks."""
    low, high = _key_ranges(entries.column("min_key"), entries.column("max_key"), schema)
    distinct, ranks = np.unique(np.concatenate([low, high]), return_inverse=True)
    ranks = ranks.astype(np.int64)
    return ranks[: len(low)], ranks[len(low) :], len(distinct)


def _column(entries: pa.Table, name: str, *, absent: int | None = None) -> IntArray:
    """An integer column as int64, with `absent` instead of null."""
    column = entries.column(name)
    if absent is not None and column.null_count:
        column = pc.fill_null(column, absent)
    values: IntArray = column.to_numpy().astype(np.int64)
    return values


def _key_ranges(low: pa.ChunkedArray, high: pa.ChunkedArray, schema: TableSchema) -> tuple[Codes, Codes]:
    """Codes of the least and greatest keys of files, comparable with each other."""
    types = [field.type for field in schema.key_fields]
    codes = encode_keys([decode_rows(low.combine_chunks(), types), decode_rows(high.combine_chunks(), types)])
    return codes[0], codes[1]
