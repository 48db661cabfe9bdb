"""`DatabaseVerbs`: every verb on a database that does not need it open, with the `Versioned` contract.

An open database has these verbs as `Database.admin`.
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
"""Lifetime of a checkpoint that pins a version while it is cloned or restored. After a crash it stays for so long."""


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
        """The database's name in its lake."""
        return self._name or store_name(self.location)

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.location.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def exists(self) -> bool:
        """Return whether there is a finished database that was not destroyed.

        Cost: 1 LIST + 1 GET; of a missing database 1 LIST.
        """
        manifest = ManifestLog(self.location).find_latest()
        return manifest is not None and manifest.initialized and manifest.destroyed_at_ms is None

    def reader(self, checkpoint: str | None = None, *, options: ReaderOptions | None = None) -> DatabaseReader:
        """Open the database to read the latest version, or the version that a checkpoint pins.

        As `DatabaseReader.open`.
        """
        return DatabaseReader.open(self.location, checkpoint, options=options)

    def create_checkpoint(self, options: CheckpointOptions | None = None) -> CheckpointCreateResult:
        """Pin the latest version with all that is durable, or the version that another checkpoint pins.

        Writes that an open writer has not made durable yet are not in it. For these, call `Database.create_checkpoint`.

        Args:
            options: lifetime, source and name; None: the latest version, without an end and a name.

        Raises:
            InvalidRequest: kind ``invalid_db_state``: the database is destroyed or unfinished, or the source is unknown
                or has expired. Other kinds: the name or lifetime is not valid.
            AlreadyExists: a live checkpoint has the name.
            NotFound: there is no database.
            OutcomeUnknown: the store does not answer. The checkpoint in `facts` may exist.

        Cost: 1 GET + 1 PUT + at most 3 LIST, again for each lost race. About 200 bytes in each later manifest; if the
            log has gone on since the last manifest, also a manifest. Source: "Creating a Checkpoint".
        """
        return create_checkpoint(self.location, options)

    def refresh_checkpoint(self, id: str, lifetime: timedelta | None = None, *, force: bool = False) -> Checkpoint:
        """Give a checkpoint a new lifetime, from now, or (None) no end.

        Args:
            id: id or name of the checkpoint.
            lifetime: from now; None: no end.
            force: give the checkpoint of a clone or a writer an end too, although its files depend on it.

        Raises:
            InvalidRequest: kind ``invalid_db_state``: the checkpoint is unknown or has expired, or the database is
                destroyed or unfinished; ``checkpoint_owned``: `force` is needed.
            NotFound: there is no database.

        Cost: 1 GET + 1 PUT + 2 LIST.
        """
        return refresh_checkpoint(self.location, id, lifetime, force=force)

    def delete_checkpoint(self, id: str, *, force: bool = False) -> Checkpoint:
        """Delete a checkpoint, expired or not, and return it. The next collection may delete what only it kept.

        It works on destroyed databases too, which wait for it.

        Args:
            id: id or name of the checkpoint.
            force: delete the checkpoint of a clone, writer, reader or compactor too. That one then misses its files.

        Raises:
            InvalidRequest: kind ``invalid_db_state``: the checkpoint is unknown; ``checkpoint_owned``: `force` is
                needed, and the message says whose checkpoint it is.
            NotFound: there is no database.

        Cost: 1 GET + 1 PUT + 2 LIST.
        """
        return delete_checkpoint(self.location, id, force=force)

    def list_checkpoints(self, name: str | None = None, *, expired: bool = False) -> list[Checkpoint]:
        """Return the checkpoints of every owner, oldest first.

        Args:
            name: only those of this name.
            expired: also return expired ones that no collection has dropped yet; see `Checkpoint.is_live`.

        Raises `NotFound` if there is no database; a destroyed one still lists its checkpoints. Cost: 1 LIST + 1 GET.
        """
        return list_checkpoints(self.location, name, expired=expired)

    def create_clone(
        self, parent_url: str | os.PathLike[str], checkpoint: str | None = None, *, copy: bool = False
    ) -> Manifest:
        """Create the database here as a clone of another: with its rows, without copying its files.

        The call is idempotent. After a crash at any step the same call finishes the clone.

        Args:
            parent_url: of the database to clone.
            checkpoint: of the parent, by id or name; None: its latest version with all that is durable.
            copy: copy the files, and depend on nothing. Only this works for a clone on another store.

        Raises:
            AlreadyExists: there is another database here; or another caller was faster to begin it.
            InvalidRequest: the folder holds something else, is the parent's or below it, or is on another store; kind
                ``invalid_db_state``: the parent is destroyed or unfinished, or the checkpoint is unknown or has
                    expired.
            NotFound: there is no parent.
            Conflict: other processes are working on the same clone all the time.
            Corruption: an object of the parent's log is missing or damaged.

        Cost: about 17 requests, and 8 for each further ancestor that owns files, which are sent for all ancestors at
            once; 1 GET + 1 PUT for each object of the log that is not in files yet. With `copy` also 1 GET + 1 PUT for
            each file.
        """
        return create_clone(self.location, parent_url, checkpoint, copy=copy)

    def destroy(
        self,
        *,
        soft: bool = True,
        take_over: bool = False,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> CollectionReport:
        """Destroy the database. The call is idempotent. After a crash at any step the same call finishes.

        Args:
            soft: only mark it. A collection deletes it when the grace is over and no checkpoint lives. If False, delete
                it at once.
            take_over: destroy it even if another writer's lease is live.
            dry_run: report what would be deleted now; change nothing. Errors are those of the real call.
            progress: called after each batch of deletes.

        Returns:
            The report of what was deleted. A soft destruction deletes nothing.

        Raises:
            InvalidRequest: kind ``invalid_deletion``: `soft` is False, and checkpoints live. The message names them and
                their owners. Nothing was changed.
            Conflict: kind ``owned``: a writer lives, and `take_over` is False.
            NotFound: there is no database.

        Cost: a claim and 1 update. If `soft` is False, also 4 LIST, the boundary, 1 update for each ancestor, and 1
            DELETE for each thousand objects; with ended checkpoints, also the requests that ask the store for its time.
        """
        return destroy(self.location, soft=soft, take_over=take_over, dry_run=dry_run, progress=progress)

    def collect(
        self,
        options: CollectorOptions | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> CollectionReport:
        """Delete what no version needs, a destroyed database whose grace is over, and probes of dead processes.

        This is safe while writers, readers, compactors, clones and other collectors run, whatever the grace.

        Args:
            options: how long objects are kept.
            dry_run: report what would be deleted, by this process's clock; write and delete nothing.
            progress: called after each batch of deletes.

        Returns:
            What was deleted and why, and how many objects stay for which reason. A missing pinned version is a warning.

        Raises:
            NotFound: there is no database.
            UnsupportedFormat: a pinned version or the newest manifest was written by a newer lakebed. Nothing was
                deleted.
            Corruption: the newest manifest is damaged. Nothing was deleted.

        Cost: 4 LIST (5 outside of a lake; 1 more for each thousand objects), 1 GET of the newest manifest, and 1 GET
            for each pinned one. If anything is deleted, also 1 PUT + 1 LIST, the boundary (1 PUT, 4 LIST, 1 GET for
            each 64 manifests passed), and 1 DELETE for each thousand objects.
        """
        return collect_garbage(self.location, options=options or CollectorOptions(), dry_run=dry_run, progress=progress)

    def compact(self, *, full: bool = False, progress: Callable[[int, int], None] | None = None) -> bool:
        """Merge files until nothing needs to be merged. Return whether anything was merged.

        This process takes the compactor's role. A compactor that runs elsewhere stops with `Fenced`.

        Args:
            full: rewrite all files into one run.
            progress: called now and then with the rows read and the bytes written so far.

        Raises:
            Fenced: kind ``compactor_fenced``: another compactor has taken the role over.
            InvalidRequest: kind ``invalid_db_state``: the database is destroyed, or a clone that is not finished.
            NotFound: there is no database.
            Corruption: an input is damaged or missing.
            Unavailable, OutcomeUnknown: nothing is lost. Call again.
        """
        compactor = Compactor(self.location)
        if full:
            return compactor.compact_full(progress)
        came = False
        while compactor.compact_once(progress):
            came = True
        return came

    def show_manifest(self, id: int | None = None) -> Manifest:
        """Return a manifest by number; None: the newest. Raises `NotFound`. Cost: 1 GET, and 1 LIST for the newest."""
        log = ManifestLog(self.location)
        return log.latest() if id is None else log.load(id)

    def list_manifests(self) -> list[ManifestSummary]:
        """Return every manifest with its size and what pins it, oldest first. Cost: 2 LIST + 1 GET."""
        return list_manifests(self.location)

    def versions(self) -> Iterator[Version]:
        """Iterate over the readable versions, oldest first, including pinned ones.

        Cost: 2 LIST, and 1 GET for each readable manifest.
        """
        return list_versions(self.location, store=self.name)

    def at(self, version: str) -> DatabaseReader:
        """Return a read-only view of one version: name or id of a checkpoint, or number of a version.

        Nothing is written. If nothing pins the version, a collection may delete its files while they are read; reads
        then raise `NotFound`.

        Raises `NotFound`. Cost: as `DatabaseReader.open`, and 1 LIST + 1 GET.
        """
        target = find_version(self.location, ManifestLog(self.location).latest(), version)
        if isinstance(target, Checkpoint):
            return DatabaseReader.open(self.location, target.id)
        return DatabaseReader.open(self.location, version=target)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive under a name, as a checkpoint.

        Args:
            name: of the checkpoint.
            version: name or id of a checkpoint, or number of a version that no collection has deleted. None: the
                latest.
            lifetime_ms: milliseconds; None: no end.

        Raises:
            AlreadyExists: a live checkpoint has the name.
            NotFound: there is no such version any more.
            InvalidRequest: the name or lifetime is not valid, or the database is destroyed or unfinished.

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
        checkpoint = make_checkpoint(self.location, options, version=number)
        return pin_of(checkpoint, ManifestLog(self.location).load(checkpoint.manifest_id), store=self.name)

    def pins(self) -> list[Pin]:
        """Return what keeps versions alive now: checkpoints of users, clones, readers and the writer.

        The writer's checkpoint is there while a writer is open, and after a crash until the next one opens.

        Cost: 1 LIST + 1 GET, and 1 GET for each pinned manifest.
        """
        return list_pins(self.location, store=self.name)

    def unpin(self, name: str) -> None:
        """Delete a checkpoint by name or id. Raises `NotFound`, and `InvalidRequest` if it is not a user's."""
        try:
            delete_checkpoint(self.location, name)
        except InvalidRequest as error:
            if error.kind != "invalid_db_state":
                raise
            raise NotFound(str(error), kind="checkpoint_not_found", url=self.url, checkpoint=name) from error

    def create_branch(self, name: str, *, version: str | None = None) -> Self:
        """Create a clone next to this database. Return it.

        If a crash left the clone unfinished, the same call finishes it.

        Args:
            name: of the clone.
            version: name or id of a checkpoint, or number of a version; None: the latest.

        Raises:
            AlreadyExists: there is a database of this name.
            NotFound: there is no such version.
            InvalidRequest: the name is not valid, or something else is there.

        Cost: as `create_clone`; with a version's number 2 updates more.
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
            source_checkpoint = None if manifest is None or manifest.source is None else manifest.source.checkpoint
            with self._pin_version(version, source_checkpoint) as checkpoint:
                create_clone(target, self.url, checkpoint)
        return type(self)(target)

    def _folder_above(self) -> str:
        parent, separator, _ = self.url.rpartition("/")
        if not separator or parent.endswith("/"):
            raise InvalidRequest(
                f"There is no folder above {self.url}: make a clone with a URL of its own.",
                kind="no_folder",
                url=self.url,
            )
        return parent

    def _fork_name(self, name: str) -> str:
        if not isinstance(name, str) or "/" in name:
            raise InvalidRequest(
                f"The name of a branch is that of a folder, and {name!r} is not: give a text without slashes.",
                kind="invalid_name",
            )
        return check_path(name)

    @contextmanager
    def _pin_version(self, version: str, source_checkpoint: str | None = None) -> Iterator[str]:
        """Pin a version while it is in use. Yield the checkpoint's id.

        Args:
            source_checkpoint: a checkpoint that an unfinished attempt started from. It is used again if it pins this
                version.
        """
        newest = ManifestLog(self.location).latest()
        target = find_version(self.location, newest, version)
        if isinstance(target, Checkpoint):
            yield target.id
            return
        live = live_checkpoints(newest, self.location.environment.clock.now_ms())
        same_pin = next(
            (
                checkpoint
                for checkpoint in live
                if checkpoint.id == source_checkpoint and checkpoint.manifest_id == target
            ),
            None,
        )
        passing = CheckpointOptions(lifetime=_PASSING_LIFETIME)
        held_id = create_checkpoint(self.location, passing, version=target).id if same_pin is None else same_pin.id
        try:
            yield held_id
        except LakebedError as error:
            # A refused call changed nothing. After any other failure the checkpoint stays until it expires, because an
            # unfinished clone may name it, and the same call continues from there.
            if isinstance(error, InvalidRequest | AlreadyExists) or error.kind == "owned":
                self._release(held_id)
            raise
        self._release(held_id)

    def _release(self, held_id: str) -> None:
        with suppress(LakebedError):  # otherwise the checkpoint expires
            delete_checkpoint(self.location, held_id)

    def restore(self, version: str, *, lifetime: timedelta | None = RESTORABLE_FOR, take_over: bool = False) -> Version:
        """Make an older version the newest. The present version stays under a checkpoint for `lifetime`.

        Writers and compactors are fenced. Open the database again to write.

        Args:
            version: name or id of a checkpoint, or number of a version.
            lifetime: of the checkpoint of the present version; None: no end. The default is 7 days.
            take_over: restore it even if another writer's lease is live.

        Raises:
            NotFound: there is no such version.
            InvalidRequest: kind ``invalid_db_state``: the checkpoint is unknown or has expired, or the database is
                destroyed or unfinished. Nothing was changed.
            Conflict: kind ``owned``: a writer lives, and `take_over` is False.
            Fenced: another writer was faster. If the version is not restored, restore it again.
            Corruption: what the checkpoint pins is missing or damaged.

        Cost: a claim, 2 updates, 1 LIST and at most 2 GET. If the log has rows that are in no file, also 1 GET for each
            object and 1 PUT for each file of them.
        """
        with self._pin_version(version) as checkpoint:
            restoration = restore(self.location, checkpoint, lifetime=lifetime, take_over=take_over)
        return version_of(restoration.manifest, store=self.name)

    def plan_collection(self) -> CollectionPlan:
        """Return what a collection with default `CollectorOptions` would delete now. Delete nothing."""
        return plan_garbage(self.location, options=CollectorOptions())

    def why(self, path: str) -> Explanation:
        """Explain what needs an object, or when it may be deleted.

        Args:
            path: relative to the database's folder.

        Raises:
            NotFound: there is no database; or there is no such object, and nothing needs it.
            InvalidRequest: the path is not valid.
            Corruption: a pinned version cannot be read, so what it needs is not known.

        Cost: 1 LIST + 1 GET, 1 HEAD, and for a sorted file or log object 1 GET for each pinned manifest.
        """
        return why(self.location, path, store=self.name)

    def why_version(self, version: str) -> Explanation:
        """Explain what keeps a version, and what would free it.

        `Pin.expires_ms` of a pin is the end of a checkpoint; None: it does not end by itself.

        Args:
            version: number of a version, or name or id of a live checkpoint.

        Raises:
            NotFound: there is no database, or no such version (kind ``version_not_found``).
            Corruption: a pinned version is damaged.

        Cost: 1 LIST + 1 GET, and 1 GET for each pinned manifest.
        """
        return why_version(self.location, version, store=self.name)
