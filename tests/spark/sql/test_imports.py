"""Folders that Spark wrote become tables in SQL and by a job, and leave as folders that Spark reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from lakebed.spark import jobs
from lakebed.spark.dataframe.reading import read
from lakebed.table.imports import ImportOptions

Run = Callable[[str], list[tuple[Any, ...]]]


def test_partitions_of_spark(session: SparkSession, sql: Run, lake: Lake, tmp_path: Path) -> None:
    """Files lack the partition columns: every reader of Spark has them, before and after statements that rewrite."""
    source = tmp_path / "source"
    rows = session.range(100).selectExpr("id", "id % 3 AS k", "if(id % 2 = 0, 'even', null) AS t", "id / 4 AS x")
    rows.coalesce(1).write.partitionBy("k", "t").parquet(str(source))
    called = "CALL lake.sys.import_table(table => 'db.t', source => '{}', format => 'parquet', dry_run => {})"
    sql("CREATE NAMESPACE lake.db")
    assert sql(called.format(source, "true"))[0][:4] == (None, 100, 6, 0)
    assert sql(called.format(source, "false"))[0][:4] == (1, 100, 6, 0)
    expected = sorted(map(tuple, rows.select("id", "x", "k", "t").collect()), key=repr)
    assert sorted(sql("SELECT id, x, k, t FROM lake.db.t"), key=repr) == expected
    table = lake.table("db.t")
    for native in (True, False):
        result = read(session, table, where="k = 1 AND t = 'even'", native=native).select("id", "x", "k", "t")
        assert sorted(map(tuple, result.collect()), key=repr) == [row for row in expected if row[2:] == (1, "even")]
    assert sql("SELECT k, count(*) FROM lake.db.t WHERE k > 0 AND t IS NULL GROUP BY k ORDER BY k") == [
        (1, 17),
        (2, 16),
    ]
    sql("DELETE FROM lake.db.t WHERE k = 0")
    sql("UPDATE lake.db.t SET x = -1 WHERE id = 1")
    sql("INSERT INTO lake.db.t (id, x, k, t) VALUES (1000, 0.5, 2, 'even')")
    changed = [(1, -1.0, *row[2:]) if row[0] == 1 else row for row in expected if row[2] != 0]
    changed = sorted([*changed, (1000, 0.5, 2, "even")], key=repr)
    assert sorted(sql("SELECT id, x, k, t FROM lake.db.t"), key=repr) == changed
    target = tmp_path / "target"
    assert sql(f"CALL lake.sys.export_table('db.t', '{target}', 'parquet')")[0][1] == len(changed)
    left = session.read.parquet(str(target)).select("id", "x", "k", "t")
    assert sorted(map(tuple, left.collect()), key=repr) == changed


def test_a_job_copies_and_rewrites(session: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Tasks copy files that fit and convert those that do not; the driver commits once."""
    source = tmp_path / "source"
    for part in range(4):
        (source / f"k={part}").mkdir(parents=True)
        kind = pa.int32() if part == 3 else pa.int64()
        pq.write_table(
            pa.table({"id": pa.array(range(part * 10, part * 10 + 10), kind)}), source / f"k={part}" / "x.parquet"
        )
    report = jobs.import_table(
        session, lake, "db.t", str(source), format="parquet", options=ImportOptions(rewrite=True)
    )
    assert (report.row_count, report.taken_count, report.rewritten_count) == (40, 3, 1)
    table = lake.table("db.t")
    assert report.snapshot == table.latest()
    result = sorted(zip(*(table.read()[name].to_pylist() for name in ("id", "k")), strict=True))
    assert result == [(i, i // 10) for i in range(40)]
