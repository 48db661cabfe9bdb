"""Entries of Iceberg's manifests from those of the table: paths, partitions, counts, bounds.

Owns: one entry for each data file. Bounds are used where the table's own are proven (`STATS_VERSION`). A file of
another client has no bounds, and Iceberg's clients then read it without skipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectStore, has_object
from lakebed.table.codec.avro_container import encode_long, encode_text
from lakebed.table.codec.binary_row import decode_columns
from lakebed.table.codec.stats import sign_zeros
from lakebed.table.iceberg.avro_bytes import (
    encode_optional,
    encode_optional_long,
    encode_pairs,
)
from lakebed.table.iceberg.avro_files import ADDED, DATA, EXISTING, avro_partition
from lakebed.table.iceberg.columns import PartitionColumn, binary_values, iceberg_schema, plain_values
from lakebed.table.model.model import STATS_VERSION, TableSchema
from lakebed.table.read.file_stats import partition_columns

_BOUNDED_COLUMNS_MAX: Final = 100
"""Columns of a file that get bounds, as many as Iceberg's own writers use by default.

All columns get counts: if only some columns have counts, DuckDB assumes that the others have neither nulls nor values.
"""

_RECORDS_MAX: Final = 100_000
"""Files whose records are cached: about 1 kB each."""
_FILE_KEY: Final = ("partition", "bucket", "file_name")
_FILE_COLUMNS: Final = (
    *_FILE_KEY,
    "external_path",
    "row_count",
    "file_size",
    "schema_id",
    "stats_version",
    "value_stats_min",
    "value_stats_max",
    "value_stats_null_counts",
    "value_stats_cols",
    "write_cols",
)
"""The columns that the record of a file is computed from."""

FoldersOf = Callable[[bytes, int], tuple[str, ...]]
SnapshotIdOf = Callable[[int], int]


class FileRecords:
    """The records of data files, which are equal in every manifest, for one load. Not thread-safe.

    A manifest that merges others has their entries again: with a thousand versions each file is in a dozen manifests.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all records."""
        self._places: dict[tuple[bytes, int, str], int] = {}
        self._tables: list[pa.Table] = []
        self._records: list[bytes] = []

    def encode(self, entries: pa.Table, encode: Callable[[pa.Table], list[bytes]]) -> list[bytes]:
        """What `encode` returns for the entries. It is called only for those that are not cached."""
        columns = entries.select(_FILE_COLUMNS)
        keys = list(zip(*(columns.column(name).to_pylist() for name in _FILE_KEY), strict=True))
        places = [self._places.get(key, -1) for key in keys]
        is_new = np.array(places) < 0
        if not is_new.all():
            self._tables = [pa.concat_tables(self._tables).combine_chunks()]
            earlier = self._tables[0].take(pa.array([place for place in places if place >= 0]))
            if not earlier.equals(columns.filter(pa.array(~is_new))):  # another client described a file anew
                return encode(entries)
        if is_new.any():
            if len(self._records) >= _RECORDS_MAX:
                return encode(entries)
            new = pa.array(is_new)
            self._tables.append(columns.filter(new))
            first = len(self._records)
            self._records += encode(entries.filter(new))
            for place, row in enumerate(np.flatnonzero(is_new).tolist(), first):
                self._places[keys[row]] = places[row] = place
        return [self._records[place] for place in places]


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What is needed to make entries."""

    store: ObjectStore
    schema: TableSchema
    """The schema with the types of partition columns."""
    schema_of: Callable[[int], TableSchema]
    partitions: tuple[PartitionColumn, ...]
    folders_of: FoldersOf
    snapshot_id_of: SnapshotIdOf
    """Iceberg's id of the snapshot with a number."""
    urls_of_files: Callable[[Sequence[str]], list[str]]
    """The URLs by which clients find files of the table, by their paths."""
    records: FileRecords = field(default_factory=FileRecords)


@dataclass(frozen=True, slots=True)
class EntrySums:
    """What a manifest list states about the entries of a manifest."""

    added_count: int
    added_rows: int
    existing_count: int
    existing_rows: int
    min_sequence_number: int | None
    """The least number of the entries that state one; None: no entry does."""
    partitions: Sequence[dict[str, Any]]


def sum_entries(context: EntryContext, entries: pa.Table, *, added_snapshot: int | None) -> EntrySums:
    """The sums of `data_entries`, without the entries."""
    commits = entries.column("commit_snapshot").to_numpy()
    rows = entries.column("row_count").to_numpy()
    is_added, states = _stand(commits, added_snapshot)
    added_count, added_rows = int(is_added.sum()), int(rows[is_added].sum())
    stated_commits = commits[states]
    least = int(np.maximum(stated_commits, 0).min()) if len(stated_commits) else None
    partitions = partition_summaries(context, entries)
    return EntrySums(added_count, added_rows, len(rows) - added_count, int(rows.sum()) - added_rows, least, partitions)


