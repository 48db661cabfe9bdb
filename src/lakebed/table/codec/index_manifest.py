"""Index manifests: which index files a snapshot has, and which deletion vectors are in them. Pure.

Owns: the entries of an index manifest, decoded and encoded. An index file of type ``HASH`` holds the keys of a dynamic
bucket (`dynamic_bucket`); one of type ``DELETION_VECTORS`` holds the deleted rows of data files (`vectors`). DO NOT
CHANGE: on disk, shared with other clients. Invariants: a manifest that names only ``HASH`` files has no fields for
vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import Buffer

from lakebed.errors import Corruption
from lakebed.table.codec.avro import RecordSchema, decode_columns, encode_values

HASH: Final = "HASH"
DELETION_VECTORS: Final = "DELETION_VECTORS"

_NAME: Final = "org.apache.paimon.avro.generated.record"
_FIELDS: Final[Mapping[str, Any]] = {
    "_VERSION": "int",
    "_KIND": "int",
    "_PARTITION": "bytes",
    "_BUCKET": "int",
    "_INDEX_TYPE": "string",
    "_FILE_NAME": "string",
    "_FILE_SIZE": "long",
    "_ROW_COUNT": "long",
}
_RANGE: Final = {
    "type": "record",
    "name": f"{_NAME}__DELETIONS_VECTORS_RANGES",
    "fields": [
        {"name": "f0", "type": "string"},
        {"name": "f1", "type": "int"},
        {"name": "f2", "type": "int"},
        {"name": "_CARDINALITY", "type": ["null", "long"], "default": None},
    ],
}
_HASH_SCHEMA: Final = RecordSchema.of(_NAME, _FIELDS)
_SCHEMA: Final = RecordSchema.of(
    _NAME,
    {
        **_FIELDS,
        "_DELETIONS_VECTORS_RANGES": ["null", {"type": "array", "items": ["null", _RANGE]}],
        "_EXTERNAL_PATH": ["null", "string"],
    },
)


@dataclass(frozen=True, slots=True)
class VectorRange:
    """The location in an index file of the deletion vector of one data file."""

    data_file: str
    """The name of the data file."""
    offset: int
    length: int
    """Length as the vector states it: its bytes without length and checksum; for a 64-bit vector all its bytes."""
    cardinality: int | None
    """Number of deleted rows; None: not stated."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The entry of one index file in an index manifest. Picklable."""

    partition: bytes
    bucket: int
    file_name: str
    file_size: int
    row_count: int
    """Number of keys, or of vectors."""
    index_type: str = HASH
    ranges: tuple[VectorRange, ...] = ()
    """In the order of the index file."""
    external_path: str | None = None
    """The URL of a file outside the table."""


def decode_index_manifest(body: Buffer, *, path: str) -> tuple[IndexEntry, ...]:
    """The entries of an index manifest. Raises `Corruption`, `UnsupportedFormat`."""
    count, columns = decode_columns(body, path=path)
    if count == 0:
        return ()
    absent: Sequence[Any] = [None] * count
    try:
        required = [columns[name].to_pylist() for name in _FIELDS if name not in ("_VERSION", "_KIND")]
    except KeyError as error:
        raise Corruption(f"{path} has no field {error.args[0]}, which the format requires.", path=path) from error
    optional = [
        columns[name].to_pylist() if name in columns else absent
        for name in ("_DELETIONS_VECTORS_RANGES", "_EXTERNAL_PATH")
    ]
    entries = []
    rows = zip(*required, *optional, strict=True)
    for partition, bucket, index_type, file_name, file_size, row_count, ranges, external_path in rows:
        vectors = tuple(
            VectorRange(*(vector[name] for name in ("f0", "f1", "f2", "_CARDINALITY"))) for vector in ranges or ()
        )
        entries.append(
            IndexEntry(partition, bucket, file_name, file_size, row_count, index_type, vectors, external_path or None)
        )
    return tuple(entries)


def encode_index_manifest(entries: Sequence[IndexEntry]) -> bytes:
    """The bytes of an index manifest of these files."""
    values: dict[str, Sequence[Any]] = {
        "_VERSION": [1] * len(entries),
        "_KIND": [0] * len(entries),
        "_PARTITION": [entry.partition for entry in entries],
        "_BUCKET": [entry.bucket for entry in entries],
        "_INDEX_TYPE": [entry.index_type for entry in entries],
        "_FILE_NAME": [entry.file_name for entry in entries],
        "_FILE_SIZE": [entry.file_size for entry in entries],
        "_ROW_COUNT": [entry.row_count for entry in entries],
    }
    if all(entry.index_type == HASH for entry in entries):
        return encode_values(_HASH_SCHEMA, values, len(entries))
    # Other clients write index files without vectors, and even then require the list of vectors.
    values["_DELETIONS_VECTORS_RANGES"] = [
        None
        if entry.index_type != DELETION_VECTORS
        else [
            {"f0": vector.data_file, "f1": vector.offset, "f2": vector.length, "_CARDINALITY": vector.cardinality}
            for vector in entry.ranges
        ]
        for entry in entries
    ]
    values["_EXTERNAL_PATH"] = [entry.external_path for entry in entries]
    return encode_values(_SCHEMA, values, len(entries))
