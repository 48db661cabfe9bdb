"""The schema of a table whose rows and columns are replaced together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.types import arrow_type, comment_of_arrow, parse_type, type_of_arrow, with_field_ids
from lakebed.table.schema.schema import bucket_keys, list_required_ids, new_schema, set_options


def replace_columns(
    schema: TableSchema,
    columns: pa.Schema,
    *,
    partition_keys: Sequence[str],
    primary_keys: Sequence[str] | None,
    options: Mapping[str, str],
) -> TableSchema:
    """Return the next schema, with other columns and the same keys. It is for a commit that replaces all rows.

    A column with the name and the type of an old one is the same column; every other column is new. So older versions,
    which have their own schemas, stay as they are. A rollback to one shows its rows under the present columns, as after
    any change of columns: with its values in a column that is the same one, and null in a new one. So no column becomes
    NOT NULL.

    Args:
        columns: all of them, in order.
        partition_keys: must be the old ones.
        primary_keys: must be the old ones; None: the old ones.
        options: options to set.

    Returns: `schema` itself when nothing changes.

    Raises `InvalidRequest`: other keys, a key column that is missing or has another type, a column that is NOT NULL and
    was not so before, or what `set_options` and `new_schema` refuse.
    """
    new_keys = schema.primary_keys if primary_keys is None else tuple(primary_keys)
    for subject, old, new in (
        ("partition columns", schema.partition_keys, tuple(partition_keys)),
        ("primary key", schema.primary_keys, new_keys),
    ):
        if old != new:
            raise _layout_error(f"would change its {subject} from ({', '.join(old)}) to ({', '.join(new)})")
    options = {name: value for name, value in options.items() if schema.options.get(name) != value}
    changed_schema = set_options(schema, options) if options else schema
    fields, highest = _number_columns(schema, columns)
    sequence = [part.strip() for part in changed_schema.options.get("sequence.field", "").split(",") if part.strip()]
    by_name = {field.name: field for field in fields}
    for name in (*schema.partition_keys, *schema.primary_keys, *bucket_keys(schema), *sequence):
        old_field, new_field = schema.field_by_name(name), by_name.get(name)
        if old_field is not None and (new_field is None or new_field.type != old_field.type):
            new_type = "no such column" if new_field is None else new_field.type
            raise _layout_error(f"would change its key column {name!r} from {old_field.type} to {new_type}")
    checked_schema = new_schema(
        fields,
        primary_keys=schema.primary_keys,
        partition_keys=schema.partition_keys,
        options=changed_schema.options,
        comment=schema.comment,
        time_ms=schema.time_ms,
    )
    _check_nullable(schema, checked_schema)
    if checked_schema.fields == schema.fields and checked_schema.options == schema.options:
        return schema
    return replace(checked_schema, id=schema.id + 1, highest_field_id=max(highest, schema.highest_field_id))


def _number_columns(schema: TableSchema, columns: pa.Schema) -> tuple[list[DataField], int]:
    """The columns with ids: an old column keeps its id, others get new ones. Also returns the highest id."""
    next_id = schema.highest_field_id + 1
    fields = []
    for column in columns:
        text = type_of_arrow(column.type)
        old_field = schema.field_by_name(column.name)
        if old_field is not None and arrow_type(old_field.type) == arrow_type(text):
            comment = comment_of_arrow(column) or old_field.description
            fields.append(replace(old_field, nullable=column.nullable, description=comment))
            continue
        data_type, after = with_field_ids(parse_type(text), next_id + 1)
        comment = comment_of_arrow(column)
        fields.append(DataField(next_id, column.name, data_type.text, nullable=column.nullable, description=comment))
        next_id = after
    return fields, next_id - 1


def _check_nullable(old_schema: TableSchema, new: TableSchema) -> None:
    required_ids = list_required_ids(old_schema)
    for field in new.fields:
        if not field.nullable and field.id not in required_ids:
            raise InvalidRequest(
                f"Column {field.name!r} cannot become NOT NULL: older versions have rows without a value for it, which "
                "a rollback would show. Leave NOT NULL out, or drop the table first.",
                kind="invalid_replace",
                column=field.name,
            )


def _layout_error(sentence: str) -> InvalidRequest:
    return InvalidRequest(
        f"Replacing the table {sentence}, by which the files of its older versions are laid out: keep these, or drop "
        "the table first.",
        kind="invalid_replace",
    )
