"""Rows in and out of files and terminals: CSV, JSON lines and Parquet as Arrow, in streams.

Owns: reading a file with a table's column types, and writing a stream of batches as a table for people, JSON, CSV or
Parquet.

Invariants: memory is limited to a batch, whatever the size of the file or result. (A table for people shows only its
first rows; JSON is read as a whole.) A file named by ``-o`` appears as a whole or not at all.

Loaded only by commands that handle rows, because it loads Arrow.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

import lakebed.compute as pc
from lakebed.cli import output, standard
from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.path import local_path
from lakebed.table.codec.python_values import find_beyond_calendar, python_rows
from lakebed.table.codec.required_members import without_required
from lakebed.table.files.int96 import BATCH_ROWS, READ_UNIT, int96_columns, refuse_far_instants
from lakebed.table.model.types import type_of_arrow
from lakebed.whole_file import write_whole

Format = Literal["table", "json", "csv", "parquet"]

_BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = frozenset({".gz", ".bz2", ".zst"})
_CONVERSION = re.compile(r"In CSV column #(\d+): CSV conversion error to (.+?): invalid value '(.*)'", re.DOTALL)
_SHOWN_ROWS_MAX = 50
_INFERRED_BYTES = 1 << 20
_CSV_ROW_BYTES_MAX = 16 << 20
"""Most bytes of a CSV file that Arrow reads at a time. A row must fit."""
_JSON_BLOCK_BYTES_MAX = 2**31 - 1
"""Limit of Arrow's block of JSON, into which a row must fit."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How far a file was read: bytes of CSV, rows of Parquet. JSON is read at once."""

    done_count: int
    total_count: int


def read_file(
    path: str,
    *,
    format: str | None,
    schema: pa.Schema,
    nulls: Sequence[str] = (),
    progress: Callable[[Loaded], None] | None = None,
) -> pa.RecordBatchReader:
    """Read the rows of a file, with the table's types for the table's columns.

    Args:
        path: a file; ``-`` is standard input (Parquet from there is held in memory).
        format: ``csv``, ``json`` (one object in each line, or one array) or ``parquet``; None: by the file's name.
        schema: the table's columns. Any other column keeps its own type, so that the table refuses it.
        nulls: unquoted fields of CSV that are null, as empty ones are.
        progress: called with the state as rows are read; not for standard input, whose end is unknown.

    Raises:
        NotFound: no such file.
        InvalidRequest: unknown format, or text that does not have its column's type.
    """
    kind = _format_of(path, format)
    with _translating(path, schema):
        source = _source_of(path)
        if path == "-":
            progress = None
        if kind == "csv":
            has_one_column = _has_one_column(source)
            if progress is not None:
                source = pa.PythonFile(_Watched(path, progress), mode="r")
                if Path(path).suffix in _COMPRESSED:  # as Arrow does, by the name of a file that it opens itself
                    source = pa.CompressedInputStream(source, pa.Codec.detect(path).name)
            # Arrow's default list would turn texts such as NA, and NaN among numbers, into null.
            convert = pa.csv.ConvertOptions(
                column_types=dict(zip(schema.names, schema.types, strict=True)),
                strings_can_be_null=True,
                null_values=["", *nulls],
            )
            convert.quoted_strings_can_be_null = False
            try:
                reader = pa.csv.open_csv(
                    source,
                    read_options=pa.csv.ReadOptions(block_size=_CSV_ROW_BYTES_MAX),
                    parse_options=pa.csv.ParseOptions(ignore_empty_lines=not has_one_column),
                    convert_options=convert,
                )
            except pa.ArrowException:  # an error in the first block
                _close(source)
                raise
        elif kind == "json":
            reader = _json_rows(source, schema).to_reader()
        else:
            # The footer comes last, so a stream is held as a whole.
            source = pa.BufferReader(source.read()) if path == "-" else source
            file = pa.parquet.ParquetFile(source)
            if columns := int96_columns(file.metadata):
                searched = pa.parquet.ParquetFile(source, coerce_int96_timestamp_unit=READ_UNIT)
                refuse_far_instants(searched.iter_batches(BATCH_ROWS, columns=columns), file_name=path)
            batches = _report_progress(file.iter_batches(), file.metadata.num_rows, progress)
            reader = pa.RecordBatchReader.from_batches(file.schema_arrow, batches)
    return pa.RecordBatchReader.from_batches(reader.schema, _translate_errors(reader, path, source))


