"""Rows in the forms that clients give, converted to the form of the log. Pure.

Owns: the forms that a write takes: pairs, mappings, batches of writes, Arrow. Does not know: logs, timelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.fleet.log.port import rows_of
from lakebed.kv.batch import WriteBatch

Rows: TypeAlias = (
    WriteBatch | Mapping[bytes, bytes | None] | Iterable[tuple[bytes, bytes | None]] | pa.RecordBatch | pa.Table
)
"""Rows for `Timeline.write`. In Arrow: columns ``key`` and ``value``, binary or string; a null value deletes."""


def parse_rows(rows: Rows) -> pa.RecordBatch:
    """Return the rows of an append. Raises `InvalidRequest`."""
    if isinstance(rows, WriteBatch):
        if rows.special:
            kind = "row_is_merge" if rows.operands() else "row_with_lifetime"
            raise InvalidRequest(
                "A tenant's rows are puts and deletes, without lifetimes and merge operators: put the value that you "
                "mean, and delete the key when it has to go.",
                kind=kind,
            )
        return rows_of(rows.keys, rows.values)
    if isinstance(rows, pa.RecordBatch | pa.Table):
        return rows_of(_column(rows, "key"), _column(rows, "value"))
    if isinstance(rows, bytes | str) or not isinstance(rows, Iterable):
        raise InvalidRequest(
            f"Rows are pairs of a key and a value, and {type(rows).__name__} was given.", kind="wrong_type"
        )
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for pair in rows.items() if isinstance(rows, Mapping) else rows:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidRequest(f"A row is a pair of a key and a value: {pair!r} is not.", kind="wrong_type")
        keys.append(pair[0])
        values.append(pair[1])
    return rows_of(keys, values)


def _column(rows: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    if name not in rows.schema.names:
        raise InvalidRequest(
            f"The columns are {', '.join(rows.schema.names)}: 'key' and 'value' are needed.", kind="missing_column"
        )
    column = rows.column(name)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    items: list[Any] = column.to_pylist()
    return items


def split_rows(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces of about `bytes_max`."""
    count = max(1, batch.num_rows * bytes_max // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, count):
        yield batch.slice(start, count)
