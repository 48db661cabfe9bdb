"""Creating lakes and tables: a crash while creating blocks no name, and racing creators all get what they ask for."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from lakebed.clock import Clock
from lakebed.errors import AlreadyExists
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import PROBE_AGE_MS_MIN
from lakebed.reclaim import sweep
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from lakebed.testing.faulty import Crashed, Fault, FaultyStore
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.meanwhile import Meanwhile

R = TypeVar("R")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
LATER_S = PROBE_AGE_MS_MIN / 1000 + 1


def memory(clock: Clock | None = None) -> ObjectStore:
    """A fresh store, with a clock of its own if asked."""
    return open_store(f"memory://{uuid.uuid4().hex}", environment=None if clock is None else Environment(clock=clock))


def paths(store: ObjectStore) -> list[str]:
    """Every object."""
    return [meta.path for meta in store.list("")]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_death_while_creating_blocks_no_name(fault: Fault) -> None:
    """At every store call of opening a lake and creating a table: the same calls then succeed, and leave no probe."""
    for index in range(100):
        clock = ManualClock(start_ms=Environment().clock.now_ms())
        inner = memory(clock)
        store = FaultyStore(inner, faults={index: fault})
        try:
            Lake.open(store).create_table("t", SCHEMA)
        except Crashed:
            pass
        else:
            if index < store.call_count:
                continue  # the call itself failed, as a look at what is not there yet does
            assert index > 6
            return
        clock.advance(LATER_S)
        lake = Lake.open(inner, environment=Environment(clock=clock))
        lake.create_table("t", SCHEMA, if_not_exists=True).append(pa.table({"id": [1]}))
        lake.collect()
        assert not [path for path in paths(inner) if "probe" in path]
        lake.drop_table("t")
        assert paths(inner) == ["lakebed.json"]
    raise AssertionError("creating never came to its end")


def test_probes_that_older_versions_left_in_a_table_block_nothing() -> None:
    """A folder that holds only an old probe is empty; cleaning deletes the probe when it is an hour old, not before."""
    clock = ManualClock(start_ms=Environment().clock.now_ms())
    store = memory(clock)
    lake = Lake.open(store)
    leftovers = [f"default.db/t/lakebed-probe-{uuid.uuid4()}", f"lakebed-probe-{uuid.uuid4()}"]
    for path in leftovers:
        store.put(path, b"first")
    lake.create_table("t", SCHEMA)
    assert not [report for report in lake.collect() if report.deleted_count]
    assert set(leftovers) <= set(paths(store))
    ahead = ManualClock(start_ms=clock.now_ms() * 2)
    ahead_lake = Lake.open(store, environment=Environment(clock=ahead))
    assert not [report for report in ahead_lake.collect() if report.deleted_count]
    clock.advance(LATER_S)
    later = Lake.open(store, environment=Environment(clock=clock))
    (report,) = [report for report in later.collect(dry_run=True) if report.plan and report.plan.doomed]
    assert sorted(doomed.path for doomed in report.plan.doomed) == leftovers
    assert set(leftovers) <= set(paths(store))
    later.collect()
    assert not set(leftovers) & set(paths(store))
    assert later.tables() == ["t"]


@pytest.mark.parametrize("rival_appends", [False, True], ids=["created", "created and written"])
def test_a_rival_at_every_call(rival_appends: bool) -> None:
    """Opening and `create_table(if_not_exists=True)` succeed when a rival does the same; without it one loses."""
    earlier = Environment(clock=ManualClock())  # creators whose tables are equal to the millisecond both have made it

    def act(store: ObjectStore, *, if_not_exists: bool) -> None:
        table = Lake.open(store, environment=earlier).create_table("t", SCHEMA, if_not_exists=if_not_exists)
        if rival_appends:
            table.append(pa.table({"id": [1]}))

    for index in range(100):
        inner, plain = memory(), memory()
        ours = Meanwhile(inner, lambda inner=inner: act(inner, if_not_exists=True), at=index)
        table = Lake.open(ours).create_table("t", SCHEMA, if_not_exists=True)
        assert table.read().num_rows == int(rival_appends and len(ours.calls) > index)
        strict = Meanwhile(plain, lambda plain=plain: act(plain, if_not_exists=False), at=index)
        try:
            Lake.open(strict).create_table("t", SCHEMA)
        except AlreadyExists:
            continue
        assert len(strict.calls) <= index, "both created the table"
        assert index > 6
        return
    raise AssertionError("creating never came to its end")


def test_a_rival_makes_the_lake_at_any_call() -> None:
    """Opening a new lake succeeds when a rival opens it too, at any step."""
    for index in range(100):
        inner = memory()
        ours = Meanwhile(inner, lambda inner=inner: Lake.open(inner) and None, at=index)
        Lake.open(ours)
        assert paths(inner) == ["lakebed.json"]
        if len(ours.calls) <= index:
            assert index > 4
            return
    raise AssertionError("opening never came to its end")


def test_many_creators_on_a_folder(tmp_path: Path) -> None:
    """Threads that open one new lake and create one table in it, eight rounds: no error, one table, no probe left."""
    for round_ in range(8):
        url = str(tmp_path / f"lake{round_}")
        errors: list[BaseException] = []
        gate = threading.Barrier(8)

        def create(url: str = url, gate: threading.Barrier = gate, errors: list[BaseException] = errors) -> None:
            try:
                gate.wait()
                lake = Lake.open(open_store(url, create=True))
                lake.create_table("t", SCHEMA, if_not_exists=True).append(pa.table({"id": [1]}))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        lake = Lake.open(open_store(url))
        assert lake.tables() == ["t"]
        assert lake.table("t").read().num_rows == 8
        assert not [path for path in paths(lake.store) if "probe" in path]


def test_many_processes_create_one_table(tmp_path: Path) -> None:
    """The same with processes, each over a table a round."""
    program = (
        "import sys, lakebed, pyarrow as pa\n"
        "schema = pa.schema([pa.field('id', pa.int64(), nullable=False)])\n"
        "sys.stdin.readline()\n"
        "for i in range(10):\n"
        "    lakebed.open(sys.argv[1]).create_table(f't{i}', schema, if_not_exists=True)"
        ".append(pa.table({'id': [i]}))\n"
    )
    url = str(tmp_path / "lake")
    processes = [
        subprocess.Popen([sys.executable, "-c", program, url], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    lake = Lake.open(open_store(url))
    assert sorted(lake.tables()) == sorted(f"t{i}" for i in range(10))
    assert all(lake.table(f"t{i}").read().num_rows == 4 for i in range(10))


def test_a_database_of_a_lake_leaves_no_probe_in_its_folder() -> None:
    """The lake was probed: creating a database in it puts no probe, so a death leaves no folder that looks like one."""
    store = memory()
    seen: list[str] = []

    class Watched(StoreWrapper):
        def intercept(self, call: Call, perform: Callable[[], R]) -> R:
            seen.append(call.path)
            return perform()

    with Lake.open(Watched(store)).database("serving").open():
        pass
    assert not [path for path in seen if path.startswith("serving.kv/lakebed-probe")]
    assert [path for path in seen if path.startswith("lakebed-probe")]


class Sleeping(StoreWrapper):
    """A store of a process that sleeps while another one acts: before one of its calls, or behind it if it deletes."""

    def __init__(self, inner: ObjectStore, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._index, self._act = at, act
        self.kinds: list[str] = []
        """Of its calls, and those of its folders."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, perhaps later."""
        self.kinds.append(call.kind)
        sleeps = len(self.kinds) == self._index + 1
        if sleeps and call.kind != "delete":
            self._act()
        result = perform()
        if sleeps and call.kind == "delete":
            self._act()
        return result


