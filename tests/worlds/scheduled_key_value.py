"""A key-value store inside a simulation: each call is two switching points, and fails as the seed decides.

Owns: the calls of a key-value store and of its snapshots; where faults strike is `scheduled_calls`. Invariants: after
`OutcomeUnknown` the port lets the next linearizable read settle what became of the write; so here a write that is still
under way when its actor reads lands before that read, or never.

Example, two actors that raise one counter:
    >>> from lakebed.errors import Conflict
    >>> from worlds.memory_key_value import MemoryKeyValue
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

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from lakebed.errors import Unavailable
from lakebed.key_value.port import KeyValue
from lakebed.testing.scheduled_calls import CallErrors, FaultRates
from lakebed.testing.scheduler import Scheduler
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper

R = TypeVar("R")

_PAGE_ROW_COUNT: Final = 4
"""Rows that a scan takes in one call: few, so that other actors come between."""


def _no_answer(label: str) -> Unavailable:
    return Unavailable(f"no answer to {label}")


_READ_ERRORS: Final = CallErrors(refused=_no_answer, lost=_no_answer)


class ScheduledKeyValue(KeyValueWrapper):
    """The store that one actor, or the actors of one process, call. A wrapper of any implementation.

    Args:
        inner: what actors share. Open it without the scheduler's environment, so that its own locks are no switching
            points; or with it, if its inside is to be simulated too.
        faults: as for stores; None: the scheduler's. ``lost_request`` and ``late`` are of writes; a read that gets no
            answer is `Unavailable`.
    """

    def __init__(self, inner: KeyValue, *, scheduler: Scheduler, faults: FaultRates | None = None) -> None:
        super().__init__(inner, page_count=_PAGE_ROW_COUNT)
        rates = faults or scheduler.faults
        self._writes = scheduler.calls(faults=rates)
        # A read has no effect that could be lost: every fault of one is an answer that does not come, at once.
        unanswered = rates.error_before + rates.lost_request + rates.lost_reply + rates.late
        self._reads = scheduler.calls(
            faults=replace(rates, error_before=unanswered, lost_request=0.0, lost_reply=0.0, late=0.0)
        )

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call as `ScheduledCalls.call` does; what is under way settles before a linearizable read."""
        if call.changes:
            return self._writes.call(str(call), perform)

        def read() -> R:
            if call.is_linearizable:
                self._writes.settle()
            return perform()

        return self._reads.call(str(call), read, changes=False, errors=_READ_ERRORS)

    def close(self) -> None:
        """Leave `inner`, which other actors use too, open."""
