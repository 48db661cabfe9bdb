"""Protected branches: which branches may not be written, committed to or deleted directly.

Owns: the setting, and the checks that verbs make before they change a branch. Invariants: a merge into a protected
branch is always allowed. The rules of a branch are those of every pattern that it matches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, get_args

import msgspec

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.repo.model.names import NAME_CHARACTERS_MAX
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record, race_error

Blocked = Literal["staging_write", "commit", "delete"]
"""The operations that a rule can refuse: writes to the staging area, commits of it, deleting the branch."""

_SETTING: Final = "protected_branches"
_TRIES_MAX: Final = 8
_VERBS: Final[dict[Blocked, str]] = {
    "staging_write": "write to",
    "commit": "commit to",
    "delete": "delete",
}


class ProtectionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is refused on the branches that a pattern matches. Stored: DO NOT CHANGE its fields."""

    pattern: str
    """A name, with ``*`` for any characters, ``?`` for one, ``[ab]`` for one of several."""
    blocked: tuple[Blocked, ...] = get_args(Blocked)


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[ProtectionRule, ...] = ()


def check_writable(context: RepositoryContext, branch: str) -> None:
    """Raise `InvalidRequest` if nothing may be staged on a branch (``protected_branch``, ``read_only_repository``).

    Cost: no request: uses the rules as this process knows them.
    """
    _check(context, branch, "staging_write")


def check_committable(context: RepositoryContext, branch: str) -> None:
    """Raise `InvalidRequest` if a branch accepts no direct commits. As `check_writable`."""
    _check(context, branch, "commit")


def check_deletable(context: RepositoryContext, branch: str) -> None:
    """Raise `InvalidRequest` if a branch may not be deleted. As `check_writable`."""
    _check(context, branch, "delete")


def check_not_read_only(context: RepositoryContext) -> None:
    """Raise `InvalidRequest` (``read_only_repository``) if the repository may not be changed. Cost: no request."""
    if context.record.read_only:
        raise read_only(context.name)


def read_only(repository: str) -> InvalidRequest:
    """The error for a change of a read-only repository."""
    return InvalidRequest(
        f"Repository {repository} is read-only: nothing in it can be changed.",
        kind="read_only_repository",
        repository=repository,
    )


def check_rules(rules: Collection[ProtectionRule], branch: str, what: Blocked, *, repository: str) -> None:
    """Raise `InvalidRequest` (``protected_branch``) if a rule blocks `what` on a branch. Cost: no request."""
    for rule in rules:
        if what in rule.blocked and fnmatchcase(branch, rule.pattern):
            raise InvalidRequest(
                f"Branch {branch} of repository {repository} is protected by the pattern {rule.pattern!r}, and "
                f"you cannot {_VERBS[what]} protected branches: work on another branch and merge it.",
                kind="protected_branch",
                branch=branch,
                pattern=rule.pattern,
                action=_VERBS[what],
            )


def _check(context: RepositoryContext, branch: str, what: Blocked) -> None:
    check_not_read_only(context)
    key = context.keys.setting(_SETTING)
    check_rules(_decode(context.key_value.peek(key), key).rules, branch, what, repository=context.name)


@lru_cache(maxsize=256)
def _decode(raw: bytes | None, key: bytes) -> _Rules:
    return _Rules() if raw is None else decode_record(raw, _Rules, key=key)


def protected(context: RepositoryContext) -> tuple[ProtectionRule, ...]:
    """Load the rules, sorted by pattern. Raises `Corruption`. Cost: 1 read of the key-value store."""
    key = context.keys.setting(_SETTING)
    return _decode(context.key_value.get(key), key).rules


def rules_with_tag(context: RepositoryContext) -> tuple[tuple[ProtectionRule, ...], str]:
    """Load the rules, and their tag for `set_protected`, which changes with them. Raises `Corruption`. Cost: 1 read."""
    key = context.keys.setting(_SETTING)
    raw = context.key_value.get(key)
    return _decode(raw, key).rules, _tag(raw)


def _tag(raw: bytes | None) -> str:
    return hashlib.blake2b(raw or b"", digest_size=16).hexdigest()


