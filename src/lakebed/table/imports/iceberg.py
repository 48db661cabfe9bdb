"""An Iceberg table as a source, through ``pyiceberg``, which reads its metadata.

Owns: finding a table's newest metadata in its folder, which partition fields become partition columns, and when a
file's bytes may be used: Iceberg finds columns by field id, Paimon's format by name.

Invariants:
- The rows of a file that is rewritten are those that the library reads. It applies deletes, renamed columns, defaults
  and name mappings.
- A file is rewritten if its columns have other ids than the schema gives their names, or if it lacks a column whose
  values may be only in its partition.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import dataset

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import open_elsewhere
from lakebed.objects.path import is_url, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.required_members import visible_members
from lakebed.table.imports.model import Source, SourceFile, SourceVersion
from lakebed.table.imports.take_over import ids_of
from lakebed.table.model.types import FIELD_ID_KEY, fields_of_arrow

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError, ValidationError
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
    from pyiceberg.table import StaticTable
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.types import BooleanType, DateType, IntegerType, LongType, StringType
except ModuleNotFoundError as missing:
    raise InvalidRequest(
        "Iceberg tables need the package pyiceberg: pip install 'lakebed[iceberg]'.", kind="not_installed"
    ) from missing

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, TableScan

HINT: Final = "metadata/version-hint.text"
"""The file that names the newest metadata in a table's folder."""
_METADATA: Final = re.compile(r"v?([0-9]+)(-[^/]*)?(\.gz)?\.metadata\.json")
_PARTITION_TYPES: Final = (BooleanType, IntegerType, LongType, StringType, DateType)
"""Types of identity partition fields that become partition columns."""
_HISTORY: Final = "Earlier snapshots of the Iceberg table are not imported; the import of a history brings them."
_DAMAGE: Final = (OSError, EOFError, ValueError, TypeError, LookupError, ValidationError, zlib.error)
"""Errors of the library for a damaged list or manifest; it also raises `ValueError` for a table it cannot read."""
_SETTINGS: Final = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
}
"""Settings of an S3 store: lakebed's spelling without ``aws_``, and the library's."""


@dataclass(frozen=True, slots=True)
class IcebergReader:
    """Reads the rows of one file through the library."""

    metadata_url: str
    properties: Mapping[str, str] = field(repr=False)
    snapshot_id: int | None
    """None: the newest, with the table's newest schema, which may be newer than that of the snapshot."""
    task: FileScanTask

    def read(self, store: ObjectStore) -> Iterator[pa.Table]:
        """The rows, as the library returns them."""
        with _readable(self.metadata_url):
            table = _static(self.metadata_url, tuple(sorted(self.properties.items())))
            self._refuse_emptied(table)
            projected = table.scan(snapshot_id=self.snapshot_id).projection()
            batches = ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_record_batches([self.task])
        while True:
            with _readable(self.task.file.file_path):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _refuse_emptied(self, table: Table) -> None:
        """Raise `InvalidRequest` for a null that the library would read as empty; see `would_be_emptied`."""
        file = self.task.file
        if not any(map(_holds_structs, schema_to_pyarrow(table.schema()).types)):
            return
        kinds = {"PARQUET": dataset.ParquetFileFormat, "ORC": dataset.OrcFileFormat}
        with table.io.new_input(file.file_path).open() as stream:
            fragment = kinds[file.file_format.value]().make_fragment(pa.PythonFile(stream, "r"))
            names = [column.name for column in fragment.physical_schema if _holds_structs(column.type)]
            for batch in fragment.to_batches(columns=names):
                for name, values in zip(names, batch.columns, strict=True):
                    if would_be_emptied(values):
                        raise InvalidRequest(
                            f"The file {file.file_path} has nulls among the arrays or maps of structs of the column "
                            f"{name!r}, and has to be rewritten, for which pyiceberg reads them as empty: read the "
                            "table through Spark, and write the rows with lakebed.spark.write.",
                            kind="unsupported_source",
                            column=name,
                        )


