"""Rules of retention: the number of days for which commits keep their objects, by branch.

Owns: the setting. Invariants: without rules nothing expires. `lakebed.repo.references.mark` applies the rules to the
history.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.names import NAME_CHARACTERS_MAX
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record

DAYS_MAX: Final = 36_500
"""Longest retention: a hundred years; to keep everything, set no rule."""

_SETTING: Final = "retention"


class RetentionRules(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """For how long commits that no branch or tag names keep their objects. Stored: DO NOT CHANGE its fields."""

    default_days: int
    """Days for branches without a rule of their own."""
    branch_days: dict[str, int] = {}
    """Days by name of a branch or pattern with ``*``, ``?`` and ``[ab]``. A name wins over patterns, and the longest of
    these."""

    def days_of(self, branch: str) -> int:
        """Return for how many days the commits of a branch keep their objects, once they are behind its head."""
        if branch in self.branch_days:
            return self.branch_days[branch]
        matching = [pattern for pattern in self.branch_days if fnmatchcase(branch, pattern)]
        return (
            self.branch_days[max(matching, key=lambda pattern: (len(pattern), pattern))]
            if matching
            else self.default_days
        )


def load_retention(context: RepositoryContext, *, snapshot: KeyValueSnapshot | None = None) -> RetentionRules | None:
    """Load the rules; None: there are no rules, and nothing expires. Raises `Corruption`. Cost: 1 read."""
    key = context.keys.setting(_SETTING)
    raw = (context.key_value if snapshot is None else snapshot).get(key)
    return None if raw is None else decode_record(raw, RetentionRules, key=key)


def store_retention(
    context: RepositoryContext, *, default_days: int, branch_days: Mapping[str, int] = {}
) -> RetentionRules:
    """Replace all rules.

    Args:
        default_days: 0 to 36,500.
        branch_days: by branch name or pattern; each 0 to 36,500.

    Raises:
        InvalidRequest: kind ``invalid_retention``.
        OutcomeUnknown: look before you retry.
    Cost: 1 write of the key-value store.
    """
    for name, days in {"": default_days, **branch_days}.items():
        if not isinstance(days, int) or isinstance(days, bool) or not 0 <= days <= DAYS_MAX:
            raise InvalidRequest(
                f"The retention{f' of {name}' if name else ''} is a whole number of days from 0 to {DAYS_MAX:,}, and "
                f"{days!r} was given.",
                kind="invalid_retention",
            )
    for pattern in branch_days:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= NAME_CHARACTERS_MAX:
            raise InvalidRequest(
                f"A branch or pattern has 1 to {NAME_CHARACTERS_MAX} characters: {pattern!r} does not fit.",
                kind="invalid_retention",
            )
    rules = RetentionRules(default_days, dict(sorted(branch_days.items())))
    context.key_value.set(context.keys.setting(_SETTING), encode_record(rules))
    return rules


def delete_retention(context: RepositoryContext) -> None:
    """Delete the rules, so that nothing expires. A second call is a no-op. Cost: 1 write of the key-value store."""
    context.key_value.delete(context.keys.setting(_SETTING))
