"""Schemas of a table: JSON and evolution. The log of their objects is `schema_log`.

Owns: the JSON names (version 3, DO NOT CHANGE: on disk, shared with other clients) and the rules of schema evolution.

Invariants:
- The identity of a column is its field id; ids are never reused, not even after a drop.
- Keys, partition columns and buckets never change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

import msgspec
import pyarrow as pa
from typing_extensions import Buffer

from lakebed.decoding import decode_json
from lakebed.errors import Corruption, InvalidRequest, UnsupportedFormat
from lakebed.table.codec.snapshot_json import check_version
from lakebed.table.engines.option_names import check_listed_columns, refuse_named, with_renamed
from lakebed.table.engines.registry import (
    check_defined,
    option_prefixes,
    refuse_change_of_marking,
    with_checked_engine,
    with_mergeable_columns,
)
from lakebed.table.engines.sequence import check_sequence
from lakebed.table.model.external_paths import ExternalPaths
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.nested import (
    Members,
    add_member,
    change_members,
    change_part,
    drop_member,
    rename_member,
)
from lakebed.table.model.options import (
    BUCKET_FUNCTION,
    IMMUTABLE_OPTIONS,
    TableOptions,
    check_option_names,
    check_options,
)
from lakebed.table.model.types import (
    BINARY_ROOTS,
    NestedField,
    Type,
    can_widen,
    field_ids_inside,
    fields_of_arrow,
    json_of_type,
    parse_type,
    type_of_json,
    with_field_ids,
    without_field_ids,
)
from lakebed.texts import html_table, names_of

Name = str | tuple[str, ...]
"""The name of a column, or the path of a field inside one, as `nested` describes it."""

SCHEMA_VERSION_MAX: Final = 3
SYSTEM_FIELD_ID_MIN: Final = (2**31 - 1) // 2
"""Ids from here on belong to system columns of the format."""
SYSTEM_COLUMNS: Final = frozenset(("_KEY_", "_SEQUENCE_NUMBER", "_VALUE_KIND", "_ROW_ID", "_LEVEL", "rowkind"))


def encode_schema(schema: TableSchema) -> bytes:
    """The bytes of ``schema/schema-<id>``."""
    members = {
        "version": SCHEMA_VERSION_MAX,
        "id": schema.id,
        "fields": [_json_of_field(field) for field in schema.fields],
        "highestFieldId": schema.highest_field_id,
        "partitionKeys": list(schema.partition_keys),
        "primaryKeys": list(schema.primary_keys),
        "options": dict(schema.options),
        "comment": schema.comment,
        "timeMillis": schema.time_ms,
    }
    return msgspec.json.format(msgspec.json.encode(members), indent=2)


def _json_of_field(field: DataField) -> dict[str, Any]:
    data_type = replace(parse_type(field.type), nullable=field.nullable)
    members = {"id": field.id, "name": field.name, "type": json_of_type(data_type)}
    if field.description is not None:
        members["description"] = field.description
    if field.default_value is not None:
        members["defaultValue"] = field.default_value
    return members


def decode_schema(body: Buffer, *, path: str) -> TableSchema:
    """Parse a schema file.

    Raises:
        Corruption: not such JSON; names the path.
        UnsupportedFormat: a version above `SCHEMA_VERSION_MAX`, or a column of an unknown type.
    """
    try:
        members = decode_json(body, dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corruption(f"{path} is not a schema: {error}.", path=path) from error
    version = members.get("version", 1)
    check_version(version, what="schema", version_max=SCHEMA_VERSION_MAX, path=path)
    try:
        options = {str(key): str(value) for key, value in (members.get("options") or {}).items()}
        # Defaults of older writers.
        if version <= 1:
            options.setdefault("bucket", "1")
        if version <= 2:
            options.setdefault("file.format", "orc")
        return TableSchema(
            id=int(members["id"]),
            fields=tuple(field_of_json(field) for field in members["fields"]),
            highest_field_id=int(members["highestFieldId"]),
            partition_keys=tuple(members["partitionKeys"]),
            primary_keys=tuple(members["primaryKeys"]),
            options=options,
            comment=members.get("comment") or "",
            time_ms=int(members.get("timeMillis") or 0),
        )
    except InvalidRequest as error:
        raise UnsupportedFormat(f"{path}: {error}", path=path) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Corruption(f"{path} is not a schema: {type(error).__name__} at {error}.", path=path) from error


def field_of_json(members: Mapping[str, Any]) -> DataField:
    """A column as a schema file has it. Raises `InvalidRequest`, `KeyError`, `TypeError`, `ValueError`."""
    data_type = type_of_json(members["type"])
    return DataField(
        int(members["id"]),
        members["name"],
        data_type.text,
        data_type.nullable,
        members.get("description"),
        members.get("defaultValue"),
    )


def new_schema(
    columns: pa.Schema | Sequence[DataField],
    *,
    primary_keys: str | Sequence[str] = (),
    partition_keys: str | Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str = "",
    time_ms: int,
) -> TableSchema:
    """Schema 0 of a new table.

    Args:
        columns: an Arrow schema (ids are given from 0 on) or fields with distinct ids.
        primary_keys: made NOT NULL.

    Raises `InvalidRequest`: no columns, duplicate or reserved names, keys that are not columns, nested keys, a
    partition column outside the primary key, or options that `check_options` or `check_sequence` refuse.
    """
    if not isinstance(comment or "", str):
        raise _invalid(f"The comment of a table is a text, and {type(comment).__name__} was given.")
    fields = fields_of_arrow(columns) if isinstance(columns, pa.Schema) else _given_fields(columns)
    primary_keys, partition_keys = names_of(primary_keys), names_of(partition_keys)
    _check_names([field.name for field in fields])
    for field in fields:
        _check_members(field.name, parse_type(field.type))
    _check_keys(fields, primary_keys, "Primary key")
    _check_keys(fields, partition_keys, "Partition")
    if primary_keys and (outside := [key for key in partition_keys if key not in primary_keys]):
        raise _invalid(
            f"Partition column {outside[0]!r} is not part of the primary key ({', '.join(primary_keys)}): "
            "add it to the primary key, or do not partition by it.",
        )
    if primary_keys and set(primary_keys) == set(partition_keys):
        raise _invalid(
            "The primary key consists of partition columns only: every partition would hold a single row.",
        )
    keys = set(primary_keys)
    fields = tuple(
        replace(field, type=parse_type(field.type).text, nullable=field.nullable and field.name not in keys)
        for field in fields
    )
    schema = TableSchema(
        id=0,
        fields=fields,
        highest_field_id=_highest_id(fields),
        partition_keys=tuple(partition_keys),
        primary_keys=tuple(primary_keys),
        options=_with_placement(options or {}, fields, primary_keys=primary_keys, partition_keys=partition_keys),
        comment=comment,
        time_ms=time_ms,
    )
    check_options(schema.options, primary_keys=schema.primary_keys, accepted=option_prefixes(schema.options))
    check_defined(schema.options)
    check_listed_columns(schema.options, [field.name for field in fields])
    ExternalPaths.of(schema.options)
    bucket_keys(schema)
    bucket_function(schema)
    check_sequence(schema)
    return with_checked_engine(schema)


def _given_fields(columns: object) -> tuple[DataField, ...]:
    """Check columns that a caller gave as something other than an Arrow schema."""
    fields = tuple(columns) if isinstance(columns, Iterable) else ()
    if fields and all(isinstance(field, DataField) for field in fields):
        return fields
    raise _invalid(
        f"A table's columns are a pyarrow.Schema or DataFields, not {type(columns).__name__}: give for example "
        'pa.schema([("id", pa.int64())]), or the schema of an Arrow table.'
    )


def _with_placement(
    options: Mapping[str, str],
    fields: Sequence[DataField],
    *,
    primary_keys: Sequence[str],
    partition_keys: Sequence[str],
) -> dict[str, str]:
    """The options of a new table, completed with those that decide in which folders other clients place its rows."""
    all_options = dict(options)
    if primary_keys:
        # Without this option, other clients would use their own default to place rows in buckets.
        all_options.setdefault("bucket", "1")
    by_name = {field.name: parse_type(field.type).root for field in fields}
    roots = {by_name[key] for key in partition_keys}
    if "TIMESTAMP_LTZ" in roots:
        # Otherwise other clients name folders in the time zone of their process.
        all_options.setdefault("partition.legacy-name", "true")
    elif roots & {"DATE", "TIME", "TIMESTAMP"}:
        # Folders are named by readable dates. Without this option, other clients expect days since 1970.
        all_options.setdefault("partition.legacy-name", "false")
    return all_options


def _invalid(sentence: str, **facts: object) -> InvalidRequest:
    return InvalidRequest(sentence, kind="invalid_schema", **facts)


def _highest_id(fields: Sequence[DataField]) -> int:
    ids = [field.id for field in fields]
    for field in fields:
        ids.extend(field_ids_inside(parse_type(field.type)))
    if len(set(ids)) != len(ids):
        raise _invalid("Two columns have the same field id.")
    return max((field_id for field_id in ids if field_id < SYSTEM_FIELD_ID_MIN), default=-1)


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise _invalid("A table needs at least one column.")
    for name in names:
        _check_name(name)
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise _invalid(f"Column {doubled[0]!r} is named twice.", column=doubled[0])


def _check_name(name: str) -> None:
    if not name.strip():
        raise _invalid("A column's name must not be blank.")
    if not name.isascii() and name.encode(errors="ignore").decode() != name:
        raise _invalid(f"The column name {name!r} is not valid Unicode: choose another name.", column=name)
    if name in SYSTEM_COLUMNS or name.startswith("_KEY_"):
        raise _invalid(f"Column name {name!r} is reserved by the format: choose another.", column=name)


def _check_members(column: str, data_type: Type) -> None:
    """Refuse a row type with two fields of one name, anywhere inside a column."""
    names = [field.name for field in data_type.fields]
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise _invalid(
            f"Column {column!r} is {data_type.text}, which has the field {doubled[0]!r} twice: give each field of a "
            "ROW its own name.",
            column=column,
        )
    for child in (*data_type.children, *(field.type for field in data_type.fields)):
        _check_members(column, child)


def _check_keys(fields: Sequence[DataField], keys: Sequence[str], role: str) -> None:
    by_name = {field.name: field for field in fields}
    for key in keys:
        if key not in by_name:
            raise unknown_column(key, by_name, what=f"{role} column")
        if parse_type(by_name[key].type).is_nested:
            raise _invalid(
                f"{role} column {key!r} has the nested type {by_name[key].type}; only plain types can be keys.",
                column=key,
            )
        if role == "Partition" and parse_type(by_name[key].type).root in BINARY_ROOTS:
            raise _invalid(
                f"Partition column {key!r} has the type {by_name[key].type}, for whose values no client of the format "
                "has a stable folder name: partition by a text instead.",
                column=key,
            )
    if len(set(keys)) != len(keys):
        raise _invalid(f"{role} columns name a column twice: {', '.join(keys)}.")


def unknown_column(name: str, known: Collection[str], *, what: str = "Column") -> InvalidRequest:
    """The error for a column that does not exist, with the nearest name."""
    nearest = get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(sorted(known))}."
    return InvalidRequest(f"{what} {name!r} does not exist: {hint}", kind="unknown_column", column=name)


def list_required_ids(schema: TableSchema) -> set[int]:
    """The ids of the columns that are NOT NULL."""
    return {field.id for field in schema.fields if not field.nullable}


def with_nulls_of(schema: TableSchema, other: TableSchema) -> TableSchema:
    """The schema, with columns made nullable where the other schema has no such column, or a nullable one."""
    required_ids = list_required_ids(other)
    fields = (replace(field, nullable=field.nullable or field.id not in required_ids) for field in schema.fields)
    return replace(schema, fields=tuple(fields))


def require_column(schema: TableSchema, name: str) -> DataField:
    """The column of that name. Raises `InvalidRequest` with the nearest name when there is none."""
    field = schema.field_by_name(name)
    if field is None:
        raise unknown_column(name, [column.name for column in schema.fields])
    return field


def bucket_keys(schema: TableSchema) -> tuple[str, ...]:
    """The columns that decide a row's bucket: option ``bucket-key``, else the primary key without partition columns.

    Raises `InvalidRequest`: the option names no column, a partition column, or one outside the primary key.
    """
    names = tuple(key.strip() for key in schema.options.get("bucket-key", "").split(",") if key.strip())
    if not names:
        return schema.trimmed_primary_keys
    for key in names:
        require_column(schema, key)
        if key in schema.partition_keys:
            raise InvalidRequest(
                f"Bucket key {key!r} is a partition column.", kind="invalid_option", option="bucket-key"
            )
        if schema.primary_keys and key not in schema.primary_keys:
            raise InvalidRequest(
                f"Bucket key {key!r} is not part of the primary key ({', '.join(schema.primary_keys)}).",
                kind="invalid_option",
                option="bucket-key",
            )
    return names


def bucket_function(schema: TableSchema) -> str:
    """How the bucket keys decide the bucket: ``default`` or ``mod``.

    Raises `InvalidRequest`: another function, or ``mod`` with keys that it does not support.
    """
    function = TableOptions(schema.options).get(BUCKET_FUNCTION)
    if function in BUCKET_FUNCTION.unsupported:
        raise InvalidRequest(
            f"Option 'bucket-function.type' = {function!r} is not supported by this version of lakebed.",
            kind="unsupported_option",
            option="bucket-function.type",
        )
    if function == "mod":
        keys = [require_column(schema, name) for name in bucket_keys(schema)]
        if len(keys) != 1 or parse_type(keys[0].type).root not in ("INT", "BIGINT"):
            key_text = ", ".join(f"{key.name} {key.type}" for key in keys) or "none"
            raise InvalidRequest(
                f"Option 'bucket-function.type' = 'mod' needs a single bucket key of type INT or BIGINT, not "
                f"{key_text}.",
                kind="invalid_option",
                option="bucket-function.type",
            )
    return function


def _change(schema: TableSchema, **members: Any) -> TableSchema:
    return replace(schema, id=schema.id + 1, **members)


def _roles(schema: TableSchema, name: str) -> str | None:
    """The role of a column, as a phrase; None for a plain value column."""
    if name in schema.primary_keys:
        return "part of the primary key"
    if name in schema.partition_keys:
        return "a partition column"
    if name in bucket_keys(schema):
        return "a bucket key"
    sequence = [part.strip() for part in schema.options.get("sequence.field", "").split(",")]
    return "the sequence field" if name in sequence else None


def _refuse_key(schema: TableSchema, name: str, verb: str) -> None:
    role = _roles(schema, name)
    if role is not None:
        raise InvalidRequest(
            f"Column {name!r} is {role} and cannot be {verb}: existing files are laid out by it. Create a new table "
            "and copy the rows instead.",
            kind="invalid_schema_change",
            column=name,
        )


def _change_inside(schema: TableSchema, path: tuple[str, ...], change: Callable[[Members], Members]) -> TableSchema:
    """Change the members of a row inside a column; `path` leads to one of them."""
    return _change_type(schema, path, lambda column: change_members(column, path[1:-1], change))


def _change_type(schema: TableSchema, path: tuple[str, ...], change: Callable[[Type], Type]) -> TableSchema:
    """Change the type of the column with which a path begins."""
    column = require_column(schema, path[0])
    try:
        new_type = change(parse_type(column.type))
    except InvalidRequest as error:
        raise InvalidRequest(
            f"Column {'.'.join(path)!r} cannot be changed: {error.message}", kind=error.kind, column=path[0]
        ) from error
    fields = tuple(replace(field, type=new_type.text) if field.name == path[0] else field for field in schema.fields)
    return with_checked_engine(_change(schema, fields=fields))


def add_column(
    schema: TableSchema,
    name: Name,
    type_text: str,
    *,
    comment: str | None = None,
    after: str | None = None,
    first: bool = False,
) -> TableSchema:
    """Add a nullable column, by default as the last one; existing rows have null.

    Args:
        name: a tuple is the path of a field inside a nested column, as `nested` describes it.

    Raises `InvalidRequest`: the name is taken or reserved, the type unknown or NOT NULL, or not one that the default
    aggregate function takes; a path leads to no row.
    """
    if isinstance(name, tuple) and len(name) > 1:
        return _add_inside(schema, name, type_text, comment=comment, after=after, first=first)
    name = name if isinstance(name, str) else name[0]
    _check_name(name)
    if schema.field_by_name(name) is not None:
        raise InvalidRequest(f"Column {name!r} exists already.", kind="column_exists", column=name)
    field_id = schema.highest_field_id + 1
    data_type, next_id = _type_to_add(name, type_text, field_id)
    result = _change(
        schema,
        fields=(*schema.fields, DataField(field_id, name, data_type.text, description=comment)),
        highest_field_id=next_id - 1,
    )
    with_mergeable_columns(result)
    if after is None and not first:
        return result
    return replace(move_column(result, name, after=after), id=result.id)


def _type_to_add(name: str, type_text: str, field_id: int) -> tuple[Type, int]:
    """The type of a new column or field, whose own id is given, and the next free id.

    Ids inside the given type are replaced, because they come from another schema: clients that add a column number its
    fields from 0, and an import has the numbers of its source. In this table they may be the ids of other fields.
    """
    data_type = parse_type(type_text)
    _check_members(name, data_type)
    if not data_type.nullable:
        raise InvalidRequest(
            f"Column {name!r} cannot be added as NOT NULL: existing rows have no value for it.",
            kind="invalid_schema_change",
            column=name,
        )
    return with_field_ids(without_field_ids(data_type), field_id + 1)


def _add_inside(
    schema: TableSchema, path: tuple[str, ...], type_text: str, *, comment: str | None, after: str | None, first: bool
) -> TableSchema:
    field_id = schema.highest_field_id + 1
    data_type, next_id = _type_to_add(".".join(path), type_text, field_id)
    member = NestedField(path[-1], data_type, field_id, comment)
    result = _change_inside(schema, path, lambda members: add_member(members, member, after=after, first=first))
    return replace(result, highest_field_id=next_id - 1)


def drop_column(schema: TableSchema, name: Name) -> TableSchema:
    """Drop a column, or a field inside one. Its values stay in old files, and its id is never reused.

    Raises `InvalidRequest`: no such column, the last column, or one that decides the layout of files.
    """
    if isinstance(name, tuple) and len(name) > 1:
        return _change_inside(schema, name, lambda members: drop_member(members, name[-1]))
    name = name if isinstance(name, str) else name[0]
    require_column(schema, name)
    _refuse_key(schema, name, "dropped")
    refuse_named(schema.options, name)
    if len(schema.fields) == 1:
        raise InvalidRequest(
            f"Column {name!r} is the only one and cannot be dropped: drop the table instead.",
            kind="invalid_schema_change",
        )
    return _change(schema, fields=tuple(field for field in schema.fields if field.name != name))


def rename_column(schema: TableSchema, old: Name, new: str) -> TableSchema:
    """Rename a column, or a field inside one. It keeps its id and values, and its options follow the new name.

    Raises `InvalidRequest`: no such column, a name that is taken or reserved, or a column that decides the layout of
    files.
    """
    if isinstance(old, tuple) and len(old) > 1:
        return _change_inside(schema, old, lambda members: rename_member(members, old[-1], new))
    old = old if isinstance(old, str) else old[0]
    require_column(schema, old)
    _refuse_key(schema, old, "renamed")
    _check_name(new)
    if schema.field_by_name(new) is not None:
        raise InvalidRequest(f"Column {new!r} exists already.", kind="column_exists", column=new)
    return _change(
        schema,
        fields=tuple(replace(field, name=new) if field.name == old else field for field in schema.fields),
        options=with_renamed(schema.options, old, new),
    )


def widen_column(schema: TableSchema, name: Name, type_text: str) -> TableSchema:
    """Change the type of a column, or of a part of one, to a wider type; every value stays the same.

    Args:
        name: a tuple is the path of a field, an element or a value of a map, as `nested` describes it.

    Raises:
        InvalidRequest: no such column, one that decides the layout of files, or a type that does not hold every old
            value.
    """
    path = (name,) if isinstance(name, str) else name
    require_column(schema, path[0])
    _refuse_key(schema, path[0], "given another type")
    new = parse_type(type_text)

    def widen(old: Type) -> Type:
        wider = replace(new, nullable=old.nullable)
        if old.text == wider.text or not can_widen(old, wider):
            raise InvalidRequest(
                f"it cannot change from {old.text} to {type_text}: only a wider type that holds every old value is "
                "possible, such as INT to BIGINT or FLOAT to DOUBLE.",
                kind="invalid_schema_change",
            )
        return wider

    return _change_type(schema, path, lambda column: change_part(column, path[1:], widen))


def move_column(schema: TableSchema, name: str, *, after: str | None = None) -> TableSchema:
    """Move a column after another one (`after`), or to the front.

    Raises `InvalidRequest`: no such column, or a column after itself.
    """
    moved_field = require_column(schema, name)
    if after == name:
        raise InvalidRequest(f"Column {name!r} cannot be placed behind itself.", kind="invalid_schema_change")
    other_fields = [field for field in schema.fields if field.name != name]
    place = 0 if after is None else other_fields.index(require_column(schema, after)) + 1
    return _change(schema, fields=(*other_fields[:place], moved_field, *other_fields[place:]))


def set_comment(schema: TableSchema, comment: str) -> TableSchema:
    """Set the table's comment."""
    return _change(schema, comment=comment)


