"""An export as an Iceberg table, through ``pyiceberg``: one commit of its catalog.

Without a catalog the table exists only in the target's folder: a catalog in memory makes the commit, and the file
``metadata/version-hint.text``, put last, names the metadata. Readers open that file. Those that know the hint, such as
this project's import and DuckDB, open the folder.

Invariants: the table and its rows are committed together, so no reader sees it empty. Iceberg stores microseconds: a
value with nanoseconds is refused. TINYINT and SMALLINT become ``int``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.table.exports.model import ExportOptions, ExportReport, ProgressCall, Rows, open_target
from lakebed.table.imports.iceberg import HINT, catalog_named, library_settings, newest_metadata, would_be_emptied
from lakebed.table.read.scan import Scan
from lakebed.table.table import Table

try:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Transaction
except ModuleNotFoundError as missing:
    raise InvalidRequest(
        f"An export to Iceberg needs the package {missing.name}: pip install 'lakebed[iceberg]'.", kind="not_installed"
    ) from missing

_CHUNK_BYTES: Final = 256 * 1024 * 1024
"""Arrow bytes that are held for a partitioned table, which the library writes only from memory.

Each such part is a snapshot of its own in the one commit.
"""
_NAME: Final = "export.target"


def export_iceberg(
    table: Table, scan: Scan, target: str, *, options: ExportOptions, progress: ProgressCall | None
) -> ExportReport:
    """Write a scan as a version of an Iceberg table. Arguments and errors as `export_table`."""
    rows = Rows(table.store, scan, format="iceberg", converts=_iceberg_type, progress=progress)
    keys = scan.table_schema.partition_keys
    if options.catalog is not None:
        metadata = _commit_rows(catalog_named(options.catalog), target, None, rows, keys, options=options)
    else:
        store = open_target(table, target, options)
        with _catalog_of_folder(store, target, options) as catalog:
            metadata = _commit_rows(catalog, _NAME, target, rows, keys, options=options)
        store.put(HINT, metadata.rpartition("/")[2].removesuffix(".metadata.json").encode())
    return rows.report(table.name, target, version=metadata)


@contextmanager
def _catalog_of_folder(store: ObjectStore, target: str, options: ExportOptions) -> Iterator[Catalog]:
    """A catalog in memory that knows the table in a folder, if there is one."""
    catalog = InMemoryCatalog("export", **library_settings(options.storage_options))
    try:
        catalog.create_namespace(_NAME.partition(".")[0])
        try:
            metadata = newest_metadata(target, like=store)
        except NotFound:
            pass
        else:
            catalog.register_table(_NAME, metadata)
        yield catalog
    finally:
        catalog.close()


def _commit_rows(
    catalog: Catalog, name: str, location: str | None, rows: Rows, keys: tuple[str, ...], *, options: ExportOptions
) -> str:
    """Write the rows, commit them, and return the URL of the metadata."""
    try:
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            with catalog.create_table_transaction(name, rows.schema, location=location) as creation:
                if keys:
                    with creation.update_spec() as spec:
                        for key in keys:
                            spec.add_identity(key)
                _add(creation, rows, is_partitioned=bool(keys))
            return str(catalog.load_table(name).metadata_location)
        if not options.overwrite:
            raise AlreadyExists(
                f"{location or name} is an Iceberg table already: export to another one, or overwrite it.",
                kind="target_exists",
                url=location or name,
            )
        with table.transaction() as transaction:
            with transaction.update_schema() as columns:
                columns.union_by_name(rows.schema)
                for column in table.schema().fields:
                    if column.name not in rows.schema.names:
                        columns.delete_column(column.name)
            transaction.delete("True")
            _add(transaction, rows, is_partitioned=bool(table.spec().fields))
        return str(catalog.load_table(name).metadata_location)
    except (ValueError, NotImplementedError, OverflowError) as problem:  # the last: a date that Python cannot represent
        if isinstance(problem, InvalidRequest):
            raise
        raise InvalidRequest(
            f"The rows cannot be written as the Iceberg table {location or name}: "
            f"{str(problem).partition(chr(10))[0].rstrip('.')}.",
            kind="export_failed",
        ) from problem


def _add(into: Transaction, rows: Rows, *, is_partitioned: bool) -> None:
    if not is_partitioned:
        into.append(pa.RecordBatchReader.from_batches(rows.schema, _check_batches(rows)))
        return
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in _check_batches(rows):
        pending.append(batch)
        count += batch.nbytes
        if count >= _CHUNK_BYTES:
            into.append(pa.Table.from_batches(pending))
            pending, count = [], 0
    if pending:
        into.append(pa.Table.from_batches(pending))


def _check_batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    """All rows. Raises `InvalidRequest`: a null that the library would write as empty."""
    for batch in rows.batches():
        for name, values in zip(rows.schema.names, batch.columns, strict=True):
            if would_be_emptied(values):
                raise InvalidRequest(
                    f"The column {name!r} has a null array or map of structs, which pyiceberg writes as an empty one: "
                    "export the table as Parquet or Delta, or store empty ones in their place.",
                    kind="unsupported_value",
                    column=name,
                )
        yield batch


def _iceberg_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_large_binary(kind):
        return pa.binary()
    return kind
