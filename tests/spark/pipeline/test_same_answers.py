"""What this process does in Spark's place is what Spark does: reading plain CSV files, judging simple conditions."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakebed.pipeline.conditions import all_hold
from lakebed.pipeline.engine import Engine
from lakebed.pipeline.files import FileReading
from lakebed.pipeline.nodes import SourceLocation
from lakebed.pipeline.plain import read_plain_csv
from lakebed.pipeline.rows import LocalRows

PLACE = SourceLocation("same.yaml", 1)
TYPES = (
    "string",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5, 2)",
    "decimal(38, 0)",
    "decimal(2, 2)",
    "date",
    "timestamp",
    "timestamp_ntz",
)
WORDS = """
    NA NULL null a é 日本 #a ' '' true false TRUE True t yes
    0 -0 +5 007 127 128 -128 -129 32767 32768 2147483647 2147483648 -2147483648 1_000 ٣
    9223372036854775807 9223372036854775808 -9223372036854775808 99999999999999999999
    0.1 -0.0 .5 5. 1e5 1E400 0x10 NaN Infinity -inf 5f 5d 1,5 999.99 999.995 0.99 123456789.123456789
    16777217 9007199254740993 0.30000000000000004 3.4028236 00000000000000000.1
    2013-01-01 2013-1-1 2013-02-29 2012-02-29 0001-01-01 0000-01-01 1582-10-10 9999-12-31 10000-01-01
    2013-01-01T10:00:00Z 2013-01-01T10:00:00.123456 2013-01-01T10:00:00.1234567 2013-01-01T24:00:00
    2013-01-01T10:00:60 2013-01-01T10:00:00+01:00 2013-01-01T10:00 0001-01-01T00:00:00Z
    1969-12-31T23:59:59.9Z "q" "" "NA" "5" "a""b" a"b "a"b a\\b "a\\"b"
"""
VALUES = [
    *["", " ", " a ", "5 ", " 5", "\ufeff", "\u00a0", "\u2028", "\x0b", "\x85", "\x01", "2013-01-01T10:00:00 Z"],
    *["2013-01-01 10:00:00", "1582-10-10 00:00:00", "9999-12-31 23:59:59.999999", "1900-01-01 00:00:00"],
    *["2013-03-31 02:30:00Z", '"q, q"', '" q "'],
    *WORDS.split(),
]


def plain_values(column: pa.ChunkedArray) -> list[str]:
    """Values that can be compared; NaN and -0.0 are what they are, days and times are numbers."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [repr(value) for value in column.to_pylist()]


def test_every_value_read_here_is_what_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """For each type and text: the same value, or it is left to Spark. Most of what people write is read here."""
    columns = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    lines = [",".join([str(number), *[value] * len(TYPES)]) for number, value in enumerate(VALUES)]
    (tmp_path / "all.csv").write_text("\n".join([",".join(["n", *columns]), *lines]), newline="")
    frame = Engine(lambda: spark).read_files(
        [str(tmp_path / "all.csv")],
        FileReading("csv", {"mode": "PERMISSIVE", "nullValue": "NA"}, {"n": "int", **columns}, PLACE),
    )
    by_spark = frame.toArrow().sort_by("n")
    read_here = 0
    path = tmp_path / "one.csv"
    expected = {name: plain_values(by_spark[name]) for name in columns}
    for number, value in enumerate(VALUES):
        path.write_text(f"n,value\n{number},{value}\n", newline="")
        for name, kind in columns.items():
            rows = read_plain_csv([str(path)], schema={"n": "int", "value": kind}, options={"nullValue": "NA"})
            if rows is not None:
                read_here += 1
                assert rows["value"].type == by_spark[name].type
                assert plain_values(rows["value"]) == [expected[name][number]], (value, kind)
    assert read_here > 200


BODIES = [
    b"id,name\n1,a\n2,b\n",
    b"id,name\r\n1,a\r\n\r\n2,b\r\n",
    b"id,name\n1,a\n\n\n2,b",
    b"id,name\n",
    b"id,name",
    b"id,name\nid,name\n1,a\n",
    b"id,name\n1,id\n,\n",
    b'"id","name"\n1,"a"\n"2","b, c"\n',
    b"\xef\xbb\xbfid,name\n1,a\n",
    b"\n\nid,name\n1,a\n",
    b"id,name\n1,a\n   \n2,b\n",
    b"id,name\n1,a\n,,\n",
    b"id,name\n1, a \n",
    b"ID,name\n1,a\n",
]


