"""Members of nested values that their type declares NOT NULL. Pure.

Owns: what a type requires, where values violate it, and values for members that are hidden.

Invariants: a null in a row, list or map hides the members inside it. A hidden member may be null whatever its type
says: Arrow and its clients make such values. Arrow's Parquet writer and its casts refuse them, so hidden members must
be filled with some value.
"""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, the value of a map (Arrow itself refuses null keys), or the element of a list."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field.with_nullable(True), kind.item_field]
    return [kind.value_field] if pa.types.is_nested(kind) else []


def has_required(kind: pa.DataType) -> bool:
    """Whether a type has a member, at any depth, that is declared NOT NULL."""
    return any(not field.nullable or has_required(field.type) for field in inner_fields(kind))


def lacks_required(values: pa.Array) -> bool:
    """Whether a value that is not null has a null inside where its type does not allow one."""
    fields = inner_fields(values.type)
    return any(
        (not field.nullable and member.null_count > 0) or (has_required(field.type) and lacks_required(member))
        for field, member in zip(fields, visible_members(values) if fields else (), strict=True)
    )


def visible_members(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """The members of nested values, one after another, without those that a slice or a null hides."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_struct(column.type):
        return [member for chunk in chunks for member in chunk.drop_null().flatten()]
    if pa.types.is_map(column.type):
        visible_chunks = [chunk.filter(chunk.is_valid()) for chunk in chunks]
        return [member for chunk in visible_chunks for member in (chunk.keys, chunk.items)]
    return [chunk.flatten() for chunk in chunks]


def without_required(kind: pa.DataType) -> pa.DataType:
    """The type with nullable members at every depth."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_required(field.type)).with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(without_required(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item.with_nullable(True))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_required(kind.value_type)).with_nullable(True))
    return kind


def cast_members(
    values: pa.ChunkedArray | pa.Array, kind: pa.DataType, *, safe: bool = True
) -> pa.ChunkedArray | pa.Array:
    """Arrow's cast, except that it accepts a null in a required member that is hidden.

    Raises `pyarrow.ArrowInvalid`: a value does not fit, or a required member is null in a value that is not null.
    """
    if values.type == kind or not has_required(kind):
        return values if values.type == kind else values.cast(kind, safe=safe)
    relaxed = values.cast(without_required(kind), safe=safe)
    chunks = relaxed.chunks if isinstance(relaxed, pa.ChunkedArray) else [relaxed]
    filled = [with_required(chunk, kind) for chunk in chunks]
    if any(map(lacks_required, filled)):
        raise pa.ArrowInvalid("a member that is NOT NULL is null")
    return pa.chunked_array(filled, kind) if isinstance(relaxed, pa.ChunkedArray) else filled[0]


def fill_hidden(rows: pa.Table) -> pa.Table:
    """The rows with a value in each required member that is null and hidden.

    Cost: a copy of the columns that have one.
    """
    for position, field in enumerate(rows.schema):
        column = rows.column(position)
        if has_required(field.type) and any(map(_may_hide, column.chunks)):
            chunks = [with_required(chunk, field.type) for chunk in column.chunks]
            rows = rows.set_column(position, field, pa.chunked_array(chunks, field.type))
    return rows


def _may_hide(values: pa.Array) -> bool:
    """Whether a required member has a null, hidden or not."""
    return any(
        has_required(pa.struct([field])) and ((not field.nullable and member.null_count > 0) or _may_hide(member))
        for field, member in zip(inner_fields(values.type), _members(values), strict=True)
    )


def _members(values: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(values.type):
        return [values.field(position) for position in range(values.type.num_fields)]
    if pa.types.is_map(values.type):
        return [values.keys, values.items]
    return [values.values] if pa.types.is_nested(values.type) else []


def with_required(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in another type of structs, lists and maps, which differs only in what it requires.

    Hidden members are not null in the result. A null that is not hidden stays, as `lacks_required` says.
    """
    if not has_required(kind):
        return values
    is_null = values.is_null()
    members = [
        with_required(member, field.type)
        for member, field in zip(visible_members(values), inner_fields(kind), strict=True)
    ]
    if pa.types.is_struct(kind):
        if values.null_count:
            is_valid = ~np.asarray(is_null)
            places = pa.array(np.where(is_valid, np.cumsum(is_valid) - 1, is_valid.sum()))
            members = [pa.concat_arrays([member, _any_value(member.type)]).take(places) for member in members]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=is_null)
    lengths = np.where(is_null, 0, np.diff(np.asarray(values.offsets)))
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    factory = pa.MapArray if pa.types.is_map(kind) else pa.ListArray
    return factory.from_arrays(ends, *members, type=kind, mask=is_null)


def _any_value(kind: pa.DataType) -> pa.Array:
    """An array with one value of a type, which is not null."""
    return pa.array([_any_python_value(kind)], kind)


def _any_python_value(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: _any_python_value(field.type) for field in kind}
    if types.is_nested(kind):
        return []
    if types.is_boolean(kind):
        return False
    if types.is_decimal(kind):
        return decimal.Decimal(0)
    if types.is_string(kind):
        return ""
    return b"" if types.is_binary(kind) or types.is_large_binary(kind) else 0
