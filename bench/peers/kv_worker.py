"""The peers' side of the key-value benchmark, run by the interpreter of the peers' environment.

Reads ``{"peer", "workload", "turn"}`` lines, answers ``{"figure"}`` lines: microseconds an operation, or milliseconds
for workloads of one operation. Each place of the data (memtable, cached, uncached) is made once, outside what is
measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)
from slatedb import uniffi as slate

import ycsb
from inputs import (
    BATCH_COUNT,
    HANDED_SHARE,
    LARGE_FACTOR,
    MULTIGET_COUNT,
    SLATE_SHARE,
    THREAD_COUNT,
    keys_of,
    missing_of,
    order_of,
    runs_of,
    values_of,
)
from processor import choose_processor, on_chosen_processor

FOLDER = Path(sys.argv[1])
SCALE = float(sys.argv[2])
ROWS = max(1000, int(1_000_000 * SCALE))
READS = max(1000, ROWS // 5)
CACHE_BYTES = {
    "memtable": 32 << 20,
    "cached": 512 << 20,
    "uncached": max(1 << 20, ROWS * 116 // 4),
    "small_cache": max(64 << 10, ROWS * 116 // 100),
    "large": ROWS * LARGE_FACTOR * 116 // 4,
    "ycsb": ycsb.cache_bytes_of(SCALE),
}
MEMTABLE_BYTES = {"memtable": 1 << 30, "ycsb": ycsb.memtable_bytes_of(SCALE)}
GATHERED = 500
CALLS = 20
"""Calls behind one sample of a workload of single operations."""


def timed(function: Callable[[], object]) -> float:
    """Seconds; as on the other side, the garbage collector ignores the inputs."""
    gc.collect()
    gc.freeze()
    with on_chosen_processor():
        start = time.perf_counter()
        function()
        return time.perf_counter() - start


class Inputs:
    """Keys and values, made once for each count."""

    def __init__(self) -> None:
        self.made: dict[object, list[bytes]] = {}

    def keys(self, count: int, *, sequential: bool = False) -> list[bytes]:
        """As `keys_of`."""
        return self._once(("keys", count, sequential), lambda: keys_of(count, sequential=sequential))

    def values(self, count: int) -> list[bytes]:
        """As `values_of`."""
        return self._once(("values", count), lambda: values_of(count))

    def order(self, kind: str, count: int, rows: int) -> list[bytes]:
        """What `readhot`, `readrandom`, `readmissing`, or a kind of `multiget` reads."""
        keys = self.keys(rows)
        if kind == "multigetrun":
            return self._once((kind, count, rows), lambda: runs_of(keys, count))
        if kind in ("readmissing", "multimissing"):
            return self._once((kind, count, rows), lambda: order_of(missing_of(keys), count))
        return self._once((kind, count, rows), lambda: order_of(keys, count, hot=kind == "readhot"))

    def large_keys(self) -> list[bytes]:
        """Ten times as many keys."""
        return self._once("large", lambda: keys_of(ROWS * LARGE_FACTOR, seed=11))

    def _once(self, name: object, make: Callable[[], list[bytes]]) -> list[bytes]:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


INPUTS = Inputs()


class Rocks:
    """RocksDB through rocksdict, raw mode, log not synced."""

    def __init__(self) -> None:
        self.number = 0
        self.places: dict[str, Rdict] = {}

    def options(self, place: str) -> Options:
        """64 MiB memtables (or all in memory), LZ4, lakebed's twelve bits of filter, a cache of the place's size."""
        options = Options(raw_mode=True)
        options.set_write_buffer_size(MEMTABLE_BYTES.get(place, 64 << 20))
        options.set_compression_type(DBCompressionType.lz4())
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(12, False)
        blocks.set_block_cache(Cache(CACHE_BYTES[place]))
        blocks.set_cache_index_and_filter_blocks(
            place == "small_cache"
        )  # where memory has to hold what searching takes
        options.set_block_based_table_factory(blocks)
        return options

    def new(self, place: str) -> Rdict:
        """An empty database."""
        self.number += 1
        return Rdict(str(FOLDER / f"rocks-{self.number}"), self.options(place))

    def drop(self, database: Rdict) -> None:
        """Close and remove."""
        path = database.path()
        database.close()
        shutil.rmtree(path, ignore_errors=True)

    def place(self, name: str) -> Rdict:
        """The database whose data lie there."""
        if name not in self.places:
            database = self.new(name)
            for key, value in zip(INPUTS.keys(ROWS), INPUTS.values(ROWS), strict=True):
                database.put(key, value)
            if name != "memtable":
                database.flush()
                database.compact_range(None, None)
            self.places[name] = database
        return self.places[name]

    def fill(self, *, sequential: bool) -> float:
        """Put one by one."""
        keys, values, database = INPUTS.keys(ROWS, sequential=sequential), INPUTS.values(ROWS), self.new("cached")

        def run() -> None:
            put = database.put
            for key, value in zip(keys, values, strict=True):
                put(key, value)
            database.flush_wal(False)

        seconds = timed(run)
        self.drop(database)
        return seconds / ROWS * 1e6

    def fill_batch(self) -> float:
        """Write batches of a thousand."""
        keys, values, database = INPUTS.keys(ROWS), INPUTS.values(ROWS), self.new("cached")

        def run() -> None:
            for first in range(0, ROWS, BATCH_COUNT):
                batch = WriteBatch(raw_mode=True)
                put = batch.put
                for key, value in zip(
                    keys[first : first + BATCH_COUNT], values[first : first + BATCH_COUNT], strict=True
                ):
                    put(key, value)
                database.write(batch)
            database.flush_wal(False)

        seconds = timed(run)
        self.drop(database)
        return seconds / ROWS * 1e6

    def read(self, kind: str, place: str) -> float:
        """Get one by one, or by hundreds."""
        database, order = self.place(place), INPUTS.order(kind, READS, ROWS)

        def single() -> None:
            get = database.get
            for key in order:
                get(key)

        def many() -> None:
            for first in range(0, READS, MULTIGET_COUNT):
                database.get(order[first : first + MULTIGET_COUNT])

        def shared() -> None:
            get = database.get
            shares = [order[number::THREAD_COUNT] for number in range(THREAD_COUNT)]
            with ThreadPoolExecutor(THREAD_COUNT) as pool:
                for _ in pool.map(lambda keys: [get(key) for key in keys] and None, shares):
                    pass

        run = {"multiget": many, "multigetrun": many, "multimissing": many, "threads": shared}.get(kind, single)
        return timed(run) / READS * 1e6

    def handed(self) -> float:
        """Put one by one; RocksDB hands its log to the operating system before each returns."""
        count = max(500, int(ROWS * HANDED_SHARE))
        keys, values, database = INPUTS.keys(ROWS), INPUTS.values(ROWS), self.new("cached")

        def run() -> None:
            for key, value in zip(keys[:count], values, strict=False):
                database.put(key, value)

        seconds = timed(run)
        self.drop(database)
        return seconds / count * 1e6

    def large(self, what: str) -> float:
        """Ten times the rows: fill and compact, then read."""
        count = ROWS * LARGE_FACTOR
        keys = INPUTS.large_keys()
        if what == "fill":
            values, database = INPUTS.values(ROWS), self.new("large")
            self.places["large"] = database

            def fill() -> None:
                for first in range(0, count, BATCH_COUNT):
                    batch = WriteBatch(raw_mode=True)
                    for place, key in enumerate(keys[first : first + BATCH_COUNT], first):
                        batch.put(key, values[place % ROWS])
                    database.write(batch)
                database.flush()
                database.compact_range(None, None)

            return timed(fill) / count * 1e6
        if what == "end":
            self.drop(self.places.pop("large"))
            INPUTS.made.clear()
            return 0.0
        database, order = self.places["large"], order_of(keys, READS)

        def single() -> None:
            for key in order:
                database.get(key)

        def many() -> None:
            for first in range(0, READS, MULTIGET_COUNT):
                database.get(order[first : first + MULTIGET_COUNT])

        return timed(many if what == "multiget" else single) / READS * 1e6

    def ycsb(self, workload: str) -> float:
        """One sample of a workload of YCSB."""
        if "ycsb" not in self.places:
            database = self.places["ycsb"] = self.new("ycsb")
            for keys, values in ycsb.load(SCALE):
                batch = WriteBatch(raw_mode=True)
                for key, value in zip(keys, values, strict=True):
                    batch.put(key, value)
                database.write(batch)
            database.flush()
            database.compact_range(None, None)
            self.samples = ycsb.Samples(SCALE)
        database, operations = self.places["ycsb"], self.samples.next_of(workload)

        def scan(start: bytes, count: int) -> int:
            return sum(1 for _ in itertools.islice(database.items(from_key=start), count))

        run = lambda: ycsb.run_operations(operations, get=database.get, put=database.put, scan=scan)  # noqa: E731
        return timed(run) / len(operations) * 1e6

    def scan(self) -> float:
        """Every row, as keys and values in Python."""
        database = self.place("cached")

        def run() -> None:
            count = sum(1 for _ in database.items())
            assert count == ROWS, count

        return timed(run) / ROWS * 1e6

    def open(self) -> float:
        """Open a database with everything in it, get one key, close."""
        database = self.places.pop("cached", None) or self.place("cached")
        path = database.path()
        database.close()
        key = INPUTS.keys(ROWS)[0]

        def run() -> None:
            for _ in range(CALLS):
                opened = Rdict(path, self.options("cached"))
                assert opened.get(key) is not None
                opened.close()

        seconds = timed(run)
        self.places["cached"] = Rdict(path, self.options("cached"))
        return seconds / CALLS * 1e3

    def compact(self) -> float:
        """Merge four overlapping files of a quarter of the rows each."""
        database = self.new("cached")
        keys, values = INPUTS.keys(ROWS), INPUTS.values(ROWS)
        for part in range(4):
            for key, value in zip(keys[part::4], values[part::4], strict=True):
                database.put(key, value)
            database.flush()
        seconds = timed(lambda: database.compact_range(None, None))
        self.drop(database)
        return seconds

    def run(self, workload: str) -> float:
        """One sample."""
        kind, _, place = workload.partition("_")
        if kind in ("readhot", "readrandom", "readmissing", "multiget", "multigetrun", "multimissing", "threads"):
            return self.read(kind, place)
        if kind == "large":
            return self.large(place)
        if kind == "ycsb":
            return self.ycsb(place)
        known: dict[str, Callable[[], float]] = {
            "fillseq": lambda: self.fill(sequential=True),
            "fillrandom": lambda: self.fill(sequential=False),
            "fillrandom_handed": self.handed,
            "fillbatch": self.fill_batch,
            "scan_rows": self.scan,
            "open": self.open,
            "compact": self.compact,
        }
        return known[workload]()


class Slate:
    """slatedb's own Python binding on a local folder, awaited and gathered; nothing waits for durability."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.rows = max(1000, int(ROWS * SLATE_SHARE))
        self.reads = max(1000, int(READS * SLATE_SHARE))
        self.number = 0
        self.places: dict[str, Any] = {}
        self.store = slate.ObjectStore.resolve("file:///")

    def path(self, name: object) -> str:
        """Path of a database in the store."""
        return str(FOLDER / f"slate-{name}").lstrip("/")

    async def opened(self, path: str, place: str) -> Any:
        """A database with the place's cache and memtable."""
        settings = slate.Settings.default()
        settings.set("compression_codec", '"Lz4"')
        settings.set("garbage_collector_options", "null")
        if place in MEMTABLE_BYTES:
            settings.set("l0_sst_size_bytes", str(MEMTABLE_BYTES[place]))
            settings.set("max_unflushed_bytes", str(4 * MEMTABLE_BYTES[place]))
        builder = slate.DbBuilder(path, self.store)
        builder.with_settings(settings)
        cache = slate.FoyerCacheOptions(max_capacity=CACHE_BYTES[place], shards=4)
        builder.with_db_cache(slate.DbCache.new_foyer_cache(cache), 1)
        return await builder.build()

    async def place(self, name: str) -> Any:
        """The database whose data lie there, with all rows."""
        if name not in self.places:
            database = await self.opened(self.path(name), name)
            keys, values = INPUTS.keys(ROWS), INPUTS.values(ROWS)
            for first in range(0, ROWS, BATCH_COUNT):
                await database.write(batch_of(keys[first : first + BATCH_COUNT], values[first : first + BATCH_COUNT]))
            kind = slate.FlushType.WAL if name == "memtable" else slate.FlushType.MEM_TABLE
            await database.flush_with_options(slate.FlushOptions(flush_type=kind))
            self.places[name] = database
        return self.places[name]

    async def fill(self, *, sequential: bool, gathered: bool = True) -> float:
        """Put, five hundred at once."""
        keys, values = INPUTS.keys(self.rows, sequential=sequential), INPUTS.values(self.rows)
        self.number += 1
        database = await self.opened(self.path(self.number), "cached")

        async def run() -> None:
            for first in range(0, self.rows, GATHERED):
                rows = zip(keys[first : first + GATHERED], values[first : first + GATHERED], strict=True)
                await asyncio.gather(*[database.put(key, value) for key, value in rows])
            await database.flush()

        seconds = await measured(run)
        await database.shutdown()
        shutil.rmtree("/" + self.path(self.number), ignore_errors=True)
        return seconds / self.rows * 1e6

    async def fill_batch(self) -> float:
        """Write batches of a thousand."""
        keys, values = INPUTS.keys(self.rows), INPUTS.values(self.rows)
        self.number += 1
        database = await self.opened(self.path(self.number), "cached")

        async def run() -> None:
            for first in range(0, self.rows, BATCH_COUNT):
                await database.write(batch_of(keys[first : first + BATCH_COUNT], values[first : first + BATCH_COUNT]))
            await database.flush()

        seconds = await measured(run)
        await database.shutdown()
        shutil.rmtree("/" + self.path(self.number), ignore_errors=True)
        return seconds / self.rows * 1e6

    async def read(self, kind: str, place: str) -> float:
        """Get: the quicker of awaited one by one and gathered (multiget: gathered by hundreds)."""
        database = await self.place(place)
        order = INPUTS.order(kind, self.reads, ROWS)
        width = MULTIGET_COUNT if kind == "multiget" else GATHERED

        async def awaited() -> None:
            for key in order:
                await database.get(key)

        async def gathered() -> None:
            for first in range(0, len(order), width):
                await asyncio.gather(*[database.get(key) for key in order[first : first + width]])

        ways = [gathered] if kind == "multiget" else [awaited, gathered]
        return min([await measured(way) for way in ways]) / len(order) * 1e6

    async def scan(self) -> float:
        """Every row, by batches of a thousand."""
        database = await self.place("cached")
        everything = slate.KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)

        async def run() -> None:
            iterator, count = await database.scan(everything), 0
            while rows := await iterator.next_batch(BATCH_COUNT):
                count += len(rows)
            assert count == ROWS, count

        return await measured(run) / ROWS * 1e6

    async def open(self) -> float:
        """Open a database with everything in it, get one key, close."""
        database = self.places.pop("cached", None) or await self.place("cached")
        self.places.pop("cached", None)
        await database.shutdown()
        key = INPUTS.keys(ROWS)[0]

        async def run() -> None:
            for _ in range(CALLS):
                opened = await self.opened(self.path("cached"), "cached")
                assert await opened.get(key) is not None
                await opened.shutdown()

        seconds = await measured(run)
        self.places["cached"] = await self.opened(self.path("cached"), "cached")
        return seconds / CALLS * 1e3

    async def ycsb(self, workload: str) -> float:
        """One sample of a workload of YCSB, one operation after another; writes do not wait for durability."""
        if "ycsb" not in self.places:
            self.places["ycsb"] = await self.opened(self.path("ycsb"), "ycsb")
            for keys, values in ycsb.load(SCALE):
                await self.places["ycsb"].write(batch_of(keys, values))
            flush = slate.FlushOptions(flush_type=slate.FlushType.MEM_TABLE)
            await self.places["ycsb"].flush_with_options(flush)
            self.samples = ycsb.Samples(SCALE, share=2 * SLATE_SHARE)
        database, operations = self.places["ycsb"], self.samples.next_of(workload)

        async def run() -> None:
            for verb, key, value in operations:
                if verb in (ycsb.READ, ycsb.MODIFY):
                    assert await database.get(key) is not None
                if verb == ycsb.SCAN:
                    rest = slate.KeyRange(start=key, start_inclusive=True, end=None, end_inclusive=False)
                    assert await (await database.scan(rest)).next_batch(len(value))
                elif verb != ycsb.READ:
                    await database.put(key, value)

        return await measured(run) / len(operations) * 1e6

    async def checkpoint(self) -> float:
        """Checkpoints of the latest version, from outside."""
        await self.place("cached")
        admin = slate.AdminBuilder(self.path("cached"), self.store).build()

        async def run() -> None:
            for _ in range(CALLS):
                await admin.create_detached_checkpoint(
                    slate.CheckpointOptions(lifetime_ms=None, source=None, name=None)
                )

        return await measured(run) / CALLS * 1e3

    async def clone(self) -> float:
        """Clones of the latest version."""
        await self.place("cached")
        source = slate.CloneSourceSpec(path=self.path("cached"), checkpoint=None, projection_range=None)
        paths = []
        for _ in range(CALLS):
            self.number += 1
            paths.append(self.path(f"clone-{self.number}"))

        async def run() -> None:
            for path in paths:
                admin = slate.AdminBuilder(path, self.store).build()
                await admin.create_clone_builder_from_source(source).build()

        return await measured(run) / CALLS * 1e3

    def run(self, workload: str) -> float:
        """One sample."""
        kind, _, place = workload.partition("_")
        known: dict[str, Callable[[], Awaitable[float]]] = {
            "fillseq": lambda: self.fill(sequential=True),
            "fillrandom": lambda: self.fill(sequential=False),
            "fillbatch": self.fill_batch,
            "scan_rows": self.scan,
            "open": self.open,
            "checkpoint": self.checkpoint,
            "clone": self.clone,
        }
        if kind == "ycsb":
            return self.loop.run_until_complete(self.ycsb(place))
        work = known[workload] if workload in known else lambda: self.read(kind, place)
        return self.loop.run_until_complete(work())  # type: ignore[arg-type]


def batch_of(keys: list[bytes], values: list[bytes]) -> Any:
    """A slatedb batch."""
    batch = slate.WriteBatch()
    for key, value in zip(keys, values, strict=True):
        batch.put(key, value)
    return batch


async def measured(work: Callable[[], Awaitable[None]]) -> float:
    """Seconds; as on the other side, the garbage collector ignores the inputs."""
    gc.collect()
    gc.freeze()
    with on_chosen_processor():
        start = time.perf_counter()
        await work()
        return time.perf_counter() - start


def main() -> None:
    """Answer until the input ends."""
    peers = {"rocksdict": Rocks(), "slatedb": Slate()}
    answers = sys.stdout
    versions = {name: metadata.version(name) for name in peers}
    with contextlib.redirect_stdout(sys.stderr):
        answers.write(json.dumps({"versions": versions}) + "\n")
        answers.flush()
        for line in sys.stdin:
            asked = json.loads(line)
            choose_processor(asked["turn"])
            try:
                answer = {"figure": peers[asked["peer"]].run(asked["workload"])}
            except Exception as error:  # shown to the benchmark, which stops
                answer = {"error": f"{asked}: {type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
