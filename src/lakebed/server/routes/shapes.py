"""From records of the engine to records of the interface. Pure, but for URLs, which stores make."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from lakebed.repo.model import Commit, Difference, DiffKind, Entry, RepositoryRecord
from lakebed.server.bodies import CommitRow, DiffRow, ObjectStats, RepositoryRow

__all__ = [
    "LOCAL_SCHEME",
    "commit_row",
    "diff_row",
    "engine_url",
    "object_stats",
    "prefix_stats",
    "repository_row",
    "shown_namespace",
]

LOCAL_SCHEME: Final = "local://"
"""In front of a namespace that is a folder of the server's own storage: clients insist on one of a few schemes."""

_TYPES: Final = {DiffKind.ADDED: "added", DiffKind.CHANGED: "changed", DiffKind.REMOVED: "removed"}


def object_stats(
    path: str, entry: Entry, *, address: str, with_metadata: bool = True, expires_at_s: int | None = None
) -> ObjectStats:
    """An object.

    Args:
        address: the URL of its bytes.
        expires_at_s: when that URL ends, in Unix seconds; None: it does not.
    """
    return ObjectStats(
        path=path,
        path_type="object",
        physical_address=address,
        checksum=entry.checksum,
        mtime=entry.modified_ms // 1000,
        size_bytes=entry.size_bytes,
        metadata=entry.metadata if with_metadata else UNSET,
        content_type=entry.content_type,
        physical_address_expiry=UNSET if expires_at_s is None else expires_at_s,
    )


def prefix_stats(path: str) -> ObjectStats:
    """A common prefix: clients require the fields of an object of it too."""
    return ObjectStats(path=path, path_type="common_prefix", physical_address="", checksum="", mtime=0)


def commit_row(commit_id: str, commit: Commit) -> CommitRow:
    """A commit."""
    return CommitRow(
        id=commit_id,
        parents=list(commit.parents),
        committer=commit.committer,
        message=commit.message,
        creation_date=commit.created_at_ms // 1000,
        meta_range_id=commit.metarange.id,
        metadata=commit.metadata,
        generation=commit.generation,
    )


def diff_row(difference: Difference) -> DiffRow:
    """A path that differs, or a common prefix below which something does."""
    if difference.is_prefix:
        return DiffRow("prefix_changed", difference.path, "common_prefix")
    entry = difference.right if difference.right is not None else difference.left
    size_bytes = UNSET if entry is None else entry.size_bytes
    return DiffRow(_TYPES[difference.kind], difference.path, "object", size_bytes)  # type: ignore[arg-type]


def repository_row(name: str, record: RepositoryRecord, *, root_url: str) -> RepositoryRow:
    """A repository of the storage at a URL."""
    return RepositoryRow(
        id=name,
        creation_date=record.created_at_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=shown_namespace(record.namespace, root_url=root_url),
        storage_id="",
        read_only=record.read_only,
    )


def engine_url(url: str) -> str:
    """An object's URL as the engine takes it: ``local://`` stands for the server's own disk."""
    return "file://" + url.removeprefix(LOCAL_SCHEME) if url.startswith(LOCAL_SCHEME) else url


def shown_namespace(namespace: str, *, root_url: str) -> str:
    """A namespace as clients write it: of a folder of a bucket its URL, of one on the server's disk ``local://``."""
    if "://" in namespace:
        return namespace
    return LOCAL_SCHEME + namespace if root_url.startswith(("file:", "memory:")) else f"{root_url}/{namespace}"
