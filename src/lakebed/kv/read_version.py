"""The version that a reader reads: that of its own checkpoint, of another checkpoint, of a number, or the newest one.

Owns: `PinnedVersion` and its four sources. `acquire` is called when a reader opens, at each poll, and when a file is
gone.

Invariants:
- Of its own checkpoints, a reader keeps the one that it shows and every older one that a scan reads. The scan
  references the `CheckpointRef`, and the first update after the last reference is gone removes the checkpoint. No call
  releases a checkpoint, so no lock is taken while an abandoned scan is torn down, in whichever thread that happens.
- The checkpoint that is shown is never removed. It becomes an older one when a newer version was acquired, and a later
  update removes it.
- A fork of the process has no checkpoint at first, and leaves those of its parent alone.
- An own checkpoint that is gone or expired pins nothing any more. A new one is made from the newest manifest.
"""

from __future__ import annotations

import os
import socket
import weakref
from dataclasses import dataclass
from typing import Protocol

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.ids import new_uuid
from lakebed.kv.checkpoint import (
    check_open,
    check_readable,
    find_checkpoint,
    last_durable_wal_id,
    lifetime_in_ms,
    live_checkpoints,
    new_checkpoint,
    with_latest,
    with_refreshed,
    without_checkpoint,
)
from lakebed.kv.checkpoint_refs import CheckpointRef
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest, Owner
from lakebed.kv.options import ReaderOptions


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """A version to read, and the checkpoint that pins it."""

    manifest: Manifest
    """The manifest whose files are read."""
    newest: Manifest
    """The manifest by which the log is read: the newest one at the decision; for a fixed version, its own manifest."""
    through: int | None
    """Last log object that belongs to the version; None: the version has all of the log."""
    checkpoint: Checkpoint | None
    """The checkpoint that pins the version; None: nothing does."""
    ref: CheckpointRef | None = None
    """A reader references it as long as it reads files of this version."""


class ReadVersionSource(Protocol):
    """Decides which version a reader reads."""

    @property
    def moves(self) -> bool:
        """Whether the version can change."""
        ...

    def acquire(self) -> PinnedVersion:
        """Return the version to read now. Raises `NotFound`, and as `check_open` and `find_checkpoint`."""
        ...

    def leave(self) -> None:
        """Remove what was written into the manifest: by default nothing was."""
        return None


class _Located(ReadVersionSource):
    """A source that reads the manifests of a database."""

    def __init__(self, location: DatabaseLocation) -> None:
        self._location = location
        self._log = ManifestLog(location)


class CheckpointSource(_Located):
    """A checkpoint of another owner. It is neither moved nor refreshed."""

    moves = False

    def __init__(self, location: DatabaseLocation, checkpoint: str) -> None:
        super().__init__(location)
        self._wanted = checkpoint

    def acquire(self) -> PinnedVersion:
        """Return the version of the checkpoint while the checkpoint lives, also in a destroyed database.

        Cost: 1 LIST + 1 or 2 GET.
        """
        newest = self._log.latest()
        now_ms = self._location.environment.clock.now_ms()
        checkpoint = find_checkpoint(newest, self._wanted, now_ms=now_ms, url=self._location.url)
        self._wanted = checkpoint.id  # a name may pass to another checkpoint; the reader stays on this one
        manifest = self._log.load(checkpoint.manifest_id)
        return PinnedVersion(manifest, manifest, manifest.wal_id_last_seen, checkpoint)


class VersionSource(_Located):
    """A manifest that is read without a checkpoint. A collection may delete its files while they are read."""

    moves = False

    def __init__(self, location: DatabaseLocation, version: int) -> None:
        super().__init__(location)
        self._version = version

    def acquire(self) -> PinnedVersion:
        """Return the version. Raises `NotFound` if it is not readable any more. Cost: 1 LIST + 2 GET."""
        newest = check_open(self._log.latest(), self._location.url)
        now_ms = self._location.environment.clock.now_ms()
        check_readable(newest, self._version, now_ms=now_ms, url=self._location.url)
        manifest = self._log.load(self._version)
        return PinnedVersion(manifest, manifest, manifest.wal_id_last_seen, None)


