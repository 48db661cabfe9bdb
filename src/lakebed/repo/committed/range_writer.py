"""Writing a metarange: sorted rows are cut into ranges where their paths say so, and ranges are put in groups.

Owns: where ranges break, and which ranges are written again. A range breaks behind a path whose hash
`RangeOptions.raggedness` divides, once it has `entry_count_min` entries. It always breaks at `entry_count_max`, and
where paths and values reach `bytes_max`. Whether a path ends its range depends only on the rows since the last break.
So a range that is taken over right behind a break equals the range that its rows would make. A metarange is therefore a
function of its rows: its id does not depend on the edits that led to it, or on their order.

Invariants:
- `finish` returns once the metarange and all ranges that it names are durable. They may be written in any order:
  nothing can name the metarange before, and what a crash leaves is collected.
- An object is taken over only through a range that the caller reuses or the base has, never because its name exists.
- Memory is bounded by `_WAITING_BYTES_MAX`, one group, the rows of one range, and what is made of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InternalError
from lakebed.lsm.block import offsets_of
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileWriter
from lakebed.lsm.filter import hash_key_column
from lakebed.lsm.merge import first_key, last_key
from lakebed.repo.committed.content_hash import EMPTY_METARANGE_ID, metarange_hash, range_hash
from lakebed.repo.committed.metarange import Metarange, encode_range_meta
from lakebed.repo.committed.range_files import RangeFiles
from lakebed.repo.model.entry import IDENTITY_BYTES, SIZE_BYTES_MAX, sizes_of, total_size
from lakebed.repo.model.layout import range_path
from lakebed.repo.model.model import ROWS_SCHEMA, MetarangeRef, RangeMeta
from lakebed.repo.model.rows import lsm_rows, rows_of

_GROUP_COUNT_MAX: Final = 8
_GROUP_BYTES_MAX: Final = 8 << 20
"""Most ranges, and most bytes, of a group. Its ranges are put and synced together. A larger range is a group by itself.
So is every range if the store does not sync files together."""
_WAITING_COUNT_MAX: Final = 8
"""Most groups that are being put while the next rows come."""
_WAITING_BYTES_MAX: Final = 64 << 20
"""Most bytes of the files of these groups; a larger group is put alone."""
_BATCH_ROWS_MIN: Final = 4_096
"""Smaller batches are joined before they are encoded."""


class _Waiting(NamedTuple):
    """A group of ranges whose files are being put."""

    file_bytes: int
    end: Iterator[None]


class MetarangeWriter:
    """One metarange being written. Not thread-safe.

    Args:
        files: the files to write to.
        base: the metarange that is changed. If a new range equals one of its ranges, that range is taken over.
    """

    def __init__(self, files: RangeFiles, *, base: Metarange) -> None:
        self._files = files
        self._base = base
        self._base_ranges: dict[str, RangeMeta] | None = None
        self._ranges: list[RangeMeta] = []
        self._gathered: list[FileWriter] = []  # the group that is still being gathered
        self._gathered_bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._held: list[pa.RecordBatch] = []  # rows since the last break
        self._held_count = 0
        self._held_bytes = 0
        self._open: RangeMeta | None = None  # taken over if no rows follow
        self._last_path: bytes | None = None

    def write_rows(self, batch: pa.RecordBatch) -> None:
        """Add rows of `ROWS_SCHEMA`, sorted, all behind the earlier rows, without tombstones.

        Keeps views of the last rows until their range ends. Cost: about 0.5 us a row in this thread, and 1 PUT a range
        in the background.

        Raises:
            Unavailable, OutcomeUnknown: an earlier range could not be written. Begin again with a new writer.
        """
        if not batch.num_rows:
            return
        self._close_open()
        self._note(first_key(batch), last_key(batch))
        self._take(batch)

    def reuse(self, range_meta: RangeMeta) -> None:
        """Reuse a range unchanged. All its paths must sort behind the earlier rows.

        Cost: none right behind a break. Behind other rows, which belong to the same range, 1 GET: the range's rows are
        written again, up to the next break. Raises as `write_rows`, and `Corruption`.
        """
        self._close_open()
        self._note(range_meta.file.first_key, range_meta.file.last_key)
        if self._held:
            self._take_all(range_meta)
        elif range_meta.ends_open:
            self._open = range_meta
        else:
            self._ranges.append(range_meta)

    def finish(self) -> MetarangeRef:
        """Write the metarange, unless it equals the base. Everything that it names is durable then. Call it once.

        Returns:
            The metarange's reference; the base's own if the ranges are the base's.

        Raises:
            Unavailable, OutcomeUnknown: the store failed. Nothing refers to what was written.
        Cost: 1 PUT, and waiting for the ranges. On local folders it is synced together with the last group of ranges.
        """
        if self._open is not None:
            self._ranges.append(self._open)
            self._open = None
        if self._held:
            self._end_range(ends_open=True)
        metarange_id = metarange_hash(self._ranges)
        if metarange_id == self._base.ref.id:
            ref = self._base.ref
        elif self._ranges:
            ref = self._encode_metarange(metarange_id)
        else:
            ref = MetarangeRef(EMPTY_METARANGE_ID)
        while self._waiting:
            self._await_oldest()
        if self._gathered:
            self._files.put_each(self._gathered)
        return ref

    def _note(self, first_path: bytes, last_path: bytes) -> None:
        if self._last_path is not None and first_path <= self._last_path:
            raise InternalError(f"paths of a metarange are not sorted: {first_path!r} came after {self._last_path!r}")
        self._last_path = last_path

    def _close_open(self) -> None:
        """Write the rows of the range that ended without a break again, because more rows follow."""
        if self._open is not None:
            meta, self._open = self._open, None
            self._take_all(meta)

    def _take_all(self, meta: RangeMeta) -> None:
        for batch in self._files.whole(meta):
            self._take(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Cut whole ranges off, and hold what is left."""
        options = self._files.options
        hashes = hash_key_column(batch.column(0))
        breaks = np.flatnonzero(hashes % np.uint64(max(options.raggedness, 1)) == 0)
        sizes = _cumulate_bytes(batch)
        start, count = 0, batch.num_rows
        while start < count:
            taken_bytes = int(sizes[start])
            by_count = start + options.entry_count_max - self._held_count
            by_bytes = 1 + int(np.searchsorted(sizes[1:], taken_bytes + options.bytes_max - self._held_bytes))
            earliest = start + options.entry_count_min - self._held_count - 1
            place = int(np.searchsorted(breaks, max(earliest, start)))
            by_hash = int(breaks[place]) + 1 if place < len(breaks) else count + 1
            end = max(min(by_count, by_bytes, by_hash), start + 1)
            stop = min(end, count)
            self._held.append(batch.slice(start, stop - start))
            self._held_count += stop - start
            self._held_bytes += int(sizes[stop]) - taken_bytes
            if end <= count:
                self._end_range(ends_open=False)
            start = stop

    def _end_range(self, *, ends_open: bool) -> None:
        """Make a range of the rows that are held: the base's, when it has an equal one, or a new one."""
        batches = self._held
        self._held, self._held_count, self._held_bytes = [], 0, 0
        if sum(batch.num_rows for batch in batches) < _BATCH_ROWS_MIN * len(batches):
            batches = [pa.concat_batches(batches)]
        if self._base_ranges is None:
            self._base_ranges = {meta.id: meta for meta in self._base.ranges()}
        range_id = range_hash(batches)
        base_range = self._base_ranges.get(range_id)
        if base_range is None:
            self._put_range(range_id, batches, ends_open=ends_open)
        else:
            self._ranges.append(msgspec.structs.replace(base_range, ends_open=ends_open))

    def _put_range(self, range_id: str, batches: list[pa.RecordBatch], *, ends_open: bool) -> None:
        """Encode a range in this thread, because most of the work cannot run in parallel. Its group is put later."""
        file_id = f"{range_id}-{mint_file_id(environment=self._files.environment)}"
        writer = self._files.ranges.writer(file_id)
        sizes = []
        for batch in batches:
            sizes.append(sizes_of(batch.column(1), where=range_path(file_id)))
            writer.write(lsm_rows(batch))
        file = writer.encode()
        self._files.note_written(file.id)
        size_bytes = total_size(np.concatenate(sizes))
        self._ranges.append(RangeMeta(id=range_id, file=file, size_bytes=size_bytes, ends_open=ends_open))
        if self._gathered and self._gathered_bytes + file.size_bytes > _GROUP_BYTES_MAX:
            self._put_gathered()
        self._gathered.append(writer)
        self._gathered_bytes += file.size_bytes
        if len(self._gathered) >= (_GROUP_COUNT_MAX if self._files.syncs_together else 1):
            self._put_gathered()

    def _put_gathered(self) -> None:
        """Let another worker put the group that is gathered; the next one begins."""
        writers, file_bytes = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        while self._waiting and (
            len(self._waiting) >= _WAITING_COUNT_MAX or self._waiting_bytes + file_bytes > _WAITING_BYTES_MAX
        ):
            self._await_oldest()
        self._waiting.append(_Waiting(file_bytes, self._files.pool.map(self._files.put_each, (writers,))))
        self._waiting_bytes += file_bytes

    def _await_oldest(self) -> None:
        """Wait until the oldest of the groups that are being put is durable."""
        oldest = self._waiting.popleft()
        self._waiting_bytes -= oldest.file_bytes
        next(oldest.end)

    def _encode_metarange(self, metarange_id: str) -> MetarangeRef:
        """Add the file of the metarange to the last group."""
        ranges = self._ranges
        writer = self._files.metaranges.writer(f"{metarange_id}-{mint_file_id(environment=self._files.environment)}")
        writer.write(lsm_rows(rows_of([meta.file.last_key for meta in ranges], list(map(encode_range_meta, ranges)))))
        file = writer.encode()
        self._gathered.append(writer)
        return MetarangeRef(
            id=metarange_id,
            file=file,
            entry_count=sum(meta.entry_count for meta in ranges),
            size_bytes=min(sum(meta.size_bytes for meta in ranges), SIZE_BYTES_MAX),
            range_count=len(ranges),
        )


def _cumulate_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of paths and values before each row, and of all; checks that no value is a tombstone."""
    if not batch.schema.equals(ROWS_SCHEMA):
        raise InternalError(f"rows to commit have the columns {batch.schema}, and need {ROWS_SCHEMA}")
    paths, values = offsets_of(batch.column(0)), offsets_of(batch.column(1))
    if int(np.diff(values).min()) < IDENTITY_BYTES:
        raise InternalError("rows to commit hold tombstones, which only changes may have")
    sizes: npt.NDArray[np.int64] = paths.astype(np.int64)
    sizes += values
    sizes -= sizes[0]
    return sizes
