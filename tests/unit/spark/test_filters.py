"""The translation of Spark's filters, by hand; `tests/spark/test_filters.py` compares it with Spark's answers."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, Not, StringStartsWith

from lakebed.spark.plan.filters import Translation, from_filter, from_json, translate
from lakebed.table.model.predicate import mask_of

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("nanos", pa.timestamp("ns")),
        ("part", pa.struct([("a", pa.int64())])),
    ]
)
UNKNOWN = {"name": "CUSTOM", "children": []}


def compared(op: str, name: str, value: Any, kind: str) -> dict[str, Any]:
    """A V2 comparison."""
    return {"name": op, "children": [{"column": name.split(".")}, {"literal": value, "type": kind}]}


def both(op: str, *parts: Any) -> dict[str, Any]:
    """A V2 AND, OR or NOT."""
    return {"name": op, "children": list(parts)}


def translated(*trees: Any) -> Translation:
    """The translation of some trees."""
    return translate([from_json(tree) for tree in trees], SCHEMA)


def of_floats(tree: Any) -> list[bool | None]:
    """The truth of a filter for 1.0, NaN, infinity and null."""
    where = translated(tree).where
    assert where is not None
    rows = pa.table([[1.0, math.nan, math.inf, None]], names=["x"])
    items: list[bool | None] = mask_of(where, rows).to_pylist()
    return items


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        (">", 0.5, [True, True, True, None]),
        (">=", 1.0, [True, True, True, None]),
        ("<", 5.0, [True, False, False, None]),
        ("=", "NaN", [False, True, False, None]),
        ("<>", "NaN", [True, False, True, None]),
        ("<", "NaN", [True, False, True, None]),
        ("<=", "NaN", [True, True, True, None]),
        (">", "NaN", [False, False, False, None]),
        (">=", "NaN", [False, True, False, None]),
        ("<=>", "NaN", [False, True, False, False]),
        ("<=>", None, [False, False, False, True]),
    ],
)
def test_nan_is_above_every_number(op: str, value: Any, expected: list[bool | None]) -> None:
    """Comparisons of floats have Spark's truth, unknown for null, also under NOT."""
    tree = compared(op, "x", value, "double")
    assert of_floats(tree) == expected
    assert of_floats(both("NOT", tree)) == [None if truth is None else not truth for truth in expected]


def test_what_is_left_out_keeps_rows() -> None:
    """Of an AND some parts may be left out, of an OR none; under NOT the other way round."""
    known = compared(">", "k", 5, "bigint")
    assert str(translated(both("AND", known, UNKNOWN)).where) == "k > 5"
    assert translated(both("OR", known, UNKNOWN)).where is None
    assert translated(both("NOT", both("AND", known, UNKNOWN))).where is None
    assert str(translated(both("NOT", both("OR", known, UNKNOWN))).where) == "NOT (k > 5)"
    assert translated(known, both("AND", known, UNKNOWN), UNKNOWN).inexact == (1, 2)
    assert translated(known, known).inexact == ()


@pytest.mark.parametrize(
    "tree",
    [
        compared("=", "part.a", 1, "bigint"),
        compared("=", "missing", 1, "bigint"),
        compared("=", "nanos", 1, "timestamp_ntz"),
        compared("=", "at", 1, "timestamp_ntz"),
        compared("=", "k", "1", "string"),
        compared("=", "s", "a", "string collate UTF8_LCASE"),
        compared("=", "k", "one", "bigint"),
        compared("RLIKE", "s", "a", "string"),
        {"name": "=", "children": [{"column": ["s"]}, {"name": "NOT_UTF8", "children": []}]},
        {"name": "IN", "children": [{"column": ["s"]}, {"name": "NOT_UTF8", "children": []}]},
        {"name": "=", "children": [{"column": ["k"]}, {"name": "CAST", "children": [{"column": ["s"]}]}]},
        {"name": "=", "children": [{"column": ["k"]}]},
        "text",
    ],
)
def test_what_has_no_translation(tree: Any) -> None:
    """Nested fields, digits that Spark does not see, other types, collations and functions are left to Spark."""
    assert translated(tree) == Translation(None, (0,))


def test_forms() -> None:
    """A literal may be on the left; a boolean column is a filter; lists may hold null; 0.1 of single precision."""
    assert str(translated(compared("=", "x", 0.1, "float")).where) == "x = 0.10000000149011612"
    left = {"name": "<", "children": [{"literal": 5, "type": "int"}, {"column": ["k"]}]}
    assert str(translated(left).where) == "k > 5"
    assert str(translated({"column": ["flag"]}).where) == "flag = TRUE"
    listed = {"name": "IN", "children": [{"column": ["k"]}, *({"literal": v, "type": "int"} for v in (1, None))]}
    assert str(translated(listed).where) == "k IN (1, NULL)"
    assert str(translated(compared("STARTS_WITH", "s", "ab", "string")).where) == "s LIKE 'ab%'"
    assert str(translated({"name": "ALWAYS_FALSE", "children": []}).where) == "FALSE"


def test_a_filter_of_a_data_source_may_stand_for_bytes() -> None:
    """Spark hands it U+FFFD in place of a text that is not UTF-8, which is another one."""
    exact = [EqualTo(("s",), "\ufffe"), In(("s",), ("a", "b"))]
    assert translate([from_filter(item) for item in exact], SCHEMA).inexact == ()
    for filters in (EqualTo, LessThan, StringStartsWith):
        assert translate([from_filter(filters(("s",), "a\ufffd"))], SCHEMA) == Translation(None, (0,))
    assert translate([from_filter(Not(In(("s",), ("a", "\ufffd"))))], SCHEMA) == Translation(None, (0,))


def test_long_and_deep_filters() -> None:
    """A chain of a thousand parts is one level; what is deeper than predicates may be is left out."""
    chain = compared("=", "k", 0, "bigint")
    deep = chain
    for number in range(400):
        chain = both("OR", chain, compared("=", "k", number, "bigint"))
        deep = both("NOT", both("AND" if number % 2 else "OR", deep, compared("=", "k", number, "bigint")))
    assert translated(chain).inexact == ()
    for _ in range(5000):
        deep = both("NOT", deep)
    assert translated(deep).inexact == (0,)


def test_a_day_that_spark_may_have_put_for_another_is_not_translated() -> None:
    """Spark takes 10 October 1582 for the 15th, which java.sql has; later days, and what is no day, are translated."""
    schema = pa.schema([("d", pa.date32()), ("z", pa.timestamp("us", "UTC")), ("s", pa.string())])
    old = datetime.datetime(1582, 10, 15, tzinfo=datetime.UTC)
    for item in (
        EqualTo(("d",), datetime.date(1582, 10, 15)),
        Not(EqualTo(("d",), datetime.date(1582, 10, 15))),
        In(("d",), (datetime.date(2024, 2, 29), datetime.date(1582, 10, 15))),
        GreaterThan(("z",), old),
    ):
        assert translate([from_filter(item)], schema) == Translation(None, (0,)), item
    for item in (EqualTo(("d",), datetime.date(1901, 1, 1)), EqualTo(("s",), "1582-10-15")):
        assert translate([from_filter(item)], schema).inexact == ()
