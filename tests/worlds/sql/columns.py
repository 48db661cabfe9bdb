"""Columns of tables in a model of Spark SQL: values that break naive code, and literals and conditions in two dialects.

Owns: `Kind`, a type of a column; `Both`, a text for Spark and the same one for DuckDB; `random_condition`. DuckDB is
the judge: it compares NaN, zeros of both signs, nulls and text as Spark does.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

NAN: Final = float("nan")
INF: Final = float("inf")
US: Final = 10**6


class Both(NamedTuple):
    """The same text in two dialects."""

    spark: str
    duck: str


@dataclass(frozen=True)
class Kind:
    """A type in two dialects and in Arrow, and values of it; timestamps are microseconds since 1970."""

    spark: str
    duck: str
    arrow: pa.DataType
    values: tuple[Any, ...]

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return values as Arrow."""
        if pa.types.is_timestamp(self.arrow):
            return pa.array(values, pa.int64()).cast(self.arrow)
        return pa.array(values, self.arrow)

    @property
    def is_nested(self) -> bool:
        """Whether values are lists, maps or structs."""
        return bool(pa.types.is_nested(self.arrow))

    @property
    def is_number(self) -> bool:
        """Whether values can be computed with."""
        return self.spark in ("INT", "BIGINT", "DOUBLE")

    def literal(self, value: Any) -> Both:
        """Return a constant of a plain type."""
        if value is None:
            return Both(f"CAST(NULL AS {self.spark})", f"CAST(NULL AS {self.duck})")
        if isinstance(value, bool):
            return Both(str(value).lower(), str(value).lower())
        if isinstance(value, bytes):
            return Both(f"X'{value.hex()}'", f"from_hex('{value.hex()}')")
        if isinstance(value, str) and not value.isalnum():
            raw = value.encode().hex()
            return Both(f"CAST(X'{raw}' AS STRING)", f"decode(from_hex('{raw}'))")
        text = str(value)
        if isinstance(value, float):
            text = repr(value).replace("inf", "Infinity").replace("nan", "NaN")
        elif pa.types.is_timestamp(self.arrow):
            moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
            text = moment.isoformat(" ")
        return Both(f"CAST('{text}' AS {self.spark})", f"CAST('{text}' AS {self.duck})")


def _plain(spark: str, duck: str, arrow: pa.DataType, *values: Any) -> Kind:
    return Kind(spark, duck, arrow, values)


_MOMENTS: Final = (0, -1, 1, -US, 999_999, -62_135_596_800 * US, 253_402_300_799 * US + 999_999, 1_709_251_199_999_999,
    -12_219_292_800 * US - 1)  # fmt: skip
_D = Decimal
_STRUCT: Final = pa.struct(
    [("a", pa.int32()), ("b", pa.string()), ("c", pa.struct([("d", pa.float64()), ("e", pa.list_(pa.int64()))]))]
)

