"""Conversion of a caller's rows to the columns and types of a table. Pure.

Owns: the Arrow types that a column accepts, and the messages about rows that do not fit. Invariants: a conversion keeps
every value or the write is refused; text is never converted to a number or the reverse. The result has exactly the
table's columns, in order, with the table's Arrow types and no null in a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.required_members import (
    cast_members,
    has_required,
    inner_fields,
    lacks_required,
    visible_members,
)
from lakebed.table.codec.stats import has_high_byte
from lakebed.table.engines.registry import engine_of
from lakebed.table.engines.sequence import sequence_order
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.types import arrow_schema, arrow_type
from lakebed.table.schema.schema import unknown_column
from lakebed.texts import format_count


def conform(rows: pa.Table, *, schema: TableSchema) -> pa.Table:
    """Rows with the table's columns, order and types.

    A missing column is filled with nulls in an append table if it is nullable. In a primary-key table it is refused,
    because an upsert would silently erase stored values, unless the merge engine keeps these (`MergeEngine.optional`).

    Raises `InvalidRequest`: an unknown or missing column, an incompatible type, a value that the conversion would
    change, a text that is not UTF-8, or a null that is not allowed.
    """

    def optional() -> frozenset[str]:
        return engine_of(schema).optional(frozenset(rows.column_names))

    columns = _columns(
        rows,
        schema,
        needs=lambda field: not field.nullable or (bool(schema.primary_keys) and field.name not in optional()),
        lacking=lambda field: (
            f"The rows have no column {field.name!r} ({field.type})"
            + (", and would empty it in rows that they replace: give it, with nulls" if field.nullable else "")
            + "; they have"
        ),
    )
    _refuse_nulls(columns, schema.fields, schema)
    return pa.table(columns, schema=arrow_schema(schema.fields))


def conform_keys(rows: pa.Table, *, schema: TableSchema) -> pa.Table:
    """Rows with the keys to delete, and nulls in every other missing column.

    Raises: as `conform`, but only key columns (partition columns included) must be present and not null, and the
        columns of the option ``sequence.field`` must be present.
    """
    _require_sequence(rows.column_names, schema)
    keys = frozenset((*schema.primary_keys, *schema.partition_keys))
    columns = _columns(
        rows,
        schema,
        needs=lambda field: field.name in keys,
        lacking=lambda field: (
            f"A delete needs every key column, but the rows have no column {field.name!r}; "
            f"the key is ({', '.join(schema.primary_keys)}), the rows have"
        ),
    )
    places = [place for place, field in enumerate(schema.fields) if field.name in schema.primary_keys]
    _refuse_nulls([columns[place] for place in places], [schema.fields[place] for place in places], schema)
    return pa.table(columns, schema=arrow_schema(schema.fields))


def cast_columns(rows: pa.Table, *, schema: TableSchema) -> pa.Table:
    """Rows with the table's types in the columns that the table has, under the same names and in the same order.

    Rows of these types can be filtered, which Arrow (26.0) cannot for views of texts and bytes.
    Raises `InvalidRequest`: an incompatible type, or a value that the conversion would change.
    """
    fields = [schema.field_by_name(name) for name in rows.column_names]
    columns = [
        column if field is None else _cast(column, field) for column, field in zip(rows.columns, fields, strict=True)
    ]
    return pa.table(columns, names=rows.column_names)


def _columns(
    rows: pa.Table,
    schema: TableSchema,
    *,
    needs: Callable[[DataField], bool],
    lacking: Callable[[DataField], str],
) -> list[pa.ChunkedArray]:
    """The table's columns, converted, with nulls in those that are missing and not needed."""
    _refuse_unknown(rows.column_names, schema)
    columns = []
    for field in schema.fields:
        position = rows.schema.get_field_index(field.name)
        if position >= 0:
            column = _cast(rows.column(position), field)
            if not are_utf8(column):
                raise not_utf8(field.name)
            _refuse_nulls_inside(column, field)
            _refuse_beyond_ms(column, field)
            columns.append(column)
        elif needs(field):
            sentence = f"{lacking(field)} {_join_names(rows.column_names)}."
            raise InvalidRequest(sentence, kind="missing_column", column=field.name)
        else:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, arrow_type(field.type))]))
    return columns


