"""Another store on the same engine: it publishes in its own way and keeps history, as a timeline does."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count

import pytest

from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.model import Kind, Row
from lakebed.lsm.operators import find_operator
from lakebed.lsm.tree import Tree
from lakebed.lsm.view import View
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.memory_publisher import MemoryPublisher
from worlds.rows import resolve_rows

NUMBERS = count()
KEYS = [b"%02d" % n for n in range(30)]


@dataclass(frozen=True)
class Options:
    """Small ones, so that much is merged."""

    l0_compaction_count: int = 3
    run_compaction_count: int = 2
    run_file_bytes: int = 1_024
    row_cache_bytes: int = 1 << 16
    transaction_history_bytes_max: int = 0


class Timeline:
    """A store whose every version since some sequence stays readable."""

    def __init__(self, seed: int, *, retain_since_sequence: int | None) -> None:
        self.rng = random.Random(seed)
        self.environment = Environment(clock=ManualClock(), rng=random.Random(seed))
        self.files = FileStore(
            open_store(f"memory://history-{next(NUMBERS)}", environment=self.environment),
            path_of=lambda id: f"layers/{id}",
            cache=BlockCache(1 << 20),
            options=FileOptions(block_bytes=256),
            environment=self.environment,
        )
        self.publisher = MemoryPublisher(self.environment)
        self.operator = find_operator("append")
        self.tree = Tree(
            self.files,
            file_set=self.publisher.file_set,
            first_sequence=1,
            options=Options(),
            publisher=self.publisher,
            operator=self.operator,
            retain_since_sequence=retain_since_sequence,
        )
        self.rows: list[Row] = []

    def write(self) -> None:
        """One row of some kind."""
        key = self.rng.choice(KEYS)
        sequence = self.tree.last_sequence + 1
        kind = self.rng.choices((Kind.PUT, Kind.DELETE, Kind.MERGE), (5, 2, 2))[0]
        value = b"" if kind == Kind.DELETE else b"%d," % sequence
        with self.tree.lock:
            if kind == Kind.PUT:
                self.tree.active.put(key, value)
            elif kind == Kind.DELETE:
                self.tree.active.delete(key)
            else:
                self.tree.active.merge(key, value)
        self.rows.append(Row(key, sequence, kind, value, None))

    def flush(self) -> None:
        """Everything into files."""
        with self.tree.lock:
            self.tree.rotate(self.tree.last_sequence)
        while self.tree.flush_once():
            pass

    def expected(self, key: bytes, sequence: int) -> bytes | None:
        """What a key reads as at a sequence, from everything ever written."""
        versions = [row for row in reversed(self.rows) if row.key == key and row.sequence <= sequence]
        return resolve_rows(versions, now_ms=0, operator=self.operator)

    def at(self, sequence: int) -> View:
        """The files alone, as a reader of another process sees them."""
        return View(
            memtables=(),
            file_set=self.publisher.file_set,
            sequence=sequence,
            operator=self.operator,
            environment=self.environment,
            files=self.files,
        )

    def check(self, since: int) -> int:
        """Every version from `since` on reads as it was; returns how many were looked at."""
        versions = range(since, self.publisher.last_sequence + 1)
        for sequence in versions:
            expected = {key: self.expected(key, sequence) for key in KEYS}
            view = self.at(sequence)
            assert dict(zip(KEYS, view.get_many(KEYS), strict=True)) == expected, sequence
            assert dict(view.scan()) == {key: value for key, value in expected.items() if value is not None}, sequence
        return len(versions)


@pytest.mark.parametrize("seed", range(4))
def test_every_retained_version_stays_readable(seed: int) -> None:
    """After many flushes and compactions every sequence from the retained one on reads as it did."""
    timeline = Timeline(seed, retain_since_sequence=40)
    compaction_count = 0
    for _ in range(14):
        for _ in range(timeline.rng.randint(1, 25)):
            timeline.write()
        timeline.flush()
        while timeline.rng.random() < 0.7 and timeline.tree.compact_once():
            compaction_count += 1
    timeline.check(max(40, timeline.publisher.last_sequence - 60))
    assert timeline.tree.compact_full()
    assert timeline.check(40) > 50
    assert compaction_count > 2
    assert len(timeline.publisher.file_set.runs) == 1


def test_history_that_is_let_go_is_given_back() -> None:
    """When the oldest retained sequence moves on, a full compaction drops what only older readers could see."""
    timeline = Timeline(1, retain_since_sequence=0)
    for _ in range(6):
        for _ in range(60):
            timeline.write()
        timeline.flush()
    timeline.tree.compact_full()
    assert sum(file.row_count for file in timeline.publisher.file_set.files()) == len(timeline.rows)
    timeline.check(0)
    timeline.tree.retain_since_sequence = 300
    timeline.tree.compact_full()
    timeline.check(300)
    assert sum(file.row_count for file in timeline.publisher.file_set.files()) <= 60 + len(KEYS)
    timeline.tree.retain_since_sequence = None
    timeline.tree.compact_full()
    assert sum(file.row_count for file in timeline.publisher.file_set.files()) <= len(KEYS)
    assert timeline.check(timeline.publisher.last_sequence) == 1


def test_tokens_arrive_in_the_order_of_writing() -> None:
    """The store gets the token of each memtable once, with its last sequence, so that it can cut its own log."""
    timeline = Timeline(2, retain_since_sequence=0)
    ends = []
    for _ in range(5):
        for _ in range(10):
            timeline.write()
        ends.append(timeline.tree.last_sequence)
        timeline.flush()
    assert timeline.publisher.tokens == ends
    assert timeline.publisher.last_sequence == ends[-1]
