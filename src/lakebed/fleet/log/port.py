"""The port: what clients and nodes need of the log that holds rows until they are committed.

Owns: the protocol `Log`, the form of rows that are appended, the limits, and the checks and errors that every
implementation shares. Invariants, which one contract suite checks for all implementations:

- A timeline is a sequence of rows with the LSNs ``after + 1, after + 2, ...``, without gaps. An append adds one record
  of rows at its end, or nothing.
- An append is durable when it returns; no later reader misses it, and it is never reordered.
- Of several appends that expect the same last LSN, at most one succeeds.
- The same write id gives the same LSN as before, without a second record, while not more than `WRITE_ID_WINDOW_S`
  seconds passed, however many appends came between. So after a lost reply the caller asks again. If the append's record
  was pruned meanwhile, the last pruned LSN may be returned: reads at it see the append.
- `Log.read` returns whole records, without a hole. It never returns what can still be lost.
- After `Log.seal` or `Log.drop` has returned, no append to the timeline succeeds, not even one that was on its way.
  Neither is ever undone: both follow a fact of the ledger that is never undone.
- Every implementation may be called by many threads concurrently.

A timeline is named by its log key ``<tenant>/<timeline id>`` (`lakebed.fleet.layout.log_key`). Ids are never
reused: a dropped timeline is never created a second time, so the log keeps a mark of each one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound, Unavailable
from lakebed.fleet.layout import check_name
from lakebed.fleet.log.record import LogRecord
from lakebed.lsm.block import offsets_of
from lakebed.lsm.model import KEY_BYTES_MAX, ROW_SCHEMA, Kind, check_key, check_value

APPEND_BYTES_MAX: Final = 8 << 20
"""Most bytes of keys and values in one append. An implementation may allow less (`Log.append_bytes_max`)."""

APPEND_ROW_COUNT_MAX: Final = 1 << 18
"""Most rows of one append."""

READ_BYTES_DEFAULT: Final = 4 << 20
"""Bytes of records that one `Log.read` returns, unless asked for more or less."""

READ_BYTES_MAX: Final = 32 << 20
"""Most bytes of records that one `Log.read` can be asked for."""

WAIT_S_MAX: Final = 60.0
"""Longest time of one `Log.wait`."""

WRITE_IDS_KEPT: Final = 4_096
"""Appends to a timeline for which a log over the key-value port remembers a write id longer."""

WRITE_ID_WINDOW_S: Final = 120.0
"""Seconds for which a write id is remembered: those for which clients and logs retry an append (30 s, and at most 30 s
for the last attempt), twice."""


_DELETE: Final = int(Kind.DELETE)


class LogBounds(NamedTuple):
    """The LSNs that a timeline has: ``[first, last]``; ``first == last + 1`` while it has none."""

    first: int
    """The first LSN that can be read. Earlier ones were pruned, or belong to an ancestor."""
    last: int


class Log(Protocol):
    """A log of timelines. Implementations inherit it. Every call raises `Closed` after `close`.

    Every call may raise `Unavailable` (it had no effect: try again), and for a timeline that was not created, or was
    dropped, `NotFound` (``timeline_not_found``). `append`, `create`, `seal`, `prune` and `drop` may also raise
    `OutcomeUnknown` (it may have happened: call again with the same arguments).
    """

    append_bytes_max: int = APPEND_BYTES_MAX
    """Most bytes of keys and values in one append."""

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Begin a timeline. If it was begun with the same `after` already, do nothing.

        Args:
            timeline: its log key.
            after: the LSN of a branch's ancestor at which it begins; the first row appended has LSN ``after + 1``.

        Raises:
            AlreadyExists: ``timeline_exists``: it was begun at another LSN.
            NotFound: ``timeline_not_found``: it was dropped.
        """

    def append(self, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None = None) -> int:
        """Add rows at the end of a timeline, durably, as one record.

        Args:
            timeline: its log key.
            rows: puts and deletes in the order in which they take effect, of `lakebed.lsm.model.ROW_SCHEMA`, made by
                `rows_of`. Their sequences are replaced by LSNs.
            write_id: a UUID, new for each append, and the same when it is asked again.
            expected: append only if the last LSN is this one; None: behind whatever is there.

        Returns:
            The LSN of the last row.

        Raises:
            Conflict: ``unexpected_lsn``, with ``last=``: the last LSN is another one; nothing was appended.
                ``timeline_sealed``, with ``last=``: the timeline takes no rows any more, and this append was not and
                will not be made. (One that was made before the seal is answered by its write id, as always.)
            InvalidRequest: the rows, or one of them, cannot be appended: the kind says why.
        """

    def read(self, timeline: str, after: int, *, bytes_max: int = READ_BYTES_DEFAULT) -> list[LogRecord]:
        """Return whole records after an LSN, in order, without a hole; an empty list if there are none.

        Args:
            after: the LSN of a record's last row, or that at which the timeline begins. In the middle of a record, the
                first record returned is the one that has it.
            bytes_max: of all records; the first is returned however large it is.

        Raises:
            Conflict: ``log_pruned``, with ``first=``: records behind `after` were pruned.
            Corruption: ``log_forked``, with ``last=``: the timeline ends before `after`, so it has lost records. A
                record is damaged.
        """

    def wait(self, timeline: str, after: int, *, timeout_s: float) -> int:
        """Wait until the last LSN differs from `after`, at most `timeout_s` seconds. Return the last LSN."""
        lasts = self.wait_many({timeline: after}, timeout_s=timeout_s)
        return lasts[timeline] if timeline in lasts else self.bounds(timeline).last

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        """Wait until the last LSN of a timeline differs from that in `after`. Return the last LSNs that differ.

        Timelines that are not there are left out. Empty after `timeout_s` seconds, which are at most `WAIT_S_MAX`.
        """

    def prune(self, timeline: str, through: int) -> None:
        """Forget the records up to an LSN. A record that ends after it stays whole. Idempotent.

        An implementation may keep the last record of a timeline.

        Only what is in a committed transaction may be pruned.

        Raises:
            Corruption: ``log_forked``: the timeline ends before `through`, so it has lost records.
        """

    def seal(self, timeline: str) -> int:
        """End a timeline: no append succeeds from now on. What it has stays readable. Idempotent.

        Returns:
            The last LSN, for ever.
        """

    def drop(self, timeline: str) -> None:
        """Delete a timeline with all its records, and keep a mark that it existed. Idempotent."""

    def bounds(self, timeline: str) -> LogBounds:
        """Return the first and last LSN."""

    def close(self) -> None:
        """Release connections and threads. Closing twice is a no-op."""


