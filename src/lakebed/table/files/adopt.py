"""Taking over a Parquet file that another program wrote: from its footer to a `DataFile`. Rows are not read.

Owns: which columns fit a table (`check_columns`), and which of a footer's statistics become bounds (`describe_file`).

Invariants:
- A stated bound bounds every value of the file. Where a footer does not prove that, there is no bound:

  | column | bounds come from |
  | --- | --- |
  | whole numbers, dates, times, booleans, timestamps stored as INT64 | any writer |
  | decimals stored as INT32 or INT64 | any writer; as fixed bytes, from parquet-mr and Arrow |
  | texts | parquet-mr, Arrow, DuckDB; of others the minimum alone, since a cut maximum may be below its values |
  | floats | parquet-mr from 1.10 on, whose greatest value is NaN if there is one; others leave NaN out |
  | INT96, bytes, decimals in variable bytes, nested columns | none |

- If one row group has no bounds, the file has none, unless that row group has only nulls.
- A column has the table's name and type, or the file is refused. So readers find by name what they expect.
- An entry of a file that lacks columns names those that it has (``_WRITE_COLS``). A missing nullable column is null; a
  missing partition column has the value of the entry's partition.

Does not know: where the file is, or how it got there. The file is durable before its `DataFile` is committed.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows, encode_rows
from lakebed.table.codec.stats import EMPTY_STATS, shorten_bounds, sign_zeros
from lakebed.table.files.data_file import FOOTER_BYTES, open_data_file
from lakebed.table.model.model import STATS_VERSION, DataField, DataFile, FileSource, Stats, TableSchema
from lakebed.table.model.types import FIELD_ID_KEY, arrow_type
from lakebed.texts import format_value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_NAN_SAFE: Final = re.compile(r"parquet-mr version 1\.(1[0-9])\.")
"""Writers whose greatest float is NaN when a value is NaN; tested with 1.17, the version of Spark 4.3."""
_ARROW_AND_JAVA: Final = re.compile(r"parquet-mr version 1\.(1[0-9])\.|parquet-cpp-arrow version ")
"""Writers that order decimals in fixed bytes as numbers."""
_WHOLE_TEXTS: Final = re.compile(r"parquet-mr version 1\.(1[0-9])\.|parquet-cpp-arrow version |DuckDB version ")
"""Writers whose greatest text is not cut, or is raised when it is cut."""
_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC)
_TICKS: Final = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """The location of a file to take over, and what its footer does not say."""

    file_name: str
    size_bytes: int
    external_path: str | None = None
    """The URL of a file outside of the bucket's folder."""
    first_sequence: int = 0
    """The sequence number of its first row."""
    creation_time_ms: int | None = None
    partition: bytes = EMPTY_ROW
    """As in `BucketChange`. Either the file lacks the partition columns, or its footer shows the same values."""


def read_footer(store: ObjectStore, path: str, *, size_bytes: int) -> pq.FileMetaData:
    """Read the footer of a file.

    Raises `NotFound`, `Corruption`: as `open_data_file`. Cost: 1 HEAD and 1 GET; a footer above 64 KiB costs 2.
    """
    return open_data_file(store, path, size_bytes=size_bytes, window_bytes=min(FOOTER_BYTES, size_bytes - 1)).metadata


def partition_of(footer: pq.FileMetaData, schema: TableSchema, *, file_name: str) -> bytes:
    """Return the partition of a file that has the partition columns, as in `BucketChange`.

    Raises `InvalidRequest`: the footer does not show that all rows have the same partition values.
    """
    fields = schema.partition_fields
    if not fields:
        return EMPTY_ROW
    columns = _columns_of(footer, fields)
    values = []
    for field in fields:
        column, kind = columns[field.name], arrow_type(field.type)
        bounds = pa.array([column.low, column.high], kind)
        is_null = column.null_count == footer.num_rows
        if not is_null and not (column.null_count == 0 and bounds.null_count == 0 and bounds[0] == bounds[1]):
            raise _misfit(
                file_name,
                f"has a footer that does not show one value of the partition column {field.name!r}",
                "write its rows instead",
            )
        values.append(bounds[:1])
    partition: bytes = encode_rows(values, [field.type for field in fields])[0].as_py()
    return partition


