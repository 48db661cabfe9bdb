"""A table goes on after Ctrl-C: what was interrupted is there or not, and nothing else has changed."""

from __future__ import annotations

import random
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Final, TypeVar

import pyarrow as pa
import pytest

from lakebed.errors import Unavailable
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.table import Table
from lakebed.testing.between import Between
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Fault, FaultyStore
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.interrupts import interrupt_at
from worlds.table.world import InlineRuntime

R = TypeVar("R")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
Contents = dict[int, str]


def rows(contents: Contents) -> pa.Table:
    """Rows of a table."""
    return pa.table({"id": list(contents), "v": list(contents.values())}, SCHEMA)


def new_table() -> Table:
    """Three versions, of which a tag holds the first."""
    environment = Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int), runtime=InlineRuntime())
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    options = {"bucket": "1"}
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys="id", options=options, environment=environment)
    table.upsert(rows({1: "a", 2: "b"}))
    table.create_tag("first")
    table.upsert(rows({2: "B", 3: "c"}))
    table.upsert(rows({4: "d"}))
    return table


def contents(table: Table, version: int | str | None = None) -> Contents:
    """What a version has."""
    read = table.read(version=version)
    found = dict(zip(*(read.column(name).to_pylist() for name in ("id", "v")), strict=True))
    assert len(found) == read.num_rows
    return found


NOW: Contents = {1: "a", 2: "B", 3: "c", 4: "d"}
VERBS: dict[str, tuple[Callable[[Table], object], Contents]] = {
    "upsert": (lambda table: table.upsert(rows({1: "A", 5: "e"})), NOW | {1: "A", 5: "e"}),
    "delete": (lambda table: table.delete("id > 2"), {1: "a", 2: "B"}),
    "overwrite": (lambda table: table.overwrite(rows({9: "i"})), {9: "i"}),
    "compact": (lambda table: table.compact(full=True), NOW),
    "expire": (lambda table: table.expire(retain_max=1, retain_min=1, older_than_ms=0), NOW),
    "rollback": (lambda table: table.rollback_to("first"), {1: "a", 2: "b"}),
}
"""Each verb, and what the table has then."""
COMMITTING = ["table/commit/commit.py", "table/rows/rows.py", "table/branch/snapshots.py", "table/versions/rollback.py"]
DELETING = ["table/collect/deletion.py", "table/collect/expire.py", "table/collect/recovery.py"]
SHORT = {"upsert": 13, "rollback": 61}
"""Between the moments that are tried: all of them take minutes."""


@pytest.mark.parametrize(
    ("verb", "step"), [*SHORT.items(), *(pytest.param(verb, 2, marks=pytest.mark.long) for verb in VERBS)]
)
def test_an_interrupted_verb_is_done_or_not(verb: str, step: int) -> None:
    """At whatever moment it was stopped: the table has all or nothing of it, and a tag what it had.

    So it is for a process that collects what is left, and the same object goes on to write.
    """
    act, done = VERBS[verb]
    for moment in count(1, step):
        table = new_table()
        where = interrupt_at(moment, partial(act, table), within=[*COMMITTING, *DELETING])
        found = contents(table)
        assert found in (NOW, done), where
        assert where is not None or found == done
        table.upsert(rows({7: "later"}))
        table.context.environment.clock.advance(200_000)  # type: ignore[attr-defined]
        PROCESS_CACHE.clear()
        other = Table.open(table.store, name="t", environment=table.context.environment)
        other.collect()
        PROCESS_CACHE.clear()
        assert contents(other) == found | {7: "later"}, where
        assert contents(other, "first") == {1: "a", 2: "b"}, where
        if where is None:
            break
    assert moment > 10


def new_files(store: ObjectStore, before: set[str]) -> set[str]:
    """Files that a table needs a snapshot for."""
    return {path for path in store.list_paths("") if not path.startswith(("snapshot/", "schema/"))} - before


WRITING = {"upsert": 5, "delete": 5, "overwrite": 5, "compact": 7}
"""Between the moments that are tried."""
WRITERS: Final = [
    "table/commit/commit.py", "table/rows/rows.py", "table/write/write.py", "table/files/data_file.py",
    "table/compaction/compact.py",
]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "step"), [*WRITING.items(), *(pytest.param(verb, 1, marks=pytest.mark.long) for verb in WRITING)]
)
def test_an_interrupted_verb_leaves_no_file(verb: str, step: int) -> None:
    """Stopped before its snapshot, it leaves nothing for a collection to find; a moment between two functions may."""
    tried, left = 0, []
    for moment in count(1, step):
        table = new_table()
        before = new_files(table.store, set())
        where = interrupt_at(moment, partial(VERBS[verb][0], table), within=WRITERS)
        if where is None or "snapshot/snapshot-4" in set(table.store.list_paths("snapshot/")):
            break
        tried += 1
        if new_files(table.store, before):
            left.append(where)
    assert tried > 5
    assert len(left) <= tried // 50 + 1, left


class StoppedByThreads(StoreWrapper):
    """A store at whose first files of data the main thread gets a signal, while threads put them."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.threads: set[int] = set()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind == "put" and call.path.startswith("bucket-"):
            if not self.threads:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGUSR1)
            self.threads.add(threading.get_ident())
        return perform()


@pytest.fixture
def signalled() -> Iterator[None]:
    """SIGUSR1 interrupts as Ctrl-C does, which workers of the test run ignore."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signalled")
def test_an_interrupt_while_threads_write_leaves_no_file() -> None:
    """Files that threads were putting when it came are deleted too, and the table goes on."""
    inner = open_store(f"memory://{uuid.uuid4()}")
    options = {"bucket": "16"}
    Table.create(inner, name="t", schema=SCHEMA, primary_keys="id", options=options)
    before = new_files(inner, set())
    store = StoppedByThreads(inner)
    many = dict.fromkeys(range(2_000), "v")
    with pytest.raises(KeyboardInterrupt):
        Table.open(store, name="t").upsert(rows(many))
    assert store.threads
    assert threading.get_ident() not in store.threads
    assert new_files(inner, before) == set()
    Table.open(inner, name="t").upsert(rows(many))
    assert contents(Table.open(inner, name="t")) == many


@pytest.mark.parametrize("verb", WRITING)
def test_a_store_that_takes_no_manifest_gets_no_orphan(verb: str) -> None:
    """No snapshot was put, so the files of the change are deleted at once, whatever the error is."""
    table = new_table()
    before = new_files(table.store, set())

    def refuse(_: int, call: Call) -> Fault | None:
        return Fault.ERROR_BEFORE if call.kind.startswith("put") and call.path.startswith("manifest/") else None

    store = FaultyStore(table.store, faults=refuse)
    with pytest.raises(Unavailable):
        VERBS[verb][0](Table.open(store, name="t", environment=table.context.environment))
    assert store.met
    assert new_files(table.store, before) == set()
    assert contents(table) == NOW


def test_a_commit_that_is_interrupted_behind_its_snapshot_keeps_its_files() -> None:
    """The snapshot is there, so its rows are, whatever the caller was told."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    table = new_table()
    store = Between(table.store, kind="put", prefix="snapshot/snapshot-", happens=interrupt)
    with pytest.raises(KeyboardInterrupt):
        Table.open(store, name="t", environment=table.context.environment).upsert(rows({5: "e"}))
    assert store.happened
    PROCESS_CACHE.clear()
    assert contents(Table.open(table.store, name="t", environment=table.context.environment)) == NOW | {5: "e"}
