"""The facade: one object a table, or branch of one, whose methods call the functions of this package.

Owns: `Table`, and nothing else: each method documents a verb and hands the context to the function that implements it.
Invariants: no storage logic here; a `Table` is thread-safe; every verb looks at the newest snapshot and the newest
schema, so it sees what was committed and changed before it began, however old the object is. What writes, and what
reads rows, is imported by the methods that need it: loading it takes half of the time of a short command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import pyarrow as pa
from typing_extensions import Unpack

from lakebed.arguments import check_arguments
from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Explanation, Pin, Version
from lakebed.runtime import Environment
from lakebed.table.branch import branches, travel
from lakebed.table.branch.branches import Branch
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import SourceOptions, Time
from lakebed.table.model.model import DataField, Rows, Snapshot, TableSchema, Tag
from lakebed.table.model.options import TableOptions
from lakebed.table.model.types import arrow_schema, text_of_type
from lakebed.table.schema import schema as schemas
from lakebed.table.schema.schema import Name, new_schema, schema_html
from lakebed.table.versions import versions
from lakebed.table.versions.versions import TableView
from lakebed.texts import names_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection

    from lakebed.table.changes.incremental import TableDiff
    from lakebed.table.collect.deletion import ProgressCall
    from lakebed.table.collect.expire import ExpireRules
    from lakebed.table.commit.commit import CommitOptions
    from lakebed.table.compaction.compact import CompactProgress, CompactReport
    from lakebed.table.model.predicate_tree import Predicate
    from lakebed.table.read.scan import ReadOptions, Scan
    from lakebed.table.rows.update import Columns

P = ParamSpec("P")


@check_arguments
class Table:
    """A table at a folder of an object store. Make one with `Table.create` or `Table.open`.

    Attributes:
        context: store, schemas, snapshots, tags and manifests of this branch, for code that builds on tables.
        name: as its lake knows it, such as ``db.flights``.
        store: the table's folder.
        branch: None for main.
    """

    def __init__(self, context: TableBranch) -> None:
        self.context = context
        self.name = context.name
        self.store = context.store
        self.branch = context.branch

    def __repr__(self) -> str:
        branch = "" if self.branch is None else f", branch={self.branch!r}"
        return f"Table({self.name!r}, url={self.url!r}{branch})"

    def _repr_html_(self) -> str:
        return schema_html(self.schema, title=repr(self))

    def __reduce__(self) -> tuple[object, ...]:
        """As the address that another process opens; a store in this process's memory refuses it."""
        return _unpickle, (self.store, self.name, self.schema, self.branch)

    # ---- create and open

    @classmethod
    def create(
        cls,
        store: ObjectStore,
        *,
        name: str,
        schema: pa.Schema | Sequence[DataField],
        primary_keys: str | Sequence[str] = (),
        partition_keys: str | Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str = "",
        environment: Environment | None = None,
    ) -> Table:
        """Create an empty table in a folder. The put of the first schema decides between racing creators.

        Raises `AlreadyExists`, `InvalidRequest` (an unknown type, key column or option). Cost: 1 LIST + 1 PUT. The
        store is not probed: its lake was (`Lake.open`).
        """
        environment = environment or Environment()
        now_ms = environment.clock.now_ms()
        keys = {"primary_keys": primary_keys, "partition_keys": partition_keys}
        first = new_schema(schema, **keys, options=options, comment=comment, time_ms=now_ms)
        return cls(branches.create_main(store, name=name, schema=first, environment=environment))

    @classmethod
    def open(
        cls, store: ObjectStore, *, name: str, branch: str | None = None, environment: Environment | None = None
    ) -> Table:
        """Open a table, or one of its branches. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
        return cls(branches.open_branch(store, name=name, branch=branch, environment=environment or Environment()))

    # ---- schema and options

    @property
    def url(self) -> str:
        """The table's folder as a URL, without credentials."""
        return self.store.root_url

    @property
    def schema(self) -> TableSchema:
        """The newest schema this object has seen; `refresh` looks again, and so do all verbs for themselves."""
        return self.context.schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """The same as Arrow fields, in order."""
        return arrow_schema(self.schema.fields)

    @property
    def options(self) -> TableOptions:
        """The table's options, parsed."""
        return self.context.options

    def refresh(self) -> TableSchema:
        """Look for a newer schema and remember it. Raises `NotFound`. Cost: 1 LIST, 1 GET when there is one."""
        return self.context.refresh()

    # Each change is one new schema object; no data file is rewritten. Raises `InvalidRequest`.

    def add_column(
        self,
        name: Name,
        type: str | pa.DataType,
        *,
        comment: str | None = None,
        after: str | None = None,
        first: bool = False,
    ) -> TableSchema:
        """Add a nullable column, by default at the end, null in existing rows; a tuple: see `table.model.nested`.

        The type is the table format's, such as ``"DECIMAL(10, 2)"``, or Arrow's.
        """
        return self._change_schema(
            schemas.add_column, name, text_of_type(type), comment=comment, after=after, first=first
        )

    def drop_column(self, name: Name) -> TableSchema:
        """Remove a column; older versions keep it, and a new column of the same name does not restore its values."""
        return self._change_schema(schemas.drop_column, name)

    def rename_column(self, old: Name, new: str) -> TableSchema:
        """Rename a column; its values stay."""
        return self._change_schema(schemas.rename_column, old, new)

    def widen_column(self, name: str, type: str | pa.DataType) -> TableSchema:
        """Give a column a wider type, such as INT to BIGINT, of the table format or of Arrow."""
        return self._change_schema(schemas.widen_column, name, text_of_type(type))

    def move_column(self, name: str, *, after: str | None = None) -> TableSchema:
        """Move a column behind another one, or to the front."""
        return self._change_schema(schemas.move_column, name, after=after)

    def set_options(self, options: Mapping[str, str]) -> TableSchema:
        """Set options; the error for an unknown one names the nearest."""
        return self._change_schema(schemas.set_options, options)

    def remove_options(self, names: Collection[str]) -> TableSchema:
        """Reset options to their defaults."""
        return self._change_schema(schemas.remove_options, names)

    def _change_schema(
        self, change: Callable[Concatenate[TableSchema, P], TableSchema], *args: P.args, **options: P.kwargs
    ) -> TableSchema:
        return self.context.schemas.change(
            lambda schema: change(schema, *args, **options), time_ms=self.context.now_ms()
        )

    # ---- write rows

    def write(self, rows: Rows, *, deletes: str | None = None, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append to an append table, upsert into a primary-key table. Raises `InvalidRequest` when rows do not fit.

        Args:
            rows: Arrow data, a DataFrame of pandas or polars, a relation of DuckDB, or another object that exports an
                Arrow stream, with the table's column names; values are cast where the cast is lossless.
            deletes: name of a boolean column: true deletes the row's key (primary-key tables).
            **options: of the commit (`CommitOptions`): `commit_user` with `commit_identifier`, a pair that is committed
                once, however often it is tried; `properties` of the snapshot, which are texts; `watermark`.
        """
        from lakebed.table.rows.rows import write

        return write(self.context, rows, deletes=deletes, options=options)

    def append(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Add rows to an append table. Raises `InvalidRequest` for a primary-key table. Other arguments as `write`."""
        from lakebed.table.rows.rows import append

        return append(self.context, rows, options=options)

    def upsert(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Insert or replace rows by primary key; of equal keys the last row wins. Raises `InvalidRequest`.

        Other arguments as `write`.
        """
        from lakebed.table.rows.rows import upsert

        return upsert(self.context, rows, options=options)

    def delete(
        self, where: Predicate | str | None = None, *, keys: Rows | None = None, **options: Unpack[CommitOptions]
    ) -> Snapshot | None:
        """Delete rows by predicate, or (primary-key tables) by key. Returns None when no row matched the predicate.

        Raises `InvalidRequest`: neither or both are given, or keys on an append table. Other arguments as `write`.
        """
        from lakebed.table.rows.rows import delete

        return delete(self.context, where, keys=keys, options=options)

    def update(self, where: Predicate | str, set: Columns, **options: Unpack[CommitOptions]) -> Snapshot | None:
        """Change columns of the rows that a predicate finds, in one commit. Returns None when it finds none.

        Args:
            set: new values by column: one for all rows, or a function of the rows found (Arrow table to array).
            **options: as `write`.

        Raises `InvalidRequest`: a key column, or an engine that does not replace rows. Cost: as `delete`, and the rows.
        """
        from lakebed.table.rows.update import update

        return update(self.context, where, set, options=options)

    def overwrite(
        self,
        rows: Rows,
        *,
        partition: Mapping[str, object] | None = None,
        dynamic: bool = False,
        **options: Unpack[CommitOptions],
    ) -> Snapshot:
        """Replace all rows, those of one partition, or (`dynamic`) those of every partition of the new rows.

        Other arguments as `write`.
        """
        from lakebed.table.rows.rows import overwrite

        return overwrite(self.context, rows, partition=partition, dynamic=dynamic, options=options)

    # ---- read rows

    def scan(self, **options: Unpack[ReadOptions]) -> Scan:
        """Plan a read of a version (the newest by default): ``.splits() .to_batches() .to_arrow() .count()``.

        A version is read with the columns it had, the newest one with today's.

        Args:
            **options: which rows (`ReadOptions`): `columns`, one name or several; `where`, such as
                ``"carrier = 'UA' AND month >= 2"``; `limit`, at most so many. And of what: of `version`, a snapshot's
                id or the name of a tag or branch, of a `tag`, or of the newest version at `timestamp_ms`.
        """
        from lakebed.table.read.scan import plan_scan

        return plan_scan(self.context, options)

    def read(self, **options: Unpack[ReadOptions]) -> pa.Table:
        """The rows of a version in memory; arguments as `scan`. No order is promised."""
        return self.scan(**options).to_arrow()

    def to_pandas(self, **options: Unpack[ReadOptions]) -> pd.DataFrame:
        """The rows of a version as a pandas DataFrame; arguments as `scan`."""
        return self.scan(**options).to_pandas()

    def to_polars(self, **options: Unpack[ReadOptions]) -> pl.DataFrame:
        """The rows of a version as a polars DataFrame; arguments as `scan`."""
        return self.scan(**options).to_polars()

    def to_duckdb(
        self, table_name: str, connection: DuckDBPyConnection | None = None, **options: Unpack[ReadOptions]
    ) -> DuckDBPyConnection:
        """The rows of a version as a view in DuckDB, as `Scan.to_duckdb`; other arguments as `scan`."""
        return self.scan(**options).to_duckdb(table_name, connection)

    def changes(self, start: int | str | None, end: int | str | None = None) -> pa.Table:
        """The rows written after version `start` (None: ever) up to version `end` (None: the newest).

        Returns:
            Append tables: the appended rows. Primary-key tables: the last row of each key written, with ``_row_kind``
            (``+I``, ``+U``, ``-D``). With a changelog producer: every row of the changelog files of these snapshots,
            oldest first, and ``-U`` for what a row was before ``+U``. Rows removed by overwrites and rollbacks are left
            out: see `diff`.

        Raises `NotFound`: no such version, or snapshots in between have expired.
        """
        from lakebed.table.changes import incremental

        return incremental.changes(self.context, start, end)

    def diff(
        self, start: int | str, end: int | str | None = None, *, keys: str | Sequence[str] | None = None
    ) -> TableDiff:
        """Rows added, removed and changed from version `start` to version `end` (None: the newest).

        Args:
            start, end: snapshot ids, tags or branches; any versions, whatever happened in between.
            keys: columns that identify a row; by default the primary key, in append tables the whole row.
        """
        from lakebed.table.changes import incremental

        return incremental.diff(self.context, start, end, keys=None if keys is None else names_of(keys))

    def system(
        self, name: str, *, columns: str | Sequence[str] | None = None, version: int | str | None = None
    ) -> pa.Table:
        """A system table such as ``tags`` or ``$files`` as Arrow, of a version or (None) of now.

        Raises as `lakebed.table.versions.system.read_system_table`, whose module has the columns.
        """
        from lakebed.table.versions.system import read_system_table

        target = None if version is None else travel.resolve(self.context, version=version, timestamp=None)
        return read_system_table(self.context, name, columns=columns, version=target)

    # ---- versions

    def latest(self) -> Snapshot | None:
        """The newest snapshot; None when nothing was ever written. Cost: 1 probe + 1 GET.

        Raises `NotFound`: this is a branch that was deleted or renamed.
        """
        newest = self.context.snapshots.latest()
        if newest is None:
            self.context.schemas.confirm_branch()
        return newest

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """One snapshot by id. Raises `NotFound` with the ids that exist. Cost: 1 GET."""
        return self.context.snapshots.snapshot(snapshot_id)

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots that have not expired, oldest first, lazily. Raises as `latest`. Cost: 1 LIST + 1 GET each."""
        is_empty = True
        for snapshot in self.context.snapshots.walk():
            is_empty = False
            yield snapshot
        if is_empty:
            self.context.schemas.confirm_branch()

    def resolve(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Snapshot:
        """The snapshot of a version or a time; neither: the newest. See `travel` for the rules and errors."""
        return travel.resolve(self.context, version=version, timestamp=timestamp_ms).snapshot

    def at(self, version: int | str) -> TableView:
        """A read-only view of one version: a snapshot id, a tag or a branch. Raises `NotFound`, `InvalidRequest`."""
        return TableView(table=self, resolved=travel.at_version(self.context, version))

    def versions(self) -> Iterator[Version]:
        """Readable versions, oldest first, expired ones that a tag holds included. Cost: 1 GET a snapshot and a tag."""
        return versions.list_versions(self.context)

    def pins(self) -> list[Pin]:
        """Everything that keeps a version: tags, forks, consumers, and lakebed's own temporary pins."""
        return versions.list_pins(self.context)

    def pin(self, name: str, *, version: int | str | None = None, lifetime_ms: int | None = None) -> Pin:
        """As `create_tag`, from any version. Raises `AlreadyExists`, `NotFound`, `InvalidRequest`."""
        return versions.pin_version(self.context, name, version=version, lifetime_ms=lifetime_ms)

    def unpin(self, name: str) -> None:
        """As `delete_tag`: data files that only this tag held are deleted too. Raises `NotFound`."""
        self.delete_tag(name)

    # ---- tags

    def create_tag(
        self,
        name: str,
        *,
        lifetime_ms: int | None = None,
        if_not_exists: bool = False,
        **source: Unpack[SourceOptions],
    ) -> Tag:
        """Pin a snapshot under a name: the newest, or that of `source`.

        Args:
            lifetime_ms: from now; None: the table's ``tag.default-time-retained``, else until it is deleted.
            if_not_exists: return an existing tag, as it is, instead of raising.
            **source: at most one of `snapshot_id`, another `tag`, and `timestamp_ms`, for the newest snapshot then.

        Raises `InvalidRequest` (a wrong name, a negative lifetime, several sources), `AlreadyExists`, `NotFound`
        (nothing to tag), `Conflict` (the source expired meanwhile). Cost, from the newest snapshot: 6 requests.
        """
        tag_source = travel.source(self.context, source)
        return self.context.tags.create(name, source=tag_source, lifetime_ms=lifetime_ms, if_not_exists=if_not_exists)

    def replace_tag(self, name: str, *, lifetime_ms: int | None = None, **source: Unpack[SourceOptions]) -> Tag:
        """Point an existing tag at another snapshot. Raises as `create_tag`, and `NotFound` for a missing tag.

        Other arguments as `create_tag`.
        """
        from lakebed.table.collect import expire

        tag_source = travel.source(self.context, source)
        return expire.replace_tag(self.context, name, source=tag_source, lifetime_ms=lifetime_ms)

    def rename_tag(self, old: str, new: str) -> Tag:
        """Rename a tag; a crash leaves both names. Raises `NotFound`, `AlreadyExists`, `InvalidRequest`."""
        return self.context.tags.rename(old, new)

    def delete_tag(self, *names: str, if_exists: bool = False, dry_run: bool = False) -> CollectionReport:
        """Delete tags, and the files that only they needed. Raises `NotFound` (none is deleted), `InvalidRequest`."""
        from lakebed.table.collect import expire

        return expire.delete_tags(self.context, names, if_exists=if_exists, dry_run=dry_run)

    def expire_tags(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> CollectionReport:
        """Delete tags past their lifetime and, with `older_than_ms` (Unix ms, UTC), all created before it."""
        from lakebed.table.collect import expire

        return expire.expire_tags(self.context, older_than_ms=older_than_ms, dry_run=dry_run)

    def tags(self) -> list[Tag]:
        """All tags, oldest snapshot first, then by name. Raises as `latest`. Cost: 1 LIST + 1 GET a tag not read."""
        tags = self.context.tags.list()
        if not tags:
            self.context.schemas.confirm_branch()
        return tags

    def tag(self, name: str) -> Tag:
        """One tag. Raises `NotFound` with the names that exist. Cost: 1 GET."""
        return self.context.tags.tag(name)

    def tag_exists(self, name: str) -> bool:
        """Whether the tag exists. Cost: 1 HEAD."""
        return self.context.tags.exists(name)

    def tag_path(self, name: str) -> str:
        """Where the tag's file is or would be, relative to the table's folder."""
        return self.context.layout.tag(name)

    def tag_directory(self) -> str:
        """The folder of the tag files, relative to the table's folder."""
        return self.context.layout.tag_folder

    def previous_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the newest before this one's; None for the first. Raises `NotFound`."""
        return self.context.tags.previous(name)

    def next_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the oldest after this one's; None for the last. Raises `NotFound`."""
        return self.context.tags.next(name)

    def tagged_snapshots(self) -> Iterator[Snapshot]:
        """Snapshots that some tag holds, oldest first, each once."""
        return self.context.tags.tagged_snapshots()

    def trigger_automatic_tags(self) -> list[Tag]:
        """Create the automatic tags that are due, by ``tag.automatic-creation`` and its companions.

        Automatic tags beyond ``tag.num-retained-max`` are deleted, others never. Run it after commits or from a timer.
        Returns the tags created or moved, oldest period first.
        """
        from lakebed.table.versions import auto_tags

        return auto_tags.trigger_automatic_tags(self.context)

    # ---- branches

    def branches(self) -> list[Branch]:
        """All branches but main, by name."""
        return branches.list_branches(self.context.main)

    def create_branch(
        self,
        name: str,
        *,
        version: int | str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
    ) -> Table:
        """Begin another line of history at the newest snapshot, or at a version: an id, a tag or a pin.

        Args:
            version: as of `at`; give it, or `tag`, or `snapshot_id`, which take a tag only or an id only.

        Raises `AlreadyExists`, `NotFound`, `InvalidRequest` (also for two sources, and for a branch of a branch).
        """
        if self.branch is not None:
            raise branches.branch_of_branch(self.branch)
        if version is not None:
            if tag is not None or snapshot_id is not None:
                raise InvalidRequest(
                    "A branch begins at one version: give version, tag or snapshot_id.", kind="invalid_version"
                )
            target = travel.at_version(self.context, version)
            if target.branch is not None:
                raise branches.branch_of_branch(target.branch)
            tag, snapshot_id = target.tag, None if target.tag else target.snapshot.id
        branches.create_branch(
            self.context, name, source=travel.source(self.context, {"tag": tag, "snapshot_id": snapshot_id})
        )
        return branch_of(self, name)

    def fast_forward(self, branch: str, *, dry_run: bool = False) -> Snapshot:
        """Publish a branch: its newest version becomes main's, in one commit. The branch stays.

        Main must not have moved since the branch started, or since it was last fast-forwarded to this branch. Schemas
        that were made in the branch become main's first.

        Returns main's new snapshot; its newest when there is nothing to do; with `dry_run` the branch's newest.
        Raises `NotFound`, `Conflict` (kind ``not_fast_forward``: main has commits or schemas of its own since),
        `InvalidRequest` (a branch of another client, or this is a branch). Cost: both versions' manifests, 1 commit.
        """
        from lakebed.table.versions.fast_forward import fast_forward

        return fast_forward(self.context, branch, dry_run=dry_run)

    def rename_branch(self, old: str, new: str) -> Table:
        """Give a branch another name, with its snapshots, tags and consumers; returns the branch, opened.

        Its files are copied to the new name, and then the old name is gone: what was opened by it raises `NotFound`. A
        commit to the old name is in the new one, or raises an error and is nowhere. A rename that was cut short is
        finished by the next process that renames again, opens or lists branches, or collects.

        Raises `NotFound`: there is no branch `old`; `AlreadyExists`: there is one called `new`; `InvalidRequest`: a
        name breaks the rules, or is ``main``, or another client made the branch. Cost: 2 GETs and 2 PUTs a snapshot and
        tag of the branch, and about 40 requests.
        """
        branches.rename_branch(self.context.main, old, new)
        return branch_of(self, new)

    def delete_branch(self, name: str) -> None:
        """Delete a branch with its snapshots and tags; its own data files become orphans. Raises `NotFound`."""
        branches.delete_branch(self.context.main, name)

    # ---- expiry, rollback, maintenance

    def expire(
        self, *, dry_run: bool = False, progress: ProgressCall | None = None, **rules: Unpack[ExpireRules]
    ) -> CollectionReport:
        """Expire the oldest snapshots, and delete every file that no snapshot, tag or branch needs then.

        Args:
            dry_run: delete nothing; the report's `plan` says what would go.
            **rules: which snapshots (`ExpireRules`), by default the table's options: `retain_max`, the newest that may
                stay whatever their age; `retain_min`, the newest that always stay; `older_than_ms`, Unix milliseconds;
                `max_deletes`, snapshots at most; `by_order`, by their order alone, where times are wrong.

        Cost: the lists and delta manifests of what expires, whatever the number and size of tags.
        """
        from lakebed.table.collect import expire

        return expire.expire(self.context, rules, dry_run=dry_run, progress=progress)

    def rollback_to(
        self,
        version: int | str | None = None,
        *,
        timestamp_ms: Time | None = None,
        dry_run: bool = False,
        only_from: int | None = None,
    ) -> Snapshot:
        """Make an older version the newest; delete later snapshots and tags, and the files only they needed.

        Args:
            only_from: only while the snapshot of this id is the newest; None: whichever is.

        Returns the new snapshot, equal to the target under a new id; with `dry_run` the target (`plan_rollback` has
        the rest). Raises `NotFound`, `InvalidRequest` (a branch started after it), `Conflict` (kind ``moved_on``:
        another snapshot than `only_from` is the newest; nothing was changed).
        """
        from lakebed.table.versions.rollback import roll_back

        return roll_back(
            self.context,
            version,
            timestamp_ms=timestamp_ms,
            keeps_history=False,
            dry_run=dry_run,
            only_from=only_from,
        )

    def rollback_to_as_latest(
        self, version: int | str | None = None, *, timestamp_ms: Time | None = None, dry_run: bool = False
    ) -> Snapshot:
        """Make an older version the newest and keep all history; with `dry_run` only check. Raises `NotFound`."""
        from lakebed.table.versions.rollback import roll_back

        return roll_back(self.context, version, timestamp_ms=timestamp_ms, keeps_history=True, dry_run=dry_run)

    def plan_rollback(self, version: int | str | None = None, *, timestamp_ms: Time | None = None) -> CollectionPlan:
        """What `rollback_to` would hide and delete. Deletes nothing. Raises as it does."""
        from lakebed.table.versions import rollback

        return rollback.plan_rollback(self.context, version, timestamp_ms=timestamp_ms)

    def restore(self, version: int | str) -> Version:
        """Make an older version the newest one; history is kept. As `rollback_to_as_latest`. Raises `NotFound`."""
        return versions.version_of(self.rollback_to_as_latest(version), store=self.name)

    def compact(
        self,
        *,
        full: bool = False,
        where: Mapping[str, object] | None = None,
        dry_run: bool = False,
        progress: Callable[[CompactProgress], None] | None = None,
    ) -> CompactReport:
        """Rewrite small and overlapping files as fewer, larger ones, in one COMPACT snapshot; no row changes.

        Arguments as `compact.compact`: `full` ignores the triggers, `where` has values of partition columns.
        """
        from lakebed.table.compaction.compact import compact

        return compact(self.context, full=full, where=where, dry_run=dry_run, progress=progress)

    def collect(self, *, grace_ms: int | None = None, dry_run: bool = False) -> CollectionReport:
        """Delete files that nothing references and that were written longer ago than a time (ms; default: a day).

        A time shorter than a write that is under way takes its files, and its version misses them.

        Raises `InvalidRequest`: ``invalid_grace``; as `orphans.remove_orphan_files`.
        """
        from lakebed.table.collect import orphans

        older_than_ms = None if grace_ms is None else orphans.older_than(self.context, grace_ms)
        return orphans.remove_orphan_files(self.context, older_than_ms=older_than_ms, dry_run=dry_run)

    def plan_collection(self) -> CollectionPlan:
        """What cleaning would delete now by the table's own options: expired snapshots, tags past their lifetime."""
        from lakebed.table.collect import expire

        return expire.plan_collection(self.context)

    def bytes_alone(self, tag: str) -> int:
        """Bytes that only this tag holds: what deleting it would free. Raises `NotFound`."""
        from lakebed.table.collect import bytes_alone

        return bytes_alone.bytes_alone(self.context, [self.context.tags.tag(tag).name]).get(tag, 0)

    def why(self, path: str) -> Explanation:
        """Which versions need an object of the table (by relative path), or when it may go. Raises `NotFound`."""
        from lakebed.table.versions import why

        return why.why(self.context, path)

    def why_version(self, version: int | str) -> Explanation:
        """What keeps a version, and what would free it. As `lakebed.table.versions.why.why_version`."""
        from lakebed.table.versions import why

        return why.why_version(self.context, version)


def branch_of(table: Table, branch: str) -> Table:
    """Another branch of a table that is open. Raises `NotFound`. Cost: as `Table.open`."""
    return Table.open(table.store, name=table.name, branch=branch, environment=table.context.environment)


def _unpickle(store: ObjectStore, name: str, schema: TableSchema, branch: str | None) -> Table:
    """A table that was pickled. Cost: no request."""
    return Table(branches.reopen_branch(store, name=name, schema=schema, branch=branch, environment=Environment()))
