"""The parser of predicates in WHERE-like text. Pure.

Owns: the grammar that `parse_predicate` documents. Invariants: every text yields a predicate or `InvalidRequest`; the
depth of recursion is limited.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass
from typing import Any, Final

from lakebed.errors import InvalidRequest
from lakebed.table.model.predicate_tree import (
    DEPTH_MAX,
    FLIPPED,
    And,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
)

TEXT_LENGTH_MAX: Final = 16 << 20
"""Limit of characters; an IN of some hundred thousand values fits."""
_SHOWN_MAX: Final = 200
"""Characters of a filter that an error message quotes."""
_INTEGER_DIGITS_MAX: Final = 400
"""Longer integers are parsed as decimals: Python refuses integers of some thousand digits."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'[^']*(?:''[^']*)*')"
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
        self.index = 0
        self.depth = 0
        self.tokens = self._tokenize()

    def error(self, position: int, expected: str) -> InvalidRequest:
        snippet = self.text[position : position + 20] or "the end"
        shown = self.text if len(self.text) <= _SHOWN_MAX else self.text[:_SHOWN_MAX] + "..."
        return InvalidRequest(
            f"The filter {shown!r} cannot be read at {snippet!r} (character {position + 1}): expected {expected}.",
            kind="invalid_predicate",
            position=position,
        )

    def _tokenize(self) -> list[_Token]:
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
        negated = False
        while self.accept("NOT"):
            negated = not negated
        if self.accept("("):
            self.depth += 1
            if self.depth > DEPTH_MAX:
                raise self.error(self.ahead.position, f"at most {DEPTH_MAX} parentheses inside one another")
            condition = self.disjunction()
            self.expect(")")
            self.depth -= 1
        else:
            condition = self.comparison()
        return Not(condition) if negated else condition

    def comparison(self) -> Predicate:
        if self.ahead.kind not in ("word", "quoted"):
            value = self.literal()
            op = self.operator()
            return Compare(self.name(), FLIPPED[op], value)
        name = self.name()
        if self.accept("IS"):
            negated = self.accept("NOT")
            self.expect("NULL")
            return Not(IsNull(name)) if negated else IsNull(name)
        negated = self.accept("NOT")
        if self.accept("IN"):
            condition: Predicate = In(name, self.literals())
        elif self.accept("BETWEEN"):
            low = self.literal()
            self.expect("AND")
            condition = Column(name).between(low, self.literal())
        elif self.accept("LIKE"):
            condition = self.like(name)
        elif negated:
            raise self.error(self.ahead.position, "IN, BETWEEN or LIKE after NOT")
        elif self.ahead.kind == "op" and self.ahead.text not in "(),":
            return Compare(name, self.operator(), self.literal())
        else:
            return Compare(name, "=", True)
        return Not(condition) if negated else condition

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
        if token.kind != "op" or op not in FLIPPED:
            raise self.error(token.position, "one of = <> < <= > >=")
        return FLIPPED[FLIPPED[op]]

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
            return self.number(token)
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE", "NULL"):
            return {"TRUE": True, "FALSE": False, "NULL": None}[token.text]
        if token.kind == "keyword" and token.text in ("DATE", "TIMESTAMP") and self.ahead.kind == "text":
            # The type of the column decides how the text is read.
            return self.literal()
        raise self.error(token.position, "a value such as 'UA', 42, 1.5, TRUE, NULL or DATE '2013-01-01'")

    def number(self, token: _Token) -> int | decimal.Decimal:
        if len(token.text) <= _INTEGER_DIGITS_MAX and re.fullmatch(r"[+-]?[0-9]+", token.text):
            return int(token.text)
        try:
            return decimal.Decimal(token.text)
        except decimal.InvalidOperation as error:
            raise self.error(token.position, "a number with a smaller exponent") from error

    def like(self, name: str) -> Predicate:
        token = self.next()
        if token.kind != "text":
            raise self.error(token.position, "a pattern such as 'UA%'")
        pattern = token.text[1:-1].replace("''", "'")
        prefix = pattern.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            raise self.error(token.position, "a pattern with a single % at its end")
        return StartsWith(name, prefix) if pattern.endswith("%") else Compare(name, "=", prefix)


def as_predicate(where: object) -> Predicate:
    """A predicate from what a caller gave as one: a predicate, or its text.

    Raises `InvalidRequest`: it is neither, or as `parse_predicate`.
    """
    if isinstance(where, Predicate):
        return where
    if isinstance(where, str):
        return parse_predicate(where)
    raise InvalidRequest(
        f'A filter is text such as "id = 1", or a predicate made with column(), and {type(where).__name__} was '
        "given. Rows to delete by their keys are given as keys=.",
        kind="invalid_predicate",
    )


def parse_predicate(text: str) -> Predicate:
    """A predicate from text such as ``carrier = 'UA' and month >= 2``.

    Supported: ``= == <> != < <= > >=``, IN, BETWEEN, IS NULL, LIKE 'prefix%', AND, OR, NOT, parentheses; names in
    backquotes or double quotes; values in single quotes, numbers, TRUE, FALSE, NULL, DATE '...', TIMESTAMP '...'.

    Raises:
        InvalidRequest: a syntax error (the message has its position), or the text is too long or nested too deeply.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidRequest(
            f"The filter is {len(text):,} characters long; at most {TEXT_LENGTH_MAX:,} are allowed.",
            kind="invalid_predicate",
        )
    return _Parser(text).whole()
