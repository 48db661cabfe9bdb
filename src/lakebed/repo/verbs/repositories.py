"""Verbs on all repositories of a storage.

A server runs them on the repositories that it owns (`lakebed.repo.repositories.Repositories`); in one process the
methods of that class are called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

from lakebed.repo.context import RepositoryContext
from lakebed.repo.model import DeletedRepository
from lakebed.repo.verbs.message import PAGE_COUNT_MAX, Amount, Described, RepositoryFacts, Texts, facts_of, verb

__all__ = ["CatalogVerb", "CreateRepository", "Deleted", "ListRepositories", "Owner", "SetMetadata", "UpdateMetadata"]

R = TypeVar("R")


class Opened(Protocol):
    """An open repository."""

    @property
    def context(self) -> RepositoryContext:
        """What its verbs run on."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...


class Owner(Protocol):
    """`lakebed.repo.repositories.Repositories`, as far as verbs use it."""

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        read_only: bool = False,
    ) -> Opened:
        """Make a repository."""
        ...

    def list(self, *, prefix: str = "", after: str | None = None) -> Iterator[Opened]:
        """Repositories, by name."""
        ...

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace metadata."""
        ...

    def update_metadata(self, name: str, changed: Mapping[str, str], *, removed: Iterable[str] = ()) -> None:
        """Change metadata."""
        ...

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Deleted repositories."""
        ...


class CatalogVerb(Described, Generic[R], frozen=True):
    """An operation on all repositories."""

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> R:
        """Do it for a caller who may see the repositories of which `sees` says so."""
        raise NotImplementedError


@verb("list", role="read", effort="compute", gives=list[RepositoryFacts])
class ListRepositories(CatalogVerb[list[RepositoryFacts]], frozen=True, kw_only=True):
    """Repositories, in the order of their names."""

    prefix: str = ""
    after: str | None = None
    amount: Amount = PAGE_COUNT_MAX

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> list[RepositoryFacts]:
        seen = (one for one in owner.list(prefix=self.prefix, after=self.after) if sees(one.name))
        return [facts_of(one.context) for one in islice(seen, max(0, self.amount))]


@verb("create", role="write", effort="write", gives=RepositoryFacts)
class CreateRepository(CatalogVerb[RepositoryFacts], frozen=True, kw_only=True):
    """Make a repository."""

    name: str
    namespace: str | None = None
    default_branch: str = "main"
    metadata: Texts | None = None
    committer: str | None = None
    read_only: bool = False

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> RepositoryFacts:
        made = owner.create(
            self.name,
            namespace=self.namespace,
            default_branch=self.default_branch,
            metadata=self.metadata,
            committer=self.committer,
            read_only=self.read_only,
        )
        return facts_of(made.context)


@verb("set_metadata", role="admin", effort="write", gives=None)
class SetMetadata(CatalogVerb[None], frozen=True, kw_only=True):
    """Replace a repository's metadata."""

    name: str
    metadata: Texts

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> None:
        owner.set_metadata(self.name, self.metadata)


@verb("update_metadata", role="admin", effort="write", gives=None)
class UpdateMetadata(CatalogVerb[None], frozen=True, kw_only=True):
    """Set keys of a repository's metadata, and remove others."""

    name: str
    changed: Texts
    removed: list[str] = msgspec.field(default_factory=list)

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> None:
        owner.update_metadata(self.name, self.changed, removed=self.removed)


@verb("deleted", role="admin", effort="look", gives=tuple[DeletedRepository, ...], changes_nothing=True)
class Deleted(CatalogVerb[tuple[DeletedRepository, ...]], frozen=True):
    """Repositories that are deleted and not cleaned up yet."""

    def run(self, owner: Owner, sees: Callable[[str], bool]) -> tuple[DeletedRepository, ...]:
        return owner.deleted()
