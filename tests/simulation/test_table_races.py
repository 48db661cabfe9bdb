"""Committers, taggers, readers, expirers, tag deleters and rollbackers racing on one table, under faults.

Every store call is a switching point; calls fail, replies are lost, changes land late, processes crash or stand still
and come back as zombies. While it runs: every tag that was promised, and the newest snapshot, have all their files.
At rest: every version has all its files, one round of cleaning leaves nothing unneeded, and no commit that was
acknowledged is lost.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionReport
from lakebed.runtime import Environment
from lakebed.table.branch import tags
from lakebed.table.branch.unfinished import Deletion
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import files_of
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.collect import deletion, expire, orphans, recovery
from lakebed.table.collect.live_versions import LiveVersions, TableBranch, read_live_versions
from lakebed.table.collect.reachability import Judgement
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.layout import Layout, parse_snapshot
from lakebed.table.model.model import BucketChange, Snapshot
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.table.versions import rollback
from lakebed.testing import FaultRates, ManualClock, Scheduler, seed_count
from worlds.table.made_up import data_file
from worlds.table.world import InlineRuntime

FAULTS = FaultRates(
    error_before=0.004, lost_request=0.004, lost_reply=0.004, late=0.003, crash=0.004, pause=0.02, pause_steps_max=150
)
EXPECTED = (AlreadyExists, Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable)
CHECK_EVERY = 20
_runs = itertools.count()


@dataclass
class Promises:
    """The replies that actors got, and may rely on."""

    tags: dict[str, int] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    """Files of acknowledged commits."""
    taken: set[str] = field(default_factory=set)
    """Files that some commit tried to delete."""
    targets: list[int] = field(default_factory=list)
    """Targets of rollbacks that began and, as far as known, are not complete."""
    rolled_back: bool = False
    counts: Counter[str] = field(default_factory=Counter)


class Race:
    """One simulation."""

    def __init__(self, seed: int, *, faults: FaultRates = FAULTS) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, faults=faults)
        self.inner: ObjectStore = open_store(f"memory://race-{next(_runs)}")
        quiet = Environment(clock=ManualClock(), rng=random.Random(seed), runtime=InlineRuntime())
        self.outside = quiet
        Table.create(
            self.inner,
            name="race",
            schema=pa.schema([("id", pa.int64())]),
            options={"manifest.merge-min-count": "3"},
            environment=quiet,
        )
        self.promises = Promises()
        self.files = itertools.count(1)
        self.looker = self.observer()
        self.names_of: dict[bytes, frozenset[str]] = {}
        """What the bytes of a snapshot name. What they name never changes; whether it is there is asked each time."""
        first = self.observer()
        for _ in range(4):
            self.commit_once(first, random.Random(seed))
        first.create_tag("base", snapshot_id=2)
        self.promises.tags["base"] = 2

    def observer(self) -> Table:
        """The table as it really is, without faults, decoded afresh."""
        return self._own_cache(Table.open(self.inner, name="race", environment=self.outside))

    def actor_table(self) -> Table:
        """The table as a process of its own sees it."""
        store = self.scheduler.store(self.inner)
        return self._own_cache(Table.open(store, name="race", environment=self.scheduler.environment()))

    @staticmethod
    def _own_cache(table: Table) -> Table:
        table.context.manifests._cache = BoundedCache(1 << 28)
        return table

    # ---- what actors do

    def commit_once(self, table: Table, rng: random.Random) -> None:
        """Add a file and, now and then, delete one."""
        name = f"data-{next(self.files)}.parquet"
        head = table.latest()
        live = [] if head is None else files_of(table.context.manifests.live_entries(head))
        gone = (rng.choice(live),) if live and rng.random() < 0.6 else ()
        self.promises.taken |= {file.file_name for file in gone}
        table.store.put(f"bucket-0/{name}", b"x")
        change = BucketChange(EMPTY_ROW, 0, 1, added=(data_file(name, file_source=0),), deleted=gone)
        commit_changes(table.context, [change], kind="OVERWRITE" if gone else "APPEND")
        self.promises.added.add(name)
        self.promises.counts["commits"] += 1

    def tag_once(self, table: Table, rng: random.Random) -> None:
        """Tag a live snapshot or what another tag holds, or replace or rename a tag."""
        name = f"t{next(self.files)}"
        if self.promises.tags and rng.random() < 0.3:
            made = table.create_tag(name, tag=rng.choice(sorted(self.promises.tags)))
        else:
            made = table.create_tag(name, snapshot_id=rng.choice(table.context.snapshots.ids()))
        if all(made.snapshot.id <= target for target in self.promises.targets):
            self.promises.tags[name] = made.snapshot.id
        self.promises.counts["tags"] += 1

    def delete_tag_once(self, table: Table, rng: random.Random) -> None:
        """Delete a promised tag, or point it at another snapshot."""
        if not self.promises.tags:
            return
        name = rng.choice(sorted(self.promises.tags))
        del self.promises.tags[name]
        if rng.random() < 0.3:
            table.replace_tag(name, snapshot_id=rng.choice(table.context.snapshots.ids()))
            self.promises.counts["replaced tags"] += 1
        else:
            table.delete_tag(name, if_exists=True)
            self.promises.counts["deleted tags"] += 1

    def expire_once(self, table: Table, rng: random.Random) -> None:
        """Keep few of the newest snapshots."""
        report = table.expire(retain_max=rng.randint(1, 3), retain_min=1, older_than_ms=0)
        self.promises.counts["expired files"] += report.deleted_count

    def roll_back_once(self, table: Table, rng: random.Random) -> None:
        """Go back, with or without history."""
        ids = [*table.context.snapshots.ids(), *self.promises.tags.values()]
        target = rng.choice(ids)
        self.promises.rolled_back = True
        if rng.random() < 0.5:
            table.rollback_to_as_latest(target)
            self.promises.counts["rollbacks as latest"] += 1
            return
        self.promises.targets.append(target)
        self.promises.tags = {name: tag for name, tag in self.promises.tags.items() if tag <= target}
        table.rollback_to(target)
        self.promises.tags = {name: tag for name, tag in self.promises.tags.items() if tag <= target}
        self.promises.targets.remove(target)
        self.promises.counts["rollbacks"] += 1

    def read_once(self, table: Table, rng: random.Random) -> None:
        """Read every file of a promised tag; what stays promised all the while must be readable."""
        if not self.promises.tags:
            return
        name = rng.choice(sorted(self.promises.tags))
        try:
            snapshot = table.tag(name).snapshot
            for file in files_of(table.context.manifests.live_entries(snapshot)):
                table.store.get(f"bucket-0/{file.file_name}")
        except NotFound as error:
            if name in self.promises.tags:
                raise AssertionError(f"the promised tag {name} lost {error.facts.get('path')}") from error
        self.promises.counts["reads"] += 1

    # ---- running

    def spawn(self, name: str, once: Callable[[Table, random.Random], None], *, count: int) -> None:
        """An actor that does something several times; expected errors are part of life."""
        rng = random.Random(f"{name} {self.seed}")
        table = self.actor_table()

        def live() -> None:
            for _ in range(count):
                try:
                    once(table, rng)
                except EXPECTED as error:
                    self.promises.counts[f"error {error.kind}"] += 1

        self.scheduler.spawn(name, live)

    def run(self) -> Race:
        """Run to rest, checking on the way."""
        self.spawn("committer-1", self.commit_once, count=6)
        self.spawn("committer-2", self.commit_once, count=6)
        self.spawn("tagger", self.tag_once, count=6)
        self.spawn("reader", self.read_once, count=5)
        self.spawn("expirer-1", self.expire_once, count=4)
        self.spawn("expirer-2", self.expire_once, count=3)
        self.spawn("deleter", self.delete_tag_once, count=4)
        if self.seed % 2:
            self.spawn("rollbacker", self.roll_back_once, count=2)
        if self.seed % 4 == 3:
            self.spawn("rollbacker-2", self.roll_back_once, count=1)
        while self.scheduler.step_once():
            if self.scheduler.step_count % CHECK_EVERY == 0:
                self.check_promises()
        for actor in self.scheduler.actors:
            if actor.error is not None:
                raise actor.error
        self.check_promises()
        self.check_at_rest()
        return self

    # ---- checking

    def names(self, table: Table, snapshot: Snapshot) -> set[str]:
        """Everything a version needs."""
        return set(ReferencedFiles(table.context).of(snapshot).to_pylist())

    def stored(self) -> set[str]:
        """Paths on the store."""
        return {meta.path for meta in self.inner.list("")}

    def check_promises(self) -> None:
        """Promised tags and the newest snapshot have all their files."""
        stored = self.stored()
        for name in self.promises.tags:
            path = f"tag/tag-{name}"
            assert path in stored, f"the promised tag {name} is gone"
            self._check_names(path, stored)
        newest = max((snapshot for path in stored if (snapshot := parse_snapshot(path)) is not None), default=None)
        assert newest is not None
        self._check_names(f"snapshot/snapshot-{newest}", stored)

    def _check_names(self, path: str, stored: set[str]) -> None:
        body = bytes(self.inner.get(path))
        names = self.names_of.get(body)
        if names is None:
            try:
                names = frozenset(self.names(self.looker, decode_snapshot(body, path=path)))
            except NotFound as error:
                raise AssertionError(f"{path} lost {error.facts.get('path')}") from error
            self.names_of[body] = names
        assert names <= stored, f"{path} lost {sorted(names - stored)[:3]}"

    def check_at_rest(self) -> None:
        """After recovery and cleaning, every version is whole and nothing unneeded is left."""
        table = self.observer()
        # A tag whose maker crashed before it could look may point at what had gone: reports name it, a user drops it.
        doubtful = [name for name in table.context.tags.names() if name not in self.promises.tags]
        table.delete_tag(*doubtful, if_exists=True)
        table.expire(retain_max=2, retain_min=1, older_than_ms=0)
        for _ in range(2):  # what unpins in the first round may free files for the second
            table.collect(grace_ms=0)
        stored, needed = self.stored(), set()
        holders = read_live_versions(table.context)
        for snapshot_id in holders.ids.tolist():
            needed |= self.names(table, holders.load(table.context, snapshot_id))
        assert needed <= stored, f"lost {sorted(needed - stored)[:3]}"
        kept = {path for path in stored if path.startswith(("manifest/", "bucket-"))}
        assert kept <= needed, f"left {sorted(kept - needed)[:3]}"
        assert not [path for path in stored if path.startswith("lakebed/reclaim/")]
        assert not [name for name in table.context.tags.all_names() if name.startswith("lakebed.")]
        if not self.promises.rolled_back:
            head = table.latest()
            assert head is not None
            files = {file.file_name for file in files_of(table.context.manifests.live_entries(head))}
            lost = self.promises.added - self.promises.taken - files
            assert not lost, f"acknowledged commits lost {sorted(lost)}"
        self.promises.counts["crashed"] += sum(actor.is_crashed for actor in self.scheduler.actors)


def run_seeds(seeds: range) -> Counter[str]:
    """Run races; a failure names its seed and prints the last switches."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        race = Race(seed)
        try:
            race.run()
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"seed {seed}: {error}\n{race.scheduler.story()}") from error
        counts += race.promises.counts
        counts["pairs of switching points"] += len(race.scheduler.pairs)
    return counts


