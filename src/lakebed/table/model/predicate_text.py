"""The parser of conditions in WHERE-like text: filters of tables, and through a subclass checks of pipelines. Pure.

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
    KEYWORDS,
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
    r"\s*(?:(?P<number>(?:[+-]\s*)?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))"
    r"|(?P<text>'[^']*(?:''[^']*)*')"
    r"|(?P<quoted>`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\")"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<op><=|>=|<>|!=|==|=|<|>|\(|\)|,|\*))"
)
_TYPES: Final = frozenset(["DATE", "TIMESTAMP"])
"""A type if a text follows; a column anywhere else."""
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_VALUE: Final = "a value such as 'UA', 42, 1.5, TRUE, NULL or DATE '2013-01-01'"


@dataclass(frozen=True, slots=True)
class Token:
    """A number, text, quoted name, word, keyword or operator. The last token of a text has the kind ``end``."""

    kind: str
    text: str
    position: int


class ConditionParser:
    """Recursive descent: or, and, not, then one comparison.

    A subclass with other operands replaces `operand`, `compare` and `members`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.index = 0
        self.depth = 0
        self.tokens = self._tokenize()

    def error(self, position: int, expected: str) -> InvalidRequest:
        """Return the error for a text with a mistake at a position."""
        snippet = self.text[position : position + 20] or "the end"
        excerpt = self.text if len(self.text) <= _SHOWN_MAX else self.text[:_SHOWN_MAX] + "..."
        return InvalidRequest(
            f"The filter {excerpt!r} cannot be read at {snippet!r} (character {position + 1}): expected {expected}.",
            kind="invalid_predicate",
            position=position,
        )

    def _tokenize(self) -> list[Token]:
        tokens, position, end = [], 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None or match.lastgroup is None:
                raise self.error(position, "a column, a value or an operator")
            kind, text = match.lastgroup, match[match.lastgroup]
            if kind == "word" and text.upper() in KEYWORDS:
                kind, text = "keyword", text.upper()
            tokens.append(Token(kind, text, match.start(match.lastgroup)))
            position = match.end()
        return [*tokens, Token("end", "", end)]

    @property
    def ahead(self) -> Token:
        """The next token, without taking it."""
        return self.tokens[self.index]

    def next(self) -> Token:
        """Take a token."""
        token = self.ahead
        self.index += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Take these keywords or operators if they are next; return whether they were."""
        tokens = self.tokens[self.index : self.index + len(texts)]
        if [token.text for token in tokens if token.kind in ("keyword", "op")] != list(texts):
            return False
        self.index += len(texts)
        return True

    def expect(self, text: str) -> None:
        """Take a keyword or an operator. Raises `InvalidRequest`."""
        if not self.accept(text):
            raise self.error(self.ahead.position, repr(text))

    def whole(self) -> Predicate:
        """Read the whole text."""
        predicate = self.disjunction()
        if self.ahead.kind != "end":
            raise self.error(self.ahead.position, "AND, OR or the end")
        return predicate

    def disjunction(self) -> Predicate:
        """Read conditions joined by OR."""
        parts = [self.conjunction()]
        while self.accept("OR"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self) -> Predicate:
        """Read conditions joined by AND."""
        parts = [self.negation()]
        while self.accept("AND"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def negation(self) -> Predicate:
        """Read a condition after any number of NOT."""
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
        """Read a comparison, or a boolean column."""
        left = self.operand()
        if not isinstance(left, Column):
            return self.compare(left, self.operator())
        if self.accept("IS"):
            negated = self.accept("NOT")
            self.expect("NULL")
            return Not(IsNull(left.name)) if negated else IsNull(left.name)
        negated = self.accept("NOT")
        if self.accept("IN"):
            self.expect("(")
            condition = self.members(left)
            self.expect(")")
        elif self.accept("BETWEEN"):
            low = self.compare(left, ">=")
            self.expect("AND")
            condition = And((low, self.compare(left, "<=")))
        elif self.accept("LIKE"):
            condition = self.like(left.name)
        elif negated:
            raise self.error(self.ahead.position, "IN, BETWEEN or LIKE after NOT")
        elif self.ahead.kind == "op" and self.ahead.text not in "(),":
            return self.compare(left, self.operator())
        else:
            return Compare(left.name, "=", True)
        return Not(condition) if negated else condition

    def compare(self, left: Any, op: Comparison) -> Predicate:
        """Compare an operand with the next one: a column with a value, or a value with a column."""
        position = self.ahead.position
        right = self.operand()
        if isinstance(left, Column):
            if isinstance(right, Column):
                raise self.error(position, _VALUE)
            return Compare(left.name, op, right)
        if not isinstance(right, Column):
            raise self.error(position, "a column")
        return Compare(right.name, FLIPPED[op], left)

    def members(self, left: Column) -> Predicate:
        """Read the values up to the next parenthesis; the predicate is that a column has one of them."""
        values = []
        while True:
            position = self.ahead.position
            values.append(self.operand())
            if isinstance(values[-1], Column):
                raise self.error(position, _VALUE)
            if not self.accept(","):
                return In(left.name, tuple(values))

    def name(self) -> str:
        """Take the name of a column."""
        token = self.next()
        if token.kind == "quoted":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind != "word":
            raise self.error(token.position, "a column")
        return token.text

    def operator(self) -> Comparison:
        """Take a sign of comparison."""
        token = self.next()
        op = {"==": "=", "!=": "<>"}.get(token.text, token.text)
        if token.kind != "op" or op not in FLIPPED:
            raise self.error(token.position, "one of = <> < <= > >=")
        return FLIPPED[FLIPPED[op]]

    def operand(self) -> Any:
        """Return the next column, as a `Column`, or value."""
        if self.ahead.text.upper() in _TYPES and self.tokens[self.index + 1].kind == "text":
            self.index += 1  # the type of the column decides how the text is read
        elif self.ahead.kind in ("word", "quoted"):
            return Column(self.name())
        token = self.next()
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number":
            return self.number(token)
        if token.kind == "keyword" and token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        raise self.error(token.position, _VALUE)

    def number(self, token: Token) -> int | decimal.Decimal:
        """Return the number in a token."""
        text = "".join(token.text.split())
        if len(text) <= _INTEGER_DIGITS_MAX and re.fullmatch(r"[+-]?[0-9]+", text):
            return int(text)
        try:
            return decimal.Decimal(text)
        except decimal.InvalidOperation as error:
            raise self.error(token.position, "a number with a smaller exponent") from error

    def like(self, name: str) -> Predicate:
        """Read the pattern of a LIKE."""
        token = self.next()
        if token.kind != "text":
            raise self.error(token.position, "a pattern such as 'UA%'")
        pattern = token.text[1:-1].replace("''", "'")
        prefix = pattern.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            raise self.error(token.position, "a pattern with a single % at its end")
        return StartsWith(name, prefix) if pattern.endswith("%") else Compare(name, "=", prefix)


def as_predicate(where: object) -> Predicate:
    """Convert what a caller passed as a filter, a predicate or its text, to a predicate.

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
    return ConditionParser(text).whole()
