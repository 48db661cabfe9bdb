"""Spark's filters as predicates of lakebed: V2 predicates, and the filters of Python data sources. Pure.

Owns: the translation, and the list of filters that it does not express completely. Spark evaluates every filter again
on the rows that it gets. So a translation may keep rows that the filter rejects, but never loses a row that it accepts.

Invariants:
- If a filter is true for a row, its translation is true for that row. This holds for Spark's three-valued logic and for
  Spark's NaN, which equals itself and is greater than every number. In lakebed, every comparison with NaN except ``<>``
  is false, so ``x > 5`` becomes ``NOT (x <= 5)``.
- A term that cannot be translated is left out: in an AND only the term itself, in an OR the whole OR. Under NOT it is
  the other way round.
- Imports no PySpark. Filters of data sources are recognised by the names of their classes.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_tree import (
    DEPTH_MAX,
    FLIPPED,
    And,
    Compare,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    all_of,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True, slots=True)
class Reference:
    """A column, or a field inside of one."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value: Python's, or an Arrow scalar for dates and timestamps. None is null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation by Spark's name of it (``=``, ``IN``, ``AND``, ``STARTS_WITH``, ...)."""

    name: str
    children: tuple[Term, ...]


Term = Reference | Literal | Operation


@dataclass(frozen=True, slots=True)
class Translation:
    """The meaning of some filters, all of which must be true, for lakebed."""

    where: Predicate | None
    """True for every row for which all filters are true; None: no filter could be translated."""
    inexact: tuple[int, ...]
    """Positions of the filters that `where` does not express completely."""


def translate(filters: Sequence[Term], schema: pa.Schema) -> Translation:
    """Translate filters.

    Args:
        filters: made by `from_json` or `from_filter`.
        schema: the columns of the table, as `types.arrow_schema` returns them.
    """
    translator = _Translator(schema)
    predicates, inexact = [], []
    for position, term in enumerate(filters):
        predicate, is_exact = translator.weaker(term)
        predicates.append(predicate)
        if predicate is None or not is_exact:
            inexact.append(position)
    try:
        return Translation(all_of(predicates), tuple(inexact))
    except InvalidRequest:  # longer than a predicate may be
        return Translation(None, tuple(range(len(filters))))


# ---- where filters come from

_UNKNOWN: Final = Operation("", ())
"""A term that has no translation."""


def from_json(tree: object) -> Term:
    """Read a V2 predicate.

    Args:
        tree: ``{"name": "=", "children": [...]}`` for a predicate or another expression, ``{"column": ["a", "b"]}`` for
            a reference by its parts, ``{"literal": value, "type": "decimal(10,2)"}`` for a literal with the catalog
            string of its type. A value is as Spark holds it: days of a date, microseconds of a timestamp, base64 of
            binary, text of a decimal; ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` are text too.

    A tree of another form, or with a value that its type does not allow, becomes a term without a translation.
    """
    # Spark nests a long OR as deeply as it has parts, which exceeds the recursion limit of some versions of Python. So
    # trees are collected level by level, and terms are made from the last one backwards.
    trees, begins = [tree], list[int]()
    for node in trees:
        begins.append(len(trees))
        trees.extend(_children_of(node))
    begins.append(len(trees))
    terms: list[Term] = [_UNKNOWN] * len(trees)
    for place in reversed(range(len(trees))):
        terms[place] = _json_term(trees[place], tuple(terms[begins[place] : begins[place + 1]]))
    return terms[0]


def _children_of(tree: object) -> Sequence[object]:
    if not isinstance(tree, Mapping) or "column" in tree or "literal" in tree:
        return ()
    children: Sequence[object] = tree.get("children", ())
    return children


def _json_term(tree: object, children: tuple[Term, ...]) -> Term:
    if not isinstance(tree, Mapping):
        return _UNKNOWN
    if "column" in tree:
        return Reference(tuple(map(str, tree["column"])))
    if "literal" in tree:
        try:
            return Literal(_json_value(tree["literal"], str(tree.get("type"))))
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException, KeyError, binascii.Error):
            return _UNKNOWN
    return Operation(str(tree.get("name")), children)


_JSON_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": lambda value: _check_kind(value, bool),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), lambda value: _check_kind(value, int)),
    # The shortest text of a single-precision value is another number in double precision.
    "float": lambda value: pa.scalar(float(value), pa.float32()).as_py(),
    "double": float,
    "decimal": lambda value: decimal.Decimal(_check_kind(value, str)),
    "string": lambda value: _check_kind(value, str),
    "binary": lambda value: base64.b64decode(_check_kind(value, str), validate=True),
    "date": lambda value: pa.scalar(_check_kind(value, int), pa.int32()).cast(pa.date32()),
    "timestamp": lambda value: pa.scalar(_check_kind(value, int), pa.timestamp("us", tz="UTC")),
    "void": lambda value: _check_kind(value, type(None)),
    "timestamp_ntz": lambda value: pa.scalar(_check_kind(value, int), pa.timestamp("us")),
}
"""Spark's types, without parameters. A string with a collation is not among them."""