def rows_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Rows to append: a value for each key, or None to delete it. Later rows of a key win over earlier ones.

    Raises:
        InvalidRequest: not one value a key, or a key or value is invalid.
    """
    if len(keys) != len(values):
        raise InvalidRequest(
            f"There are {len(keys):,} keys and {len(values):,} values: give one value for each key.",
            kind="unequal_lengths",
        )
    for key in keys:
        check_key(key)
    for value in values:
        if value is not None:
            check_value(value, bytes_max=APPEND_BYTES_MAX)
    kinds = np.fromiter((Kind.DELETE if value is None else Kind.PUT for value in values), np.uint8, len(values))
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(np.zeros(len(keys), np.uint64)),
        pa.array(kinds),
        pa.array([value or b"" for value in values], pa.binary()),
        pa.nulls(len(keys), pa.int64()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
    return check_rows(rows)


def check_rows(rows: pa.RecordBatch, *, bytes_max: int = APPEND_BYTES_MAX) -> pa.RecordBatch:
    """Return the rows if they can be appended.

    Raises:
        InvalidRequest: ``wrong_type``, ``empty_append``, ``oversized_append``, ``empty_key``, ``oversized_key``,
            ``row_with_lifetime``, ``row_is_merge``, ``delete_with_value``.
    """
    if not isinstance(rows, pa.RecordBatch) or not rows.schema.equals(ROW_SCHEMA):
        raise InvalidRequest("Rows to append are made by lakebed.fleet.log.port.rows_of.", kind="wrong_type")
    if not 0 < rows.num_rows <= APPEND_ROW_COUNT_MAX:
        raise InvalidRequest(
            f"The append has {rows.num_rows:,} rows, and 1 to {APPEND_ROW_COUNT_MAX:,} are possible.",
            kind="oversized_append" if rows.num_rows else "empty_append",
        )
    keys, _, kinds, values, expires = rows.columns
    if any(column.null_count for column in (keys, rows.column(1), kinds, values)):
        raise InvalidRequest("A key, kind or value of the rows to append is null: fill it in.", kind="wrong_type")
    key_offsets, value_offsets = offsets_of(keys), offsets_of(values)
    size = int(key_offsets[-1] - key_offsets[0]) + int(value_offsets[-1] - value_offsets[0])
    if size > bytes_max:
        raise InvalidRequest(
            f"The append has {size:,} bytes, and {bytes_max:,} are possible: make several.", kind="oversized_append"
        )
    key_sizes = key_offsets[1:] - key_offsets[:-1]
    if key_sizes.min() < 1 or key_sizes.max() > KEY_BYTES_MAX:
        for key in keys.to_pylist():
            check_key(key)
    if expires.null_count < rows.num_rows:
        raise InvalidRequest("A tenant's rows have no lifetime: delete the key instead.", kind="row_with_lifetime")
    kind = np.frombuffer(kinds.buffers()[1], np.uint8, rows.num_rows, kinds.offset)
    highest = kind.max()
    if highest > _DELETE:
        raise InvalidRequest("A tenant's rows are puts and deletes: there is no merge operator.", kind="row_is_merge")
    if highest == _DELETE and bool(((kind == _DELETE) & (value_offsets[1:] > value_offsets[:-1])).any()):
        raise InvalidRequest("A row that deletes a key has a value: leave it empty.", kind="delete_with_value")
    return rows


def check_wait(after: Mapping[str, int]) -> None:
    """Raise `InvalidRequest` if timelines and LSNs to wait for are not valid."""
    for timeline, lsn in after.items():
        check_timeline(timeline)
        check_lsn(lsn, name="after")


def check_append(timeline: object, rows: pa.RecordBatch, *, write_id: object, expected: object) -> None:
    """Raise `InvalidRequest` if an append is not valid for any log."""
    check_timeline(timeline)
    check_rows(rows)
    check_write_id(write_id)
    if expected is not None:
        check_lsn(expected, name="expected")


def check_write_id(write_id: object) -> str:
    """Return a write id if it is valid. Raises `InvalidRequest`."""
    try:
        if isinstance(write_id, str) and str(UUID(write_id)) == write_id:
            return write_id
    except ValueError:
        pass
    raise InvalidRequest(
        f"The write id {write_id!r} is not a UUID in its canonical form: make one with lakebed.ids.new_uuid.",
        kind="invalid_write_id",
    )


def check_timeline(timeline: object) -> str:
    """Return a log key if it is valid. Raises `InvalidRequest`."""
    tenant, mark, name = timeline.partition("/") if isinstance(timeline, str) else ("", "", "")
    if not mark:
        raise InvalidRequest(
            f"{timeline!r} does not name a timeline of the log: write <tenant>/<timeline id>.",
            kind="invalid_timeline_name",
        )
    return f"{check_name(tenant, what='tenant')}/{check_name(name, what='timeline')}"


def check_lsn(lsn: object, *, name: str) -> int:
    """Return an LSN if it is valid. Raises `InvalidRequest`."""
    if type(lsn) is int and 0 <= lsn < 1 << 63:
        return lsn
    raise InvalidRequest(f"{name} is {lsn!r}: an LSN is a whole number from 0.", kind="invalid_lsn")


def timeline_not_found(timeline: str) -> NotFound:
    """Return the error for a timeline that the log does not have."""
    return NotFound(
        f"The log has no timeline {timeline}: it was never created, or was dropped.",
        kind="timeline_not_found",
        timeline=timeline,
    )


def timeline_exists(timeline: str, *, after: int, begun_after: int) -> AlreadyExists:
    """Return the error of a `Log.create` at another LSN."""
    return AlreadyExists(
        f"The log's timeline {timeline} begins after LSN {begun_after}, and was to begin after {after}: timeline ids "
        "are never used again.",
        kind="timeline_exists",
        timeline=timeline,
        begun_after=begun_after,
    )


def lsn_conflict(timeline: str, *, expected: int, last: int) -> Conflict:
    """Return the error of an append that expected another last LSN."""
    return Conflict(
        f"The last LSN of {timeline} is {last}, and the append expected {expected}: read what was appended meanwhile, "
        "and decide again.",
        kind="unexpected_lsn",
        timeline=timeline,
        last=last,
    )


def log_busy(timeline: str, *, count: int, window_s: float) -> Unavailable:
    """Return the error for an append after which the log would have to forget a write id that may still be used."""
    return Unavailable(
        f"{timeline} took {count:,} appends within {window_s:g} s, and the log remembers no more: write several rows "
        "at once, or wait and try again. Nothing was appended.",
        kind="log_busy",
        timeline=timeline,
    )


def timeline_sealed(timeline: str, *, last: int) -> Conflict:
    """Return the error of an append to a timeline that was sealed."""
    return Conflict(
        f"The timeline {timeline} ended at LSN {last} and takes no rows: it was dropped, or a restore has replaced it. "
        "Ask the control plane which timeline has the name now, and write to that one.",
        kind="timeline_sealed",
        timeline=timeline,
        last=last,
    )


def log_pruned(timeline: str, *, after: int, first: int) -> Conflict:
    """Return the error for a read of pruned records."""
    return Conflict(
        f"The log of {timeline} was pruned to LSN {first}, and records after {after} were asked for: begin with a "
        "newer committed transaction.",
        kind="log_pruned",
        timeline=timeline,
        first=first,
    )


def log_ends_before(timeline: str, *, lsn: int, last: int) -> Corruption:
    """Return the error for a log that has lost records."""
    return Corruption(
        f"The log of {timeline} ends at LSN {last}, and it had LSN {lsn}: it has lost records, so nothing more of it "
        "is ingested. Restore the log, or branch the timeline from its last committed LSN.",
        kind="log_forked",
        path=timeline,
        last=last,
    )


def log_newer(timeline: str, *, lsn: int, first: int | None) -> Corruption:
    """Return the error for a log that deleted records which were never committed.

    Args:
        lsn: the last that is committed or ingested.
        first: the first LSN that the log has; None: it has dropped the timeline.
    """
    given_up = "it has dropped the timeline" if first is None else f"it begins with LSN {first}"
    return Corruption(
        f"The log of {timeline} is of a later moment than the ledger: {given_up}, and LSN {lsn} is the last that was "
        "committed. Rows behind it cannot be read: stop the fleet, and restore ledger, log and storage to one moment.",
        kind="log_newer",
        path=timeline,
        lsn=lsn,
        first=first,
    )
