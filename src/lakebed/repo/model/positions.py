"""Positions in the log of commits: where a page ended, so that the next page does not walk from the head again.

Owns: the form of a position, and how many a process keeps. Invariants: a position names all commits that were met and
not yet shown. So the rest of the log depends on the position alone, even if the head has moved meanwhile.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

from lakebed.errors import InvalidRequest

_WAITING_MAX: Final = 64
"""Most waiting commits of a position's text: 43 characters each, in the query of a URL."""
KEPT_MAX: Final = 128
"""Most positions that a process keeps. They serve callers that page by ids of commits: without its position, each page
would walk from the head to that commit."""
KEPT_BYTES_MAX: Final = 1 << 20
WAITING_BYTES: Final = 128
"""Memory of the id of one waiting commit."""
_ID_BYTES: Final = 32
_MARK: Final = "."
"""Separates the last shown commit from the waiting ones. No reference has it behind a commit's id."""


def format_position(id: str, waiting: Sequence[str]) -> str:
    """A position as text: the last shown commit, then the waiting ones, unless there are more than `_WAITING_MAX`."""
    if not waiting or len(waiting) > _WAITING_MAX:
        return id
    raw = b"".join(bytes.fromhex(commit_id) for commit_id in sorted(waiting))
    return f"{id}{_MARK}{urlsafe_b64encode(raw).decode().rstrip('=')}"


def parse_position(text: str) -> tuple[str, Sequence[str] | None]:
    """Parse a position: the last shown commit and the waiting ones; None: the text is a commit's id alone.

    Raises:
        InvalidRequest: kind ``invalid_position``.
    """
    id, mark, coded = text.partition(_MARK)
    if not mark:
        return text, None
    try:
        raw = urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    except ValueError as error:
        raise _invalid(text) from error
    if not raw or len(raw) % _ID_BYTES or len(raw) > _WAITING_MAX * _ID_BYTES:
        raise _invalid(text)
    return id, [raw[start : start + _ID_BYTES].hex() for start in range(0, len(raw), _ID_BYTES)]


def _invalid(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text[:80]!r} is not a position in a log: give the id of a commit, or what the page before answered.",
        kind="invalid_position",
    )
