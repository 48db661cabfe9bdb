"""Workloads of the benchmark of Spark SQL on changes, streams and orphan files, and the sessions of peers.

Rows, at scale 1: merge_1pct, upsert_1pct, upsert_1pct_read_compact and upsert_1pct_compact_read_marked (10 M rows, of
which each round changes 1 %; the compaction of the one rewrites every file, that of the other, with deletion vectors,
none of them), stream (4 M rows, six batches of a file), orphans_1m (a million files, of which the table knows a tenth),
and, where the jars of the format's own Java connector are given, java_append, java_scan_filter, java_merge_read,
java_merge_read_key, _other and _absent (see `spark_queries.FILTERS`) and java_floor: a statement on a Parquet file
without rows in our Spark and in the connector's, which no table undercuts.

A peer that does not run with our Spark has a process and an environment of its own, with its Spark in the name. Sides
alternate, and read the same source files.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from harness import PeerProcess, Result, alternate, result_of
from inputs import SCHEMA
from lakebed.lake.lake import open_lake
from lakebed.reclaim.model import CollectionReport
from lakebed.spark.jobs import collect_table, compact_table
from planning import FILES_PER_COMMIT, describe_files, timed
from spark_queries import AGGREGATES, COLUMNS, FILTERS, merge_into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark import Bench

FILE_COUNT = 8
"""Files of a table whose rows are changed, and its buckets."""
ROUND_COUNT = 3
"""Rounds of changes: each takes a minute."""
COMMIT_COUNT = 6
"""Commits, each of one file, that a stream reads."""
WARMUP_COUNT = 20
"""Rounds before the first sample of a read next to the Java connector: the compilers of both JVMs are at rest then."""
KNOWN_SHARE = 0.1
"""Of the files that a search of orphans finds, those that the table knows."""
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SparkPeer:
    """How the session of a peer is started."""

    kind: str
    """As `peers/spark_worker.py` has it."""
    name: str
    """Of the product."""
    python: Path
    jars: Sequence[Path]

    def start(self, folder: Path, scale: float) -> StartedPeer:
        """Start its process."""
        jars = ",".join(map(str, self.jars))
        process = PeerProcess(self.python, folder, scale, worker="spark_worker.py", arguments=(self.kind, jars))
        version = next(iter(process.versions.values()))
        return StartedPeer(f"{self.name} (Spark {version})", process)


@dataclass(frozen=True, slots=True)
class StartedPeer:
    """A peer's session."""

    name: str
    """In results."""
    process: PeerProcess

    def run(self, workload: str, *words: object) -> float:
        """One sample of a workload."""
        return self.process.call(self.name, " ".join([workload, *map(str, words)]))


def peers(bench: Bench, kind: str, run: Callable[[StartedPeer], float]) -> dict[str, Callable[[], float]]:
    """The sides of the peers of one kind: of one, or of none."""
    return {peer.name: lambda peer=peer: run(peer) for peer in bench.peers_of(kind)}  # type: ignore[misc]


# ---- changes of one row in a hundred


