"""Values that break naive code, by column type, and what a filter means for them in plain Python.

Owns: `NASTY`, `random_predicate`, `texts_of`, and `truth`, an evaluation of predicates that shares nothing with the
code under test. Values are Python objects of the meaning of their column: floats for FLOAT and DOUBLE, nanoseconds
since 1970 for timestamps.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lakebed.table.model.predicate_tree import And, Compare, Comparison, In, IsNull, Not, Or, Predicate, StartsWith

NAN: Final = math.nan
INF: Final = math.inf


def float32(value: float) -> float:
    """The nearest value of single precision."""
    result: float = struct.unpack("f", struct.pack("f", value))[0]
    return result


def _moment(nanos: int) -> str:
    """A time as text with nine digits."""
    second, rest = divmod(nanos, 10**9)
    return (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=second)).isoformat(" ") + f".{rest:09d}"


@dataclass(frozen=True)
class NastyColumn:
    """One column: its Arrow type, its values, and literals with the values they stand for."""

    kind: pa.DataType
    values: tuple[Any, ...]
    literals: tuple[tuple[Any, Any], ...]
    """(what a user writes, what it means in `truth`)."""

    def array(self, values: list[Any]) -> pa.Array:
        """Some of the values as Arrow."""
        if pa.types.is_timestamp(self.kind):
            unit = {"ms": 10**6, "us": 1000, "ns": 1}[self.kind.unit]
            return pa.array([None if value is None else value // unit for value in values], pa.int64()).cast(self.kind)
        return pa.array(values, self.kind)


def _same(*values: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple((value, value) for value in values)


_D = decimal.Decimal
_MOMENTS: Final = (-1, 0, 1, 999, 1_000, 1_357_128_000_123_456_789, 1_357_128_000_123_456_000, -62_135_596_800 * 10**6)
_BIG: Final = 2**53
_NUMBERS: Final = (
    *(0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64, 10**400, -(10**400), _BIG, _BIG + 1, _BIG - 1),
    *(0.0, -0.0, 0.5, -0.5, 1e300, -1e300, NAN, INF, -INF, float(2**63), float(_BIG)),
    *(_D("0.1"), _D("9007199254740992.5"), _D("1e-400"), _D("-1e-400"), _D("9223372036854775807.5"), _D("1e999999")),
)

NASTY: Final[Mapping[str, NastyColumn]] = {
    "tiny": NastyColumn(pa.int8(), (None, -128, -1, 0, 1, 127), _same(*_NUMBERS, 127.5, -128.5, 128)),
    "long": NastyColumn(pa.int64(), (None, -(2**63), -1, 0, 1, _BIG - 1, _BIG, _BIG + 1, 2**63 - 1), _same(*_NUMBERS)),
    "single": NastyColumn(
        pa.float32(),
        (None, NAN, -0.0, 0.0, float32(0.1), -5.0, INF, -INF, float32(1e-45), float32(3.4e38)),
        _same(NAN, -0.0, 0.0, 0.1, float32(0.1), -5, INF, -INF, 3.4e38, 0),
    ),
    "double": NastyColumn(
        pa.float64(),
        (None, NAN, -0.0, 0.0, 0.1, -5.0, INF, -INF, 5e-324, 1.7e308, float(_BIG)),
        _same(NAN, -0.0, 0.0, 0.1, -5, INF, -INF, 5e-324, 1.7e308, 0),
    ),
    "money": NastyColumn(
        pa.decimal128(10, 2),
        (None, _D("-99999999.99"), _D("0.00"), _D("-0.01"), _D("0.01"), _D("1.50"), _D("99999999.99")),
        _same(0, 1.5, _D("0.005"), _D("-0.005"), _D("1.500"), 10**8, -(10**8), 10**400, NAN, INF, _D("1e999999")),
    ),
    "text": NastyColumn(
        pa.string(),
        (None, "", "a", "A", "ä", "a" * 16, "a" * 17, "a" * 16 + "\U0010ffff", "\U0010ffff" * 17, "\0", "'", "%"),
        _same("", "a", "ä", "a" * 16, "a" * 17, "a" * 15 + "b", "\U0010ffff" * 16, "\U0010ffff" * 18, "\0", "'"),
    ),
    "raw": NastyColumn(
        pa.binary(),
        (None, b"", b"\0", b"a", b"\xff" * 16, b"\xff" * 17, b"a\xff" + b"\xff" * 17),
        _same(b"", b"\0", b"a", b"b", b"\xff" * 16, b"\xff" * 18),
    ),
    "millis": NastyColumn(
        pa.timestamp("ms"),
        (None, *(value // 10**6 * 10**6 for value in _MOMENTS)),
        tuple((_moment(value), value) for value in _MOMENTS),
    ),
    "nanos": NastyColumn(pa.timestamp("ns"), (None, *_MOMENTS), tuple((_moment(value), value) for value in _MOMENTS)),
    "flag": NastyColumn(pa.bool_(), (None, True, False), _same(True, False)),
}
"""Columns by name."""


def _meaning(column: str, literal: Any) -> Any:
    """What a literal stands for; floats are compared in double precision."""
    if literal is None:
        return None
    if column in ("nanos", "millis"):
        return dict(NASTY[column].literals)[literal]
    return float(literal) if column in ("single", "double") else literal


def _compared(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(right, float) and math.isnan(right):
        return op == "<>"  # a Decimal refuses to be ordered against NaN
    if isinstance(left, _D) and isinstance(right, float):
        right = _D(right)
    outcomes = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return bool(outcomes[op])


def _any(found: list[bool | None]) -> bool | None:
    return True if True in found else None if None in found else False


def truth(predicate: Predicate, row: Mapping[str, Any]) -> bool | None:
    """SQL's three-valued outcome of a predicate for a row, None: unknown. In plain Python's comparisons."""
    if isinstance(predicate, Not):
        result = truth(predicate.part, row)
        return None if result is None else not result
    if isinstance(predicate, Or):
        return _any([truth(part, row) for part in predicate.parts])
    if isinstance(predicate, And):
        result = _any([truth(Not(part), row) for part in predicate.parts])
        return None if result is None else not result
    assert isinstance(predicate, Compare | In | IsNull | StartsWith)
    value = row[predicate.column]
    if isinstance(predicate, IsNull):
        return value is None
    if isinstance(predicate, StartsWith):
        return None if value is None else value.startswith(predicate.prefix)
    if isinstance(predicate, In):
        return _any([_compared("=", value, _meaning(predicate.column, item)) for item in predicate.values])
    return _compared(predicate.op, value, _meaning(predicate.column, predicate.value))


def random_predicate(rng: random.Random, *, columns: Sequence[str] = tuple(NASTY), depth: int = 0) -> Predicate:
    """A small tree of comparisons of some columns with nasty literals."""
    shape = rng.random()
    if depth > 2 or shape < 0.5:
        return _random_leaf(rng, columns)
    if shape < 0.65:
        return Not(random_predicate(rng, columns=columns, depth=depth + 1))
    parts = tuple(random_predicate(rng, columns=columns, depth=depth + 1) for _ in range(rng.randint(1, 4)))
    return And(parts) if shape < 0.82 else Or(parts)


def _random_leaf(rng: random.Random, columns: Sequence[str]) -> Predicate:
    name = rng.choice(columns)
    literals = [literal for literal, _ in NASTY[name].literals]
    shape = rng.random()
    if shape < 0.1:
        return IsNull(name)
    if name == "text" and shape < 0.2:
        return StartsWith(name, rng.choice(literals))
    if shape < 0.45:
        return In(name, tuple(rng.choices([None, *literals], k=rng.choice([0, 1, 1, 2, 5, 90]))))
    op: Comparison = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    return Compare(name, op, rng.choice([None, *literals, *literals]))


def texts_of(*values: bytes | None) -> pa.Array:
    """Texts of any bytes, which Arrow takes as they are where it is given buffers."""
    encoded = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(encoded), encoded.buffers())
