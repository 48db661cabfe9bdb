"""The option ``sequence.field``: columns that order the rows of one key. Pure.

Owns: `SequenceOrder`, the check of the option (`check_sequence`), and the numbers that a merge compares
(`sequence_codes`).

Invariants:
- Rows of one key are ordered by the columns of the option, from left to right. Rows that are equal in all of them are
  ordered by their sequence number (the order of arrival). Deletes are ordered as rows are.
- Values are ordered as keys (`merge.encode_keys`): NaN is the greatest float, -0.0 is below 0.0. With
  ``sequence.field.sort-order = descending`` the least value is the newest. A null is older than every value, in both
  orders. Other clients of the format use the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.engines.merge import Columns, encode_keys
from lakebed.table.model.changelog_options import Producer, producer_of
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import SEQUENCE_FIELD, SEQUENCE_SORT_ORDER, TableOptions
from lakebed.table.model.types import parse_type

Numbers = npt.NDArray[np.int64]

_WITHOUT_ORDER = frozenset(("ARRAY", "MULTISET", "MAP", "ROW", "VARIANT", "BLOB"))


@dataclass(frozen=True, slots=True)
class SequenceOrder:
    """How rows of one key are ordered, before the order of arrival. Picklable."""

    columns: tuple[str, ...]
    """At least one."""
    descending: bool = False
    """The least value is the newest."""


def sequence_order(schema: TableSchema) -> SequenceOrder | None:
    """The order of a primary-key table's rows of one key; None: the order of arrival alone.

    Raises `InvalidRequest`: the option names a column that the table does not have.
    """
    if not schema.primary_keys:
        return None
    options = TableOptions(schema.options)
    columns = options.get(SEQUENCE_FIELD)
    if not columns:
        return None
    names = [field.name for field in schema.fields]
    for name in columns:
        if name not in names:
            nearest = get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(names)}."
            raise _option_error(f"Option 'sequence.field' names {name!r}, which is not a column of the table: {hint}")
    return SequenceOrder(columns, options.get(SEQUENCE_SORT_ORDER) == "descending")


def delete_columns(schema: TableSchema) -> tuple[str, ...]:
    """The columns that a delete needs of the row that it deletes: the key, and the columns that order its rows.

    Where writes are logged (`Producer.INPUT`), all columns: the log says what was deleted.
    """
    if producer_of(schema) is Producer.INPUT:
        return tuple(field.name for field in schema.fields)
    order = sequence_order(schema)
    return schema.primary_keys if order is None else (*schema.primary_keys, *order.columns)


def sequence_codes(runs: Sequence[tuple[Columns, Numbers]], *, order: SequenceOrder) -> list[Numbers]:
    """One number a row, greater for the newer row, comparable over all runs of the call.

    Args:
        runs: for each run the columns of `order` and the sequence numbers of its rows.

    Raises `UnsupportedFormat`: a column has a type that has no order. Cost: one pass over integers and times; a sort of
    the distinct values of anything else.
    """
    descending = (order.descending,) * len(order.columns) + (False,)
    return encode_keys([(*columns, pa.array(numbers)) for columns, numbers in runs], descending=descending)


def check_sequence(schema: TableSchema) -> None:
    """Refuse a definition of a new table whose order is impossible or has no effect.

    Raises `InvalidRequest`: the option on a table without primary key, a column that does not exist, is named twice, is
    a key column or has no order, or an order without columns.
    """
    options = TableOptions(schema.options)
    columns = options.get(SEQUENCE_FIELD)
    if not columns:
        if options.is_set(SEQUENCE_SORT_ORDER):
            raise _option_error(
                "Option 'sequence.field.sort-order' needs option 'sequence.field'.", SEQUENCE_SORT_ORDER.name
            )
        return
    if not schema.primary_keys:
        raise _option_error(
            "Option 'sequence.field' orders rows of one primary key, and the table has no primary key: declare one, or "
            "leave the option out."
        )
    if len(set(columns)) != len(columns):
        raise _option_error(f"Option 'sequence.field' names a column twice: {', '.join(columns)}.")
    sequence_order(schema)
    for field in (field for field in schema.fields if field.name in columns):
        if field.name in schema.primary_keys:
            raise _option_error(
                f"Option 'sequence.field' names {field.name!r}, which is part of the primary key: all rows of one key "
                "have the same value there. Name a column that tells older rows from newer ones."
            )
        if parse_type(field.type).root in _WITHOUT_ORDER:
            raise _option_error(
                f"Option 'sequence.field' names {field.name!r}, which is {field.type}; values of that type have no "
                "order. Name a column of numbers, strings, binaries, dates or times."
            )


def _option_error(sentence: str, option: str = SEQUENCE_FIELD.name) -> InvalidRequest:
    return InvalidRequest(sentence, kind="invalid_option", option=option)
