"""The facade: one object a table (or branch of one), whose verbs delegate to the rooms beside it.

Owns: the wiring of those rooms, and the schema it last saw. Invariants: no storage logic here; a `Table` is thread-safe; every
verb looks at the newest snapshot, so what was committed before a verb began is seen by it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import Unpack

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import probe_create_only
from lakebed.reclaim.model import Pin, ReclaimPlan, ReclaimReport, Verdict, Version
from lakebed.runtime import Environment
from lakebed.table.auto_tags import AutomaticTagging, make_automatic_tags
from lakebed.table.branches import Branch, Branches
from lakebed.table.commit import CommitRequest, Committer
from lakebed.table.compact import CompactProgress, CompactReport
from lakebed.table.deletion import ProgressCall
from lakebed.table.history import History
from lakebed.table.holders import Line
from lakebed.table.incremental import TableDiff
from lakebed.table.layout import MAIN_BRANCH, Layout
from lakebed.table.manifest_reader import ManifestReader
from lakebed.table.model import (
    BATCH_COMMIT_IDENTIFIER,
    BucketChange,
    CommitKind,
    DataField,
    Rows,
    Snapshot,
    TableSchema,
    Tag,
)
from lakebed.table.options import TAG_DEFAULT_TIME_RETAINED, TableOptions
from lakebed.table.overwrite import Overwrite, derive_overwrite
from lakebed.table.predicate import Predicate
from lakebed.table.row_verbs import CommitOptions, RowVerbs
from lakebed.table.scan import Scan, ScanRequest
from lakebed.table.schema import (
    SchemaLog,
    add_column,
    drop_column,
    move_column,
    new_schema,
    remove_options,
    rename_column,
    set_options,
    widen_column,
)
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.system import SystemTables
from lakebed.table.tags import Tags
from lakebed.table.travel import Resolved, Time, Travel
from lakebed.table.types import arrow_schema
from lakebed.table.versions import TableView, list_pins, list_versions, pin_of, version_of
from lakebed.table.write import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Table"]


class Table:
    """A table at a folder of an object store. Make one with `Table.create` or `Table.open`.

    Attributes:
        name: as its lake knows it, such as ``db.flights``.
        store: the table's folder.
        layout: paths of this branch.
        branch: None for main.
        environment: clock, randomness and concurrency.
        schemas, log, reader, committer, tagger, branches, travel: the rooms, for those who build on them.
    """

    def __init__(
        self, store: ObjectStore, *, name: str, schema: TableSchema, branch: str | None = None, environment: Environment
    ) -> None:
        self.name = name
        self.store = store
        self.branch = None if branch == MAIN_BRANCH else branch
        self.layout = Layout(branch=self.branch)
        self.environment = environment
        self._schema = schema
        self.schemas = SchemaLog(store, self.layout)
        self.log = SnapshotLog(store, layout=self.layout, environment=environment)
        self.reader = ManifestReader(store, self.layout, environment=environment)
        self.committer = Committer(
            store,
            layout=self.layout,
            snapshots=self.log,
            reader=self.reader,
            schema=lambda: self.schema,
            environment=environment,
        )
        self.tagger = Tags(
            store,
            layout=self.layout,
            snapshots=self.log,
            environment=environment,
            default_retained_ms=lambda: self.options.get(TAG_DEFAULT_TIME_RETAINED),
        )

    # ---- making and opening

    @classmethod
    def create(
        cls,
        store: ObjectStore,
        *,
        name: str,
        schema: pa.Schema | Sequence[DataField],
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str = "",
        environment: Environment | None = None,
    ) -> Table:
        """Make a new, empty table in a folder.

        Raises:
            AlreadyExists: the folder holds a table.
            InvalidRequest: an unknown type, key column or option; or a store that ignores create-only puts.
        Cost: the probe of the store + 1 LIST + 1 PUT.
        """
        environment = environment or Environment()
        probe_create_only(store)
        first = new_schema(
            schema,
            primary_keys=primary_keys,
            partition_keys=partition_keys,
            options=options,
            comment=comment,
            time_ms=environment.clock.now_ms(),
        )
        log = SchemaLog(store, Layout())
        if log.ids():
            raise _taken(name, store)
        try:
            created = log.store_next(first)
        except Conflict as taken:
            raise _taken(name, store) from taken
        return cls(store, name=name, schema=created, environment=environment)

    @classmethod
    def open(
        cls, store: ObjectStore, *, name: str, branch: str | None = None, environment: Environment | None = None
    ) -> Table:
        """Open a table, or one of its branches. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
        environment = environment or Environment()
        schema = SchemaLog(store, Layout(branch=None if branch == MAIN_BRANCH else branch)).latest()
        if schema is None:
            what = f"branch {branch!r} of table {name!r}" if branch else f"table {name!r}"
            raise NotFound(
                f"There is no {what} at {store.root_url}.", kind="table_not_found", table=name, branch=branch
            )
        return cls(store, name=name, schema=schema, branch=branch, environment=environment)

    # ---- what it is

    @property
    def url(self) -> str:
        """The table's folder as a URL, without credentials."""
        return self.store.root_url

    @property
    def schema(self) -> TableSchema:
        """The newest schema this object has seen; `refresh` looks again."""
        return self._schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """The same as Arrow fields, in order."""
        return arrow_schema(self._schema.fields)

    @property
    def options(self) -> TableOptions:
        """The table's options, parsed."""
        return TableOptions(self._schema.options)

    def refresh(self) -> TableSchema:
        """Look for a newer schema and remember it. Cost: 1 LIST, 1 GET when there is one."""
        newest = self.schemas.latest()
        if newest is not None:
            self._schema = newest
        return self._schema

    # ---- changing what it is: each is one new schema object; no data file is rewritten. Raises `InvalidRequest`.

    def add_column(
        self, name: str, type: str, *, comment: str | None = None, after: str | None = None, first: bool = False
    ) -> TableSchema:
        """Add a nullable column, by default at the end; rows already there have null in it."""
        return self._change_schema(
            lambda schema: add_column(schema, name, type, comment=comment, after=after, first=first)
        )

    def drop_column(self, name: str) -> TableSchema:
        """Remove a column; older versions keep it, and adding one of the same name does not bring its values back."""
        return self._change_schema(lambda schema: drop_column(schema, name))

    def rename_column(self, old: str, new: str) -> TableSchema:
        """Give a column another name; its values stay."""
        return self._change_schema(lambda schema: rename_column(schema, old, new))

    def widen_column(self, name: str, type: str) -> TableSchema:
        """Give a column a wider type, such as INT to BIGINT."""
        return self._change_schema(lambda schema: widen_column(schema, name, type))

    def move_column(self, name: str, *, after: str | None = None) -> TableSchema:
        """Put a column behind another one, or first."""
        return self._change_schema(lambda schema: move_column(schema, name, after=after))

    def set_options(self, options: Mapping[str, str]) -> TableSchema:
        """Set options; an unknown one is refused with the nearest name."""
        return self._change_schema(lambda schema: set_options(schema, options))

    def remove_options(self, names: Collection[str]) -> TableSchema:
        """Give options their defaults again."""
        return self._change_schema(lambda schema: remove_options(schema, names))

    def _change_schema(self, change: Callable[[TableSchema], TableSchema]) -> TableSchema:
        self._schema = self.schemas.change(change, time_ms=self.environment.clock.now_ms())
        return self._schema

    # ---- writing

    def commit(
        self,
        changes: Sequence[BucketChange],
        *,
        kind: CommitKind = "APPEND",
        commit_user: str | None = None,
        commit_identifier: int = BATCH_COMMIT_IDENTIFIER,
        properties: Mapping[str, str] | None = None,
        watermark: int | None = None,
        overwrite: Overwrite | None = None,
    ) -> Snapshot:
        """Make changes the newest snapshot; see `Committer.commit` for what a lost race, a replay and a conflict mean.

        Args:
            overwrite: also replace these live files, judged against the newest snapshot.
        """
        derive = None
        if overwrite is not None:
            derive = derive_overwrite(changes, overwrite=overwrite, schema=self.schema, reader=self.reader)
            kind, changes = "OVERWRITE", ()
        return self.committer.commit(
            CommitRequest(
                kind=kind,
                changes=changes,
                derive=derive,
                commit_user=commit_user,
                commit_identifier=commit_identifier,
                properties=properties or {},
                watermark=watermark,
            )
        )

    # ---- rows

    @cached_property
    def rows(self) -> RowVerbs:
        """The verbs that write and read rows."""
        return RowVerbs(
            self.store,
            layout=self.layout,
            log=self.log,
            reader=self.reader,
            schemas=self.schemas,
            schema=lambda: self.schema,
            commit=self.commit,
            environment=self.environment,
        )

    def new_writer(self) -> TableWriter:
        """A writer on the newest snapshot: ``.write(rows, deletes=None)``, then ``commit(writer.finish())``."""
        return self.rows.new_writer()

    def write(self, rows: Rows, *, deletes: str | None = None, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append to an append table, upsert into a primary-key table.

        Args:
            rows: Arrow data with the table's column names; values are cast when nothing is lost by it.
            deletes: name of a boolean column: true deletes the row's key (primary-key tables).
            **options: of the commit: see `CommitOptions`.

        Raises:
            InvalidRequest: the rows do not fit the table.
        """
        return self.rows.write(rows, deletes=deletes, **options)

    def append(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Add rows to an append table. Raises `InvalidRequest` for a primary-key table."""
        return self.rows.append(rows, **options)

    def upsert(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Insert or replace rows by primary key; of equal keys the last row wins. Raises `InvalidRequest`."""
        return self.rows.upsert(rows, **options)

    def delete(
        self,
        where: Predicate | str | None = None,
        *,
        keys: Rows | None = None,
        **options: Unpack[CommitOptions],
    ) -> Snapshot | None:
        """Delete rows by predicate, or (primary-key tables) by key.

        Returns:
            The snapshot; None when no row matched the predicate.

        Raises:
            InvalidRequest: neither or both are given, or keys on an append table.
        """
        return self.rows.delete(where, keys=keys, **options)

    def overwrite(
        self,
        rows: Rows,
        *,
        partition: Mapping[str, object] | None = None,
        dynamic: bool = False,
        **options: Unpack[CommitOptions],
    ) -> Snapshot:
        """Replace all rows, those of one partition, or (`dynamic`) those of every partition the new rows lie in."""
        return self.rows.overwrite(rows, partition=partition, dynamic=dynamic, **options)

    def scan(
        self,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        where: Predicate | str | None = None,
    ) -> Scan:
        """Plan a read of a version (the newest by default): ``.splits() .to_batches() .to_arrow() .count()``.

        Args:
            version, timestamp_ms: as `resolve`. A version is read with the columns it had; the newest with today's.
            columns: names, in the order wanted; None: all.
            where: a predicate or its text, such as ``carrier = 'UA' AND month >= 2``.
        """
        request = ScanRequest(columns=columns, where=where)
        if version is None and timestamp_ms is None:
            return self.rows.scan(snapshot=self.log.latest(), request=request)
        found = self.locate(version=version, timestamp_ms=timestamp_ms)
        table = self if found.branch is None else Table.open(self.store, name=self.name, branch=found.branch)
        return table.rows.scan(snapshot=found.snapshot, request=request, schema_id=found.snapshot.schema_id)

    def read(
        self,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        where: Predicate | str | None = None,
    ) -> pa.Table:
        """The rows of a version in memory; arguments as `scan`. No order is promised."""
        return self.scan(version=version, timestamp_ms=timestamp_ms, columns=columns, where=where).to_arrow()

    def to_spark(
        self,
        spark: SparkSession,
        *,
        version: int | str | None = None,
        timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        where: Predicate | str | None = None,
        system: str | None = None,
    ) -> DataFrame:
        """The rows of a version, or a system table, as a DataFrame; see `lakebed.spark.read`.

        Raises:
            InvalidRequest: also when PySpark is not installed.
        """
        # By name: Spark is a face above tables, and loaded only by those who use it.
        frame: DataFrame = importlib.import_module("lakebed.spark").read(
            spark,
            self,
            version=version,
            timestamp_ms=timestamp_ms,
            columns=columns,
            where=where,
            system=system,
        )
        return frame

    def changes(self, start: int | str | None, end: int | str | None = None) -> pa.Table:
        """The rows written after version `start` (None: ever) up to version `end` (None: the newest).

        Returns:
            Append tables: the appended rows. Primary-key tables: the last row of each key written, with ``_row_kind``
            (``+I``, ``+U``, ``-D``). Compactions are left out, and what overwrites and rollbacks took away: see `diff`.

        Raises:
            NotFound: no such version, or snapshots in between have expired.
        """
        return self.rows.changes(None if start is None else self.resolve(version=start), self.resolve(version=end))

    def diff(self, start: int | str, end: int | str | None = None, *, keys: Sequence[str] | None = None) -> TableDiff:
        """Rows added, removed and changed from version `start` to version `end` (None: the newest).

        Args:
            start, end: snapshot ids, tags or branches; any versions, whatever happened in between.
            keys: columns that identify a row; by default the primary key, in append tables the whole row.
        """
        return self.rows.diff(self.resolve(version=start), self.resolve(version=end), keys=keys)

    # ---- maintenance of files

    def compact(
        self,
        *,
        full: bool = False,
        where: Mapping[str, object] | None = None,
        dry_run: bool = False,
        progress: Callable[[CompactProgress], None] | None = None,
    ) -> CompactReport:
        """Rewrite small and overlapping files as fewer, larger ones, in one COMPACT snapshot; no row changes.

        Args:
            full: everything, whatever the triggers say.
            where: values of partition columns; only such partitions.
            dry_run: plan only.
            progress: called after each bucket.
        """
        return self.rows.compact(full=full, where=where, dry_run=dry_run, progress=progress)

    # ---- versions

    def latest(self) -> Snapshot | None:
        """The newest snapshot; None when nothing was ever written. Cost: 1 probe + 1 GET."""
        return self.log.latest()

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """One snapshot by id. Raises `NotFound` with the ids that are there. Cost: 1 GET."""
        return self.log.snapshot(snapshot_id)

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots that have not expired, oldest first, lazily. Cost: 1 LIST + 1 GET each."""
        return self.log.walk()

    @cached_property
    def travel(self) -> Travel:
        """Finds versions by id, name and time."""
        return Travel(snapshots=self.log, tags=self.tagger, newest_of_branch=self._newest_of_branch)

    def resolve(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Snapshot:
        """The snapshot meant by a version or a time; neither: the newest. See `travel` for the rules and errors."""
        return self.locate(version=version, timestamp_ms=timestamp_ms).snapshot

    def locate(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Resolved:
        """As `resolve`, and whether a tag or a branch stands behind it."""
        return self.travel.resolve(version=version, timestamp=timestamp_ms)

    # ---- tags

    def create_tag(
        self,
        name: str,
        *,
        snapshot_id: int | None = None,
        tag: str | None = None,
        timestamp_ms: Time | None = None,
        time_retained_ms: int | None = None,
        if_not_exists: bool = False,
    ) -> Tag:
        """Pin a snapshot under a name: the newest, one by id (expired ones too, while a tag holds them), another tag's, or
        that of a time.

        Raises:
            InvalidRequest: a name that breaks the rules, a negative lifetime, or several sources.
            AlreadyExists: the tag is there.
            NotFound: nothing to tag.
            Conflict: the source expired meanwhile.
        Cost, from the newest snapshot: 1 GET + 2 HEADs + 1 LIST + 1 PUT: 5 requests.
        """
        source = self.travel.source(snapshot_id=snapshot_id, tag=tag, timestamp=timestamp_ms)
        return self.tagger.create(name, source=source, time_retained_ms=time_retained_ms, if_not_exists=if_not_exists)

    def replace_tag(
        self,
        name: str,
        *,
        snapshot_id: int | None = None,
        tag: str | None = None,
        timestamp_ms: Time | None = None,
        time_retained_ms: int | None = None,
    ) -> Tag:
        """Point a tag that is there at another snapshot. Raises as `create_tag`, and `NotFound` for a missing tag."""
        source = self.travel.source(snapshot_id=snapshot_id, tag=tag, timestamp=timestamp_ms)
        return self.history.replace_tag(name, source=source, time_retained_ms=time_retained_ms)

    def rename_tag(self, old: str, new: str) -> Tag:
        """Give a tag another name; a crash in between leaves both. Raises `NotFound`, `AlreadyExists`, `InvalidRequest`."""
        return self.tagger.rename(old, new)

    def tags(self) -> list[Tag]:
        """All tags, oldest snapshot first, then by name. Cost: 1 LIST + 1 GET a tag."""
        return self.tagger.list()

    def tag(self, name: str) -> Tag:
        """One tag. Raises `NotFound` with the names that are there. Cost: 1 GET."""
        return self.tagger.tag(name)

    def tag_exists(self, name: str) -> bool:
        """Whether the tag is there. Cost: 1 HEAD."""
        return self.tagger.exists(name)

    def tag_path(self, name: str) -> str:
        """Where the tag's file is or would be, relative to the table's folder."""
        return self.tagger.path(name)

    def tag_directory(self) -> str:
        """The folder of the tag files, relative to the table's folder."""
        return self.tagger.directory

    def previous_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the newest before this one's; None for the first. Raises `NotFound`."""
        return self.tagger.previous(name)

    def next_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the oldest after this one's; None for the last. Raises `NotFound`."""
        return self.tagger.next(name)

    def tagged_snapshots(self) -> Iterator[Snapshot]:
        """Snapshots that some tag holds, oldest first, each once."""
        return self.tagger.tagged_snapshots()

    def trigger_automatic_tags(self) -> list[Tag]:
        """Make the tags that ``tag.automatic-creation`` and its companions say are due, and drop those beyond
        ``tag.num-retained-max``; a person's tags are never dropped. Run it after commits or from a timer.

        Returns:
            The tags made or moved, oldest period first.
        """
        made, surplus = make_automatic_tags(
            AutomaticTagging.of(self.refresh().options),
            log=self.log,
            tags=self.tagger,
            now_ms=self.environment.clock.now_ms(),
        )
        if surplus:
            self.delete_tag(*surplus, if_exists=True)
        return made

    # ---- branches

    @cached_property
    def branching(self) -> Branches:
        """The table's branches (those of main, also when this object is a branch)."""
        main_log = SnapshotLog(self.store, layout=Layout(), environment=self.environment)
        main_tags = Tags(self.store, layout=Layout(), snapshots=main_log, environment=self.environment)
        return Branches(self.store, tags=main_tags, environment=self.environment)

    def branches(self) -> list[Branch]:
        """All branches but main, by name."""
        return self.branching.list()

    def create_branch(self, name: str, *, tag: str | None = None, snapshot_id: int | None = None) -> Table:
        """A fork that starts from the newest snapshot, or from a tag. Raises `AlreadyExists`, `InvalidRequest`, `NotFound`."""
        if self.branch is not None:
            raise _branch_of_branch(self.branch)
        self.branching.create(name, source=self.travel.source(tag=tag, snapshot_id=snapshot_id))
        return Table.open(self.store, name=self.name, branch=name, environment=self.environment)

    def delete_branch(self, name: str) -> None:
        """Remove a branch with its snapshots and tags; its own data files become orphans. Raises `NotFound`."""
        self.branching.delete(name)

    # ---- letting versions go, bringing them back

    @cached_property
    def history(self) -> History:
        """The verbs that let versions go or bring them back."""
        line = Line(
            store=self.store,
            layout=self.layout,
            snapshots=self.log,
            tags=self.tagger,
            reader=self.reader,
            schema=lambda: self.schema,
            environment=self.environment,
            name=self.name,
        )
        return History(line, self.committer, self.travel, self.branching, self.refresh)

    def expire(
        self,
        *,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than_ms: int | None = None,
        max_deletes: int | None = None,
        dry_run: bool = False,
        progress: ProgressCall | None = None,
    ) -> ReclaimReport:
        """Let the oldest snapshots go, with every file that no snapshot, tag or branch needs then.

        Args:
            retain_max: newest snapshots that may stay whatever their age; default ``snapshot.num-retained.max``.
            retain_min: newest snapshots that always stay; default ``snapshot.num-retained.min``.
            older_than_ms: Unix ms, UTC, exclusive; default now less ``snapshot.time-retained``.
            max_deletes: snapshots at most in one run; default ``snapshot.expire.limit``.
            dry_run: only say what would go; the report's `plan` has it.

        Cost: the lists and delta manifests of what expires, whatever the number and size of tags.
        """
        return self.history.expire(
            retain_max=retain_max,
            retain_min=retain_min,
            older_than_ms=older_than_ms,
            max_deletes=max_deletes,
            dry_run=dry_run,
            progress=progress,
        )

    def delete_tag(self, *names: str, if_exists: bool = False, dry_run: bool = False) -> ReclaimReport:
        """Delete tags, and the files that only they needed. Raises `NotFound` (then none is deleted), `InvalidRequest`."""
        return self.history.delete_tags(names, if_exists=if_exists, dry_run=dry_run)

    def expire_tags(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> ReclaimReport:
        """Delete tags that outlived their lifetime and, with `older_than_ms` (Unix ms, UTC), all made before it."""
        return self.history.expire_tags(older_than_ms=older_than_ms, dry_run=dry_run)

    def rollback_to(
        self, version: int | str | None = None, *, timestamp_ms: Time | None = None, dry_run: bool = False
    ) -> Snapshot:
        """Make an older version the newest; later snapshots and tags go, and the files only they needed.

        Returns:
            The new snapshot, equal to the target under a new id; with `dry_run` the target (`plan_rollback` has the rest).

        Raises:
            NotFound: no such version.
            InvalidRequest: a branch started after it.
        """
        return self.history.roll_back(version, timestamp_ms=timestamp_ms, keeps_history=False, dry_run=dry_run)

    def rollback_to_as_latest(self, version: int | str | None = None, *, timestamp_ms: Time | None = None) -> Snapshot:
        """Make an older version the newest and keep all history. Raises `NotFound`."""
        return self.history.roll_back(version, timestamp_ms=timestamp_ms, keeps_history=True)

    def plan_rollback(self, version: int | str | None = None, *, timestamp_ms: Time | None = None) -> ReclaimPlan:
        """What `rollback_to` would hide and delete. Deletes nothing. Raises as it does."""
        return self.history.plan_rollback(version, timestamp_ms=timestamp_ms)

    def remove_orphan_files(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> ReclaimReport:
        """Delete files that nothing names, last written before a time (Unix ms, UTC; default: a day ago)."""
        return self.history.remove_orphan_files(older_than_ms=older_than_ms, dry_run=dry_run)

    def bytes_alone(self, tag: str) -> int:
        """Bytes that only this tag holds: what deleting it would free. Raises `NotFound`."""
        return self.history.bytes_alone(tag)

    # ---- what every store of a lake answers

    def restore(self, version: int | str) -> Version:
        """Make an older version the newest one; history is kept. As `rollback_to_as_latest`. Raises `NotFound`."""
        return version_of(self.rollback_to_as_latest(version), store=self.name)

    def plan_reclaim(self) -> ReclaimPlan:
        """What cleaning would delete now by the table's own options: expired snapshots, outlived tags."""
        return self.history.plan_reclaim()

    def why(self, path: str) -> Verdict:
        """Who needs an object of the table, or when it may go. `path` is relative to the table. Raises `NotFound`."""
        return self.history.why(path)

    def at(self, version: int | str) -> TableView:
        """A read-only view of one version: a snapshot id, a tag or a branch. Raises `NotFound`, `InvalidRequest`."""
        return TableView(table=self, resolved=self.travel.at_version(version))

    def versions(self) -> Iterator[Version]:
        """Readable versions, oldest first, expired ones that a tag holds included. Cost: 1 GET a snapshot and a tag."""
        return list_versions(self.log, self.tagger, store=self.name)

    def pins(self) -> list[Pin]:
        """Everything that keeps a version alive: tags, forks, consumers, and lakebed's own passing pins."""
        return list_pins(self.store, self.tagger, layout=self.layout, name=self.name)

    def pin(self, name: str, *, version: int | str | None = None, lifetime_ms: int | None = None) -> Pin:
        """As `create_tag`, from any version. Raises `AlreadyExists`, `NotFound`, `InvalidRequest`."""
        tag = self.tagger.create(name, source=self.travel.source_of(version), time_retained_ms=lifetime_ms)
        return pin_of(tag, store=self.name)

    def unpin(self, name: str) -> None:
        """As `delete_tag`: data files that only this tag held go too. Raises `NotFound`."""
        self.delete_tag(name)

    def fork(self, name: str, *, version: int | str | None = None) -> Table:
        """As `create_branch`, from any version. Raises `AlreadyExists`, `NotFound`, `InvalidRequest`."""
        found = None if version is None else self.travel.at_version(version)
        if found is None:
            return self.create_branch(name)
        if found.branch is not None:
            raise _branch_of_branch(found.branch)
        return self.create_branch(name, tag=found.tag, snapshot_id=None if found.tag else found.snapshot.id)

    def system(self, name: str, *, columns: Sequence[str] | None = None, version: int | str | None = None) -> pa.Table:
        """A system table such as ``tags`` or ``$files`` as Arrow; see `system` for their columns.

        Args:
            version: whose files, manifests and partitions; None is the newest.

        Raises:
            InvalidRequest: no such system table or column.
        """
        rooms = SystemTables(self.store, self.layout, self.log, self.tagger, self.schemas, self.reader, self.branching)
        snapshot = None if version is None else self.resolve(version=version)
        return rooms.read(name, columns=columns, snapshot=snapshot)

    def _newest_of_branch(self, name: str) -> Snapshot | None:
        if not self.branching.exists(name):
            return None
        return SnapshotLog(self.store, layout=Layout(branch=name), environment=self.environment).latest()


def _taken(name: str, store: ObjectStore) -> AlreadyExists:
    return AlreadyExists(
        f"There is a table at {store.root_url} already: open it, or create {name!r} elsewhere.",
        kind="table_exists",
        table=name,
    )


def _branch_of_branch(branch: str) -> InvalidRequest:
    return InvalidRequest(
        f"A branch cannot be forked again ({branch!r} is one): fork from main.", kind="branch_of_branch", branch=branch
    )
