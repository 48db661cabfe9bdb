"""The logs of a fleet: appends, tail reads and reads from the beginning of each engine; JetStream without a leader.

Owns: what is measured of a log, and how each engine is started. Each timeline has one append under way.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from fleet_parts import Size, process, quantile, say
from lakebed.clock import SystemClock
from lakebed.errors import LakebedError
from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.jetstream_log import JetStreamLog
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.log.record import LogRecord, check_follows
from lakebed.fleet.log.serve import LogSettings, run_log
from lakebed.fleet.model import LogMark
from lakebed.ids import new_uuid
from lakebed.kv.group_commit import LogGroups
from worlds.fleet_log_process import CheckedAppends
from worlds.nats_cluster import NatsCluster
from worlds.postgresql import running_postgresql
from worlds.waiting import wait_until

VALUE_BYTES = 256
ROW_COUNT = 4
"""Rows of an append: about 1 KiB together."""
_RNG = random.Random(1)
_ROWS = rows_of([b"key %d" % number for number in range(ROW_COUNT)], [_RNG.randbytes(VALUE_BYTES) for _ in range(4)])


class Workloads:
    """What is measured of one log.

    Args:
        name: of the log, in the names of results.
        append_target: of appends a second from 64 timelines.
    """

    def __init__(self, log: Log, size: Size, *, name: str, append_target: str = "") -> None:
        self._log = log
        self._size = size
        self._name = f"log_{name}"
        self._append_target = append_target

    def run(self) -> None:
        """All of it."""
        for timelines in (1, 64):
            self._appends(timelines)
            self._tail(timelines)
            self._follow(timelines)
        self._catch_up()

    def _created(self, count: int) -> list[str]:
        prefix = f"bench/{new_uuid(_RNG)[:8]}"
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            self._log.create(name)
        return names

    def _load(self, names: list[str]) -> list[float]:
        """Append in a closed loop, one thread a timeline; how long each append took."""
        latencies: list[list[float]] = [[] for _ in names]
        end_s = time.perf_counter() + self._size.seconds

        def work(number: int) -> None:
            rng = random.Random(_RNG.getrandbits(64))
            while (started_s := time.perf_counter()) < end_s:
                self._log.append(names[number], _ROWS, write_id=new_uuid(rng))
                latencies[number].append(time.perf_counter() - started_s)

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(work, range(len(names))))
        return [one for own in latencies for one in own]

    def _appends(self, timelines: int) -> None:
        names, seconds = self._created(timelines), self._size.seconds
        rates: list[float] = []
        slowest: list[float] = []
        count, groups = 0, _counted.groups
        for turn in range(1 + self._size.samples):
            if turn == 1:
                groups = _counted.groups
            taken = self._load(names)
            if turn:
                rates.append(len(taken) / seconds)
                slowest.append(1e3 * quantile(taken, 0.99))
                count += len(taken)
        facts: dict[str, Any] = {"durable": True, "rows": count}
        if _counted.groups > groups:
            facts["requests"] = {"put": _counted.groups - groups}
        target = self._append_target if timelines > 1 else ""
        say(f"{self._name}_append_{timelines}", "appends/s", rates, target=target, is_rate=True, **facts)
        say(f"{self._name}_append_{timelines}_p99", "ms", slowest, **facts)
        if "requests" in facts:
            say(f"{self._name}_appends_a_put_{timelines}", "appends", [count / facts["requests"]["put"]], **facts)

    def _tail(self, timelines: int) -> None:
        """How long after the call of an append a waiting reader has its row; one append in 5 ms."""
        names = self._created(timelines)
        delays = [self._delays(names) for _ in range(self._size.samples)]
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            samples = [1e3 * quantile(one, share) for one in delays]
            say(f"{self._name}_tail_{timelines}_{name}", "ms", samples, durable=True)

    def _delays(self, names: list[str]) -> list[float]:
        delays: list[float] = []
        with self._reader(names, lambda value: delays.append(time.perf_counter() - float(value))):
            end_s, turn = time.perf_counter() + self._size.seconds, 0
            while time.perf_counter() < end_s:
                row = rows_of([b"k"], [b"%.6f" % time.perf_counter()])
                self._log.append(names[turn % len(names)], row, write_id=new_uuid(_RNG))
                turn += 1
                time.sleep(0.005)
            wait_until(lambda: len(delays) >= turn)
        return delays

    def _follow(self, timelines: int) -> None:
        """How many rows a second one waiting reader of all timelines reads while all of them are appended to."""
        names = self._created(timelines)
        rates = [self._followed(names) for _ in range(self._size.samples)]
        say(f"{self._name}_tail_{timelines}", "rows/s", rates, is_rate=True, durable=True)

    def _followed(self, names: list[str]) -> float:
        seen: list[None] = []
        with self._reader(names, lambda _: seen.append(None)):
            started_s = time.perf_counter()
            count = len(self._load(names)) * ROW_COUNT
            wait_until(lambda: len(seen) >= count)
            return count / (time.perf_counter() - started_s)

    @contextmanager
    def _reader(self, names: list[str], take: Callable[[bytes], None]) -> Iterator[None]:
        """A thread that waits for timelines and reads what comes, from now on."""
        log = self._log
        marks = dict.fromkeys(names, LogMark())
        for name in names:
            while records := log.read(name, marks[name].lsn, bytes_max=4 << 20):
                marks[name] = _follow(name, marks[name], records)
        is_over = threading.Event()

        def read() -> None:
            while not is_over.is_set():
                for name in log.wait_many({name: mark.lsn for name, mark in marks.items()}, timeout_s=0.5):
                    records = log.read(name, marks[name].lsn, bytes_max=1 << 20)
                    marks[name] = _follow(name, marks[name], records)
                    for record in records:
                        for value in record.columns()[1]:
                            assert value is not None
                            take(value)

        reading = threading.Thread(target=read)
        reading.start()
        try:
            yield
        finally:
            is_over.set()
            reading.join()

    def _catch_up(self) -> None:
        """Rows a second of a timeline that is read from its beginning."""
        records = self._size.count(2_000, least=50)
        (timeline,) = self._created(1)
        with ThreadPoolExecutor(16) as pool:
            ids = [new_uuid(_RNG) for _ in range(records)]
            list(pool.map(lambda write_id: self._log.append(timeline, _ROWS, write_id=write_id), ids))
        rates = []
        for _ in range(self._size.samples):
            mark = LogMark()
            started_s = time.perf_counter()
            while batch := self._log.read(timeline, mark.lsn, bytes_max=4 << 20):
                mark = _follow(timeline, mark, batch)
            rates.append(mark.lsn / (time.perf_counter() - started_s))
            assert mark.lsn == records * ROW_COUNT
        say(f"{self._name}_catch_up", "rows/s", rates, is_rate=True, rows=records * ROW_COUNT)


def _follow(timeline: str, mark: LogMark, records: list[LogRecord]) -> LogMark:
    """The position behind records that were read, each of which continues the one before it, as nodes check."""
    for record in records:
        mark = check_follows(timeline, mark, record)
    return mark


class _Counted:
    """The objects that databases of this process put into their logs: one a group."""

    groups = 0


_counted = _Counted()


def _count_groups() -> None:
    inner = LogGroups.append_oldest

    def counted(self: LogGroups) -> int:
        _counted.groups += 1
        return inner(self)

    LogGroups.append_oldest = counted  # type: ignore[method-assign]


def embedded(size: Size) -> None:
    """The embedded log in this process, on a folder."""
    _count_groups()
    log = open_embedded(str(size.folder / "embedded"))
    try:
        Workloads(log, size, name="embedded", append_target=">= 2000").run()
    finally:
        log.close()


def _serve(storage: str, sender: Any) -> None:
    sys.exit(run_log(LogSettings(storage_url=storage), started=sender.send))


def over_http(size: Size) -> None:
    """The embedded log in a process of its own."""
    with process(_serve, str(size.folder / "served")) as (url, _):
        _measure(url, size, name="http")


def postgresql(size: Size) -> None:
    """PostgreSQL, whose commits wait for the disk."""
    with running_postgresql(fsync=True) as server:
        _measure(server.make_database(), size, name="postgresql")


def jetstream(size: Size) -> None:
    """Three servers on this machine that sync always, three replicas."""
    with NatsCluster(size.folder / "nats") as cluster:
        cluster.wait_for_jetstream()
        _measure(f"{cluster.url}/bench", size, name="jetstream", append_target=">= 2000")


def _measure(url: str, size: Size, *, name: str, append_target: str = "") -> None:
    log = open_log(url)
    try:
        Workloads(log, size, name=name, append_target=append_target).run()
    finally:
        log.close()


def leader(size: Size) -> None:
    """The longest pause of an append while JetStream's leader is killed under load; what was lost or reordered."""
    pauses: list[float] = []
    acknowledged = 0
    for turn in range(max(1, size.samples - 2)):
        with NatsCluster(size.folder / f"nats-{turn}") as cluster:
            cluster.wait_for_jetstream()
            work = CheckedAppends(partial(open_log, f"{cluster.url}/bench"), count=6, now_s=SystemClock().monotonic_s)
            try:
                work.wait_for(size.count(1_000, least=50))
                cluster.kill(cluster.number_of(_leader_of(work)))
                work.wait_for(size.count(1_000, least=50), timeout_s=120)
                work.stop()
                work.check(work.log)  # raises for a row that is lost, is there twice, or is out of order
                pauses.append(max(work.longest_pause_s, work.longest_shared_s))
                acknowledged += work.count
            finally:
                work.close()
    say("log_jetstream_leader_killed", "s without appends", pauses, target="<= 10", rows=acknowledged, durable=True)
    say("log_jetstream_leader_lost", "rows lost or reordered", [0.0], target="<= 0", rows=acknowledged, durable=True)


def _leader_of(work: CheckedAppends) -> str:
    log = work.log
    assert isinstance(log, JetStreamLog)
    found: list[str] = []

    def ask() -> bool:
        try:
            found.append(log.jetstream.leader(0))
        except LakebedError:
            return False
        return True

    wait_until(ask)
    return found[-1]
