"""A writer that stalls at every store call, rivals that open, write, flush and collect meanwhile; and two at once.

The promises, whatever the order and the faults: what was acknowledged stays readable, with its value; a writer that
lost its database learns `Fenced` and nothing else; no manifest number has two winners. Each repair is undone in turn,
and has to be missed.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest

from lakebed.errors import Conflict, Fenced, LakebedError, OutcomeUnknown, Unavailable
from lakebed.kv import claim as claim_module
from lakebed.kv.claim import Claim, claim_writer
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import manifest_path, sst_path, wal_path
from lakebed.kv.lease import Process
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.recovery import replay
from lakebed.kv.wal import WalLog
from lakebed.kv.wal_record import WalRecord
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import FileMeta
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import Call, FaultRates, ManualClock, Scheduler, StoreWrapper, seed_count
from lakebed.testing.faulty import lost

PROCESS = Process("here", 7, None, None, lambda pid: True)
LARGE = 1 << 30
SEEDS = seed_count(100)
MUTATION_SEEDS_MAX = 200
FAULTS = FaultRates(
    error_before=0.01, lost_request=0.02, lost_reply=0.04, late=0.03, crash=0.004, pause=0.08, pause_steps_max=300
)


@dataclass
class World:
    """What happened, as an outside observer knows it."""

    inner: Any
    acknowledged: dict[bytes, bytes] = field(default_factory=dict)
    manifests: dict[int, str] = field(default_factory=dict)
    """Write id of each manifest whose author learned that it won."""
    violations: list[str] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)

    def won(self, manifest: Manifest) -> Manifest:
        """Note a manifest that its author believes to have appended."""
        if self.manifests.setdefault(manifest.manifest_id, manifest.write_id) != manifest.write_id:
            self.violations.append(f"manifest {manifest.manifest_id} was won twice")
        return manifest


class Writer:
    """The smallest database: rows in the log and in files of JSON, on the parts under test."""

    def __init__(self, world: World, name: str, place: DatabaseLocation) -> None:
        self.world, self.name, self.place = world, name, place
        self.claim: Claim | None = None
        self.fenced = False
        self.ended = False
        self.unflushed: dict[bytes, bytes] = {}
        self.last_id = self.sequence = self.count = 0
        world.writers.append(self)

    def step(self, *verbs: str) -> None:
        """Do some verbs, until an error says that another process owns the database."""
        for verb in verbs:
            if self.fenced or (self.ended and verb != "open"):
                return
            try:
                getattr(self, verb)()
            except Fenced:
                self.fenced = True
            except Conflict as error:
                self.world.violations.append(f"{self.name} {verb}: {error}")
                self.fenced = True
            self.world.met[f"{verb} {'fenced' if self.fenced else 'done'}"] += 1

    def open(self) -> None:
        """Claim and replay."""
        self.claim = claim = claim_writer(self.place, take_over=True, process=PROCESS)
        self.ended = False
        self.world.won(claim.manifest)
        tables = replay(self.place, claim.manifest, through=claim.fence_id, table_bytes_max=LARGE, epoch=claim.epoch)
        self.unflushed = {
            key: value or b"" for table in tables for key, value in zip(table.keys, table.values, strict=False)
        }
        self.last_id = claim.fence_id
        self.sequence = tables[-1].last_sequence if tables else claim.manifest.last_sequence

    def put(self) -> None:
        """One durable row."""
        assert self.claim is not None
        self.count += 1
        key, value = f"{self.name}-{self.count}".encode(), str(self.claim.epoch).encode()
        rows = Memtable(self.sequence + 1)
        rows.put(key, value)
        wal, id = WalLog(self.place), self.last_id + 1
        wal.append(id, wal.encode(rows.log(0, 1), id=id, epoch=self.claim.epoch))
        self.world.acknowledged[key] = value
        self.unflushed[key] = value
        self.last_id, self.sequence = id, self.sequence + 1

    def flush(self) -> None:
        """All rows of the log into a file, and the file into the manifest."""
        claim = self.claim
        assert claim is not None
        file_id = mint_file_id(claim.manifest.newest_l0_id, environment=self.place.environment)
        body = json.dumps({key.decode(): value.decode() for key, value in self.unflushed.items()}).encode()
        self.place.store.put(sst_path(file_id), body, create_only=True)
        file = FileMeta(file_id, len(body), 0, len(self.unflushed), b"a", b"z", 1, self.sequence)

        def change(manifest: Manifest) -> Manifest | None:
            if manifest.writer_epoch != claim.epoch:
                raise Fenced("a newer writer's manifest")
            if any(item.id == file_id for item in manifest.l0):
                return None
            return msgspec.structs.replace(
                manifest,
                l0=(file, *manifest.l0),
                replay_after_wal_id=max(manifest.replay_after_wal_id, self.last_id),
                last_sequence=self.sequence,
            )

        self.world.won(claim.log.update(change))
        self.unflushed = {}

    def close(self) -> None:
        """Say in the manifest how far the log goes, and in the lease that nothing more will come."""
        claim = self.claim
        assert claim is not None

        def change(manifest: Manifest) -> Manifest | None:
            if manifest.writer_epoch != claim.epoch:
                return None
            return msgspec.structs.replace(
                manifest,
                wal_id_last_seen=max(manifest.wal_id_last_seen, self.last_id),
                checkpoints=tuple(
                    checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind != "writer"
                ),
            )

        self.ended = True
        claim.log.update(change)
        claim.lease.give_up()

    def collect(self) -> None:
        """Delete what the newest version does not need."""
        collect(self.place)


CARE = {"fences": True, "boundary": True}
"""What the collector below heeds; mutations switch it off."""


def collect(place: DatabaseLocation) -> None:
    """Delete log objects that are in files, but no fences, and manifests behind the boundary."""
    entries, log = WalLog(place).entries(), ManifestLog(place)
    ids, newest = log.ids(), log.latest()
    if CARE["boundary"]:
        log.raise_boundary(newest.manifest_id, manifest=newest)
    place.store.delete(manifest_path(id) for id in ids if id < newest.manifest_id)
    doomed = [entry for entry in entries if entry.id <= newest.replay_after_wal_id]
    place.store.delete(wal_path(target.id) for target in doomed if not (CARE["fences"] and target.is_fence))


def check(world: World, place: DatabaseLocation) -> None:
    """Read everything anew: each acknowledged row is there."""
    latest = ManifestLog(place).find_latest()
    if latest is None and not world.acknowledged:
        return  # its makers crashed
    manifest = ManifestLog(place).latest()
    rows: dict[bytes, bytes] = {}
    try:
        for file in reversed(manifest.l0):
            body = json.loads(bytes(place.store.get(sst_path(file.id))))
            rows.update({key.encode(): value.encode() for key, value in body.items()})
        after = manifest.replay_after_wal_id
        for table in replay(place, manifest, through=WalLog(place).last_id(after), table_bytes_max=LARGE):
            rows.update({key: value or b"" for key, value in zip(table.keys, table.values, strict=False)})
    except LakebedError as error:
        world.violations.append(f"cannot be read: {error}")
    for writer in world.writers:
        if writer.fenced and writer.claim is not None and writer.claim.epoch == manifest.writer_epoch:
            world.violations.append(f"{writer.name} is the owner, and was fenced")
    for key, value in world.acknowledged.items():
        if rows.get(key) != value:
            world.violations.append(f"{key!r} was acknowledged and is {rows.get(key)!r}")


# ---- a writer that stalls at every call


class StallingStore(StoreWrapper):
    """Runs `meanwhile` at one call, before or after its effect, and may lose the reply or land the change late."""

    def __init__(
        self,
        inner: Any,
        *,
        at: int | None,
        mode: str,
        meanwhile: Callable[[], None],
        before_manifest: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.at, self.mode, self.meanwhile, self.before_manifest = at, mode, meanwhile, before_manifest
        self.calls: list[Call] = []
        self.late: list[Callable[[], Any]] = []
        self.stalled_at: Call | None = None

    def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
        """Make the call, or stall."""
        for land in self.late:
            quietly(land)
        self.late.clear()
        index = len(self.calls)
        self.calls.append(call)
        if self.before_manifest is not None and call.create_only and call.path.startswith("manifest/"):
            run, self.before_manifest = self.before_manifest, None
            run()
        if index != self.at:
            return perform()
        self.stalled_at = call
        if self.mode == "before":
            self.meanwhile()
            return perform()
        if self.mode == "after":
            try:
                return perform()
            finally:
                self.meanwhile()
        if self.mode == "late":
            self.late.append(perform)
        elif self.mode == "lost reply":
            quietly(perform)
        self.meanwhile()
        raise lost(call)


def quietly(perform: Callable[[], Any]) -> None:
    """Make a change whose answer is dropped."""
    try:
        perform()
    except LakebedError:
        return


VICTIM = ("open", "put", "put", "flush", "put", "collect", "put")
MODES = ("before", "lost request", "lost reply", "late")


def usurped(world: World, old: Writer, rival: Writer) -> None:
    """The old writer continues for a while, then another takes over, flushes and collects."""
    old.step("put", "put", "put")
    rival.step("open", "put", "flush", "collect", "put")


def outlived(world: World, old: Writer, rival: Writer) -> None:
    """The old writer continues, flushes and collects, alone."""
    old.step("put", "put", "put", "flush", "collect", "put")


def usurped_twice(world: World, old: Writer, rival: Writer) -> None:
    """Two others come, one after another, each of them thorough."""
    rival.step("open", "put", "put", "flush", "collect")
    last = Writer(world, "last", rival.place)
    last.step("open", "put", "flush", "collect", "put", "put", "flush", "collect", "put")


def succeeded(world: World, old: Writer, rival: Writer) -> None:
    """Two others come; the first one closes, so that the second makes no fence, and collects."""
    rival.step("open", "put", "flush", "collect", "put", "close")
    last = Writer(world, "last", rival.place)
    last.step("open", "put", "put", "flush", "collect", "put", "close")
    heir = Writer(world, "heir", rival.place)
    heir.step("open", "put")


def inherited(world: World, old: Writer, rival: Writer) -> None:
    """Another comes, has its rows collected, and closes."""
    rival.step("open", "put", "put", "put", "put", "put", "put", "flush", "collect", "close")


Scene = Callable[[World, Writer, Writer], None]
SETTLED, UNFLUSHED, OVERTAKING, CLOSED = "settled", "unflushed", "overtaking", "closed"
SCENES: tuple[tuple[Scene, str], ...] = tuple(
    (scene, before)
    for scene, befores in (
        (inherited, (CLOSED,)),
        (succeeded, (CLOSED,)),
        (usurped, (SETTLED, UNFLUSHED, OVERTAKING, CLOSED)),
        (outlived, (SETTLED, UNFLUSHED, OVERTAKING)),
        (usurped_twice, (SETTLED, UNFLUSHED, OVERTAKING)),
    )
    for before in befores
)
"""What comes meanwhile; and before it: nothing is in the log, or some rows are, or the old writer flushes and is
collected while the victim is about to raise the epoch, or it has closed the database with rows in the log."""


def played(scene: Scene, before: str, *, at: int | None = None, mode: str = "before") -> tuple[World, StallingStore]:
    """One run: an old writer, a victim that stalls at a call, and those that come meanwhile."""
    inner = open_store(f"memory://{uuid.uuid4().hex}/db")
    world, clock = World(inner), ManualClock()
    seeds = itertools.count(1)

    def place(store: Any) -> DatabaseLocation:
        return DatabaseLocation(store, Environment(clock=clock, rng=random.Random(next(seeds))), open_store)

    old, rival = Writer(world, "old", place(inner)), Writer(world, "rival", place(inner))
    old.step("open", "put", "flush", *(("put", "put") if before in (UNFLUSHED, CLOSED) else ()))
    old.step(*(("close",) if before == CLOSED else ()))

    store = StallingStore(
        inner,
        at=at,
        mode=mode,
        meanwhile=lambda: scene(world, old, rival),
        before_manifest=(lambda: outlived(world, old, rival)) if before == OVERTAKING else None,
    )
    victim = Writer(world, "victim", place(store))
    for verb in VICTIM:
        try:
            victim.step(verb)
        except (Unavailable, OutcomeUnknown):
            # A reply was lost where nothing was promised. A real writer tries the same bytes again or ends: so it ends.
            world.met["unclear"] += 1
            break
    for land in store.late:
        quietly(land)
    scripted, store.at = len(store.calls), None
    for writer in world.writers:
        if writer.claim is not None and not writer.fenced:
            last = ("put",) if writer is victim else ("put", "flush")  # a flush would save rows that the log lost
            quietly(lambda writer=writer, last=last: writer.step(*last))  # type: ignore[misc]
    del store.calls[scripted:]
    check(world, place(inner))
    writers = [
        writer for writer in world.writers if writer.claim is not None and not writer.fenced and not writer.ended
    ]
    if len(writers) > 1:
        world.violations.append("two writers believe to own the database")
    return world, store


def runs() -> Iterator[tuple[str, int, str, World, StallingStore]]:
    """Every call of the victim, in every scene and mode; loss only where a call changes something.

    After a call is before the next one: the victim is alone in its process. So only after the last call it stalls anew.
    The kinds of loss take turns; in a long run each call meets all.
    """
    for scene, before in SCENES:
        _, trace = played(scene, before)
        for at, call in enumerate(trace.calls):
            after = ("after",) if at == len(trace.calls) - 1 else ()
            losses = MODES[1:] if seed_count(1) > 1 else (MODES[1 + at % 3],)
            for mode in ("before", *losses, *after) if call.changes else ("before", *after):
                world, store = played(scene, before, at=at, mode=mode)
                yield f"{scene.__name__} {before}", at, mode, world, store


def test_a_writer_stalled_at_every_call_loses_nothing() -> None:
    """Before, between and after calls, with lost and late replies: every acknowledged write of all is readable."""
    visited: set[tuple[str, int]] = set()
    met: Counter[str] = Counter()
    for name, at, mode, world, store in runs():
        assert not world.violations, f"{name}, {mode} at {at} ({store.stalled_at}): {world.violations}"
        assert store.stalled_at is not None
        visited.add((name, at))
        met += world.met
    asked: set[str] = set()
    for scene, before in SCENES:
        calls = played(scene, before)[1].calls
        assert visited >= {(f"{scene.__name__} {before}", at) for at in range(len(calls))}
        asked |= {f"{call.kind} {call.path.split('/')[0]}" for call in calls}
    assert asked >= {"get lease.json", "list manifest", "list wal", "put manifest", "put wal", "list boundary"}
    for event in ("open fenced", "put fenced", "flush fenced", "open done", "put done", "flush done", "collect done"):
        assert met[event], f"never met: {event}"


def undo_recheck(patch: pytest.MonkeyPatch) -> None:
    """Take the number that was listed before the epoch, though files may cover it since."""
    original = claim_module._fence

    def fence(place: DatabaseLocation, wal: WalLog, claimed: Manifest, *, next_id: int) -> int:
        return original(place, wal, msgspec.structs.replace(claimed, replay_after_wal_id=0), next_id=next_id)

    patch.setattr(claim_module, "_fence", fence)


def undo_look_after_listing_again(patch: pytest.MonkeyPatch) -> None:
    """Put the fence after the last record of the second listing, though it may be a newer owner's."""
    original = claim_module._fence

    def fence(place: DatabaseLocation, wal: WalLog, claimed: Manifest, *, next_id: int) -> int:
        if next_id <= claimed.replay_after_wal_id:
            next_id = wal.last_id(claimed.replay_after_wal_id) + 1
        return original(place, wal, msgspec.structs.replace(claimed, replay_after_wal_id=0), next_id=next_id)

    patch.setattr(claim_module, "_fence", fence)


