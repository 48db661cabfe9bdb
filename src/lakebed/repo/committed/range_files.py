"""The sorted files of committed data: read ranges whole or in part, and count what is read and written.

Owns: the way from a range to its rows, reading ahead, and the error of a missing object. Invariants: files are
immutable, so any number of threads may read. Reading a whole range takes one request. For one reader of many ranges, at
most `AHEAD_COUNT` ranges are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.errors import Corruption, NotFound
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.file_writer import FileOptions, FileWriter
from lakebed.lsm.files import FileStore
from lakebed.lsm.format import decode_blocks, decode_tail, read_meta
from lakebed.lsm.model import FileMeta
from lakebed.objects.create_once import put_new_each
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.layout import metarange_path, range_path
from lakebed.repo.model.model import RangeMeta
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import path_rows
from lakebed.runtime import Environment

AHEAD_COUNT: Final = 3
"""Ranges that a reader of many ranges reads ahead."""

_WORKERS_MAX: Final = 8
"""Most ranges that are read or written at once, by all users of a repository's committed data together."""

_HANDLE_COUNT_MAX: Final = 2_048
"""Most handles of ranges, and most of metaranges, that are kept.

Each commit writes new ones, and nothing tells when older ones are no longer read, so more handles would only hold
memory. A dropped handle is made again when its file is read.
"""

_RUN_BLOCK_COUNT: Final = 32
"""Most blocks in one batch, 2 MiB by default. Larger batches are not read faster. Decoding takes twice a batch's bytes
in addition to the rows, for each of the ranges that are read ahead, which matters if entries have long metadata."""

