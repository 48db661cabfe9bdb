"""A pool of slots: as many calls work as there are slots, and who waits outside stops nobody."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from lakebed.errors import Unavailable
from lakebed.http import slot_pool
from lakebed.http.slot_pool import SlotPool, leave_slot
from worlds.waiting import HANG_S, wait_until


def test_as_many_calls_work_as_there_are_slots() -> None:
    """Calls that leave their slots and come back included; every call is run, and its result or error is its own."""
    pool = SlotPool(2, "test")
    lock, working, most = threading.Lock(), 0, 0

    def work(number: int) -> int:
        nonlocal working, most
        for _ in range(20):
            with lock:
                working += 1
                most = max(most, working)
            with lock:
                working -= 1
            with leave_slot("owner"):
                pass
        if number % 7 == 0:
            raise ValueError(str(number))
        return number

    calls = [pool.submit(work, number) for number in range(50)]
    pool.shutdown()
    assert all(call.done() for call in calls)
    assert most <= 2
    for number, call in enumerate(calls):
        if number % 7:
            assert call.result() == number
        else:
            with pytest.raises(ValueError, match=str(number)):
                call.result()
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_calls_outside_leave_room_and_come_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """While some wait outside others run; one more than an owner may have is refused; then all come back."""
    monkeypatch.setattr(slot_pool, "OUTSIDE_OF_OWNER_MAX", 3)
    pool, goes_on, refused = SlotPool(1, "test"), threading.Event(), []
    outside = threading.Semaphore(0)

    def hang() -> str:
        with leave_slot("owner"):
            outside.release()
            assert goes_on.wait(HANG_S)
        return "back"

    def ask() -> None:
        try:
            with leave_slot("owner"):
                pass
        except Unavailable as error:
            refused.append(error.kind)
        with leave_slot("other"):
            pass

    hanging = [pool.submit(hang) for _ in range(3)]
    for _ in hanging:
        assert outside.acquire(timeout=HANG_S)
    pool.submit(ask).result(HANG_S)
    assert refused == ["busy_outside"]
    stops = threading.Event()
    last = pool.submit(stops.wait, HANG_S)
    later = pool.submit(int)
    assert pool.waiting_count == 1
    goes_on.set()
    wait_until(lambda: len(pool._returning) == 3)
    stops.set()
    assert wait([*hanging, last, later], timeout=HANG_S).not_done == set()
    assert [call.result() for call in hanging] == ["back"] * 3
    with leave_slot("owner"):  # a thread without a slot leaves none
        pass
    pool.shutdown()


def test_a_call_that_is_cancelled_before_it_has_a_slot_never_runs() -> None:
    """And the slot goes to the next."""
    pool, stops, ran = SlotPool(1, "test"), threading.Event(), []
    first = pool.submit(stops.wait, HANG_S)
    second, third = pool.submit(ran.append, 2), pool.submit(ran.append, 3)
    assert second.cancel()
    stops.set()
    assert first.result(HANG_S)
    third.result(HANG_S)
    pool.shutdown()
    assert ran == [3]
