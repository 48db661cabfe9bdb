"""`RemoteAccessKeys`: the access keys of a server, through the server.

Owns: the form of keys in replies. Invariant: a secret is returned once, when it is created, and is in no `repr`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lakebed.http.asking import quote_segment
from lakebed.http.pages import Page
from lakebed.repo.transport.http_client import Client

_KEYS: Final = "/auth/keys"
_PAGE_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class RemoteAccessKey:
    """An access key, as a server describes it."""

    id: str
    role: str
    repositories: tuple[str, ...] | None
    """The only repositories that it may see; None: all."""
    description: str
    created_at_ms: int
    tables: tuple[str, ...] | None = None
    """The only tables that it may see; None: all, or none if `repositories` is given."""


@dataclass(frozen=True, slots=True)
class RemoteNewKey:
    """A new access key with its secret. Its `repr` does not hold it."""

    key: RemoteAccessKey
    secret: str

    def __repr__(self) -> str:
        return f"RemoteNewKey({self.key.id})"


class _Row(msgspec.Struct):
    access_key_id: str
    role: str
    repositories: list[str] | None
    description: str
    creation_date: int
    secret_access_key: str = ""
    tables: list[str] | None = None

    def key(self) -> RemoteAccessKey:
        repositories, tables = (None if names is None else tuple(names) for names in (self.repositories, self.tables))
        created_at_ms = self.creation_date * 1000
        return RemoteAccessKey(self.access_key_id, self.role, repositories, self.description, created_at_ms, tables)


class RemoteAccessKeys:
    """The access keys of a server. Every call needs the role admin, and costs 1 request."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        *,
        role: str,
        repositories: tuple[str, ...] | None = None,
        tables: tuple[str, ...] | None = None,
        description: str = "",
    ) -> RemoteNewKey:
        """Create an access key. Raises `InvalidRequest` for an invalid role, repository or table."""
        body: dict[str, Any] = {"role": role, "description": description}
        for kind, names in (("repositories", repositories), ("tables", tables)):
            body |= {} if names is None else {kind: list(names)}
        row = self._client.send("POST", _KEYS, _Row, body)
        return RemoteNewKey(row.key(), row.secret_access_key)

    def list(self) -> list[RemoteAccessKey]:
        """Return all access keys, ordered by id."""
        return list(self._pages())

    def _pages(self) -> Iterator[RemoteAccessKey]:
        after: str | None = None
        while True:
            page = self._client.send("GET", _KEYS, Page[_Row], after=after, amount=_PAGE_COUNT)
            yield from (row.key() for row in page.results)
            if not page.pagination.has_more:
                return
            after = page.pagination.next_offset

    def get(self, access_key: str) -> RemoteAccessKey:
        """Return an access key. Raises `NotFound`."""
        return self._client.send("GET", f"{_KEYS}/{quote_segment(access_key)}", _Row).key()

    def revoke(self, access_key: str) -> None:
        """Revoke an access key and its tokens. Raises `NotFound`, and `InvalidRequest` for the last administrator's."""
        self._client.request("DELETE", f"{_KEYS}/{quote_segment(access_key)}")

    def rotate(self, access_key: str) -> RemoteNewKey:
        """Give an access key a new secret; the old one becomes invalid. Raises `NotFound`."""
        row = self._client.send("POST", f"{_KEYS}/{quote_segment(access_key)}/rotate", _Row)
        return RemoteNewKey(row.key(), row.secret_access_key)
