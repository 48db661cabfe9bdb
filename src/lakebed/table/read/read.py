"""Splits -> Arrow rows: decoding, schema evolution by field id, merging.

Owns: `ReadPlan` (picklable: all that an executor needs except the store), `read_split` (streaming) and
`read_split_table` (at once).

Invariants:
- A predicate drops rows before a merge only as `early_filters` allows: if it dropped the newest row of a key, an older
  row would reappear. It applies to merged rows in any case.
- A streaming merge holds about `ReadPlan.window_bytes`, independent of the size of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import Corruption
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.roaring import Positions
from lakebed.table.engines.engine import Increments, MergeEngine
from lakebed.table.engines.merge import Codes, encode_keys, group_by_key, is_strictly_increasing
from lakebed.table.engines.registry import engine_of
from lakebed.table.engines.sequence import SequenceOrder, sequence_codes
from lakebed.table.files.data_file import WHOLE_FILE_BYTES_MAX
from lakebed.table.files.splits import sort_into_runs, states_deletes
from lakebed.table.model.model import DataField, DataFile, Split, TableSchema
from lakebed.table.model.predicate import is_small, mask_of, to_arrow
from lakebed.table.model.predicate_tree import Predicate, columns_of
from lakebed.table.model.row_kinds import ADD_KINDS, KIND_COLUMN, SEQUENCE_COLUMN, SYSTEM_COLUMNS
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.scan_pruning import only_on
from lakebed.table.read.source_file import SourceFile, data_path, open_source
from lakebed.table.read.vectors import NO_POSITIONS

BATCH_ROWS = 65_536
"""Most rows of a record batch."""

ONE_SHOT_BYTES_MAX = 96 * 1024 * 1024
"""Encoded bytes up to which `read_split_table` merges a split at once.

That is fastest, and takes about five times this in memory. Larger splits go through the streaming merge.
"""

WINDOW_BYTES = 128 * 1024 * 1024
"""Arrow bytes that a streaming merge reads ahead, in all its runs together."""

POSITION = "\0position"
"""Name of a column with each row's number in its file; no column of a table has this name."""

FILE = "\0file"
"""Name of a column with each file's position in its split; no column of a table has this name."""

ENCODED_TO_ARROW = 4
"""Approximate ratio of a row's size in memory to its size in a file; used only to size windows."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read of every split. Picklable."""

    schema: TableSchema
    """The schema with the names and types of the result."""
    schemas: Mapping[int, TableSchema]
    """The schemas that files were written with, by id."""
    columns: tuple[str, ...]
    """Columns of the result, in order."""
    where: Predicate | None = None
    window_bytes: int = WINDOW_BYTES

    @property
    def fields(self) -> tuple[DataField, ...]:
        """The columns of the result."""
        return self.schema.select_fields(self.columns)

    @property
    def keys(self) -> tuple[DataField, ...]:
        """The sort key of the files of a bucket; empty for append tables."""
        return self.schema.key_fields

    @property
    def engine(self) -> MergeEngine:
        """The merge engine; primary-key tables only."""
        return engine_of(self.schema)

    @property
    def key_part(self) -> Predicate | None:
        """The part of `where` that may be applied before a merge: conjuncts on key columns only."""
        return only_on(self.where, self.schema.primary_keys)

    @property
    def decoded(self) -> tuple[DataField, ...]:
        """The columns of the result and of `where`; at least one, because rows are counted by a column."""
        names = set(self.columns) | (columns_of(self.where) if self.where is not None else set())
        names = names or {self.schema.fields[0].name}
        return tuple(column for column in self.schema.fields if column.name in names)


