"""Waking a task of the event loop from any thread."""

from __future__ import annotations

import asyncio


class LoopSignal:
    """What one task waits for. Make it in the task's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Let the task look again; from any thread, at once. Cost: some microseconds."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return when it was woken since the last wait; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
