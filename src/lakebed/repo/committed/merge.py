"""Merge two metaranges that have a third as their base.

Owns: the result for every path. Invariants:
- What base, source and destination have *at that path* (an entry or none, compared by identity) decides. An entry that
  the base has at another path never counts, so equal files, such as markers of finished jobs, are never confused.
- If only one side changed a path, its change is taken. If both made the same change, the destination's entry is taken.
  Anything else is a conflict, or goes to the strategy's winner.
- If two of the three have the same ranges, the ranges of the third are taken over unread.
- Units (`lakebed.repo.committed.units`) are never mixed.

Why it works in segments and windows: docs/design/0015-merge.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.lsm.columns import keys_of
from lakebed.lsm.sort import KeyColumn
from lakebed.repo.committed.range_writer import MetarangeWriter
from lakebed.repo.committed.segment_rows import rows_of_segments
from lakebed.repo.committed.segments import Segment, cut_segments
from lakebed.repo.committed.store import Committed
from lakebed.repo.committed.units import (
    UnitJudge,
    check_prefix,
    find_folders,
    folders_of,
    format_root,
    outermost,
    roots_among,
)
from lakebed.repo.committed.windows import WINDOW_ROW_COUNT, Flags, Positions, match_paths, order_of, same, side_by_side
from lakebed.repo.model.entry import identities
from lakebed.repo.model.model import MetarangeRef, RangeMeta
from lakebed.repo.model.rows import prefix_range

Strategy = Literal["source-wins", "dest-wins"]
"""The side whose entry, or absence of an entry, is taken if both sides changed a path differently."""

CONFLICTS_MAX_DEFAULT: Final = 1_000

_FEW: Final = 64
"""Up to this many rows are inserted one by one: sorting all rows would take longer."""

Side = Literal["source", "destination"]
_Forced = tuple[bytes, bytes | None, Side]
"""All paths in [start, end) are taken from one side."""


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The outcome of a merge.

    Attributes:
        ref: the merged state; None: there are conflicts, and no strategy was given.
        added, changed, removed: paths of the destination, among those that were compared one by one.
        ranges_taken: ranges that were taken over from the source unread. Their paths are not in the three counts. For
            the exact effect of a merge, use the difference between the destination and `ref`.
        conflicts: the first paths that both sides changed differently, sorted; for a unit its root, which ends with a
            slash. Empty with a strategy, because its winner was taken.
        conflict_count: the number of all conflicts.
    """

    ref: MetarangeRef | None
    added: int = 0
    changed: int = 0
    removed: int = 0
    ranges_taken: int = 0
    conflicts: list[str] = field(default_factory=list)
    conflict_count: int = 0


def as_strategy(text: str | None) -> Strategy | None:
    """A strategy by its name; None: a path that both sides changed is a conflict.

    Raises `InvalidRequest` (``unknown_strategy``).
    """
    if text is not None and text not in get_args(Strategy):
        raise InvalidRequest(
            f"There is no merge strategy {text!r}: give {' or '.join(get_args(Strategy))}; without one, conflicts are "
            "reported.",
            kind="unknown_strategy",
        )
    return cast(Strategy | None, text)


def merge_metaranges(
    committed: Committed,
    *,
    base: MetarangeRef,
    source: MetarangeRef,
    destination: MetarangeRef,
    strategy: Strategy | None = None,
    prefix: bytes = b"",
    units: bool = True,
    conflicts_max: int = CONFLICTS_MAX_DEFAULT,
) -> MergeOutcome:
    """Merge source and destination, whose last common state is base.

    Args:
        strategy: whose entry wins a conflict; None: conflicts are reported, and there is no merged state.
        prefix: only paths that begin with it are taken from the source; all others stay as in the destination.
        units: whether roots of tables and databases are merged whole. Only False for data that has none.
        conflicts_max: most conflicts to list; all are counted.

    Raises:
        InvalidRequest: an unknown strategy; or the prefix is inside a unit (``kind="prefix_cuts_unit"``, ``root=``).
        Corruption: an object of one of them is damaged, or gone.
    Cost: reads the ranges of segments in which all three differ, about 1 us a row; writes the ranges that come out
        different. Without a strategy what was written before the first conflict is left to the collector.
    """
    strategy = as_strategy(strategy)
    if prefix and units:
        check_prefix([committed.open(ref) for ref in (base, source, destination)], prefix)
    if source.id in (base.id, destination.id):
        return MergeOutcome(destination)
    if base.id == destination.id and not prefix:
        return MergeOutcome(source, ranges_taken=source.range_count)
    three = (base, source, destination)
    segments = list(cut_segments([committed.open(ref).ranges() for ref in three]))
    judge = (
        UnitJudge(committed, base=base, source=source, destination=destination, segments=segments) if units else None
    )
    return _Merge(committed, three, strategy=strategy, prefix=prefix, judge=judge, conflicts_max=conflicts_max).run(
        segments
    )


