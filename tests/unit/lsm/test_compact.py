"""Merging files into a run: what is kept, how outputs are cut, what is not rewritten, how much memory it takes."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import thread as pools
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from xxhash import xxh3_64_hexdigest

from lakebed.errors import Corruption, NotFound, Unavailable
from lakebed.lsm import compact
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.columns import keys_of
from lakebed.lsm.compact import run_compaction
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.model import ROW_SCHEMA, FileMeta, FileSet, Kind, Row, Run
from lakebed.lsm.operators import find_operator
from lakebed.lsm.plan import CompactionTask, plan_full
from lakebed.lsm.resolve import resolve_row
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore, ManualClock
from lakebed.testing.wrapper import StoreWrapper
from worlds.errors import raises

NOW_MS = 1_700_000_000_000
NUMBERS = count()


@dataclass
class Bench:
    """Files in memory, or in a folder, and rows written to them."""

    environment: Environment = field(
        default_factory=lambda: Environment(clock=ManualClock(), rng=random.Random("compact"))
    )
    block_bytes: int = 512
    last_id: str | None = None
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
    folder: Path | None = None

    def __post_init__(self) -> None:
        url = f"memory://compact-{next(NUMBERS)}" if self.folder is None else str(self.folder)
        self.store = open_store(url, environment=self.environment)
        self.files = FileStore(
            self.wrap(self.store),
            path_of=lambda id: f"sst/{id}.sst",
            cache=BlockCache(1 << 20),
            options=FileOptions(block_bytes=self.block_bytes),
            environment=self.environment,
        )

    def next_file_id(self) -> str:
        """Ids in order."""
        self.last_id = mint_file_id(self.last_id, environment=self.environment)
        return self.last_id

    def file(self, rows: Iterable[Row]) -> FileMeta:
        """A file of rows, in any order."""
        ordered = sorted(rows, key=lambda row: (row.key, -row.sequence))
        writer = self.files.writer(self.next_file_id())
        columns = zip(*ordered, strict=True)
        writer.write(
            pa.record_batch(
                [pa.array(column, item.type) for column, item in zip(columns, ROW_SCHEMA, strict=True)],
                schema=ROW_SCHEMA,
            )
        )
        return writer.finish()

    def rows(self, metas: Iterable[FileMeta]) -> Iterator[Row]:
        """All rows of files, in their order."""
        for meta in metas:
            for block in self.files.reader(meta).batches():
                columns = [column.to_pylist() for column in block.batch.columns]
                yield from (Row(*row) for row in zip(*columns, strict=True))

    def compact(
        self,
        file_set: FileSet,
        task: CompactionTask | None = None,
        *,
        run_file_bytes: int = 4_096,
        retain_since_sequence: int | None = None,
        operator: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Run | None:
        """Merge, by default everything."""
        task = task or plan_full(file_set)
        assert task is not None
        return run_compaction(
            task,
            files=self.files,
            file_set=file_set,
            next_file_id=self.next_file_id,
            run_file_bytes=run_file_bytes,
            operator=None if operator is None else find_operator(operator),
            retain_since_sequence=retain_since_sequence,
            progress=progress,
        )


def put(key: bytes, sequence: int, value: bytes = b"value", expires_at_ms: int | None = None) -> Row:
    """A value."""
    return Row(key, sequence, Kind.PUT, value, expires_at_ms)


def tombstone(key: bytes, sequence: int) -> Row:
    """A delete."""
    return Row(key, sequence, Kind.DELETE, b"", None)


def all_of(file_set: FileSet) -> CompactionTask:
    """Everything into one run, where files may be taken over."""
    return CompactionTask(tuple(file.id for file in file_set.l0), tuple(run.id for run in file_set.runs), bottom=True)


def check_run(run: Run) -> None:
    """A run's files lie one behind the other, and no key is in two of them."""
    for before, behind in zip(run.files, run.files[1:], strict=False):
        assert before.last_key < behind.first_key


