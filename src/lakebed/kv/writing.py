"""The verbs that write: put, delete, merge, batches, compare-and-set, and the one way into the memtable.

Owns: the checks of what is written, and the hot path.

Invariants: a write is refused, or in the memtable whole; rows lie there in the order of their sequences. A write that
raised `Fenced` or `OutcomeUnknown` after it entered the memtable may be seen by reads here.

Does not know: when anything is flushed (`lakebed.kv.steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.kv.batch import WriteBatch, lifetime_ms
from lakebed.kv.steps import Steps
from lakebed.lsm.model import KEY_BYTES_MAX, VALUE_BYTES_MAX, Kind, check_key, check_value
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.view import View

__all__ = ["Writing"]


class Writing(Steps):
    """Writes. One room of `Database`, which sets the operator."""

    _operator: MergeOperator | None

    # ---- writing

    def put(self, key: bytes, value: bytes, *, ttl: timedelta | None = None, await_durable: bool = True) -> None:
        """Give a key a value.

        Args:
            ttl: how long it lives, from now; None: for ever.
            await_durable: return when the write is in the log (without a log: in a file). False returns at once; the
                write is durable after `flush`, or soon by itself.

        Raises:
            InvalidRequest: key, value or ttl cannot be.
            Fenced: a newer writer owns the database.
            OutcomeUnknown: the store gave no clear answer; the write may be durable now or later.
            Unavailable, InternalError, Conflict: kinds ``out_of_memory``, ``unencodable_rows``, ``write_taken_back``:
                nothing was written, for its log record, or one that it may rest on, could not be encoded.
            Closed: after `close`.
        Cost: 1 PUT shared by all that wait at once; without waiting 0.6 us.
        """
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            check_key(key)
        if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
            check_value(value)
        if ttl is not None:
            self._put_for(key, value, lifetime_ms(ttl), await_durable)
            return
        while True:
            with self._lock:
                memtable = self._tree.active
                row = len(memtable.keys)
                if row < self._alarm_rows and memtable.payload_bytes < self._alarm_bytes:
                    memtable.put(key, value)
                    break
            self._make_room()
        if await_durable:
            self._commit.wait(memtable.first_sequence + row)

    def _put_for(self, key: bytes, value: bytes, lifetime: int, await_durable: bool) -> None:
        ends = self.now_ms() + lifetime
        self.append_rows([key], [value], [Kind.PUT], [ends], check=None, await_durable=await_durable)

    def delete(self, key: bytes, *, await_durable: bool = True) -> None:
        """Take a key away; one that is not there is fine. Otherwise as `put`."""
        check_key(key)
        self.append_rows([key], [None], None, None, check=None, await_durable=await_durable)

    def merge(self, key: bytes, operand: bytes, *, await_durable: bool = True) -> None:
        """Combine a key's value with an operand, by the database's merge operator, without reading it first.

        Raises `InvalidRequest` when the database has no operator, or it cannot use the operand. Otherwise as `put`.
        """
        check_key(key)
        self.required_operator().check(check_value(operand))
        self.append_rows([key], [operand], [Kind.MERGE], [None], check=None, await_durable=await_durable)

    def write(self, batch: WriteBatch, *, await_durable: bool = True) -> None:
        """Write a batch: all of it becomes visible at one moment, and durable at one moment, or none of it.

        Raises as `put`, and `InvalidRequest` for a batch of more than `BATCH_BYTES_MAX` bytes. Cost: as one `put`, and
        about 0.1 us a row.
        """
        self._check_batch(batch)
        if not batch.keys:
            return
        self._append(batch, check=None, await_durable=await_durable)

    def _check_batch(self, batch: WriteBatch) -> None:
        if not isinstance(batch, WriteBatch):
            raise InvalidRequest(
                f"A WriteBatch is written, and {type(batch).__name__} was given: gather the rows in one.",
                kind="wrong_type",
            )
        batch.check_size()
        for operand in batch.operands():
            self.required_operator().check(operand)

    def set_if(
        self,
        key: bytes,
        value: bytes | None,
        *,
        expected: bytes | None,
        ttl: timedelta | None = None,
        await_durable: bool = True,
    ) -> None:
        """Give a key a value (None: delete it), if its value now is `expected` (None: if it has none).

        Either answer is linearizable: after success the write is durable, and with Conflict the value that was met is
        durable and no other process owned the database then. With ``await_durable=False`` neither is so: a writer that
        was taken over goes on to answer from what it knew, until it is told.

        Raises:
            Conflict: kind ``unexpected_value``; its value is another: read it and decide again.
            Otherwise as `put`.
        Cost: one `get` and one `put`; the same again each time that another write of this key came between. With
        Conflict 1 HEAD (without a log: 1 LIST) for the `put`.
        """
        batch = WriteBatch()
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value, ttl=ttl)
        if expected is not None:
            check_value(expected)
        self._write_if(batch, {key: expected}, await_durable=await_durable)

    def write_if(
        self, batch: WriteBatch, *, expected: Mapping[bytes, bytes | None], await_durable: bool = True
    ) -> None:
        """Write a batch, if every key of `expected` has that value (None: no value) when the batch becomes visible.

        Either answer is linearizable, as that of `set_if`, which is the case of one key. Expected keys need not be
        written; an empty batch asks whether all of them have these values at one moment, durably.

        Raises:
            Conflict: kind ``unexpected_value``; the value of ``key`` (a fact) is another, and nothing was written.
            Otherwise as `write`.
        Cost: one `get` for each expected key, and one `write`; the same again each time that another write of an
        expected key came between. With Conflict, or nothing to write, 1 HEAD (without a log: 1 LIST) for the `write`.
        """
        self._check_batch(batch)
        for key, value in expected.items():
            check_key(key)
            if value is not None:
                check_value(value)
        self._write_if(batch, expected, await_durable=await_durable)

    def _write_if(self, batch: WriteBatch, expected: Mapping[bytes, bytes | None], *, await_durable: bool) -> None:
        self._check_owned()
        if batch.keys:
            try:  # nearly always the expected keys were just read
                self._append(batch, check=partial(self._check_at_hand, expected), await_durable=await_durable)
                return
            except _Overtaken:
                pass
        while True:
            with self._lock:
                view = self._tree.view_locked()
                since = self._tree.last_sequence
                self._tree.hold_history(since)
                unsure = {key: value for key, value in expected.items() if not self._tree.surely_is(key, value)}
            try:
                ends_ms = self._met(view, unsure, await_durable=await_durable)
                if not batch.keys:
                    if await_durable:
                        self._confirm(view, *expected)
                    return
                check = partial(self._check_unchanged, expected, since, ends_ms)
                self._append(batch, check=check, await_durable=await_durable)
                return
            except _Overtaken:
                continue
            finally:
                with self._lock:
                    self._tree.release_history(since)

    def _append(self, batch: WriteBatch, *, check: Callable[[], None] | None, await_durable: bool) -> None:
        kinds, expires = batch.columns(self.now_ms())
        self.append_rows(batch.keys, batch.values, kinds, expires, check=check, await_durable=await_durable)

    def _check_at_hand(self, expected: Mapping[bytes, bytes | None]) -> None:
        """Under the lock: raise `_Overtaken` unless memory tells that every key has the value expected."""
        surely_is = self._tree.surely_is
        for key, value in expected.items():
            if not surely_is(key, value):
                raise _Overtaken

    def _met(self, view: View, expected: Mapping[bytes, bytes | None], *, await_durable: bool) -> int | None:
        """When the first of the expected values ends (Unix ms; None: never), if all are met. Raises `Conflict`."""
        ends_ms: int | None = None
        for key, value in expected.items():
            try:
                row = view.get_row(key)
            except LakebedError as error:
                self._raise_better(error)
            if (None if row is None else row.value) != value:
                if await_durable:
                    self._confirm(view, key)
                raise Conflict(
                    f"The key {key!r} has another value than the one expected: read it and decide again.",
                    kind="unexpected_value",
                    key=key,
                )
            if row is not None and row.expires_at_ms is not None:
                ends_ms = row.expires_at_ms if ends_ms is None else min(ends_ms, row.expires_at_ms)
        return ends_ms

    def _check_unchanged(self, expected: Iterable[bytes], since: int, ends_ms: int | None) -> None:
        """Under the lock: raise `_Overtaken` when a key was written since a sequence, or one of their values has ended.

        Also when what was written since is not in memory any more: then all is to be looked up anew.
        """
        if ends_ms is not None and self.now_ms() >= ends_ms:
            raise _Overtaken
        try:
            if any(self._tree.written_since(key, since) for key in expected):
                raise _Overtaken
        except Conflict as forgotten:
            raise _Overtaken from forgotten

    def append_rows(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        kinds: Sequence[int] | None,
        expires: Sequence[int | None] | None,
        *,
        check: Callable[[], None] | None,
        await_durable: bool,
    ) -> None:
        """Write rows that were checked, at once; `check` runs under the lock just before, and its error stops them."""
        while True:
            with self._lock:
                memtable = self._tree.active
                if len(memtable.keys) < self._alarm_rows and memtable.payload_bytes < self._alarm_bytes:
                    if check is not None:
                        check()
                    memtable.extend(keys, values, kinds, expires)
                    sequence = memtable.last_sequence
                    if check is not None:
                        self._checked_sequence = sequence
                    break
            self._make_room()
        if await_durable:
            self._commit.wait(sequence, row_count=len(keys))

    def required_operator(self) -> MergeOperator:
        """The merge operator. Raises `InvalidRequest` when the database has none."""
        if self._operator is None:
            raise InvalidRequest(
                f"The database {self._url} has no merge operator: open it once with "
                "DatabaseOptions(merge_operator=...), which stores the name.",
                kind="no_merge_operator",
            )
        return self._operator


class _Overtaken(Exception):  # between two functions of this file
    """An expected key may have another value than the one that was looked up: look again."""
