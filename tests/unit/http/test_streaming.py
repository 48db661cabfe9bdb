"""Pieces of a download: one is read while the one before is sent, and not more than one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakebed.http.streaming import download

WAIT_S = 30.0


def test_the_next_piece_is_read_while_one_is_sent() -> None:
    """And the one behind it only when the first was taken: memory stays bounded with a client that is slow."""
    begun = [threading.Event() for _ in range(4)]

    def pieces() -> Iterator[bytes]:
        for number, event in enumerate(begun):
            event.set()
            yield b"%d" % number

    async def receive() -> list[bytes]:
        items: list[bytes] = []
        with ThreadPoolExecutor(1) as pool:
            async for piece in await download(pieces, pool=pool):
                items.append(bytes(piece))
                last = min(len(items), len(begun) - 1)
                assert await asyncio.to_thread(begun[last].wait, WAIT_S)
                assert not any(event.is_set() for event in begun[last + 1 :])
        return items

    assert asyncio.run(receive()) == [b"0", b"1", b"2", b"3"]


def test_an_error_comes_behind_the_pieces_before_it() -> None:
    """A reply that was begun ends there, and a client that has gone meanwhile leaves no error behind."""

    def pieces() -> Iterator[bytes]:
        yield b"0"
        yield b"1"
        raise ValueError("broken")

    async def receive(count: int) -> list[bytes]:
        items: list[bytes] = []
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        with ThreadPoolExecutor(1) as pool:
            chunks = await download(pieces, pool=pool)
            async for piece in chunks:
                items.append(bytes(piece))
                if len(items) == count:
                    await asyncio.to_thread(pool.submit(bool).result, WAIT_S)  # the next piece has been read
                    await asyncio.sleep(0)
                    break
            await chunks.aclose()  # type: ignore[attr-defined]
        assert not problems
        return items

    assert asyncio.run(receive(2)) == [b"0", b"1"]
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(receive(3))
