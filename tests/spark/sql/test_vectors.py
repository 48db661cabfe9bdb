"""Tables with deletion vectors in Spark: SQL, DataFrames and jobs leave marked rows out; a dictionary is the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake
from lakebed.spark import jobs

Run = Callable[[str], list[tuple[Any, ...]]]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = 2000


def test_marked_rows_are_in_no_result(sql: Run, lake: Lake, spark: SparkSession) -> None:
    """DELETE marks rows; counts, limits, filters, UPDATE, MERGE, differences and compactions see the others."""
    options = {"deletion-vectors.enabled": "true", "file.block-size": "4 kb"}
    table = lake.create_table("db.marked", SCHEMA, options=options)
    for start in (0, ROWS):
        table.append(pa.table({"id": range(start, start + ROWS), "v": [f"v{n}" for n in range(start, start + ROWS)]}))
    expected = {n: f"v{n}" for n in range(2 * ROWS)}
    files = set(table.system("files")["file_path"].to_pylist())

    sql("DELETE FROM lake.db.marked WHERE id < 100 OR id = 777")
    expected = {n: v for n, v in expected.items() if n >= 100 and n != 777}
    assert set(table.system("files")["file_path"].to_pylist()) == files
    lakebed.spark.delete("id = 778", table)
    del expected[778]
    assert set(table.system("files")["file_path"].to_pylist()) == files

    assert dict(sql("SELECT id, v FROM lake.db.marked WHERE id < 1500")) == {
        n: expected[n] for n in expected if n < 1500
    }
    assert sql("SELECT count(*) FROM lake.db.marked") == [(len(expected),)]
    assert len(sql(f"SELECT id FROM lake.db.marked LIMIT {ROWS + 500}")) == ROWS + 500
    changed = jobs.diff_versions(spark, table, 2).collect()
    assert {row.id for row in changed} == {*range(100), 777, 778}

    sql("UPDATE lake.db.marked SET v = 'new' WHERE id = 500 OR id = 50")
    expected[500] = "new"
    sql(
        "MERGE INTO lake.db.marked t USING (SELECT explode(array(99, 600, 601)) AS id) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 600 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'back')"
    )
    assert files < set(table.system("files")["file_path"].to_pylist()), "rows were marked, and new ones written"
    expected[601], expected[99] = "merged", "back"
    del expected[600]
    table.delete("id = 3000")
    del expected[3000]
    assert jobs.compact_table(spark, table, full=True).rows_after == len(expected)
    rows = table.read()
    assert rows.num_rows == len(expected)
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected


def test_a_primary_key_with_vectors(sql: Run, lake: Lake, spark: SparkSession) -> None:
    """Rows are visible after a compaction; DELETE, UPDATE and MERGE see the newest rows; reads need no merge."""
    sql(
        "CREATE TABLE lake.db.keyed (id BIGINT NOT NULL, v STRING) TBLPROPERTIES "
        "('primary-key' = 'id', 'bucket' = '1', 'deletion-vectors.enabled' = 'true')"
    )
    table = lake.table("db.keyed")
    table.upsert(pa.table({"id": range(ROWS), "v": [f"v{n}" for n in range(ROWS)]}))
    table.compact()
    expected = {n: f"v{n}" for n in range(ROWS)}
    sql("INSERT INTO lake.db.keyed VALUES (1, 'one'), (9000, 'new')")
    assert dict(sql("SELECT id, v FROM lake.db.keyed")) == expected
    expected |= {1: "one", 9000: "new"}
    sql("UPDATE lake.db.keyed SET v = concat(v, '!') WHERE v = 'one' OR v = 'v1' OR v = 'v2'")
    expected |= {1: "one!", 2: "v2!"}
    sql(
        "MERGE INTO lake.db.keyed t USING (SELECT explode(array(5, 9000, 9001)) AS id) s ON t.id = s.id "
        "WHEN MATCHED AND t.id < 10 THEN DELETE WHEN MATCHED THEN UPDATE SET v = concat(t.v, ' merged') "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'inserted')"
    )
    del expected[5]
    expected |= {9000: "new merged", 9001: "inserted"}
    lakebed.spark.delete("v = 'v7' or v = 'inserted'", table)
    del expected[7], expected[9001]
    assert jobs.compact_table(spark, table).rows_before < 20
    assert dict(sql("SELECT id, v FROM lake.db.keyed")) == expected
    assert sql("SELECT count(*) FROM lake.db.keyed") == [(len(expected),)]
    assert sql("SELECT v FROM lake.db.keyed WHERE id = 2") == [("v2!",)]
    assert not any(split.needs_merge for split in table.scan().splits())
    assert any(split.vectors for split in table.scan().splits())
    changed = jobs.diff_versions(spark, table, 2).collect()
    assert {row.id for row in changed} == {1, 2, 5, 7, 9000}
    rows = sql(
        "SELECT id, v, _change_type, _commit_version FROM lake.db.keyed CHANGES FROM VERSION 2 EXCLUSIVE ORDER BY id, v"
    )
    compacted = table.latest().id  # type: ignore[union-attr]
    assert rows == [
        (1, "one!", "update_postimage", compacted),
        (1, "v1", "update_preimage", compacted),
        (2, "v2", "update_preimage", compacted),
        (2, "v2!", "update_postimage", compacted),
        (5, "v5", "delete", compacted),
        (7, "v7", "delete", compacted),
        (9000, "new merged", "insert", compacted),
    ]
