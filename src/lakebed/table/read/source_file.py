"""One data file of a split: its location, its rows without the deleted ones, and its columns as a plan names them.

Owns: `SourceFile` and `open_source`. Invariants:
- A column is found by its field id in the schema that its file was written with: renames are followed, columns missing
  from that schema are null, narrower types are widened.
- A filter leaves out row groups and, if it is a filter on the key, rows: only ones that do not match it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Corruption, InvalidRequest, NotFound
from lakebed.objects.open import place_of
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.required_members import cast_members
from lakebed.table.files.data_file import WHOLE_FILE_BYTES_MAX, OpenDataFile, open_data_file
from lakebed.table.model.model import DataField, DataFile, Split, TableSchema
from lakebed.table.model.nested import carry_nested
from lakebed.table.model.predicate import is_small, mask_of, to_arrow
from lakebed.table.model.predicate_tree import Predicate, all_of, columns_of, conjuncts
from lakebed.table.model.types import arrow_schema, arrow_type, parse_type
from lakebed.table.read.vectors import NO_POSITIONS, LiveRows, load_positions

KEY_READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Files up to this size are fetched whole even for a filter on the key.

Of a larger file such a filter needs few row groups.
"""

KEY_READ_GROUPS_MAX: Final = 2
"""If a filter on the key leaves at most this many row groups, the columns of the key are decoded first."""

KEY_READ_GROUP_ROWS_MAX: Final = 1 << 20
"""Most rows of such a row group: its key is decoded at once, whatever the window of a streaming read."""

KEY_READ_ROWS: Final = 16_384
"""Rows of the other columns that are then decoded at a time."""


def open_source(
    store: ObjectStore,
    split: Split,
    file: DataFile,
    *,
    schemas: Mapping[int, TableSchema],
    fields: Sequence[DataField],
    key_part: Predicate | None = None,
    window_bytes: int = WHOLE_FILE_BYTES_MAX,
) -> SourceFile:
    """Open a file of a split.

    Args:
        schemas: the schemas that files were written with, by id.
        fields: columns to decode; they include those of the predicates of reads.
        key_part: the part of a read's predicate on key columns alone; None: there is none. With it, a file above
            `KEY_READ_BYTES_MAX` is fetched in pieces, and few of its rows may be decoded.
        window_bytes: as of `open_data_file`.

    Raises and cost: as `open_data_file`; 1 GET more when the file has a deletion vector.
    """
    data_file = open_in_folders(
        store,
        file,
        folders=(split.folder, *split.other_folders),
        window_bytes=min(window_bytes, WHOLE_FILE_BYTES_MAX),
        whole_bytes_max=WHOLE_FILE_BYTES_MAX if key_part is None else KEY_READ_BYTES_MAX,
    )
    place = split.vectors.get(file.file_name) if split.vectors else None
    live_rows = data_file if place is None else LiveRows(data_file, load_positions(store, place))
    return SourceFile(live_rows, file, split, schemas, fields, key_part)


def open_in_folders(
    store: ObjectStore,
    file: DataFile,
    *,
    folders: Sequence[str],
    window_bytes: int = WHOLE_FILE_BYTES_MAX,
    whole_bytes_max: int = WHOLE_FILE_BYTES_MAX,
) -> OpenDataFile:
    """Open a data file where it is: outside the table, or in one of its bucket's folders.

    Args:
        folders: of the bucket, the folder for new files first.

    Raises `NotFound`: no folder has the file; the message has its path in the first folder.
    """

    def open_at(place: ObjectStore, path: str) -> OpenDataFile:
        return open_data_file(
            place, path, size_bytes=file.file_size, window_bytes=window_bytes, whole_bytes_max=whole_bytes_max
        )

    if file.external_path is not None:
        return open_at(*place_of(store, file.external_path))
    paths = [f"{folder}/{file.file_name}" for folder in folders]
    try:
        return open_at(store, paths[0])
    except NotFound:
        for path in paths[1:]:
            try:
                return open_at(store, path)
            except NotFound:
                continue
            except InvalidRequest as error:  # another spelling has a character that this store allows in no path
                if error.kind != "invalid_path":
                    raise
        raise


