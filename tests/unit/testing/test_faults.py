"""The test tools keep their own promises: faults do what they say, and the same seed is the same run."""

from __future__ import annotations

import doctest
import random
import subprocess
import sys
import uuid
from typing import Any

import pytest

import lakebed.testing.clock
import lakebed.testing.faulty
import lakebed.testing.power_loss
import lakebed.testing.recording
import lakebed.testing.scheduler
from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.objects import ObjectStore, open_store
from lakebed.testing import (
    Crashed,
    Deadlock,
    Fault,
    FaultRates,
    FaultyStore,
    ManualClock,
    PowerLossStore,
    RecordingStore,
    Scheduler,
    StepsExceeded,
    random_faults,
)


def fresh() -> Any:
    """An empty store."""
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize(
    "module",
    [
        lakebed.testing.clock,
        lakebed.testing.faulty,
        lakebed.testing.power_loss,
        lakebed.testing.recording,
        lakebed.testing.scheduler,
    ],
)
def test_the_examples_run(module: Any) -> None:
    """Every example in the documentation of the test tools is right."""
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("fault", "error", "there", "later"),
    [
        (Fault.ERROR_BEFORE, Unavailable, False, False),
        (Fault.LOST_REQUEST, OutcomeUnknown, False, False),
        (Fault.LOST_REPLY, OutcomeUnknown, True, True),
        (Fault.LATE, OutcomeUnknown, False, True),
        (Fault.CRASH_BEFORE, Crashed, False, False),
        (Fault.CRASH_AFTER, Crashed, True, True),
        (Fault.CRASH_LATE, Crashed, False, True),
    ],
)
def test_each_fault_has_its_effect(fault: Fault, error: type[BaseException], there: bool, later: bool) -> None:
    """Before or after the effect, known or unknown, at once or late."""
    inner = fresh()
    store = FaultyStore(inner, faults={0: fault})
    view = store.sub("x")
    with pytest.raises(error):
        view.put("a", b"1", create_only=True)
    assert [meta.path for meta in inner.list()] == (["x/a"] if there else [])
    store.land()
    assert [meta.path for meta in inner.list()] == (["x/a"] if later else [])
    assert [(index, str(call), met) for index, call, met in store.met] == [(0, "put! x/a", fault)]
    if error is Crashed:
        for ask in (lambda: store.delete(["x/a"]), lambda: view.get("a"), lambda: list(store.list())):
            with pytest.raises(Crashed):
                ask()
        assert [meta.path for meta in inner.list()] == (["x/a"] if later else [])


def test_a_slow_call_takes_its_time() -> None:
    """`Fault.SLOW` spends time on the clock and then succeeds."""
    clock = ManualClock()
    store = FaultyStore(fresh(), faults={0: Fault.SLOW}, clock=clock, slow_s=3)
    store.put("a", b"1")
    assert clock.monotonic_s() == 3


def test_wrappers_nest_and_are_stores() -> None:
    """A trace through views of nested wrappers names whole paths and outcomes."""
    inner = fresh()
    store = RecordingStore(FaultyStore(PowerLossStore(inner), faults=random_faults(random.Random(1), {})))
    assert isinstance(store, ObjectStore)
    view = store.sub("a").sub("b/")
    view.put("x", b"1", create_only=True)
    with pytest.raises(Exception, match="exists"):
        view.put("x", b"1", create_only=True)
    list(store.list("a"))
    view.delete(["x", "y"])
    view.copy("x", "z") if [*view.list()] else None
    assert [str(call) for call in store.trace] == [
        "0 put! a/b/x: ok",
        "1 put! a/b/x: object_exists",
        "2 list a: ok",
        "3 delete a/b/x (+1): ok",
        "4 list a/b: ok",
    ]
    assert [change.index for change in store.changes()] == [0, 1, 3]


def test_a_listing_through_a_wrapper_has_its_pages() -> None:
    """Each page is a call of its own, so that the world may change between them."""
    store = RecordingStore(fresh(), page_count=2)
    for name in "abcde":
        store.put(name, b"")
    store.trace.clear()
    assert [meta.path for meta in store.list()] == list("abcde")
    assert len(store.trace) == 3


def test_power_loss_takes_what_was_not_durable() -> None:
    """Durable puts, synced files and deletions survive; the rest is gone, cut, kept, or what it was before."""
    store = PowerLossStore(fresh())
    store.put("old", b"first")
    store.put("old", b"second", durable=False)
    store.put("old", b"third", durable=False)
    store.put("synced", b"by another engine", durable=False)
    store.sub("x").put("gone", b"1", durable=False)
    store.put("deleted", b"1", durable=False)
    store.sync(["synced"])
    store.delete(["deleted"])
    assert store.volatile_paths == ["old", "x/gone"]
    assert store.power_loss() == ["old", "x/gone"]
    assert [meta.path for meta in store.list()] == ["old", "synced"]
    assert bytes(store.get("old")) == b"first"
    fates = set()
    for seed in range(50):
        store.put("v", b"0123456789", durable=False)
        store.power_loss(random.Random(seed))
        size_bytes = [meta.size_bytes for meta in store.list() if meta.path == "v"]
        fates.add("lost" if not size_bytes else "kept" if size_bytes == [10] else "cut")
        store.delete(["v"])
    assert fates == {"lost", "kept", "cut"}


