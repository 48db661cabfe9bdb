"""System tables: the metadata of a table as Arrow tables, with Paimon's names and types.

Owns: `SYSTEM_TABLES`, which names all of them, and the readers of all but ``$audit_log`` (`audit_log`).

Invariants:
- Each shows the newest state, or that of the requested version: `snapshots` and `schemas` up to it, `options` and
  column names of its schema. `tags`, `branches` and `consumers` have no versions, because no snapshot holds them.
- An empty table has every column too. Hidden pins are not shown.
- ``tagged_snapshot_id``, the table tags proposal's name of ``snapshot_id`` in ``$tags``, may be requested as a column.
- ``$files`` has one column more than Paimon: ``commit_snapshot``. Its ``file_path`` is relative to the table's folder,
  unless the file is outside. For a bucket with several folders (`placement`) it names the folder for new files,
  although an older file may be in another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.duration import format_iso_duration
from lakebed.errors import Corruption, InvalidRequest
from lakebed.table.branch.branches import list_branches
from lakebed.table.branch.consumers import load_consumers
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import Resolved, find_schema_id
from lakebed.table.changes.audit_log import audit_log
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import NO_ENTRIES
from lakebed.table.codec.python_values import python_values
from lakebed.table.codec.snapshot_json import json_object
from lakebed.table.files.splits import bucket_groups
from lakebed.table.model.model import DataField, Snapshot, TableSchema
from lakebed.table.model.types import arrow_type
from lakebed.table.read.partitions import partition_totals
from lakebed.table.schema.schema import encode_schema
from lakebed.texts import names_of

_TIME = pa.timestamp("ms")
_TEXT = pa.string()
_LONG = pa.int64()


def _columns(text: str) -> pa.Schema:
    """The columns of a table: names and types, as in a CREATE TABLE."""
    row = arrow_type(f"ROW<{text}>")
    return pa.schema([row.field(index) for index in range(row.num_fields)])


_SNAPSHOTS = _columns(
    "snapshot_id BIGINT NOT NULL, schema_id BIGINT NOT NULL, commit_user STRING NOT NULL, "
    "commit_identifier BIGINT NOT NULL, commit_kind STRING NOT NULL, commit_time TIMESTAMP(3) NOT NULL, "
    "base_manifest_list STRING NOT NULL, delta_manifest_list STRING NOT NULL, changelog_manifest_list STRING, "
    "total_record_count BIGINT, delta_record_count BIGINT, changelog_record_count BIGINT, watermark BIGINT, "
    "next_row_id BIGINT"
)
_TAGS = _columns(
    "tag_name STRING NOT NULL, snapshot_id BIGINT NOT NULL, schema_id BIGINT NOT NULL, "
    "commit_time TIMESTAMP(3) NOT NULL, record_count BIGINT, create_time TIMESTAMP(3), time_retained STRING"
)
_SCHEMAS = _columns(
    "schema_id BIGINT NOT NULL, fields STRING NOT NULL, partition_keys STRING NOT NULL, "
    "primary_keys STRING NOT NULL, options STRING NOT NULL, comment STRING, update_time TIMESTAMP(3) NOT NULL"
)
_FILES = _columns(
    "partition STRING, bucket INT NOT NULL, file_path STRING NOT NULL, file_format STRING NOT NULL, "
    "schema_id BIGINT NOT NULL, level INT NOT NULL, record_count BIGINT NOT NULL, "
    "file_size_in_bytes BIGINT NOT NULL, min_key STRING, max_key STRING, null_value_counts STRING NOT NULL, "
    "min_value_stats STRING NOT NULL, max_value_stats STRING NOT NULL, min_sequence_number BIGINT, "
    "max_sequence_number BIGINT, creation_time TIMESTAMP(3), deleteRowCount BIGINT, file_source STRING, "
    "first_row_id BIGINT, write_cols ARRAY<STRING>, commit_snapshot BIGINT"
)
_MANIFESTS = _columns(
    "file_name STRING NOT NULL, file_size BIGINT NOT NULL, num_added_files BIGINT NOT NULL, "
    "num_deleted_files BIGINT NOT NULL, schema_id BIGINT NOT NULL, min_partition_stats STRING, "
    "max_partition_stats STRING, min_row_id BIGINT, max_row_id BIGINT"
)
_OPTIONS = _columns("key STRING NOT NULL, value STRING NOT NULL")
_PARTITIONS = _columns(
    "partition STRING, record_count BIGINT NOT NULL, file_size_in_bytes BIGINT NOT NULL, "
    "file_count BIGINT NOT NULL, last_update_time TIMESTAMP(3), created_at TIMESTAMP(3), created_by STRING, "
    "updated_by STRING, options STRING, total_buckets INT NOT NULL, done BOOLEAN NOT NULL, "
    "deleted_record_count BIGINT"
)
_BRANCHES = _columns("branch_name STRING NOT NULL, create_time TIMESTAMP(3) NOT NULL")
_CONSUMERS = _columns("consumer_id STRING NOT NULL, next_snapshot_id BIGINT NOT NULL")
_STATISTICS = _columns(
    "snapshot_id BIGINT NOT NULL, schema_id BIGINT NOT NULL, mergedRecordCount BIGINT, mergedRecordSize BIGINT, "
    "colstat STRING"
)

_VERSIONLESS = ("tags", "branches", "consumers")
_ALIASES = {"tags": {"tagged_snapshot_id": "snapshot_id"}}


def read_system_table(
    branch: TableBranch, name: str, *, columns: str | Sequence[str] | None = None, version: Resolved | None = None
) -> pa.Table:
    """Read one system table.

    Args:
        name: with or without ``$``.
        columns: in this order; None is all.
        version: None is the newest state.

    Raises `InvalidRequest`: there is no such system table or column, and the message names the nearest; or the table
    has no versions and one was requested. Cost: that of reading its source: 1 GET for each snapshot, tag or schema; the
    manifests of one snapshot.
    """
    table_name = name.removeprefix("$")
    reader = SYSTEM_TABLES.get(table_name)
    if reader is None:
        nearest = get_close_matches(table_name, SYSTEM_TABLES, n=1)
        hint = f"did you mean ${nearest[0]}? " if nearest else ""
        names_of_all = ", ".join("$" + name for name in SYSTEM_TABLES)
        raise InvalidRequest(
            f"There is no system table ${table_name}: {hint}there are {names_of_all}.",
            kind="unknown_system_table",
            name=table_name,
        )
    if version is not None and table_name in _VERSIONLESS:
        raise InvalidRequest(
            f"${table_name} of snapshot {version.snapshot.id} cannot be shown: snapshots do not hold {table_name}, so "
            "there is only what there is now. Leave the version out.",
            kind="no_versions",
            name=table_name,
        )
    if version is not None and version.branch is not None:
        branch = branch.of_branch(version.branch)
    table = reader(branch.look(), None if version is None else version.snapshot)
    if columns is None:
        return table
    columns = names_of(columns)
    aliases = _ALIASES.get(table_name, {})
    unknown_columns = [column for column in columns if aliases.get(column, column) not in table.column_names]
    if unknown_columns:
        raise InvalidRequest(
            f"${table_name} has no column {unknown_columns[0]!r}: it has {', '.join(table.column_names)}.",
            kind="unknown_column",
            column=unknown_columns[0],
        )
    return table.select([aliases.get(column, column) for column in columns]).rename_columns(list(columns))


def _schema_of(branch: TableBranch, snapshot: Snapshot | None) -> TableSchema:
    """The schema of a version, or the newest schema."""
    return branch.schema if snapshot is None else branch.schemas.load(find_schema_id(branch, snapshot))


def _live_entries(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    """The live files of a version, or of the newest one; no rows for a table without versions."""
    head = snapshot or branch.snapshots.latest()
    return NO_ENTRIES if head is None else branch.manifests.live_entries(head)


def _snapshots_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    names = [field.name for field in _SNAPSHOTS if field.name not in ("snapshot_id", "commit_time")]
    rows = (
        {
            "snapshot_id": version.id,
            "commit_time": version.time_ms,
            **{name: getattr(version, name) for name in names},
        }
        for version in branch.snapshots.walk()
        if snapshot is None or version.id <= snapshot.id
    )
    return _table(rows, _SNAPSHOTS)


def _tags_table(branch: TableBranch, _: Snapshot | None) -> pa.Table:
    rows = (
        {
            "tag_name": tag.name,
            "snapshot_id": tag.snapshot.id,
            "schema_id": tag.snapshot.schema_id,
            "commit_time": tag.snapshot.time_ms,
            "record_count": tag.snapshot.total_record_count,
            "create_time": tag.create_time_ms,
            "time_retained": None if tag.lifetime_ms is None else format_iso_duration(tag.lifetime_ms),
        }
        for tag in branch.tags.list()
    )
    return _table(rows, _TAGS)


def _schemas_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    def row(schema: TableSchema) -> dict[str, Any]:
        members = msgspec.json.decode(encode_schema(schema))
        return {
            "schema_id": schema.id,
            "fields": _json(members["fields"]),
            "partition_keys": _json(schema.partition_keys),
            "primary_keys": _json(schema.primary_keys),
            "options": _json(schema.options),
            "comment": schema.comment,
            "update_time": schema.time_ms,
        }

    last = None if snapshot is None else find_schema_id(branch, snapshot)
    ids = [schema_id for schema_id in branch.schemas.ids() if last is None or schema_id <= last]
    return _table((row(branch.schemas.load(schema_id)) for schema_id in ids), _SCHEMAS)


def _options_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    options = _schema_of(branch, snapshot).options
    return _table(({"key": key, "value": value} for key, value in options.items()), _OPTIONS)


def _branches_table(branch: TableBranch, _: Snapshot | None) -> pa.Table:
    rows = ({"branch_name": entry.name, "create_time": entry.created_ms} for entry in list_branches(branch.main))
    return _table(rows, _BRANCHES)


def _consumers_table(branch: TableBranch, _: Snapshot | None) -> pa.Table:
    rows = (
        {"consumer_id": consumer.name, "next_snapshot_id": consumer.next_snapshot_id}
        for consumer in load_consumers(branch.store, branch.layout)
    )
    return _table(rows, _CONSUMERS)


def _statistics_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    """The statistics that another client's ANALYZE left and that every later snapshot names: at most one row."""
    head = snapshot or branch.snapshots.latest()
    if head is None or head.statistics is None:
        return _STATISTICS.empty_table()
    path = branch.layout.statistics(head.statistics)
    statistics = json_object(branch.store.get(path), path)
    row = {
        "snapshot_id": statistics.get("snapshotId"),
        "schema_id": statistics.get("schemaId"),
        "mergedRecordCount": statistics.get("mergedRecordCount"),
        "mergedRecordSize": statistics.get("mergedRecordSize"),
        "colstat": _json(statistics.get("colStats") or {}),
    }
    for name in ("snapshot_id", "schema_id", "mergedRecordCount", "mergedRecordSize"):
        if not isinstance(row[name], int) and (row[name] is not None or name in ("snapshot_id", "schema_id")):
            raise Corruption(f"{path} is not a file of statistics: its {name} is {row[name]!r}.", path=path)
    return _table([row], _STATISTICS)


