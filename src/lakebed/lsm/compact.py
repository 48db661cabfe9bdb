"""Running a compaction: many sorted files become one run, in bounded memory.

Owns: which parts of a task need no rewriting, the reading ahead, the work of threads, and where output files are cut.

A file whose keys overlap with no other input is taken over unchanged if rewriting it would gain nothing: it is large
enough, and it has no rows that the output may drop. So a load in the order of keys is never rewritten. All files of a
task with `rewrite`, and all files while history is kept, are rewritten. A file that is taken over keeps its ceiling
(`FileMeta.through_sequence`). Of a file that is rewritten only the rows up to the ceiling are kept.

Invariants:
- Outputs are cut between keys, so all versions of a key are in one file.
- Memory: `READ_AHEAD_BYTES` of encoded blocks over all sources, and a few times `WINDOW_BYTES`. If the store cannot
  write files in place, also two encoded output files and a copy of one. Nothing grows with the inputs. Memory that
  Arrow has freed is returned to the system after each file.
- Threads: one ends the last file, and one packs blocks. If inputs are read by requests, one reads and merges the next
  window. However a compaction ends, all threads have ended before, and the error of any is the compaction's. The files
  are the same without threads. No call in a thread waits for another one, because there may be only one thread.
- Nothing is published here, and no input is changed. A failed compaction leaves files that no version names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

import numpy as np
import pyarrow as pa

from lakebed.lsm.columns import mark_changes
from lakebed.lsm.file_reader import AHEAD_BYTES_DEFAULT, choose_run_bytes
from lakebed.lsm.file_writer import FileWriter
from lakebed.lsm.files import FileStore
from lakebed.lsm.merge import merge_windows
from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.resolve import compact_rows
from lakebed.runtime import Pool, begin_call

T = TypeVar("T")

READ_AHEAD_BYTES: Final = 16 << 20
"""Encoded bytes that all sources together read ahead."""

WINDOW_BYTES: Final = 3 << 20
"""Decoded rows that are merged at once. Each step from merging to encoding holds a copy of about this size."""

_READ_BYTES_MIN: Final = 256 << 10
"""A source reads at least so much at once, however many there are."""

_WORKERS_BYTES_MIN: Final = 8 << 20
"""Encoded bytes of inputs from which on other threads are used: to begin one takes as long as to merge some blocks."""

_WORKER_COUNT: Final = 3
"""One puts the last file, one packs blocks, one merges the next window if it is read by requests."""

_MOVED_FILE_SHARE: Final = 0.5
"""A file below this share of `run_file_bytes` is not taken over but merged with its neighbours."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A range of keys of the output: files, each with the source it belongs to."""

    files: tuple[tuple[int, FileMeta], ...]
    is_moved: bool
    """One file that is taken over as it is."""


