"""A program for `test_s3a`: SQL and DataFrames on a lake in S3, which Hadoop's file system reaches too.

Its arguments are a folder of its own, the lake's URL, the server's endpoint and the class path of Hadoop's file system;
credentials are in its environment. It prints one JSON object: what the statements returned, and the texts that others
may see.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakebed.spark
from lakebed.lake.lake import Lake, open_lake

SECONDS_MAX = 600
PREPARED = (
    "CREATE TABLE lake.db.t AS SELECT id, concat('v', id) AS v FROM range(0, 100, 1, 2)",
    "CREATE TABLE lake.db.p (id BIGINT, p STRING, d DATE) PARTITIONED BY (p, d)",
    "INSERT INTO lake.db.p SELECT id, element_at(array('a b', 'c%20d', 'ü', 'x=y', 'q?r', 'h#i', 'a+b:c'), "
    "CAST(id % 7 + 1 AS INT)), DATE'2020-01-01' FROM range(0, 70, 1, 2)",
    "CREATE TABLE lake.db.b (id BIGINT, v STRING) PARTITIONED BY (bucket(3, id))",
    "INSERT INTO lake.db.b SELECT id, 'b' FROM range(0, 50, 1, 2)",
    "CREATE TABLE lake.db.big (id BIGINT, v STRING) "
    "TBLPROPERTIES ('file.compression' = 'none', 'file.block-size' = '4mb')",
    "INSERT INTO lake.db.big SELECT id, repeat(sha2(CAST(id AS STRING), 512), 10) FROM range(0, 10000, 1, 1)",
    "UPDATE lake.db.t SET v = 'u' WHERE id < 5",
    "CALL lake.sys.create_tag('db.t', 'updated')",
    "MERGE INTO lake.db.t t USING (SELECT 7L AS id, 'm' AS v UNION ALL SELECT 1000, 'n' UNION ALL "
    "SELECT id, 'd' FROM range(50, 60)) s ON t.id = s.id WHEN MATCHED AND s.v = 'd' THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM lake.db.b WHERE id BETWEEN 10 AND 19",
    "INSERT OVERWRITE lake.db.p PARTITION (p = 'a b', d = DATE'2020-01-01') SELECT 1000L",
    "CREATE TABLE lake.db.k (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '2')",
    "INSERT INTO lake.db.k SELECT id, 'a' FROM range(50)",
    "MERGE INTO lake.db.k t USING (SELECT id, 'm' AS v FROM range(45, 55)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM lake.db.k WHERE id = 0",
    "CREATE TABLE lake.db.followed (id BIGINT, v STRING)",
    "CREATE TABLE lake.db.failed (id BIGINT, v STRING) "
    "TBLPROPERTIES ('target-file-size' = '4mb', 'file.compression' = 'none')",
)
QUERIES = {
    "t": "SELECT count(*), sum(id), count_if(v = 'u'), count_if(v = 'm') FROM lake.db.t WHERE v <> 'x'",
    "tag": "SELECT count(*), sum(id) FROM lake.db.t VERSION AS OF 'updated' WHERE v <> 'x'",
    "first": "SELECT count_if(v = 'u') FROM lake.db.t VERSION AS OF 1",
    "p": "SELECT p, sum(id) FROM lake.db.p GROUP BY p",
    "b": "SELECT count(*) FROM lake.db.b WHERE id IN (7, 49, 50)",
    "big": "SELECT count(*), sum(id), count(DISTINCT v) FROM lake.db.big",
    "k": "SELECT count(*), sum(id), count_if(v = 'm') FROM lake.db.k",
}
FAILING = "CAST(raise_error('the row fails') AS BIGINT)"
TEXT = "repeat(sha2(CAST(id AS STRING), 512), 2)"
FAILED = (
    # One task, which has finished files when its last row fails.
    f"INSERT INTO lake.db.failed SELECT IF(id = 99999, {FAILING}, id), {TEXT} FROM range(0, 100000, 1, 1)",
    # Two tasks: one fails, and the other is interrupted.
    f"INSERT INTO lake.db.failed SELECT IF(id = 330000, {FAILING}, id), {TEXT} FROM range(0, 600000, 1, 2)",
    # A file that is uploaded in parts.
    f"INSERT INTO lake.db.big SELECT IF(id = 9999, {FAILING}, id), repeat({TEXT}, 5) FROM range(0, 10000, 1, 1)",
)


def started(folder: Path, url: str, endpoint: str, class_path: str) -> SparkSession:
    """A session as docs/guide/cluster.md sets it up, with an event log."""
    (folder / "events").mkdir()
    settings = {
        "spark.driver.extraClassPath": class_path,
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.multipart.size": "5M",  # the least: so small files have parts
        "spark.hadoop.fs.s3a.multipart.threshold": "5M",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    return lakebed.spark.session("s3a", cores=2, catalogs={"lake": url}, settings=settings)


def follow(rows: DataFrame, checkpoint: str) -> None:
    """Write what a stream has now into a table."""
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.toTable("lake.db.followed")
    try:
        assert query.awaitTermination(SECONDS_MAX)
    finally:
        query.stop()


def run(spark: SparkSession, lake: Lake, checkpoint: str) -> dict[str, Any]:
    """Run all statements."""
    for statement in PREPARED:
        spark.sql(statement)
    result: dict[str, Any] = {name: [list(row) for row in spark.sql(sql).collect()] for name, sql in QUERIES.items()}
    lakebed.spark.write(spark.range(2000, 2010, 1, 2).selectExpr("id", "'w' AS v"), lake.table("db.t"))
    result["read"] = lakebed.spark.read(spark, lake.table("db.t"), where="v = 'w'").count()
    for _ in range(2):  # the second time nothing is new
        follow(spark.readStream.table("lake.db.t"), checkpoint)
    result["texts"] = [str(spark.sql(f"EXPLAIN EXTENDED {sql}").collect()) for sql in (*QUERIES.values(), PREPARED[4])]
    result["texts"] += [str(spark.sql("SET -v").collect()), str(spark.sql("SET").collect())]
    result["errors"] = []
    for statement in FAILED:
        try:
            spark.sql(statement)
        except PySparkException as error:
            result["errors"].append(str(error))
    return result


def main() -> None:
    """Run everything and say what came of it."""
    folder, url, endpoint, class_path = sys.argv[1:]
    spark = started(Path(folder), url, endpoint, class_path)
    result = run(spark, open_lake(url), f"{url.replace('s3://', 's3a://')}-checkpoint")
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
