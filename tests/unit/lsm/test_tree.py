"""The tree: reads through memory, cache and files, and the steps that move rows downwards."""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from lakebed.errors import Conflict, Corruption, Fenced, OutcomeUnknown, Unavailable
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import FileSet
from lakebed.lsm.operators import find_operator
from lakebed.lsm.tree import Tree
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.testing import Call, Fault, FaultyStore, ManualClock
from lakebed.testing.wrapper import StoreWrapper
from worlds.memory_publisher import MemoryPublisher

NUMBERS = count()


@dataclass(frozen=True)
class Options:
    """Small ones."""

    l0_compaction_count: int = 3
    run_compaction_count: int = 3
    run_file_bytes: int = 4_096
    row_cache_bytes: int = 1 << 20
    transaction_history_bytes_max: int = 1 << 20


class HookedStore(StoreWrapper):
    """Calls a function of the test before each read of a file."""

    on_read: Callable[[], None] = staticmethod(lambda: None)

    def intercept(self, call: Call, perform: Callable[[], object]) -> object:  # type: ignore[override]
        """Report reads."""
        if call.kind in ("get", "get_ranges"):
            self.on_read()
        return perform()


@dataclass
class World:
    """A tree over a store in memory, or at a URL, where files are mapped."""

    options: Options = Options()
    operator: str | None = None
    faults: dict[int, Fault] = field(default_factory=dict)
    retain_since_sequence: int | None = None
    url: str | None = None
    cache: BlockCache = field(default_factory=lambda: BlockCache(0))
    """By default every read of a file is a request, at which a test can step in."""

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.environment = Environment(clock=self.clock, rng=random.Random("tree"))
        inner = open_store(self.url or f"memory://tree-{next(NUMBERS)}", environment=self.environment)
        self.hooked = inner if self.url else HookedStore(FaultyStore(inner, faults=self.faults))
        self.files = FileStore(
            self.hooked,
            path_of=lambda id: f"sst/{id}.sst",
            cache=self.cache,
            options=FileOptions(block_bytes=256),
            environment=self.environment,
        )
        self.publisher = MemoryPublisher(self.environment)
        self.tree = Tree(
            self.files,
            file_set=self.publisher.file_set,
            first_sequence=1,
            options=self.options,
            publisher=self.publisher,
            operator=None if self.operator is None else find_operator(self.operator),
            retain_since_sequence=self.retain_since_sequence,
        )

    def put(self, key: bytes, value: bytes, expires_at_ms: int | None = None) -> None:
        """Write a row."""
        with self.tree.lock:
            self.tree.active.put(key, value, expires_at_ms)

    def delete(self, key: bytes) -> None:
        """Write a tombstone."""
        with self.tree.lock:
            self.tree.active.delete(key)

    def merge(self, key: bytes, operand: bytes) -> None:
        """Write an operand."""
        with self.tree.lock:
            self.tree.active.merge(key, operand)

    def rotate(self, token: object = None) -> None:
        """Begin another memtable."""
        with self.tree.lock:
            self.tree.rotate(token)

    def flush(self) -> None:
        """Everything into files."""
        self.rotate()
        while self.tree.flush_once():
            pass

    def paths(self) -> list[str]:
        """All files in the store."""
        return [meta.path for meta in self.hooked.list("")]


PLACES: dict[str, Callable[[World], None]] = {
    "active": lambda world: None,
    "waiting": lambda world: world.rotate(),
    "files": lambda world: world.flush(),
    "compacted": lambda world: (world.flush(), world.tree.compact_full(), None)[2],
}


@pytest.mark.parametrize("place", PLACES)
def test_latest_finds_a_key_wherever_it_is(place: str) -> None:
    """A value, an end, a tombstone and operands read the same in memory, on the way, in files and merged."""
    world = World(operator="append")
    world.put(b"old", b"0")
    world.put(b"gone", b"0")
    world.put(b"sum", b"a")
    world.flush()
    world.put(b"new", b"1")
    world.put(b"old", b"2")
    world.delete(b"gone")
    world.put(b"ends", b"3", world.clock.now_ms() + 1_000)
    world.merge(b"sum", b"b")
    world.merge(b"sum", b"c")
    PLACES[place](world)
    for _ in range(2):
        result = {key: world.tree.latest(key) for key in (b"new", b"old", b"gone", b"ends", b"sum", b"never")}
        assert result == {b"new": b"1", b"old": b"2", b"gone": None, b"ends": b"3", b"sum": b"abc", b"never": None}
        assert result == {key: world.tree.view().get(key) for key in result}
    world.clock.advance(1.0)
    assert world.tree.latest(b"ends") is None


