"""The key-value benchmark: ``python bench/kv.py [--scale 1] [--only fill,read] [--samples 5]``.

At scale 1: a million 16-byte keys with 100-byte values of which half compress away. Workloads by group:
fill: fillseq, fillrandom, fillbatch (batches of 1000), logs not synced, until the log has everything: RocksDB hands a
record to the operating system before its put returns, lakebed gathers them; handed: lakebed hands each over too;
read: readhot (1 % of the keys), readrandom, readmissing, multiget (100 keys a call), at three places each: in the
memtable, in files that the cache holds, in files four times the cache; two of them in files a hundred times the cache;
many: get_many of neighbours, of absent keys;
threads: gets by four threads; scan: scan_rows, scan_arrow; large: ten times the rows, read from four times the cache;
admin: open, checkpoint, clone, and how little the last two depend on the count of rows; compact; memory: peak megabytes
of compacting and of scanning 2 GB, most bytes in the cache; s3: requests and time under 20 ms a request;
native: RocksDB's own program db_bench, if it is there; ycsb: the workloads A to F of YCSB (bench/ycsb.py).
Peers alternate with lakebed in one run: rocksdict, slatedb (of which every operation has a tenth of the rows), pyarrow.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pyarrow as pa

import harness
import kv_groups
from harness import Result, alternate, timed
from inputs import BATCH_COUNT, MULTIGET_COUNT, keys_of, missing_of, order_of, values_of
from lakebed.kv import Database, DatabaseAdmin, DatabaseOptions, WriteBatch
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.request_prices import S3_STANDARD, ProfiledStore, bill

PLACES = ("memtable", "cached", "uncached")
SMALL = "small_cache"
"""Files a hundred times the cache, which holds not even what RocksDB and lakebed take to search them quickest."""
BOTH = "rocksdict >= 1x, slatedb >= 1x"
CALLS = 20
"""Calls behind one sample of a workload of single operations."""
READ_TARGETS = {
    "readhot": "rocksdict >= 0.5x, slatedb >= 5x",
    "readrandom": "rocksdict >= 0.5x, slatedb >= 5x cached, >= 2x uncached",
    "readmissing": "rocksdict >= 0.5x",
    "multiget": "rocksdict >= 1x",
}


class Bench:
    """lakebed's side of every workload, and the pairing with the peers'."""

    def __init__(self, folder: Path, *, scale: float, sample_count: int, peers: harness.PeerProcess | None) -> None:
        self.folder, self.scale, self.sample_count, self.peers = folder, scale, sample_count, peers
        self.rows = max(1000, int(1_000_000 * scale))
        self.reads = max(1000, self.rows // 5)
        self.cache_bytes = {
            "memtable": 32 << 20,
            "cached": 512 << 20,
            "uncached": max(1 << 20, self.rows * 116 // 4),
            SMALL: max(64 << 10, self.rows * 116 // 100),
        }
        self.keys, self.values = keys_of(self.rows), values_of(self.rows)
        self.made = 0
        self.places: dict[str, Database] = {}

    # Databases

    def options(self, place: str) -> DatabaseOptions:
        """The peers' memtable and, of blocks and rows together, their cache."""
        rows = 0 if place == SMALL else self.cache_bytes[place] // 2
        return DatabaseOptions(
            l0_sst_bytes=1 << 30 if place == "memtable" else 64 << 20,
            unflushed_bytes_max=4 << 30 if place == "memtable" else 256 << 20,
            cache_bytes=self.cache_bytes[place] - rows,
            row_cache_bytes=rows,
        )

    def new_place(self) -> DatabaseLocation:
        """A folder that is never synced."""
        self.made += 1
        return DatabaseLocation.at(str(self.folder / f"kv{self.made}"), durable=False)

    def new(self, place: str = "cached") -> Database:
        """An empty database."""
        return Database.open(self.new_place(), options=self.options(place))

    def drop(self, database: Database) -> None:
        """Close and remove."""
        database.close()
        shutil.rmtree(database.admin.location.url.removeprefix("file://"), ignore_errors=True)

    def load(self, database: Database, *, keys: list[bytes] | None = None) -> None:
        """All rows, in batches."""
        keys = keys or self.keys
        for first in range(0, len(keys), 50_000):
            batch, part = WriteBatch(), keys[first : first + 50_000]
            batch.put_many(part, self.values[first : first + len(part)])
            database.write(batch, await_durable=False)
        database.flush()

    def place(self, name: str) -> Database:
        """The database whose data lie there."""
        if name not in self.places:
            database = self.new(name)
            self.load(database)
            if name != "memtable":
                database.flush(memtable=True)
                database.compact(full=True)
            self.places[name] = database
        return self.places[name]

    def pair(
        self,
        workload: str,
        ours: Callable[[], float],
        *,
        peers: tuple[str, ...] = ("rocksdict", "slatedb"),
        **facts: object,
    ) -> Result:
        """Lakebed and its peers, in turn."""
        measures: dict[str, Callable[[], float]] = {"lakebed": ours}
        for peer in peers if self.peers is not None else ():
            measures[peer] = lambda peer=peer: self.call_peer(peer, workload)
        return alternate(workload, measures, **{"sample_count": self.sample_count, **facts})  # type: ignore[arg-type]

    def call_peer(self, peer: str, workload: str) -> float:
        """One sample of a peer; 0 without peers."""
        return 0.0 if self.peers is None else self.peers.call(peer, workload)

    # Workloads

    def fill(self) -> list[Result]:
        """Write every row; microseconds a row, until the log has all of them."""

        def one_by_one(keys: list[bytes]) -> float:
            database = self.new()

            def run() -> None:
                put = database.put
                for key, value in zip(keys, self.values, strict=True):
                    put(key, value, await_durable=False)
                database.flush()

            seconds = timed(run)
            self.drop(database)
            return seconds / self.rows * 1e6

        def batches() -> float:
            database = self.new()

            def run() -> None:
                for first in range(0, self.rows, BATCH_COUNT):
                    batch = WriteBatch()
                    put = batch.put
                    last = first + BATCH_COUNT
                    for key, value in zip(self.keys[first:last], self.values[first:last], strict=True):
                        put(key, value)
                    database.write(batch, await_durable=False)
                database.flush()

            seconds = timed(run)
            self.drop(database)
            return seconds / self.rows * 1e6

        ascending = keys_of(self.rows, sequential=True)
        facts = {"unit": "us", "rows": self.rows, "target": "rocksdict >= 1x, slatedb >= 20x"}
        return [
            self.pair("fillseq", lambda: one_by_one(ascending), **(facts | {"target": ""})),
            self.pair("fillrandom", lambda: one_by_one(self.keys), **facts),
            self.pair("fillbatch", batches, **facts),
        ]

    def read(self) -> list[Result]:
        """Point reads; microseconds a key."""
        orders = {
            "readhot": order_of(self.keys, self.reads, hot=True),
            "readrandom": order_of(self.keys, self.reads),
            "readmissing": order_of(missing_of(self.keys), self.reads),
            "multiget": order_of(self.keys, self.reads),
        }
        results = []
        for place in (*PLACES, SMALL):
            database = self.place(place)
            for kind, order in orders.items():
                if place == SMALL and kind not in ("readrandom", "readmissing"):
                    continue

                def single(database: Database = database, order: list[bytes] = order) -> float:
                    get = database.get

                    def run() -> None:
                        for key in order:
                            get(key)

                    return timed(run) / len(order) * 1e6

                def many(database: Database = database, order: list[bytes] = order) -> float:
                    def run() -> None:
                        for first in range(0, len(order), MULTIGET_COUNT):
                            database.get_many(order[first : first + MULTIGET_COUNT])

                    return timed(run) / len(order) * 1e6

                assert (database.get(order[0]) is None) == (kind == "readmissing")
                results.append(
                    self.pair(
                        f"{kind}_{place}",
                        many if kind == "multiget" else single,
                        unit="us",
                        rows=self.reads,
                        cache_bytes=self.cache_bytes[place],
                        target="" if place == SMALL else READ_TARGETS.get(kind, ""),
                        peers=("rocksdict",) if place == SMALL else ("rocksdict", "slatedb"),
                        one_thread=True,
                    )
                )
        return results

    def scan(self) -> list[Result]:
        """Every row: as Python objects (microseconds a row), as Arrow, and the same rows from an Arrow file."""
        database, uncached = self.place("cached"), self.place("uncached")

        def rows() -> float:
            def run() -> None:
                count = sum(1 for _ in database.scan())
                assert count == self.rows, count

            return timed(run) / self.rows * 1e6

        path = self.folder / "rows.arrow"
        table = database.scan_arrow().read_all()
        assert table.num_rows == self.rows
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as sink:
            sink.write_table(table, max_chunksize=65_536)
        facts = {"rows": self.rows, "cache_bytes": self.cache_bytes["cached"]}
        return [
            self.pair("scan_rows", rows, unit="us", target="rocksdict >= 0.3x, slatedb >= 5x", **facts),
            alternate(
                "scan_arrow",
                {
                    "lakebed": lambda: timed(lambda: expect(database.scan_arrow().read_all(), self.rows)),
                    "pyarrow-ipc": lambda: timed(lambda: expect(read_ipc(path), self.rows)),
                },
                sample_count=max(9, self.sample_count),
                warmup_count=2,
                target=">= 0.5x",
                **facts,
            ),
            alternate(
                "scan_arrow_uncached",
                {
                    "lakebed": lambda: timed(lambda: expect(uncached.scan_arrow().read_all(), self.rows)),
                    "pyarrow-ipc": lambda: timed(lambda: expect(read_ipc(path), self.rows)),
                },
                sample_count=max(9, self.sample_count),
                warmup_count=2,
                target=">= 0.5x",
                rows=self.rows,
                cache_bytes=self.cache_bytes["uncached"],
            ),
        ]

    def admin(self) -> list[Result]:
        """Open, checkpoint, clone of a database with all rows; milliseconds each."""
        place = self.new_place()
        database = Database.open(place, options=self.options("cached"))
        self.load(database)
        database.flush(memtable=True)
        database.close()
        return [
            self.pair("open", lambda: self.opening(place), unit="ms", rows=self.rows, target=BOTH),
            self.pair(
                "checkpoint",
                lambda: self.checkpoints(place),
                unit="ms",
                peers=("slatedb",),
                rows=self.rows,
                target="slatedb >= 1x",
            ),
            self.pair(
                "clone",
                lambda: self.clones(place),
                unit="ms",
                peers=("slatedb",),
                rows=self.rows,
                target="slatedb >= 1x",
            ),
            *self.by_rows(),
        ]

    def opening(self, place: DatabaseLocation) -> float:
        """Open, get one key, close."""

        def run() -> None:
            for _ in range(CALLS):
                with Database.open(place, options=self.options("cached")) as opened:
                    assert opened.get(self.keys[0]) is not None

        return timed(run) / CALLS * 1e3

    def checkpoints(self, place: DatabaseLocation) -> float:
        """Checkpoints from outside."""
        admin = DatabaseAdmin(place)
        return timed(lambda: [admin.create_checkpoint() for _ in range(CALLS)]) / CALLS * 1e3

    def clones(self, place: DatabaseLocation) -> float:
        """Clones of the latest version."""
        targets = [self.new_place() for _ in range(CALLS)]
        return timed(lambda: [DatabaseAdmin(one).create_clone(place.url) for one in targets]) / CALLS * 1e3

    def by_rows(self) -> list[Result]:
        """Checkpoint and clone with 10 thousand, a million and 10 million rows, in turn; the peer is the smallest.

        All are filled first: right behind the writing of a large one the system is busy with its files.
        """
        places: dict[str, DatabaseLocation] = {}
        for name, count in (("10k", 10_000), ("1m", 1_000_000), ("10m", 10_000_000)):
            place = self.new_place()
            count = max(1000, int(count * self.scale))
            with Database.open(place, options=self.options("cached")) as database:
                for first in range(0, count, self.rows):
                    keys = keys_of(min(self.rows, count - first), seed=first + 1)
                    self.load(database, keys=keys)
                database.flush(memtable=True)
                database.compact(full=True)
            places[name] = place
        acts = {"checkpoint": self.checkpoints, "clone": self.clones}
        samples: dict[str, dict[str, list[float]]] = {verb: {name: [] for name in places} for verb in acts}
        for (verb, act), turn, (name, place) in itertools.product(
            acts.items(), range(1 + self.sample_count), places.items()
        ):
            figure = act(place)
            if turn:  # the first turn warms up
                samples[verb][name].append(figure)
        for place in places.values():
            shutil.rmtree(place.url.removeprefix("file://"), ignore_errors=True)
        results = []
        for verb, taken in samples.items():
            small = median(taken["10k"])
            for name in ("1m", "10m"):
                ours = median(taken[name])
                results.append(
                    Result(
                        f"{verb}_{name}_rows",
                        "ms",
                        ours,
                        {"10k-rows": small},
                        {"10k-rows": small / ours},
                        {"lakebed": taken[name], "10k-rows": taken["10k"]},
                        target="independent of rows",
                    )
                )
                print(harness.row_of(results[-1]), flush=True)
        return results

    def compact(self) -> list[Result]:
        """Merge four overlapping files of a quarter of the rows each; seconds."""

        def once() -> float:
            place = self.new_place()
            options = DatabaseOptions(compaction=False, background=False)
            database = Database.open(place, options=options)
            for part in range(4):
                batch = WriteBatch()
                batch.put_many(self.keys[part::4], self.values[part::4])
                database.write(batch, await_durable=False)
                database.flush(memtable=True)
            seconds = timed(lambda: database.compact(full=True))
            self.drop(database)
            return seconds

        return [self.pair("compact", once, peers=("rocksdict",), rows=self.rows, target="rocksdict >= 1x")]

    def memory(self) -> list[Result]:
        """Peak memory of compacting and of scanning 2 GB, each in a process of its own, and the cache's most bytes."""
        script = Path(__file__).parent / "kv_memory.py"
        results = []
        for workload, target in (("compact_memory", 400.0), ("scan_memory", 200.0), ("cache_bytes", 1.0)):
            done = subprocess.run(
                [sys.executable, str(script), workload, str(self.folder / "memory"), str(self.scale)],
                capture_output=True,
                text=True,
                check=True,
            )
            figure, rows, disk_bytes = (float(part) for part in done.stdout.split())
            unit = "of its setting" if workload == "cache_bytes" else "MB"
            results.append(
                Result(
                    workload,
                    unit,
                    figure,
                    {},
                    {},
                    {"lakebed": [figure]},
                    rows=int(rows),
                    bytes={"database": int(disk_bytes)},
                    rss_mb=None if workload == "cache_bytes" else figure,
                    target=f"<= {target:g}",
                )
            )
            print(harness.row_of(results[-1]), f"({disk_bytes / 1e9:.2f} GB database)", flush=True)
        return results

    def s3(self) -> list[Result]:
        """Requests of single operations, and what they take one after another at 20 ms a request (no peer)."""
        results = []
        for workload, target, prepare, act in s3_workloads():
            clock = ManualClock()
            environment = Environment(clock=clock)
            url = f"memory://bench-{workload}-{self.made}"
            self.made += 1
            world = ProfiledStore(open_store(url, environment=environment), clock=clock)

            def opened(other: str, world: ProfiledStore = world) -> ObjectStore:
                return world.sub(other.removeprefix(f"{world.root_url}/"))

            place = DatabaseLocation(world.sub("parent"), environment, opened)
            state = prepare(place)
            before_ms = clock.now_ms()
            with world.count() as counts:
                act(place, state)
            requests = {kind: getattr(counts, kind) for kind in ("get", "head", "put", "list", "delete", "copy")}
            took_ms = float(clock.now_ms() - before_ms)
            results.append(
                Result(
                    f"s3_{workload}",
                    "ms",
                    took_ms,
                    {},
                    {},
                    {"lakebed": [took_ms]},
                    durable=True,
                    requests={kind: count for kind, count in requests.items() if count},
                    bytes={"read": counts.bytes_read, "written": counts.bytes_written},
                    target=target,
                )
            )
            shown = ", ".join(f"{count} {kind.upper()}" for kind, count in requests.items() if count)
            print(harness.row_of(results[-1]), shown, bill(counts, profile=S3_STANDARD), flush=True)
        return results

    def close(self) -> None:
        """Close what is open."""
        for database in self.places.values():
            database.close()


