"""The benchmark of Spark SQL: ``python bench/spark.py [--scale 1] [--only write,scan] [--samples 5]``.

Workloads, at scale 1, on 4 M rows (BIGINT, INT, DOUBLE, STRING): scan (an aggregate of four columns), write,
write_partitioned (16 partitions) and write_buckets (8 buckets of a key, after a shuffle by it). The peer is Spark's own
Parquet, with zstd as lakebed's. Lakebed's side is SQL through the catalog and includes the analysis, the statistics of
files, the sync of files and folders, and the commit; Spark's own syncs nothing.

Without rows of their own: bridge_start (the first statement of a new bridge, in seconds), analysis (a statement on a
tag, in milliseconds, and one on a temporary view), plan_100k_cold, _warm and _selective (from SQL text
to the tasks of a scan of 100,000 files in 10 partitions, in seconds; cold: a bridge that has read nothing of the table;
selective: one partition).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import harness
import lakebed.spark
from harness import Result, alternate
from inputs import SCHEMA, rows_of
from lakebed.lake.lake import open_lake
from lakebed.spark.jar import CATALOGS, catalog_settings
from planning import FILES_PER_COMMIT, describe_files, timed

CATALOG = "lake"
FILE_COUNT = 4
"""Files of the rows that every write reads."""
PARTITION_COUNT = 16
BUCKET_COUNT = 8
COLUMNS = "id BIGINT NOT NULL, a INT, v DOUBLE, s STRING"


class Bench:
    """Both sides of every workload, in one session."""

    def __init__(self, folder: Path, spark: SparkSession, *, scale: float, sample_count: int) -> None:
        self.folder, self.spark, self.scale, self.sample_count = folder, spark, scale, sample_count
        self.rows = max(1000, int(1_000_000 * scale)) * FILE_COUNT
        self.made = 0
        source = folder / "source"
        source.mkdir()
        partition = pa.field("p", pa.int32(), nullable=False)
        for number in range(FILE_COUNT):
            count = self.rows // FILE_COUNT
            rows = rows_of(count, first=number * count, seed=number)
            partitions = pa.array([row % PARTITION_COUNT for row in range(count)], pa.int32())
            pq.write_table(rows.append_column(partition, partitions), source / f"{number}.parquet")

    def source(self, *columns: str) -> DataFrame:
        """The rows to write; `columns` after those of `SCHEMA`."""
        return self.spark.read.parquet(str(self.folder / "source")).select(*SCHEMA.names, *columns)

    def new_name(self) -> str:
        """A name that no table or folder has."""
        self.made += 1
        return f"t{self.made}"

    def new_table(self, columns: str = COLUMNS, clauses: str = "") -> str:
        """A new, empty table of the catalog; its name in SQL."""
        name = f"{CATALOG}.bench.{self.new_name()}"
        self.spark.sql(f"CREATE TABLE {name} ({columns}) {clauses}")
        return name

    def against_parquet(self, workload: str, ours: Callable[[], float], plain: Callable[[], float]) -> Result:
        """Lakebed and Spark's own Parquet, in turn."""
        return alternate(
            workload,
            {"lakebed": ours, "spark-parquet": plain},
            sample_count=self.sample_count,
            rows=self.rows,
            durable=True,
            target=">= 0.9x" if workload.startswith("write") else ">= 1x",
        )

    def written(self, rows: DataFrame, table: str) -> float:
        """Seconds of one INSERT."""
        rows.createOrReplaceTempView("rows")
        return timed(lambda: self.spark.sql(f"INSERT INTO {table} SELECT * FROM rows"))

    def plain(self, rows: DataFrame, *partition: str) -> float:
        """Seconds of one write by Spark's own Parquet."""
        target = str(self.folder / self.new_name())
        return timed(lambda: rows.write.option("compression", "zstd").partitionBy(*partition).parquet(target))

    def write(self) -> Result:
        """All rows into a new table."""
        return self.against_parquet(
            "write",
            lambda: self.written(self.source(), self.new_table()),
            lambda: self.plain(self.source()),
        )

    def write_partitioned(self) -> Result:
        """The same into partitions of one column, every task into all of them."""
        return self.against_parquet(
            "write_partitioned",
            lambda: self.written(self.source("p"), self.new_table(f"{COLUMNS}, p INT NOT NULL", "PARTITIONED BY (p)")),
            lambda: self.plain(self.source("p"), "p"),
        )

    def write_buckets(self) -> Result:
        """The same into fixed buckets; Spark's own has as many files, by its own hash of the same column."""
        properties = f"TBLPROPERTIES ('bucket' = '{BUCKET_COUNT}', 'bucket-key' = 'id')"
        return self.against_parquet(
            "write_buckets",
            lambda: self.written(self.source(), self.new_table(clauses=properties)),
            lambda: self.plain(self.source().repartition(BUCKET_COUNT, "id")),
        )

    def scan(self) -> Result:
        """An aggregate over every column of the files of one table."""
        table = self.new_table()
        self.written(self.source(), table)
        files = [row[0] for row in self.spark.sql(f"SELECT file_path FROM {table}.files").collect()]
        root = f"{self.folder / 'lake' / 'bench.db' / table.rpartition('.')[2]}"
        paths = [f"{root}/{file}" for file in files]
        columns = "count(*)", "sum(a)", "sum(v)", "max(s)"
        return self.against_parquet(
            "scan",
            lambda: timed(lambda: self.spark.table(table).selectExpr(*columns).collect()),
            lambda: timed(lambda: self.spark.read.parquet(*paths).selectExpr(*columns).collect()),
        )

    # ---- statements and plans

    def new_catalog(self) -> str:
        """The name of a catalog of the same lake, with a bridge of its own: there is one for each interpreter."""
        name = f"lake{self.new_name()}"
        python = self.folder / f"python-{name}"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o700)
        for key, value in catalog_settings({name: str(self.folder / "lake")}, python=str(python)).items():
            if key.startswith(CATALOGS):
                self.spark.conf.set(key, value)
        return name

    def bridge_start(self) -> Result:
        """From a statement to its answer, in a JVM that has no bridge for the interpreter."""

        def started() -> float:
            name = self.new_catalog()
            return timed(lambda: self.spark.sql(f"SHOW NAMESPACES IN {name}").collect())

        return alternate("bridge_start", {"lakebed": started}, sample_count=self.sample_count, target="<= 1 s")

    def analysis(self) -> Result:
        """The mean of twenty statements, each analysed and not run."""
        table = self.new_table()
        self.spark.sql(f"INSERT INTO {table} VALUES (1, 1, 1.0, 'x')")
        self.spark.sql(f"CALL {CATALOG}.sys.create_tag('{table.partition('.')[2]}', 'x')")
        self.spark.table(table).limit(0).toDF(*SCHEMA.names).createOrReplaceTempView("plain")

        def analysed(statement: str) -> float:
            return timed(lambda: [self.spark.sql(statement).schema for _ in range(20)]) / 20 * 1000

        return alternate(
            "analysis",
            {
                "lakebed": lambda: analysed(f"SELECT * FROM {table} VERSION AS OF 'x'"),
                "view": lambda: analysed("SELECT * FROM plain"),
            },
            unit="ms",
            sample_count=self.sample_count,
            target="<= 15 ms more than a view",
        )

    def plan_100k(self) -> list[Result]:
        """Plans of a scan; no data file is opened."""
        file_count = max(FILES_PER_COMMIT, int(100_000 * self.scale))
        lake = open_lake(str(self.folder / "lake"))
        name = f"bench.{self.new_name()}"
        schema = SCHEMA.append(pa.field("p", pa.int32(), nullable=False))
        describe_files(lake.create_table(name, schema, partition_keys="p"), file_count)

        def planned(catalog: str, where: str = "") -> float:
            def plan() -> None:
                frame = self.spark.sql(f"SELECT id FROM {catalog}.{name} {where}")
                assert frame._jdf.queryExecution().toRdd().getNumPartitions() > 0

            return timed(plan)

        def cold() -> float:
            catalog = self.new_catalog()
            self.spark.sql(f"SHOW NAMESPACES IN {catalog}").collect()
            return planned(catalog)

        results = []
        for kind, measure, target in (
            ("cold", cold, "<= 4 s"),
            ("warm", lambda: planned(CATALOG), "<= 0.2 s"),
            ("selective", lambda: planned(CATALOG, "WHERE p = 3"), "<= 0.1 s"),
        ):
            sides, count = {"lakebed": measure}, self.sample_count
            one = alternate(f"plan_100k_{kind}", sides, sample_count=count, rows=file_count, target=target)
            one.bytes = {"bridge_peak": self.bridge_peak_bytes(), "driver_heap": self.heap_bytes()}
            results.append(one)
        return results

    def bridge_peak_bytes(self) -> int:
        """The greatest peak of resident memory of the bridges so far."""
        jvm = self.spark._jvm
        assert jvm is not None
        peaks = [0]
        for child in jvm.java.lang.ProcessHandle.current().children().toArray():
            process = Path(f"/proc/{child.pid()}")
            if b"lakebed.spark.bridge" in (process / "cmdline").read_bytes():
                peak = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM:"))
                peaks.append(int(peak.split()[1]) << 10)
        return max(peaks)

    def heap_bytes(self) -> int:
        """What the driver's heap holds after a collection."""
        jvm = self.spark._jvm
        assert jvm is not None
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())


WORKLOADS = (
    "scan",
    "write",
    "write_partitioned",
    "write_buckets",
    "bridge_start",
    "analysis",
    "plan_100k",
)


def main() -> None:
    """Run the chosen workloads and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is four million rows; 0.1 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="comma-separated workloads")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    spark = lakebed.spark.session("bench", cores=2, memory="2g", catalogs={CATALOG: str(folder / "lake")})
    bench = Bench(folder, spark, scale=chosen.scale, sample_count=chosen.samples)
    results: list[Result] = []
    try:
        for name in chosen.only.split(","):
            made = getattr(bench, name)()
            results += made if isinstance(made, list) else [made]
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "pyspark")
    print(f"written: {harness.write_results('spark', results, scale=chosen.scale, versions=versions)}")


if __name__ == "__main__":
    main()