def test_a_view_does_not_change() -> None:
    """What was written, flushed or merged after a view was taken is not in it."""
    world = World()
    world.put(b"k", b"1")
    view = world.tree.view()
    world.put(b"k", b"2")
    world.flush()
    assert view.get(b"k") == b"1"
    assert list(view.scan()) == [(b"k", b"1")]
    assert world.tree.view().get(b"k") == b"2"


def test_rows_are_counted_until_they_are_in_files() -> None:
    """Unflushed bytes, waiting memtables, files of level 0 and generations show where rows are."""
    world = World()
    world.rotate()
    assert world.tree.waiting_count == 0
    world.put(b"k", b"1")
    in_memory = world.tree.unflushed_bytes
    world.rotate(7)
    assert (world.tree.waiting_count, world.tree.unflushed_bytes, world.tree.l0_count) == (1, in_memory, 0)
    assert world.tree.flush_once()
    assert (world.tree.waiting_count, world.tree.unflushed_bytes, world.tree.l0_count) == (0, 0, 1)
    assert (world.tree.generation, world.tree.last_sequence) == (1, 1)
    assert not world.tree.flush_once()
    assert world.publisher.tokens == [7]
    assert world.tree.file_set is world.publisher.file_set


def test_memtables_are_flushed_oldest_first() -> None:
    """Whatever waits becomes files in the order of writing, and the newest value is found throughout."""
    world = World()
    for value in (b"1", b"2", b"3"):
        world.put(b"k", value)
        world.rotate(value)
    for _ in range(3):
        assert world.tree.latest(b"k") == b"3"
        assert world.tree.flush_once()
    assert world.tree.latest(b"k") == b"3"
    assert world.publisher.tokens == [b"1", b"2", b"3"]
    ids = [file.id for file in world.tree.file_set.l0]
    assert ids == sorted(ids, reverse=True)


def test_recovered_memtables_wait() -> None:
    """Memtables read back from a log are read, and flushed oldest first before what is written since."""
    world = World()
    older, newer = Memtable(1), Memtable(2)
    older.put(b"k", b"1")
    newer.put(b"k", b"2")
    tree = Tree(
        world.files,
        file_set=FileSet(),
        first_sequence=3,
        options=world.options,
        publisher=world.publisher,
        operator=None,
        recovered=[(older, "older"), (newer, "newer")],
    )
    assert tree.latest(b"k") == b"2"
    assert tree.last_sequence == 2
    while tree.flush_once():
        assert tree.latest(b"k") == b"2"
    assert world.publisher.tokens == ["older", "newer"]


@pytest.mark.parametrize("faults", [{0: Fault.ERROR_BEFORE}, dict.fromkeys(range(4), Fault.LOST_REQUEST)])
def test_a_flush_whose_file_was_not_written_is_repeated(faults: dict[int, Fault]) -> None:
    """The store fails at the file: nothing changes, and the next try publishes one file."""
    world = World(faults=faults)
    world.put(b"k", b"1")
    world.rotate()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        world.tree.flush_once()
    assert world.tree.waiting_count == 1
    assert world.tree.latest(b"k") == b"1"
    assert world.tree.flush_once()
    assert world.paths() == [f"sst/{world.tree.file_set.l0[0].id}.sst"]
    assert world.tree.latest(b"k") == b"1"


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
def test_a_flush_survives_a_lost_reply(fault: Fault) -> None:
    """Whether the file landed or not: the same bytes again, under the same name."""
    world = World(faults={0: fault})
    world.put(b"k", b"1")
    world.rotate()
    assert world.tree.flush_once()
    assert world.paths() == [f"sst/{world.tree.file_set.l0[0].id}.sst"]


