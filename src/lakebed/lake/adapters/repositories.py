"""The adapter of repositories: the head of the default branch, tags and branches, and collection.

Invariants: reads and dry runs do not take ownership, so they work while a server owns the repositories. A collection
becomes the owner. While another process is the owner, nothing is collected, and the report says so.
"""

from __future__ import annotations

import lakebed.lake
from lakebed.errors import Conflict, Corruption, NotFound, UnsupportedFormat
from lakebed.lake.adapters.port import Collection, StoreAdapter, StoreSummary
from lakebed.lake.stores import Stores, read_repositories, root_of
from lakebed.reclaim.model import CollectionReport, Explanation, Pin, Version
from lakebed.repo.outside.namespace import METADATA_FOLDER, namespace_folder


class RepositoryAdapter(StoreAdapter):
    """As `StoreAdapter`."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Cost: as `read_repositories`, and 1 read."""
        with read_repositories(lake) as repositories:
            if repositories is None or not repositories.exists(name):
                return None
            repository = repositories.repository(name)
            try:
                head = repository.branch().head()
            except NotFound:
                if repository.pins() or next(repository.versions(), None) is not None:
                    raise
                return StoreSummary("repository", name, None, None, 0, 0, 0)  # a bare repository
            return StoreSummary(
                "repository",
                name,
                head.id[: lakebed.lake.repositories.SHOWN_CHARACTERS],
                head.commit.created_at_ms,
                head.commit.metarange.entry_count,
                head.commit.metarange.size_bytes,
                len(repository.pins()),
            )

    def disk_bytes(self, lake: Stores, name: str) -> int:
        with read_repositories(lake) as repositories:
            if repositories is None:
                return 0
            context = lakebed.lake.repositories.context_of(repositories.repository(name))
            return sum(meta.size_bytes for meta in context.store.list(""))

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Cost: 1 read a commit."""
        with read_repositories(lake) as repositories:
            return [] if repositories is None else list(repositories.repository(name).versions())

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Cost: 2 scans of the records."""
        with read_repositories(lake) as repositories:
            return [] if repositories is None else repositories.repository(name).pins()

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Cost: as `Repository.why`."""
        if path.startswith(f"{METADATA_FOLDER}/"):
            return Explanation(
                path, (), "It is part of the records of all repositories: their database keeps what it needs."
            )
        url = f"{lake.url}/{path}"
        with read_repositories(lake) as repositories:
            if repositories is None:
                return None
            for repository in repositories.list():
                inner_path = url.removeprefix(f"{repository.url}/")
                if inner_path != url:
                    return repository.why(inner_path)
            for deleted_repository in repositories.deleted():
                folder = namespace_folder(deleted_repository.record.namespace, root_url=repositories.url)
                if path.startswith(f"{folder}/"):
                    return Explanation(
                        path,
                        (),
                        f"Its repository {deleted_repository.name} was deleted: the next collection deletes it.",
                    )
        return None

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Collect every repository, the remains of deleted ones, and the database of their records."""
        if not lake.has_repositories():
            return []
        repositories, reports = lakebed.lake.repositories, list[CollectionReport]()
        dry_run, progress = collection.dry_run, collection.progress
        try:
            repositories.collect(root_of(lake), reports, dry_run=dry_run, progress=progress)
        except NotFound:
            return []
        except (Conflict, Corruption, UnsupportedFormat) as error:
            # The other stores of the lake are still collected.
            return [*reports, CollectionReport.not_collected("repositories", error, dry_run=dry_run)]
        return [*reports, repositories.collect_records(root_of(lake), dry_run=dry_run, progress=progress)]