def _stand(commits: Any, added_snapshot: int | None) -> tuple[Any, Any]:
    """Which files their manifest's own snapshot added, and which entries state a snapshot."""
    is_unknown = commits < 0
    is_added = is_unknown if added_snapshot is None else commits == added_snapshot
    return is_added, ~(is_added & is_unknown)


def data_entries(context: EntryContext, entries: pa.Table, *, added_snapshot: int | None) -> list[bytes]:
    """Entries of live data files, as the records of a manifest.

    Args:
        entries: live ADD entries of one manifest (`manifest.ENTRY_SCHEMA`).
        added_snapshot: `ManifestMeta.added_snapshot` of the manifest. A file that this snapshot added is ADDED; a file
            that is older because manifests were merged is EXISTING. The snapshot of entries of other clients is
            unknown: they have that of the manifest list, or the number 0 after a merge.
    """
    is_added, states = (mask.tolist() for mask in _stand(entries.column("commit_snapshot").to_numpy(), added_snapshot))
    numbers: dict[tuple[bool, bool, int], bytes] = {}

    def origin(added: bool, stated: bool, commit: int) -> bytes:
        """Status, snapshot id and both sequence numbers."""
        key = (added, stated, max(commit, 0))
        raw = numbers.get(key)
        if raw is None:
            _, _, number = key
            ids = (context.snapshot_id_of(number) if number else 0, number, number) if stated else (None, None, None)
            raw = numbers[key] = encode_long(ADDED if added else EXISTING) + b"".join(map(encode_optional_long, ids))
        return raw

    records = context.records.encode(entries, lambda unknown: _file_records(context, unknown))
    return [
        origin(added, stated, commit) + record
        for added, stated, commit, record in zip(
            is_added, states, entries.column("commit_snapshot").to_pylist(), records, strict=True
        )
    ]


def _file_records(context: EntryContext, entries: pa.Table) -> list[bytes]:
    """The member ``data_file`` of each entry."""
    content, file_format = encode_long(DATA), encode_text(b"PARQUET")
    return [
        b"".join(
            (
                content,
                encode_text(path),
                file_format,
                partition,
                encode_long(row_count),
                encode_long(size),
                statistics,
            )
        )
        for path, partition, row_count, size, statistics in zip(
            data_urls(context, entries),
            _partition_records(context, entries),
            entries.column("row_count").to_pylist(),
            entries.column("file_size").to_pylist(),
            _statistics(context, entries),
            strict=True,
        )
    ]


def _partition_records(context: EntryContext, entries: pa.Table) -> list[bytes]:
    """The partition of each entry; distinct ones are encoded once."""
    if not context.partitions:
        return [b""] * entries.num_rows
    rows = entries.column("partition").to_pylist()
    distinct = pa.table({"partition": pa.array(list(dict.fromkeys(rows)), pa.binary())})
    values = partition_columns(distinct, context.schema)
    columns = [
        [encode_optional(value, part.kind) for value in plain_values(values[part.column.name], part.kind)]
        for part in context.partitions
    ]
    records = map(b"".join, zip(*columns, strict=True))
    record_of = dict(zip(distinct.column("partition").to_pylist(), records, strict=True))
    return [record_of[row] for row in rows]


def data_urls(context: EntryContext, entries: pa.Table) -> list[str]:
    """The URL of each data file. Raises and cost: as `data_paths`."""
    paths = data_paths(context, entries)
    is_external = entries.column("external_path").is_valid().to_pylist()
    inside_paths = [path for path, external in zip(paths, is_external, strict=True) if not external]
    urls = iter(context.urls_of_files(inside_paths))
    return [path if external else next(urls) for path, external in zip(paths, is_external, strict=True)]


def data_paths(context: EntryContext, entries: pa.Table) -> list[str]:
    """The path of each data file in the table's store, or its URL where it lies outside.

    Raises `UnsupportedFormat`: a file that is not Parquet; `NotFound`: a file that is in none of its folders. Cost: 1
    HEAD a folder for a file of a bucket that has several folders, else nothing.
    """
    paths: list[str] = []
    columns = [entries.column(name).to_pylist() for name in ("partition", "bucket", "file_name", "external_path")]
    folder_cache: dict[tuple[bytes, int], tuple[str, ...]] = {}
    for partition, bucket, name, external in zip(*columns, strict=True):
        if not name.endswith(".parquet"):
            raise UnsupportedFormat(f"{name} is not Parquet: Iceberg's clients cannot read it as it is.", path=name)
        if external is not None:
            paths.append(external)
            continue
        folders = folder_cache.get((partition, bucket))
        if folders is None:
            folders = folder_cache[partition, bucket] = context.folders_of(partition, bucket)
        folder = folders[0] if len(folders) == 1 else _folder_with(context.store, folders, name)
        paths.append(f"{folder}/{name}")
    return paths


