"""Users, groups and policies: which exist, and which policies are attached to which users and groups.

Owns: the record ``identity`` of the key-value store, and its changes. Everything is in this one record, which a change
replaces by compare-and-set. So a deleted group disappears from all its members at the same moment, and an attached
policy always exists. A store without the record has the groups and policies of `lakebed.server.permissions`.

Invariant: a `User.uid` is never used for two users. A user that is deleted and created again has another one, and the
keys of the first do not work for the second. Does not know: keys (`lakebed.server.keys`), and what policies mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.key_value.port import KeyValue
from lakebed.lsm.file_id import mint_file_id
from lakebed.repo.model.layout import IDENTITY_KEY
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.runtime import Environment
from lakebed.server.permissions import BUILT_IN, BUILT_IN_GROUPS, Grants, Statement

NAME_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._@+=-]{0,127}$"
"""Names have no wildcard, because a user's name replaces ``${user}`` in resources."""
RESERVED_BEGIN: Final = "LAKEBED"
"""Prefix of the ids of access keys, which are names of committers too: no user's name may look like an id."""
_NAME: Final = re.compile(NAME_PATTERN, re.ASCII)
_RECORD_BYTES_MAX: Final = 4 << 20
"""Largest record of all users, groups and policies: some ten thousand users."""
_TRIES_MAX: Final = 16

T = TypeVar("T")


