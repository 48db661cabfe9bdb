"""`Transaction`: reads of one version, writes that become visible and durable together, and a check in between.

Owns: the buffer of its own writes, the record of what it has read, and the decision at commit.

Invariants:
- It reads the version at which it began, with its own writes on top. A *serializable* transaction also reads as of that
  time, so that no value expires during it.
- *snapshot*: the commit is refused if a key that it writes was written since it began. *serializable*: the commit is
  also refused if a key that it has read, or any key in a range that it has scanned, was written since, or if a value
  that it has read has expired. So the transaction takes effect as if it had run entirely at the moment of its commit. A
  transaction that writes nothing always commits: it takes effect as of its beginning.
- Check and write are one step under the tree's lock. Nothing is sent to the store under it.
- An operand (``merge``) does not read. Two transactions that merge the same key still conflict, as writes do.

The check uses only memory to find what was written since. A transaction that began before the history in memory is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from lakebed.errors import Conflict, InvalidRequest
from lakebed.kv.batch import check_batch_size, lifetime_ms
from lakebed.kv.ranges import Bounds, check_prefix, check_range
from lakebed.kv.read_core import FixedView, ReadVerbs
from lakebed.kv.writer import WriterCore
from lakebed.lsm.columns import column_of
from lakebed.lsm.model import Kind, check_key, check_value
from lakebed.lsm.view import Ends

Isolation = Literal["snapshot", "serializable"]

_BATCH_ROW_COUNT = 4096


class _Write(NamedTuple):
    """One write of the buffer."""

    kind: Kind
    value: bytes | None
    lifetime_ms: int | None


class Transaction(ReadVerbs):
    """A transaction, begun by `Database.transaction`.

    In a ``with`` statement it commits at the end of the block, and rolls back on an exception. It is not thread-safe. A
    transaction that is abandoned is rolled back.
    """

    def __init__(
        self, writer: WriterCore, fixed: FixedView, *, isolation: Isolation, await_durable: bool, ends: Ends
    ) -> None:
        super().__init__(fixed)
        self._writer = writer
        self._fixed = fixed
        self._await_durable = await_durable
        self._serializable = isolation == "serializable"
        self._writes: dict[bytes, list[_Write]] = {}
        self._read_keys: set[bytes] = set()
        self._read_ranges: list[Bounds] = []
        self._ends = ends
        view, _ = fixed.pin_view()
        assert view.sequence is not None, "a view of files alone"
        self.sequence: int = view.sequence
        """The last write that it sees, apart from its own."""

    def put(self, key: bytes, value: bytes, *, ttl: timedelta | None = None) -> None:
        """Set the value of a key at commit. A lifetime counts from the commit. Raises `InvalidRequest`, `Closed`."""
        self._fixed.pin_view()
        lifetime = None if ttl is None else lifetime_ms(ttl)
        self._writes[check_key(key)] = [_Write(Kind.PUT, check_value(value), lifetime)]

    def delete(self, key: bytes) -> None:
        """Delete a key at commit. Raises `InvalidRequest`, `Closed`."""
        self._fixed.pin_view()
        self._writes[check_key(key)] = [_Write(Kind.DELETE, None, None)]

    def merge(self, key: bytes, operand: bytes) -> None:
        """Combine a key's value with an operand at commit. Raises `InvalidRequest`, `Closed`."""
        self._fixed.pin_view()
        self._writer.require_operator().check(check_value(operand))
        self._writes.setdefault(check_key(key), []).append(_Write(Kind.MERGE, operand, None))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key as this transaction sees it; None if it has none. Raises as `Database.get`."""
        check_key(key)
        self._fixed.pin_view()
        writes = self._writes.get(key)
        if writes is not None and writes[0].kind is not Kind.MERGE:
            return self._combine(key, None, writes)
        if self._serializable:
            self._read_keys.add(key)
        committed_value = self._fixed.get(key)
        return committed_value if writes is None else self._combine(key, committed_value, writes)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys; None for a key without a value. Raises as `get`."""
        key_list = keys if isinstance(keys, bytes | str) else list(keys)  # a single key is refused below
        values = super().get_many(key_list)
        for i, key in enumerate(key_list):
            assert isinstance(key, bytes)
            writes = self._writes.get(key)
            if writes is not None:
                values[i] = self._combine(key, values[i], writes)
            if self._serializable:  # a key that it writes is checked anyway
                self._read_keys.add(key)
        return values

    def _combine(self, key: bytes, committed_value: bytes | None, writes: Sequence[_Write]) -> bytes | None:
        """Return a key's value with this transaction's writes, which are given oldest first."""
        if writes[0].kind is not Kind.MERGE:
            committed_value, writes = writes[0].value, writes[1:]
        operands = [write.value for write in writes if write.value is not None]
        return self._writer.require_operator().combine(key, committed_value, operands) if operands else committed_value

    def _scan(self, bounds: Bounds | None, *, reverse: bool, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        """As `ReadVerbs._scan`, with the writes that this transaction had made at the time of the call."""
        if bounds is None:
            return super()._scan(bounds, reverse=reverse, limit=limit)
        if self._serializable:
            self._read_ranges.append(bounds)
        own_writes = {key: tuple(writes) for key, writes in self._writes.items() if _covers(bounds, key)}
        if not own_writes:
            return super()._scan(bounds, reverse=reverse, limit=limit)
        # Without the limit: this transaction may delete some rows.
        committed = super()._scan(bounds, reverse=reverse, limit=None)
        return islice(self._merge_rows(committed, own_writes, reverse), limit)

    def _merge_rows(
        self, committed: Iterator[tuple[bytes, bytes]], own_writes: dict[bytes, tuple[_Write, ...]], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        own_keys = sorted(own_writes, reverse=not reverse)  # the next key is the last item
        for key, value in committed:
            while own_keys and (own_keys[-1] > key if reverse else own_keys[-1] < key):
                yield from self._own_row(own_keys.pop(), None, own_writes)
            if own_keys and own_keys[-1] == key:
                yield from self._own_row(own_keys.pop(), value, own_writes)
            else:
                yield key, value
        while own_keys:
            yield from self._own_row(own_keys.pop(), None, own_writes)

    def _own_row(
        self, key: bytes, committed_value: bytes | None, own_writes: dict[bytes, tuple[_Write, ...]]
    ) -> Iterator[tuple[bytes, bytes]]:
        value = self._combine(key, committed_value, own_writes[key])
        if value is not None:
            yield key, value

    def scan_arrow(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] = ("key", "value"),
    ) -> pa.RecordBatchReader:
        """As `Database.scan_arrow`.

        A range with writes of this transaction has only the columns ``key`` and ``value``.
        """
        bounds = check_range(start, end) if prefix is None else check_prefix(prefix)
        if bounds is None or not any(_covers(bounds, key) for key in self._writes):
            if bounds is not None and self._serializable:
                self._read_ranges.append(bounds)
            return super().scan_arrow(start, end, prefix=prefix, columns=columns)
        # This also checks the arguments.
        schema = super().scan_arrow(start, end, prefix=prefix, columns=columns).schema
        if not set(columns) <= {"key", "value"}:
            raise InvalidRequest(
                "Rows that a transaction has not committed yet have no sequence and no expiry: read key and value.",
                kind="unknown_column",
            )
        return pa.RecordBatchReader.from_batches(
            schema, _batch_rows(self._scan(bounds, reverse=False, limit=None), schema)
        )

    def commit(self) -> None:
        """Make the writes visible and, unless the transaction was begun otherwise, durable. The transaction is over.

        Raises:
            Conflict: other writes since the beginning violate the isolation, or there were too many to check. Nothing
                is written.
            InvalidRequest: kind ``oversized_batch``: more than 512 MiB. Nothing is written. Fenced, OutcomeUnknown,
                ...: as `Database.write`.
            Closed: the transaction is over already.
        """
        self._fixed.pin_view()
        try:
            if self._writes:
                self._write()
        finally:
            self.rollback()

    def _write(self) -> None:
        keys: list[bytes] = []
        rows: list[_Write] = []
        for key, writes in self._writes.items():
            keys += [key] * len(writes)
            rows += writes
        values = [row.value for row in rows]
        check_batch_size(keys, values, what="transaction")
        special = any(row.kind is Kind.MERGE or row.lifetime_ms is not None for row in rows)
        now_ms = self._writer.now_ms()
        self._writer.append_rows(
            keys,
            values,
            [row.kind for row in rows] if special else None,
            [None if row.lifetime_ms is None else now_ms + row.lifetime_ms for row in rows] if special else None,
            check=self._check,
            await_durable=self._await_durable,
        )

    def _check(self) -> None:
        """Raise `Conflict` if another writer changed what this transaction depends on. Under the tree's lock."""
        tree, since = self._writer.tree, self.sequence
        for key in (*self._writes, *self._read_keys):
            if tree.written_since(key, since):
                raise _overtaken(key, since)
        if self._serializable and self._ends.first_ms is not None and self._ends.first_ms <= self._writer.now_ms():
            raise Conflict(
                "A value that this transaction has read has expired since: begin it again.",
                kind="transaction_conflict",
                since=since,
            )
        if not self._read_ranges:
            return
        for memtable in tree.memtables_since(since):
            for key in memtable.written_since(since):
                if any(_covers(bounds, key) for bounds in self._read_ranges):
                    raise _overtaken(key, since)

    def rollback(self) -> None:
        """Discard the writes. The transaction is over. If it is over already, do nothing."""
        self._fixed.close()
        self._writes = {}
        self._read_keys = set()
        self._read_ranges = []

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._fixed.is_open

    def __repr__(self) -> str:
        isolation = "serializable" if self._serializable else "snapshot"
        state = f"keys_written={len(self._writes)}" if self.is_open else "ended"
        return f"Transaction({isolation!r}, sequence={self.sequence}, {state})"

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()
        elif self.is_open:
            self.commit()


def begin_transaction(writer: WriterCore, isolation: Isolation, *, await_durable: bool) -> Transaction:
    """As `Database.transaction`."""
    if isolation not in get_args(Isolation):
        raise InvalidRequest(
            f"The isolation of a transaction is snapshot or serializable, and {isolation!r} was asked for.",
            kind="unknown_isolation",
        )
    writer.check_open()
    with writer.lock:
        since = writer.tree.last_sequence
        writer.tree.hold_history(since)
    view, pin = writer.pin_view()
    ends = Ends(writer.now_ms())
    if isolation == "serializable":
        view = view.noting(ends)
    fixed_view = FixedView(view, pin, writer=writer, closed="The transaction has ended: begin a new one.")
    transaction = Transaction(writer, fixed_view, isolation=isolation, await_durable=await_durable, ends=ends)
    writer.keep_history(transaction, since)
    return transaction


def _overtaken(key: bytes, since: int) -> Conflict:
    return Conflict(
        f"The key {key!r} was written by another writer since this transaction began: begin it again.",
        kind="transaction_conflict",
        key=key,
        since=since,
    )


def _covers(bounds: Bounds, key: bytes) -> bool:
    start, end = bounds
    return (start is None or key >= start) and (end is None or key < end)


def _batch_rows(rows: Iterator[tuple[bytes, bytes]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    keys: list[bytes] = []
    values: list[bytes] = []

    def batch() -> pa.RecordBatch:
        columns = {"key": keys, "value": values}
        return pa.RecordBatch.from_arrays([column_of(columns[field.name]) for field in schema], schema=schema)

    for key, value in rows:
        keys.append(key)
        values.append(value)
        if len(keys) == _BATCH_ROW_COUNT:
            yield batch()
            keys, values = [], []
    if keys:
        yield batch()
