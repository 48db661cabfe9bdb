"""The verbs of a table that move rows: append, upsert, delete, overwrite, scan.

Owns: what each verb does, in terms of a writer, a scan and a commit. Knows nothing of encoding.

Invariants:
- A verb works on the newest schema and the newest snapshot at its begin.
- A delete by predicate rewrites files, or deletes the keys that it found; when another writer replaced one of those
  files or changed rows of the same buckets meanwhile, it is done again on the new state: a row is never brought back,
  and one that no longer matches stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import Unpack

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.commit import Basis
from lakebed.table.data_file import RollingWriter
from lakebed.table.discard import discard, paths_written
from lakebed.table.dynamic_bucket import HashIndex, is_dynamic
from lakebed.table.external import targets_of
from lakebed.table.frames import as_arrow
from lakebed.table.layout import Layout
from lakebed.table.manifest_reader import ManifestReader
from lakebed.table.model import (
    BATCH_COMMIT_IDENTIFIER,
    BucketChange,
    CommitKind,
    Rows,
    Snapshot,
    Split,
    TableSchema,
)
from lakebed.table.options import BUCKET, TableOptions
from lakebed.table.overwrite import Overwrite, partition_scalars
from lakebed.table.predicate import Predicate, parse_predicate
from lakebed.table.read import ReadPlan, filter_rows, read_split
from lakebed.table.scan import Scan, ScanRequest
from lakebed.table.schema import SchemaLog
from lakebed.table.sequence import delete_columns
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.types import arrow_schema
from lakebed.table.write import BucketIndex, TableWriter, as_table
from lakebed.table.write_settings import WriteSettings, check_writable

if TYPE_CHECKING:
    from lakebed.table.compact import Compactor, CompactProgress, CompactReport
    from lakebed.table.incremental import TableDiff

__all__ = ["CommitOptions", "Rewrite", "RowVerbs", "inside_partition", "without_rows"]

TRIES_MAX = 20
"""How often a verb starts over because another writer replaced its files, or placed its new keys elsewhere."""


class CommitOptions(TypedDict, total=False):
    """What the caller of a writing verb may say about its commit, as keywords."""

    commit_user: str | None
    """None: a fresh one."""
    commit_identifier: int | None
    """With `commit_user`: the pair is committed once, however often it is tried. None: a batch, never recognised."""
    properties: Mapping[str, str] | None
    """Kept in the snapshot."""
    watermark: int | None
    """Unix ms, UTC: no older row is expected."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One file of an append table that a delete by predicate may have to write anew. Picklable."""

    split: Split
    """The file alone."""
    total_buckets: int


class CommitVerb(Protocol):
    """`Table.commit`, as far as this room uses it."""

    def __call__(
        self,
        changes: list[BucketChange],
        *,
        kind: CommitKind = ...,
        commit_user: str | None = ...,
        commit_identifier: int = ...,
        properties: Mapping[str, str] | None = ...,
        watermark: int | None = ...,
        overwrite: Overwrite | None = ...,
        basis: Basis | None = ...,
    ) -> Snapshot:
        """See `Table.commit`."""
        ...


