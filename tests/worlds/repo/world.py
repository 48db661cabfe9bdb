"""A simulated world of one repository: its stores, and what must hold when its processes have ended.

Owns: `RepositoryWorld`: the monitored stores, contexts for processes, and the checks at rest. What processes do is in
`worlds.repo.actors`, who runs in `worlds.repo.scenarios`; processes, crashes and power loss are the frame's
(`worlds.world`). Time advances with every verb, and by days where a scenario says so, also for a process that sleeps.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from datetime import timedelta
from typing import Final

from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.repository import check_repository
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.objects.open import open_store
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.committed.store import EMPTY_METARANGE, Committed
from lakebed.repo.heads.commit import new_commit
from lakebed.repo.model.entry import decode_entry, encode_entry
from lakebed.repo.model.layout import Keys
from lakebed.repo.model.model import Branch, Commit, Entry, RepositoryRecord
from lakebed.repo.model.options import CollectionOptions, RangeOptions, RepositoryOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext, make_context
from lakebed.repo.records.records import encode_record, new_token
from lakebed.repo.records.reflog import trim_reflog
from lakebed.repo.records.retention import store_retention
from lakebed.repo.staging.cleanup import clean_once, clean_orphans_once
from lakebed.repo.staging.view import at_reference
from lakebed.repo.verbs.pick import ORIGIN_KEY
from lakebed.runtime import Environment
from lakebed.testing.actor_loop import ActorLoop
from lakebed.testing.clock import START_MS
from lakebed.testing.scheduled_calls import FaultRates
from lakebed.testing.simulated_runtime import SimulatedClock
from worlds.promise import PromiseBroken
from worlds.repo.model import State, alike, difference, identified, shown
from worlds.repo.monitor import MonitoredKeyValue, MonitoredStore, RepositoryMonitor
from worlds.repo.operations import diff_uncommitted
from worlds.scheduled_key_value import ScheduledKeyValue
from worlds.world import FAULTS, World

UNDELETE_DAYS: Final = 2
REBASER: Final = "rebaser"
"""Who rebases: copies of a commit by a rebase have all else from it, its message too."""
_IMPORTED: Final = {"one": b"imported one", "two": b"x", "more/three": b"imported three"}


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


class RepositoryWorld(World):
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
        super().__init__(seed, faults=faults)
        self.options = options(**settings)
        self.paths = ["a/1", "a/2", "a/b/3", "b/1", "b/_SUCCESS", "a/_SUCCESS", "c", "d/e/f"]
        """What scenarios write and read."""
        self.texts = [b"x", b"y", b"", b"a longer one"]
        """What objects hold: few, so that entries of different uploads are the same."""
        self.dawdling = 0.3
        """How often a process that has uploaded lets another one go first."""
        self.jump_ms_max = 3
        """Largest step of the clock before a verb."""
        self.grace_ms = 0
        """Of collections; see `give_grace`."""
        self.record = RepositoryRecord("01J0000000000000000000SEED", "here", "main", START_MS)
        self._monitor = RepositoryMonitor(
            Keys(self.record.uid),
            store=self.memory,
            committed=Committed(
                self.memory, options=self.options.ranges, cache=BlockCache(1 << 20), environment=self.quiet
            ),
            now_ms=self.quiet.clock.now_ms,
            tick=self.tick,
            undelete_days=UNDELETE_DAYS,
            retention_days=retention_days,
        )
        self.store = MonitoredStore(self.power, self.monitor)
        self.imported = self._make_imported()
        self._begin(retention_days)

    # ---- the beginning

    def _begin(self, retention_days: int | None) -> None:
        home = self.quiet_home()
        first = new_commit(home, parents=(), metarange=EMPTY_METARANGE, message="begin", metadata=None, committer="ada")
        branch = Branch(first.id, new_token(self.quiet), created_at_ms=home.now_ms())
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

    @property
    def monitor(self) -> RepositoryMonitor:
        """What watches both stores."""
        return self._monitor

    def give_grace(self, grace_ms: int) -> None:
        """Let collections have a minimum age: what is replaced is needed as long."""
        self.grace_ms = self.monitor.grace_ms = grace_ms

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
            key_value=MonitoredKeyValue(self.monitor),
            options=self.options,
            environment=self.quiet,
            cache=BlockCache(1 << 20, runtime=self.quiet.runtime),
        )

    def handle(self, key_value: MonitoredKeyValue) -> ScheduledKeyValue:
        """What actors call instead of a handle."""
        return ScheduledKeyValue(key_value, scheduler=self.scheduler, faults=self.faults)

    # ---- judging

    def check_at_rest(self) -> None:
        """Everything promised can be read, and nothing else is left when everything that waits is over."""
        self.give_grace(0)
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
        strays = self.monitor.strays()
        if strays:
            raise PromiseBroken(f"after the last collection {strays[:3]} are left, and nothing needs them")
        self.counts["worlds judged"] += 1

    def _clean(self, home: RepositoryContext) -> None:
        """Nothing is left of dropped tokens, once their marks are followed."""
        while not clean_once(home).is_done:
            continue
        named = {token.id for record in self.monitor.branches.values() for token in (record.staging, *record.sealed)}
        left = sorted(token for token, rows in self.monitor.rows.items() if rows and token not in named)
        if left:
            raise PromiseBroken(f"rows of the dropped tokens {left[:3]} are left for ever")
        if self.monitor.marks - named:
            raise PromiseBroken(f"the marks {sorted(self.monitor.marks - named)[:3]} are left")

    def _clean_orphans(self, home: RepositoryContext) -> None:
        before = {token: dict(rows) for token, rows in self.monitor.rows.items() if rows}
        while not clean_orphans_once(home).is_done:
            continue
        after = {token: dict(rows) for token, rows in self.monitor.rows.items() if rows}
        if before != after:
            raise PromiseBroken("the cleanup of orphans took rows of live tokens")

    def _collect(self, home: RepositoryContext) -> None:
        report = collect_garbage(home, options=CollectionOptions(grace=timedelta(0)))
        self.counts["collected at rest"] += report.deleted_count
        failed = [warning for warning in report.warnings if "older than the rules" not in warning]
        if failed:
            raise PromiseBroken(f"the collection said: {failed[0]}")

    def _check_reads(self) -> None:
        """Every branch reads as the model says, and so does every commit that is kept; their bytes are there."""
        home, monitor = self.quiet_home(), self.monitor
        for name, history in sorted(monitor.histories.items()):
            now = history.now
            if now.state is None or now.head is None:
                continue
            result = self._read(home, name)
            if not alike(result, now.state):
                raise PromiseBroken(f"{name} reads {shown(result)} instead of {shown(now.state)}")
            head = monitor.ledger.content(now.head)
            differs = {entry.path.encode(): entry.kind for entry in diff_uncommitted(home, name)}
            if differs != difference(head, now.state):
                raise PromiseBroken(
                    f"{name} differs from its head by {differs} instead of {difference(head, now.state)}"
                )
            self._check_bytes(home, now.state)
            self._check_bytes(home, head)
        for id in sorted(monitor.ledger.ancestors(record.commit_id for record in monitor.branches.values())):
            result, expected = self._read(home, id), monitor.ledger.content(id)
            if identified(result) != identified(expected):
                raise PromiseBroken(f"the commit {id} reads {shown(result)} instead of {shown(expected)}")
            self.counts["commits read again"] += 1

    def _read(self, home: RepositoryContext, reference: str) -> State:
        with at_reference(home, reference) as view:
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
        errors = [f"{finding.path} {finding.sentence}" for finding in report.findings if finding.severity == "error"]
        if errors:
            raise PromiseBroken(f"the check finds: {errors[0]}")

    def _check_imports(self) -> None:
        """Each import has happened once at most, however often it was run."""
        heads = {moment.head for history in self.monitor.histories.values() for moment in history.moments}
        messages = Counter(
            commit.message
            for id, commit in self.monitor.ledger.commits.items()
            if id in heads and commit.message.startswith("import ") and not _is_copy(commit)
        )
        for message, count in messages.items():
            if count > 1:
                raise PromiseBroken(f"the {message} has happened {count} times")


def _is_copy(commit: Commit) -> bool:
    return commit.committer == REBASER or ORIGIN_KEY in commit.metadata


def check_body(body: bytes, entry: Entry, path: str) -> None:
    """Raise unless bytes are those of an entry."""
    if len(body) != entry.size_bytes or hashlib.md5(body, usedforsecurity=False).hexdigest() != entry.checksum:
        raise PromiseBroken(f"{path} reads {body!r}, which is not what was uploaded at {entry.address}")
