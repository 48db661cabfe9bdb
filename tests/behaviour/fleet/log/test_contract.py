"""What every log promises, in all implementations."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from behaviour.fleet.log.conftest import SHARED
from lakebed.errors import AlreadyExists, Closed, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.fleet.log.port import Log, LogBounds, rows_of
from lakebed.fleet.model import LogMark
from worlds.errors import raises
from worlds.fleet_log import TIMELINE, all_values, append, check_chain, values_of, write_id

Opener = Callable[[], Log]


def test_rows_get_dense_lsns_in_order(log: Log) -> None:
    """The first row has LSN 1; rows and records are numbered without gaps; an append returns the last."""
    assert log.bounds(TIMELINE) == LogBounds(1, 0)
    assert append(log, b"a") == 1
    assert append(log, b"b", None, b"c") == 4
    assert append(log, b"d") == 5
    assert values_of(log) == [(1, b"a"), (2, b"b"), (3, None), (4, b"c"), (5, b"d")]
    assert log.bounds(TIMELINE) == LogBounds(1, 5)
    assert check_chain(TIMELINE, LogMark(), log.read(TIMELINE, 0)).lsn == 5


def test_a_read_begins_behind_an_lsn(log: Log) -> None:
    """From the end of a record it returns what follows, from the middle the record that has it, at the end nothing."""
    append(log, b"a", b"b", b"c")
    append(log, b"d", b"e")
    assert [record.first_lsn for record in log.read(TIMELINE, 3)] == [4]
    assert [record.first_lsn for record in log.read(TIMELINE, 2)] == [1, 4]
    assert log.read(TIMELINE, 5) == []


def test_a_read_is_bounded_and_makes_progress(log: Log) -> None:
    """A read returns at least one record, and no second one beyond the limit."""
    for _ in range(4):
        append(log, bytes(10_000))
    assert len(log.read(TIMELINE, 0, bytes_max=1)) == 1
    assert len(log.read(TIMELINE, 0, bytes_max=25_000)) == 2
    assert len(log.read(TIMELINE, 2, bytes_max=1 << 20)) == 2
    assert [lsn for lsn, _ in all_values(log)] == [1, 2, 3, 4]


def test_an_append_that_expects_an_lsn(log: Log) -> None:
    """It succeeds at that LSN alone; the refusal says the last one, and nothing is appended."""
    assert append(log, b"a", b"b", expected=0) == 2
    for wrong in (0, 1, 3):
        with raises(Conflict, "unexpected_lsn", last=2):
            append(log, b"x", expected=wrong)
    assert append(log, b"c", expected=2) == 3
    assert values_of(log) == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_the_same_write_id_is_one_append(log: Log) -> None:
    """Asked again, also with what it expected before, and after others, an append gives its LSN and adds nothing."""
    first = write_id()
    assert append(log, b"a", write_id=first, expected=0) == 1
    append(log, b"b")
    append(log, b"c")
    assert append(log, b"a", write_id=first, expected=0) == 1
    assert append(log, b"a", write_id=first) == 1
    log.prune(TIMELINE, 2)
    assert append(log, b"a", write_id=first) in (1, 2)  # of what was pruned, the horizon will do
    assert log.bounds(TIMELINE).last == 3


def test_timelines_are_apart(log: Log) -> None:
    """Each has LSNs and rows of its own, also where one name begins with another."""
    for number, name in enumerate(("tenant/main2", "tenant/mai", "tenant/main.0", "tenant0/main"), 1):
        log.create(name)
        assert append(log, b"%d" % number, timeline=name) == 1
    append(log, b"a")
    assert values_of(log) == [(1, b"a")]
    assert values_of(log, "tenant/main2") == [(1, b"1")]
    log.drop("tenant/mai")
    assert values_of(log, "tenant/main2") == [(1, b"1")]
    assert values_of(log, "tenant/main.0") == [(1, b"3")]


def test_a_branch_begins_after_its_ancestor(log: Log) -> None:
    """A timeline that is begun after an LSN numbers its rows from there; to begin it again there is a no-op."""
    log.create("tenant/branch", after=70)
    assert log.bounds("tenant/branch") == LogBounds(71, 70)
    assert append(log, b"a", b"b", timeline="tenant/branch") == 72
    log.create("tenant/branch", after=70)
    with raises(AlreadyExists, "timeline_exists"):
        log.create("tenant/branch", after=71)
    assert values_of(log, "tenant/branch", 70) == [(71, b"a"), (72, b"b")]
    assert check_chain("tenant/branch", LogMark(lsn=70), log.read("tenant/branch", 70)).lsn == 72
    with raises(Conflict, "log_pruned"):
        log.read("tenant/branch", 69)


def test_pruning_forgets_whole_records(log: Log) -> None:
    """Records that end at or before the LSN go, the others stay; who asks below the horizon is told where it is."""
    for _ in range(3):
        append(log, b"a", b"b")
    log.prune(TIMELINE, 1)
    assert log.bounds(TIMELINE) == LogBounds(1, 6)
    log.prune(TIMELINE, 3)
    assert log.bounds(TIMELINE) == LogBounds(3, 6)
    for after in (0, 1):
        with raises(Conflict, "log_pruned", first=3):
            log.read(TIMELINE, after)
    assert [lsn for lsn, _ in values_of(log, after=2)] == [3, 4, 5, 6]
    log.prune(TIMELINE, 2)
    assert log.bounds(TIMELINE) == LogBounds(3, 6)


def test_a_pruned_timeline_goes_on(log: Log) -> None:
    """After everything was pruned, the next rows follow the last ones, and the chain holds."""
    append(log, b"a")
    append(log, b"b", b"c")
    mark = check_chain(TIMELINE, LogMark(), log.read(TIMELINE, 0))
    log.prune(TIMELINE, 3)
    assert log.bounds(TIMELINE).last == 3
    assert append(log, b"d") == 4
    assert check_chain(TIMELINE, mark, log.read(TIMELINE, mark.lsn)).lsn == 4


def test_a_dropped_timeline_is_gone(log: Log) -> None:
    """After a drop nothing of a timeline is there, and an append does not bring it back; dropping again is a no-op."""
    append(log, b"a")
    log.drop(TIMELINE)
    log.drop(TIMELINE)
    for call in (
        lambda: append(log, b"b"),
        lambda: log.read(TIMELINE, 0),
        lambda: log.bounds(TIMELINE),
        lambda: log.prune(TIMELINE, 0),
        lambda: log.wait(TIMELINE, 0, timeout_s=0),
    ):
        with raises(NotFound, "timeline_not_found"):
            call()
    assert log.wait_many({TIMELINE: 1}, timeout_s=0) == {}


def test_a_dropped_timeline_is_not_created_again(log: Log) -> None:
    """A late request to create it, where there were records and where there never were, is refused."""
    append(log, b"a")
    log.drop(TIMELINE)
    log.drop("tenant/never")
    for timeline in (TIMELINE, "tenant/never"):
        with raises(NotFound, "timeline_not_found"):
            log.create(timeline)
        with pytest.raises(NotFound):
            append(log, b"b", timeline=timeline)


def test_a_sealed_timeline_takes_no_append(log: Log) -> None:
    """A seal says where the timeline ends, for ever; an append is refused, and one that was made is still answered."""
    first = write_id()
    append(log, b"a", write_id=first)
    append(log, b"b")
    assert log.seal(TIMELINE) == 2
    for settings in ({}, {"expected": 2}, {"expected": 0}):
        with raises(Conflict, "timeline_sealed", last=2):
            append(log, b"c", **settings)
    assert append(log, b"a", write_id=first) == 1
    assert log.seal(TIMELINE) == 2
    log.create(TIMELINE)
    assert log.bounds(TIMELINE) == LogBounds(1, 2)


def test_a_sealed_timeline_is_read_pruned_and_dropped(log: Log) -> None:
    """Consumers read it to its end, along the chain; pruning and dropping are as of any other."""
    for value in (b"a", b"b", b"c"):
        append(log, value)
    log.seal(TIMELINE)
    mark = check_chain(TIMELINE, LogMark(), log.read(TIMELINE, 0))
    assert (mark.lsn, log.read(TIMELINE, mark.lsn)) == (3, [])
    assert values_of(log, after=1) == [(2, b"b"), (3, b"c")]
    assert log.wait(TIMELINE, 3, timeout_s=0) == 3
    assert log.wait(TIMELINE, 1, timeout_s=30) == 3
    log.prune(TIMELINE, 3)
    assert log.bounds(TIMELINE).last == 3
    assert log.read(TIMELINE, 3) == []
    assert log.seal(TIMELINE) == 3
    log.drop(TIMELINE)
    with pytest.raises(NotFound):
        log.seal(TIMELINE)


def test_an_empty_timeline_is_sealed(log: Log) -> None:
    """A branch without rows of its own ends where it began."""
    log.create("tenant/branch", after=70)
    assert log.seal("tenant/branch") == 70
    with pytest.raises(Conflict):
        append(log, b"a", timeline="tenant/branch")
    assert log.bounds("tenant/branch") == LogBounds(71, 70)


def test_a_seal_among_appends_loses_none_that_was_acknowledged(log: Log) -> None:
    """Of appends of many threads that a seal meets, those that return lie before it, and no other is ever stored."""
    acknowledged: dict[int, bytes] = {}
    refusals: set[str] = set()

    def work(number: int) -> None:
        for element in range(50):
            value = b"%d %02d" % (number, element)
            try:
                acknowledged[append(log, value)] = value
            except Conflict as error:
                refusals.add(error.kind)
                return

    with ThreadPoolExecutor(5) as pool:
        working = [pool.submit(work, number) for number in range(4)]
        log.wait(TIMELINE, 0, timeout_s=30)
        last = pool.submit(log.seal, TIMELINE).result()
        for item in working:
            item.result()
    assert refusals <= {"timeline_sealed"}
    assert dict(all_values(log)) == acknowledged
    assert sorted(acknowledged) == list(range(1, last + 1))


def test_what_is_sealed_or_dropped_stays_so_after_reopening(opened: Opener, kind: str) -> None:
    """Another process, and the next one, is refused as the one that sealed is; one with an older view too."""
    log = opened()
    shared = opened() if kind in SHARED else None
    for timeline in (TIMELINE, "tenant/gone"):
        log.create(timeline)
        append(shared or log, b"a", timeline=timeline)
    log.seal(TIMELINE)
    log.drop("tenant/gone")
    handles = [item for item in (log, shared) if item is not None]
    if kind != "memory":
        log.close()
        handles = [opened(), *handles[1:]]
    for handle in handles:
        with raises(Conflict, "timeline_sealed"):
            append(handle, b"b")
        assert handle.bounds(TIMELINE) == LogBounds(1, 1)
        for call in (lambda log: append(log, b"b", timeline="tenant/gone"), lambda log: log.create("tenant/gone")):
            with pytest.raises(NotFound):
                call(handle)


def test_a_log_that_lost_records_is_noticed(log: Log) -> None:
    """Who knows an LSN that the log does not have gets `log_forked`: reading and pruning."""
    append(log, b"a")
    for call in (lambda: log.read(TIMELINE, 2), lambda: log.prune(TIMELINE, 2)):
        with raises(Corruption, "log_forked", last=1):
            call()
    assert log.wait(TIMELINE, 2, timeout_s=30) == 1


def test_waiting(log: Log) -> None:
    """A wait returns at once when there is more, wakes at an append, and ends without one after its time."""
    assert log.wait(TIMELINE, 0, timeout_s=0.05) == 0
    append(log, b"a")
    assert log.wait(TIMELINE, 0, timeout_s=30) == 1
    log.create("tenant/other")
    for timeline in (TIMELINE, "tenant/other"):
        after = {name: log.bounds(name).last for name in (TIMELINE, "tenant/other")} | {"tenant/missing": 0}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait_many, after, timeout_s=60)
            last = append(log, b"b", timeline=timeline)
            assert waiting.result()[timeline] == last


def test_one_winner_of_one_expectation(log: Log) -> None:
    """Of many threads that expect the same LSN one wins, each time; the losers know the LSN of the winner."""
    with ThreadPoolExecutor(8) as pool:
        for expected in range(10):
            last: list[int] = []

            def attempt(number: int, expected: int = expected, last: list[int] = last) -> bool:
                try:
                    return append(log, b"%d" % number, expected=expected) == expected + 1
                except Conflict as error:
                    last.append(error.facts["last"])
                    return False

            assert sum(pool.map(attempt, range(8))) == 1
            assert last == [expected + 1] * 7
    assert log.bounds(TIMELINE).last == 10


def test_many_appenders_lose_and_reorder_nothing(log: Log) -> None:
    """Every acknowledged append is there once, at the LSN that was returned, and each thread's are in its order."""
    log.create("tenant/other")
    acknowledged: dict[str, dict[int, bytes]] = {TIMELINE: {}, "tenant/other": {}}

    def work(number: int) -> None:
        for item in range(25):
            timeline = (TIMELINE, "tenant/other")[item % 2]
            value = b"%d %02d" % (number, item)
            acknowledged[timeline][append(log, value, timeline=timeline)] = value

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for timeline, expected in acknowledged.items():
        values = all_values(log, timeline)
        assert [lsn for lsn, _ in values] == list(range(1, len(expected) + 1))
        assert dict(values) == expected
        for number in range(8):
            parts = [value for _, value in values if value is not None and value.startswith(b"%d " % number)]
            assert parts == sorted(parts)


