"""The files of one store: the locations of new and existing files, and handles to read them.

Owns: the mapping from a file's id to its location, which may be in another database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.file_writer import FileOptions, FileWriter
from lakebed.lsm.model import FileMeta, FileSet
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import store_time_ms
from lakebed.runtime import Environment, Pool

_HANDLE_COUNT_MAX: Final = 32_768
"""Default number of handles kept: twice the files that one version may have."""

_REPLACED_COUNT_MAX: Final = 1024
"""Most files of older sets that are checked again, because a view may have opened them since."""


class FileStore:
    """Sorted files by id. Thread-safe.

    Args:
        store: the store of new files.
        path_of: returns the path of a file in `store`, by id.
        locate: returns store and path of a file to read, which may be another database's; None: all files are ours.
        cache: keeps tails and blocks.
        handle_count_max: most handles kept, of about 1 KB each. If there are more, all are dropped and made again when
            needed, in about 2 us each.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        path_of: Callable[[str], str],
        locate: Callable[[str], tuple[ObjectStore, str]] | None = None,
        cache: BlockCache,
        options: FileOptions,
        environment: Environment,
        handle_count_max: int = _HANDLE_COUNT_MAX,
    ) -> None:
        self._store = store
        self._path_of = path_of
        self._locate = locate
        self._options = options
        self._handle_count_max = handle_count_max
        self.cache = cache
        self.environment = environment
        self._readers: dict[str, FileReader] = {}
        self._readers_through: dict[tuple[str, int], FileReader] = {}
        """Handles of files with a ceiling: versions that share a file may see different parts of it."""
        self._replaced: deque[FileMeta] = deque(maxlen=_REPLACED_COUNT_MAX)

    def read_agreed_ms(self) -> int:
        """Return the time by our clock or by the store's, whichever is earlier. Cost: that of `store_time_ms`."""
        return min(self.environment.clock.now_ms(), store_time_ms(self._store, environment=self.environment))

    def writer(self, file_id: str, *, in_place: bool = False, pool: Pool | None = None) -> FileWriter:
        """Begin a new file in `store`. Arguments as `FileWriter`. Cost: no request."""
        path = self._path_of(file_id)
        return FileWriter(self._store, path, file_id=file_id, options=self._options, in_place=in_place, pool=pool)

    def reader(self, meta: FileMeta) -> FileReader:
        """Return a handle to read a file, which is kept for the next call. The file is opened when it is first read.

        Cost: no request.
        """
        if meta.through_sequence is not None:
            return self._reader_through(meta, meta.through_sequence)
        reader = self._readers.get(meta.id)
        if reader is None:
            reader = self._new_reader(meta)
            # Each is one dictionary operation, so no lock is needed. Two threads may both make the handle.
            if len(self._readers) >= self._handle_count_max:
                self._readers.clear()
            self._readers[meta.id] = reader
        return reader

    def _reader_through(self, meta: FileMeta, ceiling: int) -> FileReader:
        reader = self._readers_through.get((meta.id, ceiling))
        if reader is None:
            reader = self._new_reader(meta)
            if len(self._readers_through) >= self._handle_count_max:
                self._readers_through.clear()
            self._readers_through[meta.id, ceiling] = reader
        return reader

    def _new_reader(self, meta: FileMeta) -> FileReader:
        store, path = (self._store, self._path_of(meta.id)) if self._locate is None else self._locate(meta.id)
        return FileReader(store, path, meta=meta, cache=self.cache)

    def forget_replaced(self, before: FileSet, after: FileSet) -> None:
        """Drop handles and cache entries of mapped files that a newer set does not have. One thread at a time.

        A deleted file uses disk space as long as it is mapped. An older view that is still read opens such files again,
        so files of some earlier sets are checked too. Files that were not mapped stay until others need the space.
        """
        if before is after:
            return
        kept_ids = {file.id for file in after.files()}
        self._replaced.extend(file for file in before.files() if file.id not in kept_ids)
        for file in self._replaced:
            if file.id not in kept_ids and self.reader(file).is_mapped:
                self.forget(file.id)

    def forget(self, file_id: str) -> None:
        """Drop the handles and cache entries of a file that no version in use has any more."""
        readers = [self._readers.pop(file_id, None)]
        readers += [self._readers_through.pop(key, None) for key in list(self._readers_through) if key[0] == file_id]
        for reader in readers:
            if reader is not None:
                reader.forget()
