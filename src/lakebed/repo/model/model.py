"""The data of a repository: entries, tokens, branches, commits, ranges, differences. Pure data.

Owns: the records of the key-value store. Their field names, and the order of fields if a struct is an array, are
stored: DO NOT CHANGE them; add fields at the end, with a default.

Invariants: a path is text in the interface and UTF-8 bytes in every key, so paths are ordered by their bytes. A staging
token is never used again. The sealed tokens of a branch are ordered newest first. Committed data is immutable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec
import pyarrow as pa

from lakebed.lsm.model import FileMeta

ROWS_SCHEMA: Final = pa.schema(
    [pa.field("path", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""Sorted paths, each once, with encoded entries (`lakebed.repo.model.entry`); `TOMBSTONE` marks a deleted path."""

TOMBSTONE: Final = b""
"""The value of a deleted path, in staging tokens and in changes. Committed rows have none."""

DIFF_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),  # a DiffKind
        pa.field("left", pa.binary()),  # encoded entry; null: added
        pa.field("right", pa.binary()),  # encoded entry; null: removed
    ]
)
"""Differences, sorted by path, each path once."""


class DiffKind(IntEnum):
    """What happened to a path from the left side to the right side."""

    ADDED = 0
    CHANGED = 1
    REMOVED = 2
    CONFLICT = 3
    """Of three-dot differences: the left side has changed it too, and differently."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object of a repository: where its bytes are, and what is known of them.

    It holds nothing that could lead back to it, so the garbage collector need not look: listings make millions of them.
    """

    address: str
    """``data/<ulid>`` inside the repository's storage namespace, or the URL of an imported object, never deleted."""
    size_bytes: int
    checksum: str
    """MD5 of the bytes, hexadecimal; of an imported object what its store calls the etag."""
    modified_ms: int
    """Unix time in milliseconds, UTC."""
    content_type: str = "application/octet-stream"
    metadata: dict[str, str] = {}
    """The user's own."""


class StagingToken(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A namespace of uncommitted writes of one branch."""

    id: str
    """A ULID; never used again once it is dropped."""
    clears: str | None = None
    """A prefix whose paths are hidden in every older layer (``""``: all of them); None: none. The token's own writes
    are not hidden. Written with the token, so it never changes."""


class MetarangeRef(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The reference to a metarange that commits and branches hold."""

    id: str
    """Content hash (hexadecimal). Equal ids mean equal paths and entries, whatever objects hold them."""
    file: FileMeta | None = None
    """Its sorted file, whose id is ``<hash>-<ulid>``; None: there are no entries and no file."""
    entry_count: int = 0
    size_bytes: int = 0
    """Sum of the sizes of the objects."""
    range_count: int = 0


class RangeMeta(msgspec.Struct, frozen=True):
    """A range, as its metarange stores it: the value under the range's largest path."""

    id: str
    """Content hash (hexadecimal) of its paths and values."""
    file: FileMeta
    """Its sorted file, whose id is ``<hash>-<ulid>``; first and last key are its smallest and largest path."""
    size_bytes: int
    """Sum of the sizes of the objects."""
    ends_open: bool = False
    """The range is a metarange's last, and ended because there were no more rows, not at a break. Rows added behind it
    would belong to it, up to the next break."""

    @property
    def entry_count(self) -> int:
        """Number of entries in the range."""
        return self.file.row_count


class Branch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of a branch. Every change compares the whole record."""

    commit_id: str
    staging: StagingToken
    sealed: tuple[StagingToken, ...] = ()
    """Newest first."""
    compacted: MetarangeRef | None = None
    """The head's entries after the changes of the dropped tokens; None: the head's entries themselves."""
    compaction_started_at_ms: int | None = None
    hidden: bool = False
    created_at_ms: int = 0
    closed_at_ms: int | None = None
    """When a deletion that requires an empty branch closed it. No row is staged until the deletion ends, or until
    `lakebed.repo.references.branches.CLOSED_MS` later."""


class Tag(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a tag."""

    commit_id: str
    created_at_ms: int = 0
    owner: str = ""
    expires_at_ms: int | None = None


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit. Its id is the hash of its contents."""

    parents: tuple[str, ...]
    metarange: MetarangeRef
    message: str
    committer: str
    created_at_ms: int
    generation: int
    """1 + the largest of its parents'; of the first commit 1."""
    metadata: dict[str, str] = {}
    stored_at_ms: int | None = None
    """When the commit was made, by the clock of the process that made it, and not before its parents: Unix time in
    milliseconds, UTC. Its age is counted from here; `created_at_ms` is given by the client, and may be any time. Not
    part of the id. None: the record is older than this field."""
    lakefs_metarange_id: str = ""
    """Of a commit that was restored from lakeFS, whose id it has: the metarange there that its id was made of."""


class RepositoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a repository."""

    uid: str
    """A ULID, so that the remains of a deleted repository of the same name are never used."""
    namespace: str
    """The place of its objects: a folder relative to the storage of all repositories, or a URL."""
    default_branch: str
    created_at_ms: int
    read_only: bool = False
    metadata: dict[str, str] = {}
    is_shared: bool = False
    """Its namespace held lakeFS's files when the repository was made. Files of others are never deleted there."""


class DeletedRepository(msgspec.Struct, frozen=True):
    """A deleted repository whose objects, and then records, are still to be deleted."""

    name: str
    record: RepositoryRecord
    deleted_at_ms: int


class CatalogRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of a catalog of repositories."""

    id: str
    """A ULID. Markers in storage name it, so that two catalogs over one storage never take each other's namespace."""
    created_count: int = 0
    """Number of repositories created so far. If it changes, a creation learns that there was another one meanwhile."""


class Difference(msgspec.Struct, frozen=True):
    """One path that differs, or a common prefix below which paths differ."""

    kind: DiffKind
    path: str
    left: Entry | None = None
    right: Entry | None = None
    is_prefix: bool = False

    def __repr__(self) -> str:
        return f"Difference({self.kind.name}, {self.path!r}{', is_prefix=True' if self.is_prefix else ''})"