def set_column_comment(schema: TableSchema, name: str, comment: str | None) -> TableSchema:
    """Set the comment of a column; None: remove it. Raises `InvalidRequest`: no such column."""
    return _with_column(schema, replace(require_column(schema, name), description=comment))


def drop_not_null(schema: TableSchema, name: str) -> TableSchema:
    """Let a column hold nulls. Raises `InvalidRequest`: no such column, or a column of the primary key."""
    field = require_column(schema, name)
    if name in schema.primary_keys:
        raise InvalidRequest(
            f"The column {name} is part of the primary key, which is never null: keep NOT NULL.",
            kind="unsupported_change",
        )
    return _with_column(schema, replace(field, nullable=True))


def _with_column(schema: TableSchema, column: DataField) -> TableSchema:
    return _change(schema, fields=tuple(column if field.name == column.name else field for field in schema.fields))


def set_options(schema: TableSchema, options: Mapping[str, str]) -> TableSchema:
    """Set some options.

    Raises `InvalidRequest`: an option is unknown, has an unreadable value, or decides the layout of existing files.
    """
    _refuse_immutable(schema, {name: value for name, value in options.items() if schema.options.get(name) != value})
    all_options = {**schema.options, **options}
    check_listed_columns(options, [field.name for field in schema.fields])
    refuse_change_of_marking(schema, all_options)
    check_options(options, primary_keys=schema.primary_keys, accepted=option_prefixes(all_options))
    ExternalPaths.of(all_options)
    return with_checked_engine(_change(schema, options=all_options))


