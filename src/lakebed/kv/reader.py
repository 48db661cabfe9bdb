"""`DatabaseReader`: reads a database while another process may write it. The two processes do not communicate.

Owns: the documented interface, the options, and the thread that polls. `ReaderCore` has the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

from lakebed.closing import Closing
from lakebed.errors import Closed, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.model import Checkpoint, Manifest
from lakebed.kv.options import ReaderOptions
from lakebed.kv.read_core import ReadVerbs
from lakebed.kv.read_version import (
    CheckpointSource,
    LatestSource,
    OwnCheckpointSource,
    ReadVersionSource,
    VersionSource,
)
from lakebed.kv.reader_core import ReaderCore
from lakebed.lsm.model import check_key


def check_reader_options(options: ReaderOptions) -> None:
    """Raise `InvalidRequest` for settings that cannot work."""
    for setting in ("manifest_poll_interval", "checkpoint_lifetime"):
        value = getattr(options, setting)
        if not isinstance(value, timedelta) and (value is not None or setting == "manifest_poll_interval"):
            raise InvalidRequest(
                f"The {setting} of a reader is a timedelta, and {type(value).__name__} was given: write "
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


class DatabaseReader(ReadVerbs, Closing):
    """A database that is open for reading. Close it, or use it in a ``with`` statement, to remove its checkpoint.

    Thread-safe.
    """

    def __init__(self, location: DatabaseLocation, source: ReadVersionSource, *, options: ReaderOptions) -> None:
        self._location = location
        self._options = options
        self._core = ReaderCore(location, source, options=options)
        super().__init__(self._core)
        self._woken = location.environment.runtime.condition()
        self._is_closed = False
        self._polls_end = False
        self._join: Callable[[], None] | None = None
        self._poll_error: LakebedError | None = None

    @classmethod
    def open(
        cls,
        location: DatabaseLocation,
        checkpoint: str | None = None,
        *,
        options: ReaderOptions | None = None,
        version: int | None = None,
    ) -> DatabaseReader:
        """Open a database to read it.

        Args:
            checkpoint: id or name of a checkpoint, whose version is read while the checkpoint lives. Nothing is
                written. None: read the latest version, on a checkpoint of the reader's own (with
                `ReaderOptions.follow_latest`, on none).
            version: number of a version to read. Nothing pins it; reads raise `NotFound` after its files were
                collected.

        Raises:
            NotFound: there is no database, or no such version.
            InvalidRequest: kind ``invalid_db_state``: the checkpoint is unknown or has expired, or the database is
                destroyed or unfinished. Other kinds: settings that cannot work.
            Corruption, UnsupportedFormat: the database cannot be read.

        Cost: 1 LIST + 1 GET (1 GET more for a checkpoint that is not the newest version), 1 LIST of the log, and 1 GET
            for each log object with rows that are in no file yet. A checkpoint of its own: 1 PUT + 2 LIST. Source:
            "Readers".
        """
        options = options or ReaderOptions()
        check_reader_options(options)
        is_fixed = checkpoint is not None or version is not None
        if is_fixed and options.follow_latest:
            raise InvalidRequest(
                "A reader follows the latest version or reads a given one, and both were asked for.",
                kind="two_versions",
            )
        location = location.require_folder(with_descriptor=False)  # a process may open many
        source: ReadVersionSource
        if checkpoint is not None and version is not None:
            raise InvalidRequest("A reader reads a checkpoint or a version, and both were given.", kind="two_versions")
        if checkpoint is not None:
            source = CheckpointSource(location, checkpoint)
        elif version is not None:
            source = VersionSource(location, version)
        elif options.follow_latest:
            source = LatestSource(location)
        else:
            source = OwnCheckpointSource(location, options)
        reader = cls(location, source, options=options)
        try:
            reader._core.begin()
        except LakebedError:
            with suppress(Unavailable, OutcomeUnknown):
                reader.close()
            raise
        if source.moves and options.background:
            reader._join = location.environment.runtime.spawn(
                reader._run, name=f"lakebed reader of {location.url}", stop=reader._end_polls
            )
        return reader

    @property
    def url(self) -> str:
        """The database's URL."""
        return self._location.url

    @property
    def manifest(self) -> Manifest:
        """The version whose files are read. Raises `Closed`."""
        return self._core.current().version.manifest

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that keeps the files, as it was at the last look. Raises `Closed`."""
        return self._core.current().version.checkpoint

    @property
    def sequence(self) -> int:
        """The number of the last write that the reader shows. Raises `Closed`."""
        return self._core.current().view.sequence or 0

    @property
    def poll_error(self) -> LakebedError | None:
        """The error of the last poll in the background; None if it succeeded.

        Reads continue while the checkpoint lives.
        """
        return self._poll_error

    def __repr__(self) -> str:
        current = self._core.shown
        state = "closed" if current is None else f"version={current.version.manifest.manifest_id}"
        return f"DatabaseReader({self.url!r}, {state})"

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if the key has no value.

        Raises:
            InvalidRequest: the key is not valid, or the checkpoint that is read has expired or is gone.
            NotFound: the files of the version that is read were deleted.

        Cost: in memory about 1 us; in files 1 GET for a block that is not cached.
        """
        return self._core.get(check_key(key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of many keys at one moment, in the order of the keys; None for a key without a value.

        Raises as `get`. Cost: as single gets, but neighbouring blocks are read together.
        """
        return self._core.get_many(keys)

    def poll_once(self) -> bool:
        """Look for new files and log objects, and renew the reader's checkpoint.

        Returns:
            Whether there was anything new to read.

        Raises:
            InvalidRequest: the database was destroyed. What is shown can be read while its checkpoint lives.

        Cost: 2 LIST, 1 GET for a new manifest and 1 GET for each new log object. If files have changed, half of the
            lifetime
            has passed or an older checkpoint can be removed: 1 PUT + 1 or 2 LIST.
        """
        return self._core.poll_once()

    def _run(self) -> None:
        interval_s = self._options.manifest_poll_interval / timedelta(seconds=1)
        while True:
            with self._woken:
                if not self._polls_end:
                    self._woken.wait(interval_s)
                if self._polls_end:
                    return
            try:
                self.poll_once()
            except Closed:
                return
            except LakebedError as error:
                self._poll_error = error  # the next poll tries again; once the checkpoint has ended, reads raise
            else:
                self._poll_error = None

    def _end_polls(self) -> None:
        with self._woken:
            self._polls_end = True
            self._woken.notify_all()

    def close(self) -> None:
        """Remove the reader's checkpoint, even if scans have not been read to their end.

        A second call does nothing.

        Raises:
            Unavailable, OutcomeUnknown: a checkpoint that never expires could not be removed. Delete it yourself.

        Cost: 1 PUT + 1 LIST if the reader has a checkpoint of its own.
        """
        with self._woken:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._end_polls()
        if self._join is not None:
            self._join()
        try:
            self._core.leave()
        except (Unavailable, OutcomeUnknown):
            if self._options.checkpoint_lifetime is None:
                raise
        except NotFound:
            return  # the database is gone, and our checkpoint with it
