"""Entries of Iceberg's manifests from those of the table: paths, partitions, counts, bounds.

Owns: one entry a data file. Bounds are taken where the table's own are proven (`STATS_VERSION`); a file of another
client has none, and Iceberg's clients then read it without skipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.binary_row import decode_columns
from lakebed.table.iceberg.avro_files import ADDED, DATA, EXISTING, avro_partition
from lakebed.table.iceberg.columns import PartitionColumn, binary_values, iceberg_schema, plain_values
from lakebed.table.model.model import STATS_VERSION, TableSchema
from lakebed.table.read.file_stats import partition_columns

_BOUNDED_COLUMNS_MAX: Final = 100
"""Columns of a file that get counts and bounds, as many as Iceberg's own writers give by default."""

FoldersOf = Callable[[bytes, int], tuple[str, ...]]
SnapshotIdOf = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What entries are made with."""

    store: ObjectStore
    schema: TableSchema
    """For the types of partition columns."""
    schema_of: Callable[[int], TableSchema]
    partitions: tuple[PartitionColumn, ...]
    folders_of: FoldersOf
    snapshot_id_of: SnapshotIdOf
    """Iceberg's id of the snapshot with a number."""


@dataclass(frozen=True, slots=True)
class EntrySums:
    """What a manifest list states of the entries of a manifest."""

    added_count: int
    added_rows: int
    existing_count: int
    existing_rows: int
    min_sequence_number: int | None
    """Of the entries that state one; None: of none."""
    partitions: Sequence[dict[str, Any]]


def sum_entries(context: EntryContext, entries: pa.Table, *, added_snapshot: int | None) -> EntrySums:
    """The sums of `data_entries`, without the entries."""
    commits = entries.column("commit_snapshot").to_numpy()
    rows = entries.column("row_count").to_numpy()
    is_added, states = _stand(commits, added_snapshot)
    added_count, added_rows = int(is_added.sum()), int(rows[is_added].sum())
    stated = commits[states]
    least = int(np.maximum(stated, 0).min()) if len(stated) else None
    partitions = partition_summaries(context, entries)
    return EntrySums(added_count, added_rows, len(rows) - added_count, int(rows.sum()) - added_rows, least, partitions)


def _stand(commits: Any, added_snapshot: int | None) -> tuple[Any, Any]:
    """Which files were added by their manifest's own snapshot, and which entries state a snapshot."""
    unknown = commits < 0
    is_added = unknown if added_snapshot is None else commits == added_snapshot
    return is_added, ~(is_added & unknown)


def data_entries(context: EntryContext, entries: pa.Table, *, added_snapshot: int | None) -> list[dict[str, Any]]:
    """Entries of live data files.

    Args:
        entries: live ADD entries of one manifest (`manifest.ENTRY_SCHEMA`).
        added_snapshot: `ManifestMeta.added_snapshot` of the manifest. A file that its own snapshot added is ADDED; one
            from before the manifest was merged is EXISTING. Of entries of other clients the snapshot is unknown: they
            have that of the manifest list, or the number 0 after a merge.
    """
    is_added, states = (mask.tolist() for mask in _stand(entries.column("commit_snapshot").to_numpy(), added_snapshot))
    paths = data_urls(context, entries)
    tuples = partition_tuples(context, entries)
    maps = _statistics(context, entries)
    commits = entries.column("commit_snapshot").to_pylist()
    rows = entries.column("row_count").to_pylist()
    sizes = entries.column("file_size").to_pylist()
    records: list[dict[str, Any]] = []
    for added, stated, path, partition, (counts, nulls, low, high), commit, row_count, size in zip(
        is_added, states, paths, tuples, maps, commits, rows, sizes, strict=True
    ):
        number = max(commit, 0)
        records.append(
            {
                "status": ADDED if added else EXISTING,
                "snapshot_id": (context.snapshot_id_of(number) if number else 0) if stated else None,
                "sequence_number": number if stated else None,
                "file_sequence_number": number if stated else None,
                "data_file": {
                    "content": DATA,
                    "file_path": path,
                    "file_format": "PARQUET",
                    "partition": partition,
                    "record_count": row_count,
                    "file_size_in_bytes": size,
                    "value_counts": counts,
                    "null_value_counts": nulls,
                    "lower_bounds": low,
                    "upper_bounds": high,
                },
            }
        )
    return records


def data_urls(context: EntryContext, entries: pa.Table) -> list[str]:
    """The URL of each data file.

    Raises `UnsupportedFormat`: a file that is not Parquet; `NotFound`: a file that is in none of its folders. Cost: 1
    HEAD a folder for a file of a bucket that has several folders, else nothing.
    """
    urls: list[str] = []
    columns = [entries.column(name).to_pylist() for name in ("partition", "bucket", "file_name", "external_path")]
    known: dict[tuple[bytes, int], tuple[str, ...]] = {}
    for partition, bucket, name, external in zip(*columns, strict=True):
        if not name.endswith(".parquet"):
            raise UnsupportedFormat(f"{name} is not Parquet: Iceberg's clients cannot read it as it is.", path=name)
        if external is not None:
            urls.append(external)
            continue
        folders = known.get((partition, bucket))
        if folders is None:
            folders = known[partition, bucket] = context.folders_of(partition, bucket)
        folder = folders[0] if len(folders) == 1 else _folder_with(context.store, folders, name)
        urls.append(context.store.url(f"{folder}/{name}"))
    return urls


