"""What holds versions of a table alive, read as one consistent state: snapshots, tags, hidden pins, rollbacks.

Owns: `Line` (one line of versions and the rooms that read it), `Holders` (its state at one moment), and the marks that
rollbacks leave in ``lakebed/restored/``.

Invariants:
- A state is *collected twice*: listings are taken in the order in which pins are passed on (snapshots, tags), again
  and again until two collections in a row are equal. Then there was a moment at which exactly this held: no version
  was handed from one holder to another behind the reader's back.
- Whoever brings old files back writes the mark of the snapshot id it tries **before** its commit; marks are kept for
  ever, so that other clients' commits, which carry nothing on, cannot make a table forget it. A mark whose commit
  failed is harmless.

Does not know: files, manifests, what may go.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from lakebed.errors import Conflict, Corruption, NotFound
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.runtime import Environment
from lakebed.table.layout import Layout, parse_consumer
from lakebed.table.manifest_reader import ManifestReader
from lakebed.table.model import Snapshot, TableSchema
from lakebed.table.reclaim import IntArray
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.tag_index import TagEntry
from lakebed.table.tags import Tags
from lakebed.texts import whole_number

__all__ = ["Holders", "Line", "expired_below", "held_from", "mark_restored", "note_expired_below", "read_holders"]

_COLLECTIONS_MAX: Final = 100
_MARK: Final = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of versions: main, or a branch."""

    store: ObjectStore
    """The table's folder."""
    layout: Layout
    snapshots: SnapshotLog
    tags: Tags
    reader: ManifestReader
    schema: Callable[[], TableSchema]
    """The newest schema."""
    environment: Environment
    fork: Snapshot | None = None
    """Of a branch: the snapshot it started from, whose files are main's."""
    name: str = "table"
    """For reports."""

    def of_branch(self, branch: str | None) -> Line:
        """The line of another branch of the same table, its fork not looked up; None is main. No request."""
        layout = Layout(branch=branch)
        log = SnapshotLog(self.store, layout=layout, environment=self.environment)
        tags = Tags(self.store, layout=layout, snapshots=log, environment=self.environment)
        reader = ManifestReader(self.store, layout, environment=self.environment)
        return replace(self, layout=layout, snapshots=log, tags=tags, reader=reader, fork=None)

    @property
    def restored_folder(self) -> str:
        """Where rollbacks leave their marks."""
        return self.layout.root + "lakebed/restored"

    @property
    def expired_note(self) -> str:
        """Where it is noted below which id every snapshot has expired."""
        return self.layout.root + "lakebed/expired-below"


@dataclass(frozen=True, slots=True)
class Holders:
    """What held versions alive at one moment."""

    snapshot_ids: IntArray
    """Live snapshots, ascending."""
    tags: tuple[TagEntry, ...]
    """Tags and hidden pins, by snapshot id, then name."""
    restored_ids: IntArray
    """Snapshots by which rollbacks brought old files back, ascending; expired ones included."""
    ids: IntArray = field(init=False)
    """Ids of all versions, ascending, each once: what the interval test bisects."""

    def __post_init__(self) -> None:
        tagged = np.array([tag.snapshot_id for tag in self.tags], np.int64)
        object.__setattr__(self, "ids", np.union1d(self.snapshot_ids, tagged).astype(np.int64))

    def is_live(self, snapshot_id: int) -> bool:
        """Whether the snapshot's own file is there."""
        at = int(np.searchsorted(self.snapshot_ids, snapshot_id))
        return at < len(self.snapshot_ids) and int(self.snapshot_ids[at]) == snapshot_id

    def holds(self, snapshot_id: int) -> bool:
        """Whether a snapshot or a tag of this id is there."""
        at = int(np.searchsorted(self.ids, snapshot_id))
        return at < len(self.ids) and int(self.ids[at]) == snapshot_id

    def tag_of(self, snapshot_id: int) -> TagEntry | None:
        """A tag that holds the id."""
        return next((tag for tag in self.tags if tag.snapshot_id == snapshot_id), None)

    def load(self, line: Line, snapshot_id: int) -> Snapshot:
        """The version of an id, from its snapshot or else from a tag of it.

        Raises:
            NotFound: it went since the state was read.
            Corruption: its file is unreadable.
        Cost: 1 GET.
        """
        if self.is_live(snapshot_id):
            found = line.snapshots.find(snapshot_id)
            if found is not None:
                return found
        for tag in self.tags:
            if tag.snapshot_id == snapshot_id:
                kept = line.tags.find(tag.name)
                if kept is not None and kept.snapshot.id == snapshot_id:
                    return kept.snapshot
        raise NotFound(f"version {snapshot_id} went while it was looked at.", kind="version_went", snapshot=snapshot_id)


