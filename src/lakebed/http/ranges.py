"""Byte ranges of HTTP: which part of an object of known size a ``Range`` header asks for. Pure.

One range is served. A header with several ranges or another unit, or a malformed one, is ignored, as the standard
allows: the reply is the whole object. Source: RFC 9110, section 14.
"""

from __future__ import annotations

import re
from typing import Final

from lakebed.errors import InvalidRequest

_RANGE: Final = re.compile(r"\s*bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.ASCII)
_SHOWN_CHARACTERS: Final = 60
_DIGITS_MAX: Final = 18
"""A number with more digits lies past the end of every object."""


def parse_range(
    header: str | None, *, size_bytes: int, if_range: str | None = None, etag: str = ""
) -> tuple[int, int] | None:
    """The half-open range that a header asks for.

    Args:
        header: ``bytes=a-b``, ``bytes=a-`` or ``bytes=-n`` (the last n bytes); None: no header.
        if_range: the header ``If-Range``: the range applies only if it equals `etag`; None: it always applies.

    Returns:
        ``(start, end)`` with ``0 <= start < end <= size_bytes``, or None: send everything.

    Raises:
        InvalidRequest: no byte of the range is inside the object (kind ``range_not_satisfiable``, ``size_bytes=``).
    """
    match = _RANGE.fullmatch(header) if header else None
    if match is None or (if_range is not None and if_range.strip().strip('"') != etag):
        return None
    first, last = (None if not digits else _number(digits) for digits in match.groups())
    if first is not None:
        start, end = first, size_bytes if last is None else min(last + 1, size_bytes)
        if last is not None and last < first:
            return None
    elif last is not None:
        start, end = max(0, size_bytes - last), size_bytes
    else:
        return None
    if start >= end:
        raise InvalidRequest(
            f"The range {(header or '')[:_SHOWN_CHARACTERS]!r} is outside the object of {size_bytes} bytes.",
            kind="range_not_satisfiable",
            size_bytes=size_bytes,
        )
    return start, end


def _number(digits: str) -> int:
    """The number of some digits, capped: parsing thousands of digits takes long."""
    short = digits.lstrip("0") or "0"
    return int(short) if len(short) <= _DIGITS_MAX else 10**_DIGITS_MAX


def content_range(span: tuple[int, int] | None, *, size_bytes: int) -> str:
    """The header ``Content-Range`` of a reply.

    Args:
        span: half-open range of the object; None: the range that was asked for cannot be served.
    """
    return f"bytes */{size_bytes}" if span is None else f"bytes {span[0]}-{span[1] - 1}/{size_bytes}"