class User(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A user. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    uid: str
    created_at_ms: int
    groups: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A group. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    created_at_ms: int
    description: str = ""
    policies: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A policy. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    created_at_ms: int
    statements: tuple[Statement, ...]


class Identity(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All users, groups and policies at one moment, by name. Stored: DO NOT CHANGE its fields."""

    users: dict[str, User] = {}
    groups: dict[str, Group] = {}
    policies: dict[str, Policy] = {}

    def user(self, name: str) -> User:
        """Return a user. Raises `NotFound`."""
        return _get(self.users, name, kind="user")

    def group(self, name: str) -> Group:
        """Return a group. Raises `NotFound`."""
        return _get(self.groups, name, kind="group")

    def policy(self, name: str) -> Policy:
        """Return a policy. Raises `NotFound`."""
        return _get(self.policies, name, kind="policy")

    def members(self, group: str) -> list[str]:
        """Return the users of a group. Raises `NotFound`."""
        self.group(group)
        return sorted(name for name, user in self.users.items() if group in user.groups)

    def effective_policies(self, name: str) -> list[str]:
        """Return the policies of a user, and of the user's groups. Raises `NotFound`."""
        user = self.user(name)
        names = {*user.policies, *(policy for group in user.groups for policy in self.groups[group].policies)}
        return sorted(names)

    def grants(self, name: str) -> Grants:
        """Return what a user may do. Raises `NotFound`."""
        return Grants(
            name,
            (statement for policy in self.effective_policies(name) for statement in self.policies[policy].statements),
        )


def _get(rows: dict[str, T], name: str, *, kind: str) -> T:
    row = rows.get(name)
    if row is None:
        raise NotFound(f"There is no {kind} {name!r}: list them, and check the spelling.", kind=f"{kind}_not_found")
    return row


class IdentityStore:
    """Reads and changes the record. Thread-safe.

    Args:
        changed: called after every change, to discard what was derived from the record.
    """

    def __init__(self, key_value: KeyValue, *, environment: Environment, changed: Callable[[], None]) -> None:
        self._key_value = key_value
        self._environment = environment
        self._changed = changed
        self._begin_ms = environment.clock.now_ms()
        self._known: tuple[bytes | None, Identity] = None, _built_in(self._begin_ms)

    def load(self) -> tuple[bytes | None, Identity]:
        """Return the stored bytes of the record, and the decoded record. Raises `Corruption`. Cost: 1 GET."""
        raw = self._key_value.get(IDENTITY_KEY)
        cached = self._known
        if cached[0] != raw:
            cached = raw, _built_in(self._begin_ms) if raw is None else decode_record(raw, Identity, key=IDENTITY_KEY)
            self._known = cached
        return cached

    def read(self) -> Identity:
        """Everything at this moment. Raises `Corruption`. Cost: 1 GET."""
        return self.load()[1]

    def create_user(self, name: str) -> User:
        """Create a user in no group, with no policy. Raises `AlreadyExists`, `InvalidRequest`. Cost: 1 write."""
        _check_name(name, kind="user")
        if name.upper().startswith(RESERVED_BEGIN):
            raise InvalidRequest(
                f"A user's name cannot begin with {RESERVED_BEGIN}, as access keys do: choose another one.",
                kind="invalid_name",
            )
        user = User(mint_file_id(environment=self._environment), self._environment.clock.now_ms())
        self._change(lambda identity: replace(identity, users=_added(identity.users, name, user, kind="user")))
        return user

    def delete_user(self, name: str) -> None:
        """Delete a user; keys of that user end at once. Raises `NotFound`. Cost: 1 write."""

        def delete(identity: Identity) -> Identity:
            identity.user(name)
            return replace(identity, users=_without(identity.users, name))

        self._change(delete)

    def create_group(self, name: str, *, description: str = "") -> Group:
        """Create a group without members and policies. Raises `AlreadyExists`, `InvalidRequest`. Cost: 1 write."""
        _check_name(name, kind="group")
        group = Group(self._environment.clock.now_ms(), description)
        self._change(lambda identity: replace(identity, groups=_added(identity.groups, name, group, kind="group")))
        return group

    def delete_group(self, name: str) -> None:
        """Delete a group and its memberships. Raises `NotFound`. Cost: 1 write."""

        def delete(identity: Identity) -> Identity:
            identity.group(name)
            users = {key: replace(user, groups=_less(user.groups, name)) for key, user in identity.users.items()}
            return replace(identity, users=users, groups=_without(identity.groups, name))

        self._change(delete)

    def set_member(self, group: str, user: str, *, is_member: bool) -> None:
        """Add a user to a group, or remove the user from it. Raises `NotFound`. Cost: 1 write."""

        def change(identity: Identity) -> Identity:
            identity.group(group)
            before = identity.user(user)
            if not is_member and group not in before.groups:
                raise NotFound(f"The user {user!r} is not in the group {group!r}.", kind="member_not_found")
            groups = _more(before.groups, group) if is_member else _less(before.groups, group)
            after = replace(before, groups=groups)
            return replace(identity, users={**identity.users, user: after})

        self._change(change)

    def create_policy(self, name: str, statements: Iterable[Statement]) -> Policy:
        """Create a policy. Raises `AlreadyExists`, `InvalidRequest`. Cost: 1 write."""
        _check_name(name, kind="policy")
        policy = Policy(self._environment.clock.now_ms(), tuple(statements))
        self._change(lambda before: replace(before, policies=_added(before.policies, name, policy, kind="policy")))
        return policy

    def update_policy(self, name: str, statements: Iterable[Statement]) -> Policy:
        """Replace the statements of a policy. Raises `NotFound`. Cost: 1 write."""
        after = tuple(statements)

        def change(identity: Identity) -> Identity:
            policy = replace(identity.policy(name), statements=after)
            return replace(identity, policies={**identity.policies, name: policy})

        return self._change(change).policies[name]

    def delete_policy(self, name: str) -> None:
        """Delete a policy, and detach it from all users and groups. Raises `NotFound`. Cost: 1 write."""

        def delete(identity: Identity) -> Identity:
            identity.policy(name)
            return Identity(
                {key: replace(user, policies=_less(user.policies, name))
                 for key, user in identity.users.items()},
                {key: replace(group, policies=_less(group.policies, name))
                 for key, group in identity.groups.items()},
                _without(identity.policies, name),
            )  # fmt: skip

        self._change(delete)

    def attach(self, policy: str, *, user: str | None = None, group: str | None = None) -> None:
        """Attach a policy to a user or a group. Raises `NotFound`; `AlreadyExists`. Cost: 1 write."""

        def change(identity: Identity) -> Identity:
            identity.policy(policy)
            before = _subject(identity, user=user, group=group)
            if policy in before.policies:
                raise AlreadyExists(f"The policy {policy!r} is attached to {user or group!r} already.", kind="attached")
            return _replaced(identity, _more(before.policies, policy), user=user, group=group)

        self._change(change)

    def set_policies(self, group: str, policies: Iterable[str]) -> None:
        """Replace the policies of a group. Raises `NotFound`. Cost: 1 write."""
        names = tuple(sorted(policies))

        def change(identity: Identity) -> Identity:
            for name in names:
                identity.policy(name)
            identity.group(group)
            return _replaced(identity, names, user=None, group=group)

        self._change(change)

    def detach(self, policy: str, *, user: str | None = None, group: str | None = None) -> None:
        """Detach a policy from a user or a group. Raises `NotFound`. Cost: 1 write."""

        def change(identity: Identity) -> Identity:
            before = _subject(identity, user=user, group=group)
            if policy not in before.policies:
                raise NotFound(f"The policy {policy!r} is not attached to {user or group!r}.", kind="policy_not_found")
            return _replaced(identity, _less(before.policies, policy), user=user, group=group)

        self._change(change)

    def _change(self, change: Callable[[Identity], Identity]) -> Identity:
        """Replace the record by the result of `change`, which is called again if another change was first."""
        for _ in range(_TRIES_MAX):
            raw, before = self.load()
            after = change(before)
            new_raw = encode_record(after)
            if len(new_raw) > _RECORD_BYTES_MAX:
                raise InvalidRequest(
                    f"Users, groups and policies take {len(new_raw):,} bytes, and {_RECORD_BYTES_MAX:,} are possible: "
                    "delete what is not used.",
                    kind="too_many_users",
                )
            try:
                self._key_value.set_if(IDENTITY_KEY, new_raw, expected=raw)
            except Conflict:
                continue
            finally:
                self._changed()  # also when the reply was lost
            return after
        raise Conflict("Users and policies are being changed concurrently: try again.", kind="identity_changed")


def _built_in(now_ms: int) -> Identity:
    return Identity(
        groups={name: Group(now_ms, policies=policies) for name, policies in BUILT_IN_GROUPS.items()},
        policies={name: Policy(now_ms, statements) for name, statements in BUILT_IN.items()},
    )


def _check_name(name: str, *, kind: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:200]!r} is not a valid name of a {kind}: use up to 128 letters, digits and . _ @ + = -, of which "
            "the first is a letter or a digit.",
            kind="invalid_name",
        )


def _added(rows: dict[str, T], name: str, row: T, *, kind: str) -> dict[str, T]:
    if name in rows:
        raise AlreadyExists(f"There is a {kind} {name!r} already: choose another name.", kind=f"{kind}_exists")
    return {**rows, name: row}


def _without(rows: dict[str, T], name: str) -> dict[str, T]:
    return {key: row for key, row in rows.items() if key != name}


def _more(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted({*names, name}))


def _less(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _subject(identity: Identity, *, user: str | None, group: str | None) -> User | Group:
    return identity.user(user) if user is not None else identity.group(group or "")


def _replaced(identity: Identity, policies: tuple[str, ...], *, user: str | None, group: str | None) -> Identity:
    if user is not None:
        after = replace(identity.user(user), policies=policies)
        return replace(identity, users={**identity.users, user: after})
    assert group is not None
    new_group = replace(identity.group(group), policies=policies)
    return replace(identity, groups={**identity.groups, group: new_group})
