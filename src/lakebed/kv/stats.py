"""What an open database says of itself. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DatabaseStats"]


@dataclass(frozen=True, slots=True)
class DatabaseStats:
    """What an open database is made of now. Cost: no request."""

    url: str
    epoch: int
    manifest_id: int
    """The newest version seen."""
    last_sequence: int
    """Of the newest write."""
    durable_sequence: int
    """Every write up to here is durable."""
    memtable_bytes: int
    """Memory of rows that are in no file."""
    memtables_waiting: int
    l0_count: int
    run_count: int
    file_count: int
    file_bytes: int
    log_objects_written: int
    """Since it was opened."""
    checkpoint_count: int
    """In the newest manifest seen, expired ones included."""
    cache_bytes: int
    """Of the block cache, which other databases of the process may share."""
    cache_bytes_max: int
    fenced: bool
    """A newer writer owns it: nothing can be written, reads may be out of date."""
