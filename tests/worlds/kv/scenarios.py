"""Scenarios of databases: which processes run, and what they do. Each is small, and dense in conflicts of one kind.

Owns: `SCENARIOS`, by name, and `SIMULATION`, which runs one from a seed. A scenario only spawns processes
(`worlds.kv.actors`); what is judged, and how, is the world's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakebed.testing.scheduled_calls import FaultRates
from worlds.kv.actors import (
    WAITS_MAX,
    begin,
    checkpointer,
    cloner,
    collector,
    compactor,
    corrupter,
    crew,
    destroyer,
    meddler,
    reader,
    restorer,
    writer,
)
from worlds.kv.world import CloneAsked, DatabaseWorld, options
from worlds.simulation import Simulation
from worlds.world import FAULTS

STORMY: Final = FaultRates(
    error_before=0.015, lost_request=0.01, lost_reply=0.015, late=0.012, crash=0.01, pause=0.08, pause_steps_max=400
)
CALM: Final = FaultRates(pause=0.05, pause_steps_max=300)
SLEEPY: Final = FaultRates(lost_reply=0.004, late=0.004, crash=0.002, pause=0.2, pause_steps_max=500)
"""Little is lost, and every process pauses where it does most harm."""
SLOW: Final = FaultRates(lost_reply=0.004, crash=0.003, pause=0.03, slow=0.02, slow_s_max=7200)
"""Replies take hours, so that whatever has a lifetime ends in the middle of something."""


WRITING: Final = {
    "put": 6,
    "soft put": 4,
    "batch": 3,
    "soft batch": 1,
    "delete": 2,
    "flush": 1,
    "flush memtable": 4,
    "flush_once": 3,
}
READING: Final = {"get": 4, "get_many": 1, "scan": 2, "snapshot": 1}
COMPACTING: Final = {"compact": 3, "compact fully": 1}


def takeovers(world: DatabaseWorld) -> None:
    """Writers take a database from each other while a collector runs."""
    if world.rng.random() < 0.7:
        begin(world, "a")
    for number in range(3):
        verbs = {**WRITING, "get": 2, "compact": 2}
        settings = options(l0_sst_bytes=world.rng.choice((500, 1000, 64 << 20)))
        writer(world, "a", f"writer {number}", verbs=verbs, lives=2, late=WAITS_MAX * number, settings=settings)
    collector(world, "a", rounds=6)


def repeated_claims(world: DatabaseWorld) -> None:
    """Many openings one upon another, each with a few writes that a collector follows closely."""
    world.set_faults(SLEEPY)
    begin(world, "a")
    for number in range(5):
        verbs = {"put": 4, "flush memtable": 3, "compact": 1}
        writer(world, "a", f"writer {number}", verbs=verbs, count=3, late=WAITS_MAX * number)
    collector(world, "a", rounds=6)
    collector(world, "a", rounds=6, name="collector 2")


def unawaited_writes(world: DatabaseWorld) -> None:
    """Writers that wait for nothing: their memtables fill before the log has what is in them."""
    settings = options(l0_sst_bytes=500)
    verbs = {"soft put": 8, "soft batch": 2, "flush_once": 4, "flush": 1, "get": 1, "scan": 1}
    writer(world, "a", "writer 1", verbs=verbs, count=16, lives=3, settings=settings)
    writer(world, "a", "writer 2", verbs=verbs, count=10, late=600, settings=settings)
    collector(world, "a", rounds=3)


def hot(world: DatabaseWorld) -> None:
    """Threads that read few keys again and again while another one writes and flushes them."""
    world.keys = world.keys[:3]
    begin(world, "a")
    if world.rng.random() < 0.5:
        world.set_faults(SLEEPY)
    reading = {"get": 3, "linger": 2}
    writing = {"put": 2, "soft put": 1, "flush memtable": 3, "compact": 1}
    threads = (reading, reading, reading, writing)
    crew(world, "a", "crew", threads=threads, count=20, settings=options(cache_bytes=0))


def rivals(world: DatabaseWorld) -> None:
    """Each owner reads linearizably what is there, and replaces just that."""
    world.keys = world.keys[:1]
    begin(world, "a", rounds=1)
    for number in range(4):
        verbs = {"surely": 4, "snapshot surely": 2, "put": 2, "set_if": 2, "write_if": 2}
        writer(world, "a", f"writer {number}", verbs=verbs, count=6, late=WAITS_MAX * number)


def threads(world: DatabaseWorld) -> None:
    """Threads share a database object; another process takes it over, perhaps."""
    mixes = (
        {"put": 4, "batch": 2, "transaction": 3, "set_if": 2, "write_if": 3, "get": 2, "delete": 1},
        {"put": 2, "soft put": 2, "serializable": 4, "scan": 1, "snapshot": 2, "set_if": 2, "snapshot surely": 2},
        {"flush memtable": 3, "flush_once": 2, "compact": 2, "compact fully": 1, "get": 3, "surely": 2, "get_many": 2},
    )
    crew(world, "a", "crew", threads=mixes)
    if world.rng.random() < 0.5:
        writer(world, "a", "usurper", verbs={"put": 3, "set_if": 1, "write_if": 2, "surely": 2}, count=4)
    if world.rng.random() < 0.5:
        collector(world, "a", rounds=2)


def readers(world: DatabaseWorld) -> None:
    """Readers of every kind, with a writer and a collector."""
    begin(world, "a")
    writer(world, "a", "writer", verbs={**WRITING, **COMPACTING}, count=10)
    reader(world, "a", "own")
    reader(world, "a", "fixed", fixed=True)
    if world.rng.random() < 0.5:
        reader(world, "a", "latest", follow_latest=True)
    collector(world, "a")


def scans(world: DatabaseWorld) -> None:
    """Long scans and snapshots in a writer whose files are compacted and collected."""
    world.keys = [b"k%02d" % number for number in range(14)]
    begin(world, "a", rounds=5, compact=True)
    mixes = (
        {"scan": 5, "snapshot": 2, "put": 1},
        {"flush memtable": 3, "compact": 2, "compact fully": 3, "put": 3, "delete": 1},
    )
    crew(world, "a", "crew", threads=mixes, count=8, settings=options(cache_bytes=0, run_file_bytes=100))
    collector(world, "a", rounds=6)
    if world.rng.random() < 0.4:
        compactor(world, "a", "compactor")


def checkpoints(world: DatabaseWorld) -> None:
    """Checkpoints made, prolonged, deleted and expiring, with a writer and collectors."""
    begin(world, "a")
    verbs = {"put": 4, "soft put": 2, "flush memtable": 3, "compact fully": 2, "checkpoint": 2, "sleep": 1}
    writer(world, "a", "writer", verbs=verbs, count=8)
    checkpointer(world, "a", "checkpointer 1")
    checkpointer(world, "a", "checkpointer 2")
    collector(world, "a", rounds=5)


def compactors(world: DatabaseWorld) -> None:
    """Separate compactors at work for long, a writer that only writes and flushes, and collectors."""
    settings = options(compaction=False)
    world.keys = [b"k%02d" % number for number in range(16)]
    if world.rng.random() < 0.7:
        world.set_faults(SLEEPY)
    begin(world, "a", settings=settings, rounds=4)
    verbs = {"put": 3, "batch": 1, "flush memtable": 4, "get": 1, "scan": 1, "poll": 2}
    writer(world, "a", "writer", verbs=verbs, count=14, settings=settings)
    compactor(world, "a", "compactor 1", lives=2, rounds=5)
    if world.rng.random() < 0.4:
        compactor(world, "a", "compactor 2", rounds=2)
    collector(world, "a", rounds=8)
    collector(world, "a", rounds=8, name="collector 2")


def roles(world: DatabaseWorld) -> None:
    """Writers that take over the compactor's role from a separate one, which pauses."""
    world.keys = [b"k%02d" % number for number in range(10)]
    world.set_faults(SLEEPY)
    begin(world, "a", rounds=3)
    for number in range(3):
        writer(world, "a", f"usurper {number}", verbs={"put": 3, "flush memtable": 4}, count=4, late=400)
    compactor(world, "a", "compactor 1", lives=2, rounds=4)
    compactor(world, "a", "compactor 2", rounds=4)
    collector(world, "a", rounds=8)


