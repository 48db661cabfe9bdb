"""NATS JetStream as the log uses it: one connection, streams with replicas, and the few requests that are needed.

Owns: nats-py, which is imported at the first connection; its event loop; the meaning of its errors.

Invariants:
- Every stream is on disk, is never trimmed by the server, and has at least the requested number of replicas.
- Servers have the version `VERSION_MIN` or newer, because older ones may accept two messages with one expectation.

A client cannot request `sync_interval: always`: the operator must set it (docs/design/0043-fleet-log.md).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import Closed, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.event_loop import EventLoopThread
from lakebed.fleet.log.jetstream_publish import NotSent, Publisher, Sending
from lakebed.runtime import follow_forks

VERSION_MIN: Final = (2, 12)
REPLICAS_DEFAULT: Final = 3
STREAMS_DEFAULT: Final = 4
"""More streams spread their leaders over more servers.

Each stream syncs separately, so on one disk fewer are faster.
"""

REQUEST_S: Final = 2.0
"""Time limit of one request. It is short, because a killed leader does not answer, and its successor soon will."""
_WRONG_SEQUENCE: Final = 10_071
_SUBJECT_IS_BUSY: Final = 10_164
"""Another message of the subject is being stored; this one is not."""
_NO_PEERS: Final = 10_005
"""Not enough peers for the replicas. Also occurs while a cluster starts and some servers do not know each other."""
_NO_CLUSTER: Final = 10_074
_NAME_IN_USE: Final = 10_058
_COUNT_KEY: Final = "lakebed_streams"

R = TypeVar("R")


class Message(NamedTuple):
    """A message in a stream."""

    sequence: int
    """Sequence in its stream."""
    headers: dict[str, str]
    body: bytes


class WrongSequence(Exception):
    """The last message of the subject is not the expected one. Nothing was published."""


class Published(NamedTuple):
    """A stored message."""

    sequence: int
    is_duplicate: bool
    """Whether a message with the same id was stored before."""


class _AckError(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    """A stream's reply to a message."""

    seq: int = 0
    duplicate: bool = False
    error: _AckError | None = None


