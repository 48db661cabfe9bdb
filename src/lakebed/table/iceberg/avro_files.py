"""Iceberg's manifests and manifest lists as bytes. Pure.

Owns: the Avro schemas with Iceberg's field ids (DO NOT CHANGE: other clients find fields by them). Equal arguments give
equal bytes, so two servers that write the same file write the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import fastavro
import msgspec
from typing_extensions import Buffer

from lakebed.errors import Corruption
from lakebed.table.iceberg.avro_bytes import encode_container
from lakebed.table.iceberg.columns import PartitionColumn, avro_type, partition_spec

EXISTING: Final = 0
ADDED: Final = 1
DATA: Final = 0
POSITION_DELETES: Final = 1

_CODEC: Final = "deflate"
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """What the header of a manifest states."""

    schema: Mapping[str, Any]
    """As `columns.IcebergSchema.members`."""
    partitions: tuple[PartitionColumn, ...]
    format_version: int = 2
    is_deletes: bool = False


@dataclass(frozen=True, slots=True)
class ManifestTotals:
    """What a manifest list states about a manifest."""

    path: str
    size_bytes: int
    added_snapshot_id: int
    sequence_number: int
    min_sequence_number: int
    added_count: int
    existing_count: int
    added_rows: int
    existing_rows: int
    partitions: Sequence[Mapping[str, Any]]
    """For each partition field ``contains_null``, ``contains_nan``, ``lower_bound``, ``upper_bound``."""
    is_deletes: bool = False


def _field(name: str, kind: Any, field_id: int, *, optional: bool = False) -> dict[str, Any]:
    if not optional:
        return {"name": name, "type": kind, "field-id": field_id}
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    entry = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field("key", "int", key_id), _field("value", value, value_id)],
    }
    return {"type": "array", "items": entry, "logicalType": "map"}


def _entry_schema(partitions: Sequence[PartitionColumn], *, is_deletes: bool) -> dict[str, Any]:
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            _field(
                _avro_name(part.column.name), avro_type(part.kind, f"p{part.field_id}"), part.field_id, optional=True
            )
            for part in partitions
        ],
    }
    fields = [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", partition, 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
    ]
    if is_deletes:
        fields += [
            _field("referenced_data_file", "string", 143, optional=True),
            _field("content_offset", "long", 144, optional=True),
            _field("content_size_in_bytes", "long", 145, optional=True),
        ]
    else:
        fields += [
            _field("value_counts", _map(119, 120, "long"), 109, optional=True),
            _field("null_value_counts", _map(121, 122, "long"), 110, optional=True),
            _field("lower_bounds", _map(126, 127, "bytes"), 125, optional=True),
            _field("upper_bounds", _map(129, 130, "bytes"), 128, optional=True),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", "int", 0),
            _field("snapshot_id", "long", 1, optional=True),
            _field("sequence_number", "long", 3, optional=True),
            _field("file_sequence_number", "long", 4, optional=True),
            _field("data_file", {"type": "record", "name": "r2", "fields": fields}, 2),
        ],
    }


def _avro_name(name: str) -> str:
    """A column's name as Avro allows it, spelled as Iceberg's own writers do; clients use the field's id."""
    spelled = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else f"_x{ord(char):X}" for char in name
    )
    return f"_{spelled}" if spelled[:1].isdigit() else spelled


def avro_partition(partitions: Sequence[PartitionColumn], values: Sequence[Any]) -> dict[str, Any]:
    """The partition of an entry; `values` as `columns.plain_values`."""
    return {_avro_name(part.column.name): value for part, value in zip(partitions, values, strict=True)}