@pytest.fixture
def with_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few rows are merged by several threads too, many windows of them; all threads end."""
    monkeypatch.setattr(compact, "_WORKERS_BYTES_MIN", 0)
    monkeypatch.setattr(compact, "WINDOW_BYTES", 4_096)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def make_overlapping(bench: Bench, *, file_count: int = 4, row_count: int = 4_000) -> FileSet:
    """Files of level 0 that share their keys; the newest value of key n was written by file n % `file_count`."""
    rng = random.Random(1)
    metas = []
    for age in range(file_count):
        keys = [n for n in range(row_count) if n % file_count <= age]
        metas.append(bench.file([put(b"%06d" % n, 1 + age * row_count + n, rng.randbytes(30)) for n in keys]))
    return FileSet(tuple(reversed(metas)))


def newest_rows(bench: Bench, file_set: FileSet) -> list[Row]:
    """The row of each key with the largest sequence, of all files."""
    newest: dict[bytes, Row] = {}
    for row in bench.rows(file_set.l0):
        if row.key not in newest or newest[row.key].sequence < row.sequence:
            newest[row.key] = row
    return [newest[key] for key in sorted(newest)]


@pytest.mark.parametrize("workers", ["", "with_workers"])
@pytest.mark.parametrize("seed", range(12))
def test_reads_are_the_same_before_and_after(seed: int, workers: str, request: pytest.FixtureRequest) -> None:
    """Whatever was written to however many files, every key reads as before, at every sequence that is promised."""
    if workers:
        request.getfixturevalue(workers)
    rng = random.Random(seed)
    bench = Bench()
    keys = [b"%03d" % n for n in range(rng.choice((3, 40, 300)))]
    metas, sequence, versions = [], 0, dict[bytes, list[Row]]()
    for _ in range(rng.randint(1, 7)):
        rows = []
        for _ in range(rng.randint(1, 400)):
            sequence += 1
            kind = rng.choices((Kind.PUT, Kind.DELETE, Kind.MERGE), (6, 2, 2))[0]
            value = b"" if kind == Kind.DELETE else rng.randbytes(rng.randint(0, 60))
            expires = rng.choice((None, None, NOW_MS - 1, NOW_MS + 10**9)) if kind == Kind.PUT else None
            row = Row(rng.choice(keys), sequence, kind, value, expires)
            rows.append(row)
            versions.setdefault(row.key, []).insert(0, row)
        metas.insert(0, bench.file(rows))
    retain = rng.choice((None, rng.randint(0, sequence)))
    file_set = FileSet(tuple(metas))
    run = bench.compact(file_set, retain_since_sequence=retain, operator="append")
    kept = dict[bytes, list[Row]]()
    for row in bench.rows(() if run is None else run.files):
        kept.setdefault(row.key, []).append(row)
    if run is not None:
        check_run(run)
    operator = find_operator("append")
    for at in {sequence} if retain is None else {retain, sequence, *rng.sample(range(retain, sequence + 1), 1)}:
        for key in keys:
            expected = resolve_row(
                [row for row in versions.get(key, ()) if row.sequence <= at], now_ms=NOW_MS, operator=operator
            )
            result = resolve_row(
                [row for row in kept.get(key, ()) if row.sequence <= at], now_ms=NOW_MS, operator=operator
            )
            assert (result and result.value) == (expected and expected.value), (key, at)


def test_outputs_are_cut_between_keys_at_the_size_asked() -> None:
    """Files of a run are of about the size asked, and no key is in two of them, however many versions it has."""
    bench = Bench()
    rng = random.Random(1)
    many = [put(b"m" * 8, sequence, rng.randbytes(50)) for sequence in range(1, 1_001)]
    others = [put(b"%08d" % n, 2_000 + n, rng.randbytes(50)) for n in range(2_000)]
    rest = [put(b"z%07d" % n, 5_000 + n, rng.randbytes(50)) for n in range(500)]
    file_set = FileSet((bench.file(rest), bench.file(others), bench.file(many)))
    run = bench.compact(file_set, run_file_bytes=20_000, retain_since_sequence=0)
    assert run is not None
    assert list(bench.rows(run.files)) == [*others, *reversed(many), *rest]
    check_run(run)
    plain = [file for file in run.files if not file.first_key <= b"m" * 8 <= file.last_key]
    assert len(plain) > 5
    assert all(meta.size_bytes < 40_000 for meta in plain)
    assert all(file.size_bytes >= 20_000 for file in run.files[:-1])


def test_nothing_left_is_no_run() -> None:
    """When everything was deleted or has ended, the bottom run is none at all."""
    bench = Bench()
    rows = [put(b"%04d" % n, n + 1) for n in range(500)]
    graves = [tombstone(row.key, row.sequence + 1_000) for row in rows]
    assert bench.compact(FileSet((bench.file(graves), bench.file(rows)))) is None
    assert bench.compact(FileSet((bench.file([put(b"k", 1, expires_at_ms=NOW_MS)]),))) is None
    assert bench.compact(FileSet((bench.file(graves),))) is None


def test_tombstones_stay_above_older_runs() -> None:
    """Inputs of tombstones alone, with something below, become a run of tombstones: what they hide stays hidden."""
    bench = Bench()
    below = Run("r", (bench.file([put(b"k", 1), put(b"l", 2)]),))
    file_set = FileSet((bench.file([tombstone(b"k", 4)]), bench.file([put(b"l", 3, expires_at_ms=1)])), (below,))
    task = CompactionTask(tuple(file.id for file in file_set.l0), (), bottom=False)
    run = bench.compact(file_set, task)
    assert run is not None
    assert list(bench.rows(run.files)) == [tombstone(b"k", 4), tombstone(b"l", 3)]


def test_a_load_in_the_order_of_keys_is_not_rewritten() -> None:
    """Large files that overlap with nothing become a run as they are; small ones and overlapping ones are merged."""
    bench = Bench()
    rng = random.Random(1)

    def ascending(start: int, count: int) -> FileMeta:
        return bench.file([put(b"%06d" % n, n + 1, rng.randbytes(40)) for n in range(start, start + count)])

    large = [ascending(n * 200, 200) for n in range(4)]
    small = [ascending(800 + n * 10, 10) for n in range(3)]
    crossing = [ascending(1_000, 200), ascending(1_100, 200)]
    file_set = FileSet(tuple(reversed([*large, *small, *crossing])))
    expected = sorted({keys for meta in file_set.l0 for keys in all_keys(bench, meta)})
    run = bench.compact(file_set, all_of(file_set), run_file_bytes=10_000)
    assert run is not None
    assert [file.id for file in run.files[:4]] == [item.id for item in large]
    assert not {file.id for file in run.files[4:]} & {file.id for file in file_set.l0}
    assert [row.key for row in bench.rows(run.files)] == expected
    anew = bench.compact(file_set, run_file_bytes=10_000)
    assert anew is not None
    assert not {file.id for file in anew.files} & {file.id for file in file_set.l0}
    kept = bench.compact(file_set, all_of(file_set), run_file_bytes=10_000, retain_since_sequence=5)
    assert kept is not None
    assert not {file.id for file in kept.files} & {file.id for file in file_set.l0}


def all_keys(bench: Bench, meta: FileMeta) -> list[bytes]:
    """Keys of a file."""
    return [key for block in bench.files.reader(meta).batches() for key in keys_of(block.batch.column(0))]


def test_a_file_with_something_to_drop_is_rewritten_at_the_bottom() -> None:
    """At the bottom a file with tombstones is written anew even alone; above older runs it is taken over."""
    bench = Bench()
    file_set = FileSet((bench.file([*(put(b"%04d" % n, n + 1) for n in range(300)), tombstone(b"x", 400)]),))
    run = bench.compact(file_set, all_of(file_set), run_file_bytes=1_000)
    assert run is not None
    assert sum(file.tombstone_count for file in run.files) == 0
    above = CompactionTask((file_set.l0[0].id,), (), bottom=False)
    taken = bench.compact(file_set, above, run_file_bytes=1_000)
    assert taken is not None
    assert taken.files == file_set.l0


def test_progress_counts_rows_and_bytes() -> None:
    """Progress only rises, and ends with all rows read and about the bytes written."""
    bench = Bench()
    file_set = FileSet(
        tuple(bench.file([put(b"%05d" % n, n + 1 + 9_000 * i) for n in range(3_000)]) for i in reversed(range(3)))
    )
    items: list[tuple[int, int]] = []
    run = bench.compact(file_set, progress=lambda rows, size_bytes: items.append((rows, size_bytes)))
    assert run is not None
    assert items == sorted(items)
    assert items[-1][0] == 9_000
    assert items[-1][1] > run.size_bytes // 2


def test_a_missing_or_damaged_input_ends_it() -> None:
    """An input that is gone is `NotFound`, one that is damaged `Corruption`: nothing is left out silently."""
    bench = Bench()
    file_set = FileSet((bench.file([put(b"k", 1)]), bench.file([put(b"k", 2)])))
    path = f"sst/{file_set.l0[0].id}.sst"
    store = bench.files.reader(file_set.l0[0])._store
    body = bytearray(store.get(path))
    body[10] ^= 1
    store.put(path, bytes(body))
    with pytest.raises(Corruption):
        bench.compact(file_set)
    store.delete([path])
    bench.files.forget(file_set.l0[0].id)
    with pytest.raises(NotFound):
        bench.compact(file_set)


@pytest.mark.usefixtures("with_workers")
@pytest.mark.parametrize("is_local", [False, True])
def test_threads_write_what_one_thread_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_local: bool
) -> None:
    """Files are the same, byte by byte, however many threads form them, and hold the newest row of every key."""

    def write(bytes_min: int) -> tuple[list[str], list[Row], list[Row]]:
        monkeypatch.setattr(compact, "_WORKERS_BYTES_MIN", bytes_min)
        bench = Bench(folder=tmp_path / str(bytes_min) if is_local else None)
        file_set = make_overlapping(bench)
        run = bench.compact(file_set, run_file_bytes=20_000)
        assert run is not None
        # Both mint the same ids, for these are of the clock and the seed.
        sums = [xxh3_64_hexdigest(bench.store.get(f"sst/{file.id}.sst")) for file in run.files]
        return sums, list(bench.rows(run.files)), newest_rows(bench, file_set)

    threaded, rows, newest = write(0)
    alone, rows_alone, _ = write(1 << 40)
    assert len(threaded) > 5
    assert (rows == newest, rows_alone == newest) == (True, True)  # of thousands no difference is to be shown
    assert threaded == alone


class GatedStore(StoreWrapper):
    """The first put of a file waits for the gate."""

    gate = threading.Event()

    def put(self, path: str, *args: Any, **kwargs: Any) -> Any:
        assert self.gate.wait(60)
        return super().put(path, *args, **kwargs)


@pytest.mark.usefixtures("with_workers")
def test_the_next_file_is_formed_while_one_is_put() -> None:
    """A store that takes long for a file keeps no other one from being formed; all are there at the end."""
    bench = Bench()
    file_set = make_overlapping(bench)
    store = GatedStore(bench.store)
    bench.files._store = store
    ids: list[str] = []

    def next_file_id() -> str:
        ids.append(bench.next_file_id())
        if len(ids) == 2:  # the first file has ended, and is not there yet
            store.gate.set()
        return ids[-1]

    task = plan_full(file_set)
    assert task is not None
    run = run_compaction(
        task,
        files=bench.files,
        file_set=file_set,
        next_file_id=next_file_id,
        run_file_bytes=20_000,
        operator=None,
        retain_since_sequence=None,
    )
    assert run is not None
    is_equal = list(bench.rows(run.files)) == newest_rows(bench, file_set)
    assert is_equal


def refuse(kind: str, number: int) -> Callable[[ObjectStore], ObjectStore]:
    """Of a store: it cannot answer the call of this kind and number, counted from 0."""
    counts = count()

    def decide(index: int, call: Any) -> Fault | None:
        return Fault.ERROR_BEFORE if call.kind == kind and next(counts) == number else None

    return lambda store: FaultyStore(store, faults=decide)


@pytest.mark.usefixtures("with_workers")
@pytest.mark.parametrize(("number", "run_file_bytes"), [(4, 20_000), (6, 20_000), (4, 1 << 30)])
def test_a_put_that_fails_ends_it(number: int, run_file_bytes: int) -> None:
    """The store's error for any file is raised, also for the last one: no run names a file that is not there."""
    bench = Bench(wrap=refuse("put", number))
    file_set = make_overlapping(bench)  # four puts, counted from 0
    with pytest.raises(Unavailable):
        bench.compact(file_set, run_file_bytes=run_file_bytes)