class RowVerbs:
    """Writes and reads rows of one branch of a table.

    Args:
        store: the table's folder.
        layout, log, reader, schemas, hash_index: the table's rooms.
        schema: the newest schema.
        commit: `Table.commit`.
        environment: clock, randomness, runtime.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        layout: Layout,
        log: SnapshotLog,
        reader: ManifestReader,
        schemas: SchemaLog,
        hash_index: HashIndex,
        schema: Callable[[], TableSchema],
        commit: CommitVerb,
        environment: Environment,
    ) -> None:
        self._store = store
        self._layout = layout
        self._log = log
        self._reader = reader
        self._schemas = schemas
        self._schema = schema
        self._commit = commit
        self._hash_index = hash_index
        self._environment = environment

    # ---- writing

    def new_writer(self, *, replaces_all: bool = False) -> TableWriter:
        """A writer that starts from the newest snapshot.

        Args:
            replaces_all: its rows will replace what is there (an overwrite).
        """
        schema = self._schema()
        return TableWriter(
            self._store,
            schema=schema,
            layout=self._layout,
            settings=WriteSettings.of(schema),
            environment=self._environment,
            index=self._index,
            hash_index=self._hash_index,
            starts_anew=replaces_all,
        )

    def write(self, rows: Rows, *, deletes: str | None, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append to an append table, upsert into a primary-key table."""
        found = self._arrow(rows)

        def add(writer: TableWriter) -> None:
            writer.write(found, deletes=deletes)

        return self._written(add, may_repeat=not isinstance(found, pa.RecordBatchReader), options=options)

    def _arrow(self, rows: Rows) -> Rows:
        found: Rows = as_arrow(rows, like=arrow_schema(self._schema().fields))
        return found

    def _written(self, add: Callable[[TableWriter], None], *, may_repeat: bool, options: CommitOptions) -> Snapshot:
        """Write and commit rows, and once more when another writer placed some of the new keys elsewhere."""
        tries_left = TRIES_MAX if may_repeat else 1
        while True:
            tries_left -= 1
            writer = self.new_writer()
            add(writer)
            try:
                return self._committed(writer.finish(), **options)
            except Conflict as lost:
                if tries_left == 0 or lost.kind != "index_changed":
                    raise

    def append(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Add rows to an append table. Raises `InvalidRequest` for a primary-key table."""
        if self._schema().primary_keys:
            raise InvalidRequest("The table has a primary key: use upsert, which replaces rows of the same key.")
        return self.write(rows, deletes=None, **options)

    def upsert(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Insert or replace rows by key. Raises `InvalidRequest` for an append table."""
        if not self._schema().primary_keys:
            raise InvalidRequest("The table has no primary key, so there is nothing to upsert by: use append.")
        return self.write(rows, deletes=None, **options)

    def delete(
        self, where: Predicate | str | None, *, keys: Rows | None, **options: Unpack[CommitOptions]
    ) -> Snapshot | None:
        """Delete by predicate or by key; exactly one is given."""
        if (where is None) == (keys is None):
            raise InvalidRequest(
                "A delete needs either a predicate (where) or keys; overwrite with no rows empties a table."
            )
        if where is not None:
            return self.delete_where(where, **options)
        assert keys is not None
        return self.delete_keys(keys, **options)

    def delete_keys(self, keys: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Delete rows of a primary-key table by key; keys that are not there are fine.

        With the option ``sequence.field`` the keys bring its columns too: a row that is newer by them stays.
        """
        found = self._arrow(keys)

        def add(writer: TableWriter) -> None:
            writer.delete(found)

        return self._written(add, may_repeat=not isinstance(found, pa.RecordBatchReader), options=options)

    def delete_where(self, where: Predicate | str, **options: Unpack[CommitOptions]) -> Snapshot | None:
        """Delete the rows for which a predicate is true; None when there is none.

        With the option ``sequence.field`` each delete has the values of the row that was read: it deletes that row and
        all older ones, and not one that another writer makes newer meanwhile.

        Cost: reads the files that may match; a primary-key table then writes one delete a row, an append table writes
        the files with matching rows anew.
        """
        keys = delete_columns(self._schema()) if self._schema().primary_keys else None
        for tries_left in reversed(range(TRIES_MAX)):
            basis = None if keys is None else Basis(self._log.latest())
            changes = self._without_rows(where) if basis is None else self._without_keys(where, keys, basis)
            if not changes:
                return None
            try:
                kind: CommitKind = "OVERWRITE" if basis is None else "APPEND"
                return self._committed(changes, kind=kind, basis=basis, **options)
            except Conflict as lost:
                if tries_left == 0 or lost.kind not in ("file_gone", "rows_changed", "index_changed"):
                    raise
        return None

    def _without_keys(self, where: Predicate | str, columns: Sequence[str] | None, basis: Basis) -> list[BucketChange]:
        """Changes that delete the keys of the rows that match in a version; none when no row matches."""
        found = self.scan(snapshot=basis.snapshot, request=ScanRequest(columns=columns, where=where)).to_arrow()
        if found.num_rows == 0:
            return []
        writer = self.new_writer()
        writer.delete(found)
        return writer.finish()

    def overwrite(
        self, rows: Rows, *, partition: Mapping[str, object] | None, dynamic: bool, **options: Unpack[CommitOptions]
    ) -> Snapshot:
        """Replace the whole table, one static partition, or (dynamic) the partitions that the rows lie in."""
        schema = self._schema()
        if dynamic and partition:
            raise InvalidRequest("An overwrite is either of a given partition or dynamic, not both.")
        if dynamic and not schema.partition_keys:
            raise InvalidRequest("A dynamic overwrite needs a partitioned table; this one has no partition columns.")
        table = as_table(self._arrow(rows))
        if partition:
            table = inside_partition(table, partition=partition, schema=schema)
        writer = self.new_writer(replaces_all=True)
        writer.write(table)
        return self._committed(writer.finish(), overwrite=Overwrite(dict(partition or {}), dynamic), **options)

    def _committed(
        self,
        changes: list[BucketChange],
        *,
        kind: CommitKind = "APPEND",
        overwrite: Overwrite | None = None,
        basis: Basis | None = None,
        **options: Unpack[CommitOptions],
    ) -> Snapshot:
        """Commit; a batch without any row makes no snapshot where there is one already."""
        identifier = options.get("commit_identifier")
        if not changes and overwrite is None and identifier is None:
            newest = self._log.latest()
            if newest is not None:
                return newest
        try:
            return self._commit(
                changes,
                kind=kind,
                commit_user=options.get("commit_user"),
                commit_identifier=BATCH_COMMIT_IDENTIFIER if identifier is None else identifier,
                properties=options.get("properties"),
                watermark=options.get("watermark"),
                overwrite=overwrite,
                basis=basis,
            )
        except (Conflict, InvalidRequest):
            # Both say that nothing was committed; any other error leaves that open.
            self._discard(changes)
            raise

    def _discard(self, changes: Sequence[BucketChange]) -> None:
        """Delete the files that changes brought, which are known not to be committed."""
        paths = paths_written(changes, schema=self._schema(), layout=self._layout)
        discard(self._store, paths, environment=self._environment)

    def _index(self) -> BucketIndex:
        newest = self._log.latest()
        if newest is None:
            return BucketIndex(None)
        key_files = self._hash_index.entries(newest.index_manifest) if is_dynamic(self._schema()) else ()
        return BucketIndex(self._reader.live_entries(newest), key_files=key_files)

    # ---- reading

    def scan(self, *, snapshot: Snapshot | None, request: ScanRequest, schema_id: int | None = None) -> Scan:
        """A read of one snapshot.

        Args:
            snapshot: None: of a table without any, which has no rows.
            request: columns and predicate.
            schema_id: whose columns come out (time travel: the snapshot's own); None: the newest's.
        """
        schema = self._schema()
        if snapshot is not None and schema_id is None and snapshot.schema_id > schema.id:
            schema_id = snapshot.schema_id
        return Scan(
            self._store,
            snapshot=snapshot,
            schema=schema if schema_id is None else self._schemas.load(schema_id),
            load_schema=self._schemas.load,
            reader=self._reader,
            layout=self._layout,
            request=request,
            environment=self._environment,
        )

    def changes(self, start: Snapshot | None, end: Snapshot) -> pa.Table:
        """Rows written by the snapshots after `start` (None: from the first) up to `end`; see `read_changes`.

        Raises:
            NotFound: snapshots in between have expired.
            InvalidRequest: `start` is newer than `end`.
        """
        first = 1 if start is None else start.id + 1
        if first > end.id + 1:
            raise InvalidRequest(f"Changes go from an older to a newer version; {first - 1} is newer than {end.id}.")
        there = [snapshot_id for snapshot_id in self._log.ids() if first <= snapshot_id <= end.id]
        earliest = self._log.earliest()
        if first <= end.id and (earliest is None or first < earliest.id):
            oldest = "none is left" if earliest is None else f"the oldest left is {earliest.id}"
            raise NotFound(
                f"Changes after snapshot {first - 1} need every snapshot since, but {oldest}; compare the two versions "
                "with diff, which needs only both ends.",
                kind="snapshot_expired",
            )
        from lakebed.table.incremental import read_changes  # most programs compare no versions

        return read_changes(
            self._store,
            snapshots=self._log.walk(there),
            end=end,
            schema=self._schemas.load(end.schema_id),
            load_schema=self._schemas.load,
            reader=self._reader,
            layout=self._layout,
        )

    def diff(self, start: Snapshot, end: Snapshot, *, keys: Sequence[str] | None) -> TableDiff:
        """Rows added, removed and changed from one version to another; see `diff_scans`."""
        before, after = self._alike(start, end)
        from lakebed.table.incremental import diff_scans

        return diff_scans(self._store, start=before, end=after, layout=self._layout, keys=keys)

    def plan_diff(self, start: Snapshot, end: Snapshot) -> tuple[list[Split], list[Split], ReadPlan]:
        """What `diff` would read of each version, for those who distribute the work; see `incremental.plan_diff`."""
        before, after = self._alike(start, end)
        from lakebed.table.incremental import plan_diff

        return plan_diff(before, after, layout=self._layout)

    def _alike(self, start: Snapshot, end: Snapshot) -> tuple[Scan, Scan]:
        """Scans of two versions with the columns of the second."""
        request = ScanRequest()
        return (
            self.scan(snapshot=start, request=request, schema_id=end.schema_id),
            self.scan(snapshot=end, request=request, schema_id=end.schema_id),
        )

    # ---- maintenance

    def compact(
        self,
        *,
        full: bool = False,
        where: Mapping[str, object] | None = None,
        dry_run: bool = False,
        progress: Callable[[CompactProgress], None] | None = None,
    ) -> CompactReport:
        """Rewrite small and overlapping files; see `compact`."""
        return self.compactor(where=where).run(full=full, dry_run=dry_run, progress=progress)

    def compactor(self, *, where: Mapping[str, object] | None = None) -> Compactor:
        """Plans, runs and commits compactions, for those who distribute the work.

        Args:
            where: values of partition columns; only such partitions are compacted.
        """
        from lakebed.table.compact import Compactor

        return Compactor(
            self._store,
            layout=self._layout,
            schema=self._schema(),
            load_schema=self._schemas.load,
            newest=self._live,
            commit=lambda changes: self._commit(changes, kind="COMPACT"),
            environment=self._environment,
            partition=where,
        )

    def _live(self) -> tuple[Snapshot, pa.Table] | None:
        newest = self._log.latest()
        return None if newest is None else (newest, self._reader.live_entries(newest))

    # ---- delete by predicate on append tables

    def rewrites(self, where: Predicate | str) -> tuple[list[Rewrite], ReadPlan]:
        """The files of an append table that a delete by predicate has to look into, and the plan to read them by."""
        schema = self._schema()
        check_writable(schema, bucket_count=TableOptions(schema.options).get(BUCKET))
        scan = self.scan(snapshot=self._log.latest(), request=ScanRequest(where=where))
        whole = self.scan(snapshot=scan.snapshot, request=ScanRequest())
        totals = dict(
            zip(*(scan.entries().column(name).to_pylist() for name in ("file_name", "total_buckets")), strict=True)
        )
        alone = [
            Rewrite(replace(split, files=(file,), row_count=file.row_count, needs_merge=False), totals[file.file_name])
            for split in scan.splits()
            for file in split.files
        ]
        return alone, whole.plan

    def _without_rows(self, where: Predicate | str) -> list[BucketChange]:
        """Changes that replace every file with matching rows by one without them."""
        predicate = parse_predicate(where) if isinstance(where, str) else where
        rewrites, plan = self.rewrites(predicate)
        changes: list[BucketChange] = []
        try:
            for rewrite in rewrites:
                change = without_rows(self._store, rewrite, where=predicate, plan=plan, environment=self._environment)
                changes.extend([change] if change is not None else [])
        except Exception:
            self._discard(changes)
            raise
        return changes


def without_rows(
    store: ObjectStore, rewrite: Rewrite, *, where: Predicate, plan: ReadPlan, environment: Environment
) -> BucketChange | None:
    """Write a file anew without the rows that match; None when none does.

    Args:
        store: the table's folder.
        rewrite, plan: of `RowVerbs.rewrites`.
        where: rows for which it is true go.
        environment: gives the new file's name and time.
    """
    split, file = rewrite.split, rewrite.split.files[0]
    settings = WriteSettings.of(plan.schema)
    writer = RollingWriter(
        store,
        folder=split.folder,
        schema=plan.schema,
        settings=settings.files,
        environment=environment,
        targets=targets_of(store, plan.schema, rng=environment.rng),
    )
    kept = 0
    try:
        for batch in read_split(store, split, plan=plan):
            rows = pa.Table.from_batches([batch])
            stays = _not_matching(rows, where)
            kept += stays.num_rows
            if stays.num_rows:
                writer.write(stays)
        if kept == file.row_count:
            discard(store, writer.paths, environment=environment)
            return None
        added = writer.close(first_sequence=file.min_sequence_number)
    except Exception:
        discard(store, writer.paths, environment=environment)
        raise
    return BucketChange(
        partition=split.partition,
        bucket=split.bucket,
        total_buckets=rewrite.total_buckets,
        added=tuple(added),
        deleted=(file,),
    )


def _not_matching(rows: pa.Table, where: Predicate) -> pa.Table:
    """Rows for which the predicate is false or unknown."""
    numbered = rows.append_column("\0row", pa.array(np.arange(rows.num_rows)))
    matching = filter_rows(numbered, where).column("\0row")
    stays = pc.invert(pc.is_in(numbered.column("\0row"), matching.combine_chunks()))
    return rows.filter(stays)


def inside_partition(rows: pa.Table, *, partition: Mapping[str, object], schema: TableSchema) -> pa.Table:
    """Rows of a static overwrite: partition columns that are missing are filled in, those there must agree."""
    for name, constant in partition_scalars(partition, schema=schema).items():
        kind = constant.type
        position = rows.schema.get_field_index(name)
        if position < 0:
            rows = rows.append_column(pa.field(name, kind), pa.repeat(constant, rows.num_rows))
            continue
        found = rows.column(position)
        same = pc.equal(found.cast(kind), constant) if constant.is_valid else pc.is_null(found)
        if rows.num_rows and not pc.all(pc.fill_null(same, False)).as_py():
            raise InvalidRequest(
                f"The overwrite is of the partition {name}={constant}, but some rows have another {name!r}.",
                kind="rows_outside_partition",
                column=name,
            )
    return rows
