"""What clients of our services share: addresses, replies, and errors that come back as they were raised.

Owns: `Connections`, the pool of connections of a client; `Servers`, which decides which of several processes a client
asks, and for how long; the two headers that name an error's kind and class, and the error for a reply without them.
Does not know: any service, or which requests may be repeated.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import urllib3
from typing_extensions import Buffer, override
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)
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
"""The error's class in `lakebed.errors`, so that lakebed's client raises the same class."""
_UNCLEAR: Final = {502, 504}
"""What a proxy answers when the server behind it did not: a change may have happened."""


_FILES_S: Final = 5.0
"""Time between two checks of the files of certificates."""


_SENT_TOGETHER_MAX: Final = 64 << 10
"""Largest body that is copied behind its head. A larger one costs more to copy than to send separately."""


_wait_for_reply: Final[ContextVar[Callable[[socket.socket], None] | None]] = ContextVar("_wait_for_reply", default=None)
"""Waits for the next bytes of the reply to this thread's request; None: only the time limit applies."""


class _WaitedReads(io.RawIOBase):
    """The bytes that a connection receives. Before each read, `wait` returns when there are some."""

    def __init__(self, received: io.RawIOBase, wait: Callable[[], None]) -> None:
        self._received = received
        self._wait = wait

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer) -> int | None:
        self._wait()
        return self._received.readinto(buffer)

    @override
    def fileno(self) -> int:
        return self._received.fileno()

    @override
    def close(self) -> None:
        self._received.close()
        super().close()


class _WaitedReply(http.client.HTTPResponse):
    """A reply whose head and body are waited for, also after the request's thread has left `Connections.request`."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        wait = _wait_for_reply.get()
        if wait is not None:
            received = self.fp.detach()  # a BufferedReader, which has read nothing yet
            self.fp = io.BufferedReader(_WaitedReads(received, partial(wait, sock)))


class SendingOnce(HTTPConnection):
    """A connection that sends the head of a request and a short body at once: sender and receiver wake up once.

    A body that is read while it is sent, such as a file, is sent as `HTTPConnection` does.
    """

    response_class: type[http.client.HTTPResponse] = _WaitedReply
    _parts: list[bytes] | None = None
    """The parts of a request with a short body, collected until the request is complete."""

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
    """`SendingOnce` over TLS."""


class _ClearPool(urllib3.HTTPConnectionPool):
    ConnectionCls = SendingOnce


class _EncryptedPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = SendingOnceEncrypted


class _Pool(NamedTuple):
    """Connections of one process.

    Attributes:
        files: the signature of the files of certificates when the pool was made.
        look_s: when to check the files again, by the monotonic clock.
    """

    pool: urllib3.PoolManager
    process: int
    files: Signature
    look_s: float


_parse_endpoint: Final = lru_cache(maxsize=256)(parse_url)


class Connections:
    """Connections to some servers, kept for further requests. Thread-safe.

    A forked process makes new connections: on those of its parent, each would read replies to the other's requests.

    Args:
        server_count: number of servers whose connections are kept.
        connection_count_max: most connections that are kept to one server.
    """

    def __init__(self, *, server_count: int, connection_count_max: int) -> None:
        self._counts = server_count, connection_count_max
        self._pool = self._make()

    def _make(self) -> _Pool:
        """Make a pool for this process, with the current certificates. Raises as `client_context`."""
        server_count, connection_count_max = self._counts
        files = client_signature()
        pool = urllib3.PoolManager(num_pools=server_count, maxsize=connection_count_max, ssl_context=client_context())
        pool.pool_classes_by_scheme = {"http": _ClearPool, "https": _EncryptedPool}
        return _Pool(pool, os.getpid(), files, time.monotonic() + _FILES_S)

    def _current_pool(self) -> urllib3.PoolManager:
        """The pool; a new one in a forked process, and after the files of certificates have changed.

        While the files do not fit each other, as in the middle of their replacement, the old pool stays in use.
        """
        current = self._pool  # read once: it is replaced as a whole
        if current.process == os.getpid():
            if not current.files or time.monotonic() < current.look_s:
                return current.pool
            if client_signature() == current.files:
                self._pool = current._replace(look_s=time.monotonic() + _FILES_S)
                return current.pool
        try:
            self._pool = new_pool = self._make()
        except InvalidRequest:
            if current.process != os.getpid():
                raise
            self._pool = current._replace(look_s=time.monotonic() + _FILES_S)
            return current.pool
        return new_pool.pool

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
        """Send one request, as `urllib3.HTTPConnectionPool.urlopen`, and follow no redirect.

        Args:
            endpoint: URL of the server. It is parsed once: for each request, that would take a quarter of its time.
            path: path below the endpoint, with the query.
            retries: whether, and how, the request is repeated when its connection breaks.
            wait: called with the connection before each read of the reply; it returns when there is something to read,
                or raises `TimeoutError`.
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
"""Longest time that a process gets for the first byte, for a request that took too long before."""
_CONNECT_S: Final = 1.0
HEALTH_PATH: Final = "/healthcheck"
_HEALTH_S: Final = 0.25
_HEALTH_S_MAX: Final = 2.0
_HEALTH_TRIES: Final = 3
"""After this many health checks without an answer their time limit doubles, so that a busy process can answer."""
_LOOK_S: Final = 1.0
"""Time between two health checks of a silent process, and between two searches for other URLs, while others answer."""
_PAUSES: Final = Pauses(0.05, 0.25, jitter=0.5)
_TIMES_MAX: Final = 256


