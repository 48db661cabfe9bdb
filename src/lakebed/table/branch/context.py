"""The context of one branch of a table: what the functions of this package work on.

Owns: `TableBranch`, which holds the store, the paths and the components of a branch. Rows, commits and deletions are
functions of a context: `rows`, `commit`, `expire`, `rollback`, `orphans` and more. Tags are methods of its `tags`.

Invariants: only the newest schema that a context has seen ever changes in it. Making a context costs no request.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, kept_property
from lakebed.table.branch.manifest_reader import ManifestReader
from lakebed.table.branch.snapshots import SnapshotLog
from lakebed.table.branch.tags import Tags
from lakebed.table.model.layout import MAIN_BRANCH, Layout
from lakebed.table.model.model import Snapshot, TableSchema
from lakebed.table.model.options import TAG_DEFAULT_TIME_RETAINED, TableOptions
from lakebed.table.schema.schema_log import SchemaLog

if TYPE_CHECKING:
    from lakebed.table.files.dynamic_bucket import HashIndex


@dataclass(frozen=True, eq=False)
class TableBranch:
    """Main or another branch of a table. Thread-safe; make one with `TableBranch.of`."""

    store: ObjectStore
    """The object store at the table's folder."""
    name: str
    """The table's name in the lake, such as ``db.flights``; for messages and reports."""
    layout: Layout
    environment: Environment
    schemas: SchemaLog
    snapshots: SnapshotLog
    tags: Tags
    manifests: ManifestReader
    commit_turn: AbstractContextManager[object]
    """A commit holds it: threads that share the context commit one after the other."""
    fork_point: Snapshot | None = None
    """The snapshot that the branch started from, whose files are main's; None: main, or not looked up yet.

    See `branch_folder.with_fork_point`.
    """
    made_by: TableBranch | None = None
    """Main of the same table, if it was looked up before; see `main`."""
    origin: TableBranch | None = None
    """The context that this one was detached from; see `detach`."""

    @classmethod
    def of(
        cls, store: ObjectStore, *, name: str, schemas: SchemaLog, branch: str | None = None, environment: Environment
    ) -> TableBranch:
        """The context of a branch, given its schemas as read already; `branch` None is main. Cost: no request."""
        layout = Layout(branch=None if branch == MAIN_BRANCH else branch)
        snapshots = SnapshotLog(store, layout=layout, environment=environment)
        tags = Tags(
            store,
            layout=layout,
            snapshots=snapshots,
            environment=environment,
            default_retained_ms=lambda: TableOptions(schemas.refresh().options).get(TAG_DEFAULT_TIME_RETAINED),
            confirm=schemas.confirm_branch,
        )
        return cls(
            store=store,
            name=name,
            layout=layout,
            environment=environment,
            schemas=schemas,
            snapshots=snapshots,
            tags=tags,
            manifests=ManifestReader(store, layout, environment=environment),
            commit_turn=environment.runtime.lock(),
        )

    def of_branch(self, branch: str | None) -> TableBranch:
        """Another branch of the table; None is main. Its `fork_point` is not looked up.

        Its `schema` is the one of this context until `refresh` reads the branch's own. Cost: no request.
        """
        schemas = SchemaLog(self.store, Layout(branch=branch), newest=self.schema)
        other_branch = TableBranch.of(
            self.store, name=self.name, schemas=schemas, branch=branch, environment=self.environment
        )
        return other_branch if branch is None else replace(other_branch, made_by=self.main)

    @kept_property
    def main(self) -> TableBranch:
        """Main of the same table; this context itself when it is main's.

        Cost: no request, except once for a branch that was opened by itself: 1 LIST + 1 GET for main's newest schema.
        """
        if self.branch is None or self.made_by is not None:
            return self.made_by or self
        if self.origin is not None:
            return self.origin.main
        main = self.of_branch(None)
        main.refresh()
        return main

    @property
    def branch(self) -> str | None:
        """The name of the branch; None is main."""
        return self.layout.branch

    @property
    def schema(self) -> TableSchema:
        """The newest schema that was seen; `refresh` looks for a newer one."""
        return self.schemas.seen

    @property
    def options(self) -> TableOptions:
        """The options of `schema`, parsed."""
        return TableOptions(self.schema.options)

    @kept_property
    def hash_index(self) -> HashIndex:
        """The index files of dynamic buckets."""
        if self.origin is not None:
            return self.origin.hash_index
        from lakebed.table.files.dynamic_bucket import HashIndex  # only writers need it, and its import is slow

        return HashIndex(self.store, self.layout)

    def refresh(self) -> TableSchema:
        """Look for the newest schema and remember it. Raises, and costs, as `SchemaLog.refresh`."""
        return self.schemas.refresh()

    def detach(self) -> TableBranch:
        """The same context for one verb: its schema does not change when other threads and verbs refresh this context.

        A schema that the copy reads is seen by this context too. Cost: no request.
        """
        return replace(self, schemas=self.schemas.detach(), origin=self)

    def look(self) -> TableBranch:
        """Like `detach`, with the newest schema that exists. Raises, and costs, as `refresh`.

        Call it after finding the snapshot that a verb works on: the schema is then at least as new as all its files.
        """
        branch = self.detach()
        branch.refresh()
        return branch

    def now_ms(self) -> int:
        """The time by the environment's clock, Unix ms, UTC."""
        return self.environment.clock.now_ms()