class _Merge:
    """One merge, segment by segment."""

    def __init__(
        self,
        committed: Committed,
        three: tuple[MetarangeRef, MetarangeRef, MetarangeRef],
        *,
        strategy: Strategy | None,
        prefix: bytes,
        judge: UnitJudge | None,
        conflicts_max: int,
    ) -> None:
        self._three = three
        self._files = committed.files
        self._metaranges = [committed.open(ref) for ref in three]
        self._strategy = strategy
        self._prefix = prefix
        self._inside = prefix_range(prefix)
        self._judge = judge
        self._conflicts_max = conflicts_max
        self._writer: MetarangeWriter | None = committed.writer(base=three[2])
        self._counts = np.zeros(3, np.int64)
        self._ranges_taken = 0
        self._units: set[bytes] = set()  # conflicting ones
        self._paths: list[bytes] = []  # the first that conflict
        self._path_count = 0

    def run(self, segments: Sequence[Segment]) -> MergeOutcome:
        sides = [self._side_of(segment) for segment in segments]
        segments_to_compare = [segment for segment, side in zip(segments, sides, strict=True) if side is None]
        rows_of_next = rows_of_segments(self._files, self._metaranges, segments_to_compare)
        for segment, side in zip(segments, sides, strict=True):
            if side is None:
                _, rows = next(rows_of_next)
                self._compare(rows)
            else:
                self._take(segment, side)
        if self._writer is None:
            conflicts = sorted([*self._units, *self._paths])[: self._conflicts_max]
            return MergeOutcome(
                None, conflicts=list(map(format_root, conflicts)), conflict_count=len(self._units) + self._path_count
            )
        ref = self._writer.finish()
        for one_sided in self._three:
            if one_sided.id == ref.id:
                ref = one_sided  # the same state, and its file exists already
        added, changed, removed = self._counts.tolist()
        return MergeOutcome(ref, added=added, changed=changed, removed=removed, ranges_taken=self._ranges_taken)

    def _side_of(self, segment: Segment) -> Side | None:
        """The side whose ranges a segment takes, decided by their ids alone; None: rows must be compared."""
        base, source, destination = segment.ids
        if source == destination or not segment.overlaps(*self._inside):
            return "destination"
        if base not in (source, destination):
            return None
        side: Side = "destination" if source == base else "source"
        forced = self._force_sides(segment.first, segment.last)
        sides = {forced_side for _, _, forced_side in forced}
        if sides <= {side}:
            return side
        # Paths outside the prefix, or in a unit, are taken from one side: the whole segment, or a part of its rows.
        is_covered = len(sides) == 1 and any(segment.inside(start, end) for start, end, _ in forced)
        return sides.pop() if is_covered else None

    def _take(self, segment: Segment, side: Side) -> None:
        """Take over the ranges of one side, unread."""
        ranges: tuple[RangeMeta, ...] = segment.ranges[1 if side == "source" else 2]
        if side == "source":
            self._ranges_taken += len(ranges)
        if self._writer is not None:
            for meta in ranges:
                self._writer.reuse(meta)

    def _compare(self, sides: Sequence[Iterable[pa.RecordBatch]]) -> None:
        """Merge the rows of a segment, in windows."""
        for base, source, destination in side_by_side(sides, first_row_count=WINDOW_ROW_COUNT):
            merged_rows = MergedRows(base, source, destination)
            for start, end, side in self._force_sides(*_bounds(base, source, destination), merged_rows):
                merged_rows.force(start, end, side)
            self._report(merged_rows.resolve_clashes(self._strategy))
            if self._writer is not None:
                self._counts += merged_rows.counts()
                self._writer.write_rows(merged_rows.rows())

    def _force_sides(self, first: bytes, last: bytes, merged: MergedRows | None = None) -> list[_Forced]:
        """The paths from first to last that one side gets uncompared: those outside the prefix, and in units."""
        forced: list[_Forced] = []
        start, end = self._inside
        if first < start:
            forced.append((b"", start, "destination"))
        if end is not None and last >= end:
            forced.append((end, None, "destination"))
        winner: Side = "source" if self._strategy == "source-wins" else "destination"
        roots = self._conflicting_roots(first, last, merged)
        self._units.update(roots)
        if roots and self._strategy is None:
            self._writer = None
        return [*forced, *((*prefix_range(root), winner) for root in roots)]

    def _conflicting_roots(self, first: bytes, last: bytes, merged: MergedRows | None) -> list[bytes]:
        """The conflicting units that have paths between first and last, as far as they affect these paths."""
        judge = self._judge
        if judge is None:
            return []
        roots = {root for path in (first, last) if (root := judge.around(path)) is not None}
        if merged is not None:
            inner = merged.folders_of_both().difference(folders_of(first), folders_of(last))
            if inner:
                roots.update(filter(judge.conflicts, inner & roots_among(merged.paths())))
        # No prefix is inside a unit: each is inside the prefix or outside of it.
        return [root for root in outermost(roots) if root.startswith(self._prefix)]

    def _report(self, clashes: Sequence[pa.BinaryArray]) -> None:
        """Note conflicts of paths. From the first conflict on, nothing is written."""
        count = sum(map(len, clashes))
        if not count:
            return
        self._writer = None
        self._path_count += count
        paths_left = self._conflicts_max - len(self._paths)
        if paths_left > 0:
            # The first paths of a window are among the first of each column.
            self._paths += sorted(path for column in clashes for path in keys_of(column.slice(0, paths_left)))[
                :paths_left
            ]