def _manifests_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    head = snapshot or branch.snapshots.latest()
    metas = [] if head is None else branch.manifests.all_metas(head)
    fields = _schema_of(branch, snapshot).partition_fields
    least = _partition_texts([meta.partition_stats.min_values for meta in metas], fields)
    greatest = _partition_texts([meta.partition_stats.max_values for meta in metas], fields)
    rows = (
        {
            "file_name": meta.file_name,
            "file_size": meta.file_size,
            "num_added_files": meta.added_file_count,
            "num_deleted_files": meta.deleted_file_count,
            "schema_id": meta.schema_id,
            "min_partition_stats": least[index],
            "max_partition_stats": greatest[index],
        }
        for index, meta in enumerate(metas)
    )
    return _table(rows, _MANIFESTS)


def _partitions_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    entries = _live_entries(branch, snapshot)
    totals = partition_totals(entries)
    count = totals.num_rows
    null_columns = {name: pa.nulls(count, _PARTITIONS.field(name).type) for name in _PARTITIONS.names}
    columns = {
        **null_columns,
        "partition": pa.array(_partition_names(totals["partition"], _schema_of(branch, snapshot)), _TEXT),
        "record_count": totals["row_count_sum"],
        "file_size_in_bytes": totals["file_size_sum"],
        "file_count": totals["file_name_count"],
        "last_update_time": totals["creation_time_ms_max"].cast(_LONG).cast(_TIME),
        "total_buckets": totals["bucket_count_distinct"].cast(pa.int32()),
        "done": pa.array([False] * count),
        "deleted_record_count": pa.array([0] * count, _LONG),
    }
    table = pa.table([columns[name] for name in _PARTITIONS.names], schema=_PARTITIONS)
    return table.take(pc.sort_indices(table["partition"]))


