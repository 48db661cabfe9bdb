"""`HttpCatalog`: the repositories behind a server that the access key may see.

Invariants: the records and the background belong to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NoReturn, TypeVar, cast

from lakebed.errors import NotFound
from lakebed.http.asking import quote_segment
from lakebed.repo.model.names import check_branch_name, check_repository_name, missing_repository
from lakebed.repo.transport.catalog import NAMES_COMPARED_MAX, Catalog
from lakebed.repo.transport.http_client import Client
from lakebed.repo.transport.http_keys import RemoteAccessKeys
from lakebed.repo.transport.http_transport import HttpTransport, ask, only_local, pages
from lakebed.repo.transport.transport import Transport
from lakebed.repo.verbs.message import RepositoryFacts
from lakebed.repo.verbs.reading import Describe
from lakebed.repo.verbs.repositories import CatalogVerb, CreateRepository, ListRepositories

R = TypeVar("R")


class HttpCatalog(Catalog):
    """The repositories behind a server. Thread-safe.

    Args:
        client: the connection to the server; `close` closes it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"HttpCatalog({self.url!r})"

    @property
    def url(self) -> str:
        return self._client.endpoint

    @property
    def local(self) -> NoReturn:
        only_local("Storage, records and background of repositories: what needs them")

    @property
    def access_keys(self) -> RemoteAccessKeys:
        return RemoteAccessKeys(self._client)

    def call(self, verb: CatalogVerb[R]) -> R:
        return cast(R, ask(self._client, verb, "/verbs/"))

    def create(self, verb: CreateRepository) -> Transport:
        check_repository_name(verb.name)
        check_branch_name(verb.default_branch)
        return HttpTransport(self._client, self.call(verb))

    def repository(self, name: str) -> Transport:
        try:
            return self._find(name)
        except NotFound as missing:
            if missing.kind != "repository_not_found":
                raise
            # The server's error does not name similar repositories. Search them among those that the key may see.
            similar = self.repositories(ListRepositories(), amount=NAMES_COMPARED_MAX)
            names = [transport.facts.name for transport in similar]
            raise missing_repository(name, names=names, url=self.url) from missing

    def exists(self, name: str) -> bool:
        try:
            self._find(name)
        except NotFound:
            return False
        return True

    def _find(self, name: str) -> Transport:
        path = f"/repositories/{quote_segment(check_repository_name(name))}/verbs/"
        facts: RepositoryFacts = ask(self._client, Describe(), path)
        return HttpTransport(self._client, facts)

    def repositories(self, verb: ListRepositories, *, amount: int | None) -> Iterator[Transport]:
        rows = pages(self._client, verb, "/verbs/", amount=amount)
        return (HttpTransport(self._client, facts) for facts in islice(rows, amount))

    def delete(self, name: str, *, force: bool) -> None:
        path = f"/repositories/{quote_segment(check_repository_name(name))}"
        self._client.request("DELETE", path, query={"force": force})

    def close(self) -> None:
        self._client.close()
