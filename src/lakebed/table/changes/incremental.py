"""What changed between two versions: the rows that were written, or the rows that differ.

Owns: `changes` with `read_changes` (from the deltas of the snapshots in between), and `diff` with `diff_scans` (from
the two end states). Both read only files that one of the ends does not share with the other.

Invariants:
- `read_changes` covers ``(start, end]`` and reads only APPEND snapshots: compactions change no row, and rows that an
  overwrite or a rollback took away are not included. `diff_scans` is exact whatever happened in between.
- Rows have the columns of the newer version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import HTML_ROWS_MAX
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import resolve
from lakebed.table.changes.change_units import Logged, Replaced, Told, Written, generations, kind_schema
from lakebed.table.codec.manifest import ADD, NO_ENTRIES, files_of
from lakebed.table.engines.engine import Increments
from lakebed.table.engines.registry import engine_name, engine_of
from lakebed.table.files.data_file import cast_stored
from lakebed.table.files.dynamic_bucket import is_dynamic
from lakebed.table.files.splits import bucket_groups, plan_splits, touching
from lakebed.table.model.changelog_options import Producer, least_logged_level, producer_of
from lakebed.table.model.model import Snapshot, Split, TableSchema
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import ONE_SHOT_BYTES_MAX, ReadPlan, read_split_table
from lakebed.table.read.row_diff import Parts, diff_buckets, diff_splits, group_splits, refuse_nested_keys
from lakebed.table.read.scan import Scan, scan_snapshot
from lakebed.table.read.vectors import has_option, with_vectors
from lakebed.table.schema.schema import require_column, with_nulls_of
from lakebed.texts import html_table


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
    return read_changes(branch.look(), branch.snapshots.walk(ids), end=end)


def diff(
    branch: TableBranch, start: int | str, end: int | str | None, *, keys: Sequence[str] | None = None
) -> TableDiff:
    """Rows added, removed and changed from one version to another (None: the newest); see `diff_scans`."""
    before, after = _with_same_columns(branch, start, end)
    return diff_scans(branch.store, start=before, end=after, keys=keys)


def plan_diff(
    branch: TableBranch, start: int | str, end: int | str | None
) -> tuple[list[Split], list[Split], ReadPlan]:
    """What `diff` would read of each version, for engines that distribute the work; see `plan_scans_diff`."""
    before, after = _with_same_columns(branch, start, end)
    return plan_scans_diff(before, after)


def _with_same_columns(branch: TableBranch, start: int | str, end: int | str | None) -> tuple[Scan, Scan]:
    """Scans of two versions with the columns of the second.

    A column is nullable if it is so in a first one that is later.
    """
    before, after = (resolve(branch, version=version).snapshot for version in (start, end))
    branch = branch.look()
    schema = branch.schemas.load(after.schema_id)
    if before.schema_id > schema.id:
        schema = with_nulls_of(schema, branch.schemas.load(before.schema_id))
    start_scan, end_scan = (Scan(branch, snapshot=snapshot, schema=schema, rows={}) for snapshot in (before, after))
    return start_scan, end_scan


def read_changes(branch: TableBranch, snapshots: Iterable[Snapshot], *, end: Snapshot) -> pa.Table:
    """The rows that some snapshots wrote.

    Args:
        snapshots: those of ``(start, end]`` that exist.
        end: the last of them, whose columns are returned.

    Returns:
        Append tables: every row appended, with the table's columns. Primary-key tables: the rows written, merged to
        one for each key, with `ROW_KIND_COLUMN` as last column: ``+I`` or ``+U`` for a row that exists, ``-D`` for a
        deletion. Where the merge engine requires it (`Increments.COMPARED`), a row that lost to another row of the
        table is left out. With a changelog producer: every row of the changelog files, in their order within each
        bucket, and with the kind ``-U`` also rows as they were before an update.

    Raises `InvalidRequest`: the merge engine cannot derive the table's rows from the rows written. Cost: the delta
    manifests and the delta files, whatever the size of the table; with `Increments.COMPARED` also the files of the last
    snapshot whose keys overlap theirs.
    """
    schema, store = branch.schemas.load(end.schema_id), branch.store
    producer = producer_of(schema)
    if producer is not Producer.NONE:
        logs = [entries_of_log(branch, snapshot, producer) for snapshot in snapshots]
        parts = [plan_logged(branch, [log], schema=schema) for log in logs if log.num_rows]
        tables = [rows for units, plan in parts for unit in units for rows in unit.rows(store, plan)]
        return pa.concat_tables([kind_schema(schema).empty_table(), *tables])
    entries = [branch.manifests.delta_entries(snapshot) for snapshot in snapshots if snapshot.commit_kind == "APPEND"]
    added_entries = additions_in(entries)
    if not schema.primary_keys:
        splits = plan_splits(added_entries, schema=schema, target_bytes=2**62, open_cost_bytes=0)
        plan = whole_rows(branch, schema, added_entries)
        tables = [read_split_table(store, split, plan=plan) for split in splits]
        columns = arrow_schema(schema.fields)
        return pa.concat_tables([columns.empty_table(), *(cast_stored(rows, columns) for rows in tables)])
    units, plan = plan_written(branch, entries, schema=schema, end=end)
    return pa.concat_tables(
        [kind_schema(schema).empty_table(), *(rows for unit in units for rows in unit.rows(store, plan))]
    )


def has_log(snapshot: Snapshot, producer: Producer) -> bool:
    """Whether a snapshot has changelog files of a producer: input logs writes, all other producers log compactions."""
    is_compaction = snapshot.commit_kind == "COMPACT"
    return snapshot.changelog_manifest_list is not None and is_compaction == (producer is not Producer.INPUT)


def entries_of_log(branch: TableBranch, snapshot: Snapshot, producer: Producer) -> pa.Table:
    """The entries of the files that contain what a snapshot changed, in the order in which they are read.

    With the producer `Producer.INPUT`, a snapshot from before the option was set is represented by the files it wrote.
    """
    if has_log(snapshot, producer):
        return branch.manifests.changelog_entries(snapshot)
    is_written = producer is Producer.INPUT and snapshot.commit_kind == "APPEND"
    return additions_in([branch.manifests.delta_entries(snapshot)] if is_written else [])


def producer_to_follow(schema: TableSchema) -> Producer:
    """The producer by whose changelogs changes of a table are followed.

    Where rows depend on older ones, written rows are not changes. With deletion vectors every compaction says which
    rows it replaces. So such a table is followed by its compactions, like a table whose changelogs they log.
    """
    producer = producer_of(schema)
    is_written = bool(schema.primary_keys) and producer in (Producer.NONE, Producer.INPUT)
    if is_written and has_option(schema) and engine_of(schema).increments is Increments.UNKNOWN:
        return Producer.LOOKUP
    return producer


def entries_in_log(entries: pa.Table, producer: Producer, schema: TableSchema) -> pa.Table:
    """The live files of a version whose rows changelogs up to it contain: all files, or those of the upper levels."""
    level = least_logged_level(producer, schema)
    return entries.filter(pc.greater_equal(entries["level"], level)) if level else entries


def plan_logged(
    branch: TableBranch, logs: Sequence[pa.Table], *, schema: TableSchema, told: Told = "every"
) -> tuple[list[Logged], ReadPlan]:
    """Plan to read changelog files: a unit for each bucket.

    Args:
        logs: entries of the files of each snapshot, oldest first, in the order in which they are read.
        schema: the schema whose columns are returned.
    """
    buckets: dict[tuple[bytes, int], list[Split]] = {}
    for log in logs:
        files = files_of(log)
        for group in bucket_groups(log, schema=schema):
            members = tuple(files[place] for place in group.members)
            row_count = sum(file.row_count for file in members)
            split = group.split(members, needs_merge=True, schema_id=schema.id, row_count=row_count)
            buckets.setdefault((group.partition, group.bucket), []).append(split)
    return [Logged(tuple(splits), told) for splits in buckets.values()], whole_rows(branch, schema, *logs)


def additions_in(deltas: Sequence[pa.Table]) -> pa.Table:
    """The entries of files that some deltas added."""
    entries = pa.concat_tables([NO_ENTRIES, *deltas])
    return entries.filter(pc.equal(entries.column("kind"), ADD))


def plan_written(
    branch: TableBranch, deltas: Sequence[pa.Table], *, schema: TableSchema, end: Snapshot
) -> tuple[list[Written], ReadPlan]:
    """Plan to read what was written to a primary-key table, merged to one row for each key.

    Args:
        deltas: entries of the files that each snapshot wrote, oldest first; whole buckets of each.
        schema: the schema whose columns are returned.
        end: the last snapshot that wrote some of them.

    Raises as `read_changes`.
    """
    check_increments(schema)
    is_compared = engine_of(schema).increments is Increments.COMPARED
    end_entries = branch.manifests.live_entries(end) if is_compared else NO_ENTRIES
    ends = _splits_by_bucket(end_entries, schema)
    added_entries = additions_in(deltas)
    ages = {name: age for age, delta in enumerate(deltas) for name in delta.column("file_name").to_pylist()}
    units = []
    for split in plan_splits(added_entries, schema=schema, target_bytes=2**62, open_cost_bytes=0):
        at_end = ends.get((split.partition, split.bucket), ())
        units.append(
            Written(generations(split, ages), tuple(touching(at_end, split.files, schema=schema)) if at_end else ())
        )
    return units, whole_rows(branch, schema, added_entries, end_entries)


def check_increments(schema: TableSchema) -> None:
    """Raise `InvalidRequest` for a primary-key table whose written rows are not its changes."""
    if engine_of(schema).increments is Increments.UNKNOWN:
        alternative = "let compactions log the changes (option changelog-producer = full-compaction)"
        if has_option(schema):
            alternative = "follow what compactions make visible, by a stream of changes (option changes=true)"
        raise InvalidRequest(
            f"The table merges rows by the engine {engine_name(schema.options)!r}, whose rows also "
            "depend on rows written earlier, so written rows are not its changes; compare the two versions with diff, "
            f"or {alternative}.",
            kind="unsupported_changes",
        )


def plan_replaced(
    branch: TableBranch, before: Snapshot | None, after: Snapshot, *, schema_id: int, told_by: Producer | None = None
) -> tuple[list[Replaced], ReadPlan]:
    """Plan to read how the rows of two snapshots differ: bucket by bucket.

    In append tables the comparison is partition by partition; so it is with dynamic buckets, because keys move between
    them.

    Args:
        told_by: compare the rows that changelogs contain (`entries_in_log`), including those of level 0 that readers
            may leave out; None: compare the rows that readers see.
    """
    start, end = (
        scan_snapshot(branch, snapshot, schema_id=schema_id, merges_new=told_by is not None)
        for snapshot in (before, after)
    )
    old, new, plan = plan_scans_diff(start, end, told_by=told_by)
    by_bucket = False if is_dynamic(end.table_schema) else bool(end.table_schema.primary_keys)
    return [
        Replaced(tuple(old_splits), tuple(new_splits))
        for old_splits, new_splits in group_splits(old, new, by_bucket=by_bucket)
    ], plan


def whole_rows(branch: TableBranch, schema: TableSchema, *entries: pa.Table) -> ReadPlan:
    """The plan to read all columns of some files. Cost: 1 GET for each of their schemas."""
    ids = {id_ for table in entries for id_ in table.column("schema_id").unique().to_pylist()}
    return ReadPlan(
        schema=schema,
        schemas={schema_id: branch.schemas.load(schema_id) for schema_id in sorted(ids | {schema.id})},
        columns=tuple(field.name for field in schema.fields),
    )


def _splits_by_bucket(entries: pa.Table, schema: TableSchema) -> dict[tuple[bytes, int], list[Split]]:
    """The smallest units of reading of each bucket."""
    buckets: dict[tuple[bytes, int], list[Split]] = {}
    for split in plan_splits(entries, schema=schema, target_bytes=0, open_cost_bytes=1):
        buckets.setdefault((split.partition, split.bucket), []).append(split)
    return buckets


@dataclass(frozen=True, slots=True)
class TableDiff:
    """Row-level difference of two versions; every table has the newer version's columns."""

    keys: tuple[str, ...]
    """The columns that identify rows; empty: whole rows do, so no row counts as changed."""
    added: pa.Table
    removed: pa.Table
    before: pa.Table
    """The changed rows before the change; row i corresponds to row i of `after`."""
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
    keys: Sequence[str] | None = None,
    at_once_bytes_max: int = ONE_SHOT_BYTES_MAX,
) -> TableDiff:
    """Compare two versions of a table row by row.

    Args:
        start, end: unfiltered scans with the same columns.
        keys: columns that identify a row; by default the primary key, in append tables the whole row.
        at_once_bytes_max: by primary key, encoded bytes up to which a bucket's changed files are compared at once,
            which is fastest. The files of larger buckets are read in parallel in key order, in windows.

    Raises `InvalidRequest`: the keys are not unique in one of the versions, or one of them is nested. Cost: reads the
    files that only one version has, and in a primary-key table the files whose keys overlap them. Memory: the
    differences, and by primary key two windows. By other keys or whole rows (append tables), all rows of the files that
    only one version has, because they are not ordered.
    """
    schema = end.table_schema
    key_names = tuple(keys) if keys is not None else schema.primary_keys
    refuse_nested_keys([require_column(schema, name) for name in key_names])
    before, after, plan = plan_scans_diff(start, end)
    parts: list[Parts]
    if schema.primary_keys and keys is None:
        parts = list(diff_buckets(store, before, after, plan=plan, at_once_bytes_max=at_once_bytes_max))
    else:
        parts = list(diff_splits(store, before, after, plan=plan, keys=key_names))
    no_rows = arrow_schema(schema.fields).empty_table()
    columns = zip(*parts, strict=True) if parts else ((), (), (), ())
    added, removed, changed_from, changed_to = (pa.concat_tables([no_rows, *tables]) for tables in columns)
    return TableDiff(keys=key_names, added=added, removed=removed, before=changed_from, after=changed_to)


def plan_scans_diff(
    start: Scan, end: Scan, *, told_by: Producer | None = None
) -> tuple[list[Split], list[Split], ReadPlan]:
    """The smallest units of reading that only one of two versions has, and the plan to read them with.

    Args: as `diff_scans` and `plan_replaced`. Cost: planning both scans.
    """

    def units(scan: Scan) -> dict[Any, Split]:
        entries = scan.entries()
        if told_by is not None:
            entries = entries_in_log(entries, told_by, end.table_schema)
        splits = plan_splits(entries, schema=end.table_schema, target_bytes=0, open_cost_bytes=1)
        return {
            (
                split.partition,
                split.bucket,
                frozenset((file.file_name, split.vectors.get(file.file_name)) for file in split.files),
            ): split
            for split in with_vectors(splits, scan.vectors())
        }

    before, after = units(start), units(end)
    removed_splits = [before[key] for key in before.keys() - after.keys()]
    added_splits = [after[key] for key in after.keys() - before.keys()]
    return removed_splits, added_splits, replace(start.plan, schemas={**start.plan.schemas, **end.plan.schemas})
