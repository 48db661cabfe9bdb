"""Filters: an immutable expression tree, its text form, and its meaning for rows.

Owns: the tree (`Compare`, `In`, `IsNull`, `StartsWith`, `And`, `Or`, `Not`), the builder `column`, the parser of
WHERE-like text, and the translation to Arrow. Invariants: SQL's three-valued logic (a comparison with null is neither
true nor false, and only true keeps a row); a predicate is plain data that pickles; column names are checked by `bind`,
which every user of a predicate calls first. `prune.py` decides by statistics what cannot match.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidRequest

__all__ = [
    "And",
    "Column",
    "Compare",
    "In",
    "IsNull",
    "Not",
    "Or",
    "Predicate",
    "StartsWith",
    "all_of",
    "bind",
    "column",
    "columns_of",
    "conjuncts",
    "parse_predicate",
    "required_values",
    "to_arrow",
]

Comparison = Literal["=", "<>", "<", "<=", ">", ">="]
_FLIPPED: Final[dict[str, Comparison]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Predicate:
    """A filter over rows. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return And((self, other))

    def __or__(self, other: Predicate) -> Predicate:
        return Or((self, other))

    def __invert__(self) -> Predicate:
        return Not(self)


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """``column <op> value``; after `bind` the value is an Arrow scalar."""

    column: str
    op: Comparison
    value: Any

    def __str__(self) -> str:
        return f"{_name_text(self.column)} {self.op} {_literal_text(self.value)}"


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """``column IN (values)``; false for an empty list."""

    column: str
    values: tuple[Any, ...]

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
class And(Predicate):
    """All of them; true for none."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts) or "TRUE"


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Any of them; false for none."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({part})" if isinstance(part, And) else str(part) for part in self.parts) or "FALSE"


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The contrary; of unknown, unknown."""

    part: Predicate

    def __str__(self) -> str:
        return f"NOT ({self.part})"


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


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
    """A column in an expression: ``column("month") >= 2``. Its ``==`` makes a predicate, it does not compare."""

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
        """Without value."""
        return IsNull(self.name)

    def is_not_null(self) -> Predicate:
        """With a value."""
        return Not(IsNull(self.name))

    def starts_with(self, prefix: str) -> Predicate:
        """A text that begins so."""
        return StartsWith(self.name, prefix)


def column(name: str) -> Column:
    """A column, to build a predicate from: ``(column("carrier") == "UA") & (column("month") >= 2)``."""
    return Column(name)


def all_of(parts: Iterable[Predicate | None]) -> Predicate | None:
    """The conjunction of those that are not None; None when there is none."""
    kept = tuple(part for part in parts if part is not None)
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else And(kept)


def conjuncts(predicate: Predicate) -> list[Predicate]:
    """The parts all of which must be true."""
    if isinstance(predicate, And):
        return [inner for part in predicate.parts for inner in conjuncts(part)]
    return [predicate]


def columns_of(predicate: Predicate) -> set[str]:
    """Names of the columns it looks at."""
    if isinstance(predicate, And | Or):
        return {name for part in predicate.parts for name in columns_of(part)}
    if isinstance(predicate, Not):
        return columns_of(predicate.part)
    assert isinstance(predicate, Compare | In | IsNull | StartsWith)
    return {predicate.column}


def required_values(predicate: Predicate, name: str) -> tuple[Any, ...] | None:
    """The only values a column may have in matching rows, from its ``=`` and ``IN`` conjuncts; None: not so bounded."""
    for part in conjuncts(predicate):
        if isinstance(part, Compare) and part.column == name and part.op == "=":
            return (part.value,)
        if isinstance(part, In) and part.column == name:
            return part.values
    return None


# Binding and Arrow ----------------------------------------------------------------------------------------------------


def bind(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """The predicate with its columns checked and its values as Arrow scalars of the columns' types.

    Raises:
        InvalidRequest: a column that does not exist (suggests the nearest), or a value that cannot be compared with it.
    """
    if isinstance(predicate, And):
        return And(tuple(bind(part, schema) for part in predicate.parts))
    if isinstance(predicate, Or):
        return Or(tuple(bind(part, schema) for part in predicate.parts))
    if isinstance(predicate, Not):
        return Not(bind(predicate.part, schema))
    assert isinstance(predicate, Compare | In | IsNull | StartsWith)
    kind = _type_in(schema, predicate.column)
    if isinstance(predicate, Compare):
        return Compare(predicate.column, predicate.op, _scalar(predicate.column, predicate.value, kind))
    if isinstance(predicate, In):
        return In(predicate.column, tuple(_scalar(predicate.column, value, kind) for value in predicate.values))
    if isinstance(predicate, StartsWith) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InvalidRequest(
            f"LIKE needs a text column; {predicate.column!r} is {kind}.",
            kind="invalid_predicate",
            column=predicate.column,
        )
    return predicate


def _type_in(schema: pa.Schema, name: str) -> pa.DataType:
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index).type
    near = get_close_matches(name, schema.names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(schema.names)}."
    raise InvalidRequest(f"Column {name!r} does not exist: {hint}", kind="unknown_column", column=name)


