"""A simulated world of databases: what its processes were promised, and what must hold when they have ended.

Owns: `DatabaseWorld`: locations of databases, promised checkpoints, requested clones, and the checks at rest. The
handles through which processes use databases are in `worlds.kv.handles`; processes, crashes and power loss are the
frame's (`worlds.world`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Fenced,
    InvalidRequest,
    LakebedError,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.model import Checkpoint
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.port import ObjectStore
from lakebed.testing.scheduled_calls import FaultRates
from worlds.kv.model import Write, visible
from worlds.kv.monitor import ObservedDatabase, StoreMonitor
from worlds.promise import PromiseBroken
from worlds.world import FAULTS, World

EXPECTED: Final = (AlreadyExists, Closed, Conflict, Fenced, InvalidRequest, OutcomeUnknown, Unavailable)
"""Errors that are part of an actor's life; all else is a finding."""

_LATER: Final = timedelta(days=30)
"""After every lifetime that a scenario uses."""


def options(**changes: object) -> DatabaseOptions:
    """Settings that make everything small, so that little happens between two changes."""
    small: dict[str, object] = {
        "background": False,
        "l0_compaction_count": 2,
        "run_compaction_count": 2,
        "run_file_bytes": 400,
        "block_bytes": 100,
        "cache_bytes": 1 << 16,
        "row_cache_bytes": 1 << 12,
    }
    return DatabaseOptions(**(small | changes))  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class Promise:
    """A checkpoint that was acknowledged, and that no call deletes."""

    folder: str
    id: str
    index: int
    """Count of events that its version holds."""
    expires_at_ms: int | None


@dataclass(eq=False, slots=True)
class CloneAsked:
    """A clone that was asked for."""

    parent: str
    floor: int
    """Count of the parent's events when it was asked for first."""
    index: int | None
    """Of the checkpoint that it is to start from; None: the latest."""
    is_made: bool = False


