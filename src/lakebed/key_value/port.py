"""The port: what repositories and fleets need of the store that holds their records and staged rows.

Owns: the two protocols, the verbs that are the same in every implementation, the limits of keys, values and writes, and
the checks that every implementation makes, so that all refuse the same with the same sentence. Invariants, which one
contract suite checks for all implementations:

- Keys are ordered as unsigned bytes.
- A write is atomic, and durable when it returns; a write with ``expected`` happens only if every expected key has that
  value at the very moment at which the write takes effect.
- `KeyValue.get` and `KeyValue.snapshot` are linearizable: they show every write that was acknowledged before the call,
  by any process, and nothing that can still be lost. After `OutcomeUnknown`, the next of them by the same handle
  resolves the outcome of that write: it did happen, or never will.
- `KeyValue.peek` is at least as new as any write of this handle that has succeeded.
- Every implementation may be called by many threads at once.
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
"""Longest start or end of a scan. A bound may be longer than a key: it only marks a position between keys."""

KEY_BYTES_MAX: Final = 2_048
"""Longest key: a path of 1,024 bytes behind a prefix. A page of PostgreSQL's index holds three keys, which is the limit
behind this one."""

VALUE_BYTES_MAX: Final = 16 << 20
"""Longest value: records and entries are small; whatever is large is an object."""

WRITE_BYTES_MAX: Final = 256 << 20
"""Most keys and values, in bytes, of one write."""

PAIR_SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""Columns of `KeyValueSnapshot.scan_arrow`."""


class KeyValueSnapshot(Protocol):
    """All keys and values of one moment. Thread-safe. Use it in a ``with``, or close it."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it has none. Raises `InvalidRequest`, `Closed`."""

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of many keys, in the order asked; they may repeat. Raises as `get`."""

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of ``[start, end)``, keys ascending, read as they are asked for.

        Args:
            start: first key; None: from the smallest.
            end: key after the last; None: to the largest.

        Raises `InvalidRequest`, `Closed`; while it is read also `Unavailable`. A range that ends before it starts is
        empty. A scan that is read after the snapshot was closed may end with `Closed`.
        """

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """The same rows as batches of `PAIR_SCHEMA`, none of them empty."""

    def close(self) -> None:
        """Release the moment. Closing twice is a no-op."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


class KeyValue(Protocol):
    """An ordered map from bytes to bytes. Implementations inherit it. Every call raises `Closed` after `close`.

    Every call may raise `Unavailable` (nothing happened; try again) and `Fenced` (another process owns the store now:
    stop); every write also `OutcomeUnknown` (it may have happened, or may happen yet; `get` tells).
    """

    is_local: bool
    """Whether `get` and `peek` answer without leaving this machine, in microseconds: a server may call them inline."""

    @property
    def lost(self) -> Fenced | None:
        """Why every call fails from now on: another process owns the store. None: not as far as this process knows.

        Cost: no request.
        """
        return None

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it has none: current, durable and ours at some moment during the call.

        Raises `InvalidRequest` for an invalid key.
        """

    def peek(self, key: bytes) -> bytes | None:
        """The value of a key as this process knows it, None if it has none.

        At least as new as every write by this handle that succeeded; maybe not durable yet, or overtaken by another
        process. For what a conditional write checks later. Raises `InvalidRequest`.
        """

    def snapshot(self) -> KeyValueSnapshot:
        """Everything as it is at one moment during the call, durable and unchanging."""

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
        """One atomic change, if every expected key has that value (None: is absent) when it happens.

        Args:
            puts: keys with their new values; of one key that repeats the last counts.
            deletes: keys to delete; they may be absent. A key that is also put is put.
            expected: may name keys that are not written. With nothing to write this is a linearizable check.

        Raises:
            Conflict: kind ``unexpected_value``, ``key=`` is one that differs; nothing was written.
            InvalidRequest: a key or value is invalid, or all together are more than `WRITE_BYTES_MAX`.
        """

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """As `write` with many puts, given as two columns of one length: Arrow binary arrays, or sequences of bytes."""

    def maintain(self) -> None:
        """Reclaim unused space; to be called now and then, in the background.

        Changes nothing that can be read. Cost: the implementation says; it may take seconds.
        """

    def close(self) -> None:
        """Close the store; what was acknowledged is durable. Closing twice is a no-op."""


class Change(NamedTuple):
    """A write that was checked. No key is both put and deleted."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]
    expected: Mapping[bytes, bytes | None]


def check_key(key: object) -> bytes:
    """The key, if it is valid. Raises `InvalidRequest`."""
    return model.check_key(key, bytes_max=KEY_BYTES_MAX, advice="use a shorter path")


def _check_value(value: object) -> bytes:
    return model.check_value(value, bytes_max=VALUE_BYTES_MAX, advice="put what is long into an object")


def validate_change(
    puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], expected: Mapping[bytes, bytes | None]
) -> Change:
    """The change, if it is valid. Raises `InvalidRequest`. Cost: 1 us, and 0.3 us a row."""
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
    gone = [check_key(key) for key in dict.fromkeys(deletes) if key not in new]
    _check_size(size + sum(map(len, gone)))
    return Change(new, gone, expected)


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
    """A batch of `PAIR_SCHEMA`."""
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=PAIR_SCHEMA)


def value_conflict(key: bytes) -> Conflict:
    """The error of a conditional write that met another value."""
    return Conflict(
        f"The key {key!r} has another value than the one expected: read it and decide again.",
        kind="unexpected_value",
        key=key,
    )
