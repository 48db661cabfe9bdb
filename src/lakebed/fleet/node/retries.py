"""When a step that failed is tried again: after waits that double.

Times are milliseconds of a clock that only moves forward, from any start. Thread-safe, as far as two failures of one
step at once count as one.
"""

from __future__ import annotations


class Retries:
    """Waits by the name of a step.

    Args:
        first_ms, max_ms: shortest and longest wait.
    """

    def __init__(self, *, first_ms: int, max_ms: int) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._waits: dict[str, tuple[int, int]] = {}
        """Failures in a row, and the time before which it is not tried."""

    def may_try(self, step: str, now_ms: int) -> bool:
        """Whether the wait is over."""
        found = self._waits.get(step)
        return found is None or now_ms >= found[1]

    def failed(self, step: str, now_ms: int) -> None:
        """Wait longer than before."""
        found = self._waits.get(step)
        count = 0 if found is None else found[0] + 1
        self._waits[step] = count, now_ms + min(self._max_ms, self._first_ms << min(count, 16))

    def postpone(self, step: str, now_ms: int) -> None:
        """Wait the first wait, without a failure."""
        self._waits[step] = 0, now_ms + self._first_ms

    def succeeded(self, step: str) -> None:
        """Begin anew."""
        self._waits.pop(step, None)
