"""One database, many threads: sums hold, and no thread waits for ever."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.errors import Conflict
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.runtime import Environment

ACCOUNTS = [b"account %02d" % i for i in range(20)]
TOTAL = 100 * len(ACCOUNTS)
CHANGES = 150
"""Of each thread that changes something."""


def amount(value: bytes | None) -> int:
    """Of an account."""
    assert value is not None
    return int(value)


class Bank:
    """Accounts in a database, and what threads do with them. The sum of the accounts never changes."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        for account in ACCOUNTS:
            db.put(account, b"100", await_durable=False)
        db.put(b"hits", b"0")

    def transfer(self, seed: int, *, durable: float) -> None:
        """Move something from one account to another, or meet a conflict."""
        rng = random.Random(seed)
        for _ in range(CHANGES):
            source, target = rng.sample(ACCOUNTS, 2)
            try:
                with self.db.transaction("snapshot", await_durable=rng.random() < durable) as t:
                    moved = rng.randrange(10)
                    t.put(source, b"%d" % (amount(t.get(source)) - moved))
                    t.put(target, b"%d" % (amount(t.get(target)) + moved))
                self.counts["transfers"] += 1
            except Conflict:
                self.counts["conflicts"] += 1

    def count_up(self) -> None:
        """Add one to a counter by compare-and-set, again and again until it succeeds."""
        for _ in range(CHANGES):
            while True:
                value = self.db.get(b"hits")
                try:
                    self.db.set_if(b"hits", b"%d" % (amount(value) + 1), expected=value, await_durable=False)
                    break
                except Conflict:
                    self.counts["tried again"] += 1

    def fill(self) -> None:
        """Keep flushes and compactions busy."""
        while not self.stop.is_set():
            self.db.put(b"fill %06d" % (self.counts["fills"] % 3000), b"x" * 40, await_durable=False)
            self.counts["fills"] += 1

    def scan(self) -> None:
        """Sum up by both kinds of scan."""
        while not self.stop.is_set():
            assert sum(amount(value) for _, value in self.db.scan_prefix(b"account")) == TOTAL
            assert sum(map(amount, self.db.scan_arrow(prefix=b"account").read_all()["value"].to_pylist())) == TOTAL
            self.counts["scans"] += 1

    def look(self) -> None:
        """Sum up by single and bulk reads of one moment."""
        while not self.stop.is_set():
            with self.db.snapshot() as snapshot:
                assert sum(amount(snapshot.get(account)) for account in ACCOUNTS) == TOTAL
                assert sum(map(amount, self.db.get_many(ACCOUNTS))) == TOTAL
                assert sum(map(amount, snapshot.get_many(ACCOUNTS))) == TOTAL
                self.db.get(ACCOUNTS[0], linearizable=True)
            self.counts["snapshots"] += 1

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        """A thread whose error is kept, and stops the others."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)
                self.stop.set()

        return threading.Thread(target=run)

    def run(self, *, durable: float) -> None:
        """All at once, until the changes are made."""
        changing = [self.guarded(lambda seed=seed: self.transfer(seed, durable=durable)) for seed in range(3)]  # type: ignore[misc]
        changing += [self.guarded(self.count_up) for _ in range(2)]
        others = [self.guarded(work) for work in (self.fill, self.scan, self.look)]
        for thread in (*changing, *others):
            thread.start()
        for thread in changing:
            thread.join(60)
        self.stop.set()
        for thread in (*changing, *others):
            thread.join(60)
            assert not thread.is_alive(), "somebody waits for ever"
        if self.errors:
            raise self.errors[0]


@pytest.mark.parametrize("wal_enabled", [True, False])
def test_transfers_keep_the_sum(tmp_path: Path, wal_enabled: bool, tell: Callable[[str], None]) -> None:
    """Transfers by transactions during scans, snapshots, point reads, fillers, flushes, compactions and polls."""
    options = DatabaseOptions(
        wal_enabled=wal_enabled,
        wal_flush_interval_ms=5,
        flush_interval_max_ms=50,
        l0_sst_bytes=60_000,
        unflushed_bytes_max=200_000,
        l0_compaction_count=2,
        l0_count_max=6,
        run_file_bytes=50_000,
        manifest_poll_interval_ms=20,
    )
    place = DatabaseLocation.at(tmp_path / "bank", environment=Environment(), durable=False)
    with Database.open(place, options=options) as db:
        bank = Bank(db)
        bank.run(durable=0.2 if wal_enabled else 0.0)
        assert db.get(b"hits") == b"%d" % (2 * CHANGES)
        stats = db.stats()
    assert bank.counts["scans"] > 0
    assert bank.counts["snapshots"] > 0
    with Database.open(place, options=DatabaseOptions(background=False)) as again:
        assert sum(amount(value) for _, value in again.scan_prefix(b"account")) == TOTAL
        assert again.get(b"hits") == b"%d" % (2 * CHANGES)
    tell(f"threads, log {wal_enabled}: {dict(bank.counts)}, level 0: {stats.l0_count}, runs: {stats.run_count}")
