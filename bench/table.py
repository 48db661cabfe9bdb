"""The table benchmark: ``python bench/table.py [--scale 1] [--only append_write,merge_read] [--samples 5]``.

Workloads, at scale 1: append_write, append_read, pk_write of 1 M rows (BIGINT, INT, DOUBLE, STRING; 2 buckets for
keys), upsert of 100 k rows, merge_read of 1 M + 100 k overlapping rows, commit, tag_create, tag_delete (ms each),
expire_tags_0 / _10 / _1000 (bytes read), spark_scan, spark_write, merge_memory and compact_memory (peak megabytes);
plan_100k, plan_1200_commits, tags_1000 and pins_1000 (see `planning`).
Peers run in an environment of their own (they pin an older pyarrow) and alternate with lakebed in one run.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa

import harness
import planning
from harness import Result, alternate
from inputs import SCHEMA, rows_of
from lakebed.objects import open_store
from lakebed.table.table import Table

PEERS = ("pypaimon", "pypaimon-native")
FORMATS = ("deltalake", "pyiceberg")
"""Libraries of other table formats; pyiceberg has a process of its own, with the packages of this one."""
SMALL_COUNT = 30
"""Commits or tags behind one sample of those workloads."""


class Bench:
    """lakebed's side of every workload, and the pairing with the peers'."""

    def __init__(self, folder: Path, *, scale: float, sample_count: int, peers: harness.PeerProcess) -> None:
        self.folder, self.scale, self.sample_count, self.peers = folder, scale, sample_count, peers
        self.iceberg: harness.PeerProcess | None = None
        self.rows = max(1000, int(1_000_000 * scale))
        self.base = rows_of(self.rows)
        self.update = rows_of(self.rows // 10, first=self.rows // 2, seed=2)
        self.made = 0

    def table(self, *, keys: tuple[str, ...] = (), durable: bool = False) -> Table:
        """A new, empty table in a folder of its own."""
        self.made += 1
        store = open_store(str(self.folder / f"t{self.made}"), durable=durable)
        options = {"bucket": "2"} if keys else {}
        return Table.create(store, name=f"t{self.made}", schema=SCHEMA, primary_keys=keys, options=options)

    def pair(
        self, workload: str, ours: Callable[[], float], *, peers: tuple[str, ...] = PEERS, **facts: object
    ) -> Result:
        """Lakebed and its peers, in turn."""
        measures: dict[str, Callable[[], float]] = {"lakebed": ours}
        for peer in peers:
            process = self.iceberg_process() if peer == "pyiceberg" else self.peers
            measures[peer] = lambda peer=peer, process=process: process.call(peer, workload)
        return alternate(workload, measures, sample_count=self.sample_count, **facts)  # type: ignore[arg-type]

    def iceberg_process(self) -> harness.PeerProcess:
        """The process of pyiceberg, started when it is first needed."""
        if self.iceberg is None:
            python = Path(sys.executable)
            self.iceberg = harness.PeerProcess(python, self.folder, self.scale, worker="iceberg_worker.py")
        return self.iceberg

    def append_write(self) -> Result:
        """Write and commit the base rows to a new append table."""

        def once() -> float:
            table = self.table()
            return timed(lambda: table.append(self.base))

        return self.pair("append_write", once, peers=(*PEERS, *FORMATS), rows=self.rows, target=">= 1x")

    def append_read(self) -> Result:
        """Read them all into Arrow."""
        table = self.table()
        table.append(self.base)
        return self.pair(
            "append_read",
            lambda: timed(lambda: expect(self.reopened(table).read(), self.rows)),
            peers=(*PEERS, *FORMATS),
            rows=self.rows,
            target=">= 1x",
        )

    def pk_write(self) -> Result:
        """Write and commit the base rows to a new primary-key table."""

        def once() -> float:
            table = self.table(keys=("id",))
            return timed(lambda: table.upsert(self.base))

        return self.pair("pk_write", once, rows=self.rows, target=">= 20x default, >= 1x native")

    def upsert(self) -> Result:
        """A tenth as many rows over the base, again and again on one table of each side."""
        table = self.table(keys=("id",))
        table.upsert(self.base)
        return self.pair("upsert", lambda: timed(lambda: table.upsert(self.update)), rows=self.update.num_rows)

    def merge_read(self) -> Result:
        """Read base and update merged, as Arrow."""
        table = self.table(keys=("id",))
        table.upsert(self.base)
        table.upsert(self.update)
        return self.pair(
            "merge_read",
            lambda: timed(lambda: expect(self.reopened(table).read(), self.rows)),
            rows=self.rows,
            target=">= 10x default, >= 1x native",
        )

    def reopened(self, table: Table) -> Table:
        """The same table behind a new handle; peers plan afresh as well."""
        return Table.open(table.store, name=table.name)

    def commit(self) -> Result:
        """Small commits, milliseconds each."""
        small = rows_of(10)

        def once() -> float:
            table = self.table()
            return timed(lambda: [table.append(small) for _ in range(SMALL_COUNT)]) / SMALL_COUNT * 1000

        return self.pair("commit", once, peers=(*PEERS, *FORMATS), unit="ms", target=">= 1x pypaimon")

    def tag_create(self) -> Result:
        """Tags of the newest snapshot, milliseconds each."""

        def once() -> float:
            table = self.table()
            table.append(rows_of(10))
            return timed(lambda: [table.create_tag(f"t{number}") for number in range(SMALL_COUNT)]) / SMALL_COUNT * 1000

        return self.pair("tag_create", once, unit="ms", target=">= 1x pypaimon")

    def tag_delete(self) -> Result:
        """Deleting them again; lakebed also looks for files that nothing needs any more, its peers do not."""

        def once() -> float:
            table = self.table()
            table.append(rows_of(10))
            for number in range(SMALL_COUNT):
                table.create_tag(f"t{number}")
            return timed(lambda: [table.delete_tag(f"t{number}") for number in range(SMALL_COUNT)]) / SMALL_COUNT * 1000

        return self.pair("tag_delete", once, unit="ms")

    def durable(self) -> list[Result]:
        """Commit and tag with durability on, against one durable create-only object of a kilobyte."""
        results = []
        for workload, act in (
            ("commit", lambda t, n: t.append(rows_of(10))),
            ("tag_create", lambda t, n: t.create_tag(f"t{n}")),
        ):

            def ours(act: Callable[[Table, int], object] = act) -> float:
                table = self.table(durable=True)
                table.append(rows_of(10))
                return timed(lambda: [act(table, number) for number in range(SMALL_COUNT)]) / SMALL_COUNT * 1000

            def create() -> float:
                self.made += 1
                store = open_store(str(self.folder / f"t{self.made}"), durable=True)
                store.put("warm", b"x", create_only=True)
                return (
                    timed(lambda: [store.put(str(n), b"x" * 1024, create_only=True) for n in range(SMALL_COUNT)])
                    / SMALL_COUNT
                    * 1000
                )

            measures = {"lakebed": ours, "one-durable-create": create}
            results.append(alternate(workload, measures, unit="ms", durable=True, sample_count=self.sample_count))
        return results

    def plan_100k(self) -> list[Result]:
        """Plans of many files, cold and warm."""
        return planning.plan_100k(self)

    def plan_1200_commits(self) -> list[Result]:
        """Plans after many small commits, cold and warm."""
        return planning.plan_1200_commits(self)

    def tags_1000(self) -> list[Result]:
        """Listing many tags, and deleting one of many."""
        return planning.tags_1000(self)

    def pins_1000(self) -> list[Result]:
        """What each of many tags alone holds."""
        return planning.pins_1000(self)

    def expire(self) -> list[Result]:
        """Bytes read by expiring the same snapshots with 0, 10 and 1000 tags."""
        figures = {count: self.expiry_of(count) for count in (0, 10, 1000)}
        results = []
        for count, (samples, requests) in figures.items():
            ours, none = samples[len(samples) // 2], figures[0][0][len(samples) // 2]
            result = Result(
                f"expire_tags_{count}",
                "bytes",
                ours,
                {"expire_tags_0": none},
                {"expire_tags_0": none / ours},
                {"lakebed": samples, "expire_tags_0": figures[0][0]},
                requests=requests,
                bytes={"read": int(ours)},
                target="<= 1.2x the bytes (ratio >= 0.83)",
            )
            print(harness.row_of(result), flush=True)
            results.append(result)
        return results

    def expiry_of(self, tag_count: int) -> tuple[list[float], dict[str, int]]:
        """Samples of the bytes read by one expiry of 100 snapshots, in ascending order, and the last one's requests."""
        samples, requests = [], {}
        small = rows_of(10)
        for _ in range(self.sample_count):
            table = self.table(keys=("id",))
            for number in range(120):
                table.upsert(small)
                if number % 20 == 19:
                    table.compact(full=True)
            newest = table.latest()
            assert newest is not None
            for number in range(tag_count):
                table.create_tag(f"t{number}", snapshot_id=1 + number * newest.id // max(1, tag_count))
            fresh = self.reopened(table)
            fresh.expire(retain_max=newest.id - 20, retain_min=1)
            fresh = self.reopened(table)
            with table.store.count() as counts:
                report = fresh.expire(retain_max=20, retain_min=1)
            assert report.hidden_count > 0
            samples.append(float(counts.bytes_read))
            requests = {
                "get": counts.get,
                "list": counts.list,
                "put": counts.put,
                "delete": counts.delete,
                "head": counts.head,
            }
        return sorted(samples), requests

    def spark(self) -> list[Result]:
        """Scan and write through Spark, against Spark's own Parquet on the same rows."""
        from lakebed.spark import read, session, write
        from lakebed.spark.jar import JARS, find_jar

        spark = session("bench", cores=2, settings={JARS: str(find_jar())})
        table = self.table()
        table.append(self.base)
        for _ in range(3):
            table.append(self.base)
        snapshot_files = [table.store.url(path) for path in table.system("files").column("file_path").to_pylist()]
        columns = "count(*)", "sum(a)", "sum(v)", "max(s)"
        source = read(spark, table)
        source.persist().count()
        frames = {
            "lakebed": lambda: read(spark, self.reopened(table)).selectExpr(*columns).collect(),
            "spark-parquet": lambda: spark.read.parquet(*snapshot_files).selectExpr(*columns).collect(),
        }
        source.unpersist()
        scan = alternate(
            "spark_scan",
            {name: (lambda run=run: timed(run)) for name, run in frames.items()},
            sample_count=max(9, self.sample_count),
            warmup_count=3,
            rows=self.rows * 4,
            target=">= 0.95x",
        )

        def ours() -> float:
            target = self.table(durable=True)
            return timed(lambda: write(spark.read.parquet(*snapshot_files), target))

        def plain() -> float:
            self.made += 1
            target = str(self.folder / f"plain{self.made}")
            return timed(
                lambda: spark.read.parquet(*snapshot_files).write.option("compression", "zstd").parquet(target)
            )

        written = alternate(
            "spark_write",
            {"lakebed": ours, "spark-parquet": plain},
            sample_count=self.sample_count,
            rows=self.rows * 4,
            durable=True,
            target=">= 0.9x",
        )
        spark.stop()
        return [scan, written]

    def memory(self) -> list[Result]:
        """Peak memory of reading and compacting one merged bucket (5 GB at scale 1), each in a fresh process."""
        results = []
        for workload in ("merge_memory", "compact_memory"):
            script = Path(__file__).parent / "memory.py"
            done = subprocess.run(
                [sys.executable, str(script), workload, str(self.folder / "memory"), str(self.scale)],
                capture_output=True,
                text=True,
                check=True,
            )
            peak_mb, rows, disk_bytes = (float(part) for part in done.stdout.split())
            result = Result(
                workload,
                "MB",
                peak_mb,
                {},
                {},
                {"lakebed": [peak_mb]},
                rows=int(rows),
                bytes={"bucket": int(disk_bytes)},
                rss_mb=peak_mb,
                target="<= 1024 MB",
            )
            print(harness.row_of(result), f"({disk_bytes / 1e9:.2f} GB bucket)", flush=True)
            results.append(result)
        return results


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, with the collector run before."""
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def expect(table: pa.Table, row_count: int) -> None:
    """A benchmark that reads wrong rows measures nothing."""
    assert table.num_rows == row_count, (table.num_rows, row_count)


WORKLOADS = (
    "append_write",
    "append_read",
    "pk_write",
    "upsert",
    "merge_read",
    "commit",
    "tag_create",
    "tag_delete",
    "plan_100k",
    "plan_1200_commits",
    "tags_1000",
    "pins_1000",
    "durable",
    "expire",
    "spark",
    "memory",
)


def main() -> None:
    """Run the chosen workloads and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a million rows; 0.1 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="comma-separated workloads")
    parser.add_argument(
        "--peers-python", type=Path, default=Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    peers = harness.PeerProcess(chosen.peers_python, folder, chosen.scale)
    bench = Bench(folder, scale=chosen.scale, sample_count=chosen.samples, peers=peers)
    results: list[Result] = []
    try:
        for name in chosen.only.split(","):
            made = getattr(bench, name)()
            results += made if isinstance(made, list) else [made]
    finally:
        peers.close()
        if bench.iceberg is not None:
            bench.iceberg.close()
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "pyspark") | peers.versions
    versions |= bench.iceberg.versions if bench.iceberg is not None else {}
    print(f"written: {harness.write_results('table', results, scale=chosen.scale, versions=versions)}")


if __name__ == "__main__":
    main()
