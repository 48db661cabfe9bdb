"""Policies: what a statement may contain, and what statements permit. Pure.

Owns: the actions, the names of resources (``arn:lakefs:...``), their wildcards, and `Grants`. Invariants: an action
that no statement allows is refused; a statement that denies overrides all that allow; a statement that cannot be
enforced as it is written (an unknown action, a condition) is refused when it is created, and permits nothing if it is
stored anyway.

``*`` in a pattern stands for any text, slashes too, and ``?`` for one character. docs/design/0061-users.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest
from lakebed.http.declaration import ROLES, Role

_FS: Final = "arn:lakefs:fs:::"
_AUTH: Final = "arn:lakefs:auth:::"
REPOSITORIES: Final = f"{_FS}repository/"
NAMESPACES: Final = f"{_FS}namespace/"
EVERYTHING_STORED: Final = _FS
EVERYTHING_OF_USERS: Final = _AUTH
USERS: Final = f"{_AUTH}user/"
GROUPS: Final = f"{_AUTH}group/"
POLICIES: Final = f"{_AUTH}policy/"

_PATTERN_CHARACTERS_MAX: Final = 2_048
_PATTERNS_MAX: Final = 1_000
"""Most resources, and most actions, of one statement."""
_USER: Final = "${user}"

_READ: Final = frozenset(
    f"fs:{action}"
    for action in (
        "ReadRepository", "ListRepositories", "ReadObject", "ListObjects", "ReadCommit", "ListCommits", "ReadBranch",
        "ListBranches", "ReadTag", "ListTags",
    )
)  # fmt: skip
_WRITE: Final = _READ | frozenset(
    f"fs:{action}"
    for action in (
        "WriteObject", "DeleteObject", "CreateCommit", "CreateBranch", "DeleteBranch", "RevertBranch", "CreateTag",
        "DeleteTag",
    )
)  # fmt: skip
_NAMESPACE: Final = frozenset(("fs:AttachStorageNamespace", "fs:ImportFromStorage"))
_IN_REPOSITORY: Final = _WRITE | frozenset(
    (
        "fs:CreateRepository", "fs:UpdateRepository", "fs:DeleteRepository", "fs:ImportCancel", "ci:ReadAction",
        "retention:PrepareGarbageCollectionCommits", "retention:PrepareGarbageCollectionUncommitted",
        "retention:GetGarbageCollectionRules", "retention:SetGarbageCollectionRules",
        "branches:GetBranchProtectionRules", "branches:SetBranchProtectionRules", "pr:ReadPullRequest",
        "pr:WritePullRequest", "pr:ListPullRequests",
    )
)  # fmt: skip
_AUTH_ACTIONS: Final = frozenset(
    f"auth:{action}"
    for action in (
        "ReadUser", "CreateUser", "DeleteUser", "ListUsers", "ReadGroup", "CreateGroup", "DeleteGroup", "ListGroups",
        "AddGroupMember", "RemoveGroupMember", "ReadPolicy", "CreatePolicy", "UpdatePolicy", "DeletePolicy",
        "ListPolicies", "AttachPolicy", "DetachPolicy", "ReadCredentials", "CreateCredentials", "DeleteCredentials",
        "ListCredentials",
    )
)  # fmt: skip
ACTIONS: Final = _IN_REPOSITORY | _NAMESPACE | _AUTH_ACTIONS | {"fs:ReadConfig"}
"""Every action that an operation of this server needs. A policy that names another one is refused."""

_ROLES: Final[dict[Role, frozenset[str]]] = {"read": _READ, "write": _WRITE, "admin": _IN_REPOSITORY}


@dataclass(frozen=True, slots=True)
class Permission:
    """An action on a resource.

    Attributes:
        resource: the resource's full name.
        is_prefix: whether every resource whose name begins with `resource` is meant.
        aliases: other names of the same resource. A statement that denies any of the names denies the resource; one
            that allows it has to match `resource`.
    """

    action: str
    resource: str
    is_prefix: bool = False
    aliases: tuple[str, ...] = ()


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement of a policy. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    effect: Literal["allow", "deny"]
    actions: tuple[str, ...]
    resources: tuple[str, ...]


def parse_statement(*, effect: str, actions: Sequence[str], resource: str, has_condition: bool) -> Statement:
    """Return a statement as lakeFS's clients write it.

    Args:
        resource: a pattern, ``*``, or a JSON list of patterns.

    Raises:
        InvalidRequest: kind ``invalid_policy``: the statement cannot be enforced as it is written.
    """
    if has_condition:
        raise _invalid("A statement has a condition, and conditions are not supported: leave it out")
    if effect not in ("allow", "deny"):
        raise _invalid(f"The effect {effect!r} is unknown: use allow or deny")
    resources = _parse_resources(resource)
    if not actions or not resources:
        raise _invalid("A statement needs an action and a resource: give both")
    if len(actions) > _PATTERNS_MAX or len(resources) > _PATTERNS_MAX:
        raise _invalid(f"A statement has more than {_PATTERNS_MAX:,} actions or resources: make several of it")
    for action in actions:
        _check_action(action)
    for pattern in resources:
        _check_resource(pattern)
    return Statement("allow" if effect == "allow" else "deny", tuple(actions), resources)


def format_resource(statement: Statement) -> str:
    """Return the resources of a statement as clients read them: one pattern, or a JSON list."""
    first, *other_resources = statement.resources
    return first if not other_resources else msgspec.json.encode(statement.resources).decode()


def _parse_resources(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return (text,) if text else ()
    try:
        return decode_json(text, tuple[str, ...])
    except msgspec.DecodeError as error:
        raise _invalid("The resource begins like a JSON list of texts and is none: write one, or one name") from error


def _check_action(pattern: str) -> None:
    service, _, name = pattern.partition(":")
    is_known = "*" not in service and "?" not in service and bool(name)
    if not is_known or len(pattern) > _PATTERN_CHARACTERS_MAX or not any(_matches(pattern, name) for name in ACTIONS):
        raise _invalid(
            f"No operation of this server needs the action {pattern[:100]!r}: use one of {', '.join(sorted(ACTIONS))}, "
            "or a pattern of them such as fs:Read*"
        )


def _check_resource(pattern: str) -> None:
    if pattern == "*":
        return
    head = _literal_head(pattern.replace(_USER, "*"))
    names = (f"{_FS}repository/", NAMESPACES, USERS, GROUPS, POLICIES)
    is_whole = head == pattern
    is_known = any(head.startswith(name) or (not is_whole and name.startswith(head)) for name in names)
    if not is_known or not head.startswith(("arn:lakefs:fs:::", "arn:lakefs:auth:::")):
        raise _invalid(
            f"There is no resource {pattern[:100]!r}: use * or a name such as {REPOSITORIES}NAME, "
            f"{REPOSITORIES}NAME/object/PATH, .../branch/NAME, .../tag/NAME, {NAMESPACES}URL or {USERS}NAME, in which "
            "* stands for any text"
        )
    if len(pattern) > _PATTERN_CHARACTERS_MAX:
        raise _invalid(f"A resource has more than {_PATTERN_CHARACTERS_MAX:,} characters: make it shorter")
    if "${" in pattern.replace(_USER, ""):
        raise _invalid(f"The resource {pattern[:100]!r} has an unknown variable: only {_USER} is known")


def _invalid(sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{sentence}.", kind="invalid_policy")


def _literal_head(pattern: str) -> str:
    """Return the part of a pattern before its first wildcard."""
    return re.split(r"[*?]", pattern, maxsplit=1)[0]


@lru_cache(4_096)
def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to a regular expression that takes linear time: text that a star skipped is not tried again."""
    first, *other_patterns = (
        "".join("." if letter == "?" else re.escape(letter) for letter in piece) for piece in pattern.split("*")
    )
    if not other_patterns:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{piece})" for piece in other_patterns[:-1] if piece)
    return re.compile(f"{first}{middle}.*{other_patterns[-1]}", re.DOTALL)