def run_compaction(
    task: CompactionTask,
    *,
    files: FileStore,
    file_set: FileSet,
    next_file_id: Callable[[], str],
    run_file_bytes: int,
    operator: MergeOperator | None,
    retain_since_sequence: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> Run | None:
    """Merge the inputs of a task into one run.

    Args:
        task: made for `file_set`.
        files: where inputs are and outputs go. What has expired by their clock and by that of their store goes: by a
            clock that is ahead, rows would go that others read.
        file_set: the version whose files are merged.
        next_file_id: mints ids for the output's files, then for the run.
        run_file_bytes: size at which an output file ends, give or take a block.
        operator: combines operands; None leaves them as they are.
        retain_since_sequence: as `lakebed.lsm.resolve.compact_rows`; None keeps the newest version of each key only.
        progress: called now and then with the rows read and the bytes written so far.

    Returns:
        The run, its files durable; None when nothing is left.

    Raises:
        NotFound: an input is gone: another compactor was faster.
        Corruption: an input is damaged.
        Unavailable, OutcomeUnknown: the store failed.
    Cost: about 1 GET for 4 MiB of each input that overlaps with another, 1 PUT an output file; if rows of them expire,
        1 PUT, 1 HEAD and 1 DELETE for the store's time.
    """
    l0, runs = task.inputs(file_set)
    sources: list[tuple[FileMeta, ...]] = [*((file,) for file in l0), *(run.files for run in runs)]
    expiring_count = sum(file.expiring_count for source in sources for file in source)
    keep = partial(
        compact_rows,
        now_ms=files.read_agreed_ms() if expiring_count else files.environment.clock.now_ms(),
        bottom=task.bottom,
        retain_since_sequence=retain_since_sequence,
        operator=operator,
    )
    may_move = not task.rewrite and retain_since_sequence is None
    outputs: list[FileMeta] = []
    row_count = 0
    size_bytes = 0
    with _workers(files, sum(file.size_bytes for source in sources for file in source)) as pool:
        for stretch in _stretches(sources, may_move=may_move, bottom=task.bottom, run_file_bytes=run_file_bytes):
            if stretch.is_moved:
                outputs.append(stretch.files[0][1])
                continue
            with _Cutter(files, next_file_id, run_file_bytes, pool) as cutter:
                windows = merge_windows(_sources(files, stretch), size_bytes=WINDOW_BYTES, growing=False)
                ahead_pool = None if _is_local(files, stretch) else pool
                for count, rows in _run_ahead(((window.num_rows, keep(window)) for window in windows), ahead_pool):
                    row_count += count
                    cutter.write(rows)
                    if progress is not None:
                        progress(row_count, size_bytes + cutter.size_bytes)
                outputs += cutter.finish()
                size_bytes += cutter.size_bytes
    return Run(next_file_id(), tuple(outputs)) if outputs else None


@contextmanager
def _workers(files: FileStore, size_bytes: int) -> Iterator[Pool | None]:
    """Threads that work while so many bytes are merged, and end with it; None where it is too little."""
    if size_bytes < _WORKERS_BYTES_MIN:
        yield None
        return
    with closing(files.environment.runtime.pool(_WORKER_COUNT)) as pool:
        yield pool


def _is_local(files: FileStore, stretch: _Stretch) -> bool:
    """Whether nothing has to be waited for while it is read.

    Merging and forming pages are thousands of short steps: two threads that do one each hand over the interpreter's
    lock so often that they win nothing by it, unless one of them waits for a store.
    """
    return files.reader(stretch.files[0][1]).tail().mapped is not None


def _run_ahead(items: Iterator[T], pool: Pool | None) -> Iterator[T]:
    """Yield the items; the next one is made while the caller works on the last."""
    make: Callable[[], T | None] = partial(next, items, None)
    next_call = begin_call(make, pool)
    while (item := next(next_call)) is not None:
        next_call = begin_call(make, pool)
        yield item


def _stretches(
    sources: Sequence[Sequence[FileMeta]], *, may_move: bool, bottom: bool, run_file_bytes: int
) -> Iterator[_Stretch]:
    """Ranges of keys in their order: files to take over one by one, and between them what is merged together."""
    sorted_files = sorted(
        ((i, file) for i, source in enumerate(sources) for file in source), key=lambda pair: pair[1].first_key
    )
    stretches: list[tuple[int, FileMeta]] = []
    for cluster in _overlapping(sorted_files):
        if may_move and len(cluster) == 1 and _is_in_form(cluster[0][1], bottom, run_file_bytes):
            if stretches:
                yield _Stretch(tuple(stretches), is_moved=False)
                stretches = []
            yield _Stretch(tuple(cluster), is_moved=True)
        else:
            stretches += cluster
    if stretches:
        yield _Stretch(tuple(stretches), is_moved=False)


def _overlapping(sorted_files: Iterable[tuple[int, FileMeta]]) -> Iterator[list[tuple[int, FileMeta]]]:
    """Files in groups, such that no key of a group lies in another's range."""
    cluster: list[tuple[int, FileMeta]] = []
    last_key = b""
    for entry in sorted_files:
        if cluster and entry[1].first_key > last_key:
            yield cluster
            cluster = []
        last_key = max(last_key, entry[1].last_key) if cluster else entry[1].last_key
        cluster.append(entry)
    if cluster:
        yield cluster


def _is_in_form(file: FileMeta, bottom: bool, run_file_bytes: int) -> bool:
    """Whether rewriting a file would neither drop anything nor make it larger."""
    droppable = file.tombstone_count + file.merge_count + file.expiring_count
    return file.size_bytes >= run_file_bytes * _MOVED_FILE_SHARE and not (bottom and droppable)


def _sources(files: FileStore, stretch: _Stretch) -> list[Iterator[pa.RecordBatch]]:
    """Return the sources of a merge, newest first; files of one run follow each other."""
    files_by_level: dict[int, list[FileMeta]] = {}
    for source, file in stretch.files:
        files_by_level.setdefault(source, []).append(file)
    ahead_bytes = min(max(_READ_BYTES_MIN, READ_AHEAD_BYTES // len(files_by_level)), AHEAD_BYTES_DEFAULT)
    run_bytes = choose_run_bytes(len(files_by_level))
    return [_rows(files, files_by_level[source], ahead_bytes, run_bytes) for source in sorted(files_by_level)]


def _rows(files: FileStore, metas: Sequence[FileMeta], ahead_bytes: int, run_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows of files that follow each other, with one batch for each run of blocks."""
    for meta in metas:
        for block in files.reader(meta).batches(ahead_bytes=ahead_bytes, growing=False, run_bytes=run_bytes):
            yield block.batch


class _Cutter:
    """Writes sorted rows into files of about one size, cut between keys.

    One file at a time is written, and with `pool` the one before it is ended meanwhile. It is in memory where the store
    cannot write it in place.
    """

    def __init__(self, files: FileStore, next_file_id: Callable[[], str], file_bytes: int, pool: Pool | None) -> None:
        self._files = files
        self._next_file_id = next_file_id
        self._file_bytes = file_bytes
        self._pool = pool
        self._writer: FileWriter | None = None
        self._put: Iterator[FileMeta] | None = None
        self._finished: list[FileMeta] = []
        self._ended_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Abandon what is not finished."""
        if self._writer is not None:
            self._writer.abandon()
        if self._put is not None:
            with suppress(Exception):  # the caller gets the first error
                next(self._put)

    @property
    def size_bytes(self) -> int:
        """Bytes in files that have ended, and in the one that is being written as far as it is encoded."""
        return self._ended_bytes + (0 if self._writer is None else self._writer.size_bytes)

    def write(self, rows: pa.Table) -> None:
        """Write rows that hold all that is left of their keys, behind all rows before them."""
        start = 0
        while start < rows.num_rows:
            end = self._cut(rows, start)
            if self._writer is None:
                self._writer = self._files.writer(self._next_file_id(), in_place=True, pool=self._pool)
            self._writer.write(rows.slice(start, end - start))
            if self._writer.size_bytes >= self._file_bytes:
                self._end_file()
            start = end

    def _cut(self, rows: pa.Table, start: int) -> int:
        """Return where a piece that begins at `start` ends: between two keys, at a small part of a file's size."""
        count = int(rows.num_rows)
        row_bytes = int(rows.nbytes) // count  # never 0: each row has a sequence of 8 bytes
        end = start + max(1, self._file_bytes // 4 // row_bytes)
        if end >= count:
            return count
        keys = rows.column("key").slice(end - 1)
        differs = mark_changes(keys)
        differs[0] = False
        place = int(np.argmax(differs))
        return end - 1 + place if place else count

    def _end_file(self) -> None:
        assert self._writer is not None
        self._await_put()  # while the writer is still ours: this may fail
        self._writer.settle()
        writer, self._writer = self._writer, None
        self._ended_bytes += writer.size_bytes
        self._put = begin_call(partial(_finish, writer), self._pool)
        if self._pool is None:
            self._await_put()

    def _await_put(self) -> None:
        """Wait until the file that ended last is durable."""
        if self._put is not None:
            self._finished.append(next(self._put))
            self._put = None
            pa.default_memory_pool().release_unused()

    def finish(self) -> list[FileMeta]:
        """End the last file; all files in the order of their keys."""
        if self._writer is not None:
            self._end_file()
        self._await_put()
        return self._finished


def _finish(writer: FileWriter) -> FileMeta:
    """Create a file, or nothing."""
    try:
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise
