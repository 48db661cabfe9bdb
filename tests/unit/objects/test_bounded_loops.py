"""Loops over what others change end, with a sentence, when a store never settles."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import TypeVar

import pytest

from lakebed.errors import Conflict, NotFound
from lakebed.objects.boundary import Boundary
from lakebed.objects.numbered_log import NumberedLog
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.testing import Call, ManualClock, StoreWrapper

R = TypeVar("R")


class Ghosts(StoreWrapper):
    """Lists objects and can read none of them."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Listings are real; reads find nothing."""
        if call.kind in ("get", "head"):
            raise NotFound(f"there is no {call.path}", path=call.path)
        return perform()


def environment() -> Environment:
    """Time moves on request."""
    return Environment(clock=ManualClock(), rng=random.Random(1))


@pytest.mark.parametrize("digits", [1, 20])
def test_a_listed_number_that_is_never_there(digits: int) -> None:
    """Looking for the newest number gives up when each listing names one that cannot be read."""
    store = open_store(f"memory://{uuid.uuid4()}")
    store.put(f"log/{7:0{digits}d}", b"x")
    log = NumberedLog(
        Ghosts(store),
        "log",
        name_of=lambda number: f"{number:0{digits}d}",
        id_of=lambda name: int(name) if name.isdecimal() else None,
        write_id_of=lambda body: None,
        environment=environment(),
    )
    with pytest.raises(Conflict, match="gone each time"):
        log.newest()


def test_a_marker_that_is_never_there() -> None:
    """Looking for the newest marker of a boundary gives up when each listing names one that cannot be read."""
    store = open_store(f"memory://{uuid.uuid4()}")
    store.put(f"boundary/{1:020d}", b"x")
    with pytest.raises(Conflict, match="gone each time"):
        Boundary(Ghosts(store), "boundary", environment=environment()).current()
