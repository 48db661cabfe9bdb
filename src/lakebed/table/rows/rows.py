"""Change the rows of one branch of a table: append, upsert, delete, overwrite.

Owns: each of these verbs as a function of a `TableBranch`, in terms of a writer, a scan and a commit.

Invariants:
- A verb works on the newest snapshot and then on the newest schema. Either it reads that schema, in its own context
  that other verbs do not change; or it is repeated when the commit finds that it used an older schema.
- A delete by predicate marks rows in deletion vectors, rewrites files, or deletes the keys of matching rows. If another
  writer meanwhile replaced one of those files or changed rows of the same buckets, the delete is repeated on the new
  state: a deleted row never returns, and a row that no longer matches stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.arguments import check_keywords
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard, discard_changes
from lakebed.table.codec.binary_row import encode_rows
from lakebed.table.codec.index_manifest import IndexEntry
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.codec.roaring import Positions, encode_positions
from lakebed.table.commit.commit import Basis, CommitOptions, CommitRequest, OwnFiles, StagedChange, commit
from lakebed.table.engines.sequence import delete_columns
from lakebed.table.files.data_file import RollingWriter
from lakebed.table.files.dynamic_bucket import is_dynamic
from lakebed.table.files.external import targets_of
from lakebed.table.model.frames import as_arrow
from lakebed.table.model.model import BucketChange, CommitKind, Rows, Snapshot, Split, TableSchema
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_text import as_predicate
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.partitions import equal_value, partition_scalars
from lakebed.table.read.read import ReadPlan, filter_rows, matching_positions, read_split
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.read.vectors import count_deleted, has_option
from lakebed.table.rows.overwrite import Overwrite, derive_overwrite, files_in, find_partitions_to_replace
from lakebed.table.schema.conform import conform
from lakebed.table.write.write import BucketIndex, TableWriter, as_table
from lakebed.table.write.write_settings import WriteSettings, check_writable

TRIES_MAX = 20
"""How often a verb starts over when another writer replaces its files, changes the schema, or moves its new keys."""

CHANGED_KINDS: Final = ("file_gone", "rows_changed", "index_changed", "schema_changed")
"""Kinds of conflicts after which a verb that read rows reads them again."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One file of an append table of which a delete by predicate may delete rows. Picklable."""

    split: Split
    """The split that consists of this file."""
    total_buckets: int


# ---- writing


def new_writer(branch: TableBranch, *, replaces_all: bool = False) -> TableWriter:
    """A writer that starts from the newest snapshot, with the schema that the context has seen.

    Args:
        replaces_all: its rows will replace the live rows (an overwrite).
    """

    def index() -> BucketIndex:
        newest = branch.snapshots.latest()
        if newest is None:
            return BucketIndex(None)
        key_files: Sequence[IndexEntry] = ()
        if is_dynamic(schema):
            key_files = branch.hash_index.entries(newest.index_manifest, has_vectors=has_option(schema))
        return BucketIndex(branch.manifests.live_entries(newest), key_files=key_files)

    schema = branch.schema
    return TableWriter(
        branch.store,
        schema=schema,
        settings=WriteSettings.of(schema),
        environment=branch.environment,
        index=index,
        hash_index=branch.hash_index,
        starts_anew=replaces_all,
    )


def write(branch: TableBranch, rows: Rows, *, deletes: str | None, options: CommitOptions) -> Snapshot:
    """Append to an append table, or upsert into a primary-key table; see `Table.write`."""
    check_keywords(options, CommitOptions)
    return _write_rows(
        branch, rows, lambda writer, arrow_rows: writer.write(arrow_rows, deletes=deletes), options=options
    )


def _as_arrow(branch: TableBranch, rows: Rows) -> Rows:
    arrow_rows: Rows = as_arrow(rows, like=arrow_schema(branch.schema.fields))
    return arrow_rows