def read_split(
    store: ObjectStore, split: Split, *, plan: ReadPlan, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Stream the rows of one split.

    Yields:
        Batches with `plan.columns`; merged splits in key order.

    Raises `NotFound`: a file is gone because its version expired; `Corruption`: a file is not readable, or differs from
    its manifest entry. Cost: 1 GET for a small file; for a large one 1 or 2 for the footer and then at least 1 for each
    row group.
    """
    tables = _merge_files(store, split, plan) if split.needs_merge else _plain_stream(store, split, plan, batch_rows)
    for table in tables:
        yield from _finish(table, plan).to_batches(max_chunksize=batch_rows)


def read_split_table(store: ObjectStore, split: Split, *, plan: ReadPlan, threads: bool = False) -> pa.Table:
    """The rows of one split as a table; order within the split is not promised.

    Args and errors as `read_split`; ``threads``: decode columns in parallel (for a caller that reads one split only).
    """
    if not split.needs_merge:
        tables = [_finish(table, plan) for table in _plain_tables(store, split, plan, threads=threads)]
        return pa.concat_tables(tables)
    if sum(file.file_size for file in split.files) <= ONE_SHOT_BYTES_MAX:
        return _finish(_merge_at_once(store, split, plan, threads=threads), plan)
    tables = [_finish(table, plan) for table in _merge_files(store, split, plan)]
    return pa.concat_tables(tables) if tables else arrow_schema(plan.fields).empty_table()


def _finish(table: pa.Table, plan: ReadPlan) -> pa.Table:
    """Apply the predicate to whole rows, then keep the requested columns."""
    if plan.where is not None and table.num_rows:
        table = filter_rows(table, plan.where)
    return table.select(plan.columns)


def filter_rows(table: pa.Table, where: Predicate) -> pa.Table:
    """Rows for which the predicate is true, in their order."""
    if not is_small(where):
        return table.filter(mask_of(where, table))
    from pyarrow import acero  # loads Arrow's whole dataset module

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    condition = acero.Declaration("filter", acero.FilterNodeOptions(to_arrow(where, table.schema)), inputs=[source])
    return condition.to_table(use_threads=False)


# ---- files that need no merge


def _plain_tables(store: ObjectStore, split: Split, plan: ReadPlan, *, threads: bool) -> Iterator[pa.Table]:
    for file in split.files:
        yield _source(store, split, file, plan).table(plan.where, threads=threads)


def _plain_stream(store: ObjectStore, split: Split, plan: ReadPlan, batch_rows: int) -> Iterator[pa.Table]:
    for file in split.files:
        source = _source(store, split, file, plan, window_bytes=plan.window_bytes)
        yield from source.batches(plan.where, batch_rows=batch_rows)


def read_with_positions(store: ObjectStore, split: Split, *, plan: ReadPlan) -> Iterator[tuple[DataFile, pa.Table]]:
    """As `read_split`, for a split that needs no merge: the rows of one file each, with the column `POSITION` last."""
    for file in split.files:
        source = _source(store, split, file, plan, window_bytes=plan.window_bytes)
        groups = source.row_groups(plan.where)
        batches = source.live.batches_with_positions(columns=source.names(), row_groups=groups, batch_rows=BATCH_ROWS)
        for numbers, batch in batches:
            rows = source.adapt(pa.Table.from_batches([batch])).append_column(POSITION, pa.array(numbers))
            yield file, _finish(rows, replace(plan, columns=(*plan.columns, POSITION)))


def _source(
    store: ObjectStore,
    split: Split,
    file: DataFile,
    plan: ReadPlan,
    *,
    fields: Sequence[DataField] | None = None,
    is_whole: bool = False,
    window_bytes: int = WHOLE_FILE_BYTES_MAX,
) -> SourceFile:
    """Open a file for a plan. `fields` None: `plan.decoded`; `is_whole`: all rows of the file are needed."""
    key_part = plan.key_part if plan.schema.primary_keys and not is_whole else None
    fields = plan.decoded if fields is None else fields
    return open_source(
        store, split, file, schemas=plan.schemas, fields=fields, key_part=key_part, window_bytes=window_bytes
    )


def matching_positions(store: ObjectStore, split: Split, *, plan: ReadPlan) -> Iterator[tuple[DataFile, Positions]]:
    """The positions, in each file, of the rows for which the plan's predicate is true. Deleted rows are left out.

    Args:
        split: a split that needs no merge.

    Raises as `read_split`. Cost: as reading the columns of the predicate. Memory: those columns of one row group.
    """
    assert plan.where is not None
    for file in split.files:
        source = _source(store, split, file, plan)
        live_rows, groups = source.live, source.row_groups(plan.where)
        positions = [NO_POSITIONS]
        for group in range(live_rows.row_group_count) if groups is None else sorted(groups):
            rows = source.adapt(live_rows.read(columns=source.names(), row_groups=[group]))
            rows = rows.append_column(POSITION, pa.array(live_rows.positions([group])))
            positions.append(filter_rows(rows, plan.where).column(POSITION).to_numpy())
        yield file, np.concatenate(positions)


# ---- merging at once


def _merge_at_once(
    store: ObjectStore, split: Split, plan: ReadPlan, *, threads: bool, with_sequences: bool = False
) -> pa.Table:
    """Decode all runs and merge them. Where the engine keeps rows unchanged, each run keeps its own order."""
    runs = sort_into_runs(split.files, schema=plan.schema)
    engine = plan.engine
    with_sequences = with_sequences or engine.order is not None or not _are_in_sequence(runs)
    system = SYSTEM_COLUMNS if with_sequences else (KIND_COLUMN,)
    fields = _with_keys(plan)
    tables = []
    filters = early_filters(runs, where=plan.where, key_part=plan.key_part, engine=engine)
    for run, where in zip(runs, filters, strict=True):
        parts = []
        for file in run:
            source = _source(store, split, file, plan, fields=fields)
            rows = source.table(where, *system, threads=threads)
            parts.append(rows if where is None else filter_rows(rows, where))
        tables.append(pa.concat_tables(parts))
    names = [key.name for key in plan.keys]
    codes = encode_keys([[table.column(name) for name in names] for table in tables])
    is_repeated = False
    for run, run_codes in zip(runs, codes, strict=True):
        if is_strictly_increasing(run_codes):
            continue
        _check_sorted(run_codes, path=data_path(split, run[0]) if len(run) == 1 else split.folder)
        if not with_sequences:
            # A key occurs twice in a file, so sequence numbers are needed to order its rows.
            return _merge_at_once(store, split, plan, threads=threads, with_sequences=True)
        is_repeated = True
    sequences = sequences_of(tables, engine.order) if with_sequences else None
    masks = None if is_repeated else engine.survivors(codes, sequences=sequences)
    if masks is None:
        key_groups = group_by_key(codes, sequences=sequences)
        tables, masks = [engine.merge(pa.concat_tables(tables).combine_chunks(), key_groups)], [None]
    merged_tables = []
    for table, mask in zip(tables, masks, strict=True):
        mask = _without_deletes(_numbers(table, KIND_COLUMN), mask)
        table = table.drop_columns(list(system))
        merged_tables.append(table if mask is None else table.filter(pa.array(mask)))
    return pa.concat_tables(merged_tables)


def _are_in_sequence(runs: Sequence[Sequence[DataFile]]) -> bool:
    """Whether the sequence numbers of every run are above those of all earlier runs; then they need not be read."""
    highest = -1
    for run in runs:
        if min(file.min_sequence_number for file in run) <= highest:
            return False
        highest = max(file.max_sequence_number for file in run)
    return True


def _check_sorted(codes: Codes, *, path: str) -> None:
    """Raise for a file whose keys descend. Equal keys are allowed: some writers do not deduplicate a batch."""
    if not bool(np.all(codes[1:] >= codes[:-1])):
        raise Corruption(
            f"The rows of {path} are not sorted by key, as the rows of a data file must be, so they cannot be merged.",
            path=path,
        )


def _without_deletes(kinds: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    if not kinds.any():
        return mask
    exists = np.isin(kinds, ADD_KINDS)
    return exists if mask is None else mask & exists


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = table.column(name).to_numpy()
    return numbers


def sequences_of(tables: Sequence[pa.Table], order: SequenceOrder | None) -> list[npt.NDArray[np.int64]]:
    """A number for each row: greater for later rows of a key, and comparable over all tables."""
    numbers = [_numbers(table, SEQUENCE_COLUMN) for table in tables]
    if order is None:
        return numbers
    columns = [[table.column(name) for name in order.columns] for table in tables]
    return sequence_codes(list(zip(columns, numbers, strict=True)), order=order)


def _with_keys(plan: ReadPlan) -> tuple[DataField, ...]:
    """The columns that a merge decodes: those of the result, and those that the merge engine needs."""
    engine, names = plan.engine, {column.name for column in (*plan.decoded, *plan.keys)}
    names |= engine.columns(frozenset(names))
    names.update(engine.order.columns if engine.order is not None else ())
    return tuple(column for column in plan.schema.fields if column.name in names)


# ---- merging in windows


def _merge_files(store: ObjectStore, split: Split, plan: ReadPlan) -> Iterator[pa.Table]:
    names = [column.name for column in plan.decoded]
    for window in merge_windows(store, split, plan=plan, fields=_with_keys(plan), filters=True):
        yield window.select(names)


@dataclass(slots=True)
class Cursor:
    """A stream of rows sorted by key: the rows that were read and not used yet, and the parts still to come."""

    batches: Iterator[tuple[str, pa.Table]]
    """The parts to come, each with the path of its file."""
    rows: pa.Table
    path: str = ""
    """Path of the file that was read last."""
    wants_more: bool = True
    """All of `rows` have one key, and the next part may have more rows of it."""
    is_last: bool = False
    """No part follows `rows`."""

    def fill(self) -> None:
        """Read the next part that is not empty, if `wants_more`."""
        while self.wants_more and not self.is_last:
            next_batch = next(self.batches, None)
            if next_batch is None:
                self.is_last = True
                continue
            self.path, table = next_batch
            if table.num_rows:
                self.rows = pa.concat_tables([self.rows, table]) if self.rows.num_rows else table
                self.wants_more = False

    def cut(self, end: int, *, wants_more: bool) -> pa.Table:
        """Take the first `end` rows out."""
        head, rest = self.rows.slice(0, end), self.rows.slice(end)
        if wants_more and rest.num_rows:
            # Copy the rest, usually one row, so that the rest of its part can be freed.
            rest = rest.take(pa.array(np.arange(rest.num_rows)))
        self.rows, self.wants_more = rest, wants_more
        return head


def merge_windows(
    store: ObjectStore,
    split: Split,
    *,
    plan: ReadPlan,
    fields: Sequence[DataField],
    keep_deletes: bool = False,
    filters: bool = False,
) -> Iterator[pa.Table]:
    """Merge the runs of a split in bounded memory.

    Each step reads ahead in every run. It merges all rows below the least of the runs' last keys: no run has an unread
    row below that key. A run may have more rows with that very key, if its writer did not deduplicate.

    Args:
        split: files in merge order.
        plan: schemas, the window's size, and the predicate, of which the part on keys applies.
        fields: columns to decode; must contain the keys and what the merge engine needs (`MergeEngine.columns`, and
            the columns of its order).
        keep_deletes: keep the rows that delete a key (for a compaction below which older rows remain).
        filters: apply what `early_filters` allows of the whole predicate. The caller filters merged rows.

    Yields:
        Tables of `fields` and `SEQUENCE_COLUMN`, `KIND_COLUMN`: each key once over all tables, in key order.
    """
    runs = sort_into_runs(split.files, schema=plan.schema)
    per_run_bytes = max(1, plan.window_bytes // len(runs))
    engine = plan.engine
    conditions = [plan.key_part] * len(runs)
    if filters:
        conditions = early_filters(runs, where=plan.where, key_part=plan.key_part, engine=engine)
    cursors = [
        run_cursor(store, split, run, plan=plan, fields=fields, window_bytes=per_run_bytes, where=where)
        for run, where in zip(runs, conditions, strict=True)
    ]
    names = [key.name for key in plan.keys]
    while True:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if cursor.rows.num_rows]
        if not cursors:
            return
        window = _next_window(cursors, names, engine)
        if window is None:
            continue
        window = window if keep_deletes else without_deletes(window)
        if window.num_rows:
            yield window


def read_unmerged(
    store: ObjectStore, split: Split, *, plan: ReadPlan, fields: Sequence[DataField]
) -> Iterator[pa.Table]:
    """The rows of a split as its files hold them, one file after the other, with `SYSTEM_COLUMNS` last.

    The part on keys of the plan's predicate applies.
    """
    cursor = run_cursor(
        store, split, split.files, plan=plan, fields=fields, window_bytes=plan.window_bytes, where=plan.key_part
    )
    for _, rows in cursor.batches:
        yield rows


def without_deletes(rows: pa.Table) -> pa.Table:
    """Merged rows with `KIND_COLUMN`, without the rows that delete their key."""
    mask = _without_deletes(_numbers(rows, KIND_COLUMN), None)
    return rows if mask is None else rows.filter(pa.array(mask))


def cut_complete(cursors: Sequence[Cursor], keys: Sequence[str]) -> list[tuple[pa.Table, Codes]]:
    """From each filled cursor, take the rows below the least key that may have more rows.

    Return them and their codes.
    """
    codes = encode_keys([[cursor.rows.column(key) for key in keys] for cursor in cursors])
    bound = min((run[-1] for run, cursor in zip(codes, cursors, strict=True) if not cursor.is_last), default=None)
    heads = []
    for cursor, run in zip(cursors, codes, strict=True):
        if not is_strictly_increasing(run):
            _check_sorted(run, path=cursor.path)
        end = len(run) if bound is None else int(np.searchsorted(run, bound, side="left"))
        is_bound = bound is not None and len(run) > 0 and run[-1] == bound
        heads.append((cursor.cut(end, wants_more=is_bound), run[:end]))
    return heads


def _next_window(cursors: Sequence[Cursor], keys: Sequence[str], engine: MergeEngine) -> pa.Table | None:
    """Merge the complete rows of every cursor and leave the rest in the cursors; None if no row is complete."""
    parts = [(head, codes) for head, codes in cut_complete(cursors, keys) if head.num_rows]
    if not parts:
        return None
    heads, head_codes = [head for head, _ in parts], [codes for _, codes in parts]
    if len(heads) == 1 and is_strictly_increasing(head_codes[0]):
        return heads[0].combine_chunks()
    groups = group_by_key(head_codes, sequences=sequences_of(heads, engine.order))
    return engine.merge(pa.concat_tables(heads).combine_chunks(), groups)


def run_cursor(
    store: ObjectStore,
    split: Split,
    run: Sequence[DataFile],
    *,
    plan: ReadPlan,
    fields: Sequence[DataField],
    window_bytes: int,
    where: Predicate | None = None,
    numbered: bool = False,
) -> Cursor:
    """A stream of the rows of a sorted run that are not deleted.

    Args:
        split: the split that `run` belongs to.
        plan: schemas; and if `where` is not None, the part on keys of its predicate.
        fields: columns to decode; `SYSTEM_COLUMNS` follow.
        window_bytes: approximate Arrow bytes to read ahead.
        where: only rows for which it is true; it implies the part on keys of the plan's predicate.
        numbered: add the columns `FILE` and `POSITION`; then `where` is None.
    """
    numbers = {file.file_name: number for number, file in enumerate(split.files)} if numbered else {}

    def batches() -> Iterator[tuple[str, pa.Table]]:
        for file in run:
            path = data_path(split, file)
            row_bytes = max(1, file.file_size * ENCODED_TO_ARROW // max(1, file.row_count))
            batch_rows = max(1, min(1_000_000, window_bytes // row_bytes))
            if numbered:
                source = _source(store, split, file, plan, fields=fields, is_whole=True, window_bytes=window_bytes)
                columns = source.names(*SYSTEM_COLUMNS)
                for positions, batch in source.live.batches_with_positions(columns=columns, batch_rows=batch_rows):
                    rows = source.adapt(pa.Table.from_batches([batch]), *SYSTEM_COLUMNS)
                    of_file = pa.array(np.full(len(positions), numbers[file.file_name]))
                    yield path, rows.append_column(FILE, of_file).append_column(POSITION, pa.array(positions))
                continue
            source = _source(store, split, file, plan, fields=fields, is_whole=where is None, window_bytes=window_bytes)
            for rows in source.batches(where, *SYSTEM_COLUMNS, batch_rows=batch_rows):
                yield path, rows if where is None else filter_rows(rows, where)

    return Cursor(batches=batches(), rows=arrow_schema(fields).empty_table())


def newest_survives(engine: MergeEngine) -> bool:
    """Whether the row of a key is its newest one, unchanged."""
    return engine.increments is Increments.CURRENT


def early_filters(
    runs: Sequence[Sequence[DataFile]], *, where: Predicate | None, key_part: Predicate | None, engine: MergeEngine
) -> list[Predicate | None]:
    """For each run of a merge, oldest first, the predicate by which its rows may be filtered before the merge.

    A filter on key columns alone treats all rows of a key alike, so it applies to every run. Any other filter may drop
    a row only if no older row of its key remains: that one would reappear. So where the newest row of a key survives
    unchanged, the whole filter applies to the oldest run. Runs are compared by their sequence numbers; where these
    overlap, neither run is the older one.

    Args:
        where: the predicate on merged rows.
        key_part: the part of it on key columns alone.
    """
    filters = [key_part] * len(runs)
    if where is None or not newest_survives(engine):
        return filters
    oldest = runs[0]
    newer = [file.min_sequence_number for run in runs[1:] for file in run]
    is_older = not newer or max(file.max_sequence_number for file in oldest) < min(newer)
    # A level-0 file of another client may have a key twice, and so contain an older row of it.
    if is_older and all(map(states_deletes, oldest)):
        filters[0] = where
    return filters
