"""The repositories of a lake: opening all of them, to read or to change them, and their collection.

Loaded on first use. Invariants: reads and dry runs do not take ownership, so they work while another process owns the
repositories. A collection becomes the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.key_value.reader import ReadOnlyKeyValue
from lakebed.kv.options import CollectorOptions
from lakebed.lake.databases import admin, location
from lakebed.lake.root import LakeRoot
from lakebed.reclaim.model import CollectionReport
from lakebed.repo.drop import sweep_deleted
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.opening import sole_repository
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.outside.namespace import METADATA_FOLDER
from lakebed.repo.references.commits import SHOWN_CHARACTERS
from lakebed.repo.repositories import Repositories
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.repo.transport.transport import context_of

__all__ = ["SHOWN_CHARACTERS", "collect", "collect_records", "context_of", "open_all", "read_all", "sole_repository"]


def read_all(root: LakeRoot) -> Repositories:
    """Open all repositories to read. The caller closes them. Raises as `lakebed.kv.open_reader`."""
    return _repositories(root, ReadOnlyKeyValue(location(root, METADATA_FOLDER)), RepositoryOptions(background=False))


def open_all(root: LakeRoot, *, create: bool, options: RepositoryOptions | None) -> Repositories:
    """Open all repositories as their owner. The caller closes them. Raises as `lakebed.repo.open_all`."""
    key_value = open_key_value(root.store.sub(METADATA_FOLDER), environment=root.environment, create=create)
    return _repositories(root, key_value, options or RepositoryOptions())


def _repositories(root: LakeRoot, key_value: KeyValue, options: RepositoryOptions) -> Repositories:
    foreign = ForeignStores(
        like=root.store.root_url,
        storage_options=root.storage_options,
        allowed=None,
        environment=root.environment,
    )
    return Repositories(
        LocalCatalog(root.store, key_value, options=options, environment=root.environment, foreign=foreign)
    )


def collect(
    root: LakeRoot, reports: list[CollectionReport], *, dry_run: bool, progress: Callable[[Any], None] | None
) -> None:
    """Collect every repository and the remains of deleted repositories. Append a report for each to `reports`."""
    with _collecting(root, dry_run=dry_run) as repositories:
        for repository in repositories.list():
            reports.append(repository.collect(dry_run=dry_run, progress=progress))
        reports += sweep_deleted(repositories, dry_run=dry_run, progress=progress)


def collect_records(root: LakeRoot, *, dry_run: bool, progress: Callable[[Any], None] | None) -> CollectionReport:
    """Collect the database that holds the records of all repositories."""
    records = admin(root, METADATA_FOLDER, name=METADATA_FOLDER)
    return records.collect(CollectorOptions(), dry_run=dry_run, progress=progress)


@contextmanager
def _collecting(root: LakeRoot, *, dry_run: bool) -> Iterator[Repositories]:
    options = RepositoryOptions(background=False)
    with read_all(root) if dry_run else open_all(root, create=False, options=options) as repositories:
        yield repositories
