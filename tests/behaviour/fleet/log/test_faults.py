"""Calls of the store below the log that fail, lose their replies or land late; PostgreSQL that crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, TypeVar

import pytest

from lakebed.clock import SystemClock
from lakebed.errors import Fenced, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.log.changes import PRUNE_COUNT_MAX, Append
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log, LogBounds, rows_of
from lakebed.fleet.log.write_ids import WriteIdLimits
from lakebed.key_value.port import KeyValue
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.fleet_log import TIMELINE, all_values, append, check_chain, values_of, write_id
from worlds.fleet_log_process import CheckedAppends
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue, MemorySpace
from worlds.waiting import HANG_S, wait_until

R = TypeVar("R")

FAULTS = ["refused", "request lost", "reply lost"]


class Flaky(KeyValueWrapper):
    """Fails so many calls from one of them on.

    Attributes:
        count: calls so far.
        struck: calls that failed.
    """

    def __init__(self, inner: KeyValue, *, at: int = -1, times: int = 1, fault: str = "") -> None:
        super().__init__(inner)
        self._at, self._times, self._fault = at, times, fault
        self.count = 0
        self.struck = 0

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Perform the call, or not, and fail."""
        number, self.count = self.count, self.count + 1
        if not self._at <= number < self._at + self._times:
            return perform()
        self.struck += 1
        if not call.changes or self._fault == "refused":
            raise Unavailable("no answer")
        if self._fault == "reply lost":
            perform()
        raise OutcomeUnknown("no answer")


def logged(
    store: KeyValue, *, is_shared: bool = False, clock: ManualClock | None = None, **settings: Any
) -> KeyValueLog:
    """A log over a store, whose pauses take no time."""
    environment = Environment(clock=clock or ManualClock())
    return KeyValueLog([store], environment=environment, is_shared=is_shared, **settings)


def insist(call: Callable[[], R]) -> R:
    """Ask again after errors that allow it, as a client does."""
    for _ in range(20):
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            continue
    raise AssertionError("asked twenty times")


def workload(log: Log) -> None:
    """A timeline's life: the result is checked by `check_workload`."""
    insist(lambda: log.create(TIMELINE))
    insist(lambda: log.create("tenant/gone"))
    for number in range(4):
        same, value = write_id(), b"%d" % number
        assert insist(lambda same=same, value=value: append(log, value, b"+", write_id=same)) == 2 * number + 2  # type: ignore[misc]
        assert insist(lambda same=same, value=value: append(log, value, b"+", write_id=same)) == 2 * number + 2  # type: ignore[misc]
    same = write_id()
    assert insist(lambda: append(log, b"x", timeline="tenant/gone", write_id=same, expected=0)) == 1
    insist(lambda: log.prune(TIMELINE, 4))
    insist(lambda: log.drop("tenant/gone"))
    same = write_id()
    assert insist(lambda: append(log, b"last", write_id=same, expected=8)) == 9


def check_workload(log: Log) -> None:
    """Compare with what `workload` wrote."""
    assert log.bounds(TIMELINE) == LogBounds(5, 9)
    assert values_of(log, after=4) == [(5, b"2"), (6, b"+"), (7, b"3"), (8, b"+"), (9, b"last")]
    with pytest.raises(NotFound):
        log.bounds("tenant/gone")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_shared", [False, True], ids=["owned", "shared"])
@pytest.mark.parametrize("times", [1, 3, 12])
def test_every_call_may_fail(fault: str, is_shared: bool, times: int) -> None:
    """Whichever call of the store fails, once or for a while, nothing is lost or comes twice when it is asked again."""
    counting = Flaky(MemoryKeyValue())
    workload(logged(counting, is_shared=is_shared))
    assert counting.count > 15
    for at in range(counting.count):
        space = MemorySpace()
        flaky = Flaky(MemoryKeyValue(space), at=at, times=times, fault=fault)
        workload(logged(flaky, is_shared=is_shared))
        assert flaky.struck
        check_workload(logged(MemoryKeyValue(space)))
        records = logged(MemoryKeyValue(space)).read(TIMELINE, 4)
        check_chain(TIMELINE, records[0].mark, records[1:])