def _holds_structs(kind: pa.DataType) -> bool:
    """Whether a type contains an array or a map of structs."""
    if pa.types.is_struct(kind):
        return any(_holds_structs(field.type) for field in kind)
    if not pa.types.is_nested(kind):
        return False
    inner = kind.item_type if pa.types.is_map(kind) else kind.value_type
    return bool(pa.types.is_struct(inner)) or _holds_structs(inner)


def would_be_emptied(values: pa.Array) -> bool:
    """Whether the library (pyiceberg 0.12) reads or writes a value as another one.

    That happens to arrays and maps of structs. It rebuilds them without the mask of their nulls, so that a null becomes
    an empty array or map.
    """
    kind = values.type
    if not _holds_structs(kind):
        return False
    if not pa.types.is_struct(kind) and values.null_count:
        inner = kind.item_type if pa.types.is_map(kind) else kind.value_type
        if pa.types.is_struct(inner):
            return True
    return any(map(would_be_emptied, visible_members(values)))


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Raise `InvalidRequest` (``unreadable_source``) where the library finds a file gone or damaged."""
    try:
        yield
    except (OSError, EOFError, ValidationError, zlib.error) as problem:
        raise _unreadable(f"The Iceberg table {url}", problem, url=url) from problem


def _unreadable(what: str, problem: Exception, **facts: str) -> InvalidRequest:
    message = str(problem).partition("\n")[0].rstrip(".") or type(problem).__name__
    return InvalidRequest(
        f"{what} cannot be read: {message}. A file of it is gone, damaged or being written: try again, or import "
        "another snapshot.",
        kind="unreadable_source",
        **facts,
    )


@lru_cache(maxsize=4)
def _static(metadata_url: str, properties: tuple[tuple[str, str], ...]) -> StaticTable:
    """The table of some metadata, read once for all files of an import."""
    return StaticTable.from_metadata(metadata_url, dict(properties))


def library_settings(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Settings of an object store in the library's spelling."""
    settings = {}
    for name, value in (storage_options or {}).items():
        setting = _SETTINGS.get(name.lower().removeprefix("aws_"))
        if setting is not None:
            settings[setting] = value
    return settings


def open_iceberg(
    url: str,
    *,
    version: int | str | None,
    catalog: str | None,
    storage_options: Mapping[str, str] | None,
    like: ObjectStore,
) -> Source:
    """Open a snapshot of an Iceberg table. Arguments and errors as `open_source`.

    Args:
        url: the table's folder, one of its metadata files, or with `catalog` its identifier there.
    """
    table, properties = _open_table(url, catalog=catalog, storage_options=storage_options, like=like)
    snapshot_id = _snapshot_id(table, version, url)
    scan = table.scan(snapshot_id=snapshot_id)
    with _readable(url):
        try:
            tasks = list(scan.plan_files())
        except _DAMAGE as problem:
            _check_manifests(table, scan, url)
            if not isinstance(problem, ValueError):
                raise
            raise InvalidRequest(
                f"The Iceberg table {url} cannot be imported: {str(problem).partition(chr(10))[0].rstrip('.')}. Read "
                "it through Spark, and write the rows with lakebed.spark.write.",
                kind="unsupported_source",
                url=url,
            ) from problem
    return _source(table, scan, tasks, url=url, properties=properties, snapshot_id=snapshot_id)


def _check_manifests(table: Table, scan: TableScan, url: str) -> None:
    """Raise `InvalidRequest` (``unreadable_source``) for the first list or manifest of a snapshot that is damaged."""
    snapshot = scan.snapshot()
    if snapshot is None:
        return
    place = snapshot.manifest_list
    try:
        for manifest in snapshot.manifests(table.io):
            place = manifest.manifest_path
            manifest.fetch_manifest_entry(table.io)
    except _DAMAGE as problem:
        raise _unreadable(f"The file {place} of the Iceberg table {url}", problem, url=url, path=place) from problem


