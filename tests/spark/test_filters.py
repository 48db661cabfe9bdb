"""Filters that Spark pushes down keep every row of Spark's own answer."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from lakebed.spark.dataframe.reading import local_frame
from lakebed.spark.plan.filters import from_json, translate
from lakebed.table.model.types import arrow_schema
from lakebed.table.table import Table
from worlds.nasty import NASTY

MakeTable = Callable[..., Table]
ROW_COUNT, FILE_ROWS = 60, 4

_TIMES = ("1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2013-01-02 03:04:05.000001", "0001-01-01 00:00:00")
LITERALS = {
    "tiny": ("0", "1", "-128", "127", "128", "1.5", "null"),
    "long": ("0", "9007199254740993", "9223372036854775807", "-9223372036854775808", "0.5", "1e18", "null"),
    "single": ("0.0f", "-0.0f", "0.1f", "0.1d", "float('NaN')", "float('Infinity')", "-5", "null"),
    "double": ("0.0d", "-0.0d", "0.1d", "double('NaN')", "double('-Infinity')", "-5", "null"),
    "money": ("0", "0.01", "1.5", "1.505", "99999999.99", "1e3", "null"),
    "text": ("''", "'a'", "'ä'", f"'{'a' * 16}'", f"'{'a' * 15}b'", "'%'", "null"),
    "raw": ("X''", "X'00'", "X'61'", "X'FF'", f"X'{'FF' * 17}'"),
    "day": ("DATE'1970-01-01'", "DATE'1969-12-31'", "DATE'2013-01-02'", "DATE'9999-12-31'", "null"),
    "local": tuple(f"TIMESTAMP_NTZ'{text}'" for text in _TIMES),
    "instant": tuple(f"TIMESTAMP'{text}'" for text in _TIMES),
    "millis": tuple(f"TIMESTAMP_NTZ'{text}'" for text in _TIMES),
    "flag": ("true", "false", "null"),
}
_MICROS = (None, -1, 0, 1, 1_357_095_845_000_001, -62_135_596_800_000_000, 3_600_000_000)
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    **{name: (NASTY[name].kind, NASTY[name].values) for name in LITERALS if name in NASTY and name != "millis"},
    "day": (pa.date32(), (None, -1, 0, 1, 15707, 2932896, -719162)),
    "local": (pa.timestamp("us"), _MICROS),
    "instant": (pa.timestamp("us", tz="UTC"), _MICROS),
    "millis": (pa.timestamp("ms"), (None, -1, 0, 1, 1_357_095_845_000)),
}

NAMED = ("Predicate", "And", "Or", "Not", "AlwaysTrue", "AlwaysFalse", "GeneralScalarExpression")
"""Classes of V2 expressions that have a name."""


def random_filter(rng: random.Random, depth: int = 0) -> str:
    """SQL of a filter: comparisons, lists, prefixes, null tests, and their combinations."""
    if depth < 3 and rng.random() < 0.5:
        op = rng.choice(("and", "or", "not"))
        left = random_filter(rng, depth + 1)
        return f"not ({left})" if op == "not" else f"({left}) {op} ({random_filter(rng, depth + 1)})"
    name = rng.choice(list(LITERALS))
    choice = rng.random()
    if choice < 0.08:
        return f"{name} is {rng.choice(('', 'not '))}null"
    if choice < 0.14:
        return f"struct.inner {rng.choice(('=', '>'))} {rng.randint(0, 3)}"
    if choice < 0.2:
        return f"text like '{rng.choice(('a%', 'ä%', 'a' * 16 + '%', '%a', 'a%a'))}'"
    if choice < 0.24:
        return "flag"
    if choice < 0.4:
        values = ", ".join(rng.choices(LITERALS[name], k=rng.choice((1, 2, 12))))
        return f"{name} {rng.choice(('', 'not '))}in ({values})"
    if choice < 0.5:
        return f"{rng.choice(LITERALS[name])} {rng.choice(('<', '>=', '='))} {name}"
    return f"{name} {rng.choice(('=', '<>', '<', '<=', '>', '>=', '<=>'))} {rng.choice(LITERALS[name])}"


def as_json(expression: Any) -> Any:
    """What the JVM's side sends: a V2 expression by names, children and literals."""
    kind = expression.getClass().getSimpleName()
    if kind == "FieldReference":
        return {"column": list(expression.fieldNames())}
    if kind == "LiteralValue":
        type_text, value = expression.dataType().catalogString(), expression.value()
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif value is not None and not isinstance(value, bool | int | float):
            value = value.toString()
        return {"literal": value, "type": type_text}
    if kind not in NAMED:
        return {"name": kind, "children": []}
    return {"name": expression.name(), "children": [as_json(child) for child in expression.children()]}