def _require_sequence(names: Sequence[str], schema: TableSchema) -> None:
    """Refuse a delete without these columns: it would be older than every row of its key, and have no effect."""
    order = sequence_order(schema)
    for name in order.columns if order is not None else ():
        if name not in names:
            raise InvalidRequest(
                f"The table orders the rows of a key by {', '.join(map(repr, order.columns if order else ()))} "
                f"(option sequence.field), so a delete needs the column {name!r}; the rows have "
                f"{_join_names(names)}. Give "
                "it with the keys, or delete by a predicate, which takes the values that the rows have.",
                kind="missing_column",
                column=name,
            )


def _refuse_unknown(names: Sequence[str], schema: TableSchema) -> None:
    field_names = [field.name for field in schema.fields]
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InvalidRequest(f"The rows have the column {twice!r} twice.", kind="duplicate_column", column=twice)
    for name in names:
        if name not in field_names:
            raise unknown_column(name, field_names)


def _refuse_nulls(columns: Sequence[pa.ChunkedArray], fields: Sequence[DataField], schema: TableSchema) -> None:
    for column, field in zip(columns, fields, strict=True):
        if column.null_count == 0:
            continue
        if field.name in schema.primary_keys:
            raise InvalidRequest(
                f"Key column {field.name!r} is null in {column.null_count:,} of {len(column):,} rows; "
                "a key must not be null.",
                kind="null_key",
                column=field.name,
                count=column.null_count,
            )
        if not field.nullable:
            raise InvalidRequest(
                f"Column {field.name!r} is {field.type} NOT NULL, but null in {column.null_count:,} of "
                f"{len(column):,} rows.",
                kind="null_value",
                column=field.name,
                count=column.null_count,
            )


def _refuse_nulls_inside(column: pa.ChunkedArray, field: DataField) -> None:
    """Refuse a null in an element, a value or a field that the column's type declares NOT NULL."""
    if has_required(column.type) and any(map(lacks_required, column.chunks)):
        raise InvalidRequest(
            f"Column {field.name!r} is {field.type}, and some of the rows have a null inside of it where the type says "
            "NOT NULL.",
            kind="null_value",
            column=field.name,
        )


def _refuse_beyond_ms(column: pa.ChunkedArray, field: DataField) -> None:
    """Refuse whole seconds that 64-bit milliseconds, which files and statistics use, cannot hold."""
    if _has_seconds(column.type) and not _fit_ms(column):
        raise InvalidRequest(
            f"Column {field.name!r} is {field.type}, and some of the rows have a time beyond the years -292275055 to "
            "292278994, which are the range of milliseconds: leave such rows out.",
            kind="value_out_of_range",
            column=field.name,
        )


def _has_seconds(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "s")
    return any(_has_seconds(inner.type) for inner in inner_fields(kind))


def _fit_ms(column: pa.ChunkedArray | pa.Array) -> bool:
    if pa.types.is_nested(column.type):
        return all(_fit_ms(member) for member in visible_members(column) if _has_seconds(member.type))
    if not _has_seconds(column.type):
        return True
    extremes = pc.min_max(column.cast(pa.int64()))
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    return least is None or (least * 1000 >= -(2**63) and greatest * 1000 < 2**63)


def _cast(column: pa.ChunkedArray, field: DataField) -> pa.ChunkedArray:
    target = arrow_type(field.type)
    if column.type == target:
        return column
    if not may_become(column.type, target):
        raise InvalidRequest(
            f"Column {field.name!r} is {field.type} (Arrow {target}), but the rows have {column.type}; cast it first.",
            kind="type_mismatch",
            column=field.name,
            expected=str(target),
            actual=str(column.type),
        )
    try:
        if _has_views(column.type):
            column = pa.chunked_array([_without_views(chunk) for chunk in column.chunks] or [pa.array([], target)])
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_integer(column.type) and pa.types.is_decimal(target):
            # Arrow's cast wants digits for any integer of the source type; here only the actual values must fit.
            column = column.cast(pa.decimal128(38, target.scale))
        return cast_members(column, target)
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"Column {field.name!r} is {field.type}, and some of the {column.type} values do not fit: "
            f"{str(error).partition(chr(10))[0]}",
            kind="lossy_cast",
            column=field.name,
            expected=str(target),
            actual=str(column.type),
        ) from error


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _has_views(kind: pa.DataType) -> bool:
    """Whether a type has list views, or views of texts or bytes, which dictionaries of polars have."""
    if pa.types.is_dictionary(kind):
        return _has_views(kind.value_type)
    is_view = _is_list_view(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(is_view) or any(_has_views(field.type) for field in inner_fields(kind))


def _without_views(values: pa.Array) -> pa.Array:
    """The same values without types for which Arrow (26.0) has no cast or, for list views, a cast that loses values."""
    kind = values.type
    if not _has_views(kind):
        return values
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return values.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(values.indices, _without_views(values.dictionary))
    is_null = values.is_null()
    if pa.types.is_struct(kind):
        members = [_without_views(values.field(place)) for place in range(kind.num_fields)]
        fields = [field.with_type(member.type) for field, member in zip(kind, members, strict=True)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=is_null)
    if pa.types.is_map(kind):
        offsets = np.asarray(values.offsets)
        start, count = offsets[0], offsets[-1] - offsets[0]
        entries = [_without_views(array.slice(start, count)) for array in (values.keys, values.items)]
        return pa.MapArray.from_arrays(pa.array(offsets - start), *entries, mask=is_null)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0))
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64())
    return pa.LargeListArray.from_arrays(ends, _without_views(values.flatten()), mask=is_null)


