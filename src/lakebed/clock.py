"""Time as an argument. Owns the `Clock` protocol and the system's clock. The manual clock is in `lakebed.testing`."""

from __future__ import annotations

import sys
import time
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleep. Stores read the time in no other way."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""

    def monotonic_s(self) -> float:
        """Monotonic seconds since an arbitrary start. They include the machine's sleep, during which leases end."""

    def sleep(self, seconds: float) -> None:
        """Return after at least `seconds`."""


_SLEEP_S_MAX: Final = 1e9
"""30 years. The system refuses a sleep of more than 292 years."""

_ELAPSED: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
"""The clock that includes the time that the machine sleeps.

`time.monotonic` stops while the machine sleeps, on Linux and macOS. With it, a holder could still trust a lease that
ended an hour ago.
"""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start, including the time that the machine sleeps."""
        return time.clock_gettime(_ELAPSED)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(min(seconds, _SLEEP_S_MAX))
