"""A store that sees every object come and go, and knows after each whether some database has lost anything.

Owns: what is promised by objects. It reads manifests, logs and files as they are created, keeps a `DatabaseHistory`
for each database, and finds at once: a version whose files do not hold what the log holds up to it; an append behind a
fence; sequences that go back; a version, checkpoint or clone whose objects are deleted; a destroyed database that comes
back.

Invariants: it is below all actors, so what it sees has happened; it never raises into the code under test, but
keeps what it found in `violations`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lakebed.errors import LakebedError
from lakebed.kv.manifest import decode_manifest
from lakebed.kv.model import Checkpoint, Manifest
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.lsm.model import FileMeta
from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.kv.files import LoggedRow, read_file, read_log_record
from worlds.kv.model import Change, DatabaseHistory, Event, Rows, Write, apply_change, visible, writes_in
from worlds.promise import PromiseBroken

R = TypeVar("R")

_NAMED: Final = re.compile(r"(?P<folder>.+)/(?P<kind>manifest|wal|sst)/(?P<id>[0-9A-Z]+)\.(?:manifest|wal|sst)")


@dataclass(eq=False)
class ObservedDatabase:
    """What is known of one database."""

    history: DatabaseHistory
    folder: str
    newest_id: int = 0
    ready_id: int = 1
    """The first manifest that could be opened."""
    manifest: Manifest | None = None
    manifests: dict[int, Manifest] = field(default_factory=dict)
    contents: dict[int, int] = field(default_factory=dict)
    """manifest id -> count of events that it holds: files and log together."""
    log: dict[int, bytes | None] = field(default_factory=dict)
    """Log objects that became part of the history, by id; a fence has no rows."""
    epoch: int = 0
    """Largest epoch in the log."""
    initial: int | None = None
    """Count of events when it was ready to be opened first."""
    copied: set[int] = field(default_factory=set)
    """Log objects of a clone that is not ready."""
    corrupted: set[int] = field(default_factory=set)
    """Manifests that were deleted on purpose."""
    is_destroyed: bool = False
    known_l0: set[str] = field(default_factory=set)

    def path(self, kind: str, name: str) -> str:
        """An object's path from the root."""
        return f"{self.folder}/{kind}/{name}.{kind}"

    @property
    def is_waiting(self) -> bool:
        """Whether a collection has to leave it alone: an unfinished clone, or destroyed and pinned by one."""
        manifest = self.manifest
        return manifest is not None and (not manifest.initialized or (self.is_destroyed and bool(manifest.checkpoints)))

    @property
    def is_logless(self) -> bool:
        """Whether its history is learnt from its files."""
        return self.manifest is not None and not self.manifest.wal_enabled


