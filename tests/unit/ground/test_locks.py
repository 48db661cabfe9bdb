"""Locks and conditions of the runtime, which an interrupt leaves free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lakebed import runtime
from worlds.interrupts import interrupt_at

MOMENTS_OF = ("runtime.py", threading.__file__, __file__)


@pytest.mark.parametrize("make", [runtime.new_lock, runtime.new_condition])
def test_an_interrupt_leaves_it_free(make: Callable[[], Any]) -> None:
    """Wherever the interpreter looks for a signal while it is taken, held, and given back."""
    lock, held_count = make(), 0

    def hold() -> None:
        nonlocal held_count
        with lock:
            held_count += len((None,))

    def can_hold() -> bool:
        return bool(lock.acquire(blocking=False)) and lock.release() is None

    with ThreadPoolExecutor(1) as other:
        moment = 1
        while interrupt_at(moment, hold, within=MOMENTS_OF) is not None:
            assert other.submit(can_hold).result(), moment
            moment += 1
    assert held_count
    assert moment > 2
