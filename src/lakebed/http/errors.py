"""How errors become statuses: one table by kind, one by class, and the shape of every error's body.

Owns: the tables, the shape ``{"message"}``, and the headers that tell lakebed's own client the error's kind and class.
An error that is not lakebed's is a bug: the reply is 500 with the request's id, and only the server's log has details.
A service adds statuses of its own kinds, and may rewrite what clients see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from lakebed import errors
from lakebed.errors import Corruption, InternalError, InvalidRequest, LakebedError, UnsupportedFormat
from lakebed.http.asking import CLASS_HEADER, KIND_HEADER
from lakebed.http.ranges import content_range
from lakebed.http.replies import json

_BY_KIND: Final[dict[str, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "insufficient_permissions": 403,
    "no_route": 404,
    "method_not_allowed": 405,
    "stalled": 408,
    "precondition_failed": 412,
    "too_large": 413,
    "encoded_body": 415,
    "range_not_satisfiable": 416,
}

_BY_CLASS: Final[tuple[tuple[type[LakebedError], int], ...]] = (
    (InvalidRequest, 400),
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.Conflict, 409),
    (errors.Rejected, 409),
    (errors.Fenced, 503),
    (errors.Closed, 503),
    (errors.Unavailable, 503),
    (errors.OutcomeUnknown, 503),
    (Corruption, 500),
    (UnsupportedFormat, 500),
    (InternalError, 500),
)

_DAMAGED: Final = "Stored data cannot be read; the server's log says where, under request {id}."
_UNSUPPORTED: Final = (
    "Stored data is of a newer lakebed, or has what this version of the server does not support: its log says what, "
    "under request {id}. If another process has a newer version, upgrade the server."
)
_BUG: Final = "The server failed; its log says why, under request {id}."


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong, in one sentence."""

    message: str
    facts: dict[str, Any] = {}
    """Details for programs, such as the paths of a conflict."""
    explanation: str = ""
    """The sentence, where `message` has the words that the clients of a protocol look for."""


def status_of(error: LakebedError, *, statuses: Mapping[str, int] = {}) -> int:
    """The status of an error. `statuses`, by kind, take precedence over the tables."""
    status = statuses.get(error.kind) or _BY_KIND.get(error.kind)
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), 500) if status is None else status


def reshape_reply(body: Any, plain: Response) -> Response:
    """The reply of an error with another body, and the headers that tell a client what to do next."""
    reply = json(body, plain.status_code)
    for header, value in plain.headers.items():
        if header in ("www-authenticate", "retry-after", "allow", KIND_HEADER.lower()):
            reply.headers[header] = value
    return reply


def public_body(error: LakebedError) -> ErrorBody:
    """The message of an error, with those facts that are JSON values already."""
    return ErrorBody(error.message, {name: fact for name, fact in error.facts.items() if _is_plain(fact)})


def error_reply(
    error: BaseException,
    *,
    request_id: str,
    statuses: Mapping[str, int] = {},
    body_of: Callable[[LakebedError], ErrorBody] = public_body,
) -> Response:
    """The reply to a request that failed. A reply with status 500 reveals no internals of the server.

    Args:
        statuses: statuses by kind, which take precedence over the tables.
        body_of: makes the body that clients see, of an error whose status is not 500.
    """
    if not isinstance(error, LakebedError):
        return message_reply(500, ErrorBody(_BUG.format(id=request_id)), kind="internal_error", cause=InternalError)
    status = status_of(error, statuses=statuses)
    if status == 500:
        sentence = {Corruption: _DAMAGED, UnsupportedFormat: _UNSUPPORTED}.get(type(error), _BUG)
        return message_reply(500, ErrorBody(sentence.format(id=request_id)), kind=error.kind, cause=type(error))
    reply = message_reply(status, body_of(error), kind=error.kind, cause=type(error))
    if status == 401:
        reply.headers["www-authenticate"] = 'Basic realm="lakebed"'
    elif status == 416:
        reply.headers["content-range"] = content_range(None, size_bytes=int(error.facts.get("size_bytes", 0)))
    elif status == 503:
        reply.headers["retry-after"] = "1"
    elif status == 405:
        reply.headers["allow"] = str(error.facts.get("allow", ""))
    return reply


def message_reply(status: int, body: ErrorBody, *, kind: str, cause: type[LakebedError]) -> Response:
    """A reply in the shape of every error."""
    reply = json(body, status)
    reply.headers[KIND_HEADER] = kind
    reply.headers[CLASS_HEADER] = cause.__name__
    return reply


def _is_plain(fact: Any) -> bool:
    """Whether a fact is a JSON value already."""
    if isinstance(fact, dict):
        return all(isinstance(name, str) and _is_plain(value) for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return all(map(_is_plain, fact))
    return fact is None or type(fact) in (str, int, float, bool)


def authentication_error(message: str) -> LakebedError:
    """The error for missing or invalid credentials."""
    return InvalidRequest(message, kind="unauthorized")


def forbidden(message: str) -> LakebedError:
    """The error for a caller who is known and may not do this."""
    return InvalidRequest(message, kind="forbidden")
