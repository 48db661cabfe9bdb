"""The log after a version's files, replayed into bounded memory tables, for readers.

Owns: `LogTail`, which knows which log objects have been read, and has the tables of their rows.

Invariants:
- Objects are applied in the order of their ids, without a gap. Ids have no gaps, so a missing one means that the
  current manifest is older than a collection.
- A record is applied only with a manifest that knows its epoch. A later writer published its epoch in a manifest before
  the record could exist, and may have restored another state before that.
- No row of a record at or below ``replay_after_wal_id`` stays in a table: the files have it, or a restore undid it.
- Tables are replaced and never cut, so an older view keeps the older tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from lakebed.errors import Conflict
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import wal_path
from lakebed.kv.model import Manifest
from lakebed.kv.recovery import fill, read_records
from lakebed.kv.wal_record import WalRecord
from lakebed.lsm.memtable import Memtable

LOG_MOVED: Final = "log_moved"
"""Kind of the `Conflict` after which the caller reads the newest manifest and tries again."""


@dataclass(slots=True)
class _Table:
    """A memtable, and the position at which each log object ends in it."""

    memtable: Memtable
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of a log object's id and the count of rows up to its end, ascending."""


class LogTail:
    """The rows of the log after one version. One thread at a time may change it; any thread may read its memtables.

    Args:
        table_bytes_max: size of one table. A record that does not fit begins a new one.
    """

    def __init__(self, location: DatabaseLocation, *, table_bytes_max: int) -> None:
        self._location = location
        self._table_bytes_max = table_bytes_max
        self._tables: list[_Table] = []
        self._read_through = 0

    @property
    def memtables(self) -> tuple[Memtable, ...]:
        """The memtables, newest first."""
        return tuple(table.memtable for table in reversed(self._tables))

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest row; 0 without rows."""
        return self._tables[-1].memtable.last_sequence if self._tables else 0

    def follow(self, newest: Manifest, *, replay_after: int, through: int | None = None) -> bool:
        """Drop the rows that are in files by now, and read the rows that the log has after them.

        Args:
            newest: the newest manifest, read *before* this call.
            replay_after: rows up to this log object are in the files that are read.
            through: last object that belongs to the version; None: to the end of the log.

        Returns:
            Whether there were new rows.

        Raises:
            Conflict: kind `LOG_MOVED` or ``log_collected``; the manifest is too old for the log. Read the newest one.
            Corruption, UnsupportedFormat: a record cannot be read.

        Cost: 1 LIST for each thousand objects, and 1 GET for each object with rows that was not read before.
        """
        self._drop_through(replay_after)
        came = False
        for record in read_records(
            self._location, newest, after=max(self._read_through, replay_after), through=through
        ):
            if record.epoch > newest.writer_epoch:
                raise self._conflict(record, newest)
            assert record.rows is not None
            self._apply(record.id, record.rows)
            self._read_through = record.id
            came = True
        return came

    def _conflict(self, record: WalRecord, newest: Manifest) -> Conflict:
        return Conflict(
            f"The log of {self._location.url} has a record of epoch {record.epoch}, and the manifest in hand is of "
            f"epoch {newest.writer_epoch}: read the newest version and try again.",
            kind=LOG_MOVED,
            url=self._location.url,
            epoch=record.epoch,
            path=wal_path(record.id),
        )

    def _apply(self, wal_id: int, rows: pa.RecordBatch) -> None:
        first = rows.column("sequence")[0].as_py()
        table = self._tables[-1] if self._tables else None
        if (
            table is None
            or first != table.memtable.last_sequence + 1
            or table.memtable.size_bytes + rows.nbytes > self._table_bytes_max
        ):
            table = _Table(Memtable(first))
            self._tables.append(table)
        fill(table.memtable, rows)
        table.ends.append((wal_id, table.memtable.row_count))

    def _drop_through(self, wal_id: int) -> None:
        remaining = [_cut(table, wal_id) for table in self._tables]
        self._tables = [table for table in remaining if table is not None]


def _cut(table: _Table, wal_id: int) -> _Table | None:
    """Return the part of a table above a log object: the table itself, a shorter copy, or None."""
    start = max((end for log_id, end in table.ends if log_id <= wal_id), default=0)
    if start == 0:
        return table
    memtable = table.memtable
    if start == memtable.row_count:
        return None
    shorter = Memtable(memtable.first_sequence + start)
    fill(shorter, memtable.log(start, memtable.row_count))
    return _Table(shorter, [(log_id, end - start) for log_id, end in table.ends if log_id > wal_id])
