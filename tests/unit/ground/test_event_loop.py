"""An event loop in a thread: what runs in it ends with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from lakebed.event_loop import EventLoopThread, Handed, Handover
from worlds.waiting import HANG_S

CALLERS = 4


async def step() -> None:
    """Let the loop turn once."""
    await asyncio.sleep(0)


def test_no_caller_waits_for_a_loop_that_was_closed() -> None:
    """Threads that ask all the time while it is closed get a result or an error."""
    for _ in range(30):
        loop = EventLoopThread(name="lakebed-test-loop")

        def ask(loop: EventLoopThread = loop) -> None:
            with suppress(Exception):
                while True:
                    loop.run(step())

        callers = [threading.Thread(target=ask, daemon=True) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        loop.close()
        loop.close()
        for caller in callers:
            caller.join(HANG_S)
        assert not any(caller.is_alive() for caller in callers)


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    """A loop that ends with the test."""
    running = EventLoopThread(name="lakebed-test-loop")
    yield running
    running.close()


def test_each_thread_gets_its_own_result(loop: EventLoopThread) -> None:
    """Items of many threads come together, and are answered in another order than they came, some with an error."""
    counts: list[int] = []

    async def take(items: Sequence[Handed[int, int]]) -> None:
        counts.append(len(items))
        await asyncio.sleep(0.001)
        for item in reversed(items):
            if item.item % 7 == 0:
                item.fail(ValueError(str(item.item)))
            item.answer(-item.item)

    handover = Handover(loop, take)

    def ask(number: int) -> int:
        try:
            return handover.ask(number, timeout_s=HANG_S / 2)
        except ValueError as error:
            return int(str(error))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(500))) == [item if item % 7 == 0 else -item for item in range(500)]
    assert sum(counts) == 500
    assert max(counts) > 1


def test_an_item_without_a_result(loop: EventLoopThread) -> None:
    """Its thread waits as long as it said; a result that comes later is dropped. A defect fails the items it met."""
    taken: list[Handed[str, None]] = []

    async def take(items: Sequence[Handed[str, None]]) -> None:
        taken.extend(items)
        if items[0].item == "defect":
            raise ZeroDivisionError

    handover = Handover(loop, take)
    with pytest.raises(TimeoutError):
        handover.ask("late", timeout_s=0.01)
    taken[0].answer(None)
    with pytest.raises(ZeroDivisionError):
        handover.ask("defect", timeout_s=HANG_S / 2)
    handover.close()
    with pytest.raises(RuntimeError):
        handover.ask("closed", timeout_s=HANG_S / 2)


def test_a_handover_that_is_closed_keeps_no_thread() -> None:
    """Threads that ask all the time while it and its loop are closed get a result or an error."""
    for _ in range(30):
        loop = EventLoopThread(name="lakebed-test-loop")

        async def take(items: Sequence[Handed[int, int]]) -> None:
            await asyncio.sleep(0)
            for item in items:
                item.answer(item.item)

        handover = Handover(loop, take)

        def ask(handover: Handover[int, int] = handover) -> None:
            with suppress(RuntimeError):
                while True:
                    handover.ask(1, timeout_s=3 * HANG_S)

        callers = [threading.Thread(target=ask, daemon=True) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        handover.close()
        loop.close()
        for caller in callers:
            caller.join(HANG_S)
        assert not any(caller.is_alive() for caller in callers)