@pytest.mark.parametrize(
    "separator", [b",", *(pytest.param(separator, marks=pytest.mark.long) for separator in (b"\t", b"|"))]
)
def test_every_file_read_here_is_what_spark_reads(spark: SparkSession, tmp_path: Path, separator: bytes) -> None:
    """Ends of lines, blank lines, quotes and headers."""
    paths = []
    for number, body in enumerate(BODIES):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(body.replace(b",", separator))
        options = {"sep": separator.decode()}
        schema = {"id": "string", "name": "string"}
        rows = read_plain_csv([str(path)], schema=schema, options=options)
        if rows is not None:
            paths.append(path)
            by_spark = Engine(lambda: spark).read_files([str(path)], FileReading("csv", options, schema, PLACE))
            assert rows.to_pylist() == by_spark.toArrow().to_pylist(), body
    assert len(paths) >= 6


ROWS = pa.table(
    {
        "i": pa.array([1, -1, 0, None, 2147483647, -2147483648, 7, 7], pa.int32()),
        "l": pa.array([1, None, 0, 5, 9223372036854775807, -9223372036854775808, 7, 7], pa.int64()),
        "s": pa.array(["a", "", None, "é", "Z", "a ", "😀", "\ufffd"], pa.string()),
        "t": pa.array(["a", "b", None, None, "z", "a", "\ufffd", "😀"], pa.string()),
        "b": pa.array([True, False, None, True, False, None, True, True], pa.bool_()),
    }
)


LIKE = ["'a'", "'a%'", "''", "'%'", "'é%'"]


def simple_condition(random_: random.Random, depth: int) -> str:
    """A condition on one row."""
    if depth and random_.random() < 0.5:
        inner = [simple_condition(random_, depth - 1) for _ in range(2)]
        return random_.choice([f"({inner[0]}) AND {inner[1]}", f"{inner[0]} OR {inner[1]}", f"NOT ({inner[0]})"])
    kind = random_.choice(["number", "text", "flag"])
    if kind == "flag":
        return random_.choice(["b", "NOT b", "b = true", "b <> FALSE", "b IS NULL", "b IS NOT NULL", "b IN (true)"])
    values = ["i", "l", "0", "-1", "7", "- 2147483648"] if kind == "number" else ["s", "t", "'a'", "''", "'é'", "'😀'"]
    left, *others = (random_.choice(values) for _ in range(4))
    return random_.choice(
        [
            f"{left} {random_.choice(['=', '==', '<>', '!=', '<', '<=', '>', '>='])} {others[0]}",
            f"{left} {random_.choice(['', 'NOT '])}BETWEEN {others[0]} AND {others[1]}",
            f"{left} {random_.choice(['', 'NOT '])}IN ({', '.join(others)})",
            f"{left} IS {random_.choice(['', 'NOT '])}NULL",
            *([f"{left} {random_.choice(['', 'NOT '])}LIKE {random_.choice(LIKE)}"] if kind == "text" else []),
        ]
    )


OVERALL = [
    "count(*) = 8",
    "count(i) = 7 AND count(DISTINCT i) = 6",
    "count(DISTINCT s, t) = 6",
    "count(b, i) = 5",
    "min(s) = ''",
    "max(s) = '😀'",
    "max(t) > 'z'",
    "sum(i) = 13",
    "min(l) < max(l)",
    "max(i) IN (1, 2147483647)",
    "NOT min(b) IS NULL",
]


@pytest.mark.parametrize(
    ("row_count", "condition_count"),
    [(8, 40), (0, 8), pytest.param(8, 300, marks=pytest.mark.long), pytest.param(0, 20, marks=pytest.mark.long)],
)
def test_every_condition_judged_here_is_what_spark_judges(
    spark: SparkSession, row_count: int, condition_count: int
) -> None:
    """NULL, texts beyond ASCII, extremes and no rows at all; in one Spark job."""
    random_ = random.Random(row_count)
    rows = ROWS.slice(0, row_count)
    every_row = [simple_condition(random_, depth=2) for _ in range(condition_count)]
    judged = [f"count_if(NOT coalesce(({condition}), false)) = 0" for condition in every_row]
    judged += [f"coalesce(({condition}), false)" for condition in OVERALL]
    by_spark = Engine(lambda: spark).one_row(LocalRows(rows), judged, location=PLACE)
    here = [all_hold(rows, every_row=[condition], overall=[]) for condition in every_row]
    here += [all_hold(rows, every_row=[], overall=[condition]) for condition in OVERALL]
    compared = 0
    for condition, answer, expected in zip([*every_row, *OVERALL], here, by_spark, strict=True):
        if answer is not None:
            compared += 1
            assert answer is expected, condition
    assert compared > condition_count
    # Row by row as well: that not every row holds says little about each.
    frame = Engine(lambda: spark).frame(LocalRows(rows))
    flags = frame.selectExpr(*(f"coalesce(({condition}), false) AS c{n}" for n, condition in enumerate(every_row)))
    for row, spark_row in enumerate(flags.toArrow().to_pylist()):
        for number, condition in enumerate(every_row):
            answer = all_hold(rows.slice(row, 1), every_row=[condition], overall=[])
            assert answer is spark_row[f"c{number}"], (condition, row)
