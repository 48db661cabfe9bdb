"""Settings of a node. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.lsm.filter import BITS_PER_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Limits and intervals of one node, over all its tenants. It has the fields of `lakebed.lsm.tree.TreeOptions`."""

    memtable_bytes_max: int = 256 << 20
    """Memory of all rows that are in no file yet. From three quarters on the largest memtable is flushed; at the limit
    ingestion pauses."""

    memtable_bytes: int = 32 << 20
    """Size at which one memtable becomes a file. Larger: fewer files, larger pieces of memory."""

    cache_bytes: int = 128 << 20
    """Of the one cache of blocks, for all tenants."""

    worker_count: int = 4
    """Threads that run the steps of all tenants."""

    ingest_bytes: int = 4 << 20
    """Bytes of log records that one step reads. Larger: fewer requests, longer turns of one tenant."""

    attach_count_max: int = 8
    """Tenants whose manifests are loaded at once. After the failure of another node hundreds are attached in one
    moment; the others wait."""

    catch_up_count_max: int = 8
    """Tenants that read the log at once."""

    read_wait_ms: int = 750
    """How long a read waits for an LSN that is not ingested; clients ask again. Less than the time after which they
    take the node for hung."""

    change_wait_ms: int = 30_000
    """How long a change of the set of timelines waits for its commit."""

    retry_first_ms: int = 100
    """Wait before a step that failed is tried again; doubled with each failure."""

    retry_max_ms: int = 5_000
    """Longest such wait."""

    heartbeat_ms: int = 500
    """Between two heartbeats."""

    poll_ms: int = 20
    """Shortest time between two looks at the log for new rows."""

    lag_rows_reported: int = 10_000
    """Tenants with at least so many rows that are not ingested are named in heartbeats."""

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

    row_cache_bytes: int = 0
    """A tenant has no cache of single rows: blocks are cached for all tenants together."""

    transaction_history_bytes_max: int = 0
    """Flushed memtables are not kept: a tenant has no transactions of clients."""
