"""Timestamps that a Parquet file stores as INT96: the search for those that 64-bit nanoseconds cannot hold.

INT96 is a day and a time of day; it is the default of Spark's writer. Arrow (26.0) reads it as 64-bit nanoseconds,
which cover the years 1677 to 2262. It silently turns others, such as 31 December 9999, into wrong values. No statistics
show them, so the values are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.required_members import visible_members
from lakebed.texts import format_value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

READ_UNIT: Final = "ms"
"""The unit in which the columns are read for the search: it holds every year that Spark has."""
BATCH_ROWS: Final = 65_536
_FIRST_MS, _LAST_MS = -(2**63) // 10**6 + 1, 2**63 // 10**6 - 1


def int96_columns(footer: pq.FileMetaData) -> Sequence[str]:
    """Names of the columns that may contain INT96; empty when the file has none. Reads no row."""
    leaves = (footer.schema.column(position) for position in range(footer.num_columns))
    if not any(leaf.physical_type == "INT96" for leaf in leaves):
        return ()
    return [field.name for field in footer.schema.to_arrow_schema() if has_timestamps(field.type)]


def refuse_far_instants(batches: Iterable[pa.RecordBatch], *, file_name: str) -> None:
    """Raise `InvalidRequest` for a timestamp that 64-bit nanoseconds do not hold, in columns read in `READ_UNIT`."""
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not _fits(column):
                raise InvalidRequest(
                    f"The file {format_value(file_name)} has timestamps before 1677 or after 2262 in {name!r}, as "
                    "INT96, which is read in nanoseconds: write them as INT64 (Spark: "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or read the file in Spark and write its "
                    "rows.",
                    kind="value_out_of_range",
                    file=file_name,
                    column=name,
                )


def has_timestamps(kind: pa.DataType) -> bool:
    """Whether a type is a timestamp or contains one."""
    if pa.types.is_nested(kind):
        return any(has_timestamps(kind.field(position).type) for position in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


def _fits(values: pa.Array) -> bool:
    if pa.types.is_nested(values.type):
        return all(map(_fits, visible_members(values)))
    if not pa.types.is_timestamp(values.type) or values.type.unit != READ_UNIT:
        return True
    extremes = pc.min_max(values.cast(pa.int64()))
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    return least is None or (least >= _FIRST_MS and greatest < _LAST_MS)
