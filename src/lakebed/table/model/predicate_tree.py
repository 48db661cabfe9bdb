"""Predicates as immutable expression trees, and the builder `column`. Pure data.

Owns: the nodes `Compare`, `In`, `IsNull`, `StartsWith`, `And`, `Or` and `Not`, which users build, and `OneOf` and
`Known`, which only `predicate.bind` makes.

Invariants:
- SQL's three-valued logic: a comparison with null is unknown, and only rows for which the predicate is true are kept.
- Floats are compared by IEEE 754: no value is equal to, below or above NaN, ``<>`` is true for it, and 0.0 equals -0.0.
- A predicate pickles. Its depth and number of terms are limited when it is built, so that code may recurse over it.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from lakebed.errors import InvalidRequest

DEPTH_MAX: Final = 100
"""Limit of nested AND, OR and NOT; a chain of one operator counts once."""
TERMS_MAX: Final = 100_000
"""Limit of comparisons in a predicate; all values of one IN count as one."""

Comparison = Literal["=", "<>", "<", "<=", ">", ">="]
FLIPPED: Final[dict[str, Comparison]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
KEYWORDS: Final = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE"])
"""Words that name a column only in quotes."""


class Predicate:
    """A filter over rows. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return _chain(And, self, other)

    def __or__(self, other: Predicate) -> Predicate:
        return _chain(Or, self, other)

    def __invert__(self) -> Predicate:
        return self.part if isinstance(self, Not) else Not(self)


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """``column <op> value``; after `bind` the value is an Arrow scalar."""

    column: str
    op: Comparison
    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_compare, (self.column, self.op, _pack(self.value))

    def __str__(self) -> str:
        return f"{_name_text(self.column)} {self.op} {_literal_text(self.value)}"


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """``column IN (values)``; false for an empty list."""

    column: str
    values: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_in, (self.column, tuple(map(_pack, self.values)))

    def __str__(self) -> str:
        return f"{_name_text(self.column)} IN ({', '.join(map(_literal_text, self.values))})"


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """``column IS NULL``."""

    column: str

    def __str__(self) -> str:
        return f"{_name_text(self.column)} IS NULL"


@dataclass(frozen=True, slots=True)
class StartsWith(Predicate):
    """``column LIKE 'prefix%'``."""

    column: str
    prefix: str

    def __str__(self) -> str:
        return f"{_name_text(self.column)} LIKE {_literal_text(self.prefix + '%')}"


@dataclass(frozen=True, slots=True)
class _Chain(Predicate):
    parts: tuple[Predicate, ...]
    depth: int = field(init=False, repr=False, compare=False)
    terms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _measure(self, 1 + max(map(_depth, self.parts), default=0), sum(map(_terms, self.parts)))


class And(_Chain):
    """All of them; true for none."""

    __slots__ = ()

    def __str__(self) -> str:
        return " AND ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts) or "TRUE"


class Or(_Chain):
    """Any of them; false for none."""

    __slots__ = ()

    def __str__(self) -> str:
        return " OR ".join(f"({part})" if isinstance(part, And) else str(part) for part in self.parts) or "FALSE"


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The negation; unknown stays unknown."""

    part: Predicate
    depth: int = field(init=False, repr=False, compare=False)
    terms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _measure(self, 1 + _depth(self.part), _terms(self.part))

    def __str__(self) -> str:
        return f"NOT ({self.part})"


@dataclass(frozen=True, slots=True, eq=False)
class OneOf(Predicate):
    """A bound `In`: the column is one of `values`."""

    column: str
    values: pa.Array
    """Distinct, without null and NaN; of the column's type, float64 for columns of floats."""
    has_null: bool
    """Whether the list also has null: then a value that is not in the list is unknown."""

    def __str__(self) -> str:
        return str(In(self.column, (*self.values.to_pylist(), *([None] if self.has_null else []))))


@dataclass(frozen=True, slots=True)
class Known(Predicate):
    """A bound comparison with the same result for every value of the column; unknown for null."""

    column: str
    truth: bool

    def __str__(self) -> str:
        return f"({_name_text(self.column)} IS NOT NULL) = {str(self.truth).upper()}"


def _pack(value: Any) -> Any:
    """A value in the form in which it is pickled.

    Arrow pickles a scalar as Python's value, which some dates and times do not have.
    """
    return pa.repeat(value, 1) if isinstance(value, pa.Scalar) else value


def _unpack(value: Any) -> Any:
    return value[0] if isinstance(value, pa.Array) else value


def _unpack_compare(column: str, op: Comparison, value: Any) -> Compare:
    return Compare(column, op, _unpack(value))


