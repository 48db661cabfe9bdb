"""An event loop in a thread of its own, for client libraries that work only inside an event loop.

Owns: the loop, its thread, and the two ways in which other threads hand work to it. `EventLoopThread.run` runs a
coroutine. `Handover` collects items for one coroutine, which takes them as they come; this costs a tenth.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from lakebed.runtime import new_lock

R = TypeVar("R")
T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for callers in other threads."""

    def __init__(self, *, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = new_lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and return its result. Do not call it in the loop's own thread.

        Raises `RuntimeError` after `close`. Cost: about 0.1 ms, in addition to the coroutine's.
        """
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise RuntimeError("the event loop is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def run_all(self, coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R | BaseException]:
        """Run coroutines at the same time. Return the result or the error of each."""

        async def gather_all() -> list[R | BaseException]:
            return await asyncio.gather(*coroutines, return_exceptions=True)

        return self.run(gather_all())

    def call(self, function: Callable[[], object]) -> None:
        """Let the loop call a function soon. Raises `RuntimeError` after `close`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the event loop is closed")
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel the coroutines that still run, and end the thread. Closing twice is a no-op."""
        with self._lock:  # what is under way began before this, so it is cancelled; nothing begins after it
            if self._is_closed:
                return
            self._is_closed = True

        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Handed(Generic[T, R]):
    """An item that a thread handed to the loop. The thread waits for its result. Call its methods in the loop only."""

    __slots__ = ("_answered", "_error", "_result", "is_over", "item")

    def __init__(self, item: T) -> None:
        self.item = item
        self.is_over = False
        """Whether the item has a result or an error, or its thread has stopped waiting."""
        self._result: R | None = None
        self._error: BaseException | None = None
        self._answered = threading.Lock()
        self._answered.acquire()

    def answer(self, result: R) -> None:
        """Give the thread its result. Do nothing if the item is over."""
        if not self.is_over:
            self._result, self.is_over = result, True
            self._answered.release()

    def fail(self, error: BaseException) -> None:
        """Raise an error in the thread. Do nothing if the item is over."""
        if not self.is_over:
            self._error, self.is_over = error, True
            self._answered.release()

    def _wait(self, timeout_s: float) -> R:
        if not self._answered.acquire(timeout=timeout_s):
            self.is_over = True
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Handover(Generic[T, R]):
    """Hands items of many threads to one coroutine in the loop.

    Args:
        take: called in the loop with the items that came since its last call. It may answer each item at once or later.
    """

    def __init__(self, loop: EventLoopThread, take: Callable[[Sequence[Handed[T, R]]], Awaitable[None]]) -> None:
        self._loop = loop
        self._take = take
        self._lock = new_lock()
        self._items: list[Handed[T, R]] = []
        self._is_closed = False
        loop.run(self._begin())

    def ask(self, item: T, *, timeout_s: float) -> R:
        """Hand over an item and wait for its result. Do not call it in the loop's own thread.

        Raises `TimeoutError` if there is no result in time, `RuntimeError` after `close`, and the error that
        `Handed.fail` was given.
        """
        handed: Handed[T, R] = Handed(item)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the event loop is closed")
            self._items.append(handed)
            if len(self._items) == 1:
                self._loop.call(self._arrived.set)
        return handed._wait(timeout_s)

    def close(self) -> None:
        """Refuse further items, and fail those that were not taken. Call it before the loop is closed."""
        with self._lock:
            self._is_closed = True
            items, self._items = self._items, []
        for item in items:
            item.fail(RuntimeError("the event loop is closed"))

    async def _begin(self) -> None:
        self._arrived = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            with self._lock:
                items, self._items = self._items, []
            try:
                await self._take(items)
            except BaseException as error:
                failure = error if isinstance(error, Exception) else RuntimeError("the event loop is closed")
                for item in items:
                    item.fail(failure)
                if failure is not error:
                    raise
