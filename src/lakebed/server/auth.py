"""What an authenticated caller may do: with repositories, and with the tables of the lake.

Owns: what a limit covers. Every catalog of tables uses these checks, whatever its protocol. The database of a table in
a branch is ``repository.reference``: a caller who may see the repository may see it.

Invariant: a refusal depends on the key and on the name that was asked for, and not on what exists.
"""

from __future__ import annotations

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.http.declaration import ROLES, Role
from lakebed.http.errors import forbidden
from lakebed.server.keys import ALL_TABLES, Principal
from lakebed.server.permissions import Grants, Permission


def check_permission(principal: Principal, permission: Permission) -> None:
    """Refuse a user whose policies do not grant a permission; keys that belong to no user have roles instead.

    Raises:
        InvalidRequest: kind ``insufficient_permissions``.
    """
    if principal.grants is not None and not principal.grants.permits(permission):
        resource = permission.resource + ("*" if permission.is_prefix else "")
        raise _insufficient(
            principal, f"{permission.action} on {resource} is not allowed. Attach a policy that allows it."
        )


def check_role(principal: Principal, *, needed: Role, repository: str | None) -> None:
    """Refuse what a principal may not do.

    Args:
        needed: the least role for the request.
        repository: the repository that the request concerns; None: none, or all.

    Raises:
        InvalidRequest: kind ``forbidden``; for a user ``insufficient_permissions``.
    """
    if principal.grants is not None:
        _check_whole_role(principal, principal.grants, needed_role=needed, repository=repository)
        return
    if repository is not None and not principal.sees(repository):
        raise forbidden(f"The access key {principal.id} may not use the repository {repository}.")
    _check_rank(principal, needed)
    if needed == "admin" and repository is None and principal.repositories is not None:
        raise forbidden(f"The access key {principal.id} is limited to some repositories, and this concerns all.")


def check_bare(principal: Principal) -> None:
    """Refuse a bare repository to a key that is limited to some repositories.

    Its namespace may hold what lakeFS left of another repository.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if principal.grants is None and principal.repositories is not None:
        raise forbidden(
            f"The access key {principal.id} is limited to some repositories, and a bare one may take over files that "
            "are in its namespace: use a key for all repositories."
        )


def _check_whole_role(principal: Principal, grants: Grants, *, needed_role: Role, repository: str | None) -> None:
    """Refuse a user whose policies permit less than the whole role.

    Without a repository, the role write would cover repositories that do not exist yet: it needs admin.
    """
    least_role: Role = "admin" if repository is None and needed_role != "read" else needed_role
    role = grants.role(repository)
    if role is None or ROLES.index(role) < ROLES.index(least_role):
        where = "all repositories" if repository is None else f"the repository {repository}"
        raise _insufficient(
            principal,
            f"this operation needs policies that permit all that the role {least_role} has in {where}, without an "
            "exception.",
        )


def check_catalog(principal: Principal, *, needed: Role) -> None:
    """Refuse a principal without the role; `check_table` and `check_database` decide which tables it may use.

    Raises:
        InvalidRequest: kind ``forbidden``; for a user ``insufficient_permissions``.
    """
    _check_rank(principal, needed)


def may_see_table(principal: Principal, database: str, table: str) -> bool:
    """Whether a principal may see a table at all. Pure.

    Args:
        table: the table's name, without the suffix of a branch or a system table.
    """
    is_named = "." not in database and f"{database}.{table}" in (principal.tables or ())
    return is_named or may_see_all_tables(principal, database)


def may_see_database(principal: Principal, database: str) -> bool:
    """Whether a principal may see a table of a database, and so the database. Pure."""
    limits = principal.tables
    return may_see_all_tables(principal, database) or any(limit.partition(".")[0] == database for limit in limits or ())


def may_see_all_tables(principal: Principal, database: str) -> bool:
    """Whether a principal may see every table of a database, which creating, changing and dropping it needs. Pure."""
    repository, dot, _ = database.partition(".")
    if dot:
        return principal.sees(repository)
    limits = principal.tables
    return limits is None or ALL_TABLES in limits or f"{database}.{ALL_TABLES}" in limits


def check_table(principal: Principal, database: str, table: str) -> None:
    """Refuse a principal that may not see a table (`may_see_table`). Raises `InvalidRequest`, kind ``forbidden``."""
    if not may_see_table(principal, database, table):
        raise forbidden(f"The access key {principal.id} may not use the table {database}.{table}.")


def check_database(principal: Principal, database: str, *, whole: bool = False) -> None:
    """Refuse a principal that may not see a database. Raises `InvalidRequest`, kind ``forbidden``.

    Args:
        whole: whether the request concerns the database itself, and not only some of its tables.
    """
    if not (may_see_all_tables if whole else may_see_database)(principal, database):
        concerns = "and this concerns all of" if whole else "and none of them is in"
        raise forbidden(f"The access key {principal.id} is limited to some tables, {concerns} the database {database}.")


def _insufficient(principal: Principal, reason: str) -> LakebedError:
    """Return the error for a user whose policies do not permit something. Clients of lakeFS look for its words."""
    return InvalidRequest(
        f"The user {principal.user} has insufficient permissions: {reason}", kind="insufficient_permissions"
    )


def _check_rank(principal: Principal, needed_role: Role) -> None:
    if not principal.may(needed_role):
        if principal.grants is not None:
            raise _insufficient(
                principal,
                f"this needs policies that permit all that the role {needed_role} has in all repositories, without an "
                "exception.",
            )
        raise forbidden(
            f"The access key {principal.id} has the role {principal.role}, and this needs the role {needed_role}."
        )
