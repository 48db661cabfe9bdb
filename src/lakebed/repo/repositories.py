"""`Repositories`: the facade of all repositories of a storage: create, find, list, delete.

Invariants: it is the same class in the process that owns the records and over HTTP. Over HTTP it shows only the
repositories that the access key may see, and the server runs the background.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lakebed.arguments import check_arguments
from lakebed.closing import Closing
from lakebed.errors import LakebedError
from lakebed.repo.model.model import DeletedRepository
from lakebed.repo.model.names import check_amount
from lakebed.repo.repository import Repository
from lakebed.repo.transport.catalog import Catalog, LocalCatalog
from lakebed.repo.verbs.message import texts
from lakebed.repo.verbs.repositories import CreateRepository, Deleted, ListRepositories, SetMetadata, UpdateMetadata

if TYPE_CHECKING:
    from lakebed.repo.transport.http_keys import RemoteAccessKeys


@check_arguments
class Repositories(Closing):
    """The repositories of a storage or of a server, opened by `lakebed.repo.open_all`. Thread-safe.

    Close them, or use them in a ``with`` statement.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __repr__(self) -> str:
        return f"Repositories({self._catalog!r})"

    @property
    def url(self) -> str:
        """The URL of the storage or of the server."""
        return self._catalog.url

    # ---- of the process that owns the records; over HTTP `InvalidRequest` (``not_over_http``)

    def step_once(self) -> None:
        """Run one round of the background's work: compact where it is due, clean up, and return unused space.

        The background compacts every second, cleans up every minute, and every hour looks for unmarked rows and
        maintains the records. Call this yourself if `RepositoryOptions.background` is False.

        Cost: without work, a few scans of the key-value store for each repository, and `KeyValue.maintain`.
        """
        self._catalog.local.step_once()

    @property
    def last_failure(self) -> LakebedError | None:
        """The last error of the background; None: there was none. A failed step runs again."""
        return self._catalog.local.last_failure

    # ---- of a server

    @property
    def access_keys(self) -> RemoteAccessKeys:
        """The access keys of the server. Raises `InvalidRequest` (``no_server``) when this process owns the records."""
        return self._catalog.access_keys

    # ---- repositories

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        read_only: bool = False,
        bare: bool = False,
    ) -> Repository:
        """Create a repository, with an empty first commit.

        Args:
            name: 3 to 63 lower-case letters, digits and hyphens.
            namespace: the folder of its objects, relative to the storage, ``local://folder`` for the same, or a URL
                inside the storage. None: ``<name>.repo``.
            default_branch: its name.
            metadata: texts of your own.
            committer: of the first commit.
            read_only: refuse all changes of the repository.
            bare: create it without a first commit and without branches, to restore a dump into
                (`Repository.restore_refs`). Its namespace may be one of lakeFS, whose files stay there.

        Raises:
            AlreadyExists: kind ``repository_exists``; or ``namespace_in_use``: another repository, perhaps a deleted
                one that is not cleaned up yet, or any other object is in that folder, above it or below it.
            InvalidRequest: kind ``invalid_repository_name``, ``invalid_branch_name``, ``invalid_namespace``,
                ``outside_storage``, ``oversized_metadata`` or ``create_only_ignored``, for a store that cannot be used.
            Conflict: kind ``repositories_moved``: other repositories were created at the same time, again and again.
            Unavailable, OutcomeUnknown: try again. The next attempt takes over what the first one left.

        Cost: 1 LIST + 3 PUT + 1 DELETE of the storage; 1 snapshot and 1 write of the key-value store.
        """
        create = CreateRepository(
            name=name,
            namespace=namespace,
            default_branch=default_branch,
            metadata=texts(metadata),
            committer=committer,
            read_only=read_only,
            bare=bare,
        )
        return Repository(self._catalog.create(create))

    def repository(self, name: str) -> Repository:
        """Return a repository by name.

        Raises:
            NotFound: kind ``repository_not_found``. The message names similar repositories.
            InvalidRequest: kind ``invalid_repository_name``.
            Corruption: its record is damaged.

        Cost: 1 linearizable read of the key-value store. Over HTTP 1 request, and 1 more for a missing repository.
        """
        return Repository(self._catalog.repository(name))

    def exists(self, name: str) -> bool:
        """Return whether there is a repository of this name. Cost: 1 linearizable read of the key-value store."""
        return self._catalog.exists(name)

    def list(self, *, prefix: str = "", after: str | None = None, amount: int | None = None) -> Iterator[Repository]:
        """Iterate over the repositories in the order of their names, at one moment.

        Args:
            after: only names greater than this.
            amount: most repositories to return; None: all.

        Raises:
            InvalidRequest: kind ``invalid_amount``.
            Corruption: a record is damaged.

        Cost: 1 snapshot and 1 scan of the key-value store; over HTTP 1 request for each page.
        """
        amount = check_amount(amount)
        transports = self._catalog.repositories(ListRepositories(prefix=prefix, after=after), amount=amount)
        return (Repository(transport) for transport in transports)

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a repository.

        Raises:
            NotFound: kind ``repository_not_found``.
            InvalidRequest: kind ``oversized_metadata``.
            Conflict: kind ``repository_moved``: its record changed at the same time, again and again.

        Cost: 1 read and 1 write of the key-value store.
        """
        self._catalog.call(SetMetadata(name=name, metadata=dict(metadata)))

    def update_metadata(self, name: str, changed: Mapping[str, str], *, removed: Iterable[str] = ()) -> None:
        """Set some keys of a repository's metadata, and remove others. Keys that others set meanwhile stay.

        Errors and cost as `set_metadata`.
        """
        self._catalog.call(UpdateMetadata(name=name, changed=dict(changed), removed=list(removed)))

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a repository. It is gone at once; its objects and records are deleted later.

        Until they are deleted, its namespace cannot be used again.

        Args:
            name: of the repository.
            force: delete a read-only repository too.

        Raises:
            NotFound: kind ``repository_not_found``.
            InvalidRequest: kind ``read_only_repository``.
            Conflict: kind ``repository_moved``: its record changed at the same time, again and again.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: 1 read and 1 write of the key-value store.
        """
        self._catalog.delete(name, force=force)

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Return the repositories that are deleted and not cleaned up yet. Cost: 1 scan of the key-value store."""
        return self._catalog.call(Deleted())

    # ---- the end

    def close(self) -> None:
        """End the background's work and close the records. What was acknowledged is durable.

        A second call does nothing.

        Raises:
            Fenced, Unavailable, OutcomeUnknown: errors of the key-value store.
        """
        self._catalog.close()


def local_catalog(repositories: Repositories) -> LocalCatalog:
    """The catalog that owns the records in this process: with storage, key-value store, settings and clock.

    Raises `InvalidRequest` (``not_over_http``) for repositories behind a server.
    """
    return repositories._catalog.local
