"""The rows of those keys that have several, as arrays that aggregate functions work on. Pure numpy.

Owns: `KeyRows` with its searches in all keys at once, and `merge_rows`, which inserts one row for each of these keys
between the rows of all other keys. Knows no aggregate function and no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.codec.ragged import one_array
from lakebed.table.codec.required_members import cast_members
from lakebed.table.engines.merge import KeyGroups, Mask, Positions
from lakebed.table.model.row_kinds import DELETE_KIND, INSERT_KIND, KIND_COLUMN

NONE = -1
"""Used as a position: there is no such row."""


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Rows of some keys, ordered by key, the rows of one key oldest first. Every key has at least one row."""

    positions: Positions
    """Positions of the rows in the table that is merged."""
    starts: Positions
    """Index in `positions` of the first row of each key, ascending; the first is 0."""
    retracts: Mask
    """For each row whether it takes an earlier row back (-U, -D)."""
    counts: Mask
    """For each row whether functions use it."""

    @property
    def key_count(self) -> int:
        """Number of keys."""
        return len(self.starts)

    @property
    def ends(self) -> Positions:
        """Index after the last row of each key."""
        return np.append(self.starts[1:], len(self.positions))[: len(self.starts)]

    @property
    def key_of(self) -> Positions:
        """The number of the key of each row."""
        return np.repeat(np.arange(self.key_count), self.ends - self.starts)

    def of(self, column: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The values of a column of the table, row by row."""
        return one_array(column).take(pa.array(self.positions))

    def only(self, mask: Mask) -> KeyRows:
        """The same rows, of which functions use only those that `mask` includes too."""
        return replace(self, counts=self.counts & mask)

    def in_order(self, order: Positions) -> KeyRows:
        """The rows in another order within each key, given as indices into the present order."""
        return replace(self, positions=self.positions[order], retracts=self.retracts[order], counts=self.counts[order])

    def without(self, out: Mask) -> tuple[KeyRows, MergedKeys]:
        """Leave rows out. Return the rows of the keys that still have several, and what becomes of the other keys.

        If a key has one row left, that row survives. If it has none left, its last row survives unchanged.
        """
        counts_left = np.add.reduceat((~out).astype(np.int64), self.starts) if len(out) else self.starts
        is_made = counts_left > 1
        kept_rows = np.where(counts_left > 0, self.last(~out), self.ends - 1)
        stays = ~out & is_made[self.key_of]
        lengths = counts_left[is_made]
        rest = KeyRows(self.positions[stays], np.cumsum(lengths) - lengths, self.retracts[stays], self.counts[stays])
        return rest, MergedKeys(kept_rows, is_made)

    def last(self, mask: Mask) -> Positions:
        """The index of the last row of each key for which `mask` is true, or `NONE`."""
        positions: Positions = np.maximum.reduceat(np.where(mask, np.arange(len(mask)), NONE), self.starts)
        return positions

    def first(self, mask: Mask) -> Positions:
        """The index of the first row of each key for which `mask` is true, or `NONE`."""
        positions = np.minimum.reduceat(np.where(mask, np.arange(len(mask)), len(mask)), self.starts)
        return np.where(positions == len(mask), NONE, positions)

    def any(self, mask: Mask) -> Mask:
        """For each key whether `mask` is true for one of its rows."""
        result: Mask = np.logical_or.reduceat(mask, self.starts)
        return result


def kinds_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The row kinds of a table."""
    kinds: npt.NDArray[np.int64] = rows.column(KIND_COLUMN).to_numpy()
    return kinds


def is_retract(kinds: npt.NDArray[np.int64]) -> Mask:
    """For each row kind whether it takes a row back. -U and -D do; they have odd numbers."""
    return (kinds & 1).astype(np.bool_)


def several(rows: pa.Table, groups: KeyGroups) -> tuple[Mask, KeyRows]:
    """For each key whether it has several rows, and the rows of those keys."""
    ends = np.flatnonzero(groups.is_last) + 1
    starts = np.append(0, ends[:-1])[: len(ends)]
    is_several = ends - starts > 1
    lengths = (ends - starts)[is_several]
    positions = groups.order[np.repeat(is_several, ends - starts)]
    return is_several, KeyRows(
        positions=positions,
        starts=np.cumsum(lengths) - lengths,
        retracts=is_retract(kinds_of(rows)[positions]),
        counts=np.ones(len(positions), np.bool_),
    )


def before_deletes(rows: pa.Table, key_rows: KeyRows) -> Mask:
    """Which rows are deletes of their key (-D) or older than its newest delete."""
    last_deletes = key_rows.last(kinds_of(rows)[key_rows.positions] == DELETE_KIND)
    older: Mask = np.arange(len(key_rows.positions)) <= last_deletes[key_rows.key_of]
    return older


@dataclass(frozen=True, slots=True)
class MergedKeys:
    """What becomes of the keys that have several rows."""

    kept: Positions
    """For each key the index in its `KeyRows` of the row that gives the columns without a function."""
    is_made: Mask
    """For each key whether functions compute its values. False: the row of `kept` survives unchanged."""
    is_deleted: Mask | None = None
    """For each key with computed values whether the result is a delete; None: no result is."""


def merge_rows(
    rows: pa.Table,
    groups: KeyGroups,
    is_several: Mask,
    several_rows: KeyRows,
    keys: MergedKeys,
    value_of: Callable[[str], pa.Array | None],
) -> pa.Table:
    """One row for each key, in key order: single rows unchanged, the others computed column by column.

    Args:
        rows, groups: as `MergeEngine.merge`.
        is_several, several_rows: from `several`.
        value_of: the values of a column for the keys with computed values; None: those of the rows of
            `MergedKeys.kept`.
    """
    positions = groups.last.copy()
    positions[is_several] = several_rows.positions[keys.kept]
    result = rows.take(pa.array(positions))
    made_keys = np.flatnonzero(is_several)[keys.is_made]
    if len(made_keys) == 0:
        return result
    source = np.arange(len(positions))
    source[made_keys] = np.arange(len(made_keys)) + len(positions)
    places = pa.array(source)
    columns = []
    for name in result.column_names:
        column = one_array(result.column(name))
        values = _kinds(keys, len(made_keys)) if name == KIND_COLUMN else value_of(name)
        columns.append(
            column if values is None else pa.concat_arrays([column, cast_members(values, column.type)]).take(places)
        )
    return pa.table(columns, schema=result.schema)


def _kinds(keys: MergedKeys, count: int) -> pa.Array:
    kinds = np.full(count, INSERT_KIND, np.int8)
    if keys.is_deleted is not None:
        kinds[keys.is_deleted] = DELETE_KIND
    return pa.array(kinds)
