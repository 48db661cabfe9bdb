"""Types of columns: Paimon's text and JSON forms, Arrow types, and conversions between them. Pure.

Owns: `Type`, the parsed form of a type, and its three representations:

- text, the value of `DataField.type`: ``BIGINT``, ``DECIMAL(10, 2)``, ``ARRAY<INT NOT NULL>``, ``MAP<STRING, INT>``,
  ``ROW<a@3: INT, b@4: STRING>`` (``@<field id>`` belongs to nested fields; other clients need it for evolution);
- JSON, in schema files: text for plain types, an object for nested ones;
- Arrow, in data files and in memory.

Invariants:
- Parsing and printing a text yields its canonical text.
- The nullability of a column is `DataField.nullable`, never part of `DataField.type`. Inside nested types it is written
  as ``NOT NULL``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import DataField
from lakebed.texts import format_value, whole_number

FIELD_ID_KEY: Final = b"PARQUET:field_id"
"""Key of the Arrow field metadata that carries a column's field id into Parquet."""
COMMENT_KEY: Final = b"comment"
"""Key of the Arrow field metadata that carries a column's comment into a table's schema."""

VARIABLE_LENGTH_MAX: Final = 2**31 - 1
_DEFAULT_PRECISION: Final = {"TIME": 0, "TIMESTAMP": 6, "TIMESTAMP_LTZ": 6}
_ALIASES: Final = {
    "INTEGER": "INT",
    "NUMERIC": "DECIMAL",
    "DEC": "DECIMAL",
    "BOOL": "BOOLEAN",
    "LONG": "BIGINT",
    "SHORT": "SMALLINT",
    "BYTE": "TINYINT",
    "REAL": "FLOAT",
}
_PLAIN: Final = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "STRING", "BYTES", "VARIANT", "BLOB")
)
_NESTED: Final = frozenset(("ARRAY", "MULTISET", "MAP", "ROW"))


@dataclass(frozen=True, slots=True)
class NestedField:
    """One field of a ROW type."""

    name: str
    type: Type
    id: int | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """A parsed type. `str` prints its canonical text, with `` NOT NULL`` when not nullable."""

    root: str
    """``BIGINT``, ``DECIMAL``, ``TIMESTAMP_LTZ``, ``ARRAY``; STRING is VARCHAR(2^31-1), BYTES VARBINARY(2^31-1)."""
    precision: int | None = None
    """Digits of DECIMAL, fraction digits of TIME and TIMESTAMP, length of CHAR, VARCHAR, BINARY, VARBINARY."""
    scale: int | None = None
    children: tuple[Type, ...] = ()
    """Element of ARRAY and MULTISET; key and value of MAP."""
    fields: tuple[NestedField, ...] = ()
    nullable: bool = True

    @property
    def is_nested(self) -> bool:
        """ARRAY, MULTISET, MAP or ROW: no statistics, no keys."""
        return self.root in _NESTED

    @property
    def text(self) -> str:
        """Canonical text without the nullability of the type itself."""
        if self.root == "ROW":
            return f"ROW<{', '.join(_field_text(field) for field in self.fields)}>"
        if self.children:
            return f"{self.root}<{', '.join(map(str, self.children))}>"
        if self.precision is None:
            return self.root
        return (
            f"{self.root}({self.precision})" if self.scale is None else f"{self.root}({self.precision}, {self.scale})"
        )

    def __str__(self) -> str:
        return self.text if self.nullable else self.text + " NOT NULL"


def _field_text(field: NestedField) -> str:
    name = field.name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field.name) else f"`{field.name.replace('`', '``')}`"
    return f"{name}{'' if field.id is None else f'@{field.id}'}: {field.type}"


DEPTH_MAX: Final = 64
"""Limit of nesting: Python and other clients process nested types recursively."""

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|([A-Za-z_][A-Za-z0-9_]*)|([0-9]+)|([<>(),:@]))")


