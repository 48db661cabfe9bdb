"""Manifests and manifest lists: Avro on disk, Arrow in memory. Pure.

Owns: the Avro schemas (names DO NOT CHANGE: on disk, shared with other clients), lakebed's three extra fields, and the
fold of ADD and DELETE entries. The extra fields are nullable and last in their records, so other clients skip them:

- ``_COMMIT_SNAPSHOT`` (long) of the data file meta: the snapshot that first committed the file. Null on an ADD means
  *inherited* from the manifest's ``_ADDED_SNAPSHOT``; a DELETE never inherits. If the writer schema lacks the field,
  another client wrote or merged the entry: the snapshot stays unknown, -1.
- ``_STATS_VERSION`` (int) of the data file meta: the rules of its bounds (`model.STATS_VERSION`). Null: an older
  lakebed or another client wrote them, and `file_stats` does not trust every bound.
- ``_ADDED_SNAPSHOT`` (long) of the manifest list entry: the snapshot whose delta list first named the manifest.

Invariants: entries are decoded with the file's writer schema; optional fields may be missing; unknown fields are
dropped when manifests are merged; entries are columns, never dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

import lakebed.compute as pc
from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.table.codec.avro import (
    SMALL_COUNT_MAX,
    Content,
    FewRecords,
    RecordSchema,
    decode_columns,
    decode_extended,
    decode_joined,
    encode_columns,
    encode_values,
    explain_damage,
)
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows
from lakebed.table.codec.ragged import I64, one_array
from lakebed.table.codec.row_codes import first_and_last, row_codes
from lakebed.table.codec.stats import compute_stats
from lakebed.table.model.model import COMMIT_SNAPSHOT_UNKNOWN, BucketChange, DataFile, ManifestMeta, Stats, TableSchema

ADD: Final = 0
DELETE: Final = 1
MANIFEST_VERSION: Final = 2
"""Value of ``_VERSION`` in every record. DO NOT CHANGE: on disk."""


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


_STRINGS: Final = {"type": "array", "items": "string"}
_TIME: Final = {"type": "long", "logicalType": "timestamp-millis"}
_LONGS: Final = {"type": "array", "items": ["null", "long"]}
_LONG: Final = pa.int64()
_TEXT: Final = pa.string()
_TEXTS: Final = pa.list_(pa.string())
_COUNTS: Final = pa.list_(pa.int64())


class _Field(NamedTuple):
    """A column, and the field of the Avro record that it comes from."""

    name: str
    kind: pa.DataType
    path: str
    avro_type: Any

    @property
    def is_optional(self) -> bool:
        return isinstance(self.avro_type, list)


_COLUMNS: Final = (
    _Field("kind", pa.int8(), "_KIND", "int"),
    _Field("partition", pa.binary(), "_PARTITION", "bytes"),
    _Field("bucket", pa.int32(), "_BUCKET", "int"),
    _Field("total_buckets", pa.int32(), "_TOTAL_BUCKETS", "int"),
    _Field("file_name", pa.string(), "_FILE._FILE_NAME", "string"),
    _Field("file_size", pa.int64(), "_FILE._FILE_SIZE", "long"),
    _Field("row_count", pa.int64(), "_FILE._ROW_COUNT", "long"),
    _Field("min_key", pa.binary(), "_FILE._MIN_KEY", "bytes"),
    _Field("max_key", pa.binary(), "_FILE._MAX_KEY", "bytes"),
    _Field("key_stats_min", pa.binary(), "_FILE._KEY_STATS._MIN_VALUES", "bytes"),
    _Field("key_stats_max", pa.binary(), "_FILE._KEY_STATS._MAX_VALUES", "bytes"),
    _Field("key_stats_null_counts", _COUNTS, "_FILE._KEY_STATS._NULL_COUNTS", _optional(_LONGS)),
    _Field("value_stats_min", pa.binary(), "_FILE._VALUE_STATS._MIN_VALUES", "bytes"),
    _Field("value_stats_max", pa.binary(), "_FILE._VALUE_STATS._MAX_VALUES", "bytes"),
    _Field("value_stats_null_counts", _COUNTS, "_FILE._VALUE_STATS._NULL_COUNTS", _optional(_LONGS)),
    _Field("min_sequence_number", pa.int64(), "_FILE._MIN_SEQUENCE_NUMBER", "long"),
    _Field("max_sequence_number", pa.int64(), "_FILE._MAX_SEQUENCE_NUMBER", "long"),
    _Field("schema_id", pa.int64(), "_FILE._SCHEMA_ID", "long"),
    _Field("level", pa.int32(), "_FILE._LEVEL", "int"),
    _Field("extra_files", _TEXTS, "_FILE._EXTRA_FILES", _STRINGS),
    _Field("creation_time_ms", pa.int64(), "_FILE._CREATION_TIME", _optional(_TIME)),
    _Field("delete_row_count", pa.int64(), "_FILE._DELETE_ROW_COUNT", _optional("long")),
    _Field("embedded_index", pa.binary(), "_FILE._EMBEDDED_FILE_INDEX", _optional("bytes")),
    _Field("file_source", pa.int8(), "_FILE._FILE_SOURCE", _optional("int")),
    _Field("value_stats_cols", _TEXTS, "_FILE._VALUE_STATS_COLS", _optional(_STRINGS)),
    _Field("external_path", pa.string(), "_FILE._EXTERNAL_PATH", _optional("string")),
    _Field("first_row_id", pa.int64(), "_FILE._FIRST_ROW_ID", _optional("long")),
    _Field("write_cols", _TEXTS, "_FILE._WRITE_COLS", _optional(_STRINGS)),
    _Field("commit_snapshot", pa.int64(), "_FILE._COMMIT_SNAPSHOT", _optional("long")),
    _Field("stats_version", pa.int32(), "_FILE._STATS_VERSION", _optional("int")),
)
_INTEGERS: Final = {field.path: field.kind for field in _COLUMNS if pa.types.is_integer(field.kind)}
_ENTRY_RECORD: Final = RecordSchema.of(
    "ManifestEntry",
    {"_VERSION": "int"} | {field.path: field.avro_type for field in _COLUMNS},
    names={"_FILE": "DataFileMeta"},
)
ENTRY_SCHEMA: Final = pa.schema([pa.field(field.name, field.kind, nullable=field.is_optional) for field in _COLUMNS])
"""One row for each manifest entry.