def data_path(split: Split, file: DataFile) -> str:
    """The location of a file of a split: a path below the table's folder, or the URL of an external file."""
    return file.external_path or f"{split.folder}/{file.file_name}"


class SourceFile:
    """An open file of a split, whose columns are those of the plan. Not thread-safe; see `open_source`."""

    def __init__(
        self,
        data_file: OpenDataFile | LiveRows,
        file: DataFile,
        split: Split,
        schemas: Mapping[int, TableSchema],
        fields: Sequence[DataField],
        key_part: Predicate | None,
    ) -> None:
        self._opened = data_file
        self._file = file
        self._split = split
        self._fields = fields
        self._key_part = key_part
        self._schemas = schemas
        self._in_file = {column.id: column for column in schemas[file.schema_id].fields}
        names = {number: column.name for number, column in self._in_file.items()}
        self._name_in_file = {column.name: names.get(column.id) for column in fields}

    @property
    def live(self) -> LiveRows:
        """The file without its deleted rows."""
        return self._opened if isinstance(self._opened, LiveRows) else LiveRows(self._opened, NO_POSITIONS)

    def table(self, where: Predicate | None, *system: str, threads: bool = False) -> pa.Table:
        """The rows of the file, at once; arguments as `batches`."""
        groups = self.row_groups(where)
        if (first := self._groups_by_key(groups)) is not None:
            tables = [rows for group in first for rows in self._with_keys(group, system, threads=threads)]
            if tables:
                return pa.concat_tables(tables)
            groups = []
        rows = self._opened.read(columns=self.names(*system), row_groups=groups, threads=threads)
        return self.adapt(rows, *system)

    def batches(self, where: Predicate | None, *system: str, batch_rows: int) -> Iterator[pa.Table]:
        """The rows of the file, at most `batch_rows` at a time, `system` columns last.

        Rows for which `where` is not true may be left out; the caller filters the others.

        Cost: as `OpenDataFile.batches`, for the row groups that `where` leaves. If these are few and `key_part` is
        known, the columns of the key are decoded first; of the other columns only the rows up to the last match are
        decoded.
        """
        groups = self.row_groups(where)
        if (first := self._groups_by_key(groups)) is not None:
            for group in first:
                yield from self._with_keys(group, system)
            return
        for batch in self._opened.batches(columns=self.names(*system), row_groups=groups, batch_rows=batch_rows):
            yield self.adapt(pa.Table.from_batches([batch]), *system)

    def _keys(self) -> SourceFile:
        """The same file with the columns of `key_part` alone."""
        assert self._key_part is not None
        names = columns_of(self._key_part)
        fields = [field for field in self._fields if field.name in names]
        return SourceFile(self._opened, self._file, self._split, self._schemas, fields, None)

    def _groups_by_key(self, groups: list[int] | None) -> Sequence[int] | None:
        """The row groups whose key is decoded first; None: all columns are decoded together."""
        if self._key_part is None or self._file.row_count <= KEY_READ_ROWS:
            return None
        candidates = range(self._opened.row_group_count) if groups is None else groups
        if (
            len(candidates) > KEY_READ_GROUPS_MAX
            or max(map(self._rows_of, candidates), default=0) > KEY_READ_GROUP_ROWS_MAX
        ):
            return None
        return candidates if self._keys().names() else None  # files of other writers may lack partition columns

    def _rows_of(self, group: int) -> int:
        return int(self._opened.metadata.row_group(group).num_rows)

    def _with_keys(self, group: int, system: Sequence[str], *, threads: bool = False) -> Iterator[pa.Table]:
        """The rows of a row group from the first whose key matches up to the last."""
        assert self._key_part is not None
        keys = self._keys()
        key_rows = self._opened.read(columns=keys.names(), row_groups=[group])
        matches = pc.indices_nonzero(mask_of(self._key_part, keys.adapt(key_rows)))
        if len(matches) == 0:
            return
        first, stop = matches[0].as_py(), matches[-1].as_py() + 1
        names = [name for name in self.names(*system) if name not in key_rows.column_names]
        if not names:
            yield self.adapt(key_rows.slice(first, stop - first))
        elif threads and 2 * stop > key_rows.num_rows:
            # Two threads decode all rows as fast as one decodes half of them.
            other_columns = self._opened.read(columns=names, row_groups=[group], threads=True)
            yield self.adapt(_join_columns(other_columns, key_rows).slice(first, stop - first), *system)
        else:
            end = 0
            for batch in self._opened.batches(columns=names, row_groups=[group], batch_rows=KEY_READ_ROWS):
                start, end = end, end + batch.num_rows
                if end > first:
                    rows = _join_columns(pa.Table.from_batches([batch]), key_rows.slice(start, batch.num_rows))
                    begin = max(0, first - start)
                    yield self.adapt(rows.slice(begin, stop - start - begin), *system)
                if end >= stop:
                    return

    def names(self, *system: str) -> list[str]:
        """The names of the columns that the file has; `system` first."""
        column_names = set(self._opened.column_names)
        names = [name for name in self._name_in_file.values() if name is not None and name in column_names]
        return [*system, *names]

    def row_groups(self, where: Predicate | None) -> list[int] | None:
        """Row groups whose statistics do not exclude a match; None: all.

        Only conjuncts whose columns all `_has_bounds` are used.
        """
        data_file = self._opened
        if where is None or data_file.row_group_count < 2 or not is_small(where):
            return None
        bounded = {name for name in columns_of(where) if self._has_bounds(name)}
        condition = all_of(part for part in conjuncts(where) if columns_of(part) <= bounded)
        return None if condition is None else data_file.row_groups_for(to_arrow(condition, arrow_schema(self._fields)))

    def _has_bounds(self, name: str) -> bool:
        """Whether a column has the same name and type in the file as in the plan, and is no float.

        The file's statistics ignore NaN, which may match a negated predicate. Timestamps in INT96 have no zone, and
        Arrow does not compare them with those that have one.
        """
        column = next((field for field in self._fields if field.name == name), None)
        if column is None or name not in self._opened.column_names or column.type in ("FLOAT", "DOUBLE"):
            return False
        file_field = self._in_file.get(column.id)
        if file_field is None or (file_field.name, file_field.type) != (name, column.type):
            return False
        kind = arrow_type(column.type)
        if not pa.types.is_timestamp(kind):
            return True
        stored_type = self._opened.metadata.schema.to_arrow_schema().field(name).type
        return bool(pa.types.is_timestamp(stored_type) and (stored_type.tz is None) == (kind.tz is None))

    def adapt(self, table: pa.Table, *system: str) -> pa.Table:
        """The columns of a file with the plan's names and types, system columns last."""
        column_names = set(table.column_names)
        columns = []
        for column in self._fields:
            target = arrow_type(column.type)
            name = self._name_in_file[column.name]
            if name is not None and name in column_names:
                stored_type = self._in_file[column.id].type
                columns.append(_carry(table.column(name), stored_type, column.type, self._split.folder))
            else:
                columns.append(self._constant(column, target, table.num_rows))
        names = [column.name for column in self._fields]
        return pa.table([*columns, *(table.column(name) for name in system)], names=[*names, *system])

    def _constant(self, column: DataField, target: pa.DataType, row_count: int) -> pa.ChunkedArray:
        """The values of a column that the file does not have: the value of its partition, or nulls."""
        value = self._split.partition_values.get(column.name)
        if value is None:
            return pa.chunked_array([pa.nulls(row_count, target)])
        return pa.chunked_array([pa.repeat(pa.scalar(value, target), row_count)])


def _join_columns(left: pa.Table, right: pa.Table) -> pa.Table:
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left


def _carry(column: pa.ChunkedArray, stored_type: str, boundary_wanted: str, folder: str) -> pa.ChunkedArray:
    """A column of a file in the column's present type."""
    target = arrow_type(boundary_wanted)
    try:
        if stored_type != boundary_wanted and parse_type(boundary_wanted).is_nested:
            return carry_nested(column, parse_type(stored_type), parse_type(boundary_wanted))
        return cast_members(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Corruption(
            f"A file below {folder} holds {column.type} where the table now has {target}, and not every value fits.",
            path=folder,
        ) from error
