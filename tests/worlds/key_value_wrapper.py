"""What all wrappers of key-value stores share: every operation of the port goes through one method.

Owns: `KeyValueCall` (what is asked), `KeyValueWrapper` and `Rival`. Invariants: a wrapper is a `KeyValue`, and wrappers
nest; calls of its snapshots go the same way; a write keeps its arguments, because it may be performed after its caller
changed them. `maintain` and `close` ask nothing that can fail, and pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

import pyarrow as pa

from lakebed.key_value.port import KeyValue, KeyValueSnapshot

R = TypeVar("R")

KeyValueCallKind = Literal[
    "get", "peek", "snapshot", "set", "set_if", "delete", "write", "put_columns",
    "snapshot get", "snapshot get_many", "snapshot scan", "snapshot scan_arrow",
]  # fmt: skip

_WRITES: Final = {"set", "set_if", "delete", "write", "put_columns"}
_LINEARIZABLE: Final = {"get", "snapshot"}


class KeyValueCall(NamedTuple):
    """One call of the port, as a wrapper sees it."""

    kind: KeyValueCallKind
    key: bytes | None = None
    """The key; the first of several."""
    key_count: int = 1

    @property
    def changes(self) -> bool:
        """Whether the call can change what is stored."""
        return self.kind in _WRITES

    @property
    def is_linearizable(self) -> bool:
        """Whether the call sees every write that ended before it."""
        return self.kind in _LINEARIZABLE

    def __str__(self) -> str:
        """Such as ``write b'a' (+2)``."""
        more = f" (+{self.key_count - 1})" if self.key_count > 1 else ""
        return self.kind if self.key is None else f"{self.kind} {self.key!r}{more}"


class KeyValueWrapper(KeyValue):
    """A `KeyValue` that hands every call to `intercept`. Subclasses override that one method.

    Args:
        page_count: rows that a scan takes in one call; None: a scan is one call.
    """

    def __init__(self, inner: KeyValue, *, page_count: int | None = None) -> None:
        self.inner = inner
        self.is_local = inner.is_local
        self._page_count = page_count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make `call` by calling `perform`, or not, or twice, or fail before or after it."""
        return perform()

    def get(self, key: bytes) -> bytes | None:
        return self.intercept(KeyValueCall("get", key), partial(self.inner.get, key))

    def peek(self, key: bytes) -> bytes | None:
        return self.intercept(KeyValueCall("peek", key), partial(self.inner.peek, key))

    def snapshot(self) -> KeyValueSnapshot:
        inner = self.intercept(KeyValueCall("snapshot"), self.inner.snapshot)
        return _Snapshot(inner, self.intercept, page_count=self._page_count)

    def set(self, key: bytes, value: bytes) -> None:
        self.intercept(KeyValueCall("set", key), partial(self.inner.set, key, value))

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> None:
        self.intercept(KeyValueCall("set_if", key), partial(self.inner.set_if, key, value, expected=expected))

    def delete(self, key: bytes) -> None:
        self.intercept(KeyValueCall("delete", key), partial(self.inner.delete, key))

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        new, gone, kept = list(puts), list(deletes), dict(expected)
        named = [key for key, _ in new] or gone or list(kept)
        call = KeyValueCall("write", named[0] if named else None, len(new) + len(gone))
        self.intercept(call, partial(self.inner.write, new, gone, expected=kept))

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        call = KeyValueCall("put_columns", None, len(keys))
        self.intercept(call, partial(self.inner.put_columns, keys, values, expected=dict(expected)))

    def maintain(self) -> None:
        self.inner.maintain()

    def close(self) -> None:
        self.inner.close()


class Rival(KeyValueWrapper):
    """A key-value store in which another process acts before the first write."""

    def __init__(self, inner: KeyValue, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act: Callable[[], object] | None = act

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Let the other act first, once."""
        if call.kind == "write" and self._act is not None:
            act, self._act = self._act, None
            act()
        return perform()


class _Snapshot(KeyValueSnapshot):
    """Made by `KeyValueWrapper.snapshot`; each of its calls, and each page of a scan, is a call."""

    def __init__(self, inner: KeyValueSnapshot, intercept: Callable[..., Any], *, page_count: int | None) -> None:
        self._inner = inner
        self._intercept = intercept
        self._page_count = page_count

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._intercept(KeyValueCall("snapshot get", key), partial(self._inner.get, key))
        return value

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        kept = list(keys)
        call = KeyValueCall("snapshot get_many", kept[0] if kept else None, len(kept))
        values: list[bytes | None] = self._intercept(call, partial(self._inner.get_many, kept))
        return values

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        call = KeyValueCall("snapshot scan")
        if self._page_count is None:
            yield from self._intercept(call, partial(self._inner.scan, start, end))
            return
        rows = self._inner.scan(start, end)
        while page := self._intercept(call, lambda: list(islice(rows, self._page_count))):
            yield from page

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        call = KeyValueCall("snapshot scan_arrow")
        if self._page_count is None:
            yield from self._intercept(call, partial(self._inner.scan_arrow, start, end))
            return
        batches = self._inner.scan_arrow(start, end)
        while (batch := self._intercept(call, lambda: next(batches, None))) is not None:
            for at in range(0, batch.num_rows, self._page_count):
                yield batch.slice(at, self._page_count)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
