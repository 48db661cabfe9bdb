"""When a step that failed is retried, by a worker that does other steps meanwhile: after pauses that double.

Times are milliseconds of a clock that only moves forward, from any start. Thread-safe, as far as two failures of one
step at once count as one.
"""

from __future__ import annotations

from lakebed.backoff import Pauses


class Retries:
    """Pauses by the name of a step."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._waits: dict[str, tuple[int, int]] = {}
        """Failures in a row, and the time before which it is not tried."""

    def may_try(self, step: str, now_ms: int) -> bool:
        """Whether the pause is over."""
        wait = self._waits.get(step)
        return wait is None or now_ms >= wait[1]

    def note_failure(self, step: str, now_ms: int) -> None:
        """Pause for longer than before."""
        before = self._waits.get(step)
        count = 0 if before is None else before[0] + 1
        self._waits[step] = count, now_ms + self._pause_ms(count)

    def postpone(self, step: str, now_ms: int) -> None:
        """Make the first pause, without a failure."""
        self._waits[step] = 0, now_ms + self._pause_ms(0)

    def note_success(self, step: str) -> None:
        """Begin anew."""
        self._waits.pop(step, None)

    def _pause_ms(self, count: int) -> int:
        return round(1000 * self._pauses.bound_s(count))
