"""The merge engine ``aggregation``: each column of the rows of one key is aggregated by its own function.

Owns: `Aggregation`. The functions are in `functions`; a column without a function keeps its newest value that is not
null.

Invariants:
- A delete takes back the values of its row, function by function. A key with only one row, a delete, has no row, and
  compactions keep that delete: a row written later is merged with it.
- With ``aggregation.remove-record-on-delete`` a delete removes the row; later rows begin anew.
- The columns of ``sequence.field`` are those of the newest row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.engines.engine import Deletes, Increments, MergeEngine
from lakebed.table.engines.field_options import ColumnFunction, function_of, is_true
from lakebed.table.engines.functions import Retracts
from lakebed.table.engines.key_rows import MergedKeys, before_deletes, merge_rows, several
from lakebed.table.engines.merge import KeyGroups
from lakebed.table.engines.option_names import IGNORE_RETRACT, PREFIX, option_error
from lakebed.table.engines.sequence import SequenceOrder, sequence_order
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import AGGREGATION_REMOVE_ON_DELETE

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Aggregation(MergeEngine):
    """Each column of the rows of one key is aggregated."""

    functions: Mapping[str, ColumnFunction] = field(default_factory=dict)
    removes: bool = False
    order: SequenceOrder | None = None

    replaces_rows: ClassVar = False
    keeps_levels_apart: ClassVar = False
    ignores_repeats: ClassVar = False
    increments: ClassVar = Increments.UNKNOWN

    @classmethod
    def of(cls, schema: TableSchema) -> Aggregation:
        order = sequence_order(schema)
        key_names = {*schema.primary_keys, *(order.columns if order is not None else ())}
        functions = {}
        for column in schema.fields:
            if column.name in key_names:
                continue
            column_function = function_of(schema, column, default="last_non_null_value")
            assert column_function is not None
            functions[column.name] = column_function
        removes = is_true(schema.options, AGGREGATION_REMOVE_ON_DELETE.name)
        for name, function in functions.items():
            if removes and function.ignores_retracts:
                option = f"{PREFIX}{name}.{IGNORE_RETRACT}"
                sentence = f"Options {AGGREGATION_REMOVE_ON_DELETE.name!r} and {option!r} exclude each other."
                raise option_error(sentence, option)
        return cls(functions, removes, order)

    @property
    def deletes(self) -> Deletes:
        if self.removes:
            return Deletes.REMOVE
        return (
            Deletes.RETRACT if all(function.takes_retracts for function in self.functions.values()) else Deletes.REFUSED
        )

    def merges_apart(self, *, with_deletes: bool) -> bool:
        functions = self.functions.values()
        if any(function.rounds for function in functions) or (with_deletes and self.removes):
            return False
        if self.order is not None and not all(
            function.function.any_order or function.name == "last_value" for function in functions
        ):
            return False
        return not with_deletes or all(function.retracts_apart for function in functions)

    @property
    def follows_commits(self) -> bool:
        functions = [function.function for function in self.functions.values()]
        return self.removes or not all(
            function.any_order and function.retracts is not Retracts.LATER for function in functions
        )

    @property
    def drops_deletes(self) -> bool:
        return self.removes and self.order is None

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        is_several, every = several(rows, groups)
        if self.removes:
            key_rows, keys = every.without(before_deletes(rows, every))
        else:
            key_rows, keys = every, MergedKeys(every.ends - 1, np.ones(every.key_count, np.bool_))

        def value_of(name: str) -> pa.Array | None:
            function = self.functions.get(name)
            return None if function is None else function.values(rows.column(name), key_rows)

        return merge_rows(rows, groups, is_several, every, keys, value_of)