KINDS: Final[dict[str, Kind]] = {
    kind.spark: kind
    for kind in (
        _plain("TINYINT", "TINYINT", pa.int8(), 0, 1, -1, 127, -128),
        _plain("INT", "INTEGER", pa.int32(), 0, 1, -1, 7, 2**31 - 1, -(2**31)),
        _plain("BIGINT", "BIGINT", pa.int64(), 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
        _plain("FLOAT", "FLOAT", pa.float32(), 0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, 2.0**127, 2.0**-149),
        _plain("DOUBLE", "DOUBLE", pa.float64(), 0.0, -0.0, 0.1, -5.5, NAN, INF, -INF, 1.7e308, 5e-324),
        _plain("DECIMAL(9, 2)", "DECIMAL(9, 2)", pa.decimal128(9, 2), *map(_D, ("0", "-0.01", "1.50", "9999999.99"))),
        _plain("DECIMAL(18, 4)", "DECIMAL(18, 4)", pa.decimal128(18, 4), *map(_D, ("0", "-9999999999999.9999", "2.5"))),
        _plain("DECIMAL(38, 10)", "DECIMAL(38, 10)", pa.decimal128(38, 10),
            *map(_D, ("0", "-1e-10", "9999999999999999999999999999.9999999999", "-12345678901234567890.5"))),
        _plain("STRING", "VARCHAR", pa.string(), "", "a", "b", "ab", "it's", 'q"\\%_', "grüß", "\U0001f600\U0010ffff",
            "x" * 40, "x" * 39 + "y", "line\nbreak", " ", "null", "\0", "\uffff" * 20),
        _plain("BINARY", "BLOB", pa.binary(), b"", b"\0", b"\xff" * 20, b"a\xff", b"ab"),
        _plain("DATE", "DATE", pa.date32(), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31),
            dt.date(1970, 1, 1), dt.date(1582, 10, 4), dt.date(2024, 2, 29)),
        _plain("TIMESTAMP", "TIMESTAMPTZ", pa.timestamp("us", tz="UTC"), *_MOMENTS),
        _plain("TIMESTAMP_NTZ", "TIMESTAMP", pa.timestamp("us"), *_MOMENTS),
        _plain("BOOLEAN", "BOOLEAN", pa.bool_(), True, False),
        _plain("ARRAY<INT>", "INTEGER[]", pa.list_(pa.int32()), [], [1], [None, 2], [3, 4, 5]),
        _plain("MAP<STRING, INT>", "MAP(VARCHAR, INTEGER)", pa.map_(pa.string(), pa.int32()),
            [], [("a", 1)], [("a", None), ("", 2)]),
        _plain("STRUCT<a: INT, b: STRING, c: STRUCT<d: DOUBLE, e: ARRAY<BIGINT>>>",
            "STRUCT(a INTEGER, b VARCHAR, c STRUCT(d DOUBLE, e BIGINT[]))", _STRUCT,
            {"a": 1, "b": "x", "c": {"d": 0.5, "e": [1]}}, {"a": None, "b": "", "c": None},
            {"a": -7, "b": None, "c": {"d": NAN, "e": None}}, {"a": 3, "b": "a", "c": {"d": None, "e": []}}),
    )
}  # fmt: skip
"""Types by their name in Spark."""

KEY_KINDS: Final = ("INT", "BIGINT", "TINYINT", "STRING", "BINARY", "DATE", "DECIMAL(9, 2)", "DECIMAL(38, 10)",
    "TIMESTAMP", "TIMESTAMP_NTZ", "BOOLEAN")  # fmt: skip