Columns: `kind` (`ADD`, `DELETE`), `partition` (BinaryRow), `bucket`, `total_buckets`, then the fields of `DataFile` in
order, statistics as ``*_min``, ``*_max``, ``*_null_counts``.
"""
NO_ENTRIES: Final = pa.Table.from_arrays([pa.nulls(0, field.type) for field in ENTRY_SCHEMA], schema=ENTRY_SCHEMA)
"""A table without entries, made once: every read of a version begins with it.

`empty_table` takes a millisecond and loads pandas.
"""

_FEW: Final = 64
"""Names of up to this many entries are compared as Python texts, which takes less time than Arrow's fixed cost."""

_ENTRY: Final = pa.struct(list(ENTRY_SCHEMA))
_STATS: Final = {
    f"{stats}_{part}": f"{stats}.{name}"
    for stats in ("key_stats", "value_stats")
    for part, name in (("min", "min_values"), ("max", "max_values"), ("null_counts", "null_counts"))
}
_FILE_VALUES: Final = attrgetter(*(_STATS.get(name, name) for name in ENTRY_SCHEMA.names[4:]))
"""Reads from a `DataFile` the values of an entry."""

IDENTITY: Final = ("partition", "bucket", "level", "file_name")
"""The columns by which a DELETE identifies its ADD."""

