"""What clients of our services share: addresses, replies, and errors that come back as they were raised.

Owns: `Connections`, the pool of connections of a client; `Servers`, which of several processes is asked, and for how
long; the two headers that name an error's kind and class, and how a reply without them is taken. Does not know: any
service, or which requests may be repeated.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import urllib3
from typing_extensions import override
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import HTTPResponse
from urllib3.util import parse_url

from lakebed import errors
from lakebed.backoff import Backoff, Pauses
from lakebed.decoding import decode_json
from lakebed.errors import InternalError, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable, UnsupportedFormat
from lakebed.http.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, Signature, check_clear, client_context, client_signature
from lakebed.runtime import Environment

T = TypeVar("T")

KIND_HEADER: Final = "x-lakebed-error"
"""The kind of an error, for programs."""
CLASS_HEADER: Final = "x-lakebed-error-class"
"""Its class in `lakebed.errors`, so that lakebed's client raises the same."""
_UNCLEAR: Final = {502, 504}
"""What a proxy answers when the server behind it did not: a change may have happened."""


_FILES_S: Final = 5.0
"""Between two looks at the files of certificates."""


_SENT_TOGETHER_MAX: Final = 64 << 10
"""Bytes of a body that is copied behind its head: a larger one costs more to copy than to send apart."""


_wait_for_reply: Final[ContextVar[Callable[[socket.socket], None] | None]] = ContextVar("_wait_for_reply", default=None)
"""What waits for the first byte of the reply to a request of this thread; None: nothing but the limit of its time."""


