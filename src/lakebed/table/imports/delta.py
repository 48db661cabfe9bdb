"""A Delta table as a source, through ``deltalake``, which reads its log.

Owns: which features of Delta are supported, and the rows of a file by Delta's rules: partition values are in the log
and not in the file, columns may have other names in the file (column mapping), and rows may be deleted by position
(deletion vectors).

Invariants: a table with a feature that is not in `_FEATURES` is refused. A file with deleted rows or other column names
is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import place_of
from lakebed.objects.path import is_url
from lakebed.objects.port import ObjectStore
from lakebed.table.files.data_file import open_data_file
from lakebed.table.files.int96 import has_timestamps
from lakebed.table.imports.model import Source, SourceFile, SourceVersion
from lakebed.table.imports.parquet_folder import with_constants
from lakebed.table.model.types import fields_of_arrow

try:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError
except ModuleNotFoundError as missing:
    raise InvalidRequest(
        "Delta tables need the package deltalake: pip install 'lakebed[delta]'.", kind="not_installed"
    ) from missing

_FEATURES: Final = frozenset(
    (
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening"),
        *("typeWidening-preview", "catalogManaged-preview"),
    )
)
"""Features of readers that this module, or the library below it, takes into account."""
_BATCH_ROWS: Final = 65_536
_UNIT: Final = "us"
"""Unit of the format's timestamps, whatever unit a file uses."""
_MAPPING_MODE: Final = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Reads one data file of a Delta table."""

    url: str
    size_bytes: int
    columns: tuple[str, ...]
    """The columns of the table."""
    constants: tuple[tuple[str, pa.Scalar], ...]
    """The partition columns."""
    instants: tuple[tuple[str, pa.DataType], ...]
    """The columns with timestamps, with their types in the table. Stored as INT96 they have no zone."""
    kept: bytes | None = None
    """One byte for each row: 0 for deleted rows. Rows beyond its end are kept. None: no row is deleted."""

    def read(self, store: ObjectStore) -> Iterator[pa.Table]:
        """The rows, by Delta's rules."""
        place, path = place_of(store, self.url)
        data_file = open_data_file(place, path, size_bytes=self.size_bytes, int96_unit=_UNIT)
        is_kept = None if self.kept is None else np.frombuffer(self.kept, np.bool_)
        columns = [name for name in data_file.column_names if name in self.columns] or data_file.column_names[:1]
        row = 0
        for batch in data_file.batches(columns=columns, row_groups=None, batch_rows=_BATCH_ROWS):
            rows = with_constants(pa.Table.from_batches([batch]), self.constants)
            rows = rows.select([name for name in self.columns if name in rows.column_names])
            for name, kind in self.instants:
                position = rows.schema.get_field_index(name)
                if position >= 0 and rows.schema.field(position).type != kind:
                    rows = rows.set_column(position, name, rows.column(position).cast(kind))
            if is_kept is not None:
                mask = np.ones(rows.num_rows, np.bool_)
                known_part = is_kept[row : row + rows.num_rows]
                mask[: len(known_part)] = known_part
                row += rows.num_rows
                rows = rows.filter(pa.array(mask))
            if rows.num_rows:
                yield rows


@dataclass(frozen=True, slots=True)
class DeltaScan:
    """Reads a whole version through the library, which maps columns to their names in files."""

    url: str
    version: int
    storage_options: Mapping[str, str] = field(repr=False)

    def read(self, store: ObjectStore) -> Iterator[pa.Table]:
        """The rows, as the library returns them."""
        table = DeltaTable(location(self.url), version=self.version, storage_options=dict(self.storage_options))
        for batch in pa.RecordBatchReader.from_stream(table.scan()):
            yield pa.Table.from_batches([batch])