_LIST_COLUMNS: Final = (
    _Field("file_name", pa.string(), "_FILE_NAME", "string"),
    _Field("file_size", pa.int64(), "_FILE_SIZE", "long"),
    _Field("added_file_count", pa.int64(), "_NUM_ADDED_FILES", "long"),
    _Field("deleted_file_count", pa.int64(), "_NUM_DELETED_FILES", "long"),
    _Field("min_values", pa.binary(), "_PARTITION_STATS._MIN_VALUES", "bytes"),
    _Field("max_values", pa.binary(), "_PARTITION_STATS._MAX_VALUES", "bytes"),
    _Field("null_counts", _COUNTS, "_PARTITION_STATS._NULL_COUNTS", _optional(_LONGS)),
    _Field("schema_id", pa.int64(), "_SCHEMA_ID", "long"),
    _Field("added_snapshot", pa.int64(), "_ADDED_SNAPSHOT", _optional("long")),
)
_LIST_RECORD: Final = RecordSchema.of(
    "ManifestFileMeta", {"_VERSION": "int"} | {field.path: field.avro_type for field in _LIST_COLUMNS}
)


def encode_manifest(entries: pa.Table) -> bytes:
    """The bytes of a manifest.

    Args:
        entries: `ENTRY_SCHEMA`; `commit_snapshot` null on an ADD means inherited from the snapshot being committed.
    """
    count = entries.num_rows
    if count <= SMALL_COUNT_MAX:
        values = {field.path: entries.column(field.name).to_pylist() for field in _COLUMNS}
        return encode_values(_ENTRY_RECORD, {**values, "_VERSION": [MANIFEST_VERSION] * count}, count)
    columns = {field.path: one_array(entries.column(field.name)) for field in _COLUMNS}
    columns["_VERSION"] = pa.array(np.full(count, MANIFEST_VERSION, np.int32))
    return encode_columns(_ENTRY_RECORD, columns, count)


def decode_manifest(body: Buffer, *, path: str, added_snapshot: int | None) -> pa.Table:
    """The entries of a manifest.

    Args:
        added_snapshot: `ManifestMeta.added_snapshot` of this manifest, which ADDs without a commit snapshot inherit.

    Returns:
        `ENTRY_SCHEMA`, in file order; `commit_snapshot` is never null: -1 is unknown.

    Raises `Corruption`: unreadable, or an entry without a field the format requires; `UnsupportedFormat`: records of
    another ``_VERSION``.
    """
    count, columns = decode_columns(body, path=path, narrow=_INTEGERS)
    return _entries_of(count, columns, path=path, added_snapshot=added_snapshot)


class JoinedEntries(NamedTuple):
    """The entries of manifests that were decoded together."""

    positions: list[int]
    """Positions of the manifests, ascending."""
    counts: list[int]
    """Entries of each manifest."""
    entries: pa.Table
    """As `decode_manifest` returns them, one manifest after the other."""


def decode_manifests(bodies: Sequence[Buffer], *, added_snapshots: Sequence[int | None]) -> list[JoinedEntries]:
    """The entries of many small manifests, decoded together.

    `decode_manifest` decodes the manifests that are in no result: see `avro.decode_joined`.
    """
    results = []
    for group in decode_joined(bodies):
        group_snapshots = [added_snapshots[position] for position in group.positions]
        default_snapshots = np.array(
            [COMMIT_SNAPSHOT_UNKNOWN if snapshot is None else snapshot for snapshot in group_snapshots], np.int64
        )
        try:
            entries = _entries_of(
                sum(group.counts), group.columns, path="", added_snapshot=np.repeat(default_snapshots, group.counts)
            )
        except (Corruption, UnsupportedFormat):
            continue
        results.append(JoinedEntries(group.positions, group.counts, entries))
    return results