def describe_file(
    footer: pq.FileMetaData, file: AdoptedFile, *, schema: TableSchema, stats_mode: str, same_ids: bool = False
) -> DataFile:
    """Describe a file for a manifest.

    Args:
        footer: the file's footer.
        schema: the schema of the append table that the file is added to.
        stats_mode: as `FileSettings.stats_mode`.
        same_ids: require field ids in the file, if any, to be the table's. Leave it out for files of other tables.

    Raises `InvalidRequest`: as `check_columns`; also a table with a primary key, a file without rows, or values of
    partition columns that the footer contradicts. Cost: linear in columns times row groups.
    """
    if schema.primary_keys:
        raise InvalidRequest(
            f"The file {format_value(file.file_name)} cannot become part of a table with a primary key: its rows "
            "have no sequence numbers. Write its rows instead.",
            kind="has_primary_key",
        )
    if footer.num_rows == 0:
        raise InvalidRequest(f"The file {format_value(file.file_name)} has no rows: leave it out.", kind="empty_file")
    check_columns(footer, schema, file_name=file.file_name, same_ids=same_ids)
    columns = _columns_of(footer, schema.fields)
    _check_partition(columns, footer, file, schema)
    in_file = set(footer.schema.to_arrow_schema().names)
    # Partition columns that are not in the file have the values of the entry's partition: their null count is not
    # known.
    stats_fields = tuple(
        field for field in schema.fields if field.name in in_file or field.name not in schema.partition_keys
    )
    written_names = tuple(field.name for field in schema.fields if field.name in in_file)
    write_cols = None if len(written_names) == len(schema.fields) else written_names
    fields = () if stats_mode == "none" else stats_fields
    stats_cols = None if write_cols is None else tuple(field.name for field in fields)
    return DataFile(
        file_name=file.file_name,
        file_size=file.size_bytes,
        row_count=footer.num_rows,
        min_key=EMPTY_ROW,
        max_key=EMPTY_ROW,
        key_stats=EMPTY_STATS,
        value_stats=_encode_stats([columns[field.name] for field in fields], fields, stats_mode=stats_mode),
        value_stats_cols=stats_cols if fields else (),
        min_sequence_number=file.first_sequence,
        max_sequence_number=file.first_sequence + footer.num_rows - 1,
        schema_id=schema.id,
        level=0,
        creation_time_ms=file.creation_time_ms,
        delete_row_count=0,
        file_source=FileSource.APPEND,
        stats_version=STATS_VERSION,
        external_path=file.external_path,
        write_cols=write_cols,
    )


# ---- columns


def check_columns(footer: pq.FileMetaData, schema: TableSchema, *, file_name: str, same_ids: bool = False) -> None:
    """Check that a file's columns are those of a table.

    A nullable column or a partition column may be missing.

    Raises `InvalidRequest`: a column is unknown, of another type or id, missing, or may hold nulls where the table
    does not; one sentence names the first.
    """
    in_file = {column.name: column for column in footer.schema.to_arrow_schema()}
    if len(in_file) < len(footer.schema.to_arrow_schema()):
        raise _misfit(file_name, "has two columns of one name", "rename one")
    for name in in_file:
        if schema.field_by_name(name) is None:
            raise _misfit(file_name, f"has a column {name!r}, which the table lacks", "add it to the table")
    physical = _leaves_by_name(footer)
    for field in schema.fields:
        file_field = in_file.get(field.name)
        if file_field is None:
            if not field.nullable and field.name not in schema.partition_keys:
                raise _misfit(file_name, f"lacks the column {field.name!r}, which is NOT NULL", "write it with values")
            continue
        _check_type(file_field, field, physical.get(field.name), file_name=file_name)
        stated_id = (file_field.metadata or {}).get(FIELD_ID_KEY)
        if same_ids and stated_id is not None and int(stated_id) != field.id:
            raise _misfit(
                file_name,
                f"has {field.name!r} with field id {int(stated_id)}, where the table has {field.id}",
                "it was written for another table or column: write its rows instead",
            )
        if not field.nullable and _null_count(footer, physical.get(field.name), file_field) != 0:
            raise _misfit(
                file_name,
                f"may hold nulls in {field.name!r}, which is NOT NULL",
                "write it with counts of nulls, or write its rows instead",
            )


def _misfit(file_name: str, what: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"The file {format_value(file_name)} {what}: {remedy}.", kind="file_misfit", file=file_name)


