"""The port: the interface of the store that holds the records and staged rows of repositories and fleets.

Owns: the two protocols; the verbs that are the same in every implementation; the limits of keys, values and writes; and
the checks that every implementation makes, so that all refuse the same input with the same message.

Invariants, which one contract suite checks for all implementations:

- Keys are ordered as unsigned bytes.
- A write is atomic, and durable when it returns. A write with ``expected`` happens only if every expected key has its
  expected value at the moment at which the write takes effect.
- `KeyValue.get` and `KeyValue.snapshot` are linearizable. They show every write that any process acknowledged before
  the call, and nothing that can still be lost. After `OutcomeUnknown`, the next such call on the same handle resolves
  the outcome of that write: it has happened, or it never will.
- `KeyValue.peek` is at least as new as any write of this handle that has succeeded.
- Many threads may call an implementation at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import pyarrow as pa

from lakebed.errors import Conflict, Fenced, InvalidRequest
from lakebed.kv import batch
from lakebed.kv.ranges import Bounds, check_range
from lakebed.lsm import model

BOUND_BYTES_MAX: Final = 65_535
"""Longest start or end of a scan, in bytes. A bound may be longer than a key: it only marks a position between keys."""

KEY_BYTES_MAX: Final = 2_048
"""Longest key, in bytes: a prefix and a path of 1,024 bytes.

The limit follows from PostgreSQL: a page of its index must hold three keys.
"""

VALUE_BYTES_MAX: Final = 16 << 20
"""Longest value, in bytes. Records and entries are small; large content is stored as objects."""

WRITE_BYTES_MAX: Final = 256 << 20
"""Most bytes of one write, keys and values together."""

PAIR_SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""Columns of `KeyValueSnapshot.scan_arrow`."""


class KeyValueSnapshot(Protocol):
    """All keys and values at one moment. Thread-safe. Use it in a ``with``, or close it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none. Raises `InvalidRequest`, `Closed`."""

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys, which may repeat. Raises as `get`."""

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of ``[start, end)``, keys ascending, read lazily.

        Args:
            start: first key; None: from the smallest.
            end: key after the last; None: to the largest.

        Raises `InvalidRequest`, `Closed`; while it is read also `Unavailable`. A range that ends before it starts is
        empty. A scan that is read after the snapshot was closed may end with `Closed`.
        """

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """The same rows as batches of `PAIR_SCHEMA`, none of them empty."""

    def close(self) -> None:
        """Release the snapshot. Closing twice is a no-op."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


class KeyValue(Protocol):
    """An ordered map from bytes to bytes. Implementations inherit it. Every call raises `Closed` after `close`.

    Every call may raise `Unavailable` (nothing happened: retry) and `Fenced` (another process owns the store now:
    stop). Every write may also raise `OutcomeUnknown` (it may have happened, or may still happen: `get` resolves it).
    """

    is_local: bool
    """Whether `get` and `peek` need only this machine, so take microseconds: a server may call them inline."""

    @property
    def lost(self) -> Fenced | None:
        """Why every call fails from now on: another process owns the store. None: this process knows of no other owner.

        Cost: no request.
        """
        return None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it has none.

        At some moment during the call, the value is current and durable, and this process owns the store.
        Raises `InvalidRequest` for an invalid key.
        """

    def peek(self, key: bytes) -> bytes | None:
        """Return the value of a key as this process knows it, None if it has none.

        It is at least as new as every write by this handle that succeeded. It may not be durable yet, or another
        process may have replaced it. Use it where a conditional write checks the value later. Raises `InvalidRequest`.
        """

    def snapshot(self) -> KeyValueSnapshot:
        """Return all keys and values at one moment during the call, durable and unchanging."""

    def set(self, key: bytes, value: bytes) -> None:
        """Give a key a value. Raises `InvalidRequest`. Cost: as `write`."""
        self.write([(key, value)])

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> None:
        """Give a key a value (None: delete it) if its value is `expected` (None: if it has none).

        Raises `Conflict`, kind ``unexpected_value``, with ``key=``; then nothing was written. And `InvalidRequest`.
        Cost: as `write`.
        """
        if value is None:
            self.write(deletes=[key], expected={key: expected})
        else:
            self.write([(key, value)], expected={key: expected})

    def delete(self, key: bytes) -> None:
        """Delete a key. Deleting a missing key is a no-op. Raises `InvalidRequest`. Cost: as `write`."""
        self.write(deletes=[key])

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """Make one atomic change, if every expected key has its value (None: is absent) when the change takes effect.

        Args:
            puts: keys with their new values. If a key repeats, its last value counts.
            deletes: keys to delete; they may be absent. A key that is also in `puts` is put.
            expected: values by key; may name keys that are not written. With nothing to write, the call is a
                linearizable check.

        Raises:
            Conflict: kind ``unexpected_value``; ``key=`` is a key whose value differs. Nothing was written.
            InvalidRequest: a key or value is invalid, or all together are more than `WRITE_BYTES_MAX`.
        """

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """As `write`, with many puts as two columns of equal length: Arrow binary arrays, or sequences of bytes."""

    def maintain(self) -> None:
        """Reclaim unused space. Call it from time to time, in the background.

        Changes nothing that can be read. Cost: depends on the implementation; it may take seconds.
        """

    def close(self) -> None:
        """Close the store. Acknowledged writes are durable. Closing twice is a no-op."""


