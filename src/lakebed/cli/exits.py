"""Exit codes, by what the caller should do. DO NOT CHANGE: scripts depend on them (docs/guide/cli.md lists them)."""

from __future__ import annotations

from typing import Final

from lakebed import errors
from lakebed.errors import LakebedError


class Exit(Exception):
    """End the command with an exit code. Everything is already printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


OK: Final = 0
BUG: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
FAULTY: Final = 5
UNAVAILABLE: Final = 6
REJECTED: Final = 7
DECLINED: Final = 8
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "done",
    BUG: "a bug in lakebed",
    USAGE: "the command is wrong: fix it",
    NOT_FOUND: "what was named is not there",
    CONFLICT: "it exists already, another process owns it, or another writer was faster: look again",
    FAULTY: "stored data is damaged or of an unknown format, or fsck found a fault",
    UNAVAILABLE: "the store does not answer, or the outcome is unknown: look, then retry",
    REJECTED: "an audit stopped the pipeline",
    DECLINED: "you said no",
    INTERRUPTED: "interrupted",
}

_BY_ERROR: Final[tuple[tuple[type[LakebedError], int], ...]] = (
    (errors.InvalidRequest, USAGE),
    (errors.NotFound, NOT_FOUND),
    (errors.AlreadyExists, CONFLICT),
    (errors.Conflict, CONFLICT),
    (errors.Fenced, CONFLICT),
    (errors.Closed, CONFLICT),
    (errors.Corruption, FAULTY),
    (errors.UnsupportedFormat, FAULTY),
    (errors.Unavailable, UNAVAILABLE),
    (errors.OutcomeUnknown, UNAVAILABLE),
    (errors.Rejected, REJECTED),
    (errors.InternalError, BUG),
)


def exit_code(error: LakebedError) -> int:
    """Return the exit code for an error."""
    if error.kind == "invalid_db_state" and "checkpoint" in error.facts:
        return NOT_FOUND  # the library reports an unknown or expired checkpoint as an invalid request
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), BUG)