def _check_type(file_field: pa.Field, field: DataField, leaf: int | None, *, file_name: str) -> None:
    column_type = arrow_type(field.type)
    actual = _plain(file_field.type)
    if pa.types.is_timestamp(column_type) and column_type.unit == "ns" and actual == pa.timestamp("ns"):
        return  # INT96 has no time zone; it is the same instant
    if pa.types.is_timestamp(column_type) and column_type.unit == "s" and actual == pa.timestamp("ms", column_type.tz):
        return  # Parquet has no seconds
    if leaf is None and not pa.types.is_nested(actual):
        raise _misfit(file_name, f"has {field.name!r} in an unknown form", "write its rows instead")
    if not _reads_as(actual, column_type):
        raise _misfit(
            file_name,
            f"has {field.name!r} as {actual}, where the table has {column_type} ({field.type})",
            "write it with that type, or write its rows instead",
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without what only concerns memory: large offsets, views, dictionaries."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_large_list(kind):
        return pa.list_(kind.value_field)
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _reads_as(actual: pa.DataType, wanted_type: pa.DataType) -> bool:
    """Whether a type in a file is the table's type. Members that are NOT NULL in the table must be so in the file."""
    types = pa.types
    actual = _plain(actual)
    if types.is_map(actual) and types.is_map(wanted_type):
        pairs = [(actual.key_field, wanted_type.key_field), (actual.item_field, wanted_type.item_field)]
    elif types.is_struct(actual) and types.is_struct(wanted_type):
        if [member.name for member in actual] != [member.name for member in wanted_type]:
            return False
        pairs = list(zip(actual, wanted_type, strict=True))
    elif types.is_list(actual) and types.is_list(wanted_type):
        pairs = [(actual.value_field, wanted_type.value_field)]
    else:
        return bool(actual == wanted_type)
    return all(_reads_as(a.type, b.type) and (b.nullable or not a.nullable) for a, b in pairs)


def _leaves_by_name(footer: pq.FileMetaData) -> dict[str, int]:
    """The positions of the Parquet columns that are top-level columns."""
    schema = footer.schema
    paths = [schema.column(position).path for position in range(footer.num_columns)]
    names = {column.name for column in schema.to_arrow_schema() if not pa.types.is_nested(_plain(column.type))}
    return {path: position for position, path in enumerate(paths) if path in names}


def _null_count(footer: pq.FileMetaData, leaf: int | None, file_field: pa.Field) -> int | None:
    """The number of nulls in a top-level column; None: not known. `leaf`: from `_leaves_by_name`."""
    if not file_field.nullable:
        return 0
    if leaf is None:
        return None
    total = 0
    for group in range(footer.num_row_groups):
        stats = footer.row_group(group).column(leaf).statistics
        if stats is None or not stats.has_null_count:
            return None
        total += stats.null_count
    return total


# ---- statistics


@dataclass(frozen=True, slots=True)
class _Known:
    """What a footer proves about a column: bounds as values or Arrow scalars, None where there is no bound."""

    low: Any
    high: Any
    null_count: int | None


def _columns_of(footer: pq.FileMetaData, fields: Sequence[DataField]) -> dict[str, _Known]:
    in_file = {column.name: column for column in footer.schema.to_arrow_schema()}
    leaves = _leaves_by_name(footer)
    columns = {}
    for field in fields:
        if field.name not in in_file:
            columns[field.name] = _Known(None, None, footer.num_rows)
            continue
        leaf = leaves.get(field.name)
        null_count = _null_count(footer, leaf, in_file[field.name])
        low, high = (None, None) if leaf is None else _bounds(footer, leaf, field)
        columns[field.name] = _Known(low, high, null_count)
    return columns


def _bounds(footer: pq.FileMetaData, leaf: int, field: DataField) -> tuple[Any, Any]:
    """The bounds of all values of a column; None where the footer proves none."""
    lows, highs = [], []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        stats = group.column(leaf).statistics
        if stats is not None and stats.has_null_count and stats.null_count == group.num_rows:
            continue
        if stats is None or not stats.has_min_max:
            return None, None
        low, high = _group_bounds(stats, footer.schema.column(leaf), field, footer.created_by or "")
        lows.append(low)
        highs.append(high)
    least = None if not lows or None in lows else min(lows)
    greatest = None if not highs or None in highs else max(highs)
    if least is None and greatest is None:
        return None, None
    return _as_values(least, greatest, footer.schema.column(leaf), field)


def _group_bounds(stats: pq.Statistics, column: pq.ColumnSchema, field: DataField, writer: str) -> tuple[Any, Any]:
    """The bounds of one row group in comparable form; None where they cannot be trusted."""
    kind, physical = arrow_type(field.type), column.physical_type
    types = pa.types
    if types.is_decimal(kind) and physical == "FIXED_LEN_BYTE_ARRAY" and _ARROW_AND_JAVA.match(writer):
        return int.from_bytes(stats.min_raw, "big", signed=True), int.from_bytes(stats.max_raw, "big", signed=True)
    if types.is_floating(kind) and physical in ("FLOAT", "DOUBLE") and _NAN_SAFE.match(writer):
        # If the row group has a NaN, the greatest value is NaN and the least value ignores it.
        return (None, None) if math.isnan(stats.max_raw) else (stats.min_raw, stats.max_raw)
    if types.is_string(kind) and physical == "BYTE_ARRAY":
        try:
            low, high = stats.min_raw.decode(), stats.max_raw.decode()
        except UnicodeDecodeError:  # cut inside a character
            return None, None
        return low, high if _WHOLE_TEXTS.match(writer) else None
    is_whole = types.is_integer(kind) or types.is_temporal(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    if is_whole and physical in ("INT32", "INT64", "BOOLEAN"):
        return stats.min_raw, stats.max_raw
    return None, None


def _as_values(low: Any, high: Any, column: pq.ColumnSchema, field: DataField) -> tuple[Any, Any]:
    """The bounds as `binary_row` encodes them, from numbers as the file stores them."""
    kind = arrow_type(field.type)
    types = pa.types
    if types.is_floating(kind):
        return sign_zeros(low, high)
    if types.is_decimal(kind):
        return _EXACT.scaleb(decimal.Decimal(low), -kind.scale), _EXACT.scaleb(decimal.Decimal(high), -kind.scale)
    if types.is_timestamp(kind):
        unit = _TICKS[json.loads(column.logical_type.to_json())["timeUnit"]]
        ends = pa.array([low, high], pa.timestamp(unit, kind.tz)).cast(kind)
        return ends[0], ends[1]
    if types.is_temporal(kind):
        ends = pa.array([low, high], pa.int32()).cast(kind)
        return ends[0], ends[1]
    return low, high


def _encode_stats(columns: Sequence[_Known], fields: Sequence[DataField], *, stats_mode: str) -> Stats:
    """The statistics of an entry, in a mode of the option ``metadata.stats-mode``."""
    if not fields:
        return EMPTY_STATS
    length = int(stats_mode.removeprefix("truncate(").removesuffix(")")) if stats_mode.startswith("truncate(") else None
    bounds = []
    for column, field in zip(columns, fields, strict=True):
        ends: tuple[Any, Any] = (None, None) if stats_mode == "counts" else (column.low, column.high)
        if length is not None:
            ends = shorten_bounds(*ends, length)
        bounds.append(pa.array(ends, arrow_type(field.type)))
    min_values, max_values = encode_rows(bounds, [field.type for field in fields]).to_pylist()
    return Stats(min_values, max_values, tuple(column.null_count for column in columns))


def _check_partition(
    columns: Mapping[str, _Known], footer: pq.FileMetaData, file: AdoptedFile, schema: TableSchema
) -> None:
    """Refuse a file unless its footer proves that its partition columns have the values of its partition."""
    if not schema.partition_keys:
        return
    values = decode_rows(pa.array([file.partition], pa.binary()), [field.type for field in schema.partition_fields])
    in_file = set(footer.schema.to_arrow_schema().names)
    for field, value in zip(schema.partition_fields, values, strict=True):
        if field.name not in in_file:
            continue
        column, kind = columns[field.name], arrow_type(field.type)
        bounds = pa.array([column.low, column.high], kind)
        is_null = column.null_count == footer.num_rows
        is_value = column.null_count == 0 and bounds.null_count == 0 and bounds[0] == bounds[1] == value[0]
        if not (is_value if value[0].is_valid else is_null):
            raise _misfit(
                file.file_name,
                f"is in the partition {field.name} = {value[0]}, but its footer does not show that every row is",
                "write its rows instead",
            )