@pytest.mark.usefixtures("with_workers")
@pytest.mark.parametrize("is_local", [False, True])
def test_a_damaged_block_found_ahead_ends_it(tmp_path: Path, *, is_local: bool) -> None:
    """What is found damaged ahead is raised, after rows before it were written; nothing is left out."""
    bench = Bench(folder=tmp_path if is_local else None)
    rows = [put(b"%06d" % n, n + 1) for n in range(4_000)]
    files = (bench.file(rows[:2_000]), bench.file(rows[2_000:]))
    file_set = FileSet((bench.file([put(b"%06d" % n, n + 9_000) for n in range(4_000)]),), (Run("r", files),))
    path = f"sst/{files[1].id}.sst"
    body = bytearray(bench.store.get(path))
    body[files[1].tail_offset // 2] ^= 1
    bench.store.put(path, bytes(body))
    counts: list[int] = []
    with pytest.raises(Corruption):
        bench.compact(file_set, progress=lambda rows, size_bytes: counts.append(rows))
    assert counts


@pytest.mark.usefixtures("with_workers")
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Unavailable])
def test_it_stops_where_the_caller_does(tmp_path: Path, error: type[BaseException], *, is_local: bool) -> None:
    """An error or an interrupt of the caller between two windows ends it, the other threads, and unfinished files."""
    bench = Bench(folder=tmp_path if is_local else None)
    file_set = make_overlapping(bench)
    stored, open_count = [meta.path for meta in bench.store.list()], len(os.listdir("/dev/fd"))
    counts: list[int] = []

    def stop(rows: int, size_bytes: int) -> None:
        counts.append(rows)
        if len(counts) == 2:
            raise error("stop")

    with pytest.raises(error):
        bench.compact(file_set, run_file_bytes=1 << 30, progress=stop)
    assert len(counts) == 2
    assert ([meta.path for meta in bench.store.list()], len(os.listdir("/dev/fd"))) == (stored, open_count)


