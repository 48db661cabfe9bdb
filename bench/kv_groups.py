"""Groups of the key-value benchmark that `bench/kv.py` names.

Owns: neighbouring and absent keys, threads, logs handed over, ten times the rows, RocksDB's own program, YCSB. Each is
a function of the benchmark, which has the databases and pairs lakebed with its peers.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import harness
import ycsb
from harness import Result, timed
from inputs import (
    BATCH_COUNT,
    HANDED_SHARE,
    KEY_BYTES,
    LARGE_FACTOR,
    MULTIGET_COUNT,
    THREAD_COUNT,
    VALUE_BYTES,
    keys_of,
    missing_of,
    order_of,
    runs_of,
    values_of,
)
from lakebed.kv import Database, DatabaseOptions, WriteBatch

if TYPE_CHECKING:
    from kv import Bench

PLACES: Final = ("memtable", "cached", "uncached")
PROGRAM: Final = "db_bench"
"""RocksDB's own benchmark, of Debian's package rocksdb-tools: what the engine does without Python."""


def many(bench: Bench) -> list[Result]:
    """`get_many` of keys that follow each other, and of absent ones; random ones are in `read`. Microseconds a key."""
    results = []
    orders = {
        "multigetrun": runs_of(bench.keys, bench.reads),
        "multimissing": order_of(missing_of(bench.keys), bench.reads),
    }
    for (kind, order), place in itertools.product(orders.items(), PLACES):
        database = bench.place(place)

        def run(database: Database = database, order: list[bytes] = order) -> float:
            def read() -> None:
                for first in range(0, len(order), MULTIGET_COUNT):
                    database.get_many(order[first : first + MULTIGET_COUNT])

            return timed(read) / len(order) * 1e6

        assert (None in database.get_many(order[:MULTIGET_COUNT])) == (kind == "multimissing")
        results.append(
            bench.pair(
                f"{kind}_{place}",
                run,
                peers=("rocksdict",),
                unit="us",
                rows=bench.reads,
                cache_bytes=bench.cache_bytes[place],
                target="rocksdict >= 1x" if kind == "multimissing" else "",
                one_thread=True,
            )
        )
    return results


def threads(bench: Bench) -> list[Result]:
    """Random gets by four threads at once; microseconds of wall time for each get of all of them."""
    order = order_of(bench.keys, bench.reads)
    shares = [order[number::THREAD_COUNT] for number in range(THREAD_COUNT)]
    results = []
    for place in PLACES:
        get = bench.place(place).get

        def share(keys: list[bytes], get: Callable[[bytes], bytes | None] = get) -> None:
            for key in keys:
                get(key)

        def run(share: Callable[[list[bytes]], None] = share) -> None:
            with ThreadPoolExecutor(THREAD_COUNT) as pool:
                for _ in pool.map(share, shares):
                    pass

        results.append(
            bench.pair(
                f"threads_{place}",
                lambda run=run: timed(run) / len(order) * 1e6,  # type: ignore[misc]
                peers=("rocksdict",),
                unit="us",
                rows=bench.reads,
                cache_bytes=bench.cache_bytes[place],
            )
        )
    return results


def handed(bench: Bench) -> list[Result]:
    """Puts whose log record the operating system has before each returns, as RocksDB's do; microseconds a row.

    In `fill` lakebed's records leave the process in groups, a tenth of a second later at most.
    """
    count = max(500, int(bench.rows * HANDED_SHARE))

    def run() -> float:
        database = bench.new()

        def put_all() -> None:
            for key, value in zip(bench.keys[:count], bench.values, strict=False):
                database.put(key, value)

        seconds = timed(put_all)
        bench.drop(database)
        return seconds / count * 1e6

    return [bench.pair("fillrandom_handed", run, peers=("rocksdict",), unit="us", rows=count)]


def large(bench: Bench) -> list[Result]:
    """Ten times the rows, ten million at scale 1: filled in batches, compacted, read from four times the cache."""
    count = bench.rows * LARGE_FACTOR
    keys, values = keys_of(count, seed=11), values_of(bench.rows)
    order = order_of(keys, bench.reads)
    options = DatabaseOptions(cache_bytes=count * (KEY_BYTES + VALUE_BYTES) // 8, row_cache_bytes=0)
    database = Database.open(bench.new_place(), options=options)

    def fill() -> None:
        for first in range(0, count, BATCH_COUNT):
            batch = WriteBatch()
            start = first % bench.rows
            batch.put_many(keys[first : first + BATCH_COUNT], values[start : start + BATCH_COUNT])
            database.write(batch, await_durable=False)
        database.flush(memtable=True)
        database.compact(full=True)

    def read() -> None:
        for key in order:
            assert database.get(key) is not None

    def read_many() -> None:
        for first in range(0, len(order), MULTIGET_COUNT):
            database.get_many(order[first : first + MULTIGET_COUNT])

    filled = timed(fill) / count * 1e6
    facts = {
        "unit": "us",
        "rows": count,
        "cache_bytes": count * (KEY_BYTES + VALUE_BYTES) // 4,
        "sample_count": min(3, bench.sample_count),
    }
    peers = ("rocksdict",)
    results = [bench.pair("large_fill", lambda: filled, peers=peers, warmup_count=0, **(facts | {"sample_count": 1}))]
    facts |= {"rows": len(order), "one_thread": True}
    results.append(bench.pair("large_readrandom", lambda: timed(read) / len(order) * 1e6, peers=peers, **facts))
    results.append(bench.pair("large_multiget", lambda: timed(read_many) / len(order) * 1e6, peers=peers, **facts))
    bench.drop(database)
    bench.call_peer("rocksdict", "large_end")
    return results


def native(bench: Bench) -> list[Result]:
    """The same shapes by RocksDB's own program, next to lakebed from Python; microseconds an operation."""
    program = shutil.which(PROGRAM)
    if program is None:
        print(f"native: left out, for there is no {PROGRAM} (Debian: apt-get install rocksdb-tools)", flush=True)
        return []
    try:
        run_program(program, bench)
    except (subprocess.CalledProcessError, KeyError) as error:
        print(f"native: left out, for {program} does not run these workloads: {error}", flush=True)
        return []
    database, order = bench.place("uncached"), order_of(bench.keys, bench.reads)

    def fill() -> None:
        new = bench.new()
        for first in range(0, bench.rows, BATCH_COUNT):
            batch = WriteBatch()
            batch.put_many(bench.keys[first : first + BATCH_COUNT], bench.values[first : first + BATCH_COUNT])
            new.write(batch, await_durable=False)
        new.flush()
        bench.drop(new)

    def read() -> None:
        for key in order:
            database.get(key)

    def scan() -> None:
        assert sum(1 for _ in database.scan()) == bench.rows

    measured = {
        "fillbatch": (fill, bench.rows),
        "readrandom": (read, len(order)),
        "readseq": (scan, bench.rows),
    }
    samples: dict[str, dict[str, list[float]]] = {name: {"lakebed": [], PROGRAM: []} for name in measured}
    for _ in range(bench.sample_count):
        for name, (run, count) in measured.items():
            samples[name]["lakebed"].append(timed(run) / count * 1e6)
        for name, figure in run_program(program, bench).items():
            samples[name][PROGRAM].append(figure)
    return [
        harness.result_of(f"native_{name}", taken, unit="us", rows=measured[name][1]) for name, taken in samples.items()
    ]


