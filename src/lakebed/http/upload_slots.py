"""Slots for large uploads. Each upload holds a thread from its first piece to its last, so their number is bounded.

Owns: which upload gets a slot, and which has to release its slot. Invariant: slow clients cannot keep others out. While
an upload waits, a running one that has delivered no whole piece for a while is ended, the one idle longest first. While
none waits, an upload may take any time. Used by one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from lakebed.errors import InvalidRequest

_LOOK_S = 0.5
"""How often a waiting upload looks for an idle one."""


class UploadSlot:
    """The slot that an upload holds.

    Attributes:
        pool: the pool in which the upload's call runs.
    """

    def __init__(self, pool: Executor, limit: asyncio.Timeout) -> None:
        self.pool = pool
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self.delivered_s: float | None = self._loop.time()
        """When the last piece came; None: the upload cannot be ended: it is complete, or was ended already."""

    def note_delivery(self) -> None:
        """Record that a piece was handed over."""
        if self.delivered_s is not None:
            self.delivered_s = self._loop.time()

    def complete(self) -> None:
        """Record that all pieces were handed over."""
        self.delivered_s = None

    def end(self) -> None:
        """Cancel the upload."""
        self.delivered_s = None
        self._limit.reschedule(self._loop.time())


class UploadSlots:
    """A fixed number of slots.

    Args:
        pool: has at least `count` threads.
        count: most uploads at a time.
        idle_s: how long an upload may deliver nothing while others wait.
    """

    def __init__(self, pool: Executor, *, count: int, idle_s: float) -> None:
        self._pool = pool
        self._count = count
        self._idle_s = idle_s
        self._held: set[UploadSlot] = set()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[UploadSlot]:
        """Wait for a slot, and hold it.

        Raises:
            InvalidRequest: kind ``stalled``: no piece came for `idle_s` while other uploads waited.
        """
        while len(self._held) >= self._count:
            self._end_idlest()
            try:
                async with asyncio.timeout(_LOOK_S), self._freed:
                    await self._freed.wait()
            except TimeoutError:
                continue
        async with asyncio.timeout(None) as limit:
            slot = UploadSlot(self._pool, limit)
            self._held.add(slot)
            try:
                yield slot
            except asyncio.CancelledError as error:
                if limit.expired():
                    raise self._too_idle() from error
                raise
            finally:
                self._held.discard(slot)
                async with self._freed:
                    self._freed.notify()

    def _end_idlest(self) -> None:
        running_slots = [slot for slot in self._held if slot.delivered_s is not None]
        idlest = min(running_slots, key=lambda slot: slot.delivered_s or 0.0, default=None)
        now_s = asyncio.get_running_loop().time()
        if idlest is not None and idlest.delivered_s is not None and now_s - idlest.delivered_s >= self._idle_s:
            idlest.end()

    def _too_idle(self) -> InvalidRequest:
        return InvalidRequest(
            f"The body arrived too slowly for {self._idle_s:g} s while other uploads waited: send it again, faster.",
            kind="stalled",
        )
