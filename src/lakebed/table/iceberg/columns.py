"""Schemas and partitions of a table in Iceberg's terms. Pure.

Owns: which Iceberg type a column has, which columns cannot be shown, and values in Iceberg's binary form. Field ids are
the table's own, as the data files have them.

Invariants: a column that is shown reads the same in every file of the table. So a column is left out where Iceberg has
no type for it, where its files do not carry the ids that its parts need, or where an older file has it in a type that
Iceberg does not widen to the present one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.types import Type, parse_type

PARTITION_FIELD_ID_MIN: Final = 1000
"""Id of the first partition field. DO NOT CHANGE: on disk."""

_SPARE_ID_MIN: Final = 0x4000_0000
"""Ids from here on are of parts of files that no schema shows."""

_PLAIN: Final = {
    "BOOLEAN": "boolean",
    "TINYINT": "int",
    "SMALLINT": "int",
    "INT": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "STRING": "string",
    "CHAR": "string",
    "VARCHAR": "string",
    "BYTES": "binary",
    "BINARY": "binary",
    "VARBINARY": "binary",
}
_REASONS: Final = {
    "TIME": "its files count milliseconds, which Iceberg's clients do not read as a time",
    "VARIANT": "Iceberg's variant is encoded differently",
    "MULTISET": "Iceberg has no multiset",
    "BLOB": "Iceberg has no type for it",
    "ARRAY": "data files have no ids for its elements",
    "MAP": "data files have no ids for its keys and values",
    "ROW": "data files have no ids for its members",
}
_WIDENINGS: Final = frozenset((("int", "long"), ("float", "double")))
_MICROSECOND_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class IcebergSchema:
    """One schema of the table, as Iceberg sees it."""

    fields: tuple[dict[str, Any], ...]
    """Columns in the form of Iceberg's metadata."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not shown, with the reason of each."""
    identifier_ids: tuple[int, ...] = ()
    """Ids of the primary key's columns."""

    def members(self, schema_id: int) -> dict[str, Any]:
        """The schema as a member of Iceberg's metadata."""
        members: dict[str, Any] = {"type": "struct", "schema-id": schema_id, "fields": list(self.fields)}
        if self.identifier_ids:
            members["identifier-field-ids"] = list(self.identifier_ids)
        return members


def iceberg_schema(schema: TableSchema, *, older: Iterable[TableSchema] = ()) -> IcebergSchema:
    """A schema of a table in Iceberg's terms.

    Args:
        older: schemas by which files may have been written that are read by this one.
    """
    kinds_before: dict[int, set[str]] = {}
    for before in older:
        for column in before.fields:
            kinds_before.setdefault(column.id, set()).add(column.type)
    fields: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for column in schema.fields:
        kind, reason = _type_of(parse_type(column.type))
        if kind is not None:
            narrow = next((text for text in sorted(kinds_before.get(column.id, ())) if not _widens(text, kind)), None)
            reason = (
                None if narrow is None else f"some files have it as {narrow}, which Iceberg does not read as {kind}"
            )
        if kind is None or reason is not None:
            left_out[column.name] = f"{column.type}: {reason}"
            continue
        member: dict[str, Any] = {
            "id": column.id,
            "name": column.name,
            "required": not column.nullable,
            "type": kind,
        }
        if column.description:
            member["doc"] = column.description
        fields.append(member)
    return IcebergSchema(tuple(fields), left_out, _identifier_ids(schema, left_out))


def _identifier_ids(schema: TableSchema, left_out: Mapping[str, str]) -> tuple[int, ...]:
    """Iceberg allows columns that are required and not floating point."""
    keys = schema.select_fields(schema.primary_keys)
    is_allowed = all(
        not key.nullable and key.name not in left_out and parse_type(key.type).root not in ("FLOAT", "DOUBLE")
        for key in keys
    )
    return tuple(sorted(key.id for key in keys)) if is_allowed else ()


def _type_of(parsed: Type) -> tuple[str | None, str | None]:
    """The Iceberg type, or None and the reason."""
    if parsed.root in _PLAIN:
        return _PLAIN[parsed.root], None
    if parsed.root == "DECIMAL":
        return f"decimal({parsed.precision}, {parsed.scale})", None
    if parsed.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        if (parsed.precision or 0) > _MICROSECOND_DIGITS:
            return None, "most of Iceberg's clients read no nanoseconds"
        return "timestamp" if parsed.root == "TIMESTAMP" else "timestamptz", None
    return None, _REASONS.get(parsed.root, "Iceberg has no type for it")


def _widens(old_text: str, kind: str) -> bool:
    """Whether Iceberg reads a file's values of a type as those of another one."""
    old, _ = _type_of(parse_type(old_text))
    if old is None:
        return False
    if old == kind or (old, kind) in _WIDENINGS:
        return True
    if not (old.startswith("decimal(") and kind.startswith("decimal(")):
        return False
    (digits, scale), (digits_now, scale_now) = _decimal_parts(old), _decimal_parts(kind)
    return scale == scale_now and digits <= digits_now


def _decimal_parts(kind: str) -> tuple[int, int]:
    digits, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(digits), int(scale)


# ---- partitions


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column that Iceberg sees, as identity."""

    position: int
    """Of the column among the table's partition columns."""
    column: DataField
    kind: str
    """Its Iceberg type."""
    field_id: int


