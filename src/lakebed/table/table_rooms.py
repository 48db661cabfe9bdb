"""The rooms of a table, wired together: what the facade's verbs delegate to.

Owns: `TableRooms`, its rooms, the schema it last saw, and `commit`, which every writing verb ends in.
Does not know: verbs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from lakebed.errors import NotFound
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branches import Branches
from lakebed.table.layout import MAIN_BRANCH, Layout
from lakebed.table.manifest_reader import ManifestReader
from lakebed.table.model import (
    BATCH_COMMIT_IDENTIFIER,
    BucketChange,
    CommitKind,
    Snapshot,
    TableSchema,
)
from lakebed.table.options import TAG_DEFAULT_TIME_RETAINED, TableOptions
from lakebed.table.schema import (
    SchemaLog,
)
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.tags import Tags
from lakebed.table.travel import Resolved, Time, Travel
from lakebed.table.types import arrow_schema
from lakebed.texts import did_you_mean, html_table

if TYPE_CHECKING:
    from lakebed.table.commit import Basis, Committer
    from lakebed.table.dynamic_bucket import HashIndex
    from lakebed.table.history import History
    from lakebed.table.overwrite import Overwrite
    from lakebed.table.row_verbs import RowVerbs

__all__ = ["TableRooms"]


class TableRooms:
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
        self.tagger = Tags(
            store,
            layout=self.layout,
            snapshots=self.log,
            environment=environment,
            default_retained_ms=lambda: self.options.get(TAG_DEFAULT_TIME_RETAINED),
        )

    def __repr__(self) -> str:
        branch = "" if self.branch is None else f", branch={self.branch!r}"
        return f"{type(self).__name__}({self.name!r}, url={self.url!r}{branch})"

    def _repr_html_(self) -> str:
        """For a notebook: the columns."""
        schema = self._schema
        rows = [
            (
                field.name,
                field.type,
                "yes" if field.nullable else "no",
                ", ".join(
                    kind
                    for kind, names in (("primary key", schema.primary_keys), ("partition", schema.partition_keys))
                    if field.name in names
                ),
                field.description,
            )
            for field in schema.fields
        ]
        return html_table(("column", "type", "nullable", "key", "comment"), rows, title=repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """As the address that another process opens; a table in this process's memory is refused by its store."""
        return _reopened, (type(self), self.store, self.name, self._schema, self.branch)

    @classmethod
    def open(
        cls, store: ObjectStore, *, name: str, branch: str | None = None, environment: Environment | None = None
    ) -> Self:
        """Open a table, or one of its branches. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
        environment = environment or Environment()
        schema = SchemaLog(store, Layout(branch=None if branch == MAIN_BRANCH else branch)).latest()
        if schema is None:
            what = f"branch {branch!r} of table {name!r}" if branch else f"table {name!r}"
            names = cls.open(store, name=name, environment=environment).branching.names() if branch else []
            raise NotFound(
                f"There is no {what} at {store.root_url}.{did_you_mean(branch or '', names)}",
                kind="table_not_found",
                table=name,
                branch=branch,
            )
        return cls(store, name=name, schema=schema, branch=branch, environment=environment)

    def of_branch(self, branch: str) -> Self:
        """Another branch of this table. Raises `NotFound`. Cost: as `open`."""
        return type(self).open(self.store, name=self.name, branch=branch, environment=self.environment)

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

    # ---- rooms; what writes, and what reads rows, is loaded on first use: it is half of the time of a short command

    @cached_property
    def hash_index(self) -> HashIndex:
        """The index of dynamic buckets."""
        from lakebed.table.dynamic_bucket import HashIndex

        return HashIndex(self.store, self.layout)

    @cached_property
    def committer(self) -> Committer:
        """What makes changes snapshots."""
        from lakebed.table.commit import Committer

        return Committer(
            self.store,
            layout=self.layout,
            snapshots=self.log,
            reader=self.reader,
            hash_index=self.hash_index,
            schema=lambda: self.schema,
            environment=self.environment,
        )

    @cached_property
    def rows(self) -> RowVerbs:
        """The verbs that write and read rows."""
        from lakebed.table.row_verbs import RowVerbs

        return RowVerbs(
            self.store,
            layout=self.layout,
            log=self.log,
            reader=self.reader,
            schemas=self.schemas,
            hash_index=self.hash_index,
            schema=lambda: self.schema,
            commit=self.commit,
            environment=self.environment,
        )

    @cached_property
    def travel(self) -> Travel:
        """Finds versions by id, name and time."""
        return Travel(snapshots=self.log, tags=self.tagger, newest_of_branch=self._newest_of_branch)

    @cached_property
    def branching(self) -> Branches:
        """The table's branches (those of main, also when this object is a branch)."""
        main_log = SnapshotLog(self.store, layout=Layout(), environment=self.environment)
        main_tags = Tags(self.store, layout=Layout(), snapshots=main_log, environment=self.environment)
        return Branches(self.store, tags=main_tags, environment=self.environment)

    @cached_property
    def history(self) -> History:
        """The verbs that let versions go or bring them back."""
        from lakebed.table.history import History
        from lakebed.table.holders import Line

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

    def _newest_of_branch(self, name: str) -> Snapshot | None:
        if not self.branching.exists(name):
            return None
        return SnapshotLog(self.store, layout=Layout(branch=name), environment=self.environment).latest()

    # ---- finding versions

    def resolve(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Snapshot:
        """The snapshot meant by a version or a time; neither: the newest. See `travel` for the rules and errors."""
        return self.locate(version=version, timestamp_ms=timestamp_ms).snapshot

    def locate(self, *, version: int | str | None = None, timestamp_ms: Time | None = None) -> Resolved:
        """As `resolve`, and whether a tag or a branch stands behind it."""
        return self.travel.resolve(version=version, timestamp=timestamp_ms)

    # ---- committing

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
        basis: Basis | None = None,
    ) -> Snapshot:
        """Make changes the newest snapshot; see `Committer.commit` for what a lost race, a replay and a conflict mean.

        Args:
            overwrite: also replace these live files, judged against the newest snapshot.
            basis: the version that the changes were made from; see `CommitRequest.basis`.
        """
        from lakebed.table.commit import CommitRequest
        from lakebed.table.overwrite import derive_overwrite

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
                basis=basis,
            )
        )


def _reopened(
    kind: type[TableRooms], store: ObjectStore, name: str, schema: TableSchema, branch: str | None
) -> TableRooms:
    """A table that came by pickle. Cost: no request."""
    return kind(store, name=name, schema=schema, branch=branch, environment=Environment())
