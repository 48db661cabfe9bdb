"""Conditions of a read: whether a client wants an object of known ETag and time, or has it already. Pure.

Dates have a precision of seconds. A date that cannot be parsed is ignored. Source: RFC 9110, section 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from lakebed.errors import InvalidRequest


def is_wanted(headers: Mapping[str, str], *, etag: str, modified_ms: int, begin: str = "") -> bool:
    """Whether the client does not have the object yet, by the conditions of its read.

    Args:
        headers: headers of the request, by lower-case names.
        etag: the object's ETag, without quotes.
        modified_ms: when the object was changed, Unix time in milliseconds.
        begin: prefix of the headers' names, such as ``x-amz-copy-source-``.

    Raises:
        InvalidRequest: kind ``precondition_failed``: ``If-Match`` or ``If-Unmodified-Since`` does not hold.
    """
    match, none_match = headers.get(begin + "if-match"), headers.get(begin + "if-none-match")
    since, until = (_date_ms(headers.get(begin + name)) for name in ("if-modified-since", "if-unmodified-since"))
    modified_ms = modified_ms // 1000 * 1000
    is_changed = until is not None and modified_ms > until
    if (not _holds(match, etag)) if match is not None else is_changed:
        raise InvalidRequest(
            "At least one of the pre-conditions you specified did not hold.", kind="precondition_failed"
        )
    if none_match is not None:
        return not _holds(none_match, etag)
    return since is None or modified_ms > since


def _holds(header: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}
    return "*" in tags or etag in tags


def _date_ms(text: str | None) -> int | None:
    """A condition's date in Unix milliseconds; None: there is none, or it cannot be parsed and is ignored."""
    if text is None:
        return None
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
