"""The facade's verbs on versions and tags. Delegates only."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.table.model import (
    Snapshot,
    Tag,
)
from lakebed.table.table_rooms import TableRooms
from lakebed.table.travel import Time

__all__ = ["TableTags"]


class TableTags(TableRooms):
    """Verbs on versions and tags; part of `Table`."""

    # ---- versions

    def latest(self) -> Snapshot | None:
        """The newest snapshot; None when nothing was ever written. Cost: 1 probe + 1 GET."""
        return self.log.latest()

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """One snapshot by id. Raises `NotFound` with the ids that are there. Cost: 1 GET."""
        return self.log.snapshot(snapshot_id)

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots that have not expired, oldest first, lazily. Cost: 1 LIST + 1 GET each."""
        return self.log.walk()

    # ---- tags

    def create_tag(
        self,
        name: str,
        *,
        snapshot_id: int | None = None,
        tag: str | None = None,
        timestamp_ms: Time | None = None,
        time_retained_ms: int | None = None,
        if_not_exists: bool = False,
    ) -> Tag:
        """Pin a snapshot under a name: the newest, one by id, another tag's, or that of a time.

        An id whose snapshot expired is fine while a tag holds it.

        Raises:
            InvalidRequest: a name that breaks the rules, a negative lifetime, or several sources.
            AlreadyExists: the tag is there.
            NotFound: nothing to tag.
            Conflict: the source expired meanwhile.
        Cost, from the newest snapshot: 1 GET + 2 HEADs + 1 LIST + 1 PUT: 5 requests.
        """
        source = self.travel.source(snapshot_id=snapshot_id, tag=tag, timestamp=timestamp_ms)
        return self.tagger.create(name, source=source, time_retained_ms=time_retained_ms, if_not_exists=if_not_exists)

    def replace_tag(
        self,
        name: str,
        *,
        snapshot_id: int | None = None,
        tag: str | None = None,
        timestamp_ms: Time | None = None,
        time_retained_ms: int | None = None,
    ) -> Tag:
        """Point a tag that is there at another snapshot. Raises as `create_tag`, and `NotFound` for a missing tag."""
        source = self.travel.source(snapshot_id=snapshot_id, tag=tag, timestamp=timestamp_ms)
        return self.history.replace_tag(name, source=source, time_retained_ms=time_retained_ms)

    def rename_tag(self, old: str, new: str) -> Tag:
        """Give a tag another name; a crash in between leaves both.

        Raises `NotFound`, `AlreadyExists`, `InvalidRequest`.
        """
        return self.tagger.rename(old, new)

    def tags(self) -> list[Tag]:
        """All tags, oldest snapshot first, then by name. Cost: 1 LIST + 1 GET a tag not read before."""
        return self.tagger.list()

    def tag(self, name: str) -> Tag:
        """One tag. Raises `NotFound` with the names that are there. Cost: 1 GET."""
        return self.tagger.tag(name)

    def tag_exists(self, name: str) -> bool:
        """Whether the tag is there. Cost: 1 HEAD."""
        return self.tagger.exists(name)

    def tag_path(self, name: str) -> str:
        """Where the tag's file is or would be, relative to the table's folder."""
        return self.tagger.path(name)

    def tag_directory(self) -> str:
        """The folder of the tag files, relative to the table's folder."""
        return self.tagger.directory

    def previous_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the newest before this one's; None for the first. Raises `NotFound`."""
        return self.tagger.previous(name)

    def next_tag(self, name: str) -> Tag | None:
        """The tag whose commit time is the oldest after this one's; None for the last. Raises `NotFound`."""
        return self.tagger.next(name)

    def tagged_snapshots(self) -> Iterator[Snapshot]:
        """Snapshots that some tag holds, oldest first, each once."""
        return self.tagger.tagged_snapshots()
