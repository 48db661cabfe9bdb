"""The checks of a dry run: it refuses what the change would refuse, without owning the repositories."""

from __future__ import annotations

from lakebed.repo.heads.heads import dirty
from lakebed.repo.model.names import check_tag_name
from lakebed.repo.records.protection import Blocked, check_rules, read_only
from lakebed.repo.references.branches import check_not_default
from lakebed.repo.references.tags import missing_tag
from lakebed.repo.repository import Repository
from lakebed.repo.verbs.references import NamedCommit


def check_change(repository: Repository, branch: str | None = None, what: Blocked = "staging_write") -> None:
    """For a dry run: raise what a change of the repository, or of one of its branches, would raise.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: kind ``read_only_repository``, ``protected_branch``; ``default_branch`` for ``what="delete"``.
    """
    if branch is not None:
        _ = repository.branch(branch).commit_id
        if what == "delete":
            check_not_default(branch, default=repository.default_branch, repository=repository.name)
    if repository.is_read_only:
        raise read_only(repository.name)
    if branch is not None:
        check_rules(repository.protected(), branch, what, repository=repository.name)


def check_clean(repository: Repository, branch: str, *, operation: str) -> None:
    """For a dry run: raise `InvalidRequest` (``dirty_branch``) if a branch has uncommitted changes."""
    if any(True for _ in repository.branch(branch).status()):
        raise dirty(branch, repository=repository.name, operation=operation)


def tag_to_drop(repository: Repository, name: str) -> NamedCommit:
    """For a dry run: return the tag that would be dropped.

    Raises:
        NotFound: kind ``tag_not_found``.
        InvalidRequest: kind ``read_only_repository``, ``invalid_tag_name``.
    """
    check_change(repository)
    check_tag_name(name)
    tag = next((entry for entry in repository.tags(prefix=name) if entry.name == name), None)
    if tag is None:
        raise missing_tag(repository.name, name, names=(entry.name for entry in repository.tags()))
    return tag