def encode_manifest(head: ManifestHead, entries: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of a small manifest; `entries` are records of its schema."""
    return _container(_parse(_schema_of(head)), entries, _metadata_of(head))


def encode_data_manifest(head: ManifestHead, entries: Sequence[bytes], *, header: Mapping[str, str]) -> bytes:
    """The bytes of a manifest of data files. `entries` are encoded records of its schema, `header` is more metadata."""
    metadata = _metadata_of(head) | dict(header)
    return encode_container(_schema_of(head), entries, metadata, mark=_mark_of(metadata))


def _schema_of(head: ManifestHead) -> bytes:
    return _ENCODE(_entry_schema(head.partitions, is_deletes=head.is_deletes))


def _metadata_of(head: ManifestHead) -> dict[str, str]:
    return {
        "schema": _ENCODE(head.schema).decode(),
        "schema-id": str(head.schema["schema-id"]),
        "partition-spec": _ENCODE(partition_spec(head.partitions)).decode(),
        "partition-spec-id": "0",
        "format-version": str(head.format_version),
        "content": "deletes" if head.is_deletes else "data",
    }


_LIST_SCHEMA: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", "string", 500),
        _field("manifest_length", "long", 501),
        _field("partition_spec_id", "int", 502),
        _field("content", "int", 517),
        _field("sequence_number", "long", 515),
        _field("min_sequence_number", "long", 516),
        _field("added_snapshot_id", "long", 503),
        _field("added_files_count", "int", 504),
        _field("existing_files_count", "int", 505),
        _field("deleted_files_count", "int", 506),
        _field("added_rows_count", "long", 512),
        _field("existing_rows_count", "long", 513),
        _field("deleted_rows_count", "long", 514),
        _field(
            "partitions",
            {
                "type": "array",
                "element-id": 508,
                "items": {
                    "type": "record",
                    "name": "r508",
                    "fields": [
                        _field("contains_null", "boolean", 509),
                        _field("contains_nan", "boolean", 518, optional=True),
                        _field("lower_bound", "bytes", 510, optional=True),
                        _field("upper_bound", "bytes", 511, optional=True),
                    ],
                },
            },
            507,
            optional=True,
        ),
    ],
}


def encode_list(
    manifests: Sequence[ManifestTotals],
    *,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    format_version: int,
    header: Mapping[str, str],
) -> bytes:
    """The bytes of a manifest list; `header` is more metadata."""
    rows = [
        {
            "manifest_path": manifest.path,
            "manifest_length": manifest.size_bytes,
            "partition_spec_id": 0,
            "content": int(manifest.is_deletes),
            "sequence_number": manifest.sequence_number,
            "min_sequence_number": manifest.min_sequence_number,
            "added_snapshot_id": manifest.added_snapshot_id,
            "added_files_count": manifest.added_count,
            "existing_files_count": manifest.existing_count,
            "deleted_files_count": 0,
            "added_rows_count": manifest.added_rows,
            "existing_rows_count": manifest.existing_rows,
            "deleted_rows_count": 0,
            "partitions": list(manifest.partitions),
        }
        for manifest in manifests
    ]
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
    }
    return _container(_parse(_ENCODE(_LIST_SCHEMA)), rows, metadata | dict(header))


def decode_header(body: Buffer, *, path: str) -> dict[str, Any]:
    """The metadata of a manifest or list. Raises `Corruption`."""
    try:
        return dict(fastavro.reader(io.BytesIO(bytes(body))).metadata)
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
        raise Corruption(f"{path} is not a readable Avro file: {error}.", path=path) from error


def decode_list(body: Buffer, *, path: str) -> list[tuple[str, int]]:
    """The URL and size in bytes of each manifest of a list. Raises `Corruption`."""
    try:
        rows: list[Any] = list(fastavro.reader(io.BytesIO(bytes(body))))
        return [(row["manifest_path"], row["manifest_length"]) for row in rows]
    except (ValueError, KeyError, TypeError, EOFError, IndexError, zlib.error) as error:
        raise Corruption(f"{path} is not a readable manifest list: {error}.", path=path) from error


@lru_cache(maxsize=64)
def _parse(schema: bytes) -> Any:
    return fastavro.parse_schema(msgspec.json.decode(schema))


def _container(schema: Any, records: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    body = io.BytesIO()
    fastavro.writer(body, schema, records, codec=_CODEC, metadata=dict(metadata), sync_marker=_mark_of(metadata))
    return body.getvalue()


def _mark_of(metadata: Mapping[str, str]) -> bytes:
    """The sync marker. It is equal for equal files, where other writers choose it at random."""
    return hashlib.blake2b(_ENCODE(metadata), digest_size=16).digest()
