"""How errors become statuses: one table.

Owns: the table, the shape ``{"message"}``, and the header that tells lakebed's own client the error's kind. What is not
in the table by kind goes by the error's class; what is no error of lakebed's is a bug: 500, with the request's id, and
the rest only in the server's own log. Invariants: no reply tells where on the server's disk the storage is, and no
error tells the name of a repository that the request did not name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corruption,
    Fenced,
    InternalError,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.server.ranges import content_range
from lakebed.server.replies import Headers, Reply, encode

__all__ = [
    "KIND_HEADER",
    "LOCAL_SCHEME",
    "ErrorBody",
    "concealed",
    "error_reply",
    "forbidden",
    "message_reply",
    "status_of",
    "unauthorized",
]

LOCAL_SCHEME: Final = "local://"
"""In front of a folder of the server's own storage: clients insist on one of a few schemes."""

KIND_HEADER: Final = b"x-lakebed-error"
"""The kind of an error, beside its message, for programs."""
CLASS_HEADER: Final = b"x-lakebed-error-class"
"""Its class in `lakebed.errors`, so that our own client raises the same."""

_BY_KIND: Final[dict[str, int]] = {
    "namespace_in_use": 400,  # not 409: clients take that as "the repository is there already"
    "unauthorized": 401,
    "forbidden": 403,
    "default_branch": 403,
    "protected_branch": 403,
    "read_only_repository": 403,
    "method_not_allowed": 405,
    "stalled": 408,
    "import_changed": 410,  # not 500: clients would ask again
    "precondition_failed": 412,
    "hook_rejected": 412,
    "too_large": 413,
    "oversized_message": 413,
    "oversized_metadata": 413,
    "range_not_satisfiable": 416,
    "no_route": 404,
}

_BY_CLASS: Final[tuple[tuple[type[LakebedError], int], ...]] = (
    (InvalidRequest, 400),
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (Rejected, 409),
    (Fenced, 503),
    (Closed, 503),
    (Unavailable, 503),
    (OutcomeUnknown, 503),
    (Corruption, 500),
    (UnsupportedFormat, 500),
    (InternalError, 500),
)

_DAMAGED: Final = "What is stored cannot be read; the server's log says where, under request {id}."
_BUG: Final = "The server failed; its log says why, under request {id}."


_PLAIN: Final = {
    "repository_not_found": ("repository", "There is no repository {!r}: list those that you may see."),
    "namespace_in_use": (
        "namespace",
        "The namespace {} is in use, or overlaps with one that is; one of a deleted repository is until it is cleaned "
        "up. Choose another folder.",
    ),
}
"""Errors whose sentence elsewhere names other repositories: the fact that stays, and the sentence here."""


_END: Final = r"""(?:/|(?=[\s'",:;)]|\.?\Z|\.\s))"""
"""What follows a path in a sentence: more of the path, or no more of it."""


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong, in one sentence."""

    message: str
    facts: dict[str, Any] = {}
    """What else programs may want, such as the paths of a conflict."""


def status_of(error: LakebedError) -> int:
    """The status that an error is answered with."""
    status = _BY_KIND.get(error.kind)
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), 500) if status is None else status


def error_reply(
    error: BaseException, *, request_id: str, statuses: Mapping[str, int] = {}, root_url: str = ""
) -> Reply:
    """The reply to a request that failed. Nothing of the server's inside is told with a status of 500.

    Args:
        statuses: of kinds that the endpoint answers with a status of its own.
        root_url: of the storage; of a folder neither it nor the path is told, `LOCAL_SCHEME` stands for it.
    """
    if not isinstance(error, LakebedError):
        return message_reply(500, _BUG.format(id=request_id), kind="internal_error", error_class=InternalError)
    status = statuses.get(error.kind) or status_of(error)
    if status == 500:
        damaged = isinstance(error, Corruption | UnsupportedFormat)
        sentence = (_DAMAGED if damaged else _BUG).format(id=request_id)
        return message_reply(500, sentence, kind=error.kind, error_class=type(error))
    message, facts = error.message, {name: fact for name, fact in error.facts.items() if _is_plain(fact)}
    if error.kind in _PLAIN:
        named, sentence = _PLAIN[error.kind]
        facts = {named: facts.get(named, "")}
        message = sentence.format(facts[named])
    facts = {name: _concealed(fact, root_url) for name, fact in facts.items()}
    message = _concealed(message, root_url)
    reply = message_reply(status, message, kind=error.kind, error_class=type(error), facts=facts)
    if status == 401:
        reply.headers.append((b"www-authenticate", b'Basic realm="lakebed"'))
    elif status == 416:
        size_bytes = int(error.facts.get("size_bytes", 0))
        reply.headers.append((b"content-range", content_range(None, size_bytes=size_bytes).encode()))
    elif status == 503:
        reply.headers.append((b"retry-after", b"1"))
    elif status == 405:
        reply.headers.append((b"allow", str(error.facts.get("allow", "")).encode()))
    return reply


def message_reply(
    status: int, message: str, *, kind: str, error_class: type[LakebedError], facts: Mapping[str, Any] = {}
) -> Reply:
    """A reply of the shape that every error has."""
    headers: Headers = [
        (b"content-type", b"application/json"),
        (KIND_HEADER, kind.encode()),
        (CLASS_HEADER, error_class.__name__.encode()),
    ]
    return Reply(status, encode(ErrorBody(message, dict(facts))), headers)


def _concealed(fact: Any, root_url: str) -> Any:
    """Text, or what has texts in it, without the path of a storage on this machine."""
    if not root_url.startswith("file://"):
        return fact
    if isinstance(fact, str):
        path = root_url.removeprefix("file://")
        for place in dict.fromkeys((root_url, path, f"file://{os.path.realpath(path)}", os.path.realpath(path))):
            if place.strip("/") not in ("", "file:"):
                fact = re.sub(re.escape(place) + _END, LOCAL_SCHEME, fact)
        return fact
    if isinstance(fact, dict):
        return {name: _concealed(one, root_url) for name, one in fact.items()}
    return [_concealed(one, root_url) for one in fact] if isinstance(fact, list | tuple) else fact


def concealed(message: str, *, root_url: str) -> str:
    """A sentence without the path of a storage on this machine."""
    return str(_concealed(message, root_url))


def _is_plain(fact: Any) -> bool:
    """Whether a fact is JSON as it is."""
    if isinstance(fact, dict):
        return all(isinstance(name, str) and _is_plain(value) for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return all(map(_is_plain, fact))
    return fact is None or type(fact) in (str, int, float, bool)


def unauthorized(message: str) -> LakebedError:
    """Nobody whom the server knows asks."""
    return InvalidRequest(message, kind="unauthorized")


def forbidden(message: str) -> LakebedError:
    """Who asks may not do this."""
    return InvalidRequest(message, kind="forbidden")
