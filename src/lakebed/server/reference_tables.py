"""`ReferenceTables`: tables in branches of repositories, under the names that catalogs of tables use.

Owns: the namespace ``repository.reference``, which has the tables in the folder `FOLDER` of a branch or, for reads, of
a tag or a commit. The name of a lake's database never contains a dot, so no name means both.

A client's commit to a table is staged on the branch; the repository's own verbs commit the branch. A client reads and
writes the files itself, through the S3 gateway, as ``s3://repository/reference/tables/...``. So the client's key, the
rules of the branch and the repository's records apply to every file.

Invariants:
- Every request opens its table again, because a reset or a merge of the branch may have replaced the table's files
  under the same names.
- A commit is acknowledged only if the files that it names are on the branch after it: an earlier reset is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import lakebed.compute as pc
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.lake.names import parse_table_name
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.layout import DERIVED_FOLDER
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.branch_store import BranchStore
from lakebed.repo.transport.transport import context_of
from lakebed.table.branch.candidates import paths_of
from lakebed.table.codec.manifest import ADD
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table

FOLDER: Final = "tables"
"""The folder of a reference whose subfolders are its tables."""
_UNKNOWN: Final = ("repository_not_found", "reference_not_found", "invalid_repository_name")


@dataclass(frozen=True, slots=True)
class Namespace:
    """The tables of a reference of a repository."""

    repository: str
    reference: str

    def __str__(self) -> str:
        return f"{self.repository}.{self.reference}"


def parse_namespace(text: str) -> Namespace | None:
    """``repository.reference``; None: the name of a database of the lake. The reference may have dots. Pure."""
    repository, dot, reference = text.partition(".")
    return Namespace(repository, reference) if dot else None


class ReferenceTables:
    """The tables of all repositories. Thread-safe; keeps nothing.

    Args:
        speaks_s3: whether the S3 gateway is served. Without it, no client reaches the files.
    """

    def __init__(self, repositories: Repositories, *, speaks_s3: bool) -> None:
        self._repositories = repositories
        self._speaks_s3 = speaks_s3

    def namespaces(self) -> Iterator[Namespace]:
        """Yield every branch of every repository, hidden ones excluded. Cost: 1 scan, and 1 a repository."""
        for repository in self._repositories.list():
            with suppress(NotFound):  # a repository that was deleted since it was listed has no branches
                for branch in repository.branches():
                    yield Namespace(repository.name, branch.name)

    def repositories(self) -> list[str]:
        """Names of all repositories, ascending. Cost: 1 scan."""
        return [repository.name for repository in self._repositories.list()]

    def branches(self, repository: str) -> list[str]:
        """Names of the branches of a repository, hidden ones excluded, ascending. Raises `NotFound`. Cost: 1 scan."""
        return [branch.name for branch in self._repositories.repository(repository).branches()]

    def check(self, namespace: Namespace) -> None:
        """Raise `NotFound` (``catalog_database_not_found``) for a repository or reference that does not exist."""
        self._store(namespace)

    def names(self, namespace: Namespace) -> list[str]:
        """Names of the folders that may be tables, ascending. Raises as `check`."""
        return sorted(self._store(namespace).list_with_delimiter("").folders)

    def has_table(self, namespace: Namespace, table: str) -> bool:
        """Whether a table exists. Raises as `check`."""
        return bool(self._store(namespace).list_with_delimiter(f"{_folder(table)}/schema").objects)

    def open(self, namespace: Namespace, table: str, *, branch: str | None = None) -> Table:
        """Return a table for a client of S3, or a branch of the table. Raises as `look`.

        Raises `InvalidRequest` (``not_served``) without the S3 gateway.
        """
        open_table = self.look(namespace, table, branch=branch)
        self._check_reachable()
        return open_table

    def look(self, namespace: Namespace, table: str, *, branch: str | None = None) -> Table:
        """Return a table, to read it here. Raises `NotFound`: as `check`; ``table_not_found``, ``branch_not_found``."""
        folder = self._store(namespace).sub(_folder(table))
        if not folder.list_with_delimiter("schema").objects:
            raise NotFound(
                f"There is no table {table!r} in {namespace}: it would be in the folder {FOLDER}/{table}.",
                kind="table_not_found",
                name=table,
            )
        environment = local_catalog(self._repositories).environment
        return Table.open(folder, name=f"{namespace}.{table}", branch=branch, environment=environment)

    def open_derived(self, namespace: Namespace) -> ObjectStore:
        """Return the folder of data derived from the tables of a repository. Raises `NotFound` as `check`."""
        try:
            repository = self._repositories.repository(namespace.repository)
            return context_of(repository).store.sub(DERIVED_FOLDER)
        except (NotFound, InvalidRequest) as error:
            raise self._not_found(namespace) from error

    def folder_to_create(self, namespace: Namespace, table: str) -> ObjectStore:
        """Return the empty folder of a new table.

        Raises `AlreadyExists` (``table_exists``); as `check`, and as `open`.
        """
        folder = self._store(namespace).sub(_folder(table))
        self._check_reachable()
        listing = folder.list_with_delimiter("")
        if listing.folders or listing.objects:
            raise AlreadyExists(
                f"The folder {FOLDER}/{table} of {namespace} is not empty: choose another name.",
                kind="table_exists",
                table=table,
            )
        return folder

    def url(self, namespace: Namespace, table: str = "") -> str:
        """Return the URL at which S3 clients find a table, or all tables."""
        return f"s3://{namespace.repository}/{namespace.reference}/{FOLDER}/{table}".rstrip("/")

    def _store(self, namespace: Namespace) -> ObjectStore:
        try:
            return self._repositories.repository(namespace.repository).ref(namespace.reference).store(FOLDER)
        except (NotFound, InvalidRequest) as error:
            if error.kind not in _UNKNOWN:
                raise
            raise self._not_found(namespace) from error

    @staticmethod
    def _not_found(namespace: Namespace) -> NotFound:
        return NotFound(
            f"There is no database {str(namespace)!r}: {namespace.repository!r} is no repository, or has no "
            f"branch, tag or commit {namespace.reference!r}.",
            kind="catalog_database_not_found",
            database=str(namespace),
        )

    def _check_reachable(self) -> None:
        if not self._speaks_s3:
            raise InvalidRequest(
                "Clients reach tables in branches through the S3 gateway, and this server has none: start it with "
                "--s3-key.",
                kind="not_served",
            )


def check_kept(table: Table, snapshot: Snapshot) -> None:
    """Raise `Conflict` (``branch_moved``) if a snapshot that was just committed names files that the branch lacks.

    A reset or merge between the client's uploads and its commit removes them, and could do so after a check before the
    commit. A snapshot that no longer exists was reset or expired after its commit, as any snapshot may be. Cost: 1 GET,
    and 1 lookup of all files together.
    """
    if _has_files(table, snapshot) or table.context.snapshots.find(snapshot.id) != snapshot:
        return
    raise Conflict(
        "The branch was reset or merged while the table was committed, and files of the commit are gone: reset the "
        "branch, then write again.",
        kind="branch_moved",
    )


def _has_files(table: Table, snapshot: Snapshot) -> bool:
    """Whether the files that a snapshot adds are on the branch."""
    store = table.store
    assert isinstance(store, BranchStore)
    try:
        entries = table.context.manifests.delta_entries(snapshot)
    except NotFound:
        return False
    files = paths_of(entries.filter(pc.equal(entries["kind"], ADD)), Placement.of(table.schema).folders)
    paths = files["path"].to_pylist()
    names = {path.rpartition("/")[2] for path in paths}  # a bucket may have several folders
    return names == {path.rpartition("/")[2] for path in store.entries(paths)}


def _folder(table: str) -> str:
    if "." in table:
        raise InvalidRequest(f"The name {table!r} has a dot: choose a name without.", kind="invalid_table_name")
    return parse_table_name(table).table
