"""One processor for the samples of a round, on both sides of a benchmark; known to both environments.

The processors of a virtual machine differ up to 1.5 times for minutes, and a thread mostly stays where it is: without
this, a side may be measured on the slower one all the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_turn: list[int | None] = [None]


def choose_processor(turn: int | None) -> None:
    """Let what is measured from now on run on one processor, the next one each turn; None: on all."""
    _turn[0] = turn


def chosen_turn() -> int | None:
    """What `choose_processor` was told last."""
    return _turn[0]


@contextmanager
def on_chosen_processor() -> Iterator[None]:
    """Keep the calling thread there; others run where they want, unless it begins them."""
    turn = _turn[0]
    if turn is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(processors)[turn % len(processors)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)