def _scalar(name: str, value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, pa.Scalar):
        value = value if value.type == kind else value.as_py()
    if isinstance(value, pa.Scalar):
        return value
    if value is None:
        return pa.scalar(None, kind)
    try:
        return _converted(value, kind)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        ValueError,
        TypeError,
    ) as error:
        raise InvalidRequest(
            f"Column {name!r} is {kind} and cannot be compared with {value!r}.", kind="invalid_predicate", column=name
        ) from error


def _converted(value: Any, kind: pa.DataType) -> pa.Scalar:
    """The value in the column's type; a number the type cannot hold exactly keeps a wider type of its own."""
    types, is_number = pa.types, isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
    if types.is_integer(kind) or types.is_decimal(kind):
        if not is_number:
            raise TypeError
        exact = decimal.Decimal(value)
        if not exact.is_finite():
            return pa.scalar(float(value), pa.float64())
        whole = exact == exact.to_integral_value()
        if types.is_integer(kind) and not whole:
            return pa.scalar(float(exact), pa.float64())
        for wider in (kind, pa.int64()) if whole else (kind,):
            try:
                return pa.scalar(int(exact) if types.is_integer(wider) else exact, wider)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                continue
        return pa.scalar(float(exact), pa.float64())
    if types.is_floating(kind):
        if not is_number:
            raise TypeError
        # Compared in double precision: 0.1 in single precision is another number.
        return pa.scalar(float(value), pa.float64())
    if types.is_boolean(kind) != isinstance(value, bool) or (is_number and not types.is_boolean(kind)):
        raise TypeError
    if types.is_timestamp(kind) and isinstance(value, str | datetime.date):
        return _timestamp(value, kind)
    if isinstance(value, str) and (types.is_date(kind) or types.is_time(kind)):
        return pa.scalar(value).cast(kind)
    if isinstance(value, str) and types.is_binary(kind):
        return pa.scalar(value.encode(), kind)
    return pa.scalar(value, kind)


def _timestamp(value: str | datetime.date, kind: pa.DataType) -> pa.Scalar:
    """A moment in the column's unit; text and naive times are UTC where the column has a zone."""
    moment = datetime.datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    if not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    exact = pa.scalar(micros, pa.timestamp("us", tz=kind.tz))
    return exact.cast(kind) if kind.unit == "ns" else exact


_ARROW_COMPARISON: Final = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def to_arrow(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """The filter expression for rows of `schema`; binds first. Works for datasets, tables and record batches."""
    return _expression(bind(predicate, schema), schema)


def _expression(bound: Predicate, schema: pa.Schema) -> pc.Expression:
    if isinstance(bound, And | Or):
        whole = pc.scalar(isinstance(bound, And))
        for index, part in enumerate(bound.parts):
            inner = _expression(part, schema)
            whole = inner if index == 0 else (whole & inner if isinstance(bound, And) else whole | inner)
        return whole
    if isinstance(bound, Not):
        return ~_expression(bound.part, schema)
    assert isinstance(bound, Compare | In | IsNull | StartsWith)
    field = pc.field(bound.column)
    if isinstance(bound, Compare):
        return _ARROW_COMPARISON[bound.op](
            _comparable(field, bound.value, schema.field(bound.column).type), bound.value
        )
    if isinstance(bound, In):
        whole = pc.scalar(pa.scalar(False))
        kind = schema.field(bound.column).type
        same = [value for value in bound.values if value.type == kind and value.is_valid]
        if same:
            # Arrow's own IN calls a null "not in"; SQL calls it unknown, which NOT must not turn into true.
            found = pc.field(bound.column).isin(pa.array([value.as_py() for value in same], kind))
            whole = pc.if_else(field.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))
        for value in bound.values:
            if value.type != kind or not value.is_valid:
                whole = whole | pc.equal(_comparable(field, value, kind), value)
        return whole
    if isinstance(bound, IsNull):
        return field.is_null()
    return pc.starts_with(field, pattern=bound.prefix)


def _comparable(field: pc.Expression, value: pa.Scalar, kind: pa.DataType) -> pc.Expression:
    return field if value.type == kind else field.cast(value.type, safe=False)


