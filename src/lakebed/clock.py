"""Time as an argument. Owns: the `Clock` protocol and the system's own. The manual clock is in `lakebed.testing`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleep. No store reads time in any other way."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; monotonic."""

    def sleep(self, seconds: float) -> None:
        """Return after at least `seconds`."""


_SLEEP_S_MAX = 1e9
"""30 years; the system refuses a sleep of more than 292."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(min(seconds, _SLEEP_S_MAX))
