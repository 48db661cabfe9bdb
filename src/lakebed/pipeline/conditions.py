"""Simple SQL conditions over Arrow rows, evaluated in this process with the result that Spark would give.

Owns: which conditions count as simple. Invariant: `all_hold` returns True or False only where the meaning in Spark SQL
is unambiguous; everything else (functions, arithmetic, casts, comparisons of unlike types, an unknown column, text that
is not SQL) is None, and the caller asks Spark. A test compares the results with Spark's.

    condition   = condition OR condition | condition AND condition | NOT condition | ( condition ) | comparison
    comparison  = value (= | == | <> | != | < | <= | > | >=) value | value [NOT] BETWEEN value AND value
                | value [NOT] IN ( value, ... ) | value IS [NOT] NULL | boolean column
    value       = column | whole number | 'text' | TRUE | FALSE
                | count(*) | count([DISTINCT] column, ...) | min(column) | max(column) | sum(column)   (overall only)

Both sides of a comparison are whole numbers, or texts, or booleans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NoReturn

import pyarrow as pa

import lakebed.compute as pc

CONDITION_LENGTH_MAX = 10_000
DEPTH_MAX = 100

_TOKEN = re.compile(
    r"\s*(?:(-?\s*[0-9]+(?![\w.]))|([A-Za-z_]\w*)|`([^`]+)`|'([^'\\]*)'(?!')|(<=(?!>)|>=|<>|!=|==|[=<>(),*]))",
    re.ASCII,
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "==": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_WORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "DISTINCT", "CASE", "EXISTS"})
_AGGREGATES = frozenset({"count", "min", "max", "sum"})
_WHOLE_NUMBER_MAX = 2**63 - 1


class _NotSimple(Exception):
    """The condition is not in the grammar above."""


def all_hold(rows: pa.Table, *, every_row: Iterable[str], overall: Iterable[str]) -> bool | None:
    """Return whether each condition of `every_row` is true for each row, and each of `overall` for all rows together.

    NULL is not true.

    Returns:
        None when Spark must evaluate one of the conditions.
    """
    try:
        results = [_holds(rows, condition, aggregates=False) for condition in every_row]
        results += [_holds(rows, condition, aggregates=True) for condition in overall]
    except _NotSimple:
        return None
    return all(results)


def _holds(rows: pa.Table, condition: str, *, aggregates: bool) -> bool:
    result = _Evaluator(rows, condition, aggregates=aggregates).whole()
    if isinstance(result, pa.Scalar):
        return result.as_py() is True or (not aggregates and rows.num_rows == 0)
    return bool(pc.all(pc.fill_null(result, False), min_count=0).as_py())


class _Evaluator:
    """Parses one condition and evaluates it on the way: one value a row, or one for all rows (a scalar)."""

    def __init__(self, rows: pa.Table, condition: str, *, aggregates: bool) -> None:
        self._rows = rows
        self._aggregates = aggregates
        self._tokens = _tokens(condition)
        self._position = 0
        self._depth = 0

    def whole(self) -> Any:
        result = self._either()
        if self._position < len(self._tokens):
            _refuse()
        return result

    # ---- tokens: (kind, text), kind one of number, word, name, text, sign

    def _peek(self, kind: str, text: str) -> bool:
        return self._tokens[self._position : self._position + 1] == [(kind, text)]

    def _take(self, kind: str, text: str) -> bool:
        is_next = self._peek(kind, text)
        self._position += is_next
        return is_next

    def _expect(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            _refuse()

    # ---- conditions

    def _either(self) -> Any:
        terms = [self._both()]
        while self._take("word", "OR"):
            terms.append(self._both())
        return reduce(pc.or_kleene, terms)

    def _both(self) -> Any:
        terms = [self._negation()]
        while self._take("word", "AND"):
            terms.append(self._negation())
        return reduce(pc.and_kleene, terms)

    def _negation(self) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            _refuse()
        if self._take("word", "NOT"):
            result = pc.invert(self._negation())
        elif self._take("sign", "("):
            result = self._either()
            self._expect("sign", ")")
        else:
            result = self._comparison()
        self._depth -= 1
        return result

    def _comparison(self) -> Any:
        left = self._value()
        if self._take("word", "IS"):
            negated = self._take("word", "NOT")
            self._expect("word", "NULL")
            return pc.is_valid(left) if negated else pc.is_null(left)
        negated = self._take("word", "NOT")
        if self._take("word", "BETWEEN"):
            low = self._value()
            self._expect("word", "AND")
            high = self._value()
            result = pc.and_kleene(_compare(">=", left, low), _compare("<=", left, high))
            return pc.invert(result) if negated else result
        if self._take("word", "IN"):
            self._expect("sign", "(")
            results = [_compare("=", left, self._value())]
            while self._take("sign", ","):
                results.append(_compare("=", left, self._value()))
            self._expect("sign", ")")
            result = reduce(pc.or_kleene, results)
            return pc.invert(result) if negated else result
        if negated:
            _refuse()
        kind, text = self._next(default=("end", ""))
        if kind == "sign" and text in _COMPARISONS:
            return _compare(text, left, self._value())
        self._position -= kind != "end"
        return left if pa.types.is_boolean(left.type) else _refuse()

    # ---- values

    def _next(self, *, default: tuple[str, str] | None = None) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            return default or _refuse()
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _value(self) -> Any:
        kind, text = self._next()
        if kind == "number":
            number = int(text)
            return pa.scalar(number, pa.int64()) if abs(number) <= _WHOLE_NUMBER_MAX else _refuse()
        if kind == "text":
            return pa.scalar(text, pa.string())
        if kind == "word" and text in ("TRUE", "FALSE"):
            return pa.scalar(text == "TRUE", pa.bool_())
        if kind != "name":
            _refuse()
        if self._take("sign", "("):
            return self._aggregate(text)
        # An aggregate is over all rows; a bare column has no one value there.
        return _refuse() if self._aggregates else self._column(text)

    def _column(self, name: str) -> pa.ChunkedArray:
        # Spark may or may not look at the case of names; a name written as the column's own is the same to both.
        if self._rows.column_names.count(name) != 1:
            _refuse()
        column = self._rows.column(name)
        kind = column.type
        if pa.types.is_integer(kind):
            return column.cast(pa.int64())
        return column if pa.types.is_string(kind) or pa.types.is_boolean(kind) else _refuse()

    def _aggregate(self, function: str) -> pa.Scalar:
        function = function.lower()
        if not self._aggregates or function not in _AGGREGATES:
            _refuse()
        if function == "count" and self._take("sign", "*"):
            self._expect("sign", ")")
            return pa.scalar(self._rows.num_rows, pa.int64())
        distinct = self._take("word", "DISTINCT")
        columns = [self._column(self._name())]
        while self._take("sign", ","):
            columns.append(self._column(self._name()))
        self._expect("sign", ")")
        if function == "count":
            return _count(columns, distinct=distinct)
        if distinct or len(columns) > 1 or pa.types.is_boolean(columns[0].type):
            _refuse()
        if function == "sum":
            return _sum(columns[0])
        return pc.min_max(columns[0])[function]

    def _name(self) -> str:
        kind, text = self._next()
        return text if kind == "name" else _refuse()


def _tokens(condition: str) -> list[tuple[str, str]]:
    if len(condition) > CONDITION_LENGTH_MAX:
        _refuse()
    tokens: list[tuple[str, str]] = []
    position = 0
    condition = condition.rstrip()
    while position < len(condition):
        match = _TOKEN.match(condition, position)
        if match is None:
            _refuse()
        position = match.end()
        number, word, quoted, text, sign = match.groups()
        if number is not None:
            tokens.append(("number", "".join(number.split())))
        elif word is not None:
            tokens.append(("word", word.upper()) if word.upper() in _WORDS else ("name", word))
        elif quoted is not None:
            tokens.append(("name", quoted))
        elif text is not None:
            tokens.append(("text", text))
        else:
            tokens.append(("sign", sign))
    return tokens


def _compare(operator: str, left: Any, right: Any) -> Any:
    if left.type != right.type or (pa.types.is_boolean(left.type) and operator not in ("=", "==", "<>", "!=")):
        _refuse()
    return _COMPARISONS[operator](left, right)


def _count(columns: Sequence[pa.ChunkedArray], *, distinct: bool) -> pa.Scalar:
    """Count the rows in which no column is null; distinct: the different ones."""
    names = [str(number) for number in range(len(columns))]
    rows = pa.table(list(columns), names=names)
    complete = rows.filter(reduce(pc.and_, map(pc.is_valid, columns)))
    if distinct:
        complete = complete.group_by(names, use_threads=False).aggregate([])
    return pa.scalar(complete.num_rows, pa.int64())


def _sum(column: pa.ChunkedArray) -> pa.Scalar:
    if not pa.types.is_int64(column.type):
        _refuse()
    bounds = pc.min_max(column)
    largest = max(abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
    # Spark refuses a sum that overflows.
    return pc.sum(column) if largest * len(column) <= _WHOLE_NUMBER_MAX else _refuse()


def _refuse() -> NoReturn:
    raise _NotSimple
