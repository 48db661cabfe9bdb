"""A simulated world of databases: processes that come and go, what they were told, and the judgement at the end.

Owns: `World`: scheduler, witnessed store, places and processes; what was promised to whom; and the checks at rest. The
handles through which actors use databases are in `worlds.kv.handles`.

Invariants: what the world does on its own (set-up and the checks at rest) meets no fault; a run ends at the first
violation; the cyclic garbage collector stands still during a run, so that the same seed is the same run.
"""

from __future__ import annotations

import gc
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Fenced,
    InvalidRequest,
    LakebedError,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.model import Checkpoint
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing.power_loss import PowerLossStore
from lakebed.testing.scheduled_store import FaultRates
from lakebed.testing.scheduler import Scheduler
from lakebed.testing.simulated_runtime import SimulatedClock
from worlds.kv.model import Violation, Write, visible
from worlds.kv.monitor import Witness, Witnessed

__all__ = ["EXPECTED", "FAULTS", "Promise", "World", "options"]

EXPECTED: Final = (AlreadyExists, Closed, Conflict, Fenced, InvalidRequest, OutcomeUnknown, Unavailable)
"""Errors that are part of an actor's life; all else is a finding."""

FAULTS: Final = FaultRates(
    error_before=0.004, lost_request=0.004, lost_reply=0.006, late=0.004, crash=0.004, pause=0.03, pause_steps_max=250
)