def read_holders(line: Line) -> Holders:
    """The state now.

    Raises:
        Corruption: a tag is unreadable: what it holds is unknown, so nothing may be deleted.
        Conflict: holders change faster than they can be listed.
    Cost: 5 LISTs + 1 GET, however many tags there are; 1 GET more for each tag that the tag index does not know yet.
    """
    before = _listed(line)
    for _ in range(_COLLECTIONS_MAX):
        # What the first listing shows is read between the two: a tag that is replaced meanwhile makes them differ.
        tags = line.tags.index(before[1]).entries
        after = _listed(line)
        if after == before:
            # A mark is older than its snapshot, so marks read last include those of all listed snapshots.
            return Holders(np.array(after[0], np.int64), tags, _restored_ids(line))
        before = after
    raise Conflict("tags and snapshots change faster than they can be listed: try again later.", kind="holders_change")


def _listed(line: Line) -> tuple[tuple[int, ...], tuple[ObjectMeta, ...]]:
    return tuple(line.snapshots.ids()), tuple(line.store.list(line.layout.tag_folder))


def mark_restored(line: Line, snapshot_id: int) -> None:
    """Leave the mark that this snapshot, about to be tried, brings old files back. Durable. Cost: 1 PUT."""
    line.store.put(f"{line.restored_folder}/{snapshot_id:020d}", b"")


def expired_below(line: Line) -> int:
    """Every snapshot below this has expired; a file of one that is there again was put by a retry that came late.

    0 when nothing has expired, or when the note is unreadable: it only helps to clean. Cost: 1 GET.
    """
    try:
        text = bytes(line.store.get(line.expired_note))
    except NotFound:
        return 0
    return whole_number(text.decode("ascii", "replace")) or 0


def note_expired_below(line: Line, below: int) -> None:
    """Note that every snapshot below this is about to be hidden. Durable. Cost: 1 GET, and 1 PUT when it is news."""
    if expired_below(line) < below:
        line.store.put(line.expired_note, str(below).encode())


def _restored_ids(line: Line) -> IntArray:
    names = (meta.path.rpartition("/")[2] for meta in line.store.list(line.restored_folder))
    return np.array(sorted(int(name) for name in names if _MARK.fullmatch(name)), np.int64)


def held_from(line: Line) -> int | None:
    """The smallest snapshot id that some consumer reads next; None without consumers.

    Raises:
        Corruption: a consumer's file is unreadable: what it holds is unknown.
    Cost: 1 LIST + 1 GET a consumer.
    """
    held = None
    for meta in line.store.list(line.layout.consumer_folder):
        if parse_consumer(meta.path) is None:
            continue
        try:
            document = msgspec.json.decode(bytes(line.store.get(meta.path)))
            snapshot_id = int(document["nextSnapshot"])
        except NotFound:
            continue
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
            raise Corruption(
                f"{meta.path} is not a consumer's progress ({error}): nothing expires while it is there.",
                path=meta.path,
            ) from error
        held = snapshot_id if held is None else min(held, snapshot_id)
    return held
