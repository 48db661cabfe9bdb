"""Simple SQL conditions over Arrow rows, evaluated in this process with the result that Spark would give.

Owns: which conditions are simple. They have the grammar of a table's filters (`parse_predicate`), with more operands:
columns on both sides, and aggregates over all rows. They are evaluated like a table's filters.

Invariant: `all_hold` returns True or False only if the meaning in Spark SQL is unambiguous. For everything else
(functions, arithmetic, casts, comparisons of different types, an unknown column, text that is not SQL) it returns None,
and the caller uses Spark. A test compares the results with Spark's.

    value = column | whole number | 'text' | TRUE | FALSE
          | count(*) | count([DISTINCT] column, ...) | min(column) | max(column) | sum(column)   (overall only)

Both sides of a comparison are whole numbers, or texts, or booleans. Constructs with another meaning in Spark are not
simple: names in double quotes or with a dot, texts with a quote or a backslash in them, spaces beyond ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.model.predicate import ARROW_COMPARISON, mask_of
from lakebed.table.model.predicate_text import ConditionParser
from lakebed.table.model.predicate_tree import Column, Compare, Comparison, Or, Predicate, columns_of

_RESERVED = frozenset({"CASE", "EXISTS"})
"""Words that begin other constructs in Spark."""
_TYPES = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
_WHOLE_NUMBER_MAX = 2**63 - 1


def all_hold(rows: pa.Table, *, every_row: Iterable[str], overall: Iterable[str]) -> bool | None:
    """Return whether each condition of `every_row` is true for each row, and each of `overall` for all rows together.

    NULL is not true.

    Returns:
        None if Spark must evaluate one of the conditions.
    """
    try:
        results = [_Condition(rows, condition, aggregates=False).holds() for condition in every_row]
        results += [_Condition(rows, condition, aggregates=True).holds() for condition in overall]
    except InvalidRequest:
        return None
    return all(results)


class _Condition(ConditionParser):
    """Reads one condition. Its operands become columns of a new table, which has one row if they are aggregates."""

    def __init__(self, rows: pa.Table, text: str, *, aggregates: bool) -> None:
        super().__init__(text)
        self._rows = rows
        self._aggregates = aggregates
        self._operands: list[pa.Scalar | pa.ChunkedArray | pa.Array] = []
        strange = [sign for sign in text if sign.isspace() and sign not in " \t\r\n"]
        if strange or any(self._is_ambiguous(token.kind, token.text) for token in self.tokens):
            raise self._refusal()

    def holds(self) -> bool:
        """Return whether the condition is true for each row, or for the single row of aggregates."""
        predicate = self.whole()
        row_count = 1 if self._aggregates else self._rows.num_rows
        columns = {"": pa.nulls(row_count)}
        for name in columns_of(predicate):
            values = self._operands[int(name)]
            columns[name] = pa.repeat(values, row_count) if isinstance(values, pa.Scalar) else values
        operands = pa.table(columns)
        return bool(pc.all(pc.fill_null(mask_of(predicate, operands), False), min_count=0).as_py())

    @staticmethod
    def _is_ambiguous(kind: str, text: str) -> bool:
        if kind == "text":
            return "\\" in text or "'" in text[1:-1]
        return (kind == "quoted" and text[0] == '"') or (kind == "word" and ("." in text or text.upper() in _RESERVED))

    def _refusal(self) -> InvalidRequest:
        return self.error(self.ahead.position, "a condition that needs no Spark")

    def _column(self, values: Any) -> Column:
        self._operands.append(values)
        return Column(str(len(self._operands) - 1))

    def operand(self) -> Column:
        """Return a column of the table of operands."""
        token = self.ahead
        if token.kind == "word" and self.tokens[self.index + 1].text == "(":
            return self._column(self._aggregate())
        value = super().operand()  # for a word that is not a column: a text preceded by its type
        if isinstance(value, Column):
            # An aggregate is over all rows, for which a bare column does not have a single value.
            if self._aggregates:
                raise self._refusal()
            return self._column(self._values(value.name))
        if token.kind == "word" or type(value) not in _TYPES or (type(value) is int and abs(value) > _WHOLE_NUMBER_MAX):
            raise self._refusal()
        return self._column(pa.scalar(value, _TYPES[type(value)]))

    def compare(self, left: Column, op: Comparison) -> Predicate:
        """Compare two columns of operands that have the same type. The result is a further column."""
        right_operand = self.operand()
        first, second = self._operands[int(left.name)], self._operands[int(right_operand.name)]
        if first.type != second.type or (pa.types.is_boolean(first.type) and op not in ("=", "<>")):
            raise self._refusal()
        return Compare(self._column(getattr(pc, ARROW_COMPARISON[op])(first, second)).name, "=", True)

    def members(self, left: Column) -> Predicate:
        """Return whether a column equals one of the operands before the next parenthesis."""
        parts = [self.compare(left, "=")]
        while self.accept(","):
            parts.append(self.compare(left, "="))
        return Or(tuple(parts))

    # ---- columns of the rows

    def _values(self, name: str) -> pa.ChunkedArray:
        # Spark may or may not ignore the case of names. A name in the column's own spelling has one meaning in both
        # cases.
        if self._rows.column_names.count(name) != 1:
            raise self._refusal()
        column = self._rows.column(name)
        if pa.types.is_integer(column.type):
            return column.cast(pa.int64())
        if pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
            return column
        raise self._refusal()

    def _aggregate(self) -> pa.Scalar:
        function = self.next().text.lower()
        self.expect("(")
        if not self._aggregates:
            raise self._refusal()
        if function == "count" and self.ahead.text == "*":
            self.next()
            self.expect(")")
            return pa.scalar(self._rows.num_rows, pa.int64())
        is_distinct = self.ahead.text.upper() == "DISTINCT"
        self.index += is_distinct
        columns = [self._values(self.name())]
        while self.accept(","):
            columns.append(self._values(self.name()))
        self.expect(")")
        if function == "count":
            return _count(columns, distinct=is_distinct)
        if is_distinct or len(columns) > 1 or pa.types.is_boolean(columns[0].type):
            raise self._refusal()
        if function in ("min", "max"):
            return pc.min_max(columns[0])[function]
        total = _sum(columns[0]) if function == "sum" else None
        if total is None:
            raise self._refusal()
        return total


def _count(columns: Sequence[pa.ChunkedArray], *, distinct: bool) -> pa.Scalar:
    """Count the rows in which no column is null; distinct: the different ones."""
    names = [str(number) for number in range(len(columns))]
    rows = pa.table(list(columns), names=names)
    complete = rows.filter(reduce(pc.and_, map(pc.is_valid, columns)))
    if distinct:
        complete = complete.group_by(names, use_threads=False).aggregate([])
    return pa.scalar(complete.num_rows, pa.int64())


def _sum(column: pa.ChunkedArray) -> pa.Scalar | None:
    """Return a sum of whole numbers; None: it may overflow, for which Spark raises an error."""
    if not pa.types.is_int64(column.type):
        return None
    bounds = pc.min_max(column)
    largest = max(abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
    return pc.sum(column) if largest * len(column) <= _WHOLE_NUMBER_MAX else None
