"""One database with threads of its own under the seeded scheduler: every interleaving ends, and loses nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from lakebed.errors import Conflict, Fenced, LakebedError
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.place import Place
from lakebed.objects import open_store
from lakebed.testing import FaultRates, Scheduler, seed_count

SEEDS = 200
FAULTS = FaultRates(error_before=0.01, lost_request=0.01, lost_reply=0.02, late=0.01, pause=0.02)


def play(seed: int, met: Counter[str]) -> None:
    """Writers, a scanner and perhaps a usurper over one database with background threads, until it is closed."""
    scheduler = Scheduler(seed, faults=FAULTS)
    inner = open_store(f"memory://kv-background-{seed}")
    place = Place(scheduler.store(inner), scheduler.environment(), lambda url: scheduler.store(open_store(url)))
    rng = random.Random(seed)
    options = DatabaseOptions(
        wal_enabled=seed % 3 != 2,
        l0_sst_bytes=1_500,
        unflushed_bytes_max=4_000,
        l0_compaction_count=2,
        l0_count_max=3,
        wal_bytes_max=600,
        manifest_poll_interval_ms=500,
        cache_bytes=1 << 20,
    )
    acknowledged: dict[bytes, bytes] = {}
    asked: dict[bytes, set[bytes]] = {}

    def write(db: Database, name: int) -> None:
        for i in range(12):
            key, value = b"%d %02d" % (name, i), b"%d" % rng.randrange(1000)
            asked.setdefault(key, set()).add(value)
            try:
                db.put(key, value, await_durable=i % 3 == 0)
            except LakebedError as error:
                met[error.kind] += 1
                if isinstance(error, Fenced):
                    return
                continue
            if i % 3 == 0:
                acknowledged[key] = value

    def scan(db: Database) -> None:
        for _ in range(3):
            try:
                for key, value in db.scan():
                    assert value in asked[key]
            except LakebedError as error:
                met[error.kind] += 1

    def owner() -> None:
        try:
            db = Database.open(place, options=options)
        except LakebedError as error:  # the store may fail for the whole opening
            met[f"opening: {error.kind}"] += 1
            return
        done: list[int] = []

        def work(run: Callable[[], None]) -> Callable[[], None]:
            return lambda: (run(), done.append(1))[0]

        runtime = place.environment.runtime
        works = [work(lambda name=name: write(db, name)) for name in range(3)] + [work(lambda: scan(db))]  # type: ignore[misc]
        for join in [runtime.spawn(one, name=f"user {i}") for i, one in enumerate(works)]:
            join()
        assert len(done) == len(works)
        for _ in range(20):
            try:
                db.close()
                met["closed"] += 1
                return
            except Fenced:
                met["closed, fenced"] += 1
                return
            except LakebedError as error:
                met[f"closing: {error.kind}"] += 1

    def usurper() -> None:
        for _ in range(rng.randrange(150)):
            place.environment.clock.sleep(0)
        try:
            Database.open(place, options=DatabaseOptions(background=False), take_over=True).close()
            met["taken over"] += 1
        except (LakebedError, Conflict) as error:
            met[f"usurper: {error.kind}"] += 1

    scheduler.spawn("owner", owner)
    if seed % 2:
        scheduler.spawn("usurper", usurper)
    scheduler.run(steps_max=400_000)
    healthy = Place(inner, place.environment, open_store)
    with Database.open(healthy, options=DatabaseOptions(background=False), take_over=True) as db:
        found = dict(db.scan())
    for key, value in acknowledged.items():
        assert found.get(key) == value, f"seed {seed}: {key!r} was acknowledged"
    assert all(value in asked[key] for key, value in found.items())


def test_background_threads_end_and_lose_nothing(tell: Callable[[str], None]) -> None:
    """No deadlock, no lost acknowledged write, no error but those of faults and of a new owner."""
    met: Counter[str] = Counter()
    for seed in range(seed_count(SEEDS)):
        play(seed, met)
    assert met["closed"] > seed_count(SEEDS) // 4
    assert met["fenced"] > 0
    tell(f"databases with threads of their own: {dict(met.most_common())}")
