"""Units of reading changes: what one task reads of one bucket, as rows with their kinds.

Owns: `Inserted`, `Written`, `Logged` and `Replaced`. Invariants: a unit is data, can be pickled, and names every file
that it reads. The units of a range of snapshots can be read anywhere and in any order. A key is in one unit of a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.table.engines.merge import encode_keys, group_by_key
from lakebed.table.files.splits import merge_rank
from lakebed.table.model.model import DataFile, Split, TableSchema
from lakebed.table.model.row_kinds import (
    ADD_KINDS,
    DELETE_KIND,
    INSERT_KIND,
    KIND_COLUMN,
    SYSTEM_COLUMNS,
    UPDATE_AFTER_KIND,
    UPDATE_BEFORE_KIND,
)
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import ONE_SHOT_BYTES_MAX, ReadPlan, merge_windows, read_split, read_unmerged, sequences_of
from lakebed.table.read.row_diff import diff_buckets, diff_splits

ROW_KIND_COLUMN = "_row_kind"
ROW_KINDS = ("+I", "-U", "+U", "-D")
"""Names of row kinds; each is at the index that is its number in data files."""


def kind_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a table and `ROW_KIND_COLUMN`. A deleted row has only its key, so other columns may be null.

    Raises `InvalidRequest`: the table has a column of this name.
    """
    if schema.field_by_name(ROW_KIND_COLUMN) is not None:
        raise InvalidRequest(
            f"This version has a column {ROW_KIND_COLUMN!r}, the name under which changes show what happened to a row: "
            "rename the column, and read changes up to a version that is written after that.",
            kind="unsupported_changes",
            column=ROW_KIND_COLUMN,
        )
    kind = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)
    keys = schema.primary_keys
    values = [field.with_nullable(field.name not in keys) if keys else field for field in arrow_schema(schema.fields)]
    return pa.schema([*values, kind])


class ChangeUnit(Protocol):
    """A unit of reading changes."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits that it reads."""

    def rows(self, store: ObjectStore, plan: ReadPlan) -> Iterator[pa.Table]:
        """Read the rows, with the columns of `kind_schema`.

        Args:
            plan: its columns are all columns of its schema, and it has no predicate.
        """


@dataclass(frozen=True, slots=True)
class Inserted:
    """Rows that are all new: from an append table, or from a version with which a reader begins."""

    split: Split

    @property
    def splits(self) -> tuple[Split, ...]:
        """See `ChangeUnit`."""
        return (self.split,)

    def rows(self, store: ObjectStore, plan: ReadPlan) -> Iterator[pa.Table]:
        """See `ChangeUnit`."""
        for batch in read_split(store, self.split, plan=plan):
            yield _of_kind(pa.Table.from_batches([batch]), "+I", plan.schema)


@dataclass(frozen=True, slots=True)
class Written:
    """Rows that some snapshots wrote to a bucket of a primary-key table: one a key, ``+I``, ``+U`` or ``-D``."""

    generations: tuple[Split, ...]
    """Oldest first.

    Row numbers of a bucket begin again from 0 after it was emptied, and from the number after the remaining rows after
    a compaction took away its newest rows. Each time a new generation begins, whose rows are newer than all rows
    before.
    """
    at_end: tuple[Split, ...] = ()
    """Sections of the bucket after these snapshots. A written row that lost to one of their rows is left out."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """See `ChangeUnit`."""
        return (*self.generations, *self.at_end)

    def rows(self, store: ObjectStore, plan: ReadPlan) -> Iterator[pa.Table]:
        """See `ChangeUnit`. Memory: windows; of several generations all rows."""
        schema = kind_schema(plan.schema)
        parts = [_merge_files(store, split, plan) for split in self.generations]
        if self.at_end:
            # Each generation by itself: if a compaction took away the rows with the greatest numbers, numbers begin
            # again too, and the table's row of a key may be of the older generation.
            parts = [_without_outdated(store, part, self.at_end, plan) for part in parts]
        windows = parts[0] if len(parts) == 1 else _newest_of([list(part) for part in parts], plan)
        for window in windows:
            yield _with_kinds(window, schema)


def generations(split: Split, ages: Mapping[str, int]) -> tuple[Split, ...]:
    """Split the files where their bucket's row numbers begin again.

    Args:
        ages: by name of the file, the position of the snapshot that wrote it.
    """
    by_age = sorted(split.files, key=lambda file: ages[file.file_name])
    parts: list[list[DataFile]] = []
    greatest = -1
    for _, group in groupby(by_age, key=lambda file: ages[file.file_name]):
        files = list(group)
        if not parts or min(file.min_sequence_number for file in files) <= greatest:
            parts.append([])
            greatest = -1
        parts[-1] += files
        greatest = max(greatest, *(file.max_sequence_number for file in files))
    return tuple(replace(split, files=tuple(part)) for part in parts)


def _merge_files(store: ObjectStore, split: Split, plan: ReadPlan) -> Iterable[pa.Table]:
    ordered_split = replace(split, files=tuple(sorted(split.files, key=merge_rank)), needs_merge=True)
    return merge_windows(store, ordered_split, plan=plan, fields=plan.schema.fields, keep_deletes=True)


def _newest_of(written: Sequence[Sequence[pa.Table]], plan: ReadPlan) -> Iterator[pa.Table]:
    """The newest row of each key in several generations, which are given oldest first; in key order."""
    every = pa.concat_tables([window for windows in written for window in windows])
    (codes,) = encode_keys([[every.column(key.name) for key in plan.keys]])
    last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    yield every.take(pa.array(last))


Told = Literal["every", "net", "net-exact"]
"""Which rows of changelog files are returned.

