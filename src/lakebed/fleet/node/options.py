"""Settings of a node. Pure data. Each setting states its effect and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.lsm.filter import BITS_PER_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Limits and intervals of one node, for all its tenants. It has the fields of `lakebed.lsm.tree.TreeOptions`."""

    memtable_bytes_max: int = 256 << 20
    """Memory of all rows that are not yet in a file. From three quarters of it, the largest memtable is flushed. At the
    limit, ingestion pauses."""

    memtable_bytes: int = 32 << 20
    """Size at which a memtable becomes a file. Larger: fewer files, more memory in one piece."""

    cache_bytes: int = 128 << 20
    """Size of the cache of blocks, which all tenants share."""

    worker_count: int = 4
    """Threads that run the steps of all tenants."""

    ingest_bytes: int = 4 << 20
    """Bytes of log records that one step reads. Larger: fewer requests, and each tenant's turn takes longer."""

    attach_count_max: int = 8
    """Tenants whose manifests are loaded at the same time. After the failure of another node hundreds are attached at
    once; the others wait."""

    catch_up_count_max: int = 8
    """Tenants that read the log at the same time."""

    read_wait_ms: int = 750
    """How long a read waits for an LSN that is not ingested; then the client asks again. Less than the time after which
    clients consider the node hung."""

    change_wait_ms: int = 30_000
    """How long a change of the set of timelines waits for its commit."""

    retry_first_ms: int = 100
    """Pause before a failed step is tried again; doubled with each failure."""

    retry_max_ms: int = 5_000
    """Longest pause before a failed step is tried again."""

    heartbeat_ms: int = 500
    """Time between two heartbeats."""

    poll_ms: int = 20
    """Shortest time between two requests for new rows in the log."""

    lag_rows_reported: int = 10_000
    """Heartbeats name the tenants with at least this many rows that are not ingested."""

    l0_compaction_count: int = 4
    """Number of files of level 0 that starts their merge into a run."""

    run_compaction_count: int = 4
    """Number of runs of similar size that starts their merge into one."""

    run_file_bytes: int = 64 << 20
    """Size of the files of a run."""

    block_bytes: int = 64 << 10
    """Block size before compression. Smaller: a get reads less, and the index grows."""

    filter_bits_per_key: int = BITS_PER_KEY
    """Bits of the filter. With twelve, about 0.5 % of the lookups of absent keys read a page in vain; 0: no filter."""

    row_cache_bytes: int = 0
    """Size of the cache of single rows. None, because the cache of blocks serves all tenants."""

    transaction_history_bytes_max: int = 0
    """Bytes of flushed memtables that are kept. None, because a tenant has no transactions of clients."""
