"""A database against a dictionary: random histories of every verb, with crashes; limits so small that all levels fill.

The dictionary is `worlds.kv.model`'s. Each history is decided by its seed, which a failure names.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Conflict
from lakebed.kv import CollectorOptions, Database, DatabaseOptions, Snapshot, WriteBatch
from lakebed.kv.database_location import DatabaseLocation
from lakebed.lsm.model import Kind
from lakebed.runtime import Environment
from lakebed.testing import ManualClock, seed_count
from worlds.kv.model import Change, Rows, apply_change, visible

SEEDS = 4
STEPS = 250
KEYS = [b"%02d" % i for i in range(24)] + [b"a", b"a\x00", b"a\xff", b"\xff\xff"]
AT_ONCE = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))


Write = tuple[str, bytes, bytes, int | None]
"""put, delete or merge; key; value; lifetime in milliseconds."""

KINDS = {"put": Kind.PUT, "delete": Kind.DELETE, "merge": Kind.MERGE}


def applied(model: Rows, writes: list[Write], now_ms: int) -> None:
    """Change the model by some writes."""
    for kind, key, value, lifetime in writes:
        ends_ms = None if lifetime is None else now_ms + lifetime
        apply_change(model, Change(key, KINDS[kind], value, ends_ms), now_ms)


@dataclass
class History:
    """One history: a database, what it should hold, and what it should hold after a crash."""

    place: DatabaseLocation
    clock: ManualClock
    rng: random.Random
    options: DatabaseOptions
    met: Counter[str]
    model: Rows = field(default_factory=dict)
    undurable: list[tuple[int, Rows]] = field(default_factory=list)
    """(sequence, the model with everything up to it), from the last durable one on."""
    written: dict[bytes, int] = field(default_factory=dict)
    """Sequence of the last write of each key."""
    snapshots: list[tuple[Snapshot, Rows]] = field(default_factory=list)
    count: int = 0

    def start(self) -> None:
        """Open for the first time."""
        self.db = Database.open(self.place, options=self.options)
        self.undurable = [(self.db.stats().last_sequence, {})]

    def now(self) -> int:
        """Unix ms."""
        return self.clock.now_ms()

    def note(self, writes: list[Write]) -> None:
        """Writes that were accepted."""
        applied(self.model, writes, self.now())
        stats = self.db.stats()
        for _, key, _, _ in writes:
            self.written[key] = stats.last_sequence
        self.undurable.append((stats.last_sequence, dict(self.model)))
        while len(self.undurable) > 1 and self.undurable[1][0] <= stats.durable_sequence:
            del self.undurable[0]

    def some_write(self) -> Write:
        """One write to one key."""
        self.count += 1
        kind = self.rng.choices(["put", "ttl", "delete", "merge"], [6, 2, 2, 3])[0]
        key, value = self.rng.choice(KEYS), b"%d." % self.count
        if kind == "ttl":
            return "put", key, value, self.rng.randrange(1, 5000)
        return kind, key, b"" if kind == "delete" else value, None

    # ---- steps

    def write(self) -> None:
        """put, delete or merge by themselves."""
        kind, key, value, lifetime = write = self.some_write()
        durable = self.rng.random() < 0.3
        if kind == "put":
            ttl = None if lifetime is None else timedelta(milliseconds=lifetime)
            self.db.put(key, value, ttl=ttl, await_durable=durable)
        elif kind == "delete":
            self.db.delete(key, await_durable=durable)
        else:
            self.db.merge(key, value, await_durable=durable)
        self.note([write])

    def write_batch(self) -> None:
        """Several at once, the same key more than once."""
        batch, writes = WriteBatch(), [self.some_write() for _ in range(self.rng.randrange(1, 12))]
        fill(batch, writes)
        self.db.write(batch, await_durable=self.rng.random() < 0.3)
        self.note(writes)

    def compare_and_set(self) -> None:
        """With the right or a wrong expectation."""
        key = self.rng.choice(KEYS)
        present = visible(self.model, self.now()).get(key)
        expected = present if self.rng.random() < 0.7 else b"wrong"
        self.count += 1
        value = None if self.rng.random() < 0.2 else b"%d." % self.count
        try:
            self.db.set_if(key, value, expected=expected, await_durable=False)
        except Conflict:
            assert expected != present
            self.met["set_if refused"] += 1
        else:
            assert expected == present
            self.note([("delete" if value is None else "put", key, value or b"", None)])

    def write_conditionally(self) -> None:
        """Several at once, with the right or a wrong expectation of several keys, absent ones included."""
        batch, writes = WriteBatch(), [self.some_write() for _ in range(self.rng.randrange(5))]
        fill(batch, writes)
        present = visible(self.model, self.now())
        expected = {key: present.get(key) for key in self.rng.sample(KEYS, self.rng.randrange(4))}
        if expected and self.rng.random() < 0.3:
            expected[self.rng.choice(list(expected))] = b"wrong"
        wrong = {key for key, value in expected.items() if present.get(key) != value}
        refused: set[bytes] = set()
        try:
            self.db.write_if(batch, expected=expected, await_durable=self.rng.random() < 0.3)
        except Conflict as told:
            refused = {told.facts["key"]}
            self.met["write_if refused"] += 1
        else:
            self.note(writes)
        assert refused <= wrong
        assert bool(refused) == bool(wrong)

    def look_durably(self) -> None:
        """A linearizable snapshot shows what is durable, and nothing else."""
        durable_sequence = self.db.stats().durable_sequence
        state: dict[bytes, Any] = [model for at, model in self.undurable if at <= durable_sequence][-1]
        with self.db.snapshot(linearizable=True) as proved:
            assert dict(proved.scan()) == visible(state, self.now())
        self.met["pending rows not shown"] += state != self.model

    def transact(self) -> None:
        """Reads and writes of a transaction, writes of others between, and exactly the conflicts that there are."""
        isolation: Any = self.rng.choice(["snapshot", "serializable"])
        since = self.db.stats().last_sequence
        t = self.db.transaction(isolation, await_durable=self.rng.random() < 0.3)
        mine, writes, rests_on, ranges = dict(self.model), [], set(), []
        for _ in range(self.rng.randrange(1, 8)):
            choice = self.rng.random()
            if choice < 0.4:
                write = self.some_write()
                fill(t, [write])
                writes.append(write)
                applied(mine, [write], self.now())
                rests_on.add(write[1])
            elif choice < 0.6:
                key = self.rng.choice(KEYS)
                assert t.get(key) == visible(mine, self.now()).get(key)
                # What a transaction has put or deleted itself it does not read.
                if isolation == "serializable" and not any(w[1] == key and w[0] != "merge" for w in writes):
                    rests_on.add(key)
            elif choice < 0.75:
                start, end = sorted(self.rng.choices(KEYS, k=2))
                reverse = self.rng.random() < 0.5
                expected = [(k, v) for k, v in visible(mine, self.now()).items() if start <= k < end]
                assert list(t.scan(start, end, reverse=reverse)) == (expected[::-1] if reverse else expected)
                if isolation == "serializable":
                    ranges.append((start, end))
            elif choice < 0.85:
                self.write()
            else:
                self.rng.choice([self.flush, self.compact])()
        if self.rng.random() < 0.15:
            t.rollback()
            return
        moved = {key for key, sequence in self.written.items() if sequence > since}
        overtaken = bool(moved & rests_on) or any(a <= key < b for key in moved for a, b in ranges)
        try:
            t.commit()
        except Conflict:
            assert overtaken
            assert writes
            self.met["commits refused"] += 1
        else:
            assert not (overtaken and writes)
            self.met["commits"] += 1
            if writes:
                self.note(writes)

    def flush(self) -> None:
        """Log or files."""
        self.db.flush(memtable=self.rng.random() < 0.5)

    def compact(self) -> None:
        """One step, or everything."""
        if self.rng.random() < 0.2:
            self.db.compact(full=True)
        else:
            self.db.compact_once()

    def collect(self) -> None:
        """Take everything that may go."""
        self.db.poll_once()
        self.db.admin.collect(AT_ONCE)

    def pass_time(self) -> None:
        """Let some values end."""
        before = visible(self.model, self.now())
        self.clock.advance(self.rng.random() * 3)
        self.met["values ended"] += len(before) - len(visible(self.model, self.now()))

    def take_snapshot(self) -> None:
        """Keep at most three."""
        if len(self.snapshots) == 3:
            self.snapshots.pop(0)[0].close()
        self.snapshots.append((self.db.snapshot(), dict(self.model)))

    def check(self) -> None:
        """Every way to read, on the database and on the snapshots."""
        checked: list[tuple[Any, Rows]] = [(self.db, self.model), *self.snapshots]
        for reads, model in checked:
            expected = visible(model, self.now())
            assert dict(reads.scan()) == expected
            assert list(reads.scan(reverse=True)) == list(expected.items())[::-1]
            assert [reads.get(key) for key in KEYS] == [expected.get(key) for key in KEYS]
            assert reads.get_many(KEYS) == [expected.get(key) for key in KEYS]
            table = reads.scan_arrow().read_all()
            assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
            self.met["reads of snapshots"] += reads is not self.db

    def reopen(self) -> None:
        """Close and open."""
        self.snapshots.clear()
        self.db.close()
        self.db = Database.open(self.place, options=self.options)
        self.undurable = [(self.db.stats().last_sequence, dict(self.model))]

    def crash(self) -> None:
        """Drop everything; only what was durable is there again."""
        durable = self.db.stats().durable_sequence
        self.snapshots.clear()
        kept = [model for sequence, model in self.undurable if sequence <= durable]
        self.met["crashes that lost writes"] += len(kept) < len(self.undurable)
        self.model = dict(kept[-1])
        self.db = Database.open(self.place, options=self.options, take_over=True)
        self.written = {}
        self.undurable = [(self.db.stats().last_sequence, dict(self.model))]
        self.check()


def fill(target: Any, writes: list[Write]) -> None:
    """Give writes to a batch or transaction."""
    for kind, key, value, lifetime in writes:
        if kind == "put":
            target.put(key, value, ttl=None if lifetime is None else timedelta(milliseconds=lifetime))
        elif kind == "delete":
            target.delete(key)
        else:
            target.merge(key, value)


STEP_WEIGHTS: dict[Callable[[History], None], int] = {
    History.write: 40,
    History.write_batch: 10,
    History.compare_and_set: 6,
    History.write_conditionally: 8,
    History.look_durably: 4,
    History.transact: 8,
    History.flush: 6,
    History.compact: 6,
    History.collect: 2,
    History.pass_time: 5,
    History.take_snapshot: 3,
    History.check: 6,
    History.reopen: 1,
    History.crash: 2,
}


def run(place: DatabaseLocation, clock: ManualClock, seed: int, met: Counter[str]) -> None:
    """One history."""
    rng = random.Random(seed)
    options = DatabaseOptions(
        background=False,
        merge_operator="append",
        wal_enabled=seed % 4 != 3,
        l0_sst_bytes=rng.choice([1_500, 4_000, 20_000]),
        wal_bytes_max=rng.choice([50, 500, 5_000]),
        unflushed_bytes_max=rng.choice([3_000, 30_000]),
        l0_count_max=rng.choice([2, 6]),
        l0_compaction_count=2,
        run_compaction_count=2,
        run_file_bytes=rng.choice([500, 5_000]),
        block_bytes=rng.choice([64, 1_000]),
        row_cache_bytes=rng.choice([0, 2_000, 1 << 20]),
        cache_bytes=1 << 20,
    )
    history = History(place, clock, rng, options, met)
    history.start()
    steps, weights = list(STEP_WEIGHTS), list(STEP_WEIGHTS.values())
    trace = []
    try:
        for step in rng.choices(steps, weights, k=STEPS):
            trace.append(step.__name__)
            step(history)
            met[step.__name__] += 1
        history.check()
        met["levels"] += history.db.stats().run_count > 0
        history.db.close()
    except Exception as error:
        error.add_note(f"seed {seed}, step {len(trace)}: {' '.join(trace[-12:])}")
        raise


def test_a_database_is_a_dictionary(tell: Callable[[str], None]) -> None:
    """Every read of every history answers as the model does, and every conflict is one."""
    met: Counter[str] = Counter()
    for seed in range(seed_count(SEEDS)):
        clock = ManualClock()
        environment = Environment(clock=clock, rng=random.Random(seed))
        run(DatabaseLocation.at(f"memory://kv-model-{seed}", environment=environment), clock, seed, met)
    for name in (
        "crashes that lost writes",
        "commits refused",
        "values ended",
        "reads of snapshots",
        "set_if refused",
        "write_if refused",
        "pending rows not shown",
    ):
        assert met[name] >= seed_count(SEEDS) // 4, f"{name}: only {met[name]} times"
    tell(f"a database against a dictionary: {dict(sorted(met.items()))}")


@pytest.mark.parametrize("seed", range(1000, 1002))
def test_in_a_local_folder_too(tmp_path: Path, seed: int) -> None:
    """The same, on disk."""
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(seed))
    run(DatabaseLocation.at(tmp_path / "db", environment=environment, durable=False), clock, seed, Counter())