def _entries_of(count: int, columns: dict[str, pa.Array], *, path: str, added_snapshot: int | I64 | None) -> pa.Table:
    """The entries of a manifest; `added_snapshot` may be one number or one for each entry."""
    _check_version(count, columns, path)
    arrays = [_column(columns, field, count=count, path=path) for field in _COLUMNS]
    entries = pa.Table.from_arrays(arrays, schema=ENTRY_SCHEMA)
    kinds = entries.column("kind").to_numpy()
    if ((kinds != ADD) & (kinds != DELETE)).any():
        raise UnsupportedFormat(f"{path} has entries of an unknown kind: upgrade lakebed.", path=path)
    last = ENTRY_SCHEMA.get_field_index("commit_snapshot")
    stated_snapshots = entries.column(last)
    if stated_snapshots.null_count == 0:
        return entries
    inherited: int | I64 = COMMIT_SNAPSHOT_UNKNOWN
    if added_snapshot is not None and "_FILE._COMMIT_SNAPSHOT" in columns:
        inherited = added_snapshot
    default = np.where(kinds == ADD, inherited, COMMIT_SNAPSHOT_UNKNOWN).astype(np.int64)
    resolved_snapshots = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(default)])
    if stated_snapshots.null_count < count:
        resolved_snapshots = pc.coalesce(stated_snapshots, resolved_snapshots)
    return entries.set_column(last, ENTRY_SCHEMA.field(last), resolved_snapshots)


def _check_version(count: int, columns: dict[str, pa.Array], path: str) -> None:
    versions = _column(columns, _Field("", pa.int64(), "_VERSION", "int"), count=count, path=path)
    if count and (versions.to_numpy() != MANIFEST_VERSION).any():
        wrong = next(version for version in versions.unique().to_pylist() if version != MANIFEST_VERSION)
        raise UnsupportedFormat(
            f"{path} has records of _VERSION {wrong}; this lakebed reads version {MANIFEST_VERSION}.",
            path=path,
            version=wrong,
        )