S3_OPTIONS = DatabaseOptions(background=False)


def s3_workloads() -> list[
    tuple[str, str, Callable[[DatabaseLocation], object], Callable[[DatabaseLocation, object], object]]
]:
    """Name, target, preparation and the operation that is measured."""

    def filled(place: DatabaseLocation) -> Database:
        database = Database.open(place, options=S3_OPTIONS)
        batch = WriteBatch()
        batch.put_many(keys_of(10_000), values_of(10_000))
        database.write(batch)
        database.flush(memtable=True)
        return database

    def uncached(place: DatabaseLocation) -> Database:
        with Database.open(place, options=S3_OPTIONS) as database:
            batch = WriteBatch()
            batch.put_many(keys_of(100_000), values_of(100_000))
            database.write(batch)
            database.flush(memtable=True)
        database = Database.open(place, options=replace(S3_OPTIONS, cache_bytes=1 << 20, row_cache_bytes=0))
        database.get(drawn[0])
        return database

    def warm(place: DatabaseLocation) -> Database:
        database = filled(place)
        for key in keys_of(10_000)[:3]:
            database.get(key)
        return database

    def closed(place: DatabaseLocation) -> str:
        filled(place).close()
        return place.url

    key, missing = keys_of(10_000)[5000], missing_of(keys_of(10_000))[5000]
    drawn = order_of(keys_of(100_000), 100)
    return [
        ("durable_put", "1 PUT", filled, lambda place, db: db.put(b"k", b"v")),
        ("cold_get", "1 GET", warm, lambda place, db: db.get(key)),
        ("cold_gets_100", "100 GET", uncached, lambda place, db: [db.get(one) for one in drawn]),
        ("cold_get_many_100", "", uncached, lambda place, db: db.get_many(drawn)),
        ("missing_get", "0", warm, lambda place, db: db.get(missing)),
        ("checkpoint", "1 GET, 1 PUT, <= 3 LIST", closed, lambda place, _: DatabaseAdmin(place).create_checkpoint()),
        (
            "clone",
            "O(ancestors + unflushed log)",
            closed,
            lambda place, url: DatabaseAdmin(place.other(f"{url}-clone")).create_clone(url),
        ),
        ("open", "", closed, lambda place, _: Database.open(place, options=S3_OPTIONS)),
    ]