def workload(seed: int) -> tuple[str, list[str]]:
    """Actors with locks, conditions, pools, threads and a store, under faults."""
    scheduler = Scheduler(seed, faults=FaultRates(lost_reply=0.1, late=0.1, pause=0.1, crash=0.02))
    environment = scheduler.environment()
    store = scheduler.store(fresh())
    lock, condition = environment.runtime.lock(), environment.runtime.condition()
    seen: list[str] = []

    def work(name: str) -> None:
        def put(number: int) -> None:
            try:
                store.put(f"{name}/{number}", b"1", create_only=True)
            except OutcomeUnknown:
                seen.append(f"{name} unclear")

        pool = environment.runtime.pool(3)
        list(pool.map(put, range(4)))
        pool.close()
        with lock:
            environment.clock.sleep(environment.rng.random())
            seen.append(name)
        join = environment.runtime.spawn(lambda: seen.append(f"{name} child"), name="child")
        join()
        with condition:
            condition.notify_all()
            condition.wait(timeout=1.0)

    for name in "abc":
        scheduler.spawn(name, lambda name=name: work(name))
    scheduler.run()
    return scheduler.trace_hash(), seen


def test_the_same_seed_is_the_same_run() -> None:
    """Every switch is the same, and other seeds are other runs."""
    assert workload(3) == workload(3)
    assert len({workload(seed)[0] for seed in range(10)}) == 10


def test_a_run_does_not_depend_on_hashing() -> None:
    """Two processes with different PYTHONHASHSEED see the same trace."""
    program = (
        "from lakebed.testing import *; from lakebed.objects import open_store\n"
        "s = Scheduler(5, faults=FaultRates(lost_reply=.1, crash=.05)); store = s.store(open_store('memory://h'))\n"
        "def work(n):\n"
        "    for i in range(9):\n"
        "        try: store.put(f'{n}/{i}', b'1')\n"
        "        except Exception: pass\n"
        "for n in 'abcd': s.spawn(n, lambda n=n: work(n))\n"
        "s.run(); print(s.trace_hash())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_a_crashed_process_has_no_further_effect() -> None:
    """All actors of the process are gone, and no ``finally`` of theirs reaches the store."""
    inner = fresh()
    scheduler = Scheduler(1)
    store = scheduler.store(inner)

    def work(name: str) -> None:
        try:
            for number in range(100):
                store.put(f"{name}/{number}", b"")
        finally:
            store.put(f"cleanup/{name}", b"")

    for name in ("a", "b"):
        scheduler.spawn(name, lambda name=name: work(name), process="one")
    scheduler.spawn("other", lambda: work("other"))
    for _ in range(60):
        scheduler.step_once()
    scheduler.crash("one")
    before = [meta.path for meta in inner.list() if not meta.path.startswith("other")]
    scheduler.run()
    after = [meta.path for meta in inner.list() if not meta.path.startswith(("other", "cleanup/other"))]
    assert after == before
    assert [meta.path for meta in inner.list("cleanup")] == ["cleanup/other"]


def test_a_deadlock_is_reported_with_its_seed() -> None:
    """Two actors that take two locks in opposite orders stand still in some seed, and it is said."""
    for seed in range(100):
        scheduler = Scheduler(seed)
        item, two = scheduler.environment().runtime.lock(), scheduler.environment().runtime.lock()

        def take(first: Any, second: Any) -> None:
            with first, second:
                pass

        scheduler.spawn("a", lambda one=item, two=two: take(one, two))
        scheduler.spawn("b", lambda one=item, two=two: take(two, one))
        try:
            scheduler.run()
        except Deadlock as deadlock:
            result = (seed, str(deadlock))
            break
    else:
        pytest.fail("no seed met the deadlock")
    assert f"seed {result[0]}" in result[1]


def test_an_endless_run_ends() -> None:
    """A loop is reported, not waited for; an actor's error carries its seed."""
    scheduler = Scheduler(1)

    def forever() -> None:
        while True:
            scheduler.switch("again")

    scheduler.spawn("a", forever)
    with pytest.raises(StepsExceeded):
        scheduler.run(steps_max=100)
    failing = Scheduler(9)
    failing.spawn("a", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        failing.run()
    assert any("seed 9" in note for note in caught.value.__notes__)


def test_time_passes_only_when_all_sleep() -> None:
    """A sleeper resumes at its time, and a busy actor does not make it later."""
    scheduler = Scheduler(1)
    clock = scheduler.environment().clock
    woken: list[tuple[str, float]] = []

    def nap(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        woken.append((name, clock.monotonic_s()))

    for name, seconds in (("c", 3600.0), ("a", 1.0), ("b", 2.0)):
        scheduler.spawn(name, lambda name=name, seconds=seconds: nap(name, seconds))
    scheduler.spawn("busy", lambda: [scheduler.switch("work") for _ in range(100)])
    scheduler.run()
    assert woken == [("a", 1.0), ("b", 2.0), ("c", 3600.0)]
    assert clock.now_ms() == scheduler.start_ms + 3_600_000
