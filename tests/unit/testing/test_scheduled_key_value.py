"""The key-value store of simulations: every fault happens, none breaks the port's promises, and a seed repeats."""

from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.key_value.port import KeyValue
from lakebed.testing import FaultRates, Scheduler
from worlds import scheduled_key_value
from worlds.memory_key_value import MemoryKeyValue
from worlds.scheduled_key_value import ScheduledKeyValue

STORM = FaultRates(error_before=0.05, lost_request=0.05, lost_reply=0.05, late=0.05, crash=0.01, pause=0.02)
SEEDS = 60


def increment(key_value: KeyValue, name: str, number: int, met: Counter[str]) -> bool:
    """Raise the counter by one and leave a mark of our own; whether it happened, by what the port promises."""
    mark = f"mark/{name}/{number}".encode()
    while True:
        try:
            now = key_value.get(b"n")
            following = b"%d" % (int(now or 0) + 1)
            key_value.write([(b"n", following), (mark, b"")], expected={b"n": now, mark: None})
        except Unavailable:
            met["unavailable"] += 1
            continue
        except Conflict:
            met["conflict"] += 1
            continue
        except OutcomeUnknown:
            met["unknown"] += 1
            while True:
                try:
                    happened = key_value.get(mark) is not None
                except Unavailable:
                    continue
                met["it had happened" if happened else "it had not"] += 1
                return happened
        return True


def play(seed: int, faults: FaultRates, met: Counter[str]) -> tuple[str, int]:
    """Three actors that count; the trace's digest, and how many steps there were."""
    scheduler, inner, done = Scheduler(seed, faults=faults), MemoryKeyValue(), Counter[str]()

    def count(name: str) -> None:
        key_value = ScheduledKeyValue(inner, scheduler=scheduler)
        for number in range(5):
            done[name] += increment(key_value, name, number, met)
            with key_value.snapshot() as snapshot:
                marks = [key for key, _ in snapshot.scan(b"mark/", b"mark0")]
                assert len(marks) == int(snapshot.get(b"n") or 0)
                assert sum(batch.num_rows for batch in snapshot.scan_arrow(b"mark/", b"mark0")) == len(marks)

    def survive(name: str) -> None:
        try:
            count(name)
        except Unavailable:  # of a snapshot
            met["gave up"] += 1

    actors = [scheduler.spawn(name, lambda name=name: survive(name)) for name in ("a", "b", "c")]
    scheduler.run()
    crashed = sum(actor.is_crashed for actor in actors)
    met["crashed"] += crashed
    total = int(inner.get(b"n") or 0)
    with inner.snapshot() as snapshot:
        assert len(list(snapshot.scan(b"mark/", b"mark0"))) == total
    # A crashed actor may leave one write behind that it never heard of.
    assert done.total() <= total <= done.total() + crashed
    return scheduler.trace_hash(), scheduler.step_count


def test_what_was_acknowledged_happened_once() -> None:
    """With every fault, counters end as many as were acknowledged or settled; each fault was met."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        play(seed, STORM, met)
    for what in ("unavailable", "conflict", "unknown", "it had happened", "it had not", "crashed"):
        assert met[what] >= 5, met


def test_without_faults_nothing_fails() -> None:
    """With no faults actors only meet each other."""
    met: Counter[str] = Counter()
    for seed in range(10):
        play(seed, FaultRates(), met)
    assert set(met) <= {"conflict", "crashed"}
    assert met["conflict"] > 0
    assert met["crashed"] == 0


def test_the_same_seed_is_the_same_run() -> None:
    """Traces are equal for one seed, and differ between seeds."""
    faults = replace(STORM, crash=0.0)
    assert play(3, faults, Counter()) == play(3, faults, Counter())
    assert play(3, faults, Counter()) != play(4, faults, Counter())


def test_outside_of_actors_nothing_fails() -> None:
    """Set-up and checking code calls the store as it is."""
    scheduler = Scheduler(1, faults=FaultRates(error_before=1.0))
    key_value = ScheduledKeyValue(MemoryKeyValue(), scheduler=scheduler)
    key_value.set(b"a", b"1")
    key_value.set_if(b"a", b"2", expected=b"1")
    key_value.put_columns([b"b", b"c"], [b"3", b"4"])
    key_value.delete(b"c")
    assert (key_value.get(b"a"), key_value.peek(b"b"), key_value.is_local) == (b"2", b"3", True)
    with key_value.snapshot() as snapshot:
        assert snapshot.get_many([b"a", b"c"]) == [b"2", None]
    key_value.close()
    assert key_value.inner.get(b"a") == b"2"


def test_the_example_is_right() -> None:
    """The docstring's example runs as written."""
    result = doctest.testmod(scheduled_key_value)
    assert result.attempted > 0
    assert result.failed == 0
