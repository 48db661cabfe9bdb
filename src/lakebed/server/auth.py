"""What an authenticated caller may do."""

from __future__ import annotations

from lakebed.http.declaration import Role
from lakebed.http.errors import forbidden
from lakebed.server.keys import Principal


def check_role(principal: Principal, *, needed: Role, repository: str | None) -> None:
    """Refuse what a principal may not do.

    Args:
        needed: the least role for it.
        repository: the one it concerns; None: none, or all.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if repository is not None and not principal.sees(repository):
        raise forbidden(f"The access key {principal.id} may not use the repository {repository}.")
    if not principal.may(needed):
        raise forbidden(
            f"The access key {principal.id} has the role {principal.role}, and this needs the role {needed}."
        )
    if needed == "admin" and repository is None and principal.repositories is not None:
        raise forbidden(f"The access key {principal.id} is limited to some repositories, and this concerns all.")


def check_lake(principal: Principal) -> None:
    """Refuse a principal that is limited to repositories: the tables of the lake belong to none.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if principal.repositories is not None:
        raise forbidden(
            f"The access key {principal.id} is limited to some repositories, and this concerns the tables of the lake."
        )