def changes(bench: Bench) -> list[Result]:
    """Upserts of 1 %: into a table with a primary key, and as copy-on-write MERGE of a table without one."""
    row_count = max(10_000, int(10_000_000 * bench.scale))
    source = _generated(bench, row_count)
    cow, keyed = bench.new_table(), bench.new_table(clauses=_keyed(FILE_COUNT))
    marked = bench.new_table(clauses=_keyed(FILE_COUNT, "'deletion-vectors.enabled' = 'true'"))
    rows = bench.spark.read.parquet(source)
    bench.written(rows.repartitionByRange(FILE_COUNT, "id").sortWithinPartitions("id"), cow)
    lake = open_lake(str(bench.folder / "lake"))
    tables = {name: lake.table(name.partition(".")[2]) for name in (keyed, marked)}
    for name, table in tables.items():
        bench.written(rows, name)
        compact_table(bench.spark, table, full=True)
    delta = bench.peers_of("delta")
    for peer in delta:
        peer.run("load", "changed", source, FILE_COUNT)
    steps: dict[str, list[float]] = {}

    def take(name: str, seconds: float) -> None:
        steps.setdefault(name, []).append(seconds)

    for number in range(ROUND_COUNT):
        updates = _updates(bench, row_count, number)
        bench.spark.read.parquet(updates).createOrReplaceTempView("updates")
        upsert = "INSERT INTO {} SELECT * FROM updates"
        take("keyed", timed(lambda: bench.spark.sql(upsert.format(keyed))))  # noqa: B023
        take("keyed_read", timed(lambda: bench.spark.table(keyed).selectExpr(*AGGREGATES).collect()))
        take("keyed_compact", timed(lambda: compact_table(bench.spark, tables[keyed], full=True)))
        take("marked", timed(lambda: bench.spark.sql(upsert.format(marked))))  # noqa: B023
        take("marked_compact", timed(lambda: compact_table(bench.spark, tables[marked])))
        take("marked_read", timed(lambda: bench.spark.table(marked).selectExpr(*AGGREGATES).collect()))
        take("cow", timed(lambda: bench.spark.sql(merge_into(cow, "updates"))))
        take("cow_read", timed(lambda: bench.spark.table(cow).selectExpr(*AGGREGATES).collect()))
        for peer in delta:
            take(peer.name, peer.run("merge", "changed", updates))
            take(f"{peer.name}_read", peer.run("read", "changed"))
    answers = {name: bench.spark.table(name).selectExpr("count(*)", "sum(a)").collect() for name in (cow, *tables)}
    assert answers[cow] == answers[keyed] == answers[marked], answers  # a benchmark of other rows measures nothing

    def result(workload: str, target: str, **sides: Sequence[str]) -> Result:
        samples = {
            "copy-on-write" if side == "cow" else side: [
                sum(parts) for parts in zip(*(steps[name] for name in names), strict=True)
            ]
            for side, names in sides.items()
        }
        return result_of(workload, samples, rows=row_count, durable=True, target=target, bytes=sizes)

    sizes = {"copy-on-write file": _file_bytes(bench, cow), "keyed file": _file_bytes(bench, keyed)}
    merges: dict[str, Sequence[str]] = {peer.name: [peer.name] for peer in delta}
    reads: dict[str, Sequence[str]] = {peer.name: [peer.name, f"{peer.name}_read"] for peer in delta}
    whole = ["keyed", "keyed_read", "keyed_compact"]
    return [
        result("merge_1pct", "", **{"lakebed": ["cow"]}, **merges),
        result("upsert_1pct", "copy-on-write >= 5x", **{"lakebed": ["keyed"], "cow": ["cow"]}, **merges),
        result(
            "upsert_1pct_read_compact",
            "copy-on-write >= 2x",
            **{"lakebed": whole, "cow": ["cow", "cow_read"]},
            **reads,
        ),
        result(
            "upsert_1pct_compact_read_marked",
            "copy-on-write >= 2x",
            **{"lakebed": ["marked", "marked_compact", "marked_read"], "cow": ["cow", "cow_read"]},
            **reads,
        ),
    ]


def _keyed(bucket_count: int, *more: str) -> str:
    properties = ("'primary-key' = 'id'", f"'bucket' = '{bucket_count}'", *more)
    return f"TBLPROPERTIES ({', '.join(properties)})"


def _generated(bench: Bench, row_count: int) -> str:
    """A folder with so many rows of `SCHEMA`."""
    folder = str(bench.folder / "generated")
    rows = bench.spark.range(0, row_count, 1, FILE_COUNT).selectExpr(
        "id", "int(pmod(hash(id), 1000)) AS a", "rand(1) AS v", "concat('str_', pmod(hash(id, 2), 100000)) AS s"
    )
    rows.write.parquet(folder)
    return folder


def _updates(bench: Bench, row_count: int, number: int) -> str:
    """A folder with new values for 1 % of the rows, spread over all of them."""
    folder = str(bench.folder / f"updates-{number}")
    rows = bench.spark.range(number, row_count, 100, 1).selectExpr(
        "id", f"int(pmod(hash(id), 1000)) + {number + 1} AS a", f"rand({number}) AS v", "'updated' AS s"
    )
    rows.write.parquet(folder)
    return folder


def _file_bytes(bench: Bench, table: str) -> int:
    """The mean size of a table's files."""
    sizes = [row[0] for row in bench.spark.sql(f"SELECT file_size_in_bytes FROM {table}.files").collect()]
    return int(statistics.mean(sizes))


# ---- streams


def stream(bench: Bench) -> Result:
    """All rows of six commits, a batch each, from a table into a new one."""
    folder = bench.folder / "stream"
    source, schema = bench.new_table(), bench.source().schema
    bench.source().repartition(COMMIT_COUNT).write.parquet(str(folder))
    for file in sorted(folder.glob("*.parquet")):
        bench.written(bench.spark.read.schema(schema).parquet(str(file)).coalesce(1), source)
    for peer in bench.peers_of("delta"):
        peer.run("load_stream", "stream", folder)
    limit = {"maxFilesPerTrigger": "1"}

    def ours() -> float:
        target, rows = bench.new_table(), bench.spark.readStream.options(**limit, mode="from-snapshot", version="1")
        writer = rows.table(source).writeStream.option("checkpointLocation", str(bench.folder / bench.new_name()))
        return timed(lambda: writer.trigger(availableNow=True).toTable(target).awaitTermination())

    def plain() -> float:
        target = bench.folder / bench.new_name()
        rows = bench.spark.readStream.options(**limit).schema(schema).parquet(str(folder))
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{target}-checkpoint")
        writer = writer.option("compression", "zstd").trigger(availableNow=True)
        return timed(lambda: writer.start(str(target)).awaitTermination())

    sides = {
        "lakebed": ours,
        "spark-parquet": plain,
        **peers(bench, "delta", lambda peer: peer.run("stream", "stream")),
    }
    return alternate("stream", sides, sample_count=ROUND_COUNT, rows=bench.rows, durable=True)


