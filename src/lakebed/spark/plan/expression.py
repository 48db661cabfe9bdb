"""Predicates as Spark's filters.

Owns: the translation, which compensates for the one difference between the two. In Spark, NaN equals itself and is
greater than every number. In Arrow, and so in lakebed's own reader, every comparison with NaN except ``<>`` is false.
The translated filter has lakebed's meaning, so both readers return the same rows.
"""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, functions
from pyspark.sql.pandas.types import from_arrow_type

from lakebed.table.model.predicate import bind, join_balanced
from lakebed.table.model.predicate_tree import And, Compare, In, IsNull, Known, Not, OneOf, Or, Predicate, StartsWith


def exact_column(name: str) -> Column:
    """Return a column by its exact name, whatever characters it contains."""
    return functions.col("`" + name.replace("`", "``") + "`")


def column_of(predicate: Predicate, schema: pa.Schema) -> Column:
    """Return the predicate as a boolean column of a DataFrame with the columns of `schema`.

    Raises `InvalidRequest`: as `bind`.
    """
    return _translate(bind(predicate, schema), schema)


def _translate(bound: Predicate, schema: pa.Schema) -> Column:
    if isinstance(bound, And | Or):
        parts = [_translate(part, schema) for part in bound.parts] or [functions.lit(isinstance(bound, And))]
        return join_balanced(parts, (lambda a, b: a & b) if isinstance(bound, And) else (lambda a, b: a | b))
    if isinstance(bound, Not):
        return ~_translate(bound.part, schema)
    if isinstance(bound, IsNull):
        return exact_column(bound.column).isNull()
    if isinstance(bound, StartsWith):
        return exact_column(bound.column).startswith(bound.prefix)
    if isinstance(bound, In):
        return functions.lit(False)  # an IN without values
    if isinstance(bound, OneOf):
        unknown_term = [functions.lit(None).cast("boolean")] if bound.has_null else []
        columns = [_comparison(bound.column, "=", value, schema) for value in bound.values]
        return join_balanced([*columns, *unknown_term], lambda a, b: a | b)
    if isinstance(bound, Known):
        return functions.when(exact_column(bound.column).isNotNull(), functions.lit(bound.truth))
    assert isinstance(bound, Compare)
    return _comparison(bound.column, bound.op, bound.value, schema)


def _comparison(name: str, op: str, value: pa.Scalar, schema: pa.Schema) -> Column:
    kind = schema.field(name).type
    column = exact_column(name)
    if not value.is_valid:
        return functions.lit(None).cast("boolean")
    if value.type != kind and not pa.types.is_timestamp(kind):
        column = column.cast(from_arrow_type(value.type, prefer_timestamp_ntz=True))
    if not pa.types.is_floating(value.type):
        return _compare(column, op, _literal(value))
    if math.isnan(value.as_py()):
        return functions.when(column.isNotNull(), functions.lit(op == "<>"))
    comparison = _compare(column, op, _literal(value))
    return comparison | functions.isnan(column) if op == "<>" else comparison & ~functions.isnan(column)


def _compare(column: Column, op: str, value: Column) -> Column:
    comparisons: dict[str, Any] = {
        "=": column.__eq__,
        "<>": column.__ne__,
        "<": column.__lt__,
        "<=": column.__le__,
        ">": column.__gt__,
        ">=": column.__ge__,
    }
    answer: Column = comparisons[op](value)
    return answer


def _literal(value: pa.Scalar) -> Column:
    kind = value.type
    target = from_arrow_type(kind, prefer_timestamp_ntz=True)
    if pa.types.is_timestamp(kind):
        # As text in UTC: Spark reads a datetime in this machine's time zone.
        text = str(value.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.timestamp("us")).cast(pa.string()))
        return functions.lit(text + ("Z" if kind.tz else "")).cast(target)
    python_value = value.as_py()
    if pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return functions.lit(str(python_value)).cast(target)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return functions.lit(bytearray(python_value))
    return functions.lit(python_value).cast(target)
