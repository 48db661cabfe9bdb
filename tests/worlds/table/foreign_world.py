"""A table that lakebed and the format's Java implementation take turns on, with the model of it.

Owns: `ForeignWorld`: `TableWorld` with every verb of the other client that moves or removes versions. Java's rollbacks
use ids again, below whatever marks lakebed has; files that its rollbacks leave are excused, since Java leaves them to
orphan cleaning too.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakebed.objects.port import ObjectStore
from lakebed.table.model.model import BucketChange
from worlds.table.foreign import foreign_commit
from worlds.table.foreign_verbs import (
    foreign_delete_tag,
    foreign_expire,
    foreign_rollback,
    foreign_tag,
)
from worlds.table.world import LineModel, TableWorld


class ForeignWorld(TableWorld):
    """Random steps of both clients; see `TableWorld`."""

    def __init__(self, seed: int, *, store: ObjectStore | None = None) -> None:
        super().__init__(seed, store=store, foreign=True, rollbacks=seed % 2 == 0, as_latest=False, branches=False)
        self._steps += [self.foreign_rollback] * 3 + [self.foreign_rollback_to_tag] * 2 + [self.foreign_expire] * 2
        self._steps += [self.foreign_tag] * 2 + [self.foreign_delete_tag, self.foreign_truncate, self.foreign_drop]

    def foreign_rollback(self) -> None:
        """Java rolls back to a snapshot that is there."""
        self._foreign_rollback(self.rng.choice(sorted(self.main.snapshots)))

    def foreign_rollback_to_tag(self) -> None:
        """Java rolls back to a tag, whose snapshot may have expired."""
        if self.main.tags:
            self._foreign_rollback(self.rng.choice(sorted(self.main.tags)))

    def _foreign_rollback(self, target: int | str) -> None:
        before = self.needed()
        if isinstance(target, str):
            kept, files, _ = self.main.tags[target]
            self.main.snapshots[kept] = files
            self.counts["brought back"] += kept < min(self.table.context.snapshots.ids())
        else:
            kept = target
        foreign_rollback(self.table, target)
        self.main.snapshots = {snapshot: files for snapshot, files in self.main.snapshots.items() if snapshot <= kept}
        self.main.tags = {name: tag for name, tag in self.main.tags.items() if tag[0] <= kept}
        self.main.last_id = kept
        self.excused |= before - self.needed()
        self._note("java rolls back", f"to {target}")

    def foreign_expire(self) -> None:
        """Java keeps a few of the newest ids."""
        kept = self.rng.randint(1, 4)
        before = self.needed()
        foreign_expire(self.table, retain_max=kept)
        ids = sorted(self.main.snapshots)
        least = max(ids[-1] - kept + 1, ids[0])
        self.main.snapshots = {snapshot: files for snapshot, files in self.main.snapshots.items() if snapshot >= least}
        self.excused |= before - self.needed()
        self._note("java expires", f"keep {kept}")

    def foreign_tag(self) -> None:
        """Java tags a snapshot."""
        name, snapshot_id = f"j{self._name()}", self.rng.choice(sorted(self.main.snapshots))
        foreign_tag(self.table, name, snapshot_id)
        self.main.tags[name] = (snapshot_id, self.main.snapshots[snapshot_id], None)
        self._note("java tags", f"{name} on {snapshot_id}")

    def foreign_delete_tag(self) -> None:
        """Java deletes a tag."""
        if not self.main.tags:
            return
        name = self.rng.choice(sorted(self.main.tags))
        before = self.needed()
        foreign_delete_tag(self.table, name)
        del self.main.tags[name]
        self.excused |= before - self.needed()
        self._note("java deletes the tag", name)

    def foreign_truncate(self) -> None:
        """Java empties the table."""
        self._foreign_deletes(None)

    def foreign_drop(self) -> None:
        """Java drops a partition."""
        self._foreign_deletes(self.rng.choice(("pt=a/", "pt=b/")))

    def _foreign_deletes(self, prefix: str | None) -> None:
        live = self._files(self.table, self.table.context.snapshots.latest())
        gone = {path: file for path, file in live.items() if prefix is None or path.startswith(prefix)}
        changes = [BucketChange(partition, 0, 1, deleted=(file,)) for partition, file in gone.values()]
        if not changes:
            return
        snapshot = foreign_commit(self.table, changes, merges=False, name=self._name())
        left = self._paths(self.table, snapshot)
        self._published(self.main, snapshot.id, left)
        self._note("java drops", prefix or "everything")

    def _published(self, model: LineModel, snapshot_id: int, files: Iterable[str]) -> None:
        """A commit of lakebed's takes the next id that is free for it, which may lie beyond the boundary."""
        assert snapshot_id > max(model.snapshots, default=0), f"snapshot {snapshot_id} is not the newest"
        model.last_id = snapshot_id - 1
        super()._published(model, snapshot_id, files)
