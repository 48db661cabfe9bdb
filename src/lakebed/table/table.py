"""The facade: one object a table (or branch of one), whose verbs delegate to the rooms beside it.

Owns: the wiring of those rooms, and the schema it last saw. Invariants: no storage logic here; a `Table` is
thread-safe; every verb looks at the newest snapshot, so what was committed before a verb began is seen by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Explanation, Pin, ReclaimPlan, ReclaimReport, Version
from lakebed.runtime import Environment
from lakebed.table.branches import Branch
from lakebed.table.layout import Layout
from lakebed.table.model import (
    DataField,
    Snapshot,
    Tag,
)
from lakebed.table.schema import (
    SchemaLog,
    new_schema,
)
from lakebed.table.table_rows import TableRows
from lakebed.table.table_tags import TableTags
from lakebed.table.travel import Time
from lakebed.table.versions import TableView, list_pins, list_versions, pin_of, version_of

if TYPE_CHECKING:
    from lakebed.table.deletion import ProgressCall

__all__ = ["Table"]


class Table(TableRows, TableTags):
    """A table at a folder of an object store. Make one with `Table.create` or `Table.open`.

    Its rooms are attributes; see `TableRooms`.
    """

    # ---- making and opening

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
        """Make a new, empty table in a folder.

        Raises:
            AlreadyExists: the folder holds a table. The put of the first schema decides between racing creators.
            InvalidRequest: an unknown type, key column or option.
        Cost: 1 LIST + 1 PUT. The store is not probed: its lake was (`Lake.open`).
        """
        environment = environment or Environment()
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

    # ---- branches

    def branches(self) -> list[Branch]:
        """All branches but main, by name."""
        return self.branching.list()

    def create_branch(self, name: str, *, tag: str | None = None, snapshot_id: int | None = None) -> Table:
        """A fork of the newest snapshot, of a tag's, or of one by id.

        Raises `AlreadyExists`, `InvalidRequest`, `NotFound`.
        """
        if self.branch is not None:
            raise _branch_of_branch(self.branch)
        self.branching.create(name, source=self.travel.source(tag=tag, snapshot_id=snapshot_id))
        return self.of_branch(name)

    def fast_forward(self, branch: str, *, dry_run: bool = False) -> Snapshot:
        """Make main what a branch is: its newest version becomes main's, in one commit. The branch stays.

        Main must not have moved since the branch started, or since it was last fast-forwarded to this branch; schemas
        that were made in the branch become main's first.

        Returns:
            Main's new snapshot; its newest when there is nothing to do; with `dry_run` the branch's snapshot that main
            would become.

        Raises:
            NotFound: no such branch.
            Conflict: kind ``not_fast_forward``: main has commits or schemas of its own since.
            InvalidRequest: a branch of another client, or this is a branch.
        Cost: the manifests of both versions, and 1 commit.
        """
        return self.history.fast_forward(branch, dry_run=dry_run)

    def delete_branch(self, name: str) -> None:
        """Remove a branch with its snapshots and tags; its own data files become orphans. Raises `NotFound`."""
        self.branching.delete(name)

    # ---- letting versions go, bringing them back

    def expire(
        self,
        *,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than_ms: int | None = None,
        max_deletes: int | None = None,
        by_order: bool = False,
        dry_run: bool = False,
        progress: ProgressCall | None = None,
    ) -> ReclaimReport:
        """Let the oldest snapshots go, with every file that no snapshot, tag or branch needs then.

        Args:
            retain_max: newest snapshots that may stay whatever their age; default ``snapshot.num-retained.max``.
            retain_min: newest snapshots that always stay; default ``snapshot.num-retained.min``.
            older_than_ms: Unix ms, UTC, exclusive; default now less ``snapshot.time-retained``.
            max_deletes: snapshots at most in one run; default ``snapshot.expire.limit``.
            by_order: look at no time: all but the newest `retain_min` snapshots go. For a table whose commit times are
                wrong because a writer's clock was.
            dry_run: only say what would go; the report's `plan` has it.

        Cost: the lists and delta manifests of what expires, whatever the number and size of tags.
        """
        return self.history.expire(
            retain_max=retain_max,
            retain_min=retain_min,
            older_than_ms=older_than_ms,
            max_deletes=max_deletes,
            by_order=by_order,
            dry_run=dry_run,
            progress=progress,
        )

    def delete_tag(self, *names: str, if_exists: bool = False, dry_run: bool = False) -> ReclaimReport:
        """Delete tags, and the files that only they needed.

        Raises `NotFound` (then none is deleted), `InvalidRequest`.
        """
        return self.history.delete_tags(names, if_exists=if_exists, dry_run=dry_run)

    def expire_tags(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> ReclaimReport:
        """Delete tags that outlived their lifetime and, with `older_than_ms` (Unix ms, UTC), all made before it."""
        return self.history.expire_tags(older_than_ms=older_than_ms, dry_run=dry_run)

    def rollback_to(
        self, version: int | str | None = None, *, timestamp_ms: Time | None = None, dry_run: bool = False
    ) -> Snapshot:
        """Make an older version the newest; later snapshots and tags go, and the files only they needed.

        Returns:
            The new snapshot, equal to the target under a new id; with `dry_run` the target (`plan_rollback` has the
            rest).

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

    def trigger_automatic_tags(self) -> list[Tag]:
        """Make the automatic tags that are due, by ``tag.automatic-creation`` and its companions.

        Those beyond ``tag.num-retained-max`` are dropped, a person's tags never. Run it after commits or from a timer.

        Returns:
            The tags made or moved, oldest period first.
        """
        from lakebed.table.auto_tags import AutomaticTagging, make_automatic_tags

        made, surplus = make_automatic_tags(
            AutomaticTagging.of(self.refresh().options),
            log=self.log,
            tags=self.tagger,
            now_ms=self.environment.clock.now_ms(),
        )
        if surplus:
            self.delete_tag(*surplus, if_exists=True)
        return made

    # ---- what every store of a lake answers

    def restore(self, version: int | str) -> Version:
        """Make an older version the newest one; history is kept. As `rollback_to_as_latest`. Raises `NotFound`."""
        return version_of(self.rollback_to_as_latest(version), store=self.name)

    def plan_reclaim(self) -> ReclaimPlan:
        """What cleaning would delete now by the table's own options: expired snapshots, outlived tags."""
        return self.history.plan_reclaim()

    def why(self, path: str) -> Explanation:
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
        return pin_of(tag, store=self.name, written_ms=self.tagger.written_ms().get(name))

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

    def system(
        self, name: str, *, columns: str | Sequence[str] | None = None, version: int | str | None = None
    ) -> pa.Table:
        """A system table such as ``tags`` or ``$files`` as Arrow; see `system` for their columns.

        Args:
            version: whose files, manifests and partitions; None is the newest.

        Raises:
            InvalidRequest: no such system table or column.
        """
        from lakebed.table.system import SystemTables

        rooms = SystemTables(self.store, self.layout, self.log, self.tagger, self.schemas, self.reader, self.branching)
        snapshot = None if version is None else self.resolve(version=version)
        return rooms.read(name, columns=columns, snapshot=snapshot)


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
