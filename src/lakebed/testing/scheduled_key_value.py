"""A key-value store inside a simulation: each call is two switching points, and fails as the seed decides.

Owns: the calls of a key-value store and of its snapshots; where faults strike is `scheduled_calls`. Invariants: after
`OutcomeUnknown` the port lets the next linearizable read settle what became of the write; so here a write that is still
under way when its actor reads lands before that read, or never.

Example, two actors that raise one counter:
    >>> from lakebed.errors import Conflict
    >>> from lakebed.key_value.memory import MemoryKeyValue
    >>> from lakebed.testing import Scheduler
    >>> scheduler, space = Scheduler(7), MemoryKeyValue()
    >>> def count():
    ...     key_value = ScheduledKeyValue(space, scheduler=scheduler)
    ...     while True:
    ...         now = key_value.get(b"n")
    ...         try:
    ...             return key_value.set_if(b"n", b"%d" % (int(now or 0) + 1), expected=now)
    ...         except Conflict:
    ...             continue
    >>> for name in ("a", "b"):
    ...     _ = scheduler.spawn(name, count)
    >>> scheduler.run()
    >>> space.get(b"n")
    b'2'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, TypeVar

import pyarrow as pa

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.key_value.port import KeyValue, KeyValueSnapshot
from lakebed.testing.scheduled_calls import CallErrors, FaultRates
from lakebed.testing.scheduler import Scheduler

__all__ = ["ScheduledKeyValue", "ScheduledSnapshot"]

R = TypeVar("R")

_PAGE_ROW_COUNT: Final = 4
"""Rows that a scan takes in one call: few, so that others come between."""


_WRITE_ERRORS: Final = CallErrors(
    refused=lambda label: Unavailable(f"the store cannot {label} now"),
    lost=lambda label: OutcomeUnknown(f"the reply to {label} was lost"),
)


def _no_answer(label: str) -> Unavailable:
    return Unavailable(f"no answer to {label}")


_READ_ERRORS: Final = CallErrors(refused=_no_answer, lost=_no_answer)


class ScheduledKeyValue:
    """The store that one actor, or the actors of one process, call. A wrapper of any implementation.

    Args:
        inner: what actors share. Open it without the scheduler's environment, so that its own locks are no switching
            points; or with it, if its inside is to be simulated too.
        scheduler: whose actors call.
        faults: as for stores; None: the scheduler's. ``lost_request`` and ``late`` are of writes; a read that gets no
            answer is `Unavailable`.
    """

    def __init__(self, inner: KeyValue, *, scheduler: Scheduler, faults: FaultRates | None = None) -> None:
        self.inner = inner
        self.is_local = inner.is_local
        rates = faults or scheduler.faults
        self._writes = scheduler.calls(faults=rates)
        # A read has no effect that could be lost: every fault of one is an answer that does not come, at once.
        unanswered = rates.error_before + rates.lost_request + rates.lost_reply + rates.late
        self._reads = scheduler.calls(
            faults=replace(rates, error_before=unanswered, lost_request=0.0, lost_reply=0.0, late=0.0)
        )

    def __repr__(self) -> str:
        return f"ScheduledKeyValue({self.inner!r})"

    # ---- the calls

    def get(self, key: bytes) -> bytes | None:
        """See `KeyValue.get`."""
        return self._read(f"get {key!r}", partial(self.inner.get, key), settles=True)

    def peek(self, key: bytes) -> bytes | None:
        """See `KeyValue.peek`."""
        return self._read(f"peek {key!r}", partial(self.inner.peek, key))

    def snapshot(self) -> ScheduledSnapshot:
        """See `KeyValue.snapshot`."""
        return ScheduledSnapshot(self._read("snapshot", self.inner.snapshot, settles=True), ask=self._read)

    def set(self, key: bytes, value: bytes) -> None:
        """See `KeyValue.set`."""
        self._write(f"set {key!r}", partial(self.inner.set, key, value))

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> None:
        """See `KeyValue.set_if`."""
        self._write(f"set_if {key!r}", partial(self.inner.set_if, key, value, expected=expected))

    def delete(self, key: bytes) -> None:
        """See `KeyValue.delete`."""
        self._write(f"delete {key!r}", partial(self.inner.delete, key))

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """See `KeyValue.write`."""
        new, gone, kept = list(puts), list(deletes), dict(expected)  # it may land after its caller changed them
        named = [key for key, _ in new] or gone or list(kept)
        label = f"write {named[0]!r} (+{len(new) + len(gone) - 1})" if named else "write"
        self._write(label, partial(self.inner.write, new, gone, expected=kept))

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """See `KeyValue.put_columns`."""
        self._write(
            f"put_columns ({len(keys)})", partial(self.inner.put_columns, keys, values, expected=dict(expected))
        )

    def maintain(self) -> None:
        """See `KeyValue.maintain`. No fault strikes here."""
        self.inner.maintain()

    def close(self) -> None:
        """See `KeyValue.close`. No fault strikes here, and `inner`, which others use too, stays open."""

    # ---- faults

    def _read(self, label: str, perform: Callable[[], R], *, settles: bool = False) -> R:
        def read() -> R:
            if settles:
                self._writes.settle()
            return perform()

        return self._reads.call(label, read, changes=False, errors=_READ_ERRORS)

    def _write(self, label: str, perform: Callable[[], None]) -> None:
        self._writes.call(label, perform, errors=_WRITE_ERRORS)


class ScheduledSnapshot:
    """Made by `ScheduledKeyValue.snapshot`; each of its calls, and each page of a scan, is a call."""

    def __init__(self, inner: KeyValueSnapshot, *, ask: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.inner = inner
        self._ask = ask

    def get(self, key: bytes) -> bytes | None:
        """See `KeyValueSnapshot.get`."""
        value: bytes | None = self._ask(f"snapshot get {key!r}", partial(self.inner.get, key))
        return value

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """See `KeyValueSnapshot.get_many`."""
        values: list[bytes | None] = self._ask("snapshot get_many", partial(self.inner.get_many, list(keys)))
        return values

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValueSnapshot.scan`."""
        rows = self.inner.scan(start, end)
        while page := self._ask("snapshot scan", lambda: list(islice(rows, _PAGE_ROW_COUNT))):
            yield from page

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """See `KeyValueSnapshot.scan_arrow`."""
        batches = self.inner.scan_arrow(start, end)
        while (batch := self._ask("snapshot scan_arrow", lambda: next(batches, None))) is not None:
            for at in range(0, batch.num_rows, _PAGE_ROW_COUNT):
                yield batch.slice(at, _PAGE_ROW_COUNT)

    def close(self) -> None:
        """See `KeyValueSnapshot.close`. No fault strikes here."""
        self.inner.close()

    def __enter__(self) -> ScheduledSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
