"""The settings of writers by a table's options, and the check whether lakebed can write a table. Pure.

Owns: `WriteSettings`, `file_settings` and `check_writable`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lakebed.errors import InvalidRequest
from lakebed.table.engines.option_names import PREFIX
from lakebed.table.engines.registry import MERGE_OPTIONS, check_defined, check_marking, engine_of, find_engine
from lakebed.table.files.data_file import FileSettings
from lakebed.table.files.dynamic_bucket import DynamicBuckets, is_dynamic
from lakebed.table.files.placement import check_placement
from lakebed.table.model.changelog_options import Producer, level_count_of, producer_of
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import (
    BUCKET,
    DATA_FILE_PREFIX,
    FILE_BLOCK_SIZE,
    FILE_COMPRESSION,
    FILE_COMPRESSION_ZSTD_LEVEL,
    STATS_MODE,
    TARGET_FILE_SIZE,
    WRITE_BUFFER_SIZE,
    TableOptions,
)
from lakebed.table.model.options import check_writable as check_options_writable
from lakebed.table.schema.schema import bucket_function, bucket_keys, list_required_ids

UNAWARE_BUCKET = -1
"""Option ``bucket`` of a table that places rows anywhere; its files are in bucket 0. DO NOT CHANGE: on disk."""

KEYED_FILE_BYTES = 128 * 1024 * 1024
APPEND_FILE_BYTES = 256 * 1024 * 1024
"""Default of the option ``target-file-size``, with and without a primary key."""


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Settings of a writer. All defaults are usable."""

    bucket_count: int = UNAWARE_BUCKET
    bucket_keys: tuple[str, ...] = ()
    """Columns whose hash decides the bucket; empty for an append table with bucket -1."""
    bucket_function: str = "default"
    """See `bucket_of`."""
    buffer_bytes: int = 256 * 1024 * 1024
    """Arrow bytes buffered before files are written.

    A larger buffer gives fewer, better sorted files and takes about twice its size in memory.
    """
    worker_count_max: int = field(default_factory=lambda: max(1, min(8, os.cpu_count() or 1)))
    """Buckets encoded in parallel."""
    files: FileSettings = field(default_factory=FileSettings)
    dynamic: DynamicBuckets | None = None
    """Placement of keys in dynamic buckets; None: fixed buckets, or none."""

    @property
    def share_count(self) -> int:
        """Number of shares of a partition's rows: its buckets, or with dynamic buckets the classes of keys."""
        return self.bucket_count if self.dynamic is None else self.dynamic.class_count

    @classmethod
    def of(cls, schema: TableSchema) -> WriteSettings:
        """The settings by a table's options. Raises `InvalidRequest`: an option has an invalid value."""
        options = TableOptions(schema.options)
        bucket_count = options.get(BUCKET)
        return cls(
            bucket_count=bucket_count,
            bucket_keys=bucket_keys(schema) if bucket_count > 0 or is_dynamic(schema) else (),
            bucket_function=bucket_function(schema) if bucket_count > 0 else "default",
            buffer_bytes=options.get(WRITE_BUFFER_SIZE),
            files=file_settings(schema),
            dynamic=DynamicBuckets.of(schema) if is_dynamic(schema) else None,
        )


def file_settings(schema: TableSchema) -> FileSettings:
    """Settings of data files by the options of their table."""
    options = TableOptions(schema.options)
    target_bytes = options.get(TARGET_FILE_SIZE)
    if target_bytes is None:
        target_bytes = KEYED_FILE_BYTES if schema.primary_keys else APPEND_FILE_BYTES
    codec = options.get(FILE_COMPRESSION)
    return FileSettings(
        target_file_bytes=target_bytes,
        compression="none" if codec == "uncompressed" else codec,
        compression_level=options.get(FILE_COMPRESSION_ZSTD_LEVEL) if codec == "zstd" else None,
        row_group_bytes=options.get(FILE_BLOCK_SIZE) or FileSettings().row_group_bytes,
        prefix=options.get(DATA_FILE_PREFIX),
        stats_mode=options.get(STATS_MODE),
    )


def writes_alike(schema: TableSchema, newest: TableSchema, *, upserts: bool) -> bool:
    """Whether files and changelogs that were written with one schema are right in a table with another schema.

    Columns may differ: files are read by field id. But a column that is NOT NULL must have been so when the files were
    written, and an upsert into a primary-key table needs every column that the newest schema has in addition, as new
    rows do (`conform`): null would erase stored values.

    Args:
        upserts: the files replace rows of the same keys.
    """
    if _options_of_writes(schema) != _options_of_writes(newest):
        return False
    if list_required_ids(newest) - list_required_ids(schema):
        return False
    if not (upserts and newest.primary_keys):
        return True
    field_ids = {field.id for field in schema.fields}
    known_names = frozenset(field.name for field in newest.fields if field.id in field_ids)
    lacking = {field.name for field in newest.fields} - known_names
    return not lacking or lacking <= engine_of(newest).optional(known_names)


def _options_of_writes(schema: TableSchema) -> tuple[object, ...]:
    producer = producer_of(schema)
    options = schema.options.items()
    return (
        producer,
        level_count_of(TableOptions(schema.options)) if producer is Producer.FULL_COMPACTION else 0,
        {name: value for name, value in options if name in MERGE_OPTIONS or name.startswith(PREFIX)},
    )


def check_writable(schema: TableSchema) -> None:
    """Refuse tables that this version of lakebed cannot write.

    Raises:
        InvalidRequest: an unsupported option, or a table with dynamic buckets whose keys may move between partitions.
    """
    check_options_writable(schema.options)
    check_defined(schema.options)
    if schema.primary_keys:
        check_marking(schema)
    check_placement(schema)
    accepted: frozenset[str] = frozenset()
    if schema.primary_keys:
        engine_of(schema)  # refuses options that contradict each other or the schema
        accepted = find_engine(schema).accepts
    for name in ("rowkind.field", *MERGE_OPTIONS):
        value = schema.options.get(name, "")
        if schema.primary_keys and name not in accepted and value.lower() not in ("", "false"):
            raise InvalidRequest(
                f"Option {name!r} = {value!r} of a primary-key table is not supported by this version of lakebed.",
                kind="unsupported_option",
                option=name,
            )
    if is_dynamic(schema):
        _check_dynamic(schema)


def _check_dynamic(schema: TableSchema) -> None:
    outside = [name for name in schema.partition_keys if name not in schema.primary_keys]
    if outside:
        raise InvalidRequest(
            f"The table has dynamic buckets (bucket = -1), and its partition column {outside[0]!r} is not part of the "
            f"primary key ({', '.join(schema.primary_keys)}): a key may move between partitions, which needs an index "
            "over all of them. This version of lakebed reads such tables and does not write them. Create a table whose "
            "primary key has all partition columns, and write to that one.",
            kind="unsupported_bucket",
        )
