"""Files with a ceiling: a branch reads the files of its parent up to the sequence at which it began."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.columns import keys_of
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import hash_keys
from lakebed.lsm.model import ROWS_DECIDE, FileMeta, FileSet, Kind
from lakebed.lsm.operators import find_operator
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.tree import Tree
from lakebed.lsm.view import View
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import ManualClock, seed_count
from worlds.memory_publisher import MemoryPublisher

NUMBERS = count()
KEYS: Final = [b"a", b"a\0", b"b", b"long key number 1", b"long key number 2", b"z"]


@dataclass(frozen=True)
class Options:
    """Small ones."""

    l0_compaction_count: int = 3
    run_compaction_count: int = 2
    run_file_bytes: int = 1
    row_cache_bytes: int = 1 << 20
    transaction_history_bytes_max: int = 1 << 20


@dataclass
class Timeline:
    """A tree that keeps its history, and what a dictionary says of every sequence."""

    files: FileStore
    environment: Environment
    file_set: FileSet = field(default_factory=FileSet)
    states: list[dict[bytes, bytes]] = field(default_factory=lambda: [{}])
    """By sequence."""
    options: Options = Options()

    def __post_init__(self) -> None:
        self.begin = len(self.states) - 1
        self.publisher = MemoryPublisher(self.environment)
        self.publisher.file_set = self.file_set
        self.tree = Tree(
            self.files,
            file_set=self.publisher.file_set,
            first_sequence=len(self.states),
            options=self.options,
            publisher=self.publisher,
            operator=find_operator("append"),
            retain_since_sequence=self.begin,
        )

    @property
    def last(self) -> int:
        """Of the newest row."""
        return len(self.states) - 1

    def write(self, key: bytes, kind: Kind = Kind.PUT) -> None:
        """One row, whose value is its sequence."""
        sequence = len(self.states)
        value = b"%d " % sequence
        state = dict(self.states[-1])
        with self.tree.lock:
            if kind is Kind.PUT:
                self.tree.active.put(key, value)
                state[key] = value
            elif kind is Kind.DELETE:
                self.tree.active.delete(key)
                state.pop(key, None)
            else:
                self.tree.active.merge(key, value)
                state[key] = state.get(key, b"") + value
        self.states.append(state)
        assert self.tree.last_sequence == sequence

    def write_many(self, keys: Iterable[bytes], kind: Kind = Kind.PUT) -> None:
        """A row each."""
        for key in keys:
            self.write(key, kind)

    def flush(self) -> None:
        """Everything into files."""
        with self.tree.lock:
            self.tree.rotate(None)
        while self.tree.flush_once():
            pass

    def branch(self, sequence: int) -> Timeline:
        """Another timeline that shares the files up to a sequence, which must be in files."""
        options = Options(run_file_bytes=self.options.run_file_bytes)
        file_set = self.tree.file_set.through(sequence)
        return Timeline(self.files, self.environment, file_set, self.states[: sequence + 1], options)

    def check(self) -> None:
        """Every way to read says what the dictionary says, at every sequence that is kept."""
        for sequence in range(self.begin, self.last + 1):
            assert_reads(self.tree.view(sequence=sequence), self.states[sequence])
        assert_reads(self.tree.view(), self.states[-1])
        assert [self.tree.latest(key) for key in KEYS] == [self.states[-1].get(key) for key in KEYS]


def assert_reads(view: View, expected: dict[bytes, bytes]) -> None:
    """Single keys, many keys and scans in both directions."""
    pairs = sorted(expected.items())
    assert [view.get(key) for key in KEYS] == [expected.get(key) for key in KEYS]
    assert view.get_many(KEYS) == [expected.get(key) for key in KEYS]
    assert list(view.scan()) == pairs
    assert list(view.scan(reverse=True)) == pairs[::-1]
    assert list(view.scan(b"a\0", b"z")) == [pair for pair in pairs if b"a\0" <= pair[0] < b"z"]
    table = view.scan_arrow().read_all()
    assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == pairs


@pytest.fixture
def store() -> ObjectStore:
    """In memory."""
    return open_store(f"memory://ceilings-{next(NUMBERS)}")


def new_timeline(store: ObjectStore | None = None, *, block_bytes: int = 64) -> Timeline:
    """An empty one."""
    environment = Environment(clock=ManualClock(), rng=random.Random("ceilings"))
    files = FileStore(
        store or open_store(f"memory://ceilings-{next(NUMBERS)}", environment=environment),
        path_of="sst/{}.sst".format,
        cache=BlockCache(1 << 20),
        options=FileOptions(block_bytes=block_bytes),
        environment=environment,
    )
    return Timeline(files, environment)


def rows_of(timeline: Timeline, file: FileMeta) -> list[tuple[bytes, int]]:
    """Key and sequence of every row that a reader of the file gives."""
    batches = [block.batch for block in timeline.files.reader(file).batches()]
    return [(key, int(n)) for batch in batches for key, n in zip(keys_of(batch[0]), batch[1].to_pylist(), strict=True)]


def test_a_branch_does_not_read_newer_rows_of_its_parent() -> None:
    """A branch at sequence 70 that names a file with rows up to 96 reads row 70, and not row 96."""
    parent = new_timeline()
    parent.write_many(KEYS[number % len(KEYS)] for number in range(96))
    parent.flush()
    (file,) = parent.tree.file_set.l0
    assert (file.min_sequence, file.max_sequence) == (1, 96)
    branch = parent.branch(70)
    (shared,) = branch.tree.file_set.l0
    assert (shared.id, shared.through_sequence) == (file.id, 70)
    assert {sequence for _, sequence in rows_of(branch, shared)} == set(range(1, 71))
    assert len(rows_of(parent, file)) == 96, "two versions may share a file and see different parts of it"
    branch.check()
    parent.check()
    branch.write_many(KEYS[:3])
    branch.write(b"a", Kind.DELETE)
    branch.check()
    branch.flush()
    branch.check()


@pytest.mark.parametrize("kind", [Kind.PUT, Kind.DELETE, Kind.MERGE])
@pytest.mark.parametrize("block_bytes", [64, 1 << 16])
def test_rows_of_every_kind_above_a_ceiling_are_hidden(kind: Kind, block_bytes: int) -> None:
    """Puts, tombstones and operands above the ceiling change nothing below it; operands below it are combined."""
    parent = new_timeline(block_bytes=block_bytes)
    parent.write_many(KEYS[::2])
    parent.write_many(KEYS[::3], Kind.MERGE)
    at = parent.last
    parent.write_many(KEYS, kind)
    parent.write_many(KEYS, kind)
    parent.flush()
    branch = parent.branch(at)
    branch.check()
    branch.write_many(KEYS[1::2], Kind.MERGE)
    branch.flush()
    branch.check()


def test_a_file_above_the_ceiling_is_neither_named_nor_opened(store: ObjectStore) -> None:
    """A branch leaves out files that have only newer rows, and runs of such files; older files stay as they are."""
    parent = new_timeline(store)
    parent.write_many(KEYS)
    parent.flush()
    parent.tree.compact_full()
    parent.write_many(KEYS)
    parent.flush()
    old, new = parent.tree.file_set.runs[0], parent.tree.file_set.l0[0]
    assert parent.tree.file_set.through(len(KEYS)) == FileSet((), (old,)), "not a byte of a whole file's entry changes"
    assert parent.tree.file_set.through(0) == FileSet()
    capped = parent.tree.file_set.through(len(KEYS) + 1)
    assert capped == FileSet((new.through(len(KEYS) + 1),), (old,))
    assert capped.through(len(KEYS) + 4) == capped, "a branch of a branch keeps the lower ceiling"
    assert capped.through(len(KEYS)) == FileSet((), (old,))
    hidden = msgspec.structs.replace(new, through_sequence=1)
    reader = parent.files.reader(hidden)
    assert list(reader.batches()) == []
    assert [reader.get(key) for key in KEYS] == [[] for _ in KEYS]
    assert reader.get_many(KEYS, hashes=hash_keys(KEYS)) == {}


def test_a_ceiling_bounds_what_a_reader_is_asked_for() -> None:
    """The lower one of the ceiling and the sequence asked for counts, in single reads as in reads of many keys."""
    parent = new_timeline()
    parent.write_many([b"a"] * 9)
    parent.flush()
    (file,) = parent.tree.file_set.l0
    reader = parent.files.reader(file.through(5))
    for asked, expected in ((None, 5), (9, 5), (5, 5), (3, 3)):
        assert [row.sequence for row in reader.get(b"a", sequence=asked)] == [expected]
        values = reader.get_many([b"a"], hashes=hash_keys([b"a"]), sequence=asked)
        assert [row.sequence for row in values[b"a"]] == [expected]
    assert [row.sequence for row in parent.files.reader(file).get(b"a")] == [9]
    parent.write_many([b"b", b"c", b"d"])
    parent.flush()
    newer = parent.tree.file_set.l0[0]
    for ceiling, expected in ((12, {b"b", b"c", b"d"}), (11, {b"b", b"c"}), (10, {b"b"})):
        reader = parent.files.reader(newer.through(ceiling))
        assert {key for key in (b"b", b"c", b"d") if reader.get(key)} == expected
        for key in {b"b", b"c", b"d"} - expected:
            assert reader.find_value(reader.tail(), key) is ROWS_DECIDE, "it is above the ceiling"
    parent.files.forget(file.id)
    assert parent.files.reader(file.through(5)) is not reader, "the handles of every ceiling are dropped"


@pytest.mark.parametrize("full", [True, False])
def test_a_compaction_writes_nothing_above_a_ceiling(full: bool) -> None:
    """Files of the output have only rows up to the branch point and the branch's own, with exact counts and bounds."""
    parent = new_timeline()
    for kind in (Kind.PUT, Kind.DELETE, Kind.MERGE, Kind.PUT):
        parent.write_many(KEYS, kind)
        parent.flush()
    at = 3 * len(KEYS) - 2
    branch = parent.branch(at)
    assert [file.through_sequence for file in branch.tree.file_set.l0] == [at, None, None]
    if full:
        branch.tree.compact_full()
    else:
        assert branch.tree.compact_once()
    for run in branch.tree.file_set.runs:
        for file in run.files:
            rows = rows_of(branch, file)
            assert file.through_sequence is None
            assert (file.row_count, file.max_sequence) == (len(rows), max(sequence for _, sequence in rows))
            assert file.max_sequence <= at
    branch.check()
    parent.check()


