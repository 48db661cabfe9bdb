"""A store that forgets in a power loss what was not made durable.

Owns: the model of durable objects. Invariants: an object that was put with ``durable=True`` or passed to ``sync``, and
a deletion that returned, survive. Any other object exists until the power loss. Then it is decided at random whether it
stays, is cut short, or has its older state (the older durable body, or nothing). This is exactly the port's promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from lakebed.errors import NotFound
from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


class PowerLossStore(StoreWrapper):
    """Remembers which objects would survive.

    Examples:
        >>> from lakebed.objects import open_store
        >>> store = PowerLossStore(open_store("memory://power"))
        >>> store.put("kept", b"1")
        >>> store.put("gone", b"2", durable=False)
        >>> store.power_loss()
        ['gone']
        >>> [meta.path for meta in store.list()]
        ['kept']
    """

    def __init__(self, inner: ObjectStore, *, page_count: int = 1000) -> None:
        super().__init__(inner, page_count=page_count)
        self._root = inner
        # The state of each non-durable object after a power loss: its older durable body, or None.
        self._volatile: dict[str, bytes | None] = {}

    @property
    def volatile_paths(self) -> list[str]:
        """Objects that a power loss may take away, sorted."""
        return sorted(self._volatile)

    def write_in_place(self, path: str, body: bytes) -> None:
        """Write as another engine does: not durable until `sync`."""
        self.put(path, body, durable=False)

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind == "put" and not call.durable:
            before = self._volatile[call.path] if call.path in self._volatile else self._body(call.path)
            result = perform()
            self._volatile[call.path] = before
            return result
        result = perform()
        if call.kind in ("put", "delete", "sync", "copy"):
            for path in call.paths or (call.path,):
                if call.kind != "copy" or path == call.path:
                    self._volatile.pop(path, None)
        return result

    def _body(self, path: str) -> bytes | None:
        try:
            return bytes(self._root.get(path))
        except NotFound:
            return None

    def power_loss(self, rng: random.Random | None = None) -> list[str]:
        """Cut the power. Return the paths whose content is not what was put.

        Args:
            rng: decides about each object; None: the worst case, in which nothing that is volatile survives.
        """
        changed: list[str] = []
        for path, before in sorted(self._volatile.items()):
            fate = "lost" if rng is None else rng.choice(("lost", "cut", "kept"))
            now = self._body(path)
            if fate == "kept" or now is None:
                continue
            changed.append(path)
            if fate == "cut":
                self._root.put(path, now[: rng.randrange(len(now) + 1)] if rng is not None else b"")
            elif before is None:
                self._root.delete([path])
            else:
                self._root.put(path, before)
        self._volatile.clear()
        return changed
