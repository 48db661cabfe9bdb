"""`ReaderCore`: which version a reader shows, when it looks for a newer one, and what a missing file means.

Owns: the view that is shown, with the checkpoint that pins it. `lakebed.kv.read_version` decides on the version, and
`lakebed.kv.tail` reads the rows of the log.

Invariants:
- A call reads one version. Its view is taken once, and a scan keeps the view and its checkpoint until the scan ends. If
  files of that version are gone before a scan has its first row, the scan reads the newest version instead.
- The version that is shown existed: it has the files of one manifest, and the log after them without a gap. Versions
  are shown in their order.
- A reader whose checkpoint has expired makes a new one before it answers, or raises. Files are written once, so the
  rows that a scan still reads after that are right. A missing file raises, so an answer never has part of a version.
- One thread at a time looks for a newer version. Reads wait for it only if files that they need are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from lakebed.errors import Closed, Conflict, Corruption, LakebedError, NotFound
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.locations import Locations
from lakebed.kv.model import ExternalDatabase, Manifest
from lakebed.kv.options import ReaderOptions
from lakebed.kv.read_core import ReadVerbs, ViewSource, raise_explained
from lakebed.kv.read_version import PinnedVersion, ReadVersionSource
from lakebed.kv.tail import LOG_MOVED, LogTail
from lakebed.lsm.cache import BlockCache, block_cache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.operators import find_operator
from lakebed.lsm.view import View
from lakebed.runtime import follow_forks

T = TypeVar("T")

_END: Final = object()

_TRIES_MAX: Final = 16
"""How often a reader starts again because the database changed while it looked for a newer version."""

_MOVED_KINDS: Final = frozenset({LOG_MOVED, "log_collected", "manifest_not_found"})


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """The version that is shown. A scan references it until it ends, and through it the pin of the version."""

    version: PinnedVersion
    view: View


class ReaderCore(ViewSource):
    """The shown version of one reader. Thread-safe."""

    def __init__(self, location: DatabaseLocation, source: ReadVersionSource, *, options: ReaderOptions) -> None:
        self._location = location
        self._source = source
        self._clock = location.environment.clock
        runtime = location.environment.runtime
        self._cache = block_cache() if options.cache_bytes is None else BlockCache(options.cache_bytes, runtime=runtime)
        self._table_bytes_max = options.max_memtable_bytes
        self._polling = runtime.lock()
        self._begin_tail()
        self._files: tuple[tuple[ExternalDatabase, ...], FileStore] | None = None
        self._reads = ReadVerbs(self)
        self.shown: ShownVersion | None = None
        """None: nothing was read yet, or the reader is closed."""
        follow_forks(self, ReaderCore._begin_tail)

    def _begin_tail(self) -> None:
        """Forget the rows of the log, so that the next poll reads them again.

        A forked process calls this, because a poll of the parent may be half done.
        """
        self._tail = LogTail(self._location, table_bytes_max=self._table_bytes_max)

    @property
    def url(self) -> str:
        """The database's URL."""
        return self._location.url

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a checked key; as `DatabaseReader.get`."""
        for _ in range(_TRIES_MAX):
            current = self._fresh()
            try:
                return current.view.get(key)
            except NotFound as missing:
                self._look_again(current, missing)
        raise self._moves_too_fast()

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """As `DatabaseReader.get_many`."""
        key_list = list(keys) if not isinstance(keys, bytes | str) else keys
        for _ in range(_TRIES_MAX):
            current = self._fresh()
            try:
                return self._reads.get_many(key_list)
            except Conflict as error:
                self._look_again(current, error)
        raise self._moves_too_fast()

    def pin_view(self) -> tuple[View, ShownVersion]:
        """Return the version that is shown, with a live checkpoint. Raises `Closed`."""
        current = self._fresh()
        return current.view, current

    def read(self, view: View, pin: object, rows_of: Callable[[View], Iterable[T]]) -> Generator[T, None, None]:
        """Yield rows lazily. If files are gone before the first row, yield the rows of the newest version instead."""
        assert isinstance(pin, ShownVersion)
        current = pin
        del view, pin  # the scan may move to a newer version, and must not keep the older one
        for _ in range(_TRIES_MAX):
            rows = iter(rows_of(current.view))
            try:
                first = next(rows, _END)
            except NotFound as missing:
                self._look_again(current, missing)
                current = self._fresh()
                continue
            if first is _END:
                return
            yield cast(T, first)
            try:
                yield from rows
            except LakebedError as error:
                raise_explained(self, error)
            return
        raise self._moves_too_fast()

    def explain(self, error: LakebedError) -> LakebedError:
        """Return a `Conflict` for a file that is gone during a scan: its version cannot be read to the end.

        The scan cannot continue with another version, because rows of two versions would make a state that never
        existed.
        """
        if not isinstance(error, NotFound):
            return error
        return Conflict(
            f"A collection deleted files of the version of {self.url} that was being read, which nothing pinned "
            f"({error}). Read again, or read on a checkpoint, which keeps the files of long scans.",
            kind="version_went",
            url=self.url,
        )

    def current(self) -> ShownVersion:
        """Return the version that is shown. Raises `Closed`."""
        version = self.shown
        if version is None:
            raise Closed(f"The reader of {self.url} was closed: open a new one.")
        return version

    def _fresh(self) -> ShownVersion:
        """Return the version that is shown, with a live checkpoint."""
        current = self.current()
        checkpoint = current.version.checkpoint
        if checkpoint is None or checkpoint.is_live(self._clock.now_ms()):
            return current
        with self._polling:
            if self.shown is current:
                self._advance()
        return self.current()

    def _look_again(self, shown: ShownVersion, missing: LakebedError) -> None:
        """Look for a newer version after a missing file. Return if another version is shown by now, otherwise raise."""
        with self._polling:
            if self.current() is not shown:
                return
            self._advance()
            current = self.current()
            if current.version.manifest.manifest_id != shown.version.manifest.manifest_id:
                return
        path = missing.facts.get("path")
        if current.version.checkpoint is None and not self._source.moves:
            raise NotFound(
                f"Files of version {current.version.manifest.manifest_id} of {self.url} were collected while it was "
                "read: pin the versions that should stay.",
                kind="version_not_found",
                url=self.url,
            ) from missing
        raise Corruption(
            f"Version {current.version.manifest.manifest_id} of {self.url} needs a file that is gone ({missing}).",
            path=path,
        ) from missing

    def _moves_too_fast(self) -> Conflict:
        return Conflict(
            f"The database {self.url} changed {_TRIES_MAX} times while it was looked at: try again.",
            kind="moves_too_fast",
            url=self.url,
        )

    def begin(self) -> None:
        """Show the first version. Raises as `DatabaseReader.open`."""
        with self._polling:
            self._advance()

    def poll_once(self) -> bool:
        """As `DatabaseReader.poll_once`."""
        with self._polling:
            self.current()
            return self._source.moves and self._advance()

    @property
    def moves(self) -> bool:
        """Whether the version that is shown can change."""
        return self._source.moves

    def leave(self) -> None:
        """Stop showing a version, and remove our checkpoint. Raises as an update of the manifest."""
        with self._polling:
            self.shown = None
            self._source.leave()

    def _advance(self) -> bool:
        """Acquire the newest version and show it. Return whether it is new. The caller has `_polling`, or is alone."""
        failure: LakebedError | None = None
        looked_at: int | None = None
        log_epoch = 0
        for _ in range(_TRIES_MAX):
            version = None
            try:
                version = self._source.acquire()
                return self._show(version)
            except (Conflict, NotFound) as error:
                if error.kind not in _MOVED_KINDS or not self._source.moves:
                    raise
                failure = error
                if version is not None and error.kind == LOG_MOVED:
                    self._check_manifests(version.newest, log_epoch, error)
                    log_epoch = error.facts["epoch"]
            except Corruption as error:
                # An object may be missing because the database moved or was destroyed, so it must be missing twice.
                if version is None or version.newest.manifest_id == looked_at:
                    raise
                looked_at, failure = version.newest.manifest_id, error
        raise self._moves_too_fast() from failure

    def _check_manifests(self, newest: Manifest, log_epoch: int, moved: LakebedError) -> None:
        """Raise `Corruption` if a manifest is of an older writer than a log record that was seen before it was read.

        This cannot happen otherwise, because a writer puts its epoch into a manifest before it writes a record.
        """
        if newest.writer_epoch < log_epoch:
            raise Corruption(
                f"The manifests of {self.url} are older than its log: the newest one, {newest.manifest_id}, is of "
                f"epoch {newest.writer_epoch}, and {moved.facts['path']} is of epoch {log_epoch}. A part of the "
                "database was restored, or lost: restore all of its folder to one moment, or open it for writing and "
                "flush it to go on with what the log has.",
                kind="manifests_older",
                url=self.url,
                path=moved.facts["path"],
            ) from moved

    def _show(self, version: PinnedVersion) -> bool:
        manifest = version.manifest
        came = self._tail.follow(version.newest, replay_after=manifest.replay_after_wal_id, through=version.through)
        before = self.shown
        if before is None:
            self.shown = ShownVersion(version, self._view(version))
            return True
        if not came and before.version.manifest.manifest_id == manifest.manifest_id:
            self.shown = ShownVersion(version, before.view)  # only the expiry of the checkpoint may have changed
            return False
        files = self._files_of(before.version.manifest)
        self.shown = ShownVersion(version, self._view(version))
        files.forget_replaced(before.version.manifest.file_set, manifest.file_set)
        return came or not manifest.has_content_of(before.version.manifest)

    def _view(self, version: PinnedVersion) -> View:
        environment = self._location.environment
        operator_name = version.newest.merge_operator
        return View(
            memtables=self._tail.memtables,
            file_set=version.manifest.file_set,
            sequence=max(version.manifest.last_sequence, self._tail.last_sequence),
            operator=None if operator_name is None else find_operator(operator_name),
            environment=environment,
            files=self._files_of(version.manifest),
        )

    def _files_of(self, manifest: Manifest) -> FileStore:
        """Return the store of file handles. Versions share it while the ancestors that own some files are the same."""
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
