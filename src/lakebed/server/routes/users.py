"""Users, groups, policies, and the access keys of users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, TypeVar

from msgspec import UNSET
from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.declaration import Parameter, Role, Routes
from lakebed.http.pages import Page, PageRequest
from lakebed.server.bodies import User as UserRow
from lakebed.server.identity import Group, Identity, Policy, User
from lakebed.server.keys import AccessKey
from lakebed.server.permissions import BUILT_IN_GROUPS, Statement, format_resource, parse_statement
from lakebed.server.routes.parameters import PAGE
from lakebed.server.site import RepositoryCall
from lakebed.server.user_bodies import (
    CredentialsRow,
    CredentialsWithSecret,
    GroupAcl,
    GroupCreation,
    GroupRow,
    PolicyBody,
    StatementBody,
    UserCreation,
)

USERS: Final = Routes[RepositoryCall]("auth")
_NEEDS: Final[Role] = "admin"
"""For keys with a role. For users, `lakebed.server.needs` has the permissions."""
_ALL_USERS: Final = "/auth/users"
_USER: Final = "/auth/users/{user}"
_ALL_GROUPS: Final = "/auth/groups"
_GROUP: Final = "/auth/groups/{group}"
_ALL_POLICIES: Final = "/auth/policies"
_POLICY: Final = "/auth/policies/{policy}"
_EFFECTIVE: Final = Parameter("effective", "Also the policies of the user's groups.", kind="boolean")

_GROUPS_OF_WORDS: Final[dict[Literal["Read", "Write", "Super", "Admin"], str]] = {
    "Read": "Viewers",
    "Write": "Developers",
    "Super": "SuperUsers",
    "Admin": "Admins",
}
"""Words of lakeFS's access-control lists, with the group whose policies each word stands for."""

T = TypeVar("T")


def _page(names: Iterable[str], page: PageRequest) -> Iterator[str]:
    return (name for name in sorted(names) if name.startswith(page.prefix) and name > page.after)


async def _list(
    call: RepositoryCall, kind: Literal["users", "groups", "policies"], names: Iterable[str] | None = None
) -> Response:
    identity = await call.quick(call.site.keys.identity.read)
    rows: dict[str, User] | dict[str, Group] | dict[str, Policy] = getattr(identity, kind)
    row_of = partial(_ROWS[kind], identity)
    return await call.list_page(
        lambda page: _page(rows if names is None else names, page), key=lambda name: name, row=row_of
    )


