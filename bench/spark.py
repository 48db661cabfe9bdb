"""The benchmark of Spark SQL: ``python bench/spark.py [--scale 1] [--only write,scan] [--samples 5]``.

Workloads, at scale 1, on 4 M rows (BIGINT, INT, DOUBLE, STRING): scan (an aggregate of four columns), write,
write_partitioned (16 partitions), write_buckets (8 buckets of a key, after a shuffle by it), point_lookup (a row by its
id, in milliseconds, in a table of 4 files) and point_lookup_64_files. The peers are Spark's own Parquet, with zstd as
lakebed's, and Delta Lake. Lakebed's side is SQL through the catalog and includes the analysis, the statistics of files,
the sync of files and folders, and the commit; Spark's own syncs nothing. Changes, streams, orphans and the format's own
Java connector: `spark_changes`.

Without rows of their own: bridge_start (the first statement of a new bridge, in seconds), analysis (a statement on a
tag, in milliseconds, and one on a temporary view), plan_100k_cold, _warm and _selective (from SQL text
to the tasks of a scan of 100,000 files in 10 partitions, in seconds; cold: a bridge that has read nothing of the table;
selective: one partition), write_memory (the most that the heap of the JVM holds during a write into 200 partitions, of
two tasks together, in megabytes: what is live after collections that took place, of which each sample is the greatest
and the figure the median; nine tenths are the pages by which Spark sorts the rows of both sides).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import harness
import lakebed.spark
import spark_changes
from harness import Result, alternate
from inputs import SCHEMA, rows_of
from lakebed.lake.lake import open_lake
from lakebed.spark.jar import CATALOGS, catalog_settings
from planning import FILES_PER_COMMIT, describe_files, timed
from spark_changes import SparkPeer, StartedPeer
from spark_queries import AGGREGATES, COLUMNS, LOOKUP_COUNT, spread

CATALOG = "lake"
FILE_COUNT = 4
"""Files of the rows that every write reads."""
PARTITION_COUNT = 16
BUCKET_COUNT = 8
MANY_PARTITIONS = 200
MANY_FILES = 64
LOOK_S = 0.3
"""Between collections, which stop the tasks."""
HERE = Path(__file__).parent


class Bench:
    """Lakebed and Spark's own Parquet in one session, and the sessions of other peers."""

    def __init__(
        self, folder: Path, spark: SparkSession, *, scale: float, sample_count: int, peers: Sequence[SparkPeer]
    ) -> None:
        self.folder, self.spark, self.scale, self.sample_count = folder, spark, scale, sample_count
        self.peers, self.started = peers, dict[str, StartedPeer]()
        self.rows = max(1000, int(1_000_000 * scale)) * FILE_COUNT
        self.made, self.base = 0, ""
        source = folder / "source"
        source.mkdir()
        partition = pa.field("p", pa.int32(), nullable=False)
        for number in range(FILE_COUNT):
            count = self.rows // FILE_COUNT
            rows = rows_of(count, first=number * count, seed=number)
            partitions = pa.array([row % PARTITION_COUNT for row in range(count)], pa.int32())
            pq.write_table(rows.append_column(partition, partitions), source / f"{number}.parquet")

    def peers_of(self, kind: str) -> list[StartedPeer]:
        """The peers of one kind, started: one, or none where it is not installed."""
        for peer in self.peers:
            if peer.kind == kind and kind not in self.started:
                self.started[kind] = peer.start(self.folder, self.scale)
        return [peer for name, peer in self.started.items() if name == kind]

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

    def against_parquet(
        self, workload: str, ours: Callable[[], float], plain: Callable[[], float], **others: Callable[[], float]
    ) -> Result:
        """Lakebed, Spark's own Parquet and other peers, in turn."""
        return alternate(
            workload,
            {"lakebed": ours, "spark-parquet": plain, **others},
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
        delta = spark_changes.peers(self, "delta", lambda peer: peer.run("write", self.folder / "source"))
        return self.against_parquet(
            "write",
            lambda: self.written(self.source(), self.new_table()),
            lambda: self.plain(self.source()),
            **delta,
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

    def write_memory(self) -> Result:
        """Every task writes into 200 partitions; what the heap holds then, and not how long it takes."""
        rows = self.source().selectExpr(*SCHEMA.names, f"CAST(id % {MANY_PARTITIONS} AS INT) AS p")
        clauses = "PARTITIONED BY (p)"

        def ours() -> float:
            table = self.new_table(f"{COLUMNS}, p INT NOT NULL", clauses)
            return self.held_megabytes(lambda: self.written(rows, table))

        return alternate(
            "write_memory",
            {"lakebed": ours, "spark-parquet": lambda: self.held_megabytes(lambda: self.plain(rows, "p"))},
            unit="MB",
            sample_count=self.sample_count,
            rows=self.rows,
            target=">= 1x",
        )

    def held_megabytes(self, run: Callable[[], float]) -> float:
        """The most that the heap holds while something runs, more than before it: looked at after collections."""
        before = self.heap_bytes()
        held = [before]
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(run)
            while not wait([running], timeout=LOOK_S).done:
                held.append(self.heap_bytes())
            running.result()
        return (max(held) - before) / 1e6

    def scan(self) -> Result:
        """An aggregate over every column of the files of one table."""
        table, paths = self.read_table()
        return self.against_parquet(
            "scan",
            lambda: timed(lambda: self.spark.table(table).selectExpr(*AGGREGATES).collect()),
            lambda: timed(lambda: self.spark.read.parquet(*paths).selectExpr(*AGGREGATES).collect()),
            **spark_changes.peers(self, "delta", lambda peer: peer.run("read", "base")),
        )

    def point_lookup(self) -> list[Result]:
        """One row by its id, from a statement to its row; the files have ranges of ids."""
        many = self.new_table()
        self.written(self.source().repartitionByRange(MANY_FILES, "id").sortWithinPartitions("id"), many)
        for peer in self.peers_of("delta"):
            peer.run("load", "many", self.folder / "source", MANY_FILES)
        return [
            self.looked_up("point_lookup", *self.read_table(), "base"),
            self.looked_up(f"point_lookup_{MANY_FILES}_files", many, self.paths_of(many), "many"),
        ]

    def looked_up(self, workload: str, table: str, paths: Sequence[str], peers_name: str) -> Result:
        """Look-ups in a table of lakebed, Spark's own reader of its files, and a table of the peers."""
        view = f"plain_{peers_name}"
        self.spark.read.parquet(*paths).createOrReplaceTempView(view)  # listed once, unlike a table

        def mean_of(name: str) -> float:
            statements = [f"SELECT * FROM {name} WHERE id = {key}" for key in spread(self.rows, LOOKUP_COUNT)]
            found: list[int] = []
            seconds = timed(lambda: found.extend(len(self.spark.sql(one).collect()) for one in statements))
            assert sum(found) == LOOKUP_COUNT, found
            return seconds / LOOKUP_COUNT * 1000

        sides = {
            "lakebed": lambda: mean_of(table),
            "spark-parquet": lambda: mean_of(view),
            **spark_changes.peers(self, "delta", lambda peer: peer.run("lookup", peers_name, self.rows)),
        }
        return alternate(workload, sides, unit="ms", sample_count=self.sample_count, rows=self.rows, target=">= 1x")

    def read_table(self) -> tuple[str, list[str]]:
        """A table of all rows for reads, which Delta has as well, and the paths of its files."""
        if not self.base:
            self.base = self.new_table()
            self.written(self.source(), self.base)
            for peer in self.peers_of("delta"):
                peer.run("load", "base", self.folder / "source", 0)
        return self.base, self.paths_of(self.base)

    def paths_of(self, table: str) -> list[str]:
        """The paths of a table's files."""
        files = [row[0] for row in self.spark.sql(f"SELECT file_path FROM {table}.files").collect()]
        root = f"{self.folder / 'lake' / 'bench.db' / table.rpartition('.')[2]}"
        return [f"{root}/{file}" for file in files]

    def changes(self) -> list[Result]:
        """See `spark_changes.changes`."""
        return spark_changes.changes(self)

    def stream(self) -> Result:
        """See `spark_changes.stream`."""
        return spark_changes.stream(self)

    def orphans_1m(self) -> Result:
        """See `spark_changes.orphans_1m`."""
        return spark_changes.orphans_1m(self)

    def java(self) -> list[Result]:
        """See `spark_changes.java`."""
        return spark_changes.java(self)

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
        """What the driver's heap held right after a collection, without what tasks have allocated since.

        The JVM leaves a collection out while a compressor of a task holds an array of the heap; so it is asked again. A
        compressor that was closed keeps its buffers until its finalizer has run, which only a second collection frees.
        """
        jvm = self.spark._jvm
        assert jvm is not None
        management = jvm.java.lang.management.ManagementFactory
        whole = management.getGarbageCollectorMXBeans()[-1]
        for _ in range(2):
            jvm.java.lang.System.runFinalization()
            count = whole.getCollectionCount()
            while whole.getCollectionCount() == count:
                jvm.java.lang.System.gc()
        held = whole.getLastGcInfo().getMemoryUsageAfterGc()
        heap = [pool.getName() for pool in management.getMemoryPoolMXBeans() if pool.getType().name() == "HEAP"]
        return sum(int(held[name].getUsed()) for name in heap)


WORKLOADS = (
    "scan",
    "write",
    "write_partitioned",
    "write_buckets",
    "write_memory",
    "point_lookup",
    "bridge_start",
    "analysis",
    "plan_100k",
    "changes",
    "stream",
    "orphans_1m",
    "java",
)


def found_peers(chosen: argparse.Namespace) -> list[SparkPeer]:
    """The peers that can run here; one sentence on the console for each that cannot."""
    peers = []
    jars = sorted(chosen.delta_jars.glob("*.jar"))
    if jars and chosen.delta_python.exists():
        (version,) = (jar.stem.rpartition("-")[2] for jar in jars if jar.stem.startswith("delta-spark"))
        peers.append(SparkPeer("delta", f"delta-spark {version}", chosen.delta_python, jars))
    else:
        print("Delta Lake is left out: its jars and its environment are made by make bench-spark, with Maven.")
    if chosen.paimon_jars:
        peers.append(SparkPeer("paimon", "paimon-spark", chosen.paimon_python, chosen.paimon_jars))
    elif "java" in chosen.only.split(","):
        print("The rows java_* are left out: name the connector by --paimon-jars, its Spark by --paimon-python.")
    return peers


def main() -> None:
    """Run the chosen workloads and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is four million rows; 0.1 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="comma-separated workloads")
    delta = HERE.parent / ".venv-delta" / "bin" / "python"
    parser.add_argument("--delta-python", type=Path, default=delta, help="with the PySpark that Delta Lake supports")
    parser.add_argument("--delta-jars", type=Path, default=HERE / "peers" / "delta" / "lib", help="a folder")
    parser.add_argument("--paimon-python", type=Path, help="with the PySpark that the Java connector supports")
    parser.add_argument("--paimon-jars", type=Path, nargs="*", default=[], help="of the Java connector")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    spark = lakebed.spark.session("bench", cores=2, memory="2g", catalogs={CATALOG: str(folder / "lake")})
    peers = found_peers(chosen)
    bench = Bench(folder, spark, scale=chosen.scale, sample_count=chosen.samples, peers=peers)
    results: list[Result] = []
    try:
        for name in chosen.only.split(","):
            if name == "java" and not chosen.paimon_jars:
                continue
            made = getattr(bench, name)()
            results += made if isinstance(made, list) else [made]
    finally:
        for peer in bench.started.values():
            peer.process.close()
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "pyspark")
    for peer in bench.started.values():
        versions |= peer.process.versions
    print(f"written: {harness.write_results('spark', results, scale=chosen.scale, versions=versions)}")


if __name__ == "__main__":
    main()
