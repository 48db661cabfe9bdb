"""The key-value port in memory.

Owns: `MemorySpace`, the rows, and `MemoryKeyValue`, a handle on them. Rows lie in sorted blocks that never change: a
write replaces the blocks it touches, and copies the list of blocks only when a snapshot has taken it since. So a
snapshot costs one reference, and a write a bisection and a block.

Invariants: there is a first key for each block, no block is empty, and keys ascend within and across blocks; the lists
that a snapshot holds are never written again. All state is guarded by one lock of the environment's runtime.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakebed.errors import Closed
from lakebed.key_value.port import (
    Change,
    KeyValue,
    KeyValueSnapshot,
    check_key,
    pair_batch,
    validate_bounds,
    validate_change,
    validate_columns,
    value_conflict,
)
from lakebed.runtime import Environment

_BLOCK_ROW_COUNT_MAX: Final = 512
_BATCH_ROW_COUNT: Final = 16_384


class _Block(NamedTuple):
    """Sorted rows; never changed."""

    keys: Sequence[bytes]
    values: Sequence[bytes]


class _Rows(NamedTuple):
    """All rows of a moment."""

    first_keys: list[bytes]
    blocks: list[_Block]

    def find(self, key: bytes) -> bytes | None:
        """The value of a key. Cost: two bisections."""
        at = bisect_right(self.first_keys, key) - 1
        if at < 0:
            return None
        keys, values = self.blocks[at]
        row = bisect_left(keys, key)
        return values[row] if row < len(keys) and keys[row] == key else None

    def parts(self, start: bytes | None, end: bytes | None) -> Iterator[_Block]:
        """Rows of ``[start, end)``, a block at a time."""
        at = 0 if start is None else max(0, bisect_right(self.first_keys, start) - 1)
        while at < len(self.blocks) and (end is None or self.first_keys[at] < end):
            keys, values = self.blocks[at]
            low = 0 if start is None else bisect_left(keys, start)
            high = len(keys) if end is None else bisect_left(keys, end)
            if low < high:
                yield _Block(keys[low:high], values[low:high])
            at += 1


class MemorySpace:
    """Rows that any number of handles share, as processes share a database. Gone with its last reference."""

    def __init__(self, *, environment: Environment | None = None) -> None:
        self._lock = (environment or Environment()).runtime.lock()
        self._rows = _Rows([], [])
        self._is_shared = False

    def rows(self) -> _Rows:
        """Everything as it is now, unchanging. Cost: a lock."""
        with self._lock:
            self._is_shared = True
            return self._rows

    def find(self, key: bytes) -> bytes | None:
        """The value of a key now."""
        with self._lock:
            return self._rows.find(key)

    def apply(self, change: Change) -> None:
        """Make a change, if all is as expected. Raises `Conflict`. Cost: a block for each that it touches."""
        changes: list[tuple[bytes, bytes | None]] = [*change.puts.items(), *((key, None) for key in change.deletes)]
        changes.sort(key=lambda pair: pair[0])
        with self._lock:
            for key, value in change.expected.items():
                if self._rows.find(key) != value:
                    raise value_conflict(key)
            if not changes:
                return
            if self._is_shared:
                self._rows = _Rows(self._rows.first_keys.copy(), self._rows.blocks.copy())
                self._is_shared = False
            self._replace(changes)

    def _replace(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put sorted changes into the blocks, from the last to the first, so that positions before stay as they are."""
        first_keys, blocks = self._rows
        end = len(changes)
        while end:
            at = max(0, bisect_right(first_keys, changes[end - 1][0]) - 1)
            start = bisect_left(changes, first_keys[at], 0, end, key=_key_of) if at > 0 else 0
            kept = blocks[at] if blocks else _Block((), ())
            new = list(_cut(_changed(kept, changes[start:end])))
            first_keys[at : at + 1] = [block.keys[0] for block in new]
            blocks[at : at + 1] = new
            end = start