class _Parser:
    """Recursive descent over the tokens of one type text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self.tokens = list(self._tokens())

    def _tokens(self) -> Iterator[str]:
        position, end = 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise self.error()
            yield match[0].strip()
            position = match.end()

    def error(self) -> InvalidRequest:
        return InvalidRequest(
            f"{format_value(self.text)} is not a valid type: use for example BIGINT, STRING, DECIMAL(10, 2), "
            "TIMESTAMP(3), DATE, ARRAY<INT>, MAP<STRING, INT> or ROW<a: INT>.",
            kind="unknown_type",
            type=self.text,
        )

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise self.error()
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if self.next().upper() != token:
            raise self.error()

    def accept(self, *words: str) -> bool:
        next_words = [token.upper() for token in self.tokens[self.position : self.position + len(words)]]
        if next_words != list(words):
            return False
        self.position += len(words)
        return True

    def whole(self) -> Type:
        data_type = self.type()
        if self.peek():
            raise self.error()
        return data_type

    def type(self) -> Type:
        word = self.next().upper()
        root = _ALIASES.get(word, word)
        if root == "DOUBLE":
            self.accept("PRECISION")
        if root in _NESTED:
            data_type = self.parse_nested(root)
        else:
            parameters = self.parameters()
            if root in ("TIME", "TIMESTAMP"):
                if self.accept("WITH", "LOCAL", "TIME", "ZONE"):
                    root = "TIMESTAMP_LTZ" if root == "TIMESTAMP" else root
                else:
                    self.accept("WITHOUT", "TIME", "ZONE")
            data_type = self.plain(root, parameters)
        if self.accept("NOT", "NULL"):
            return replace(data_type, nullable=False)
        self.accept("NULL")
        return data_type

    def parse_nested(self, root: str) -> Type:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _too_deep()
        data_type = self.inside(root)
        self.depth -= 1
        return data_type

    def inside(self, root: str) -> Type:
        self.expect("<")
        if root != "ROW":
            children = [self.type()]
            if root == "MAP":
                self.expect(",")
                children.append(self.type())
            self.expect(">")
            return Type(root, children=tuple(children))
        fields = []
        while self.peek() != ">":
            name = self.next()
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            field_id = int(self.number()) if self.accept("@") else None
            self.accept(":")
            fields.append(NestedField(name, self.type(), field_id))
            if not self.accept(","):
                break
        self.expect(">")
        return Type(root, fields=tuple(fields))

    def number(self) -> int:
        number = whole_number(self.next())
        if number is None:
            raise self.error()
        return number

    def parameters(self) -> list[int]:
        if not self.accept("("):
            return []
        numbers = [self.number()]
        while self.accept(","):
            numbers.append(self.number())
        self.expect(")")
        return numbers

    def plain(self, root: str, parameters: list[int]) -> Type:
        if root in _PLAIN and not parameters:
            return Type(root)
        if root == "DECIMAL" and len(parameters) <= 2:
            precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
            if 1 <= precision <= 38 and 0 <= scale <= precision:
                return Type(root, precision, scale)
        elif len(parameters) <= 1 and root in _DEFAULT_PRECISION:
            precision = parameters[0] if parameters else _DEFAULT_PRECISION[root]
            if 0 <= precision <= 9:
                return Type(root, precision)
        elif len(parameters) <= 1 and root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
            length = parameters[0] if parameters else 1
            if length == VARIABLE_LENGTH_MAX and root.startswith("VAR"):
                return Type("STRING" if root == "VARCHAR" else "BYTES")
            if 1 <= length <= VARIABLE_LENGTH_MAX:
                return Type(root, length)
        raise self.error()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The type has more than {DEPTH_MAX} levels of ARRAY, MAP and ROW: use fewer.", kind="unknown_type"
    )


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Parse the text of a type. Raises `InvalidRequest`: not a valid type, or more than `DEPTH_MAX` levels."""
    return _Parser(text).whole()


BINARY_ROOTS: Final = frozenset(("BINARY", "VARBINARY", "BYTES", "BLOB"))
"""Types of bytes. Clients do not agree on folder names for their values."""

