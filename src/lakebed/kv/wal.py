"""The log of one database: numbered objects, each of which is a group of rows or a fence.

Owns: `WalLog`, which lists the ids, makes the append that makes a write durable, and the fence that ends an older
writer.

Invariants:
- An append is one create-only put, and needs no boundary: a writer has one append in flight, its ids have no gaps, and
  a newer writer's fence takes the next id. Fences are never deleted, so a writer that wakes late finds the fence.
- An id belongs to one write id. An append whose outcome is not known is repeated with the same bytes, or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from lakebed.errors import Conflict, Fenced, InternalError, NotFound, OutcomeUnknown
from lakebed.ids import new_uuid
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import WAL_FOLDER, parse_wal, parse_wal_name, wal_name, wal_path
from lakebed.kv.wal_record import FENCE_BYTES, WalRecord, decode_record, encode_fence, encode_record, find_write_id
from lakebed.objects.numbered_log import NumberedLog

_FENCE_TRIES_MAX = 100


class WalEntry(NamedTuple):
    """An object of the log in a listing."""

    id: int
    size_bytes: int
    modified_ms: int
    """Unix time in milliseconds, UTC, by the store's clock."""

    @property
    def is_fence(self) -> bool:
        """Whether the object is a fence, which has no rows."""
        return self.size_bytes == FENCE_BYTES


class WalLog:
    """The log of one database. Thread-safe, without state."""

    def __init__(self, location: DatabaseLocation) -> None:
        self._location = location
        self._log = NumberedLog(
            location.store,
            WAL_FOLDER,
            name_of=wal_name,
            id_of=parse_wal_name,
            write_id_of=find_write_id,
            environment=location.environment,
        )

    def entries(self, after: int = 0, *, through: int | None = None) -> list[WalEntry]:
        """List objects in ``(after, through]``, ascending, fences too; None: to the end. Cost: 1 LIST a thousand."""
        start_after = wal_path(after) if after > 0 else None
        entries = []
        for meta in self._location.store.list(WAL_FOLDER, start_after=start_after):
            id = parse_wal(meta.path)
            if id is None:
                continue
            if through is not None and id > through:
                break
            entries.append(WalEntry(id, meta.size_bytes, meta.modified_ms))
        return entries

    def ids(self, after: int = 0) -> list[int]:
        """Return the ids above `after`, ascending, fences too. Cost: 1 LIST a thousand."""
        return [entry.id for entry in self.entries(after)]

    def last_id(self, after: int = 0) -> int:
        """Return the last id; `after` if there is none above it. Cost: 1 LIST for each thousand ids above `after`."""
        entries = self.entries(after)
        return entries[-1].id if entries else after

    def exists(self, id: int) -> bool:
        """Whether an object with this id exists. Cost: 1 HEAD."""
        return self._log.exists(id)

    def read(self, id: int) -> WalRecord:
        """Read one record.

        Raises:
            NotFound: there is no such record, or it was collected.
            Corruption, UnsupportedFormat: the record cannot be read.
        Cost: 1 GET.
        """
        path = wal_path(id)
        return decode_record(self._log.read(id), path=path, id=id)

    def encode(self, rows: pa.RecordBatch, *, id: int, epoch: int) -> bytes:
        """Encode the bytes for `append`, with a new write id. Cost: no request.

        Args:
            rows: at least one, `ROW_SCHEMA`, sequences without gaps.
        """
        return encode_record(rows, id=id, epoch=epoch, write_id=new_uuid(self._location.environment.rng))

    def encode_empty(self, *, id: int, epoch: int) -> bytes:
        """Encode the bytes for `append` of a record without rows, which only takes its id. Cost: no request."""
        return encode_fence(id=id, epoch=epoch, write_id=new_uuid(self._location.environment.rng))

    def append(self, id: int, body: bytes) -> None:
        """Create a record. When this returns, its rows are durable, and no older writer's rows can follow them.

        Args:
            id: the id after this writer's last one, or after its own fence.
            body: from `encode`, for this id. After `OutcomeUnknown`, append the same bytes again, or nothing any more.

        Raises:
            Fenced: another writer's fence or record has the id. This writer is no longer the owner.
            Conflict: kind ``wal_id_taken``; another record of this epoch has the id.
            OutcomeUnknown: the store gave no clear answer. The rows may be durable.

        Cost: 1 PUT; after an unclear answer 1 PUT for each attempt; 2 GET more if another object was there.
        """
        write_id = find_write_id(body)
        if write_id is None:
            raise InternalError(f"what should be appended to {wal_path(id)} is not a log record")
        try:
            self._log.append(id, body, write_id=write_id)
        except Conflict as conflict:
            record = decode_record(body, path=wal_path(id), id=id)
            taker = self._read_taker(id)
            if taker is None or taker.epoch != record.epoch:
                raise self._fence_error(id, taker, epoch=record.epoch) from conflict
            raise Conflict(
                f"{wal_path(id)} holds another record of this writer (epoch {record.epoch}): it was appended twice.",
                kind="wal_id_taken",
                path=wal_path(id),
                id=id,
            ) from conflict

    def fence(self, id: int, epoch: int) -> WalRecord | None:
        """Try to create a fence at an id.

        Returns:
            None: the fence is ours. A record: this record has the id. If it is of an older writer that was faster, try
            the next id; if it is of a newer one, this claim has failed.

        Raises `OutcomeUnknown`. Cost: 1 PUT; 2 GET more if an object was there.
        """
        write_id = new_uuid(self._location.environment.rng)
        body = encode_fence(id=id, epoch=epoch, write_id=write_id)
        for _ in range(_FENCE_TRIES_MAX):
            try:
                self._log.append(id, body, write_id=write_id)
            except Conflict:
                taker = self._read_taker(id)
                if taker is None:
                    continue  # the object was collected during this call, and the id is free again
                return taker
            return None
        raise OutcomeUnknown(
            f"{wal_path(id)} was taken {_FENCE_TRIES_MAX} times and gone each time that it was read: open again.",
            kind="fence_unsettled",
            path=wal_path(id),
        )

    def _read_taker(self, id: int) -> WalRecord | None:
        try:
            return self.read(id)
        except NotFound:
            return None

    def _fence_error(self, id: int, taker: WalRecord | None, *, epoch: int) -> Fenced:
        writer = "another writer" if taker is None else f"the writer of epoch {taker.epoch}"
        return Fenced(
            f"The database {self._location.url} was taken over by {writer}, and this one (epoch {epoch}) may not write "
            "any more: open it again to write.",
            url=self._location.url,
            epoch=epoch,
            new_epoch=None if taker is None else taker.epoch,
            path=wal_path(id),
        )
