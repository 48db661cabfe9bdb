"""Disk space reserved for deletions, so that a full disk can be freed.

Owns: the object ``_lakebed/reserve`` in the root of a lake, or in the folder of a database outside of lakes, on a local
folder, and when it is released.

A deletion writes a little before it deletes anything: its plan and the boundary below which ids are never used again.
On a full disk these puts fail, and nothing could be freed. So a lake keeps a reserve of `RESERVE_BYTES`. A put that
finds the disk full inside `freeing_space` deletes the nearest reserve, in the folders of its path or above the store's
root, and is retried once. When the outermost `freeing_space` ends, the reserve is written again, as large as the free
space allows. The next collection restores its full size.

Invariants: only puts inside `freeing_space` release it, and only in the calling thread. The reserve contains no data,
so its loss at any point is harmless. Object stores never fill, so they have none.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from lakebed.errors import LakebedError, NotFound, Unavailable
from lakebed.objects.driver import Driver
from lakebed.objects.local import LocalDriver
from lakebed.objects.path import join_path
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_LOCAL: Final = "file://"

RESERVE_PATH: Final = "_lakebed/reserve"
RESERVE_BYTES: Final = 1 << 20
"""Space for the plan of a deletion of about ten thousand files. An expiry that needs more runs in smaller steps."""

DATABASE_RESERVE_BYTES: Final = 256 << 10
"""Space for two manifests of a hundred files and a marker of a thousand versions.

A smaller reserve is not written, so that another folder can use the space for the puts of its deletions.
"""

_FOLDERS_ABOVE_MAX: Final = 3
"""Most folders above a store's root that are searched. A database is two folders below the root of its lake, and may be
opened by its own path."""


@dataclass(frozen=True, slots=True)
class _Reserve:
    """A reserve that was released."""

    driver: Driver
    path: str
    size_bytes: int


_given_up_by: ContextVar[list[_Reserve] | None] = ContextVar("_given_up_by", default=None)
"""Reserves that this thread's deletion has released; None outside of `freeing_space`."""


@contextmanager
def freeing_space() -> Iterator[None]:
    """Allow puts of this thread to release the reserve if the disk is full. Also a decorator; may be nested."""
    if _given_up_by.get() is not None:
        yield
        return
    given_up: list[_Reserve] = []
    token = _given_up_by.set(given_up)
    try:
        yield
    finally:
        _given_up_by.reset(token)
        for reserve in given_up:
            _restore(reserve)


def _restore(reserve: _Reserve) -> None:
    """Write a released reserve again, as large as the free space allows. The next collection restores its full size."""
    body = memoryview(_body(reserve.size_bytes))
    while len(body) >= DATABASE_RESERVE_BYTES:
        try:
            reserve.driver.put(reserve.path, body, create_only=False, durable=False)
        except Unavailable:
            body = body[: len(body) - len(body) // 8 - 1]
        else:
            return


def give_up_reserve(driver: Driver, path: str) -> bool:
    """Release the reserve for a put that found the disk full. Return whether there was one, so that a retry may work.

    Args:
        path: the path of the put.

    Cost: nothing outside of `freeing_space`; inside, 1 HEAD for each folder of the path and above the root, and 1
    DELETE.
    """
    given_up = _given_up_by.get()
    if given_up is None:
        return False
    for holder, place in _places(driver, path):
        try:
            size_bytes = holder.head(place).size_bytes
        except LakebedError:  # there is no reserve, or this process may not access it
            continue
        holder.delete([place], durable=False)
        given_up.append(_Reserve(holder, place, size_bytes))
        return True
    return False


def _places(driver: Driver, path: str) -> Iterator[tuple[Driver, str]]:
    """Yield the places of a reserve: the folders of a path, the nearest first, then those above a local root."""
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        yield driver, join_path(folder, RESERVE_PATH)
    if not driver.root_url.startswith(_LOCAL):
        return
    parent = driver.root_url.removeprefix(_LOCAL)
    for _ in range(_FOLDERS_ABOVE_MAX):
        parent = os.path.dirname(parent)
        yield LocalDriver(parent, environment=Environment(), folder_memory_count_max=1), RESERVE_PATH


def keep_reserve(store: ObjectStore, *, size_bytes: int = RESERVE_BYTES) -> None:
    """Write the reserve of a lake, or of a database outside of lakes, if it is missing or too small.

    A no-op on a full disk.

    Cost: nothing on object stores; else 1 HEAD, and 1 PUT of `size_bytes`.
    """
    if not store.root_url.startswith(_LOCAL):
        return
    with suppress(NotFound):
        if store.head(RESERVE_PATH).size_bytes >= size_bytes:
            return
    with suppress(Unavailable):
        store.put(RESERVE_PATH, _body(size_bytes), durable=False)


def drop_reserve(store: ObjectStore) -> None:
    """Delete the reserve of a database that was destroyed. Cost: nothing on object stores; else 1 DELETE."""
    if store.root_url.startswith(_LOCAL):
        store.delete([RESERVE_PATH])


def _body(size_bytes: int) -> bytes:
    """Return bytes that no file system compresses or omits."""
    return random.Random(size_bytes).randbytes(size_bytes)