def _folder_with(store: ObjectStore, folders: Sequence[str], name: str) -> str:
    for folder in folders:
        try:
            store.head(f"{folder}/{name}")
        except NotFound:
            continue
        return folder
    raise NotFound(f"The data file {name} is in none of its folders, such as {folders[0]}.", path=name)


def partition_tuples(context: EntryContext, entries: pa.Table) -> list[dict[str, Any]]:
    """The partition of each entry as Avro has it."""
    if not context.partitions:
        return [{}] * entries.num_rows
    values = partition_columns(entries, context.schema)
    columns = [plain_values(values[part.column.name], part.kind) for part in context.partitions]
    return [avro_partition(context.partitions, row) for row in zip(*columns, strict=True)]


def partition_summaries(context: EntryContext, entries: pa.Table) -> list[dict[str, Any]]:
    """For each partition column what its values in some entries are: Iceberg's ``field_summary``."""
    if not context.partitions or not entries.num_rows:
        return [{"contains_null": False, "contains_nan": None, "lower_bound": None, "upper_bound": None}] * len(
            context.partitions
        )
    values = partition_columns(entries, context.schema)
    summaries: list[dict[str, Any]] = []
    for part in context.partitions:
        column = values[part.column.name]
        low: bytes | None = None
        high: bytes | None = None
        has_nan = bool(pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
        if column.null_count < len(column) and not has_nan:
            extremes = pc.min_max(column)
            ends = pa.array([extremes["min"].as_py(), extremes["max"].as_py()], column.type)
            low, high = binary_values(ends, part.kind)
        summaries.append(
            {
                "contains_null": column.null_count > 0,
                "contains_nan": has_nan if pa.types.is_floating(column.type) else None,
                "lower_bound": low,
                "upper_bound": high,
            }
        )
    return summaries


# ---- statistics

Pairs = list[dict[str, Any]] | None
Maps = tuple[Pairs, Pairs, Pairs, Pairs]
_NONE: Final[Maps] = (None, None, None, None)


def _statistics(context: EntryContext, entries: pa.Table) -> list[Maps]:
    """Counts of values and of nulls, lower and upper bounds of each entry, by field id."""
    result: list[Maps] = [_NONE] * entries.num_rows
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    names = (entries.column("value_stats_cols").to_pylist(), entries.column("write_cols").to_pylist())
    versions, schema_ids = entries.column("stats_version").to_pylist(), entries.column("schema_id").to_pylist()
    for row, (stated, written, version, schema_id) in enumerate(zip(*names, versions, schema_ids, strict=True)):
        if version == STATS_VERSION:
            columns = stated if stated is not None else written
            groups.setdefault((schema_id, None if columns is None else tuple(columns)), []).append(row)
    for (schema_id, columns_of_stats), rows in groups.items():
        schema = context.schema_of(schema_id)
        group = entries.take(pa.array(rows))
        for row, maps in zip(rows, _group_statistics(schema, columns_of_stats, group), strict=True):
            result[row] = maps
    return result


def _group_statistics(schema: TableSchema, names: tuple[str, ...] | None, group: pa.Table) -> list[Maps]:
    """As `_statistics`, of entries whose statistics have the same columns."""
    fields = schema.fields if names is None else schema.select_fields(names)
    kinds = {member["id"]: member["type"] for member in iceberg_schema(schema).fields}
    wanted = [(at, field.id, kinds[field.id]) for at, field in enumerate(fields) if field.id in kinds]
    wanted = wanted[:_BOUNDED_COLUMNS_MAX]
    types = [field.type for field in fields]
    null_counts = group.column("value_stats_null_counts").to_pylist()
    rows = group.column("row_count").to_pylist()
    if any(nulls is None or len(nulls) != len(fields) for nulls in null_counts):
        return [_NONE] * group.num_rows
    indices = [at for at, _, _ in wanted]
    ends = [
        decode_columns(group.column(f"value_stats_{end}").combine_chunks(), types, indices) for end in ("min", "max")
    ]
    bounds = [
        [binary_values(column, kind) for column, (_, _, kind) in zip(columns, wanted, strict=True)] for columns in ends
    ]
    ids = [field_id for _, field_id, _ in wanted]
    lows, highs = bounds
    return [
        (
            [{"key": field_id, "value": count} for field_id in ids],
            [{"key": field_id, "value": nulls[at]} for at, field_id, _ in wanted if nulls[at] is not None],
            [
                {"key": field_id, "value": low[row]}
                for field_id, low in zip(ids, lows, strict=True)
                if low[row] is not None
            ],
            [
                {"key": field_id, "value": high[row]}
                for field_id, high in zip(ids, highs, strict=True)
                if high[row] is not None
            ],
        )
        for row, (count, nulls) in enumerate(zip(rows, null_counts, strict=True))
    ]
