"""One database, many threads: sums that must hold, and nobody who waits for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.errors import Conflict
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.place import Place
from lakebed.runtime import Environment

ACCOUNTS = [b"account %02d" % i for i in range(20)]
TOTAL = 100 * len(ACCOUNTS)


def amount(value: bytes | None) -> int:
    """Of an account."""
    assert value is not None
    return int(value)


@pytest.mark.parametrize("wal_enabled", [True, False])
def test_transfers_keep_the_sum(tmp_path: Path, wal_enabled: bool, tell: Callable[[str], None]) -> None:
    """Transfers by transactions beside scans, snapshots, point reads, fillers, flushes, compactions and polls."""
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
    place = Place.at(tmp_path / "bank", environment=Environment(), durable=False)
    errors: list[BaseException] = []
    counts = dict.fromkeys(("transfers", "conflicts", "scans", "snapshots", "fills"), 0)
    stop = threading.Event()

    with Database.open(place, options=options) as db:
        for account in ACCOUNTS:
            db.put(account, b"100", await_durable=False)
        db.put(b"hits", b"0")

        def transfer(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(150):
                source, target = rng.sample(ACCOUNTS, 2)
                try:
                    with db.transaction("snapshot", await_durable=rng.random() < 0.2 and wal_enabled) as t:
                        moved = rng.randrange(10)
                        t.put(source, b"%d" % (amount(t.get(source)) - moved))
                        t.put(target, b"%d" % (amount(t.get(target)) + moved))
                    counts["transfers"] += 1
                except Conflict:
                    counts["conflicts"] += 1

        def count_up() -> None:
            for _ in range(150):
                while True:
                    there = db.get(b"hits")
                    try:
                        db.set_if(b"hits", b"%d" % (amount(there) + 1), expected=there, await_durable=False)
                        break
                    except Conflict:
                        continue

        def fill() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                db.put(b"fill %06d" % (n % 3000), b"x" * 40, await_durable=False)
                counts["fills"] += 1

        def scan() -> None:
            while not stop.is_set():
                assert sum(amount(value) for _, value in db.scan_prefix(b"account")) == TOTAL
                assert sum(map(amount, db.scan_arrow(prefix=b"account").read_all()["value"].to_pylist())) == TOTAL
                counts["scans"] += 1

        def snapshots() -> None:
            while not stop.is_set():
                with db.snapshot() as snapshot:
                    assert sum(amount(snapshot.get(account)) for account in ACCOUNTS) == TOTAL
                    assert sum(map(amount, db.get_many(ACCOUNTS))) == TOTAL
                    assert sum(map(amount, snapshot.get_many(ACCOUNTS))) == TOTAL
                    db.get(ACCOUNTS[0], linearizable=True)
                counts["snapshots"] += 1

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    errors.append(error)
                    raise

            return run

        changing = [lambda seed=seed: transfer(seed) for seed in range(3)] + [count_up, count_up]  # type: ignore[misc]
        threads = [threading.Thread(target=guarded(work)) for work in changing]
        others = [threading.Thread(target=guarded(work)) for work in (fill, scan, snapshots)]
        for thread in (*threads, *others):
            thread.start()
        for thread in threads:
            thread.join(60)
        stop.set()
        for thread in (*threads, *others):
            thread.join(60)
            assert not thread.is_alive(), "somebody waits for ever"
        assert errors == []
        assert db.get(b"hits") == b"300"
        stats = db.stats()
    assert counts["scans"] > 0
    assert counts["snapshots"] > 0
    with Database.open(place, options=DatabaseOptions(background=False)) as again:
        assert sum(amount(value) for _, value in again.scan_prefix(b"account")) == TOTAL
        assert again.get(b"hits") == b"300"
    tell(f"threads, log {wal_enabled}: {counts}, {stats.l0_count} files of level 0, {stats.run_count} runs")
