"""Timelines as subjects of JetStream's streams, and reading them.

Owns: the subject of a timeline, its end, and the place of an LSN in a stream. The first message of a subject is a
record without rows, which contains the LSN after which the timeline begins. Each other message is a record. If a
timeline has ended, its last message is a record without rows that says so, and nothing follows it. Sequences in a
stream have the order of a timeline's LSNs. Remembered ends and positions are only hints.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import xxhash

from lakebed.backoff import Backoff, Pauses
from lakebed.bounded_cache import BoundedCache
from lakebed.errors import Unavailable
from lakebed.fleet.log.jetstream import JetStream, Message
from lakebed.fleet.log.port import log_ends_before, log_pruned, timeline_not_found
from lakebed.fleet.log.record import End, LogRecord, decode_log_record
from lakebed.fleet.model import LogMark
from lakebed.runtime import Environment

LSN_HEADER: Final = "Lakebed-Lsn"
"""Header of a message: the LSN at its end."""
DROPPED_HEADER: Final = "Lakebed-Dropped"
"""Header of the message that marks its timeline as dropped. It is a header because notices have no bodies."""
_AFTER_HEADER: Final = "Lakebed-After"
"""Header of a message: the LSN after which its timeline begins."""
_STALE_PAUSES: Final = Pauses(0.1, 0.1)
_BATCH_COUNT: Final = 1_000
_LEADER_COUNT: Final = 64
"""Records of one read that are requested singly, without a batch."""
_SILENT_S: Final = 10.0
"""How long batches are not used after one was not answered."""
_KNOWN_COUNT_MAX: Final = 65_536


class Tail(NamedTuple):
    """The last message of a timeline."""

    sequence: int
    mark: LogMark
    begun_after: int
    end: End = End.OPEN


class Subjects:
    """The subjects of a log. Thread-safe.

    Args:
        count: number of streams.
        stale_s: how long an end that seems too early is not trusted, because a replaced leader may return it.
    """

    def __init__(self, jetstream: JetStream, *, count: int, environment: Environment, stale_s: float) -> None:
        self._jetstream = jetstream
        self.count = count
        self._environment = environment
        self._clock = environment.clock
        self._stale_s = stale_s
        self._tails = BoundedCache(0, count_max=_KNOWN_COUNT_MAX, runtime=environment.runtime)
        """The ends of timelines, as this process last saw them: their `Tail`."""
        self._positions = BoundedCache(0, count_max=_KNOWN_COUNT_MAX, runtime=environment.runtime)
        """The position where the last read of a timeline ended: LSN and sequence."""
        self._replicas_from_s = 0.0
        """The time from which batches are used."""

    def place(self, timeline: str) -> tuple[int, str]:
        """Return the number of a timeline's stream, and its subject."""
        number = xxhash.xxh3_64_intdigest(timeline.encode()) % self.count
        tenant, _, name = timeline.replace(".", "%").partition("/")
        return number, f"{self._jetstream.name}.log.{number}.{tenant}.{name}"

    def timeline_of(self, subject: str) -> str:
        """Return the timeline of a subject."""
        tenant, name = subject.removeprefix(f"{self._jetstream.name}.log.").split(".")[1:]
        return f"{tenant}/{name}".replace("%", ".")

    # ---- the end

    def hint(self, timeline: str) -> Tail | None:
        """Return the end of a timeline when this process last read it or appended to it."""
        return self._tails.get(timeline)

    def note_append(self, timeline: str, tail: Tail) -> None:
        """Remember the end of a timeline."""
        self._tails.put(timeline, tail, size_bytes=0)

    def forget(self, timeline: str) -> None:
        """Forget a timeline."""
        self._tails.discard(timeline)
        self._positions.discard(timeline)

    def load_tail(self, timeline: str) -> Tail | None:
        """Return the last message of a timeline, from the leader. It may be the mark of a dropped timeline."""
        message = self._jetstream.last(*self.place(timeline))
        tail = None if message is None else tail_of(message, timeline)
        if tail is None:
            self.forget(timeline)
        else:
            self.note_append(timeline, tail)
        return tail

    def require_tail(self, timeline: str) -> Tail:
        """As `load_tail`. Raises `NotFound`, also if the timeline was dropped."""
        tail = self.load_tail(timeline)
        if tail is None or tail.end is End.DROPPED:
            raise timeline_not_found(timeline)
        return tail

    def tail_at(self, timeline: str, lsn: int) -> Tail:
        """Return the end of a timeline that has an LSN. Raises `Corruption` (``log_forked``) if it surely lacks it."""
        for _ in Backoff(self._environment, _STALE_PAUSES, retry_s=self._stale_s):
            tail = self.require_tail(timeline)
            if tail.mark.lsn >= lsn:
                return tail
        raise log_ends_before(timeline, lsn=lsn, last=tail.mark.lsn)

    def first_lsn(self, timeline: str) -> int:
        """Return the first LSN that can be read."""
        number, subject = self.place(timeline)
        message = self._jetstream.next(number, subject, from_sequence=1)
        record = None if message is None else decode_log_record(message.body, timeline=timeline)
        if record is None or record.end is End.DROPPED:
            raise timeline_not_found(timeline)
        return record.first_lsn

    def find(self, timeline: str, after: int, tail: Tail) -> int:
        """Return the first sequence whose message ends behind an LSN, which is below the end.

        Cost: 1 request for each halving.
        """
        number, subject = self.place(timeline)
        low, high = 1, tail.sequence
        while low < high:
            middle = (low + high) // 2
            message = self._jetstream.next(number, subject, from_sequence=middle)
            if message is None:
                raise timeline_not_found(timeline)
            if mark_in(message, timeline).lsn > after:
                high = middle
            else:
                low = message.sequence + 1
        return low

    def next_record(self, timeline: str, sequence: int) -> LogRecord:
        """Return the first record after a message that is not the last one, from the leader."""
        number, subject = self.place(timeline)
        message = self._jetstream.next(number, subject, from_sequence=sequence + 1)
        if message is None:
            raise _changes(timeline)
        return decode_log_record(message.body, timeline=timeline)

    # ---- reading

    def read(self, timeline: str, after: int, bytes_max: int) -> list[LogRecord]:
        """As `Log.read`. Read from any replica, and from the leader if the replica has a hole or ends too early."""
        number, subject = self.place(timeline)
        position: tuple[int, int] | None = self._positions.get(timeline)
        if position is not None and position[0] == after:
            start = position[1] + 1
        else:
            tail = self.tail_at(timeline, after)
            if tail.mark.lsn == after:
                self._check_not_pruned(timeline, after)
                return []
            start = self.find(timeline, after, tail)
        messages: list[Message] = []
        reads_replicas = self._clock.monotonic_s() >= self._replicas_from_s
        if reads_replicas:
            try:
                messages = self._jetstream.batch(
                    number, subject, from_sequence=start, count=_BATCH_COUNT, bytes_max=max(bytes_max, 1)
                )
            except Unavailable:  # the servers give the request to one replica, and this one hangs
                reads_replicas = False
                self._replicas_from_s = self._clock.monotonic_s() + _SILENT_S
        records = dense(messages, timeline, after)
        if not records:
            records = self._read_from_leader(timeline, after, start, count=1 if reads_replicas else _LEADER_COUNT)
        page = _within(records, bytes_max)
        if page:
            sequence, last = page[-1]
            self._positions.put(timeline, (last.last_lsn, sequence), size_bytes=0)
        return [record for _, record in page]

    def _read_from_leader(self, timeline: str, after: int, start: int, *, count: int) -> list[tuple[int, LogRecord]]:
        """Return at most `count` records from the leader, if no replica had them; none at the end.

        Cost: 1 request for each record.
        """
        number, subject = self.place(timeline)
        tail = self.tail_at(timeline, after)
        if tail.mark.lsn == after:
            return []
        messages: list[Message] = []
        while len(messages) < count and start <= tail.sequence:
            message = self._jetstream.next(number, subject, from_sequence=start)
            if message is None:
                break
            messages.append(message)
            start = message.sequence + 1
        records = dense(messages, timeline, after)
        if not records:
            self._check_not_pruned(timeline, after)
            raise _changes(timeline)
        return records

    def _check_not_pruned(self, timeline: str, after: int) -> None:
        first = self.first_lsn(timeline)
        if after < first - 1:
            raise log_pruned(timeline, after=after, first=first)