SEEDS_DEFAULT = 6


def test_races_lose_nothing_and_leave_nothing(tell: Callable[[str], None]) -> None:
    """However the verbs interleave and fail, what was promised stays whole and what is unneeded goes."""
    size = seed_count(SEEDS_DEFAULT)
    start_s = time.process_time()
    counts = run_seeds(range(size))
    rate = size / (time.process_time() - start_s)
    met = ", ".join(f"{what} {count:,}" for what, count in counts.most_common())
    tell(f"races, seeds 0-{size - 1}: {rate:.1f} a processor second; {met}")
    assert counts["commits"] > size
    assert counts["expired files"] > size


def test_the_same_seed_is_the_same_run() -> None:
    """Two runs of one seed take the same switches."""
    assert Race(7).run().scheduler.trace_hash() == Race(7).run().scheduler.trace_hash()


# ---- each repair undone must be found

Patch = Callable[[pytest.MonkeyPatch], None]


def no_look_after_tagging(patch: pytest.MonkeyPatch) -> None:
    """A tagger does not look whether its source is still there."""
    patch.setattr(tags.Tags, "_is_there", lambda self, source: True)


def no_reading_after_hiding(patch: pytest.MonkeyPatch) -> None:
    """Holders are read before the versions are hidden."""
    before: dict[str, LiveVersions] = {}
    store_deletion, read = deletion.store_deletion, deletion.read_live_versions

    def store(target: ObjectStore, layout: Layout, one: Deletion) -> None:
        store_deletion(target, layout, one)
        before[target.root_url] = current

    def carry(line: TableBranch, one: Deletion, **more: object) -> CollectionReport:
        nonlocal current
        current = expire._without(read(line), one, ())
        return carry_out(line, one, **more)  # type: ignore[arg-type]

    current = LiveVersions(np.array([], np.int64), (), np.array([], np.int64))
    carry_out = deletion.carry_out
    patch.setattr(deletion, "store_deletion", store)
    patch.setattr(deletion, "read_live_versions", lambda line: before[line.store.root_url])
    patch.setattr(expire, "carry_out", carry)
    patch.setattr(recovery, "carry_out", carry)