class StoreMonitor(StoreWrapper):
    """Stands between the store and all actors.

    Args:
        inner: the real store, whose folders are databases.
        now_ms: the simulation's time.
        writes: all writes asked for so far, by number; the caller keeps adding to it.
        tick: counts on with each event.
    """

    def __init__(
        self, inner: ObjectStore, *, now_ms: Callable[[], int], writes: dict[int, Write], tick: Callable[[], int]
    ) -> None:
        super().__init__(inner)
        self.root = inner
        self.now_ms = now_ms
        self.writes = writes
        self.tick = tick
        self.databases: dict[str, ObservedDatabase] = {}
        self.paths: set[str] = set()
        self.violations: list[PromiseBroken] = []
        self.restoring: list[tuple[str, Rows]] = []
        """Restores under way: folder and the content that is to come."""
        self.rows_of: dict[str, list[LoggedRow]] = {}
        """Files do not change: rows by path."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, then look at what it did."""
        result = perform()
        if call.changes:
            try:
                if call.kind in ("put", "copy"):
                    self._created(call.path)
                elif call.kind == "delete":
                    self.deleted(call.paths or (call.path,), by=str(call))
            except PromiseBroken as violation:
                self.violations.append(violation)
            except LakebedError as error:
                self.violations.append(
                    PromiseBroken(f"{call} left what cannot be read: {type(error).__name__} {error}")
                )
        return result

    def database(self, folder: str) -> ObservedDatabase:
        """What is known of a database; begins with nothing."""
        if folder not in self.databases:
            self.databases[folder] = ObservedDatabase(DatabaseHistory(folder), folder)
        return self.databases[folder]

    # ---- what comes

    def _created(self, path: str) -> None:
        is_new = path not in self.paths
        self.paths.add(path)
        named = _NAMED.fullmatch(path)
        if named is None or not is_new:
            return
        database = self.database(named["folder"])
        if named["kind"] == "manifest":
            self._manifest(database, int(named["id"]), path)
        elif named["kind"] == "wal":
            self._log(database, int(named["id"]), path)

    def _log(self, database: ObservedDatabase, log_id: int, path: str) -> None:
        if log_id <= max(database.log, default=0) or database.is_destroyed:
            return  # a collected id created again, or a late writer's: no caller may be told that this counts
        if database.manifest is not None and not database.manifest.initialized:
            database.copied.add(log_id)  # cloners copy in any order; it counts when the clone is ready
            return
        record = read_log_record(bytes(self.root.get(path)), path=path)
        database.log[log_id] = None
        if record.epoch < database.epoch:
            raise PromiseBroken(f"{path} of epoch {record.epoch} follows a record of epoch {database.epoch}")
        database.epoch = record.epoch
        if not record.rows:
            database.history.add(Event(self.tick(), None, (), log_id), now_ms=self.now_ms())
            return
        self._rows(database, record.rows, log_id)

    def _rows(self, database: ObservedDatabase, rows: list[LoggedRow], log_id: int) -> None:
        """Rows that became durable together, as events: what bears one number belongs to one write."""
        for row in rows:
            if row.sequence <= database.history.last_sequence:
                raise PromiseBroken(
                    f"{database.folder}: sequence {row.sequence} in object {log_id} follows "
                    f"{database.history.last_sequence}"
                )
            database.history.last_sequence = row.sequence
        for number, changes in grouped(rows):
            write = None if number is None else self.writes.get(number)
            database.history.add(Event(self.tick(), write, changes, log_id), now_ms=self.now_ms())

    def _manifest(self, database: ObservedDatabase, manifest_id: int, path: str) -> None:
        if manifest_id <= database.newest_id:
            return  # as for the log
        manifest = decode_manifest(bytes(self.root.get(path)), path=path).manifest
        before, database.manifest = database.manifest, manifest
        if before is not None and not before.initialized:
            # A clone that is not ready may still begin from another version, when its pins have expired.
            database.history, before = DatabaseHistory(database.folder), None
        database.newest_id = manifest_id
        database.manifests[manifest_id] = manifest
        if before is not None:
            self._follows(database, before, manifest)
        if manifest.destroyed_at_ms is not None:
            database.is_destroyed = True
        changed = before is None or before.file_set != manifest.file_set
        database.history.keeps_all = manifest.wal_enabled
        changed = changed or before.replay_after_wal_id != manifest.replay_after_wal_id  # type: ignore[union-attr]
        if changed and manifest.initialized:  # else its files may still be on their way
            self._holds(database, manifest, before)
        if manifest.initialized and database.initial is None:
            for log_id in sorted(database.copied):
                self._log(database, log_id, database.path("wal", f"{log_id:020d}"))
            database.initial = len(database.history.events)
            database.ready_id = manifest_id
        seen = max(manifest.wal_id_last_seen, manifest.replay_after_wal_id)
        database.contents[manifest_id] = (
            len(database.history.events) if database.is_logless else database.history.index_at(seen)
        )
        known = {item.id for item in before.checkpoints} if before is not None else set()
        fresh = [item for item in manifest.checkpoints if item.id not in known and item.is_live(self.now_ms())]
        for checkpoint in fresh:
            self._is_whole(database, checkpoint)

    def _follows(self, database: ObservedDatabase, before: Manifest, manifest: Manifest) -> None:
        """What a version may change of the one before it."""
        name = f"{database.folder} manifest {manifest.manifest_id}"
        if manifest.writer_epoch < before.writer_epoch or manifest.compactor_epoch < before.compactor_epoch:
            raise PromiseBroken(f"{name}: an epoch goes back")
        if manifest.replay_after_wal_id < before.replay_after_wal_id:
            raise PromiseBroken(f"{name}: the log is to be replayed from further back")
        if before.initialized and not manifest.initialized:
            raise PromiseBroken(f"{name}: it was ready, and is not any more")
        if before.destroyed_at_ms is not None and manifest.destroyed_at_ms is None:
            if manifest.l0 or manifest.runs:
                raise PromiseBroken(f"{name}: a destroyed database came back with its files")
            database.is_destroyed = False
            # Numbers continue; what was written late to the destroyed database is below.
            log_id = max([manifest.replay_after_wal_id, *database.log])
            database.log[log_id] = None
            database.history.last_sequence = manifest.last_sequence
            database.history.add(Event(self.tick(), None, (), log_id), now_ms=self.now_ms(), content={})
            return
        old = {item.id: item for item in before.checkpoints}
        for checkpoint in manifest.checkpoints:
            was = old.get(checkpoint.id)
            if before.destroyed_at_ms is not None and was != checkpoint:
                raise PromiseBroken(f"{name}: checkpoint {checkpoint.id} was made or prolonged after the destruction")
            if was is not None and was != checkpoint and not was.is_live(manifest.created_at_ms):
                raise PromiseBroken(f"{name}: the expired checkpoint {checkpoint.id} was prolonged")

    def _holds(self, database: ObservedDatabase, manifest: Manifest, before: Manifest | None) -> None:
        """The files of a new version hold what the log holds up to it, or what a restore brings."""
        rows = [row for file in manifest.file_set.files() for row in self._file_rows(database, manifest, file)]
        if database.is_logless:
            self._learn_from_files(database, manifest)
        result = resolved(rows, self.now_ms())
        history = database.history
        index = len(history.events) if database.is_logless else history.index_at(manifest.replay_after_wal_id)
        if before is None and (result or manifest.external_databases):
            history.add(
                Event(self.tick(), None, (), manifest.replay_after_wal_id),
                now_ms=self.now_ms(),
                content=state_of(rows, self.now_ms()),
            )
            history.last_sequence = manifest.last_sequence
            database.log[manifest.replay_after_wal_id] = None
            return
        expected = visible(history.states[index], self.now_ms())
        if result == expected:
            return
        for folder, content in self.restoring:
            if folder == database.folder and result == visible(content, self.now_ms()):
                if index != len(history.events):
                    raise PromiseBroken(f"{folder}: a restore was published although the log had gone on")
                event = Event(self.tick(), None, (), manifest.replay_after_wal_id)
                history.add(event, now_ms=self.now_ms(), content=state_of(rows, self.now_ms()))
                return
        raise PromiseBroken(
            f"{database.folder}: manifest {manifest.manifest_id} replays from {manifest.replay_after_wal_id} on, and "
            f"its files hold {result} instead of {expected}"
        )

    def _learn_from_files(self, database: ObservedDatabase, manifest: Manifest) -> None:
        """Where there is no log, a new file of level 0 is what became durable."""
        for file in reversed(manifest.l0):
            if file.id in database.known_l0:
                continue
            database.known_l0.add(file.id)
            rows = sorted(self._file_rows(database, manifest, file), key=lambda row: row.sequence)
            if rows and rows[0].sequence > database.history.last_sequence:
                self._rows(database, rows, 0)

    def _file_rows(self, database: ObservedDatabase, manifest: Manifest, file: FileMeta) -> list[LoggedRow]:
        path = self.file_path(database, manifest, file.id)
        if path not in self.paths:
            raise PromiseBroken(f"{database.folder} manifest {manifest.manifest_id} names {path}, which is not there")
        rows = self.rows_of.get(path)
        if rows is None:
            rows = self.rows_of[path] = read_file(self.root, path, meta=file)
        return rows

    # ---- what goes

    def deleted(self, paths: tuple[str, ...], *, by: str) -> None:
        """Objects are gone: does anything live miss them."""
        self.paths.difference_update(paths)
        gone = set(paths)
        for database in self.databases.values():
            for path, why in self.needed(database):
                if path in gone:
                    raise PromiseBroken(f"{path} was deleted by {by}: it is needed by {why}")

    def lost(self, paths: Sequence[str]) -> None:
        """The power went, and these objects are not what was put."""
        try:
            self.deleted(tuple(paths), by="the loss of power")
        except PromiseBroken as violation:
            self.violations.append(violation)
        self.paths = {meta.path for meta in self.root.list()}

    def file_path(self, database: ObservedDatabase, manifest: Manifest, file_id: str) -> str:
        """Where a file of a version lies: here, or at an ancestor."""
        for external in manifest.external_databases:
            if file_id in external.file_ids:
                folder = external.url.removeprefix(self.root.root_url).strip("/")
                return f"{folder}/sst/{file_id}.sst"
        return database.path("sst", file_id)

    def needed(self, database: ObservedDatabase) -> Iterator[tuple[str, str]]:
        """Every object that a database needs, and for what."""
        newest = database.manifest
        if newest is None:
            return
        yield database.path("manifest", f"{newest.manifest_id:020d}"), "the newest version"
        if newest.destroyed_at_ms is None and newest.initialized:
            yield from self._needed_by(database, newest, max(database.log, default=0), "the newest version")
        for checkpoint in newest.checkpoints:
            if checkpoint.is_live(self.now_ms()):
                yield from self._needed_by_checkpoint(database, checkpoint)

    def _needed_by_checkpoint(self, database: ObservedDatabase, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
        why = f"checkpoint {checkpoint.id} of {checkpoint.owner}"
        if checkpoint.manifest_id not in database.corrupted:
            yield database.path("manifest", f"{checkpoint.manifest_id:020d}"), why
        manifest = database.manifests.get(checkpoint.manifest_id)
        if manifest is not None:
            yield from self._needed_by(database, manifest, manifest.wal_id_last_seen, why)

    def _needed_by(
        self, database: ObservedDatabase, manifest: Manifest, last_log_id: int, why: str
    ) -> Iterator[tuple[str, str]]:
        for file in manifest.file_set.files():
            yield self.file_path(database, manifest, file.id), why
        for log_id in range(manifest.replay_after_wal_id + 1, last_log_id + 1):
            if log_id in database.log:
                yield database.path("wal", f"{log_id:020d}"), why

    def _is_whole(self, database: ObservedDatabase, checkpoint: Checkpoint) -> None:
        for path, why in self._needed_by_checkpoint(database, checkpoint):
            if path not in self.paths:
                raise PromiseBroken(f"{why} of {database.folder} was made, and {path} is gone")

    def index_of(self, folder: str, checkpoint_id: str) -> int | None:
        """Count of events that a checkpoint's version holds; None when the checkpoint does not exist now."""
        database = self.databases[folder]
        checkpoint = database.manifest.checkpoint(checkpoint_id) if database.manifest else None
        return None if checkpoint is None else database.contents.get(checkpoint.manifest_id)

    def strays(self) -> set[str]:
        """Log objects, files and manifests that nothing needs."""
        kept = {path for database in self.databases.values() for path, _ in self.needed(database)}
        named = {path for path in self.paths if _NAMED.fullmatch(path)}
        return {path for path in named - kept if not self._is_fence(path)}

    def _is_fence(self, path: str) -> bool:
        """Fences stay for ever, those of destroyed databases too."""
        return path.endswith(".wal") and self.root.head(path).size_bytes == FENCE_BYTES


def grouped(rows: list[LoggedRow]) -> Iterator[tuple[int | None, tuple[Change, ...]]]:
    """Rows in the order of writing, by write: from the first to the last row with its number, and lone tombstones."""
    numbers = [writes_in(row.value)[0] if row.value else None for row in rows]
    position = 0
    while position < len(rows):
        number, end = numbers[position], position + 1
        if number is not None:
            end = max(index for index, other in enumerate(numbers) if other == number) + 1
            inside = {other for other in numbers[position:end] if other is not None}
            if inside != {number}:
                raise PromiseBroken(f"the writes {sorted(inside)} are mixed")
        yield number, tuple(Change(row.key, row.kind, row.value, row.expires_at_ms) for row in rows[position:end])
        position = end


def state_of(rows: list[LoggedRow], now_ms: int) -> Rows:
    """The dictionary that rows of all versions add up to."""
    state: Rows = {}
    for row in sorted(rows, key=lambda row: row.sequence):
        apply_change(state, Change(row.key, row.kind, row.value, row.expires_at_ms), now_ms)
    return state


def resolved(rows: list[LoggedRow], now_ms: int) -> dict[bytes, bytes]:
    """What can be read of rows of all versions."""
    return visible(state_of(rows, now_ms), now_ms)
