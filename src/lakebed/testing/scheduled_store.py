"""A store inside a simulation: each call is two switching points, and fails as the seed decides.

Owns: which error a call of a store gets; where faults strike is `scheduled_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lakebed.errors import Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.testing.faulty import lost
from lakebed.testing.scheduled_calls import CallErrors, ScheduledCalls
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


class ScheduledStore(StoreWrapper):
    """The store that actors call; made by `Scheduler.store`."""

    def __init__(self, inner: ObjectStore, *, calls: ScheduledCalls, page_count: int) -> None:
        super().__init__(inner, page_count=page_count)
        self._calls = calls

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        errors = CallErrors(
            refused=lambda label: Unavailable(f"the store cannot {label} now", path=call.path),
            lost=lambda label: lost(call),
        )
        return self._calls.call(str(call), perform, changes=call.changes, errors=errors)