def median(samples: list[float]) -> float:
    """The middle of the sorted samples."""
    return sorted(samples)[len(samples) // 2]


def expect(table: pa.Table, row_count: int) -> None:
    """A benchmark that reads wrong rows measures nothing."""
    assert table.num_rows == row_count, (table.num_rows, row_count)


def read_ipc(path: Path) -> pa.Table:
    """An Arrow file, through plain reads as a store makes them."""
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


WORKLOADS: dict[str, Callable[[Bench], list[Result]]] = {
    "fill": Bench.fill,
    "handed": kv_groups.handed,
    "read": Bench.read,
    "many": kv_groups.many,
    "threads": kv_groups.threads,
    "scan": Bench.scan,
    "admin": Bench.admin,
    "compact": Bench.compact,
    "memory": Bench.memory,
    "s3": Bench.s3,
    "large": kv_groups.large,
    "native": kv_groups.native,
    "ycsb": kv_groups.run_ycsb,
}


def main() -> None:
    """Run the chosen workloads and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a million rows; 0.1 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="comma-separated groups of workloads")
    parser.add_argument("--dry", action="store_true", help="print, but leave the committed results alone")
    parser.add_argument("--alone", action="store_true", help="without peers, so that no other environment is needed")
    parser.add_argument(
        "--peers-python", type=Path, default=Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    peers = None
    if not chosen.alone:
        peers = harness.PeerProcess(chosen.peers_python, folder, chosen.scale, worker="kv_worker.py")
    bench = Bench(folder, scale=chosen.scale, sample_count=chosen.samples, peers=peers)
    versions = harness.versions_of("lakebed", "pyarrow") | ({} if peers is None else peers.versions)
    try:
        for name in chosen.only.split(","):
            results = WORKLOADS[name](bench)
            if results and not chosen.dry:  # each group at once: a run that is stopped keeps what it measured
                written = harness.write_results("kv", results, scale=chosen.scale, versions=versions)
                print(f"{name} written: {written}", flush=True)
    finally:
        bench.close()
        if peers is not None:
            peers.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
