"""An object as the body of a reply: its headers, and which part of it a request asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.http.ranges import content_range, parse_range
from lakebed.http.replies import format_date, printable
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import CONTENT_TYPE
from lakebed.server.site import RepositoryCall
from lakebed.texts import clamp_to_calendar

_INLINE_TYPES: Final = frozenset(
    [
        *(f"image/{kind}" for kind in ("jpeg", "jpg", "png", "gif", "webp", "svg+xml")),
        *(f"text/{kind}" for kind in ("plain", "markdown", "x-markdown", "html", "css", "javascript", "xml")),
        *(f"application/{kind}" for kind in ("pdf", "javascript", "json", "xml")),
        *("video/mp4", "video/webm", "audio/mpeg", "audio/wav", "audio/webm"),
    ]
)
"""Content types that a browser may show; objects of other types are saved. Scripts never run: see `_headers_of`."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is sent of an object.

    Attributes:
        status: 200; 206 for a range; 304 when the client has it already.
        span: the half-open range; None: the whole object.
    """

    status: int
    headers: dict[str, str]
    span: tuple[int, int] | None = None
    size_bytes: int = 0


def part_of(call: RepositoryCall, entry: Entry) -> Part:
    """The part of an object that a request asks for. Raises `InvalidRequest` (``range_not_satisfiable``)."""
    headers = _headers_of(entry)
    if _is_unchanged(call, entry):
        return Part(304, printable(headers))
    span = _span(call, entry)
    size_bytes = entry.size_bytes if span is None else span[1] - span[0]
    headers["content-length"] = str(size_bytes)
    if span is None:
        return Part(200, printable(headers), None, size_bytes)
    headers["content-range"] = content_range(span, size_bytes=entry.size_bytes)
    return Part(206, printable(headers), span, size_bytes)


def _headers_of(entry: Entry) -> dict[str, str]:
    return {
        "content-type": entry.content_type or CONTENT_TYPE,
        "etag": f'"{entry.checksum}"',
        "last-modified": format_date(clamp_to_calendar(entry.modified_ms) // 1000),
        "accept-ranges": "bytes",
        "content-disposition": "inline" if entry.content_type in _INLINE_TYPES else "attachment",
        # The next user of the same browser or proxy may have another key.
        "cache-control": "no-store, must-revalidate",
        "expires": "0",
        # Stored bytes are data, not pages of this server: no browser may guess their type or run them.
        "x-content-type-options": "nosniff",
        "x-frame-options": "SAMEORIGIN",
        "content-security-policy": "default-src 'none'; sandbox",
    }


def _is_unchanged(call: RepositoryCall, entry: Entry) -> bool:
    known = call.header(b"if-none-match")
    if known is None:
        return False
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in known.split(",")}
    return "*" in tags or entry.checksum in tags


def _span(call: RepositoryCall, entry: Entry) -> tuple[int, int] | None:
    header = call.header(b"range")
    if header is None:
        return None
    condition = call.header(b"if-range")
    if condition is not None and condition.strip().strip('"') != entry.checksum:
        return None
    return parse_range(header, size_bytes=entry.size_bytes)
