"""The Parquet encoding of data files, such that the Java implementation reads and filters them correctly. Pure.

Owns: the choice of dictionaries, the physical type of decimals and timestamps, and the footer of files that mix
nanosecond timestamps with coarser ones.

Java compares a filter's literal with statistics and dictionaries by physical type, so each must be as Java writes it:
- DECIMAL up to 9 digits is INT32, up to 18 INT64, above FIXED_LEN_BYTE_ARRAY.
- A DECIMAL of more than 18 digits has no dictionary: Java looks up a literal of another length and does not find it.
- TIMESTAMP of more than 6 fraction digits is INT96 without statistics; a coarser one is INT64. Arrow's writer uses
  INT96 for all timestamps of a file or for none. So the coarser ones are written as plain INT64, and
  `ParquetSink.finish` adds their logical type to the footer.
- FLOAT and DOUBLE have no dictionary in a file with a zero: Java distinguishes zeros by sign, and 0.0 = -0.0 in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.required_members import fill_hidden

DICTIONARY_SAMPLE_ROWS = 4096
DICTIONARY_DISTINCT_MAX = 0.5
"""Highest share of distinct values in the sample of a dictionary-encoded column.

If all values are distinct, a dictionary costs twice the time and a little more space (measured in the design note).
"""

DECIMAL_DIGITS_OF_INT64 = 18


class ParquetSink:
    """One Parquet file in memory. Not thread-safe."""

    def __init__(
        self,
        first: pa.Table,
        *,
        no_dictionary: frozenset[str],
        compression: str,
        compression_level: int | None,
    ) -> None:
        """Open a file whose first row group will be `first`; `no_dictionary` names columns of distinct values."""
        import pyarrow.parquet as pq  # only code that reads or writes data files needs it

        self._sink = pa.BufferOutputStream()
        units = _timestamp_units(first.schema)
        self._mixed = "ns" in units and len(units) > 1
        self._schema = _with(_integer, first.schema) if self._mixed else first.schema
        self._logical = first.schema
        dictionaries = _dictionary_columns(first, no_dictionary)
        self._without_zero = [name for name in dictionaries if pa.types.is_floating(first.schema.field(name).type)]
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=compression,
            compression_level=compression_level,
            use_dictionary=dictionaries,
            write_statistics=_columns_with_bounds(self._schema),
            store_decimal_as_integer=True,
            use_deprecated_int96_timestamps="ns" in units,
            store_schema=not self._mixed,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def takes(self, group: pa.Table) -> bool:
        """Whether this file's dictionaries suit the next row group; if not, it needs a new file."""
        return not any(_has_zero(group.column(name)) for name in self._without_zero)

    def write(self, group: pa.Table) -> None:
        """Add one row group."""
        group = fill_hidden(group)
        # Parquet has no seconds. As elsewhere, they are stored as milliseconds.
        stored_group = group.cast(_with(_milliseconds, group.schema)).cast(self._schema) if self._mixed else group
        self._writer.write_table(stored_group, row_group_size=max(1, group.num_rows))

    def finish(self) -> pa.Buffer:
        """The whole file. Cost: for files that mix timestamps, one copy of the file."""
        self._writer.close()
        body = self._sink.getvalue()
        return _with_timestamps(body, self._logical) if self._mixed else body


def _columns_with_bounds(columns: pa.Schema) -> list[str]:
    """Columns whose statistics go into the footer: plain ones, except floats.

    The footer's bounds ignore NaN. Readers that order NaN above all numbers (Spark, other clients of the format) would
    skip a row group for ``x > 5`` although its NaN matches.
    """
    return [
        column.name
        for column in columns
        if not pa.types.is_nested(column.type) and not pa.types.is_floating(column.type)
    ]


def _dictionary_columns(columns: pa.Table, without: frozenset[str]) -> list[str]:
    """Columns whose values repeat, by a sample spread over the first row group."""
    names = []
    stride = max(1, columns.num_rows // DICTIONARY_SAMPLE_ROWS)
    positions = pa.array(np.arange(0, columns.num_rows, stride, dtype=np.int64)) if stride > 1 else None
    for field in columns.schema:
        kind = field.type
        if field.name in without or pa.types.is_nested(kind):
            continue
        if pa.types.is_decimal(kind) and kind.precision > DECIMAL_DIGITS_OF_INT64:
            continue
        column = columns.column(field.name)
        sample = column if positions is None else column.take(positions)
        if pc.count_distinct(sample, mode="all").as_py() > max(1, len(sample) * DICTIONARY_DISTINCT_MAX):
            continue
        if not (pa.types.is_floating(kind) and _has_zero(column)):
            names.append(field.name)
    return names


def _has_zero(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.equal(column, pa.scalar(0, column.type))).as_py())


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of the Parquet columns of a column, in the file's order."""
    if pa.types.is_map(kind):
        yield from _leaves(kind.key_type)
        yield from _leaves(kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type)
    elif pa.types.is_nested(kind):
        yield from _leaves(kind.value_type)
    else:
        yield kind