def test_a_file_that_could_not_be_synced_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports the failure once: putting it again would succeed, and the log would go, with bytes lost."""
    world = World(url=str(tmp_path))
    world.put(b"k", b"1")
    world.rotate()
    sync, failures = os.fsync, [errno.EIO]

    def sync_folder_in_vain(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and failures:
            raise OSError(failures.pop(), "input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_folder_in_vain)
    with pytest.raises(OutcomeUnknown, match="may be gone after a power loss"):
        world.tree.flush_once()
    [unsynced] = world.paths()
    assert world.tree.latest(b"k") == b"1"
    assert world.tree.flush_once()
    assert f"sst/{world.tree.file_set.l0[0].id}.sst" in set(world.paths()) - {unsynced}


@pytest.mark.parametrize("step", ["before flushed", "after flushed"])
def test_a_flush_whose_publication_failed_is_repeated_with_the_same_file(step: str) -> None:
    """Publishing fails, or its reply is lost: the same file is published, once, by the next try."""
    world = World()
    failures = [step]

    def fail(now: str) -> None:
        if now in failures:
            failures.remove(now)
            raise OutcomeUnknown("no answer")

    world.publisher.at = fail
    world.put(b"k", b"1")
    world.rotate()
    with pytest.raises(OutcomeUnknown):
        world.tree.flush_once()
    assert world.tree.latest(b"k") == b"1"
    world.put(b"k", b"2")
    world.rotate()
    while world.tree.flush_once():
        pass
    assert world.tree.latest(b"k") == b"2"
    assert len(world.publisher.published_ids) == len(set(world.publisher.published_ids)) == 2
    assert len(world.paths()) == 2


def test_many_threads_flush_and_compact_at_once() -> None:
    """Steps called by many threads run one at a time, and every memtable becomes one file."""
    world = World(Options(l0_compaction_count=4))
    for number in range(12):
        world.put(b"%d" % number, b"v")
        world.rotate(number)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while world.tree.flush_once():
                world.tree.compact_once()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert world.publisher.tokens == list(range(12))
    assert len(set(world.publisher.published_ids)) == 12
    assert [world.tree.latest(b"%d" % number) for number in range(12)] == [b"v"] * 12


# ---- the row cache


def test_a_cached_row_goes_when_its_key_is_flushed_anew() -> None:
    """After a newer write was flushed, or the key was deleted, the old value is never served from the cache."""
    world = World()
    world.put(b"k", b"1")
    world.put(b"other", b"1")
    world.flush()
    assert world.tree.latest(b"k") == world.tree.latest(b"other") == b"1"
    world.put(b"k", b"2")
    assert world.tree.latest(b"k") == b"2"
    world.flush()
    assert world.tree.latest(b"k") == b"2"
    world.delete(b"k")
    world.flush()
    assert world.tree.latest(b"k") is None
    reads: list[int] = []
    world.hooked.on_read = lambda: reads.append(1)  # type: ignore[method-assign]
    assert world.tree.latest(b"other") == b"1"
    assert not reads


def test_a_late_reader_does_not_put_an_old_value_into_the_cache() -> None:
    """A read of old files that ends after a newer value was flushed may answer with the old one, but not keep it."""
    world = World()
    world.put(b"k", b"1")
    world.flush()

    def overtake() -> None:
        world.hooked.on_read = lambda: None  # type: ignore[method-assign]
        world.put(b"k", b"2")
        world.flush()

    world.hooked.on_read = overtake  # type: ignore[method-assign]
    assert world.tree.latest(b"k") in (b"1", b"2")
    assert world.tree.latest(b"k") == b"2"


def test_a_reader_between_discarding_and_showing_keeps_nothing_old() -> None:
    """While a flush is being published, a read of the older files does not leave a value for after it."""
    world = World()
    world.put(b"k", b"1")
    world.flush()
    shown_before: list[bytes | None] = []
    late = world.tree._shown

    def read_late(step: str) -> None:
        if step == "after flushed":
            shown_before.append(world.tree._latest_in_files(b"k", late))

    world.put(b"k", b"2")
    world.publisher.at = read_late
    world.flush()
    assert shown_before == [b"1"]
    assert world.tree.latest(b"k") == b"2"
    assert world.tree._latest_in_files(b"k", late) == b"1"
    assert world.tree.latest(b"k") == b"2"


def test_a_set_published_elsewhere_empties_the_cache() -> None:
    """After the version was replaced by another, such as a restored one, nothing of the old one is served."""
    world = World()
    world.put(b"k", b"1")
    world.flush()
    restored = world.publisher.file_set
    world.put(b"k", b"2")
    world.flush()
    assert world.tree.latest(b"k") == b"2"
    late = world.tree._shown
    world.publisher.file_set = restored
    generation = world.tree.generation
    assert world.tree.poll_once()
    assert world.tree.generation == generation + 1
    assert world.tree._latest_in_files(b"k", late) == b"2"
    assert world.tree.latest(b"k") == b"1"
    assert not world.tree.poll_once()
    assert world.tree.generation == generation + 1


def test_a_view_takes_cached_rows_of_its_own_moment_alone() -> None:
    """Many keys asked of a view read what is cached of its files, and never a newer row that a later get has cached."""
    world = World()
    world.put(b"a", b"1")
    world.put(b"b", b"1")
    world.flush()
    view = world.tree.view()
    assert world.tree.latest(b"a") == b"1"
    reads: list[int] = []
    world.hooked.on_read = lambda: reads.append(1)
    assert view.get_many([b"a", b"a"]) == [b"1", b"1"]
    assert not reads, "what was cached was read again"
    world.put(b"a", b"2")
    world.put(b"b", b"2")
    newer = world.tree.view()
    world.flush()
    assert [world.tree.latest(key) for key in (b"a", b"b")] == [b"2", b"2"]
    assert view.get_many([b"a", b"b", b"c"]) == [b"1", b"1", None]
    assert newer.get_many([b"b", b"a"]) == [b"2", b"2"]
    assert world.tree.view().get_many([b"a", b"b"]) == [b"2", b"2"]


def test_many_keys_of_which_the_cache_of_rows_has_some() -> None:
    """Whether it has the first of them or not, each is answered, and of what it has no block is read."""
    cache = BlockCache(1 << 20)
    world = World(cache=cache)
    model = {b"%02d" % number: b"v%d" % number for number in range(40)}
    for key, value in model.items():
        world.put(key, value)
    world.flush()
    kept = list(model)[:20]
    assert [world.tree.latest(key) for key in kept] == [model[key] for key in kept]
    reads: list[int] = []
    world.hooked.on_read = lambda: reads.append(1)
    cache.clear()
    assert world.tree.view().get_many([b"x", *kept]) == [None, *(model[key] for key in kept)]
    assert len(reads) == 1, "more was read than filter and index"
    for keys in ([*model, b"x"], [b"x", *reversed(model)]):
        assert world.tree.view().get_many(keys) == list(map(model.get, keys))


def test_many_keys_are_read_from_files_once() -> None:
    """A database that is asked for many keys at a time alone keeps their rows as it keeps those of single gets."""
    cache = BlockCache(1 << 20)
    world = World(cache=cache)
    model = {b"%02d" % number: b"v%d" % number for number in range(40)}
    for key, value in model.items():
        world.put(key, value)
    world.flush()
    assert world.tree.view().get_many(list(model)) == list(model.values())
    reads: list[int] = []
    world.hooked.on_read = lambda: reads.append(1)
    cache.clear()
    assert world.tree.view().get_many(list(model)) == list(model.values())
    assert world.tree.latest(b"07") == model[b"07"]
    assert not reads


def test_a_late_read_of_many_keys_keeps_no_old_value() -> None:
    """A read of old files that ends after a newer value was flushed answers with the old one, and does not keep it."""
    world = World()
    world.put(b"k", b"1")
    world.flush()

    def overtake() -> None:
        world.hooked.on_read = lambda: None  # type: ignore[method-assign]
        world.put(b"k", b"2")
        world.flush()

    world.hooked.on_read = overtake  # type: ignore[method-assign]
    assert world.tree.view().get_many([b"k"]) == [b"1"]
    assert world.tree.latest(b"k") == b"2"
    assert world.tree.view().get_many([b"k"]) == [b"2"]


def test_values_that_end_are_not_cached() -> None:
    """A value with an end, and one combined with such a value, are gone in time however often they were read."""
    world = World(operator="append")
    world.put(b"k", b"1", world.clock.now_ms() + 1_000)
    world.put(b"sum", b"a", world.clock.now_ms() + 1_000)
    world.flush()
    world.merge(b"sum", b"b")
    world.flush()
    for _ in range(3):
        assert world.tree.view().get_many([b"k", b"sum"]) == [b"1", b"ab"]
        assert (world.tree.latest(b"k"), world.tree.latest(b"sum")) == (b"1", b"ab")
    world.clock.advance(1.0)
    assert world.tree.view().get_many([b"k", b"sum"]) == [None, b"b"]
    assert (world.tree.latest(b"k"), world.tree.latest(b"sum")) == (None, b"b")


def test_a_missing_file_is_corruption_unless_the_set_has_changed() -> None:
    """A file that is gone is reported, but a read that was overtaken by a compaction and a collection starts again."""
    world = World()
    world.put(b"k", b"1")
    world.flush()
    world.put(b"l", b"1")
    world.flush()
    old = world.paths()

    def overtake() -> None:
        world.hooked.on_read = lambda: None  # type: ignore[method-assign]
        world.tree.compact_full()
        world.hooked.delete(old)

    world.hooked.on_read = overtake  # type: ignore[method-assign]
    assert world.tree.latest(b"k") == b"1"
    world.hooked.delete(world.paths())
    with pytest.raises(Corruption) as caught:
        world.tree.latest(b"l")
    assert caught.value.facts["path"].startswith("sst/")


# ---- compaction


def test_compaction_keeps_every_value_and_shows_the_new_set() -> None:
    """Level 0 becomes a run when there are enough files; a second call has nothing to do."""
    world = World()
    for number in range(3):
        for key in range(50):
            world.put(b"%03d" % key, b"%d" % number)
        world.flush()
    items: list[tuple[int, int]] = []
    assert world.tree.compact_once(lambda rows, size_bytes: items.append((rows, size_bytes)))
    assert items[-1][0] == 150
    assert (world.tree.l0_count, len(world.tree.file_set.runs)) == (0, 1)
    assert world.tree.file_set is world.publisher.file_set
    assert not world.tree.compact_once()
    assert dict(world.tree.view().scan()) == {b"%03d" % key: b"2" for key in range(50)}
    assert not world.publisher.jobs


@pytest.mark.parametrize("cache_is_full", [True, False])
def test_keys_of_several_mapped_files(tmp_path: Path, cache_is_full: bool) -> None:
    """Present, deleted and absent ones, singly and neighbours together, while files change: as a dictionary reads."""
    cache = BlockCache(1 << 20)
    if cache_is_full:
        cache.put("another", 0, b"", size_bytes=int(0.92 * cache.bytes_max))
    world = World(Options(l0_compaction_count=9, row_cache_bytes=0), url=str(tmp_path), cache=cache)
    asked = [b"%03d" % number for number in range(400)]
    model: dict[bytes, bytes] = {}
    for step, (first, size, width) in enumerate([(0, 300, 1), (100, 60, 3), (50, 90, 2), (0, 400, 7), (10, 50, 1)]):
        for key in asked[first : first + size : width]:
            if step % 2 and int(key) % 4 == 1:
                world.delete(key)
                model.pop(key, None)
            else:
                model[key] = b"%d" % step
                world.put(key, model[key])
        world.flush()
        if step == 3:
            world.tree.compact_full()
        for _ in range(3):  # what opens the files, and what remembers that they are open
            assert [world.tree.latest(key) for key in asked] == list(map(model.get, asked))
        for start in range(0, 400, 100):
            keys = asked[start : start + 100]
            assert world.tree.view().get_many(keys) == list(map(model.get, keys))


def test_filters_of_levels_of_several_mapped_files(tmp_path: Path) -> None:
    """Keys in files, between two of them, below and above all: each reads as in a dictionary, once filters are asked.

    A key between two files of the newer level, which a filter there may let pass, is found in the older one.
    """
    options = Options(l0_compaction_count=2, run_compaction_count=9, row_cache_bytes=0, run_file_bytes=2_048)
    world = World(options, url=str(tmp_path), cache=BlockCache(1 << 20))
    model: dict[bytes, bytes] = {}
    asked = [b"%05d" % number for number in range(4_000)]
    for value, numbers in ((b"old", range(500, 3_500)), (b"new", range(1_000, 3_000, 3))):
        for part in (numbers[::2], numbers[1::2]):
            for number in part:
                model[b"%05d" % number] = value * 9
                world.put(b"%05d" % number, value * 9)
            world.flush()
        assert world.tree.compact_once()
    for run_count in (2, 1):
        assert [len(run.files) > 3 for run in world.tree.file_set.runs] == [True] * run_count
        for _ in range(2):  # the first opens the files
            assert not [key for key in asked if world.tree.latest(key) != model.get(key)][:3]
        assert world.tree._shown.find_level is not None
        world.tree.compact_full()


@pytest.mark.parametrize("seed", range(2))
def test_absent_and_cached_keys_in_turn(tmp_path: Path, seed: int) -> None:
    """Keys that filters deny, and such as the cache of rows has, in any order and as they change: as a dictionary."""
    chance = random.Random(seed)
    world = World(Options(l0_compaction_count=9), url=str(tmp_path), cache=BlockCache(1 << 20))
    keys = [b"%03d" % number for number in range(200)]
    model: dict[bytes, bytes] = {}
    for step in range(12):
        for key in chance.sample(keys[20:180:2], 40):
            if step > 2 and chance.random() < 0.3:
                world.delete(key)
                model.pop(key, None)
            else:
                world.put(key, b"%d" % step)
                model[key] = b"%d" % step
        if step % 2:
            world.flush()
        if step == 7:
            world.tree.compact_full()
        for _ in range(3):
            asked = [*chance.choices(keys[1::2], k=20), *chance.choices(list(model), k=20), *chance.choices(keys, k=40)]
            chance.shuffle(asked)
            asked += sorted(asked, key=model.__contains__)
            wrong = [key for key in asked if world.tree.latest(key) != model.get(key)]
            assert not wrong[:3]


def test_keys_of_a_waiting_memtable_between_absent_ones(tmp_path: Path) -> None:
    """What is in no file yet is found also right behind keys that the filters of all files deny, again and again."""
    world = World(url=str(tmp_path), cache=BlockCache(1 << 20))
    for number in range(0, 100, 2):
        world.put(b"%02d" % number, b"in a file")
    world.flush()
    world.put(b"51", b"waits")
    world.rotate()
    for key in (b"50", b"50", b"49", b"49"):  # the first of them open the file and make what asks its filter
        assert world.tree.latest(key) == (None if key == b"49" else b"in a file")
    assert world.tree._shown.find_level is not None
    for _ in range(2):
        assert world.tree.latest(b"51") == b"waits"
        assert world.tree.latest(b"53") is None


@pytest.mark.parametrize("row_cache_bytes", [0, 1 << 20])
def test_many_keys_of_levels_of_several_mapped_files(tmp_path: Path, row_cache_bytes: int) -> None:
    """Mixed, absent, present, neighbouring and repeated keys of two runs read as in a dictionary, call after call.

    Absent keys that are between two files, below and above all are among them; so are operands, whose values are of
    both runs, deletions, and what was asked of an older moment.
    """
    chance = random.Random(row_cache_bytes)
    options = Options(
        l0_compaction_count=2, run_compaction_count=9, row_cache_bytes=row_cache_bytes, run_file_bytes=2_048
    )
    world = World(options, operator="append", url=str(tmp_path), cache=BlockCache(1 << 20))
    model: dict[bytes, bytes] = {}
    numbers = range(500, 3_500)
    for value, some in ((b"old", numbers), (b"new", [*range(1_000, 1_900, 3), *range(2_100, 3_000, 3)])):
        for part in (some[::2], some[1::2]):
            for number in part:
                key, kind = b"%05d" % number, number % 4 if value == b"new" else 0
                if kind == 1:
                    world.delete(key)
                    model.pop(key, None)
                elif kind == 2:
                    world.merge(key, value)
                    model[key] = model.get(key, b"") + value
                else:
                    world.put(key, value * 9)
                    model[key] = value * 9
            world.flush()
        assert world.tree.compact_once()
    assert [len(run.files) > 3 for run in world.tree.file_set.runs] == [True, True]
    older, before = world.tree.view(), dict(model)
    for number in (0, 600, 1_000, 2_000, 9_999):
        world.put(b"%05d" % number, b"newest")
        model[b"%05d" % number] = b"newest"
    absent = [b"%05d?" % number for number in range(4_000)]
    kinds = [
        lambda: chance.sample(absent, 100),
        lambda: chance.sample(absent, 60) + [b"%05d" % number for number in chance.sample(numbers, 40)],
        lambda: chance.sample(absent, 90) + [b"%05d" % number for number in chance.sample(numbers, 6)] * 2,
        lambda: [b"%05d" % number for number in chance.choices(numbers, k=100)],
        lambda: [b"%05d" % (chance.randrange(3_400) + place) for place in range(50)],
        lambda: [b"%05d" % number for number in range(4_000)[chance.randrange(3_900) :][:60]],
        lambda: [key + b"/" * chance.randrange(3) for key in chance.choices(absent, k=700)],
    ]
    for view, expected in ((world.tree.view(), model), (older, before)):
        for _ in range(2):
            for kind in kinds:
                for _ in range(10):  # as many of one kind as it takes to remember what most of them are
                    keys = kind()
                    values = list(map(expected.get, keys))
                    wrong = [
                        key for key, was, value in zip(keys, view.get_many(keys), values, strict=True) if was != value
                    ]
                    assert not wrong[:3]
    assert world.tree._shown.files_view.levels._filter is not None


@pytest.mark.parametrize("seed", range(4))
def test_many_keys_read_as_a_dictionary(tmp_path: Path, seed: int) -> None:
    """In memory, in levels of mapped files and in both, now and as of an older view: present, gone, repeated ones."""
    chance = random.Random(seed)
    options = Options(l0_compaction_count=9, row_cache_bytes=chance.choice([0, 1 << 20]))
    world = World(options, operator="append", url=str(tmp_path), cache=BlockCache(1 << 20))
    keys = [b"%d" % number * (1 + number % 3) for number in range(240)]
    model: dict[bytes, tuple[bytes, int | None]] = {}

    def read(model: dict[bytes, tuple[bytes, int | None]], key: bytes) -> bytes | None:
        value, ends_ms = model.get(key, (None, None))
        return None if ends_ms is not None and ends_ms <= world.clock.now_ms() else value

    for step in range(40):
        before, view = dict(model), world.tree.view()
        written = chance.sample(keys[:200], chance.choice([1, 8, 40]))
        plain = chance.random() < 0.4  # then the newest rows of all of them are values or deletions
        for key in written:
            act, value = chance.random(), b"%d" % step
            if act < 0.2:
                world.delete(key)
                model.pop(key, None)
            elif act < 0.4 and not plain and len(key) % 3 == 0:
                world.merge(key, value)
                model[key] = ((read(model, key) or b"") + value, None)
            elif act < 0.6 and not plain and len(key) % 3:
                model[key] = value, world.clock.now_ms() + chance.randrange(1, 3_000)
                world.put(key, *model[key])
            else:
                model[key] = value, None
                world.put(key, value)
        for asked in (written, written[:7] * 2, chance.choices(keys, k=90), chance.choices(keys[200:], k=30), keys[:3]):
            assert world.tree.view().get_many(asked) == [read(model, key) for key in asked]
            assert view.get_many(asked) == [read(before, key) for key in asked]
            assert [world.tree.latest(key) for key in asked] == [read(model, key) for key in asked]
        assert world.tree.view().get_many([]) == view.get_many([]) == []
        for act in chance.sample([world.rotate, world.flush, world.tree.compact_full], chance.choice([0, 0, 1, 2])):
            act()
        world.clock.advance(chance.random())


@pytest.mark.parametrize("row_cache_bytes", [0, 40 << 10])
def test_many_keys_of_every_kind_of_row(tmp_path: Path, row_cache_bytes: int) -> None:
    """In any order, some twice, of mapped files in several levels and a memtable: each reads as it does alone."""
    rng = random.Random(7)
    options = Options(l0_compaction_count=9, row_cache_bytes=row_cache_bytes)
    cache = BlockCache(1 << 20)
    cache.put("another", 0, b"", size_bytes=int(0.92 * cache.bytes_max))  # so that pages are read, and not blocks
    world = World(options, operator="append", url=str(tmp_path), cache=cache)
    asked = [b"%d" % number * (1 if number % 9 else 1 + number) for number in range(160)]
    assert max(map(len, asked)) > 300
    asked.append(b"long" * 2_000)
    model: dict[bytes, bytes] = {}
    for step in range(6):
        for number, key in enumerate(asked):
            if step and rng.random() < 0.7:
                continue
            value = rng.choice([b"", b"v%d" % step, bytes(rng.randrange(90)), b"page" * 1_500])
            match (number + step) % 8 if step else 0:
                case 1:
                    world.delete(key)
                    model.pop(key, None)
                case 2:
                    world.merge(key, b"+")
                    model[key] = model.get(key, b"") + b"+"
                case 3:
                    world.put(key, value, world.clock.now_ms() + 1_000)
                    model.pop(key, None)  # it ends before it is read
                case _:
                    world.put(key, value)
                    model[key] = value
        world.clock.advance(2.0)
        if step < 5:
            world.flush()
        if step in (0, 3):
            world.tree.compact_full()
        for count_of_keys in (20, len(asked), *(40,) * 9):
            keys = [*rng.sample(asked, count_of_keys), *rng.choices(asked, k=5)]
            if step % 2:
                keys += [key + b"!" for key in keys[::9]]
            expected = list(map(model.get, keys))
            assert world.tree.view().get_many(keys) == expected
            assert list(map(world.tree.latest, keys)) == expected


@pytest.mark.parametrize("step", ["before compacted", "after compacted"])
def test_a_compaction_whose_publication_failed_changes_nothing(step: str) -> None:
    """Publishing fails, or its reply is lost: reads go on, the job is ended, and the next try succeeds."""
    world = World()
    for number in range(3):
        world.put(b"k", b"%d" % number)
        world.flush()

    def fail(now: str) -> None:
        if now == step:
            raise OutcomeUnknown("no answer")

    world.publisher.at = fail
    with pytest.raises(OutcomeUnknown):
        world.tree.compact_once()
    assert not world.publisher.jobs
    assert world.tree.latest(b"k") == b"2"
    world.publisher.at = lambda step: None
    world.tree.compact_once()
    assert world.tree.latest(b"k") == b"2"
    assert (len(world.publisher.file_set.l0), len(world.publisher.file_set.runs)) == (0, 1)
    assert world.tree.file_set == world.publisher.file_set


def test_a_compaction_whose_inputs_were_taken_away_is_planned_anew() -> None:
    """When another set was published meanwhile, the current one is merged; after three tries it is an error."""
    world = World()
    for number in range(4):
        world.put(b"%d" % number, b"v")
        world.flush()
    published = world.publisher.file_set
    world.publisher.file_set = replace_l0(published, 3)
    assert world.tree.compact_once()
    assert [file.row_count for run in world.tree.file_set.runs for file in run.files] == [3]
    world.publisher.file_set = published
    world.tree.poll_once()

    def take_away(step: str) -> None:
        if step == "before compacted":
            published_now = world.publisher.file_set
            world.publisher.file_set = FileSet(tuple(reversed(published_now.l0)))

    world.publisher.at = take_away
    with pytest.raises(Conflict):
        world.tree.compact_once()
    assert not world.publisher.jobs


def replace_l0(file_set: FileSet, file_count: int) -> FileSet:
    """The oldest files alone."""
    return FileSet(file_set.l0[-file_count:], file_set.runs)


def test_a_missing_input_is_corruption() -> None:
    """A compaction that cannot find a file of the newest version says so and ends its job."""
    world = World()
    for number in range(3):
        world.put(b"k", b"%d" % number)
        world.flush()
    world.hooked.delete(world.paths()[:1])
    with pytest.raises(Corruption):
        world.tree.compact_once()
    assert not world.publisher.jobs


def test_a_fenced_tree_publishes_nothing() -> None:
    """Once another owner has taken over, no step publishes, and each says so."""
    world = World()
    for number in range(3):
        world.put(b"k", b"%d" % number)
        world.flush()
    world.put(b"k", b"3")
    world.rotate()
    world.publisher.is_fenced = True
    before = world.publisher.file_set
    for step in (world.tree.flush_once, world.tree.compact_once, world.tree.compact_full, world.tree.poll_once):
        with pytest.raises(Fenced):
            step()
    assert world.publisher.file_set is before


# ---- history for transactions


def test_writes_are_remembered_while_a_transaction_is_open() -> None:
    """A key written since a transaction began is found, also when it was flushed; afterwards memory is given back."""
    world = World()
    world.put(b"before", b"1")
    with world.tree.lock:
        since = world.tree.last_sequence
        world.tree.hold_history(since)
        world.tree.hold_history(since)
    world.put(b"during", b"1")
    world.flush()
    world.put(b"later", b"1")
    with world.tree.lock:
        assert not world.tree.written_since(b"before", since)
        assert world.tree.written_since(b"during", since)
        assert world.tree.written_since(b"later", since)
        assert not world.tree.written_since(b"during", world.tree.last_sequence)
        world.tree.release_history(since)
        assert world.tree.written_since(b"during", since)
        assert [key for memtable in world.tree.memtables_since(since) for key in memtable.written_since(since)] == [
            b"later",
            b"during",
        ]
        world.tree.release_history(since)
        with pytest.raises(Conflict) as caught:
            world.tree.written_since(b"during", since)
        assert caught.value.kind == "history_gone"
        assert not world.tree.written_since(b"during", 2)


def test_the_history_is_bounded() -> None:
    """A transaction that outlives what is kept is refused; a younger one is not."""
    world = World(replace(Options(), transaction_history_bytes_max=600))
    with world.tree.lock:
        world.tree.hold_history(0)
        world.tree.hold_history(3)
    for number in range(5):
        world.put(b"%d" % number, b"v")
        world.flush()
    with world.tree.lock:
        with pytest.raises(Conflict):
            world.tree.written_since(b"0", 0)
        assert world.tree.written_since(b"4", 3)
        assert not world.tree.written_since(b"2", 3)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_sequence_is_skipped_where_rows_were_taken_back(count: int) -> None:
    """What is read before and after can be told apart; the next row follows, and a flush brings what is left."""
    world = World()
    for number in range(count):
        world.put(b"k%d" % number, b"v")
    world.rotate()
    last = world.tree.last_sequence
    with world.tree.lock:
        world.tree.begin_after_loss()
    assert (world.tree.last_sequence, world.tree.taken_back_through) == (last + 1, last + 1)
    world.put(b"next", b"1")
    assert world.tree.last_sequence == last + 2
    world.flush()
    assert {key: world.tree.latest(key) for key in (b"k0", b"next")} == {b"k0": b"v" if count else None, b"next": b"1"}
    world.put(b"more", b"1")
    with pytest.raises(AssertionError), world.tree.lock:
        world.tree.begin_after_loss()


@pytest.mark.parametrize("through", range(8))
def test_a_view_through_a_sequence_has_the_rows_up_to_it(through: int) -> None:
    """Of what is in memory; rows in files are older, and all of them are shown."""
    world = World()
    for number in range(1, 7):
        world.put(b"k%d" % number, b"v")
        if number == 2:
            world.flush()
        elif number == 4:
            world.rotate()
    with world.tree.lock:
        view = world.tree.view_locked(through=through)
        newest = world.tree.view_locked()
    shown = max(through, 2)
    assert [key for key, _ in view.scan()] == [b"k%d" % number for number in range(1, min(shown, 6) + 1)]
    assert view.sequence == shown
    assert [key for key, _ in newest.scan()] == [b"k%d" % number for number in range(1, 7)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [None, b"", b"1", b"2"])
def test_what_a_key_surely_is(place: str, value: bytes | None) -> None:
    """Memory alone shows it: a value or tombstone without an end that is not in files yet, or an empty tree."""
    world = World(operator="append")
    assert world.tree.surely_is(b"none", None)
    assert not world.tree.surely_is(b"none", b"1")
    world.put(b"a", b"1")
    world.put(b"gone", b"1")
    world.delete(b"gone")
    world.put(b"ends", b"1", world.clock.now_ms() + 1_000)
    world.merge(b"sum", b"1")
    PLACES[place](world)
    in_memory = place in ("active", "waiting")
    assert world.tree.surely_is(b"a", value) is (value == b"1" and in_memory)
    assert world.tree.surely_is(b"gone", value) is (value is None and in_memory)
    assert world.tree.surely_is(b"none", value) is (value is None and in_memory)
    for key in (b"ends", b"sum"):
        assert not world.tree.surely_is(key, value)
    if not in_memory:
        assert world.tree.latest(b"a") == b"1"
        assert value == b"1" or not world.tree.surely_is(b"a", value), "also when what was read is kept"
