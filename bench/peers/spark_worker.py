"""A peer's side of the benchmark of Spark SQL: Delta Lake, or the table format's own Java connector, in a warm session.

``spark_worker.py FOLDER SCALE KIND JARS``, run by the interpreter of an environment with the PySpark that the peer
supports; ``KIND`` is ``delta`` or ``paimon``, ``JARS`` the peer's, with commas. Reads ``{"peer", "workload"}`` lines,
answers ``{"figure"}`` lines. A workload is a verb and words, such as ``merge /folder/of/updates.parquet``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import DataFrame, SparkSession

from spark_queries import AGGREGATES, COLUMNS, FILTERS, LOOKUP_COUNT, merge_into, spread

KINDS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",  # 50 by default, for clusters
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # 10,000 tasks of VACUUM by default
    },
    "paimon": {
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
    },
}


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class Peer:
    """One session and its tables."""

    def __init__(self, folder: Path, kind: str, jars: str) -> None:
        self.folder, self.kind = folder / kind, kind
        self.numbers = itertools.count()
        self.kept: dict[str, str] = {}
        builder = SparkSession.builder.master("local[2]").appName(kind).config("spark.jars", jars)
        settings = {
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "8",
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "spark"),
            "spark.sql.catalog.paimon.warehouse": f"file:{self.folder}/warehouse",
        }
        for key, value in {**settings, **KINDS[kind]}.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        if kind == "paimon":
            self.spark.sql("CREATE DATABASE IF NOT EXISTS paimon.bench")

    def run(self, workload: str) -> float:
        """One sample."""
        verb, *words = workload.split(" ")
        figure: float = getattr(self, verb)(*words)
        return figure

    def new_table(self, *, properties: str = "") -> str:
        """A new, empty table; its name in SQL."""
        number = next(self.numbers)
        if self.kind == "delta":
            name = f"delta.`{self.folder}/t{number}`"
            self.spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING delta")
            return name
        name = f"paimon.bench.t{number}"
        more = f", {properties}" if properties else ""
        self.spark.sql(f"CREATE TABLE {name} ({COLUMNS}) TBLPROPERTIES ('file.format' = 'parquet'{more})")
        return name

    def rows(self, source: str, file_count: int = 0) -> DataFrame:
        """The rows of a folder of Parquet files, in their order in so many files, or as Spark cuts them."""
        rows = self.spark.read.parquet(source).select("id", "a", "v", "s")
        return rows.repartitionByRange(file_count, "id").sortWithinPartitions("id") if file_count else rows

    def insert(self, table: str, rows: DataFrame) -> float:
        """Seconds of one INSERT."""
        rows.createOrReplaceTempView("rows")
        return seconds_of(lambda: self.spark.sql(f"INSERT INTO {table} SELECT * FROM rows"))

    def write(self, source: str) -> float:
        """All rows into a new table."""
        return self.insert(self.new_table(), self.rows(source))

    def load(self, name: str, source: str, file_count: str) -> float:
        """Keep a table with the rows under a name."""
        self.kept[name] = self.new_table()
        return self.insert(self.kept[name], self.rows(source, int(file_count)))

    def load_keyed(self, name: str, source: str, updates: str, bucket_count: str) -> float:
        """Keep a table with a primary key, whose rows a second write overlaps."""
        self.kept[name] = self.new_table(properties=f"'primary-key' = 'id', 'bucket' = '{bucket_count}'")
        return self.insert(self.kept[name], self.rows(source)) + self.insert(self.kept[name], self.rows(updates))

    def read(self, name: str, which: str = "") -> float:
        """An aggregate over every column, of all rows or of those that a filter keeps."""
        rows = self.spark.table(self.kept[name])
        rows = rows.where(FILTERS[which]) if which else rows
        return seconds_of(lambda: rows.selectExpr(*AGGREGATES).collect())

    def load_empty(self, name: str, source: str) -> float:
        """Keep a Parquet file without rows."""
        self.kept[name] = f"{self.folder}/t{next(self.numbers)}"
        return seconds_of(lambda: self.rows(source).limit(0).write.parquet(self.kept[name]))

    def read_plain(self, name: str) -> float:
        """As `read`, by Spark alone."""
        rows = self.spark.read.schema(COLUMNS).parquet(self.kept[name])
        return seconds_of(lambda: rows.selectExpr(*AGGREGATES).collect())

    def lookup(self, name: str, row_count: str) -> float:
        """Mean milliseconds of one row by its id."""
        keys = spread(int(row_count), LOOKUP_COUNT)
        run = self.spark.sql
        statements = [f"SELECT * FROM {self.kept[name]} WHERE id = {key}" for key in keys]
        return seconds_of(lambda: [run(statement).collect() for statement in statements]) / LOOKUP_COUNT * 1000

    def merge(self, name: str, updates: str) -> float:
        """Seconds of one MERGE."""
        self.rows(updates).createOrReplaceTempView("updates")
        return seconds_of(lambda: self.spark.sql(merge_into(self.kept[name], "updates")))

    def load_stream(self, name: str, source: str) -> float:
        """Keep a table to which every file of a folder was appended by itself."""
        self.kept[name] = self.new_table()
        return sum(
            self.insert(self.kept[name], self.rows(str(file)).coalesce(1))
            for file in sorted(Path(source).glob("*.parquet"))
        )

    def stream(self, name: str) -> float:
        """Seconds of a stream from a table into a new one, a batch a file."""
        path = f"{self.folder}/t{next(self.numbers)}"

        def run() -> None:
            source = self.kept[name].split("`")[1]
            rows = self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source)
            writer = rows.writeStream.format("delta").option("checkpointLocation", f"{path}-checkpoint")
            writer.trigger(availableNow=True).start(path).awaitTermination()

        return seconds_of(run)

    def orphans(self, root: str) -> float:
        """Seconds of a dry run over a folder in which a new table is made; all other files there are orphans."""
        table = f"delta.`{root}`"
        if root not in self.kept:
            self.spark.range(1).write.format("delta").mode("append").save(root)
            self.kept[root] = table
        return seconds_of(lambda: self.spark.sql(f"VACUUM {table} RETAIN 0 HOURS DRY RUN").count())


def main() -> None:
    """Answer until standard input ends; the peer's own prints go to standard error."""
    folder, _, kind, jars = sys.argv[1:]
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        peer = Peer(Path(folder), kind, jars)
    versions = {f"{kind}'s pyspark": metadata.version("pyspark")}
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            figure = peer.run(request["workload"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)
    peer.spark.stop()


if __name__ == "__main__":
    main()
