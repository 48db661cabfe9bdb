"""What an authenticated caller may do."""

from __future__ import annotations

from lakebed.http.declaration import ROLES, Role
from lakebed.http.errors import forbidden
from lakebed.server.keys import Principal
from lakebed.server.permissions import Grants, Permission


def check_permission(principal: Principal, permission: Permission) -> None:
    """Refuse a user whose policies do not permit something; keys of nobody have roles instead.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if principal.grants is not None and not principal.grants.permits(permission):
        resource = permission.resource + ("*" if permission.is_prefix else "")
        raise forbidden(
            f"Insufficient permissions: the user {principal.user} may not {permission.action} on {resource}. Attach a "
            "policy that allows it."
        )


def check_role(principal: Principal, *, needed: Role, repository: str | None) -> None:
    """Refuse what a principal may not do.

    Args:
        needed: the least role for it.
        repository: the one it concerns; None: none, or all.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if principal.grants is not None:
        _check_whole_role(principal, principal.grants, needed=needed, repository=repository)
        return
    if repository is not None and not principal.sees(repository):
        raise forbidden(f"The access key {principal.id} may not use the repository {repository}.")
    if not principal.may(needed):
        raise forbidden(
            f"The access key {principal.id} has the role {principal.role}, and this needs the role {needed}."
        )
    if needed == "admin" and repository is None and principal.repositories is not None:
        raise forbidden(f"The access key {principal.id} is limited to some repositories, and this concerns all.")


def _check_whole_role(principal: Principal, grants: Grants, *, needed: Role, repository: str | None) -> None:
    """Refuse a user whose policies permit less than the whole role.

    Without a repository the role write would be one over what is not there yet, such as repositories to be made: admin.
    """
    least: Role = "admin" if repository is None and needed != "read" else needed
    role = grants.role(repository)
    if role is None or ROLES.index(role) < ROLES.index(least):
        where = "all repositories" if repository is None else f"the repository {repository}"
        raise forbidden(
            f"Insufficient permissions: this operation needs policies that permit the user {principal.user} all that "
            f"the role {least} has in {where}, without an exception."
        )


def check_lake(principal: Principal) -> None:
    """Refuse a principal that is limited to repositories: the tables of the lake belong to none.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if principal.grants is not None:
        _check_whole_role(principal, principal.grants, needed="admin", repository=None)
    if principal.repositories is not None:
        raise forbidden(
            f"The access key {principal.id} is limited to some repositories, and this concerns the tables of the lake."
        )
