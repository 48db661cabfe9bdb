"""The facade: one object for each table, or branch of a table, whose methods call the functions of this package.

Owns: `Table`, and nothing else. Each method documents a verb and passes the context to the function that implements it.

Invariants: no storage logic is here. A `Table` is thread-safe. Every verb reads the newest snapshot and the newest
schema, so it sees what was committed and changed before it began, however old the object is. The methods that write or
read rows import the code for it: loading it takes half of the time of a short command.
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
    """A table in a folder of an object store. Open one with `Lake.table`, `Table.open` or `Table.create`.

    Attributes:
        name: the name in its lake, such as ``db.flights``.
        store: the object store at the table's folder.
        branch: the branch that this object reads and writes; None: main.
        context: store, schemas, snapshots, tags and manifests of the branch, for code that builds on tables.
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
        """Pickle the address, which another process opens. A store in this process's memory cannot be pickled."""
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
        """Create an empty table in a folder. Of several processes that create it at once, one succeeds.

        The store is not probed, as `lakebed.open` probes it for a lake.

        Args:
            store: the object store at the table's folder.
            name: the name that errors and pins show, such as ``db.flights``.
            schema: columns, as Arrow fields or as `DataField`.
            primary_keys: one column or several; none: an append table.
            partition_keys: columns whose values become folders.
            options: table options by their Paimon names, such as ``{"bucket": "4"}``.

        Raises:
            AlreadyExists: there is a table in the folder.
            InvalidRequest: a type, key column or option is not valid.

        Cost: 1 LIST + 1 PUT.
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
        """Open the table in a folder, or one of its branches.

        Raises `NotFound` if there is no such table or branch. Cost: 1 LIST + 1 GET.
        """
        return cls(branches.open_branch(store, name=name, branch=branch, environment=environment or Environment()))

    # ---- schema and options

    @property
    def url(self) -> str:
        """The URL of the table's folder, without credentials."""
        return self.store.root_url

    @property
    def schema(self) -> TableSchema:
        """The newest schema that this object has seen. `refresh` looks for a newer one, and so does every verb."""
        return self.context.schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of `schema` as Arrow fields, in order."""
        return arrow_schema(self.schema.fields)

    @property
    def options(self) -> TableOptions:
        """The table's options, parsed, with defaults."""
        return self.context.options

    def refresh(self) -> TableSchema:
        """Look for a newer schema, remember it and return it.

        Raises `NotFound` if the table or branch is gone. Cost: 1 LIST, and 1 GET if there is a newer schema.
        """
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
        """Add a column that may be null. Existing rows have null in it, and no file is rewritten.

        Args:
            name: of the column. A tuple names a field inside a column: ``("orders", "element", "price")`` is ``price``
                in ``ARRAY<ROW<...>>``; ``value`` stands for the values of a map.
            type: type of the table format, such as ``"DECIMAL(10, 2)"``, or an Arrow type.
            comment: text that schemas show.
            after: put the column behind this one. By default it is the last.
            first: put the column first.

        Raises:
            InvalidRequest: the column exists, or a name or type is not valid.
        """
        return self._change_schema(
            schemas.add_column, name, text_of_type(type), comment=comment, after=after, first=first
        )

    def drop_column(self, name: Name) -> TableSchema:
        """Remove a column. Older versions keep it. A new column of the same name does not restore its values.

        A tuple names a field inside a column, as in `add_column`. Raises `InvalidRequest` if the column is missing or
        needed.
        """
        return self._change_schema(schemas.drop_column, name)

    def rename_column(self, old: Name, new: str) -> TableSchema:
        """Rename a column. Its values stay. A tuple names a field inside a column, as in `add_column`.

        Raises `InvalidRequest` if the column is missing or the new name is taken or not valid.
        """
        return self._change_schema(schemas.rename_column, old, new)

    def widen_column(self, name: Name, type: str | pa.DataType) -> TableSchema:
        """Give a column a wider type, such as BIGINT for INT: a type of the table format or of Arrow.

        A tuple is the path of a part of a column: see `table.model.nested`.

        Raises `InvalidRequest` if the column is missing, or if the type could not hold every value.
        """
        return self._change_schema(schemas.widen_column, name, text_of_type(type))

    def move_column(self, name: str, *, after: str | None = None) -> TableSchema:
        """Move a column behind the column `after`, or (None) to the front.

        Raises `InvalidRequest` if a column is missing.
        """
        return self._change_schema(schemas.move_column, name, after=after)

    def set_options(self, options: Mapping[str, str]) -> TableSchema:
        """Set table options. Other options stay.

        Raises `InvalidRequest` for an unknown option, with the nearest name, and for a value that is not valid.
        """
        return self._change_schema(schemas.set_options, options)

    def remove_options(self, names: Collection[str]) -> TableSchema:
        """Reset options to their defaults. Raises `InvalidRequest` for a name that is no option."""
        return self._change_schema(schemas.remove_options, names)

    def _change_schema(
        self, change: Callable[Concatenate[TableSchema, P], TableSchema], *args: P.args, **options: P.kwargs
    ) -> TableSchema:
        return self.context.schemas.change(
            lambda schema: change(schema, *args, **options), time_ms=self.context.now_ms()
        )

    # ---- write rows

    def write(self, rows: Rows, *, deletes: str | None = None, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append rows to an append table, or upsert them into a table with a primary key. Return the new snapshot.

        Args:
            rows: Arrow data, a DataFrame of pandas or polars, a relation of DuckDB, or any object that exports an Arrow
                stream. Columns have the table's names. Values are cast if the cast loses nothing.
            deletes: name of a boolean column of `rows`. True deletes the key of the row (tables with a primary key).
            **options: of the commit (`CommitOptions`). `commit_user` and `commit_identifier` name the write: a pair is
                committed once, however often the write is repeated. `properties` are texts stored in the snapshot.
                `watermark` is in Unix milliseconds.

        Raises:
            InvalidRequest: the rows do not fit the table.
            Conflict: other writers changed the table in every try.
            NotFound: the table was dropped.
        """
        from lakebed.table.rows.rows import write

        return write(self.context, rows, deletes=deletes, options=options)

    def append(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Append rows to an append table. Arguments, result and errors as `write`.

        Raises `InvalidRequest` for a table with a primary key.
        """
        from lakebed.table.rows.rows import append

        return append(self.context, rows, options=options)

    def upsert(self, rows: Rows, **options: Unpack[CommitOptions]) -> Snapshot:
        """Insert rows, or replace the rows of the same primary key. Arguments, result and errors as `write`.

        If `rows` has a key several times, its last row wins. Raises `InvalidRequest` for an append table.
        """
        from lakebed.table.rows.rows import upsert

        return upsert(self.context, rows, options=options)

    def delete(
        self, where: Predicate | str | None = None, *, keys: Rows | None = None, **options: Unpack[CommitOptions]
    ) -> Snapshot | None:
        """Delete rows by predicate, or by key in a table with a primary key.

        Deleting a missing key has no effect.

        Args:
            where: predicate or its text, such as ``"month < 3"``. Give this or `keys`.
            keys: rows with the key columns, as the rows of `write`.
            **options: as `write`.

        Returns:
            The new snapshot; None when no row matched the predicate.

        Raises:
            InvalidRequest: neither or both of `where` and `keys` are given, or `keys` for an append table.
            Conflict: other writers changed the same files or rows in every try.

        Cost: of a predicate, a read of the files that may match. A table with a primary key writes one delete for each
            row. An append table rewrites the files that have matching rows, or, with deletion vectors, writes one index
            file for each partition.
        """
        from lakebed.table.rows.rows import delete

        return delete(self.context, where, keys=keys, options=options)

    def update(self, where: Predicate | str, set: Columns, **options: Unpack[CommitOptions]) -> Snapshot | None:
        """Change columns of the rows that match a predicate, in one commit.

        Args:
            where: predicate or its text.
            set: new values by column. Each is a value for all matching rows, or a function that takes the matching rows
                (an Arrow table) and returns an array.
            **options: as `write`.

        Returns:
            The new snapshot; None when no row matches.

        Raises:
            InvalidRequest: a column of the key is set, or the merge engine does not replace rows.
            Conflict: other writers changed the same files or rows in every try.

        Cost: as `delete` by predicate, and a write of the matching rows.
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
        """Replace all rows of the table, or those of some partitions, in one commit. Return the new snapshot.

        Args:
            rows: as `write`. An empty table of rows deletes what is replaced.
            partition: replace only the partition with these values of the partition columns.
            dynamic: replace only the partitions that have rows in `rows`.
            **options: as `write`.

        Raises:
            InvalidRequest: `rows` do not fit the table or are outside of `partition`.
            Conflict: other writers changed the columns or options in every try.
        """
        from lakebed.table.rows.rows import overwrite

        return overwrite(self.context, rows, partition=partition, dynamic=dynamic, options=options)

    # ---- read rows

    def scan(self, **options: Unpack[ReadOptions]) -> Scan:
        """Plan a read of a version, by default the newest. Data files are read when you ask for rows.

        Call `to_arrow`, `to_batches`, `count` or `splits` of the result. A version is read with the columns that it
        had; the newest version is read with the columns of today.

        Args:
            **options: which rows (`ReadOptions`). `columns` is a name or several names; `where` is a predicate or its
                text, such as ``"carrier = 'UA' AND month >= 2"``; `limit` is the most rows to return. At most one of
                these names
                the version: `version`, a snapshot's id or the name of a tag or branch; `tag`; `timestamp_ms`, for the
                    newest version then.

        Raises:
            InvalidRequest: several versions are given, or columns or predicate do not fit the table.
            NotFound: there is no such version.
        """
        from lakebed.table.read.scan import plan_scan

        return plan_scan(self.context, options)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows of the newest version as an Arrow C stream, so other libraries take the table as it is."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def read(self, **options: Unpack[ReadOptions]) -> pa.Table:
        """Return the rows of a version as an Arrow table in memory, in any order. Arguments as `scan`."""
        return self.scan(**options).to_arrow()

    def to_pandas(self, **options: Unpack[ReadOptions]) -> pd.DataFrame:
        """Return the rows of a version as a pandas DataFrame. Arguments as `scan`."""
        return self.scan(**options).to_pandas()

    def to_polars(self, **options: Unpack[ReadOptions]) -> pl.DataFrame:
        """Return the rows of a version as a polars DataFrame. Arguments as `scan`."""
        return self.scan(**options).to_polars()

    def to_duckdb(
        self, table_name: str, connection: DuckDBPyConnection | None = None, **options: Unpack[ReadOptions]
    ) -> DuckDBPyConnection:
        """Show the rows of a version as a view of DuckDB, and return the connection.

        Args:
            table_name: name of the view.
            connection: of DuckDB; None: a new one in memory.
            **options: as `scan`.

        Raises:
            InvalidRequest: DuckDB is not installed.
        """
        return self.scan(**options).to_duckdb(table_name, connection)

    def changes(self, start: int | str | None, end: int | str | None = None) -> pa.Table:
        """Return the rows that were written after the version `start` up to the version `end`.

        Args:
            start: a version, as `resolve`. None: from the first snapshot on.
            end: a version, as `resolve`. None: the newest.

        Returns:
            Append tables: the appended rows. Tables with a primary key: the last row written of each key, with the
                column ``_row_kind`` (``+I``, ``+U`` or ``-D``). Tables with a changelog producer: all rows of the
                changelog files of these snapshots, oldest first, with ``-U`` for what a row was before ``+U``. Rows
                that overwrites and rollbacks removed are left out; `diff` shows them.

        Raises:
            NotFound: there is no such version, or a snapshot in between has expired (``snapshot_expired``).
            InvalidRequest: `start` is newer than `end`.

        Cost: the delta manifests and files of the snapshots in between.
        """
        from lakebed.table.changes import incremental

        return incremental.changes(self.context, start, end)

    def diff(
        self, start: int | str, end: int | str | None = None, *, keys: str | Sequence[str] | None = None
    ) -> TableDiff:
        """Compare two versions, and return the rows that were added, removed and changed.

        Args:
            start, end: versions, as `resolve`; `end` None: the newest. Nothing in between needs to be readable.
            keys: columns that identify a row. None: the primary key; in append tables, the whole row.

        Raises:
            NotFound: there is no such version.
            InvalidRequest: the keys are not unique in a version, or a key column is nested.

        Cost: a read of the files that only one version has, and in a table with a primary key of those whose keys
            overlap.
        """
        from lakebed.table.changes import incremental

        return incremental.diff(self.context, start, end, keys=None if keys is None else names_of(keys))

    def system(
        self, name: str, *, columns: str | Sequence[str] | None = None, version: int | str | None = None
    ) -> pa.Table:
        """Return a system table, such as ``tags`` or ``$files``, as an Arrow table.

        `lakebed.table.versions.system` documents the tables and their columns.

        Args:
            name: with or without ``$``.
            columns: of the table, one name or several; None: all.
            version: show the table as of this version (`resolve`). ``tags``, ``branches`` and ``consumers`` have no
                versions.

        Raises:
            InvalidRequest: there is no such system table, or a version is given that it does not have.
        """
        from lakebed.table.versions.system import read_system_table

        target = None if version is None else travel.resolve(self.context, version=version, timestamp=None)
        return read_system_table(self.context, name, columns=columns, version=target)

    # ---- versions

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot; None when nothing was ever written.

        Raises `NotFound` for a branch that was deleted or renamed. Cost: 1 probe + 1 GET.
        """
        newest = self.context.snapshots.latest()
        if newest is None:
            self.context.schemas.confirm_branch()
        return newest

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return one snapshot by id. Raises `NotFound` with the ids that exist. Cost: 1 GET."""
        return self.context.snapshots.snapshot(snapshot_id)

    def snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the snapshots that have not expired, oldest first.

        Raises `NotFound` for a branch that was deleted or renamed. Cost: 1 LIST, and 1 GET for each snapshot.
        """
        is_empty = True
        for snapshot in self.context.snapshots.walk():
            is_empty = False
            yield snapshot
        if is_empty:
            self.context.schemas.confirm_branch()

    def resolve(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Snapshot:
        """Return the snapshot that a version or a time names; with neither, the newest snapshot.

        Args:
            version: a snapshot's id, as int or digits; or the name of a tag or a branch. ``snapshot.7``, ``tag.june``
                and ``branch.dev`` say which kind is meant; other texts are a tag, or else a branch. The id of an
                expired snapshot that a tag holds works too.
            timestamp_ms: Unix milliseconds, a `datetime` or ISO 8601 text (UTC if no zone is given). It names the
                newest snapshot at or before this time; if that snapshot has expired, the nearest earlier tag.

        Raises:
            InvalidRequest: both are given, or the text cannot name a version.
            NotFound: there is no such version; or the time is before everything that can be read.

        Cost: 1 or 2 GETs; of a time 1 LIST + log2(snapshots) + 1 GETs.
        """
        return travel.resolve(self.context, version=version, timestamp=timestamp_ms).snapshot

    def at(self, version: int | str) -> TableView:
        """Return a read-only view of one version: a snapshot id, or the name of a tag or branch.

        Raises `NotFound` and `InvalidRequest` as `resolve`.
        """
        return TableView(table=self, resolved=travel.at_version(self.context, version))

    def versions(self) -> Iterator[Version]:
        """Iterate over the readable versions, oldest first, including expired snapshots that a tag holds.

        Cost: 1 GET for each snapshot and tag.
        """
        return versions.list_versions(self.context)

    def pins(self) -> list[Pin]:
        """Return what keeps versions: tags, starts of branches, consumers, and temporary pins of lakebed itself.

        Cost: 3 LIST, and 1 GET for each tag and consumer.
        """
        return versions.list_pins(self.context)

    def pin(self, name: str, *, version: int | str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version under a name, as a tag.

        Args:
            name: of the tag.
            version: as `resolve`, but not a branch; None: the newest snapshot.
            lifetime_ms: milliseconds from now; None: as `create_tag`.

        Raises:
            AlreadyExists: there is a tag of this name.
            NotFound: there is no such version.
            InvalidRequest: the name, version or lifetime is not valid.
        """
        return versions.pin_version(self.context, name, version=version, lifetime_ms=lifetime_ms)

    def unpin(self, name: str) -> None:
        """Delete a tag, and the data files that only this tag held. As `delete_tag`. Raises `NotFound`."""
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
        """Create a tag, which keeps a snapshot readable when it expires.

        Args:
            name: of the tag.
            lifetime_ms: milliseconds from now, after which the tag may be deleted. None: the option
                ``tag.default-time-retained``; without it the tag stays until it is deleted.
            if_not_exists: return an existing tag unchanged instead of raising `AlreadyExists`.
            **source: the snapshot to tag (`SourceOptions`), by at most one of `snapshot_id`, another `tag`, and
                `timestamp_ms` (the newest snapshot at that time). None of them: the newest snapshot.

        Raises:
            InvalidRequest: the name is not valid, the lifetime is negative, or several sources are given.
            AlreadyExists: there is a tag of this name.
            NotFound: there is no such snapshot.
            Conflict: the snapshot expired meanwhile.

        Cost: 6 requests for the newest snapshot.
        """
        tag_source = travel.source(self.context, source)
        return self.context.tags.create(name, source=tag_source, lifetime_ms=lifetime_ms, if_not_exists=if_not_exists)

    def replace_tag(self, name: str, *, lifetime_ms: int | None = None, **source: Unpack[SourceOptions]) -> Tag:
        """Point an existing tag at another snapshot. Arguments as `create_tag`.

        Raises as `create_tag`, and `NotFound` for a missing tag.
        """
        from lakebed.table.collect import expire

        tag_source = travel.source(self.context, source)
        return expire.replace_tag(self.context, name, source=tag_source, lifetime_ms=lifetime_ms)

    def rename_tag(self, old: str, new: str) -> Tag:
        """Rename a tag. A crash may leave both names.

        Raises:
            NotFound: there is no tag `old`.
            AlreadyExists: there is a tag `new`.
            InvalidRequest: the new name is not valid.
        """
        return self.context.tags.rename(old, new)

    def delete_tag(self, *names: str, if_exists: bool = False, dry_run: bool = False) -> CollectionReport:
        """Delete tags, and the files that only they needed.

        Args:
            if_exists: ignore missing tags instead of raising `NotFound`.
            dry_run: delete nothing; the report's `plan` shows what would go.

        Raises:
            NotFound: a tag does not exist; then none is deleted.
            InvalidRequest: a name that no tag may have.
        """
        from lakebed.table.collect import expire

        return expire.delete_tags(self.context, names, if_exists=if_exists, dry_run=dry_run)

    def expire_tags(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> CollectionReport:
        """Delete the tags whose lifetime is over, and the files that only they needed.

        Args:
            older_than_ms: Unix milliseconds, UTC. Also delete all tags that were created before this time.
            dry_run: delete nothing; the report's `plan` shows what would go.
        """
        from lakebed.table.collect import expire

        return expire.expire_tags(self.context, older_than_ms=older_than_ms, dry_run=dry_run)

    def tags(self) -> list[Tag]:
        """Return all tags, by the id of their snapshot and then by name.

        Raises `NotFound` for a branch that was deleted or renamed. Cost: 1 LIST, and 1 GET for each tag that is not
        cached.
        """
        tags = self.context.tags.list()
        if not tags:
            self.context.schemas.confirm_branch()
        return tags

    def tag(self, name: str) -> Tag:
        """Return one tag. Raises `NotFound` with the names that exist. Cost: 1 GET."""
        return self.context.tags.tag(name)

    def tag_exists(self, name: str) -> bool:
        """Return whether the tag exists. Cost: 1 HEAD."""
        return self.context.tags.exists(name)

    def tag_path(self, name: str) -> str:
        """Return the path of the tag's file, relative to the table's folder. The tag need not exist."""
        return self.context.layout.tag(name)

    def tag_directory(self) -> str:
        """Return the folder of the tag files, relative to the table's folder."""
        return self.context.layout.tag_folder

    def previous_tag(self, name: str) -> Tag | None:
        """Return the tag with the newest commit time before this tag's; None for the first tag. Raises `NotFound`."""
        return self.context.tags.previous(name)

    def next_tag(self, name: str) -> Tag | None:
        """Return the tag with the oldest commit time after this tag's; None for the last tag. Raises `NotFound`."""
        return self.context.tags.next(name)

    def tagged_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the snapshots that a tag holds, oldest first, each once."""
        return self.context.tags.tagged_snapshots()

    def trigger_automatic_tags(self) -> list[Tag]:
        """Create the automatic tags that are due by the option ``tag.automatic-creation``.

        Call it after commits or from a timer. Automatic tags beyond ``tag.num-retained-max`` are deleted. Other tags
        are never deleted.

        Returns:
            The tags that were created or moved, oldest period first.
        """
        from lakebed.table.versions import auto_tags

        return auto_tags.trigger_automatic_tags(self.context)

    # ---- branches

    def branches(self) -> list[Branch]:
        """Return all branches but main, sorted by name."""
        return branches.list_branches(self.context.main)

    def create_branch(
        self,
        name: str,
        *,
        version: int | str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
    ) -> Table:
        """Create a branch at the newest snapshot or at a given version. Open it.

        Args:
            name: of the branch.
            version: as `resolve`, but not a branch. Give at most one of `version`, `tag` and `snapshot_id`.
            tag: name of a tag.
            snapshot_id: id of a snapshot.

        Raises:
            AlreadyExists: there is a branch of this name.
            NotFound: there is no such version.
            InvalidRequest: the name is not valid, several versions are given, or this is a branch itself.
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
        """Publish a branch: its newest version becomes the newest of main, in one commit. The branch stays.

        Main must not have changed since the branch began, or since it was last fast-forwarded to this branch. Schemas
        that were created in the branch become main's first.

        Args:
            branch: name of the branch.
            dry_run: check only, and return the newest snapshot of the branch.

        Returns:
            The new snapshot of main; its newest one when there is nothing to do.

        Raises:
            NotFound: there is no such branch.
            Conflict: kind ``not_fast_forward``: main has commits or schemas of its own since.
            InvalidRequest: the branch was made by another client, or this object is a branch.

        Cost: the manifests of both versions, and 1 commit.
        """
        from lakebed.table.versions.fast_forward import fast_forward

        return fast_forward(self.context, branch, dry_run=dry_run)

    def rename_branch(self, old: str, new: str) -> Table:
        """Rename a branch with its snapshots, tags and consumers. Return it, opened.

        The files of the branch are copied, and then the old name is gone: objects that were opened by it raise
        `NotFound`. A commit to the old name is in the new branch, or it raises an error and is nowhere. If a rename is
        interrupted, the next process that renames again, opens or lists branches, or collects, finishes it.

        Raises:
            NotFound: there is no branch `old`.
            AlreadyExists: there is a branch `new`.
            InvalidRequest: a name is ``main`` or not valid, or another client made the branch.

        Cost: 2 GET + 2 PUT for each snapshot and tag of the branch, and about 40 requests.
        """
        branches.rename_branch(self.context.main, old, new)
        return branch_of(self, new)

    def delete_branch(self, name: str) -> None:
        """Delete a branch with its snapshots and tags.

        Data files that only the branch has become orphans, which `collect` deletes.

        Raises `NotFound` if there is no such branch.
        """
        branches.delete_branch(self.context.main, name)

    # ---- expiry, rollback, maintenance

    def expire(
        self, *, dry_run: bool = False, progress: ProgressCall | None = None, **rules: Unpack[ExpireRules]
    ) -> CollectionReport:
        """Delete the oldest snapshots, and every file that no other snapshot, tag or branch needs.

        Args:
            dry_run: delete nothing; the report's `plan` shows what would go.
            progress: called after each batch of deletes.
            **rules: which snapshots expire (`ExpireRules`); the table's options are the defaults. `retain_max`: newest
                snapshots that may stay, whatever their age. `retain_min`: newest snapshots that always stay.
                `older_than_ms`: time in Unix milliseconds. `max_deletes`: most snapshots to delete. `by_order`: ignore
                times, for a table whose commit times are wrong.

        Raises:
            InvalidRequest: a rule is not valid.

        Cost: the lists and delta manifests of the snapshots that expire, whatever the number and size of tags.
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
        """Make an older version the newest. Delete later snapshots and tags, and the files that only they needed.

        Use `rollback_to_as_latest` or `restore` to keep the history.

        Args:
            version, timestamp_ms: the version to go back to, as `resolve`. Give one of them.
            dry_run: check only, and return the target. `plan_rollback` shows what would be deleted.
            only_from: roll back only while the snapshot of this id is the newest. None: whichever is the newest.

        Returns:
            The new snapshot, which has the rows of the target under a new id.

        Raises:
            NotFound: there is no such version.
            InvalidRequest: a branch began after the version.
            Conflict: kind ``moved_on``: another snapshot than `only_from` is the newest; or the target expired
                meanwhile. Nothing was changed.

        Cost: the manifests of both versions, 1 commit, and the lists and deltas of the later snapshots.
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
        """Make an older version the newest, and keep all history. With `dry_run`, check only.

        Arguments as `rollback_to`. Raises `NotFound` if there is no such version.
        """
        from lakebed.table.versions.rollback import roll_back

        return roll_back(self.context, version, timestamp_ms=timestamp_ms, keeps_history=True, dry_run=dry_run)

    def plan_rollback(self, version: int | str | None = None, *, timestamp_ms: Time | None = None) -> CollectionPlan:
        """Return what `rollback_to` would hide and delete. Delete nothing. Errors as `rollback_to`."""
        from lakebed.table.versions import rollback

        return rollback.plan_rollback(self.context, version, timestamp_ms=timestamp_ms)

    def restore(self, version: int | str) -> Version:
        """Make an older version the newest, and keep all history. As `rollback_to_as_latest`. Raises `NotFound`."""
        return versions.version_of(self.rollback_to_as_latest(version), store=self.name)

    def compact(
        self,
        *,
        full: bool = False,
        where: Mapping[str, object] | None = None,
        dry_run: bool = False,
        progress: Callable[[CompactProgress], None] | None = None,
    ) -> CompactReport:
        """Rewrite small and overlapping files as fewer, larger ones, in one snapshot of kind COMPACT. No row changes.

        Args:
            full: compact everything, whatever the triggers of the options say.
            where: values of partition columns; compact only these partitions.
            dry_run: plan only.
            progress: called after each task.

        Raises:
            Conflict: other writers replaced the chosen files in every try.
        """
        from lakebed.table.compaction.compact import compact

        return compact(self.context, full=full, where=where, dry_run=dry_run, progress=progress)

    def collect(self, *, grace_ms: int | None = None, dry_run: bool = False) -> CollectionReport:
        """Delete the files in the table's folder that no version names.

        Args:
            grace_ms: keep files that were written within this time (milliseconds). None: one day. With a time shorter
                than a write that is under way, its files are deleted, and its version misses them.
            dry_run: delete nothing; the report's `plan` shows what would go.

        Returns:
            The report. If something was unreadable, nothing was deleted, and a warning names it.

        Raises:
            InvalidRequest: kind ``invalid_grace``: the time is not valid.
            Corruption: kind ``live_files_missing``: a data file of a version is missing. Nothing was deleted.
        """
        from lakebed.table.collect import orphans

        older_than_ms = None if grace_ms is None else orphans.older_than(self.context, grace_ms)
        return orphans.remove_orphan_files(self.context, older_than_ms=older_than_ms, dry_run=dry_run)

    def plan_collection(self) -> CollectionPlan:
        """Return what the table's own options would delete now. Delete nothing.

        That is expired snapshots, tags past their lifetime, and the files that only they need.
        """
        from lakebed.table.collect import expire

        return expire.plan_collection(self.context)

    def bytes_alone(self, tag: str) -> int:
        """Return the bytes that only this tag holds, which its deletion would free. Raises `NotFound`.

        Cost: 7 LIST, and 1 GET for each tag that is not cached; for an expired snapshot also lists and manifests.
        """
        from lakebed.table.collect import bytes_alone

        return bytes_alone.bytes_alone(self.context, [self.context.tags.tag(tag).name]).get(tag, 0)

    def why(self, path: str) -> Explanation:
        """Explain which versions need an object of the table, or when it may be deleted.

        Args:
            path: relative to the table's folder, or the URL of a data file outside of it.

        Raises:
            NotFound: there is no such object, and nothing refers to it.
            InvalidRequest: no object can have this path.
            Corruption: something that might need it is unreadable.

        Cost: a few listings; for a data file the manifests of every version.
        """
        from lakebed.table.versions import why

        return why.why(self.context, path)

    def why_version(self, version: int | str) -> Explanation:
        """Explain what keeps a version, and what would free it.

        `Pin.expires_ms` of a pin is the end of its lifetime.

        Args:
            version: as `resolve`.

        Raises:
            NotFound: kind ``version_not_found`` or ``snapshot_not_found``.
            InvalidRequest: no version can have this name.

        Cost: a few listings, and 1 GET for each consumer and each tag that is not cached.
        """
        from lakebed.table.versions import why

        return why.why_version(self.context, version)


def branch_of(table: Table, branch: str) -> Table:
    """Another branch of a table that is open. Raises `NotFound`. Cost: as `Table.open`."""
    return Table.open(table.store, name=table.name, branch=branch, environment=table.context.environment)


def _unpickle(store: ObjectStore, name: str, schema: TableSchema, branch: str | None) -> Table:
    """A table that was pickled. Cost: no request."""
    return Table(branches.reopen_branch(store, name=name, schema=schema, branch=branch, environment=Environment()))
