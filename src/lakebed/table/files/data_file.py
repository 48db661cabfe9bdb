"""One data file: writing it as Parquet, reading it, and its description in a manifest.

Owns: the columns of a data file, its encoding (compression, dictionaries, row groups), starting a new file at the
target size, and the translation of decoder errors.

Columns of a file:
- append table: the table's columns, in schema order;
- primary-key table: ``_KEY_<name>`` of each trimmed primary key, ``_SEQUENCE_NUMBER`` int64, ``_VALUE_KIND`` int8, then
  the table's columns. Rows are sorted by key, a key occurs once a file. DO NOT CHANGE: on disk, shared with others.

Some writers leave out the ``_KEY_`` columns, which repeat the table's. lakebed writes them and never reads them.

Invariants:
- A file is durable before its `DataFile` is returned, so a `DataFile` may be referenced.
- A file that differs from its manifest entry is `Corruption` with its path, never a raw decoder error.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

import lakebed.compute as pc
from lakebed.errors import Corruption, InvalidRequest, LakebedError, NotFound, UnsupportedFormat
from lakebed.exiting import free_before_exit
from lakebed.ids import new_uuid
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.codec.binary_row import EMPTY_ROW, encode_rows
from lakebed.table.codec.file_encoding import ParquetSink
from lakebed.table.codec.required_members import cast_members
from lakebed.table.codec.stats import EMPTY_STATS, compute_stats, merge_stats, stats_of_mode
from lakebed.table.files.external import Targets
from lakebed.table.model.model import STATS_VERSION, DataField, DataFile, FileSource, Stats, TableSchema
from lakebed.table.model.row_kinds import ADD_KINDS, KIND_COLUMN, SEQUENCE_COLUMN, SYSTEM_COLUMNS
from lakebed.table.model.types import FIELD_ID_KEY, arrow_field, file_field

if TYPE_CHECKING:
    import pyarrow.parquet as pq

KEY_PREFIX = "_KEY_"

KEY_ID_MIN = 0x3FFF_FFFF
"""Added to the id of its column, the id of a key's column. DO NOT CHANGE: in data files, as the two below."""
SEQUENCE_ID = 0x7FFF_FFFE
KIND_ID = 0x7FFF_FFFD
"""Ids of the system columns, as the format's Java client assigns them.

A client that requires ids finds one everywhere.
"""

WHOLE_FILE_BYTES_MAX = 32 * 1024 * 1024
"""Files up to this size are read with one GET; larger ones in ranges."""

BUFFER_BYTES_MIN = 256 * 1024
"""Smallest GET when columns are streamed."""

FOOTER_BYTES = 64 * 1024
"""Size of the first GET of a ranged read, at the end of the file; a longer footer costs a second GET."""

_MAGIC = b"PAR1"

OTHER_FORMATS = ("orc", "avro", "csv", "json", "txt", "lance", "vortex", "blob", "mosaic", "row")
"""Endings of data files in other formats, which other clients write (option ``file.format``)."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Settings of data files; a table's options override the defaults."""

    target_file_bytes: int = 128 * 1024 * 1024
    """Size at which a file is closed. Larger files are pruned less well and compacted in larger steps."""
    compression: str = "zstd"
    compression_level: int | None = 1
    row_group_rows: int = 262_144
    """Most rows of a row group. A row group is the unit of pruning and of a streaming merge's memory."""
    prefix: str = "data-"
    """Prefix of file names."""
    stats_mode: str = "truncate(16)"
    """Statistics in manifest entries: ``none``, ``counts``, ``full``, or ``truncate(length)`` to shorten texts."""
    row_group_bytes: int = 16 * 1024 * 1024
    """Target size of a row group in uncompressed Arrow bytes, for wide rows."""
    durable: bool = True
    """Data survives a power loss before it is referenced. False: for benchmarks and temporary tables."""


