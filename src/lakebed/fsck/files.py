"""The deep check: every data file decodes, and agrees with its manifest entry.

It compares rows, least and greatest key, order of keys, sequence numbers, deletes, and the bounds and null counts of
every column with statistics. Invariants: one file is in memory at a time; a file is read once, whatever the number of
versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.fsck.model import Findings
from lakebed.objects.open import place_of
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import ENTRY_SCHEMA, files_of
from lakebed.table.engines.merge import encode_keys
from lakebed.table.files.data_file import open_data_file
from lakebed.table.model.model import STATS_VERSION, DataField, DataFile, TableSchema
from lakebed.table.model.row_kinds import ADD_KINDS, KIND_COLUMN, SEQUENCE_COLUMN
from lakebed.table.table import Table, branch_of


def check_data_files(table: Table, files: pa.Table, findings: Findings) -> None:
    """Read every file and report where it differs from its entry.

    Args:
        files: `ENTRY_SCHEMA` plus ``path``, ``needed_by`` and ``branch``, whose schemas count. Files found missing or
            of another size are skipped: `table.py` has reported them.
    """
    broken = {finding.path for finding in findings.report.findings if finding.kind in {"missing", "wrong_size"}}
    paths, needers, branches = (files[name].to_pylist() for name in ("path", "needed_by", "branch"))
    lines = {branch: table if branch is None else branch_of(table, branch) for branch in set(branches)}
    described = files_of(files.select(ENTRY_SCHEMA.names))
    for path, needed_by, branch, file in zip(paths, needers, branches, described, strict=True):
        if path not in broken:
            with findings.reading(path, needed_by=needed_by):
                _check_file(lines[branch], path, file, findings)
        findings.step(len(paths))


def _check_file(table: Table, path: str, file: DataFile, findings: Findings) -> None:
    schema = table.context.schemas.load(file.schema_id)
    store, name = place_of(table.store, path)
    opened = open_data_file(store, name, size_bytes=file.file_size)
    rows = opened.read(columns=opened.column_names)
    if rows.num_rows != file.row_count:
        findings.error("wrong_count", path, f"has {rows.num_rows:,} rows; its manifest says {file.row_count:,}.")
        return
    missing = [
        field.name for field in schema.fields if field.name not in rows.column_names and _is_written(file, field)
    ]
    if missing:
        findings.error("missing_column", path, f"has no column {', '.join(missing)}, which its schema {schema.id} has.")
        return
    if rows.num_rows == 0:
        return
    if schema.primary_keys:
        _check_keys(path, file, rows, schema, findings)
    _check_statistics(path, file, rows, schema, findings)


def _is_written(file: DataFile, field: DataField) -> bool:
    return file.write_cols is None or field.name in file.write_cols


def _check_keys(path: str, file: DataFile, rows: pa.Table, schema: TableSchema, findings: Findings) -> None:
    """Check that keys ascend, each once, from the least to the greatest stated; also numbers and deletes."""
    keys, types = schema.key_fields, [field.type for field in schema.key_fields]
    columns = [rows.column(field.name).combine_chunks() for field in keys]
    stated = [decode_rows(pa.array([row], pa.binary()), types) for row in (file.min_key, file.max_key)]
    same = [[bound.cast(column.type) for bound, column in zip(row, columns, strict=True)] for row in stated]
    codes, low, high = encode_keys([columns, *same])
    if not (np.diff(codes) > 0).all():
        findings.error("unsorted", path, "is not sorted by its key, or has a key twice.")
    elif int(codes[0]) != int(low[0]) or int(codes[-1]) != int(high[0]):
        findings.error("wrong_key_range", path, "has other least or greatest keys than its manifest says.")
    if SEQUENCE_COLUMN in rows.column_names:
        bounds = pc.min_max(rows.column(SEQUENCE_COLUMN)).as_py()
        if (bounds["min"], bounds["max"]) != (file.min_sequence_number, file.max_sequence_number):
            findings.error("wrong_sequence", path, "has other sequence numbers than its manifest says.")
    if KIND_COLUMN in rows.column_names and file.delete_row_count is not None:
        kept = pc.is_in(rows.column(KIND_COLUMN), value_set=pa.array(ADD_KINDS, pa.int8()))
        deletes = rows.num_rows - (pc.sum(kept).as_py() or 0)
        if deletes != file.delete_row_count:
            findings.error("wrong_count", path, f"has {deletes} deletes; its manifest says {file.delete_row_count}.")


def _check_statistics(path: str, file: DataFile, rows: pa.Table, schema: TableSchema, findings: Findings) -> None:
    """Check that the bounds include every value (they may be wider: long text is cut) and null counts are exact."""
    names = file.value_stats_cols
    fields = [field for field in schema.fields if names is None or field.name in names]
    if names is not None:
        fields.sort(key=lambda field: names.index(field.name))
    if not fields or not file.value_stats.null_counts:
        return
    types = [field.type for field in fields]
    least = decode_rows(pa.array([file.value_stats.min_values], pa.binary()), types)
    greatest = decode_rows(pa.array([file.value_stats.max_values], pa.binary()), types)
    for position, field in enumerate(fields):
        if field.name not in rows.column_names:
            continue
        column = rows.column(field.name)
        stated = file.value_stats.null_counts[position]
        if stated is not None and stated != column.null_count:
            sentence = f"has {column.null_count} nulls in {field.name}; its manifest says {stated}."
            findings.error("wrong_statistics", path, sentence, column=field.name)
        if not _is_outside(column, least[position], greatest[position]):
            continue
        sentence = f"has values of {field.name} outside the bounds in its manifest"
        if file.stats_version != STATS_VERSION and _may_be_wrong(column):
            sentence += "; lakebed does not rely on them, other clients may: run fsck --repair-statistics."
            findings.add("warning", "untrusted_statistics", path, sentence, column=field.name)
        else:
            findings.error("wrong_statistics", path, f"{sentence}.", column=field.name)


def _is_outside(column: pa.ChunkedArray, least: pa.Array, greatest: pa.Array) -> bool:
    """Return whether a value is outside the stated bounds; null bounds nothing, and no bound includes NaN."""
    if not (least[0].is_valid or greatest[0].is_valid):
        return False  # also of a nested column, which has no order
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return True
    below: Any = pc.any(pc.less(column, least.cast(column.type)[0])).as_py()
    above: Any = pc.any(pc.greater(column, greatest.cast(column.type)[0])).as_py()
    return bool(below) or bool(above)


def _may_be_wrong(column: pa.ChunkedArray) -> bool:
    """Return whether old versions and other clients state wrong bounds for the type; `file_stats` ignores them."""
    return bool(pa.types.is_floating(column.type) or pa.types.is_binary(column.type))