def _files_table(branch: TableBranch, snapshot: Snapshot | None) -> pa.Table:
    schema = _schema_of(branch, snapshot)
    entries = _live_entries(branch, snapshot)
    count = entries.num_rows
    keys = schema.key_fields
    statistics = _value_statistics(branch, entries, schema)
    sources = entries["file_source"].to_pylist()
    columns = {
        "partition": pa.array(_partition_names(entries["partition"], schema), _TEXT),
        "bucket": entries["bucket"],
        "file_path": _paths(entries, schema=schema),
        "file_format": pc.replace_substring_regex(entries["file_name"], pattern=r"(?s)^.*\.", replacement=""),
        "schema_id": entries["schema_id"],
        "level": entries["level"],
        "record_count": entries["row_count"],
        "file_size_in_bytes": entries["file_size"],
        "min_key": pa.array(_key_texts(entries["min_key"], keys) if keys else [None] * count, _TEXT),
        "max_key": pa.array(_key_texts(entries["max_key"], keys) if keys else [None] * count, _TEXT),
        "null_value_counts": pa.array([nulls for nulls, _, _ in statistics], _TEXT),
        "min_value_stats": pa.array([least for _, least, _ in statistics], _TEXT),
        "max_value_stats": pa.array([greatest for _, _, greatest in statistics], _TEXT),
        "min_sequence_number": entries["min_sequence_number"],
        "max_sequence_number": entries["max_sequence_number"],
        "creation_time": entries["creation_time_ms"],
        "deleteRowCount": entries["delete_row_count"],
        "file_source": pa.array([None if source is None else str(source) for source in sources], _TEXT),
        "first_row_id": entries["first_row_id"],
        "write_cols": entries["write_cols"],
        "commit_snapshot": entries["commit_snapshot"],
    }
    return pa.table([columns[field.name].cast(field.type) for field in _FILES], schema=_FILES)