class RollingWriter:
    """Writes the rows of one bucket as data files; starts a new file at the target size.

    Not thread-safe; one writer belongs to one bucket. Holds one encoded file in memory (`target_file_bytes`). Files go
    to the bucket's folder, or to the places that `targets` chooses.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        folder: str,
        schema: TableSchema,
        settings: FileSettings,
        environment: Environment,
        level: int = 0,
        file_source: int = FileSource.APPEND,
        targets: Targets | None = None,
    ) -> None:
        self._store = store
        self._targets = targets
        self._folder = folder
        self._schema = schema
        self._settings = settings
        self._environment = environment
        self._level = level
        self._file_source = file_source
        self._keys = schema.key_fields
        self._columns = _file_schema(schema)
        self._stated = () if settings.stats_mode == "none" else schema.fields
        self._uuid = new_uuid(environment.rng)
        self._files: list[DataFile] = []
        self._paths: list[str] = []
        self._sink: ParquetSink | None = None
        self._groups: list[_GroupFacts] = []

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files put so far (URLs outside the table), including puts with an unknown outcome."""
        return tuple(self._paths)

    def write(self, rows: pa.Table) -> None:
        """Add rows.

        Args:
            rows: the table's columns in schema order. For primary-key tables also `SEQUENCE_COLUMN` and `KIND_COLUMN`;
                sorted by key, and above all rows written before. `close` numbers the rows of append tables.
        """
        system = None
        if self._keys:
            system, rows = rows.select(SYSTEM_COLUMNS), rows.drop_columns(list(SYSTEM_COLUMNS))
        step = max(1, min(self._settings.row_group_rows, self._rows_for_bytes(rows)))
        for start in range(0, rows.num_rows, step):
            self._write_group(rows.slice(start, step), None if system is None else system.slice(start, step))

    def close(self, *, first_sequence: int = 0) -> list[DataFile]:
        """Finish the last file and return all files, oldest first.

        Args:
            first_sequence: for append tables, the sequence number of the first row written; numbers ascend across
                files.
        """
        if self._sink is not None:
            self._finish_file()
        if self._keys:
            return list(self._files)
        numbered: list[DataFile] = []
        for file in self._files:
            last = first_sequence + file.row_count - 1
            numbered.append(replace(file, min_sequence_number=first_sequence, max_sequence_number=last))
            first_sequence = last + 1
        return numbered

    def _rows_for_bytes(self, rows: pa.Table) -> int:
        if rows.num_rows == 0:
            return 1
        bytes_max = min(self._settings.row_group_bytes, self._settings.target_file_bytes)
        return int(bytes_max / max(1.0, rows.nbytes / rows.num_rows)) or 1

    def _write_group(self, rows: pa.Table, system: pa.Table | None) -> None:
        keys = rows.select([key.name for key in self._keys])
        columns = list(rows.columns)
        if system is not None:
            columns = [*keys.columns, *system.columns, *columns]
        group = pa.Table.from_arrays(columns, schema=self._columns)
        if self._sink is not None and not self._sink.takes(group):
            self._finish_file()
        sink = self._sink = self._sink or self._open_sink(group)
        try:
            sink.write(group)
        except pa.ArrowInvalid:
            explain_nulls(group, group.schema)
            raise
        self._groups.append(
            _facts_of(
                rows,
                keys,
                system,
                fields=self._stated,
                key_fields=self._keys,
                stats_mode=self._settings.stats_mode,
            )
        )
        if sink.size_bytes >= self._settings.target_file_bytes:
            self._finish_file()

    def _open_sink(self, group: pa.Table) -> ParquetSink:
        return ParquetSink(
            group,
            no_dictionary=frozenset([SEQUENCE_COLUMN]),
            compression=self._settings.compression,
            compression_level=self._settings.compression_level,
        )

    def _finish_file(self) -> None:
        assert self._sink is not None
        body = self._sink.finish()
        prefix, number = self._settings.prefix, len(self._files)
        if self._targets is None:
            name, url = f"{prefix}{self._uuid}-{number}.parquet", None
            store, path = self._store, f"{self._folder}/{name}"
        else:
            location = self._targets.next_location(self._folder, prefix=prefix, number=number)
            store, path, name, url = location.store, location.path, location.name, location.url
        self._paths.append(url or path)
        store.put(path, body, durable=self._settings.durable)
        self._files.append(self._describe(name, body.size, external_path=url))
        self._sink, self._groups = None, []

    def _describe(self, name: str, size_bytes: int, *, external_path: str | None) -> DataFile:
        groups = self._groups
        row_counts = [group.row_count for group in groups]
        return DataFile(
            file_name=name,
            file_size=size_bytes,
            row_count=sum(row_counts),
            min_key=groups[0].min_key,
            max_key=groups[-1].max_key,
            key_stats=merge_stats([group.key_stats for group in groups], row_counts, self._keys),
            value_stats=merge_stats([group.value_stats for group in groups], row_counts, self._stated),
            value_stats_cols=None if self._stated else (),
            min_sequence_number=min(group.min_sequence for group in groups),
            max_sequence_number=max(group.max_sequence for group in groups),
            schema_id=self._schema.id,
            level=self._level,
            creation_time_ms=self._environment.clock.now_ms(),
            delete_row_count=sum(group.delete_row_count for group in groups),
            file_source=self._file_source,
            stats_version=STATS_VERSION,
            external_path=external_path,
        )