def undo_second_look(patch: pytest.MonkeyPatch) -> None:
    """Believe the fence without a look at the newest epoch."""

    class Blind(ManifestLog):
        def latest(self) -> Manifest:
            return self.seen or super().latest()

    patch.setattr(claim_module, "ManifestLog", Blind)


def undo_fence(patch: pytest.MonkeyPatch) -> None:
    """Create no fence."""
    patch.setattr(claim_module, "_fence", lambda place, wal, claimed, *, next_id: next_id - 1)


def undo_kept_fences(patch: pytest.MonkeyPatch) -> None:
    """Collect fences with the rest."""
    patch.setitem(CARE, "fences", False)


def undo_boundary(patch: pytest.MonkeyPatch) -> None:
    """Delete manifests without raising the boundary first."""
    patch.setitem(CARE, "boundary", False)


def undo_epoch_of_takers(patch: pytest.MonkeyPatch) -> None:
    """Take the next number although another, also a newer writer, holds this one."""
    original = WalLog.fence

    def fence(self: WalLog, id: int, epoch: int) -> WalRecord | None:
        present = original(self, id, epoch)
        if present is None:
            return None
        return WalRecord(present.id, present.write_id, 0, present.first_sequence, present.rows)

    def append(self: WalLog, id: int, body: bytes) -> None:
        while True:
            try:
                return originally(self, id, body)
            except Fenced:
                return None

    originally = WalLog.append
    patch.setattr(WalLog, "fence", fence)
    patch.setattr(WalLog, "append", append)


