"""Schemas and partitions of a table in Iceberg's terms. Pure.

Owns: which Iceberg type a column has, which columns cannot be shown, and values in Iceberg's binary form. Field ids are
the table's own, as the data files have them.

Invariants: a column that is shown reads the same in every file of the table. So a column is left out where Iceberg has
no type for it, and where an older file has it in a type that Iceberg does not widen to the present one. It is also left
out where an older file has none of the present members of a struct: from such a file clients do not learn which of the
structs are null. `file_ids` says in which files clients do not find a column.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.types import Type, parse_type, part_ids

PARTITION_FIELD_ID_MIN: Final = 1000
"""Id of the first partition field. DO NOT CHANGE: on disk."""

_SPARE_ID_MIN: Final = 0x4000_0000
"""Ids from here on belong to parts of files that no schema shows."""

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
    "TIME": "its files count milliseconds, not microseconds: pyiceberg and Spark's connector do not read them",
    "VARIANT": "Iceberg's variant is encoded differently",
    "MULTISET": "Iceberg has no multiset",
    "BLOB": "Iceberg has no type for it",
}
_WIDENINGS: Final = frozenset((("int", "long"), ("float", "double")))
_MICROSECOND_DIGITS: Final = 6
_ID_MAX: Final = 0x7FFF_FF00
"""Ids above this are Iceberg's own."""

IcebergType = str | dict[str, Any]
"""A type in Iceberg's metadata: the name of a plain type, or a struct, list or map."""


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