class _Server:
    """One process, and how it answered last."""

    __slots__ = ("due_s", "silences", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.silences = 0
        """Number of successive requests that it did not answer."""
        self.due_s = 0.0
        """When its health is checked again."""


class Servers:
    """The processes of one service. Decides which one is asked, and how long it may take. Thread-safe.

    The process that answered last is asked first. A process that does not answer in time, because it hangs or is cut
    off, is asked last from then on, and gets no request before it answers a health check. So a process that hangs
    delays each client once, by `REPLY_S`. A healthy process that took too long gets twice the time for the same
    request.

    Args:
        endpoints: URLs of the processes.
        headers: sent with every request.
        connection_count_max: most connections that are kept to one process.
        find: finds other URLs, when no process answers. Without others, it raises or returns the same URLs.
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
        """Time limit of each request that took too long before, by a hash of all that it asks."""

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
            The last error; `OutcomeUnknown` if any process may have carried out the request, and no later answer told
            whether it did.
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
        """Send one request to one process, and return its reply, whatever its status.

        Args:
            reply_s: how long the first byte may take the first time ...
            reply_s_max: ... and after the same request took too long.
            changes: whether the request may have an effect, so that a lost reply is `OutcomeUnknown`.
            preload: read the reply's body; else the caller reads and closes it.

        Raises:
            Unavailable: nothing was sent, or the request changes nothing. Kind ``no_answer``: no process listens
                there, or it ended the connection; ``no_reply``: it did not answer in time.
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
        """The processes in the order in which they are asked: the one that answered last first, silent ones last."""
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
        """Whether a process can be asked: it left no request unanswered since it answered, or answers a check now."""
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
        """Whether a process answers a health check, with any status. Raises nothing."""
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
        servers_by_url = {server.url: server for server in self._servers}
        if set(urls) != set(servers_by_url):
            self._servers = tuple(servers_by_url.get(url) or _Server(url) for url in urls)


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
"""The status in the answer to a health check of a process that works normally."""


def _no_reply(endpoint: str) -> Unavailable:
    return Unavailable(
        f"{endpoint} does not answer in time: its process hangs, or is cut off; look at it, then try again.",
        kind="no_reply",
    )


class _Health(msgspec.Struct):
    status: str


def ask_health(endpoint: str, limit_s: float) -> str | None:
    """The status that a process reports; None: it does not answer in time. Raises nothing.

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
    present = {name: value for name, value in query.items() if value is not None}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in present.items()}
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
        again: the request changes nothing, or may be repeated. Otherwise it may have taken effect although a proxy cut
            it off.
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
    """The error that a server raised, by its class's name, which may be unknown if the server has another version."""
    error_class = getattr(errors, name) if name in errors.__all__ else InternalError
    error: LakebedError = error_class(message, kind=kind)
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
