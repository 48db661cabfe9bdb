"""`Client`: requests to a lakebed server, and its errors as `LakebedError`.

Owns: the pool of connections, authentication, and when an outcome is unknown. Invariants: a read is retried after a
broken connection. A write is not retried, and raises `OutcomeUnknown`, because it may have taken effect. The secret is
never in an error, a log or a `repr`. Does not know: what the verbs mean (`lakebed.repo.verbs`).
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import msgspec
import urllib3
from typing_extensions import Buffer, override
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError, SSLError
from urllib3.util.wait import wait_for_read

from lakebed.clock import SystemClock
from lakebed.errors import InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.http.asking import HEALTH_PATH, Connections, check_endpoint, error_of, read_reply, untrusted, with_query
from lakebed.log import logger

ACCESS_KEY_VARIABLE: Final = "LAKEBED_ACCESS_KEY_ID"
"""The environment variable with the access key, if none is given."""
SECRET_VARIABLE: Final = "LAKEBED_SECRET_ACCESS_KEY"
"""The environment variable with its secret."""

API: Final = "/api/v1"
_CONNECT_S: Final = 10.0
READ_S: Final = 120.0
"""Default limit for the reply of a server that is alive."""
_NOTE_S: Final = 5.0
"""Silence after which a log line says that the client waits for the server."""
_SILENT_S: Final = 15.0
"""Silence after which the client checks if the server is alive, and the time between two such checks."""
_HEALTH_S: Final = 10.0
"""Time limit for such a check."""
_HEALTH_TRIES: Final = 3
"""Failed checks in a row after which the client stops waiting: the server hangs, or cannot be reached."""
_CONNECTIONS_MAX: Final = 64


class _RetryBroken(urllib3.Retry):
    """Retries after a broken connection, but not after a timeout: the next attempt would take as long."""

    @override
    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """Return the remaining retries; arguments as urllib3's."""
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


_RETRY_READS: Final = _RetryBroken(
    3, backoff_factor=0.1, status=0, redirect=0, allowed_methods=None, raise_on_status=False
)

_CLOCK: Final = SystemClock()
_LOG: Final = logger("repo")

T = TypeVar("T")