class Late(KeyValueWrapper):
    """Holds one write back, whose reply is lost, until something calls `land`."""

    def __init__(self, inner: KeyValue) -> None:
        super().__init__(inner)
        self.land: Callable[[], object] | None = None
        self.holds = False

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Keep a write for later."""
        if self.holds and call.changes:
            self.holds, self.land = False, perform
            raise OutcomeUnknown("no answer")
        if self.land is not None and call.is_linearizable:
            land, self.land = self.land, None
            with suppress(LakebedError):  # it lost: something else was written first
                land()
        return perform()


@pytest.mark.parametrize("is_shared", [False, True], ids=["owned", "shared"])
def test_a_write_that_lands_late_counts_once(is_shared: bool) -> None:
    """A write that takes effect after its reply was given up is the append that was asked, not a second one."""
    late = Late(MemoryKeyValue())
    log = logged(late, is_shared=is_shared)
    log.create(TIMELINE)
    for number in range(3):
        late.holds = True
        assert append(log, b"%d" % number) == number + 1
    assert values_of(log) == [(1, b"0"), (2, b"1"), (3, b"2")]


class Silent:
    """The signal of a change that the test leads itself."""

    def wake(self) -> None:
        """Nothing waits."""


def test_a_group_is_one_write() -> None:
    """Appends of several timelines that wait at the same time are one write of an owned store."""
    counting = Flaky(MemoryKeyValue())
    log = logged(counting)
    for number in range(8):
        log.create(f"tenant/t{number}")
    for number in range(8):
        append(log, b"a", timeline=f"tenant/t{number}")

    def submitted(number: int) -> Append:
        row = rows_of([b"k"], [b"b"])
        return Append(f"tenant/t{number % 8}", Silent(), rows=row, write_id=write_id(), expected=None)

    changes = [submitted(number) for number in range(24)]
    before = counting.count
    for change in changes:
        log.submit(change)
    log.lead(changes[0])
    assert counting.count == before + 1
    assert sorted(change.result() for change in changes) == [2] * 8 + [3] * 8 + [4] * 8


def test_one_write_id_twice_in_a_group() -> None:
    """An append that waits twice at the same time is one record, and both get its LSN."""
    log = logged(MemoryKeyValue())
    log.create(TIMELINE)
    same, row = write_id(), rows_of([b"k"], [b"a"])
    changes = [Append(TIMELINE, Silent(), rows=row, write_id=same, expected=None) for _ in range(3)]
    for change in changes:
        log.submit(change)
    log.lead(changes[0])
    assert [change.result() for change in changes] == [1, 1, 1]
    assert log.bounds(TIMELINE).last == 1


def test_two_processes_share_a_store() -> None:
    """Two logs over one shared store see each other's appends, prunes and drops; expectations hold between them."""
    space = MemorySpace()
    item = logged(MemoryKeyValue(space), is_shared=True)
    other = logged(MemoryKeyValue(space), is_shared=True)
    item.create(TIMELINE)
    for number in range(6):
        assert append((item, other)[number % 2], b"%d" % number, expected=number) == number + 1
    same = write_id()
    assert append(item, b"6", write_id=same) == 7
    assert append(other, b"6", write_id=same) == 7
    assert [lsn for lsn, _ in all_values(other)] == list(range(1, 8))
    other.prune(TIMELINE, 3)
    assert item.bounds(TIMELINE) == LogBounds(4, 7)
    assert append(item, b"7") == 8
    other.drop(TIMELINE)
    for log in (item, other):
        with pytest.raises(NotFound):
            append(log, b"8")