class Change(NamedTuple):
    """A valid write. No key is both put and deleted."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]
    expected: Mapping[bytes, bytes | None]


def check_key(key: object) -> bytes:
    """Check a key, and return it. Raises `InvalidRequest`."""
    return model.check_key(key, bytes_max=KEY_BYTES_MAX, advice="use a shorter path")


def _check_value(value: object) -> bytes:
    return model.check_value(value, bytes_max=VALUE_BYTES_MAX, advice="put what is long into an object")


def validate_change(
    puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], expected: Mapping[bytes, bytes | None]
) -> Change:
    """Check a change, and return it. Raises `InvalidRequest`. Cost: 1 us, and 0.3 us a row."""
    _check_expected(expected)
    if isinstance(deletes, bytes | str):
        raise InvalidRequest("deletes is one key: give a list of keys.", kind="wrong_type")
    new = dict(puts)
    size = 0
    for key, value in new.items():
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            check_key(key)
        if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
            _check_value(value)
        size += len(key) + len(value)
    deleted_keys = [check_key(key) for key in dict.fromkeys(deletes) if key not in new]
    _check_size(size + sum(map(len, deleted_keys)))
    return Change(new, deleted_keys, expected)


def validate_columns(keys: Any, values: Any, expected: Mapping[bytes, bytes | None]) -> tuple[list[bytes], list[bytes]]:
    """Two columns as lists, if they are a valid change. Raises `InvalidRequest`. Cost: about 0.15 us a row."""
    _check_expected(expected)
    new_keys, new_values = batch.validate_columns(
        keys, values, KEY_BYTES_MAX, VALUE_BYTES_MAX, check_key=check_key, check_value=_check_value
    )
    _check_size(sum(map(len, new_keys)) + sum(map(len, new_values)))
    return new_keys, new_values


def _check_expected(expected: Mapping[bytes, bytes | None]) -> None:
    for key, value in expected.items():
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            check_key(key)
        if value is not None and type(value) is not bytes:
            _check_value(value)


def _check_size(size: int) -> None:
    if size > WRITE_BYTES_MAX:
        raise InvalidRequest(
            f"The write has {size:,} bytes, and {WRITE_BYTES_MAX:,} are possible at once: make several.",
            kind="oversized_write",
        )


def validate_bounds(start: object, end: object) -> Bounds | None:
    """Both ends of ``[start, end)``; None for an empty range.

    Raises `InvalidRequest` for an end that is not bytes, or longer than `BOUND_BYTES_MAX`.
    """
    for name, bound in (("start", start), ("end", end)):
        if isinstance(bound, bytes) and len(bound) > BOUND_BYTES_MAX:
            raise InvalidRequest(
                f"The {name} of a scan has {len(bound):,} bytes, and {BOUND_BYTES_MAX:,} are possible: shorten it.",
                kind="oversized_key",
            )
    return check_range(start, end)


def pair_batch(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """Return a batch of `PAIR_SCHEMA`."""
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=PAIR_SCHEMA)


def value_conflict(key: bytes) -> Conflict:
    """Return the error of a conditional write if a key has another value than expected."""
    return Conflict(
        f"The key {key!r} has another value than the one expected: read it and decide again.",
        kind="unexpected_value",
        key=key,
    )