def clones(world: DatabaseWorld) -> None:
    """Clones to one target, clones of clones, retries after crashes, with writers and collectors on all sides."""
    begin(world, "a")
    fixed = world.rng.random() < 0.5
    cloner(world, "a", "b", "cloner 1", fixed=fixed, lives=3)
    cloner(world, "a", "b", "cloner 2", fixed=fixed, lives=2)
    if world.rng.random() < 0.6:
        cloner(world, "b", "c", "cloner 3", lives=3)
    writer(world, "a", "writer a", verbs={"put": 3, "flush memtable": 3, "compact fully": 2}, count=6)
    verbs = {"put": 3, "flush memtable": 2, "compact fully": 2, "get": 2, "scan": 1}
    writer(world, "b", "writer b", verbs=verbs, count=6, create=False)
    collector(world, "a", rounds=5)
    collector(world, "b", "c", rounds=5, name="collector 2")
    if world.rng.random() < 0.3:
        destroyer(world, "b", "destroyer", soft=world.rng.random() < 0.5)


def rereading(world: DatabaseWorld) -> None:
    """Readers that poll all the time, while restores and new writers come one after another."""
    world.set_faults(SLEEPY)
    begin(world, "a")
    restorer(world, "a", "restorer 1", count=1, lives=2)
    restorer(world, "a", "restorer 2", count=1)
    for number in range(2):
        writer(world, "a", f"writer {number}", verbs={"put": 5, "flush memtable": 1}, count=4, late=150)
    for number in range(3):
        reader(world, "a", f"reader {number}", count=16)


