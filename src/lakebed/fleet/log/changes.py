"""Changes of timelines that wait for their turn, and groups of them, each of which becomes one write of a store.

Owns: what each change puts, deletes and expects, given the known state of its timeline (`Change.plan`), and the known
state of the timelines after it. Pure, except that some changes read the store.

Invariants:
- The changes of one timeline in a group have the same kind, and keep their order.
- A group is written as a whole or not at all, so results are set only after the write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa

from lakebed.errors import LakebedError
from lakebed.fleet.log.port import (
    log_busy,
    log_ends_before,
    lsn_conflict,
    timeline_exists,
    timeline_not_found,
    timeline_sealed,
)
from lakebed.fleet.log.record import End, encode_log_record, mark_of
from lakebed.fleet.log.timeline import Keys, Timeline, encode_horizon, encode_tail, id_bytes, new_timeline, prunable
from lakebed.fleet.log.write_ids import WriteIdLimits, WriteIds
from lakebed.fleet.model import LogMark
from lakebed.key_value.port import KeyValueSnapshot

GROUP_BYTES_MAX: Final = 32 << 20
"""Most bytes of rows in one group, unless its first change has more."""
GROUP_CHANGE_COUNT_MAX: Final = 1_024
PRUNE_COUNT_MAX: Final = 4_096
"""Most records that one write prunes."""
_LSN_MAX: Final = (1 << 63) - 2


class Signal(Protocol):
    """Wakes a waiting thread, or a waiting task of an event loop."""

    def wake(self) -> None:
        """Wake the waiter, which then checks again. Called under the log's lock, so it must not block."""


class Reading(Protocol):
    """The part of the store that a change may read while it is planned."""

    limits: WriteIdLimits
    now_s: float

    def snapshot(self) -> KeyValueSnapshot:
        """Return a snapshot of the whole store, durable, as of now."""


@dataclass(slots=True)
class Group:
    """One write of a store, and the known state after it."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    expected: dict[bytes, bytes | None] = field(default_factory=dict)
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions that update the timelines in memory after the write, and set the results.

    Called under the log's lock.
    """
    tails: dict[str, LogMark] = field(default_factory=dict)
    """The position behind the appends of this group, by timeline."""
    appended: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """LSNs of this group's appends, by timeline and write id."""
    sizes: list[tuple[str, int, int]] = field(default_factory=list)
    """Timeline, last LSN and bytes of each record."""

    def expect_tail(self, known: Timeline) -> None:
        """Add the condition that a timeline ends where it is known to end."""
        self.expected.setdefault(known.keys.tail, encode_tail(known.tail))