def _write_rows(
    branch: TableBranch,
    rows: Rows,
    add: Callable[[TableWriter, Rows], None],
    *,
    options: CommitOptions,
    check: Callable[[TableSchema], None] = lambda schema: None,
) -> Snapshot:
    """Write and commit rows. Repeat when another writer changed the schema, or placed some of the new keys elsewhere.

    Args:
        check: raises `InvalidRequest` for a table that must not be written to. It is called in each try, because the
            table may no longer be the one that its handle has seen: dropped and created again.

    The commit reads the newest schema, so a write need not do so. A stream can be read only once: for a stream the
    schema is read before, and a later change of the columns is carried over.
    """
    branch, tries_left = branch.detach(), TRIES_MAX
    while True:
        tries_left -= 1
        old_schema = branch.schema
        schema_id: int | None = old_schema.id
        try:
            check(old_schema)
            arrow_rows = _as_arrow(branch, rows)
            if isinstance(arrow_rows, pa.RecordBatchReader):
                check(branch.refresh())
                tries_left, schema_id = 0, None
            writer = new_writer(branch)
            add(writer, arrow_rows)
            return commit_or_discard(branch, writer.finish(), schema_id=schema_id, options=options)
        except InvalidRequest:
            if tries_left == 0 or branch.refresh() == old_schema:
                raise
        except Conflict as error:
            if tries_left == 0 or error.kind not in ("index_changed", "schema_changed"):
                raise


def append(branch: TableBranch, rows: Rows, *, options: CommitOptions) -> Snapshot:
    """Add rows to an append table. Raises `InvalidRequest` for a primary-key table."""
    check_keywords(options, CommitOptions)
    return _write_rows(branch, rows, TableWriter.write, options=options, check=_check_append)


def _check_append(schema: TableSchema) -> None:
    if schema.primary_keys:
        raise InvalidRequest("The table has a primary key: use upsert, which replaces rows of the same key.")


def upsert(branch: TableBranch, rows: Rows, *, options: CommitOptions) -> Snapshot:
    """Insert or replace rows by key. Raises `InvalidRequest` for an append table."""
    check_keywords(options, CommitOptions)
    return _write_rows(branch, rows, TableWriter.write, options=options, check=_check_upsert)


def _check_upsert(schema: TableSchema) -> None:
    if not schema.primary_keys:
        raise InvalidRequest("The table has no primary key, so there is nothing to upsert by: use append.")


def delete(
    branch: TableBranch, where: Predicate | str | None, *, keys: Rows | None, options: CommitOptions
) -> Snapshot | None:
    """Delete rows by predicate or by key; exactly one is given. See `Table.delete`.

    Deleting a missing key is a no-op. With the option ``sequence.field`` the keys come with its columns, and a row that
    is newer by them stays.
    """
    check_keywords(options, CommitOptions)
    if (where is None) == (keys is None):
        raise InvalidRequest(
            "A delete needs either a predicate (where) or keys; overwrite with no rows empties a table."
        )
    if where is not None:
        return _delete_where(branch, where, options=options)
    assert keys is not None
    return _write_rows(branch, keys, TableWriter.delete, options=options)


def _delete_where(branch: TableBranch, where: Predicate | str, *, options: CommitOptions) -> Snapshot | None:
    """Delete the rows for which a predicate is true; None when there are no such rows.

    With the option ``sequence.field`` each delete has the values of the row that was read. It deletes that row and all
    older ones, but not a row that another writer makes newer meanwhile.

    Cost: reads the files that may match. A primary-key table then writes one delete for each row. An append table
    rewrites the files with matching rows, or (with deletion vectors) writes one small index file for each partition
    that has some.
    """
    for tries_left in reversed(range(TRIES_MAX)):
        basis = Basis(branch.snapshots.latest())
        view = branch.look()
        is_keyed = bool(view.schema.primary_keys)
        changes = _deletes(view, where, basis) if is_keyed else without_matching(view, where, basis=basis)
        if not changes:
            return None
        try:
            if is_keyed:
                return commit_or_discard(view, changes, basis=basis, options=options)
            return commit_or_discard(view, changes, kind="OVERWRITE", options=options)
        except Conflict as error:
            if tries_left == 0 or error.kind not in CHANGED_KINDS:
                raise
    return None


def _deletes(branch: TableBranch, where: Predicate | str, basis: Basis) -> list[BucketChange]:
    """Changes that delete the keys of the rows that match in a version; empty when no row matches."""
    columns = delete_columns(branch.schema)
    matches = scan_snapshot(branch, basis.snapshot, merges_new=True, columns=columns, where=where).to_arrow()
    if matches.num_rows == 0:
        return []
    writer = new_writer(branch)
    writer.delete(matches)
    return writer.finish()


