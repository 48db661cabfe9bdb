"""A clock that moves only on request, so that no test sleeps."""

from __future__ import annotations

from lakebed.clock import Clock

START_MS = 1_700_000_000_000


class ManualClock(Clock):
    """`Clock` whose sleep returns at once and moves time forward.

    Examples:
        >>> clock = ManualClock()
        >>> clock.sleep(1.5)
        >>> clock.now_ms() - 1_700_000_000_000
        1500
    """

    def __init__(self, *, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError(f"time goes forward, not by {seconds} seconds")
        self._elapsed_s += seconds
