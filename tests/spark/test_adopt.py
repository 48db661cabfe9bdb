"""Files that Spark's own writer wrote become data files; what is stated of them is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lakebed.spark.dataframe.reading import local_frame
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows
from lakebed.table.files.adopt import AdoptedFile, describe_file
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from worlds.nasty import NASTY

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]


def test_files_of_spark(spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, tmp_path: Path) -> None:
    """Nasty values in files of Spark: bounds hold for every value and are tight, rows are the same."""
    names = [name for name in NASTY if name not in ("nanos", "millis")]
    length = max(len(NASTY[name].values) for name in names)
    rows = pa.table({name: NASTY[name].array((list(NASTY[name].values) * length)[:length]) for name in names})
    extra = pa.array([None, -1, *range(length - 2)], pa.int64())
    rows = rows.append_column("at", extra.cast(pa.timestamp("us")))
    rows = rows.append_column("instant", extra.cast(pa.timestamp("us", tz="UTC")))
    rows = rows.append_column("big", pa.array([-(10**20), None, *range(length - 2)], pa.decimal128(30, 2)))
    rows = rows.append_column("number", pa.array([None, 0.5, *([-1.5] * (length - 2))]))
    table = make_table(rows.schema)
    frame = local_frame(spark, rows).repartition(3)
    (tmp_path / "t" / "bucket-0").mkdir(parents=True, exist_ok=True)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        frame.write.option("parquet.block.size", 1024).parquet(str(tmp_path / "plain"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    types = [field.type for field in table.schema.fields]
    added = []
    for path in sorted((tmp_path / "plain").glob("*.parquet")):
        moved = path.rename(tmp_path / "t" / "bucket-0" / path.name)
        footer, stored = pq.read_metadata(moved), pq.read_table(moved)
        file = AdoptedFile(path.name, moved.stat().st_size)
        added.append(describe_file(footer, file, schema=table.schema, stats_mode="full"))
        low, high = (
            decode_rows(pa.array([row]), types)
            for row in (added[-1].value_stats.min_values, added[-1].value_stats.max_values)
        )
        for i, field in enumerate(table.schema.fields):
            parts = [value for value in stored[field.name].to_pylist() if value is not None]
            least, greatest = low[i][0].as_py(), high[i][0].as_py()
            assert least is None or all(least <= value for value in parts), field.name
            assert greatest is None or all(value <= greatest for value in parts), field.name
            has_nan = any(isinstance(value, float) and math.isnan(value) for value in parts)
            if field.type != "BYTES" and parts and not has_nan and max(map(_length, parts)) < 64:
                assert (least, greatest) == (min(parts), max(parts)), field.name
    commit_changes(table.context, [BucketChange(EMPTY_ROW, 0, -1, added=tuple(added))], kind="APPEND")
    assert repr(sorted_rows(table.scan().to_arrow())) == repr(sorted_rows(rows))  # NaN is not equal to itself
    assert table.scan(where="number > 0").to_arrow().num_rows == 1


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def bounds(path: Path, table: Table) -> tuple[float | None, float | None]:
    """The bounds of the only column, a DOUBLE, of the only file in a folder."""
    (file,) = path.glob("*.parquet")
    place = AdoptedFile(file.name, file.stat().st_size)
    stats = describe_file(pq.read_metadata(file), place, schema=table.schema, stats_mode="full").value_stats
    low, high = (decode_rows(pa.array([row]), ["DOUBLE"])[0][0].as_py() for row in (stats.min_values, stats.max_values))
    return low, high


def test_nan(spark: SparkSession, make_table: MakeTable, tmp_path: Path) -> None:
    """A file of Spark with NaN, wherever it is, has no bounds; the same file without NaN has."""
    table = make_table(pa.schema([("x", pa.float64())]))
    values = [1.0, -5.0, 2.0]
    for position in (0, 3, None):
        rows = values if position is None else [*values[:position], math.nan, *values[position:]]
        folder = tmp_path / f"at-{position}"
        spark.createDataFrame([(value,) for value in rows], "x double").coalesce(1).write.parquet(str(folder))
        assert bounds(folder, table) == ((-5.0, 2.0) if position is None else (None, None))


def test_zeros(spark: SparkSession, make_table: MakeTable, tmp_path: Path) -> None:
    """The bounds of zeros of either sign include both."""
    table = make_table(pa.schema([("x", pa.float64())]))
    for value in (0.0, -0.0):
        folder = tmp_path / str(value)
        spark.createDataFrame([(value,)], "x double").coalesce(1).write.parquet(str(folder))
        low, high = bounds(folder, table)
        assert low is not None
        assert high is not None
        assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)