def _value_statistics(branch: TableBranch, live_entries: pa.Table, schema: TableSchema) -> list[tuple[str, str, str]]:
    """(null counts, minima, maxima) of each file as JSON by the newest column names, matched by field id."""
    texts = [("{}", "{}", "{}")] * live_entries.num_rows
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    for row, (schema_id, names) in enumerate(
        zip(live_entries["schema_id"].to_pylist(), live_entries["value_stats_cols"].to_pylist(), strict=True)
    ):
        groups.setdefault((schema_id, None if names is None else tuple(names)), []).append(row)
    newest = {field.id: field.name for field in schema.fields}
    for (schema_id, names), rows in groups.items():
        written_fields = branch.schemas.load(schema_id).fields
        fields = (
            written_fields
            if names is None
            else [field for name in names for field in written_fields if field.name == name]
        )
        part = live_entries.take(pa.array(rows))
        current_fields = [newest.get(field.id) for field in fields]
        least = _values(part["value_stats_min"], fields)
        greatest = _values(part["value_stats_max"], fields)
        nulls = part["value_stats_null_counts"].to_pylist()
        for index, row in enumerate(rows):
            texts[row] = (
                _json_map(current_fields, nulls[index] or []),
                _json_map(current_fields, least[index]),
                _json_map(current_fields, greatest[index]),
            )
    return texts


SYSTEM_TABLES: dict[str, Callable[[TableBranch, Snapshot | None], pa.Table]] = {
    "snapshots": _snapshots_table,
    "tags": _tags_table,
    "schemas": _schemas_table,
    "files": _files_table,
    "manifests": _manifests_table,
    "options": _options_table,
    "partitions": _partitions_table,
    "branches": _branches_table,
    "consumers": _consumers_table,
    "statistics": _statistics_table,
    "audit_log": audit_log,
}
"""Every system table by name."""


def _table(rows: Any, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def _json_map(names: Sequence[str | None], values: Sequence[Any]) -> str:
    return _json({name: _plain(value) for name, value in zip(names, values, strict=False) if name is not None})


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else value


def _values(rows: pa.ChunkedArray, fields: Sequence[DataField]) -> list[tuple[Any, ...]]:
    """The cells of BinaryRows, one tuple a row; empty tuples where nothing is stored."""
    if not fields:
        return [()] * len(rows)
    columns = decode_rows(rows.combine_chunks(), [field.type for field in fields])
    return list(zip(*map(python_values, columns), strict=True))


def _key_texts(rows: pa.ChunkedArray, fields: Sequence[DataField]) -> list[str]:
    return [_json([_plain(value) for value in key]) for key in _values(rows, fields)]


def _partition_names(rows: pa.ChunkedArray, schema: TableSchema) -> list[str | None]:
    """``dt=2013-01-01/hour=3`` a row; None without partitions."""
    fields = schema.partition_fields
    if not fields:
        return [None] * len(rows)
    return [
        "/".join(f"{field.name}={_plain(value)}" for field, value in zip(fields, values, strict=True))
        for values in _values(rows, fields)
    ]


def _paths(live_entries: pa.Table, *, schema: TableSchema) -> pa.Array:
    """Where a writer would put each file today, relative to the table's folder, or the file's external path."""
    groups = bucket_groups(live_entries, schema=schema)
    folder_at = np.zeros(live_entries.num_rows, np.int64)
    for position, group in enumerate(groups):
        folder_at[group.members] = position
    folders = pa.array([group.folder for group in groups], _TEXT).take(pa.array(folder_at))
    paths = pc.binary_join_element_wise(folders, live_entries["file_name"].combine_chunks(), "/")
    return pc.coalesce(live_entries["external_path"].combine_chunks(), paths)


def _partition_texts(rows: Sequence[bytes], fields: Sequence[DataField]) -> list[str]:
    """``{2013-01-01, 3}`` a row, ``null`` for null; ``{}`` without partitions."""
    values = _values(pa.chunked_array([pa.array(rows, pa.binary())]), fields)
    return ["{" + ", ".join("null" if value is None else str(_plain(value)) for value in row) + "}" for row in values]
