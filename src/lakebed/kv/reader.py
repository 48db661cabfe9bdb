"""`DatabaseReader`: reads a database beside its writer, without any word between the two.

Owns: which view is shown, when to look for a newer one, and what a missing file means. What pins the view is in
`lakebed.kv.footing`, the log's rows in `lakebed.kv.tail`.

Invariants:
- A call reads one version: its view is taken once, and a scan keeps it, with the checkpoint under it, until it ends.
  When files of that version are gone before a scan has its first row, the scan reads the newest version instead.
- The version that is shown is one that was: files of one manifest, and the log behind them without a gap. Versions are
  shown in their order.
- A reader whose checkpoint has expired makes a new one before it answers, or raises. Files are written once, so what a
  scan still reads after that is right; what is gone raises, and nothing is ever answered from part of a version.
- One thread looks for news at a time; readers wait for it only when what they stand on is gone.

Does not know: how to write, but for its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, TypeVar, cast

from lakebed.errors import (
    Closed,
    Conflict,
    Corruption,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.footing import Footing, Ground, Latest, OnCheckpoint, OnVersion, OwnCheckpoint
from lakebed.kv.layout import sst_path
from lakebed.kv.locations import Locations
from lakebed.kv.model import Checkpoint, ExternalDatabase, Manifest
from lakebed.kv.options import ReaderOptions
from lakebed.kv.reading import Reading
from lakebed.kv.tail import LOG_MOVED, LogTail
from lakebed.lsm.cache import BlockCache, shared_cache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.model import check_key
from lakebed.lsm.operators import find_operator
from lakebed.lsm.view import View

__all__ = ["DatabaseReader", "check_reader_options"]

T = TypeVar("T")

_END: Final = object()

_TRIES_MAX: Final = 16
"""How often a reader starts anew because the database moved while it looked."""

_MOVED_KINDS: Final = frozenset({LOG_MOVED, "log_collected", "manifest_not_found"})


def check_reader_options(options: ReaderOptions) -> None:
    """Raise `InvalidRequest` for settings that cannot work."""
    for setting in ("manifest_poll_interval", "checkpoint_lifetime"):
        given = getattr(options, setting)
        if not isinstance(given, timedelta) and (given is not None or setting == "manifest_poll_interval"):
            raise InvalidRequest(
                f"The {setting} of a reader is a timedelta, and {type(given).__name__} was given: write "
                "timedelta(seconds=10).",
                kind="wrong_type",
            )
    if options.manifest_poll_interval <= timedelta(0):
        raise InvalidRequest(
            f"A reader cannot poll every {options.manifest_poll_interval}: give an interval above zero.",
            kind="invalid_poll_interval",
        )
    lifetime = options.checkpoint_lifetime
    if lifetime is not None and lifetime <= 2 * options.manifest_poll_interval:
        raise InvalidRequest(
            f"The checkpoint_lifetime of {lifetime} is not greater than twice the manifest_poll_interval of "
            f"{options.manifest_poll_interval}: it could expire between two polls. "
            "Raise it, or poll more often.",
            kind="invalid_lifetime",
        )
    if options.max_memtable_bytes < 1:
        raise InvalidRequest(
            f"A table of {options.max_memtable_bytes} bytes holds nothing: give max_memtable_bytes above zero.",
            kind="invalid_size",
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is read: a scan refers to it, and by it to the ground, until it ends."""

    ground: Ground
    view: View


