"""When a step that failed is tried again: after waits that double."""

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
        return step not in self._waits or now_ms >= self._waits[step][1]

    def failed(self, step: str, now_ms: int) -> None:
        """Wait longer than before."""
        count = self._waits[step][0] + 1 if step in self._waits else 0
        self._waits[step] = count, now_ms + min(self._max_ms, self._first_ms << min(count, 16))

    def postpone(self, step: str, now_ms: int) -> None:
        """Wait the first wait, without a failure."""
        self._waits[step] = 0, now_ms + self._first_ms

    def succeeded(self, step: str) -> None:
        """Begin anew."""
        self._waits.pop(step, None)