def test_write_ids_are_kept_for_a_while() -> None:
    """As many write ids as promised are remembered, also of pruned records and by the next process; older ones go."""
    space, clock = MemorySpace(), ManualClock()
    log = logged(MemoryKeyValue(space), clock=clock, write_id_limits=WriteIdLimits(kept=10))
    log.create(TIMELINE)
    ids = [write_id() for _ in range(25)]
    for number, same in enumerate(ids):
        append(log, b"%d" % number, write_id=same)
        clock.advance(130)
        if number % 5 == 4:
            log.prune(TIMELINE, number + 1)
    stored = [key for key, _ in MemoryKeyValue(space).snapshot().scan(b"i/", b"i0")]
    assert 10 <= len(stored) <= 11
    for again in (log, logged(MemoryKeyValue(space), write_id_limits=WriteIdLimits(kept=10))):
        for number in range(15, 25):
            assert append(again, b"", write_id=ids[number]) == number + 1
    assert log.bounds(TIMELINE).last == 25


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_write_id_is_remembered_however_many_follow(is_shared: bool) -> None:
    """For two minutes an append that is asked again is one append: by its log, another process and the next one."""
    space, clock = MemorySpace(), ManualClock()
    limits = WriteIdLimits(kept=3)

    def open_another() -> KeyValueLog:
        return logged(MemoryKeyValue(space), clock=clock, is_shared=is_shared, write_id_limits=limits)

    log = open_another()
    log.create(TIMELINE)
    same = write_id()
    assert append(log, b"old", write_id=same) == 1
    for number in range(2, 30):
        other = open_another() if is_shared and number % 5 == 0 else log
        assert append(other, b"%d" % number) == number
        clock.advance(4)
        log.prune(TIMELINE, number - 1)
    assert append(log, b"old", write_id=same) == 1
    again = open_another()
    assert append(again, b"old", write_id=same) == 1
    clock.advance(100)
    for number in range(30, 35):
        assert append(again, b"%d" % number) == number
        again.prune(TIMELINE, number - 1)
    assert append(open_another(), b"old", write_id=same) == 1
    assert values_of(again, after=33) == [(34, b"34")]


def test_old_write_ids_go() -> None:
    """After two minutes the memory and the store have the newest ones alone, also of a timeline that is idle."""
    store, clock = MemoryKeyValue(), ManualClock()
    log = logged(store, clock=clock, write_id_limits=WriteIdLimits(kept=3))
    for name in (TIMELINE, "tenant/idle"):
        log.create(name)
        for number in range(50):
            append(log, b"%d" % number, timeline=name)
    assert [len(known.write_ids) for known in log._timelines.values()] == [50, 50]
    clock.advance(130)
    append(log, b"new")
    assert [len(known.write_ids) for known in log._timelines.values()] == [3, 3]
    log.prune(TIMELINE, 51)
    keys = [key for key, _ in store.snapshot().scan(f"i/{TIMELINE}/".encode(), f"i/{TIMELINE}0".encode())]
    assert keys == [f"i/{TIMELINE}/{lsn:020}".encode() for lsn in (49, 50, 51)]


def test_a_log_that_can_remember_no_more_takes_no_append() -> None:
    """It refuses a new append, and forgets none too soon; what it has it answers. Later it takes appends again."""
    space, clock = MemorySpace(), ManualClock()
    limits = WriteIdLimits(kept=3, count_max=20)
    log = logged(MemoryKeyValue(space), clock=clock, write_id_limits=limits)
    for name in (TIMELINE, "tenant/other"):
        log.create(name)
    ids = [write_id() for _ in range(21)]
    for number, same in enumerate(ids[:20], 1):
        assert append(log, b"%d" % number, write_id=same) == number
        clock.advance(1)
    with raises(Unavailable, "log_busy"):
        append(log, b"21", write_id=ids[20])
    assert append(log, b"1", timeline="tenant/other") == 1
    for number, same in enumerate(ids[:20], 1):
        assert append(log, b"", write_id=same) == number
    assert log.bounds(TIMELINE).last == 20
    clock.advance(110)
    assert append(log, b"21", write_id=ids[20]) == 21
    assert append(log, b"20", write_id=ids[19]) == 20
    next_process = logged(MemoryKeyValue(space), clock=clock, write_id_limits=limits)
    assert append(next_process, b"22") == 22
    assert append(next_process, b"", write_id=ids[2]) == 3