WIDER: Final = {
    "TINYINT": ("INT", "BIGINT"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DECIMAL(9, 2)": ("DECIMAL(18, 4)", "DECIMAL(38, 10)"),
}
STRUCT: Final = "STRUCT<a: INT, b: STRING, c: STRUCT<d: DOUBLE, e: ARRAY<BIGINT>>>"


@dataclass(frozen=True)
class Column:
    """A column; one that is added again under an old name has another number."""

    number: int
    name: str
    kind: Kind


# ---- conditions

_OPS: Final = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def _op(left: Both, op: str, right: Both) -> Both:
    duck = "IS NOT DISTINCT FROM" if op == "<=>" else op
    return Both(f"{left.spark} {op} {right.spark}", f"{left.duck} {duck} {right.duck}")


def _same(text: str) -> Both:
    return Both(text, text)


def _compared(rng: random.Random, at: str, kind: Kind) -> Both:
    value = kind.literal(rng.choice((None, *kind.values, *kind.values)))
    sides = (_same(at), value) if rng.random() < 0.8 else (value, _same(at))
    return _op(sides[0], rng.choice(_OPS), sides[1])


def _listed(rng: random.Random, at: str, kind: Kind) -> Both:
    # Spark distinguishes the zeros in some forms of IN, and DuckDB does not.
    values = [value for value in kind.values if not (isinstance(value, float) and value == 0)]
    literals = [kind.literal(rng.choice((*values, *values, None))) for _ in range(rng.choice((1, 2, 3, 14)))]
    word = rng.choice(("IN", "IN", "NOT IN"))
    return Both(*(f"{at} {word} ({', '.join(item[side] for item in literals)})" for side in (0, 1)))


def _between(rng: random.Random, at: str, kind: Kind) -> Both:
    low, high = (kind.literal(rng.choice(kind.values)) for _ in range(2))
    word = rng.choice(("BETWEEN", "NOT BETWEEN"))
    return Both(*(f"{at} {word} {low[side]} AND {high[side]}" for side in (0, 1)))


def _text(rng: random.Random, at: str) -> Both:
    pattern = rng.choice(("a%", "%b", "%s%", "a_", "_", "%", "", "x%y", "gr__", "%\U0001f600%"))
    forms = (f"{at} LIKE '{pattern}'", f"NOT {at} LIKE '{pattern}'", f"length({at}) = {rng.choice((0, 1, 2, 40))}",
        f"upper({at}) = 'AB'", f"starts_with({at}, 'a')", f"contains({at}, 'b')", f"{at} || 'z' > 'az'")  # fmt: skip
    text = rng.choice(forms)
    return Both(text.replace("starts_with", "startswith"), text)


def _wider(rng: random.Random, at: str, kind: Kind) -> Both:
    """A comparison with a constant of another type."""
    if kind.spark in ("TINYINT", "INT", "BIGINT"):
        constant = rng.choice(("0.5", "-1.5", "2147483648", "7.0", "-129", "128"))
        return _op(_same(at), rng.choice(_OPS), _same(constant))
    if kind.spark == "FLOAT":
        return _op(Both(at, f"CAST({at} AS DOUBLE)"), rng.choice(_OPS), _same("CAST('0.1' AS DOUBLE)"))
    if kind.spark.startswith("DECIMAL"):
        return _op(_same(at), rng.choice(_OPS), _same(rng.choice(("0", "1", "-1", "2.50", "1.505"))))
    if kind.spark == "DATE":
        return _op(_same(f"year({at})"), rng.choice(_OPS), _same(rng.choice(("1", "1970", "9999"))))
    return _same(f"{at} IS NOT NULL")


def _leaf(rng: random.Random, column: Column, prefix: str) -> Both:
    at, kind = prefix + column.name, column.kind
    if rng.random() < 0.15:
        return _same(f"{at} IS {rng.choice(('', 'NOT '))}NULL")
    if kind.spark == STRUCT:
        inside = rng.choice((("a", "INT"), ("b", "STRING"), ("c.d", "DOUBLE")))
        return _leaf(rng, Column(0, f"{column.name}.{inside[0]}", KINDS[inside[1]]), prefix)
    if kind.is_nested:
        return Both(f"size({at}) > 1", f"len({at}) > 1") if kind.spark.startswith("A") else _same(f"{at} IS NOT NULL")
    if kind.spark == "BOOLEAN" and rng.random() < 0.5:
        return _same(rng.choice((at, f"NOT {at}", f"{at} = {at}")))
    if kind.spark == "STRING" and rng.random() < 0.5:
        return _text(rng, at)
    makers: tuple[Callable[..., Both], ...] = (_compared, _compared, _listed, _between, _wider)
    return rng.choice(makers)(rng, at, kind)


def _subquery(rng: random.Random, columns: Sequence[Column], prefix: str) -> Both:
    """A condition with the rows of the view `src`, which has the same columns."""
    column = rng.choice(
        [item for item in columns if not item.kind.is_nested and item.kind.spark not in ("FLOAT", "DOUBLE")]
    )
    name = column.name
    return _same(rng.choice((
        f"{prefix}{name} IN (SELECT {name} FROM src)",
        f"{prefix}{name} NOT IN (SELECT {name} FROM src WHERE {name} IS NOT NULL)",
        f"{prefix}{name} = (SELECT max({name}) FROM src)",
        f"EXISTS (SELECT 1 FROM src WHERE src.{name} = {prefix or 't.'}{name})",
    )))  # fmt: skip


def random_condition(
    rng: random.Random, columns: Sequence[Column], *, prefix: str = "", subqueries: bool = False, depth: int = 0
) -> Both:
    """Return a condition on some columns; with `subqueries`, the table is `t` and may be compared with `src`."""
    dice = rng.random()
    if depth < 3 and dice < 0.4:
        parts = [
            random_condition(rng, columns, prefix=prefix, subqueries=subqueries and depth == 0, depth=depth + 1)
            for _ in range(2)
        ]
        word = rng.choice((" AND ", " OR "))
        return Both(*(f"({word.join(part[side] for part in parts)})" for side in (0, 1)))
    if depth < 3 and dice < 0.5:
        part = random_condition(rng, columns, prefix=prefix, depth=depth + 1)
        return Both(f"NOT ({part.spark})", f"NOT ({part.duck})")
    if subqueries and dice < 0.7:
        return _subquery(rng, columns, prefix)
    if dice > 0.98:
        return _same(rng.choice(("true", "false", "CAST(NULL AS BOOLEAN)")))
    return _leaf(rng, rng.choice(columns), prefix)
