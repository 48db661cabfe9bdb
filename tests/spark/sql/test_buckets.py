"""The functions by which rows reach the task that writes their bucket: what they return, and how even tasks are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from lakebed.spark.dataframe.reading import local_frame
from lakebed.table.files.bucket import bucket_of

Run = Callable[[str], list[tuple[Any, ...]]]

BUCKET_COUNT = 7
COLUMNS = {"l": "BIGINT", "i": "INT", "s": "STRING", "n": "BIGINT", "m": "INT"}
"""Spark compiles the functions of the first three, and calls those of the others, which have nulls, row by row."""
WITHOUT_NULL = ("l", "i")


@pytest.fixture
def rows(session: SparkSession) -> pa.Table:
    """The view ``rows``: numbers of all sizes and signs, short and long texts, and nulls."""
    chance = random.Random(5)
    longs = [0, -1, 1, 2**63 - 1, -(2**63), 2**31, *(chance.randrange(-(2**63), 2**63) >> (n % 64) for n in range(64))]
    values: dict[str, list[Any]] = {
        "l": longs,
        "i": [(value + 2**31) % 2**32 - 2**31 for value in longs],
        "s": [None if n % 7 == 0 else "ä☃x"[n % 3] * (n % 13) for n in range(len(longs))],
    }
    values["n"] = [None if n % 5 == 0 else value for n, value in enumerate(values["l"])]
    values["m"] = [None if n % 4 == 0 else value for n, value in enumerate(values["i"])]
    types = {"BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string()}
    fields = [pa.field(name, types[kind], nullable=name not in WITHOUT_NULL) for name, kind in COLUMNS.items()]
    made = pa.table(values, schema=pa.schema(fields))
    local_frame(session, made).createOrReplaceTempView("rows")
    return made


def test_buckets_of_keys(sql: Run, rows: pa.Table) -> None:
    """Each type of key, alone and with another column, has the buckets that lakebed computes."""
    keys = [*([name] for name in COLUMNS), ["l", "s"]]
    calls = ", ".join(f"lake.bucket({BUCKET_COUNT}, {', '.join(key)})" for key in keys)
    result = list(zip(*sql(f"SELECT {calls} FROM rows"), strict=True))
    for key, buckets in zip(keys, result, strict=True):
        types = [COLUMNS[name] for name in key]
        wanted = bucket_of([rows[name] for name in key], types, bucket_count=BUCKET_COUNT).tolist()
        assert sorted(buckets) == sorted(wanted), key
        assert len(set(wanted)) == BUCKET_COUNT


@pytest.mark.usefixtures("rows")
def test_a_task_for_each_bucket(session: SparkSession, sql: Run, lake: Lake) -> None:
    """Buckets take turns in the parts of a shuffle, whose rows Spark places by compiled code; files name their task."""
    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "8")
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    for name, key in (("lake.db.one", "l"), ("lake.db.two", "l,s")):
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        sql(
            f"CREATE TABLE {name} ({columns.replace('l BIGINT', 'l BIGINT NOT NULL')}) "
            f"TBLPROPERTIES ('bucket' = '{BUCKET_COUNT}', 'bucket-key' = '{key}')"
        )
        ((plan,),) = sql(f"EXPLAIN INSERT INTO {name} SELECT * FROM rows")
        assert ("applyfunctionexpression" in plan) == ("," in key), plan
        sql(f"INSERT INTO {name} SELECT * FROM rows")
        files = list(Path(lake.table(name.removeprefix("lake.")).url.removeprefix("file://")).rglob("*.parquet"))
        assert len(files) == len({file.parent for file in files}) == BUCKET_COUNT
        assert len({file.stem.rpartition("-")[0] for file in files}) == BUCKET_COUNT, "a task wrote two buckets"
    counts = (1, 3, 8, 200)
    placed = ", ".join(f"pmod(hash(lake.spread({count}, bucket, 9)), {count})" for count in counts)
    for bucket, *parts in sql(f"SELECT bucket, {placed} FROM (SELECT CAST(id AS INT) bucket FROM range(9))"):
        assert parts == [bucket % count for count in counts]