class DatabaseWorld(World):
    """One simulation of databases that share a store.

    Args:
        seed: decides everything.
        faults: of every store call of an actor.
    """

    def __init__(self, seed: int, *, faults: FaultRates = FAULTS) -> None:
        super().__init__(seed, faults=faults)
        self.writes: dict[int, Write] = {}
        self.promises: dict[str, Promise] = {}
        self.clones: dict[tuple[str, str | None], CloneAsked] = {}
        self.keys = [b"k%d" % number for number in range(5)]
        """What scenarios write and read."""
        self.has_ttl = False
        self._monitor = StoreMonitor(self.power, now_ms=self.quiet.clock.now_ms, writes=self.writes, tick=self.tick)
        self.store = self.scheduler.store(self.monitor, faults=faults)

    @property
    def monitor(self) -> StoreMonitor:
        """What watches the shared store."""
        return self._monitor

    def set_faults(self, faults: FaultRates) -> None:
        """Use other faults for every place asked for from now on."""
        super().set_faults(faults)
        self.store = self.scheduler.store(self.monitor, faults=faults)

    # ---- places and time

    def place(self, folder: str) -> DatabaseLocation:
        """A database's place, as a process of its own sees it."""
        return DatabaseLocation(self.store.sub(folder), self.environment, self._open_url)

    def _open_url(self, url: str) -> ObjectStore:
        return self.store.sub(url.removeprefix(self.memory.root_url).strip("/"))

    def url(self, folder: str) -> str:
        """A database's URL."""
        return f"{self.memory.root_url}/{folder}"

    def known(self, folder: str) -> ObservedDatabase:
        """What the monitor knows of a database."""
        return self.monitor.database(folder)

    def admin(self, folder: str) -> DatabaseAdmin:
        """The verbs that need no open database."""
        return DatabaseAdmin(self.place(folder))

    def corrupt(self, folder: str, manifest_id: int) -> None:
        """Delete a version's manifest without telling the monitor: no process is to blame for what it loses."""
        known = self.known(folder)
        path = known.path("manifest", f"{manifest_id:020d}")
        known.corrupted.add(manifest_id)
        self.memory.delete([path])
        self.monitor.paths.discard(path)
        self.counts["corrupted"] += 1

    def promise(self, folder: str, checkpoint_id: str) -> Promise:
        """A checkpoint was acknowledged: from now on it must hold."""
        known = self.known(folder)
        manifest = known.manifest
        checkpoint = None if manifest is None else manifest.checkpoint(checkpoint_id)
        if checkpoint is None:
            # It may have expired and been dropped before its maker heard of it; its last lifetime counts.
            made = next(
                (
                    item.checkpoint(checkpoint_id)
                    for item in reversed(known.manifests.values())
                    if item.checkpoint(checkpoint_id)
                ),
                None,
            )
            if made is None or made.is_live(self.now_ms()):
                raise PromiseBroken(f"checkpoint {checkpoint_id} of {folder} was acknowledged, and is not there")
            checkpoint = made
        promise = Promise(folder, checkpoint.id, known.contents[checkpoint.manifest_id], checkpoint.expires_at_ms)
        self.promises[checkpoint.id] = promise
        self.counts["checkpoints"] += 1
        return promise

    # ---- errors that are part of life

    def expecting(self, call: Callable[[], object], *more: type[LakebedError]) -> bool:
        """Call; an error that is part of life is counted. Returns whether there was none."""
        try:
            call()
        except LakebedError as error:
            self.met(error, *more)
            return False
        return True

    def met(self, error: LakebedError, *more: type[LakebedError]) -> None:
        """Count an error that is part of life; raise any other."""
        if not isinstance(error, (*EXPECTED, *more)):
            raise error
        self.counts[f"error {error.kind}"] += 1

    # ---- judging

    def check_at_rest(self) -> None:
        """Everything promised can be read, nothing more than that is left after a collection."""
        for folder in list(self.monitor.databases):
            self.known(folder).history.check_all(list(self.writes.values()))
        for promise in list(self.promises.values()):
            self._check_promise(promise)
        self._check_pins()
        # In a later millisecond, so that what is written from now on is newer than any file that was left unpublished.
        self.environment.clock.sleep(0.002)
        for folder in sorted(self.monitor.databases):
            self._check_reopened(folder)
        self._check_clones()
        self._check_collected()

    def _check_promise(self, promise: Promise) -> None:
        known = self.known(promise.folder)
        manifest = known.manifest
        now_ms = self.now_ms()
        if manifest is None or (promise.expires_at_ms is not None and promise.expires_at_ms <= now_ms):
            return
        checkpoint = manifest.checkpoint(promise.id)
        if checkpoint is None:
            raise PromiseBroken(f"checkpoint {promise.id} of {promise.folder} was promised, and is gone")
        if known.is_destroyed or checkpoint.manifest_id in known.corrupted:
            return
        content = self.read_fixed(promise.folder, promise.id)
        expected = visible(known.history.states[promise.index], now_ms)
        if content != expected:
            raise PromiseBroken(f"checkpoint {promise.id} of {promise.folder} holds {content} instead of {expected}")
        self.counts["promised checkpoints read"] += 1

    def read_fixed(self, folder: str, checkpoint: str) -> dict[bytes, bytes]:
        """All that a checkpoint holds."""
        with DatabaseReader.open(self.place(folder), checkpoint=checkpoint, options=reader_options()) as reader:
            return dict(reader.scan())

    def _check_reopened(self, folder: str) -> None:
        """A new owner finds exactly what became durable, and can write."""
        known = self.known(folder)
        if known.manifest is None or known.is_destroyed or not known.manifest.initialized:
            return
        settings = options(wal_enabled=known.manifest.wal_enabled, merge_operator=known.manifest.merge_operator)
        with Database.open(self.place(folder), options=settings, create=False, take_over=True) as database:
            content, expected = dict(database.scan()), visible(known.history.state, self.now_ms())
            if content != expected:
                raise PromiseBroken(f"{folder} opened anew holds {content} instead of {expected}")
            for key in {change.key for write in self.writes.values() for change in write.changes}:
                if database.get(key) != expected.get(key):
                    raise PromiseBroken(f"{folder} opened anew has {database.get(key)!r} under {key!r}")
            database.compact(full=True)
            if dict(database.scan(reverse=True)) != visible(known.history.state, self.now_ms()):
                raise PromiseBroken(f"{folder} was changed by its compaction")
        self.counts["databases reopened"] += 1

    def _check_clones(self) -> None:
        for (folder, source), asked in self.clones.items():
            known = self.known(folder)
            if not asked.is_made or known.initial is None:
                continue
            parent = self.known(asked.parent).history
            states = parent.states[asked.floor :] if asked.index is None else [parent.states[asked.index]]
            if known.history.states[known.initial] not in states:
                began = known.history.states[known.initial]
                raise PromiseBroken(
                    f"clone {folder} of {source or 'the latest'} began as {began}, not as {asked.parent} was"
                )
            self.counts["clones judged"] += 1

    def _check_pins(self) -> None:
        """A clone's pin is named by the clone; others were released, or expire when their maker crashed."""
        is_calm = not (self.faults.crash or self.faults.lost_reply or self.faults.error_before)
        for folder, known in self.monitor.databases.items():
            for checkpoint in known.manifest.checkpoints if known.manifest is not None else ():
                if checkpoint.owner.kind != "clone" or checkpoint.owner.url is None:
                    continue
                if checkpoint.expires_at_ms is not None and not is_calm:
                    continue
                result = self._clone_of(checkpoint)
                clone = None if result is None else result.manifest
                if clone is None or checkpoint.id not in {database.pin for database in clone.external_databases}:
                    raise PromiseBroken(f"{checkpoint.owner} does not know of its pin {checkpoint.id} in {folder}")

    def _clone_of(self, checkpoint: Checkpoint) -> ObservedDatabase | None:
        """The database on whose behalf a pin is held."""
        url = checkpoint.owner.url
        return None if url is None else self.monitor.databases.get(url.removeprefix(self.memory.root_url).strip("/"))

    def _check_collected(self) -> None:
        """After every temporary pin has ended and collections have run, nothing is left that nothing needs."""
        self.environment.clock.sleep(_LATER.total_seconds())
        folders = [folder for folder, known in sorted(self.monitor.databases.items()) if known.manifest is not None]
        settings = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
        for folder in folders:
            if self.known(folder).is_destroyed or self.known(folder).corrupted:
                self._let_go(folder)
        for _ in range(3):  # a clone that lets go of its ancestor frees files for the round after
            for folder in folders:
                report = self.admin(folder).collect(options=settings)
                self.counts["collected"] += report.deleted_count
        for known in self.monitor.databases.values():
            for checkpoint in known.manifest.checkpoints if known.manifest is not None else ():
                clone = self._clone_of(checkpoint)
                if clone is not None and clone.is_destroyed and not clone.is_waiting:
                    raise PromiseBroken(f"{checkpoint.owner} was destroyed, and its pin in {known.folder} stays")
        waiting = tuple(f"{database.folder}/" for database in self.monitor.databases.values() if database.is_waiting)
        strays = {path for path in self.monitor.strays() if not path.startswith(waiting)}
        if strays:
            raise PromiseBroken(f"after all collections {sorted(strays)[:5]} are left, and nothing needs them")

    def _let_go(self, folder: str) -> None:
        """Delete what users hold of a destroyed or damaged database; only clones keep anything of it then."""
        manifest = self.known(folder).manifest
        for checkpoint in manifest.checkpoints if manifest is not None else ():
            if checkpoint.owner.kind == "user":
                self.admin(folder).delete_checkpoint(checkpoint.id)


def reader_options(**changes: object) -> ReaderOptions:
    """Readers that are polled by hand and hold little in one table."""
    return ReaderOptions(**({"background": False, "max_memtable_bytes": 200, "cache_bytes": 1 << 16} | changes))  # type: ignore[arg-type]
