"""The merge engine ``partial-update``: each column of a key has its newest value that is not null.

Owns: `PartialUpdate`. Columns of a sequence group are taken together, nulls included, from the row that is newest by
the group's sequence columns. Those with an aggregate function are aggregated over all rows of the group.

Invariants:
- A row whose sequence columns of a group are all null does not belong to the group.
- In the order of a group, a row that is at least as new as all before it is put last, and an older one is put first.
  Functions get the rows in this order.
- A delete is ignored (``ignore-delete``), removes the row (``partial-update.remove-record-on-delete``), or takes back
  the values of the groups that it belongs to. Without groups or one of these options it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.codec.ragged import valid_mask
from lakebed.table.engines.engine import Deletes, Increments, MergeEngine
from lakebed.table.engines.field_options import (
    ColumnFunction,
    SequenceGroup,
    function_of,
    ignores_deletes,
    is_true,
    sequence_groups,
)
from lakebed.table.engines.key_rows import NONE, KeyRows, MergedKeys, before_deletes, merge_rows, several
from lakebed.table.engines.merge import KeyGroups, Positions, encode_keys
from lakebed.table.engines.option_names import DEFAULT_FUNCTION, PREFIX, option_error
from lakebed.table.engines.sequence import SequenceOrder, sequence_order
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import PARTIAL_UPDATE_REMOVE_ON_DELETE

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PartialUpdate(MergeEngine):
    """Each column of a key has its newest value that is not null."""

    groups: tuple[SequenceGroup, ...] = ()
    functions: Mapping[str, ColumnFunction] = field(default_factory=dict)
    """The functions of columns that belong to groups."""
    free: frozenset[str] = frozenset()
    """Value columns that belong to no group."""
    deletes: Deletes = Deletes.REFUSED
    order: SequenceOrder | None = None

    replaces_rows: ClassVar = False
    keeps_levels_apart: ClassVar = False
    follows_commits: ClassVar = True
    increments: ClassVar = Increments.UNKNOWN

    @classmethod
    def of(cls, schema: TableSchema) -> PartialUpdate:
        order, groups = sequence_order(schema), sequence_groups(schema)
        sequence = {name for group in groups for name in group.sequence}
        grouped_names = {name for group in groups for name in group.columns}
        key_names = {*schema.primary_keys, *(order.columns if order is not None else ()), *sequence}
        functions = {}
        for column in schema.fields:
            if column.name in key_names:
                continue
            function = function_of(schema, column, default=None)
            if column.name in grouped_names and function is not None:
                functions[column.name] = function
            elif function is not None and function.name != "last_non_null_value":
                option = f"{PREFIX}{column.name}.aggregate-function"
                option = option if option in schema.options else DEFAULT_FUNCTION
                raise option_error(
                    f"Option {option!r} aggregates column {column.name!r} by {function.name}, so the column must be in "
                    f"a sequence group: set '{PREFIX}<sequence column>.sequence-group' = '{column.name}'.",
                    option,
                )
        free = frozenset(column.name for column in schema.fields) - key_names - grouped_names
        return cls(groups, functions, free, _deletes(schema, groups), order)

    def merges_apart(self, *, with_deletes: bool) -> bool:
        if with_deletes and self.deletes is not Deletes.IGNORE:
            return False
        if self.order is not None and self.free:
            return False
        return not any(function.rounds or not _in_any_parts(function) for function in self.functions.values())

    @property
    def drops_deletes(self) -> bool:
        return self.deletes is Deletes.IGNORE or (self.deletes is Deletes.REMOVE and self.order is None)

    @property
    def ignores_repeats(self) -> bool:
        return not self.free and not self.functions

    def optional(self, given: frozenset[str]) -> frozenset[str]:
        absent = ((*group.sequence, *group.columns) for group in self.groups)
        return self.free.union(*(names for names in absent if given.isdisjoint(names)))

    def columns(self, wanted: frozenset[str]) -> frozenset[str]:
        sequences = (
            group.sequence for group in self.groups if not wanted.isdisjoint((*group.columns, *group.sequence))
        )
        return frozenset(name for names in sequences for name in names)

    def check_retracts(self, rows: pa.Table) -> None:
        if self.deletes is not Deletes.RETRACT:
            return
        for group in self.groups:
            functions = (self.functions[name] for name in group.columns if name in self.functions)
            refusing = next((function for function in functions if not function.takes_retracts), None)
            if refusing is not None and any(rows.column(name).null_count < rows.num_rows for name in group.sequence):
                raise refusing.retract_error("some of the deletes have a value of its group's sequence")

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        is_several, every = several(rows, groups)
        key_rows, keys = self._select(rows, every)
        inserted = key_rows.only(~key_rows.retracts)
        rows_by_column: dict[str, _GroupRows] = {}
        for group in self.groups:
            if not {*group.columns, *group.sequence}.isdisjoint(rows.column_names):
                group_rows = _GroupRows.of(rows, key_rows, group)
                rows_by_column.update(dict.fromkeys((*group.columns, *group.sequence), group_rows))

        def value_of(name: str) -> pa.Array | None:
            if name in rows_by_column:
                return rows_by_column[name].values(name, rows, self.functions.get(name))
            if name not in self.free:
                return None
            column = inserted.of(rows.column(name))
            return _values_at(column, inserted.last(inserted.counts & valid_mask(column)))

        return merge_rows(rows, groups, is_several, every, keys, value_of)

    def _select(self, rows: pa.Table, every: KeyRows) -> tuple[KeyRows, MergedKeys]:
        """The rows that functions use, and what becomes of the keys."""
        if not every.retracts.any():
            return every, MergedKeys(every.ends - 1, np.ones(every.key_count, np.bool_))
        if self.deletes is Deletes.IGNORE:
            return every.without(every.retracts)
        if self.deletes is Deletes.REMOVE:
            return every.without(before_deletes(rows, every) | every.retracts)
        if self.deletes is Deletes.RETRACT:
            is_deleted = ~every.any(~every.retracts)
            return every, MergedKeys(every.ends - 1, np.ones(every.key_count, np.bool_), is_deleted)
        raise InvalidRequest(
            "The table updates columns (merge-engine partial-update), and its files hold deletes of another writer; "
            "set its option 'ignore-delete' = 'true' to leave them out, or 'partial-update.remove-record-on-delete' = "
            "'true' to apply them.",
            kind="unsupported_delete",
        )


@dataclass(frozen=True, slots=True)
class _GroupRows:
    """The rows of the keys as one sequence group orders them."""

    sequence: tuple[str, ...]
    arrived: KeyRows
    """In the order of arrival; rows that do not belong to the group do not count."""
    in_order: KeyRows
    """In the group's order: late rows first."""
    newest: Positions
    """The index in `arrived` of the newest row of each key by the group's sequence, or `NONE`."""

    @classmethod
    def of(cls, rows: pa.Table, key_rows: KeyRows, group: SequenceGroup) -> _GroupRows:
        columns = [key_rows.of(rows.column(name)) for name in group.sequence]
        belongs = np.logical_or.reduce([valid_mask(column) for column in columns])
        ranks = np.unique(encode_keys([columns])[0], return_inverse=True)[1] + 1
        key_of = key_rows.key_of
        ages = key_of * np.int64(len(ranks) + 2) + np.where(belongs, ranks, 0)
        is_newest = belongs & (ages == np.maximum.accumulate(ages)) if len(ages) else belongs
        index = np.arange(len(ages))
        is_late = belongs & ~is_newest & ~key_rows.retracts
        order = np.lexsort((np.where(is_late, -index - 1, index), key_of))
        arrived = key_rows.only(belongs)
        return cls(group.sequence, arrived, arrived.in_order(order), arrived.last(is_newest))

    def values(self, name: str, rows: pa.Table, function: ColumnFunction | None) -> pa.Array:
        if function is not None:
            key_rows = self.arrived if function.function.any_order or function.name == "collect" else self.in_order
            return function.values(rows.column(name), key_rows)
        positions = self.newest
        if name not in self.sequence:
            positions = np.where((positions != NONE) & self.arrived.retracts[positions], NONE, positions)
        return _values_at(self.arrived.of(rows.column(name)), positions)


def _values_at(column: pa.Array, positions: Positions) -> pa.Array:
    return column.take(pa.array(positions, mask=positions == NONE))


def _in_any_parts(function: ColumnFunction) -> bool:
    """Whether the rows of a group may be merged in any portions without changing the result for late rows."""
    return function.function.any_order or function.name in ("last_value", "collect")


def _deletes(schema: TableSchema, groups: Sequence[SequenceGroup]) -> Deletes:
    removes = PARTIAL_UPDATE_REMOVE_ON_DELETE.name
    if not is_true(schema.options, removes):
        if ignores_deletes(schema.options):
            return Deletes.IGNORE
        return Deletes.RETRACT if groups else Deletes.REFUSED
    if ignores_deletes(schema.options):
        raise option_error(f"Options 'ignore-delete' and {removes!r} exclude each other.", removes)
    if groups:
        sentence = f"Option {removes!r} and sequence groups exclude each other: a delete belongs to groups."
        raise option_error(sentence, removes)
    return Deletes.REMOVE