def test_the_same_append_many_times_at_once(log: Log) -> None:
    """An append that is asked by many threads at the same time is one append."""
    same = write_id()
    with ThreadPoolExecutor(8) as pool:
        lsns = set(pool.map(lambda _: append(log, b"a", b"b", write_id=same), range(8)))
    assert lsns == {2}
    assert log.bounds(TIMELINE).last == 2


def test_what_was_acknowledged_is_there_after_reopening(opened: Opener, kind: str) -> None:
    """Rows, horizon, chain and write ids outlive the process."""
    if kind == "memory":
        log = again = opened()
    else:
        log = opened()
    log.create(TIMELINE)
    first, last = write_id(), write_id()
    append(log, b"a", write_id=first)
    append(log, b"b")
    mark = log.read(TIMELINE, 0)[-1].mark
    append(log, b"c", write_id=last)
    log.prune(TIMELINE, 1)
    if kind != "memory":
        log.close()
        again = opened()
    assert values_of(again, after=2) == [(3, b"c")]
    assert check_chain(TIMELINE, mark, again.read(TIMELINE, 2)).lsn == 3
    assert append(again, b"a", write_id=first) == 1
    assert append(again, b"c", write_id=last) == 3
    assert append(again, b"d") == 4
    with pytest.raises(Conflict):
        again.read(TIMELINE, 0)