def _matches(pattern: str, text: str) -> bool:
    return _compile(pattern).fullmatch(text) is not None


class Grants:
    """What the policies of one user permit.

    Args:
        user: the name, without wildcards, that replaces ``${user}`` in resources.
        statements: the statements of all of the user's policies.

    Cost of a query: a few microseconds for each statement.
    """

    def __init__(self, user: str, statements: Iterable[Statement]) -> None:
        self.user = user
        every = list(statements)
        self._allow, self._deny = (
            [
                (tuple(statement.actions), tuple(name.replace(_USER, user) for name in statement.resources))
                for statement in every
                if statement.effect == effect
            ]
            for effect in ("allow", "deny")
        )
        self._roles: dict[str | None, Role | None] = {}

    def permits(self, permission: Permission) -> bool:
        """Whether a permission is granted."""
        action, resource = permission.action, permission.resource
        names = (resource, *permission.aliases)
        if action not in ACTIONS:
            return False
        if permission.is_prefix:
            return self._covers(action, *names)
        is_denied = any(_is_named(self._deny, action, name) for name in names)
        return _is_named(self._allow, action, resource) and not is_denied

    def _covers(self, action: str, prefix: str, *aliases: str) -> bool:
        """Whether an action is permitted on all names with a prefix. False may be wrong; True never is."""
        is_allowed = any(
            _is_action(actions, action)
            and any(pattern.endswith("*") and _matches(pattern, prefix) for pattern in resources)
            for actions, resources in self._allow
        )
        return is_allowed and not any(
            _is_action(actions, action)
            and any(_may_meet(pattern, name) for pattern in resources for name in (prefix, *aliases))
            for actions, resources in self._deny
        )

    def role(self, repository: str | None) -> Role | None:
        """Return the greatest role whose actions are all permitted, without an exception, in a repository.

        Args:
            repository: None: in all of them; admin then includes users, groups and policies.
        """
        if repository not in self._roles:
            if len(self._roles) > 1_000:
                self._roles.clear()
            role: Role | None = None
            for candidate in ROLES:
                if not self._has_role(candidate, repository):
                    break
                role = candidate
            self._roles[repository] = role
        return self._roles[repository]

    def _has_role(self, role: Role, repository: str | None) -> bool:
        if repository is None:
            everywhere = all(self._covers(action, REPOSITORIES) for action in _ROLES[role])
            if role != "admin" or not everywhere:
                return everywhere
            return all(self._covers(action, _AUTH) for action in _AUTH_ACTIONS) and self._has_namespaces()
        name = REPOSITORIES + repository
        is_inside = all(
            self.permits(Permission(action, name)) and self._covers(action, f"{name}/") for action in _ROLES[role]
        )
        return is_inside and (role != "admin" or self._has_namespaces())

    def _has_namespaces(self) -> bool:
        return all(self._covers(action, NAMESPACES) for action in _NAMESPACE)


