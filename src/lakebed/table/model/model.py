"""The data types of a table: fields, schemas, snapshots, tags, data files, changes, splits. Pure data, no I/O.

Invariants:
- A `Snapshot` is immutable; a tag is a snapshot plus two optional fields.
- `DataFile.commit_snapshot` is None while *inherited* (the file is new in the change being committed) and -1 when
  unknown (another client wrote the entry); readers of manifests resolve None.
- Partition values are the raw BinaryRow bytes of the manifest (`partition`); files are grouped by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from lakebed.table.model.frames import ArrowStream
from lakebed.texts import LONG_MAX, utc

BATCH_COMMIT_IDENTIFIER = 2**63 - 1
"""The commit identifier of every batch write. DO NOT CHANGE: on disk, shared with other clients."""

COMMIT_SNAPSHOT_UNKNOWN = -1

STATS_VERSION = 1
"""Version of the rules for statistics in new entries: a bound that is not null bounds every value of the file, and a
column with NaN has no bounds. DO NOT CHANGE: on disk."""

ROLLED_BACK_TO = "lakebed.rolled-back-to"
"""Property of a rollback's snapshot: the id of its target. DO NOT CHANGE: on disk."""

CommitKind = Literal["APPEND", "COMPACT", "OVERWRITE", "ANALYZE"]


class FileSource:
    """The origin of a data file. DO NOT CHANGE: on disk."""

    APPEND = 0
    COMPACT = 1


