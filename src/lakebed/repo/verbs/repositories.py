"""Verbs on all repositories of a storage. They run on a `lakebed.repo.transport.catalog.LocalCatalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from lakebed.errors import Conflict
from lakebed.objects.port import ObjectStore
from lakebed.repo.heads.commit import check_commit_metadata
from lakebed.repo.model.model import CatalogRecord, DeletedRepository, RepositoryRecord
from lakebed.repo.model.names import check_branch_name, check_repository_name
from lakebed.repo.outside.namespace import (
    REPOSITORY_SUFFIX,
    check_new_folder,
    check_new_namespace,
    claim_namespace,
    holds_lakefs,
    namespace_folder,
)
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.verbs.message import PAGE_COUNT_MAX, Amount, Described, RepositoryFacts, Texts, facts_of, verb
from lakebed.runtime import Environment

ATTEMPTS_MAX: Final = 16
"""Most attempts of a change of the catalog that loses the race."""

R = TypeVar("R")


class Owner(Protocol):
    """The part of `lakebed.repo.transport.catalog.LocalCatalog` that verbs use."""

    store: ObjectStore
    environment: Environment

    @property
    def url(self) -> str:
        """URL of the storage."""

    def contexts(self, *, prefix: str = "", after: str | None = None) -> Iterator[RepositoryContext]:
        """Iterate over all repositories, in the order of names."""

    def record_of_catalog(self) -> CatalogRecord:
        """Return the record with the identity of the catalog."""

    def check_free(self, name: str, folder: str) -> None:
        """Raise `AlreadyExists` if a name or folder is taken."""

    def store_new(
        self,
        name: str,
        record: RepositoryRecord,
        *,
        catalog_record: CatalogRecord,
        committer: str | None,
        bare: bool = False,
    ) -> RepositoryContext:
        """Record a new repository."""

    def race_error(self, operation: str) -> Conflict:
        """The error for too many lost races."""

    def change_metadata(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Replace a repository's metadata by the result of `change`."""

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Return the repositories that are deleted and not cleaned up yet."""


class CatalogVerb(Described, Generic[R], frozen=True):
    """An operation on all repositories."""

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> R:
        """Run the operation for a caller that may see the repositories for which `sees` is true."""
        raise NotImplementedError


@verb("list", role="read", effort="compute", gives=list[RepositoryFacts])
class ListRepositories(CatalogVerb[list[RepositoryFacts]], frozen=True, kw_only=True):
    """Repositories, in the order of their names."""

    prefix: str = ""
    after: str | None = None
    amount: Amount = PAGE_COUNT_MAX

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> list[RepositoryFacts]:
        visible = (context for context in catalog.contexts(prefix=self.prefix, after=self.after) if sees(context.name))
        return [facts_of(context) for context in islice(visible, max(0, self.amount))]


@verb("create", role="write", effort="write", gives=RepositoryFacts, changes=("name",), author="committer")
class CreateRepository(CatalogVerb[RepositoryFacts], frozen=True, kw_only=True):
    """Make a repository.

    Args:
        bare: without a first commit and branch; its folder may have the files of lakeFS, which then stay.
    """

    name: str
    namespace: str | None = None
    default_branch: str = "main"
    metadata: Texts | None = None
    committer: str | None = None
    read_only: bool = False
    bare: bool = False

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> RepositoryFacts:
        check_repository_name(self.name)
        check_branch_name(self.default_branch)
        check_commit_metadata(self.metadata or {})
        namespace = f"{self.name}{REPOSITORY_SUFFIX}" if self.namespace is None else self.namespace
        check_new_namespace(namespace)
        folder = namespace_folder(namespace, root_url=catalog.url)
        check_new_folder(folder)
        environment = catalog.environment
        for _ in range(ATTEMPTS_MAX):
            catalog_record = catalog.record_of_catalog()
            catalog.check_free(self.name, folder)
            is_shared = self.bare and holds_lakefs(catalog.store, folder)
            record = RepositoryRecord(
                uid=claim_namespace(
                    catalog.store,
                    folder,
                    name=self.name,
                    home_id=catalog_record.id,
                    environment=environment,
                    is_shared=is_shared,
                ),
                namespace=namespace if namespace.startswith("local://") else folder,
                default_branch=self.default_branch,
                created_at_ms=environment.clock.now_ms(),
                read_only=self.read_only,
                metadata=self.metadata or {},
                is_shared=is_shared,
            )
            try:
                context = catalog.store_new(
                    self.name, record, catalog_record=catalog_record, committer=self.committer, bare=self.bare
                )
            except Conflict:
                continue
            return facts_of(context)
        raise catalog.race_error("creation")


@verb("set_metadata", role="admin", effort="write", gives=None, changes=("name",))
class SetMetadata(CatalogVerb[None], frozen=True, kw_only=True):
    """Replace a repository's metadata."""

    name: str
    metadata: Texts

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> None:
        catalog.change_metadata(self.name, lambda _: self.metadata)


@verb("update_metadata", role="admin", effort="write", gives=None, changes=("name",))
class UpdateMetadata(CatalogVerb[None], frozen=True, kw_only=True):
    """Set keys of a repository's metadata, and remove others."""

    name: str
    changed: Texts
    removed: list[str] = msgspec.field(default_factory=list)

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> None:
        removed_keys = set(self.removed)
        catalog.change_metadata(
            self.name,
            lambda before: {key: value for key, value in before.items() if key not in removed_keys} | self.changed,
        )


@verb("deleted", role="admin", effort="look", gives=tuple[DeletedRepository, ...], changes_nothing=True)
class Deleted(CatalogVerb[tuple[DeletedRepository, ...]], frozen=True):
    """Repositories that are deleted and not cleaned up yet."""

    def run(self, catalog: Owner, sees: Callable[[str], bool]) -> tuple[DeletedRepository, ...]:
        return catalog.deleted()