def test_a_compaction_of_hidden_rows_alone_leaves_nothing() -> None:
    """A file that has no row below its ceiling disappears with the compaction."""
    parent = new_timeline()
    parent.write_many(KEYS)
    parent.flush()
    hidden = msgspec.structs.replace(parent.tree.file_set.l0[0], through_sequence=0)
    branch = Timeline(parent.files, parent.environment, FileSet((hidden,)))
    branch.check()
    assert branch.tree.compact_full()
    assert branch.tree.file_set == FileSet()


def test_a_file_that_is_taken_over_keeps_its_ceiling() -> None:
    """Where no history is kept, a large file that overlaps with no other moves into the output with its ceiling."""
    parent = new_timeline()
    parent.write_many(KEYS)
    parent.flush()
    file = parent.tree.file_set.l0[0]
    branch = parent.branch(4)
    branch.tree.retain_since_sequence = None
    branch.write(b"zz")
    branch.flush()
    task = CompactionTask(tuple(item.id for item in branch.tree.file_set.l0), (), bottom=True)
    assert branch.tree._compact(lambda file_set: task, None) == task
    (run,) = branch.tree.file_set.runs
    assert run.files[0] == file.through(4)
    assert dict(branch.tree.view().scan()) == branch.states[-1]


def test_absent_keys_under_a_ceiling_cost_what_they_cost_without(store: ObjectStore) -> None:
    """Ranges and filters describe the whole file: they answer no for what is in no row of it, without a block."""
    parent = new_timeline(store)
    parent.write_many(KEYS)
    parent.flush()
    reader = parent.files.reader(parent.tree.file_set.l0[0].through(3))
    reader.tail()
    with store.count() as requests:
        assert reader.get(b"absent") == []
        assert requests.total == 0


