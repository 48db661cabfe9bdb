"""Every error lakebed raises, grouped by what the caller should do about it.

Owns: the tree below and the rule that each error carries a stable `kind`, one clear sentence and its facts as
attributes. Invariants: every error pickles (Spark ships them between processes); no error holds a secret.
Vendor errors are translated once, in the object port, with ``raise ... from``.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corruption",
    "Fenced",
    "InternalError",
    "InvalidRequest",
    "LakebedError",
    "NotFound",
    "OutcomeUnknown",
    "Rejected",
    "Unavailable",
    "UnsupportedFormat",
]


class LakebedError(Exception):
    """Root of all errors of lakebed.

    Args:
        message: one sentence that says what was asked, what is there, and what to do.
        kind: stable name for programs, such as ``table_not_found``; None: the class's own.
        facts: further values for a handler (``path=``, ``table=``, ``tag=``, ...), kept in `facts`.
    """

    default_kind = "error"

    def __init__(self, message: str, *, kind: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or self.default_kind
        self.facts = facts

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.kind, self.facts))


def _rebuild(cls: type[LakebedError], message: str, kind: str, facts: dict[str, Any]) -> LakebedError:
    return cls(message, kind=kind, **facts)


class InvalidRequest(LakebedError, ValueError):
    """The call is wrong, and repeating it does not help. Correct the call."""

    default_kind = "invalid_request"


class NotFound(LakebedError, KeyError):
    """What the call names does not exist, or no longer exists."""

    default_kind = "not_found"


class AlreadyExists(LakebedError):
    """What the call creates exists already."""

    default_kind = "already_exists"


class Conflict(LakebedError):
    """Another writer changed what this change depends on. Read again, and try again."""

    default_kind = "conflict"


class Fenced(LakebedError):
    """A newer writer owns this. Stop writing."""

    default_kind = "fenced"


class Rejected(LakebedError):
    """The change was refused: by a hook, an audit, or the control plane of a fleet."""

    default_kind = "rejected"


class Unavailable(LakebedError):
    """The store or service did not answer, or cannot answer now. Try again later, with increasing pauses."""

    default_kind = "unavailable"


class OutcomeUnknown(LakebedError):
    """The change may or may not have happened. Look whether it did before you repeat it."""

    default_kind = "outcome_unknown"


class Corruption(LakebedError):
    """Stored bytes are not what was written. Stop. `facts` has ``path`` and, if known, ``offset``."""

    default_kind = "corruption"


class UnsupportedFormat(LakebedError):
    """The data was written by a newer lakebed, or uses a feature that this one does not know. Upgrade."""

    default_kind = "unsupported_format"


class Closed(LakebedError):
    """The object was closed."""

    default_kind = "closed"


class InternalError(LakebedError):
    """A bug in lakebed."""

    default_kind = "internal_error"
