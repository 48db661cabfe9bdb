"""Calls in pools of threads: who waits for one always hears how it ended."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from lakebed.http.pools import run_in
from lakebed.http.slot_pool import SlotPool
from worlds.waiting import HANG_S


@pytest.mark.parametrize("pool", [SlotPool(1, "test"), ThreadPoolExecutor(1)], ids=["slots", "threads"])
def test_a_call_that_ends_with_stop_iteration_is_an_error(pool: Executor) -> None:
    """A `next` that finds nothing is an error of the request, as every other bug; not a request without an end."""

    async def wait() -> int:
        return await asyncio.wait_for(run_in(pool, next, iter(())), timeout=HANG_S)

    with pool, pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(wait())