class JetStream:
    """A connection to a cluster. Thread-safe.

    Args:
        servers: host and port of each server.
        name: the log's name, a prefix of streams and subjects.
        on_tail: called in the event loop with subject, sequence and headers of each stored message.
        on_reconnect: called in the event loop after the connection was lost and restored.
    """

    def __init__(self, servers: Sequence[str], *, name: str, credentials: str | None = None) -> None:
        self._nats = _load_nats()
        self._errors = importlib.import_module("nats.js.errors")
        self._api = importlib.import_module("nats.js.api")
        self._servers = [f"nats://{server}" for server in servers]
        self.shown = f"nats://{','.join(servers)}/{name}"
        self.name = name
        self._credentials = credentials
        self._loop = EventLoopThread(name="lakebed-nats")
        self.on_tail: Callable[[str, int, dict[str, str]], None] = _ignore_tail
        self.on_reconnect: Callable[[], None] = _nothing
        self._lose: Callable[[], None] = _nothing
        """Called in the event loop when the connection is lost."""
        self._is_closed = False
        self._why_closed = "was closed: open it again"
        try:
            self._client: Any = self._loop.run(self._connect_any())
            self._context: Any = self._client.jetstream(timeout=REQUEST_S)
            self._publisher = Publisher(self._client, self._loop)
            self._lose = self._publisher.lose
        except BaseException:
            self._loop.close()
            raise
        follow_forks(self, JetStream._begin_in_fork)

    async def _connect_any(self) -> Any:
        """Connect to any server, after checking the version of every server that answers."""
        client: Any = None
        problem: Exception | None = None
        for server in self._servers:
            try:
                connection = await self._nats.connect(
                    server,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.05,
                    **self._settings(),
                )
            except Exception as error:  # of sockets, of the protocol, of credentials: none of them can be used
                problem = error
                continue
            version = connection.connected_server_version
            await connection.close()
            if (version.major, version.minor) < VERSION_MIN:
                raise InvalidRequest(
                    f"The NATS server at {server} is version {version}, and the log needs "
                    f"{'.'.join(map(str, VERSION_MIN))} or newer: older servers may accept two appends that expect the "
                    "same.",
                    kind="jetstream_too_old",
                )
            client = True
        if client is None:
            raise Unavailable(
                f"No NATS server of {self.shown} answers: check that they run, then try again. {problem}",
                kind="log_unavailable",
            ) from problem
        return await self._nats.connect(
            self._servers,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            **self._settings(),
        )

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"connect_timeout": 2, "error_cb": _quiet, "name": "lakebed"}
        if self._credentials:
            user, _, password = self._credentials.partition(":")
            settings |= {"user": user, "password": password} if password else {"token": user}
        settings |= {"ping_interval": 2, "max_outstanding_pings": 2}  # leave a server that hangs after 4 s
        return settings

    async def _on_disconnect(self) -> None:
        self._lose()

    async def _on_reconnect(self) -> None:
        self.on_reconnect()

    # ---- streams

    def open_streams(self, *, count: int | None, replicas: int) -> int:
        """Make the missing streams, and check the existing ones. Return the number of streams.

        Raises:
            InvalidRequest: ``stream_count``, ``too_few_replicas``, ``jetstream_settings``.
            Unavailable: servers do not answer; ``too_few_replicas``: or they have not found each other yet.
        """
        first = self._run(self._stream(0))
        if first is not None:
            stream_count = int((first.config.metadata or {}).get(_COUNT_KEY, "0"))
            if count is not None and stream_count != count:
                raise InvalidRequest(
                    f"The log {self.shown} has {stream_count} streams, and {count} were asked for: the number is fixed "
                    "when the log is created.",
                    kind="stream_count",
                    streams=stream_count,
                )
            count = stream_count
        count = count or STREAMS_DEFAULT
        for number in range(count):
            stream = (
                first if number == 0 and first is not None else self._run(self._make_stream(number, count, replicas))
            )
            self._check(stream, replicas)
        return count

    async def _stream(self, number: int) -> Any:
        try:
            return await self._context.stream_info(self.stream(number))
        except self._errors.NotFoundError:
            return None

    async def _make_stream(self, number: int, count: int, replicas: int) -> Any:
        api = self._api
        config = api.StreamConfig(
            name=self.stream(number),
            subjects=[f"{self.name}.log.{number}.>"],
            storage=api.StorageType.FILE,
            retention=api.RetentionPolicy.LIMITS,
            discard=api.DiscardPolicy.NEW,
            num_replicas=replicas,
            duplicate_window=120,
            deny_delete=True,
            allow_direct=True,
            republish=api.RePublish(src=">", dest=f"{self.name}.tail.>", headers_only=True),
            metadata={_COUNT_KEY: str(count)},
        )
        try:
            return await self._context.add_stream(config)
        except self._errors.APIError as error:
            if error.err_code == _NO_CLUSTER:
                raise InvalidRequest(
                    f"JetStream at {self.shown} cannot keep {replicas} replicas: {error.description}. Run at least "
                    f"{replicas} servers in one cluster.",
                    kind="too_few_replicas",
                ) from error
            if error.err_code == _NO_PEERS:
                raise Unavailable(
                    f"JetStream at {self.shown} cannot keep {replicas} replicas now: {error.description}. Run at least "
                    f"{replicas} servers in one cluster, with room for the log.",
                    kind="too_few_replicas",
                ) from error
            if error.err_code == _NAME_IN_USE:
                return await self._stream(number)
            raise

    def _check(self, stream: Any, replicas: int) -> None:
        config, api = stream.config, self._api
        if (config.num_replicas or 1) < replicas:
            raise InvalidRequest(
                f"The stream {config.name} of {self.shown} has {config.num_replicas} replicas, and {replicas} were "
                "asked for: add replicas to the stream when all servers are in sync, or ask for fewer.",
                kind="too_few_replicas",
            )
        trims = (config.max_age or 0) > 0 or (config.max_msgs or -1) > 0 or (config.max_bytes or -1) > 0
        if config.storage != api.StorageType.FILE or config.retention != api.RetentionPolicy.LIMITS or trims:
            raise InvalidRequest(
                f"The stream {config.name} of {self.shown} is not one of a log: it is in memory, or the server trims "
                "it. Name another log, or delete the stream.",
                kind="jetstream_settings",
            )

    def stream(self, number: int) -> str:
        """Return the name of a stream."""
        return f"{self.name}_log_{number}"

    def leader(self, number: int) -> str:
        """Return the server that leads a stream."""
        stream = self._run(self._stream(number))
        leader: str = stream.cluster.leader if stream is not None and stream.cluster else ""
        return leader

    def lagging(self, number: int) -> int:
        """Return how many replicas of a stream are not in sync; 1 while it has no leader."""
        stream = self._run(self._stream(number))
        if stream is None or stream.cluster is None or not stream.cluster.leader:
            return 1
        return sum(not replica.current for replica in stream.cluster.replicas or ())

    def last_sequence(self, number: int) -> int:
        """Return the sequence of the last message of a stream."""
        stream = self._run(self._stream(number))
        return 0 if stream is None else int(stream.state.last_seq)

    @property
    def max_payload(self) -> int:
        """Bytes of the largest allowed message."""
        return int(self._client.max_payload)

    # ---- messages

    def publish(
        self,
        subject: str,
        body: bytes,
        *,
        expected: int,
        id: str | None,
        headers: dict[str, str],
        timeout_s: float = REQUEST_S,
    ) -> Published:
        """Store a message, if the last message of its subject has the expected sequence (0: there is no message).

        Args:
            id: the message's id. If it is published again within two minutes, only the first message is stored.

        Raises:
            WrongSequence: the last message has another sequence.
            Unavailable: ``not_published``: there is no connection now, or the stream has no leader, or it is storing
                another message of the subject.
            OutcomeUnknown: there was no clear answer.
        """
        all_headers = {**headers, "Nats-Expected-Last-Subject-Sequence": str(expected)}
        if id is not None:
            all_headers["Nats-Msg-Id"] = id
        self.check_open()
        try:
            reply = self._publisher.publish(Sending(subject, body, all_headers), timeout_s=timeout_s)
            ack = None if reply.status else decode_json(reply.body, _Ack)
        except NotSent as error:
            raise Unavailable(f"There is no connection to {self.shown} now.", kind="not_published") from error
        except Exception as error:
            raise self._unclear(error, changes=True) from error
        if ack is None:
            raise Unavailable(f"A stream of {self.shown} has no leader now.", kind="not_published")
        if ack.error is None:
            return Published(ack.seq, ack.duplicate)
        if ack.error.err_code == _WRONG_SEQUENCE:
            raise WrongSequence
        if ack.error.err_code == _SUBJECT_IS_BUSY:
            raise Unavailable(f"{self.shown} stores another message of {subject} now.", kind="not_published")
        raise OutcomeUnknown(
            f"JetStream at {self.shown} gave no clear answer: {ack.error.description}", kind="log_unavailable"
        )

    def last(self, number: int, subject: str) -> Message | None:
        """Return the last message of a subject, from the leader of the stream; None: it has none."""
        return self._run(self._message(number, subject=subject))

    def last_of_many(self, asked: Iterable[tuple[int, str]]) -> list[Message | LakebedError | None]:
        """As `last`, of many subjects concurrently."""
        self.check_open()
        calls = [self._message(number, subject=subject) for number, subject in asked]
        results = self._loop.run_all(calls)
        return [
            self._unclear(result, changes=False) if isinstance(result, BaseException) else result for result in results
        ]

    def next(self, number: int, subject: str, *, from_sequence: int) -> Message | None:
        """Return the first message of a subject with at least a given sequence, from the leader."""
        return self._run(self._message(number, subject=subject, seq=from_sequence, next=True))

    def at(self, number: int, sequence: int) -> Message | None:
        """Return the message with a sequence, from the leader."""
        return self._run(self._message(number, seq=sequence))

    async def _message(self, number: int, **which: Any) -> Message | None:
        try:
            message = await self._context.get_msg(self.stream(number), **which)
        except self._errors.NotFoundError:
            return None
        return Message(int(message.seq), dict(message.headers or {}), message.data or b"")

    def batch(self, number: int, subject: str, *, from_sequence: int, count: int, bytes_max: int) -> list[Message]:
        """Return messages of a subject from a sequence on, in order. Any replica answers; it may lack the newest."""
        return self._run(self._batch(number, subject, from_sequence, count, bytes_max))

    async def _batch(self, number: int, subject: str, from_sequence: int, count: int, bytes_max: int) -> list[Message]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, pending_bytes_limit=-1, pending_msgs_limit=-1)
        request = {"seq": from_sequence, "next_by_subj": subject, "batch": count, "max_bytes": bytes_max}
        messages: list[Message] = []
        try:
            await self._client.publish(
                f"$JS.API.DIRECT.GET.{self.stream(number)}", json.dumps(request).encode(), reply=inbox
            )
            while True:
                message = await subscription.next_msg(timeout=REQUEST_S)
                headers = dict(message.headers or {})
                if headers.get("Status"):  # 204: the end; 404: no messages; 503: no replica answers
                    if headers["Status"] not in ("204", "404"):
                        raise self._nats.errors.NoRespondersError
                    return messages
                messages.append(Message(int(headers["Nats-Sequence"]), headers, message.data or b""))
        finally:
            await subscription.unsubscribe()

    def purge(self, number: int, subject: str, *, below: int | None = None) -> None:
        """Delete all messages of a subject, or only those below a sequence. A repeated call has no effect."""
        self._run(self._context.purge_stream(self.stream(number), subject=subject, seq=below), changes=True)

    def follow_tails(self) -> None:
        """Begin to call `on_tail`. Best effort: messages are missed while the connection is lost."""

        async def on_message(message: Any) -> None:
            headers = dict(message.headers or {})
            subject = headers.get("Nats-Subject")
            if subject is not None:
                self.on_tail(subject, int(headers["Nats-Sequence"]), headers)

        self._run(self._client.subscribe(f"{self.name}.tail.>", cb=on_message))
        self._run(self._client.flush(timeout=int(REQUEST_S)))

    # ---- calls and errors

    def close(self) -> None:
        """Close the connection. Closing twice is a no-op."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._publisher.close()
        finally:
            self._loop.close()

    def _begin_in_fork(self) -> None:
        """Close this object in a forked process: the loop and its connection belong to the parent."""
        self._is_closed, self._why_closed = True, "belongs to the process that this one was forked from: connect here"

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a forked process."""
        if self._is_closed:
            raise Closed(f"The log {self._why_closed}.")

    def _run(self, call: Coroutine[Any, Any, R], *, changes: bool = False) -> R:
        if self._is_closed:
            call.close()
        self.check_open()
        try:
            return self._loop.run(call)
        except LakebedError:
            raise
        except Exception as error:
            raise self._unclear(error, changes=changes) from error

    def _unclear(self, error: BaseException, *, changes: bool) -> LakebedError:
        """Return the error for a call without a result from nats-py."""
        words = str(error) or type(error).__name__
        return (OutcomeUnknown if changes else Unavailable)(
            f"JetStream at {self.shown} gave no clear answer: {words}", kind="log_unavailable"
        )