- "every": all of them.
- "net": the net change of each key, where a deleted row may have existed before.
- "net-exact": the net change, where the files contain every row since the table was empty.
"""


@dataclass(frozen=True, slots=True)
class Logged:
    """Rows of the changelog files of one bucket."""

    logs: tuple[Split, ...]
    """One for each snapshot, oldest first; their files are in reading order."""
    told: Told = "every"

    @property
    def splits(self) -> tuple[Split, ...]:
        """See `ChangeUnit`."""
        return self.logs

    def rows(self, store: ObjectStore, plan: ReadPlan) -> Iterator[pa.Table]:
        """See `ChangeUnit`. Memory: a window; for net changes all rows."""
        schema = kind_schema(plan.schema)
        fields = plan.schema.fields
        windows = (rows for split in self.logs for rows in read_unmerged(store, split, plan=plan, fields=fields))
        parts = windows if self.told == "every" else _net(list(windows), plan, is_exact=self.told == "net-exact")
        for window in parts:
            yield _with_kinds(window, schema)


def _with_kinds(window: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the names of their kinds instead of their system columns."""
    kinds = pa.array(ROW_KINDS).take(window.column(KIND_COLUMN).combine_chunks())
    return pa.table([*window.drop_columns(list(SYSTEM_COLUMNS)).columns, kinds], schema=schema)


def _net(windows: Sequence[pa.Table], plan: ReadPlan, *, is_exact: bool) -> list[pa.Table]:
    """The net effect of changes, in key order: for each key at most the row that it had, and the row that it has."""
    if not windows:
        return []
    rows = pa.concat_tables(windows).combine_chunks()
    groups = group_by_key(encode_keys([[rows.column(key.name) for key in plan.keys]]))
    kinds = rows.column(KIND_COLUMN).to_numpy()
    last, first = groups.last, groups.order[np.concatenate([[True], groups.is_last[:-1]])]
    was_there = ~np.isin(kinds[first], ADD_KINDS)
    is_there = np.isin(kinds[last], ADD_KINDS)
    is_gone = ~is_there & (was_there | (not is_exact))
    before = np.where(was_there, first, last)
    has_before = (was_there & is_there) | is_gone
    had_kinds = np.where(is_gone, DELETE_KIND, UPDATE_BEFORE_KIND)
    has_kinds = np.where(was_there, UPDATE_AFTER_KIND, np.where(is_exact, INSERT_KIND, kinds[first]))
    positions = np.stack([before, last], axis=1).ravel()
    mask = np.stack([has_before, is_there], axis=1).ravel()
    new_kinds = np.stack([had_kinds, has_kinds], axis=1).ravel().astype(np.int8)
    changes = rows.take(pa.array(positions[mask]))
    position = changes.schema.get_field_index(KIND_COLUMN)
    return [changes.set_column(position, changes.schema.field(position), pa.array(new_kinds[mask]))]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The difference between the rows of two sets of splits: ``-D``, ``+I``, for a changed row ``-U`` and ``+U``."""

    before: tuple[Split, ...]
    after: tuple[Split, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        """See `ChangeUnit`."""
        return (*self.before, *self.after)

    def rows(self, store: ObjectStore, plan: ReadPlan) -> Iterator[pa.Table]:
        """See `ChangeUnit`."""
        if plan.schema.primary_keys:
            differing = diff_buckets(store, self.before, self.after, plan=plan, at_once_bytes_max=ONE_SHOT_BYTES_MAX)
        else:
            differing = diff_splits(store, self.before, self.after, plan=plan, keys=())
        for added, removed, old_rows, new_rows in differing:
            for rows, kind in ((removed, "-D"), (old_rows, "-U"), (new_rows, "+U"), (added, "+I")):
                if rows.num_rows:
                    yield _of_kind(rows, kind, plan.schema)


def _of_kind(rows: pa.Table, kind: str, schema: TableSchema) -> pa.Table:
    kinds = pa.repeat(pa.scalar(kind), rows.num_rows)
    return pa.table([*rows.columns, kinds], schema=kind_schema(schema))


def _without_outdated(
    store: ObjectStore, windows: Iterable[pa.Table], at_end: Sequence[Split], plan: ReadPlan
) -> Iterator[pa.Table]:
    """Written rows, each key once in key order, without those that lost to a row or delete of the table."""
    rows = pa.concat_tables(list(windows))
    engine, keys = plan.engine, [key.name for key in plan.keys]
    ordering = engine.order.columns if engine.order is not None else ()
    fields = [field for field in plan.schema.fields if field.name in (*keys, *ordering)]
    is_current = np.ones(rows.num_rows, np.bool_)
    for split in at_end:
        for window in merge_windows(store, split, plan=plan, fields=fields, keep_deletes=True):
            runs = (rows, window)
            row_keys, window_keys = encode_keys([[table.column(key) for key in keys] for table in runs])
            row_ages, window_ages = sequences_of(runs, engine.order)
            place = np.minimum(np.searchsorted(row_keys, window_keys), len(row_keys) - 1)
            has_won = (row_keys[place] == window_keys) & engine.wins(window_ages, row_ages[place])
            is_current[place[has_won]] = False
    yield rows.filter(pa.array(is_current))
