"""Every setting of repositories. Pure data; each documents the cost of a change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.texts import format_value

DAY_MS: Final = 86_400_000
"""Rules are in days."""
_RANGE_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """Sizes of ranges, the files in which commits keep their entries.

    They are not stored. When they change, the next commits rewrite the ranges that they touch.
    """

    entry_count_min: int = 2_048
    """A range never breaks before it has so many entries."""
    raggedness: int = 16_384
    """A range breaks behind a path whose hash this divides: about so many entries a range. Smaller: a commit rewrites
    less around each change, and reads and lists more objects."""
    entry_count_max: int = 131_072
    """A range always breaks here."""
    bytes_max: int = 32 << 20
    """A range also breaks where its paths and values reach this size, at most 1 GiB. A commit holds a range twice in
    memory."""
    block_bytes: int = 64 << 10
    """Block size before compression. Smaller: less is read for one path, the index grows."""

    def __post_init__(self) -> None:
        """Refuse ranges that no commit could write: Arrow joins less than 2 GiB of values."""
        if self.bytes_max > _RANGE_BYTES_MAX:
            raise InvalidRequest(
                f"RangeOptions.bytes_max is {format_value(self.bytes_max)}, and a range has at most "
                f"{_RANGE_BYTES_MAX:,} bytes: choose less.",
                kind="invalid_option",
                option="bytes_max",
            )


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Settings of open repositories. They apply to all repositories of a storage."""

    ranges: RangeOptions = field(default_factory=RangeOptions)
    cache_bytes: int | None = None
    """Bytes of the cache of range blocks; None: the process's shared cache (`lakebed.lsm.cache`)."""
    write_tries_max: int = 3
    """Tries of a write whose token was sealed meanwhile."""
    publish_tries_max: int = 8
    """Tries of an operation that moves a branch and lost the race for its record."""
    sealed_tokens_max: int = 64
    """Most sealed tokens of a branch. With more, a commit compacts first. Reads of uncommitted paths look into each."""
    compaction_staged_min: int = 10_000
    """Number of staged entries of a branch from which on it is compacted."""
    compaction_tombstones_min: int = 1_000
    """Number of tombstones of a branch from which on it is compacted."""
    compaction_sealed_min: int = 8
    """Number of sealed tokens of a branch from which on it is compacted."""
    compaction_cooldown_ms: int = 60_000
    """Shortest time between the starts of two compactions of one branch, by any process."""
    background: bool = True
    """Compact and clean up in a thread of our own. False: the caller runs `step_once`."""
    undelete_days: int = 7
    """How long a deleted branch can be brought back; its head is kept as long."""
    diff_cache_count: int = 64
    """Number of small differences of two metaranges that are cached."""
    committer: str = ""
    """The default committer; empty: the user that runs the process."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that webhooks may reach although their addresses are private, loopback or otherwise not public: names,
    addresses or networks such as ``10.0.0.0/8``; a name or an address may have a port behind a colon. Webhooks are set
    by administrators of one repository, and the request leaves from this machine: list only what they may reach."""
    run_actions: bool = False
    """Run the actions in ``_lakefs_actions/`` of commits (`lakebed.repo.heads.actions`). A server does so; a program
    that sets it sends requests to the URLs that are written there, by the rules of webhooks."""
    import_from: tuple[str, ...] | None = None
    """URLs below which objects may be imported, or ``repository=URL`` for one repository; None: everywhere. With a
    list, nothing below the storage itself may be imported but what is in the list, and never the records, another
    repository or another store."""


@dataclass(frozen=True, slots=True)
class Access:
    """How this process reaches repositories: as the owner of their records, as a reader, or through a server."""

    read_only: bool = False
    """Own nothing and write nothing. Another process may own the records meanwhile. For reads, not for servers."""
    take_over: bool = False
    """Become the owner even if another process is the owner. That process can no longer write."""
    owner_wait_ms: int = 0
    """Milliseconds to wait for another owner that is not a server, such as a command or a job."""
    endpoint: str | None = None
    """The URL at which this process serves others; the error that refuses a second owner names it."""
    access_key: str | None = None
    """Access key for a server; None: from ``LAKEBED_ACCESS_KEY_ID``."""
    secret: str | None = field(default=None, repr=False)
    """Secret of the access key; None: from ``LAKEBED_SECRET_ACCESS_KEY``."""


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """Which objects a collection may delete."""

    grace: timedelta = timedelta(days=1)
    """Uploads younger than this are left alone; a slower upload is refused when it is staged. What a branch or tag
    gave up less than this ago is left alone too, at most `lakebed.repo.records.superseded.KEPT_DAYS`; a slower reader
    of it begins again, or gets `Conflict` (``version_went``) when it has returned rows already."""