def set_protected(
    context: RepositoryContext, rules: tuple[ProtectionRule, ...], *, expected: Collection[str] | None = None
) -> tuple[ProtectionRule, ...]:
    """Replace all rules.

    Args:
        expected: tags from `rules_with_tag`. The rules are replaced only if they have one of these tags. The empty tag
            stands for rules that were never set. None: always replace them.

    Raises:
        InvalidRequest: kind ``invalid_protection``: a pattern is empty, too long or given twice, or an unknown
            operation is blocked.
        Conflict: kind ``protection_moved``: the rules have another tag.
    Cost: 1 write of the key-value store; with `expected` also 1 read.
    """
    checked_rules = _check_rules(rules)
    key = context.keys.setting(_SETTING)
    if expected is None:
        context.key_value.set(key, encode_record(_Rules(checked_rules)))
        return checked_rules
    raw = context.key_value.get(key)
    try:
        if _tag(raw) not in expected and not (raw is None and "" in expected):
            raise _rules_moved(context)
        context.key_value.set_if(key, encode_record(_Rules(checked_rules)), expected=raw)
    except Conflict:
        raise _rules_moved(context) from None
    return checked_rules


def _rules_moved(context: RepositoryContext) -> Conflict:
    return Conflict(
        f"The protected branches of repository {context.name} were changed since they were read: read them again.",
        kind="protection_moved",
        repository=context.name,
    )


def protect(
    context: RepositoryContext, pattern: str, *, blocked: tuple[Blocked, ...] = get_args(Blocked)
) -> ProtectionRule:
    """Protect the branches that a pattern matches. Replaces a rule of the same pattern.

    Raises:
        InvalidRequest: kind ``invalid_protection``.
        Conflict: other processes changed the rules at the same time, again and again.
    Cost: 1 read and 1 write of the key-value store.
    """
    rule = ProtectionRule(pattern, blocked)
    _change(context, lambda rules: (*(other for other in rules if other.pattern != pattern), rule))
    return rule


def unprotect(context: RepositoryContext, pattern: str) -> None:
    """Remove the rule of a pattern.

    Raises:
        NotFound: kind ``protection_not_found``: there is no such rule.
        Conflict: others changed the rules at the same time, again and again.
    Cost: 1 read and 1 write of the key-value store.
    """

    def without(rules: tuple[ProtectionRule, ...]) -> tuple[ProtectionRule, ...]:
        remaining = tuple(rule for rule in rules if rule.pattern != pattern)
        if len(remaining) == len(rules):
            patterns = ", ".join(rule.pattern for rule in rules) or "there are none"
            raise NotFound(
                f"Repository {context.name} protects no branches by the pattern {pattern!r}; its patterns: {patterns}.",
                kind="protection_not_found",
                pattern=pattern,
            )
        return remaining

    _change(context, without)


def _change(
    context: RepositoryContext, change: Callable[[tuple[ProtectionRule, ...]], tuple[ProtectionRule, ...]]
) -> None:
    """Read the rules, and replace them by the result of `change` if they have not changed meanwhile; with retries."""
    key = context.keys.setting(_SETTING)
    for tries in range(1, _TRIES_MAX + 1):
        raw = context.key_value.get(key)
        new_raw = encode_record(_Rules(_check_rules(change(_decode(raw, key).rules))))
        try:
            context.key_value.set_if(key, new_raw, expected=raw)
        except Conflict:
            if tries == _TRIES_MAX:
                of = f"the protected branches of repository {context.name}"
                raise race_error("change", of=of, kind="protection_moved", repository=context.name) from None
        else:
            return


def _check_rules(rules: tuple[ProtectionRule, ...]) -> tuple[ProtectionRule, ...]:
    """Check rules, and return them in the order of patterns. Raises `InvalidRequest` (``invalid_protection``)."""
    verbs = get_args(Blocked)
    for rule in rules:
        if not isinstance(rule.pattern, str) or not 0 < len(rule.pattern) <= NAME_CHARACTERS_MAX:
            raise _invalid(
                f"A pattern of branches has 1 to {NAME_CHARACTERS_MAX} characters: {rule.pattern!r} has not."
            )
        if not rule.blocked or not set(rule.blocked) <= set(verbs):
            blocked_text = ", ".join(map(str, rule.blocked)) or "nothing"
            raise _invalid(f"The pattern {rule.pattern!r} cannot block {blocked_text}: choose of {', '.join(verbs)}.")
    sorted_rules = sorted(rules, key=lambda rule: rule.pattern)
    for first, second in pairwise(sorted_rules):
        if first.pattern == second.pattern:
            raise _invalid(f"The pattern {first.pattern!r} is there twice: give each once.")
    return tuple(sorted_rules)


def _invalid(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, kind="invalid_protection")