def undo_whose_end_it_is(patch: pytest.MonkeyPatch) -> None:
    """Make no fence when the lease says that a writer ended, though another one came after it."""
    original = claim_module.check_not_owned

    def look(*args: Any, **facts: Any) -> Any:
        present = original(*args, **facts)
        if present.ended_epoch is None:
            return present
        newest = ManifestLog(args[0]).latest().writer_epoch
        return present._replace(ended_epoch=newest)

    patch.setattr(claim_module, "check_not_owned", look)


def undo_what_the_manifest_covers(patch: pytest.MonkeyPatch) -> None:
    """After a writer that ended begin where the listing ends, though the manifest knows of more."""
    patch.setattr(claim_module, "_end_of_log", lambda claimed, last_wal_id: last_wal_id)


REPAIRS = (
    undo_fence,
    undo_kept_fences,
    undo_whose_end_it_is,
    undo_what_the_manifest_covers,
    undo_recheck,
    undo_look_after_listing_again,
    undo_second_look,
    undo_boundary,
    undo_epoch_of_takers,
)


@pytest.mark.parametrize("undo", REPAIRS, ids=lambda undo: undo.__name__.removeprefix("undo_"))
def test_each_repair_is_missed(undo: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone, something acknowledged is lost, or two own what one may own."""
    undo(monkeypatch)
    match = next((entry for entry in runs() if entry[3].violations), None)
    assert match is not None, "nothing was found"


# ---- two usurpers at once, in any order


def simulated(seed: int, *, is_new: bool = False) -> World:
    """An old writer, two usurpers and a collector, with lost and late replies, crashes and stalls.

    With `is_new` there is no old writer and no database: both make one.
    """
    scheduler = Scheduler(seed, faults=FAULTS)
    inner = open_store(f"memory://{uuid.uuid4().hex}/db")
    world = World(inner)
    calm = DatabaseLocation(inner, Environment(clock=ManualClock(), rng=random.Random(seed)), open_store)
    founder = Writer(world, "founder", calm)
    if not is_new:
        founder.step("open", "put", "flush", "put")
    place = DatabaseLocation(scheduler.store(inner), scheduler.environment(), open_store)

    def act(writer: Writer, verbs: tuple[str, ...]) -> None:
        for verb in verbs:
            try:
                writer.step(verb)
            except (Unavailable, OutcomeUnknown):
                world.met["unclear"] += 1
                if verb in ("open", "put"):  # what is not known is tried again with the same bytes, or not at all
                    return

    if founder.claim is not None:
        old = Writer(world, "old", place)
        old.claim = in_the_simulation(founder.claim, ManifestLog(place))
        old.unflushed, old.last_id, old.sequence = dict(founder.unflushed), founder.last_id, founder.sequence
        scheduler.spawn("old", lambda: act(old, ("put", "put", "flush", "put", "put", "flush", "put")), process="old")
    for name in ("one", "other"):
        usurper = Writer(world, name, place)
        life = ("open", "put", "put", "flush", "collect", "put", "put", "flush", "put", "close")
        verbs = (*life, *life)
        scheduler.spawn(name, partial(act, usurper, verbs), process=name)

    def sweep() -> None:
        for _ in range(4):
            quietly(lambda: collect(place))

    scheduler.spawn("collector", sweep, process="collector")
    scheduler.run()
    check(world, calm)
    return world


def in_the_simulation(claim: Claim, log: ManifestLog) -> Claim:
    """The same claim, in the hands of an actor of the simulation."""
    return Claim(**{name: getattr(claim, name) for name in Claim.__slots__ if name != "log"}, log=log)


def test_usurpers_at_once(tell: Callable[[str], None]) -> None:
    """In any order and with any faults, nothing acknowledged is lost, and each loser is fenced."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = simulated(seed)
        assert not world.violations, f"seed {seed}: {world.violations}"
        met += world.met
    for event in ("open fenced", "put fenced", "flush fenced", "put done", "unclear"):
        assert met[event], f"never met in {SEEDS} seeds: {event}"
    tell(f"claims and fences: {SEEDS} seeds, {met['put done']} writes, {met['put fenced']} of them met a fence")


def test_creators_at_once() -> None:
    """Two make a database at one empty place: they get the same one, and nothing acknowledged in it is lost."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = simulated(seed, is_new=True)
        assert not world.violations, f"seed {seed}: {world.violations}"
        met += world.met
    assert met["put done"]
    assert met["open fenced"] + met["put fenced"]


@pytest.mark.parametrize("undo", REPAIRS[:2], ids=lambda undo: undo.__name__.removeprefix("undo_"))
def test_the_simulation_misses_repairs(
    undo: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    found_at_seed: Callable[[str, str, int], None],
) -> None:
    """Without fences, or with fences collected, some seed loses a write."""
    undo(monkeypatch)
    seed = next((seed for seed in range(MUTATION_SEEDS_MAX) if simulated(seed).violations), None)
    assert seed is not None, "nothing was found"
    found_at_seed("databases' fences", undo.__name__, seed)
