"""The partitions of a version: what each contains, and which have given values. Only manifests are read.

Owns: `partition_totals`, and comparisons of partition values. Invariants: null equals null and NaN equals NaN.
`have_values` and `are_among` compare values as they are stored; `equal_value` compares as SQL does, where -0.0 equals
0.0.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.binary_row import decode_columns, encode_rows
from lakebed.table.model.model import TableSchema
from lakebed.table.model.types import arrow_type


def partition_totals(live: pa.Table) -> pa.Table:
    """Return a row for each partition of some live files, in no order.

    Columns: ``partition``, ``row_count_sum``, ``file_size_sum`` (bytes), ``file_name_count``,
    ``creation_time_ms_max``, ``bucket_count_distinct``, ``total_buckets_max``.
    """
    return live.group_by("partition", use_threads=False).aggregate(
        [
            ("row_count", "sum"),
            ("file_size", "sum"),
            ("file_name", "count"),
            ("creation_time_ms", "max"),
            ("bucket", "count_distinct"),
            ("total_buckets", "max"),
        ]
    )


def have_values(partitions: pa.Array, values: Mapping[str, object], *, schema: TableSchema) -> pa.Array:
    """Return for each partition whether some of its columns have given values; True where no values are given.

    Args:
        values: Python or Arrow values by partition column.

    Raises `InvalidRequest`: as `partition_scalars`.
    """
    if not values:
        return pa.array(np.ones(len(partitions), dtype=bool))
    return _are_among(partitions, [values], list(values), schema=schema)


def are_among(partitions: pa.Array, wanted: Sequence[Mapping[str, object]], *, schema: TableSchema) -> pa.Array:
    """Return for each partition whether it is among `wanted`; each of these gives the values of all partition columns.

    Raises `InvalidRequest`: as `partition_scalars`, and a column has no value.
    """
    for values in wanted:
        missing = [name for name in schema.partition_keys if name not in values]
        if missing:
            raise InvalidRequest(
                f"A partition is named by the values of all its columns ({', '.join(schema.partition_keys)}), and "
                f"{', '.join(missing)} has none.",
                kind="incomplete_partition",
            )
    return _are_among(partitions, wanted, schema.partition_keys, schema=schema)


def _are_among(
    partitions: pa.Array,
    wanted_partitions: Sequence[Mapping[str, object]],
    names: Sequence[str],
    *,
    schema: TableSchema,
) -> pa.Array:
    scalars = [partition_scalars(values, schema=schema) for values in wanted_partitions]
    types = [field.type for field in schema.partition_fields]
    key_types = [types[schema.partition_keys.index(name)] for name in names]
    columns = [pa.concat_arrays([pa.repeat(constants[name], 1) for constants in scalars]) for name in names]
    partition_columns = decode_columns(partitions, types, [schema.partition_keys.index(name) for name in names])
    return pc.is_in(encode_rows(partition_columns, key_types), value_set=encode_rows(columns, key_types))


def equal_value(column: pa.Array | pa.ChunkedArray, value: pa.Scalar) -> pa.Array | pa.ChunkedArray:
    """Return where a partition column has a value, compared as in SQL: NaN equals NaN, null is the partition null."""
    if not value.is_valid:
        return pc.is_null(column)
    if pa.types.is_floating(value.type) and value.as_py() != value.as_py():
        return pc.fill_null(pc.is_nan(column), False)
    return pc.fill_null(pc.equal(column, value), False)


def partition_scalars(partition: Mapping[str, object], *, schema: TableSchema) -> dict[str, pa.Scalar]:
    """The values of partition columns in the columns' types; texts such as ``2013-01-31`` are parsed.

    Raises `InvalidRequest`: not a partition column, or a value of another type.
    """
    scalars = {}
    for name, value in partition.items():
        column = schema.field_by_name(name)
        if name not in schema.partition_keys or column is None:
            choices = ", ".join(schema.partition_keys) or "none"
            raise InvalidRequest(
                f"{name!r} is not a partition column of this table (it has: {choices}).",
                kind="unknown_partition_column",
                column=name,
            )
        try:
            scalars[name] = _scalar(value, arrow_type(column.type))
        except (pa.ArrowException, ValueError) as wrong:
            raise InvalidRequest(
                f"{value!r} is not a value of partition column {name!r}, which is {column.type}.",
                kind="invalid_partition_value",
                column=name,
            ) from wrong
    return scalars


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, str) and pa.types.is_time(kind):  # Arrow (26.0) has no such cast
        value = datetime.time.fromisoformat(value)
    if pa.types.is_decimal(kind) and isinstance(value, int) and not isinstance(value, bool):
        value = decimal.Decimal(value)  # Arrow's cast wants digits for any 64-bit integer
    return pa.scalar(value).cast(kind)