def overwrite(
    branch: TableBranch, rows: Rows, *, partition: Mapping[str, object] | None, dynamic: bool, options: CommitOptions
) -> Snapshot:
    """Replace the whole table, one static partition, or (dynamic) the partitions of the new rows."""
    check_keywords(options, CommitOptions)
    target = _overwrite_of(branch, partition=partition, dynamic=dynamic)
    table: pa.Table | None = None
    for tries_left in reversed(range(TRIES_MAX)):
        view = branch.look()
        table = as_table(_as_arrow(view, rows if table is None else table))
        writer = new_writer(view, replaces_all=True)
        writer.write(inside_partition(table, partition=partition, schema=view.schema) if partition else table)
        try:
            return commit_or_discard(view, writer.finish(), overwrite=target, options=options)
        except Conflict as error:
            if tries_left == 0 or error.kind != "schema_changed":
                raise
    raise AssertionError("the last try returns or raises")


@dataclass(frozen=True, slots=True)
class OverwritePlan:
    """What an overwrite would do to the newest version."""

    row_count: int
    """New rows."""
    replaced_row_count: int
    """Rows as they are stored, before merging. They and their files leave the newest version."""
    replaced_file_count: int


def plan_overwrite(
    branch: TableBranch, rows: Rows, *, partition: Mapping[str, object] | None, dynamic: bool
) -> OverwritePlan:
    """What `overwrite` would do now.

    Writes nothing, and raises what `overwrite` would raise about its arguments and rows.

    Cost: the rows are read into memory, and the manifests of the newest snapshot.
    """
    target = _overwrite_of(branch, partition=partition, dynamic=dynamic)
    newest = branch.snapshots.latest()
    view = branch.look()
    schema = view.schema
    check_writable(schema)
    table = as_table(_as_arrow(view, rows))
    table = conform(inside_partition(table, partition=partition, schema=schema) if partition else table, schema=schema)
    types = [column.type for column in schema.partition_fields]
    new_partitions = (
        encode_rows([table[name].combine_chunks() for name in schema.partition_keys], types) if dynamic else None
    )
    hits = find_partitions_to_replace(
        schema, target, added=pa.array([], pa.binary()) if new_partitions is None else new_partitions
    )
    if newest is None:
        return OverwritePlan(table.num_rows, 0, 0)
    files = files_in(view.manifests.live_entries(newest), hits)
    return OverwritePlan(table.num_rows, pc.sum(files["row_count"]).as_py() or 0, files.num_rows)


def _overwrite_of(branch: TableBranch, *, partition: Mapping[str, object] | None, dynamic: bool) -> Overwrite:
    if dynamic and partition:
        raise InvalidRequest("An overwrite is either of a given partition or dynamic, not both.")
    if dynamic and not branch.schema.partition_keys:
        raise InvalidRequest("A dynamic overwrite needs a partitioned table; this one has no partition columns.")
    return Overwrite(dict(partition or {}), dynamic)


def commit_changes(
    branch: TableBranch,
    changes: Sequence[BucketChange],
    *,
    kind: CommitKind = "APPEND",
    overwrite: Overwrite | None = None,
    basis: Basis | None = None,
    schema_id: int | None = None,
    options: CommitOptions | None = None,
    own_files: OwnFiles | None = None,
) -> Snapshot:
    """Make changes the newest snapshot; see `commit.commit` for lost races, replays and conflicts.

    Args:
        overwrite: also replace these live files, chosen in the newest snapshot.
        basis: the version that the changes were made from; see `CommitRequest.basis`.
        own_files: the files of the changes, if they were written only for this commit; see `CommitRequest.own_files`.
    """
    options = options or {}
    check_keywords(options, CommitOptions)
    if overwrite is not None and overwrite.rows is not None:
        return _commit_overwritten_rows(
            branch, overwrite.rows, changes, options=options, own_files=own_files or OwnFiles()
        )
    derive = None
    if overwrite is not None:
        # No changelog contains what an overwrite takes away, so none may contain what it adds.
        discard_changes(branch, [replace(change, added=(), deleted=()) for change in changes if change.changelog])
        derive = derive_overwrite(branch, changes, overwrite=overwrite)
        kind, changes = "OVERWRITE", ()
    request = CommitRequest(
        kind, changes, derive=derive, options=options, basis=basis, schema_id=schema_id, own_files=own_files
    )
    return commit(branch, request)


