"""Tables whose files tasks of Spark's JVM wrote, read by the other clients of the format."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
import lakebed.spark
from lakebed.spark.dataframe.reading import local_frame

if TYPE_CHECKING:
    from conftest import Peers

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def rows_of(count: int = 60) -> pa.Table:
    """Every type that Spark's writer encodes, with nulls; a day and a text to place rows by."""

    def column(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([None if row % 5 == 0 else value for row, value in enumerate(values)], kind)

    at = [dt.datetime(2013, 1, 1, 12, 30, 15, 123456) + dt.timedelta(seconds=row) for row in range(count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "tiny": column([row - 30 for row in range(count)], pa.int8()),
            "small": column([row * 100 for row in range(count)], pa.int16()),
            "x": column([row / 4 for row in range(count)], pa.float64()),
            "f": column([row / 2 for row in range(count)], pa.float32()),
            "money": column([Decimal(row * 12345 - 99).scaleb(-2) for row in range(count)], pa.decimal128(10, 2)),
            "wide": column([Decimal(row * 10**20 + 7).scaleb(-5) for row in range(count)], pa.decimal128(30, 5)),
            "s": column(["é" * (row % 12) for row in range(count)], pa.string()),
            "b": column([bytes(range(row % 16)) for row in range(count)], pa.binary()),
            "flag": column([row % 3 == 0 for row in range(count)], pa.bool_()),
            "at": column(at, pa.timestamp("us")),
            "instant": column([moment.replace(tzinfo=dt.UTC) for moment in at], pa.timestamp("us", tz="UTC")),
            "day": pa.array([dt.date(2013, 1, 1 + row % 3) for row in range(count)], pa.date32()),
            "region": pa.array([("a/b", "north", None)[row % 3] for row in range(count)], pa.string()),
        }
    )


def canonical(table: pa.Table) -> list[dict[str, object]]:
    """Rows as Python values, so that physical types do not matter."""
    return table.sort_by("id").to_pylist()


def test_other_clients_read_them(spark: SparkSession, peers: Peers) -> None:
    """Every type; partitions by a day and a text; fixed buckets; filters that prune by the bounds of footers."""
    rows = rows_of()
    lake = lakebed.open(peers.warehouse)
    lake.create_table("plain", rows.schema)
    lake.create_table("parts", rows.schema, partition_keys=["day", "region"])
    lake.create_table("buckets", rows.schema, options={"bucket": "3", "bucket-key": "s,wide,at"})
    frame = local_frame(spark, rows).repartition(2).persist()
    for name in ("plain", "parts", "buckets"):
        lakebed.spark.write(frame, lake.table(name))
        for client in ("pypaimon", "pypaimon-native"):
            assert canonical(peers.read(f"default.{name}", client=client)) == canonical(rows), (name, client)
        assert canonical(peers.sql(f'select * from paimon."default".{name}')) == canonical(rows), name
        wanted = "id >= 17 and id < 40 and x > 5 and day = date '2013-01-02'"
        result = peers.sql(f'select id from paimon."default".{name} where {wanted}')["id"].to_pylist()
        assert sorted(result) == [22, 28, 31, 34, 37]
    frame.unpersist()
