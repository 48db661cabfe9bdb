"""Real time, for tests of real processes and servers: the one module of the tests that sleeps.

Owns: `HANG_S`, after which a test takes a thread or process for hanging; `wait_until`, for everything that another
process makes true; and `pause`, the time between two steps of a workload. Tests of one process move a manual or
simulated clock instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakebed.clock import SystemClock

_CLOCK: Final = SystemClock()
HANG_S: Final = 60.0
"""Far more than what is waited for takes on a busy machine."""
INTERVAL_S_MAX: Final = 0.2
"""A condition that asks a server is not asked a hundred times a second for as long as it takes."""


def wait_until(condition: Callable[[], object], *, timeout_s: float = HANG_S, interval_s: float = 0.01) -> None:
    """Return when a condition is true; it is asked again after an interval, which grows to `INTERVAL_S_MAX`.

    Raises:
        AssertionError: it was still false after `timeout_s` seconds.
    """
    end_s = _CLOCK.monotonic_s() + timeout_s
    while not condition():
        if _CLOCK.monotonic_s() >= end_s:
            raise AssertionError(f"the condition was not met within {timeout_s:g} s")
        _CLOCK.sleep(interval_s)
        interval_s = min(1.5 * interval_s, max(interval_s, INTERVAL_S_MAX))


def pause(seconds: float) -> None:
    """Let real time pass between two steps of a workload."""
    _CLOCK.sleep(seconds)