def commit_or_discard(
    branch: TableBranch,
    changes: list[BucketChange],
    *,
    kind: CommitKind = "APPEND",
    overwrite: Overwrite | None = None,
    basis: Basis | None = None,
    schema_id: int | None = None,
    options: CommitOptions,
) -> Snapshot:
    """Commit changes whose files were written for this commit. Delete the files when it is refused or repeats another.

    The files are also deleted after any other error, and an interrupt, if no snapshot that could name them was put. A
    batch without any row makes no snapshot if the table has one.

    Args:
        schema_id: as of `CommitRequest`.
    """
    if not changes and overwrite is None and options.get("commit_identifier") is None:
        newest = branch.snapshots.latest()
        if newest is not None:
            return newest
    own_files = OwnFiles(changes)
    try:
        return commit_changes(
            branch,
            changes,
            kind=kind,
            overwrite=overwrite,
            basis=basis,
            schema_id=schema_id,
            options=options,
            own_files=own_files,
        )
    except BaseException as error:
        # These three say that nothing was committed. After any other error that is uncertain, once a snapshot was put.
        if isinstance(error, Conflict | InvalidRequest | NotFound) or not own_files.may_be_named:
            discard_changes(branch, changes)
        raise


# ---- delete by predicate in append tables


def rewrites_of(
    branch: TableBranch, where: Predicate | str, *, basis: Basis | None = None
) -> tuple[list[Rewrite], ReadPlan]:
    """The files of an append table that a delete by predicate must read, and the plan to read them with.

    Args:
        basis: the version; None: the newest.
    """
    schema = branch.schema
    check_writable(schema)
    matching = scan_snapshot(branch, (basis or Basis(branch.snapshots.latest())).snapshot, where=where)
    full_scan = scan_snapshot(branch, matching.snapshot)
    totals = dict(
        zip(*(matching.entries().column(name).to_pylist() for name in ("file_name", "total_buckets")), strict=True)
    )
    alone = [
        Rewrite(
            replace(
                split,
                files=(file,),
                row_count=file.row_count,
                needs_merge=False,
                vectors={name: place for name, place in split.vectors.items() if name == file.file_name},
            ),
            totals[file.file_name],
        )
        for split in matching.splits()
        for file in split.files
    ]
    return alone, full_scan.plan


def without_matching(branch: TableBranch, where: Predicate | str, *, basis: Basis | None = None) -> list[BucketChange]:
    """Changes that delete the matching rows of every file of an append table that has some. Args as `rewrites_of`."""
    predicate = as_predicate(where)
    rewrites, plan = rewrites_of(branch, predicate, basis=basis)
    changes: list[BucketChange] = []
    try:
        for rewrite in rewrites:
            change = without_rows(branch.store, rewrite, where=predicate, plan=plan, environment=branch.environment)
            changes.extend([change] if change is not None else [])
    except BaseException:
        discard_changes(branch, changes)
        raise
    return changes


@dataclass(slots=True)
class _OverwrittenRows:
    """The change that deletes the rows for which a predicate is true and adds others, for each newest snapshot.

    Rows that another writer added before the commit are overwritten too. A file is rewritten once, however many races
    the commit loses.
    """

    branch: TableBranch
    where: Predicate
    added: Sequence[BucketChange]
    done: dict[str, tuple[Rewrite, BucketChange | None]] = field(default_factory=dict)
    """By name of the file: what was read, and its change; None: no row matches."""

    def derive(self, head: Snapshot | None) -> StagedChange:
        rewrites, plan = rewrites_of(self.branch, self.where, basis=Basis(head))
        rewrite_of = {rewrite.split.files[0].file_name: rewrite for rewrite in rewrites}
        self.discard([name for name, (rewrite, _) in self.done.items() if rewrite_of.get(name) != rewrite])
        store, environment = self.branch.store, self.branch.environment
        for name, rewrite in rewrite_of.items():
            if name not in self.done:
                change = without_rows(store, rewrite, where=self.where, plan=plan, environment=environment)
                self.done[name] = (rewrite, change)
        changes = [*(change for _, change in self.done.values() if change is not None), *self.added]
        return StagedChange(entries=entries_of_changes(changes), base=head, changes=changes)

    def discard(self, names: Sequence[str]) -> None:
        """Delete what was written to replace some files."""
        changes = [change for _, change in map(self.done.pop, names) if change is not None]
        discard_changes(self.branch, changes)