def _check_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _json_value(value: Any, type_text: str) -> Any:
    convert = _JSON_TYPES["decimal" if type_text.startswith("decimal(") else type_text]
    return None if value is None else convert(value)


REPLACEMENT: Final = "\ufffd"
"""The character that Spark puts into a data source's filters for bytes that are not UTF-8, so it may stand for them."""

_FILTERS: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "IN",
    "IsNull": "IS_NULL",
    "IsNotNull": "IS_NOT_NULL",
    "StringStartsWith": "STARTS_WITH",
}
"""Classes of `pyspark.sql.datasource`, with Spark's names of the same operations."""


FIRST_KEPT_YEAR: Final = 1901
"""First year whose dates and times Spark passes to a data source unchanged. It converts them to the calendar of
java.sql, which lacks the days from 5 to 14 October 1582, and has other offsets of time zones before 1900."""


def _may_be_another(value: object) -> bool:
    """Whether Spark may have replaced another value by this one in a filter."""
    if isinstance(value, datetime.date):
        return value.year < FIRST_KEPT_YEAR
    return isinstance(value, str) and REPLACEMENT in value


def from_filter(item: Filter) -> Term:
    """Read a filter that Spark passes to a Python data source. A filter of an unknown class has no translation."""
    kind = type(item).__name__
    attributes = vars(item)
    if kind == "Not":
        return Operation("NOT", (from_filter(attributes["child"]),))
    name = _FILTERS.get(kind)
    if name is None:
        return _UNKNOWN
    values = () if "value" not in attributes else attributes["value"] if name == "IN" else (attributes["value"],)
    if any(map(_may_be_another, values)):
        return _UNKNOWN
    literals = tuple(Literal(bytes(value) if isinstance(value, bytearray) else value) for value in values)
    return Operation(name, (Reference(tuple(attributes["attribute"])), *literals))


# ---- translation

_Found = tuple[Predicate | None, bool]
"""A predicate, and whether it has the same truth value as the term for every row."""

_COMPARISONS: Final[Mapping[str, Comparison]] = {flipped: flipped for flipped in FLIPPED.values()}
_NOTHING: Final[_Found] = (None, False)


class _Translator:
    """Translates terms over the columns of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def weaker(self, term: Term, depth: int = 0) -> _Found:
        """Return a predicate that is true for every row for which the term is true."""
        return self._approximate(term, depth, is_weaker=True)

    def _approximate(self, term: Term, depth: int, *, is_weaker: bool) -> _Found:
        """Return a predicate that is true if the term is; or, unless `is_weaker`, one that is false if the term is."""
        if depth >= DEPTH_MAX:
            return _NOTHING
        if isinstance(term, Operation) and term.name in ("AND", "OR"):
            parts = [
                self._approximate(part, depth + 1, is_weaker=is_weaker) for part in _chain(term.name, term.children)
            ]
            return _join(term.name, parts, is_weaker=is_weaker)
        if isinstance(term, Operation) and term.name == "NOT" and len(term.children) == 1:
            part, is_exact = self._approximate(term.children[0], depth + 1, is_weaker=not is_weaker)
            return (None if part is None else _try_build(lambda: ~part)), is_exact
        try:
            predicate = self._leaf(term, is_weaker=is_weaker)
            return (None, False) if predicate is None else (predicate, not self._has_zero(term))
        except InvalidRequest:  # a value that cannot be compared with the column
            return _NOTHING

    def _leaf(self, term: Term, *, is_weaker: bool) -> Predicate | None:
        if isinstance(term, Reference):
            name = self._column(term)
            return Compare(name, "=", True) if name is not None and pa.types.is_boolean(self._kind(name)) else None
        if isinstance(term, Literal):
            return {True: And(()), False: Or(())}.get(term.value) if isinstance(term.value, bool) else None
        if term.name in ("ALWAYS_TRUE", "ALWAYS_FALSE"):
            return And(()) if term.name == "ALWAYS_TRUE" else Or(())
        if term.name in FLIPPED and len(term.children) == 2 and isinstance(term.children[0], Literal):
            term = Operation(FLIPPED[term.name], term.children[::-1])
        name = self._column(term.children[0]) if term.children else None
        values = term.children[1:]
        literals = [value.value for value in values if isinstance(value, Literal)]
        if name is None or len(literals) < len(values):
            return None
        if term.name in ("IS_NULL", "IS_NOT_NULL") and not literals:
            return IsNull(name) if term.name == "IS_NULL" else Not(IsNull(name))
        if not all(_fits(value, self._kind(name)) for value in literals):
            return None
        if not is_weaker and self._has_zero(term):
            return None
        predicate = _operation(term.name, name, literals)
        return None if predicate is None else _bind(predicate, self._schema)

    def _column(self, term: Term) -> str | None:
        """Return the name of a column of the table; None: the term is a field inside of a column, or something else."""
        if not isinstance(term, Reference) or len(term.parts) != 1:
            return None
        (name,) = term.parts
        return name if name in self._schema.names else None

    def _kind(self, name: str) -> pa.DataType:
        return self._schema.field(name).type

    @staticmethod
    def _has_zero(term: Term) -> bool:
        """Whether an IN over floats has a zero: some of Spark's implementations of IN distinguish the two zeros."""
        if not isinstance(term, Operation) or term.name != "IN":
            return False
        values = (part.value for part in term.children if isinstance(part, Literal))
        return any(isinstance(value, float) and value == 0 for value in values)