def _key_of(pair: tuple[bytes, bytes | None]) -> bytes:
    return pair[0]


def _changed(block: _Block, changes: Sequence[tuple[bytes, bytes | None]]) -> _Block:
    """A block with sorted changes made in it."""
    if len(changes) > 8:
        merged: dict[bytes, bytes | None] = dict(zip(*block, strict=True))
        merged.update(changes)
        pairs = sorted((key, value) for key, value in merged.items() if value is not None)
        return _Block([key for key, _ in pairs], [value for _, value in pairs])
    keys, values = list(block.keys), list(block.values)
    for key, value in changes:
        row = bisect_left(keys, key)
        present = row < len(keys) and keys[row] == key
        if value is not None:
            keys[row : row + present] = [key]
            values[row : row + present] = [value]
        elif present:
            del keys[row], values[row]
    return _Block(keys, values)


def _cut(block: _Block) -> Iterator[_Block]:
    """A block, in halves of the largest when it is too large; nothing when it is empty."""
    count = len(block.keys)
    if count <= _BLOCK_ROW_COUNT_MAX:
        if count:
            yield block
        return
    step = _BLOCK_ROW_COUNT_MAX // 2
    for at in range(0, count, step):
        yield _Block(block.keys[at : at + step], block.values[at : at + step])


class MemorySnapshot(KeyValueSnapshot):
    """Made by `MemoryKeyValue.snapshot`."""

    def __init__(self, rows: _Rows) -> None:
        self._rows: _Rows | None = rows

    def _opened(self) -> _Rows:
        if self._rows is None:
            raise Closed("The snapshot was closed: take a new one.")
        return self._rows

    def get(self, key: bytes) -> bytes | None:
        return self._opened().find(check_key(key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        find = self._opened().find
        return [find(check_key(key)) for key in keys]

    def _parts(self, start: bytes | None, end: bytes | None) -> Iterator[_Block]:
        bounds = validate_bounds(start, end)
        rows = self._opened()
        return iter(()) if bounds is None else rows.parts(*bounds)

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return (pair for part in self._parts(start, end) for pair in zip(*part, strict=True))

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        return _batches(self._parts(start, end))

    def close(self) -> None:
        self._rows = None


def _batches(parts: Iterator[_Block]) -> Iterator[pa.RecordBatch]:
    keys: list[bytes] = []
    values: list[bytes] = []
    for part in parts:
        keys += part.keys
        values += part.values
        if len(keys) >= _BATCH_ROW_COUNT:
            yield pair_batch(keys, values)
            keys, values = [], []
    if keys:
        yield pair_batch(keys, values)


class MemoryKeyValue(KeyValue):
    """The port over a space; see `lakebed.key_value.port.KeyValue` for what each call promises.

    Args:
        space: shared rows; None: new ones of its own.
        environment: its runtime gives the lock of a new space.
    """

    is_local = True

    def __init__(self, space: MemorySpace | None = None, *, environment: Environment | None = None) -> None:
        self.space = space or MemorySpace(environment=environment)
        self._is_closed = False

    def _open(self) -> MemorySpace:
        if self._is_closed:
            raise Closed("The key-value store was closed: open it again.")
        return self.space

    def get(self, key: bytes) -> bytes | None:
        return self._open().find(check_key(key))

    peek = get

    def snapshot(self) -> MemorySnapshot:
        """Cost: 1 us."""
        return MemorySnapshot(self._open().rows())

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        self._open().apply(validate_change(puts, deletes, expected))

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """Cost: about 1 us a row."""
        new_keys, new_values = validate_columns(keys, values, expected)
        self._open().apply(Change(dict(zip(new_keys, new_values, strict=True)), (), expected))

    def maintain(self) -> None:
        """Nothing is kept that is not needed."""

    def close(self) -> None:
        """The space stays for other handles."""
        self._is_closed = True

    def __repr__(self) -> str:
        return f"MemoryKeyValue({'closed' if self._is_closed else ''})"