@pytest.mark.parametrize("workers", ["", "with_workers"])
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_folder_that_does_not_take_a_file_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str, call: str, request: pytest.FixtureRequest
) -> None:
    """The error is raised, no run names the file, and nothing is left of it; the next try succeeds."""
    if workers:
        request.getfixturevalue(workers)
    bench = Bench(folder=tmp_path)
    file_set = make_overlapping(bench)
    stored, open_count = [meta.path for meta in bench.store.list()], len(os.listdir("/dev/fd"))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with raises(Unavailable, "disk_full"):
            bench.compact(file_set, run_file_bytes=20_000)
    assert ([meta.path for meta in bench.store.list()], len(os.listdir("/dev/fd"))) == (stored, open_count)
    run = bench.compact(file_set, run_file_bytes=20_000)
    assert run is not None
    is_equal = list(bench.rows(run.files)) == newest_rows(bench, file_set)
    assert is_equal


@pytest.mark.usefixtures("with_workers")
def test_it_goes_on_alone_where_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter ends no call is given to another thread: the caller makes it."""
    bench = Bench()
    file_set = make_overlapping(bench)
    run = bench.compact(
        file_set,
        run_file_bytes=20_000,
        progress=lambda rows, size_bytes: monkeypatch.setattr(pools, "_shutdown", True),
    )
    monkeypatch.setattr(pools, "_shutdown", False)
    assert run is not None
    is_equal = list(bench.rows(run.files)) == newest_rows(bench, file_set)
    assert is_equal


@pytest.mark.usefixtures("with_workers")
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("thread_count", [0, 1, 2])
def test_it_ends_with_as_many_threads_as_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_count: int, *, is_local: bool
) -> None:
    """Where the system allows few threads, or none, no step waits for one that none can make."""
    bench = Bench(folder=tmp_path if is_local else None)
    file_set = make_overlapping(bench)
    start, started = threading.Thread.start, []

    def start_few(thread: threading.Thread) -> None:
        if thread.name.startswith("lakebed"):
            if len(started) == thread_count:
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_few)
        run = bench.compact(file_set, run_file_bytes=20_000)
    assert run is not None
    is_equal = list(bench.rows(run.files)) == newest_rows(bench, file_set)
    assert (is_equal, len(started)) == (True, thread_count)


def test_memory_does_not_grow_with_the_inputs() -> None:
    """Arrow memory in use while merging stays the same when the inputs are four times as large."""

    def peak_bytes(file_count: int) -> int:
        bench = Bench(block_bytes=64 << 10)
        value = bytes(4_000)
        runs = tuple(
            Run(
                str(age),
                tuple(
                    bench.file(put(b"%03d%05d" % (part, n), age * 10**6 + part * 500 + n, value) for n in range(500))
                    for part in range(file_count)
                ),
            )
            for age in (2, 1)
        )
        before = pa.total_allocated_bytes()
        used: list[int] = []
        run = bench.compact(
            FileSet((), runs),
            run_file_bytes=1 << 20,
            progress=lambda rows, size_bytes: used.append(pa.total_allocated_bytes() - before),
        )
        assert run is not None
        return max(used)

    small, large = peak_bytes(16), peak_bytes(64)
    assert large < small * 1.25 + (8 << 20)
    assert large < 160 << 20