_SYNCED_TOGETHER: Final = ("file", "memory")
"""Schemes of stores that sync many files at the same time. To other stores, each file is a separate request."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class RangeCounts:
    """Distinct ranges that were read, and ranges that were written, inside a ``with committed.count()`` block."""

    read_ids: set[str] = field(default_factory=set)
    written_ids: set[str] = field(default_factory=set)

    @property
    def ranges_read(self) -> int:
        """Ranges in which rows were searched: by reading the range, or by looking up a path in it."""
        return len(self.read_ids)

    @property
    def ranges_written(self) -> int:
        """Ranges whose files were written."""
        return len(self.written_ids)


class RangeFiles:
    """Files of ranges and metaranges in the storage namespace of one repository. Thread-safe.

    Args:
        cache: the cache of tails, blocks and lists of ranges.
    """

    def __init__(
        self, store: ObjectStore, *, options: RangeOptions, cache: BlockCache, environment: Environment
    ) -> None:
        self.store = store
        self.options = options
        self.cache = cache
        self.environment = environment
        self.pool = environment.runtime.pool(_WORKERS_MAX)
        self.ranges, self.metaranges = (
            FileStore(
                store,
                path_of=path_of,
                cache=cache,
                options=FileOptions(block_bytes=options.block_bytes),
                environment=environment,
                handle_count_max=_HANDLE_COUNT_MAX,
            )
            for path_of in (range_path, metarange_path)
        )
        self.syncs_together = parse_url(store.root_url).scheme in _SYNCED_TOGETHER
        """Whether files that are put together take hardly longer than one."""
        self._counting: tuple[RangeCounts, ...] = ()

    @contextmanager
    def count(self) -> Iterator[RangeCounts]:
        """Count what is read and written inside the block, by all threads."""
        counts = RangeCounts()
        self._counting += (counts,)
        try:
            yield counts
        finally:
            self._counting = tuple(other for other in self._counting if other is not counts)

    def note_read(self, meta: RangeMeta) -> None:
        """Count a range as read."""
        for counts in self._counting:
            counts.read_ids.add(meta.file.id)

    def note_written(self, file_id: str) -> None:
        """Count a range as written."""
        for counts in self._counting:
            counts.written_ids.add(file_id)

    def put_each(self, writers: Sequence[FileWriter]) -> None:
        """Put the encoded files of ranges and metaranges. All are durable when this returns.

        Raises:
            Unavailable, OutcomeUnknown: any of the files may exist, and nothing may refer to them.
        Cost: 1 PUT a file.
        """
        put_new_each(self.store, [writer.object for writer in writers])
        for writer in writers:
            writer.abandon()

    def reader(self, meta: RangeMeta) -> FileReader:
        """A reader of single paths of a range. Cost: no request."""
        if self._counting:
            self.note_read(meta)
        return self.ranges.reader(meta.file)

    def rows_of(
        self, meta: RangeMeta, start: bytes | None = None, end: bytes | None = None, *, keep: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of a range with paths in [start, end), block by block, as views of blocks.

        Args:
            keep: keep the blocks in the cache: ranges that were listed are often listed again.

        Raises:
            Corruption: the range is damaged or missing.
        Cost: lazily, as `FileReader.batches`.
        """
        try:
            for block in self.reader(meta).batches(start, end, fill_cache=keep):
                yield path_rows(block.batch)
        except NotFound as error:
            raise missing(meta.file, range_path(meta.file.id)) from error

    def whole(self, meta: RangeMeta) -> list[pa.RecordBatch]:
        """Read all rows of a range, some blocks in each batch, with one request and without the cache.

        Raises:
            Corruption: the range is damaged or missing.
        Cost: 1 GET, even if blocks are in the cache; memory for its rows.
        """
        if self._counting:
            self.note_read(meta)
        return [path_rows(batch) for batch in self._load(meta.file, range_path(meta.file.id))]

    def metarange_rows(self, file: FileMeta) -> list[pa.RecordBatch]:
        """Read all rows of a metarange's file, as batches of `ROWS_SCHEMA`. Raises and costs as `whole`."""
        return [path_rows(batch) for batch in self._load(file, metarange_path(file.id))]

    def each_whole(self, ranges: Iterable[RangeMeta]) -> Iterator[list[pa.RecordBatch]]:
        """Iterate over `whole` of many ranges, in order. The next `AHEAD_COUNT` ranges are read meanwhile."""
        return self.ahead(self.whole, ranges)

    def ahead(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Iterate over results, in the order of `items`. The next `AHEAD_COUNT` results are computed meanwhile."""
        queue: deque[Iterator[R]] = deque()
        for item in items:
            queue.append(self.pool.map(function, (item,)))
            if len(queue) > AHEAD_COUNT:
                yield next(queue.popleft())
        while queue:
            yield next(queue.popleft())

    def _load(self, file: FileMeta, path: str) -> list[pa.RecordBatch]:
        """Read the rows of a whole file, of `ROW_SCHEMA`."""
        try:
            body = memoryview(self.store.get(path)).cast("B")
        except NotFound as error:
            raise missing(file, path) from error
        if len(body) != file.size_bytes:
            raise Corruption(
                f"{path} is damaged: it has {len(body):,} bytes, and {file.size_bytes:,} were written to it.",
                path=path,
                offset=min(len(body), file.size_bytes),
            )
        return _batches_of(body, file, path=path)


def rows_of_file(body: memoryview, *, path: str) -> list[pa.RecordBatch]:
    """Decode all rows of a range or metarange, as batches of `ROWS_SCHEMA`, from the bytes of its file alone.

    Raises:
        Corruption: the file is damaged.
    """
    return [path_rows(batch) for batch in _batches_of(body, read_meta(body, path=path), path=path)]


def _batches_of(body: memoryview, file: FileMeta, *, path: str) -> list[pa.RecordBatch]:
    """Decode the rows of a file, in as few batches as its version allows, because each batch has a cost."""
    tail = decode_tail(body[file.tail_offset :], meta=file, path=path)
    count = tail.block_count
    batches = []
    for first in range(0, count, 1 if tail.pages is None else _RUN_BLOCK_COUNT):
        last = first if tail.pages is None else min(first + _RUN_BLOCK_COUNT, count) - 1
        blocks = body[tail.offsets[first] : tail.offsets[last] + tail.lengths[last]]
        batches.append(decode_blocks(tail, first, last + 1, blocks, path=path).batch)
    return batches


def missing(file: FileMeta, path: str) -> Corruption:
    """The error for a missing file that something refers to. It never means that the file's paths do not exist."""
    return Corruption(
        f"{path}, which holds {file.row_count:,} entries from {format_path(file.first_key)} to "
        f"{format_path(file.last_key)}, is "
        "not in the store: if what is read was replaced by a newer state of its branch, open that; otherwise something "
        "other than the repository's own collection has deleted it, so restore the object from a backup or an older "
        "version of the bucket.",
        kind="missing_range",
        path=path,
    )


def format_path(path: bytes) -> str:
    """A path as error messages show it."""
    return repr(path.decode(errors="backslashreplace"))