def _column(columns: dict[str, pa.Array], field: _Field, *, count: int, path: str) -> pa.Array:
    column = columns.get(field.path)
    if column is None:
        if not field.is_optional and count:
            raise Corruption(f"{path} has no field {field.path}, which the format requires.", path=path)
        return pa.nulls(count, field.kind)
    if not field.is_optional and column.null_count:
        raise Corruption(f"{path} has an entry whose {field.path} is null.", path=path)
    try:
        return column if column.type == field.kind else column.cast(field.kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Corruption(f"{path}: field {field.path} has unreadable values: {error}.", path=path) from error


def encode_manifest_list(metas: Sequence[ManifestMeta]) -> bytes:
    """The bytes of a manifest list."""
    values: dict[str, list[Any]] = {"_VERSION": [MANIFEST_VERSION] * len(metas)}
    for field in _LIST_COLUMNS:
        values[field.path] = [
            getattr(meta.partition_stats if "." in field.path else meta, field.name) for meta in metas
        ]
    if len(metas) <= SMALL_COUNT_MAX:
        return encode_values(_LIST_RECORD, values, len(metas))
    kinds = {field.path: field.kind for field in _LIST_COLUMNS} | {"_VERSION": pa.int32()}
    return encode_columns(_LIST_RECORD, {path: pa.array(values[path], kinds[path]) for path in values}, len(metas))


def decode_manifest_list(body: Buffer, *, path: str) -> list[ManifestMeta]:
    """The manifests of a list, in order. Raises `Corruption`, `UnsupportedFormat`: see `decode_manifest`."""
    return list(decode_extended_list(body, path=path, parts=()).metas)


class DecodedList(NamedTuple):
    """A manifest list, with its bytes, by which a later list that repeats it is recognised."""

    metas: tuple[ManifestMeta, ...]
    content: Content


def decode_extended_list(body: Buffer, *, path: str, parts: Sequence[DecodedList]) -> DecodedList:
    """As `decode_manifest_list`, for a list that may begin with other lists. These are not decoded again.

    Args:
        parts: the other lists, one after the other; see `avro.decode_extended`.

    Cost: as `decode_manifest_list`, for the manifests that the parts do not have.
    """
    content, known_count, count, columns = decode_extended(body, path=path, parts=[part.content for part in parts])
    metas: tuple[ManifestMeta, ...] = ()
    for part in parts[:known_count]:
        metas += part.metas
    return DecodedList(metas if count == 0 else (*metas, *_metas_of(count, columns, path=path)), content)


def decode_manifest_lists(bodies: Sequence[Buffer]) -> dict[int, list[ManifestMeta]]:
    """The manifests of many lists, decoded together, by the position of the list.

    `decode_manifest_list` decodes the lists that are in no result: see `avro.decode_joined`.
    """
    results: dict[int, list[ManifestMeta]] = {}
    for group in decode_joined(bodies):
        try:
            metas = _metas_of(sum(group.counts), group.columns, path="")
        except (Corruption, UnsupportedFormat):
            continue
        start = 0
        for position, count in zip(group.positions, group.counts, strict=True):
            results[position] = metas[start : start + count]
            start += count
    return results


def _metas_of(count: int, records: FewRecords | dict[str, pa.Array], *, path: str) -> list[ManifestMeta]:
    values = _plain_values(records) if isinstance(records, FewRecords) else None
    if values is None:  # Arrow converts what it can, and says what is wrong
        with explain_damage(path):
            columns = records.columns({}) if isinstance(records, FewRecords) else records
        _check_version(count, columns, path)
        values = [_column(columns, field, count=count, path=path).to_pylist() for field in _LIST_COLUMNS]
    return [
        ManifestMeta(name, size, added, deleted, Stats(low, high, _tuple(nulls)), schema_id, added_snapshot)
        for name, size, added, deleted, low, high, nulls, schema_id, added_snapshot in zip(*values, strict=True)
    ]


def _plain_values(records: FewRecords) -> list[list[Any]] | None:
    """The values of a list's fields, if each has the type that lists have there; None: some do not."""
    values = records.values()
    if any(version != MANIFEST_VERSION for version in values.get("_VERSION", [None])):
        return None
    columns: list[list[Any]] = []
    for field in _LIST_COLUMNS:
        column = values.get(field.path)
        if column is None and field.is_optional:
            column = [None] * len(records.rows)
        if column is None or not all(_is_plain(value, field) for value in column):
            return None
        columns.append(column)
    return columns


def _is_plain(value: Any, field: _Field) -> bool:
    if value is None:
        return field.is_optional
    if field.kind == _COUNTS:
        return type(value) is list and all(count is None or type(count) is int for count in value)
    return type(value) is (int if field.kind == _LONG else str if field.kind == _TEXT else bytes)


def _tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def as_deletes(entries: pa.Table) -> pa.Table:
    """The same entries as DELETEs."""
    position = entries.schema.get_field_index("kind")
    kind = entries.schema.field(position)
    return entries.set_column(position, kind, pa.array(np.full(entries.num_rows, DELETE), kind.type))


def entries_of_changes(changes: Sequence[BucketChange]) -> pa.Table:
    """The manifest entries of some changes: for each change its DELETEs, then its ADDs.

    Returns:
        `ENTRY_SCHEMA`; `commit_snapshot` as the files carry it (null: inherited).
    """
    rows = [
        (kind, change.partition, change.bucket, change.total_buckets, *_FILE_VALUES(file))
        for change in changes
        for kind, files in ((DELETE, change.deleted), (ADD, change.added))
        for file in files
    ]
    # Build one array of rows: each Arrow call takes several microseconds, and there are 30 columns.
    return pa.Table.from_struct_array(pa.array(rows, _ENTRY)) if rows else NO_ENTRIES


def files_of(entries: pa.Table) -> list[DataFile]:
    """The files of some entries as Python objects, in order. For the files of a split, not for those of a table."""
    columns = {name: entries.column(name).to_pylist() for name in ENTRY_SCHEMA.names[4:]}
    for stats in ("key_stats", "value_stats"):
        parts = [columns.pop(f"{stats}_{part}") for part in ("min", "max", "null_counts")]
        columns[stats] = [Stats(low, high, _tuple(nulls)) for low, high, nulls in zip(*parts, strict=True)]
    for name in ("extra_files", "value_stats_cols", "write_cols"):
        columns[name] = [_tuple(values) for values in columns[name]]
    names = list(columns)
    return [DataFile(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def row_count_delta(entries: pa.Table) -> int:
    """Rows in the files that a change adds, less those in the files that it deletes."""
    row_counts = entries["row_count"].to_numpy()
    return int(np.where(entries["kind"].to_numpy() == ADD, row_counts, -row_counts).sum())


def fold(entries: pa.Table) -> pa.Table:
    """The entries that remain when DELETEs take back earlier ADDs, in order of their last appearance.

    For each identity (partition, bucket, level, file name) the last ADD stays if no DELETE follows it. A DELETE without
    an earlier ADD in `entries` stays too: its ADD is in an older manifest.

    Cost: one hashing and one sorting of all rows.
    """
    if entries.num_rows == 0:
        return entries
    (codes,) = row_codes(IDENTITY, entries)
    first, last = first_and_last(codes)
    kinds = entries.column("kind").to_numpy()
    # An ADD with a later DELETE leaves nothing; a DELETE of an earlier ADD stays.
    positions = np.sort(last[(kinds[last] == ADD) | (kinds[first] == DELETE)])
    return entries if len(positions) == entries.num_rows else entries.take(pa.array(positions))


def _is_all_new(entries: pa.Table) -> bool:
    """Whether these are few entries, all of them ADDs of files with different names, so that none cancels another."""
    names = entries.column("file_name").to_pylist()
    return len(set(names)) == len(names) and DELETE not in entries.column("kind").to_pylist()


def live_after(live: pa.Table, entries: pa.Table) -> pa.Table:
    """The live files after some changes: `fold` of `live` and `entries`, ADD entries only.

    A DELETE without an ADD is ignored, as in every other client.

    Args:
        live: a result of this function, or an empty table.
        entries: later manifest entries, in committed order.

    Cost: `fold` of `entries`, and one look-up of each live file's name. Nothing is copied if no live file changes.
    """
    related_rows = np.zeros(0, np.int64)
    if live.num_rows:
        is_named = pc.is_in(live.column("file_name"), value_set=entries.column("file_name").combine_chunks())
        related_rows = np.flatnonzero(is_named.to_numpy())
    if not len(related_rows) and entries.num_rows <= _FEW and _is_all_new(entries):
        return pa.concat_tables([live, entries])
    related_entries = pa.concat_tables([live.take(pa.array(related_rows)), entries]) if len(related_rows) else entries
    (codes,) = row_codes(IDENTITY, related_entries)
    _, last = first_and_last(codes)
    positions = np.sort(last[related_entries.column("kind").to_numpy()[last] == ADD])
    stays = np.ones(live.num_rows, np.bool_)
    stays[related_rows] = False
    stays[related_rows[positions[positions < len(related_rows)]]] = True
    before = live if stays.all() else live.filter(pa.array(stays))
    after = positions[positions >= len(related_rows)] - len(related_rows)
    return pa.concat_tables([before, entries if len(after) == entries.num_rows else entries.take(pa.array(after))])


def manifest_meta(entries: pa.Table, *, file_name: str, file_size: int, schema: TableSchema) -> ManifestMeta:
    """How a manifest list describes a manifest that holds `entries`."""
    deleted_count = int(np.count_nonzero(entries["kind"].to_numpy() == DELETE))
    return ManifestMeta(
        file_name=file_name,
        file_size=file_size,
        added_file_count=entries.num_rows - deleted_count,
        deleted_file_count=deleted_count,
        partition_stats=_partition_stats(entries, schema),
        schema_id=schema.id,
    )


def _partition_stats(entries: pa.Table, schema: TableSchema) -> Stats:
    fields = schema.partition_fields
    if not fields:
        return Stats(min_values=EMPTY_ROW, max_values=EMPTY_ROW, null_counts=())
    columns = decode_rows(pc.unique(entries["partition"]), [field.type for field in fields])
    return compute_stats(pa.table(columns, names=[field.name for field in fields]), fields)