def test_pruning_takes_as_many_writes_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large prune is several writes; after each the horizon is where the records begin."""
    assert PRUNE_COUNT_MAX > 3
    monkeypatch.setattr("lakebed.fleet.log.changes.PRUNE_COUNT_MAX", 3)
    counting = Flaky(MemoryKeyValue())
    log = logged(counting, write_id_limits=WriteIdLimits(kept=2))
    log.create(TIMELINE)
    for number in range(10):
        append(log, b"%d" % number)
    log.prune(TIMELINE, 8)
    assert log.bounds(TIMELINE) == LogBounds(9, 10)
    assert [lsn for lsn, _ in values_of(log, after=8)] == [9, 10]
    keys = [key for key, _ in counting.inner.snapshot().scan(b"r/", b"r0")]
    assert len(keys) == 2
    for number in range(6):
        append(log, b"%d" % number)
    log.drop(TIMELINE)
    assert [key for key, _ in counting.inner.snapshot().scan()] == [f"t/{TIMELINE}".encode()]


@pytest.mark.parametrize("after", [0, 10**6, 1 << 62])
def test_nothing_of_a_dropped_timeline_stays_but_its_end(after: int) -> None:
    """Whatever the LSNs of its records."""
    store = MemoryKeyValue()
    log = logged(store)
    log.create(TIMELINE, after=after)
    for number in range(3):
        append(log, b"%d" % number)
    log.drop(TIMELINE)
    assert [key for key, _ in store.snapshot().scan()] == [f"t/{TIMELINE}".encode()]


def test_memory_for_recent_records_is_bounded() -> None:
    """Reads that memory cannot answer any more are answered by the store, with the same records."""
    log = logged(MemoryKeyValue(), recent_bytes_max=5_000)
    for name in ("tenant/a", "tenant/b"):
        log.create(name)
    for number in range(50):
        append(log, b"%02d" % number * 200, timeline=("tenant/a", "tenant/b")[number % 2])
    for name in ("tenant/a", "tenant/b"):
        assert [lsn for lsn, _ in all_values(log, name)] == list(range(1, 26))
        for after in range(25):
            assert values_of(log, name, after)[0][0] == after + 1


class Fencing(KeyValueWrapper):
    """A store that another process has taken over."""

    is_over = False

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Refuse what the owner alone may do."""
        if self.is_over and (call.changes or call.is_linearizable):
            raise Fenced("another process owns the store")
        return perform()


def test_a_process_that_lost_its_store_reports_no_loss() -> None:
    """Asked for an LSN that only the new owner has, it says that it is over, not that the log has lost records."""
    store = Fencing(MemoryKeyValue())
    log = logged(store)
    log.create(TIMELINE)
    append(log, b"a")
    store.is_over = True
    assert values_of(log) == [(1, b"a")]
    for call in (
        lambda: log.read(TIMELINE, 2),
        lambda: log.wait(TIMELINE, 2, timeout_s=0),
        lambda: append(log, b"b"),
        lambda: append(log, b"b", expected=7),
        lambda: log.prune(TIMELINE, 2),
    ):
        with pytest.raises(Fenced):
            call()


def test_postgresql_crashes(postgresql: Any, tell: Callable[[str], None]) -> None:
    """It crashes and starts again under load: appends go on, and nothing acknowledged is lost or repeated."""
    url = postgresql.make_database()
    clock = SystemClock()
    work = CheckedAppends(lambda: open_log(url), count=4, now_s=clock.monotonic_s)
    try:
        for _ in range(2):
            work.wait_for(100)
            postgresql.crash(url)
        work.wait_for(100)
        work.stop()
        with closing(open_log(url)) as log:
            assert work.check(log) >= work.count
        assert not any(work.unclear.values())
    finally:
        work.close()
    tell(f"log in PostgreSQL, two crashes: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s")


def test_a_caller_that_gives_up_delays_no_other() -> None:
    """A change whose caller does not wait any more leaves its queue, and those behind it are made."""
    log = logged(MemoryKeyValue())
    log.create(TIMELINE)
    row = rows_of([b"k"], [b"given up"])
    gone = Append(TIMELINE, Silent(), rows=row, write_id=write_id(), expected=None)
    log.submit(gone)
    items: list[int] = []
    waiting = threading.Thread(target=lambda: items.append(append(log, b"a")), daemon=True)
    waiting.start()
    wait_until(lambda: log.waiting_count == 2)
    log.abandon(gone)
    waiting.join(HANG_S)
    assert items == [1]
    assert values_of(log) == [(1, b"a")]