@dataclass(frozen=True, slots=True)
class _GroupFacts:
    """What a row group contributes to the description of its file."""

    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: Stats
    value_stats: Stats
    min_sequence: int
    max_sequence: int
    delete_row_count: int


def _facts_of(
    rows: pa.Table,
    keys: pa.Table,
    system: pa.Table | None,
    *,
    fields: Sequence[DataField],
    key_fields: Sequence[DataField],
    stats_mode: str,
) -> _GroupFacts:
    min_key = max_key = EMPTY_ROW
    key_stats = EMPTY_STATS
    lowest = highest = deletes = 0
    if system is not None:
        ends = keys.take(pa.array([0, keys.num_rows - 1])).combine_chunks()
        encoded_ends = encode_rows([column.chunk(0) for column in ends.columns], [key.type for key in key_fields])
        min_key, max_key = encoded_ends[0].as_py(), encoded_ends[1].as_py()
        key_stats = compute_stats(keys, key_fields, truncate=None)
        bounds = pc.min_max(system.column(SEQUENCE_COLUMN))
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        deletes = int(np.count_nonzero(~np.isin(system.column(KIND_COLUMN).to_numpy(), ADD_KINDS)))
    return _GroupFacts(
        row_count=rows.num_rows,
        min_key=min_key,
        max_key=max_key,
        key_stats=key_stats,
        value_stats=stats_of_mode(rows, fields, mode=stats_mode),
        min_sequence=lowest,
        max_sequence=highest,
        delete_row_count=deletes,
    )


