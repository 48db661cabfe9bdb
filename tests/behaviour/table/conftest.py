"""Tables without data files, for tests of commits, tags and travel: entries are made up, everything else is real."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from typing_extensions import Unpack

from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import files_of
from lakebed.table.commit.commit import CommitOptions
from lakebed.table.model.model import BucketChange, CommitKind, DataFile, Snapshot
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock
from worlds.table import made_up
from worlds.table.world import InlineRuntime


def named_file(name: str, *, level: int = 0, commit_snapshot: int | None = None) -> DataFile:
    """A data file of ten rows that exists in manifests only."""
    return made_up.data_file(
        name, file_size=100, row_count=10, level=level, commit_snapshot=commit_snapshot, value_stats_cols=()
    )


@dataclass
class Bench:
    """A table, its clock, and short words for what tests do with it."""

    table: Table
    clock: ManualClock
    store: ObjectStore
    environment: Environment
    files: dict[str, DataFile] = field(default_factory=dict)

    def change(self, *added: str, deleted: tuple[str, ...] = (), level: int = 0) -> BucketChange:
        """One bucket's change by file names."""
        gone = tuple(named_file(name) for name in deleted)
        return BucketChange(EMPTY_ROW, 0, -1, tuple(named_file(name, level=level) for name in added), gone)

    def commit(
        self,
        *added: str,
        deleted: tuple[str, ...] = (),
        table: Table | None = None,
        kind: CommitKind = "APPEND",
        overwrite: Overwrite | None = None,
        **options: Unpack[CommitOptions],
    ) -> Snapshot:
        """Commit made-up files a second after the commit before."""
        self.clock.advance(1)
        context, change = (table or self.table).context, self.change(*added, deleted=deleted)
        return commit_changes(context, [change], kind=kind, overwrite=overwrite, options=options)

    def write(self, added: str, *deleted: str) -> None:
        """A commit whose data file is there."""
        self.store.put(f"bucket-0/{added}", b"x")
        newest = self.table.latest()
        live = [] if newest is None else files_of(self.table.context.manifests.live_entries(newest))
        change = replace(self.change(added), deleted=tuple(file for file in live if file.file_name in deleted))
        self.clock.advance(1)
        commit_changes(self.table.context, [change])

    def hide(self, *snapshot_ids: int) -> None:
        """Hide snapshots as expiry does: boundary first."""
        log = self.table.context.snapshots.log
        log.raise_boundary(max(snapshot_ids) + 1)
        log.delete(snapshot_ids)

    def live(self, table: Table | None = None) -> list[str]:
        """Names of the files of the newest snapshot, sorted."""
        table = table or self.table
        newest = table.latest()
        return [] if newest is None else sorted(table.context.manifests.live_entries(newest)["file_name"].to_pylist())

    def reopen(self, *, branch: str | None = None) -> Table:
        """Another writer's table object."""
        return Table.open(self.store, name="t", branch=branch, environment=self.environment)


def make_bench(store: ObjectStore, clock: ManualClock) -> Bench:
    """A new, empty append table."""
    environment = Environment(clock=clock, rng=random.Random(7))
    table = Table.create(
        store,
        name="t",
        schema=pa.schema([("id", pa.int64())]),
        environment=environment,
    )
    return Bench(table, clock, store, environment)


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    """An empty table in memory, with a manual clock."""
    environment = Environment(clock=clock, rng=random.Random(1))
    return make_bench(open_store(f"memory://{uuid.uuid4()}", environment=environment), clock)


@pytest.fixture
def new_bench(clock: ManualClock) -> Callable[..., Bench]:
    """Makes empty tables with options: ``new_bench({"tag.creation-period": "daily"})``. Pools run in their caller.

    Tests of races make one, and do something at hundreds of calls: threads would take a quarter of their time.
    """

    def make(options: dict[str, str]) -> Bench:
        environment = Environment(clock=clock, rng=random.Random(1), runtime=InlineRuntime())
        store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
        table = Table.create(
            store, name="t", schema=pa.schema([("id", pa.int64())]), options=options, environment=environment
        )
        return Bench(table, clock, store, environment)

    return make
