"""Reading the log back into memory, by a writer when it opens and by a reader when it polls.

Owns: `replay`, and the difference between a record that is missing (`Corruption`) and one that a newer version no
longer needs (`Conflict`).

Invariants:
- Every row of every record in the range is in the tables once, in the order of its sequence. Records of any epoch
  count. Fences have no rows.
- A new table begins where sequences jump (after rows that were never durable), and where the previous one is full. Each
  table knows the last log id that it covers.
- At most `READ_AHEAD_BYTES` of records are read concurrently, or one record that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from lakebed.errors import Conflict, Corruption, Fenced, NotFound
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import wal_path
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.wal import WalEntry, WalLog
from lakebed.kv.wal_record import WalRecord
from lakebed.lsm.columns import keys_of, numbers_of
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import Kind

READ_AHEAD_BYTES: Final = 32 << 20
"""Most bytes of log records that are read concurrently. More: faster recovery from distant stores, more memory."""

_READERS_MAX: Final = 8


def replay(
    location: DatabaseLocation,
    manifest: Manifest,
    *,
    through: int,
    table_bytes_max: int,
    epoch: int | None = None,
) -> list[Memtable]:
    """Read the rows of the log after the manifest's `replay_after_wal_id` up to `through` into memtables.

    Args:
        manifest: the version that is read. It decides what is needed of the log.
        through: the last id: a writer's own fence, or the last id that a reader saw.
        table_bytes_max: size at which a table is full, so that another one begins.
        epoch: epoch of the writer that recovers, so that it detects a newer writer; None: a reader calls.

    Returns:
        Tables, oldest first. The `last_wal_id` of each is the last id that it covers; that of the last is `through`.

    Raises:
        Corruption: a record that the version needs is missing (``wal_id``) or damaged.
        Conflict: kind ``log_collected``; a record was collected, because a newer version does not need it. Read that
            version.
        Fenced: the same, if that version is of a newer epoch than `epoch`.
        UnsupportedFormat: a newer lakebed wrote a record.

    Cost: 1 LIST for each thousand ids and 1 GET for each record with rows, several concurrently; 1 LIST + 1 GET if a
    record is missing.
    """
    tables: list[Memtable] = []
    for record in read_records(location, manifest, after=manifest.replay_after_wal_id, through=through, epoch=epoch):
        assert record.rows is not None
        _check_order(tables, record)
        table = tables[-1] if tables else None
        if table is None or table.size_bytes >= table_bytes_max or table.last_sequence + 1 != record.first_sequence:
            if tables:
                tables[-1].last_wal_id = record.id - 1
            tables.append(Memtable(record.first_sequence))
        fill(tables[-1], record.rows)
    if tables:
        tables[-1].last_wal_id = through
    return tables


def _check_order(tables: Sequence[Memtable], record: WalRecord) -> None:
    if tables and record.first_sequence <= tables[-1].last_sequence:
        path = wal_path(record.id)
        raise Corruption(
            f"{path} begins with the sequence {record.first_sequence}, and the record before it reached "
            f"{tables[-1].last_sequence}.",
            path=path,
            offset=48,
        )


def fill(table: Memtable, rows: pa.RecordBatch) -> None:
    """Write a record's rows to a table whose next sequence is that of the first row. Cost: about 0.2 us a row."""
    keys, _, kinds, values, expires = rows.columns
    table.extend(
        keys_of(keys),
        keys_of(values),
        kinds.to_pylist() if (numbers_of(kinds) != int(Kind.PUT)).any() else None,
        None if expires.null_count == len(expires) else expires.to_pylist(),
    )


def read_records(
    location: DatabaseLocation, manifest: Manifest, *, after: int, through: int | None, epoch: int | None = None
) -> Iterator[WalRecord]:
    """Read ahead and yield the records with rows in ``(after, through]``, in order.

    Arguments, errors and cost as `replay`.

    Args:
        through: None: to the present end of the log.
    """
    wal = WalLog(location)
    entries = wal.entries(after, through=through) if through is None or after < through else []
    if through is None:
        through = max(entries[-1].id if entries else after, manifest.wal_id_last_seen)
    expected = after + 1
    for entry in entries:
        if entry.id != expected:
            raise _missing(location, manifest, expected, epoch=epoch)
        expected += 1
    if expected <= through:
        raise _missing(location, manifest, expected, epoch=epoch)
    with_rows = [entry for entry in entries if not entry.is_fence]
    if len(with_rows) <= 1:  # the usual case of a poll, which needs no pool
        for entry in with_rows:
            yield _read(location, wal, manifest, entry, epoch=epoch)
        return
    pool = location.environment.runtime.pool(_READERS_MAX)
    try:
        for window in _windows(with_rows):
            yield from pool.map(lambda entry: _read(location, wal, manifest, entry, epoch=epoch), window)
    finally:
        pool.close()


def _windows(entries: Sequence[WalEntry]) -> Iterator[list[WalEntry]]:
    window: list[WalEntry] = []
    size_bytes = 0
    for entry in entries:
        if window and size_bytes + entry.size_bytes > READ_AHEAD_BYTES:
            yield window
            window, size_bytes = [], 0
        window.append(entry)
        size_bytes += entry.size_bytes
    if window:
        yield window


def _read(
    location: DatabaseLocation, wal: WalLog, manifest: Manifest, entry: WalEntry, *, epoch: int | None
) -> WalRecord:
    try:
        return wal.read(entry.id)
    except NotFound as missing:
        raise _missing(location, manifest, entry.id, epoch=epoch) from missing


def _missing(
    location: DatabaseLocation, manifest: Manifest, wal_id: int, *, epoch: int | None
) -> Corruption | Conflict | Fenced:
    """Return the error for a missing record. It depends on whether a version may still need the record."""
    path = wal_path(wal_id)
    newest = ManifestLog(location).latest()
    now_ms = location.environment.clock.now_ms()
    is_pinned = wal_id <= manifest.wal_id_last_seen and any(
        checkpoint.manifest_id == manifest.manifest_id and checkpoint.is_live(now_ms)
        for checkpoint in newest.checkpoints
    )
    if wal_id <= newest.replay_after_wal_id and not is_pinned:
        if epoch is not None and newest.writer_epoch > epoch:
            return Fenced(
                f"While {location.url} was being opened for writing, another process took it (epoch "
                f"{newest.writer_epoch}, ours was {epoch}): open it again only if that one should end.",
                url=location.url,
                epoch=epoch,
                new_epoch=newest.writer_epoch,
            )
        return Conflict(
            f"{path} was collected, for version {newest.manifest_id} of {location.url} has its rows in files: read "
            f"that one instead of {manifest.manifest_id}.",
            kind="log_collected",
            path=path,
            wal_id=wal_id,
            manifest_id=newest.manifest_id,
            epoch=newest.writer_epoch,
        )
    return Corruption(
        f"{path} is missing, and version {manifest.manifest_id} of {location.url} needs it: its rows are lost.",
        path=path,
        wal_id=wal_id,
    )
