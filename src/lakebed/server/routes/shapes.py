"""Conversions of the engine's records to those of the interface. Pure, except for URLs, which stores make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET, UnsetType

from lakebed.repo.model.model import Commit, Difference, DiffKind, Entry, RepositoryRecord
from lakebed.repo.staging.listing import Listed
from lakebed.server.bodies import CommitRow, DiffObjectStat, DiffRow, ObjectStats, RepositoryRow
from lakebed.server.places import format_namespace

_TYPES: Final = {kind: kind.name.lower() for kind in DiffKind}


def object_stats(
    path: str, entry: Entry, *, address: str, with_metadata: bool = True, expires_at_s: int | None = None
) -> ObjectStats:
    """Return the row of an object.

    Args:
        address: the URL of its bytes.
        expires_at_s: when that URL expires, in Unix seconds; None: never.
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


def listed_stats(lines: Sequence[Listed], *, addresses: Iterable[str], with_metadata: bool) -> list[ObjectStats]:
    """Return the rows of a page.

    Args:
        addresses: the URLs of the objects' bytes, in the order of the lines that are objects.

    Cost: about 0.5 us a line. Arguments are positional and there is no call in between, because a page has a thousand.
    """
    urls = iter(addresses)
    return [
        prefix_stats(line.path)
        if (entry := line.entry) is None
        else ObjectStats(
            line.path,
            "object",
            next(urls),
            entry.checksum,
            entry.modified_ms // 1000,
            entry.size_bytes,
            entry.metadata if with_metadata else UNSET,
            entry.content_type,
        )
        for line in lines
    ]


def prefix_stats(path: str) -> ObjectStats:
    """Return the row of a common prefix. Clients require the fields of an object here too."""
    return ObjectStats(path=path, path_type="common_prefix", physical_address="", checksum="", mtime=0)


def commit_row(commit_id: str, commit: Commit) -> CommitRow:
    """Return the row of a commit. The first commit has no committer, in the form that lakeFS's clients print."""
    return CommitRow(
        id=commit_id,
        parents=list(commit.parents),
        committer=commit.committer if commit.parents else "",
        message=commit.message,
        creation_date=commit.created_at_ms // 1000,
        meta_range_id=commit.metarange.id,
        metadata=commit.metadata,
        generation=commit.generation,
    )


def diff_row(difference: Difference, *, with_right: bool = False) -> DiffRow:
    """Return the row of a path that differs, or of a common prefix of such paths.

    Args:
        with_right: include the object that the right side has there, if any.
    """
    if difference.is_prefix:
        return DiffRow("prefix_changed", difference.path, "common_prefix")
    entry = difference.right if difference.right is not None else difference.left
    size_bytes = UNSET if entry is None else entry.size_bytes
    right: DiffObjectStat | UnsetType = UNSET
    if with_right and difference.right is not None:
        right_entry = difference.right
        right = DiffObjectStat(
            right_entry.checksum, right_entry.modified_ms // 1000, right_entry.content_type, right_entry.metadata
        )
    return DiffRow(_TYPES[difference.kind], difference.path, "object", size_bytes, right)  # type: ignore[arg-type]


def repository_row(name: str, record: RepositoryRecord, *, root_url: str) -> RepositoryRow:
    """Return the row of a repository in the storage at a URL."""
    return RepositoryRow(
        id=name,
        creation_date=record.created_at_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=format_namespace(record.namespace, root_url=root_url),
        storage_id="",
        read_only=record.read_only,
    )


def rfc_3339(time_ms: int) -> str:
    """Return a time as text for clients, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
