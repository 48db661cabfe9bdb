"""Threads for work that a handler must not do in the event loop: wait for stores, compute, move large bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from lakebed.http.options import HttpOptions
from lakebed.http.slot_pool import SlotPool
from lakebed.http.upload_slots import UploadSlots

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Pools:
    """Thread pools by kind of work; `HttpOptions` says why there are several."""

    quick: SlotPool
    heavy: SlotPool
    transfer: ThreadPoolExecutor
    uploads: UploadSlots
    """A part of the threads for transfers. The other threads remain for downloads and copies."""

    @classmethod
    def open(cls, options: HttpOptions) -> Pools:
        """Pools of the configured sizes. Threads start when they are needed."""
        transfer = ThreadPoolExecutor(options.transfer_threads, "lakebed-transfer")
        return cls(
            SlotPool(options.quick_threads, "lakebed-quick"),
            SlotPool(options.heavy_threads, "lakebed-heavy"),
            transfer,
            UploadSlots(transfer, count=options.uploads_max, idle_s=options.upload_idle_s),
        )

    def close(self) -> None:
        """Wait for running calls."""
        for pool in (self.quick, self.heavy, self.transfer):
            pool.shutdown(wait=True)


async def run_in(pool: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a call in a pool, and wait for it without blocking the event loop.

    Raises what the call raises; for `StopIteration`, which no awaitable can raise, `RuntimeError`.
    """

    def run() -> R:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:  # asyncio would not wake the waiting request: it would never end
            raise RuntimeError("a call ended with StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(pool, run)


class LoopSignal:
    """A signal for which a task of the event loop waits, and which any thread may send.

    Create it in the task's event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake the task; from any thread, at once. Cost: some microseconds."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once `wake` was called since the last wait; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
