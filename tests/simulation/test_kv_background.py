"""One database with threads of its own under the seeded scheduler: every interleaving ends, and loses nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from lakebed.errors import Fenced, LakebedError
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects import open_store
from lakebed.testing import FaultRates, Scheduler, seed_count

SEEDS = 24
BY_HAND = DatabaseOptions(background=False)
FAULTS = FaultRates(error_before=0.01, lost_request=0.01, lost_reply=0.02, late=0.01, pause=0.02)


class Play:
    """Writers, a scanner and perhaps a usurper over one database with background threads, until it is closed."""

    def __init__(self, seed: int, met: Counter[str]) -> None:
        self.seed = seed
        self.met = met
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(seed, faults=FAULTS)
        self.environment = self.scheduler.environment()
        self.inner = open_store(f"memory://kv-background-{seed}")
        store = self.scheduler.store(self.inner)
        self.place = DatabaseLocation(store, self.environment, lambda url: self.scheduler.store(open_store(url)))
        self.acknowledged: dict[bytes, bytes] = {}
        self.asked: dict[bytes, set[bytes]] = {}

    def write(self, db: Database, name: int) -> None:
        """Some keys of its own; every third write is waited for."""
        for i in range(12):
            key, value = b"%d %02d" % (name, i), b"%d" % self.rng.randrange(1000)
            self.asked.setdefault(key, set()).add(value)
            try:
                db.put(key, value, await_durable=i % 3 == 0)
            except LakebedError as error:
                self.met[error.kind] += 1
                if isinstance(error, Fenced):
                    return
                continue
            if i % 3 == 0:
                self.acknowledged[key] = value

    def scan(self, db: Database) -> None:
        """Nothing is ever read that was not written."""
        for _ in range(3):
            try:
                assert all(value in self.asked[key] for key, value in db.scan())
            except LakebedError as error:
                self.met[error.kind] += 1

    def own(self) -> None:
        """Open, let several threads use it, close."""
        options = DatabaseOptions(
            wal_enabled=self.seed % 3 != 2,
            l0_sst_bytes=1_500,
            unflushed_bytes_max=4_000,
            l0_compaction_count=2,
            l0_count_max=3,
            wal_bytes_max=600,
            manifest_poll_interval_ms=500,
            cache_bytes=1 << 20,
        )
        try:
            db = Database.open(self.place, options=options)
        except LakebedError as error:  # the store may fail for the whole opening
            self.met[f"opening: {error.kind}"] += 1
            return
        done: list[str] = []

        def use(name: int) -> None:
            if name:
                self.write(db, name)
            else:
                self.scan(db)
            done.append(f"user {name}")

        spawn = self.environment.runtime.spawn
        for join in [spawn(lambda name=name: use(name), name=f"user {name}") for name in range(4)]:  # type: ignore[misc]
            join()
        assert len(done) == 4, f"seed {self.seed}: only {done} came to an end"
        self.close(db)

    def close(self, db: Database) -> None:
        """As often as the store needs to answer."""
        for _ in range(20):
            try:
                db.close()
                self.met["closed"] += 1
                return
            except Fenced:
                self.met["closed, fenced"] += 1
                return
            except LakebedError as error:
                self.met[f"closing: {error.kind}"] += 1

    def usurp(self) -> None:
        """Take it over at some moment."""
        for _ in range(self.rng.randrange(150)):
            self.environment.clock.sleep(0)
        try:
            Database.open(self.place, options=BY_HAND, take_over=True).close()
            self.met["taken over"] += 1
        except LakebedError as error:
            self.met[f"usurper: {error.kind}"] += 1

    def run(self) -> None:
        """To the end, and look."""
        self.scheduler.spawn("owner", self.own)
        if self.seed % 2:
            self.scheduler.spawn("usurper", self.usurp)
        self.scheduler.run(steps_max=400_000)
        with Database.open(
            DatabaseLocation(self.inner, self.environment, open_store), options=BY_HAND, take_over=True
        ) as db:
            scan = dict(db.scan())
        for key, value in self.acknowledged.items():
            assert scan.get(key) == value, f"seed {self.seed}: {key!r} was acknowledged"
        assert all(value in self.asked[key] for key, value in scan.items())


def test_background_threads_end_and_lose_nothing(tell: Callable[[str], None]) -> None:
    """No deadlock, no lost acknowledged write, no error but those of faults and of a new owner."""
    met: Counter[str] = Counter()
    for seed in range(seed_count(SEEDS)):
        Play(seed, met).run()
    assert met["closed"] > seed_count(SEEDS) // 4
    assert met["fenced"] > 0
    tell(f"databases with threads of their own: {dict(met.most_common())}")
