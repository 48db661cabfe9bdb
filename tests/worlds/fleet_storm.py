"""Clients of a fleet that know every write that was acknowledged to them, and check every read against it.

Each tenant has one writer, so what a key has is known; readers check it while nodes, control plane and log are killed,
stopped and resumed by a test.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakebed.fleet.client import Tenant
from lakebed.fleet.connect import Fleet
from lakebed.fleet.local import LocalFleet
from lakebed.fleet.model import Policy
from worlds.waiting import wait_until

KEY_COUNT = 40


@dataclass
class Known:
    """What one tenant was told, by its writer."""

    tenant: str
    rows: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """By LSN - 1: every row that was acknowledged."""
    longest_s: float = 0.0
    """The longest that a call took."""
    reads: int = 0
    problems: list[str] = field(default_factory=list)

    def state(self, lsn: int) -> dict[bytes, bytes]:
        """All keys and values at an LSN."""
        result: dict[bytes, bytes] = {}
        for key, value in self.rows[:lsn]:
            if value is None:
                result.pop(key, None)
            else:
                result[key] = value
        return result


class Storm:
    """Writers and readers in threads, on tenants of a running fleet.

    Args:
        fleet: a connection to it.
        count: of tenants.
        pause_s: between two steps of a tenant's client.
    """

    def __init__(self, fleet: Fleet, *, count: int, seed: int = 0, pause_s: float = 0.03) -> None:
        self.fleet = fleet
        self.known = [Known(f"t{number}") for number in range(count)]
        self._seed = seed
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Create the tenants, and begin."""
        for number, known in enumerate(self.known):
            policy = Policy(retain_rows=1_000_000, commit_bytes=1 << 14, commit_age_ms=500)
            self.fleet.create_tenant(known.tenant, policy=policy)
            thread = threading.Thread(target=self._run, args=(known, self._seed + number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_for_progress(self, *, count: int = 1, timeout_s: float = 90.0) -> None:
        """Return when every tenant has taken this many writes and reads since the call."""
        before = [(len(known.rows), known.reads) for known in self.known]

        def is_there() -> bool:
            assert not self.problems(), "\n".join(self.problems())
            now = [(len(known.rows), known.reads) for known in self.known]
            return all(
                rows >= then[0] + count and reads >= then[1] + count
                for (rows, reads), then in zip(now, before, strict=True)
            )

        wait_until(is_there, timeout_s=timeout_s)

    def stop(self) -> None:
        """End, after the calls that run."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, known: Known, seed: int) -> None:
        rng = random.Random(seed)
        tenant = self.fleet.tenant(known.tenant)
        try:
            while not self._is_over.is_set():
                begun_s = time.monotonic()
                self._step(tenant, known, rng)
                known.longest_s = max(known.longest_s, time.monotonic() - begun_s)
                self._is_over.wait(self._pause_s)
        except BaseException as error:
            known.problems.append(f"{known.tenant}: {type(error).__name__}: {error}")

    def _step(self, tenant: Tenant, known: Known, rng: random.Random) -> None:
        if rng.random() < 0.7:
            rows = [
                (b"k%02d" % rng.randrange(KEY_COUNT), rng.randbytes(60) if rng.random() < 0.9 else None)
                for _ in range(rng.choice((1, 1, 1, 20)))
            ]
            lsn = tenant.main.write(rows)
            known.rows += rows
            if lsn != len(known.rows):
                known.problems.append(f"{known.tenant}: the write has LSN {lsn}, and {len(known.rows)} was due")
            return
        if rng.random() < 0.5 or not known.rows:
            key = b"k%02d" % rng.randrange(KEY_COUNT)
            value, expected = tenant.main.get(key), known.state(len(known.rows)).get(key)
            if value != expected:
                known.problems.append(f"{known.tenant}: {key!r} is {value!r} after LSN {len(known.rows)}: {expected!r}")
        else:
            self.check(tenant, known, lsn=rng.randrange(1, len(known.rows) + 1))
        known.reads += 1

    @staticmethod
    def check(tenant: Tenant, known: Known, *, lsn: int) -> None:
        """Compare all keys at an LSN."""
        if dict(tenant.main.scan(lsn=lsn)) != known.state(lsn):
            known.problems.append(f"{known.tenant}: the state at LSN {lsn} is another one")

    def problems(self) -> list[str]:
        """Everything that was wrong until now."""
        return [problem for known in self.known for problem in known.problems]

    def check_all(self, *, seed: int = 0) -> None:
        """Compare every tenant with what its writer knows: newest, and at some LSNs; and the log's length."""
        rng = random.Random(seed)
        for known in self.known:
            tenant = self.fleet.tenant(known.tenant)
            last = tenant.main.catch_up()
            assert last == len(known.rows), f"{known.tenant} has {last} rows, and {len(known.rows)} were acknowledged"
            for lsn in {last, *(rng.randrange(1, last + 1) for _ in range(3))}:
                self.check(tenant, known, lsn=lsn)
        assert not self.problems(), "\n".join(self.problems())


@contextmanager
def watched(fleet: LocalFleet) -> Iterator[list[str]]:
    """Restart the parts that die, in a thread; what happened."""
    messages: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            messages.extend(fleet.watch_once())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield messages
    finally:
        over.set()
        thread.join()
