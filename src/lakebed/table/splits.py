"""Live files -> splits: which files must be read together. Pure.

Owns: sections (files of a bucket whose key ranges touch), the order in which a merge takes files, packing to a size.

Invariants:
- Files whose keys may overlap are in one split; so splits can be read anywhere, in any order, and concatenated.
- `Split.files` of a merge are oldest first: higher levels before lower ones, then level 0 by sequence number, ties by
  the snapshot that committed them. Files of one level > 0 stand together, in key order: they are one sorted run.
- A split says that it needs no merge only when every file may be read as plain Parquet: one run, and no deletes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.binary_row import decode_rows
from lakebed.table.layout import Layout
from lakebed.table.manifest import files_of
from lakebed.table.merge import Codes, encode_keys
from lakebed.table.model import DataFile, Split, TableSchema

__all__ = [
    "BucketGroup",
    "bucket_groups",
    "in_key_order",
    "is_plain",
    "key_sections",
    "merge_rank",
    "plan_splits",
    "sections_of",
    "sorted_runs",
]


def plan_splits(
    entries: pa.Table, *, schema: TableSchema, layout: Layout, target_bytes: int, open_cost_bytes: int
) -> list[Split]:
    """The splits of a set of live files, bucket by bucket.

    Args:
        entries: live ADD entries (`manifest.ENTRY_SCHEMA`).
        schema: names and types of partition columns and keys.
        layout: gives the folders.
        target_bytes: files are packed together up to this size; merges are never cut below it.
        open_cost_bytes: what a small file counts at least.
    """
    if entries.num_rows == 0:
        return []
    files = files_of(entries)
    ranges = _key_ranges(entries.column("min_key"), entries.column("max_key"), schema) if schema.primary_keys else None
    splits = []
    for group in bucket_groups(entries, schema=schema, layout=layout):
        members = [files[i] for i in group.members]
        if ranges is None:
            packs = [(pack, False) for pack in _packed([[file] for file in members], target_bytes, open_cost_bytes)]
        else:
            low, high = (codes[group.members] for codes in ranges)
            packs = _pack_sections(sections_of(members, low, high), target_bytes, open_cost_bytes)
        for pack, needs_merge in packs:
            splits.append(
                Split(
                    partition=group.partition,
                    partition_values=group.partition_values,
                    bucket=group.bucket,
                    folder=group.folder,
                    files=tuple(pack),
                    needs_merge=needs_merge,
                    schema_id=schema.id,
                    row_count=sum(file.row_count for file in pack),
                )
            )
    return splits


@dataclass(frozen=True, slots=True)
class BucketGroup:
    """The entries of one bucket."""

    partition: bytes
    partition_values: dict[str, Any]
    bucket: int
    folder: str
    members: npt.NDArray[np.int64]
    """Positions in the entries, ascending."""


def bucket_groups(entries: pa.Table, *, schema: TableSchema, layout: Layout) -> list[BucketGroup]:
    """Live entries by partition and bucket. Cost: one sort; distinct partitions are decoded once."""
    if entries.num_rows == 0:
        return []
    partitions = entries.column("partition").combine_chunks().dictionary_encode()
    values = _partition_values(partitions.dictionary, schema)
    names = partitions.dictionary.to_pylist()
    codes = partitions.indices.to_numpy().astype(np.int64)
    buckets = entries.column("bucket").to_numpy()
    order = np.lexsort((buckets, codes))
    edges = np.flatnonzero((np.diff(codes[order]) != 0) | (np.diff(buckets[order]) != 0)) + 1
    groups = []
    for members in np.split(order, edges):
        code, bucket = int(codes[members[0]]), int(buckets[members[0]])
        folder = layout.bucket_folder(values[code], bucket)
        groups.append(BucketGroup(names[code], values[code], bucket, folder, members))
    return groups


def key_sections(files: Sequence[DataFile], *, schema: TableSchema) -> list[list[DataFile]]:
    """As `sections_of`, from the keys in the files' own descriptions."""
    return sections_of(files, *_ranges_of(files, schema))


def _ranges_of(files: Sequence[DataFile], schema: TableSchema) -> tuple[Codes, Codes]:
    low = pa.chunked_array([pa.array([file.min_key for file in files], pa.binary())])
    high = pa.chunked_array([pa.array([file.max_key for file in files], pa.binary())])
    return _key_ranges(low, high, schema)


