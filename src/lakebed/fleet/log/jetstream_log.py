"""The log over NATS JetStream: one subject a timeline, timelines spread over a fixed number of streams.

Owns: how a timeline lies in its subject. The first message of a subject is a record without rows, which says after
which LSN the timeline begins; each other message is a record. A message is stored only if the last message of its
subject is the one that its record continues, so of two appends at one position one fails. The last message of a subject
is never purged: it is the tail.

Invariants:
- The order of the sequences in a stream is the order of the LSNs of a timeline.
- An append that got no clear answer is published again at the same position, with the same bytes and message id, or is
  found among the messages behind that position. So at most one message has its rows.
- Records are read from any replica, and from the leader wherever those have a hole or an end too early.

Does not know: connections, requests and errors of NATS (`lakebed.fleet.log.jetstream`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from lakebed.errors import Closed, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.log.jetstream import REPLICAS_DEFAULT, JetStream, Message, WrongSequence, parse_nats_url
from lakebed.fleet.log.port import (
    APPEND_BYTES_MAX,
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    WAIT_S_MAX,
    Log,
    LogBounds,
    check_append,
    check_lsn,
    check_timeline,
    log_ends_before,
    log_pruned,
    timeline_exists,
    timeline_not_found,
    unexpected_lsn,
)
from lakebed.fleet.log.record import LogRecord, decode_log_record, encode_beginning, encode_log_record, mark_of
from lakebed.fleet.log.watchers import ThreadSignal, Watcher, Watchers
from lakebed.fleet.model import LogMark
from lakebed.ids import new_uuid
from lakebed.runtime import Environment

PATIENCE_S: Final = 20.0
STALE_S: Final = 5.0
"""For so long a leader that was replaced may answer with an older end of a timeline; then the end is believed."""
_OVERHEAD_BYTES: Final = 2 << 10
"""Of a message: headers, and the frame of a record."""
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.5
_POLL_S: Final = 2.0
"""How often a wait looks whether notices of new messages were lost."""
_BATCH_COUNT: Final = 1_000
_KNOWN_COUNT_MAX: Final = 65_536
_AFTER: Final = "Lakebed-After"
_LSN: Final = "Lakebed-Lsn"

T = TypeVar("T")


class _Tail(NamedTuple):
    """The last message of a timeline."""

    sequence: int
    mark: LogMark
    begun_after: int


class JetStreamLog(Log):
    """The log over JetStream. Thread-safe.

    Args:
        jetstream: a connection; closed by `close`.
        streams: how many the log has; None: as many as there are.
        replicas: of each stream.
        environment: clock and randomness; its threads are real.
        patience_s: how long a call is asked again.
        stale_s: how long an end that is too early is doubted.

    Raises as `JetStream.open_streams`.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        environment: Environment,
        streams: int | None = None,
        replicas: int = REPLICAS_DEFAULT,
        patience_s: float = PATIENCE_S,
        stale_s: float = STALE_S,
    ) -> None:
        self.jetstream = jetstream
        self._environment = environment
        self._patience_s = patience_s
        self._stale_s = stale_s
        self._stream_count = self._asked(lambda: jetstream.open_streams(count=streams, replicas=replicas))
        self.append_bytes_max = min(APPEND_BYTES_MAX, jetstream.max_payload - (jetstream.max_payload >> 2))
        self._lock = environment.runtime.lock()
        self._turns: dict[str, tuple[AbstractContextManager[Any], int]] = {}
        """The lock of each timeline that is appended to now, and how many threads use it."""
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        """Where timelines end, as this process last saw it: a hint for appends, which fail where it is old."""
        self._positions: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Where the last read of a timeline ended: LSN and sequence."""
        self._last: dict[str, int] = {}
        """Last LSNs of timelines that are waited for."""
        self._seen: dict[int, int] = {}
        """The newest sequence of each stream of which there was a notice."""
        self._watchers = Watchers(self._lock)
        self._follows = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"JetStreamLog({self.jetstream.shown})"

    # ---- the port

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Cost: 1 message."""
        _, subject = self._place(check_timeline(timeline))
        check_lsn(after, name="after")
        body = encode_beginning(timeline, after=after, write_id=new_uuid(self._environment.rng))

        def made() -> None:
            try:
                self.jetstream.publish(subject, body, expected=0, id=None, headers=_headers(after, after))
            except WrongSequence:
                tail = self._load_tail(timeline)
                if tail is not None and tail.begun_after != after:
                    raise timeline_exists(timeline, after=after, begun_after=tail.begun_after) from None

        self._asked(made)

    def append(self, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None = None) -> int:
        """Cost: 1 message; 1 request more for the first append of this process, and where another process appended."""
        check_append(timeline, rows, write_id=write_id, expected=expected)
        size = rows.nbytes + _OVERHEAD_BYTES
        if size > self.jetstream.max_payload:
            raise InvalidRequest(
                f"The append has {size:,} bytes, and a message of {self.jetstream.shown} can have "
                f"{self.jetstream.max_payload:,}: make several, or raise max_payload of the servers.",
                kind="oversized_append",
            )
        with self._turn(timeline):
            return _Appending(self, timeline, rows, write_id=write_id, expected=expected).run()

    def read(self, timeline: str, after: int, *, bytes_max: int = READ_BYTES_DEFAULT) -> list[LogRecord]:
        """Cost: 1 request; where this process has not just read up to `after`, about 20 more to find it."""
        check_timeline(timeline)
        check_lsn(after, name="after")
        bytes_max = min(bytes_max, READ_BYTES_MAX)
        return self._asked(lambda: self._read(timeline, after, bytes_max))

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        """Cost: 1 request for each timeline at first, then 1 for each stream every 2 s."""
        for timeline, lsn in after.items():
            check_timeline(timeline)
            check_lsn(lsn, name="after")
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + min(max(0.0, timeout_s), WAIT_S_MAX)
        self._asked(self._follow)
        watcher = Watcher(after, signal := ThreadSignal(self._environment.runtime.condition(self._lock)))
        self._watchers.add(watcher)
        try:
            while True:
                found = self._asked(lambda: self._look(after))
                left_s = ends_s - clock.monotonic_s()
                if found or left_s <= 0:
                    return found
                with self._lock:
                    self._check_open()
                    woken = bool(self._differing(after)) or signal.changed.wait(min(left_s, _POLL_S))
                if not woken:
                    self._asked(lambda: self._catch_up(after))
        finally:
            self._watchers.remove(watcher)

    def prune(self, timeline: str, through: int) -> None:
        """The last record stays. Cost: about 20 requests to find the place, and 1 purge."""
        number, subject = self._place(check_timeline(timeline))
        check_lsn(through, name="through")

        def pruned() -> None:
            tail = self._tail_at(timeline, through)
            kept = tail.sequence if through >= tail.mark.lsn else self._find(timeline, through, tail)
            self.jetstream.purge(number, subject, below=kept)

        self._asked(pruned)

    def drop(self, timeline: str) -> None:
        """Cost: 1 purge."""
        number, subject = self._place(check_timeline(timeline))
        self._asked(lambda: self.jetstream.purge(number, subject))
        with self._lock:
            for known in (self._tails, self._positions, self._last):
                known.pop(timeline, None)  # type: ignore[attr-defined]
            self._watchers.wake([timeline])

    def bounds(self, timeline: str) -> LogBounds:
        """Cost: 2 requests."""
        check_timeline(timeline)

        def found() -> LogBounds:
            tail = self._known_tail(timeline)
            return LogBounds(self._first_lsn(timeline), tail.mark.lsn)

        return self._asked(found)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._watchers.wake_all()
        self.jetstream.close()

    # ---- places

    def _place(self, timeline: str) -> tuple[int, str]:
        """The number of a timeline's stream, and its subject."""
        number = xxhash.xxh3_64_intdigest(timeline.encode()) % self._stream_count
        tenant, _, name = timeline.replace(".", "%").partition("/")
        return number, f"{self.jetstream.name}.log.{number}.{tenant}.{name}"

    def _timeline_of(self, subject: str) -> str:
        tenant, name = subject.removeprefix(f"{self.jetstream.name}.log.").split(".")[1:]
        return f"{tenant}/{name}".replace("%", ".")

    @contextmanager
    def _turn(self, timeline: str) -> Iterator[None]:
        """Let one thread of this process append to a timeline at a time: they would only fail each other."""
        with self._lock:
            self._check_open()
            turn, users = self._turns.get(timeline, (self._environment.runtime.lock(), 0))
            self._turns[timeline] = (turn, users + 1)
        try:
            with turn:
                yield
        finally:
            with self._lock:
                turn, users = self._turns.pop(timeline)
                if users > 1:
                    self._turns[timeline] = (turn, users - 1)

    def _load_tail(self, timeline: str) -> _Tail | None:
        """The last message of a timeline, from the leader."""
        message = self.jetstream.last(*self._place(timeline))
        tail = None if message is None else _tail_of(message, timeline)
        with self._lock:
            if tail is None:
                self._tails.pop(timeline, None)
            else:
                _remember(self._tails, timeline, tail)
        return tail

    def _known_tail(self, timeline: str) -> _Tail:
        tail = self._load_tail(timeline)
        if tail is None:
            raise timeline_not_found(timeline)
        return tail

    def _tail_at(self, timeline: str, lsn: int) -> _Tail:
        """The end of a timeline that has an LSN. Raises `Corruption` (``log_forked``) if it surely ends before."""
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + self._stale_s
        while True:
            tail = self._known_tail(timeline)
            if tail.mark.lsn >= lsn:
                return tail
            if clock.monotonic_s() >= ends_s:
                raise log_ends_before(timeline, lsn=lsn, last=tail.mark.lsn)
            clock.sleep(_PAUSE_S_MAX / 2)

    def _first_lsn(self, timeline: str) -> int:
        number, subject = self._place(timeline)
        message = self.jetstream.next(number, subject, from_sequence=1)
        if message is None:
            raise timeline_not_found(timeline)
        return decode_log_record(message.body, timeline=timeline).first_lsn

    def _find(self, timeline: str, after: int, tail: _Tail) -> int:
        """From which sequence on messages end behind an LSN, which is below the end. Cost: 1 request a halving."""
        number, subject = self._place(timeline)
        low, high = 1, tail.sequence
        while low < high:
            middle = (low + high) // 2
            message = self.jetstream.next(number, subject, from_sequence=middle)
            if message is None:
                raise timeline_not_found(timeline)
            if _mark_in(message, timeline).lsn > after:
                high = middle
            else:
                low = message.sequence + 1
        return low

    # ---- reading

    def _read(self, timeline: str, after: int, bytes_max: int) -> list[LogRecord]:
        number, subject = self._place(timeline)
        with self._lock:
            position = self._positions.get(timeline)
        if position is not None and position[0] == after:
            start = position[1] + 1
        else:
            tail = self._tail_at(timeline, after)
            if tail.mark.lsn == after:
                self._check_not_pruned(timeline, after)
                return []
            start = self._find(timeline, after, tail)
        messages = self.jetstream.batch(
            number, subject, from_sequence=start, count=_BATCH_COUNT, bytes_max=max(bytes_max, 1)
        )
        records = _dense(messages, timeline, after)
        if not records:
            records = self._read_from_leader(timeline, after, start)
        found = _within(records, bytes_max)
        if found:
            last, sequence = found[-1][1].last_lsn, found[-1][0]
            with self._lock:
                _remember(self._positions, timeline, (last, sequence))
        return [record for _, record in found]

    def _read_from_leader(self, timeline: str, after: int, start: int) -> list[tuple[int, LogRecord]]:
        """The next record, where a replica did not have it; none at the end."""
        number, subject = self._place(timeline)
        tail = self._tail_at(timeline, after)
        if tail.mark.lsn == after:
            return []
        message = self.jetstream.next(number, subject, from_sequence=start)
        records = [] if message is None else _dense([message], timeline, after)
        if not records:
            self._check_not_pruned(timeline, after)
            raise Unavailable(f"The log of {timeline} changes while it is read: read again.", kind="log_unavailable")
        return records

    def _check_not_pruned(self, timeline: str, after: int) -> None:
        first = self._first_lsn(timeline)
        if after < first - 1:
            raise log_pruned(timeline, after=after, first=first)

    # ---- waiting

    def _follow(self) -> None:
        """Hear of new messages, from the first wait on."""
        with self._lock:
            self._check_open()
            if self._follows:
                return
        self.jetstream.on_tail = self._on_tail
        self.jetstream.on_reconnect = self._on_reconnect
        seen = {number: self.jetstream.last_sequence(number) for number in range(self._stream_count)}
        self.jetstream.follow_tails()
        with self._lock:
            self._seen = {**seen, **self._seen}
            self._follows = True

    def _on_tail(self, subject: str, sequence: int, headers: dict[str, str]) -> None:
        number, timeline = int(subject.split(".")[2]), self._timeline_of(subject)
        with self._lock:
            if sequence > self._seen.get(number, 0):
                self._seen[number] = sequence
                self._last[timeline] = int(headers[_LSN])
                self._watchers.wake([timeline])

    def _on_reconnect(self) -> None:
        with self._lock:
            self._last.clear()
            self._tails.clear()
            self._watchers.wake_all()

    def _look(self, after: Mapping[str, int]) -> dict[str, int]:
        with self._lock:
            self._check_open()
            unknown = [timeline for timeline in after if timeline not in self._last]
        if unknown:
            messages = self.jetstream.last_of_many(map(self._place, unknown))
            for timeline, message in zip(unknown, messages, strict=True):
                if isinstance(message, LakebedError):
                    raise message
                if message is not None:
                    with self._lock:
                        self._last.setdefault(timeline, _mark_in(message, timeline).lsn)
        with self._lock:
            return self._differing(after)

    def _differing(self, after: Mapping[str, int]) -> dict[str, int]:
        last = self._last
        return {timeline: last[timeline] for timeline, lsn in after.items() if last.get(timeline, lsn) != lsn}

    def _catch_up(self, after: Mapping[str, int]) -> None:
        """Forget what is known of timelines in streams of which notices were lost, so that it is asked again."""
        for number in {self._place(timeline)[0] for timeline in after}:
            with self._lock:
                seen = self._seen.get(number, 0)
            newest = self.jetstream.last_sequence(number)
            with self._lock:
                if newest > seen and self._seen.get(number, 0) == seen:
                    self._seen[number] = newest
                    for timeline in [one for one in self._last if self._place(one)[0] == number]:
                        del self._last[timeline]

    # ---- asking again

    def _asked(self, ask: Callable[[], T]) -> T:
        """What a call gives that can be made again, as soon as the cluster answers."""
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + self._patience_s
        pause_s = _PAUSE_S
        unclear = False
        while True:
            try:
                return ask()
            except (Unavailable, OutcomeUnknown) as error:
                unclear = unclear or isinstance(error, OutcomeUnknown)
                if clock.monotonic_s() >= ends_s:
                    raise self.gave_up(error, unclear=unclear) from error
            clock.sleep(pause_s * self._environment.rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def gave_up(self, error: LakebedError, *, unclear: bool) -> LakebedError:
        """The error of a call that was asked again for long enough."""
        what = "and what was asked may have happened: ask again with the same arguments" if unclear else "try again"
        return (OutcomeUnknown if unclear else Unavailable)(
            f"JetStream at {self.jetstream.shown} did not answer within {self._patience_s:g} s: check its servers, "
            f"{what}. The last answer: {error.message}",
            kind="log_unavailable",
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("The log was closed: open it again.")


class _Appending:
    """One append, until its outcome is known."""

    def __init__(
        self, log: JetStreamLog, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None
    ) -> None:
        self._log = log
        self._timeline = timeline
        self._rows = rows
        self._write_id = write_id
        self._expected = expected
        self._first_after: int | None = None
        """The end of the timeline at the first attempt: a message of this append lies behind it."""
        self._is_unclear = False

    def run(self) -> int:
        """The LSN of the last row."""
        log, clock, rng = self._log, self._log._environment.clock, self._log._environment.rng
        ends_s = clock.monotonic_s() + log._patience_s
        pause_s = _PAUSE_S
        for turn in count():
            try:
                lsn = self._once(is_first=turn == 0)
                if lsn is not None:
                    return lsn
                error: LakebedError = Unavailable("Other writers of the timeline were faster each time.")
            except (Unavailable, OutcomeUnknown) as caught:
                self._is_unclear = self._is_unclear or isinstance(caught, OutcomeUnknown)
                error = caught
                clock.sleep(pause_s * rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            if clock.monotonic_s() >= ends_s:
                raise log.gave_up(error, unclear=self._is_unclear) from error
        raise AssertionError("a count does not end")

    def _once(self, *, is_first: bool) -> int | None:
        """The LSN, or None if the timeline ends elsewhere by now."""
        log, timeline = self._log, self._timeline
        with log._lock:
            tail = log._tails.get(timeline) if is_first else None
        if tail is None:
            tail = log._known_tail(timeline)
        if self._first_after is None:
            self._first_after = tail.mark.lsn
        elif tail.mark.lsn > self._first_after:
            found = self._found_behind(self._first_after)
            if found is not None:
                return found
        if self._expected is not None and self._expected != tail.mark.lsn:
            return self._refused(log._known_tail(timeline))
        return self._published(tail)

    def _refused(self, tail: _Tail) -> int | None:
        assert self._expected is not None
        if self._expected == tail.mark.lsn:
            return None
        found = self._found_behind(self._expected) if self._expected < tail.mark.lsn else None
        if found is None:
            raise unexpected_lsn(self._timeline, expected=self._expected, last=tail.mark.lsn)
        return found

    def _published(self, tail: _Tail) -> int | None:
        log, timeline = self._log, self._timeline
        number, subject = log._place(timeline)
        body = encode_log_record(self._rows, before=tail.mark, write_id=self._write_id)
        mark = mark_of(body)
        message_id = f"{timeline}/{self._write_id}"
        headers = _headers(tail.begun_after, mark.lsn)
        try:
            stored = log.jetstream.publish(subject, body, expected=tail.sequence, id=message_id, headers=headers)
        except WrongSequence:
            return None
        if stored.is_duplicate:
            return self._lsn_at(number, stored.sequence)
        with log._lock:
            _remember(log._tails, timeline, _Tail(stored.sequence, mark, tail.begun_after))
        return mark.lsn

    def _lsn_at(self, number: int, sequence: int) -> int:
        """Where the message lies that has this append; of one that was pruned meanwhile the last LSN that was."""
        message = self._log.jetstream.at(number, sequence)
        if message is None:
            return self._log._first_lsn(self._timeline) - 1
        return _mark_in(message, self._timeline).lsn

    def _found_behind(self, after: int) -> int | None:
        """The LSN of this append among the records behind another one."""
        while True:
            try:
                records = self._log._read(self._timeline, after, READ_BYTES_DEFAULT)
            except LakebedError as error:
                if error.kind == "log_pruned":
                    return None
                raise
            for record in records:
                if record.write_id == self._write_id:
                    return record.last_lsn
            if not records:
                return None
            after = records[-1].last_lsn


def _headers(begun_after: int, lsn: int) -> dict[str, str]:
    return {_AFTER: str(begun_after), _LSN: str(lsn)}


def _mark_in(message: Message, timeline: str) -> LogMark:
    """The position at the end of a message."""
    return decode_log_record(message.body, timeline=timeline).mark


def _tail_of(message: Message, timeline: str) -> _Tail:
    return _Tail(message.sequence, _mark_in(message, timeline), int(message.headers[_AFTER]))


def _dense(messages: list[Message], timeline: str, after: int) -> list[tuple[int, LogRecord]]:
    """The records behind an LSN, up to the first hole; each with its sequence."""
    found: list[tuple[int, LogRecord]] = []
    for message in messages:
        record = decode_log_record(message.body, timeline=timeline)
        if record.last_lsn <= after:
            continue
        if record.first_lsn > after + 1:
            break
        found.append((message.sequence, record))
        after = record.last_lsn
    return found


def _within(records: list[tuple[int, LogRecord]], bytes_max: int) -> list[tuple[int, LogRecord]]:
    """The first record, and as many more as a limit allows."""
    size = 0
    for at, (_, record) in enumerate(records):
        size += record.size_bytes
        if at and size > bytes_max:
            return records[:at]
    return records


def _remember(known: OrderedDict[str, T], timeline: str, value: T) -> None:
    """Keep what is known of a timeline, of so many as were used last. Under the lock."""
    known[timeline] = value
    known.move_to_end(timeline)
    if len(known) > _KNOWN_COUNT_MAX:
        known.popitem(last=False)


def open_jetstream(url: str, *, environment: Environment, streams: int | None, replicas: int) -> JetStreamLog:
    """Open the log that a URL names: ``nats://host:port,host:port/name``.

    Raises:
        InvalidRequest: ``invalid_url``, ``missing_package``, ``jetstream_too_old``, ``too_few_replicas``,
            ``stream_count``, ``jetstream_settings``.
        Unavailable: no server answers.
    """
    parts = parse_nats_url(url)
    jetstream = JetStream(parts.servers, name=parts.name, credentials=parts.credentials)
    try:
        return JetStreamLog(jetstream, environment=environment, streams=streams, replicas=replicas)
    except BaseException:
        jetstream.close()
        raise