def pushed(spark: SparkSession, frame: Any, text: str) -> list[Any] | None:
    """The predicates that Spark would push for a filter, after its optimizer; None: it kept or dropped all rows."""
    jvm: Any = spark._jvm
    plan = frame.filter(text)._jdf.queryExecution().optimizedPlan()
    while plan.getClass().getSimpleName() == "Project":
        plan = plan.child()
    if plan.getClass().getSimpleName() != "Filter":
        return None
    predicates, rest = [], [plan.condition()]
    while rest:
        condition = rest.pop()
        if condition.getClass().getSimpleName() == "And":
            rest += [condition.left(), condition.right()]
            continue
        built = jvm.org.apache.spark.sql.catalyst.util.V2ExpressionBuilder(condition, True).buildPredicate()
        predicates.append(as_json(built.get()) if built.isDefined() else None)
    return predicates


@pytest.mark.parametrize("filter_count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_no_row_of_sparks_answer_is_lost(spark: SparkSession, make_table: MakeTable, filter_count: int) -> None:
    """Random filters over NaN, zeros, nulls, extremes, times and bytes: pruned files and filtered rows lose no row.

    What is translated wholly keeps no other row either. Two time zones of the session.
    """
    rng = random.Random("filters")
    columns = [
        pa.array([rng.choice(values) for _ in range(ROW_COUNT)], _storage(kind)) for kind, values in VALUES.values()
    ]
    columns = [column.cast(kind) for column, (kind, _) in zip(columns, VALUES.values(), strict=True)]
    inner = pa.array([None if number % 5 == 0 else {"inner": number % 4} for number in range(ROW_COUNT)])
    names = ["id", *VALUES, "struct"]
    rows = pa.table([pa.array(range(ROW_COUNT)), *columns, inner], names=names)
    table = make_table(rows.schema)
    for start in range(0, ROW_COUNT, FILE_ROWS):
        table.write(rows.slice(start, FILE_ROWS))
    plain = str(table.url).removeprefix("file://") + "-plain"
    local_frame(spark, rows).write.parquet(plain)
    frame = spark.read.parquet(plain)
    schema = arrow_schema(table.schema.fields)
    exact_count = pruned_count = 0
    try:
        for zone in ("America/New_York", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            texts = [random_filter(rng) for _ in range(filter_count // 2)]
            truths = [functions.expr(text).alias(f"f{i}") for i, text in enumerate(texts)]
            answers = frame.select("id", *truths).collect()
            for i, text in enumerate(texts):
                expected = {row.id for row in answers if row[f"f{i}"] is True}
                predicates = pushed(spark, frame, text)
                if predicates is None:
                    continue
                translation = translate([from_json(tree) for tree in predicates], schema)
                scan = table.scan(where=translation.where, columns=["id"])
                result = set(scan.to_arrow()["id"].to_pylist())
                assert expected <= result, (text, translation)
                if not translation.inexact:
                    exact_count += 1
                    assert result == expected, (text, translation)
                pruned_count += sum(len(split.files) for split in scan.splits()) < ROW_COUNT // FILE_ROWS
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert exact_count > filter_count // 3
    assert pruned_count > filter_count // 8


def _storage(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind
