"""The embedded log in a process of its own, which may be killed, and a client that knows what was acknowledged.

Owns: `LogProcess`, one ``run_log`` at a port, and `CheckedAppends`, threads that append and remember all their LSNs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import urllib3

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.log.port import Log
from worlds.fleet_log import all_values, append, write_id
from worlds.promise import PromiseBroken
from worlds.waiting import wait_until

_CODE = """
import sys
from lakebed.fleet.log.serve import LogSettings, run_log
storage, port, shards, token = sys.argv[1:]
sys.exit(run_log(LogSettings(storage_url=storage, shards=int(shards), token=token), port=int(port)))
"""
TOKEN = "a token of the log"
PAUSE_S = 0.005
"""Between two appends of a thread."""


class LogProcess:
    """A process that serves the log of a storage, or waits to. Use it in a ``with``."""

    def __init__(self, storage: Path, *, shards: int = 2) -> None:
        self._arguments = [str(storage), str(shards), TOKEN]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, or start it again at the same port."""
        storage, shards, token = self._arguments
        command = [sys.executable, "-W", "error", "-c", _CODE, storage, str(self.port), shards, token]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.endpoint = line.strip().removesuffix(".").rpartition(" ")[2]
        assert self.endpoint.startswith("http://"), line
        self.port = int(self.endpoint.rpartition(":")[2])

    def status(self) -> str:
        """``ok``, or ``standby``."""
        return str(urllib3.request("GET", self.endpoint + "/healthcheck", timeout=10, retries=False).json()["status"])

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> LogProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class CheckedAppends:
    """Threads that append to timelines of their own until they are stopped.

    Args:
        open_it: a log for each thread, or the same.
        count: threads; each has a timeline, and all share one more.
    """

    def __init__(self, open_it: Callable[[], Log], *, count: int, now_s: Callable[[], float]) -> None:
        self._logs: list[Log] = []
        with ExitStack() as opened:  # closed if one cannot be opened
            for _ in range(count):
                self._logs.append(log := open_it())
                opened.callback(log.close)
            opened.pop_all()
        self._now_s = now_s
        self._is_over = threading.Event()
        self.acknowledged: dict[str, dict[int, bytes]] = {}
        self.unclear: dict[str, set[bytes]] = {}
        self.longest_pause_s = 0.0
        """Longest time that an append to a thread's own timeline took."""
        self.longest_shared_s = 0.0
        """Longest time that an append took to the timeline for which all threads race."""
        self.count = 0
        self._lock = threading.Lock()
        self.log = self._logs[0]
        for timeline in ("tenant/shared", *(f"tenant/own-{number}" for number in range(count))):
            self._logs[0].create(timeline)
            self.acknowledged[timeline] = {}
            self.unclear[timeline] = set()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        log, item = self._logs[number], 0
        while not self._is_over.wait(PAUSE_S):
            item += 1
            timeline = "tenant/shared" if item % 4 == 0 else f"tenant/own-{number}"
            value, same, started_s = b"%d %06d" % (number, item), write_id(), self._now_s()
            try:
                lsn = append(log, value, timeline=timeline, write_id=same)
            except (Unavailable, OutcomeUnknown):
                self.unclear[timeline].add(value)
                continue
            with self._lock:
                self.acknowledged[timeline][lsn] = value
                self.count += 1
                taken_s = self._now_s() - started_s
                if timeline == "tenant/shared":
                    self.longest_shared_s = max(self.longest_shared_s, taken_s)
                else:
                    self.longest_pause_s = max(self.longest_pause_s, taken_s)

    def wait_for(self, more: int, *, timeout_s: float = 60.0) -> None:
        """Return when so many more appends were acknowledged."""
        target = self.count + more
        wait_until(lambda: self.count >= target, timeout_s=timeout_s)

    def stop(self) -> None:
        """Let the threads end."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Stop, and close the logs."""
        self.stop()
        for log in self._logs:
            log.close()

    def check(self, log: Log) -> int:
        """Compare with what a log has; how many rows it has.

        Raises:
            PromiseBroken: an acknowledged row is missing, is elsewhere, comes twice, or is out of order.
        """
        total = 0
        for timeline, expected in self.acknowledged.items():
            result = all_values(log, timeline)
            total += len(result)
            if [lsn for lsn, _ in result] != list(range(1, len(result) + 1)):
                raise PromiseBroken(f"{timeline}: the LSNs have gaps")
            rows = dict(result)
            for lsn, value in expected.items():
                if rows.get(lsn) != value:
                    raise PromiseBroken(f"{timeline}: LSN {lsn} is {rows.get(lsn)!r}, and {value!r} was acknowledged")
            values = [value for _, value in result if value is not None]
            if len(set(values)) != len(values):
                raise PromiseBroken(f"{timeline}: a row comes twice")
            extra = set(values) - set(expected.values()) - self.unclear[timeline]
            if extra:
                raise PromiseBroken(f"{timeline}: rows that were never sent, or refused: {sorted(extra)[:5]}")
            for number in range(len(self._threads)):
                parts = [value for value in values if value.startswith(b"%d " % number)]
                if parts != sorted(parts):
                    raise PromiseBroken(f"{timeline}: rows of thread {number} are out of order")
        return total


def refused(log: Log, timeline: str) -> LakebedError | None:
    """The error of an append; None: it succeeds."""
    try:
        append(log, b"x", timeline=timeline)
    except LakebedError as error:
        return error
    return None
