"""The log over NATS JetStream: one subject for each timeline, timelines spread over a fixed number of streams.

Owns: the turns of this process's threads, waiting, and retries while a stream has no leader. Several processes may
append to one timeline.

Does not know: connections, requests and errors of NATS (`jetstream`); the contents of subjects (`jetstream_subjects`);
how the outcome of one append is found (`jetstream_append`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import Closed, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.log.jetstream import REPLICAS_DEFAULT, JetStream, WrongSequence, parse_nats_url
from lakebed.fleet.log.jetstream_append import Appending
from lakebed.fleet.log.jetstream_subjects import DROPPED_HEADER, LSN_HEADER, Subjects, Tail, headers_of, tail_of
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
    check_wait,
    timeline_exists,
    timeline_not_found,
)
from lakebed.fleet.log.record import End, LogRecord, begin, encode_beginning, encode_end
from lakebed.fleet.log.watchers import ThreadSignal, Watcher, Watchers
from lakebed.ids import new_uuid
from lakebed.runtime import Condition, Environment

RETRY_S: Final = 30.0
"""Longer than a stream has no leader after it lost one."""
STALE_S: Final = 5.0
"""For this long, a replaced leader may still return an older end of a timeline. After that, an end is trusted."""
_OVERHEAD_BYTES: Final = 2 << 10
"""Overhead of a message: headers, and the frame of a record."""
_UNCLEAR_COUNT_MAX: Final = 65_536
"""Most appends without a clear answer that are remembered, because they may be called again."""
_PAUSES: Final = Pauses(0.02, 0.2, jitter=0.5)
"""Pauses between attempts. After a stream has a leader again, the next attempt comes at most this much later."""
_POLL_S: Final = 2.0
"""How often a wait checks whether notices of new messages were lost."""
_LAST_COUNT_MAX: Final = 65_536
"""Most timelines whose last LSN is remembered."""

T = TypeVar("T")


class JetStreamLog(Log):
    """The log over JetStream. Thread-safe.

    Args:
        jetstream: a connection; `close` closes it.
        streams: number of streams; None: the existing number.
        replicas: number of replicas of each stream.
        environment: clock and randomness; its threads are real.
        retry_s: how long a call is retried. Opening is retried for at least `RETRY_S`, because a cluster that has just
            started elects leaders first.
        stale_s: how long an end that seems too early is not trusted.

    Raises as `JetStream.open_streams`.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        environment: Environment,
        streams: int | None = None,
        replicas: int = REPLICAS_DEFAULT,
        retry_s: float = RETRY_S,
        stale_s: float = STALE_S,
    ) -> None:
        self.jetstream = jetstream
        self._environment = environment
        self._retry_s = retry_s
        opening = self._backoff(max(retry_s, RETRY_S))
        count = self._ask(lambda: jetstream.open_streams(count=streams, replicas=replicas), opening)
        self._subjects = Subjects(jetstream, count=count, environment=environment, stale_s=stale_s)
        self.append_bytes_max = min(APPEND_BYTES_MAX, jetstream.max_payload - (jetstream.max_payload >> 2))
        self._lock = environment.runtime.lock()
        self._turns: dict[str, deque[Condition]] = {}
        """For each timeline with appends in progress, the threads that wait for their turn, in order."""
        self._last: dict[str, int] = {}
        """Last LSNs of timelines that were waited for, or that had a notice."""
        self._seen: dict[int, int] = {}
        """The newest known sequence of each stream, from a notice or a request."""
        self._forgotten_count = 0
        """Number of times that last LSNs were forgotten. Results of requests made before that are not remembered."""
        self._unclear: dict[str, set[int]] = {}
        """`Appending.unclear` of the appends that gave up, by write id."""
        self._watchers = Watchers(self._lock)
        self._follows = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"JetStreamLog({self.jetstream.shown})"

    # ---- the port

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Cost: 1 message."""
        _, subject = self._subjects.place(check_timeline(timeline))
        check_lsn(after, name="after")
        body = encode_beginning(timeline, after=after, write_id=new_uuid(self._environment.rng))

        def begin() -> None:
            try:
                self.jetstream.publish(subject, body, expected=0, id=None, headers=headers_of(after, after))
            except WrongSequence:
                tail = self._subjects.load_tail(timeline)
                if tail is not None and tail.end is End.DROPPED:
                    raise timeline_not_found(timeline) from None
                if tail is not None and tail.begun_after != after:
                    raise timeline_exists(timeline, after=after, begun_after=tail.begun_after) from None

        self._ask(begin)

    def append(self, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None = None) -> int:
        """Cost: 1 message. 1 more request for this process's first append, and after an append of another process."""
        check_append(timeline, rows, write_id=write_id, expected=expected)
        size = rows.get_total_buffer_size() + _OVERHEAD_BYTES  # for a slice this is the whole size: then count
        if size > self.jetstream.max_payload and (size := rows.nbytes + _OVERHEAD_BYTES) > self.jetstream.max_payload:
            raise InvalidRequest(
                f"The append has {size:,} bytes, and a message of {self.jetstream.shown} can have "
                f"{self.jetstream.max_payload:,}: make several, or raise max_payload of the servers.",
                kind="oversized_append",
            )
        backoff = self._backoff(self._retry_s)
        with self._turn(timeline, backoff.deadline_s):
            appending = Appending(
                self.jetstream,
                self._subjects,
                timeline,
                rows,
                write_id=write_id,
                expected=expected,
                unclear=self._unclear.pop(write_id, None),
            )
            try:
                return self._ask(appending.attempt, backoff)
            except LakebedError:
                if appending.unclear and len(self._unclear) < _UNCLEAR_COUNT_MAX:
                    self._unclear[write_id] = appending.unclear
                raise

    def read(self, timeline: str, after: int, *, bytes_max: int = READ_BYTES_DEFAULT) -> list[LogRecord]:
        """Cost: 1 request. About 20 more to find the place, unless this process has just read up to `after`."""
        check_timeline(timeline)
        check_lsn(after, name="after")
        bytes_max = min(bytes_max, READ_BYTES_MAX)
        return self._ask(lambda: self._subjects.read(timeline, after, bytes_max))

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        """Cost: 1 request for each timeline at first, then 1 for each stream every 2 s."""
        check_wait(after)
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + min(max(0.0, timeout_s), WAIT_S_MAX)
        self._ask(self._follow)
        watcher = Watcher(after, signal := ThreadSignal(self._environment.runtime.condition(self._lock)))
        self._watchers.add(watcher)
        try:
            while True:
                lasts = self._ask(lambda: self._look(after))
                left_s = ends_s - clock.monotonic_s()
                if lasts or left_s <= 0:
                    return lasts
                with self._lock:
                    self._check_open()
                    woken = bool(self._differing(after)) or signal.changed.wait(min(left_s, _POLL_S))
                if not woken:
                    self._ask(lambda: self._catch_up(after))
        finally:
            self._watchers.remove(watcher)

    def prune(self, timeline: str, through: int) -> None:
        """The last record stays. Cost: about 20 requests to find the position, and 1 purge."""
        number, subject = self._subjects.place(check_timeline(timeline))
        check_lsn(through, name="through")

        def purge() -> None:
            tail = self._subjects.tail_at(timeline, through)
            first_kept = tail.sequence if through >= tail.mark.lsn else self._subjects.find(timeline, through, tail)
            self.jetstream.purge(number, subject, below=first_kept)

        self._ask(purge)

    def seal(self, timeline: str) -> int:
        """Cost: 1 request and 1 message."""
        check_timeline(timeline)

        def end_timeline() -> int:
            tail = self._subjects.require_tail(timeline)
            return self._end(timeline, tail, End.SEALED).mark.lsn

        return self._ask(end_timeline)

    def drop(self, timeline: str) -> None:
        """Cost: 1 request, 1 message and 1 purge."""
        number, subject = self._subjects.place(check_timeline(timeline))

        def purge_messages() -> None:
            tail = self._subjects.load_tail(timeline) or Tail(0, begin(timeline, after=0), 0)
            self.jetstream.purge(number, subject, below=self._end(timeline, tail, End.DROPPED).sequence)

        self._ask(purge_messages)
        self._subjects.forget(timeline)
        with self._lock:
            self._last.pop(timeline, None)
            self._watchers.wake([timeline])

    def _end(self, timeline: str, tail: Tail, end: End) -> Tail:
        """End a timeline after its last message, unless it has already ended so. Return its last message.

        May be called again after a lost answer: it reads the tail first, which then is the message of the first call.
        """
        if tail.end >= end:
            return tail
        _, subject = self._subjects.place(timeline)
        body = encode_end(tail.mark, end, write_id=new_uuid(self._environment.rng))
        headers = headers_of(tail.begun_after, tail.mark.lsn)
        if end is End.DROPPED:
            headers[DROPPED_HEADER] = "1"
        try:
            position = self.jetstream.publish(subject, body, expected=tail.sequence, id=None, headers=headers)
        except WrongSequence as error:
            raise Unavailable(f"Others append to {timeline} at this moment.", kind="log_contended") from error
        return tail._replace(sequence=position.sequence, end=end)

    def bounds(self, timeline: str) -> LogBounds:
        """Cost: 2 requests."""
        check_timeline(timeline)

        def read_bounds() -> LogBounds:
            tail = self._subjects.require_tail(timeline)
            return LogBounds(self._subjects.first_lsn(timeline), tail.mark.lsn)

        return self._ask(read_bounds)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._watchers.wake_all()
        self.jetstream.close()

    # ---- places

    @contextmanager
    def _turn(self, timeline: str, deadline_s: float) -> Iterator[None]:
        """Let only one thread of this process append to a timeline at a time: concurrent appends would conflict.

        Raises `Unavailable` if the other threads take until the deadline.
        """
        clock = self._environment.clock
        with self._lock:
            self._check_open()
            waiting = self._turns.get(timeline)
            if waiting is None:
                self._turns[timeline] = deque()
            else:
                waiting.append(condition := self._environment.runtime.condition(self._lock))
                try:
                    while condition in waiting:
                        left_s = deadline_s - clock.monotonic_s()
                        if left_s <= 0:
                            trouble = Unavailable("Other appends to the timeline wait for an answer.")
                            raise self._gave_up(trouble, unclear=False)
                        condition.wait(left_s)
                except BaseException:
                    if condition in waiting:
                        waiting.remove(condition)
                    else:
                        self._pass_on(timeline)
                    raise
        try:
            yield
        finally:
            with self._lock:
                self._pass_on(timeline)

    def _pass_on(self, timeline: str) -> None:
        """Give the turn to the next thread. Called under the lock."""
        if self._turns[timeline]:
            self._turns[timeline].popleft().notify_all()
        else:
            del self._turns[timeline]

    # ---- waiting

    def _follow(self) -> None:
        """Subscribe to notices of new messages. Called by every wait; only the first call has an effect."""
        with self._lock:
            self._check_open()
            if self._follows:
                return
        self.jetstream.on_tail = self._on_tail
        self.jetstream.on_reconnect = self._on_reconnect
        last_sequences = {number: self.jetstream.last_sequence(number) for number in range(self._subjects.count)}
        self.jetstream.follow_tails()
        with self._lock:
            self._seen = {**last_sequences, **self._seen}
            self._follows = True

    def _on_tail(self, subject: str, sequence: int, headers: dict[str, str]) -> None:
        number, timeline = int(subject.split(".")[2]), self._subjects.timeline_of(subject)
        with self._lock:
            last_seen = self._seen.get(number, 0)
            if sequence > last_seen:
                self._seen[number] = sequence
                if sequence > last_seen + 1 or len(self._last) >= _LAST_COUNT_MAX:
                    self._forget(number)  # a notice in between was lost
                if DROPPED_HEADER in headers:
                    self._last.pop(timeline, None)
                else:
                    self._last[timeline] = int(headers[LSN_HEADER])
                self._watchers.wake([timeline])

    def _on_reconnect(self) -> None:
        with self._lock:
            for number in range(self._subjects.count):
                self._forget(number)

    def _forget(self, number: int) -> None:
        """Forget the last LSNs of the timelines of a stream, so that they are read again. Called under the lock."""
        self._forgotten_count += 1
        for timeline in [name for name in self._last if self._subjects.place(name)[0] == number]:
            del self._last[timeline]
        self._watchers.wake_all()

    def _look(self, after: Mapping[str, int]) -> dict[str, int]:
        with self._lock:
            self._check_open()
            unknown_timelines = [timeline for timeline in after if timeline not in self._last]
            forgotten_count = self._forgotten_count
        lasts: dict[str, int] = {}
        if unknown_timelines:
            messages = self.jetstream.last_of_many(map(self._subjects.place, unknown_timelines))
            for timeline, message in zip(unknown_timelines, messages, strict=True):
                if isinstance(message, LakebedError):
                    raise message
                tail = None if message is None else tail_of(message, timeline)
                if tail is not None and tail.end is not End.DROPPED:
                    lasts[timeline] = tail.mark.lsn
        with self._lock:
            if forgotten_count == self._forgotten_count:
                for timeline, lsn in lasts.items():
                    self._last.setdefault(timeline, lsn)
            return self._differing(after)

    def _differing(self, after: Mapping[str, int]) -> dict[str, int]:
        last = self._last
        return {timeline: last[timeline] for timeline, lsn in after.items() if last.get(timeline, lsn) != lsn}

    def _catch_up(self, after: Mapping[str, int]) -> None:
        """Forget the timelines of streams whose newest notices were lost."""
        for number in {self._subjects.place(timeline)[0] for timeline in after}:
            with self._lock:
                last_seen = self._seen.get(number, 0)
            newest = self.jetstream.last_sequence(number)
            with self._lock:
                if newest > last_seen and self._seen.get(number, 0) == last_seen:
                    self._seen[number] = newest
                    self._forget(number)

    # ---- retries

    def _backoff(self, retry_s: float) -> Backoff:
        return Backoff(self._environment, _PAUSES, retry_s=retry_s)

    def _ask(self, ask: Callable[[], T], backoff: Backoff | None = None) -> T:
        """Call a function that may be repeated until the cluster answers. Return its result."""
        backoff = backoff or self._backoff(self._retry_s)
        for _ in backoff:
            try:
                return ask()
            except (Unavailable, OutcomeUnknown) as error:
                backoff.note(error)
        raise self._gave_up(backoff.reason, unclear=backoff.unclear is not None) from backoff.reason

    def _gave_up(self, error: LakebedError, *, unclear: bool) -> LakebedError:
        """Return the error of a call that was retried until its deadline."""
        advice = "and what was asked may have happened: ask again with the same arguments" if unclear else "try again"
        return (OutcomeUnknown if unclear else Unavailable)(
            f"JetStream at {self.jetstream.shown} did not answer within {self._retry_s:g} s: check its servers, "
            f"{advice}. The last answer: {error.message}",
            kind=error.kind if error.kind == "too_few_replicas" else "log_unavailable",
        )

    def _check_open(self) -> None:
        self.jetstream.check_open()
        if self._is_closed:
            raise Closed("The log was closed: open it again.")


def open_jetstream(
    url: str,
    *,
    environment: Environment,
    streams: int | None,
    replicas: int,
    retry_s: float | None = None,
) -> JetStreamLog:
    """Open the log at a URL ``nats://host:port,host:port/name``.

    Args:
        streams, replicas: as `JetStreamLog` takes them.
        retry_s: the same; None: `RETRY_S`.

    Raises:
        InvalidRequest: ``invalid_url``, ``missing_package``, ``jetstream_too_old``, ``too_few_replicas``,
            ``stream_count``, ``jetstream_settings``.
        Unavailable: no server answers; ``too_few_replicas``: the cluster has no room for the replicas, and had none for
            as long as a cluster takes to start.
    """
    parts = parse_nats_url(url)
    jetstream = JetStream(parts.servers, name=parts.name, credentials=parts.credentials)
    try:
        return JetStreamLog(
            jetstream,
            environment=environment,
            streams=streams,
            replicas=replicas,
            retry_s=RETRY_S if retry_s is None else retry_s,
        )
    except BaseException:
        jetstream.close()
        raise