def test_a_view_as_of_a_sequence_stays_as_it_is() -> None:
    """Later writes, flushes and compactions change no view; memtables above the sequence are left out."""
    parent = new_timeline()
    parent.write_many(KEYS)
    view, now = parent.tree.view(sequence=3), parent.tree.view(sequence=6)
    parent.write_many(KEYS, Kind.DELETE)
    for _ in range(2):
        assert_reads(view, parent.states[3])
        assert_reads(now, parent.states[6])
        parent.flush()
        parent.tree.compact_full()
    parent.check()


def test_a_view_of_what_is_not_there_is_refused() -> None:
    """Ahead of the last row, and below the history that is kept, where the engine could not answer rightly."""
    timeline = new_timeline()
    timeline.write_many(KEYS)
    timeline.tree.retain_since_sequence = 2
    assert timeline.tree.view(sequence=2).sequence == 2
    for sequence in (1, len(KEYS) + 1):
        with pytest.raises(InvalidRequest) as refusal:
            timeline.tree.view(sequence=sequence)
        assert refusal.value.kind == "sequence_out_of_range"
        assert (refusal.value.facts["oldest"], refusal.value.facts["newest"]) == (2, len(KEYS))
    timeline.tree.retain_since_sequence = None
    assert timeline.tree.view(sequence=len(KEYS)).sequence == len(KEYS)
    with pytest.raises(InvalidRequest):
        timeline.tree.view(sequence=len(KEYS) - 1)