class Client:
    """A client of one server. Thread-safe. It can be pickled, with its credentials, for the tasks of a job.

    Args:
        endpoint: the server's URL, such as ``http://127.0.0.1:8000``.
        access_key, secret: credentials; None: from the environment.

    Raises:
        InvalidRequest: kind ``invalid_url``, ``no_credentials``.
    """

    def __init__(self, endpoint: str, *, access_key: str | None = None, secret: str | None = None) -> None:
        self.endpoint = check_endpoint(endpoint)
        access_key = access_key or os.environ.get(ACCESS_KEY_VARIABLE)
        secret = secret or os.environ.get(SECRET_VARIABLE)
        if not access_key or not secret:
            raise InvalidRequest(
                f"The repositories are served at {self.endpoint}, and the server needs an access key: set "
                f"{ACCESS_KEY_VARIABLE} and {SECRET_VARIABLE}.",
                kind="no_credentials",
                endpoint=self.endpoint,
            )
        self.access_key = access_key
        self._headers = urllib3.make_headers(basic_auth=f"{access_key}:{secret}", user_agent="lakebed")
        self._secret = secret
        self._pool = Connections(server_count=1, connection_count_max=_CONNECTIONS_MAX)

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.endpoint, self.access_key, self._secret))

    def close(self) -> None:
        """Close all connections. A second call is a no-op."""
        self._pool.close()

    def send(self, method: str, path: str, kind: type[T], body: Any = None, **query: Any) -> T:
        """Send a JSON request, and return the reply as a struct. `path` is below the interface's root.

        Raises as `request`. Cost: 1 request.
        """
        content = None if body is None else msgspec.json.encode(body)
        reply = self.request(method, path, content, headers=_JSON, again=method == "GET", query=query)
        value: T = read_reply(reply.data, kind)
        return value

    def request(
        self,
        method: str,
        path: str,
        content: bytes | Iterable[Buffer] | None = None,
        *,
        headers: Mapping[str, str] = {},
        query: Mapping[str, Any] | None = None,
        again: bool = False,
        preload: bool = True,
        read_s: float | None = READ_S,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and return the reply. `path` is below the interface's root.

        Args:
            content: the body, or its chunks, which are sent as they come. An error of the iterator is passed on.
            again: retry after a broken connection.
            preload: read the reply's body; else the caller reads and closes it.
            read_s: limit for the reply, and for each further part of its body; None: as long as the server is alive.

        Raises:
            The server's error, as the same `LakebedError`; `Unavailable`, `OutcomeUnknown`.
        """
        target = with_query(f"{API}{path}", query or {})
        body = _Body(content) if content is not None and not isinstance(content, bytes) else None
        try:
            reply = self._pool.request(
                method,
                self.endpoint,
                target,
                body=content if body is None else iter(body),
                headers={**self._headers, **headers},
                retries=_RETRY_READS if again else False,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
                preload_content=preload,
                wait=lambda connection: self._wait(connection, read_s),
            )
        except HTTPError as error:
            if body is not None and body.error is not None:
                raise body.error from None
            self._give_up(error, again=again)
        if reply.status < 300:
            return reply
        if not preload:
            with self.reading(reply):
                reply.read(cache_content=True)
        raise error_of(reply, endpoint=self.endpoint, again=again)

    def _wait(self, connection: socket.socket, reply_s: float | None) -> None:
        """Return when more of a reply arrives. Raises `TimeoutError` after `reply_s`, or if the server hangs."""
        began_s = _CLOCK.monotonic_s()
        ends_s = began_s + (inf if reply_s is None else reply_s)
        if _has_reply(connection, min(_NOTE_S, ends_s - began_s)):
            return
        _LOG.warning("waiting for a reply", server=self.endpoint)
        look_s, silences = began_s + _SILENT_S, 0
        while (now_s := _CLOCK.monotonic_s()) < ends_s and silences < _HEALTH_TRIES:
            if now_s >= look_s:
                silences = 0 if self._is_alive() else silences + 1
                look_s = now_s + (_HEALTH_S if silences else _SILENT_S)
            if _has_reply(connection, max(0.0, min(look_s, ends_s) - _CLOCK.monotonic_s())):
                return
        raise TimeoutError(f"no reply for {_CLOCK.monotonic_s() - began_s:.0f} s")

    def _is_alive(self) -> bool:
        """Whether the server, or a proxy before it, answers at all."""
        try:
            self._pool.request("GET", self.endpoint, HEALTH_PATH, timeout=urllib3.Timeout(_HEALTH_S))
        except HTTPError:
            return False
        return True

    @contextmanager
    def reading(self, reply: urllib3.BaseHTTPResponse) -> Iterator[None]:
        """Read a reply that was not preloaded. Then its connection returns to the pool, or is closed after an error."""
        try:
            yield
        except HTTPError as error:
            reply.close()
            raise Unavailable(
                f"The server at {self.endpoint} interrupted its reply: try again.", kind="unavailable"
            ) from error
        except BaseException:
            reply.close()
            raise
        finally:
            with suppress(HTTPError):
                reply.release_conn()

    def _give_up(self, error: HTTPError, *, again: bool) -> NoReturn:
        cause = error.reason if isinstance(error, MaxRetryError) else error
        if isinstance(cause, SSLError):
            raise untrusted(self.endpoint, cause) from error
        if again or isinstance(cause, NewConnectionError):
            raise Unavailable(
                f"The server at {self.endpoint} does not answer: check that it runs, then try again.",
                kind="unavailable",
            ) from error
        raise OutcomeUnknown(
            f"The server at {self.endpoint} did not answer a request that changes something: it may have happened; "
            "look before you try again.",
            kind="outcome_unknown",
        ) from error


def _has_reply(connection: socket.socket, wait_s: float) -> bool:
    """Whether a connection has bytes to read, or its end, within a time."""
    is_decrypted = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
    return is_decrypted or wait_for_read(connection, wait_s)


_JSON: Final = {"Content-Type": "application/json"}


class _Body:
    """The chunks of a body. Keeps an error of the iterator, to distinguish it from errors of the connection."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Buffer]:
        try:
            yield from self._chunks
        except Exception as error:
            self.error = error
            raise


def _reopen(endpoint: str, access_key: str, secret: str) -> Client:
    return Client(endpoint, access_key=access_key, secret=secret)
