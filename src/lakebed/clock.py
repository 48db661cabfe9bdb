"""Time as an argument. Owns: the `Clock` protocol and the system's own. The manual clock is in `lakebed.testing`."""

from __future__ import annotations

import sys
import time
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleep. No store reads time in any other way."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; monotonic. It goes on while the machine sleeps: leases end meanwhile."""

    def sleep(self, seconds: float) -> None:
        """Return after at least `seconds`."""


_SLEEP_S_MAX: Final = 1e9
"""30 years; the system refuses a sleep of more than 292."""

_ELAPSED: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
"""The clock that counts the machine's sleep too. `time.monotonic` stands still meanwhile, on Linux and macOS: a lease
that ended an hour ago would go on for its holder."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start, those of the machine's sleep too."""
        return time.clock_gettime(_ELAPSED)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(min(seconds, _SLEEP_S_MAX))