class MergedRows:
    """One window of a merge: the result for each of its paths. Pure.

    If the source has a row for a path, the row is taken, or clashes, or neither. If only the destination has one, the
    row is dropped, or clashes, or stays. All results follow from these columns of flags, one flag for each row of that
    side.

    Args:
        base, source, destination: all their rows in a stretch of paths; batches of `ROWS_SCHEMA`, sorted.
    """

    def __init__(self, base: pa.RecordBatch, source: pa.RecordBatch, destination: pa.RecordBatch) -> None:
        self._base, self._source, self._destination = base, source, destination
        in_base = match_paths(source.column(0), base.column(0))
        self._at = match_paths(source.column(0), destination.column(0))
        destination_in_base = match_paths(destination.column(0), base.column(0))
        was, mine, theirs = (identities(rows.column(1)) for rows in (base, source, destination))
        self._differs = ~same(mine, theirs, self._at)
        self._source_changed = ~same(mine, was, in_base)
        self._destination_changed = ~same(theirs, was, destination_in_base)
        self._in_source = _hit(self._at, destination.num_rows)
        self._removed = (~_hit(in_base, base.num_rows), ~_hit(destination_in_base, base.num_rows))
        """Rows of the base that source and destination do not have."""
        is_in_base = self._at >= 0
        destination_moved = in_base >= 0  # where it has no row: it removed what the base has
        destination_moved[is_in_base] = self._destination_changed[self._at[is_in_base]]
        news = self._source_changed & self._differs
        is_gone = ~self._in_source & (destination_in_base >= 0)
        self._taken: Flags = news & ~destination_moved
        self._clashing: Flags = news & destination_moved
        self._dropped: Flags = is_gone & ~self._destination_changed
        self._clashing_gone: Flags = is_gone & self._destination_changed

    def paths(self) -> list[pa.BinaryArray]:
        """All paths, in columns; a path of several sides occurs several times."""
        return [rows.column(0) for rows in (self._base, self._source, self._destination)]

    def folders_of_both(self) -> set[bytes]:
        """The folders, at any depth, in which both sides changed something."""
        sides = [
            [_select_paths(self._source, self._source_changed), _select_paths(self._base, self._removed[0])],
            [_select_paths(self._destination, self._destination_changed), _select_paths(self._base, self._removed[1])],
        ]
        if not all(sum(map(len, columns)) for columns in sides):
            return set()
        return find_folders(sides[0]) & find_folders(sides[1])

    def force(self, start: bytes, end: bytes | None, side: Side) -> None:
        """Decide all paths in [start, end), None: open, for one side."""
        mine, other = _stretch(self._source, start, end), _stretch(self._destination, start, end)
        is_source = side == "source"
        self._taken[mine] = self._differs[mine] & is_source
        self._dropped[other] = ~self._in_source[other] & is_source
        self._clashing[mine] = False
        self._clashing_gone[other] = False

    def resolve_clashes(self, strategy: Strategy | None) -> list[pa.BinaryArray]:
        """Give clashing paths to the winner.

        Returns:
            Without a strategy, the clashing paths in two sorted columns: those that the source has, and those that it
            removed.
        """
        if strategy is None:
            return [_select_paths(self._source, self._clashing), _select_paths(self._destination, self._clashing_gone)]
        if strategy == "source-wins":
            self._taken |= self._clashing
            self._dropped |= self._clashing_gone
        return []

    def counts(self) -> Positions:
        """The numbers of paths that are added to the destination, changed in it, and removed."""
        inserted = int((self._taken & (self._at < 0)).sum())
        return np.array([inserted, int(self._taken.sum()) - inserted, int(self._dropped.sum())])

    def rows(self) -> pa.RecordBatch:
        """The merged rows, of `ROWS_SCHEMA`; the destination's own batch if nothing changed in it."""
        taken_places = np.flatnonzero(self._taken)
        is_kept = ~self._dropped
        if not len(taken_places) and is_kept.all():
            return self._destination
        count = self._destination.num_rows
        base_places = self._at[taken_places]
        order = np.arange(count)
        order[base_places[base_places >= 0]] = count + taken_places[base_places >= 0]
        inserted = taken_places[base_places < 0]
        if len(inserted):
            places = _places(self._destination.column(0), self._source.column(0).take(pa.array(inserted)))
            order = np.insert(order, places, count + inserted)
            is_kept = np.insert(is_kept, places, True)
        all_rows = pa.concat_batches([self._destination, self._source])
        return all_rows.take(pa.array(order[is_kept]))


