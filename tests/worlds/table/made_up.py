"""Data files that exist in manifests only, and the model of a table's versions that several worlds share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.model.model import DataFile

_FILE = DataFile(
    file_name="",
    file_size=1,
    row_count=1,
    min_key=EMPTY_ROW,
    max_key=EMPTY_ROW,
    key_stats=EMPTY_STATS,
    value_stats=EMPTY_STATS,
    min_sequence_number=0,
    max_sequence_number=0,
    schema_id=0,
    level=0,
)

Content = TypeVar("Content")


def data_file(name: str, **members: Any) -> DataFile:
    """A data file of one row and one byte.

    Args:
        members: of `DataFile` that differ from that.
    """
    return replace(_FILE, file_name=name, **members)


@dataclass
class TableModel(Generic[Content]):
    """Versions of a table by id and by tag: dictionaries that know nothing of the code under test.

    Content is what a version holds, such as its rows or the paths of its files. It is immutable, or replaced and never
    changed: several versions may share it.
    """

    empty: Content
    """What a table without a version holds."""
    snapshots: dict[int, Content] = field(default_factory=dict)
    """In the order in which they were made."""
    tags: dict[str, tuple[int, Content, int | None]] = field(default_factory=dict)
    """Name to snapshot id, content, and when it ends (Unix ms)."""
    last_id: int = 0

    @property
    def head(self) -> Content:
        """What the newest version holds; a rollback may have deleted those after it."""
        return self.snapshots[max(self.snapshots)] if self.snapshots else self.empty

    def publish(self, content: Content) -> int:
        """A new version; returns its id."""
        self.last_id += 1
        self.snapshots[self.last_id] = content
        return self.last_id

    def tag(self, name: str, snapshot_id: int) -> None:
        """Tag a version that exists, without an end."""
        self.tags[name] = (snapshot_id, self.snapshots[snapshot_id], None)

    def forget_after(self, snapshot_id: int) -> None:
        """Drop every version and tag above an id: the part of a rollback that deletes."""
        self.snapshots = {number: snapshot for number, snapshot in self.snapshots.items() if number <= snapshot_id}
        self.tags = {name: tag for name, tag in self.tags.items() if tag[0] <= snapshot_id}

    def keep(self, snapshot_ids: set[int], tags: set[str]) -> None:
        """Drop the versions and tags that are not among those."""
        self.snapshots = {number: snapshot for number, snapshot in self.snapshots.items() if number in snapshot_ids}
        self.tags = {name: tag for name, tag in self.tags.items() if name in tags}
