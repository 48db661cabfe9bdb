"""`WriteBatch`: writes that become visible and durable together, collected as columns.

Owns: the checks of a batch's rows. They are made while rows are added, so that writing a batch cannot fail half way.

A batch does not know a database. A lifetime counts from the moment at which the batch is written, and only then the
database's operator combines an operand. A batch may be written more than once, and to several databases. It is not
thread-safe; make one for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.lsm.model import KEY_BYTES_MAX, VALUE_BYTES_MAX, Kind, check_key, check_value

BATCH_BYTES_MAX: Final = 512 << 20
"""Most bytes of one batch: its log object is one Arrow batch, and 2 GiB is the limit of a column."""

_MILLISECOND = timedelta(milliseconds=1)


def lifetime_ms(ttl: timedelta) -> int:
    """Return a lifetime in milliseconds, at least one. Raises `InvalidRequest`."""
    if not isinstance(ttl, timedelta):
        raise InvalidRequest(
            f"A ttl is a datetime.timedelta, and {type(ttl).__name__} was given: timedelta(seconds=...), for example.",
            kind="wrong_type",
        )
    milliseconds = ttl // _MILLISECOND
    if milliseconds <= 0:
        raise InvalidRequest(
            f"The ttl is {ttl}, and a lifetime is at least one millisecond: delete the key to have it gone at once.",
            kind="invalid_ttl",
        )
    return milliseconds


class WriteBatch:
    """Puts, deletes and merges, in order. Of two rows of the same key the later one wins.

    Attributes (for the writer):
        keys: one for each row.
        values: None is a delete; bytes are a value or, where `special` says so, an operand.
        special: by row, ``(kind, lifetime in ms or None)`` of rows that are operands or have a lifetime.
    """

    __slots__ = ("keys", "special", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.special: dict[int, tuple[Kind, int | None]] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"WriteBatch({len(self.keys)} rows)"

    def put(self, key: bytes, value: bytes, *, ttl: timedelta | None = None) -> None:
        """Set the value of a key, for a time if `ttl` is given. Raises `InvalidRequest`. Cost: about 0.2 us."""
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            check_key(key)
        if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
            check_value(value)
        if ttl is not None:
            self.special[len(self.keys)] = (Kind.PUT, lifetime_ms(ttl))
        self.keys.append(key)
        self.values.append(value)

    def delete(self, key: bytes) -> None:
        """Delete a key. Deleting a missing key has no effect. Raises `InvalidRequest`."""
        self.keys.append(check_key(key))
        self.values.append(None)

    def merge(self, key: bytes, operand: bytes) -> None:
        """Combine the value of a key with an operand, by the merge operator of the database.

        Raises `InvalidRequest`.
        """
        check_key(key)
        self.values.append(check_value(operand))
        self.special[len(self.keys)] = (Kind.MERGE, None)
        self.keys.append(key)

    def put_many(self, keys: Sequence[bytes] | Any, values: Sequence[bytes] | Any) -> None:
        """Add many puts: two sequences of bytes, or two Arrow columns (binary or string), of the same length.

        Raises:
            InvalidRequest: the lengths differ, or a row is not valid. No row was added.

        Cost: about 0.1 us for each row.
        """
        new_keys, new_values = validate_columns(
            keys, values, KEY_BYTES_MAX, VALUE_BYTES_MAX, check_key=check_key, check_value=check_value
        )
        self.keys += new_keys
        self.values += new_values

    def clear(self) -> None:
        """Remove all rows, so that the batch can be filled again."""
        self.keys.clear()
        self.values.clear()
        self.special.clear()

    def columns(self, now_ms: int) -> tuple[list[Kind] | None, list[int | None] | None]:
        """Return the kind and the end (Unix milliseconds, UTC) of each row, as if it was written now.

        None if all rows are plain puts or deletes.
        """
        if not self.special:
            return None, None
        kinds = [Kind.DELETE if value is None else Kind.PUT for value in self.values]
        expires: list[int | None] = [None] * len(kinds)
        for row, (kind, lifetime) in self.special.items():
            kinds[row] = kind
            expires[row] = None if lifetime is None else now_ms + lifetime
        return kinds, expires

    def operands(self) -> list[bytes]:
        """Return those of the values that are operands."""
        rows = [row for row, (kind, _) in self.special.items() if kind is Kind.MERGE]
        return [value for value in (self.values[row] for row in rows) if value is not None]

    def check_size(self) -> None:
        """Raise `InvalidRequest` if the batch is larger than 512 MiB. Cost: 0.05 us for each row."""
        check_batch_size(self.keys, self.values, what="batch")


def validate_columns(
    keys: Any,
    values: Any,
    key_bytes_max: int,
    value_bytes_max: int,
    *,
    check_key: Callable[[object], bytes],
    check_value: Callable[[object], bytes],
) -> tuple[list[bytes], list[bytes]]:
    """Return two columns as lists if each row passes its check. Raises as `WriteBatch.put_many`.

    Cost: 0.1 us for each row.
    """
    new_keys, new_values = _as_list(keys, "keys"), _as_list(values, "values")
    if len(new_keys) != len(new_values):
        raise InvalidRequest(
            f"There are {len(new_keys):,} keys and {len(new_values):,} values: give one value for each key.",
            kind="unequal_lengths",
        )
    if not new_keys:
        return new_keys, new_values
    # Check in C first, which nearly always passes. Only otherwise check row by row, for the error message.
    if set(map(type, new_keys)) != {bytes} or not all(new_keys) or max(map(len, new_keys)) > key_bytes_max:
        for key in new_keys:
            check_key(key)
    if set(map(type, new_values)) != {bytes} or max(map(len, new_values)) > value_bytes_max:
        for value in new_values:
            check_value(value)
    return new_keys, new_values


def check_batch_size(keys: Iterable[bytes], values: Iterable[bytes | None], *, what: str) -> None:
    """Raise `InvalidRequest` if rows do not fit into one log record. Cost: 0.04 us for each row."""
    size = sum(map(len, keys)) + sum(map(len, filter(None, values)))
    if size > BATCH_BYTES_MAX:
        raise InvalidRequest(
            f"The {what} has {size:,} bytes, and {BATCH_BYTES_MAX:,} are possible: write it in several.",
            kind="oversized_batch",
        )


def _as_list(column: Any, name: str) -> list[Any]:
    """Return a column's values as Python bytes."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = column.cast(pa.large_binary())
        items: list[Any] = column.to_pylist()
        return items
    if isinstance(column, bytes | str) or not isinstance(column, Iterable):
        raise InvalidRequest(
            f"The {name} are one {type(column).__name__}: give a sequence of bytes or an Arrow column.",
            kind="wrong_type",
        )
    return list(column)