def ages(world: DatabaseWorld) -> None:
    """Hours pass between two calls: leases, readers' checkpoints and pins of unfinished clones end."""
    world.set_faults(SLOW)
    begin(world, "a")
    cloner(world, "a", "b", "cloner 1", lives=2)
    cloner(world, "a", "b", "cloner 2")
    cloner(world, "b", "c", "cloner 3")
    writer(world, "a", "writer", verbs={"put": 3, "flush memtable": 3, "compact fully": 2, "scan": 2}, count=8)
    reader(world, "a", "reader", count=10)
    checkpointer(world, "a", "checkpointer", count=4)
    collector(world, "a", rounds=5)
    collector(world, "b", "c", rounds=4, name="collector 2")
    if world.rng.random() < 0.3:
        restorer(world, "a", "restorer", count=1)


def lineages(world: DatabaseWorld) -> None:
    """Clones of clones, while those in the middle let go of their ancestor or are destroyed."""
    begin(world, "a")
    cloner(world, "a", "b", "cloner b", lives=2)
    cloner(world, "b", "c", "cloner c", lives=2)
    cloner(world, "b", "d", "cloner d", lives=2)
    writer(world, "a", "writer a", verbs={"put": 2, "flush memtable": 3, "compact fully": 4}, count=6)
    writer(world, "b", "writer b", verbs={"put": 2, "compact fully": 4}, count=4, create=False)
    collector(world, "a", rounds=6)
    collector(world, "b", "c", rounds=6, name="collector 2")
    meddler(world, "a")
    if world.rng.random() < 0.5:
        checkpointer(world, "b", "checkpointer")
    if world.rng.random() < 0.5:
        destroyer(world, "b", "destroyer", soft=world.rng.random() < 0.5)


def generations(world: DatabaseWorld) -> None:
    """Three generations made without faults; then each compacts, is collected, or is destroyed."""
    begin(world, "a")
    for parent, target in (("a", "b"), ("b", "c")):
        world.clones[target, None] = CloneAsked(parent, len(world.known(parent).history.events), None, is_made=True)
        world.admin(target).create_clone(world.url(parent))
        if world.rng.random() < 0.5:
            checkpoint = world.admin(target).create_checkpoint()
            world.promise(target, checkpoint.id)
    for folder in ("a", "b", "c"):
        if world.rng.random() < 0.7:
            verbs = {"put": 2, "compact fully": 4, "scan": 1}
            writer(world, folder, f"writer {folder}", verbs=verbs, count=4, create=False)
        collector(world, folder, rounds=5, name=f"collector {folder}")
    meddler(world, "a")
    if world.rng.random() < 0.6:
        folder = world.rng.choice(("b", "b", "c", "a"))
        destroyer(world, folder, "destroyer", soft=world.rng.random() < 0.6, lives=2)


