"""What changed between two versions: the rows that were written, or the rows that differ.

Owns: `changes` with `read_changes` (from the deltas of the snapshots in between), and `diff` with `diff_scans` (from
the two end states). Both read only files that one of the ends does not share with the other.

Invariants:
- `read_changes` covers ``(start, end]`` and looks at APPEND snapshots only: compactions change no row, and what an
  overwrite or a rollback took away is not in it. `diff_scans` is exact whatever happened in between.
- Rows come with the columns of the newer version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import HTML_ROWS_MAX
from lakebed.table.binary_row import encode_rows
from lakebed.table.context import TableBranch
from lakebed.table.data_file import KIND_COLUMN, SYSTEM_COLUMNS
from lakebed.table.engines.engine import Increments
from lakebed.table.engines.registry import engine_name, engine_of
from lakebed.table.layout import Layout
from lakebed.table.manifest import ADD, ENTRY_SCHEMA
from lakebed.table.merge import encode_keys, is_strictly_increasing
from lakebed.table.model import DataField, Snapshot, Split, TableSchema
from lakebed.table.read import (
    ONE_SHOT_BYTES_MAX,
    Cursor,
    ReadPlan,
    cut_complete,
    merged_windows,
    read_split,
    read_split_table,
    sequences_of,
)
from lakebed.table.scan import Scan, scan_snapshot
from lakebed.table.schema import require_column
from lakebed.table.splits import in_key_order, merge_rank, plan_splits, touching
from lakebed.table.travel import resolve
from lakebed.table.types import arrow_schema, parse_type
from lakebed.texts import html_table

ROW_KIND_COLUMN = "_row_kind"
ROW_KINDS = ("+I", "-U", "+U", "-D")
"""Names of row kinds, at the position of their number in data files."""

Positions = npt.NDArray[np.int64]


def changes(branch: TableBranch, start: int | str | None, newest: int | str | None) -> pa.Table:
    """Rows written by the snapshots after version `start` (None: from the first) up to `newest`; see `read_changes`.

    Raises `NotFound`: no such version, or snapshots in between have expired; `InvalidRequest`: `start` is newer than
    `newest`.
    """
    first = 1 if start is None else resolve(branch, version=start).snapshot.id + 1
    end = resolve(branch, version=newest).snapshot
    if first > end.id + 1:
        raise InvalidRequest(f"Changes go from an older to a newer version; {first - 1} is newer than {end.id}.")
    ids = [snapshot_id for snapshot_id in branch.snapshots.ids() if first <= snapshot_id <= end.id]
    earliest = branch.snapshots.earliest()
    if first <= end.id and (earliest is None or first < earliest.id):
        oldest = "none is left" if earliest is None else f"the oldest left is {earliest.id}"
        raise NotFound(
            f"Changes after snapshot {first - 1} need every snapshot since, but {oldest}; compare the two versions "
            "with diff, which needs only both ends.",
            kind="snapshot_expired",
        )
    return read_changes(branch, branch.snapshots.walk(ids), end=end)


def diff(
    branch: TableBranch, start: int | str, end: int | str | None, *, keys: Sequence[str] | None = None
) -> TableDiff:
    """Rows added, removed and changed from one version to another (None: the newest); see `diff_scans`."""
    before, after = _with_same_columns(branch, start, end)
    return diff_scans(branch.store, start=before, end=after, layout=branch.layout, keys=keys)


def plan_diff(
    branch: TableBranch, start: int | str, end: int | str | None
) -> tuple[list[Split], list[Split], ReadPlan]:
    """What `diff` would read of each version, for engines that distribute the work; see `plan_scans_diff`."""
    before, after = _with_same_columns(branch, start, end)
    return plan_scans_diff(before, after, layout=branch.layout)


def _with_same_columns(branch: TableBranch, start: int | str, end: int | str | None) -> tuple[Scan, Scan]:
    """Scans of two versions with the columns of the second."""
    before, after = (resolve(branch, version=version).snapshot for version in (start, end))
    return (
        scan_snapshot(branch, before, schema_id=after.schema_id),
        scan_snapshot(branch, after, schema_id=after.schema_id),
    )


def read_changes(branch: TableBranch, snapshots: Iterable[Snapshot], *, end: Snapshot) -> pa.Table:
    """The rows that some snapshots wrote.

    Args:
        snapshots: those of ``(start, end]`` that exist.
        end: the last of them, whose columns are returned.

    Returns:
        Append tables: every row appended, with the table's columns. Primary-key tables: the rows written, merged to
        one a key, with `ROW_KIND_COLUMN` as last column: ``+I`` or ``+U`` for a row that is there, ``-D`` for a
        deletion. Where the merge engine asks for it (`Increments.COMPARED`), a row that lost to another row of the
        table is left out.

    Raises `InvalidRequest`: the merge engine cannot tell the table's rows from the rows written. Cost: the delta
    manifests and the delta files, whatever the size of the table; with `Increments.COMPARED` also the files of the last
    snapshot whose keys touch theirs.
    """
    schema, store = branch.schemas.load(end.schema_id), branch.store
    entries = [branch.manifests.delta_entries(snapshot) for snapshot in snapshots if snapshot.commit_kind == "APPEND"]
    whole = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *entries])
    added = whole.filter(pc.equal(whole.column("kind"), ADD))
    keyed = bool(schema.primary_keys)
    splits = plan_splits(added, schema=schema, layout=branch.layout, target_bytes=2**62, open_cost_bytes=0)
    increments = engine_of(schema).increments if keyed else Increments.CURRENT
    if increments is Increments.UNKNOWN:
        raise InvalidRequest(
            f"The table merges rows by the engine {engine_name(schema.options)!r}, whose rows also "
            "depend on rows written earlier, so written rows are not its changes; compare the two versions with diff.",
            kind="unsupported_changes",
        )
    is_compared = increments is Increments.COMPARED
    end_entries = branch.manifests.live_entries(end) if is_compared else ENTRY_SCHEMA.empty_table()
    ends = _splits_by_bucket(end_entries, schema, branch.layout)
    ids = {id_ for entries in (added, end_entries) for id_ in entries.column("schema_id").unique().to_pylist()}
    plan = ReadPlan(
        schema=schema,
        schemas={schema_id: branch.schemas.load(schema_id) for schema_id in sorted(ids | {schema.id})},
        columns=tuple(field.name for field in schema.fields),
    )
    if not keyed:
        tables = [read_split_table(store, split, plan=plan) for split in splits]
        return pa.concat_tables([arrow_schema(schema.fields).empty_table(), *tables])
    kind = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)
    values = [field.with_nullable(field.name not in schema.primary_keys) for field in arrow_schema(schema.fields)]
    tables = [pa.schema([*values, kind]).empty_table()]
    for split in splits:
        ordered = replace(split, files=tuple(sorted(split.files, key=merge_rank)), needs_merge=True)
        windows = merged_windows(store, ordered, plan=plan, fields=schema.fields, keep_deletes=True)
        at_end = ends.get((split.partition, split.bucket), ())
        if at_end:
            windows = _without_outdated(store, windows, touching(at_end, split.files, schema=schema), plan)
        for window in windows:
            kinds = pa.array(ROW_KINDS).take(window.column(KIND_COLUMN).combine_chunks())
            rows = window.drop_columns(list(SYSTEM_COLUMNS)).append_column(kind, kinds)
            tables.append(pa.table(rows.columns, schema=tables[0].schema))
    return pa.concat_tables(tables)


def _splits_by_bucket(entries: pa.Table, schema: TableSchema, layout: Layout) -> dict[tuple[bytes, int], list[Split]]:
    """The smallest units of reading of each bucket."""
    buckets: dict[tuple[bytes, int], list[Split]] = {}
    for split in plan_splits(entries, schema=schema, layout=layout, target_bytes=0, open_cost_bytes=1):
        buckets.setdefault((split.partition, split.bucket), []).append(split)
    return buckets


def _without_outdated(
    store: ObjectStore, windows: Iterable[pa.Table], at_end: Sequence[Split], plan: ReadPlan
) -> Iterator[pa.Table]:
    """Written rows, each key once in key order, without those that lost to a row or delete of the table."""
    rows = pa.concat_tables(list(windows)) if at_end else None
    if rows is None:
        yield from windows
        return
    engine, keys = plan.engine, [key.name for key in plan.keys]
    ordering = engine.order.columns if engine.order is not None else ()
    fields = [field for field in plan.schema.fields if field.name in (*keys, *ordering)]
    is_current = np.ones(rows.num_rows, np.bool_)
    for split in at_end:
        for window in merged_windows(store, split, plan=plan, fields=fields, keep_deletes=True):
            both = (rows, window)
            ours, theirs = encode_keys([[table.column(key) for key in keys] for table in both])
            own_age, their_age = sequences_of(both, engine.order)
            place = np.minimum(np.searchsorted(ours, theirs), len(ours) - 1)
            has_won = (ours[place] == theirs) & engine.wins(their_age, own_age[place])
            is_current[place[has_won]] = False
    yield rows.filter(pa.array(is_current))


@dataclass(frozen=True, slots=True)
class TableDiff:
    """Row-level difference of two versions; every table has the newer version's columns."""

    keys: tuple[str, ...]
    """What identified rows; empty: whole rows, so nothing counts as changed."""
    added: pa.Table
    removed: pa.Table
    before: pa.Table
    """Rows that changed, as they were; row i belongs to row i of `after`."""
    after: pa.Table

    def __repr__(self) -> str:
        return f"TableDiff({', '.join(f'{name}={number}' for name, number in self.counts.items())}, keys={self.keys})"

    def _repr_html_(self) -> str:
        columns = self.added.column_names
        rows: list[list[object]] = []
        for name in ("added", "removed", "before", "after"):
            part: pa.Table = getattr(self, name)
            rows += [[name, *row.values()] for row in part.slice(0, HTML_ROWS_MAX).to_pylist()]
        return html_table(["", *columns], rows, title=", ".join(f"{n:,} {name}" for name, n in self.counts.items()))

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of rows ``added``, ``removed`` and ``changed``."""
        return {"added": self.added.num_rows, "removed": self.removed.num_rows, "changed": self.after.num_rows}

    @property
    def is_empty(self) -> bool:
        """Whether both versions hold the same rows."""
        return not any(self.counts.values())


def diff_scans(
    store: ObjectStore,
    *,
    start: Scan,
    end: Scan,
    layout: Layout,
    keys: Sequence[str] | None = None,
    at_once_bytes_max: int = ONE_SHOT_BYTES_MAX,
) -> TableDiff:
    """Compare two versions of a table row by row.

    Args:
        start, end: unfiltered scans with the same columns.
        keys: columns that identify a row; by default the primary key, in append tables the whole row.
        at_once_bytes_max: by primary key, encoded bytes up to which a bucket's changed files are compared at once:
            fastest. Those of larger buckets are read side by side in key order, in windows.

    Raises `InvalidRequest`: the keys are not unique in one of the versions, or a column is nested: arrays, maps and
    rows have no encoding to compare them by. Cost: reads the files that only one version has, and in a primary-key
    table the files whose keys overlap them. Memory: what differs, and by primary key two windows. By other keys or
    whole rows (append tables), all rows of the files that only one version has: nothing orders them.
    """
    schema = end.table_schema
    chosen = tuple(keys) if keys is not None else schema.primary_keys
    for name in chosen:
        require_column(schema, name)
    _refuse_nested(schema.fields)
    before, after, plan = plan_scans_diff(start, end, layout=layout)
    by_bucket = bool(schema.primary_keys) and keys is None
    parts: list[Parts] = []
    for old, new in _grouped(before, after) if by_bucket else [(before, after)]:
        if by_bucket and sum(file.file_size for split in (*old, *new) for file in split.files) > at_once_bytes_max:
            parts.extend(_diff_windows(store, old, new, plan=plan, schema=schema))
            continue
        old_rows, new_rows = (_rows_of(store, splits, plan) for splits in (old, new))
        parts.append(
            _diff_keyed(old_rows, new_rows, chosen, schema) if chosen else _diff_rows(old_rows, new_rows, schema)
        )
    nothing = arrow_schema(schema.fields).empty_table()
    columns = zip(*parts, strict=True) if parts else ((), (), (), ())
    added, removed, changed_from, changed_to = (pa.concat_tables([nothing, *tables]) for tables in columns)
    return TableDiff(keys=chosen, added=added, removed=removed, before=changed_from, after=changed_to)


def plan_scans_diff(start: Scan, end: Scan, *, layout: Layout) -> tuple[list[Split], list[Split], ReadPlan]:
    """The smallest units of reading that only one of two versions has, and the plan to read them by.

    Args: as `diff_scans`. Cost: planning both scans.
    """

    def units(scan: Scan) -> dict[Any, Split]:
        splits = plan_splits(scan.entries(), schema=end.table_schema, layout=layout, target_bytes=0, open_cost_bytes=1)
        return {
            (split.partition, split.bucket, frozenset(file.file_name for file in split.files)): split
            for split in splits
        }

    before, after = units(start), units(end)
    removed = [before[key] for key in before.keys() - after.keys()]
    added = [after[key] for key in after.keys() - before.keys()]
    return removed, added, replace(start.plan, schemas={**start.plan.schemas, **end.plan.schemas})


def _grouped(before: Sequence[Split], after: Sequence[Split]) -> list[tuple[list[Split], list[Split]]]:
    groups: dict[tuple[bytes, int], tuple[list[Split], list[Split]]] = {}
    for side, splits in enumerate((before, after)):
        for split in splits:
            groups.setdefault((split.partition, split.bucket), ([], []))[side].append(split)
    return list(groups.values())


def _rows_of(store: ObjectStore, splits: Sequence[Split], plan: ReadPlan) -> pa.Table:
    schema = arrow_schema(plan.fields)
    tables = [read_split_table(store, split, plan=plan) for split in splits]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)]).combine_chunks()


Parts = tuple[pa.Table, pa.Table, pa.Table, pa.Table]
"""Added, removed, changed as it was, changed as it is."""


def _diff_keyed(before: pa.Table, after: pa.Table, keys: Sequence[str], schema: TableSchema) -> Parts:
    codes = encode_keys([[table.column(key) for key in keys] for table in (before, after)])
    orders = [np.argsort(run, kind="stable") for run in codes]
    old, new = (run[order] for run, order in zip(codes, orders, strict=True))
    if not (is_strictly_increasing(old) and is_strictly_increasing(new)):
        raise InvalidRequest(
            f"({', '.join(keys)}) is not unique in both versions, so rows cannot be paired by it.",
            kind="keys_not_unique",
        )
    before, after = (table.take(pa.array(order)) for table, order in zip((before, after), orders, strict=True))
    place = np.searchsorted(old, new)
    is_common = np.zeros(len(new), np.bool_)
    if len(old):
        is_common = old[np.minimum(place, len(old) - 1)] == new
    in_new, in_old = np.flatnonzero(is_common), place[is_common]
    gone = np.ones(len(old), np.bool_)
    gone[in_old] = False
    values = [field for field in schema.fields if field.name not in keys]
    was, now = before.take(pa.array(in_old)), after.take(pa.array(in_new))
    if values and len(in_old):
        differs = pc.not_equal(_encoded(was, values), _encoded(now, values))
        was, now = was.filter(differs), now.filter(differs)
    else:
        was, now = was.slice(0, 0), now.slice(0, 0)
    return after.filter(pa.array(~is_common)), before.filter(pa.array(gone)), was, now


def _diff_windows(
    store: ObjectStore, before: Sequence[Split], after: Sequence[Split], *, plan: ReadPlan, schema: TableSchema
) -> Iterator[Parts]:
    """As `_diff_keyed` by the primary key over the splits of one bucket, window by window."""
    plan = replace(plan, window_bytes=plan.window_bytes // 2)
    names = schema.trimmed_primary_keys

    def rows_of(splits: Sequence[Split]) -> Iterator[tuple[str, pa.Table]]:
        for split in in_key_order(splits, schema=schema):
            for batch in read_split(store, split, plan=plan):
                yield split.folder, pa.Table.from_batches([batch]).cast(nothing.schema)

    nothing = arrow_schema(plan.fields).empty_table()
    cursors = [Cursor(batches=rows_of(splits), rows=nothing) for splits in (before, after)]
    while True:
        for cursor in cursors:
            cursor.fill()
        if not any(cursor.rows.num_rows for cursor in cursors):
            return
        (old, _), (new, _) = cut_complete(cursors, names)
        if old.num_rows or new.num_rows:
            yield _diff_keyed(old, new, names, schema)


def _diff_rows(before: pa.Table, after: pa.Table, schema: TableSchema) -> Parts:
    """Whole rows as a multiset: a row is added as often as the newer version has more of it."""
    rows = pa.concat_arrays([_encoded(before, schema.fields), _encoded(after, schema.fields)]).dictionary_encode()
    codes = rows.indices.to_numpy()
    old, new = codes[: before.num_rows], codes[before.num_rows :]
    count = len(rows.dictionary)
    surplus = np.bincount(new, minlength=count) - np.bincount(old, minlength=count)
    nothing = after.slice(0, 0)
    return after.take(_first_of_each(new, surplus)), before.take(_first_of_each(old, -surplus)), nothing, nothing


def _first_of_each(codes: npt.NDArray[Any], wanted: Positions) -> pa.Array:
    """Positions of the first `wanted[code]` rows of every code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.searchsorted(ordered, np.arange(len(wanted)))
    rank = np.arange(len(ordered)) - starts[ordered]
    return pa.array(np.sort(order[rank < wanted[ordered]]))


def _encoded(rows: pa.Table, fields: Sequence[DataField]) -> pa.Array:
    """Every row as bytes that are equal exactly when the rows are, nulls included."""
    return encode_rows([rows.column(field.name) for field in fields], [field.type for field in fields])


def _refuse_nested(fields: Iterable[DataField]) -> None:
    for field in fields:
        if parse_type(field.type).is_nested:
            raise InvalidRequest(
                f"Column {field.name!r} is {field.type}: rows with nested columns cannot be compared; read both "
                "versions without it and compare those.",
                kind="not_comparable",
                column=field.name,
            )