class LatestSource(_Located):
    """The newest manifest, without a pin. If files are gone, the newest manifest is read again."""

    moves = True

    def acquire(self) -> PinnedVersion:
        """Return the newest version. Cost: 1 LIST, and 1 GET if it is new."""
        newest = check_open(self._log.latest(), self._location.url)
        return PinnedVersion(newest, newest, None, None)


class OwnCheckpointSource(_Located):
    """A checkpoint of the reader's own, which follows the database's files."""

    moves = True

    def __init__(self, location: DatabaseLocation, options: ReaderOptions) -> None:
        super().__init__(location)
        self._lifetime_ms = lifetime_in_ms(options.checkpoint_lifetime)
        self._refreshed_s = location.environment.clock.monotonic_s()
        """When our checkpoints last got a full lifetime, by the monotonic clock: the wall clock may be set back."""
        self._begin()

    def _begin(self) -> None:
        """Begin without a checkpoint, in a new reader and in a forked process."""
        self._owner = Owner("reader", host=socket.gethostname(), pid=os.getpid())
        self._ref: CheckpointRef | None = None
        self._manifest: Manifest | None = None
        """The manifest that the checkpoint of `_ref` pins."""
        self._older: list[tuple[str, weakref.ref[CheckpointRef]]] = []
        self._asked_id: str | None = None
        """Id of a checkpoint whose creation was not answered. The next attempt uses the same id."""

    def acquire(self) -> PinnedVersion:
        """Keep, refresh or re-establish the checkpoint, and remove the older ones that no scan reads.

        On a full disk no checkpoint can be made. Then return the newest version without a checkpoint, as
        `LatestSource`, until a later call makes the checkpoint.

        Cost: 1 LIST, and 1 GET if the manifest is new. If files have changed, half of a lifetime has passed, or an
        older checkpoint can be removed, also an update: 1 PUT + 1 LIST, and 1 LIST of the log for a new checkpoint.
        """
        if self._owner.pid != os.getpid():
            self._begin()
        newest = check_open(self._log.latest(), self._location.url)
        now_ms = self._location.environment.clock.now_ms()
        checkpoint = self._own(newest, now_ms)
        if checkpoint is None or self._has_moved(newest):
            try:
                newest = self._establish()
            except Unavailable as error:
                if error.kind != "disk_full" or checkpoint is not None:
                    raise
                return PinnedVersion(newest, newest, None, None)
        elif self._is_half_over(checkpoint, now_ms) or self._free_ids():
            newest = self._update_kept()
        manifest, ref = self._manifest, self._ref
        assert manifest is not None
        assert ref is not None
        checkpoint = self._own(newest, now_ms)
        if checkpoint is None:
            raise self._checkpoint_error()
        return PinnedVersion(manifest, newest, None, checkpoint, ref)

    def _own(self, manifest: Manifest, now_ms: int) -> Checkpoint | None:
        if self._ref is None:
            return None
        checkpoint_id = self._ref.checkpoint_id
        return next(
            (checkpoint for checkpoint in live_checkpoints(manifest, now_ms) if checkpoint.id == checkpoint_id), None
        )

    def _checkpoint_error(self) -> InvalidRequest:
        return InvalidRequest(
            f"The reader's checkpoint in {self._location.url} is gone as soon as it was made: its lifetime of "
            f"{self._lifetime_ms} ms is too short, or another process deletes it.",
            kind="invalid_db_state",
            url=self._location.url,
        )

    def _has_moved(self, newest: Manifest) -> bool:
        shown_manifest = self._manifest
        return (
            shown_manifest is None
            or newest.replay_after_wal_id != shown_manifest.replay_after_wal_id
            or newest.l0 != shown_manifest.l0
            or newest.runs != shown_manifest.runs
        )

    def _is_half_over(self, checkpoint: Checkpoint, now_ms: int) -> bool:
        if checkpoint.expires_at_ms is None or self._lifetime_ms is None:
            return False
        since_s = self._location.environment.clock.monotonic_s() - self._refreshed_s
        return checkpoint.expires_at_ms - now_ms < self._lifetime_ms / 2 or since_s > self._lifetime_ms / 2000

    def _free_ids(self) -> list[str]:
        """Return the ids of older checkpoints that no scan reads any more."""
        return [checkpoint_id for checkpoint_id, ref in self._older if ref() is None]

    def _establish(self) -> Manifest:
        own_id = self._asked_id or new_uuid(self._location.environment.rng)
        self._asked_id = own_id
        free = self._free_ids()

        def change(manifest: Manifest) -> Manifest | None:
            check_open(manifest, self._location.url)
            now_ms = self._location.environment.clock.now_ms()
            if any(checkpoint.id == own_id for checkpoint in live_checkpoints(manifest, now_ms)):
                return None
            own_checkpoint = new_checkpoint(
                manifest.manifest_id + 1,
                id=own_id,
                now_ms=now_ms,
                owner=self._owner,
                lifetime_ms=self._lifetime_ms,
            )
            renewed = self._renew_checkpoints(without_checkpoint(manifest, own_id), free, now_ms)
            return with_latest(renewed, own_checkpoint, last_wal_id=last_durable_wal_id(self._location, manifest))

        begun_s = self._location.environment.clock.monotonic_s()
        newest = self._log.update(change)
        self._refreshed_s = begun_s
        pinned_id = next(checkpoint.manifest_id for checkpoint in newest.checkpoints if checkpoint.id == own_id)
        self._manifest = newest if pinned_id == newest.manifest_id else self._log.load(pinned_id)
        if self._ref is not None:
            self._older.append((self._ref.checkpoint_id, weakref.ref(self._ref)))
        self._ref, self._asked_id = CheckpointRef(own_id), None
        self._forget(free)
        return newest

    def _update_kept(self) -> Manifest:
        free = self._free_ids()

        def change(manifest: Manifest) -> Manifest | None:
            check_open(manifest, self._location.url)
            now_ms = self._location.environment.clock.now_ms()
            renewed = self._renew_checkpoints(manifest, free, now_ms)
            return None if renewed == manifest else renewed

        begun_s = self._location.environment.clock.monotonic_s()
        newest = self._log.update(change)
        self._refreshed_s = begun_s
        self._forget(free)
        return newest

    def _renew_checkpoints(self, manifest: Manifest, free: list[str], now_ms: int) -> Manifest:
        """Return the manifest without the free checkpoints, and with a full lifetime from now for our live ones."""
        for checkpoint_id in free:
            manifest = without_checkpoint(manifest, checkpoint_id)
        if self._lifetime_ms is None:
            return manifest
        own_ids = {checkpoint_id for checkpoint_id, _ in self._older} - set(free)
        if self._ref is not None:
            own_ids.add(self._ref.checkpoint_id)
        for checkpoint in live_checkpoints(manifest, now_ms):
            if checkpoint.id in own_ids:
                manifest = with_refreshed(manifest, checkpoint.id, expires_at_ms=now_ms + self._lifetime_ms)
        return manifest

    def _forget(self, ids: list[str]) -> None:
        self._older = [(checkpoint_id, ref) for checkpoint_id, ref in self._older if checkpoint_id not in ids]

    def leave(self) -> None:
        """Remove all our checkpoints from the manifest, including those that unfinished scans read. Cost: 1 update."""
        if self._owner.pid != os.getpid():
            self._begin()
        own_ids = [checkpoint_id for checkpoint_id, _ in self._older]
        own_ids += [] if self._ref is None else [self._ref.checkpoint_id]
        own_ids += [] if self._asked_id is None else [self._asked_id]

        def change(manifest: Manifest) -> Manifest | None:
            remaining = manifest
            for checkpoint_id in own_ids:
                remaining = without_checkpoint(remaining, checkpoint_id)
            return None if remaining is manifest else remaining

        if own_ids:
            self._log.update(change)
        self._ref, self._asked_id, self._older = None, None, []