def iceberg_schema(
    schema: TableSchema, *, older: Iterable[TableSchema] = (), hidden: Collection[int] = ()
) -> IcebergSchema:
    """A schema of a table in Iceberg's terms.

    Args:
        older: schemas of files that may be read with this schema.
        hidden: ids of columns that clients do not find in some file.
    """
    before: dict[int, set[Type]] = {}
    for old_schema in older:
        for column in old_schema.fields:
            for number, part in _parts_of(parse_type(column.type), column.id):
                before.setdefault(number, set()).add(part)
    fields: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for column in schema.fields:
        data_type = parse_type(column.type)
        kind, reason = _type_of(data_type, column.id)
        if reason is None:
            reason = _find_misfit(data_type, column.id, before)
        if reason is None and column.id in hidden:
            reason = (
                "some files, of other clients or of older versions of lakebed, do not have the ids by which Iceberg's "
                "clients find it; files that lakebed writes anew have them"
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


def is_nested(column: DataField) -> bool:
    """Whether a column is of a nested type that Iceberg has."""
    data_type = parse_type(column.type)
    return data_type.is_nested and _type_of(data_type, column.id)[0] is not None


def highest_id(schema: IcebergSchema) -> int:
    """The highest id in a schema, including ids of parts."""
    return max((number for member in schema.fields for number in _ids_in(member["id"], member["type"])), default=0)


def _ids_in(number: int, kind: IcebergType) -> Iterator[int]:
    yield number
    if isinstance(kind, dict):
        for member in kind.get("fields", ()):
            yield from _ids_in(member["id"], member["type"])
        for part in ("element", "key", "value"):
            if part in kind:
                yield from _ids_in(kind[f"{part}-id"], kind[part])


def _parts_of(data_type: Type, field_id: int) -> Iterator[tuple[int, Type]]:
    """A column and everything inside it, with ids."""
    return _walk(data_type, field_id, field_id, 0)


def _walk(data_type: Type, number: int, inside_id: int, depth: int) -> Iterator[tuple[int, Type]]:
    yield number, data_type
    for part_number, part in part_ids(data_type, inside_id, depth):
        yield from _walk(part, part_number, inside_id, depth + 1)
    for member in data_type.fields:
        member_id = -1 if member.id is None else member.id
        yield from _walk(member.type, member_id, member_id, 0)


def _find_misfit(data_type: Type, field_id: int, before: Mapping[int, set[Type]]) -> str | None:
    """Why the values of a column in some file cannot be read as the present type; None: all can."""
    for number, part in _parts_of(data_type, field_id):
        for old_part in sorted(before.get(number, ()), key=str):
            if part.is_nested or old_part.is_nested:
                if part.root != old_part.root:
                    return f"some files have {old_part.text} where Iceberg reads {part.text}"
                if part.fields and not {field.id for field in part.fields} & {field.id for field in old_part.fields}:
                    return (
                        f"some files have {old_part.text} with other fields only, so Iceberg's clients do not see "
                        "which are null"
                    )
            elif not _widens(old_part, kind := str(_plain_type_of(part)[0])):
                return f"some files have it as {old_part.text}, which Iceberg does not read as {kind}"
    return None


def _identifier_ids(schema: TableSchema, left_out: Mapping[str, str]) -> tuple[int, ...]:
    """The ids of the key columns. Iceberg allows only columns that are required and not floating point."""
    keys = schema.select_fields(schema.primary_keys)
    is_allowed = all(
        not key.nullable and key.name not in left_out and parse_type(key.type).root not in ("FLOAT", "DOUBLE")
        for key in keys
    )
    return tuple(sorted(key.id for key in keys)) if is_allowed else ()


def _type_of(data_type: Type, field_id: int) -> tuple[IcebergType | None, str | None]:
    """The Iceberg type of a column, or None and the reason."""
    if not data_type.is_nested:
        return _plain_type_of(data_type)
    if data_type.root == "MULTISET":
        return None, _REASONS["MULTISET"]
    ids = Counter(number for number, _ in _parts_of(data_type, field_id))
    if max(ids.values()) > 1 or not all(0 <= number <= _ID_MAX for number in ids):
        return None, "parts of it have the same id in data files, which Iceberg does not take"
    return _nested_type_of(data_type, field_id, 0)


def _nested_type_of(data_type: Type, inside_id: int, depth: int) -> tuple[IcebergType | None, str | None]:
    if not data_type.is_nested or data_type.root == "MULTISET":
        return _plain_type_of(data_type)
    if data_type.root == "ROW":
        members: list[dict[str, Any]] = []
        for member in data_type.fields:
            assert member.id is not None  # else the ids of the column were not in order
            kind, reason = _nested_type_of(member.type, member.id, 0)
            if kind is None:
                return None, f"of its field {member.name!r}: {reason}"
            member_field = {"id": member.id, "name": member.name, "required": not member.type.nullable, "type": kind}
            members.append(member_field | ({} if member.description is None else {"doc": member.description}))
        return {"type": "struct", "fields": members}, None
    is_list = data_type.root == "ARRAY"
    document: dict[str, Any] = {"type": "list" if is_list else "map"}
    names = ("element",) if is_list else ("key", "value")
    for name, (number, part) in zip(names, part_ids(data_type, inside_id, depth), strict=True):
        kind, reason = _nested_type_of(part, inside_id, depth + 1)
        if kind is None:
            return None, f"of its {name}s: {reason}"
        document |= {f"{name}-id": number, name: kind}
        if name != "key":
            document[f"{name}-required"] = not part.nullable
    return document, None


def _plain_type_of(data_type: Type) -> tuple[str | None, str | None]:
    if data_type.root in _PLAIN:
        return _PLAIN[data_type.root], None
    if data_type.root == "DECIMAL":
        return f"decimal({data_type.precision}, {data_type.scale})", None
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        if (data_type.precision or 0) > _MICROSECOND_DIGITS:
            return None, "most of Iceberg's clients read no nanoseconds"
        return "timestamp" if data_type.root == "TIMESTAMP" else "timestamptz", None
    return None, _REASONS.get(data_type.root, "Iceberg has no type for it")


def _widens(data_type: Type, kind: str) -> bool:
    """Whether Iceberg reads a file's values of one type as values of another."""
    old, _ = _plain_type_of(data_type)
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
    """A partition column that Iceberg sees, with the transform identity."""

    position: int
    """Position of the column among the table's partition columns."""
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
    """Values as Avro stores them in a partition: numbers, texts, bytes."""
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
    numbers = np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False)).astype(dtype)
    size, raw = numbers.dtype.itemsize, numbers.tobytes()
    is_valid = values.is_valid().to_pylist()
    return [raw[i * size : (i + 1) * size] if valid else None for i, valid in enumerate(is_valid)]


def _unscaled(value: Decimal, scale: int) -> int:
    """The digits of a decimal as a number. It is exact; arithmetic would round to the digits of a context."""
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (scale + int(exponent))
    return -number if sign else number