def open_delta(url: str, *, version: int | str | None, storage_options: Mapping[str, str] | None) -> Source:
    """Open a version of a Delta table. Arguments and errors as `open_source`."""
    number = None if version is None else _number(version)
    try:
        table = DeltaTable(location(url), version=number, storage_options=dict(storage_options or {}) or None)
        actions = pa.table(table.get_add_actions())
        schema = pa.schema(table.schema().to_arrow())
        vectors = pa.table(table.deletion_vectors())
    except TableNotFoundError as absent:
        raise NotFound(f"There is no Delta table at {url}.", kind="source_not_found", url=url) from absent
    except DeltaError as problem:
        raise InvalidRequest(
            f"The Delta table {url}{'' if number is None else f' at version {number}'} cannot be read: "
            f"{str(problem).partition(chr(10))[0].rstrip('.')}.",
            kind="unreadable_source",
            url=url,
        ) from problem
    _check_features(table, url)
    kept_rows = _rows_to_keep(vectors)
    partition_keys = tuple(table.metadata().partition_columns)
    # Leave out the statistics: they may have dates and times that Python cannot represent.
    actions = actions.select([name for name in ("path", "size_bytes", "partition") if name in actions.column_names])
    files = [
        _file(action, url, schema=schema, kept=kept_rows, partition_keys=partition_keys)
        for action in actions.to_pylist()
    ]
    if files and table.metadata().configuration.get(_MAPPING_MODE, "none") != "none":
        scan = DeltaScan(url, table.version(), dict(storage_options or {}))
        size_bytes, why = sum(file.size_bytes for file in files), "has columns under other names (column mapping)"
        every = (str(table.version()),)
        files = [
            SourceFile(
                url,
                size_bytes,
                scan,
                must_rewrite=why,
                deletes=every,
                file_count=len(files),
                reads_every_instant=True,
            )
        ]
    return Source(
        format="delta",
        url=url,
        version=str(table.version()),
        fields=fields_of_arrow(schema),
        partition_keys=partition_keys,
        files=tuple(files),
        history="Earlier versions of the Delta table are not imported; the import of a history brings them.",
    )


def delta_versions(url: str, *, storage_options: Mapping[str, str] | None) -> list[SourceVersion]:
    """The versions that the log names, oldest first. Raises `NotFound`. Cost: the log."""
    try:
        table = DeltaTable(location(url), storage_options=dict(storage_options or {}) or None)
        numbers = {table.version(), *(int(commit["version"]) for commit in table.history())}
    except TableNotFoundError as absent:
        raise NotFound(f"There is no Delta table at {url}.", kind="source_not_found", url=url) from absent
    return [SourceVersion(str(number), f"version-{number}") for number in sorted(numbers)]


def _file(
    action: Mapping[str, Any],
    root: str,
    *,
    schema: pa.Schema,
    kept: Mapping[str, bytes],
    partition_keys: Sequence[str],
) -> SourceFile:
    path = unquote(action["path"])
    url = path if is_url(path) else f"{root}/{path}"
    values = {
        name: pa.scalar((action["partition"] or {}).get(name), schema.field(name).type) for name in partition_keys
    }
    kept_rows = kept.get(_tail(url))
    why = "has deleted rows (a deletion vector)" if kept_rows is not None else None
    instants = tuple((column.name, column.type) for column in schema if has_timestamps(column.type))
    reader = DeltaReader(url, action["size_bytes"], tuple(schema.names), tuple(values.items()), instants, kept_rows)
    return SourceFile(
        url, action["size_bytes"], reader, values, must_rewrite=why, deletes=kept_rows, reads_every_instant=True
    )


def location(url: str) -> str:
    """The table's location in the form that the library accepts."""
    return url.removeprefix("file://") if url.startswith("file://") else url


def _number(version: int | str) -> int:
    text = str(version)
    if not text.isdecimal():
        raise InvalidRequest(
            f"{text!r} is not a version of a Delta table: give its number.", kind="invalid_version", version=text
        )
    return int(text)


def _check_features(table: DeltaTable, url: str) -> None:
    unknown_features = sorted(set(table.protocol().reader_features or ()) - _FEATURES)
    if unknown_features:
        raise InvalidRequest(
            f"The Delta table {url} uses the feature {unknown_features[0]}, which cannot be imported: read it through "
            "Spark, and write the rows with lakebed.spark.write.",
            kind="unsupported_source",
            url=url,
            feature=unknown_features[0],
        )


def _rows_to_keep(vectors: pa.Table) -> dict[str, bytes]:
    """The rows to keep, by the last part of the file's URL."""
    masks = {}
    for row in range(vectors.num_rows):
        mask = vectors.column("selection_vector")[row].values
        masks[_tail(vectors.column("filepath")[row].as_py())] = (
            mask.to_numpy(zero_copy_only=False).astype(np.bool_).tobytes()
        )
    return masks


def _tail(url: str) -> str:
    """The file's own name, in which Delta's writers put a UUID. Folders are spelled differently in the log and here."""
    return unquote(url).rpartition("/")[2]
