"""Appends of many threads that travel together: the first thread that waits sends all that wait.

Owns: which append is in which request. Invariants: an append is in one request at a time; its result is set once, by
the thread that sent it. Does not know: HTTP (`lakebed.fleet.log.client` gives what sends a request).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lakebed.errors import InternalError, LakebedError
from lakebed.fleet.log.bodies import APPENDS_MAX, BODY_BYTES_MAX, AppendItem
from lakebed.kv.group_commit import copy_error
from lakebed.runtime import Condition, Environment

_SENDING_MAX: Final = 2
"""Requests at the same time: while one waits for the disk, the next one is under way."""
_BYTES_MAX: Final = BODY_BYTES_MAX // 2


class Waiting:
    """One append, until its result is there."""

    __slots__ = ("changed", "error", "is_taken", "item", "lsn")

    def __init__(self, item: AppendItem, changed: Condition) -> None:
        self.item = item
        self.changed = changed
        self.is_taken = False
        """Whether it is in a request."""
        self.lsn: int | None = None
        self.error: LakebedError | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.lsn is not None or self.error is not None


class AppendBatches:
    """The appends of one client.

    Args:
        send: makes some appends: sets `lsn` or `error` of each; an error it raises is that of all without a result.
        environment: locks.
    """

    def __init__(self, send: Callable[[Sequence[Waiting]], None], *, environment: Environment) -> None:
        self._send = send
        self._runtime = environment.runtime
        self._lock = self._runtime.lock()
        self._waiting: deque[Waiting] = deque()
        self._sending = 0

    @property
    def waiting_count(self) -> int:
        """Appends that are in no request yet."""
        with self._lock:
            return len(self._waiting)

    def append(self, item: AppendItem) -> int:
        """The LSN of the last row. Raises what `send` sets or raises."""
        waiting = Waiting(item, self._runtime.condition(self._lock))
        with self._lock:
            self._waiting.append(waiting)
        while True:
            with self._lock:
                while not waiting.is_done and (waiting.is_taken or self._sending >= _SENDING_MAX):
                    waiting.changed.wait()
                if waiting.is_done:
                    break
                taken = self._take_group()
                self._sending += 1
            self._lead(taken)
        if waiting.error is not None:
            raise waiting.error
        assert waiting.lsn is not None
        return waiting.lsn

    def _take_group(self) -> list[Waiting]:
        """What goes into the next request. Under the lock."""
        taken: list[Waiting] = []
        size = 0
        while self._waiting and len(taken) < APPENDS_MAX:
            size += len(self._waiting[0].item.record)
            if taken and size > _BYTES_MAX:
                break
            taken.append(self._waiting.popleft())
            taken[-1].is_taken = True
        return taken

    def _lead(self, taken: Sequence[Waiting]) -> None:
        failure: LakebedError = InternalError("Sending appends was interrupted.")
        try:
            self._send(taken)
        except LakebedError as error:
            failure = error
        finally:
            with self._lock:
                self._sending -= 1
                for waiting in taken:
                    if not waiting.is_done:
                        waiting.error = copy_error(failure)
                    waiting.changed.notify_all()
                if self._waiting:
                    self._waiting[0].changed.notify_all()
