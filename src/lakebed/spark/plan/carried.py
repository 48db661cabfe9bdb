"""The Arrow types in which rows of a table cross between Python and the JVM. Pure.

Owns: `transfer_schema` and `transfer_rows`; `show_instants` for system tables. Invariant: column order and nullability
are the table's own. Imports no PySpark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lakebed.table.codec.required_members import cast_members
from lakebed.table.model.model import DataField
from lakebed.table.model.types import arrow_type

AUDIT_LOG: Final = "audit_log"
"""The system table whose rows are those of the table."""


def transfer_schema(fields: Sequence[DataField]) -> pa.Schema:
    """Return the Arrow types in which rows of these columns are passed to Spark: types that its column vectors know."""
    return pa.schema([pa.field(field.name, _carry_type(arrow_type(field.type)), field.nullable) for field in fields])


def transfer_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows that `read.read_split` returned to the types of their `transfer_schema`."""
    columns = [
        # Not safe: digits below a microsecond, which Spark does not keep, are cut.
        cast_members(column, field.type, safe=False)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def show_instants(name: str, rows: pa.Table) -> pa.Table:
    """Give the times of a system table, which are in UTC, their zone, so that Spark shows them in that of the session.

    Args:
        name: of the system table. The columns of ``audit_log`` are the user's, and stay.
    """
    if name.removeprefix("$") == AUDIT_LOG:
        return rows
    types = [pa.timestamp(kind.unit, tz="UTC") if pa.types.is_timestamp(kind) else kind for kind in rows.schema.types]
    return rows.cast(pa.schema([field.with_type(kind) for field, kind in zip(rows.schema, types, strict=True)]))


def _carry_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(
            kind.key_field.with_type(_carry_type(kind.key_type)), item.with_type(_carry_type(kind.item_type))
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_carry_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_carry_type(member.type)) for member in kind])
    return kind