STEPS_MAX: Final = 150_000
_LATER: Final = timedelta(days=30)
"""After every lifetime that nobody asked to last."""
_VARIABLE: Final = re.compile(r"[0-9A-Z]{20,}|[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
_worlds = itertools.count()


def options(**changes: object) -> DatabaseOptions:
    """Settings that make everything small, so that little happens between two changes."""
    small: dict[str, object] = {
        "background": False,
        "l0_compaction_count": 2,
        "run_compaction_count": 2,
        "run_file_bytes": 400,
        "block_bytes": 100,
        "cache_bytes": 1 << 16,
        "row_cache_bytes": 1 << 12,
    }
    return DatabaseOptions(**(small | changes))  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class Promise:
    """A checkpoint that somebody was told is made, and that nobody was asked to delete."""

    folder: str
    id: str
    index: int
    """Count of events that its version holds."""
    expires_at_ms: int | None


@dataclass(eq=False, slots=True)
class CloneAsked:
    """A clone that somebody wants."""

    parent: str
    floor: int
    """Count of the parent's events when it was asked for first."""
    index: int | None
    """Of the checkpoint that it is to start from; None: the latest."""
    is_made: bool = False


class World:
    """One simulation of databases that share a store.

    Args:
        seed: decides everything.
        faults: of every store call of an actor.
    """

    def __init__(self, seed: int, *, faults: FaultRates = FAULTS) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.faults = faults
        self.scheduler = Scheduler(seed, faults=faults)
        self.environment = self.scheduler.environment()
        self.counts: Counter[str] = Counter()
        self.writes: dict[int, Write] = {}
        self.promises: dict[str, Promise] = {}
        self.clones: dict[tuple[str, str | None], CloneAsked] = {}
        self.keys = [b"k%d" % number for number in range(5)]
        """What scenes write and read."""
        self.has_ttl = False
        self.power_lost_at: int | None = None
        """The step at which the power goes, once."""
        self.revive: Callable[[], None] = lambda: None
        """Spawns who comes when the power is back."""
        self._ticks = itertools.count(1)
        # The store's own locks are the machine's: what happens inside it is one step.
        quiet = Environment(clock=SimulatedClock(self.scheduler), rng=random.Random(seed))
        self.memory = open_store(f"memory://kv-{next(_worlds)}", environment=quiet)
        self.power = PowerLossStore(self.memory)
        self.witness = Witness(
            self.power, now_ms=quiet.clock.now_ms, writes=self.writes, tick=lambda: next(self._ticks)
        )
        self.store = self.scheduler.store(self.witness)

    def change_weather(self, faults: FaultRates) -> None:
        """Other faults for every place asked for from now on."""
        self.faults = faults
        self.store = self.scheduler.store(self.witness, faults=faults)

    # ---- places and time

    def place(self, folder: str) -> DatabaseLocation:
        """A database's place, as a process of its own sees it."""
        return DatabaseLocation(self.store.sub(folder), self.environment, self._open_url)

    def _open_url(self, url: str) -> ObjectStore:
        return self.store.sub(url.removeprefix(self.memory.root_url).strip("/"))

    def url(self, folder: str) -> str:
        """A database's URL."""
        return f"{self.memory.root_url}/{folder}"

    def known(self, folder: str) -> Witnessed:
        """What the witness knows of a database."""
        return self.witness.database(folder)

    def now_ms(self) -> int:
        """The simulation's time."""
        return self.environment.clock.now_ms()

    def tick(self) -> int:
        """The next moment."""
        return next(self._ticks)

    def admin(self, folder: str) -> DatabaseAdmin:
        """The verbs that need no open database."""
        return DatabaseAdmin(self.place(folder))

    def vandalise(self, folder: str, manifest_id: int) -> None:
        """Take a version's manifest away, behind the witness's back: nobody is to blame for what it loses."""
        known = self.known(folder)
        path = known.path("manifest", f"{manifest_id:020d}")
        known.vandalised.add(manifest_id)
        self.memory.delete([path])
        self.witness.paths.discard(path)
        self.counts["vandalised"] += 1

    def promise(self, folder: str, checkpoint_id: str) -> Promise:
        """Somebody was told that a checkpoint is made: from now on it holds."""
        known = self.known(folder)
        manifest = known.manifest
        checkpoint = None if manifest is None else manifest.checkpoint(checkpoint_id)
        if checkpoint is None:
            # It may have expired and been dropped before its maker heard of it.
            made = next(
                (found for one in known.manifests.values() if (found := one.checkpoint(checkpoint_id)) is not None),
                None,
            )
            if made is None or made.is_live(self.now_ms()):
                raise Violation(f"checkpoint {checkpoint_id} of {folder} was acknowledged, and is not there")
            checkpoint = made
        promise = Promise(folder, checkpoint.id, known.contents[checkpoint.manifest_id], checkpoint.expires_at_ms)
        self.promises[checkpoint.id] = promise
        self.counts["checkpoints"] += 1
        return promise

    # ---- processes

    def process(self, name: str, life: Callable[[random.Random], None], *, lives: int = 1) -> None:
        """A process, started again after each crash until it has had its lives."""

        def live(number: int) -> Callable[[], None]:
            rng = random.Random(f"{name} {number} {self.seed}")
            return lambda: life(rng)

        def watch() -> None:
            for number in range(lives):
                actor = self.scheduler.spawn(f"{name}.{number}", live(number), process=f"{name}.{number}")
                self.scheduler.wait_until(lambda actor=actor: actor.is_done, label="watch")  # type: ignore[misc]
                if not actor.is_crashed:
                    return
                self.counts["crashes"] += 1

        if lives == 1:
            self.scheduler.spawn(name, live(0), process=name)
        else:
            self.scheduler.spawn(f"watch {name}", watch, process=f"watch {name}")

    def expecting(self, call: Callable[[], object], *more: type[LakebedError]) -> bool:
        """Call; an error that is part of life is counted. Returns whether there was none."""
        try:
            call()
        except LakebedError as error:
            self.met(error, *more)
            return False
        return True

    def met(self, error: LakebedError, *more: type[LakebedError]) -> None:
        """Count an error that is part of life; raise any other."""
        if not isinstance(error, (*EXPECTED, *more)):
            raise error
        self.counts[f"error {error.kind}"] += 1

    # ---- running

    def run(self) -> Self:
        """Run every process to its end, then judge. Raises `Violation` and what else an actor should not have met."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            self._run_actors()
            self._raise_found()
            self.check_at_rest()
            self._raise_found()
        except LakebedError as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        finally:
            if enabled:
                gc.enable()
            self.counts["crashed actors"] += sum(actor.is_crashed for actor in self.scheduler.actors)
            self.memory.delete([meta.path for meta in self.memory.list()])
        return self

    def _run_actors(self) -> None:
        scheduler = self.scheduler
        while scheduler.step_once():
            if self.witness.violations:
                return
            if scheduler.step_count > STEPS_MAX:
                raise Violation(f"more than {STEPS_MAX} steps: somebody loops")
            if self.power_lost_at is not None and scheduler.step_count >= self.power_lost_at:
                self._lose_power()
        for actor in scheduler.actors:
            if actor.error is not None:
                raise Violation(f"{actor.name}: {type(actor.error).__name__}: {actor.error}") from actor.error

    def _lose_power(self) -> None:
        """Every process is gone at once, and what was not durable is lost or cut short."""
        self.power_lost_at = None
        self.scheduler.crash_all()
        while self.scheduler.step_once():
            continue
        lost = self.power.power_loss(self.rng)
        self.counts["power losses"] += 1
        self.witness.lost(lost)
        self.revive()

    def _raise_found(self) -> None:
        if self.witness.violations:
            raise self.witness.violations[0]

    def pairs(self) -> set[tuple[str, str]]:
        """Pairs of neighbouring switching points of two actors, without what differs from run to run."""
        return {(_VARIABLE.sub("#", left), _VARIABLE.sub("#", right)) for left, right in self.scheduler.pairs}

    # ---- judging

    def check_at_rest(self) -> None:
        """Everything promised can be read, nothing more than that is left after a collection."""
        for folder in list(self.witness.databases):
            self.known(folder).line.check_all(list(self.writes.values()))
        for promise in list(self.promises.values()):
            self._check_promise(promise)
        self._check_pins()
        # In a later millisecond, so that what is written from now on is newer than any file that was left unpublished.
        self.environment.clock.sleep(0.002)
        for folder in sorted(self.witness.databases):
            self._check_reopened(folder)
        self._check_clones()
        self._check_collected()

    def _check_promise(self, promise: Promise) -> None:
        known = self.known(promise.folder)
        manifest = known.manifest
        now_ms = self.now_ms()
        if manifest is None or (promise.expires_at_ms is not None and promise.expires_at_ms <= now_ms):
            return
        checkpoint = manifest.checkpoint(promise.id)
        if checkpoint is None:
            raise Violation(f"checkpoint {promise.id} of {promise.folder} was promised, and is gone")
        if known.is_destroyed or checkpoint.manifest_id in known.vandalised:
            return
        content = self.read_fixed(promise.folder, promise.id)
        expected = visible(known.line.states[promise.index], now_ms)
        if content != expected:
            raise Violation(f"checkpoint {promise.id} of {promise.folder} holds {content} instead of {expected}")
        self.counts["promised checkpoints read"] += 1

    def read_fixed(self, folder: str, checkpoint: str) -> dict[bytes, bytes]:
        """All that a checkpoint holds."""
        with DatabaseReader.open(self.place(folder), checkpoint=checkpoint, options=reader_options()) as reader:
            return dict(reader.scan())

    def _check_reopened(self, folder: str) -> None:
        """Whoever opens it now finds exactly what became durable, and can write."""
        known = self.known(folder)
        if known.manifest is None or known.is_destroyed or not known.manifest.initialized:
            return
        settings = options(wal_enabled=known.manifest.wal_enabled, merge_operator=known.manifest.merge_operator)
        with Database.open(self.place(folder), options=settings, create=False, take_over=True) as database:
            content, expected = dict(database.scan()), visible(known.line.state, self.now_ms())
            if content != expected:
                raise Violation(f"{folder} opened anew holds {content} instead of {expected}")
            for key in {change.key for write in self.writes.values() for change in write.changes}:
                if database.get(key) != expected.get(key):
                    raise Violation(f"{folder} opened anew has {database.get(key)!r} under {key!r}")
            database.compact(full=True)
            if dict(database.scan(reverse=True)) != visible(known.line.state, self.now_ms()):
                raise Violation(f"{folder} was changed by its compaction")
        self.counts["databases reopened"] += 1

    def _check_clones(self) -> None:
        for (folder, source), asked in self.clones.items():
            known = self.known(folder)
            if not asked.is_made or known.initial is None:
                continue
            parent = self.known(asked.parent).line
            states = parent.states[asked.floor :] if asked.index is None else [parent.states[asked.index]]
            if known.line.states[known.initial] not in states:
                began = known.line.states[known.initial]
                raise Violation(
                    f"clone {folder} of {source or 'the latest'} began as {began}, not as {asked.parent} was"
                )
            self.counts["clones judged"] += 1

    def _check_pins(self) -> None:
        """A clone's pin is named by the clone; others were given up, or end by themselves when their maker crashed."""
        is_calm = not (self.faults.crash or self.faults.lost_reply or self.faults.error_before)
        for folder, known in self.witness.databases.items():
            for checkpoint in known.manifest.checkpoints if known.manifest is not None else ():
                if checkpoint.owner.kind != "clone" or checkpoint.owner.url is None:
                    continue
                if checkpoint.expires_at_ms is not None and not is_calm:
                    continue
                found = self._clone_of(checkpoint)
                clone = None if found is None else found.manifest
                if clone is None or checkpoint.id not in {one.pin for one in clone.external_databases}:
                    raise Violation(f"{checkpoint.owner} does not know of its pin {checkpoint.id} in {folder}")

    def _clone_of(self, checkpoint: Checkpoint) -> Witnessed | None:
        """The database on whose behalf a pin is held."""
        url = checkpoint.owner.url
        return None if url is None else self.witness.databases.get(url.removeprefix(self.memory.root_url).strip("/"))

    def _check_collected(self) -> None:
        """After every temporary pin has ended and collections have run, nothing is left that nothing needs."""
        self.environment.clock.sleep(_LATER.total_seconds())
        folders = [folder for folder, known in sorted(self.witness.databases.items()) if known.manifest is not None]
        settings = CollectorOptions(min_age=timedelta(0), db_delete_grace=timedelta(0))
        for folder in folders:
            if self.known(folder).is_destroyed or self.known(folder).vandalised:
                self._let_go(folder)
        for _ in range(3):  # a clone that lets go of its ancestor frees files for the round after
            for folder in folders:
                report = self.admin(folder).collect_garbage(options=settings)
                self.counts["collected"] += report.deleted_count
        for known in self.witness.databases.values():
            for checkpoint in known.manifest.checkpoints if known.manifest is not None else ():
                clone = self._clone_of(checkpoint)
                if clone is not None and clone.is_destroyed and not clone.is_waiting:
                    raise Violation(f"{checkpoint.owner} was destroyed, and its pin in {known.folder} stays for ever")
        waiting = tuple(f"{one.folder}/" for one in self.witness.databases.values() if one.is_waiting)
        strays = {path for path in self.witness.strays() if not path.startswith(waiting)}
        if strays:
            raise Violation(f"after all collections {sorted(strays)[:5]} are left, and nothing needs them")

    def _let_go(self, folder: str) -> None:
        """Delete what users hold of a destroyed or damaged database; only clones keep anything of it then."""
        manifest = self.known(folder).manifest
        for checkpoint in manifest.checkpoints if manifest is not None else ():
            if checkpoint.owner.kind == "user":
                self.admin(folder).delete_checkpoint(checkpoint.id)


def reader_options(**changes: object) -> ReaderOptions:
    """Readers that are polled by hand and hold little in one table."""
    return ReaderOptions(**({"background": False, "max_memtable_bytes": 200, "cache_bytes": 1 << 16} | changes))  # type: ignore[arg-type]