def _user_row(identity: Identity, name: str) -> UserRow:
    return UserRow(name, identity.user(name).created_at_ms // 1000, friendly_name=name)


def _group_row(identity: Identity, name: str) -> GroupRow:
    group = identity.group(name)
    return GroupRow(name, name, group.description, group.created_at_ms // 1000)


def _policy_row(identity: Identity, name: str) -> PolicyBody:
    return _with_statements(name, identity.policy(name))


def _statement_row(statement: Statement) -> StatementBody:
    return StatementBody(statement.effect, format_resource(statement), list(statement.actions))


_ROWS: Final = {"users": _user_row, "groups": _group_row, "policies": _policy_row}


# ---- users


@USERS.add("GET", _ALL_USERS, "listUsers", needs=_NEEDS, gives={200: Page[UserRow]}, parameters=PAGE)
async def list_users(call: RepositoryCall) -> Response:
    """List users."""
    return await _list(call, "users")


@USERS.add("POST", _ALL_USERS, "createUser", needs=_NEEDS, gives={201: UserRow}, audited=True)
async def create_user(call: RepositoryCall, body: UserCreation) -> UserRow:
    """Create a user, who may do nothing yet."""
    if body.invite_user:
        raise InvalidRequest("The server sends no invitations: leave invite_user out.", kind="unsupported")
    call.subject = body.id
    user = await call.quick(call.site.keys.identity.create_user, body.id)
    return UserRow(body.id, user.created_at_ms // 1000, friendly_name=body.id)


@USERS.add("GET", _USER, "getUser", needs=_NEEDS)
async def get_user(call: RepositoryCall) -> UserRow:
    """Get a user."""
    return _user_row(await call.quick(call.site.keys.identity.read), call.path["user"])


@USERS.add("DELETE", _USER, "deleteUser", needs=_NEEDS, audited=True)
async def delete_user(call: RepositoryCall) -> None:
    """Delete a user, with the user's access keys."""
    await call.quick(call.site.keys.delete_user, call.path["user"])


@USERS.add("GET", _USER + "/groups", "listUserGroups", needs=_NEEDS, gives={200: Page[GroupRow]}, parameters=PAGE)
async def list_user_groups(call: RepositoryCall) -> Response:
    """List the groups of a user."""
    identity = await call.quick(call.site.keys.identity.read)
    return await _list(call, "groups", identity.user(call.path["user"]).groups)


@USERS.add(
    "GET",
    _USER + "/policies",
    "listUserPolicies",
    needs=_NEEDS,
    gives={200: Page[PolicyBody]},
    parameters=(*PAGE, _EFFECTIVE),
)
async def list_user_policies(call: RepositoryCall) -> Response:
    """List the policies of a user."""
    name, effective = call.path["user"], call.flag("effective")
    identity = await call.quick(call.site.keys.identity.read)
    return await _list(
        call, "policies", identity.effective_policies(name) if effective else identity.user(name).policies
    )


@USERS.add("PUT", _USER + "/policies/{policy}", "attachPolicyToUser", needs=_NEEDS, gives={201: None}, audited=True)
async def attach_to_user(call: RepositoryCall) -> None:
    """Attach a policy to a user."""
    await call.quick(call.site.keys.identity.attach, call.path["policy"], user=call.path["user"])


@USERS.add("DELETE", _USER + "/policies/{policy}", "detachPolicyFromUser", needs=_NEEDS, audited=True)
async def detach_from_user(call: RepositoryCall) -> None:
    """Detach a policy from a user."""
    await call.quick(call.site.keys.identity.detach, call.path["policy"], user=call.path["user"])


# ---- access keys of users


@USERS.add(
    "GET",
    _USER + "/credentials",
    "listUserCredentials",
    needs=_NEEDS,
    gives={200: Page[CredentialsRow]},
    parameters=PAGE,
)
async def list_credentials(call: RepositoryCall) -> Response:
    """List the access keys of a user."""
    keys = {key.id: key for key in await call.quick(call.site.keys.list_of_user, call.path["user"])}
    return await call.list_page(
        lambda page: _page(keys, page), key=lambda name: name, row=lambda name: _credentials_row(keys[name])
    )


def _credentials_row(key: AccessKey) -> CredentialsRow:
    return CredentialsRow(key.id, key.created_at_ms // 1000)


@USERS.add(
    "POST", _USER + "/credentials", "createCredentials", needs=_NEEDS, gives={201: CredentialsWithSecret}, audited=True
)
async def create_credentials(call: RepositoryCall) -> CredentialsWithSecret:
    """Create an access key of a user; its secret is shown only in this reply."""
    access_key = await call.quick(call.site.keys.create_of_user, call.path["user"])
    call.subject = access_key.key.id
    return CredentialsWithSecret(access_key.key.id, access_key.secret, access_key.key.created_at_ms // 1000)


@USERS.add("GET", _USER + "/credentials/{access_key}", "getCredentials", needs=_NEEDS)
async def get_credentials(call: RepositoryCall) -> CredentialsRow:
    """Get an access key of a user."""
    return _credentials_row(await call.quick(call.site.keys.get_of_user, call.path["user"], call.path["access_key"]))


@USERS.add("DELETE", _USER + "/credentials/{access_key}", "deleteCredentials", needs=_NEEDS, audited=True)
async def delete_credentials(call: RepositoryCall) -> None:
    """Delete an access key of a user, and its tokens."""
    await call.quick(call.site.keys.revoke_of_user, call.path["user"], call.path["access_key"])


# ---- groups


@USERS.add("GET", _ALL_GROUPS, "listGroups", needs=_NEEDS, gives={200: Page[GroupRow]}, parameters=PAGE)
async def list_groups(call: RepositoryCall) -> Response:
    """List groups."""
    return await _list(call, "groups")


@USERS.add("POST", _ALL_GROUPS, "createGroup", needs=_NEEDS, gives={201: GroupRow}, audited=True)
async def create_group(call: RepositoryCall, body: GroupCreation) -> GroupRow:
    """Create a group without members and policies."""
    call.subject = body.id
    group = await call.quick(call.site.keys.identity.create_group, body.id, description=body.description or "")
    return GroupRow(body.id, body.id, group.description, group.created_at_ms // 1000)


@USERS.add("GET", _GROUP, "getGroup", needs=_NEEDS)
async def get_group(call: RepositoryCall) -> GroupRow:
    """Get a group."""
    return _group_row(await call.quick(call.site.keys.identity.read), call.path["group"])


@USERS.add("DELETE", _GROUP, "deleteGroup", needs=_NEEDS, audited=True)
async def delete_group(call: RepositoryCall) -> None:
    """Delete a group; its members stay users."""
    await call.quick(call.site.keys.identity.delete_group, call.path["group"])


@USERS.add("GET", _GROUP + "/members", "listGroupMembers", needs=_NEEDS, gives={200: Page[UserRow]}, parameters=PAGE)
async def list_members(call: RepositoryCall) -> Response:
    """List the members of a group."""
    identity = await call.quick(call.site.keys.identity.read)
    return await _list(call, "users", identity.members(call.path["group"]))


@USERS.add("PUT", _GROUP + "/members/{user}", "addGroupMembership", needs=_NEEDS, gives={201: None}, audited=True)
async def add_member(call: RepositoryCall) -> None:
    """Make a user a member of a group."""
    await _set_member(call, is_member=True)


@USERS.add("DELETE", _GROUP + "/members/{user}", "deleteGroupMembership", needs=_NEEDS, audited=True)
async def remove_member(call: RepositoryCall) -> None:
    """Take a user out of a group."""
    await _set_member(call, is_member=False)


async def _set_member(call: RepositoryCall, *, is_member: bool) -> None:
    identity = call.site.keys.identity
    await call.quick(identity.set_member, call.path["group"], call.path["user"], is_member=is_member)


@USERS.add(
    "GET", _GROUP + "/policies", "listGroupPolicies", needs=_NEEDS, gives={200: Page[PolicyBody]}, parameters=PAGE
)
async def list_group_policies(call: RepositoryCall) -> Response:
    """List the policies of a group."""
    identity = await call.quick(call.site.keys.identity.read)
    return await _list(call, "policies", identity.group(call.path["group"]).policies)


@USERS.add("GET", _GROUP + "/acl", "getGroupACL", needs=_NEEDS)
async def get_acl(call: RepositoryCall) -> GroupAcl:
    """Get the word for what the members of a group may do; 404 if its policies are those of no word."""
    group = call.path["group"]
    policies = set((await call.quick(call.site.keys.identity.read)).group(group).policies)
    for permission, name in _GROUPS_OF_WORDS.items():
        if policies == set(BUILT_IN_GROUPS[name]):
            return GroupAcl(permission)
    raise NotFound(f"The group {group!r} has policies that no access-control list expresses: list them.", kind="no_acl")


@USERS.add("POST", _GROUP + "/acl", "setGroupACL", needs=_NEEDS, gives={201: None}, audited=True)
async def set_acl(call: RepositoryCall, body: GroupAcl) -> None:
    """Replace the policies of a group by those that a word stands for."""
    policies = BUILT_IN_GROUPS[_GROUPS_OF_WORDS[body.permission]]
    await call.quick(call.site.keys.identity.set_policies, call.path["group"], policies)


@USERS.add("PUT", _GROUP + "/policies/{policy}", "attachPolicyToGroup", needs=_NEEDS, gives={201: None}, audited=True)
async def attach_to_group(call: RepositoryCall) -> None:
    """Attach a policy to a group."""
    await call.quick(call.site.keys.identity.attach, call.path["policy"], group=call.path["group"])


@USERS.add("DELETE", _GROUP + "/policies/{policy}", "detachPolicyFromGroup", needs=_NEEDS, audited=True)
async def detach_from_group(call: RepositoryCall) -> None:
    """Detach a policy from a group."""
    await call.quick(call.site.keys.identity.detach, call.path["policy"], group=call.path["group"])


# ---- policies


@USERS.add("GET", _ALL_POLICIES, "listPolicies", needs=_NEEDS, gives={200: Page[PolicyBody]}, parameters=PAGE)
async def list_policies(call: RepositoryCall) -> Response:
    """List policies."""
    return await _list(call, "policies")


@USERS.add("POST", _ALL_POLICIES, "createPolicy", needs=_NEEDS, gives={201: PolicyBody}, audited=True)
async def create_policy(call: RepositoryCall, body: PolicyBody) -> PolicyBody:
    """Create a policy. What could not be enforced is refused."""
    call.subject = body.id
    policy = await call.quick(call.site.keys.identity.create_policy, body.id, _statements(body))
    return _with_statements(body.id, policy)


@USERS.add("GET", _POLICY, "getPolicy", needs=_NEEDS)
async def get_policy(call: RepositoryCall) -> PolicyBody:
    """Get a policy."""
    return _policy_row(await call.quick(call.site.keys.identity.read), call.path["policy"])


@USERS.add("PUT", _POLICY, "updatePolicy", needs=_NEEDS, audited=True)
async def update_policy(call: RepositoryCall, body: PolicyBody) -> PolicyBody:
    """Replace the statements of a policy."""
    name = call.path["policy"]
    if body.id != name:
        raise InvalidRequest(
            f"The body is of the policy {body.id!r}, and the path names {name!r}: a policy keeps its name.",
            kind="invalid_body",
        )
    policy = await call.quick(call.site.keys.identity.update_policy, name, _statements(body))
    return _with_statements(name, policy)


@USERS.add("DELETE", _POLICY, "deletePolicy", needs=_NEEDS, audited=True)
async def delete_policy(call: RepositoryCall) -> None:
    """Delete a policy, and detach it from all users and groups."""
    await call.quick(call.site.keys.identity.delete_policy, call.path["policy"])


def _statements(body: PolicyBody) -> list[Statement]:
    return [
        parse_statement(
            effect=statement.effect,
            actions=statement.action,
            resource=statement.resource,
            has_condition=bool(statement.condition) and statement.condition is not UNSET,
        )
        for statement in body.statement
    ]


def _with_statements(name: str, policy: Policy) -> PolicyBody:
    return PolicyBody(name, list(map(_statement_row, policy.statements)), policy.created_at_ms // 1000)
