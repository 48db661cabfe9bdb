"""An event loop in a thread: what runs in it ends with it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from lakebed.event_loop import EventLoopThread

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
            caller.join(10)
        assert not any(caller.is_alive() for caller in callers)