def _timestamp_units(schema: pa.Schema) -> set[str]:
    leaves = (leaf for field in schema for leaf in _leaves(field.type))
    return {leaf.unit for leaf in leaves if pa.types.is_timestamp(leaf)}


def _with(change: Callable[[pa.TimestampType], pa.DataType], schema: pa.Schema) -> pa.Schema:
    """The columns with each timestamp type in them changed."""
    return pa.schema([field.with_type(_map_timestamps(field.type, change)) for field in schema])


def _milliseconds(kind: pa.TimestampType) -> pa.DataType:
    return pa.timestamp("ms", kind.tz) if kind.unit == "s" else kind


def _integer(kind: pa.TimestampType) -> pa.DataType:
    return kind if kind.unit == "ns" else pa.int64()


def _map_timestamps(kind: pa.DataType, change: Callable[[pa.TimestampType], pa.DataType]) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return change(kind)
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_map_timestamps(key.type, change)), item.with_type(_map_timestamps(item.type, change))
        )
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_map_timestamps(field.type, change)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_map_timestamps(kind.value_type, change)))
    return kind


# The footer is in Thrift's compact protocol, as the Parquet format states. DO NOT CHANGE: on disk, shared with others.

_MAGIC: Final = b"PAR1"
_STOP, _TRUE, _FALSE, _BYTE, _I32, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 5, 7, 8, 9, 12
_SCHEMA_FIELD, _CHILDREN, _CONVERTED, _LOGICAL = 2, 5, 6, 10
_UNITS: Final = {"ms": (9, b"\x1c\x00\x00"), "us": (10, b"\x2c\x00\x00")}
"""Maps a unit to its ConvertedType and its TimeUnit (a union whose member is an empty struct)."""


class _Footer:
    """A cursor over the bytes of a FileMetaData."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.position = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.body[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def list_head(self) -> tuple[int, int]:
        head = self.body[self.position]
        self.position += 1
        return (head >> 4 if head >> 4 < 15 else self.varint()), head & 15

    def fields(self) -> Iterator[tuple[int, int]]:
        """Id and type of each field of a struct; the caller moves the cursor past the value."""
        last = 0
        while True:
            head = self.body[self.position]
            self.position += 1
            if head == _STOP:
                return
            last = last + (head >> 4) if head >> 4 else self.zigzag()
            yield last, head & 15

    def skip(self, kind: int, *, in_list: bool = False) -> None:
        if kind in (_TRUE, _FALSE):
            self.position += in_list
        elif kind == _BYTE:
            self.position += 1
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BINARY:
            length = self.varint()
            self.position += length
        elif kind == _LIST:
            size, element = self.list_head()
            for _ in range(size):
                self.skip(element, in_list=True)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        else:
            self.varint()


def _varint(value: int) -> bytes:
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def _element(footer: _Footer, leaves: Iterator[pa.DataType]) -> bytes:
    """One SchemaElement. The next leaf's logical type is added if that is a timestamp stored as plain INT64."""
    fields: dict[int, tuple[int, bytes]] = {}
    for number, kind in footer.fields():
        start = footer.position
        footer.skip(kind)
        fields[number] = (kind, footer.body[start : footer.position])
    if _CHILDREN not in fields:
        leaf = next(leaves)
        if pa.types.is_timestamp(leaf) and leaf.unit != "ns":
            converted_type, unit = _UNITS["ms" if leaf.unit == "s" else leaf.unit]
            utc = leaf.tz is not None
            if utc:
                fields[_CONVERTED] = (_I32, _varint(converted_type << 1))
            adjusted = bytes([1 << 4 | (_TRUE if utc else _FALSE)])
            timestamp = adjusted + bytes([1 << 4 | _STRUCT]) + unit
            fields[_LOGICAL] = (_STRUCT, bytes([8 << 4 | _STRUCT]) + timestamp + b"\x00\x00")
    content, last = bytearray(), 0
    for number in sorted(fields):
        kind, value = fields[number]
        content.append((number - last) << 4 | kind)
        content += value
        last = number
    return bytes(content) + b"\x00"


def _with_timestamps(body: pa.Buffer, schema: pa.Schema) -> pa.Buffer:
    """The file with the logical types of its coarse timestamps added to the footer."""
    length = int.from_bytes(body[-8:-4].to_pybytes(), "little")
    start = body.size - 8 - length
    footer = _Footer(body[start:-8].to_pybytes())
    for number, kind in footer.fields():
        if number == _SCHEMA_FIELD:
            break
        footer.skip(kind)
    begin = footer.position
    size, _ = footer.list_head()
    head = footer.body[begin : footer.position]
    leaves = iter([leaf for field in schema for leaf in _leaves(field.type)])
    elements = b"".join(_element(footer, leaves) for _ in range(size))
    new_footer = footer.body[:begin] + head + elements + footer.body[footer.position :]
    ending = new_footer + len(new_footer).to_bytes(4, "little") + _MAGIC
    return pa.py_buffer(b"".join([memoryview(body)[:start], ending]))