def _least_bytes(number: int) -> bytes:
    return number.to_bytes(max(1, (number if number >= 0 else ~number).bit_length() // 8 + 1), "big", signed=True)


# ---- names


@dataclass(frozen=True, slots=True)
class _Named:
    """A column, member or part with all names that it ever had."""

    names: set[str]
    inside: dict[int, _Named]
    kinds: set[Type]


class NameMapping:
    """Iceberg's mapping of names to ids. Clients use it for a file in which no part has an id, or only some have one.

    The latter are files of primary-key tables, with their columns of keys and sequence numbers. A name that ever meant
    two columns, or two members of a struct, is left out: a client then refuses such a file, or finds no values.

    Args:
        schemas: all schemas of the table.
    """

    def __init__(self, schemas: Iterable[TableSchema]) -> None:
        self._top: dict[int, _Named] = {}
        self._keys: set[str] = set()
        for schema in schemas:
            self._keys.update(schema.trimmed_primary_keys)
            for column in schema.fields:
                _collect(self._top, column.name, parse_type(column.type), column.id, column.id, 0)

    @property
    def is_ambiguous(self) -> bool:
        """Whether a name ever meant two columns."""
        return len(_ids_by_name(self._top)) < sum(len(column.names) for column in self._top.values())

    def members(self) -> list[dict[str, Any]]:
        """The mapping in the form of the property ``schema.name-mapping.default``.

        It includes columns that are not shown, because some clients refuse names that it does not have.
        """
        spare = itertools.count(_SPARE_ID_MIN)
        system = [*(f"_KEY_{key}" for key in sorted(self._keys)), "_SEQUENCE_NUMBER", "_VALUE_KIND"]
        names = system if self._keys else []
        return _render(self._top, spare) + [{"field-id": next(spare), "names": [name]} for name in names]

    def finds(self, column: DataField) -> bool:
        """Whether clients find a column, and all its parts, by their names in a file without ids."""
        return _finds(self._top, column.name, parse_type(column.type), column.id, column.id, 0)


def _collect(level: dict[int, _Named], name: str, data_type: Type, number: int, inside_id: int, depth: int) -> None:
    entry = level.setdefault(number, _Named(set(), {}, set()))
    entry.names.add(name)
    entry.kinds.add(data_type)
    for inner in _inside(data_type, inside_id, depth):
        _collect(entry.inside, *inner)


def _inside(data_type: Type, inside_id: int, depth: int) -> Iterator[tuple[str, Type, int, int, int]]:
    """Name, type, id, and the base for ids of parts, of everything directly inside a type."""
    names = ("element",) if data_type.root == "ARRAY" else ("key", "value")
    for name, (number, part) in zip(names, part_ids(data_type, inside_id, depth), strict=False):
        yield name, part, number, inside_id, depth + 1
    for member in data_type.fields:
        if member.id is not None:
            yield member.name, member.type, member.id, member.id, 0


def _ids_by_name(level: Mapping[int, _Named]) -> dict[str, int | None]:
    """The id that each name meant; None: more than one."""
    ids: dict[str, int | None] = {}
    for number in sorted(level):
        for name in level[number].names:
            ids[name] = None if name in ids else number
    return ids


def _render(level: Mapping[int, _Named], spare: Iterator[int] | None) -> list[dict[str, Any]]:
    """Members of the mapping.

    `spare` is given for columns: the parts of those without an Iceberg type get spare ids.
    """
    ids = _ids_by_name(level)
    mapping: list[dict[str, Any]] = []
    for number in sorted(level):
        names = sorted(name for name in level[number].names if ids[name] == number)
        if not names:
            continue
        children: list[dict[str, Any]] = []
        if spare is None or any(_type_of(kind, number)[0] is not None for kind in level[number].kinds):
            children = _render(level[number].inside, None)
        else:
            children = _spare_parts(next(iter(sorted(level[number].kinds, key=str))), spare)
        mapping.append({"field-id": number, "names": names} | ({"fields": children} if children else {}))
    return mapping


def _spare_parts(data_type: Type, spare: Iterator[int]) -> list[dict[str, Any]]:
    """The mapping of everything inside a type that is not shown."""
    inner_parts = [(name, part) for name, part, *_ in _inside(data_type, 0, 0)]
    if data_type.root == "VARIANT":
        inner_parts = [("value", Type("BYTES")), ("metadata", Type("BYTES"))]
    mapping: list[dict[str, Any]] = []
    for name, part in inner_parts:
        member: dict[str, Any] = {"field-id": next(spare), "names": [name]}
        parts = _spare_parts(part, spare)
        mapping.append(member | ({"fields": parts} if parts else {}))
    return mapping


def _finds(level: Mapping[int, _Named], name: str, data_type: Type, number: int, inside_id: int, depth: int) -> bool:
    if _ids_by_name(level).get(name) != number:
        return False
    children = level[number].inside
    return all(_finds(children, *inner) for inner in _inside(data_type, inside_id, depth))