def _open_table(
    url: str, *, catalog: str | None, storage_options: Mapping[str, str] | None, like: ObjectStore
) -> tuple[Table, dict[str, str]]:
    """The table and the settings for reading its files."""
    properties = library_settings(storage_options)
    try:
        if catalog is not None:
            table: Table = catalog_named(catalog).load_table(url)
            return table, {name: str(value) for name, value in table.io.properties.items()}
        metadata_url = newest_metadata(url, like=like)
        with _readable(url):
            return _static(metadata_url, tuple(sorted(properties.items()))), properties
    except (NoSuchTableError, FileNotFoundError) as absent:
        raise NotFound(f"There is no Iceberg table {url}.", kind="source_not_found", url=url) from absent


def catalog_named(name: str) -> Catalog:
    """A configured catalog. Raises `InvalidRequest`: it is not configured."""
    try:
        return load_catalog(name)
    except ValueError as error:
        raise InvalidRequest(
            f"pyiceberg knows no catalog {name!r}: configure it in .pyiceberg.yaml, or by "
            f"PYICEBERG_CATALOG__{name.upper()}__URI.",
            kind="unknown_catalog",
            catalog=name,
        ) from error


def _source(
    table: Table,
    scan: TableScan,
    tasks: list[FileScanTask],
    *,
    url: str,
    properties: Mapping[str, str],
    snapshot_id: int | None,
) -> Source:
    schema = scan.projection()
    arrow = schema_to_pyarrow(schema)
    keys, notes = _partition_keys(table, schema)
    ids = dict(ids_of(arrow))
    has_defaults = any(getattr(field, "initial_default", None) is not None for field in schema.fields)
    in_partitions = {part.source_id for spec in table.specs().values() for part in spec.fields}
    must_have = frozenset(
        field.name for field in schema.fields if field.field_id in in_partitions and field.name not in keys
    )
    files = []
    for task in tasks:
        why = "may have deleted rows" if task.delete_files else None
        why = "may lack columns that have a default value" if has_defaults else why
        if keys and task.file.spec_id != table.spec().spec_id:
            why = "was written under another partition spec"
        is_parquet = task.file.file_format.value == "PARQUET"
        if not is_parquet:
            why = f"is {task.file.file_format.value}"
        values = {} if why is not None else _partition_values(task, table, keys, arrow)
        path = task.file.file_path
        files.append(
            SourceFile(
                path if is_url(path) else f"file://{path}",
                task.file.file_size_in_bytes,
                IcebergReader(table.metadata_location, properties, snapshot_id, task),
                values,
                must_rewrite=why,
                field_ids=ids,
                must_have=must_have,
                deletes=tuple(sorted(map(_name_of, task.delete_files))) or None,
                reads_every_instant=not is_parquet,
            )
        )
    snapshot = scan.snapshot()
    return Source(
        format="iceberg",
        url=url,
        version=None if snapshot is None else str(snapshot.snapshot_id),
        fields=fields_of_arrow(pa.schema([field.remove_metadata() for field in arrow])),
        partition_keys=tuple(keys),
        files=tuple(files),
        notes=tuple(notes),
        history=_HISTORY,
    )


def _name_of(deletes: DataFile) -> str:
    """The name of a file of deletes; a file of deletion vectors has several."""
    return f"{deletes.file_path}@{getattr(deletes, 'content_offset', None)}"


def iceberg_versions(
    url: str, *, catalog: str | None, storage_options: Mapping[str, str] | None, like: ObjectStore
) -> list[SourceVersion]:
    """The snapshots that led to the current one, and those of tags, oldest first; the current one is the last.

    If the columns were changed since the current snapshot, the present table follows as one more version: a snapshot
    has the columns of its time.

    Arguments and errors as `open_iceberg`.
    """
    table, _ = _open_table(url, catalog=catalog, storage_options=storage_options, like=like)
    current = table.current_snapshot()
    names_by_id: dict[int, list[str]] = {}
    for name, ref in table.refs().items():
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            names_by_id.setdefault(ref.snapshot_id, []).append(name)
    version_ids = names_by_id.keys() | {snapshot.snapshot_id for snapshot in ancestors_of(current, table.metadata)}
    snapshots = [snapshot for snapshot in table.snapshots() if snapshot.snapshot_id in version_ids]
    snapshots.sort(key=lambda snapshot: (snapshot == current, snapshot.sequence_number or 0, snapshot.timestamp_ms))
    versions = []
    for snapshot in snapshots:
        tags = tuple(sorted(names_by_id.get(snapshot.snapshot_id, ())))
        versions.append(SourceVersion(str(snapshot.snapshot_id), f"snapshot-{snapshot.snapshot_id}", tags))
    if current is not None and table.scan(snapshot_id=current.snapshot_id).projection() != table.schema():
        versions.append(SourceVersion(None, None))
    return versions


