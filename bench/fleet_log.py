"""The logs of a fleet: ``fleet_log.py FOLDER [NAME ...]``. One JSON line a figure on standard output.

Owns: what is measured of a log, and how each engine is started. Figures: durable appends a second and their latency,
of one and of 64 timelines, each with one append under way; how long after an append a waiting reader has its rows; how
fast a timeline is read from its beginning. `bench/fleet.py` calls the same functions.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.log.record import ChainReader
from lakebed.fleet.model import LogMark
from lakebed.ids import new_uuid
from lakebed.kv.group_commit import LogGroups
from worlds.nats_cluster import NatsCluster

VALUE_BYTES = 256
ROW_COUNT = 4
"""Rows of an append: about 1 KiB together."""
SECONDS = 4.0
_RNG = random.Random(1)
_SERVE = """
import sys
from lakebed.fleet.log.serve import LogSettings, run_log
sys.exit(run_log(LogSettings(storage_url=sys.argv[1])))
"""


@dataclass(frozen=True)
class Figure:
    """One figure of one log."""

    log: str
    workload: str
    per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    writes: int = 0
    """Objects of the store, where that is known."""
    count: int = 0


def _quantile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))] if sorted_values else 0.0


def appends(log: Log, *, name: str, timelines: int, seconds: float = SECONDS) -> Figure:
    """Durable appends in a closed loop, one thread a timeline."""
    values = [_RNG.randbytes(VALUE_BYTES) for _ in range(ROW_COUNT)]
    rows = rows_of([b"key %d" % number for number in range(ROW_COUNT)], values)
    prefix = f"bench/{new_uuid(_RNG)[:8]}"
    for number in range(timelines):
        log.create(f"{prefix}-{number}")
    latencies: list[list[float]] = [[] for _ in range(timelines)]
    before = _append_count()
    end_s = time.perf_counter() + seconds

    def work(number: int) -> None:
        timeline, rng = f"{prefix}-{number}", random.Random(number)
        while (started_s := time.perf_counter()) < end_s:
            log.append(timeline, rows, write_id=new_uuid(rng))
            latencies[number].append(time.perf_counter() - started_s)

    with ThreadPoolExecutor(timelines) as pool:
        list(pool.map(work, range(timelines)))
    taken = sorted(one for own in latencies for one in own)
    return Figure(
        name,
        f"append_{timelines}",
        per_s=len(taken) / seconds,
        p50_ms=1e3 * _quantile(taken, 0.5),
        p99_ms=1e3 * _quantile(taken, 0.99),
        writes=_append_count() - before,
        count=len(taken),
    )


_groups = 0


def _append_count() -> int:
    return _groups


def count_objects() -> None:
    """Count the objects that databases of this process put into their logs."""
    inner = LogGroups.append_oldest

    def counted(self: LogGroups) -> int:
        global _groups
        _groups += 1
        return inner(self)

    LogGroups.append_oldest = counted  # type: ignore[method-assign]


def tails(log: Log, *, name: str, timelines: int, seconds: float = SECONDS) -> Figure:
    """One reader waits for all timelines and reads what comes; the time from the call of an append to its rows."""
    prefix = f"bench/{new_uuid(_RNG)[:8]}"
    names = [f"{prefix}-{number}" for number in range(timelines)]
    for timeline in names:
        log.create(timeline)
    readers = {timeline: ChainReader(log, timeline, LogMark()) for timeline in names}
    delays: list[float] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            found = log.wait_many({one: readers[one].mark.lsn for one in names}, timeout_s=0.5)
            for timeline in found:
                records = readers[timeline].read(bytes_max=1 << 20)
                now_s = time.perf_counter()
                for record in records:
                    delays.extend(now_s - float(value) for value in record.columns()[1] if value is not None)

    reading = threading.Thread(target=read)
    reading.start()
    end_s = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < end_s:
        timeline = names[turn % timelines]
        log.append(timeline, rows_of([b"k"], [b"%.6f" % time.perf_counter()]), write_id=new_uuid(_RNG))
        turn += 1
        time.sleep(0.005)
    time.sleep(0.3)
    is_over.set()
    reading.join()
    delays.sort()
    return Figure(
        name,
        f"tail_{timelines}",
        per_s=len(delays) / seconds,
        p50_ms=1e3 * _quantile(delays, 0.5),
        p99_ms=1e3 * _quantile(delays, 0.99),
        count=len(delays),
    )


def catch_up(log: Log, *, name: str, records: int = 2_000) -> Figure:
    """Reads a timeline from its beginning: rows a second."""
    timeline = f"bench/{new_uuid(_RNG)[:8]}"
    log.create(timeline)
    values = [_RNG.randbytes(VALUE_BYTES) for _ in range(ROW_COUNT)]
    rows = rows_of([b"key %d" % number for number in range(ROW_COUNT)], values)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: log.append(timeline, rows, write_id=new_uuid(random.SystemRandom())), range(records)))
    reader = ChainReader(log, timeline, LogMark())
    started_s = time.perf_counter()
    while reader.read(bytes_max=4 << 20):
        pass
    taken_s = time.perf_counter() - started_s
    assert reader.mark.lsn == records * ROW_COUNT
    return Figure(name, "catch_up_rows", per_s=reader.mark.lsn / taken_s, count=reader.mark.lsn)


@contextmanager
def embedded(folder: Path) -> Iterator[Log]:
    """The embedded log in this process."""
    log = open_embedded(str(folder / "embedded"))
    yield log
    log.close()


@contextmanager
def over_http(folder: Path) -> Iterator[Log]:
    """The embedded log in a process of its own."""
    command = [sys.executable, "-c", _SERVE, str(folder / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        log = open_log(process.stdout.readline().strip().removesuffix(".").rpartition(" ")[2])
        try:
            yield log
        finally:
            log.close()
            process.terminate()


@contextmanager
def jetstream(folder: Path) -> Iterator[Log]:
    """Three servers on this machine that sync always, three replicas."""
    (folder / "nats").mkdir(parents=True, exist_ok=True)
    with NatsCluster(folder / "nats") as cluster:
        cluster.wait_for_jetstream()
        log = open_log(f"{cluster.url}/bench")
        try:
            yield log
        finally:
            log.close()


@contextmanager
def postgresql(url: str) -> Iterator[Log]:
    """PostgreSQL, at a URL."""
    log = open_log(url)
    yield log
    log.close()


def measure(log: Log, *, name: str, seconds: float = SECONDS) -> Iterator[Figure]:
    """All figures of one log."""
    for timelines in (1, 64):
        yield appends(log, name=name, timelines=timelines, seconds=seconds)
        yield tails(log, name=name, timelines=timelines, seconds=seconds)
    yield catch_up(log, name=name)


def main(folder: Path, names: list[str]) -> None:
    """Print the figures of the named logs: embedded, http, jetstream, or a URL of PostgreSQL."""
    count_objects()
    known = {"embedded": embedded, "http": over_http, "jetstream": jetstream}
    for name in names or list(known):
        opening = known[name](folder) if name in known else postgresql(name)
        with opening as log:
            for figure in measure(log, name=name.partition("://")[0]):
                print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
