"""The live versions of a branch, read as one consistent state: snapshots, tags, hidden pins, rollbacks.

Owns: `LiveVersions` (the state at one moment), the marks that rollbacks leave in ``lakebed/restored/``, and the note of
what has expired.

Invariants:
- A state is *collected twice*: snapshots and tags are listed in the order in which a pin can pass from one to the
  other, until two collections in a row are equal. Then this state held at one moment, and no version passed from one
  holder to another unseen.
- A writer that restores old files writes the mark of the snapshot id it tries **before** its commit. Marks are never
  removed, because the commits of other clients do not repeat them. A mark whose commit failed is harmless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lakebed.errors import Conflict, NotFound
from lakebed.objects.port import ObjectMeta
from lakebed.table.branch.candidates import IntArray
from lakebed.table.branch.consumers import load_consumers
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tag_index import TagEntry
from lakebed.table.model.model import Snapshot
from lakebed.texts import whole_number

_COLLECTIONS_MAX: Final = 100
_MARK: Final = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True)
class LiveVersions:
    """The versions that were live at one moment, and what held them."""

    snapshot_ids: IntArray
    """Live snapshots, ascending."""
    tags: tuple[TagEntry, ...]
    """Tags and hidden pins, by snapshot id, then name."""
    restored_ids: IntArray
    """Snapshots by which rollbacks brought old files back, ascending; expired ones included."""
    ids: IntArray = field(init=False)
    """Ids of all versions, ascending, each once: what the interval test bisects."""

    def __post_init__(self) -> None:
        tagged_ids = np.array([tag.snapshot_id for tag in self.tags], np.int64)
        object.__setattr__(self, "ids", np.union1d(self.snapshot_ids, tagged_ids).astype(np.int64))

    def is_live(self, snapshot_id: int) -> bool:
        """Whether the snapshot's own file exists."""
        position = int(np.searchsorted(self.snapshot_ids, snapshot_id))
        return position < len(self.snapshot_ids) and int(self.snapshot_ids[position]) == snapshot_id

    def holds(self, snapshot_id: int) -> bool:
        """Whether a snapshot or a tag of this id exists."""
        position = int(np.searchsorted(self.ids, snapshot_id))
        return position < len(self.ids) and int(self.ids[position]) == snapshot_id

    def load(self, branch: TableBranch, snapshot_id: int) -> Snapshot:
        """The version with this id, from its snapshot or else from a tag that holds it.

        Raises `NotFound`: it was deleted since the state was read; `Corruption`: its file is unreadable. Cost: 1 GET.
        """
        if self.is_live(snapshot_id):
            snapshot = branch.snapshots.find(snapshot_id)
            if snapshot is not None:
                return snapshot
        for tag in self.tags:
            if tag.snapshot_id == snapshot_id:
                stored_tag = branch.tags.find(tag.name)
                if stored_tag is not None and stored_tag.snapshot.id == snapshot_id:
                    return stored_tag.snapshot
        raise NotFound(
            f"version {snapshot_id} was deleted while it was read.", kind="version_went", snapshot=snapshot_id
        )


def read_live_versions(branch: TableBranch) -> LiveVersions:
    """Read the state as it is now.

    Raises `Corruption`: a tag is unreadable: what it holds is unknown, so nothing may be deleted; `Conflict`: holders
    change faster than they can be listed. Cost: 5 LISTs + 1 GET, however many tags there are; 1 GET more for each tag
    that the tag index does not know yet.
    """
    before = _list(branch)
    for _ in range(_COLLECTIONS_MAX):
        # The tags of the first listing are read between the two listings. If one is replaced meanwhile, the listings
        # differ.
        tags = branch.tags.index(before[1])
        after = _list(branch)
        if after == before:
            # A mark is older than its snapshot, so marks that are read last include those of all listed snapshots.
            return LiveVersions(np.array(after[0], np.int64), tags, _rollback_ids(branch))
        before = after
    raise Conflict("tags and snapshots change faster than they can be listed: try again later.", kind="holders_change")


def _list(branch: TableBranch) -> tuple[tuple[int, ...], tuple[ObjectMeta, ...]]:
    return tuple(branch.snapshots.ids()), tuple(branch.store.list(branch.layout.tag_folder))


def _rollback_folder(branch: TableBranch) -> str:
    """The folder where rollbacks leave their marks. DO NOT CHANGE: on disk."""
    return branch.layout.root + "lakebed/restored"


def _expiry_note(branch: TableBranch) -> str:
    """The object that notes the id below which every snapshot has expired. DO NOT CHANGE: on disk."""
    return branch.layout.root + "lakebed/expired-below"


def mark_restored(branch: TableBranch, snapshot_id: int) -> None:
    """Write the mark that this snapshot, about to be tried, brings old files back. Durable. Cost: 1 PUT."""
    branch.store.put(f"{_rollback_folder(branch)}/{snapshot_id:020d}", b"")


def expiry_boundary(branch: TableBranch) -> int:
    """The id below which every snapshot has expired. If a file of one exists again, a late retry has put it.

    0 when nothing has expired, or when the note is unreadable: it only helps to clean. Cost: 1 GET.
    """
    try:
        text = bytes(branch.store.get(_expiry_note(branch)))
    except NotFound:
        return 0
    return whole_number(text.decode("ascii", "replace")) or 0


def note_expired_below(branch: TableBranch, below: int) -> None:
    """Note that every snapshot below this id is about to be hidden. Durable.

    Cost: 1 GET, and 1 PUT if the note changes.
    """
    if expiry_boundary(branch) < below:
        branch.store.put(_expiry_note(branch), str(below).encode())


def _rollback_ids(branch: TableBranch) -> IntArray:
    names = (meta.path.rpartition("/")[2] for meta in branch.store.list(_rollback_folder(branch)))
    return np.array(sorted(int(name) for name in names if _MARK.fullmatch(name)), np.int64)


def consumer_limit(branch: TableBranch) -> int | None:
    """The smallest snapshot id that some consumer reads next; None without consumers.

    Raises `Corruption`. Cost: 1 LIST + 1 GET a consumer.
    """
    return min((consumer.next_snapshot_id for consumer in load_consumers(branch.store, branch.layout)), default=None)
