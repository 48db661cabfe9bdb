"""Errors as clients of a repository server see them, and the statuses that lakeFS clients expect.

Invariants: no reply reveals where on the server's disk the storage is, and no error reveals the name of a repository
that the request did not name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from lakebed.errors import LakebedError
from lakebed.http import errors as generic
from lakebed.http.errors import ErrorBody, public_body

LOCAL_SCHEME: Final = "local://"
"""Scheme of a folder of the server's own storage: clients accept only a few schemes."""

_STATUSES: Final[dict[str, int]] = {
    "namespace_in_use": 400,  # not 409: clients take that as "the repository exists already"
    "insufficient_permissions": 401,  # of a user, as lakeFS answers; catalogs and S3 have 403
    "default_branch": 403,
    "protected_branch": 403,
    "read_only_repository": 403,
    "import_changed": 410,  # not 500: clients would ask again
    "hook_rejected": 412,
    "oversized_message": 413,
    "oversized_metadata": 413,
    "shallow_copy": 501,
    "unsafe_collection": 501,
}

_PLAIN: Final = {
    "repository_not_found": ("repository", "There is no repository {!r}: list the repositories that your key may use."),
    "namespace_in_use": (
        "namespace",
        "The namespace {} is in use, or overlaps with one that is; one of a deleted repository is until it is cleaned "
        "up. Choose another folder.",
    ),
}
"""Errors whose original sentence names other repositories: the fact that stays, and the sentence that clients see."""

_LAKEFS: Final = {
    "protected_branch": "cannot {} protected branch",
    "reference_not_found": "commit not found",
    "repository_exists": "error creating repository: not unique",
    "repository_not_found": "repository not found",
    "user_not_found": "user not found",
    "user_exists": "Already exists",
}
"""Messages of lakeFS, which its command-line client prints and scripts compare. Our sentence is sent in addition."""

_END: Final = r"""(?:/|(?=[\s'",:;)]|\.?\Z|\.\s))"""
"""Pattern of what may follow a path in a sentence: more of the path, or its end."""


def status_of(error: LakebedError) -> int:
    """Return the status of an error."""
    return generic.status_of(error, statuses=_STATUSES)


def shown_error(error: LakebedError, *, root_url: str) -> ErrorBody:
    """Message and facts of an error as a client may see them; `root_url` as in `error_reply`."""
    body = public_body(error)
    message, facts = body.message, body.facts
    if error.kind in _PLAIN and facts.keys() != {"repository"}:  # the sentence of a deleted repository names no other
        kind_name, sentence = _PLAIN[error.kind]
        facts = {kind_name: facts.get(kind_name, "")}
        message = sentence.format(facts[kind_name])
    return ErrorBody(
        conceal(message, root_url=root_url), {name: _conceal(fact, root_url) for name, fact in facts.items()}
    )


def error_reply(
    error: BaseException, *, request_id: str, statuses: Mapping[str, int] = {}, root_url: str = ""
) -> Response:
    """Return the reply to a request that failed.

    Args:
        statuses: statuses by kind, which take precedence over the table.
        root_url: URL of the storage. If it is a folder, replies show neither it nor its path, but `LOCAL_SCHEME`.
    """

    def body_of(error: LakebedError) -> ErrorBody:
        body = shown_error(error, root_url=root_url)
        words = _LAKEFS.get(error.kind)
        if words is None:
            return body
        return ErrorBody(words.format(error.facts.get("action", "write to")), body.facts, body.message)

    return generic.error_reply(error, request_id=request_id, statuses={**_STATUSES, **statuses}, body_of=body_of)


def _conceal(fact: Any, root_url: str) -> Any:
    """Return a text, or a value that contains texts, without the path of a storage on this machine."""
    if not root_url.startswith("file://"):
        return fact
    if isinstance(fact, str):
        path = root_url.removeprefix("file://")
        for place in dict.fromkeys((root_url, path, f"file://{os.path.realpath(path)}", os.path.realpath(path))):
            if place.strip("/") not in ("", "file:"):
                fact = re.sub(re.escape(place) + _END, LOCAL_SCHEME, fact)
        return fact
    if isinstance(fact, dict):
        return {name: _conceal(value, root_url) for name, value in fact.items()}
    return [_conceal(value, root_url) for value in fact] if isinstance(fact, list | tuple) else fact


def conceal(message: str, *, root_url: str) -> str:
    """Return a sentence without the path of a storage on this machine."""
    return str(_conceal(message, root_url))
