"""Spark's ``s3a://`` against the gateway: Hadoop's own file system writes, renames and reads files of a branch."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

HERE = Path(__file__).parent

PROGRAM = """
import sys
from pyspark.sql import SparkSession
endpoint, key, secret, jars = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.extraClassPath": jars,
    "spark.sql.shuffle.partitions": "2",
    "spark.hadoop.fs.s3a.endpoint": endpoint,
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.access.key": key,
    "spark.hadoop.fs.s3a.secret.key": secret,
    "spark.hadoop.fs.s3a.multipart.size": "5M",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
place = "s3a://analytics/main/out"
for mode in ("overwrite", "append", "overwrite"):
    rows = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 AS p", "repeat(sha2(CAST(id AS STRING), 512), 80) AS v")
    rows.write.mode(mode).partitionBy("p").parquet(place)
print("rows", spark.read.parquet(place).filter("p = 1").count(), spark.read.parquet(place).count())
path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
files = path("s3a://analytics/main/").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
assert files.rename(path(place), path("s3a://analytics/main/moved"))
assert files.exists(path("s3a://analytics/main/moved/_SUCCESS")) and not files.exists(path(place))
assert files.mkdirs(path("s3a://analytics/main/empty/dir"))
assert files.getFileStatus(path("s3a://analytics/main/empty/dir")).isDirectory()
spark.range(300000).selectExpr("id", "uuid() AS u").coalesce(1).write.option("compression", "none").parquet(
    "s3a://analytics/main/big"
)
print("big", spark.read.parquet("s3a://analytics/main/big").count())
assert files.delete(path("s3a://analytics/main/empty"), True)
"""


@pytest.mark.long
def test_spark_works_on_a_branch_by_hadoops_file_system(tmp_path: Path) -> None:
    """Writes with renames, overwrites, uploads in parts, partitions and folders; the files are those of the branch."""
    version = next((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    if not (HERE / "lib" / f"hadoop-aws-{version}.jar").exists():
        pytest.skip("Hadoop's file system for S3 is not there: run make hadoop-aws")
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", access_log=tmp_path / "access.log", options=options) as server:
        started: Any = server.started
        repository = server.site.repositories.create("analytics")
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        jars = f"{HERE / 'lib'}/*"
        command = [sys.executable, str(program), started.endpoint, started.access_key, started.secret, jars]
        done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=tmp_path, timeout=550)
        reasons = [line for line in done.stderr.splitlines() if "Exception" in line or "Error" in line]
        assert done.returncode == 0, "\n".join(reasons[:40])
        assert "rows 333 1000" in done.stdout
        assert "big 300000" in done.stdout
        branch = repository.branch("main")
        paths = {listed.path: listed.entry for listed in branch.list()}
        moved = [path for path in paths if path.startswith("moved/p=") and path.endswith(".parquet")]
        ids = [number for path in moved for number in read_ids(branch, path)]
        assert sorted(ids) == list(range(1_000))
        assert not [path for path in paths if "_temporary" in path or path.startswith(("out/", "empty/"))]
        (big,) = (path for path in paths if path.startswith("big/") and path.endswith(".parquet"))
        assert paths[big].checksum.partition("-")[2].isdigit(), "it came in parts"


def read_ids(branch: Any, path: str) -> list[int]:
    """The column ``id`` of a file of a branch."""
    ids: list[int] = pq.read_table(io.BytesIO(bytes(branch.get(path))), columns=["id"])["id"].to_pylist()
    return ids
