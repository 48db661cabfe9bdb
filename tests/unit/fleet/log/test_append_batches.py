"""Appends that travel together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakebed.errors import Conflict, Unavailable
from lakebed.fleet.log.bodies import AppendItem
from lakebed.fleet.log.client import AppendBatches, Waiting
from lakebed.runtime import Environment
from worlds.forks import answer_in_fork
from worlds.waiting import HANG_S, wait_until


def item(number: int, *, size: int = 1) -> AppendItem:
    """An append that is known by the LSN it expects."""
    return AppendItem("tenant/main", bytes(size), number)


def test_appends_that_wait_travel_together() -> None:
    """While requests are under way, all that comes waits, and is sent at once; each append gets its own result."""
    sent: list[list[int]] = []
    may_go = threading.Event()
    is_full = threading.Semaphore(0)

    def send(waiting: Sequence[Waiting]) -> None:
        sent.append([candidate.item.expected or 0 for candidate in waiting])
        is_full.release()
        may_go.wait(HANG_S)
        for element in waiting:
            if element.item.expected == 13:
                element.error = Conflict("no")
            else:
                element.lsn = 100 + (element.item.expected or 0)

    batches = AppendBatches(send, environment=Environment())

    def append(number: int) -> int:
        try:
            return batches.append(item(number))
        except Conflict:
            return -1

    with ThreadPoolExecutor(32) as pool:
        first = [pool.submit(append, number) for number in range(2)]
        for _ in first:
            is_full.acquire()
        rest = [pool.submit(append, number) for number in range(2, 32)]
        try:
            wait_until(lambda: batches.waiting_count == 30)
        finally:
            may_go.set()
        results = [element.result(HANG_S) for element in (*first, *rest)]
    assert results == [-1 if number == 13 else 100 + number for number in range(32)]
    assert [len(element) for element in sent] == [1, 1, 30]


def test_large_appends_do_not_travel_together() -> None:
    """A request has a largest size, and what does not fit is sent with the next one, by a thread that waits for it."""
    sent: list[int] = []

    def send(waiting: Sequence[Waiting]) -> None:
        sent.append(len(waiting))
        for element in waiting:
            element.lsn = 1

    batches = AppendBatches(send, environment=Environment())
    with ThreadPoolExecutor(16) as pool:
        result = list(pool.map(lambda number: batches.append(item(number, size=9 << 20)), range(16)))
    assert result == [1] * 16
    assert set(sent) == {1}


def test_a_request_that_fails_is_the_error_of_those_without_a_result() -> None:
    """What has its result keeps it; the others get the error of the request, and later appends are sent."""
    fails = [True]

    def send(waiting: Sequence[Waiting]) -> None:
        if fails:
            fails.clear()
            raise Unavailable("no answer")
        for element in waiting:
            element.lsn = 7

    batches = AppendBatches(send, environment=Environment())
    with pytest.raises(Unavailable):
        batches.append(item(1))
    assert batches.append(item(2)) == 7


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_sends_its_own_appends() -> None:
    """It does not wait for requests of its parent, and sends none of what waits there."""
    sent: list[int] = []
    may_go = threading.Event()
    is_full = threading.Semaphore(0)

    def send(waiting: Sequence[Waiting]) -> None:
        sent.extend(element.item.expected or 0 for element in waiting)
        is_full.release()
        if waiting[0].item.expected != 99:
            may_go.wait(HANG_S)
        for element in waiting:
            element.lsn = element.item.expected

    def append() -> list[int]:
        sent.clear()
        return [batches.append(item(99)), *sent]

    batches = AppendBatches(send, environment=Environment())
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(batches.append, item(number)) for number in (1, 2)]
        for _ in first:
            is_full.acquire()
        waiting = pool.submit(batches.append, item(3))
        try:
            wait_until(lambda: batches.waiting_count == 1)
            assert answer_in_fork(append) == "[99, 99]"
        finally:
            may_go.set()
        assert [element.result(HANG_S) for element in (*first, waiting)] == [1, 2, 3]