# ---- orphans


def orphans_1m(bench: Bench) -> Result:
    """A dry run over a folder of many small files, by tasks of Spark, by one process, and by a peer's VACUUM."""
    file_count = max(2 * FILES_PER_COMMIT, int(1_000_000 * bench.scale))
    lake = open_lake(str(bench.folder / "lake"))
    schema = SCHEMA.append(pa.field("p", pa.int32(), nullable=False))
    table = lake.create_table(f"bench.{bench.new_name()}", schema, partition_keys="p")
    known = max(FILES_PER_COMMIT, int(file_count * KNOWN_SHARE))
    describe_files(table, known)
    root = bench.folder / "lake" / table.store.root_url.partition("/lake/")[2]
    for split in table.scan().splits():
        for file in split.files:
            _touch(root / split.folder / file.file_name)
    folders = sorted({root / split.folder for split in table.scan().splits()})
    for number in range(file_count - known):
        _touch(folders[number % len(folders)] / f"data-{number:032x}-9.parquet")
    found: list[int] = []

    def looked(find: Callable[[], CollectionReport]) -> Callable[[], float]:
        return lambda: timed(lambda: found.append(len(find().plan.doomed)))

    sides = {
        "lakebed": looked(lambda: collect_table(bench.spark, table, grace_ms=0, dry_run=True)),
        "one-process": looked(lambda: table.collect(grace_ms=0, dry_run=True)),
        **peers(bench, "delta", lambda peer: peer.run("orphans", root)),
    }
    # The first job of a session starts its Python workers, which takes longer than a search.
    small = bench.new_table()
    bench.spark.sql(f"INSERT INTO {small} VALUES (1, 1, 1.0, 'x')")
    collect_table(bench.spark, lake.table(small.partition(".")[2]), dry_run=True)
    for peer in bench.peers_of("delta"):
        peer.run("orphans", bench.folder / "warm")
    result = alternate("orphans_1m", sides, sample_count=1, warmup_count=0, rows=file_count)
    assert set(found) == {file_count - known}, found
    return result


def _touch(path: Path) -> None:
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


# ---- the format's own Java connector


def java(bench: Bench) -> list[Result]:
    """Append, a scan with a filter, and reads that merge, against the format's own Java connector."""
    (peer,) = bench.peers_of("paimon")
    source, appended = str(bench.folder / "source"), bench.new_table()
    bench.written(bench.source(), appended)
    peer.run("load", "appended", source, 0)
    keyed, updates = bench.new_table(clauses=_keyed(2)), _updates(bench, bench.rows, 0)
    bench.written(bench.source(), keyed)
    bench.written(bench.spark.read.parquet(updates), keyed)
    peer.run("load_keyed", "keyed", source, updates, 2)

    def pair(workload: str, ours: Callable[[], float], *asked: str, durable: bool = False) -> Result:
        sides = {"lakebed": ours, peer.name: lambda: peer.run(*asked)}
        warmup_count = 1 if durable else WARMUP_COUNT
        facts = {"rows": bench.rows, "durable": durable, "target": ">= 1x"}
        return alternate(workload, sides, sample_count=bench.sample_count, warmup_count=warmup_count, **facts)

    def aggregate(rows: DataFrame) -> Callable[[], float]:
        return lambda: timed(lambda: rows.selectExpr(*AGGREGATES).collect())

    def read(table: str, which: str = "") -> Callable[[], float]:
        rows = bench.spark.table(table)
        return aggregate(rows.where(FILTERS[which]) if which else rows)

    # Its Spark is another one, whose statements take another time whatever they read.
    empty = str(bench.folder / "empty")
    bench.spark.table(keyed).limit(0).write.parquet(empty)
    peer.run("load_empty", "empty", source)

    nothing = bench.spark.read.schema(COLUMNS).parquet(empty)
    return [
        pair("java_floor", aggregate(nothing), "read_plain", "empty"),
        pair("java_append", lambda: bench.written(bench.source(), bench.new_table()), "write", source, durable=True),
        pair("java_scan_filter", read(appended, "key"), "read", "appended", "key"),
        pair("java_merge_read", read(keyed), "read", "keyed"),
        *(pair(f"java_merge_read_{which}", read(keyed, which), "read", "keyed", which) for which in FILTERS),
    ]
