"""`DatabaseVerbs`: every verb on a database that needs no open one, and the `Versioned` contract over them.

An open database has one as `Database.admin`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

from lakebed.arguments import check_arguments
from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound
from lakebed.kv.checkpoint import (
    create_checkpoint,
    delete_checkpoint,
    list_checkpoints,
    live_checkpoints,
    make_checkpoint,
    refresh_checkpoint,
)
from lakebed.kv.clone import create_clone
from lakebed.kv.collect import collect_garbage, plan_garbage
from lakebed.kv.compactor import Compactor
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy, store_name
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, CheckpointCreateResult, Manifest
from lakebed.kv.options import CheckpointOptions, CollectorOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.restore import RESTORABLE_FOR, restore
from lakebed.kv.versions import (
    ManifestSummary,
    find_version,
    list_manifests,
    list_pins,
    list_versions,
    pin_of,
    version_of,
)
from lakebed.kv.why import why, why_version
from lakebed.objects.path import check_path
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Explanation, Pin, Version
from lakebed.reclaim.sweep import Progress

_PASSING_LIFETIME: Final = timedelta(hours=1)
"""Of a checkpoint that holds a version while it is cloned or restored; after a crash it stays for so long."""


@check_arguments
class DatabaseVerbs:
    """A database by its location, open or not. Thread-safe.

    Holds no state but the location, so every call sees the newest manifest, with or without a running writer.

    Args:
        name: the store's name inside its lake; by default the last part of its URL.
    """

    def __init__(self, location: DatabaseLocation, *, name: str | None = None) -> None:
        self.location = location
        self._name = name

    @property
    def name(self) -> str:
        """The store's name inside its lake."""
        return self._name or store_name(self.location)

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.location.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def exists(self) -> bool:
        """Whether a finished database is here that was not destroyed. Cost: 1 LIST + 1 GET; 1 LIST when it is not."""
        manifest = ManifestLog(self.location).find_latest()
        return manifest is not None and manifest.initialized and manifest.destroyed_at_ms is None

    def reader(self, checkpoint: str | None = None, *, options: ReaderOptions | None = None) -> DatabaseReader:
        """Open it to read: the latest, or what a checkpoint pins. As `DatabaseReader.open`."""
        return DatabaseReader.open(self.location, checkpoint, options=options)

    def create_checkpoint(self, options: CheckpointOptions | None = None) -> CheckpointCreateResult:
        """Pin the latest, with every durable write, or what another checkpoint pins.

        As `lakebed.kv.checkpoint.create_checkpoint`. What an open writer has not made durable yet is not in it; for
        that, ask the writer: `Database.create_checkpoint`.
        """
        return create_checkpoint(self.location, options)

    def refresh_checkpoint(self, id: str, lifetime: timedelta | None = None, *, force: bool = False) -> Checkpoint:
        """Give a checkpoint a new end, or none. As `lakebed.kv.checkpoint.refresh_checkpoint`."""
        return refresh_checkpoint(self.location, id, lifetime, force=force)

    def delete_checkpoint(self, id: str, *, force: bool = False) -> Checkpoint:
        """Remove a checkpoint. As `lakebed.kv.checkpoint.delete_checkpoint`."""
        return delete_checkpoint(self.location, id, force=force)

    def list_checkpoints(self, name: str | None = None, *, expired: bool = False) -> list[Checkpoint]:
        """Checkpoints, oldest first. As `lakebed.kv.checkpoint.list_checkpoints`."""
        return list_checkpoints(self.location, name, expired=expired)

    def create_clone(
        self, parent_url: str | os.PathLike[str], checkpoint: str | None = None, *, copy: bool = False
    ) -> Manifest:
        """Make the database here as a clone of another. As `lakebed.kv.clone.create_clone`."""
        return create_clone(self.location, parent_url, checkpoint, copy=copy)

    def destroy(
        self,
        *,
        soft: bool = True,
        take_over: bool = False,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> CollectionReport:
        """Destroy it: softly, or at once. As `lakebed.kv.destroy.destroy`."""
        return destroy(self.location, soft=soft, take_over=take_over, dry_run=dry_run, progress=progress)

    def collect(
        self,
        options: CollectorOptions | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> CollectionReport:
        """Delete what nothing needs. As `lakebed.kv.collect.collect_garbage`."""
        return collect_garbage(self.location, options=options or CollectorOptions(), dry_run=dry_run, progress=progress)

    def compact(self, *, full: bool = False, progress: Callable[[int, int], None] | None = None) -> bool:
        """Merge files until nothing needs to be merged; `full`: all of them into one run, rewritten.

        This claims the compactor's role: a compactor that runs elsewhere stops with `Fenced`.

        Returns:
            Whether anything was merged.

        Raises as `lakebed.kv.compactor.Compactor.compact_once`.
        """
        compactor = Compactor(self.location)
        if full:
            return compactor.compact_full(progress)
        came = False
        while compactor.compact_once(progress):
            came = True
        return came

    def show_manifest(self, id: int | None = None) -> Manifest:
        """A manifest, the newest by default. Raises `NotFound`. Cost: 1 GET, and 1 LIST for the newest."""
        log = ManifestLog(self.location)
        return log.latest() if id is None else log.load(id)

    def list_manifests(self) -> list[ManifestSummary]:
        """Every manifest that is there, with its size and what pins it, oldest first. Cost: 2 LIST + 1 GET."""
        return list_manifests(self.location)

    def versions(self) -> Iterator[Version]:
        """Readable versions, oldest first, pinned ones included. Cost: 2 LIST + 1 GET a readable manifest."""
        return list_versions(self.location, store=self.name)

    def at(self, version: str) -> DatabaseReader:
        """A read-only view of one version: a checkpoint's name or id, or a version's number.

        Nothing is written: a number that nothing pins may be taken apart by a collection while it is read, and then
        raises `NotFound`. Raises `NotFound`. Cost: as `DatabaseReader.open`, and 1 LIST + 1 GET.
        """
        target = find_version(self.location, ManifestLog(self.location).latest(), version)
        if isinstance(target, Checkpoint):
            return DatabaseReader.open(self.location, target.id)
        return DatabaseReader.open(self.location, version=target)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive under a name, as a checkpoint; the latest by default.

        Args:
            version: a checkpoint's name or id, or the number of a version that no collection has passed.
            lifetime_ms: None: without an end.

        Raises:
            AlreadyExists: a live checkpoint has the name.
            NotFound: there is no such version any more.
            InvalidRequest: an invalid name or lifetime; a destroyed or unfinished database.
        Cost: as `create_checkpoint`, and 1 GET; with a version 1 LIST + 1 GET more.
        """
        try:
            lifetime = None if lifetime_ms is None else timedelta(milliseconds=lifetime_ms)
        except OverflowError as error:
            raise InvalidRequest(
                f"A pin's lifetime is at most {timedelta.max.days:,} days, and {lifetime_ms} ms were given.",
                kind="invalid_lifetime",
            ) from error
        options = CheckpointOptions(name=name, lifetime=lifetime)
        number = None
        if version is not None:
            target = find_version(self.location, ManifestLog(self.location).latest(), version)
            if isinstance(target, Checkpoint):
                options = replace(options, source=target.id)
            else:
                number = target
        made = make_checkpoint(self.location, options, version=number)
        return pin_of(made, ManifestLog(self.location).load(made.manifest_id), store=self.name)

    def pins(self) -> list[Pin]:
        """Everything that keeps a version alive now: checkpoints of users, clones, readers and the writer.

        The writer's is there while one is open, or after a crash until the next one opens.

        Cost: 1 LIST + 1 GET, and 1 GET a pinned manifest.
        """
        return list_pins(self.location, store=self.name)

    def unpin(self, name: str) -> None:
        """Remove a checkpoint by name or id. Raises `NotFound`, and `InvalidRequest` for one that is not a user's."""
        try:
            delete_checkpoint(self.location, name)
        except InvalidRequest as error:
            if error.kind != "invalid_db_state":
                raise
            raise NotFound(str(error), kind="checkpoint_not_found", url=self.url, checkpoint=name) from error

    def create_branch(self, name: str, *, version: str | None = None) -> Self:
        """A clone next to this database, named `name`, that starts from one of its versions; the latest by default.

        A clone that a crash left unfinished is finished by the same call.

        Raises:
            AlreadyExists: a database is there already.
            NotFound: there is no such version.
            InvalidRequest: an invalid name, or something else is there.
        Cost: as `lakebed.kv.clone.create_clone`; with a version's number 2 updates more.
        """
        target = self.location.other(f"{self._folder_above()}/{self._fork_name(name)}")
        manifest = ManifestLog(target).find_latest()
        if manifest is not None and manifest.initialized:
            raise AlreadyExists(
                f"There is a database at {target.url} already: choose another name for the branch.",
                kind="database_exists",
                url=target.url,
            )
        if version is None:
            create_clone(target, self.url)
        else:
            begun = None if manifest is None or manifest.source is None else manifest.source.checkpoint
            with self._pin_version(version, begun) as checkpoint:
                create_clone(target, self.url, checkpoint)
        return type(self)(target)

    def _folder_above(self) -> str:
        above, separator, _ = self.url.rpartition("/")
        if not separator or above.endswith("/"):
            raise InvalidRequest(
                f"There is no folder above {self.url}: make a clone with a URL of its own.",
                kind="no_folder",
                url=self.url,
            )
        return above

    def _fork_name(self, name: str) -> str:
        if not isinstance(name, str) or "/" in name:
            raise InvalidRequest(
                f"A branch is named by one folder's name, and {name!r} is not one.", kind="invalid_name"
            )
        return check_path(name)

    @contextmanager
    def _pin_version(self, version: str, begun: str | None = None) -> Iterator[str]:
        """The id of a checkpoint on a version, for as long as it is worked on.

        Args:
            begun: a checkpoint that an unfinished attempt started from: taken again when it is of this version.
        """
        newest = ManifestLog(self.location).latest()
        target = find_version(self.location, newest, version)
        if isinstance(target, Checkpoint):
            yield target.id
            return
        live = live_checkpoints(newest, self.location.environment.clock.now_ms())
        again = next(
            (checkpoint for checkpoint in live if checkpoint.id == begun and checkpoint.manifest_id == target), None
        )
        passing = CheckpointOptions(lifetime=_PASSING_LIFETIME)
        held_id = create_checkpoint(self.location, passing, version=target).id if again is None else again.id
        try:
            yield held_id
        except LakebedError as error:
            # What was refused changed nothing. After any other failure the checkpoint stays until it expires: an
            # unfinished clone may name it, and the same call continues from there.
            if isinstance(error, InvalidRequest | AlreadyExists) or error.kind == "owned":
                self._release(held_id)
            raise
        self._release(held_id)

    def _release(self, held_id: str) -> None:
        with suppress(LakebedError):  # else it expires
            delete_checkpoint(self.location, held_id)

    def restore(self, version: str, *, lifetime: timedelta | None = RESTORABLE_FOR, take_over: bool = False) -> Version:
        """Make an older version the newest; what was there stays under a checkpoint for `lifetime`.

        Args:
            version: a checkpoint's name or id, or a version's number.
            lifetime: None: without an end.
            take_over: also under a living writer, which is fenced.

        Raises:
            NotFound: there is no such version.
            Conflict, InvalidRequest, Fenced, Corruption: as `lakebed.kv.restore.restore`.
        """
        with self._pin_version(version) as checkpoint:
            restored = restore(self.location, checkpoint, lifetime=lifetime, take_over=take_over)
        return version_of(restored.manifest, store=self.name)

    def plan_collection(self) -> CollectionPlan:
        """What a collection would delete now, with `CollectorOptions` as they are by default. Deletes nothing."""
        return plan_garbage(self.location, options=CollectorOptions())

    def why(self, path: str) -> Explanation:
        """Who needs an object, or when it may go. `path` is relative to the database's folder. As `lakebed.kv.why`."""
        return why(self.location, path, store=self.name)

    def why_version(self, version: str) -> Explanation:
        """What keeps a version, by number or checkpoint, and what would free it. As `lakebed.kv.why.why_version`."""
        return why_version(self.location, version, store=self.name)