def _commit_overwritten_rows(
    branch: TableBranch, where: Predicate, added: Sequence[BucketChange], *, options: CommitOptions, own_files: OwnFiles
) -> Snapshot:
    """Commit changes that replace the rows for which a predicate is true; the files of `added` stay when it fails.

    Raises as `commit`. Cost: reads the files that may match, and rewrites those with matching rows.
    """
    overwritten_rows = _OverwrittenRows(branch, where, added)
    try:
        return commit(
            branch,
            CommitRequest(kind="OVERWRITE", derive=overwritten_rows.derive, options=options, own_files=own_files),
        )
    except BaseException as error:
        if isinstance(error, InvalidRequest | Conflict) or not own_files.may_be_named:  # as in `commit_or_discard`
            overwritten_rows.discard(list(overwritten_rows.done))
        raise


def without_rows(
    store: ObjectStore, rewrite: Rewrite, *, where: Predicate, plan: ReadPlan, environment: Environment
) -> BucketChange | None:
    """Delete the matching rows of a file; None when no row matches.

    In a table with deletion vectors the file stays and its rows are marked, unless all of them match. In any other
    table the file is rewritten without them.

    Args:
        rewrite, plan: from `rewrites_of`.
        where: rows for which it is true are deleted.
        environment: gives the new file's name and time.
    """
    split, file = rewrite.split, rewrite.split.files[0]
    if has_option(plan.schema):
        bound = bind(where, arrow_schema(plan.schema.fields))
        ((_, positions),) = matching_positions(store, split, plan=replace(plan, where=bound))
        return mark_deleted(rewrite, positions, already=count_deleted(store, split))
    settings = WriteSettings.of(plan.schema)
    writer = RollingWriter(
        store,
        folder=split.folder,
        schema=plan.schema,
        settings=settings.files,
        environment=environment,
        targets=targets_of(store, plan.schema, rng=environment.rng),
    )
    kept_count = count = 0
    try:
        for batch in read_split(store, split, plan=plan):
            rows = pa.Table.from_batches([batch])
            count += rows.num_rows
            stays = _not_matching(rows, where)
            kept_count += stays.num_rows
            if stays.num_rows:
                writer.write(stays)
        if kept_count == count:
            discard(store, writer.paths)
            return None
        new_files = writer.close(first_sequence=file.min_sequence_number)
    except BaseException:
        discard(store, writer.paths)
        raise
    return BucketChange(
        partition=split.partition,
        bucket=split.bucket,
        total_buckets=rewrite.total_buckets,
        added=tuple(new_files),
        deleted=(file,),
        applied={file.file_name: split.vectors.get(file.file_name)},
    )


def mark_deleted(rewrite: Rewrite, positions: Positions, *, already: int) -> BucketChange | None:
    """The change that deletes rows of a file by their positions; None for no position.

    Args:
        rewrite: the file, with its vector.
        positions: of rows that are not deleted yet.
        already: count of deleted rows of the file.
    """
    split, file = rewrite.split, rewrite.split.files[0]
    if len(positions) == 0:
        return None
    is_empty = already + len(positions) == file.row_count
    return BucketChange(
        partition=split.partition,
        bucket=split.bucket,
        total_buckets=rewrite.total_buckets,
        deleted=(file,) if is_empty else (),
        vectors={} if is_empty else {file.file_name: encode_positions(positions)},
        applied={file.file_name: split.vectors.get(file.file_name)},
    )


def _not_matching(rows: pa.Table, where: Predicate) -> pa.Table:
    """Rows for which the predicate is false or unknown."""
    numbered = rows.append_column("\0row", pa.array(np.arange(rows.num_rows)))
    matching = filter_rows(numbered, where).column("\0row")
    stays = pc.invert(pc.is_in(numbered.column("\0row"), matching.combine_chunks()))
    return rows.filter(stays)


def inside_partition(rows: pa.Table, *, partition: Mapping[str, object], schema: TableSchema) -> pa.Table:
    """Rows of a static overwrite.

    Missing partition columns are added; existing ones must have the partition's values.
    """
    for name, constant in partition_scalars(partition, schema=schema).items():
        kind = constant.type
        position = rows.schema.get_field_index(name)
        if position < 0:
            rows = rows.append_column(pa.field(name, kind), pa.repeat(constant, rows.num_rows))
            continue
        column = rows.column(position)
        if rows.num_rows and not pc.all(equal_value(column.cast(kind), constant)).as_py():
            raise InvalidRequest(
                f"The overwrite is of the partition {name}={constant}, but some rows have another {name!r}.",
                kind="rows_outside_partition",
                column=name,
            )
    return rows
