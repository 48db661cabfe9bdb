"""The processes of simulated databases: they write, read, compact, collect, clone, restore and destroy.

Owns: `ACTIONS`, what an owner may be told to do, by name, and one function for each kind of process, which spawns it.
Invariants: every verb that a process calls is noted and judged by a handle or by the world; errors that are part of
life end nothing but that one call.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from lakebed.errors import Fenced, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.compactor import Compactor
from lakebed.kv.model import CheckpointScope
from lakebed.kv.options import CollectorOptions, DatabaseOptions
from worlds.kv.handles import Follower, Owner, ask_checkpoint
from worlds.kv.model import visible
from worlds.kv.world import CloneAsked, DatabaseWorld, options
from worlds.promise import PromiseBroken

OPEN_TRIES_MAX: Final = 4
WAITS_MAX: Final = 60

Action = Callable[[Owner, random.Random], object]


def one(owner: Owner, rng: random.Random) -> bytes:
    """Any key of this world."""
    return rng.choice(owner.world.keys)


def some(owner: Owner, rng: random.Random, count: int) -> list[bytes]:
    """Different keys."""
    return rng.sample(owner.world.keys, min(count, len(owner.world.keys)))


ACTIONS: Final[dict[str, Action]] = {
    "put": lambda owner, rng: owner.put(one(owner, rng)),
    "soft put": lambda owner, rng: owner.put(one(owner, rng), durable=False),
    "delete": lambda owner, rng: owner.delete(one(owner, rng)),
    "batch": lambda owner, rng: owner.batch(some(owner, rng, 3)),
    "soft batch": lambda owner, rng: owner.batch(some(owner, rng, 2), durable=False),
    "set_if": lambda owner, rng: owner.set_if(owner.world.keys[0]),
    "write_if": lambda owner, rng: owner.write_if(some(owner, rng, 3)),
    "transaction": lambda owner, rng: owner.transact(some(owner, rng, 2), some(owner, rng, 1), serializable=False),
    "serializable": lambda owner, rng: owner.transact(some(owner, rng, 2), some(owner, rng, 1), serializable=True),
    "ttl": lambda owner, rng: owner.put(one(owner, rng), ttl=True),
    "merge": lambda owner, rng: owner.merge(rng.choice((b"m0", b"m1"))),
    "get": lambda owner, rng: owner.get(one(owner, rng)),
    "get_many": lambda owner, rng: owner.get_many(some(owner, rng, 3)),
    "surely": lambda owner, rng: owner.get_surely(one(owner, rng)),
    "scan": lambda owner, rng: owner.scan(reverse=rng.random() < 0.4),
    "snapshot": lambda owner, rng: owner.snapshot(some(owner, rng, 2)),
    "snapshot surely": lambda owner, rng: owner.snapshot_surely(some(owner, rng, 2)),
    "flush": lambda owner, rng: owner.flush(),
    "flush memtable": lambda owner, rng: owner.flush(memtable=True),
    "flush_once": lambda owner, rng: owner.database.flush_once(),
    "compact": lambda owner, rng: owner.database.compact_once(),
    "compact fully": lambda owner, rng: owner.database.compact(full=True),
    "poll": lambda owner, rng: owner.database.poll_once(),
    "renew": lambda owner, rng: owner.database.renew_once(),
    "checkpoint": lambda owner, rng: owner.checkpoint(rng.choice((CheckpointScope.ALL, CheckpointScope.DURABLE))),
    "linger": lambda owner, rng: owner.linger(rng.randrange(30)),
    "sleep": lambda owner, rng: owner.world.environment.clock.sleep(rng.random() * 0.05),
}

# ---- actors


def opened(
    world: DatabaseWorld,
    folder: str,
    name: str,
    *,
    settings: DatabaseOptions | None = None,
    after_destroy: bool = False,
    create: bool = True,
) -> Owner | None:
    """An owner that takes over from any other; None when the database cannot be opened."""
    for _ in range(OPEN_TRIES_MAX):
        try:
            return Owner(world, folder, name, settings=settings, after_destroy=after_destroy, create=create)
        except (Unavailable, OutcomeUnknown, Fenced):
            continue
        except LakebedError as error:
            world.met(error, *(() if create else (NotFound,)))
            return None
    return None


def wait_for(world: DatabaseWorld, folder: str, *, times: int = WAITS_MAX) -> None:
    """Give way until there is a database that can be opened, for a while."""
    for _ in range(times):
        if world.known(folder).initial is not None:
            return
        world.scheduler.switch("nothing there yet")


def use(world: DatabaseWorld, owner: Owner, rng: random.Random, verbs: Mapping[str, int], count: int) -> None:
    """Some verbs, one after another, until the owner is fenced."""
    names, weights = list(verbs), list(verbs.values())
    for _ in range(count):
        verb = ACTIONS[rng.choices(names, weights)[0]]
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
    world: DatabaseWorld,
    folder: str,
    name: str,
    *,
    verbs: Mapping[str, int],
    count: int = 8,
    lives: int = 1,
    settings: DatabaseOptions | None = None,
    after_destroy: bool = False,
    late: int = 0,
    create: bool = True,
) -> None:
    """A process that opens a database, uses it, and closes it or forgets to."""
    born = iter(range(lives))

    def live(_life: str, rng: random.Random) -> None:
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
    world: DatabaseWorld,
    folder: str,
    name: str,
    *,
    threads: Sequence[Mapping[str, int]],
    count: int = 6,
    settings: DatabaseOptions | None = None,
) -> None:
    """A process whose threads share one database."""

    def live(_life: str, rng: random.Random) -> None:
        owner = opened(world, folder, name, settings=settings)
        if owner is None:
            return
        for number, verbs in enumerate(threads):
            mine = random.Random(rng.random())
            world.scheduler.spawn(f"{name}/{number}", partial(use, world, owner, mine, verbs, count))

    world.process(name, live)


def collector(world: DatabaseWorld, *folders: str, name: str = "collector", rounds: int = 4, lives: int = 1) -> None:
    """Collections without any minimal age."""
    settings = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))

    def live(_life: str, rng: random.Random) -> None:
        for _ in range(rounds):
            folder = rng.choice(folders)
            wait_for(world, folder)
            world.expecting(partial(collect_once, world, folder, settings), NotFound)

    world.process(name, live, lives=lives)


def collect_once(world: DatabaseWorld, folder: str, settings: CollectorOptions) -> None:
    """One collection, counted."""
    report = world.admin(folder).collect(options=settings)
    world.counts["collected on the way"] += report.deleted_count


def compactor(world: DatabaseWorld, folder: str, name: str, *, rounds: int = 3, lives: int = 1) -> None:
    """A compactor in a process of its own."""

    def live(_life: str, rng: random.Random) -> None:
        wait_for(world, folder)
        works = Compactor(world.place(folder), options=options(run_file_bytes=100))
        for _ in range(rounds):
            if world.expecting(rng.choice((works.compact_once, works.compact_full)), NotFound):
                world.counts["compactions"] += 1

    world.process(name, live, lives=lives)


def checkpointer(world: DatabaseWorld, folder: str, name: str, *, count: int = 5) -> None:
    """Makes checkpoints, prolongs and deletes them, and pins old versions."""

    def once(rng: random.Random) -> None:
        mine = [item for item in world.promises.values() if item.folder == folder]
        draw = rng.random()
        admin = world.admin(folder)
        if draw < 0.4 or not mine:
            ask_checkpoint(world, folder, rng)
        elif draw < 0.5:
            pin_old(world, folder, rng)
        elif draw < 0.68:
            promise = rng.choice(mine)
            del world.promises[promise.id]
            admin.refresh_checkpoint(promise.id, timedelta(milliseconds=rng.choice((20, 100))))
            world.promise(folder, promise.id)
        elif draw < 0.78:
            promise = rng.choice(mine)
            del world.promises[promise.id]
            admin.delete_checkpoint(promise.id)
        elif draw < 0.95:
            world.environment.clock.sleep(rng.random() * 0.08)
        else:
            refuse_unknown(world, folder, rng)

    def live(_life: str, rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(count):
            world.expecting(lambda: once(rng), NotFound)

    world.process(name, live)


def pin_old(world: DatabaseWorld, folder: str, rng: random.Random) -> None:
    """Pin a version that may be going."""
    known = world.known(folder)
    version = rng.randint(max(known.ready_id, known.newest_id - 3), known.newest_id)
    name = f"old-{rng.getrandbits(32)}"
    world.admin(folder).pin(name, version=str(version))
    states = known.history.states
    if states[world.promise(folder, name).index] != states[known.contents[version]]:
        raise PromiseBroken(f"the pin of version {version} of {folder} holds something else")


def refuse_unknown(world: DatabaseWorld, folder: str, rng: random.Random) -> None:
    """A checkpoint that was never made can neither be prolonged nor deleted."""
    unknown = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    admin = world.admin(folder)
    verbs: tuple[Callable[[], object], ...] = (
        partial(admin.refresh_checkpoint, unknown, timedelta(seconds=1)),
        partial(admin.delete_checkpoint, unknown),
    )
    for verb in verbs:
        try:
            verb()
        except InvalidRequest:
            continue
        raise PromiseBroken(f"{folder} has no checkpoint {unknown}, and a verb on it was said to be done")


def meddler(world: DatabaseWorld, folder: str) -> None:
    """Tries to delete what clones and readers hold; without force that is refused."""

    def live(_life: str, rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(6):
            manifest = world.known(folder).manifest
            others = (
                [checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind != "user"]
                if manifest is not None
                else []
            )
            if others:
                world.expecting(partial(world.admin(folder).delete_checkpoint, rng.choice(others).id), NotFound)
            for _ in range(20):
                world.scheduler.switch("look for more")

    world.process("meddler", live)


def corrupter(world: DatabaseWorld, folder: str) -> None:
    """Deletes the manifest that a checkpoint pins, by other means than ours."""

    def live(_life: str, rng: random.Random) -> None:
        wait_for(world, folder)
        for _ in range(rng.randrange(200)):
            world.scheduler.switch("not yet")
        newest = world.known(folder).newest_id
        known = world.known(folder)
        pinned = (
            sorted({checkpoint.manifest_id for checkpoint in known.manifest.checkpoints} - {newest})
            if known.manifest
            else []
        )
        if pinned:
            world.corrupt(folder, rng.choice(pinned))

    world.process("corrupter", live)


def reader(
    world: DatabaseWorld,
    folder: str,
    name: str,
    *,
    count: int = 6,
    fixed: bool = False,
    follow_latest: bool = False,
) -> None:
    """Reads, by gets and long scans, while others write and collect."""

    def live(_life: str, rng: random.Random) -> None:
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
        items: list[Follower] = []
        if world.known(folder).manifest is None:
            return None
        live = [
            promise.id
            for promise in world.promises.values()
            if promise.folder == folder and promise.expires_at_ms is None
        ]
        if fixed and not live:
            return None
        checkpoint = rng.choice(live) if fixed else None
        world.expecting(
            lambda: items.append(Follower(world, folder, name, checkpoint=checkpoint, follow_latest=follow_latest)),
            NotFound,
        )
        return items[0] if items else None

    world.process(name, live)


def cloner(world: DatabaseWorld, parent: str, target: str, name: str, *, fixed: bool = False, lives: int = 1) -> None:
    """Clones a database, now and then with copies of its files; tries again after errors and crashes."""
    items: list[str | None] = []  # a retry asks for the same
    copy = world.rng.random() < 0.2

    def live(_life: str, rng: random.Random) -> None:
        wait_for(world, parent, times=10 * WAITS_MAX)
        for _ in range(3):
            if world.expecting(lambda: once(rng), NotFound):
                return

    def once(rng: random.Random) -> None:
        live = [
            promise for promise in world.promises.values() if promise.folder == parent and promise.expires_at_ms is None
        ]
        if not items:
            items.append(rng.choice(live).id if fixed and live else None)
        source = items[0]
        index = None if source is None else world.monitor.index_of(parent, source)
        if source is not None and index is None:
            return  # another process deleted it
        asked = world.clones.setdefault(
            (target, source), CloneAsked(parent, len(world.known(parent).history.events), index)
        )
        world.admin(target).create_clone(world.url(parent), source, copy=copy)
        asked.is_made = True
        world.counts["clones"] += 1

    world.process(name, live, lives=lives)


def restorer(world: DatabaseWorld, folder: str, name: str, *, count: int = 2, lives: int = 1) -> None:
    """Brings back what a checkpoint holds."""

    def once(rng: random.Random) -> None:
        live = [item for item in world.promises.values() if item.folder == folder and item.expires_at_ms is None]
        if not live:
            world.scheduler.switch("nothing to restore")
            return
        promise = rng.choice(live)
        history = world.known(folder).history
        floor, content = len(history.events), history.states[promise.index]
        announced = (folder, content)
        world.monitor.restoring.append(announced)
        world.admin(folder).restore(promise.id, take_over=True)
        now_ms = world.now_ms()
        if not any(visible(state, now_ms) == visible(content, now_ms) for state in history.states[floor:]):
            raise PromiseBroken(f"{folder} was restored to {promise.id}, and never held {visible(content, now_ms)}")
        world.monitor.restoring.remove(announced)
        world.counts["restores"] += 1

    def live(_life: str, rng: random.Random) -> None:
        for _ in range(count):
            world.expecting(lambda: once(rng), NotFound)

    world.process(name, live, lives=lives)


def destroyer(world: DatabaseWorld, folder: str, name: str, *, soft: bool, lives: int = 1) -> None:
    """Destroys a database, softly or at once."""

    def once() -> None:
        world.admin(folder).destroy(soft=soft, take_over=True)
        known = world.known(folder)
        if all(manifest.destroyed_at_ms is None for manifest in known.manifests.values()):
            raise PromiseBroken(f"{folder} was said to be destroyed, and is not")
        world.counts["destroyed"] += 1

    def live(_life: str, rng: random.Random) -> None:
        for _ in range(2):
            if world.known(folder).manifest is None:
                world.scheduler.switch("nothing to destroy")
            elif world.expecting(once, NotFound):
                return

    world.process(name, live, lives=lives)


def begin(
    world: DatabaseWorld,
    folder: str,
    *,
    settings: DatabaseOptions | None = None,
    rounds: int = 2,
    compact: bool = False,
) -> None:
    """A database with some files and a log, made before any process starts."""
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
