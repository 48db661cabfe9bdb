"""``format("lakebed")`` through Spark: found without registration, read, filtered, written; the guide's example."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from lakebed.spark.dataframe.reading import local_frame
from lakebed.table.table import Table

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]

SCHEMA = pa.schema(
    [
        pa.field("month", pa.int32(), nullable=False),
        ("carrier", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("money", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("points", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("a", pa.int64())])),
    ]
)


def rows(month: int) -> pa.Table:
    """A row of values and a row of nulls."""
    instant = month * 10**12
    full = [month, f"c{month}", month, instant, instant, month, float("nan"), ["a", None], [("k", month)], {"a": month}]
    columns = []
    for field, value in zip(SCHEMA, full, strict=True):
        values = [value, None if field.nullable else value]
        storage = pa.int64() if pa.types.is_timestamp(field.type) else field.type
        columns.append(pa.array(values, pa.int32() if pa.types.is_date(field.type) else storage).cast(field.type))
    return pa.table(columns, schema=SCHEMA)


def test_the_source(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, tmp_path: Path) -> None:
    """Every type is read as it is; filters leave out files; each write is one snapshot; the guide's example runs."""
    table = make_table(SCHEMA, name="flights", partition_keys=["month"])
    for month in (1, 2, 3):
        table.write(rows(month))
    table.create_tag("2013-03", snapshot_id=3)
    url = str(table.url)
    frame = spark.read.format("lakebed").load(url)
    assert repr(sorted_rows(frame)) == repr(sorted_rows(table.scan().to_arrow()))
    result = frame.filter("month >= 2 and carrier is not null").select("month", functions.input_file_name())
    assert sorted(row.month for row in result.collect()) == [2, 3]
    assert frame.filter("month >= 2").rdd.getNumPartitions() <= 2 < 3
    more = local_frame(spark, rows(4))
    more.write.format("lakebed").mode("append").save(url)
    assert table.latest().id == 4
    assert repr(sorted_rows(table.scan(where="month = 4").to_arrow())) == repr(sorted_rows(rows(4)))
    with pytest.raises(PySparkException, match="no option 'taq'"):
        spark.read.format("lakebed").option("taq", "2013-03").load(url)
    before = len(list(tmp_path.rglob("*.parquet")))
    wrong = more.withColumn("month", functions.raise_error(functions.lit("no")).cast("int"))
    with pytest.raises(PySparkException):
        wrong.write.format("lakebed").mode("append").save(url)
    assert len(list(tmp_path.rglob("*.parquet"))) == before
    assert table.latest().id == 4

    guide = (Path(__file__).parents[2] / "docs" / "guide" / "spark.md").read_text()
    (block,) = re.findall(r"## The data source.*?```python\n(.*?)```", guide, re.DOTALL)
    assert '"file:///data/lake/flights"' in block
    shown = block.replace('"file:///data/lake/flights"', repr(url))
    exec(compile(shown, "spark.md", "exec"), {"spark": spark, "df": more})
    assert table.latest().id == 6
    assert sorted(table.scan().to_arrow()["month"].to_pylist()) == [1, 1, 2, 2, 3, 3, 4, 4]
