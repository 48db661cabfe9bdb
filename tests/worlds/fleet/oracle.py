"""What a fleet has to answer: the rows of every timeline by LSN, kept apart from everything that is tested.

Owns: `Oracle`. Rows come from the appends that clients were told of, and from the log's own records as they become
durable; both have to agree. A branch has the rows of its parent up to where it was branched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from worlds.promise import PromiseBroken

Content = dict[bytes, bytes]


class Appended(NamedTuple):
    """One row of a timeline."""

    key: bytes
    value: bytes | None
    """None: deleted."""


class Oracle:
    """The truth of one fleet. Timelines are named by their log keys, ``<tenant>/<timeline id>``."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Appended]] = {}
        self.parents: dict[str, tuple[str, int]] = {}
        """Of branches: the parent and the LSN."""
        self.lost: dict[str, list[dict[int, Appended]]] = {}
        """Rows of timelines whose log has lost records, as they were before each loss."""

    def lose(self, timeline: str, through: int) -> None:
        """The log has lost what was behind an LSN: from here on there are two histories, and none may be mixed."""
        known = self.rows.setdefault(timeline, {})
        self.lost.setdefault(timeline, []).append(dict(known))
        self.rows[timeline] = {lsn: row for lsn, row in known.items() if lsn <= through}

    def observe(self, timeline: str, first_lsn: int, rows: Sequence[Appended]) -> None:
        """A record is durable. Raises `PromiseBroken` when it changes a row that was there."""
        known = self.rows.setdefault(timeline, {})
        for lsn, row in enumerate(rows, first_lsn):
            if known.setdefault(lsn, row) != row:
                raise PromiseBroken(f"LSN {lsn} of {timeline} was {known[lsn]} and becomes {row}")

    def acknowledged(self, timeline: str, last_lsn: int, rows: Sequence[Appended]) -> None:
        """A client was told of its append. Raises `PromiseBroken` when the log does not have it there."""
        first = last_lsn - len(rows) + 1
        known = self.rows.get(timeline, {})
        present = [known.get(lsn) for lsn in range(first, last_lsn + 1)]
        if present != list(rows) and timeline not in self.lost:
            raise PromiseBroken(f"{timeline} acknowledged {list(rows)} at {first}, and has {present}")

    def last(self, timeline: str) -> int:
        """The LSN of the last row, or that at which the timeline begins."""
        known = self.rows.get(timeline)
        return max(known) if known else self.parents.get(timeline, ("", 0))[1]

    def content(self, timeline: str, lsn: int) -> Content:
        """All keys and values at an LSN."""
        content: Content = {}
        for owner, after, through in self._lineage(timeline, lsn):
            rows = self.rows.get(owner, {})
            for number in range(after + 1, through + 1):
                row = rows.get(number)
                if row is None:
                    raise PromiseBroken(f"{timeline} is read at {lsn}, and {owner} never had LSN {number}")
                if row.value is None:
                    content.pop(row.key, None)
                else:
                    content[row.key] = row.value
        return content

    def _lineage(self, timeline: str, lsn: int) -> list[tuple[str, int, int]]:
        """Whose rows ``(after, through]`` make up a timeline, oldest first."""
        parts = []
        owner: str | None = timeline
        while owner is not None:
            parent, began = self.parents.get(owner, (None, 0))
            if lsn > began:
                parts.append((owner, began, lsn))
            lsn = min(lsn, began)
            owner = parent
        return parts[::-1]

    def check(self, timeline: str, lsn: int, content: Mapping[bytes, bytes], *, what: str) -> None:
        """Judge what was read of a timeline: it is that of one history. Raises `PromiseBroken`."""
        histories = self._histories(timeline, lsn)
        expected = histories[0]
        if dict(content) not in histories:
            raise PromiseBroken(f"I10: {what}: {timeline} at {lsn} is {dict(content)} instead of {expected}")

    def check_value(self, timeline: str, key: bytes, lsn: int, value: bytes | None, *, what: str) -> None:
        """Judge one value. Raises `PromiseBroken`."""
        values = [history.get(key) for history in self._histories(timeline, lsn)]
        expected = values[0]
        if value not in values:
            raise PromiseBroken(f"I10: {what}: {key!r} of {timeline} at {lsn} is {value!r} instead of {expected!r}")

    def _histories(self, timeline: str, lsn: int) -> list[Content]:
        """The content at an LSN by each history that reaches so far; one, unless the log has lost records."""
        if timeline not in self.lost:
            return [self.content(timeline, lsn)]
        now = self.rows[timeline]
        result = []
        for rows in (now, *self.lost[timeline]):
            self.rows[timeline] = rows
            if max(rows, default=0) >= lsn:
                result.append(self.content(timeline, lsn))
        self.rows[timeline] = now
        if not result:
            raise PromiseBroken(f"{timeline} is read at {lsn}, and no history of it has had that LSN")
        return result