def _chain(name: str, terms: Sequence[Term]) -> list[Term]:
    """Return the parts of nested ANDs, or of nested ORs, in order. Spark nests pairs."""
    parts: list[Term] = []
    rest = list(reversed(terms))
    while rest:
        term = rest.pop()
        if isinstance(term, Operation) and term.name == name:
            rest.extend(reversed(term.children))
        else:
            parts.append(term)
    return parts


def _join(name: str, parts: Sequence[_Found], *, is_weaker: bool) -> _Found:
    """Join parts. Leave out those without a translation if this errs on the allowed side."""
    predicates = [predicate for predicate, _ in parts if predicate is not None]
    may_leave_out = is_weaker == (name == "AND")
    if not predicates or (len(predicates) < len(parts) and not may_leave_out):
        return _NOTHING
    kind = And if name == "AND" else Or
    joined = predicates[0] if len(predicates) == 1 else _try_build(lambda: kind(tuple(predicates)))
    return joined, joined is not None and all(predicate is not None and is_exact for predicate, is_exact in parts)


def _try_build(build: Callable[[], Predicate]) -> Predicate | None:
    """Return a predicate; None if it would be deeper or longer than predicates may be."""
    try:
        return build()
    except InvalidRequest:
        return None


def _bind(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """Check a predicate against the columns, and return it. Raises `InvalidRequest`."""
    bind(predicate, schema)
    return predicate


def _operation(name: str, column: str, literals: Sequence[Any]) -> Predicate | None:
    if name == "IN":
        return _one_of(column, literals)
    if len(literals) != 1:
        return None
    (value,) = literals
    if name == "STARTS_WITH":
        return StartsWith(column, value) if isinstance(value, str) else None
    if name == "<=>":
        if value is None:
            return IsNull(column)
        return And((Not(IsNull(column)), _comparison(column, "=", value)))
    return _comparison(column, _COMPARISONS[name], value) if name in _COMPARISONS else None


def _one_of(column: str, values: Sequence[Any]) -> Predicate:
    numbers = tuple(value for value in values if not _is_nan(value))
    membership = In(column, numbers)
    if len(numbers) == len(values):
        return membership
    is_nan = _comparison(column, "=", math.nan)
    return Or((membership, is_nan)) if numbers else is_nan


def _comparison(column: str, op: Comparison, value: Any) -> Predicate:
    """Return a comparison with Spark's meaning: NaN equals itself and is above every number; null gives unknown."""
    if _is_nan(value):
        is_number = Compare(column, "<=", math.inf)
        if op in ("=", ">="):
            return Not(is_number)
        if op in ("<>", "<"):
            return is_number
        conditions = (is_number, Not(is_number))
        return Or(conditions) if op == "<=" else And(conditions)
    if op in (">", ">=") and isinstance(value, float):
        return Not(Compare(column, "<=" if op == ">" else "<", value))
    return Compare(column, op, value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether lakebed compares this value with a column of this type as Spark does."""
    types = pa.types
    if types.is_nested(kind) or types.is_time(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        return False  # Spark lacks this type, or keeps fewer digits of its values
    if value is None:
        return True
    if types.is_boolean(kind):
        return isinstance(value, bool)
    if types.is_integer(kind) or types.is_decimal(kind):
        return isinstance(value, int | decimal.Decimal) and not isinstance(value, bool)
    if types.is_floating(kind):
        return isinstance(value, float)
    if types.is_string(kind) or types.is_large_string(kind):
        return isinstance(value, str)
    if types.is_timestamp(kind):
        return _is_instant(value) if kind.tz else _is_local(value)
    if types.is_date(kind):
        is_day = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
        return is_day or (isinstance(value, pa.Scalar) and types.is_date(value.type))
    return isinstance(value, bytes)


def _is_instant(value: Any) -> bool:
    if isinstance(value, pa.Scalar):
        return pa.types.is_timestamp(value.type) and value.type.tz is not None
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _is_local(value: Any) -> bool:
    if isinstance(value, pa.Scalar):
        return pa.types.is_timestamp(value.type) and value.type.tz is None
    return isinstance(value, datetime.datetime) and value.tzinfo is None