def _is_action(patterns: Iterable[str], action: str) -> bool:
    return any(_matches(pattern, action) for pattern in patterns)


def _is_named(statements: Iterable[tuple[tuple[str, ...], tuple[str, ...]]], action: str, resource: str) -> bool:
    return any(
        _is_action(actions, action) and any(_matches(pattern, resource) for pattern in resources)
        for actions, resources in statements
    )


def _may_meet(pattern: str, prefix: str) -> bool:
    """Whether a pattern may match a name that begins with a prefix."""
    head = _literal_head(pattern)
    if head == pattern:  # it has no wildcard
        return pattern.startswith(prefix)
    return head.startswith(prefix) or prefix.startswith(head)


def _allow(*actions: str, resource: str = "*") -> Statement:
    return Statement("allow", actions, (resource,))


BUILT_IN: Final[dict[str, tuple[Statement, ...]]] = {
    "FSFullAccess": (_allow("fs:*"),),
    "FSReadWriteAll": (
        _allow(
            "fs:Read*", "fs:List*", "fs:WriteObject", "fs:DeleteObject", "fs:RevertBranch", "fs:CreateBranch",
            "fs:CreateTag", "fs:DeleteBranch", "fs:DeleteTag", "fs:CreateCommit",
        ),
    ),
    "FSReadAll": (_allow("fs:List*", "fs:Read*"),),
    "RepoManagementFullAccess": (_allow("ci:*", "retention:*", "branches:*", "pr:*", "fs:ReadConfig"),),
    "RepoManagementReadAll": (
        _allow("ci:Read*", "retention:Get*", "branches:Get*", "pr:Read*", "pr:List*", "fs:ReadConfig"),
    ),
    "PRReadWriteAll": (_allow("pr:*"),),
    "AuthFullAccess": (_allow("auth:*"),),
    "AuthManageOwnCredentials": (
        _allow(
            "auth:CreateCredentials", "auth:DeleteCredentials", "auth:ListCredentials", "auth:ReadCredentials",
            resource=USERS + _USER,
        ),
    ),
}  # fmt: skip
"""Policies that exist from the beginning, by the names that lakeFS gives them."""

BUILT_IN_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Admins": ("FSFullAccess", "AuthFullAccess", "RepoManagementFullAccess"),
    "SuperUsers": ("FSFullAccess", "AuthManageOwnCredentials", "RepoManagementReadAll"),
    "Developers": ("FSReadWriteAll", "PRReadWriteAll", "AuthManageOwnCredentials", "RepoManagementReadAll"),
    "Viewers": ("FSReadAll", "AuthManageOwnCredentials"),
}
"""Groups that exist from the beginning, with their policies. Viewers have the role ``read``, Developers ``write``
and Admins ``admin``, for what has no permission of its own (`Grants.role`)."""
