"""`HttpLog`: a client of the embedded log over HTTP.

Owns: what is sent, and that every call can be retried. An append is recognized by its write id; all other calls have no
effect the second time. So a call goes to one endpoint after another (`lakebed.http.asking.Servers`) until one answers,
for at most `retry_s` seconds. Then it raises `Unavailable`, or `OutcomeUnknown` if a reply may have been lost.

Appends of many threads are sent together: the first waiting thread sends the appends of all waiting threads.

Invariants: the token is in no error, log or `repr`. An append is in at most one request at a time. Its result is set
once, by the thread that sent it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from lakebed.errors import Closed, Fenced, InternalError, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.log.bodies import (
    API,
    APPENDS_MAX,
    BODY_BYTES_MAX,
    AppendItem,
    AppendResult,
    BoundsBody,
    SealedBody,
    WaitBody,
    decode_bodies,
    encode_rows,
)
from lakebed.fleet.log.port import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    Log,
    LogBounds,
    check_append,
    check_lsn,
    check_timeline,
    check_wait,
)
from lakebed.fleet.log.record import LogRecord, decode_log_record
from lakebed.http.asking import REPLY_S, Servers, check_endpoint, error_of, make_error, read_reply
from lakebed.kv.group_commit import copy_error
from lakebed.runtime import Condition, Environment, follow_forks

RETRY_S: Final = 20.0
"""Longer than the lease of an owner that crashed on another machine."""
_WAIT_S: Final = 1.0
"""Longest wait of one request, after which a wait notices that the log was closed."""
_CONNECTIONS_MAX: Final = 128
_AGAIN: Final = (Unavailable, Fenced, Closed, OutcomeUnknown)
"""Errors of an endpoint after which another endpoint may answer, or the same one later."""

T = TypeVar("T")


class HttpLog(Log):
    """The embedded log behind HTTP. Thread-safe.

    Args:
        endpoints: URLs of the log's processes, the owner and standbys, such as ``http://127.0.0.1:4100``.
        token: the log's token; None: it needs none.
        retry_s: how long a call is retried.
        environment: clock and randomness.

    Raises `InvalidRequest` (``invalid_url``). Cost: no request.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        token: str | None = None,
        retry_s: float = RETRY_S,
        environment: Environment | None = None,
    ) -> None:
        checked = tuple(map(check_endpoint, endpoints))
        if not checked:
            raise InvalidRequest("A log has at least one URL: write http://host:port.", kind="invalid_url")
        self._environment = environment or Environment()
        self._retry_s = retry_s
        self._servers = Servers(
            checked,
            headers={"user-agent": "lakebed", **({"authorization": f"Bearer {token}"} if token else {})},
            connection_count_max=_CONNECTIONS_MAX,
            environment=self._environment,
        )
        self._batches = AppendBatches(self._append_all, environment=self._environment)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"HttpLog({', '.join(self._servers.endpoints)})"

    # ---- the port

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Cost: 1 request."""
        self._send("PUT", _path(timeline), query={"after": check_lsn(after, name="after")})

    def append(self, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None = None) -> int:
        """Cost: 1 request, shared with all threads that append at the same time."""
        check_append(timeline, rows, write_id=write_id, expected=expected)
        if self._is_closed:
            raise Closed("The log was closed: open it again.")
        return self._batches.append(AppendItem(timeline, encode_rows(rows, write_id=write_id), expected))

    def _append_all(self, group: Sequence[Waiting]) -> None:
        """Make some appends in one request. Repeat those that met the log in transition."""

        def ask(endpoint: str) -> None:
            left = [append for append in group if not append.is_done]
            body = msgspec.msgpack.encode([append.item for append in left])
            results = read_reply(self._request(endpoint, "POST", f"{API}/append", body), list[AppendResult])
            if len(results) != len(left):
                raise InternalError(f"The log answered {len(left)} appends with {len(results)} results.")
            again: LakebedError | None = None
            for append, result in zip(left, results, strict=True):
                if not result.error:
                    append.lsn = result.lsn
                    continue
                error = make_error(result.error, result.message, result.kind, result.facts)
                if isinstance(error, _AGAIN):
                    again = error
                else:
                    append.error = error
            if again is not None:
                raise again

        self._ask(ask)

    def read(self, timeline: str, after: int, *, bytes_max: int = READ_BYTES_DEFAULT) -> list[LogRecord]:
        """Cost: 1 request."""
        query = {"after": check_lsn(after, name="after"), "bytes_max": max(1, min(bytes_max, READ_BYTES_MAX))}
        reply = self._send("GET", f"{_path(timeline)}/records", query=query)
        return [decode_log_record(body, timeline=timeline) for body in decode_bodies(reply)]

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        """Cost: 1 request, and 1 more for each second."""
        check_wait(after)
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + timeout_s
        while True:
            left_s = max(0.0, ends_s - clock.monotonic_s())
            body = msgspec.json.encode(WaitBody(dict(after), min(left_s, _WAIT_S)))
            reply = self._send("POST", f"{API}/wait", body, reply_s=REPLY_S + _WAIT_S)
            lasts: dict[str, int] = read_reply(reply, dict[str, int])
            if lasts or left_s <= _WAIT_S:
                return lasts

    def prune(self, timeline: str, through: int) -> None:
        """Cost: 1 request."""
        self._send("POST", f"{_path(timeline)}/prune", query={"through": check_lsn(through, name="through")})

    def seal(self, timeline: str) -> int:
        """Cost: 1 request."""
        reply: SealedBody = read_reply(self._send("POST", f"{_path(timeline)}/seal"), SealedBody)
        return reply.last

    def drop(self, timeline: str) -> None:
        """Cost: 1 request."""
        self._send("DELETE", _path(timeline))

    def bounds(self, timeline: str) -> LogBounds:
        """Cost: 1 request."""
        bounds = read_reply(self._send("GET", f"{_path(timeline)}/bounds"), BoundsBody)
        return LogBounds(bounds.first, bounds.last)

    def close(self) -> None:
        self._is_closed = True
        self._servers.close()

    # ---- requests

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, int] | None = None,
        reply_s: float = REPLY_S,
    ) -> bytes:
        if query:
            path += "?" + "&".join(f"{name}={value}" for name, value in query.items())
        return self._ask(lambda endpoint: self._request(endpoint, method, path, body, reply_s=reply_s))

    def _ask(self, ask: Callable[[str], T]) -> T:
        """Call one endpoint after another until one answers. If none does, raise an error that explains it."""

        def request(endpoint: str) -> T:
            if self._is_closed:
                raise Closed("The log was closed: open it again.")
            try:
                return ask(endpoint)
            except (Fenced, Closed) as error:  # that process lost the log, which may contain what was sent
                raise OutcomeUnknown(error.message, kind="log_unavailable") from error

        try:
            return self._servers.ask(request, retry_s=self._retry_s, is_retried=_may_be_retried)
        except (Unavailable, OutcomeUnknown) as error:
            raise self._gave_up(error) from error

    def _gave_up(self, error: LakebedError) -> LakebedError:
        where = ", ".join(sorted(self._servers.endpoints))
        if isinstance(error, OutcomeUnknown):
            return OutcomeUnknown(
                f"The log at {where} did not answer, and what was asked may have happened: ask again with the same "
                f"arguments. The last answer: {error.message}",
                kind="log_unavailable",
            )
        return Unavailable(
            f"The log at {where} did not answer within {self._retry_s:g} s: check that `lakebed fleet log` runs, "
            f"then try again. The last answer: {error.message}",
            kind="log_unavailable",
        )

    def _request(self, endpoint: str, method: str, path: str, body: bytes | None, *, reply_s: float = REPLY_S) -> bytes:
        reply = self._servers.send(endpoint, method, path, body, reply_s=reply_s, changes=method != "GET")
        if reply.status < 300:
            return reply.data
        raise error_of(reply, endpoint=endpoint, again=True)


def _may_be_retried(error: LakebedError) -> bool:
    return isinstance(error, Unavailable | OutcomeUnknown)


def _path(timeline: str) -> str:
    return f"{API}/timelines/{check_timeline(timeline)}"


_SENDING_MAX: Final = 2
"""Concurrent requests: while one waits for the disk, the next one is sent."""
_BYTES_MAX: Final = BODY_BYTES_MAX // 2


class Waiting:
    """One append, until its result is known."""

    __slots__ = ("changed", "error", "is_taken", "item", "lsn")

    def __init__(self, item: AppendItem, changed: Condition) -> None:
        self.item = item
        self.changed = changed
        self.is_taken = False
        """Whether a request contains it."""
        self.lsn: int | None = None
        self.error: LakebedError | None = None

    @property
    def is_done(self) -> bool:
        """Whether its result is known."""
        return self.lsn is not None or self.error is not None


class AppendBatches:
    """The appends of one client.

    Args:
        send: makes some appends, and sets `lsn` or `error` of each. If it raises an error, all appends without a result
            get this error.
        environment: provides locks.
    """

    def __init__(self, send: Callable[[Sequence[Waiting]], None], *, environment: Environment) -> None:
        self._send = send
        self._runtime = environment.runtime
        self._lock = self._runtime.lock()
        self._begin()
        follow_forks(self, AppendBatches._begin)

    def _begin(self) -> None:
        """Begin without appends. In a forked process, the appends of the parent belong to the parent."""
        self._waiting: deque[Waiting] = deque()
        self._sending = 0

    @property
    def waiting_count(self) -> int:
        """Appends that no request contains yet."""
        with self._lock:
            return len(self._waiting)

    def append(self, item: AppendItem) -> int:
        """Append, and return the LSN of the last row. Raises what `send` sets or raises."""
        waiting = Waiting(item, self._runtime.condition(self._lock))
        with self._lock:
            self._waiting.append(waiting)
        while True:
            with self._lock:
                while not waiting.is_done and (waiting.is_taken or self._sending >= _SENDING_MAX):
                    waiting.changed.wait()
                if waiting.is_done:
                    break
                group = self._take_group()
                self._sending += 1
            self._lead(group)
        if waiting.error is not None:
            raise waiting.error
        assert waiting.lsn is not None
        return waiting.lsn

    def _take_group(self) -> list[Waiting]:
        """Take the appends of the next request. Called under the lock."""
        group: list[Waiting] = []
        size = 0
        while self._waiting and len(group) < APPENDS_MAX:
            size += len(self._waiting[0].item.record)
            if group and size > _BYTES_MAX:
                break
            group.append(self._waiting.popleft())
            group[-1].is_taken = True
        return group

    def _lead(self, group: Sequence[Waiting]) -> None:
        failure: LakebedError = InternalError("Sending appends was interrupted.")
        try:
            self._send(group)
        except LakebedError as error:
            failure = error
        finally:
            with self._lock:
                self._sending -= 1
                for waiting in group:
                    if not waiting.is_done:
                        waiting.error = copy_error(failure)
                    waiting.changed.notify_all()
                if self._waiting:
                    self._waiting[0].changed.notify_all()