def _changes(timeline: str) -> Unavailable:
    return Unavailable(f"The log of {timeline} changes while it is read: read again.", kind="log_unavailable")


def headers_of(begun_after: int, lsn: int) -> dict[str, str]:
    """Return the headers of a message."""
    return {_AFTER_HEADER: str(begun_after), LSN_HEADER: str(lsn)}


def mark_in(message: Message, timeline: str) -> LogMark:
    """Return the position at the end of a message."""
    return decode_log_record(message.body, timeline=timeline).mark


def tail_of(message: Message, timeline: str) -> Tail:
    """Return the tail that the last message of a timeline describes."""
    record = decode_log_record(message.body, timeline=timeline)
    return Tail(message.sequence, record.mark, int(message.headers[_AFTER_HEADER]), record.end)


def dense(messages: list[Message], timeline: str, after: int) -> list[tuple[int, LogRecord]]:
    """Return the records behind an LSN up to the first hole, each with its sequence."""
    records: list[tuple[int, LogRecord]] = []
    for message in messages:
        record = decode_log_record(message.body, timeline=timeline)
        if record.last_lsn <= after:
            continue
        if record.first_lsn > after + 1:
            break
        records.append((message.sequence, record))
        after = record.last_lsn
    return records


def _within(records: list[tuple[int, LogRecord]], bytes_max: int) -> list[tuple[int, LogRecord]]:
    """Return the first record, and as many more as a limit allows."""
    size = 0
    for place, (_, record) in enumerate(records):
        size += record.size_bytes
        if place and size > bytes_max:
            return records[:place]
    return records