def test_an_entry_without_a_ceiling_is_encoded_as_before() -> None:
    """Not a byte of a manifest changes, and entries of every earlier release are read."""
    file = FileMeta("01HF7YAT000000000000000001", 900, 700, 9, b"a", b"z", 1, 12)
    encoded = (
        b'{"id":"01HF7YAT000000000000000001","size_bytes":900,"tail_offset":700,"row_count":9,"first_key":"YQ==",'
        b'"last_key":"eg==","min_sequence":1,"max_sequence":12}'
    )
    assert msgspec.json.encode(file) == encoded
    assert msgspec.json.decode(encoded, type=FileMeta) == file
    full = msgspec.structs.replace(file, tombstone_count=1, merge_count=2, expiring_count=3)
    assert msgspec.json.encode(full) == encoded[:-1] + b',"tombstone_count":1,"merge_count":2,"expiring_count":3}'
    capped = file.through(7)
    assert msgspec.json.encode(capped) == encoded[:-1] + b',"through_sequence":7}'
    assert msgspec.json.decode(msgspec.json.encode(capped), type=FileMeta) == capped
    assert file.through(12) is file
    assert (file.ceiling, capped.ceiling, msgspec.structs.replace(file, through_sequence=12).ceiling) == (None, 7, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(KEYS), st.sampled_from([Kind.PUT, Kind.PUT, Kind.DELETE, Kind.MERGE])),
        st.sampled_from(["flush", "compact", "compact_full"]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=seed_count(20))
@given(STEPS, st.integers(0, 30), STEPS, st.integers(0, 30), STEPS, st.sampled_from([64, 1 << 16]))
def test_branches_are_what_a_dictionary_says(
    parent_steps: list[object],
    first_at: int,
    branch_steps: list[object],
    second_at: int,
    leaf_steps: list[object],
    block_bytes: int,
) -> None:
    """A branch of a branch, at any sequence that is in files, whatever each of them writes, flushes and compacts."""
    parent = new_timeline(block_bytes=block_bytes)
    timelines = [parent]
    run_steps(parent, parent_steps)
    for at, steps in ((first_at, branch_steps), (second_at, leaf_steps)):
        trunk = timelines[-1]
        trunk.flush()
        timelines.append(trunk.branch(trunk.begin + at % (trunk.last - trunk.begin + 1)))
        run_steps(trunk, steps[::2])
        run_steps(timelines[-1], steps)
    for timeline in timelines:
        timeline.check()


def run_steps(timeline: Timeline, steps: Iterable[object]) -> None:
    """Each in turn."""
    for step in steps:
        if step == "flush":
            timeline.flush()
        elif step == "compact":
            timeline.tree.compact_once()
        elif step == "compact_full":
            timeline.tree.compact_full()
        else:
            assert isinstance(step, tuple)
            timeline.write(*step)


def test_the_row_cache_of_a_branch_has_rows_of_the_branch() -> None:
    """What is read twice comes from the row cache the second time, with the value below the ceiling."""
    parent = new_timeline()
    parent.write_many([b"a", b"b", b"a"])
    parent.flush()
    branch = parent.branch(2)
    for _ in range(2):
        assert (parent.tree.latest(b"a"), branch.tree.latest(b"a")) == (b"3 ", b"1 ")
