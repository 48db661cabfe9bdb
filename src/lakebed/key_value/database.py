"""The key-value port over a `kv` database: the default, on a folder or a bucket, owned by one process.

Owns: the settings for records and staged rows, and the mapping of the port's promises to a database. Every call maps to
one call of `Database`: a read to a linearizable read, a write to a conditional batch. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import Fenced, OutcomeUnknown, Unavailable
from lakebed.key_value.port import (
    KeyValue,
    KeyValueSnapshot,
    check_key,
    validate_bounds,
    validate_change,
    validate_columns,
)
from lakebed.kv import Database, DatabaseOptions, DatabaseReader, Snapshot, WriteBatch
from lakebed.kv.options import CollectorOptions
from lakebed.kv.reclaim import PINNED

DATABASE_OPTIONS: Final = DatabaseOptions(
    # A row has a few hundred bytes, so a quarter of the usual bytes already holds enough rows for a good file, and a
    # process that stages a million rows stays small.
    l0_sst_bytes=32 << 20,
    unflushed_bytes_max=128 << 20,
    transaction_history_bytes_max=64 << 20,
    # Every write reads heads and boundaries. Entries that are read again stay in memory as rows.
    row_cache_bytes=32 << 20,
)
"""Settings of the database of repositories."""

COLLECTOR_OPTIONS: Final = CollectorOptions(grace=timedelta(hours=1))
"""Options for collections. Readers that pin nothing (`lakebed.key_value.reader`) have an hour."""

LOG_COUNT_MAX: Final = 20_000
"""Most log objects that one collection deletes.

A busy server writes a million in an hour. To examine all of them at once would take more memory than all its caches.
"""


def _read_failed(error: OutcomeUnknown) -> Unavailable:
    """Translate the unknown outcome of a write for a read that waited for that write: the read changed nothing."""
    return Unavailable(error.message, kind=error.kind, **error.facts)


class DatabaseSnapshot(KeyValueSnapshot):
    """The state of a database at one moment: a snapshot of an open one, or a reader that stays at its version."""

    def __init__(self, snapshot: Snapshot | DatabaseReader) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        return self._snapshot.get(check_key(key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Cost: neighbouring blocks are read together."""
        return self._snapshot.get_many([check_key(key) for key in keys])

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        validate_bounds(start, end)
        return self._snapshot.scan(start, end)

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """The database's own batches, without a copy."""
        validate_bounds(start, end)
        return (batch for batch in self._snapshot.scan_arrow(start, end) if batch.num_rows)

    def close(self) -> None:
        """Scans that have begun continue."""
        self._snapshot.close()


class DatabaseKeyValue(KeyValue):
    """The port over an open database; see `lakebed.key_value.port.KeyValue` for what each call promises.

    Args:
        database: open; closed by `close`.
        is_local: whether its store is on this machine.
    """

    def __init__(self, database: Database, *, is_local: bool) -> None:
        self.database = database
        self.is_local = is_local

    @property
    def lost(self) -> Fenced | None:
        return self.database.fenced

    def get(self, key: bytes) -> bytes | None:
        """Cost: 1 HEAD; on a local folder about 15 us. Does not wait for writes in progress."""
        check_key(key)
        try:
            with self.database.snapshot(linearizable=True) as now:
                return now.get(key)
        except OutcomeUnknown as error:
            raise _read_failed(error) from error

    def peek(self, key: bytes) -> bytes | None:
        """Cost: 0.3 us from memory."""
        return self.database.get(check_key(key))

    def snapshot(self) -> DatabaseSnapshot:
        """Cost: 1 HEAD; on a local folder about 15 us. Does not wait for writes in progress."""
        try:
            return DatabaseSnapshot(self.database.snapshot(linearizable=True))
        except OutcomeUnknown as error:
            raise _read_failed(error) from error

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """Cost: about 10 us, and 1 PUT that concurrent writes share."""
        change = validate_change(puts, deletes, expected)
        batch = WriteBatch()
        for key, value in change.puts.items():
            batch.put(key, value)
        for key in change.deletes:
            batch.delete(key)
        self.database.write_if(batch, expected=expected)

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """Cost: about 1 us a row, and one log object for any number of rows."""
        batch = WriteBatch()
        batch.put_many(*validate_columns(keys, values, expected))
        self.database.write_if(batch, expected=expected)

    def maintain(self) -> None:
        """Delete log objects, files and manifests that no version needs.

        Cost: 4 LIST and 1 GET. If anything is deleted, about 6 requests more and 1 DELETE for every thousand objects;
        the same again for each part of the log.
        """
        count_max = LOG_COUNT_MAX
        while True:
            report = self.database.admin.collect(replace(COLLECTOR_OPTIONS, log_count_max=count_max))
            reach = LOG_COUNT_MAX + report.kept.get(PINNED, 0)  # what is pinned stays before the rest
            if report.deleted_count < LOG_COUNT_MAX and reach <= count_max:
                return
            count_max = reach

    def close(self) -> None:
        self.database.close()

    def __repr__(self) -> str:
        return f"DatabaseKeyValue({self.database!r})"
