"""The write ids that a log over the key-value port remembers of one timeline. Pure.

Owns: which ids are forgotten, and when a timeline must refuse appends so that no id is forgotten too soon.

Invariants: an id is forgotten only if `WriteIdLimits.kept` newer ids exist, and `WriteIdLimits.window_s` seconds have
passed since this process learned that the id's record is durable. Another process learned it at that time or later, or
wrote the record before. So an id is never considered older than it is. Times are those of the monotonic clock, which
cannot be set.

Does not know: stores. A prune deletes forgotten ids from the store (`lakebed.fleet.log.changes`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakebed.fleet.log.port import WRITE_ID_WINDOW_S, WRITE_IDS_KEPT

_FORGOTTEN_AT_ONCE: Final = 4_096
"""Most ids that one trim forgets. It takes about a millisecond, in which other threads wait for the log's lock."""


@dataclass(frozen=True, slots=True)
class WriteIdLimits:
    """What a log remembers of a timeline.

    Attributes:
        kept: number of the newest write ids that are remembered, whatever their age.
        window_s: seconds for which each write id is remembered, however many follow.
        count_max: most appends within `window_s`. More are refused until it has passed. When a log begins to use a
            timeline, it also loads at most this number of ids. Each takes about 150 bytes of memory.
    """

    kept: int = WRITE_IDS_KEPT
    window_s: float = WRITE_ID_WINDOW_S
    count_max: int = 1 << 19


class _Lot(NamedTuple):
    """Ids that were learned in the same second.

    Attributes:
        until_s: when they may be forgotten, by the monotonic clock.
        id_count: number of the ids.
        appended_count: number of those that were appended since the timeline is in memory.
    """

    until_s: float
    id_count: int
    appended_count: int


class WriteIds:
    """Write ids of the newest records of a timeline, each with the last LSN of its record."""

    __slots__ = ("_added", "_appended", "_lots", "_lsns", "_order", "_young", "last_lsn")

    def __init__(self) -> None:
        self._lsns: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()
        """The same ids in the order of LSNs, because a dictionary finds its oldest entry slowly."""
        self._lots: deque[_Lot] = deque()
        self._young = self._appended = self._added = 0
        self.last_lsn = 0
        """LSN of the newest id that was ever added."""

    def __len__(self) -> int:
        return len(self._lsns)

    @property
    def first_lsn(self) -> int | None:
        """LSN of the oldest remembered id."""
        return self._lsns[self._order[0]] if self._order else None

    def get(self, write_id: bytes) -> int | None:
        """Return the LSN of a remembered id, or None."""
        return self._lsns.get(write_id)

    def is_full(self, now_s: float, limits: WriteIdLimits) -> bool:
        """Whether another append could make the log forget an id too soon."""
        if self._appended + self._added >= limits.count_max:
            self.trim(now_s, limits)
        return self._appended + self._added >= limits.count_max

    def add(self, write_id: bytes, lsn: int) -> None:
        """Remember the id of a record behind all others. The following `settle` tells when it was learned."""
        if write_id not in self._lsns:
            self._order.append(write_id)
        self._lsns[write_id] = self.last_lsn = lsn
        self._added += 1

    def load(self, entries: Iterable[tuple[bytes, int]], now_s: float, limits: WriteIdLimits) -> None:
        """Begin with the ids that a store has: as if all had been written now, but none of them by an append.

        At most `WriteIdLimits.count_max` are kept: older ones were appended before the window.
        """
        self._lsns = dict(entries)
        self._order = deque(self._lsns)
        self.last_lsn = next(reversed(self._lsns.values()), 0)
        self._forget(len(self._lsns) - limits.count_max)
        self._young = len(self._lsns)
        self._lots.append(_Lot(now_s + limits.window_s, self._young, 0))

    def settle(self, now_s: float, limits: WriteIdLimits) -> None:
        """Record that all added ids are durable now, and forget what may be forgotten, as `trim` does."""
        added_ids = self._added
        if added_ids:
            until_s = math.ceil(now_s + limits.window_s)
            count = appended_count = added_ids
            if self._lots and self._lots[-1].until_s == until_s:
                last = self._lots.pop()
                count, appended_count = count + last.id_count, appended_count + last.appended_count
            self._lots.append(_Lot(until_s, count, appended_count))
            self._young += added_ids
            self._appended += added_ids
            self._added = 0
        # Twice as many as were added, so that ids that may be forgotten do not accumulate, whatever the rate.
        self._forget_old(now_s, limits, count_max=max(_FORGOTTEN_AT_ONCE, 2 * added_ids))

    def trim(self, now_s: float, limits: WriteIdLimits) -> bool:
        """Forget some thousands of the ids that may be forgotten, oldest first. Return whether others are left."""
        return self._forget_old(now_s, limits, count_max=_FORGOTTEN_AT_ONCE)

    def _forget_old(self, now_s: float, limits: WriteIdLimits, *, count_max: int) -> bool:
        while self._lots and self._lots[0].until_s < now_s:
            lot = self._lots.popleft()
            self._young -= lot.id_count
            self._appended -= lot.appended_count
        count = len(self._lsns) - max(limits.kept, self._young + self._added)
        self._forget(min(count, count_max))
        return count > count_max

    def _forget(self, count: int) -> None:
        for _ in range(count):
            del self._lsns[self._order.popleft()]
