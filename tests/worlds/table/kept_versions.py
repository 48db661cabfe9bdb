"""A table next to what each of its versions holds, and the verbs of versions on both: `KeptVersions`.

A model adds the verbs that write. Each verb takes a number, from which it chooses what it is about.
"""

from __future__ import annotations

import uuid
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.table import Table, branch_of
from worlds.table.world import inline_environment

S = TypeVar("S")


class KeptVersions(Generic[S]):
    """A new table in memory, and the state of each snapshot, tag and of one branch.

    Args:
        empty: the state of a table without a snapshot.
        shape: as `Table.create` takes it.
    """

    def __init__(self, schema: pa.Schema, *, empty: S, **shape: Any) -> None:
        environment = inline_environment(uuid.uuid4().int)
        store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
        self.table = Table.create(store, name="t", schema=schema, environment=environment, **shape)
        self.empty = empty
        self.snapshots: dict[int, S] = {}
        self.tags: dict[str, tuple[int, S]] = {}
        self.branch: S | None = None
        self.forked_at = 0

    @property
    def now(self) -> S:
        """Of the newest snapshot."""
        return self.snapshots[max(self.snapshots)] if self.snapshots else self.empty

    def noted(self, state: S) -> None:
        """The newest snapshot holds this."""
        newest = self.table.latest()
        if newest is not None:
            self.snapshots[newest.id] = state

    def tag(self, number: int) -> None:
        """Name a snapshot that has no such name yet."""
        if self.snapshots and f"t{number}" not in self.tags:
            snapshot = sorted(self.snapshots)[number % len(self.snapshots)]
            self.table.create_tag(f"t{number}", snapshot_id=snapshot)
            self.tags[f"t{number}"] = (snapshot, self.snapshots[snapshot])

    def untag(self, number: int) -> None:
        """Delete a tag."""
        if self.tags:
            name = sorted(self.tags)[number % len(self.tags)]
            self.table.delete_tag(name)
            del self.tags[name]

    def expire(self, number: int) -> None:
        """Keep one to three of the newest snapshots, and what tags name."""
        keep = 1 + number % 3
        self.table.expire(retain_max=keep, retain_min=1, older_than_ms=0)
        for gone in sorted(self.snapshots)[:-keep]:
            del self.snapshots[gone]

    def rollback(self, number: int) -> None:
        """Go back to a snapshot or tag, unless the branch started later."""
        targets = {f"tag.{name}": item for name, item in self.tags.items()}
        targets |= {str(snapshot): (snapshot, state) for snapshot, state in self.snapshots.items()}
        if not targets:
            return
        name = sorted(targets)[number % len(targets)]
        target, state = targets[name]
        if self.forked_at > target:
            with pytest.raises(InvalidRequest, match="started from snapshot"):
                self.table.rollback_to(name)
            return
        self.table.rollback_to(name)
        if max(self.snapshots) == target:
            return
        self.snapshots = {snapshot: kept for snapshot, kept in self.snapshots.items() if snapshot <= target}
        self.tags = {item: tag for item, tag in self.tags.items() if tag[0] <= target}
        self.noted(state)

    def as_latest(self, number: int) -> None:
        """Make an older snapshot the newest."""
        if self.snapshots:
            target = sorted(self.snapshots)[number % len(self.snapshots)]
            state = self.snapshots[target]
            self.table.rollback_to_as_latest(target)
            self.noted(state)

    def fork(self, number: int) -> None:
        """Create the branch from the newest snapshot."""
        if self.snapshots and self.branch is None:
            self.table.create_branch("b")
            self.branch, self.forked_at = self.now, max(self.snapshots)

    def publish(self, number: int) -> None:
        """Let the table go on as the branch, if it has not moved since."""
        if self.branch is not None and max(self.snapshots) == self.forked_at:
            self.table.fast_forward("b")
            self.noted(self.branch)
            self.drop_branch(number)

    def drop_branch(self, number: int) -> None:
        """Delete the branch."""
        if self.branch is not None:
            self.table.delete_branch("b")
            self.branch, self.forked_at = None, 0

    def check(self) -> None:
        """Every version reads as it did."""
        table = Table.open(self.table.store, name="t", environment=self.table.context.environment)
        assert [snapshot.id for snapshot in table.snapshots()] == sorted(self.snapshots)
        for snapshot_id, state in self.snapshots.items():
            self.check_version(table, state, version=snapshot_id)
        for name, (_, state) in self.tags.items():
            self.check_version(table, state, tag=name)
        if self.branch is not None:
            self.check_version(branch_of(table, "b"), self.branch)

    def check_version(self, table: Table, state: S, **version: Any) -> None:
        """A version holds a state."""
        raise NotImplementedError