def no_pin_before_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback does not pin its target."""
    patch.setattr(rollback, "_pin", lambda *args: None)


def verdicts_instead_of_candidates(patch: pytest.MonkeyPatch) -> None:
    """A resumed deletion deletes what was written down, without judging it."""
    carry_out, judge = deletion.carry_out, deletion.judge

    def carry(line: TableBranch, one: Deletion, **more: object) -> CollectionReport:
        deletion.judge = lambda candidates, **_: Judgement(candidates, {}, (), True)  # type: ignore[assignment]
        try:
            return carry_out(line, one, **more)  # type: ignore[arg-type]
        finally:
            deletion.judge = judge

    patch.setattr(recovery, "carry_out", carry)


def no_recovery(patch: pytest.MonkeyPatch) -> None:
    """What a crash left is not finished."""
    patch.setattr(expire, "recover", lambda line: [])
    patch.setattr(rollback, "recover", lambda line: [])
    patch.setattr(orphans, "recover", lambda line: [])


MUTATIONS: tuple[Patch, ...] = (
    no_look_after_tagging,
    no_reading_after_hiding,
    no_pin_before_a_rollback,
    verdicts_instead_of_candidates,
    no_recovery,
)
MUTATION_SEEDS_MAX = 200


def first_failing_seed(seeds: range) -> int | None:
    """The first seed whose race breaks a promise."""
    for seed in seeds:
        try:
            Race(seed).run()
        except (AssertionError, LakebedError):
            return seed
    return None


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_repair_undone_is_found(
    mutation: Patch, monkeypatch: pytest.MonkeyPatch, found_at_seed: Callable[[str, str, int], None]
) -> None:
    """Without this repair some race breaks a promise within two hundred seeds."""
    mutation(monkeypatch)
    seed = first_failing_seed(range(MUTATION_SEEDS_MAX))
    assert seed is not None, f"{MUTATION_SEEDS_MAX} races did not miss the repair"
    found_at_seed("repairs of races undone", mutation.__name__, seed)