def test_bad_input_changes_nothing(log: Log) -> None:
    """Invalid names, rows, write ids and LSNs are refused as such."""
    rows = rows_of([b"k"], [b"v"])
    for call in (
        lambda: log.create("tenant"),
        lambda: log.create("tenant/x", after=-1),
        lambda: log.append("a/b/c", rows, write_id=write_id()),
        lambda: log.append(TIMELINE, rows, write_id="mine"),
        lambda: log.append(TIMELINE, rows, write_id=write_id(), expected=-1),
        lambda: log.append(TIMELINE, rows.slice(0, 0), write_id=write_id()),
        lambda: log.read(TIMELINE, -1),
        lambda: log.prune(TIMELINE, -1),
        lambda: log.wait_many({TIMELINE: -1}, timeout_s=0),
        lambda: log.drop("tenant/*"),
    ):
        with pytest.raises(InvalidRequest):
            call()
    assert log.bounds(TIMELINE) == LogBounds(1, 0)


def test_a_large_append(log: Log) -> None:
    """An append of the largest size arrives whole."""
    count = 64
    value = bytes(range(256)) * (log.append_bytes_max // count // 256 - 1)
    last = log.append(TIMELINE, rows_of([b"k%02d" % n for n in range(count)], [value] * count), write_id=write_id())
    assert last == count
    assert Counter(value for _, value in all_values(log)) == {value: count}
    with raises(InvalidRequest, "oversized_append"):
        append(log, bytes(log.append_bytes_max))


def test_a_closed_log(opened: Opener) -> None:
    """Every call of a closed log is refused, and threads that wait are woken."""
    log = opened()
    log.create(TIMELINE)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            log.wait(TIMELINE, 0, timeout_s=60)
        except Closed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    log.close()
    waiting.join(60)
    log.close()
    assert len(errors) == 1
    for call in (lambda: append(log, b"a"), lambda: log.bounds(TIMELINE), lambda: log.read(TIMELINE, 0)):
        with pytest.raises(Closed):
            call()