def newest_metadata(url: str, *, like: ObjectStore) -> str:
    """The URL of a table's newest metadata: by its hint, or by the highest number in the folder ``metadata``.

    Raises `NotFound`: there is no metadata; `InvalidRequest`: two files have the highest number, so only a catalog
    knows.
    """
    if url.endswith(".metadata.json"):
        return url
    store = open_elsewhere(like, str(parse_url(url)))
    names = [meta.path.removeprefix("metadata/") for meta in store.list("metadata")]
    numbered = [(int(match[1]), name) for name in names if (match := _METADATA.fullmatch(name)) is not None]
    if not numbered:
        raise NotFound(
            f"There is no Iceberg table at {url}: no metadata/*.metadata.json.", kind="source_not_found", url=url
        )
    if HINT.removeprefix("metadata/") in names:
        hint = bytes(store.get(HINT)).decode("utf-8", "replace").strip()
        file_names = (f"{hint}.metadata.json", f"v{hint}.metadata.json", f"v{hint}.gz.metadata.json", hint)
        for name in file_names:
            if name in names:
                return f"{store.root_url}/metadata/{name}"
    highest = max(number for number, _ in numbered)
    newest = [name for number, name in numbered if number == highest]
    if len(newest) > 1:
        raise InvalidRequest(
            f"{url} has {len(newest)} metadata files of number {highest}, such as {newest[0]}; only its catalog knows "
            "which is the table: name one of the files, or the catalog.",
            kind="ambiguous_source",
            url=url,
        )
    return f"{store.root_url}/metadata/{newest[0]}"


def _snapshot_id(table: Table, version: int | str | None, url: str) -> int | None:
    if version is None:
        return None
    text = str(version)
    snapshot = table.snapshot_by_id(int(text)) if text.isdecimal() else table.snapshot_by_name(text)
    if snapshot is None:
        raise NotFound(
            f"The Iceberg table {url} has no snapshot or reference {text!r}; its references are "
            f"{', '.join(sorted(table.refs())) or 'none'}.",
            kind="version_not_found",
            version=text,
        )
    return int(snapshot.snapshot_id)


# ---- partitions


def _partition_keys(table: Table, schema: Schema) -> tuple[list[str], list[str]]:
    """The partition columns, and messages about the partition fields that do not become columns."""
    keys, notes = [], []
    for part in table.spec().fields:
        column = next((field for field in schema.fields if field.field_id == part.source_id), None)
        if column is not None and str(part.transform) == "identity" and isinstance(column.field_type, _PARTITION_TYPES):
            keys.append(column.name)
        else:
            notes.append(
                f"The partition field {part.name} ({part.transform}) does not become a partition column; statistics of "
                "the files still prune by its column."
            )
    return keys, notes


def _partition_values(task: FileScanTask, table: Table, keys: list[str], schema: pa.Schema) -> dict[str, pa.Scalar]:
    by_source = {part.source_id: i for i, part in enumerate(table.spec().fields)}
    values = {}
    for name in keys:
        column = schema.field(name)
        value = task.file.partition[by_source[int(column.metadata[FIELD_ID_KEY])]]
        is_day = pa.types.is_date(column.type) and isinstance(value, int)
        values[name] = pa.scalar(value, pa.int32()).cast(column.type) if is_day else pa.scalar(value, column.type)
    return values
