"""A simulated world of one repository: processes that come and go, what they were told, and the judgement at the end.

Owns: `World`: scheduler, clock, witnessed stores and processes; and the checks at rest. What processes do is in
`worlds.repo.actors`, who is there in `worlds.repo.scenarios`.

Invariants: what the world does on its own (set-up and the checks at rest) meets no fault; a run ends at the first
violation; the cyclic garbage collector stands still during a run, so that the same seed is the same run. Time goes on
with every verb, and by days where a scene says so, whoever is asleep meanwhile.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Self

from lakebed.errors import LakebedError
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.repository import check_repository
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.objects.open import open_store
from lakebed.repo import data
from lakebed.repo.collect import collect_garbage
from lakebed.repo.commit import new_commit
from lakebed.repo.committed.store import EMPTY_METARANGE, Committed
from lakebed.repo.context import RepositoryContext, make_context
from lakebed.repo.entry import decode_entry, encode_entry
from lakebed.repo.layout import Keys
from lakebed.repo.model import Branch, Entry, RepositoryRecord
from lakebed.repo.options import CollectionOptions, RangeOptions, RepositoryOptions
from lakebed.repo.records import encode_record, new_token
from lakebed.repo.reflog import trim_reflog
from lakebed.repo.refs import resolve
from lakebed.repo.retention import store_retention
from lakebed.repo.staging.cleanup import clean_once, clean_orphans_once
from lakebed.repo.staging.view import open_view
from lakebed.runtime import Environment
from lakebed.testing.actor_loop import ActorLoop
from lakebed.testing.clock import START_MS
from lakebed.testing.power_loss import PowerLossStore
from lakebed.testing.scheduled_key_value import ScheduledKeyValue
from lakebed.testing.scheduled_store import FaultRates
from lakebed.testing.scheduler import Scheduler
from lakebed.testing.simulated_runtime import SimulatedClock, SimulatedRuntime
from worlds.repo.model import State, Violation, alike, difference, identified, shown
from worlds.repo.monitor import Witness, WitnessedKeyValue, WitnessedStore
from worlds.repo.operations import diff_uncommitted

__all__ = ["FAULTS", "World", "check_body", "options"]

FAULTS: Final = FaultRates(
    error_before=0.004, lost_request=0.004, lost_reply=0.006, late=0.004, crash=0.004, pause=0.03, pause_steps_max=250
)

STEPS_MAX: Final = 100_000
UNDELETE_DAYS: Final = 2
_VARIABLE: Final = re.compile(r"[0-9A-Z]{20,}|[0-9a-f]{32,}|\d+")
_IMPORTED: Final = {"one": b"imported one", "two": b"x", "more/three": b"imported three"}
_worlds = itertools.count()


def options(**changes: object) -> RepositoryOptions:
    """Settings that make everything small, so that little happens between two changes."""
    small: dict[str, object] = {
        "background": False,
        "ranges": RangeOptions(entry_count_min=1, raggedness=3, entry_count_max=4, block_bytes=200),
        "sealed_tokens_max": 4,
        "compaction_staged_min": 4,
        "compaction_tombstones_min": 2,
        "compaction_sealed_min": 2,
        "compaction_cooldown_ms": 5,
        "undelete_days": UNDELETE_DAYS,
        "diff_cache_count": 2,
        "committer": "ada",
    }
    return RepositoryOptions(**(small | changes))  # type: ignore[arg-type]


class World:
    """One simulation of a repository.

    Args:
        seed: decides everything.
        faults: of every call of an actor.
        retention_days: the rule for every branch; None: there are no rules.
        settings: of the repository, other than the usual small ones.
    """

    def __init__(
        self, seed: int, *, faults: FaultRates = FAULTS, retention_days: int | None = None, **settings: object
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.faults = faults
        self.scheduler = Scheduler(seed, faults=faults)
        self.environment = self.scheduler.environment()
        self.options = options(**settings)
        self.counts: Counter[str] = Counter()
        self.paths = ["a/1", "a/2", "a/b/3", "b/1", "b/_SUCCESS", "a/_SUCCESS", "c", "d/e/f"]
        """What scenes write and read."""
        self.texts = [b"x", b"y", b"", b"a longer one"]
        """What objects hold: few, so that entries of different uploads are the same."""
        self.power_lost_at: int | None = None
        """The step at which the power goes, once."""
        self.revive: Callable[[], None] = lambda: None
        """Spawns who comes when the power is back."""
        self.dawdling = 0.3
        """Of those who have uploaded, how many let somebody else go first, again and again."""
        self.jump_ms_max = 3
        """Largest step of the clock before a verb."""
        self._ticks = itertools.count(1)
        # What happens inside the stores, and what the witness reads, is one step: their locks are no switching points.
        quiet = Environment(
            clock=SimulatedClock(self.scheduler), rng=random.Random(seed), runtime=SimulatedRuntime(ActorLoop(0))
        )
        self.memory = open_store(f"memory://repo-simulation-{next(_worlds):09}", environment=quiet)
        self.power = PowerLossStore(self.memory)
        self.record = RepositoryRecord("01J0000000000000000000SEED", "here", "main", START_MS)
        self._quiet = quiet
        self.witness = Witness(
            Keys(self.record.uid),
            store=self.memory,
            committed=Committed(self.memory, options=self.options.ranges, cache=BlockCache(1 << 20), environment=quiet),
            now_ms=quiet.clock.now_ms,
            tick=self.tick,
            undelete_days=UNDELETE_DAYS,
            retention_days=retention_days,
        )
        self.store = WitnessedStore(self.power, self.witness)
        self.imported = self._make_imported()
        self._begin(retention_days)

    # ---- the beginning

    def _begin(self, retention_days: int | None) -> None:
        home = self.quiet_home()
        first = new_commit(home, parents=(), metarange=EMPTY_METARANGE, message="begin", metadata=None, committer="ada")
        branch = Branch(first.id, new_token(self._quiet), created_at_ms=home.now_ms())
        home.key_value.write(
            [
                (home.keys.commit(first.id), encode_record(first.commit)),
                (home.keys.branch("main"), encode_record(branch)),
            ]
        )
        if retention_days is not None:
            store_retention(home, default_days=retention_days)

    def _make_imported(self) -> dict[str, Entry]:
        """Objects of another place: the same in every world, also by their times."""
        settled = Environment(clock=SimulatedClock(ActorLoop(0)), rng=random.Random(0))
        store = open_store("memory://repo-simulation-imports", environment=settled)
        for path, body in _IMPORTED.items():
            store.put(path, body)
        return {
            meta.path: Entry(
                f"{store.root_url}/{meta.path}", meta.size_bytes, (meta.etag or "").strip('"'), meta.modified_ms
            )
            for meta in store.list()
        }

    @property
    def import_url(self) -> str:
        """Where objects can be imported from."""
        return "memory://repo-simulation-imports"

    def change_weather(self, faults: FaultRates) -> None:
        """Other faults for every process that begins from now on."""
        self.faults = faults

    # ---- homes and time

    def make_context(self, key_value: KeyValue) -> RepositoryContext:
        """A process's home, over its own handle of the records."""
        return make_context(
            "sim",
            self.record,
            store=self.scheduler.store(self.store, faults=self.faults, page_count=3),
            key_value=key_value,
            options=self.options,
            environment=self.environment,
            cache=BlockCache(1 << 14, runtime=self.environment.runtime),
        )

    def quiet_home(self) -> RepositoryContext:
        """A home of the world itself: nothing fails, nothing switches, nothing is cached from before."""
        return make_context(
            "sim",
            self.record,
            store=self.store,
            key_value=WitnessedKeyValue(self.witness),
            options=self.options,
            environment=self._quiet,
            cache=BlockCache(1 << 20, runtime=self._quiet.runtime),
        )

    def handle(self, key_value: WitnessedKeyValue) -> ScheduledKeyValue:
        """What actors call instead of a handle."""
        return ScheduledKeyValue(key_value, scheduler=self.scheduler, faults=self.faults)

    def tick(self) -> int:
        """The next moment."""
        return next(self._ticks)

    def pass_time(self, ms: int) -> None:
        """Let the clock go on, for everybody."""
        self.scheduler.now_s += ms / 1000

    # ---- processes

    def process(self, name: str, life: Callable[[str, random.Random], None], *, lives: int = 1) -> None:
        """A process, started again after each crash until it has had its lives; told its name of this life."""

        def live(number: int) -> Callable[[], None]:
            rng = random.Random(f"{name} {number} {self.seed}")
            return lambda: life(f"{name}.{number}", rng)

        def watch() -> None:
            for number in range(lives):
                actor = self.scheduler.spawn(f"{name}.{number}", live(number), process=f"{name}.{number}")
                self.scheduler.wait_until(lambda actor=actor: actor.is_done, label="watch")  # type: ignore[misc]
                if not actor.is_crashed:
                    return
                self.counts["crashes"] += 1

        self.scheduler.spawn(f"watch {name}", watch, process=f"watch {name}")

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
        """Every process is gone at once, and objects that were not durable are lost or cut short."""
        self.power_lost_at = None
        self.scheduler.crash_all()
        while self.scheduler.step_once():
            continue
        lost = self.power.power_loss(self.rng)
        self.counts["power losses"] += 1
        self.counts["objects lost with the power"] += len(lost)
        self.witness.deleted(lost)
        self.revive()

    def _raise_found(self) -> None:
        if self.witness.violations:
            raise self.witness.violations[0]

    def pairs(self) -> set[tuple[str, str]]:
        """Pairs of neighbouring switching points of two actors, without what differs from run to run."""
        return {(_VARIABLE.sub("#", left), _VARIABLE.sub("#", right)) for left, right in self.scheduler.pairs}

    # ---- judging

    def check_at_rest(self) -> None:
        """Everything promised can be read, and nothing else is left when everything that waits is over."""
        self._check_reads()
        self._check_fsck()
        self._check_imports()
        home = self.quiet_home()
        self.pass_time(2)
        self._clean(home)
        self._collect(home)
        self._check_reads()
        self.pass_time(10 * 86_400_000)
        while trim_reflog(home):
            continue
        self._clean_orphans(home)
        self._collect(home)
        self._check_reads()
        self._check_fsck()
        strays = self.witness.strays()
        if strays:
            raise Violation(f"after the last collection {strays[:3]} are left, and nothing needs them")
        self.counts["worlds judged"] += 1

    def _clean(self, home: RepositoryContext) -> None:
        """Nothing is left of dropped tokens, once their marks are followed."""
        while not clean_once(home).is_done:
            continue
        named = {token.id for record in self.witness.branches.values() for token in (record.staging, *record.sealed)}
        left = sorted(token for token, rows in self.witness.rows.items() if rows and token not in named)
        if left:
            raise Violation(f"rows of the dropped tokens {left[:3]} are left for ever")
        if self.witness.marks - named:
            raise Violation(f"the marks {sorted(self.witness.marks - named)[:3]} are left")

    def _clean_orphans(self, home: RepositoryContext) -> None:
        before = {token: dict(rows) for token, rows in self.witness.rows.items() if rows}
        while not clean_orphans_once(home).is_done:
            continue
        after = {token: dict(rows) for token, rows in self.witness.rows.items() if rows}
        if before != after:
            raise Violation("the cleanup of orphans took rows of live tokens")

    def _collect(self, home: RepositoryContext) -> None:
        report = collect_garbage(home, options=CollectionOptions(min_age=timedelta(0)))
        self.counts["collected at rest"] += report.deleted_count
        failed = [warning for warning in report.warnings if "older than the rules" not in warning]
        if failed:
            raise Violation(f"the collection said: {failed[0]}")

    def _check_reads(self) -> None:
        """Every branch reads as the model says, and so does every commit that is kept; their bytes are there."""
        home, witness = self.quiet_home(), self.witness
        for name, history in sorted(witness.histories.items()):
            now = history.now
            if now.state is None or now.head is None:
                continue
            found = self._read(home, name)
            if not alike(found, now.state):
                raise Violation(f"{name} reads {shown(found)} instead of {shown(now.state)}")
            head = witness.ledger.content(now.head)
            differs = {one.path.encode(): one.kind for one in diff_uncommitted(home, name)}
            if differs != difference(head, now.state):
                raise Violation(f"{name} differs from its head by {differs} instead of {difference(head, now.state)}")
            self._check_bytes(home, now.state)
            self._check_bytes(home, head)
        for id in sorted(witness.ledger.ancestors(record.commit_id for record in witness.branches.values())):
            found, expected = self._read(home, id), witness.ledger.content(id)
            if identified(found) != identified(expected):
                raise Violation(f"the commit {id} reads {shown(found)} instead of {shown(expected)}")
            self.counts["commits read again"] += 1

    def _read(self, home: RepositoryContext, reference: str) -> State:
        with open_view(home, resolve(home, reference)) as view:
            return {line.path.encode(): encode_entry(line.entry) for line in view.list() if line.entry is not None}

    def _check_bytes(self, home: RepositoryContext, state: State) -> None:
        for path, value in state.items():
            entry = decode_entry(value, where="the model")
            if "://" not in entry.address:
                check_body(bytes(data.read(home, entry)), entry, path.decode())
                self.counts["bodies read"] += 1

    def _check_fsck(self) -> None:
        report = CheckReport(self.memory.root_url, True)
        check_repository(self.quiet_home(), Findings(report, store=self.memory.root_url))
        errors = [f"{one.path} {one.sentence}" for one in report.findings if one.severity == "error"]
        if errors:
            raise Violation(f"the check finds: {errors[0]}")

    def _check_imports(self) -> None:
        """Each import has happened once at most, whoever ran it how often."""
        heads = {one.head for history in self.witness.histories.values() for one in history.moments}
        messages = Counter(
            commit.message
            for id, commit in self.witness.ledger.commits.items()
            if id in heads and commit.message.startswith("import ")
        )
        for message, count in messages.items():
            if count > 1:
                raise Violation(f"the {message} has happened {count} times")


def check_body(body: bytes, entry: Entry, path: str) -> None:
    """Raise unless bytes are those of an entry."""
    if len(body) != entry.size_bytes or hashlib.md5(body, usedforsecurity=False).hexdigest() != entry.checksum:
        raise Violation(f"{path} reads {body!r}, which is not what was uploaded at {entry.address}")