def corruptions(world: DatabaseWorld) -> None:
    """A pinned version is gone, and collections keep all that it may have needed."""
    begin(world, "a", rounds=3)
    writer(world, "a", "writer", verbs={"put": 2, "flush memtable": 3, "compact fully": 3, "checkpoint": 2}, count=8)
    corrupter(world, "a")
    collector(world, "a", rounds=6)


def restores(world: DatabaseWorld) -> None:
    """Restores with writers, checkpointers and a collector."""
    begin(world, "a")
    writer(world, "a", "writer 1", verbs={**WRITING, "checkpoint": 2, "compact": 1}, count=7)
    restorer(world, "a", "restorer", lives=2)
    if world.rng.random() < 0.5:
        restorer(world, "a", "restorer 2", count=1)
    writer(world, "a", "writer 2", verbs=WRITING, count=5)
    collector(world, "a", rounds=3)
    if world.rng.random() < 0.6:
        reader(world, "a", "own", count=12)
        reader(world, "a", "own 2", count=12)


def destructions(world: DatabaseWorld) -> None:
    """Databases destroyed under their writers, clones and collectors, and perhaps created again."""
    begin(world, "a")
    writer(world, "a", "writer", verbs={"put": 5, "flush memtable": 2, "get": 1}, count=8)
    if world.rng.random() < 0.6:
        cloner(world, "a", "b", "cloner", lives=2)
    if world.rng.random() < 0.5:
        checkpointer(world, "a", "checkpointer", count=3)
    destroyer(world, "a", "destroyer 1", soft=world.rng.random() < 0.6, lives=2)
    destroyer(world, "a", "destroyer 2", soft=False)
    collector(world, "a", "b", rounds=4)
    if world.rng.random() < 0.4:
        writer(world, "a", "successor", verbs={"put": 3, "flush memtable": 1}, count=3, after_destroy=True)


def logless(world: DatabaseWorld) -> None:
    """Without a log: a write is durable when its memtable is in a file."""
    settings = options(wal_enabled=False)
    verbs = {"put": 2, "soft put": 5, "soft batch": 2, "flush memtable": 3, "compact": 1, "get": 2, "scan": 1}
    writer(world, "a", "writer 1", verbs=verbs, settings=settings, lives=2)
    writer(world, "a", "writer 2", verbs=verbs, settings=settings)
    collector(world, "a")


def endings(world: DatabaseWorld) -> None:
    """Values with a TTL and operands, through flushes and compactions of every depth."""
    world.has_ttl = True
    world.keys = world.keys[: world.rng.choice((1, 3))]
    settings = options(merge_operator="append", run_compaction_count=4)
    verbs = {"put": 3, "ttl": 5, "merge": 2, "sleep": 3, "flush memtable": 5, "compact": 5, "get": 2}
    begin(world, "a", settings=settings)
    writer(world, "a", "writer 1", verbs={**verbs, "scan": 1}, count=20, settings=settings)
    writer(world, "a", "writer 2", verbs={**verbs, "compact fully": 1}, count=12, settings=settings, late=400)
    if world.rng.random() < 0.5:
        compactor(world, "a", "compactor")
    collector(world, "a", rounds=3)


def power(world: DatabaseWorld) -> None:
    """All processes lose power; those that start then find what was durable."""
    takeovers(world)
    checkpointer(world, "a", "checkpointer")
    world.power_lost_at = world.rng.randrange(50, 900)

    def revive() -> None:
        writer(world, "a", "survivor", verbs={**WRITING, **READING})
        collector(world, "a", name="late collector")

    world.revive = revive


SCENARIOS: Final[dict[str, Callable[[DatabaseWorld], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        takeovers,
        repeated_claims,
        unawaited_writes,
        hot,
        rivals,
        threads,
        readers,
        scans,
        checkpoints,
        compactors,
        roles,
        clones,
        lineages,
        generations,
        corruptions,
        restores,
        rereading,
        ages,
        destructions,
        logless,
        endings,
        power,
    )
}

SIMULATION: Final = Simulation(
    "kv",
    SCENARIOS,
    (FAULTS, CALM, STORMY),
    lambda seed, faults, scenario: DatabaseWorld(seed, faults=faults),
)
