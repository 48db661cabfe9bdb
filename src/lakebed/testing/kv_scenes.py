"""Scenes of a simulated world: who is there, and what they do. Each is small, and dense in conflicts of one sort.

Owns: `SCENES`, by name, and `play`, which chooses one by the seed and runs it. A scene only spawns processes; what is
judged, and how, is the world's.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from lakebed.errors import Fenced, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.model import CheckpointScope
from lakebed.kv.options import CollectorOptions, DatabaseOptions
from lakebed.testing.kv_handles import Follower, Owner, ask_checkpoint
from lakebed.testing.kv_model import Violation, visible
from lakebed.testing.kv_world import FAULTS, CloneAsked, World, options
from lakebed.testing.scheduled_store import FaultRates

__all__ = ["SCENES", "Scene", "play"]

Scene = Callable[[World], None]

OPEN_TRIES_MAX: Final = 4
WAITS_MAX: Final = 60

Verb = Callable[[Owner, random.Random], object]


def one(owner: Owner, rng: random.Random) -> bytes:
    """Any key of this world."""
    return rng.choice(owner.world.keys)


def some(owner: Owner, rng: random.Random, count: int) -> list[bytes]:
    """Different keys."""
    return rng.sample(owner.world.keys, min(count, len(owner.world.keys)))


VERBS: Final[dict[str, Verb]] = {
    "put": lambda owner, rng: owner.put(one(owner, rng)),
    "soft put": lambda owner, rng: owner.put(one(owner, rng), durable=False),
    "delete": lambda owner, rng: owner.delete(one(owner, rng)),
    "batch": lambda owner, rng: owner.batch(some(owner, rng, 3)),
    "soft batch": lambda owner, rng: owner.batch(some(owner, rng, 2), durable=False),
    "set_if": lambda owner, rng: owner.set_if(owner.world.keys[0]),
    "transaction": lambda owner, rng: owner.transact(some(owner, rng, 2), some(owner, rng, 1), serializable=False),
    "serializable": lambda owner, rng: owner.transact(some(owner, rng, 2), some(owner, rng, 1), serializable=True),
    "ttl": lambda owner, rng: owner.put(one(owner, rng), ttl=True),
    "merge": lambda owner, rng: owner.merge(rng.choice((b"m0", b"m1"))),
    "get": lambda owner, rng: owner.get(one(owner, rng)),
    "get_many": lambda owner, rng: owner.get_many(some(owner, rng, 3)),
    "surely": lambda owner, rng: owner.get_surely(one(owner, rng)),
    "scan": lambda owner, rng: owner.scan(reverse=rng.random() < 0.4),
    "snapshot": lambda owner, rng: owner.snapshot(some(owner, rng, 2)),
    "flush": lambda owner, rng: owner.flush(),
    "flush memtable": lambda owner, rng: owner.flush(memtable=True),
    "flush_once": lambda owner, rng: owner.database.flush_once(),
    "compact": lambda owner, rng: owner.database.compact_once(),
    "compact fully": lambda owner, rng: owner.database.compact(full=True),
    "poll": lambda owner, rng: owner.database.poll_once(),
    "renew": lambda owner, rng: owner.database.renew_once(),
    "checkpoint": lambda owner, rng: owner.checkpoint(rng.choice((CheckpointScope.ALL, CheckpointScope.DURABLE))),
    "sleep": lambda owner, rng: owner.world.environment.clock.sleep(rng.random() * 0.05),
}

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


# ---- actors


def opened(
    world: World,
    folder: str,
    name: str,
    *,
    settings: DatabaseOptions | None = None,
    after_destroy: bool = False,
    create: bool = True,
) -> Owner | None:
    """An owner that takes over whoever was there; None when the place cannot be opened."""
    for _ in range(OPEN_TRIES_MAX):
        try:
            return Owner(world, folder, name, settings=settings, after_destroy=after_destroy, create=create)
        except (Unavailable, OutcomeUnknown, Fenced):
            continue
        except LakebedError as error:
            world.met(error, *(() if create else (NotFound,)))
            return None
    return None


def wait_for(world: World, folder: str, *, times: int = WAITS_MAX) -> None:
    """Give way until there is a database that can be opened, for a while."""
    for _ in range(times):
        if world.known(folder).initial is not None:
            return
        world.scheduler.switch("nothing there yet")


def use(world: World, owner: Owner, rng: random.Random, verbs: Mapping[str, int], count: int) -> None:
    """Some verbs, one after another, until the owner finds that it is one no more."""
    names, weights = list(verbs), list(verbs.values())
    for _ in range(count):
        verb = VERBS[rng.choices(names, weights)[0]]
        try:
            verb(owner, rng)
        except Fenced:
            world.counts["fenced"] += 1
            world.expecting(lambda: owner.get(rng.choice(world.keys)))
            world.expecting(lambda: owner.put(rng.choice(world.keys)))
            return
        except LakebedError as error:
            world.met(error)


def writer(
    world: World,
    folder: str,
    name: str,
    *,
    verbs: Mapping[str, int] = WRITING,
    count: int = 8,
    lives: int = 1,
    settings: DatabaseOptions | None = None,
    after_destroy: bool = False,
    late: int = 0,
    create: bool = True,
) -> None:
    """A process that opens a database, uses it, and closes it or forgets to."""
    born = iter(range(lives))

    def live(rng: random.Random) -> None:
        for _ in range(rng.randrange(late) if late else 0):
            world.scheduler.switch("not yet")
        if not create:
            wait_for(world, folder, times=10 * WAITS_MAX)
        owner = opened(
            world, folder, f"{name}/{next(born)}", settings=settings, after_destroy=after_destroy, create=create
        )
        if owner is None:
            return
        use(world, owner, rng, verbs, count)
        if rng.random() < 0.5:
            world.expecting(owner.close)

    world.process(name, live, lives=lives)


def crew(
    world: World,
    folder: str,
    name: str,
    *,
    threads: Sequence[Mapping[str, int]],
    count: int = 6,
    settings: DatabaseOptions | None = None,
) -> None:
    """A process whose threads share one database."""

    def live(rng: random.Random) -> None:
        owner = opened(world, folder, name, settings=settings)
        if owner is None:
            return
        for number, verbs in enumerate(threads):
            own = random.Random(rng.random())
            world.scheduler.spawn(f"{name}/{number}", partial(use, world, owner, own, verbs, count))

    world.process(name, live)


def collector(world: World, *folders: str, name: str = "collector", rounds: int = 4, lives: int = 1) -> None:
    """Collections without any minimal age."""
    settings = CollectorOptions(min_age=timedelta(0), db_delete_grace=timedelta(0))

    def live(rng: random.Random) -> None:
        for _ in range(rounds):
            folder = rng.choice(folders)
            wait_for(world, folder)
            world.expecting(partial(collect_once, world, folder, settings), NotFound)

    world.process(name, live, lives=lives)


def collect_once(world: World, folder: str, settings: CollectorOptions) -> None:
    """One collection, counted."""
    report = world.admin(folder).collect_garbage(options=settings)
    world.counts["collected on the way"] += report.deleted_count


def compactor(world: World, folder: str, name: str, *, rounds: int = 3, lives: int = 1) -> None:
    """A compactor in a process of its own."""

    def live(rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(rounds):
            if world.expecting(lambda: world.admin(folder).compact(full=rng.random() < 0.5), NotFound):
                world.counts["compactions"] += 1

    world.process(name, live, lives=lives)


def checkpointer(world: World, folder: str, name: str, *, count: int = 5) -> None:
    """Makes checkpoints, prolongs and deletes them, and pins old versions."""

    def once(rng: random.Random) -> None:
        mine = [one for one in world.promises.values() if one.folder == folder]
        draw = rng.random()
        admin = world.admin(folder)
        if draw < 0.45 or not mine:
            ask_checkpoint(world, folder, rng)
        elif draw < 0.6:
            pin_old(world, folder, rng)
        elif draw < 0.75:
            promise = rng.choice(mine)
            del world.promises[promise.id]
            admin.refresh_checkpoint(promise.id, timedelta(milliseconds=rng.choice((20, 100))))
            world.promise(folder, promise.id)
        elif draw < 0.9:
            promise = rng.choice(mine)
            del world.promises[promise.id]
            admin.delete_checkpoint(promise.id)
        elif draw < 0.95:
            world.environment.clock.sleep(rng.random() * 0.08)
        else:
            refuse_unknown(world, folder, rng)

    def live(rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(count):
            world.expecting(lambda: once(rng), NotFound)

    world.process(name, live)


def pin_old(world: World, folder: str, rng: random.Random) -> None:
    """Pin a version that may be going."""
    known = world.known(folder)
    version = rng.randint(max(known.ready_id, known.newest_id - 3), known.newest_id)
    name = f"old-{rng.getrandbits(32)}"
    world.admin(folder).pin(name, version=str(version))
    states = known.line.states
    if states[world.promise(folder, name).index] != states[known.contents[version]]:
        raise Violation(f"the pin of version {version} of {folder} holds something else")


def refuse_unknown(world: World, folder: str, rng: random.Random) -> None:
    """What nobody made can neither be prolonged nor deleted."""
    unknown = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    admin = world.admin(folder)
    for verb in (
        lambda: admin.refresh_checkpoint(unknown, timedelta(seconds=1)),
        lambda: admin.delete_checkpoint(unknown),
    ):
        try:
            verb()
        except InvalidRequest:
            continue
        raise Violation(f"{folder} has no checkpoint {unknown}, and a verb on it was said to be done")


def meddler(world: World, folder: str) -> None:
    """Tries to delete what clones and readers hold; without force nobody may."""

    def live(rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(6):
            manifest = world.known(folder).manifest
            others = [one for one in manifest.checkpoints if one.owner.kind != "user"] if manifest is not None else []
            if others:
                world.expecting(partial(world.admin(folder).delete_checkpoint, rng.choice(others).id), NotFound)
            for _ in range(20):
                world.scheduler.switch("look for more")

    world.process("meddler", live)


def vandal(world: World, folder: str) -> None:
    """Deletes the manifest that a checkpoint pins, by other means than ours."""

    def live(rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(rng.randrange(200)):
            world.scheduler.switch("not yet")
        newest = world.known(folder).newest_id
        known = world.known(folder)
        pinned = sorted({one.manifest_id for one in known.manifest.checkpoints} - {newest}) if known.manifest else []
        if pinned:
            world.vandalise(folder, rng.choice(pinned))

    world.process("vandal", live)


def reader(
    world: World,
    folder: str,
    name: str,
    *,
    count: int = 6,
    fixed: bool = False,
    follow_latest: bool = False,
) -> None:
    """Reads, by gets and long scans, while others write and collect."""

    def live(rng: random.Random) -> None:
        follower: Follower | None = None
        for _ in range(count):
            if follower is None:
                follower = find(rng)
                world.scheduler.switch("look for something to read")
                continue
            world.expecting(rng.choice((follower.scan, follower.poll, partial(follower.get, rng.choice(world.keys)))))
        if follower is not None and rng.random() < 0.7:
            world.expecting(follower.close)

    def find(rng: random.Random) -> Follower | None:
        found: list[Follower] = []
        if world.known(folder).manifest is None:
            return None
        live = [one.id for one in world.promises.values() if one.folder == folder and one.expires_at_ms is None]
        if fixed and not live:
            return None
        checkpoint = rng.choice(live) if fixed else None
        world.expecting(
            lambda: found.append(Follower(world, folder, name, checkpoint=checkpoint, follow_latest=follow_latest)),
            NotFound,
        )
        return found[0] if found else None

    world.process(name, live)


def cloner(world: World, parent: str, target: str, name: str, *, fixed: bool = False, lives: int = 1) -> None:
    """Clones a database; tries again after errors and crashes."""
    chosen: list[str | None] = []  # a retry asks for the same

    def live(rng: random.Random) -> None:
        wait_for(world, parent, times=10 * WAITS_MAX)
        for _ in range(3):
            if world.expecting(lambda: once(rng), NotFound):
                return

    def once(rng: random.Random) -> None:
        live = [one for one in world.promises.values() if one.folder == parent and one.expires_at_ms is None]
        if not chosen:
            chosen.append(rng.choice(live).id if fixed and live else None)
        source = chosen[0]
        index = None if source is None else world.witness.index_of(parent, source)
        if source is not None and index is None:
            return  # somebody deleted it
        asked = world.clones.setdefault(
            (target, source), CloneAsked(parent, len(world.known(parent).line.events), index)
        )
        world.admin(target).create_clone(world.url(parent), source)
        asked.is_made = True
        world.counts["clones"] += 1

    world.process(name, live, lives=lives)


def restorer(world: World, folder: str, name: str, *, count: int = 2, lives: int = 1) -> None:
    """Brings back what a checkpoint holds."""

    def once(rng: random.Random) -> None:
        live = [one for one in world.promises.values() if one.folder == folder and one.expires_at_ms is None]
        if not live:
            world.scheduler.switch("nothing to restore")
            return
        promise = rng.choice(live)
        line = world.known(folder).line
        floor, content = len(line.events), line.states[promise.index]
        announced = (folder, content)
        world.witness.restoring.append(announced)
        world.admin(folder).restore(promise.id, take_over=True)
        now_ms = world.now_ms()
        if not any(visible(state, now_ms) == visible(content, now_ms) for state in line.states[floor:]):
            raise Violation(f"{folder} was restored to {promise.id}, and never held {visible(content, now_ms)}")
        world.witness.restoring.remove(announced)
        world.counts["restores"] += 1

    def live(rng: random.Random) -> None:
        for _ in range(count):
            world.expecting(lambda: once(rng), NotFound)

    world.process(name, live, lives=lives)


def destroyer(world: World, folder: str, name: str, *, soft: bool, lives: int = 1) -> None:
    """Destroys a database, softly or at once."""

    def once() -> None:
        world.admin(folder).destroy(soft=soft, take_over=True)
        known = world.known(folder)
        if all(one.destroyed_at_ms is None for one in known.manifests.values()):
            raise Violation(f"{folder} was said to be destroyed, and is not")
        world.counts["destroyed"] += 1

    def live(rng: random.Random) -> None:
        for _ in range(2):
            if world.known(folder).manifest is None:
                world.scheduler.switch("nothing to destroy")
            elif world.expecting(once, NotFound):
                return

    world.process(name, live, lives=lives)


def begin(
    world: World, folder: str, *, settings: DatabaseOptions | None = None, rounds: int = 2, compact: bool = False
) -> None:
    """A database with some files and a log, made before anybody comes."""
    if compact:
        settings = options(run_file_bytes=100)
    owner = Owner(world, folder, f"beginner of {folder}", settings=settings)
    rng = random.Random(f"begin {folder} {world.seed}")
    for _ in range(rounds):
        owner.batch(some(owner, rng, 3))
        owner.put(one(owner, rng))
        owner.flush(memtable=True)
        owner.put(one(owner, rng))
        owner.checkpoint(CheckpointScope.ALL)
    if compact:
        owner.database.compact(full=True)
    owner.put(one(owner, rng))
    if world.rng.random() < 0.5:
        owner.close()


# ---- scenes


def takeovers(world: World) -> None:
    """Writers take a database from each other while a collector runs."""
    if world.rng.random() < 0.7:
        begin(world, "a")
    for number in range(3):
        verbs = {**WRITING, "get": 2, "compact": 2}
        settings = options(l0_sst_bytes=world.rng.choice((500, 1000, 64 << 20)))
        writer(world, "a", f"writer {number}", verbs=verbs, lives=2, late=WAITS_MAX * number, settings=settings)
    collector(world, "a", rounds=6)


def usurpers(world: World) -> None:
    """Many openings one upon another, each with a few writes that a collector follows closely."""
    begin(world, "a")
    for number in range(5):
        verbs = {"put": 4, "flush memtable": 3, "compact": 1}
        writer(world, "a", f"writer {number}", verbs=verbs, count=3, late=WAITS_MAX * number)
    collector(world, "a", rounds=6)
    collector(world, "a", rounds=6, name="collector 2")


def hasty(world: World) -> None:
    """Writers that wait for nothing: their memtables fill before the log has what is in them."""
    settings = options(l0_sst_bytes=500)
    verbs = {"soft put": 8, "soft batch": 2, "flush_once": 4, "flush": 1, "get": 1, "scan": 1}
    writer(world, "a", "writer 1", verbs=verbs, count=16, lives=3, settings=settings)
    writer(world, "a", "writer 2", verbs=verbs, count=10, late=600, settings=settings)
    collector(world, "a", rounds=3)


def hot(world: World) -> None:
    """Threads that read few keys again and again while another one writes and flushes them."""
    world.keys = world.keys[:2]
    begin(world, "a")
    reading = {"get": 6, "get_many": 1, "put": 1}
    writing = {"put": 3, "soft put": 2, "delete": 1, "flush memtable": 4, "flush_once": 2, "compact": 1}
    crew(world, "a", "crew", threads=(reading, reading, writing), count=10, settings=options(cache_bytes=0))


def rivals(world: World) -> None:
    """Whoever opens the database asks what is there for sure, and replaces just that."""
    world.keys = world.keys[:1]
    begin(world, "a", rounds=1)
    for number in range(4):
        verbs = {"surely": 5, "put": 2, "set_if": 3}
        writer(world, "a", f"writer {number}", verbs=verbs, count=6, late=WAITS_MAX * number)


def threads(world: World) -> None:
    """Threads share a database object; another process takes it over, perhaps."""
    mixes = (
        {"put": 4, "batch": 2, "transaction": 3, "set_if": 2, "get": 2, "delete": 1},
        {"put": 2, "soft put": 2, "serializable": 4, "scan": 1, "snapshot": 2, "set_if": 2},
        {"flush memtable": 3, "flush_once": 2, "compact": 2, "compact fully": 1, "get": 3, "surely": 2, "get_many": 2},
    )
    crew(world, "a", "crew", threads=mixes)
    if world.rng.random() < 0.5:
        writer(world, "a", "usurper", verbs={"put": 3, "set_if": 2, "surely": 2}, count=4)
    if world.rng.random() < 0.5:
        collector(world, "a", rounds=2)


def readers(world: World) -> None:
    """Readers of every kind, with a writer and a collector."""
    begin(world, "a")
    writer(world, "a", "writer", verbs={**WRITING, **COMPACTING}, count=10)
    reader(world, "a", "own")
    reader(world, "a", "fixed", fixed=True)
    if world.rng.random() < 0.5:
        reader(world, "a", "latest", follow_latest=True)
    collector(world, "a")


def scans(world: World) -> None:
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


def checkpoints(world: World) -> None:
    """Checkpoints made, prolonged, deleted and expiring, beside a writer and collectors."""
    begin(world, "a")
    verbs = {"put": 4, "soft put": 2, "flush memtable": 3, "compact fully": 2, "checkpoint": 2, "sleep": 1}
    writer(world, "a", "writer", verbs=verbs, count=8)
    checkpointer(world, "a", "checkpointer 1")
    checkpointer(world, "a", "checkpointer 2")
    collector(world, "a", rounds=5)


def compactors(world: World) -> None:
    """Two separate compactors, a writer that does not compact, and a collector."""
    settings = options(compaction=False)
    begin(world, "a", settings=settings)
    writer(world, "a", "writer", verbs={**WRITING, **READING, "poll": 3}, count=10, settings=settings)
    compactor(world, "a", "compactor 1", lives=2)
    compactor(world, "a", "compactor 2")
    collector(world, "a", rounds=5)


def clones(world: World) -> None:
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


def lineages(world: World) -> None:
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


def generations(world: World) -> None:
    """Three generations made in peace; then everybody compacts, is collected, or is destroyed."""
    begin(world, "a")
    for parent, target in (("a", "b"), ("b", "c")):
        world.clones[target, None] = CloneAsked(parent, len(world.known(parent).line.events), None, is_made=True)
        world.admin(target).create_clone(world.url(parent))
        if world.rng.random() < 0.5:
            checkpoint = world.admin(target).create_checkpoint()
            world.promise(target, checkpoint.id)
    for folder in ("a", "b", "c"):
        if world.rng.random() < 0.7:
            verbs = {"put": 2, "compact fully": 4, "scan": 1}
            writer(world, folder, f"writer {folder}", verbs=verbs, count=4, create=False)
        collector(world, folder, rounds=5, name=f"collector {folder}")
    if world.rng.random() < 0.6:
        folder = world.rng.choice(("b", "b", "c", "a"))
        destroyer(world, folder, "destroyer", soft=world.rng.random() < 0.6, lives=2)


def vandalism(world: World) -> None:
    """A pinned version is gone, and collections keep all that it may have needed."""
    begin(world, "a", rounds=3)
    writer(world, "a", "writer", verbs={"put": 2, "flush memtable": 3, "compact fully": 3, "checkpoint": 2}, count=8)
    vandal(world, "a")
    collector(world, "a", rounds=6)


def restores(world: World) -> None:
    """Restores beside writers, checkpointers and a collector."""
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


def destructions(world: World) -> None:
    """Databases destroyed under their writers, clones and collectors, and perhaps made anew."""
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


def logless(world: World) -> None:
    """Without a log: a write is durable when its memtable is in a file."""
    settings = options(wal_enabled=False)
    verbs = {"put": 2, "soft put": 5, "soft batch": 2, "flush memtable": 3, "compact": 1, "get": 2, "scan": 1}
    writer(world, "a", "writer 1", verbs=verbs, settings=settings, lives=2)
    writer(world, "a", "writer 2", verbs=verbs, settings=settings)
    collector(world, "a")


def endings(world: World) -> None:
    """Values that end by themselves and operands, through flushes and compactions of every depth."""
    world.has_ttl = True
    settings = options(merge_operator="append")
    verbs = {
        "put": 2,
        "ttl": 5,
        "merge": 4,
        "sleep": 3,
        "flush memtable": 4,
        "compact": 4,
        "compact fully": 1,
        "get": 2,
    }
    writer(world, "a", "writer 1", verbs={**verbs, "scan": 1}, count=14, settings=settings)
    writer(world, "a", "writer 2", verbs=verbs, count=8, settings=settings)
    if world.rng.random() < 0.5:
        compactor(world, "a", "compactor")
    collector(world, "a", rounds=3)


def power(world: World) -> None:
    """The power goes for everybody; whoever comes then finds what was durable."""
    takeovers(world)
    checkpointer(world, "a", "checkpointer")
    world.power_lost_at = world.rng.randrange(50, 900)

    def revive() -> None:
        writer(world, "a", "survivor", verbs={**WRITING, **READING})
        collector(world, "a", name="late collector")

    world.revive = revive


SCENES: Final[dict[str, Scene]] = {
    scene.__name__: scene
    for scene in (
        takeovers,
        usurpers,
        hasty,
        hot,
        rivals,
        threads,
        readers,
        scans,
        checkpoints,
        compactors,
        clones,
        lineages,
        generations,
        vandalism,
        restores,
        destructions,
        logless,
        endings,
        power,
    )
}

STORMY: Final = FaultRates(
    error_before=0.015, lost_request=0.01, lost_reply=0.015, late=0.012, crash=0.01, pause=0.08, pause_steps_max=400
)
CALM: Final = FaultRates(pause=0.05, pause_steps_max=300)


def play(seed: int, *, scene: str | None = None) -> World:
    """Run one scene: the named one, or the one whose turn it is.

    Raises:
        Violation: a promise was broken.
    """
    names = list(SCENES)
    weather = (FAULTS, CALM, STORMY)[seed // len(names) % 3] if scene is None else (FAULTS, CALM, STORMY)[seed % 3]
    world = World(seed, faults=weather)
    SCENES[scene or names[seed % len(names)]](world)
    return world.run()
