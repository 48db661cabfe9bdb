"""Writers, readers, flushers and compactors on one tree, interleaved at every lock and request, with faults.

Each key holds a counter. A reader notes what was written before it asks: it must never read less, and the counters that
it reads one after the other never fall. At the end files alone hold everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

import pytest

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.lsm.cache import BlockCache, RowCache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.tree import Tree
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.testing import FaultRates, Scheduler, seed_count
from worlds.memory_publisher import MemoryPublisher

NUMBERS = count()
KEYS = [b"a", b"b", b"c", b"d"]
FAULTS = FaultRates(error_before=0.02, lost_request=0.02, lost_reply=0.03, late=0.02, pause=0.1, pause_steps_max=100)


@dataclass(frozen=True)
class Options:
    """Small ones."""

    l0_compaction_count: int = 2
    run_compaction_count: int = 2
    run_file_bytes: int = 512
    row_cache_bytes: int = 900  # two rows a generation: most reads go to the files
    transaction_history_bytes_max: int = 1 << 20


class World:
    """One tree in one simulation."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed, faults=FAULTS)
        self.environment = self.scheduler.environment()
        self.store = open_store(f"memory://lsm-races-{next(NUMBERS)}")
        self.files = self.file_store(self.environment)
        self.publisher = MemoryPublisher(self.environment, at=self.at)
        self.tree = Tree(
            self.files,
            file_set=self.publisher.file_set,
            first_sequence=1,
            options=Options(),
            publisher=self.publisher,
            operator=None,
        )
        self.rng = random.Random(seed)
        self.written = dict.fromkeys(KEYS, 0)

    def file_store(self, environment: Environment) -> FileStore:
        """Files through faults, without a cache of blocks: every read of one is a request."""
        return FileStore(
            self.scheduler.store(self.store),
            path_of=lambda id: f"sst/{id}.sst",
            cache=BlockCache(0),
            options=FileOptions(block_bytes=128),
            environment=environment,
        )

    def at(self, step: str) -> None:
        """Publishing is a request like any other: others may run, and it may fail."""
        self.scheduler.switch(step)
        if self.rng.random() < 0.1:
            raise OutcomeUnknown(f"no answer {step}")

    def spawn(self, name: str, step: Callable[[random.Random], None], rounds: int) -> None:
        """An actor that repeats a step, and continues when the store does not answer."""
        rng = random.Random(f"{name} {self.scheduler.seed}")

        def live() -> None:
            for _ in range(rounds):
                self.scheduler.switch("think")  # reads from memory give way nowhere
                try:
                    step(rng)
                except (Unavailable, OutcomeUnknown):
                    continue

        self.scheduler.spawn(name, live)

    def write(self, rng: random.Random) -> None:
        """Count a key up, and bring it to a file soon: the less is in memory, the more the rest is put to the test."""
        key = rng.choice(KEYS)
        with self.tree.lock:
            value = self.written[key] + 1
            self.tree.active.put(key, b"%d" % value)
            self.written[key] = value
            self.tree.rotate(None)
        if rng.random() < 0.7:
            self.tree.flush_once()

    def read(self, rng: random.Random) -> None:
        """Read one key twice."""
        key = rng.choice(KEYS)
        low = self.written[key]
        for _ in range(2):
            result = int(self.tree.latest(key) or 0)
            assert result >= low, (key, result, low)
            low = result

    def view(self, rng: random.Random) -> None:
        """Read all keys of one moment, by key and by scan."""
        with self.tree.lock:
            view, expected = (
                self.tree.view_locked(),
                {key: b"%d" % self.written[key] for key in KEYS if self.written[key]},
            )
        assert dict(view.scan()) == expected
        assert {
            key: value for key, value in zip(KEYS, view.get_many(KEYS), strict=True) if value is not None
        } == expected

    def run(self) -> None:
        """All at once, then the check of what is in files."""
        for key in KEYS:
            self.written[key] = 1
            self.tree.active.put(key, b"1")
        self.tree.rotate(None)
        for number in range(2):
            self.spawn(f"writer {number}", self.write, 8)
            self.spawn(f"reader {number}", self.read, 25)
            self.spawn(f"flusher {number}", lambda rng: void(self.tree.flush_once()), 6)
            self.spawn(f"compactor {number}", lambda rng: void(self.tree.compact_once()), 6)
        self.spawn("reader 2", self.read, 25)
        self.spawn("viewer", self.view, 5)
        self.spawn("poller", lambda rng: void(self.tree.poll_once()), 5)
        self.scheduler.run()
        self.publisher.at = lambda step: None
        assert {key: self.tree.latest(key) for key in KEYS} == {key: b"%d" % self.written[key] for key in KEYS}
        with self.tree.lock:
            self.tree.rotate(None)
        while self.tree.flush_once():
            pass
        assert len(self.publisher.published_ids) == len(set(self.publisher.published_ids))
        assert self.tree.file_set == self.publisher.file_set
        expected = {key: b"%d" % self.written[key] for key in KEYS}
        assert dict(self.tree.view().scan()) == expected
        assert {key: self.tree.latest(key) for key in KEYS} == expected


def void(result: object) -> None:
    """Forget a result."""


def test_races_on_one_tree() -> None:
    """No read is older than what was written before it, no view changes, and no row is lost or published twice."""
    for seed in range(seed_count(18)):
        try:
            World(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def keep_old_rows(patch: pytest.MonkeyPatch) -> None:
    """The row cache forgets nothing when a key is flushed anew."""
    patch.setattr(RowCache, "discard", lambda self, keys: None)


def discard_without_a_generation(patch: pytest.MonkeyPatch) -> None:
    """Keys are discarded, and yet a value is taken from any reader, however long ago the files were read."""

    def discard(self: RowCache, keys: Collection[bytes]) -> None:
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)

    patch.setattr(RowCache, "discard", discard)


def show_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """Sets are published and shown without taking turns: an older one may be shown after a newer one."""
    init = Tree.__init__

    def without_turns(self: Tree, *args: object, **settings: object) -> None:
        init(self, *args, **settings)  # type: ignore[arg-type]
        self._publication_turn = Free()

    patch.setattr(Tree, "__init__", without_turns)


class Free:
    """A lock that excludes no thread."""

    def __enter__(self) -> Free:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


@pytest.mark.parametrize("mutation", [keep_old_rows, discard_without_a_generation, show_out_of_turn])
def test_mutations_are_found(
    mutation: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    found_at_seed: Callable[[str, str, int], None],
) -> None:
    """Each rule of the tree, undone, breaks a promise within 200 seeds."""
    mutation(monkeypatch)
    for seed in range(200):
        try:
            World(seed).run()
        except BaseException:
            found_at_seed("races on one tree", mutation.__name__, seed)
            return
    pytest.fail(f"{mutation.__name__} was not found in 200 seeds")
