"""The workspace of a pipeline: a lake, or a lake inside a branch of a repository.

Owns: opening both, and creating the branch. With ``branch: analytics/dev`` everything of the pipeline is in that branch
of the repository, in the folder `LAKE_FOLDER`: its tables, at ``lake/<database>.db/<table>``, and its ledger. So a
reset of the branch reverts the records of steps together with their data, and a merge merges both. Invariant: a missing
repository is not created; a missing branch is created from the default branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import lakebed.repo
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.lake.lake import Lake, open_lake
from lakebed.repo.branch import Branch
from lakebed.repo.repository import Repository
from lakebed.runtime import Environment

LAKE_FOLDER: Final = "lake"
"""The lake's folder in a branch.

It is not the root, which may have other objects, and where ``_lakebed/`` is reserved.
"""

_SERVERS: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Workspace:
    """An open lake, and the branch that it is in."""

    lake: Lake
    repository: Repository | None = None
    branch: Branch | None = None


def split_branch(text: str) -> tuple[str, str]:
    """Split ``repository/branch``; the name of the branch may contain slashes.

    Raises `InvalidRequest`: it is not of this form.
    """
    repository, _, branch = text.partition("/")
    if not repository or not branch:
        raise InvalidRequest(
            f"'{text}' does not name a branch of a repository: write <repository>/<branch>, such as analytics/dev.",
            kind="invalid_branch",
        )
    return repository, branch


@contextmanager
def open_workspace(
    lake_url: str,
    *,
    branch: str | None = None,
    create: bool = True,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment,
) -> Iterator[Workspace]:
    """Open the lake, and with a branch the repository in it, which is closed at the end.

    Args:
        lake_url: the lake's URL; with a branch also the URL of a server, ``http://host:port``, which serves the
            repositories of a lake (access key and secret come from the environment).
        branch: ``repository/branch``; None: the lake itself.
        create: create the lake, or the branch, if it is missing.

    Raises:
        NotFound: no such lake or branch, and not `create`; no such repository.
        Conflict: kind ``owned``: another process has the repositories open; the error names a server's endpoint.
        InvalidRequest: `lake_url` is a server's and `branch` is None.
    """
    if branch is None:
        if lake_url.startswith(_SERVERS):
            raise InvalidRequest(
                f"{lake_url} is a server, which serves repositories: name a branch to work in, as in "
                "`branch: analytics/dev`.",
                kind="no_branch",
            )
        yield Workspace(open_lake(lake_url, create=create, storage_options=storage_options, environment=environment))
        return
    repository_name, branch_name = split_branch(branch)
    repository: Any
    if lake_url.startswith(_SERVERS):
        repository = lakebed.repo.open(f"{lake_url.rstrip('/')}/{repository_name}", create=False)
    else:
        lake = open_lake(lake_url, create=False, storage_options=storage_options, environment=environment)
        repository = lake.repository(repository_name)
    with closing(repository):
        opened = _branch(repository, branch_name, create=create)
        # Do not use Lake.open, which would mark an empty folder as a lake. The first table marks it.
        yield Workspace(Lake(opened.store(LAKE_FOLDER), environment=environment), repository, opened)


def _branch(repository: Any, name: str, *, create: bool) -> Any:
    branch = repository.branch(name)
    try:
        branch.head()
    except NotFound:
        if not create:
            raise
        with suppress(AlreadyExists):  # another process made it meanwhile
            repository.create_branch(name)
    return branch
