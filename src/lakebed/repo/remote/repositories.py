"""`RemoteRepositories`: all repositories behind a server.

Owns: the facade of a home over HTTP; methods, arguments, results and errors are those of
`lakebed.repo.repositories.Repositories`, and only repositories that the access key may see are there. Invariants: it
owns no records and no background: the server does. Does not know: how a request travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Final, NoReturn

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.model import DeletedRepository
from lakebed.repo.names import check_branch_name, check_repository_name, missing_repository
from lakebed.repo.remote.client import Client, encoded
from lakebed.repo.remote.keys import RemoteAccessKeys
from lakebed.repo.remote.transport import HttpTransport, ask, only_local, pages
from lakebed.repo.repository import Repository
from lakebed.repo.verbs.message import RepositoryFacts, texts
from lakebed.repo.verbs.reading import Describe
from lakebed.repo.verbs.repositories import (
    CatalogVerb,
    CreateRepository,
    Deleted,
    ListRepositories,
    SetMetadata,
    UpdateMetadata,
)

__all__ = ["RemoteRepositories"]

_NAMES_LOOKED_AT_MAX: Final = 1000


class RemoteRepositories:
    """The repositories behind a server; made by `lakebed.repo.open_all` of a server's URL. Thread-safe. Close it.

    Args:
        client: of the server; closed by `close`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        """Of the server."""
        return self._client.endpoint

    @property
    def store(self) -> NoReturn:
        """Not here: the server has it. Raises `InvalidRequest` (``not_over_http``)."""
        only_local("The storage of repositories")

    @property
    def key_value(self) -> NoReturn:
        """Not here: the server has it. Raises `InvalidRequest` (``not_over_http``)."""
        only_local("The records of repositories")

    @property
    def environment(self) -> NoReturn:
        """Not here: the server has it. Raises `InvalidRequest` (``not_over_http``)."""
        only_local("The clock of repositories")

    @property
    def access_keys(self) -> RemoteAccessKeys:
        """Who may use the server."""
        return RemoteAccessKeys(self._client)

    def __repr__(self) -> str:
        return f"RemoteRepositories({self.url!r})"

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        read_only: bool = False,
    ) -> Repository:
        """Make a repository, with a first commit that holds nothing. As `Repositories.create`. Cost: 1 request."""
        check_repository_name(name)
        check_branch_name(default_branch)
        made: RepositoryFacts = self._ask(
            CreateRepository(
                name=name,
                namespace=namespace,
                default_branch=default_branch,
                metadata=texts(metadata),
                committer=committer,
                read_only=read_only,
            )
        )
        return self._opened(made)

    def repository(self, name: str) -> Repository:
        """A repository by name. As `Repositories.repository`. Cost: 1 request; of one that is not there 1 more."""
        try:
            return self._found(name)
        except NotFound as missing:
            if missing.kind != "repository_not_found":
                raise
            # The server tells no names. What is near is among those that the access key may see anyway.
            names = [one.name for one in self.list(amount=_NAMES_LOOKED_AT_MAX)]
            raise missing_repository(name, names=names, url=self.url) from missing

    def _ask(self, verb: CatalogVerb[Any]) -> Any:
        return ask(self._client, verb, "/verbs/")

    def _opened(self, facts: RepositoryFacts) -> Repository:
        return Repository(HttpTransport(self._client, facts))

    def _found(self, name: str) -> Repository:
        path = f"/repositories/{encoded(check_repository_name(name))}/verbs/"
        found: RepositoryFacts = ask(self._client, Describe(), path)
        return self._opened(found)

    def exists(self, name: str) -> bool:
        """Whether there is a repository of this name. Cost: 1 request."""
        try:
            self._found(name)
        except NotFound:
            return False
        return True

    def list(self, *, prefix: str = "", after: str | None = None, amount: int | None = None) -> Iterator[Repository]:
        """Repositories that the access key may see, in the order of their names. Cost: 1 request a page."""
        found = pages(self._client, ListRepositories(prefix=prefix, after=after), "/verbs/", amount=amount)
        return (self._opened(facts) for facts in islice(found, amount))

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace a repository's metadata. As `Repositories.set_metadata`. Cost: 1 request."""
        self._ask(SetMetadata(name=name, metadata=dict(metadata)))

    def update_metadata(self, name: str, changed: Mapping[str, str], *, removed: Iterable[str] = ()) -> None:
        """Set some keys and remove others. As `Repositories.update_metadata`. Cost: 1 request."""
        self._ask(UpdateMetadata(name=name, changed=dict(changed), removed=list(removed)))

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a repository: it is gone at once. As `Repositories.delete`. Cost: 1 request."""
        self._client.request("DELETE", f"/repositories/{encoded(check_repository_name(name))}", query={"force": force})

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Repositories that are deleted and not cleaned up yet. Cost: 1 request."""
        found: tuple[DeletedRepository, ...] = self._ask(Deleted())
        return found

    def step_once(self) -> None:
        """Not here: the server has a background of its own. Raises `InvalidRequest` (``not_over_http``)."""
        raise InvalidRequest(
            "The server compacts and cleans up by itself: there is no step to make from here.", kind="not_over_http"
        )

    # ---- the end

    def close(self) -> None:
        """Hang up; again is fine."""
        self._client.close()

    def __enter__(self) -> RemoteRepositories:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
