"""A store in which something else happens at one call of a process: another writer, a collection, a rename."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


class Meanwhile(StoreWrapper):
    """Lets something happen once, right before one of the calls that count; views of folders count with it.

    Args:
        happens: what.
        at: which of the calls that count, from 0; None: at each of them.
        after: right after the call has ended instead; one that raises does not count.
        counts: which calls count; by default all.

    Attributes:
        calls: those that counted.
    """

    def __init__(
        self,
        inner: ObjectStore,
        happens: Callable[[], object] = lambda: None,
        *,
        at: int | None = 0,
        after: bool = False,
        counts: Callable[[Call], bool] = lambda call: True,
    ) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self._after = after
        self._plans = [(happens, at, counts)]
        self._met: list[Call] = []

    @property
    def happened(self) -> Call | None:
        """The call at which it happened; None: it has not."""
        return self._met[0] if self._met else None

    def expect(
        self, happens: Callable[[], object], *, at: int | None = 0, counts: Callable[[Call], bool] = lambda call: True
    ) -> None:
        """Let something else happen, at a call that is counted from here on."""
        self.calls.clear()
        self._met.clear()
        self._plans[:] = [(happens, at, counts)]

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if not self._after:
            self._count(call)
            return perform()
        result = perform()
        self._count(call)
        return result

    def _count(self, call: Call) -> None:
        happens, at, counts = self._plans[0]
        if not counts(call):
            return
        self.calls.append(call)
        if at is None or (len(self.calls) > at and not self._met):
            self._met.append(call)
            happens()


def is_put_below(*folders: str) -> Callable[[Call], bool]:
    """Count the puts below one of some folders."""
    return lambda call: call.kind == "put" and call.path.startswith(folders)