_ARROW_OF_PLAIN: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "STRING": pa.string(),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "BYTES": pa.binary(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BLOB": pa.large_binary(),
    "VARIANT": pa.struct(
        [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
    ),
}


@lru_cache(maxsize=4096)
def arrow_type(text: str) -> pa.DataType:
    """The Arrow type of a column, in memory and in data files."""
    return _arrow_of(parse_type(text))


def _arrow_of(data_type: Type) -> pa.DataType:
    if data_type.root in _ARROW_OF_PLAIN:
        return _ARROW_OF_PLAIN[data_type.root]
    if data_type.root == "DECIMAL":
        return pa.decimal128(data_type.precision, data_type.scale)
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        unit = ("s", "ms", "us", "ns")[((data_type.precision or 0) + 2) // 3]
        return pa.timestamp(unit, tz="UTC" if data_type.root == "TIMESTAMP_LTZ" else None)
    if data_type.root == "ARRAY":
        return pa.list_(pa.field("element", _arrow_of(data_type.children[0]), nullable=data_type.children[0].nullable))
    if data_type.root in ("MAP", "MULTISET"):
        value = data_type.children[1] if data_type.root == "MAP" else Type("INT", nullable=False)
        key = pa.field("key", _arrow_of(data_type.children[0]), nullable=False)
        return pa.map_(key, pa.field("value", _arrow_of(value), nullable=value.nullable))
    return pa.struct(
        [pa.field(child.name, _arrow_of(child.type), nullable=child.type.nullable) for child in data_type.fields]
    )


def type_of_arrow(data_type: pa.DataType) -> str:
    """The text of the narrowest Paimon type that holds every value of an Arrow type.

    Raises `InvalidRequest`: Paimon has no such type (unsigned 64-bit integers, durations, unions, ...).
    """
    try:
        return _type_of(data_type).text
    except RecursionError as error:
        raise _too_deep() from error


def text_of_type(column_type: str | pa.DataType) -> str:
    """The text of a type that a caller gave as text, which is not parsed, or as an Arrow type.

    Raises `InvalidRequest`: it is neither, or as `type_of_arrow`.
    """
    if isinstance(column_type, str):
        return column_type
    if isinstance(column_type, pa.DataType):
        return type_of_arrow(column_type)
    raise InvalidRequest(
        f'{column_type!r} is not a type: give one of the table format, such as "BIGINT", or of Arrow, such as '
        "pa.int64().",
        kind="unknown_type",
    )


_TYPE_OF_ARROW_ID: Final[dict[int, Type]] = {
    pa.bool_().id: Type("BOOLEAN"),
    pa.int8().id: Type("TINYINT"),
    pa.int16().id: Type("SMALLINT"),
    pa.uint8().id: Type("SMALLINT"),
    pa.int32().id: Type("INT"),
    pa.uint16().id: Type("INT"),
    pa.int64().id: Type("BIGINT"),
    pa.uint32().id: Type("BIGINT"),
    pa.float16().id: Type("FLOAT"),
    pa.float32().id: Type("FLOAT"),
    pa.float64().id: Type("DOUBLE"),
    pa.date32().id: Type("DATE"),
    pa.string().id: Type("STRING"),
    pa.large_string().id: Type("STRING"),
    pa.string_view().id: Type("STRING"),
    pa.binary().id: Type("BYTES"),
    pa.large_binary().id: Type("BYTES"),
    pa.binary_view().id: Type("BYTES"),
    pa.null().id: Type("STRING"),
}


_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _type_of(data_type: pa.DataType, *, nullable: bool = True) -> Type:
    if data_type.id in _TYPE_OF_ARROW_ID:
        return replace(_TYPE_OF_ARROW_ID[data_type.id], nullable=nullable)
    kinds = pa.types
    if kinds.is_decimal(data_type) and data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return Type("DECIMAL", data_type.precision, data_type.scale, nullable=nullable)
    if kinds.is_timestamp(data_type):
        root = "TIMESTAMP" if data_type.tz is None else "TIMESTAMP_LTZ"
        return Type(root, {"s": 0, "ms": 3, "us": 6, "ns": 9}[data_type.unit], nullable=nullable)
    if kinds.is_time32(data_type):
        return Type("TIME", {"s": 0, "ms": 3}[data_type.unit], nullable=nullable)
    if kinds.is_fixed_size_binary(data_type):
        return Type("BINARY", data_type.byte_width, nullable=nullable)
    if kinds.is_dictionary(data_type):
        return _type_of(data_type.value_type, nullable=nullable)
    if any(is_kind(data_type) for is_kind in _LISTS):
        element = _type_of(data_type.value_type, nullable=data_type.value_field.nullable)
        return Type("ARRAY", children=(element,), nullable=nullable)
    if kinds.is_map(data_type):
        key = _type_of(data_type.key_type, nullable=False)
        value = _type_of(data_type.item_type, nullable=data_type.item_field.nullable)
        return Type("MAP", children=(key, value), nullable=nullable)
    if kinds.is_struct(data_type) and data_type.num_fields:
        fields = tuple(NestedField(field.name, _type_of(field.type, nullable=field.nullable)) for field in data_type)
        return Type("ROW", fields=fields, nullable=nullable)
    if kinds.is_time64(data_type):
        raise InvalidRequest(
            f"Arrow type {data_type} is finer than TIME, which counts milliseconds: cast the column to time32[ms].",
            kind="unknown_type",
            type=str(data_type),
        )
    raise InvalidRequest(
        f"Arrow type {data_type} has no counterpart in the table format; cast the column first.",
        kind="unknown_type",
        type=str(data_type),
    )


def arrow_field(field: DataField) -> pa.Field:
    """One column as an Arrow field, its id in the metadata (`FIELD_ID_KEY`)."""
    metadata = {FIELD_ID_KEY: str(field.id).encode()}
    return pa.field(field.name, arrow_type(field.type), nullable=field.nullable, metadata=metadata)


_PART_ID_BASE: Final = 0x1FFF_FFFF
"""Ids of elements, keys and values of maps are around this base.

DO NOT CHANGE: in data files, as the format's Java client assigns them.
"""
_PART_IDS: Final = 1024
"""Number of ids that a field has for its parts, on either side of the base."""


def part_id(field_id: int, depth: int, *, is_key: bool = False) -> int:
    """The id of an element, of a map's value, or of its key, in the Parquet files of a table.

    Args:
        field_id: of the column, or of the member of a ROW, that contains the part.
        depth: 1 for a part of it, 2 for a part of that part, and so on; a ROW's members have ids of their own.
    """
    offset = field_id * _PART_IDS + depth
    return _PART_ID_BASE - offset if is_key else _PART_ID_BASE + offset


def part_ids(parsed: Type, field_id: int, depth: int = 0) -> tuple[tuple[int, Type], ...]:
    """The parts of an ARRAY, MULTISET or MAP with their ids: element, or key and value."""
    if parsed.root == "ARRAY":
        return ((part_id(field_id, depth + 1), parsed.children[0]),)
    if parsed.root in ("MAP", "MULTISET"):
        value = parsed.children[1] if parsed.root == "MAP" else Type("INT", nullable=False)
        return (
            (part_id(field_id, depth + 1, is_key=True), replace(parsed.children[0], nullable=False)),
            (part_id(field_id, depth + 1), value),
        )
    return ()


def file_field(field: DataField) -> pa.Field:
    """One column as data files have it: as `arrow_field`, with the ids of all its parts."""
    return _file_field(field.name, replace(parse_type(field.type), nullable=field.nullable), field.id, 0)


def _file_field(name: str, data_type: Type, field_id: int | None, depth: int, inside_id: int | None = None) -> pa.Field:
    """A field with an id; the ids of its parts are counted from `inside_id`, by default from its own."""
    inside_id = field_id if inside_id is None else inside_id
    kind = _arrow_of(data_type)
    if data_type.root == "ROW":
        kind = pa.struct([_file_field(member.name, member.type, member.id, 0) for member in data_type.fields])
    elif data_type.children and inside_id is not None:
        parts = [
            _file_field(part_name, part, number, depth + 1, inside_id)
            for part_name, (number, part) in zip(
                ("element",) if data_type.root == "ARRAY" else ("key", "value"),
                part_ids(data_type, inside_id, depth),
                strict=True,
            )
        ]
        kind = pa.list_(*parts) if data_type.root == "ARRAY" else pa.map_(*parts)
    metadata = None if field_id is None else {FIELD_ID_KEY: str(field_id).encode()}
    return pa.field(name, kind, nullable=data_type.nullable, metadata=metadata)


def arrow_schema(fields: Sequence[DataField]) -> pa.Schema:
    """Columns as an Arrow schema, ids in the fields' metadata (`FIELD_ID_KEY`)."""
    return pa.schema([arrow_field(field) for field in fields])


def comment_of_arrow(field: pa.Field) -> str | None:
    """The comment in an Arrow field's metadata (`COMMENT_KEY`); None: it has none."""
    comment = (field.metadata or {}).get(COMMENT_KEY)
    return comment.decode() if comment else None


def fields_of_arrow(schema: pa.Schema) -> tuple[DataField, ...]:
    """Columns of an Arrow schema with ids from 0 on, nested ids after all top-level ones."""
    columns = [
        DataField(
            index, field.name, type_of_arrow(field.type), nullable=field.nullable, description=comment_of_arrow(field)
        )
        for index, field in enumerate(schema)
    ]
    next_id = len(columns)
    numbered = []
    for column in columns:
        data_type, next_id = with_field_ids(parse_type(column.type), next_id)
        numbered.append(replace(column, type=data_type.text))
    return tuple(numbered)


def with_field_ids(parsed: Type, next_id: int) -> tuple[Type, int]:
    """The type with fresh ids for nested fields that have none, depth first, and the next free id."""
    children, fields = [], []
    for child in parsed.children:
        child, next_id = with_field_ids(child, next_id)
        children.append(child)
    for field in parsed.fields:
        inner, next_id = with_field_ids(field.type, next_id)
        if field.id is None:
            field, next_id = replace(field, id=next_id), next_id + 1
        fields.append(replace(field, type=inner))
    return replace(parsed, children=tuple(children), fields=tuple(fields)), next_id


def without_field_ids(parsed: Type) -> Type:
    """The type without the ids of nested fields: two tables may have equal types only in this form."""
    return replace(
        parsed,
        children=tuple(map(without_field_ids, parsed.children)),
        fields=tuple(replace(field, id=None, type=without_field_ids(field.type)) for field in parsed.fields),
    )


def field_ids_inside(parsed: Type) -> list[int]:
    """Every id used inside a type."""
    ids = [field.id for field in parsed.fields if field.id is not None]
    for inner in (*parsed.children, *(field.type for field in parsed.fields)):
        ids.extend(field_ids_inside(inner))
    return ids


def name_fields(name: str, parsed: Type) -> Iterator[tuple[str, int]]:
    """Every field inside the type of a column, as a path with dots, with its id."""
    for child in parsed.children:
        yield from name_fields(name, child)
    for field in parsed.fields:
        if field.id is not None:
            yield f"{name}.{field.name}", field.id
        yield from name_fields(f"{name}.{field.name}", field.type)


def json_of_type(parsed: Type) -> Any:
    """The type as in a schema file: text, or an object for a nested type. Includes its nullability."""
    suffix = "" if parsed.nullable else " NOT NULL"
    if not parsed.is_nested:
        return str(parsed)
    if parsed.root == "ROW":
        fields = [
            {"id": field.id, "name": field.name, "type": json_of_type(field.type)}
            | ({} if field.description is None else {"description": field.description})
            for field in parsed.fields
        ]
        return {"type": "ROW" + suffix, "fields": fields}
    names = ("key", "value") if parsed.root == "MAP" else ("element",)
    return {"type": parsed.root + suffix} | {
        name: json_of_type(child) for name, child in zip(names, parsed.children, strict=True)
    }


def type_of_json(value: Any) -> Type:
    """Parse the type of a schema file; inverse of `json_of_type`.

    Raises:
        InvalidRequest: the text is not a valid type.
        KeyError, TypeError: an object lacks a required member; the caller adds the file's path.
    """
    if isinstance(value, str):
        return parse_type(value)
    words = value["type"].split()
    root, nullable = words[0], words[1:] != ["NOT", "NULL"]
    if root == "ROW":
        fields = tuple(
            NestedField(field["name"], type_of_json(field["type"]), field["id"], field.get("description"))
            for field in value["fields"]
        )
        return Type("ROW", fields=fields, nullable=nullable)
    if root == "MAP":
        return Type("MAP", children=(type_of_json(value["key"]), type_of_json(value["value"])), nullable=nullable)
    if root in ("ARRAY", "MULTISET"):
        return Type(root, children=(type_of_json(value["element"]),), nullable=nullable)
    return parse_type(value["type"])


_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_INTEGER_DIGITS: Final = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
_WIDENINGS: Final[dict[str, Callable[[Type, Type], bool]]] = {
    "FLOAT": lambda old, _: old.root in ("TINYINT", "SMALLINT"),
    "DOUBLE": lambda old, _: old.root in ("TINYINT", "SMALLINT", "INT", "FLOAT"),
    "DECIMAL": lambda old, new: _fits_decimal(old, new),
    "STRING": lambda old, _: old.root in ("CHAR", "VARCHAR"),
    "VARCHAR": lambda old, new: old.root in ("CHAR", "VARCHAR") and (old.precision or 0) <= (new.precision or 0),
    "BYTES": lambda old, _: old.root in ("BINARY", "VARBINARY"),
    "VARBINARY": lambda old, new: old.root in ("BINARY", "VARBINARY") and (old.precision or 0) <= (new.precision or 0),
    "TIMESTAMP": lambda old, new: old.root == "DATE" or _finer(old, new),
    "TIMESTAMP_LTZ": lambda old, new: _finer(old, new),
    "TIME": lambda old, new: _finer(old, new),
}


def _fits_decimal(old_type: Type, new: Type) -> bool:
    digits, scale = (
        (_INTEGER_DIGITS.get(old_type.root), 0)
        if old_type.root != "DECIMAL"
        else (old_type.precision, old_type.scale or 0)
    )
    whole_new = (new.precision or 0) - (new.scale or 0)
    return digits is not None and scale <= (new.scale or 0) and digits - scale <= whole_new


def _finer(old_type: Type, new: Type) -> bool:
    return old_type.root == new.root and (old_type.precision or 0) <= (new.precision or 0)


def can_widen(old: Type, new: Type) -> bool:
    """Whether every value of `old` is exactly representable in `new`, so that a column may change its type to it."""
    if old.root in _INTEGERS and new.root in _INTEGERS:
        return _INTEGERS.index(old.root) <= _INTEGERS.index(new.root)
    if new.root in _WIDENINGS:
        return old.text == new.text or _WIDENINGS[new.root](old, new)
    return old.text == new.text