def _file_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a file: keys and system columns required, field ids on the table's columns and their parts.

    In a primary-key table every other column is nullable, even if it is NOT NULL in the table: a delete has no values.
    """
    columns = [file_field(column) for column in schema.fields]
    if not schema.primary_keys:
        return pa.schema(columns)
    values = [column.with_nullable(column.name not in schema.primary_keys) for column in columns]
    keys = [
        pa.field(KEY_PREFIX + key.name, arrow_field(key).type, nullable=False, metadata=_id(KEY_ID_MIN + key.id))
        for key in schema.key_fields
    ]
    system = [
        pa.field(SEQUENCE_COLUMN, pa.int64(), nullable=False, metadata=_id(SEQUENCE_ID)),
        pa.field(KIND_COLUMN, pa.int8(), nullable=False, metadata=_id(KIND_ID)),
    ]
    return pa.schema([*keys, *system, *values])


def _id(number: int) -> dict[bytes, bytes]:
    return {FIELD_ID_KEY: str(number).encode()}


class OpenDataFile:
    """A data file opened for reading. Not thread-safe."""

    def __init__(
        self,
        source: pa.NativeFile,
        path: str,
        content: memoryview | _RangedFile,
        window_bytes: int,
        int96_unit: str | None,
    ) -> None:
        import pyarrow.parquet as pq  # only code that reads or writes data files needs it

        self._window_bytes = window_bytes
        self._source = source
        self._parquet = parquet = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit=int96_unit)
        self._int96_unit = int96_unit
        self._path = path
        self._held = content
        self._ranged = content if isinstance(content, _RangedFile) else None
        self.column_names: tuple[str, ...] = tuple(parquet.schema_arrow.names)

    @property
    def metadata(self) -> pq.FileMetaData:
        """The Parquet footer."""
        return self._parquet.metadata

    @property
    def row_group_count(self) -> int:
        """Number of row groups."""
        return int(self._parquet.metadata.num_row_groups)

    def row_groups_for(self, condition: pc.Expression) -> list[int]:
        """Row groups that may have a row for which `condition` (on the file's columns) is true, by their statistics."""
        with _decoding(self._path):
            from pyarrow import dataset

            source = self._source
            if self._ranged is not None:  # the footer was read already, and would be fetched again
                sink = pa.BufferOutputStream()
                self.metadata.write_metadata_file(sink)
                source = pa.BufferReader(sink.getvalue())
            fragment = dataset.ParquetFileFormat().make_fragment(source)
            return [group.id for group in fragment.subset(condition).row_groups]

    def read(
        self, *, columns: Sequence[str], row_groups: Sequence[int] | None = None, threads: bool = False
    ) -> pa.Table:
        """The named columns (each must be in `column_names`) of all, or of the given, row groups.

        Raises `Corruption` when a page does not decode. Cost: nothing for what was fetched at opening, else 1 GET for
        each run of columns.
        """
        groups = list(range(self.row_group_count)) if row_groups is None else list(row_groups)
        with _decoding(self._path):
            if self._ranged is not None:
                self._ranged.fetch(_column_ranges(self.metadata, groups, set(columns)))
            if row_groups is None:
                table = self._parquet.read(columns=list(columns), use_threads=threads)
            else:
                table = self._parquet.read_row_groups(groups, columns=list(columns), use_threads=threads)
        if threads:
            free_before_exit(self._held)
        return table

    def batches(
        self, *, columns: Sequence[str], row_groups: Sequence[int] | None = None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, at most `batch_rows` at a time.

        Memory: the encoded columns of one row group, or the file's window if they exceed it. In that case the window is
        divided among the columns, and each GET fetches one share.
        """
        names = list(columns)
        groups = list(range(self.row_group_count)) if row_groups is None else list(row_groups)
        is_held = self._ranged is None
        if self._ranged is not None:
            with _decoding(self._path):
                ranges = _column_ranges(self.metadata, groups, set(names))
                is_held = sum(end - start for start, end in ranges) <= self._window_bytes
                if is_held:
                    self._ranged.fetch(ranges)
        for group in groups:
            with _decoding(self._path):
                parquet = self._parquet
                if self._ranged is not None and not is_held:
                    ranges = _column_ranges(self.metadata, [group], set(names))
                    if sum(end - start for start, end in ranges) <= self._window_bytes:
                        self._ranged.fetch(ranges)
                    else:
                        share = max(BUFFER_BYTES_MIN, self._window_bytes // max(1, len(ranges)))
                        parquet = type(self._parquet)(
                            self._source,
                            metadata=self.metadata,
                            buffer_size=share,
                            pre_buffer=False,
                            coerce_int96_timestamp_unit=self._int96_unit,
                        )
                yield from parquet.iter_batches(
                    batch_size=batch_rows, row_groups=[group], columns=names, use_threads=False
                )


def open_data_file(
    store: ObjectStore,
    path: str,
    *,
    size_bytes: int,
    window_bytes: int = WHOLE_FILE_BYTES_MAX,
    whole_bytes_max: int = WHOLE_FILE_BYTES_MAX,
    int96_unit: str | None = None,
) -> OpenDataFile:
    """Open one data file.

    Args:
        path: relative to the store.
        size_bytes: the size its manifest entry states; another size is `Corruption`.
        window_bytes: approximate limit of bytes held in memory; a larger file is fetched in pieces.
        whole_bytes_max: a file larger than this is fetched in pieces even if the window would hold it; others are
            fetched whole with one GET.
        int96_unit: unit in which INT96 timestamps are read; None: nanoseconds.

    Raises `NotFound`: the file is gone: its version was expired while it was being read; `Corruption`: truncated, or
    not Parquet; `UnsupportedFormat`: a file of another format, by its name. Cost: 1 GET; in pieces: 1 HEAD and 1 or 2
    GETs for the footer, then as `OpenDataFile` states.
    """
    content: memoryview | _RangedFile
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix in OTHER_FORMATS:
        raise UnsupportedFormat(
            f"The data file {path} is {suffix.upper()}; this version reads Parquet only.", path=path, format=suffix
        )
    try:
        if size_bytes <= min(window_bytes, whole_bytes_max):
            content = memoryview(store.get(path))
            if content.nbytes != size_bytes:
                raise _wrong_size(path, content.nbytes, size_bytes)
            source: pa.NativeFile = pa.BufferReader(pa.py_buffer(content))
        else:
            actual_bytes = store.head(path).size_bytes
            if actual_bytes != size_bytes:
                raise _wrong_size(path, actual_bytes, size_bytes)
            content = _RangedFile(store, path, size_bytes=size_bytes)
            content.fetch([(max(0, size_bytes - FOOTER_BYTES), size_bytes)])
            source = pa.PythonFile(content, mode="r")
    except NotFound as error:
        raise NotFound(
            f"The data file {path} is gone: the version was expired or rolled back during the read; read a "
            "version that still exists, or tag versions that must stay readable.",
            path=path,
        ) from error
    with _decoding(path):
        return OpenDataFile(source, path, content, window_bytes, int96_unit)


def _wrong_size(path: str, actual: int, expected: int) -> Corruption:
    return Corruption(
        f"The data file {path} has {actual} bytes, but its manifest states {expected}; it was cut or overwritten.",
        path=path,
        actual_bytes=actual,
        expected_bytes=expected,
    )


@contextmanager
def _decoding(path: str) -> Iterator[None]:
    """Translate errors of the Parquet decoder to `Corruption` with the path; errors of the store pass."""
    try:
        yield
    except LakebedError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        first_line = str(error).partition("\n")[0]
        raise Corruption(f"The data file {path} is not readable Parquet: {first_line}", path=path) from error


def parse_footer(body: bytes) -> pq.FileMetaData:
    """Parse the format's FileMetaData: the footer of a file without its length and its magic number.

    Raises `Corruption`: the bytes are something else.
    """
    import pyarrow.parquet as pq  # only code that reads or writes data files needs it

    framed = b"".join([_MAGIC, body, len(body).to_bytes(4, "little"), _MAGIC])
    try:
        return pq.read_metadata(pa.BufferReader(framed))
    except (pa.ArrowInvalid, OSError) as error:
        raise Corruption(f"A footer of {len(body)} bytes is not one of Parquet: {error}") from error


def _column_ranges(metadata: pq.FileMetaData, groups: Sequence[int], columns: set[str]) -> list[tuple[int, int]]:
    """Byte ranges of the column chunks of some columns in some row groups."""
    ranges = []
    for group in groups:
        row_group = metadata.row_group(group)
        for position in range(row_group.num_columns):
            chunk = row_group.column(position)
            if chunk.path_in_schema.split(".", 1)[0] not in columns:
                continue
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
    return sorted(ranges)


class _RangedFile(io.RawIOBase):
    """A read-only file over ranges of one object. Fetched ranges are served from memory, others by one GET each."""

    def __init__(self, store: ObjectStore, path: str, *, size_bytes: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._size_bytes = size_bytes
        self._position = 0
        self._held: list[tuple[int, int, memoryview]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Replace the ranges in memory."""
        if not ranges:
            return
        range_list = list(ranges)
        bodies: list[Buffer] = self._store.get_ranges(self._path, range_list)
        self._held = [
            (start, end, memoryview(body).cast("B")) for (start, end), body in zip(range_list, bodies, strict=True)
        ]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int = -1) -> memoryview:
        """As `read` without a copy; Arrow calls it. A range is freed once it is read to its end."""
        end = self._size_bytes if size < 0 else min(self._size_bytes, self._position + size)
        start, self._position = self._position, max(self._position, end)
        if start >= end:
            return memoryview(b"")
        for position, (held_start, held_end, body) in enumerate(self._held):
            if held_start <= start and end <= held_end:
                if end == held_end:
                    del self._held[position]
                return body[start - held_start : end - held_start]
        return memoryview(self._store.get(self._path, byte_range=(start, end))).cast("B")


def cast_stored(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of data files, cast to the types of a schema of the same columns.

    Raises `InvalidRequest` as `explain_nulls`.
    """
    explain_nulls(rows, schema)
    columns = [cast_members(column, kind) for column, kind in zip(rows.columns, schema.types, strict=True)]
    return pa.table(columns, schema=schema)


def explain_nulls(rows: pa.Table, schema: pa.Schema) -> None:
    """Raise `InvalidRequest` (``null_value``) when stored rows have nulls that a schema does not allow.

    lakebed makes no column NOT NULL later; another client may, when the table already has rows.
    """
    for field in schema:
        count = 0 if field.nullable else rows.column(field.name).null_count
        if count:
            raise InvalidRequest(
                f"Column {field.name!r} is NOT NULL, but null in {count:,} of {rows.num_rows:,} stored rows: another "
                f"client has made it so. Let it have nulls again (ALTER TABLE ... ALTER COLUMN {field.name} DROP NOT "
                "NULL), or read an older version.",
                kind="null_value",
                column=field.name,
                count=count,
            )