class SendingOnce(HTTPConnection):
    """A connection that sends the head of a request and a short body at once: sender and receiver wake up once.

    A body that is read while it is sent, such as a file, is sent as ever.
    """

    _parts: list[bytes] | None = None
    """What is to be sent of a request with a short body, until all of it is there."""

    @override
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 does
        """The reply, once it begins, or its caller does not wait for it any longer."""
        wait = _wait_for_reply.get()
        if wait is not None and self.sock is not None:
            wait(self.sock)
        return super().getresponse()

    @override
    def request(self, method: str, url: str, body: Any = None, *args: Any, **options: Any) -> None:
        """Send a request; arguments as urllib3's."""
        if not isinstance(body, bytes) or len(body) > _SENT_TOGETHER_MAX:
            super().request(method, url, body, *args, **options)
            return
        parts: list[bytes] = []
        self._parts = parts
        try:
            super().request(method, url, body, *args, **options)
        finally:
            self._parts = None
        self.send(b"".join(parts))

    @override
    def send(self, data: Any) -> None:
        """Send bytes, or keep them until the request is whole."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class SendingOnceEncrypted(SendingOnce, HTTPSConnection):
    """The same over TLS."""


class _ClearPool(urllib3.HTTPConnectionPool):
    ConnectionCls = SendingOnce


class _EncryptedPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = SendingOnceEncrypted


class _Pool(NamedTuple):
    """Connections of one process.

    Attributes:
        files: what the files of certificates looked like when it was made.
        look_s: when to look at them again, by the monotonic clock.
    """

    pool: urllib3.PoolManager
    process: int
    files: Signature
    look_s: float


_parse_endpoint: Final = lru_cache(maxsize=256)(parse_url)


class Connections:
    """Connections to some servers, kept for further requests. Thread-safe.

    A forked process has connections of its own: on those of its parent, each would read replies to the other.

    Args:
        server_count: whose connections are kept.
        connection_count_max: kept to one server.
    """

    def __init__(self, *, server_count: int, connection_count_max: int) -> None:
        self._counts = server_count, connection_count_max
        self._pool = self._make()

    def _make(self) -> _Pool:
        """A pool of this process, with the certificates as they are now. Raises as `client_context`."""
        server_count, connection_count_max = self._counts
        files = client_signature()
        pool = urllib3.PoolManager(num_pools=server_count, maxsize=connection_count_max, ssl_context=client_context())
        pool.pool_classes_by_scheme = {"http": _ClearPool, "https": _EncryptedPool}
        return _Pool(pool, os.getpid(), files, time.monotonic() + _FILES_S)

    def _current_pool(self) -> urllib3.PoolManager:
        """The pool; a new one in a forked process, and when the files of certificates have changed.

        Files that do not fit each other, as in the middle of their replacement, leave the old ones in use.
        """
        known = self._pool  # read once: it is replaced as a whole
        if known.process == os.getpid():
            if not known.files or time.monotonic() < known.look_s:
                return known.pool
            if client_signature() == known.files:
                self._pool = known._replace(look_s=time.monotonic() + _FILES_S)
                return known.pool
        try:
            self._pool = made = self._make()
        except InvalidRequest:
            if known.process != os.getpid():
                raise
            self._pool = known._replace(look_s=time.monotonic() + _FILES_S)
            return known.pool
        return made.pool

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        retries: urllib3.Retry | Literal[False] = False,
        wait: Callable[[socket.socket], None] | None = None,
        **options: Any,
    ) -> urllib3.BaseHTTPResponse:
        """One request, as `urllib3.HTTPConnectionPool.urlopen`; no redirect is followed.

        Args:
            endpoint: URL of the server; it is parsed once, which for each request would take a quarter of its time.
            path: below it, with the query.
            retries: whether, and how, it is repeated when its connection breaks.
            wait: is called with the connection, and returns when the reply begins, or raises `TimeoutError`.
        """
        scheme, _, host, port, prefix, _, _ = _parse_endpoint(endpoint)
        server = self._current_pool().connection_from_host(host, port, scheme)
        target = (prefix or "") + path
        token = _wait_for_reply.set(wait)
        try:
            return server.urlopen(method, target, retries=retries, redirect=False, assert_same_host=False, **options)
        finally:
            _wait_for_reply.reset(token)

    def close(self) -> None:
        """Close all connections; again is a no-op."""
        self._pool.pool.clear()


REPLY_S: Final = 1.0
"""How long a process may take for the first byte of a reply before another one is asked."""
REPLY_S_MAX: Final = 10.0
"""Longest time of a request that took too long before."""
_CONNECT_S: Final = 1.0
HEALTH_PATH: Final = "/healthcheck"
_HEALTH_S: Final = 0.25
_HEALTH_S_MAX: Final = 2.0
_HEALTH_TRIES: Final = 3
"""After so many questions without an answer the time for one is doubled: a process that is busy answers in the end."""
_LOOK_S: Final = 1.0
"""Between two questions to a process that is silent, and between two looks for other URLs, while others are asked."""
_PAUSES: Final = Pauses(0.05, 0.25, jitter=0.5)
_TIMES_MAX: Final = 256


class _Server:
    """One process, as it answered last."""

    __slots__ = ("due_s", "silences", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.silences = 0
        """How many requests in a row it left without an answer."""
        self.due_s = 0.0
        """When it is asked for its health again."""


class Servers:
    """Some processes of one service: which is asked, and how long it may take. Thread-safe.

    The process that answered last is asked first. One that does not answer in time, because it hangs or is cut off, is
    asked last from then on, and before it gets another request it has to answer a question for its health. So a process
    that hangs delays each client once, by `REPLY_S`. A process that is well and took too long gets twice the time for
    the same request.

    Args:
        endpoints: URLs of the processes.
        headers: of every request.
        connection_count_max: kept to one process.
        find: other URLs, asked for when no process answers; raises or returns the same ones when there are none.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        headers: Mapping[str, str],
        connection_count_max: int,
        environment: Environment,
        find: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._has_token = "authorization" in headers
        if self._has_token:
            check_clear(endpoints)
        self._servers = tuple(map(_Server, endpoints))
        self._headers = headers
        self._environment = environment
        self._pool = Connections(server_count=len(endpoints) + 1, connection_count_max=connection_count_max)
        self._find = find
        self._find_s = 0.0
        self._times: dict[int, float] = {}
        """How long a request may take that took too long before, by a hash of all that it asks."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The URLs, in the order in which they are asked."""
        return tuple(server.url for server in self._order())

    def close(self) -> None:
        """Close all connections; again is a no-op."""
        self._pool.close()

    def ask(
        self,
        request: Callable[[str], T],
        *,
        retry_s: float,
        is_retried: Callable[[LakebedError], bool],
    ) -> T:
        """Let one process after another answer a request, each at least once.

        Args:
            request: asks the process at a URL; it may be called again after an error that `is_retried`.
            retry_s: how long the request is retried.
            is_retried: whether another process may answer after an error, or the same one later.

        Raises:
            The last error; `OutcomeUnknown` when any process may have done what was asked, and none said since that
            it has or has not.
        """
        clock = self._environment.clock
        backoff = Backoff(self._environment, _PAUSES, retry_s=retry_s)
        for _ in backoff:
            for server in self._order():
                if not self._is_well(server):
                    backoff.note(_no_reply(server.url))
                    continue
                try:
                    reply = request(server.url)
                except LakebedError as error:
                    if not is_retried(error):
                        raise
                    backoff.note(error)
                else:
                    if server is not self._servers[0]:
                        self._servers = (server, *(other for other in self._servers if other is not server))
                    return reply
            self._look_for_others(clock.monotonic_s())
        raise backoff.unclear or backoff.reason

    def send(
        self,
        endpoint: str,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        reply_s: float = REPLY_S,
        reply_s_max: float = REPLY_S_MAX,
        changes: bool = True,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """One request to one process; its reply, whatever its status.

        Args:
            reply_s: how long the first byte may take the first time ...
            reply_s_max: ... and after the same request took too long.
            changes: it may have an effect, so that a lost reply is `OutcomeUnknown`.
            preload: read the reply's body; else the caller reads and closes it.

        Raises:
            Unavailable: nothing was sent, or the request changes nothing. ``no_answer``: no process listens there, or
                it ended the connection; ``no_reply``: it did not answer in time.
            OutcomeUnknown: ``outcome_unknown``.
        """
        clock = self._environment.clock
        key = hash((method, path, content))
        limit_s = min(max(self._times.get(key, 0.0), reply_s), max(reply_s, reply_s_max))
        begun_s = clock.monotonic_s()
        try:
            reply = self._pool.request(
                method,
                endpoint,
                path,
                body=content,
                headers=self._headers,
                timeout=urllib3.Timeout(connect=min(_CONNECT_S, limit_s), read=limit_s),
                preload_content=preload,
            )
        except HTTPError as error:
            cause = error.reason if isinstance(error, MaxRetryError) else error
            if isinstance(cause, SSLError):
                raise untrusted(endpoint, cause) from error
            is_refused = isinstance(cause, NewConnectionError)
            was_sent = not isinstance(cause, ConnectTimeoutError) and not is_refused
            is_silent = isinstance(cause, ReadTimeoutError) or not (was_sent or is_refused)
            if is_silent:
                self._note_silence(endpoint)
            if isinstance(cause, ReadTimeoutError):
                self._note_time(key, 2 * limit_s, reply_s)
            if not (changes and was_sent):
                raise (_no_reply if is_silent else _no_answer)(endpoint) from error
            raise OutcomeUnknown(
                f"{endpoint} did not answer a request that changes something: it may have happened; look before you "
                "try again.",
                kind="outcome_unknown",
            ) from error
        self._note_time(key, 2 * (clock.monotonic_s() - begun_s), reply_s)
        for server in self._servers:
            if server.url == endpoint:
                server.silences = 0
        return reply

    def _order(self) -> list[_Server]:
        """The process that answered last first, silent ones last."""
        return sorted(self._servers, key=lambda server: server.silences > 0)

    def _note_silence(self, endpoint: str) -> None:
        for server in self._servers:
            if server.url == endpoint:
                server.silences += 1

    def _note_time(self, key: int, time_s: float, reply_s: float) -> None:
        """Remember how long a request may take, if that is longer than `reply_s`."""
        if time_s <= reply_s:
            self._times.pop(key, None)
            return
        if len(self._times) >= _TIMES_MAX:
            self._times.clear()
        self._times[key] = time_s

    def _is_well(self, server: _Server) -> bool:
        """Whether a process can be asked: it answered last, or it answers a question for its health now."""
        if not server.silences:
            return True
        clock = self._environment.clock
        if clock.monotonic_s() < server.due_s:
            return False
        limit_s = min(_HEALTH_S * 2 ** (server.silences // _HEALTH_TRIES), _HEALTH_S_MAX)
        server.due_s = clock.monotonic_s() + limit_s  # other threads do not wait for the same answer
        if self.is_well(server.url, limit_s):
            server.silences, server.due_s = 0, 0.0
            return True
        server.silences += 1
        server.due_s = clock.monotonic_s() + (_LOOK_S if len(self._servers) > 1 else 0.0)
        return False

    def is_well(self, endpoint: str, limit_s: float) -> bool:
        """Whether a process answers a question for its health, whatever it says. Raises nothing."""
        try:
            timeout = urllib3.Timeout(connect=limit_s, read=limit_s)
            self._pool.request("GET", endpoint, HEALTH_PATH, headers=self._headers, timeout=timeout)
        except HTTPError:
            return False
        return True

    def _look_for_others(self, now_s: float) -> None:
        if self._find is None or now_s < self._find_s:
            return
        self._find_s = now_s + _LOOK_S
        try:
            urls = self._find()
            if self._has_token:
                check_clear(urls)
        except LakebedError:
            return
        known = {server.url: server for server in self._servers}
        if set(urls) != set(known):
            self._servers = tuple(known.get(url) or _Server(url) for url in urls)


def untrusted(endpoint: str, problem: Exception) -> Unavailable:
    """The error for a connection that TLS refuses; nothing was sent."""
    reason = getattr(problem.args[0], "verify_message", "") if problem.args else ""
    return Unavailable(
        f"{endpoint} cannot be trusted, or does not trust this client: {reason or problem}. {CA_VARIABLE} names the "
        f"certificates to trust, {CERTIFICATE_VARIABLE} the one to show.",
        kind="untrusted_certificate",
    )


def _no_answer(endpoint: str) -> Unavailable:
    return Unavailable(f"{endpoint} does not answer: check that it runs, then try again.", kind="no_answer")


OK: Final = "ok"
"""The status of a process that does its work, in its answer to a question for its health."""


def _no_reply(endpoint: str) -> Unavailable:
    return Unavailable(
        f"{endpoint} does not answer in time: its process hangs, or is cut off; look at it, then try again.",
        kind="no_reply",
    )


class _Health(msgspec.Struct):
    status: str


def ask_health(endpoint: str, limit_s: float) -> str | None:
    """The status that a process says it has; None when it does not answer in time. Raises nothing.

    Cost: 1 connection and 1 request, which no process queues behind others.
    """
    with urllib3.PoolManager(num_pools=1, ssl_context=client_context()) as pool:
        try:
            timeout = urllib3.Timeout(connect=limit_s, read=limit_s)
            reply = pool.request("GET", endpoint + HEALTH_PATH, timeout=timeout, retries=False, redirect=False)
            return decode_json(reply.data, _Health).status
        except (HTTPError, msgspec.DecodeError, UnicodeDecodeError):
            return None


class _ErrorBody(msgspec.Struct):
    message: str
    facts: dict[str, Any] = {}
    explanation: str = ""


def quote_segment(segment: str) -> str:
    """One segment of a URL's path."""
    return quote(segment, safe="")


def with_query(path: str, query: Mapping[str, object]) -> str:
    """A path with the parameters that have a value."""
    given = {name: value for name, value in query.items() if value is not None}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return f"{path}?{urlencode(texts)}" if texts else path


def check_endpoint(endpoint: str) -> str:
    """The URL of a server, without a final slash. Raises `InvalidRequest` (``invalid_url``)."""
    try:
        parts = urlsplit(endpoint)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        parts, has_port = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise InvalidRequest(f"{endpoint!r} is not a server's URL: write http://host:port.", kind="invalid_url")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidRequest(
            "A server's URL has no credentials and no query: write http://host:port, and give the access key apart.",
            kind="invalid_url",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def error_of(reply: urllib3.BaseHTTPResponse, *, endpoint: str, again: bool) -> LakebedError:
    """The error that a server answered with.

    Args:
        again: the request changes nothing, or may be repeated; else what a proxy cut off may have happened.
    """
    kind, name = reply.headers.get(KIND_HEADER), reply.headers.get(CLASS_HEADER, "")
    try:
        body = decode_json(reply.data, _ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = _ErrorBody(f"The server at {endpoint} answered with status {reply.status}.")
    if kind is not None or name in errors.__all__:
        return make_error(name, body.explanation or body.message, kind, body.facts)
    if reply.status in _UNCLEAR and not again:
        return OutcomeUnknown(body.explanation or body.message)
    sentence = f"The reply of {endpoint} is not a lakebed server's, but perhaps a proxy's: status {reply.status}."
    return Unavailable(sentence) if reply.status >= 500 else InvalidRequest(sentence)


def make_error(name: str, message: str, kind: str | None, facts: Mapping[str, Any]) -> LakebedError:
    """The error that was raised elsewhere, by the name of its class; that of a server of another version may be new."""
    made = getattr(errors, name) if name in errors.__all__ else InternalError
    error: LakebedError = made(message, kind=kind)
    error.facts.update(facts)
    return error


def read_reply(body: bytes, kind: Any) -> Any:
    """A reply's JSON. Raises `UnsupportedFormat` for anything else."""
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnsupportedFormat(
            f"The reply is unreadable ({error}): it is not a lakebed server's, or it is one of another version."
        ) from error
