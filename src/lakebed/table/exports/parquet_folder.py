"""An export as Parquet files, in folders such as ``year=2026/month=1`` for a partitioned table.

Invariants:
- On a local folder the files are written into a hidden folder next to the target, which becomes the target by a rename.
- A bucket has no rename. There the files are staged under names that no reader of Parquet looks at, and copied to
  their final names at the end. The marker ``_SUCCESS`` is put last, and an overwrite deletes it first.
- Only files that an export could have written are replaced: a folder with any other file is refused.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.ids import new_uuid
from lakebed.objects.open import open_elsewhere
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.discard import discard
from lakebed.table.codec.file_encoding import ParquetSink
from lakebed.table.exports.model import ExportOptions, ExportReport, ProgressCall, Rows, open_target
from lakebed.table.imports.parquet_folder import HIVE_NULL
from lakebed.table.read.scan import Scan
from lakebed.table.table import Table

SUCCESS: Final = "_SUCCESS"
_STAGED: Final = "_unfinished"
_FILE_BYTES: Final = 128 * 1024 * 1024
_ROW_GROUP_ROWS: Final = 262_144
_HIVE_SAFE: Final = " !$&()+,-.;@_~"


def export_parquet(
    table: Table, scan: Scan, target: str, *, options: ExportOptions, progress: ProgressCall | None
) -> ExportReport:
    """Write a scan as Parquet files. Arguments and errors as `export_table`."""
    keys = scan.table_schema.partition_keys
    rows = Rows(table.store, scan, format="parquet", converts=lambda kind: kind, progress=progress, without=keys)
    if not rows.schema.names:
        raise InvalidRequest(
            f"All columns of {table.name} are partition columns, and a Parquet file without columns does not say how "
            "many rows it has: export the table as Iceberg.",
            kind="unsupported_type",
        )
    store = open_target(table, target, options)
    _check_target(store, overwrite=options.overwrite)
    if parse_url(target).scheme == "file":
        _write_locally(table, target, rows)
    else:
        _write_to_bucket(table, store, rows)
    return rows.report(table.name, target)


def _check_target(store: ObjectStore, *, overwrite: bool) -> None:
    for meta in store.list(""):
        if not overwrite:
            raise AlreadyExists(
                f"{store.root_url} has files already, such as {meta.path}: export to an empty folder, or overwrite it.",
                kind="target_exists",
                url=store.root_url,
            )
        if not _is_of_an_export(meta.path):
            raise AlreadyExists(
                f"{store.root_url} has a file {meta.path}, which no export as Parquet has written, so it is not "
                "replaced: export to another folder.",
                kind="target_exists",
                url=store.root_url,
                path=meta.path,
            )


def _is_of_an_export(path: str) -> bool:
    return path == SUCCESS or path.startswith(f"{_STAGED}/") or path.endswith(".parquet")


def _write_locally(table: Table, target: str, rows: Rows) -> None:
    final = Path(parse_url(target).prefix)
    mark = new_uuid(table.context.environment.rng)
    unfinished_path = final.with_name(f".{final.name}.unfinished-{mark}")
    replaced_path = final.with_name(f".{final.name}.replaced-{mark}")
    staging = open_elsewhere(table.store, f"file://{unfinished_path}")
    try:
        for path, body in _files(table, rows):
            staging.put(path, body)
        staging.put(SUCCESS, b"")
        if final.exists() and any(final.iterdir()):
            os.rename(final, replaced_path)
        os.rename(unfinished_path, final)
    finally:
        shutil.rmtree(unfinished_path, ignore_errors=True)
    shutil.rmtree(replaced_path, ignore_errors=True)


def _write_to_bucket(table: Table, store: ObjectStore, rows: Rows) -> None:
    before = [meta.path for meta in store.list("")]
    staged_paths: dict[str, str] = {}
    try:
        for path, body in _files(table, rows):
            hidden_path = f"{_STAGED}/{new_uuid(table.context.environment.rng)}.tmp"
            staged_paths[hidden_path] = path
            store.put(hidden_path, body)
        discard(store, [SUCCESS])
        for hidden_path, path in staged_paths.items():
            store.copy(hidden_path, path)
    finally:
        discard(store, staged_paths)
    discard(store, [path for path in before if path != SUCCESS])
    store.put(SUCCESS, b"")


def _files(table: Table, rows: Rows) -> Iterator[tuple[str, pa.Buffer]]:
    """The files, each with its path below the target, one in memory at a time."""
    mark, number = new_uuid(table.context.environment.rng), 0
    for values, tables in rows.by_partition():
        folder = "".join(f"{_hive(name)}={_hive_value(value)}/" for name, value in values.items())
        for body in _encode_files(tables):
            yield f"{folder}part-{number:05}-{mark}.parquet", body
            number += 1
    if number == 0:
        yield f"part-00000-{mark}.parquet", _empty(rows.schema)


def _encode_files(tables: Iterator[pa.Table]) -> Iterator[pa.Buffer]:
    """Encode rows as Parquet files of about `_FILE_BYTES`."""
    sink: ParquetSink | None = None
    for part in _groups(tables):
        sink = sink or _sink(part)
        sink.write(part)
        if sink.size_bytes >= _FILE_BYTES:
            yield sink.finish()
            sink = None
    if sink is not None:
        yield sink.finish()


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join rows to the size of row groups: batches are smaller."""
    pending: list[pa.Table] = []
    count = 0
    for part in tables:
        pending.append(part)
        count += part.num_rows
        if count >= _ROW_GROUP_ROWS:
            yield pa.concat_tables(pending).combine_chunks()
            pending, count = [], 0
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _sink(part: pa.Table) -> ParquetSink:
    return ParquetSink(part, no_dictionary=frozenset(), compression="zstd", compression_level=1)


def _empty(schema: pa.Schema) -> pa.Buffer:
    """A file without rows, which still states the columns."""
    rows = schema.empty_table()
    sink = _sink(rows)
    sink.write(rows)
    return sink.finish()


def _hive(text: str) -> str:
    return quote(text, safe=_HIVE_SAFE)


def _hive_value(value: object) -> str:
    if value is None:
        return HIVE_NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return _hive(value.isoformat(sep=" "))
    return _hive(str(value))
