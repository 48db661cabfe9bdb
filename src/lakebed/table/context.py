"""The context of one branch of a table: what the functions of this package work on.

Owns: `TableBranch`, which holds the store, the paths and the components of a branch, and `NewestSchema`.

Invariants: a context is immutable but for the newest schema it has seen; making one costs no request. Does not know:
rows, commits, deletions. Those are functions of a context: `rows`, `commit`, `expire`, `rollback`, `orphans` and more;
tags are methods of its `tags`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.layout import MAIN_BRANCH, Layout
from lakebed.table.manifest_reader import ManifestReader
from lakebed.table.model import Snapshot, TableSchema
from lakebed.table.options import TAG_DEFAULT_TIME_RETAINED, TableOptions
from lakebed.table.schema import SchemaLog
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.tags import Tags

if TYPE_CHECKING:
    from lakebed.table.dynamic_bucket import HashIndex


class NewestSchema:
    """The newest schema of a branch that this process has seen. Thread-safe."""

    def __init__(self, log: SchemaLog, seen: TableSchema) -> None:
        self._log = log
        self.seen = seen

    def refresh(self) -> TableSchema:
        """Look for a newer schema and remember it. Cost: 1 LIST, 1 GET when there is one."""
        self.seen = self._log.latest() or self.seen
        return self.seen

    def change(self, change: Callable[[TableSchema], TableSchema], *, time_ms: int) -> TableSchema:
        """Store a changed schema and remember it. Raises as `SchemaLog.change`."""
        self.seen = self._log.change(change, time_ms=time_ms)
        return self.seen


@dataclass(frozen=True, eq=False)
class TableBranch:
    """Main or another branch of a table. Thread-safe; make one with `TableBranch.of`."""

    store: ObjectStore
    """The table's folder."""
    name: str
    """As the lake knows the table, such as ``db.flights``; for messages and reports."""
    layout: Layout
    environment: Environment
    schemas: SchemaLog
    newest_schema: NewestSchema
    """Of the branch that the context was opened as; `of_branch` shares it."""
    snapshots: SnapshotLog
    tags: Tags
    manifests: ManifestReader
    commit_turn: AbstractContextManager[object]
    """Held by a commit: threads that share the context take turns."""
    fork_point: Snapshot | None = None
    """The fork snapshot: the one that a branch started from, whose files are main's; see `branches.with_fork_point`.
    None: main, or not looked up yet."""

    @classmethod
    def of(
        cls, store: ObjectStore, *, name: str, schema: TableSchema, branch: str | None = None, environment: Environment
    ) -> TableBranch:
        """The context of a branch whose newest schema is known; `branch` None is main. Cost: no request."""
        layout = Layout(branch=None if branch == MAIN_BRANCH else branch)
        schemas = SchemaLog(store, layout)
        return _assembled(store, name, layout, environment, schemas, NewestSchema(schemas, schema))

    def of_branch(self, branch: str | None) -> TableBranch:
        """Another branch of the table; None is main. Its `fork_point` is not looked up.

        It shares `schema`, `options` and `refresh` with this context, which so are not those of the other branch: the
        folders of data files are the same in all branches. To read rows by the other branch's own schema, use
        `branches.open_branch`. Cost: no request.
        """
        layout = Layout(branch=branch)
        schemas = SchemaLog(self.store, layout)
        return _assembled(self.store, self.name, layout, self.environment, schemas, self.newest_schema)

    @cached_property
    def main(self) -> TableBranch:
        """Main of the same table; this context itself when it is main's."""
        return self if self.branch is None else self.of_branch(None)

    @property
    def branch(self) -> str | None:
        """The name of the branch; None is main."""
        return self.layout.branch

    @property
    def schema(self) -> TableSchema:
        """The newest schema seen of the branch that the context was opened as; `of_branch` shares it.

        `refresh` looks again.
        """
        return self.newest_schema.seen

    @property
    def options(self) -> TableOptions:
        """The options of `schema`, parsed."""
        return TableOptions(self.schema.options)

    @cached_property
    def hash_index(self) -> HashIndex:
        """The index files of dynamic buckets."""
        from lakebed.table.dynamic_bucket import HashIndex  # only writers need it, and it takes long to load

        return HashIndex(self.store, self.layout)

    def refresh(self) -> TableSchema:
        """Look for a newer schema of the branch that the context was opened as, and remember it; see `schema`.

        Cost: 1 LIST, 1 GET when there is one.
        """
        return self.newest_schema.refresh()

    def now_ms(self) -> int:
        """Unix ms, UTC, by the clock of the environment."""
        return self.environment.clock.now_ms()


def _assembled(
    store: ObjectStore,
    name: str,
    layout: Layout,
    environment: Environment,
    schemas: SchemaLog,
    newest_schema: NewestSchema,
) -> TableBranch:
    snapshots = SnapshotLog(store, layout=layout, environment=environment)
    return TableBranch(
        store=store,
        name=name,
        layout=layout,
        environment=environment,
        schemas=schemas,
        newest_schema=newest_schema,
        snapshots=snapshots,
        tags=Tags(
            store,
            layout=layout,
            snapshots=snapshots,
            environment=environment,
            default_retained_ms=lambda: TableOptions(newest_schema.seen.options).get(TAG_DEFAULT_TIME_RETAINED),
        ),
        manifests=ManifestReader(store, layout, environment=environment),
        commit_turn=environment.runtime.lock(),
    )
