"""The checks of data files: of those of one version together, and of each file alone.

Of a version: in each bucket of a primary-key table, the files of one level above 0 share no key (a few vector
operations, whatever the number of files); its deletion vectors name live files, and with ``deep`` decode and mark rows
that exist.

Of each file, with ``deep``: it decodes, and agrees with its manifest entry: rows, least and greatest key, order of
keys, sequence numbers, deletes, and the bounds and null counts of every column with statistics. Invariants: one file is
in memory at a time; a file or vector is read once, whatever the number of versions. A vector whose file is gone is a
warning: readers ignore it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.fsck.model import Findings
from lakebed.objects.open import place_of
from lakebed.objects.path import is_url
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import ENTRY_SCHEMA, files_of
from lakebed.table.engines.merge import encode_keys
from lakebed.table.files.data_file import open_data_file
from lakebed.table.model.model import STATS_VERSION, DataField, DataFile, Snapshot, TableSchema
from lakebed.table.model.row_kinds import ADD_KINDS, KIND_COLUMN, SEQUENCE_COLUMN
from lakebed.table.read.vectors import load_positions, vectors_of
from lakebed.table.table import Table, branch_of

Seen = set[tuple[str, int]]


def check_runs(live: pa.Table, *, schema: TableSchema, called: str, findings: Findings) -> None:
    """Report files whose key range is reversed, and files of one level above 0 that overlap.

    Args:
        live: the live files of one version (`ENTRY_SCHEMA`).
        schema: names and types of the keys.
        called: the version, for messages.
    """
    if live.num_rows == 0 or not schema.primary_keys:
        return
    types = [field.type for field in schema.key_fields]
    bounds = [decode_rows(live.column(name).combine_chunks(), types) for name in ("min_key", "max_key")]
    low, high = encode_keys(bounds)
    names = live.column("file_name")
    for row in np.flatnonzero(low > high).tolist():
        findings.error("wrong_key_range", names[row].as_py(), f"has its least key above its greatest ({called}).")
    levels = live.column("level").to_numpy()
    partitions = live.column("partition").combine_chunks().dictionary_encode().indices.to_numpy()
    buckets = live.column("bucket").to_numpy()
    order = np.lexsort((low, levels, buckets, partitions))
    group = np.stack([partitions[order], buckets[order], levels[order]])
    is_same_run = (group[:, 1:] == group[:, :-1]).all(axis=0) & (levels[order][1:] > 0)
    overlaps = np.flatnonzero(is_same_run & (low[order][1:] <= high[order][:-1]))
    for position in overlaps.tolist():
        before, after = names[int(order[position])].as_py(), names[int(order[position + 1])].as_py()
        findings.error(
            "overlap",
            after,
            f"overlaps {before}: both are on level {int(levels[order[position]])} of one bucket ({called}).",
        )


def check_vectors(
    branch: TableBranch, snapshot: Snapshot, findings: Findings, *, seen: Seen, listed: Container[str], called: str
) -> None:
    """Check the vectors of a version and report into `findings`.

    Args:
        branch: that reads manifests from the store.
        seen: index files and offsets that were checked with another version; the new ones are added.
        listed: the objects of the table; a missing index file is reported elsewhere.
        called: the version in messages.
    """
    new_vectors = {
        name: place for name, place in vectors_of(branch, snapshot).items() if (place.path, place.offset) not in seen
    }
    if not new_vectors:
        return
    seen.update((place.path, place.offset) for place in new_vectors.values())
    live_entries = branch.manifests.live_entries(snapshot)
    counts = dict(zip(live_entries["file_name"].to_pylist(), live_entries["row_count"].to_pylist(), strict=True))
    for name, place in new_vectors.items():
        if name not in counts:
            findings.add("warning", "stale_vector", place.path, f"marks rows of {name}, which {called} does not have.")
            continue
        if not findings.report.deep or not (is_url(place.path) or place.path in listed):
            continue
        with findings.reading(place.path, needed_by=called):
            positions = load_positions(branch.store, place)
            if len(positions) and int(positions[-1]) >= counts[name]:
                sentence = f"marks row {int(positions[-1]):,} of {name}, which has {counts[name]:,} rows."
                findings.error("wrong_vector", place.path, sentence)
            elif place.cardinality not in (None, len(positions)):
                sentence = f"marks {len(positions):,} rows of {name}; its manifest says {place.cardinality:,}."
                findings.error("wrong_vector", place.path, sentence)


def check_data_files(table: Table, files: pa.Table, findings: Findings) -> None:
    """Read every file and report where it differs from its entry.

    Args:
        files: `ENTRY_SCHEMA` plus ``path``, ``needed_by`` and ``branch``, whose schemas count. Files found missing or
            of another size are skipped: `table.py` has reported them.
    """
    damaged_paths = {finding.path for finding in findings.report.findings if finding.kind in {"missing", "wrong_size"}}
    paths, needers, branches = (files[name].to_pylist() for name in ("path", "needed_by", "branch"))
    lines = {branch: table if branch is None else branch_of(table, branch) for branch in set(branches)}
    data_files = files_of(files.select(ENTRY_SCHEMA.names))
    for path, needed_by, branch, file in zip(paths, needers, branches, data_files, strict=True):
        if path not in damaged_paths:
            with findings.reading(path, needed_by=needed_by):
                _check_file(lines[branch], path, file, findings)
        findings.step(len(paths))


def _check_file(table: Table, path: str, file: DataFile, findings: Findings) -> None:
    schema = table.context.schemas.load(file.schema_id)
    store, name = place_of(table.store, path)
    data_file = open_data_file(store, name, size_bytes=file.file_size)
    rows = data_file.read(columns=data_file.column_names)
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
    stated_bounds = [decode_rows(pa.array([row], pa.binary()), types) for row in (file.min_key, file.max_key)]
    cast_bounds = [
        [bound.cast(column.type) for bound, column in zip(row, columns, strict=True)] for row in stated_bounds
    ]
    codes, low, high = encode_keys([columns, *cast_bounds])
    if not (codes[1:] > codes[:-1]).all():  # their difference may be more than 64 bits hold
        findings.error("unsorted", path, "is not sorted by its key, or has a key twice.")
    elif int(codes[0]) != int(low[0]) or int(codes[-1]) != int(high[0]):
        findings.error("wrong_key_range", path, "has other least or greatest keys than its manifest says.")
    if SEQUENCE_COLUMN in rows.column_names:
        bounds = pc.min_max(rows.column(SEQUENCE_COLUMN)).as_py()
        if (bounds["min"], bounds["max"]) != (file.min_sequence_number, file.max_sequence_number):
            findings.error("wrong_sequence", path, "has other sequence numbers than its manifest says.")
    if KIND_COLUMN in rows.column_names and file.delete_row_count is not None:
        is_kept = pc.is_in(rows.column(KIND_COLUMN), value_set=pa.array(ADD_KINDS, pa.int8()))
        deletes = rows.num_rows - (pc.sum(is_kept).as_py() or 0)
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
    least_values = decode_rows(pa.array([file.value_stats.min_values], pa.binary()), types)
    greatest = decode_rows(pa.array([file.value_stats.max_values], pa.binary()), types)
    for position, field in enumerate(fields):
        if field.name not in rows.column_names:
            continue
        column = rows.column(field.name)
        stated_count = file.value_stats.null_counts[position]
        if stated_count is not None and stated_count != column.null_count:
            sentence = f"has {column.null_count} nulls in {field.name}; its manifest says {stated_count}."
            findings.error("wrong_statistics", path, sentence, column=field.name)
        if not _is_outside(column, least_values[position], greatest[position]):
            continue
        sentence = f"has values of {field.name} outside the bounds in its manifest"
        if file.stats_version != STATS_VERSION and _may_be_wrong(column):
            sentence += "; lakebed does not rely on them, other clients may: run fsck --repair-statistics."
            findings.add("warning", "untrusted_statistics", path, sentence, column=field.name)
        else:
            findings.error("wrong_statistics", path, f"{sentence}.", column=field.name)


def _is_outside(column: pa.ChunkedArray, least_values: pa.Array, greatest: pa.Array) -> bool:
    """Return whether a value is outside the stated bounds; null bounds nothing, and no bound includes NaN."""
    if not (least_values[0].is_valid or greatest[0].is_valid):
        return False  # also of a nested column, which has no order
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return True
    is_below: Any = pc.any(pc.less(column, least_values.cast(column.type)[0])).as_py()
    is_above: Any = pc.any(pc.greater(column, greatest.cast(column.type)[0])).as_py()
    return bool(is_below) or bool(is_above)


def _may_be_wrong(column: pa.ChunkedArray) -> bool:
    """Return whether old versions and other clients state wrong bounds for the type; `file_stats` ignores them."""
    return bool(pa.types.is_floating(column.type) or pa.types.is_binary(column.type))