def _has_one_column(source: Any) -> bool:
    """Whether the first line of a CSV file has one name. Then an empty line is a row with a null value."""
    if isinstance(source, str):
        with pa.input_stream(source) as file:
            head = file.read(_INFERRED_BYTES)
    else:
        head = source.peek() if isinstance(source, io.BufferedReader) else b""
    line, end, _ = head.partition(b"\n")
    return bool(end) and len(next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r")]))) == 1


class _Watched:
    """A file that reports how far it was read, after each megabyte of the blocks that Arrow reads."""

    def __init__(self, path: str, progress: Callable[[Loaded], None]) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115
        self._size_bytes = os.path.getsize(path)
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        pieces: list[bytes] = []
        while size < 0 or (missing := size - sum(map(len, pieces))) > 0:
            pieces.append(self._file.read(_INFERRED_BYTES if size < 0 else min(missing, _INFERRED_BYTES)))
            self._progress(Loaded(min(self._file.tell(), self._size_bytes), self._size_bytes))
            if not pieces[-1]:
                break
        return b"".join(pieces)

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


def _report_progress(
    batches: Iterator[pa.RecordBatch], total: int, progress: Callable[[Loaded], None] | None
) -> Iterator[pa.RecordBatch]:
    row_count = 0
    for batch in batches:
        yield batch
        row_count += batch.num_rows
        if progress is not None:
            progress(Loaded(row_count, total))


def schema_of_file(path: str) -> pa.Schema:
    """Return the columns of a file: Parquet's own, those of a CSV's first megabyte, or JSON's.

    Raises as `read_file`.
    """
    kind = _format_of(path, None)
    with _translating(path):
        source = _source_of(path)
        if kind == "parquet":
            return pa.parquet.read_schema(source)
        if kind == "csv":
            return pa.csv.open_csv(source, read_options=pa.csv.ReadOptions(block_size=_INFERRED_BYTES)).schema
        return pa.json.read_json(_json_lines(source)).schema


def _json_rows(source: Any, schema: pa.Schema) -> pa.Table:
    """Read all rows of a JSON source. Convert texts after Arrow where it cannot parse what lakebed writes."""
    lines = _json_lines(source)
    if lines.size() == 0:
        return schema.empty_table()
    # Arrow refuses a null in a required column, even one hidden by a null above it. The table's error names the column.
    stated_schema = pa.schema([(field.name, _type_in_json(without_required(field.type))) for field in schema])
    rows = _read_json(lines, stated_schema)
    if absent := _find_absent(lines, rows, stated_schema):
        rows = rows.drop_columns(sorted(absent))
        schema = pa.schema([field for field in schema if field.name not in absent])
    for field in schema:
        position = rows.schema.get_field_index(field.name)
        try:
            chunks = [_from_json(chunk, without_required(field.type)) for chunk in rows.column(position).chunks]
        except binascii.Error as wrong:
            raise pa.ArrowInvalid(f"the column {field.name!r} has bytes, which JSON has as base64 ({wrong})") from wrong
        optional = field.with_type(without_required(field.type)).with_nullable(True)
        rows = rows.set_column(position, optional, pa.chunked_array(chunks, optional.type))
    return rows


def _read_json(lines: pa.BufferReader, stated_schema: pa.Schema) -> pa.Table:
    """Read JSON with stated types for some columns, and with the types that Arrow finds for the others."""
    return pa.json.read_json(
        lines,
        read_options=pa.json.ReadOptions(block_size=min(max(_INFERRED_BYTES, lines.size()), _JSON_BLOCK_BYTES_MAX)),
        parse_options=pa.json.ParseOptions(explicit_schema=stated_schema, newlines_in_values=True),
    )


def _find_absent(lines: pa.BufferReader, rows: pa.Table, stated_schema: pa.Schema) -> set[str]:
    """Return the stated columns that no row has. Arrow adds them, and an upsert would empty them.

    Cost: reads the lines again if there are any.
    """
    empty = {name for name in stated_schema.names if rows[name].null_count == rows.num_rows}
    if not empty:
        return empty
    lines.seek(0)
    other_fields = pa.schema([field for field in stated_schema if field.name not in empty])
    return empty - set(_read_json(lines, other_fields).column_names)


def _type_in_json(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow reads a column. It parses no dates, and no more digits of a second than a type."""
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_json(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_json(field.type)) for field in kind])
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms") else kind


def _from_json(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values to the table's type. Bytes are base64."""
    if values.type == kind:
        return values
    if pa.types.is_list(kind):
        inner = _from_json(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
    if pa.types.is_struct(kind):
        members = [_from_json(values.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=values.is_null())
    if pa.types.is_time(kind):  # Arrow (26.0) parses a time only from the text of a timestamp
        moments = pc.binary_join_element_wise("1970-01-01T", values, "").cast(pa.timestamp("us"))
        return moments.cast(pa.time64("us")).cast(kind)
    return _decode_base64(values, kind) if pa.types.is_binary(kind) else values.cast(kind)


def _decode_base64(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    values = (None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist())
    return pa.array(values, kind)


def _json_lines(source: Any) -> pa.BufferReader:
    """Return JSON in the form that Arrow reads: a sequence of objects, also from an array, which ``--json`` prints."""
    text = Path(source).read_bytes() if isinstance(source, str) else source.read()
    if text.lstrip()[:1] == b"[":
        try:
            text = b"\n".join(decode_json(text, list[msgspec.Raw]))
        except msgspec.MsgspecError as wrong:
            raise pa.ArrowInvalid(str(wrong)) from wrong
    return pa.BufferReader(text)


def write_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    schema: pa.Schema,
    format: Format,
    file: str | None,
    limit: int | None = None,
) -> int:
    """Write a stream of rows to a file or to standard output.

    Args:
        format: ``table`` shows only the first rows, and the number of all.
        file: a path; None is standard output.
        limit: at most this many rows.

    Returns:
        The number of written rows.
    """
    counted_batches = _Counted(_limit_rows(batches, limit))
    rows: Iterator[pa.RecordBatch] = iter(counted_batches)
    head = next(rows, None)
    if head is not None:
        # The batches' own schema: the given one may differ in nullability, which writers refuse.
        rows, schema = itertools.chain((head,), rows), head.schema
    if file is None:
        if format == "parquet" and sys.stdout.isatty():
            raise InvalidRequest("Parquet is not for a terminal: name a file with --output.", kind="binary_output")
        _write(rows, schema, format, standard.binary_output())
        output.flush()
        return counted_batches.row_count
    target = Path(local_path(file))
    if target.is_dir():
        raise InvalidRequest(f"{file} is a folder: name a file in it.", kind="not_a_file", path=file)
    if not target.parent.is_dir():
        raise NotFound(f"There is no folder {target.parent} for {target.name}.", kind="no_folder", path=file)
    with write_whole(target) as sink:
        _write(rows, schema, format, sink)
    return counted_batches.row_count


def print_rows(rows: pa.Table, *, json: bool) -> None:
    """Print a small table completely."""
    if json:
        output.document(python_rows(rows))
    else:
        _grid(rows.slice(0), rows.num_rows)


def _write(rows: Iterator[pa.RecordBatch], schema: pa.Schema, format: Format, sink: IO[bytes]) -> None:
    if format == "table":
        _show(rows, schema)
    elif format == "json":
        _write_json(rows, sink)
    elif format == "csv":
        try:
            with pa.csv.CSVWriter(sink, schema) as writer:
                for batch in rows:
                    _refuse_far_times(batch)
                    writer.write_batch(batch)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
            raise InvalidRequest(
                f"These columns cannot be written as CSV ({wrong}): choose columns, or json or parquet.", kind="not_csv"
            ) from wrong
    else:
        with pa.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
            for batch in rows:
                writer.write_batch(batch)


def _refuse_far_times(batch: pa.RecordBatch) -> None:
    name = find_beyond_calendar(batch)
    if name is not None:
        raise InvalidRequest(
            f"Column {name!r} has a date beyond the years -32767 to 32767, of which CSV would have another year: "
            "choose columns, or json or parquet.",
            kind="not_csv",
            column=name,
        )


def _write_json(rows: Iterator[pa.RecordBatch], sink: IO[bytes]) -> None:
    """Write one JSON array, one row in each line."""
    encoder = msgspec.json.Encoder(enc_hook=str)
    separator = b"[\n"
    for batch in rows:
        for row in python_rows(batch):
            sink.write(separator + encoder.encode(row))
            separator = b",\n"
    sink.write(b"[]\n" if separator == b"[\n" else b"\n]\n")


def _show(rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    first: list[pa.RecordBatch] = []
    total = 0
    for batch in rows:
        if total < _SHOWN_ROWS_MAX:
            first.append(batch.slice(0, _SHOWN_ROWS_MAX - total))
        total += batch.num_rows
    _grid(pa.Table.from_batches(first, schema=schema), total)


def _grid(rows: pa.Table, total: int) -> None:
    numeric = [
        field.name
        for field in rows.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
    ]
    cells = [[_cell(value) for value in row.values()] for row in python_rows(rows.slice(0, _SHOWN_ROWS_MAX))]
    texts = [field.name for field in rows.schema if pa.types.is_string(field.type)]
    output.grid(rows.schema.names, cells, right=numeric, sentences=texts, empty="No rows.")
    if total > _SHOWN_ROWS_MAX:
        output.sentence(f"{_SHOWN_ROWS_MAX} of {total:,} rows; --format csv, json or parquet gives all.")


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    return value.hex() if isinstance(value, bytes) else str(value)


class _Counted:
    """An iterator of batches that counts their rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.row_count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.row_count += batch.num_rows
            yield batch


def _limit_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    rows_left = limit
    if rows_left == 0:
        return
    for batch in batches:
        if rows_left is None:
            yield batch
            continue
        yield batch.slice(0, rows_left)
        rows_left -= min(rows_left, batch.num_rows)
        if rows_left == 0:  # read no further batch: it may be in another file
            return


def _format_of(path: str, format: str | None) -> Format:
    if format in ("csv", "json", "parquet"):
        return format  # type: ignore[return-value]  # narrowed by the line above
    name = Path(path.lower())
    if name.suffix in _COMPRESSED and name.stem.endswith(".csv"):  # readers of other formats do not take such a stream
        name = name.with_suffix("")
    suffix_format = _BY_SUFFIX.get(name.suffix)
    if format is not None or suffix_format is None:
        if path != "-":
            _source_of(path)  # reports a mistyped name before a missing format
        raise InvalidRequest(
            f"The format of {path} is unknown: add --format csv, json or parquet.", kind="unknown_format"
        )
    return suffix_format


def _source_of(path: str) -> Any:
    if path == "-":
        return standard.binary_input()
    if not Path(local_path(path)).is_file():
        raise NotFound(f"There is no file {path}.", kind="file_not_found", path=path)
    return local_path(path)


def _translate_errors(reader: pa.RecordBatchReader, path: str, source: Any) -> Iterator[pa.RecordBatch]:
    try:
        with _translating(path, reader.schema):
            yield from reader
    finally:
        _close(source)


def _close(source: Any) -> None:
    """Close what Python opened, because Arrow does not close it."""
    if isinstance(source, pa.NativeFile):
        source.close()


@contextlib.contextmanager
def _translating(path: str, schema: pa.Schema | None = None) -> Iterator[None]:
    """Translate Arrow's errors about a file into one sentence, with the file's name and the table's names of types."""
    try:
        yield
    except pa.ArrowException as wrong:
        sentence, facts = str(wrong).splitlines()[0].rstrip("."), {"path": path}
        if (conversion := _CONVERSION.fullmatch(sentence)) is not None:
            position, kind, facts["value"] = conversion.groups()
            place = None if path == "-" else _place_of(path, int(position), facts["value"])
            names = {str(field.type): type_of_arrow(field.type) for field in schema or ()}
            sentence = f"{place}, which is no {names.get(kind, kind)}" if place else sentence
        raise InvalidRequest(f"{path} cannot be read: {sentence}.", kind="unreadable_file", **facts) from wrong


def _place_of(path: str, position: int, value: str) -> str | None:
    """Return line and column of the first such value in a column of a CSV file; None: not found."""
    names: list[str] | None = None
    with pa.input_stream(local_path(path)) as source:
        lines = csv.reader(io.TextIOWrapper(source, "utf-8-sig", "replace", newline=""))
        with contextlib.suppress(csv.Error, OSError):
            for row in lines:
                names = names or row
                if row is not names and len(row) > position and row[position] == value:
                    return f"line {lines.line_num} has {value!r} in the column {names[position]!r}"
    return None