def remove_options(schema: TableSchema, names: Collection[str]) -> TableSchema:
    """Reset some options to their defaults; a known name that is not set is a no-op.

    Raises `InvalidRequest`: an option is neither known nor set, or decides the layout of existing files.
    """
    check_option_names([name for name in names if name not in schema.options])
    _refuse_immutable(schema, [name for name in names if name in schema.options])
    remaining_options = {name: value for name, value in schema.options.items() if name not in names}
    refuse_change_of_marking(schema, remaining_options)
    return with_checked_engine(_change(schema, options=remaining_options))


def _refuse_immutable(schema: TableSchema, names: Collection[str]) -> None:
    for name in names:
        if name in IMMUTABLE_OPTIONS:
            raise InvalidRequest(
                f"Option {name!r} is fixed at {schema.options.get(name, 'its default')!r} when the table is created: "
                "existing files are laid out by it. Create a new table and copy the rows instead.",
                kind="invalid_option",
                option=name,
            )


def schema_html(schema: TableSchema, *, title: str) -> str:
    """The columns of a schema as a table for a notebook."""
    keys = (("primary key", schema.primary_keys), ("partition", schema.partition_keys))
    rows = [
        (
            field.name,
            field.type,
            "yes" if field.nullable else "no",
            ", ".join(kind for kind, names in keys if field.name in names),
            field.description,
        )
        for field in schema.fields
    ]
    return html_table(("column", "type", "nullable", "key", "comment"), rows, title=title)