def _unpack_in(column: str, values: tuple[Any, ...]) -> In:
    return In(column, tuple(map(_unpack, values)))


def _depth(predicate: Predicate) -> int:
    return predicate.depth if isinstance(predicate, _Chain | Not) else 1


def _terms(predicate: Predicate) -> int:
    return predicate.terms if isinstance(predicate, _Chain | Not) else 1


def _measure(node: _Chain | Not, depth: int, terms: int) -> None:
    """Store the size of a node. Raises `InvalidRequest`: it is above `DEPTH_MAX` or `TERMS_MAX`."""
    if depth > DEPTH_MAX or terms > TERMS_MAX:
        extent = f"{depth} levels deep" if depth > DEPTH_MAX else f"{terms:,} comparisons long"
        raise InvalidRequest(
            f"The filter is {extent}; at most {DEPTH_MAX} levels and {TERMS_MAX:,} comparisons are allowed. Use IN for "
            "many values of one column, or join a table of the values.",
            kind="invalid_predicate",
        )
    object.__setattr__(node, "depth", depth)
    object.__setattr__(node, "terms", terms)


def _chain(kind: type[And] | type[Or], left: Predicate, right: Predicate) -> Predicate:
    """Join two predicates; a chain of the same operator is one node. Cost: a copy of the tuple of parts."""
    parts: list[tuple[Predicate, ...]] = []
    depth = 0
    for side in (left, right):
        is_chain = isinstance(side, kind)
        parts.append(side.parts if isinstance(side, kind) else (side,))
        depth = max(depth, _depth(side) if is_chain else 1 + _depth(side))
    node = object.__new__(kind)
    object.__setattr__(node, "parts", parts[0] + parts[1])
    _measure(node, depth, _terms(left) + _terms(right))
    return node


def _name_text(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.upper() not in KEYWORDS
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def _literal_text(value: Any) -> str:
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float | decimal.Decimal):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column in an expression: ``column("month") >= 2``. Its ``==`` returns a predicate."""

    name: str

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return Compare(self.name, "=", value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return Compare(self.name, "<>", value)

    def __lt__(self, value: object) -> Predicate:
        return Compare(self.name, "<", value)

    def __le__(self, value: object) -> Predicate:
        return Compare(self.name, "<=", value)

    def __gt__(self, value: object) -> Predicate:
        return Compare(self.name, ">", value)

    def __ge__(self, value: object) -> Predicate:
        return Compare(self.name, ">=", value)

    __hash__ = None  # type: ignore[assignment]

    def is_in(self, values: Iterable[Any]) -> Predicate:
        """Equal to one of some values."""
        return In(self.name, tuple(values))

    def between(self, low: Any, high: Any) -> Predicate:
        """At least `low` and at most `high`."""
        return And((Compare(self.name, ">=", low), Compare(self.name, "<=", high)))

    def is_null(self) -> Predicate:
        """True for null."""
        return IsNull(self.name)

    def is_not_null(self) -> Predicate:
        """True for every value except null."""
        return Not(IsNull(self.name))

    def starts_with(self, prefix: str) -> Predicate:
        """A text with this prefix."""
        return StartsWith(self.name, prefix)


def column(name: str) -> Column:
    """A column, to build a predicate from: ``(column("carrier") == "UA") & (column("month") >= 2)``."""
    return Column(name)


def all_of(parts: Iterable[Predicate | None]) -> Predicate | None:
    """The conjunction of the parts that are not None; None if there is none."""
    conditions = tuple(part for part in parts if part is not None)
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else And(conditions)


def conjuncts(predicate: Predicate) -> list[Predicate]:
    """The parts that must all be true."""
    if isinstance(predicate, And):
        return [inner for part in predicate.parts for inner in conjuncts(part)]
    return [predicate]


def columns_of(predicate: Predicate) -> set[str]:
    """Names of its columns."""
    if isinstance(predicate, And | Or):
        return {name for part in predicate.parts for name in columns_of(part)}
    if isinstance(predicate, Not):
        return columns_of(predicate.part)
    assert isinstance(predicate, Compare | In | IsNull | StartsWith | OneOf | Known)
    return {predicate.column}


def possible_values(predicate: Predicate, name: str) -> tuple[Any, ...] | None:
    """The values that a column can have in matching rows, by its ``=`` and ``IN`` conjuncts; None: any value."""
    for part in conjuncts(predicate):
        if isinstance(part, Compare) and part.column == name and part.op == "=":
            return (part.value,)
        if isinstance(part, In) and part.column == name:
            return part.values
        if isinstance(part, OneOf) and part.column == name:
            return tuple(part.values)
    return None
