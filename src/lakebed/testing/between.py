"""A store in which something happens between two calls, to test races in a chosen order. Does not know what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, CallKind, StoreWrapper

R = TypeVar("R")


class Between(StoreWrapper):
    """A store in which something else happens once, right after a call.

    That is the first call, or the n-th, of a kind and on a path that begins with a given text.

    Attributes:
        happened: whether it has happened. A test should assert this; otherwise it may test nothing.
    """

    def __init__(
        self, inner: ObjectStore, *, kind: CallKind, prefix: str, happens: Callable[[], object], nth: int = 1
    ) -> None:
        super().__init__(inner)
        self._kind = kind
        self._prefix = prefix
        self._happens = happens
        self._left = nth
        self.happened = False

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        result = perform()
        if not self.happened and call.kind == self._kind and call.path.startswith(self._prefix):
            self._left -= 1
            self.happened = self._left == 0
            if self.happened:
                self._happens()
        return result