class Change:
    """A change of one timeline, from the call until its result is known.

    Attributes:
        lsn: the result of an append.
        error: why the change was not made.
        is_done: whether the result or the error is final.
    """

    size_bytes = 0
    kind = ""

    def __init__(self, timeline: str, signal: Signal) -> None:
        self.timeline = timeline
        self.signal = signal
        self.lsn = 0
        self.error: LakebedError | None = None
        self.is_done = False

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        """Add the effect of the change to a group.

        Returns:
            The known state of the timeline after a change that begins or ends it; otherwise None.

        Raises `LakebedError`: the change cannot be made.
        """
        raise NotImplementedError

    def _present(self, state: Timeline | None) -> Timeline:
        """Return the timeline. Raises `NotFound` if it was never created or was dropped."""
        if state is None or state.end is End.DROPPED:
            raise timeline_not_found(self.timeline)
        return state

    def finish(self, error: LakebedError | None = None) -> None:
        """Set the result. Called under the log's lock."""
        self.error = error
        self.is_done = True

    def result(self) -> int:
        """Return the LSN, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.lsn


class Append(Change):
    """`Log.append`."""

    kind = "append"

    def __init__(
        self, timeline: str, signal: Signal, *, rows: pa.RecordBatch, write_id: str, expected: int | None
    ) -> None:
        super().__init__(timeline, signal)
        self.size_bytes = rows.nbytes
        self._rows = rows
        self._write_id = write_id
        self._id = id_bytes(write_id)
        self._expected = expected

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        known = self._present(known)
        last_lsn = known.write_ids.get(self._id) or group.appended.get((self.timeline, self._id))
        if last_lsn is not None:
            group.after.append(lambda: self._set(last_lsn))
            return known
        if known.end is not End.OPEN:
            raise timeline_sealed(self.timeline, last=known.mark.lsn)
        before = group.tails.get(self.timeline, known.mark)
        if self._expected is not None and self._expected != before.lsn:
            error = lsn_conflict(self.timeline, expected=self._expected, last=before.lsn)
            group.after.append(lambda: self.finish(error))
            group.expect_tail(known)
            return known
        if known.write_ids.is_full(reading.now_s, reading.limits):
            busy = log_busy(self.timeline, count=reading.limits.count_max, window_s=reading.limits.window_s)
            group.after.append(lambda: self.finish(busy))
            return known
        body = encode_log_record(self._rows, before=before, write_id=self._write_id)
        mark = mark_of(body)
        group.puts.append((keys.record(mark.lsn), body))
        group.puts.append((keys.write_id(mark.lsn), self._id))
        group.puts.append((keys.tail, encode_tail(known.tail._replace(mark=mark))))
        group.expect_tail(known)
        group.sizes.append((self.timeline, mark.lsn, len(body)))
        group.tails[self.timeline] = mark
        group.appended[self.timeline, self._id] = mark.lsn

        def remember() -> None:
            known.mark = mark
            known.write_ids.add(self._id, mark.lsn)
            known.recent.append((mark.lsn, body))
            self._set(mark.lsn)

        group.after.append(remember)
        return known

    def _set(self, lsn: int) -> None:
        self.lsn = lsn
        self.finish()


class Create(Change):
    """`Log.create`."""

    kind = "create"

    def __init__(self, timeline: str, signal: Signal, *, after: int) -> None:
        super().__init__(timeline, signal)
        self._after = after

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        if known is not None and self._present(known).begun_after != self._after:
            raise timeline_exists(self.timeline, after=self._after, begun_after=known.begun_after)
        group.after.append(self.finish)
        if known is not None:
            return known
        created = new_timeline(keys, self.timeline, after=self._after)
        group.puts.append((keys.tail, encode_tail(created.tail)))
        group.puts.append((keys.horizon, encode_horizon(self._after)))
        group.expected[keys.tail] = None
        return created


class Prune(Change):
    """`Log.prune`."""

    kind = "prune"

    def __init__(self, timeline: str, signal: Signal, *, through: int) -> None:
        super().__init__(timeline, signal)
        self._through = through

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        known = self._present(known)
        if self._through > known.mark.lsn:
            raise log_ends_before(self.timeline, lsn=self._through, last=known.mark.lsn)
        known.write_ids.trim(reading.now_s, reading.limits)
        remembered = known.write_ids.first_lsn
        with reading.snapshot() as now:
            ends = prunable(now, keys, self._through, after=known.horizon) if self._through > known.horizon else ()
            pruned = ends[:PRUNE_COUNT_MAX]
            horizon = pruned[-1] if pruned else known.horizon
            forgettable = -1 if remembered is None else min(horizon, remembered - 1)
            forgotten = prunable(now, keys, forgettable)[:PRUNE_COUNT_MAX] if pruned else ()
        if not pruned:
            group.after.append(self.finish)
            return known
        group.puts.append((keys.horizon, encode_horizon(horizon)))
        group.expected[keys.horizon] = encode_horizon(known.horizon)
        group.deletes += [keys.record(lsn) for lsn in pruned]
        group.deletes += [keys.write_id(lsn) for lsn in forgotten]
        is_last = len(pruned) < PRUNE_COUNT_MAX

        def remember() -> None:
            known.horizon = horizon
            known.forget_recent(horizon)
            if is_last:
                self.finish()

        group.after.append(remember)
        return known


class Seal(Change):
    """`Log.seal`."""

    kind = "seal"

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        known = self._present(known)
        self.lsn = known.mark.lsn
        group.after.append(self.finish)
        if known.end is not End.OPEN:
            return known
        sealed = replace(known, end=End.SEALED)
        group.expect_tail(known)
        group.puts.append((keys.tail, encode_tail(sealed.tail)))
        return sealed


class Drop(Change):
    """`Log.drop`.

    It writes the mark first, so that no append follows, and then deletes as many records as one write can.
    """

    kind = "drop"

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        with reading.snapshot() as now:
            pruned = list(prunable(now, keys, _LSN_MAX))[:PRUNE_COUNT_MAX]
        if known is not None and known.end is End.DROPPED and not pruned:
            group.after.append(self.finish)
            return known
        is_last = len(pruned) < PRUNE_COUNT_MAX
        if known is None:
            known = new_timeline(keys, self.timeline, after=0)
            group.expected[keys.tail] = None
        else:
            group.expect_tail(known)
        dropped = replace(known, end=End.DROPPED, horizon=known.mark.lsn, write_ids=WriteIds(), recent=[])
        group.puts.append((keys.tail, encode_tail(dropped.tail)))
        group.deletes.append(keys.horizon)
        group.deletes += [keys.record(lsn) for lsn in pruned]
        group.deletes += [keys.write_id(lsn) for lsn in pruned]
        if is_last:
            group.after.append(self.finish)
        return dropped


class Load(Change):
    """Makes a timeline known, or finds that it does not exist. Changes nothing."""

    kind = "load"

    def plan(self, group: Group, known: Timeline | None, keys: Keys, reading: Reading) -> Timeline | None:
        group.after.append(self.finish)
        return known
