"""The numbered snapshots of one table or branch: `SnapshotLog`, over `NumberedLog` with Paimon's file names.

Owns: finding the newest and oldest snapshot, reading one, walking them by id or by time, and the create-only append
that makes a commit visible.

Invariants:
- Only the create-only put of ``snapshot-<n+1>`` decides a race; the write id is the snapshot's `uuid`.
- lakebed never uses an id twice: ids below the boundary are fenced. Gaps between ids are legal (rollbacks, expiry).
- ``LATEST`` and ``EARLIEST`` are hints for other clients and for a first look. They are written after the commit, best
  effort and not durably, and never trusted alone. A store that is versioned as a whole has none: they would make any
  two versions differ.
- Commit times never decrease along the ids that lakebed wrote, so a time is found by bisection.

Other clients of the format write snapshots too. They ignore the boundary, and on a local folder their renames may
overwrite a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from typing_extensions import Buffer

from lakebed.errors import Conflict, Corruption, NotFound, OutcomeUnknown, Unavailable, UnsupportedFormat
from lakebed.objects.create_once import until_answered
from lakebed.objects.numbered_log import NumberedLog
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment
from lakebed.table.codec.snapshot_json import decode_snapshot, encode_snapshot
from lakebed.table.model.layout import Layout, parse_snapshot
from lakebed.table.model.model import Snapshot
from lakebed.texts import spans_of


@runtime_checkable
class _Requiring(Protocol):
    """A store that creates an object only where others are, as a branch of a repository does."""

    def requiring(self, paths: Iterable[str]) -> ObjectStore:
        """The same store, whose create-only puts are `Conflict` (``path_gone``) if one of some paths has no object."""


class SnapshotLog:
    """The snapshots of main or of a branch. Thread-safe; keeps no snapshot in memory."""

    def __init__(self, store: ObjectStore, *, layout: Layout, environment: Environment) -> None:
        self._store = store
        self._layout = layout
        self._environment = environment
        self._log = NumberedLog(
            store,
            layout.snapshot_folder,
            name_of=lambda id: layout.snapshot(id).rpartition("/")[2],
            id_of=lambda name: parse_snapshot(f"{layout.snapshot_folder}/{name}"),
            write_id_of=write_id_of,
            boundary_folder=layout.boundary_folder,
            latest_hint_path=None if store.is_versioned else layout.latest_hint,
            environment=environment,
        )

    @property
    def log(self) -> NumberedLog:
        """The underlying numbered log; expiry and rollback use its boundary and deletions."""
        return self._log

    @property
    def seen_id(self) -> int | None:
        """The newest id that this object has seen. Others may have added newer ones since, or rolled it back."""
        return self._log.seen

    def latest(self, *, exact: bool = True) -> Snapshot | None:
        """The newest snapshot, never cached; None if there is none.

        Args:
            exact: False may miss newer ids after a gap that another client's rollback left. Enough for a commit, which
                then loses its race and reads again.

        Cost: 1 GET + 1 HEAD (no newer one exists), and 1 LIST of the boundary when exact. In addition 1 HEAD for each
        commit of other writers since the last call, and in the first call 1 GET of the hint.
        """
        newest = self._log.newest(exact=exact)
        return None if newest is None else decode_snapshot(newest[1], path=self._layout.snapshot(newest[0]))

    def next_id(self, newest: Snapshot | None) -> int:
        """The id of a commit on top of a snapshot: the next one, or the boundary if that is higher.

        The boundary is higher after another client rolled back below it. Cost: 1 LIST in the first call, then nothing.
        """
        return max(1 if newest is None else newest.id + 1, self._log.free_from())

    def latest_body(self) -> tuple[int, bytes] | None:
        """Id and bytes of the newest snapshot, unknown fields included; None if there is none. Cost: as `latest`."""
        newest = self._log.newest()
        return None if newest is None else (newest[0], bytes(newest[1]))

    def earliest(self) -> Snapshot | None:
        """The oldest snapshot that has not expired; None if there is none. Cost: 1 LIST + 1 GET."""
        return next(self.walk(), None)

    def ids(self) -> list[int]:
        """Ids of all snapshots, ascending, with gaps. Cost: 1 LIST a thousand."""
        return self._log.ids()

    def write_time_ms(self) -> dict[int, int]:
        """The time at which each snapshot's file was written, Unix ms by the store's clock. Cost: 1 LIST a thousand."""
        metas = self._store.list(self._layout.snapshot_folder)
        return {id: meta.modified_ms for meta in metas if (id := parse_snapshot(meta.path)) is not None}

    def exists(self, snapshot_id: int) -> bool:
        """Whether the snapshot is there now. Cost: 1 HEAD."""
        return self._log.exists(snapshot_id)

    def body(self, snapshot_id: int) -> bytes:
        """The snapshot's file as written, unknown fields included. Raises `NotFound`. Cost: 1 GET."""
        return bytes(self._log.read(snapshot_id))

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """One snapshot by id.

        Raises:
            NotFound: it never existed or has expired; the message names the ids that exist.
            Corruption: the file is unreadable.
        Cost: 1 GET (a miss adds 1 LIST for the message).
        """
        snapshot = self.find(snapshot_id)
        if snapshot is None:
            raise self.absent(snapshot_id)
        return snapshot

    def walk(self, ids: Iterable[int] | None = None) -> Iterator[Snapshot]:
        """Snapshots oldest first, lazily, without those that expire during the walk. Cost: 1 LIST + 1 GET each."""
        for snapshot_id in self.ids() if ids is None else ids:
            snapshot = self.find(snapshot_id)
            if snapshot is not None:
                yield snapshot

    def find(self, snapshot_id: int) -> Snapshot | None:
        """One snapshot by id; None if it does not exist. Cost: 1 GET."""
        try:
            body = self.body(snapshot_id)
        except NotFound:
            return None
        return decode_snapshot(body, path=self._layout.snapshot(snapshot_id))

    def bisect(self, ids: Sequence[int], time_ms: int) -> Snapshot | None:
        """The newest of `ids` (ascending) committed at or before a time. Cost: at most log2(count) + 1 GETs."""
        remaining = list(ids)
        best: Snapshot | None = None
        while remaining:
            middle = len(remaining) // 2
            snapshot = self.find(remaining[middle])
            if snapshot is None:  # expired since the listing: treated as not listed
                del remaining[middle]
            elif snapshot.time_ms <= time_ms:
                best, remaining = snapshot, remaining[middle + 1 :]
            else:
                remaining = remaining[:middle]
        return best

    def append(
        self,
        snapshot: Snapshot,
        *,
        confirm: Callable[[], object],
        hints: bool = True,
        requires: Sequence[str] = (),
    ) -> None:
        """Make a snapshot visible: one durable create-only put of its id, then the hints.

        Args:
            confirm: called after the put; raises when the table, or its branch, is gone or was replaced by another.
            hints: False leaves the hint of the newest snapshot to the caller (`store_latest_hint`).
            requires: paths of files that the snapshot names. Where others may take back such files, as in a branch of a
                repository, the put expects that they are there.

        Raises:
            Conflict: another writer took the id: read again and try the next. Kind ``path_gone``: one of `requires` is
                not there, and nothing was put.
            OutcomeUnknown: the writer stalled so long that the boundary's chain no longer shows the outcome.
            NotFound, Conflict: what `confirm` raises: nothing was committed.
        Cost: 1 PUT + 1 LIST of the boundary + 1 PUT of the hint, and that of `confirm`; the first snapshot 1 PUT more.
        """
        if snapshot.uuid is None:
            raise ValueError("a snapshot needs a uuid: it is the write id")
        store = self._store.requiring(requires) if requires and isinstance(self._store, _Requiring) else None
        self._log.append(snapshot.id, encode_snapshot(snapshot), write_id=snapshot.uuid, hints=hints, store=store)
        try:
            # A drop deletes the schemas first and lists the snapshots after that. If it did not list this snapshot,
            # then `confirm` does not find a schema.
            until_answered(
                confirm,
                what=f"{self._layout.snapshot(snapshot.id)} was created, and whether its table is there is not known",
                environment=self._environment,
            )
        except (NotFound, Conflict):
            self._log.withdraw(snapshot.id, snapshot.uuid)
            self._delete_latest_hint()
            raise
        if snapshot.id == 1:
            self.store_earliest_hint(1)

    def store_latest_hint(self, *, confirm: Callable[[], object]) -> None:
        """Write the hint for other clients that names the newest snapshot seen here. Best effort: they check it.

        Args:
            confirm: as in `append`: no hint stays in the folder of a table that was dropped meanwhile.

        Cost: 1 PUT, and that of `confirm`.
        """
        if self._store.is_versioned:
            return
        self._log.store_hint()
        try:
            confirm()
        except (NotFound, Conflict):
            self._delete_latest_hint()
        except (Unavailable, OutcomeUnknown):
            return  # the drop, or the next commit, takes care of it

    def _delete_latest_hint(self) -> None:
        if not self._store.is_versioned:
            hint = Deletable(self._layout.latest_hint, 0, "it names a snapshot that was withdrawn")
            Sweeper(self._store).delete_all([hint])

    def store_earliest_hint(self, snapshot_id: int) -> None:
        """Write the hint for other clients that names the oldest snapshot. Best effort: they check it. Cost: 1 PUT."""
        if self._store.is_versioned:
            return
        try:
            self._store.put(self._layout.earliest_hint, str(snapshot_id).encode(), durable=False)
        except (Unavailable, OutcomeUnknown):
            return  # a hint: its readers check it

    def absent(self, snapshot_id: int) -> NotFound:
        """The error for a missing snapshot, with the ids that exist. Cost: 1 LIST."""
        ids = self.ids()
        choices = f"it has snapshots {spans_of(ids)}" if ids else "it has no snapshot yet"
        choices = f"it has only snapshot {ids[0]}" if len(ids) == 1 else choices
        hint = ""
        if ids and 0 < snapshot_id < ids[0]:
            older = "older ones have expired" if self._layout.branch is None else "older ones are not the branch's"
            hint = f" ({older}: a tag may still pin it)"
        return NotFound(
            f"The table has no snapshot {snapshot_id}: {choices}{hint}.",
            kind="snapshot_not_found",
            snapshot=snapshot_id,
            earliest=ids[0] if ids else None,
            latest=ids[-1] if ids else None,
        )


def write_id_of(body: Buffer) -> str | None:
    """The uuid in a snapshot file; None if it has none or cannot be read as a snapshot."""
    try:
        return decode_snapshot(body, path="snapshot").uuid
    except (Corruption, UnsupportedFormat):
        return None