def are_utf8(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether all texts are UTF-8, including those inside other values.

    Cost: 0.03 ns a byte of ASCII, about 1 ns a byte of other texts.
    """
    if not _has_texts(column.type) or (pa.types.is_string(column.type) and not has_high_byte(column)):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        # A slice or a null may hide values that would count there.
        return pa.types.is_nested(column.type) and all(map(are_utf8, visible_members(column)))
    return True


def _has_texts(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_texts(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_texts(kind.field(position).type) for position in range(kind.num_fields))
    return _is_text(kind)


def not_utf8(column: str) -> InvalidRequest:
    """Return the error for a column with texts that are not UTF-8."""
    return InvalidRequest(
        f"Column {column!r} has a text that is not UTF-8 in some of the rows: store bytes in a column of type BYTES, "
        "or make texts of them, in Spark with make_valid_utf8.",
        kind="not_utf8",
        column=column,
    )


def may_become(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast between two types is allowed; the cast checks every value."""
    types = pa.types
    if types.is_null(source):
        return True
    if types.is_dictionary(source):
        return may_become(source.value_type, target)
    if types.is_integer(source):
        return bool(types.is_integer(target) or types.is_floating(target) or types.is_decimal(target))
    if types.is_floating(source):
        return bool(types.is_floating(target) and target.bit_width >= source.bit_width)
    if types.is_timestamp(source):
        return bool(types.is_timestamp(target) and (source.tz is None) == (target.tz is None))
    if types.is_nested(source) and types.is_nested(target):
        return bool(_same_shape(source, target))
    families = (types.is_decimal, types.is_date, _is_text, _is_binary, types.is_time, types.is_boolean)
    return any(family(source) and family(target) for family in families)


def _same_shape(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_map(target) or pa.types.is_map(source):
        return bool(
            pa.types.is_map(source)
            and pa.types.is_map(target)
            and _accepts(source.key_type, target.key_type)
            and _accepts(source.item_type, target.item_type)
        )
    if pa.types.is_struct(target) or pa.types.is_struct(source):
        return bool(
            pa.types.is_struct(source)
            and pa.types.is_struct(target)
            and [field.name for field in source] == [field.name for field in target]
            and all(_accepts(a.type, b.type) for a, b in zip(source, target, strict=True))
        )
    return _accepts(source.value_type, target.value_type)


def _accepts(source: pa.DataType, target: pa.DataType) -> bool:
    return source == target or may_become(source, target)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no columns"


def boolean_mask(rows: pa.Table, *, column: str) -> pa.ChunkedArray:
    """The column that marks rows to delete, checked to be boolean and without nulls.

    Raises `InvalidRequest`: no such column, another type, or nulls in it.
    """
    position = rows.column_names.index(column) if column in rows.column_names else -1
    if position < 0:
        raise InvalidRequest(
            f"deletes={column!r} names no column of the rows; they have {_join_names(rows.column_names)}.",
            kind="missing_column",
            column=column,
        )
    mask = rows.column(position)
    if not pa.types.is_boolean(mask.type) or mask.null_count:
        if pa.types.is_boolean(mask.type):
            problem = (
                f"{format_count(mask.null_count, 'null')}: write false in their place, in SQL coalesce({column}, false)"
            )
        else:
            problem = f"type {mask.type}: give a boolean column"
        raise InvalidRequest(
            f"deletes={column!r} must be a boolean column without nulls, but has {problem}.",
            kind="type_mismatch",
            column=column,
        )
    return mask