@dataclass(frozen=True, slots=True)
class DataField:
    """One column. `id` is its identity: a rename keeps it, a column added again gets a new one."""

    id: int
    name: str
    type: str
    """Paimon's type text without nullability, such as ``BIGINT`` or ``DECIMAL(10, 2)``."""
    nullable: bool = True
    description: str | None = None
    default_value: str | None = None
    """Text of the default value that other clients write. lakebed keeps it and writes null."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table's schema (``schema/schema-<id>``)."""

    id: int
    fields: tuple[DataField, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...] = ()
    primary_keys: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    time_ms: int = 0

    @property
    def trimmed_primary_keys(self) -> tuple[str, ...]:
        """Primary keys without partition keys. The files of a bucket are sorted by them."""
        return tuple(key for key in self.primary_keys if key not in self.partition_keys)

    @property
    def key_fields(self) -> tuple[DataField, ...]:
        """The columns of `trimmed_primary_keys`."""
        return self.select_fields(self.trimmed_primary_keys)

    @property
    def partition_fields(self) -> tuple[DataField, ...]:
        """The partition columns."""
        return self.select_fields(self.partition_keys)

    def select_fields(self, names: Sequence[str]) -> tuple[DataField, ...]:
        """The columns with these names, in this order; names without a column are left out."""
        by_name = {column.name: column for column in self.fields}
        return tuple(by_name[name] for name in names if name in by_name)

    def field_by_name(self, name: str) -> DataField | None:
        """The column of that name, or None."""
        return next((column for column in self.fields if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table (``snapshot/snapshot-<id>``, JSON v3)."""

    id: int
    schema_id: int
    base_manifest_list: str
    delta_manifest_list: str
    commit_user: str
    commit_identifier: int
    commit_kind: CommitKind
    time_ms: int
    total_record_count: int
    delta_record_count: int
    uuid: str | None = None
    """The write id of the commit; None if the writing client sets none."""
    base_manifest_list_size: int | None = None
    delta_manifest_list_size: int | None = None
    changelog_manifest_list: str | None = None
    changelog_manifest_list_size: int | None = None
    changelog_record_count: int | None = None
    index_manifest: str | None = None
    watermark: int | None = None
    statistics: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    next_row_id: int | None = None
    version: int = 3

    def __repr__(self) -> str:
        """Counts stored rows: a key that was written twice counts twice until a compaction, as in histories."""
        return (
            f"Snapshot({self.id}, {self.commit_kind}, stored={self.total_record_count}, "
            f"change={self.delta_record_count:+}, {utc(self.time_ms)!r})"
        )


@dataclass(frozen=True, slots=True)
class Tag:
    """A named pin on a snapshot (``tag/tag-<name>``): the snapshot's own JSON plus two optional fields."""

    name: str
    snapshot: Snapshot
    create_time_ms: int | None = None
    """Unix ms, UTC; written only when a lifetime was given."""
    lifetime_ms: int | None = None
    """None: kept until deleted."""

    @property
    def expires_ms(self) -> int | None:
        """The end of its lifetime, Unix ms, UTC; None: it is kept until it is deleted."""
        if self.create_time_ms is None or self.lifetime_ms is None:
            return None
        return min(self.create_time_ms + self.lifetime_ms, LONG_MAX)

    def __repr__(self) -> str:
        return f"Tag({self.name!r}, snapshot={self.snapshot.id}, stored={self.snapshot.total_record_count})"


@dataclass(frozen=True, slots=True)
class Stats:
    """Minimum, maximum and null count of some columns, as BinaryRows of those columns."""

    min_values: bytes
    max_values: bytes
    null_counts: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file as a manifest describes it (``_FILE``)."""

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: Stats
    value_stats: Stats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time_ms: int | None = None
    delete_row_count: int | None = None
    embedded_index: bytes | None = None
    file_source: int | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None
    commit_snapshot: int | None = None
    """Snapshot that first committed this file; see the module's invariants."""
    stats_version: int | None = None
    """`STATS_VERSION` if the bounds follow its rules; None: an older lakebed or another client wrote them.

    Those bounds may ignore rows for some types (docs/format/manifest.md).
    """


@dataclass(frozen=True, slots=True)
class ManifestMeta:
    """The entry of a manifest in a manifest list."""

    file_name: str
    file_size: int
    added_file_count: int
    deleted_file_count: int
    partition_stats: Stats
    schema_id: int
    added_snapshot: int | None = None
    """Snapshot whose delta list first named this manifest (``_ADDED_SNAPSHOT``); None when unknown."""


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """Location of the deletion vector of a data file. Picklable."""

    path: str
    """Path of the index file in the table's store, or its URL."""
    offset: int
    length: int
    """As `index_manifest.VectorRange.length`."""
    cardinality: int | None
    """Number of deleted rows, as its writer stated it; None: not stated."""
    file_size: int
    """Size of the index file."""


@dataclass(frozen=True, slots=True)
class BucketChange:
    """The change of one writer (or compaction) to one bucket of one partition: the input of a commit.

    Picklable: Spark executors send it to the driver.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    added: tuple[DataFile, ...] = ()
    deleted: tuple[DataFile, ...] = ()
    """Files removed; carry their resolved `commit_snapshot`."""
    changelog: tuple[DataFile, ...] = ()
    """Changelog files: how the change affects rows, in the order in which they are read."""
    hashes: bytes = b""
    """With dynamic buckets: the distinct hashes of the keys in `added`, int32 little-endian."""
    vectors: Mapping[str, bytes] = field(default_factory=dict)
    """Rows that are deleted and stay in their files.

    By name of the file, their positions as `roaring.encode_positions`.
    """
    applied: Mapping[str, VectorPlace | None] = field(default_factory=dict)
    """The deletion vectors that were applied when files of `deleted` and `vectors` were read, by name of the file.

    None: the file had no vector. A file that is not listed had the vector of the commit's basis, or none.
    """


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of reading: files of one bucket that must be read together. Picklable.

    `files` are in merge order (sorted runs for primary-key tables); `needs_merge` is False when every file may be
    read on its own and the results concatenated (append files, or one sorted run without deletes).
    """

    partition: bytes
    partition_values: dict[str, Any]
    bucket: int
    folder: str
    """The folder for new files of the bucket, relative to the table's root."""
    files: Sequence[DataFile]
    needs_merge: bool
    schema_id: int
    row_count: int
    """Rows in the files, before merging."""
    other_folders: tuple[str, ...] = ()
    """Other folders that may contain files of the bucket from other writers; see `placement`."""
    vectors: Mapping[str, VectorPlace] = field(default_factory=dict)
    """Where the deleted rows of each file are, by name of the file.

    In a planned scan, a split that needs no merge has a vector for each file or for none.
    """

    @property
    def is_whole(self) -> bool:
        """Whether every row of the files is a row of the table: they may be read as plain Parquet and counted."""
        return not self.needs_merge and not self.vectors


Rows = pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStream
"""Rows to write, with the table's column names; see `frames.as_arrow`."""