def _load_nats() -> Any:
    try:
        return importlib.import_module("nats")
    except ImportError as error:
        raise InvalidRequest(
            "A log on NATS was asked for, and nats-py is not installed: pip install 'lakebed[fleet]'.",
            kind="missing_package",
        ) from error


async def _quiet(error: Exception) -> None:
    """Ignore an error of the connection: its calls report it."""


def _ignore_tail(subject: str, sequence: int, headers: dict[str, str]) -> None:
    """Ignore a message: nothing is watched yet."""


def _nothing() -> None:
    """Do nothing."""


_URL: Final = re.compile(
    r"nats://(?:(?P<credentials>[^@/]+)@)?(?P<servers>[^/@?]+)(?:/(?P<name>[A-Za-z0-9_-]{1,64}))?/?"
)


class NatsUrl(NamedTuple):
    """The parts of a URL of a log on NATS."""

    servers: tuple[str, ...]
    name: str
    credentials: str | None


def parse_nats_url(url: str) -> NatsUrl:
    """Parse ``nats://[user:password@]host:port,host:port[/name]``.

    Raises `InvalidRequest`, without the URL's credentials.
    """
    match = _URL.fullmatch(url)
    servers = () if match is None else tuple(server.strip() for server in match["servers"].split(","))
    if match is None or not all(servers):
        raise InvalidRequest(
            "The URL of a log on NATS is nats://host:port,host:port/name, and the one given cannot be read.",
            kind="invalid_url",
        )
    return NatsUrl(servers, match["name"] or "lakebed", match["credentials"])