def partition_columns_of(schema: TableSchema, shown: IcebergSchema) -> tuple[PartitionColumn, ...]:
    """The partition columns that Iceberg sees."""
    kinds = {member["id"]: member["type"] for member in shown.fields}
    return tuple(
        PartitionColumn(position, column, kinds[column.id], PARTITION_FIELD_ID_MIN + position)
        for position, column in enumerate(schema.partition_fields)
        if column.id in kinds
    )


def partition_spec(columns: Sequence[PartitionColumn]) -> list[dict[str, Any]]:
    """The fields of Iceberg's partition spec."""
    return [
        {
            "source-id": part.column.id,
            "field-id": part.field_id,
            "name": part.column.name,
            "transform": "identity",
        }
        for part in columns
    ]


def avro_type(kind: str, name: str) -> Any:
    """The Avro type of a value of an Iceberg type, in the partition of a manifest."""
    if kind.startswith("decimal("):
        digits, scale = _decimal_parts(kind)
        size = _decimal_bytes(digits)
        return {
            "type": "fixed",
            "size": size,
            "name": name,
            "logicalType": "decimal",
            "precision": digits,
            "scale": scale,
        }
    if kind == "date":
        return {"type": "int", "logicalType": "date"}
    if kind in ("timestamp", "timestamptz"):
        return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": kind == "timestamptz"}
    return {"binary": "bytes"}.get(kind, kind)


def _decimal_bytes(digits: int) -> int:
    return (int(10**digits - 1).bit_length() + 8) // 8


def plain_values(values: pa.Array, kind: str) -> list[Any]:
    """Values as Avro has them in a partition: numbers, texts, bytes."""
    if kind == "date":
        return list(values.cast(pa.int32()).to_pylist())
    if kind in ("timestamp", "timestamptz"):
        return list(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).to_pylist())
    if kind.startswith("decimal("):
        digits, scale = _decimal_parts(kind)
        size = _decimal_bytes(digits)
        return [
            None if value is None else _unscaled(value, scale).to_bytes(size, "big", signed=True)
            for value in values.to_pylist()
        ]
    return list(values.to_pylist())


def binary_values(values: pa.Array, kind: str) -> list[bytes | None]:
    """Values in the single-value form of Iceberg's bounds."""
    if kind.startswith("decimal("):
        _, scale = _decimal_parts(kind)
        return [None if value is None else _least_bytes(_unscaled(value, scale)) for value in values.to_pylist()]
    if kind == "string":
        return [None if value is None else value.encode() for value in values.to_pylist()]
    if kind in ("binary", "boolean"):
        return [
            None if value is None else bytes(value if kind == "binary" else [value]) for value in values.to_pylist()
        ]
    dtype = {"int": "<i4", "date": "<i4", "float": "<f4", "double": "<f8"}.get(kind, "<i8")
    if kind in ("timestamp", "timestamptz"):
        values = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    elif kind == "date":
        values = values.cast(pa.int32())
    plain = np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False)).astype(dtype)
    size, raw = plain.dtype.itemsize, plain.tobytes()
    is_valid = values.is_valid().to_pylist()
    return [raw[i * size : (i + 1) * size] if valid else None for i, valid in enumerate(is_valid)]


def _unscaled(value: Decimal, scale: int) -> int:
    """The digits of a decimal as a number; exact, where arithmetic rounds to the digits of a context."""
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (scale + int(exponent))
    return -number if sign else number


def _least_bytes(number: int) -> bytes:
    return number.to_bytes(max(1, (number if number >= 0 else ~number).bit_length() // 8 + 1), "big", signed=True)


def name_mapping(schemas: Iterable[TableSchema]) -> list[dict[str, Any]]:
    """Iceberg's mapping of names to ids, by which some clients read a file of which a part has no id.

    That are files of primary-key tables, with their columns of keys and sequence numbers, and files with nested
    columns. Columns that are not shown are in the mapping too: these clients refuse names that it does not have. A name
    that ever meant two columns is left out: such a client then refuses a file, in place of reading it wrongly.

    Args:
        schemas: all schemas of the table.
    """
    ids_of: dict[str, set[int]] = {}
    columns: dict[int, DataField] = {}
    keys: set[str] = set()
    for schema in schemas:
        keys.update(schema.trimmed_primary_keys)
        for column in schema.fields:
            ids_of.setdefault(column.name, set()).add(column.id)
            columns[column.id] = column
    spare = itertools.count(_SPARE_ID_MIN)
    names: dict[int, list[str]] = {}
    for name, ids in sorted(ids_of.items()):
        if len(ids) == 1:
            names.setdefault(min(ids), []).append(name)
    mapping = [
        {"field-id": column_id, "names": names[column_id], **_parts(parse_type(columns[column_id].type), spare)}
        for column_id in sorted(names)
    ]
    system = [*(f"_KEY_{key}" for key in sorted(keys)), "_SEQUENCE_NUMBER", "_VALUE_KIND"] if keys else []
    return mapping + [{"field-id": next(spare), "names": [name]} for name in system]


def _parts(parsed: Type, spare: Iterator[int]) -> dict[str, Any]:
    """The mapping of what is inside a nested type."""
    inside = [(field.name, field.type) for field in parsed.fields]
    if parsed.root in ("MAP", "MULTISET"):
        inside = list(zip(("key", "value"), (*parsed.children, Type("INT")), strict=False))
    elif parsed.root == "ARRAY":
        inside = [("element", parsed.children[0])]
    elif parsed.root == "VARIANT":
        inside = [("value", Type("BYTES")), ("metadata", Type("BYTES"))]
    if not inside:
        return {}
    return {"fields": [{"field-id": next(spare), "names": [name], **_parts(kind, spare)} for name, kind in inside]}
