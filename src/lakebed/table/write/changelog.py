"""Writing changelog files: their settings, and the changes that a compaction makes visible.

Owns: `changelog_settings` and `log_rewrite`. `write` logs rows as they are written; `incremental` reads changelogs.

Invariants:
- A changelog file is a data file of its table in every other respect: same folder, same columns, sorted by key. A key
  may be in it several times; its rows are then in the order in which they happened, -U directly before +U.
- A snapshot names its changelog files in a separate list. They belong to no version of the table's rows, so they live
  as long as their snapshot, or a tag or branch that holds it.
- The changelogs of compactions, applied one after the other, give exactly the rows of the highest level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lakebed.objects.port import ObjectStore
from lakebed.table.engines.merge import encode_keys
from lakebed.table.files.data_file import FileSettings, RollingWriter, cast_stored
from lakebed.table.model.model import DataFile, Split, TableSchema
from lakebed.table.model.options import CHANGELOG_FILE_PREFIX, TableOptions
from lakebed.table.model.row_kinds import (
    DELETE_KIND,
    INSERT_KIND,
    KIND_COLUMN,
    SEQUENCE_COLUMN,
    UPDATE_AFTER_KIND,
    UPDATE_BEFORE_KIND,
)
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import Cursor, ReadPlan, cut_complete, merge_windows
from lakebed.table.read.row_diff import diff_keyed


def changelog_settings(settings: FileSettings, schema: TableSchema) -> FileSettings:
    """The settings of changelog files, given those of data files."""
    return replace(settings, prefix=TableOptions(schema.options).get(CHANGELOG_FILE_PREFIX))


def log_rewrite(
    writer: RollingWriter,
    store: ObjectStore,
    split: Split,
    *,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
    plan: ReadPlan,
) -> list[DataFile]:
    """Write how the rows of some files of a bucket differ from those of the files that replace them.

    Args:
        writer: writes changelog files.
        split: a split of the bucket.
        before, after: the files; each side is merged.
        plan: schemas and the window's size.

    Returns: the files; none without a difference. Cost: reads both sides. Memory: two windows of `plan`.
    """
    schema = plan.schema
    names = schema.trimmed_primary_keys
    values = [field for field in schema.fields if field.name not in schema.primary_keys]
    plan = replace(plan, where=None, window_bytes=max(1, plan.window_bytes // 2))

    no_rows = _window_schema(schema).empty_table()

    def batches_of(files: Sequence[DataFile]) -> Iterator[tuple[str, pa.Table]]:
        if files:
            side = replace(split, files=tuple(files), needs_merge=True)
            for window in merge_windows(store, side, plan=plan, fields=schema.fields):
                yield split.folder, cast_stored(window, no_rows.schema)

    cursors = [Cursor(batches=batches_of(files), rows=no_rows) for files in (before, after)]
    while True:
        for cursor in cursors:
            cursor.fill()
        if not any(cursor.rows.num_rows for cursor in cursors):
            return writer.close()
        (old, _), (new, _) = cut_complete(cursors, names)
        if old.num_rows or new.num_rows:
            changes = _in_key_order(*diff_keyed(old, new, names, values), keys=names)
            if changes.num_rows:
                writer.write(changes)


def _window_schema(schema: TableSchema) -> pa.Schema:
    values = [field.with_nullable(True) for field in arrow_schema(schema.fields)]
    return pa.schema([*values, (SEQUENCE_COLUMN, pa.int64()), (KIND_COLUMN, pa.int8())])


def _in_key_order(
    added_rows: pa.Table, removed_rows: pa.Table, was: pa.Table, now: pa.Table, *, keys: Sequence[str]
) -> pa.Table:
    """The rows of a difference with their kinds, by key. For a changed row, the row before the change comes first."""
    parts = (
        (removed_rows, DELETE_KIND),
        (was, UPDATE_BEFORE_KIND),
        (now, UPDATE_AFTER_KIND),
        (added_rows, INSERT_KIND),
    )
    rows = pa.concat_tables([_of_kind(rows, kind) for rows, kind in parts])
    (codes,) = encode_keys([[rows.column(key) for key in keys]])
    return rows.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()


def _of_kind(rows: pa.Table, kind: int) -> pa.Table:
    position = rows.schema.get_field_index(KIND_COLUMN)
    return rows.set_column(position, rows.schema.field(position), pa.array(np.full(rows.num_rows, kind, np.int8)))
