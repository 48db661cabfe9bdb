"""Disk space reserved for deletions, so that a full disk can be freed.

Owns: the object ``_lakebed/reserve`` in the root of a lake on a local folder, and when it is released.

A deletion writes a little before it deletes anything: its plan and the boundary below which ids are never used again.
On a full disk these puts fail, and nothing could be freed. So a lake keeps a reserve of `RESERVE_BYTES`. A put that
finds the disk full inside `freeing_space` deletes the reserve and is retried once; when the outermost `freeing_space`
ends, the reserve is written again if there is room by then, else by the next cleaning.

Invariants: only puts inside `freeing_space` release it, and only in the calling thread. The reserve contains no data,
so its loss at any point is harmless. Object stores never fill, so they have none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from lakebed.errors import NotFound, Unavailable
from lakebed.objects.driver import Driver
from lakebed.objects.port import ObjectStore

RESERVE_PATH: Final = "_lakebed/reserve"
RESERVE_BYTES: Final = 1 << 20
"""Room for the plan of a deletion of about ten thousand files; an expiry that needs more goes in smaller steps."""

_given_up_by: ContextVar[list[Driver] | None] = ContextVar("_given_up_by", default=None)
"""Stores whose reserve this thread's deletion has released; None outside of `freeing_space`."""


@contextmanager
def freeing_space() -> Iterator[None]:
    """Let puts of this thread release the reserve when the disk is full. Also a decorator; may be nested."""
    if _given_up_by.get() is not None:
        yield
        return
    given_up: list[Driver] = []
    token = _given_up_by.set(given_up)
    try:
        yield
    finally:
        _given_up_by.reset(token)
        for driver in given_up:
            with suppress(Unavailable):  # still full: the next cleaning tries again
                driver.put(RESERVE_PATH, memoryview(_body()), create_only=False, durable=False)


def give_up_reserve(driver: Driver) -> bool:
    """Release the reserve for a put that found the disk full. Return whether there was one, so that a retry may work.

    Cost: nothing outside of `freeing_space`; inside, 1 HEAD + 1 DELETE.
    """
    given_up = _given_up_by.get()
    if given_up is None:
        return False
    try:
        driver.head(RESERVE_PATH)
    except NotFound:
        return False
    driver.delete([RESERVE_PATH], durable=False)
    given_up.append(driver)
    return True


def keep_reserve(store: ObjectStore) -> None:
    """Write the reserve of a lake that has none; on a full disk a no-op.

    Cost: nothing on object stores; else 1 HEAD, and 1 PUT of `RESERVE_BYTES`.
    """
    if not store.root_url.startswith("file://"):
        return
    try:
        store.head(RESERVE_PATH)
    except NotFound:
        with suppress(Unavailable):
            store.put(RESERVE_PATH, _body(), durable=False)


def _body() -> bytes:
    """Return bytes that no file system compresses or omits."""
    return random.Random(RESERVE_BYTES).randbytes(RESERVE_BYTES)