def _folder_with(store: ObjectStore, folders: Sequence[str], name: str) -> str:
    for folder in folders:
        if has_object(store, f"{folder}/{name}"):
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
    """For each partition column a summary of its values in some entries: Iceberg's ``field_summary``."""
    if not context.partitions or not entries.num_rows:
        return [{"contains_null": False, "contains_nan": None, "lower_bound": None, "upper_bound": None}] * len(
            context.partitions
        )
    values = partition_columns(entries, context.schema)
    summaries: list[dict[str, Any]] = []
    for part in context.partitions:
        column = values[part.column.name]
        low, high = _bounds_of_partitions(column, part.kind)
        is_floating = pa.types.is_floating(column.type)
        summaries.append(
            {
                "contains_null": column.null_count > 0,
                "contains_nan": bool(pc.any(pc.is_nan(column)).as_py()) if is_floating else None,
                "lower_bound": low,
                "upper_bound": high,
            }
        )
    return summaries


def _bounds_of_partitions(column: pa.Array, kind: str) -> tuple[bytes | None, bytes | None]:
    """The bounds of partition values, in Iceberg's form.

    A client takes a summary without bounds for one of only nulls and NaN. So NaN does not hide the other values.
    """
    is_floating = pa.types.is_floating(column.type)
    if is_floating:
        column = column.filter(pc.invert(pc.is_nan(column)))
    if column.null_count == len(column):
        return None, None
    extremes = pc.min_max(column)
    ends = extremes["min"].as_py(), extremes["max"].as_py()
    low, high = binary_values(pa.array(sign_zeros(*ends) if is_floating else ends, column.type), kind)
    return low, high


# ---- statistics

_NO_STATISTICS: Final = encode_optional_long(None) * 4


def _statistics(context: EntryContext, entries: pa.Table) -> list[bytes]:
    """Counts of values and of nulls, lower and upper bounds of each entry, by field id: four members of its record."""
    result = [_NO_STATISTICS] * entries.num_rows
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    names = (entries.column("value_stats_cols").to_pylist(), entries.column("write_cols").to_pylist())
    versions, schema_ids = entries.column("stats_version").to_pylist(), entries.column("schema_id").to_pylist()
    for row, (stated_names, written_names, version, schema_id) in enumerate(
        zip(*names, versions, schema_ids, strict=True)
    ):
        if version == STATS_VERSION:
            columns = stated_names if stated_names is not None else written_names
            groups.setdefault((schema_id, None if columns is None else tuple(columns)), []).append(row)
    for (schema_id, columns_of_stats), rows in groups.items():
        schema = context.schema_of(schema_id)
        group = entries.take(pa.array(rows))
        for row, members in zip(rows, _group_statistics(schema, columns_of_stats, group), strict=True):
            result[row] = members
    return result


def _group_statistics(schema: TableSchema, names: tuple[str, ...] | None, group: pa.Table) -> list[bytes]:
    """As `_statistics`, for entries whose statistics have the same columns.

    Nested columns have counts and no bounds.
    """
    fields = schema.fields if names is None else schema.select_fields(names)
    kinds = {member["id"]: member["type"] for member in iceberg_schema(schema).fields}
    mapped_fields = [
        (position, field.id, kinds[field.id]) for position, field in enumerate(fields) if field.id in kinds
    ]
    types = [field.type for field in fields]
    null_counts = group.column("value_stats_null_counts").to_pylist()
    if any(nulls is None or len(nulls) != len(fields) for nulls in null_counts):
        return [_NO_STATISTICS] * group.num_rows
    indices = [position for position, _, _ in mapped_fields]
    bounded = [
        (position, field_id, kind)
        for position, field_id, kind in mapped_fields[:_BOUNDED_COLUMNS_MAX]
        if isinstance(kind, str)
    ]
    keys = [encode_long(field_id) for _, field_id, _ in mapped_fields]
    bounds = []
    for end in ("min", "max"):
        positions = [position for position, _, _ in bounded]
        columns = decode_columns(group.column(f"value_stats_{end}").combine_chunks(), types, positions)
        pairs = [
            [
                None if value is None else encode_long(field_id) + encode_text(value)
                for value in binary_values(column, kind)
            ]
            for column, (_, field_id, kind) in zip(columns, bounded, strict=True)
        ]
        bounds.append([encode_pairs(row) for row in zip(*pairs, strict=True)] or [encode_pairs(())] * group.num_rows)
    counts = [
        encode_pairs([key + encode_long(count) for key in keys]) for count in group.column("row_count").to_pylist()
    ]
    nulls_of = [
        encode_pairs(
            [
                None if nulls[position] is None else key + encode_long(nulls[position])
                for position, key in zip(indices, keys, strict=True)
            ]
        )
        for nulls in null_counts
    ]
    return [b"".join(members) for members in zip(counts, nulls_of, *bounds, strict=True)]