class DatabaseReader(Reading):
    """A database, to read. Made by `open`; closed by `close` or ``with``, so that its checkpoint goes. Thread-safe."""

    def __init__(self, location: DatabaseLocation, footing: Footing, *, options: ReaderOptions) -> None:
        self._location = location
        self._footing = footing
        self._options = options
        self._clock = location.environment.clock
        runtime = location.environment.runtime
        self._cache = (
            shared_cache() if options.cache_bytes is None else BlockCache(options.cache_bytes, runtime=runtime)
        )
        self._tail = LogTail(location, table_bytes_max=options.max_memtable_bytes)
        self._polling = runtime.lock()
        self._woken = runtime.condition()
        self._is_closed = False
        self._join: Callable[[], None] | None = None
        self._files: tuple[tuple[ExternalDatabase, ...], FileStore] | None = None
        self._poll_error: LakebedError | None = None
        self._shown: _Shown | None = None

    @classmethod
    def open(
        cls,
        location: DatabaseLocation,
        checkpoint: str | None = None,
        *,
        options: ReaderOptions | None = None,
        version: int | None = None,
    ) -> DatabaseReader:
        """Open a database to read.

        Args:
            checkpoint: by id or name: read its version, for as long as it lives; nothing is written, nothing moves.
                None: read the latest, on a checkpoint of our own (or on none, with `ReaderOptions.follow_latest`).
            version: a manifest's id, which nothing pins for us; reads raise `NotFound` once a collection took it apart.

        Raises:
            NotFound: no database, or no such version.
            InvalidRequest: kind ``invalid_db_state``: unknown or expired checkpoint; destroyed or unfinished database.
                Other kinds: settings that cannot work.
            Corruption, UnsupportedFormat: it cannot be read.
        Cost: 1 LIST + 1 GET (1 GET more for a checkpoint that is not the newest version), 1 LIST of the log and 1 GET a
        log object with rows that is in no file yet; an own checkpoint: 1 PUT + 2 LIST. Source: "Readers".
        """
        options = options or ReaderOptions()
        check_reader_options(options)
        fixed = checkpoint is not None or version is not None
        if fixed and options.follow_latest:
            raise InvalidRequest(
                "A reader follows the latest version or reads a given one, and both were asked for.",
                kind="two_versions",
            )
        footing: Footing
        if checkpoint is not None and version is not None:
            raise InvalidRequest("A reader reads a checkpoint or a version, and both were given.", kind="two_versions")
        if checkpoint is not None:
            footing = OnCheckpoint(location, checkpoint)
        elif version is not None:
            footing = OnVersion(location, version)
        elif options.follow_latest:
            footing = Latest(location)
        else:
            footing = OwnCheckpoint(location, options)
        reader = cls(location, footing, options=options)
        try:
            reader._advance()
        except LakebedError:
            with suppress(Unavailable, OutcomeUnknown):
                reader.close()
            raise
        if footing.moves and options.background:
            reader._join = location.environment.runtime.spawn(reader._run, name=f"lakebed reader of {location.url}")
        return reader

    # ---- what is shown

    @property
    def url(self) -> str:
        """The database's."""
        return self._location.url

    @property
    def manifest(self) -> Manifest:
        """The version whose files are read. Raises `Closed`."""
        return self._current().ground.manifest

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What pins it, as it was when last looked at. Raises `Closed`."""
        return self._current().ground.checkpoint

    @property
    def sequence(self) -> int:
        """The last write that is seen. Raises `Closed`."""
        return self._current().view.sequence or 0

    @property
    def poll_error(self) -> LakebedError | None:
        """Why the last poll in the background failed; None when it did not. Reads go on while the checkpoint lives."""
        return self._poll_error

    def __repr__(self) -> str:
        shown = self._shown
        return f"DatabaseReader({self.url!r}, " + (
            "closed)" if shown is None else f"version={shown.ground.manifest.manifest_id})"
        )

    # ---- reads

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when there is none.

        Raises:
            InvalidRequest: not a key; or the checkpoint that is read has expired or is gone.
            NotFound: the version that is read was taken apart.
        Cost: in memory 1 us; in files 1 GET for a block that is not cached.
        """
        check_key(key)
        for _ in range(_TRIES_MAX):
            shown = self._fresh()
            try:
                return shown.view.get(key)
            except NotFound as missing:
                self._look_again(shown, missing)
        raise self._too_fast()

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of many keys at one moment, in the order asked; None where there is none. Raises as `get`.

        Cost: neighbouring blocks are read together.
        """
        wanted = list(keys) if not isinstance(keys, bytes | str) else keys
        for _ in range(_TRIES_MAX):
            shown = self._fresh()
            try:
                return super().get_many(wanted)
            except Conflict as gone:
                self._look_again(shown, gone)
        raise self._too_fast()

    def _stand(self) -> tuple[View, object]:
        shown = self._fresh()
        return shown.view, shown

    def _read(self, view: View, hold: object, ask: Callable[[View], Iterable[T]]) -> Iterator[T]:
        """As everywhere, but that a scan whose version goes before its first row reads the newest one instead."""
        assert isinstance(hold, _Shown)
        shown = hold
        del view, hold  # the scan may move on, and then nothing of the older version has to stay
        for _ in range(_TRIES_MAX):
            rows = iter(ask(shown.view))
            try:
                first = next(rows, _END)
            except NotFound as missing:
                self._look_again(shown, missing)
                shown = self._fresh()
                continue
            if first is _END:
                return
            yield cast(T, first)
            try:
                yield from rows
            except LakebedError as error:
                self._raise_better(error)
            return
        raise self._too_fast()

    def _explain(self, error: LakebedError) -> LakebedError:
        """A file that is gone under a scan: its version cannot be read to the end, and no other can take its place.

        Rows of two versions would make a state that never was.
        """
        if not isinstance(error, NotFound):
            return error
        return Conflict(
            f"The version of {self.url} that was being read was taken apart ({error}): nothing pinned it any more. "
            "Read again, or read on a checkpoint, which keeps the files of long scans.",
            kind="version_went",
            url=self.url,
        )

    def _current(self) -> _Shown:
        shown = self._shown
        if shown is None:
            raise Closed(f"The reader of {self.url} was closed: open a new one.")
        return shown

    def _fresh(self) -> _Shown:
        """What is shown, on a checkpoint that lives."""
        shown = self._current()
        checkpoint = shown.ground.checkpoint
        if checkpoint is None or checkpoint.is_live(self._clock.now_ms()):
            return shown
        with self._polling:
            if self._shown is shown:
                self._advance()
        return self._current()

    def _look_again(self, shown: _Shown, missing: LakebedError) -> None:
        """After a missing file: return when another version is shown by now, raise when ours needs what is gone."""
        with self._polling:
            if self._current() is not shown:
                return
            self._advance()
            again = self._current()
            if again.ground.manifest.manifest_id != shown.ground.manifest.manifest_id:
                return
        path = missing.facts.get("path")
        if again.ground.checkpoint is None and not self._footing.moves:
            raise NotFound(
                f"Version {again.ground.manifest.manifest_id} of {self.url} was taken apart while it was read: pin "
                "what should stay.",
                kind="version_not_found",
                url=self.url,
            ) from missing
        raise Corruption(
            f"Version {again.ground.manifest.manifest_id} of {self.url} needs a file that is gone ({missing}).",
            path=path,
        ) from missing

    def _too_fast(self) -> Conflict:
        return Conflict(
            f"The database {self.url} changed {_TRIES_MAX} times while it was looked at: try again.",
            kind="moves_too_fast",
            url=self.url,
        )

    # ---- news

    def poll_once(self) -> bool:
        """Look for new files and log objects, and keep our checkpoint alive.

        Returns:
            Whether there was anything new to read.

        Raises:
            InvalidRequest: the database was destroyed; what is shown can be read while its checkpoint lives.
        Cost: 2 LIST; 1 GET when there is a new manifest and 1 GET a new log object; when files have changed, half of
        the lifetime has passed or an older checkpoint can go, 1 PUT + 1 or 2 LIST.
        """
        with self._polling:
            self._current()
            return self._footing.moves and self._advance()

    def _advance(self) -> bool:
        """Stand on the newest ground and show it; the caller holds `_polling`, or is alone."""
        moved: LakebedError | None = None
        looked_at: int | None = None
        for _ in range(_TRIES_MAX):
            ground = None
            try:
                ground = self._footing.settle()
                return self._show(ground)
            except (Conflict, NotFound) as error:
                if error.kind not in _MOVED_KINDS or not self._footing.moves:
                    raise
                moved = error
            except Corruption as error:
                # It may be missing because the database moved or was destroyed: so it must be missing twice.
                if ground is None or ground.newest.manifest_id == looked_at:
                    raise
                looked_at, moved = ground.newest.manifest_id, error
        raise self._too_fast() from moved

    def _show(self, ground: Ground) -> bool:
        manifest = ground.manifest
        came = self._tail.follow(ground.newest, replay_after=manifest.replay_after_wal_id, through=ground.through)
        before = self._shown
        if before is None:
            self._shown = _Shown(ground, self._view(ground))
            return True
        if not came and before.ground.manifest.manifest_id == manifest.manifest_id:
            self._shown = _Shown(ground, before.view)  # only the end of the checkpoint may have moved
            return False
        self._shown = _Shown(ground, self._view(ground))
        return came or not manifest.has_content_of(before.ground.manifest)

    def _view(self, ground: Ground) -> View:
        environment = self._location.environment
        operator_name = ground.newest.merge_operator
        return View(
            memtables=self._tail.memtables,
            file_set=ground.manifest.file_set,
            sequence=max(ground.manifest.last_sequence, self._tail.last_sequence),
            operator=None if operator_name is None else find_operator(operator_name),
            environment=environment,
            files=self._files_of(ground.manifest),
        )

    def _files_of(self, manifest: Manifest) -> FileStore:
        """Handles of files, kept from version to version while the ancestors that own some of them are the same."""
        if self._files is None or self._files[0] != manifest.external_databases:
            files = FileStore(
                self._location.store,
                path_of=sst_path,
                locate=Locations(self._location, manifest).locate,
                cache=self._cache,
                options=FileOptions(),
                environment=self._location.environment,
            )
            self._files = (manifest.external_databases, files)
        return self._files[1]

    def _run(self) -> None:
        interval_s = self._options.manifest_poll_interval / timedelta(seconds=1)
        while True:
            with self._woken:
                if not self._is_closed:
                    self._woken.wait(interval_s)
                if self._is_closed:
                    return
            try:
                self.poll_once()
            except Closed:
                return
            except LakebedError as error:
                self._poll_error = error  # the next poll tries again; who reads after the checkpoint's end is told
            else:
                self._poll_error = None

    # ---- the end

    def close(self) -> None:
        """Take our checkpoint back, also from under scans that were not read to their end; again is fine.

        Raises:
            Unavailable, OutcomeUnknown: a checkpoint that never expires could not be taken back: delete it by hand.
        Cost: 1 PUT + 1 LIST for an own checkpoint.
        """
        with self._woken:
            was_closed, self._is_closed = self._is_closed, True
            self._woken.notify_all()
        if was_closed:
            return
        if self._join is not None:
            self._join()
        with self._polling:
            self._shown = None
            try:
                self._footing.leave()
            except (Unavailable, OutcomeUnknown):
                if self._options.checkpoint_lifetime is None:
                    raise
            except NotFound:
                return  # the database is gone, and our checkpoint with it

    def __enter__(self) -> DatabaseReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
