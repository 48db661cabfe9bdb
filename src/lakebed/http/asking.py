"""What clients of our services share: addresses, replies, and errors that come back as they were raised.

Owns: `Connections`, the pool of connections of a client; the two headers that name an error's kind and class, and how
a reply without them is taken. Does not know: any service, or how often something is asked.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import urllib3

from lakebed import errors
from lakebed.errors import InternalError, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable, UnsupportedFormat

KIND_HEADER: Final = "x-lakebed-error"
"""The kind of an error, for programs."""
CLASS_HEADER: Final = "x-lakebed-error-class"
"""Its class in `lakebed.errors`, so that lakebed's client raises the same."""
_UNCLEAR: Final = {502, 504}
"""What a proxy answers when the server behind it did not: a change may have happened."""


class Connections:
    """Connections to some servers, kept for further requests. Thread-safe.

    A forked process has connections of its own: on those of its parent, each would read replies to the other.

    Args:
        server_count: whose connections are kept.
        connection_count_max: kept to one server.
    """

    def __init__(self, *, server_count: int, connection_count_max: int) -> None:
        self._counts = server_count, connection_count_max
        self._process = os.getpid()
        self._pool = self._made()

    def _made(self) -> urllib3.PoolManager:
        server_count, connection_count_max = self._counts
        return urllib3.PoolManager(num_pools=server_count, maxsize=connection_count_max)

    def request(self, method: str, url: str, **options: Any) -> urllib3.BaseHTTPResponse:
        """One request, as `urllib3.PoolManager.request`: not repeated, and no redirect is followed."""
        if self._process != os.getpid():
            self._process, self._pool = os.getpid(), self._made()
        return self._pool.request(method, url, retries=False, redirect=False, **options)

    def close(self) -> None:
        """Close all connections; again is a no-op."""
        self._pool.clear()


class _ErrorBody(msgspec.Struct):
    message: str
    facts: dict[str, Any] = {}


def encoded(segment: str) -> str:
    """One segment of a URL's path."""
    return quote(segment, safe="")


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
        found = msgspec.json.decode(reply.data, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _ErrorBody(f"The server at {endpoint} answered with status {reply.status}.")
    made = getattr(errors, name) if name in errors.__all__ else None
    if made is None and kind is not None:
        made = InternalError  # a server of another version
    if made is None and reply.status in _UNCLEAR and not again:
        made = OutcomeUnknown
    if made is None:
        found = _ErrorBody(
            f"The reply of {endpoint} is not a lakebed server's, but perhaps a proxy's: status {reply.status}."
        )
        made = Unavailable if reply.status >= 500 else InvalidRequest
    error: LakebedError = made(found.message, kind=kind)
    error.facts.update(found.facts)
    return error


def read_reply(body: bytes, kind: Any) -> Any:
    """A reply's JSON. Raises `UnsupportedFormat` for anything else."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnsupportedFormat(
            f"The reply is unreadable ({error}): it is not a lakebed server's, or it is one of another version."
        ) from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
