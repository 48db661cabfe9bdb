"""The protocol's schemas and schema changes in the form of the table package. Pure.

Owns: which of the protocol's changes are applied, by which function of `lakebed.table.schema`, and why the others are
refused. All changes of a request make one new schema, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.types import Type, parse_type, type_of_json
from lakebed.table.schema.schema import (
    Name,
    add_column,
    drop_column,
    drop_not_null,
    field_of_json,
    move_column,
    remove_options,
    rename_column,
    require_column,
    set_column_comment,
    set_comment,
    set_options,
    widen_column,
)

_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)


class Move(msgspec.Struct, frozen=True, rename="camel"):
    """The new position of a column."""

    field_name: str
    type: str
    reference_field_name: str | None = None


class SchemaChange(msgspec.Struct, frozen=True, rename="camel"):
    """One change of ``POST .../tables/{table}``; each action has members of its own."""

    action: str
    key: str | None = None
    value: str | None = None
    comment: str | None = None
    field_names: tuple[str, ...] = ()
    data_type: Any = None
    move: Move | None = None
    new_name: str | None = None
    new_data_type: Any = None
    new_nullability: bool | None = None
    new_comment: str | None = None
    keep_nullability: bool = False


def columns_of(fields: Sequence[Mapping[str, Any]]) -> list[DataField]:
    """Return the columns of the protocol's schema. Raises `InvalidRequest`."""
    try:
        return [field_of_json(field) for field in fields]
    except _MALFORMED as error:
        raise InvalidRequest(
            f"A column of the schema cannot be read: {type(error).__name__} at {error}.", kind="invalid_body"
        ) from error


def apply_changes(schema: TableSchema, changes: Sequence[SchemaChange]) -> TableSchema:
    """Return the schema after all changes, with the next id. Raises `InvalidRequest`."""
    new_schema = schema
    for change in changes:
        new_schema = _apply(new_schema, change)
    return replace(new_schema, id=schema.id + 1)


def _apply(schema: TableSchema, change: SchemaChange) -> TableSchema:
    match change.action:
        case "setOption":
            return set_options(schema, {change.key or "": change.value or ""})
        case "removeOption":
            name = change.key or ""
            return remove_options(schema, [name]) if name in schema.options else schema
        case "updateComment":
            return set_comment(schema, change.comment or "")
        case "addColumn":
            new_schema = add_column(schema, _path(change), str(_type(change.data_type)), comment=change.comment)
            return new_schema if change.move is None else _move(new_schema, change.move)
        case "dropColumn":
            return drop_column(schema, _path(change))
        case "renameColumn":
            return rename_column(schema, _path(change), change.new_name or "")
        case "updateColumnType":
            return _widen(schema, change)
        case "updateColumnNullability":
            if change.new_nullability is not True:
                raise _refused(f"column {_column(change)!r} cannot become NOT NULL: stored rows may hold nulls")
            return drop_not_null(schema, _column(change))
        case "updateColumnComment":
            return set_column_comment(schema, _column(change), change.new_comment)
        case "updateColumnPosition" if change.move is not None:
            return _move(schema, change.move)
        case "updateColumnDefaultValue":
            raise _refused("default values are not applied by every client of the table, so they cannot be set")
        case "dropPrimaryKey":
            raise _refused("the primary key decides how files are laid out, so it cannot be dropped")
    raise _refused(f"{change.action!r} is not a change that this server knows")


def _widen(schema: TableSchema, change: SchemaChange) -> TableSchema:
    name, new = _path(change), _type(change.new_data_type)
    if isinstance(name, tuple):
        return widen_column(schema, name, new.text)
    field = require_column(schema, name)
    if not (new.nullable or change.keep_nullability) and field.nullable:
        raise _refused(f"column {name!r} cannot become NOT NULL: stored rows may hold nulls")
    if parse_type(field.type).text == new.text:
        return drop_not_null(schema, name) if new.nullable and not field.nullable else schema
    return widen_column(schema, name, new.text)


def _move(schema: TableSchema, move: Move) -> TableSchema:
    names = [field.name for field in schema.fields]
    if move.type == "FIRST":
        return move_column(schema, move.field_name)
    if move.type == "LAST":
        return move_column(
            schema, move.field_name, after=next((n for n in reversed(names) if n != move.field_name), None)
        )
    reference = move.reference_field_name or ""
    require_column(schema, reference)
    if move.type == "BEFORE":
        if reference == move.field_name:
            raise _refused(f"column {reference!r} cannot be placed before itself")
        other_names = [name for name in names if name != move.field_name]
        place = other_names.index(reference)
        return move_column(schema, move.field_name, after=other_names[place - 1] if place else None)
    return move_column(schema, move.field_name, after=reference)


def _path(change: SchemaChange) -> Name:
    if not change.field_names:
        raise _refused(f"{change.action} names no column")
    return change.field_names if len(change.field_names) > 1 else change.field_names[0]


def _column(change: SchemaChange) -> str:
    path = _path(change)
    if isinstance(path, tuple):
        raise _refused(
            f"the field {'.'.join(path)} is inside a column, where fields can only be added, dropped, renamed and "
            "widened"
        )
    return path


def _type(value: Any) -> Type:
    try:
        return type_of_json(value)
    except _MALFORMED as error:
        raise InvalidRequest(
            f"A type cannot be read: {type(error).__name__} at {error}.", kind="invalid_body"
        ) from error


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"The table cannot be altered: {why}.", kind="unsupported_change")
