"""A pool of slots: as many calls work as there are slots, and who waits outside stops nobody."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import suppress

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


def test_threads_suffice_while_a_call_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of its wait and its turn for a slot a call has its thread: no other one leaves in its place."""
    monkeypatch.setattr(slot_pool, "OUTSIDE_MAX", 1)
    pool, returning, goes_on = SlotPool(1, "test"), threading.Event(), threading.Event()
    take_slot = SlotPool.take_slot

    def take_late(self: SlotPool, owner: str) -> None:
        if not returning.is_set():
            returning.set()
            assert goes_on.wait(HANG_S)
        take_slot(self, owner)

    monkeypatch.setattr(SlotPool, "take_slot", take_late)

    def leave() -> None:
        with suppress(Unavailable), leave_slot("other"):
            pass

    def leave_first() -> None:
        with leave_slot("owner"):
            pass

    first = pool.submit(leave_first)
    assert returning.wait(HANG_S)
    second, third = pool.submit(leave), pool.submit(int)
    wait_until(lambda: second.done() or pool._returning)
    goes_on.set()
    assert wait([first, second, third], timeout=HANG_S).not_done == set()
    pool.shutdown()


def test_a_wait_inside_of_a_wait_frees_one_slot() -> None:
    """Who is outside has no slot to leave."""
    pool, stops = SlotPool(1, "test"), threading.Event()
    most: list[int] = []

    def nest() -> None:
        with leave_slot("owner"), leave_slot("owner"):
            pool.submit(most.append, pool._free_count).result(HANG_S)
            most.append(pool._free_count)
        with leave_slot("owner"):
            pass

    pool.submit(nest).result(HANG_S)
    stops.set()
    pool.shutdown()
    assert max(most) <= 1
    assert pool._free_count == 1


def test_calls_that_a_shutdown_cancels_are_cancelled() -> None:
    """Who waits for one of them is told, and does not wait for ever."""
    pool, stops = SlotPool(1, "test"), threading.Event()
    first, second = pool.submit(stops.wait, HANG_S), pool.submit(int)
    pool.shutdown(wait=False, cancel_futures=True)
    stops.set()
    assert first.result(HANG_S)
    assert second.cancelled()