def run_program(program: str, bench: Bench) -> dict[str, float]:
    """One run of RocksDB's program: microseconds an operation, by workload."""
    folder = bench.folder / "native"
    done = subprocess.run(
        [
            program,
            "--benchmarks=fillbatch,compact,readrandom,readseq",
            f"--db={folder}",
            f"--num={bench.rows}",
            f"--reads={bench.reads}",
            f"--key_size={KEY_BYTES}",
            f"--value_size={VALUE_BYTES}",
            f"--cache_size={bench.cache_bytes['uncached']}",
            "--bloom_bits=12",
            "--compression_type=lz4",
            "--compression_ratio=0.5",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    figures = dict(re.findall(r"^(\w+)\s*:\s*([\d.]+) micros/op", done.stdout, flags=re.MULTILINE))
    return {name: float(figures[name]) for name in ("fillbatch", "readrandom", "readseq")}


def run_ycsb(bench: Bench) -> list[Result]:
    """YCSB's workloads, loaded to four times the cache; microseconds an operation, and their geometric mean."""
    cache_bytes = ycsb.cache_bytes_of(bench.scale)
    options = DatabaseOptions(
        cache_bytes=cache_bytes // 2,
        row_cache_bytes=cache_bytes - cache_bytes // 2,
        l0_sst_bytes=ycsb.memtable_bytes_of(bench.scale),
    )
    database = Database.open(bench.new_place(), options=options)
    for batch_keys, batch_values in ycsb.load(bench.scale):
        batch = WriteBatch()
        batch.put_many(batch_keys, batch_values)
        database.write(batch, await_durable=False)
    database.flush(memtable=True)
    database.compact(full=True)
    samples = ycsb.Samples(bench.scale)

    def put(key: bytes, value: bytes) -> None:
        database.put(key, value, await_durable=False)

    def scan(start: bytes, count: int) -> int:
        return sum(1 for _ in database.scan(start, limit=count))

    def once(workload: str) -> float:
        operations = samples.next_of(workload)
        run = lambda: ycsb.run_operations(operations, get=database.get, put=put, scan=scan)  # noqa: E731
        return timed(run) / len(operations) * 1e6

    results = [
        bench.pair(
            f"ycsb_{workload}",
            lambda workload=workload: once(workload),  # type: ignore[misc]
            unit="us",
            rows=ycsb.records_of(bench.scale),
            cache_bytes=cache_bytes,
        )
        for workload in ycsb.MIXES
    ]
    bench.drop(database)
    return [*results, mean_of(results)]


def mean_of(results: list[Result]) -> Result:
    """The geometric mean of the workloads, of every side."""
    sides = {"lakebed": [result.lakebed for result in results]}
    for peer in results[0].peers:
        sides[peer] = [result.peers[peer] for result in results]
    means = {name: [math.prod(figures) ** (1 / len(figures))] for name, figures in sides.items()}
    return harness.result_of(
        "ycsb_geometric_mean",
        means,
        unit="us",
        rows=results[0].rows,
        cache_bytes=results[0].cache_bytes,
        target="rocksdict >= 1x",
    )
