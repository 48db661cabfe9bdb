"""Every setting of a database, reader, checkpoint and collector. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lakebed.lsm.filter import BITS_PER_KEY


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Settings of a writer. Only `merge_operator` and `wal_enabled` are stored."""

    wal_enabled: bool = True
    """False: no log; a write is durable when its memtable was flushed to a file. Fewer requests, longer waits."""

    wal_flush_interval_ms: int = 100
    """Longest time that a write which is not awaited stays out of the log. A waiting writer flushes at once."""

    wal_flush_spacing_ms: int = 0
    """Shortest time between two log objects. Above zero it limits the bill, and every durable write waits that long."""

    wal_bytes_max: int = 8 << 20
    """Pending bytes at which the log is flushed although no writer waits."""

    flush_interval_max_ms: int = 60_000
    """Longest time that a memtable stays unflushed where there is no log, and that an unforced checkpoint waits."""

    l0_sst_bytes: int = 64 << 20
    """Size at which the memtable becomes a file of level 0. Larger: fewer files, more memory, longer recovery."""

    unflushed_bytes_max: int = 256 << 20
    """Writers wait while memtables hold more than this."""

    l0_count_max: int = 24
    """Writers wait while level 0 has more files than this: compaction is behind."""

    l0_compaction_count: int = 4
    """Files of level 0 at which they are merged into a run."""

    run_compaction_count: int = 4
    """Runs of about one size at which they are merged into one."""

    run_file_bytes: int = 64 << 20
    """Size of the files of a run."""

    block_bytes: int = 64 << 10
    """Block size before compression. Smaller: less is read for one key, the index grows."""

    filter_bits_per_key: int = BITS_PER_KEY
    """At twelve about 0.5 % of lookups of an absent key read a page in vain; 0: no filter."""

    file_count_max: int = 16_384
    """Most files of one version. With more, a flush would write more manifest than data."""

    merge_operator: str | None = None
    """Name of a registered operator; stored with the database by the first writer that names one."""

    manifest_poll_interval_ms: int = 10_000
    """How often the writer looks for what a separate compactor has published."""

    lease_lifetime_ms: int = 30_000
    """How long the owner's lease lives without renewal; it is renewed at a third. 1 GET + 1 PUT each time.
    At most an hour."""

    cache_bytes: int | None = None
    """Bytes of the cache of blocks and open files; None: the process's shared cache (`lakebed.lsm.cache`). With 5 % of
    the data lookups are quickest; below 0.5 % (of files on a remote store 3 %) files are opened again and again."""

    row_cache_bytes: int = 16 << 20
    """Bytes of the cache of single rows, for keys that are read again and again; 0: none."""

    transaction_history_bytes_max: int = 256 << 20
    """Flushed memtables kept so that open transactions can be checked without reading files. A transaction that
    outlives them is refused."""

    background: bool = True
    """Flush, compact, poll and renew in a thread of our own. False: the caller runs the step functions, and a writer
    that would have to wait for one runs it itself."""

    compaction: bool = True
    """Compact in this process. False: a separate compactor does (``lakebed kv compact``)."""

    endpoint: str | None = None
    """Where this process can be reached, if it serves others. The lease has it, for processes that it turns away."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Settings of a new checkpoint."""

    lifetime: timedelta | None = None
    """None: never expires."""
    source: str | None = None
    """An existing checkpoint, by id or name, whose version is pinned again; None: the latest."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Settings of a reader."""

    manifest_poll_interval: timedelta = timedelta(seconds=10)
    """How often to look for new files and log objects. 2 LIST each time."""
    checkpoint_lifetime: timedelta | None = timedelta(minutes=10)
    """Of the reader's own checkpoint; refreshed at half. Greater than twice the poll interval. None: never expires, and
    must be removed by hand if the reader dies."""
    max_memtable_bytes: int = 64 << 20
    """Size of one table of replayed log rows; full ones are put aside and a new one begins."""
    follow_latest: bool = False
    """Write nothing, hold no checkpoint: re-read the manifest when a file is gone."""
    cache_bytes: int | None = None
    """Bytes of the cache of blocks and open files, as `DatabaseOptions.cache_bytes`."""
    background: bool = True
    """Poll in a thread of our own. False: the caller runs `poll_once`."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """Which objects a collection may delete."""

    grace: timedelta = timedelta(days=1)
    """Younger objects stay. Zero is safe too."""
    destroyed_grace: timedelta = timedelta(days=1)
    """How long a softly destroyed database stays."""
    log_count_max: int | None = None
    """Objects of the log that one collection judges, the oldest first, fences not counted; None: all. A million of them
    take 300 MB of memory."""
