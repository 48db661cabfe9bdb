"""Spark's ``where=`` gives the answers of plain Python for nasty values, whichever reader brings the rows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.table.model.predicate_tree import column
from lakebed.table.table import Table
from worlds.nasty import NASTY, random_predicate, truth

MakeTable = Callable[..., Table]
NATIVE = [name for name in NASTY if name != "nanos"]  # Spark has no nanoseconds: lakebed reads such tables itself


@pytest.mark.parametrize("filter_count", [10, pytest.param(50, marks=pytest.mark.long)])
def test_nasty_values(spark: SparkSession, make_table: MakeTable, filter_count: int) -> None:
    """Random filters over extremes, NaN, zeros of both signs and unbounded bytes keep the rows that they should."""
    rng = random.Random("spark")
    schema = pa.schema([("id", pa.int64()), *((name, NASTY[name].kind) for name in NATIVE)])
    table = make_table(schema)
    numbers = [{"id": number, **{name: rng.choice(NASTY[name].values) for name in NATIVE}} for number in range(24)]
    for start in range(0, 24, 6):
        part = numbers[start : start + 6]
        arrays = [NASTY[name].array([row[name] for row in part]) for name in NATIVE]
        table.write(pa.table([pa.array([row["id"] for row in part]), *arrays], schema=schema))
    table.compact(full=True)
    table.write(pa.table([pa.array([24]), *(NASTY[name].array([None]) for name in NATIVE)], schema=schema))
    numbers.append({"id": 24, **dict.fromkeys(NATIVE)})
    for _ in range(filter_count):
        where = random_predicate(rng, columns=NATIVE)
        frame = lakebed.spark.read(spark, table, where=where, columns=["id"])
        expected = [row["id"] for row in numbers if truth(where, row) is True]
        assert sorted(row.id for row in frame.collect()) == expected, repr(where)


def test_nan_in_one_row_group(spark: SparkSession, make_table: MakeTable) -> None:
    """A file with NaN in one row group keeps its other rows, and Spark's own filters find NaN above every number."""
    schema = pa.schema([("x", pa.float64())])
    table = make_table(schema)
    table.write(pa.table({"x": [float("nan"), -5.0]}))
    table.write(pa.table({"x": [1.0, 2.0]}))
    table.compact(full=True)
    assert [row.x for row in lakebed.spark.read(spark, table, where="x < 0").collect()] == [-5.0]
    assert lakebed.spark.read(spark, table).filter("x > 5").count() == 1
    assert lakebed.spark.read(spark, table, where="x > 5").count() == 0


def test_long_lists(spark: SparkSession, make_table: MakeTable) -> None:
    """An IN of 100,000 values, and a filter of 2,000 comparisons, are read without translating them for Spark."""
    table = make_table(pa.schema([("x", pa.int64()), ("y", pa.int64())]))
    table.write(pa.table({"x": range(10), "y": range(10)}))
    assert lakebed.spark.read(spark, table, where=column("x").is_in(range(7, 100_007))).count() == 3
    text = " or ".join(f"{'xy'[number % 2]} > {number}" for number in range(7, 2007))
    assert lakebed.spark.read(spark, table, where=text).count() == 2


def test_days_of_every_year(spark: SparkSession, make_table: MakeTable) -> None:
    """`where=` finds days that the calendar of java.sql lacks, and those that Python has not."""
    days = [-719_163, -141_432, -141_427, 0, 2_932_897]  # 1582-10-10 and 1582-10-15 in the middle
    for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        table = make_table(pa.schema([("d", kind)]), name=str(kind).replace("[", "-"))
        moments = pa.array(days, pa.int32()).cast(pa.date32()).cast(kind)
        for number in range(len(days)):
            table.write(pa.table({"d": moments.slice(number, 1)}))
        for number, value in enumerate(moments):
            for where, expected in (
                (column("d") == value, 1),
                (column("d").is_in([value]), 1),
                (column("d") >= value, len(days) - number),
                (~(column("d") == value), len(days) - 1),
            ):
                assert lakebed.spark.read(spark, table, where=where).count() == expected, (kind, number, where)