def sections_of(files: Sequence[DataFile], low: Codes, high: Codes) -> list[list[DataFile]]:
    """Cut the files of one bucket where no key range crosses; sections in key order, files of each in merge order.

    Args:
        files: of one bucket.
        low, high: codes of their least and greatest keys (`encode_keys`).
    """
    order = np.lexsort((high, low))
    reach = np.maximum.accumulate(high[order])
    cuts = np.flatnonzero(low[order][1:] > reach[:-1]) + 1
    sections = []
    for part in np.split(order, cuts):
        by_age = sorted(part, key=lambda i: (merge_rank(files[i]), low[i]))
        sections.append([files[i] for i in by_age])
    return sections


def in_key_order(splits: Sequence[Split], *, schema: TableSchema) -> list[Split]:
    """The splits of one bucket by their least keys: read one after the other, their rows ascend by key.

    Args:
        splits: each a section of its own, as `plan_splits` makes them with ``target_bytes=0``.
    """
    if len(splits) < 2:
        return list(splits)
    low, _ = _ranges_of([file for split in splits for file in split.files], schema)
    starts = np.cumsum([0, *(len(split.files) for split in splits)])[:-1]
    return [splits[i] for i in np.argsort(np.minimum.reduceat(low, starts), kind="stable")]


def merge_rank(file: DataFile) -> tuple[int, int, int, int]:
    """Sorts the files of a section oldest first; files of one level > 0 are equal in it."""
    if file.level > 0:
        return (-file.level, 0, 0, 0)
    return (0, file.max_sequence_number, file.min_sequence_number, file.commit_snapshot or 0)


def sorted_runs(files: Sequence[DataFile], *, schema: TableSchema) -> list[list[DataFile]]:
    """Files of one bucket as sorted runs, oldest first: what a merge opens at the same time.

    Each level > 0 is one run. Level-0 files of one commit are one run when their keys do not overlap (one sorted batch,
    rolled into several files), else each is one.
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
    """Whether a file alone may be read without looking at row kinds.

    Level-0 files of other clients are not believed: one of them writes deletes and states none.
    """
    is_trusted = file.level > 0 or (file.commit_snapshot is not None and file.commit_snapshot >= 0)
    return is_trusted and file.delete_row_count == 0


def _pack_sections(
    sections: Sequence[list[DataFile]], target_bytes: int, open_cost_bytes: int
) -> list[tuple[list[DataFile], bool]]:
    """Plain single-file sections together, merges together; each pack with whether it needs a merge."""
    plain = [section for section in sections if len(section) == 1 and is_plain(section[0])]
    merges = [section for section in sections if len(section) > 1 or not is_plain(section[0])]
    packs = [(pack, False) for pack in _packed(plain, target_bytes, open_cost_bytes)]
    for pack in _packed(merges, target_bytes, open_cost_bytes):
        # Sections of a pack do not overlap, so files of one level still are one run: put them next to each other.
        packs.append((sorted(pack, key=merge_rank), True))
    return packs


def _packed(sections: Sequence[list[DataFile]], target_bytes: int, open_cost_bytes: int) -> list[list[DataFile]]:
    packs: list[list[DataFile]] = []
    weight = 0
    for section in sections:
        section_weight = sum(max(file.file_size, open_cost_bytes) for file in section)
        if packs and weight + section_weight <= target_bytes:
            packs[-1].extend(section)
            weight += section_weight
        else:
            packs.append(list(section))
            weight = section_weight
    return packs


def _partition_values(partitions: pa.Array, schema: TableSchema) -> list[dict[str, Any]]:
    names = schema.partition_keys
    types = [field.type for name in names if (field := schema.field_by_name(name)) is not None]
    if not types:
        return [{} for _ in range(len(partitions))]
    columns = [column.to_pylist() for column in decode_rows(partitions, types)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _key_ranges(low: pa.ChunkedArray, high: pa.ChunkedArray, schema: TableSchema) -> tuple[Codes, Codes]:
    """Codes of the least and greatest keys of files, comparable with each other."""
    types = [field.type for name in schema.trimmed_primary_keys if (field := schema.field_by_name(name)) is not None]
    codes = encode_keys([decode_rows(low.combine_chunks(), types), decode_rows(high.combine_chunks(), types)])
    return codes[0], codes[1]