def _bounds(*windows: pa.RecordBatch) -> tuple[bytes, bytes]:
    """The smallest and the largest path of a window. At least one side must have rows."""
    columns = [rows.column(0) for rows in windows if rows.num_rows]
    return min(column[0].as_py() for column in columns), max(column[-1].as_py() for column in columns)


def _hit(positions: Positions, count: int) -> Flags:
    """For each of `count` rows, whether `positions` contains its number; -1 is ignored."""
    flags = np.zeros(count, np.bool_)
    flags[positions[positions >= 0]] = True
    return flags


def _select_paths(rows: pa.RecordBatch, flags: Flags) -> pa.BinaryArray:
    return rows.column(0).filter(pa.array(flags))


def _stretch(rows: pa.RecordBatch, start: bytes, end: bytes | None) -> slice:
    """The rows with paths in [start, end)."""
    paths = KeyColumn(rows.column(0))
    return slice(paths.lower_bound(start), rows.num_rows if end is None else paths.lower_bound(end))


def _places(paths: pa.BinaryArray, inserted: pa.BinaryArray) -> Positions:
    """For each inserted path, the number of `paths` that sort before it. Both columns must be sorted."""
    if len(inserted) < _FEW:
        column = KeyColumn(paths)
        return np.array([column.lower_bound(path) for path in keys_of(inserted)])
    order = order_of(pa.concat_arrays([paths, inserted]))
    if order is None:
        return np.full(len(inserted), len(paths))
    return np.flatnonzero(order >= len(paths)) - np.arange(len(inserted))
