"""What repositories answer: the default branch's head, tags and branches, what a collection finds.

Invariants: questions and dry runs own nothing, so they are answered while a server owns the repositories; cleaning
becomes the owner, and where another process is the owner, the report says that they were not collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakebed.errors import Conflict, Corruption, NotFound, UnsupportedFormat
from lakebed.lake.adapters.port import Cleaning, StoreSummary
from lakebed.lake.stores import Stores
from lakebed.reclaim.model import Explanation, Pin, ReclaimReport, Version
from lakebed.repo.namespace import METADATA_FOLDER, namespace_folder

if TYPE_CHECKING:
    from lakebed.repo.repositories import Repositories

__all__ = ["RepositoryAdapter"]


class RepositoryAdapter:
    """As `StoreAdapter`."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Cost: as `Stores.reading_repositories`, and 1 read."""
        from lakebed.repo.commits import SHOWN_CHARACTERS  # repositories are loaded when a lake has some

        with lake.reading_repositories() as home:
            if home is None or not home.exists(name):
                return None
            repository = home.repository(name)
            head = repository.branch().head()
            return StoreSummary(
                "repository",
                name,
                head.id[:SHOWN_CHARACTERS],
                head.commit.created_at_ms,
                head.commit.metarange.entry_count,
                head.commit.metarange.size_bytes,
                len(repository.pins()),
            )

    def disk_bytes(self, lake: Stores, name: str) -> int:
        """As `StoreAdapter`."""
        with lake.reading_repositories() as home:
            if home is None:
                return 0
            return sum(meta.size_bytes for meta in home.repository(name).context.store.list(""))

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Cost: 1 read a commit."""
        with lake.reading_repositories() as home:
            return [] if home is None else list(home.repository(name).versions())

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Cost: 2 scans of the records."""
        with lake.reading_repositories() as home:
            return [] if home is None else home.repository(name).pins()

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Cost: as `Repository.why`."""
        if path.startswith(f"{METADATA_FOLDER}/"):
            return Explanation(
                path, (), "It is part of the records of all repositories: their database keeps what it needs."
            )
        url = f"{lake.url}/{path}"
        with lake.reading_repositories() as home:
            if home is None:
                return None
            for repository in home.list():
                inside = url.removeprefix(f"{repository.url}/")
                if inside != url:
                    return repository.why(inside)
            for deleted in home.deleted():
                folder = namespace_folder(deleted.record.namespace, root_url=home.url)
                if path.startswith(f"{folder}/"):
                    return Explanation(
                        path, (), f"Its repository {deleted.name} was deleted: a later cleaning deletes it."
                    )
        return None

    def clean(self, lake: Stores, cleaning: Cleaning) -> list[ReclaimReport]:
        """Of each repository what nothing needs, the remains of deleted ones, and what their records no longer need."""
        from lakebed.kv.options import CollectorOptions
        from lakebed.repo.drop import sweep_deleted

        reports: list[ReclaimReport] = []
        try:
            with _opened(lake, dry_run=cleaning.dry_run) as home:
                if home is None:
                    return []
                for repository in home.list():
                    reports.append(repository.collect_garbage(dry_run=cleaning.dry_run, progress=cleaning.progress))
                reports += sweep_deleted(home, dry_run=cleaning.dry_run, progress=cleaning.progress)
        except NotFound:
            return []
        except (Conflict, Corruption, UnsupportedFormat) as error:
            # The other stores of the lake are cleaned all the same.
            return [*reports, ReclaimReport.not_collected("repositories", error, dry_run=cleaning.dry_run)]
        records = lake.records().collect_garbage(
            CollectorOptions(), dry_run=cleaning.dry_run, progress=cleaning.progress
        )
        return [*reports, records]


@contextmanager
def _opened(lake: Stores, *, dry_run: bool) -> Iterator[Repositories | None]:
    """The repositories to collect; a dry run owns nothing, so it works while a server or a job owns them."""
    if dry_run:
        with lake.reading_repositories() as home:
            yield home
        return
    from lakebed.repo.options import RepositoryOptions

    with lake.open_repositories(create=False, options=RepositoryOptions(background=False)) as home:
        yield home