def fail_deletes_but_of_schemas(_: int, call: Call) -> Fault | None:
    """What leaves a table dropped, and its files there."""
    return Fault.ERROR_BEFORE if call.kind == "delete" and "schema" not in call.path else None


def drop_by_halves(store: ObjectStore) -> Lake:
    """A lake with what is left of a table whose drop did not finish."""
    lake = Lake.open(store)
    lake.create_table("t", SCHEMA).append(pa.table({"id": [1]}))
    Lake.open(FaultyStore(store, faults=fail_deletes_but_of_schemas)).drop_table("t")
    assert lake.list_dropped() == ["t"]
    return lake


def use_name_again(lake: Lake) -> None:
    """Finish the drop, and make a table of the name."""
    lake.collect()
    if not lake.list_dropped():
        lake.create_table("t", SCHEMA, if_not_exists=True).append(pa.table({"id": [2]}))


def test_a_collection_that_sleeps_takes_nothing_of_a_table_that_was_made_since() -> None:
    """What is left of a drop was swept by another process, and the name is used again: the new table stays."""
    made = 0
    for at in range(200):
        inner = memory()
        lake = drop_by_halves(inner)
        sleeping = Sleeping(inner, at, partial(use_name_again, lake))
        Lake.open(sleeping).collect()
        if at >= len(sleeping.kinds):
            break
        assert lake.table("t").read().to_pydict() == {"id": [2]}, at
        made += 1
    assert made > 10


def test_a_collection_that_sleeps_between_two_batches_takes_nothing_of_a_table_that_was_made_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drop of many objects takes several requests; between them another process finishes it."""
    monkeypatch.setattr(sweep, "BATCH_COUNT_MAX", 2)
    rehearsal = Sleeping(memory(), -1, partial(use_name_again, Lake.open(memory())))
    drop_by_halves(rehearsal)
    before = len(rehearsal.kinds)
    Lake.open(rehearsal).collect()
    made = 0
    for at in (index for index, kind in enumerate(rehearsal.kinds[before:]) if kind == "delete"):
        inner = memory()
        lake = drop_by_halves(inner)
        Lake.open(Sleeping(inner, at, partial(use_name_again, lake))).collect()
        assert lake.table("t").read().to_pydict() == {"id": [2]}, at
        made += 1
    assert made > 4
