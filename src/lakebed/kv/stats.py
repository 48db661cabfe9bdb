"""Sizes and counts of an open database."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.kv.writer import WriterCore


@dataclass(frozen=True, slots=True)
class DatabaseStats:
    """Sizes and counts of an open database at one moment."""

    url: str
    epoch: int
    manifest_id: int
    """Number of the newest version seen."""
    last_sequence: int
    """Sequence of the newest write."""
    durable_sequence: int
    """Every write up to here is durable."""
    memtable_bytes: int
    """Memory of rows that are in no file yet."""
    memtables_waiting: int
    l0_count: int
    run_count: int
    file_count: int
    file_bytes: int
    log_objects_written: int
    """Log objects written since the database was opened."""
    checkpoint_count: int
    """Checkpoints in the newest manifest seen, including expired ones."""
    cache_bytes: int
    """Size of the block cache, which other databases of the process may share."""
    cache_bytes_max: int
    fenced: bool
    """Whether a newer writer owns the database. Then nothing can be written, and reads may be out of date."""


def stats_of(writer: WriterCore) -> DatabaseStats:
    """Return the present figures of an open database. Cost: no request."""
    manifest = writer.claim.log.seen or writer.claim.manifest
    with writer.lock:
        tree = writer.tree
        file_set = tree.file_set
        return DatabaseStats(
            url=writer.url,
            epoch=writer.claim.epoch,
            manifest_id=manifest.manifest_id,
            last_sequence=tree.last_sequence,
            durable_sequence=writer.commit.durable_sequence,
            memtable_bytes=tree.unflushed_bytes,
            memtables_waiting=tree.waiting_count,
            l0_count=tree.l0_count,
            run_count=len(file_set.runs),
            file_count=len(file_set.files()),
            file_bytes=file_set.size_bytes,
            log_objects_written=0 if writer.groups is None else writer.groups.appended_count,
            checkpoint_count=len(manifest.checkpoints),
            cache_bytes=writer.engine.cache.size_bytes,
            cache_bytes_max=writer.engine.cache.bytes_max,
            fenced=writer.commit.fenced is not None,
        )
