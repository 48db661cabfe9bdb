"""One timeline of the log in a key-value store: its keys, and the part of it that is kept in memory.

Keys (DO NOT CHANGE; LSNs in keys have 20 digits, so that keys are sorted by LSN)::

    t/<timeline>          tail: the last LSN and the checksum of the last record, the LSN after which it was begun, and
                          how it has ended, if it has
    h/<timeline>          horizon: the last LSN that was pruned, or the LSN after which it was begun
    r/<timeline>/<LSN>    the record that ends at an LSN
    i/<timeline>/<LSN>    the write id of the record that ends at an LSN; kept for a while after the record was pruned

Invariants:
- Every append changes the tail on the condition that it is unchanged since it was read. So of two appends at one
  position one fails, and no append follows the end.
- The tail of a dropped timeline stays, so that the timeline is not created again.
- `r/` has a key for each `i/` key above the horizon.

Format page: docs/format/fleet-log.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.fleet.log.port import LogBounds, timeline_not_found
from lakebed.fleet.log.record import End, begin
from lakebed.fleet.log.write_ids import WriteIdLimits, WriteIds
from lakebed.fleet.model import LogMark
from lakebed.key_value.port import KeyValueSnapshot

_TAIL: Final = struct.Struct("<QQQ")
_END: Final = struct.Struct("<Q")
"""Follows the tail of a timeline that has ended."""
_LSN: Final = struct.Struct("<Q")
_DIGITS: Final = 20


class Keys(NamedTuple):
    """The keys of one timeline."""

    tail: bytes
    horizon: bytes
    records: bytes
    write_ids: bytes

    @classmethod
    def of(cls, timeline: str, *, prefix: bytes = b"") -> Keys:
        """Return the keys of a timeline. All begin with `prefix`, for a store that has other contents too."""
        name = timeline.encode()
        return cls(
            prefix + b"t/" + name, prefix + b"h/" + name, prefix + b"r/" + name + b"/", prefix + b"i/" + name + b"/"
        )

    def record(self, lsn: int) -> bytes:
        """Return the key of the record that ends at an LSN."""
        return b"%s%0*d" % (self.records, _DIGITS, lsn)

    def write_id(self, lsn: int) -> bytes:
        """Return the key of the write id of the record that ends at an LSN."""
        return b"%s%0*d" % (self.write_ids, _DIGITS, lsn)


def lsn_in(key: bytes) -> int:
    """Return the LSN at the end of a key."""
    return int(key[-_DIGITS:])


class Tail(NamedTuple):
    """The stored end of a timeline."""

    mark: LogMark
    begun_after: int
    end: End = End.OPEN


def encode_tail(tail: Tail) -> bytes:
    """Return the value of a tail."""
    value = _TAIL.pack(tail.mark.lsn, int(tail.mark.checksum, 16), tail.begun_after)
    return value if tail.end is End.OPEN else value + _END.pack(tail.end)


def decode_tail(value: bytes | None, *, timeline: str) -> Tail:
    """Return the end of a timeline. Raises `NotFound` if it does not exist or was dropped."""
    tail = None if value is None else _read_tail(value, timeline=timeline)
    if tail is None or tail.end is End.DROPPED:
        raise timeline_not_found(timeline)
    return tail


def _read_tail(value: bytes, *, timeline: str) -> Tail:
    if len(value) not in (_TAIL.size, _TAIL.size + _END.size):
        raise Corruption(f"The tail of {timeline} in the log has {len(value)} bytes, not {_TAIL.size}.", path=timeline)
    last, checksum, begun_after = _TAIL.unpack_from(value)
    end = _END.unpack_from(value, _TAIL.size)[0] if len(value) > _TAIL.size else End.OPEN
    if end not in tuple(End):
        raise UnsupportedFormat(
            f"The tail of {timeline} in the log says that it has ended in a way {end} that this lakebed does not know: "
            "upgrade lakebed.",
            path=timeline,
        )
    return Tail(LogMark(lsn=last, checksum=f"{checksum:016x}"), begun_after, End(end))


def encode_horizon(lsn: int) -> bytes:
    """Return the value of a horizon."""
    return _LSN.pack(lsn)


def decode_horizon(value: bytes | None, *, timeline: str) -> int:
    """Return the last LSN that was pruned."""
    if value is None or len(value) != _LSN.size:
        raise Corruption(f"The horizon of {timeline} in the log is damaged: {value!r}.", path=timeline)
    lsn: int = _LSN.unpack(value)[0]
    return lsn


def id_bytes(write_id: str) -> bytes:
    """Return a write id in its stored form."""
    return UUID(write_id).bytes


@dataclass(slots=True)
class Timeline:
    """The known state of a timeline: durable, and complete up to `mark`.

    Attributes:
        mark: the position at its end.
        begun_after: the LSN after which it was begun.
        horizon: the last LSN that was pruned.
        end: whether it takes rows. A dropped timeline is known to be gone.
        write_ids: the write ids of the newest records.
        recent: the newest records, oldest first: all that end behind `recent_after`.
        is_stale: whether the store may have more by now.
    """

    keys: Keys
    mark: LogMark
    begun_after: int
    horizon: int
    end: End = End.OPEN
    write_ids: WriteIds = field(default_factory=WriteIds)
    recent: list[tuple[int, bytes]] = field(default_factory=list)
    recent_after: int = 0
    is_stale: bool = False

    @property
    def tail(self) -> Tail:
        """The tail as stored."""
        return Tail(self.mark, self.begun_after, self.end)

    @property
    def bounds(self) -> LogBounds:
        """The LSNs that can be read."""
        return LogBounds(self.horizon + 1, self.mark.lsn)

    def recent_behind(self, after: int, *, bytes_max: int) -> list[bytes]:
        """Return the first record behind an LSN >= `recent_after`, and as many more as `bytes_max` allows."""
        bodies: list[bytes] = []
        size = 0
        for _, body in self.recent[bisect_right(self.recent, after, key=_lsn_of) :]:
            size += len(body)
            if bodies and size > bytes_max:
                break
            bodies.append(body)
        return bodies

    def forget_recent(self, through: int) -> None:
        """Drop recent records that end at or before an LSN."""
        del self.recent[: bisect_right(self.recent, through, key=_lsn_of)]
        self.recent_after = max(self.recent_after, through)


def _lsn_of(entry: tuple[int, bytes]) -> int:
    return entry[0]


def new_timeline(keys: Keys, timeline: str, *, after: int) -> Timeline:
    """Return a timeline that begins."""
    return Timeline(keys, begin(timeline, after=after), after, after, recent_after=after)


def load_timeline(
    now: KeyValueSnapshot, keys: Keys, timeline: str, *, known: Timeline | None, now_s: float, limits: WriteIdLimits
) -> Timeline | None:
    """Load a timeline from a store; None if it was never created.

    Args:
        known: the state that was known before, so that only newer write ids are read. Must not be used afterwards: its
            write ids become those of the result.
        now_s: the time by the monotonic clock.
        limits: which write ids are kept.

    Cost: 2 gets, and a scan of the unknown write ids.
    """
    value, horizon_value = now.get_many([keys.tail, keys.horizon])
    if value is None:
        return None
    mark, begun_after, end = _read_tail(value, timeline=timeline)
    if end is End.DROPPED:
        return Timeline(keys, mark, begun_after, mark.lsn, end, recent_after=mark.lsn)
    if known is not None and known.mark.lsn <= mark.lsn and known.write_ids.last_lsn <= mark.lsn:
        write_ids = known.write_ids
        for key, write_id in now.scan(keys.write_id(write_ids.last_lsn + 1), _end(keys.write_ids)):
            write_ids.add(write_id, lsn_in(key))
        write_ids.settle(now_s, limits)
    else:
        write_ids = WriteIds()
        entries = now.scan(keys.write_ids, _end(keys.write_ids))
        write_ids.load(((write_id, lsn_in(key)) for key, write_id in entries), now_s, limits)
    horizon = decode_horizon(horizon_value, timeline=timeline)
    return Timeline(keys, mark, begun_after, horizon, end, write_ids, recent_after=mark.lsn)


def prunable(now: KeyValueSnapshot, keys: Keys, through: int, *, after: int = -1) -> Sequence[int]:
    """Return the LSNs behind `after`, up to `through`, that have a write id, ascending. Cost: a scan."""
    return [lsn_in(key) for key, _ in now.scan(keys.write_id(after + 1), keys.write_id(through + 1))]


def scan_records(now: KeyValueSnapshot, keys: Keys, after: int, *, bytes_max: int) -> list[bytes]:
    """Return the first record behind an LSN, and as many more as `bytes_max` allows. Cost: a scan."""
    bodies: list[bytes] = []
    size = 0
    for _, body in now.scan(keys.record(after + 1), _end(keys.records)):
        size += len(body)
        if bodies and size > bytes_max:
            break
        bodies.append(body)
    return bodies


def _end(prefix: bytes) -> bytes:
    """Return the key behind all keys with a prefix that ends in a slash."""
    return prefix[:-1] + b"0"
