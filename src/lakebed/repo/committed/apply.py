"""Apply changes to a metarange: rewrite the ranges that they touch, and take over all others.

Owns: the effect of a change on a path, and which ranges need not be read. If the changes have a row for a path, that
row decides. An entry is put, unless the base has the same entry (by identity, or by value if requested); then the
base's entry stays. A tombstone removes the path. A path without a row is removed if it is in a cleared stretch, and
stays otherwise.

Invariants: a range that no row and no cleared stretch touches is never read. A range that is cleared whole is not read
either, unless entries are put between its paths. At most one range and one batch of changes are in memory. The result
is durable, and is the base itself if nothing changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.lsm.block import offsets_of
from lakebed.lsm.merge import first_key, last_key
from lakebed.lsm.sort import KeyColumn, sort_rows
from lakebed.repo.committed.change_rows import ChangeRows, Changes, Clearing, Clears
from lakebed.repo.committed.range_files import AHEAD_COUNT, RangeFiles
from lakebed.repo.committed.range_writer import MetarangeWriter
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import identities
from lakebed.repo.model.model import MetarangeRef, RangeMeta
from lakebed.repo.model.rows import without_tombstones

__all__ = ["Applied", "Changes", "apply_changes"]

Mask = npt.NDArray[np.bool_]

_BISECTED_COUNT: Final = 16
"""Up to this many changes are looked up one by one; more are sorted with the rows that they change."""
_JOINED_SHARE: Final = 2
"""If a range has more than one change for this many blocks, its blocks are joined before they are changed."""


@dataclass(frozen=True)
class Applied:
    """The result of applying changes."""

    ref: MetarangeRef
    """The new metarange; the base itself if nothing changed."""
    added: int
    """Number of paths that the base does not have."""
    changed: int
    """Number of paths whose entries differ."""
    removed: int
    """Number of paths that the base has and the result does not have."""


def apply_changes(committed: Committed, base: MetarangeRef, changes: Changes) -> Applied:
    """Make the metarange of a base after changes.

    Raises:
        Corruption: a file of the base is damaged, or gone.
        Unavailable, OutcomeUnknown: the store failed. Nothing refers to what was written so far.
    Cost: 1 GET and 1 PUT for each range in which something changes, read and written in parallel, and for ranges behind
    a path that no longer ends its range, up to the next that does; 1 PUT of the metarange. Nothing is written when
    nothing changes. About 1 us a row of the ranges concerned.
    """
    return _Application(committed, base, changes).run()


class _Application:
    """Applies changes to the base's ranges, reading both side by side."""

    def __init__(self, committed: Committed, base: MetarangeRef, changes: Changes) -> None:
        self._by_value = changes.by_value
        self._clears = Clears(changes.clears)
        self._changes = ChangeRows(changes.rows())
        self._ranges = committed.open(base).ranges()
        self._writer: MetarangeWriter = committed.writer(base=base)
        self._loads = _Loads(committed.files, self._ranges, self._changes, self._clears)
        self._base = base
        self._added = self._changed = self._removed = 0

    def run(self) -> Applied:
        """Apply the changes to every range, then add those behind the last range."""
        for number, meta in enumerate(self._ranges):
            self._pass_range(number, meta)
        for batch in self._changes.take_rest():
            self._add(batch)
        if not (self._added or self._changed or self._removed):
            return Applied(self._base, 0, 0, 0)
        return Applied(self._writer.finish(), self._added, self._changed, self._removed)

    def _pass_range(self, number: int, meta: RangeMeta) -> None:
        """Handle one range, and the changes behind the range before it and up to its last path."""
        first, last = meta.file.first_key, meta.file.last_key
        for batch in self._changes.take_before(first):
            self._add(batch)
        clearing = self._clears.over(first, last)
        if clearing is Clearing.ALL:
            self._changes.drop_tombstones(last)
        path = self._changes.next_path()
        if clearing is Clearing.SOME or (path is not None and path <= last):
            self._merge_range(number, meta)
        elif clearing is Clearing.NONE:
            self._writer.reuse(meta)
        else:
            self._removed += meta.entry_count

    def _merge_range(self, number: int, meta: RangeMeta) -> None:
        """Read a range, and merge it with the changes between its rows."""
        blocks = self._loads.rows(number)
        if self._changes.ready_count(meta.file.last_key) * _JOINED_SHARE > len(blocks):
            blocks = [pa.concat_batches(blocks)]
        for block in blocks:
            for batch in self._changes.take_before(first_key(block)):
                self._add(batch)
            self._merge_block(block)

    def _merge_block(self, block: pa.RecordBatch) -> None:
        """Merge consecutive rows of the base with the changes from the first to the last of them."""
        last = last_key(block)
        while (part := self._changes.take_through(last)) is not None:
            # Changes are read as they arrive: rows after the last one read wait for the next.
            end = KeyColumn(block.column(0)).lower_bound(last_key(part) + b"\0")
            self._write(self._merge_rows(block.slice(0, end), part))
            block = block.slice(end)
        cleared = self._clears.mask(block)
        if cleared is not None:
            self._removed += int(cleared.sum())
            block = block.filter(pa.array(~cleared))
        self._write(block)

    def _add(self, batch: pa.RecordBatch) -> None:
        """Add rows for paths that the base does not have."""
        batch = without_tombstones(batch)
        self._added += batch.num_rows
        self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._writer.write_rows(batch)

    def _merge_rows(self, rows: pa.RecordBatch, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Merge rows of the base with changes to and between them, and count the effects."""
        places, is_same = _places(rows, changes)
        lengths = np.diff(offsets_of(changes.column(1)))
        puts = lengths > 0
        hit = places[is_same]  # rows of the base that have a change
        equal = np.zeros(changes.num_rows, np.bool_)
        values = rows.column(1).take(pa.array(hit))
        new_values = changes.column(1).filter(pa.array(is_same))
        if self._by_value:
            equal[is_same] = pc.equal(new_values, values).to_numpy(zero_copy_only=False)
        else:
            equal[is_same] = (identities(new_values) == identities(values)).all(axis=1)
        is_kept = np.ones(rows.num_rows, np.bool_)
        cleared = self._clears.mask(rows)
        if cleared is not None:
            is_kept = ~cleared
        is_kept[hit] = equal[is_same]
        is_written = puts & ~equal
        self._added += int((is_written & ~is_same).sum())
        changed_count = int((is_written & is_same).sum())
        self._changed += changed_count
        self._removed += rows.num_rows - int(is_kept.sum()) - changed_count
        if is_kept.all() and not is_written.any():
            return rows
        count = rows.num_rows
        order = np.insert(np.arange(count), places, count + np.arange(changes.num_rows))
        all_rows = pa.concat_batches([rows, changes])
        return all_rows.take(pa.array(order[np.concatenate([is_kept, is_written])[order]]))


class _Loads:
    """The rows of ranges with changed paths. They are read ahead as far as the changes are known."""

    def __init__(self, files: RangeFiles, ranges: Sequence[RangeMeta], changes: ChangeRows, clears: Clears) -> None:
        self._files = files
        self._ranges = ranges
        self._last_paths = [meta.file.last_key for meta in ranges]
        self._changes = changes
        self._clears = clears
        self._begun: dict[int, Iterator[list[pa.RecordBatch]]] = {}
        self._looked = -1

    def rows(self, number: int) -> list[pa.RecordBatch]:
        """All rows of a range, in blocks. Must be called in the order of ranges."""
        load = self._begun.pop(number, None)
        self._looked = max(self._looked, number)
        while len(self._begun) < AHEAD_COUNT and (later := self._later()) is not None:
            self._begun[later] = self._files.pool.map(self._files.whole, (self._ranges[later],))
        return self._files.whole(self._ranges[number]) if load is None else next(load)

    def _later(self) -> int | None:
        """The next range that must be read and is not being read yet; None: none is known."""
        while True:
            path = self._changes.path_behind(self._last_paths[self._looked])
            number = len(self._ranges) if path is None else bisect_left(self._last_paths, path)
            if number == len(self._ranges) or path is None:
                return None
            self._looked = number
            file = self._ranges[number].file
            if path >= file.first_key and self._clears.over(file.first_key, file.last_key) is not Clearing.ALL:
                return number


def _places(rows: pa.RecordBatch, changes: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], Mask]:
    """For each change, the first row whose path is not smaller, and whether the two paths are equal."""
    count, change_count = rows.num_rows, changes.num_rows
    places = np.zeros(change_count, np.int64)
    if not count:
        return places, np.zeros(change_count, np.bool_)
    if change_count <= _BISECTED_COUNT:
        paths, changed_paths = KeyColumn(rows.column(0)), KeyColumn(changes.column(0))
        for number in range(change_count):
            places[number] = paths.lower_bound(changed_paths[number])
    elif count == change_count and rows.column(0).equals(changes.column(0)):
        places = np.arange(count)
    else:
        ages = np.zeros(change_count + count, np.uint64)
        ages[:change_count] = 1
        order = sort_rows(
            pa.record_batch({"key": pa.concat_arrays([changes.column(0), rows.column(0)]), "sequence": pa.array(ages)})
        )
        if order is not None:  # else all changes come first
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            places = ranks[:change_count] - np.arange(change_count)
    nearest = rows.column(0).take(pa.array(np.minimum(places, count - 1)))
    is_same = pc.equal(nearest, changes.column(0)).to_numpy(zero_copy_only=False)
    return places, is_same & (places < count)
