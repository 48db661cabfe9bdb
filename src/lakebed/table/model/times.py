"""When snapshots were committed, if the clock of a writer was ahead. Pure.

Owns: the rule for times that lie in the future. Commit times never decrease along ids. So one commit by a clock that is
ten years ahead gives all later ones a time in the future too. Such a snapshot counts as committed when its file, or the
file of a later snapshot, was written by the store's clock, whichever is earliest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

FUTURE_MS = 3_600_000
"""A difference of up to an hour between clocks is normal."""


def is_future(time_ms: int, *, now_ms: int) -> bool:
    """Whether a time (Unix ms, UTC) is so far ahead that a clock must have been wrong."""
    return time_ms > now_ms + FUTURE_MS


def commit_time_ms(snapshot_id: int, time_ms: int, *, write_time_ms: Mapping[int, int], now_ms: int) -> int:
    """When a snapshot was committed, Unix ms, UTC.

    Args:
        time_ms: the commit time in its file.
        write_time_ms: from `first_written_ms`, by the store's clock.
        now_ms: by this process's clock.
    """
    if not is_future(time_ms, now_ms=now_ms):
        return time_ms
    return min(time_ms, write_time_ms.get(snapshot_id, time_ms))


def first_written_ms(write_time_ms: Mapping[int, int]) -> dict[int, int]:
    """For each snapshot the earliest time at which its file or that of a later one was written. Cost: one sort."""
    ids = sorted(write_time_ms, reverse=True)
    return dict(zip(ids, accumulate((write_time_ms[snapshot_id] for snapshot_id in ids), min), strict=True))