# Text -----------------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<quoted>`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\")"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<op><=|>=|<>|!=|==|=|<|>|\(|\)|,))"
)
_WORDS: Final = frozenset(
    ["AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE", "DATE", "TIMESTAMP"]
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    """Recursive descent: or, and, not, then one comparison."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokenized()
        self.index = 0

    def error(self, position: int, expected: str) -> InvalidRequest:
        found = self.text[position : position + 20] or "the end"
        return InvalidRequest(
            f"The filter {self.text!r} cannot be read at {found!r} (character {position + 1}): expected {expected}.",
            kind="invalid_predicate",
            position=position,
        )

    def _tokenized(self) -> list[_Token]:
        tokens, position, end = [], 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None or match.lastgroup is None:
                raise self.error(position, "a column, a value or an operator")
            kind, text = match.lastgroup, match[match.lastgroup]
            if kind == "word" and text.upper() in _WORDS:
                kind, text = "keyword", text.upper()
            tokens.append(_Token(kind, text, match.start(match.lastgroup)))
            position = match.end()
        return [*tokens, _Token("end", "", end)]

    @property
    def ahead(self) -> _Token:
        return self.tokens[self.index]

    def next(self) -> _Token:
        token = self.ahead
        self.index += 1
        return token

    def accept(self, *texts: str) -> bool:
        tokens = self.tokens[self.index : self.index + len(texts)]
        if [token.text for token in tokens if token.kind in ("keyword", "op")] != list(texts):
            return False
        self.index += len(texts)
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(self.ahead.position, repr(text))

    def whole(self) -> Predicate:
        predicate = self.disjunction()
        if self.ahead.kind != "end":
            raise self.error(self.ahead.position, "AND, OR or the end")
        return predicate

    def disjunction(self) -> Predicate:
        parts = [self.conjunction()]
        while self.accept("OR"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self) -> Predicate:
        parts = [self.negation()]
        while self.accept("AND"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def negation(self) -> Predicate:
        if self.accept("NOT"):
            return Not(self.negation())
        if self.accept("("):
            inner = self.disjunction()
            self.expect(")")
            return inner
        return self.comparison()

    def comparison(self) -> Predicate:
        if self.ahead.kind not in ("word", "quoted"):
            value = self.literal()
            op = self.operator()
            return Compare(self.name(), _FLIPPED[op], value)
        name = self.name()
        if self.accept("IS"):
            negated = self.accept("NOT")
            self.expect("NULL")
            return Not(IsNull(name)) if negated else IsNull(name)
        negated = self.accept("NOT")
        if self.accept("IN"):
            found: Predicate = In(name, self.literals())
        elif self.accept("BETWEEN"):
            low = self.literal()
            self.expect("AND")
            found = Column(name).between(low, self.literal())
        elif self.accept("LIKE"):
            found = self.like(name)
        elif negated:
            raise self.error(self.ahead.position, "IN, BETWEEN or LIKE after NOT")
        elif self.ahead.kind == "op" and self.ahead.text not in "(),":
            return Compare(name, self.operator(), self.literal())
        else:
            return Compare(name, "=", True)
        return Not(found) if negated else found

    def name(self) -> str:
        token = self.next()
        if token.kind == "quoted":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind != "word":
            raise self.error(token.position, "a column")
        return token.text

    def operator(self) -> Comparison:
        token = self.next()
        op = {"==": "=", "!=": "<>"}.get(token.text, token.text)
        if token.kind != "op" or op not in _FLIPPED:
            raise self.error(token.position, "one of = <> < <= > >=")
        return _FLIPPED[_FLIPPED[op]]

    def literals(self) -> tuple[Any, ...]:
        self.expect("(")
        values = [self.literal()]
        while self.accept(","):
            values.append(self.literal())
        self.expect(")")
        return tuple(values)

    def literal(self) -> Any:
        token = self.next()
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number":
            return int(token.text) if re.fullmatch(r"[+-]?[0-9]+", token.text) else decimal.Decimal(token.text)
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE", "NULL"):
            return {"TRUE": True, "FALSE": False, "NULL": None}[token.text]
        if token.kind == "keyword" and token.text in ("DATE", "TIMESTAMP") and self.ahead.kind == "text":
            # The column's type decides; the word only says that the text is a time.
            return self.literal()
        raise self.error(token.position, "a value such as 'UA', 42, 1.5, TRUE, NULL or DATE '2013-01-01'")

    def like(self, name: str) -> Predicate:
        token = self.next()
        if token.kind != "text":
            raise self.error(token.position, "a pattern such as 'UA%'")
        pattern = token.text[1:-1].replace("''", "'")
        prefix = pattern.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            raise self.error(token.position, "a pattern with a single % at its end")
        return StartsWith(name, prefix) if pattern.endswith("%") else Compare(name, "=", prefix)


def parse_predicate(text: str) -> Predicate:
    """A predicate from text such as ``carrier = 'UA' and month >= 2``.

    Known are ``= == <> != < <= > >=``, IN, BETWEEN, IS NULL, LIKE 'prefix%', AND, OR, NOT, parentheses; names in
    backquotes or double quotes; values in single quotes, numbers, TRUE, FALSE, NULL, DATE '...', TIMESTAMP '...'.

    Raises:
        InvalidRequest: it cannot be read; says where.
    """
    return _Parser(text).whole()
