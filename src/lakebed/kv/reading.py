"""Reads that are the same on everything that can be read: databases, snapshots, readers.

Owns: the checks of keys and ranges, and what holds a scan's files. Invariants: a scan reads the version at which it was
asked for, not the one at which its first row is taken; a range that ends before it starts is empty, not an error.
Does not know: where a view comes from (`Reading._stand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeVar

import pyarrow as pa

from lakebed.errors import Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.lsm.model import KEY_BYTES_MAX, ROW_SCHEMA, check_key
from lakebed.lsm.view import View

__all__ = ["Reading", "check_prefix", "check_range", "prefix_end"]

T = TypeVar("T")

Bounds = tuple[bytes | None, bytes | None]


def check_range(start: object, end: object) -> Bounds | None:
    """Both ends of ``[start, end)``; None for an empty range.

    Raises `InvalidRequest` for an end that is not bytes, or longer than a key can be. A zero byte more is accepted:
    a page that follows the longest key begins there.
    """
    for name, bound in (("start", start), ("end", end)):
        if bound is not None and not isinstance(bound, bytes):
            raise InvalidRequest(
                f"The {name} of a scan is bytes or None, and {type(bound).__name__} was given: convert it first.",
                kind="wrong_type",
            )
        if bound is not None and len(bound) > KEY_BYTES_MAX:
            check_key(bound.removesuffix(b"\0"))
    assert start is None or isinstance(start, bytes)
    assert end is None or isinstance(end, bytes)
    if end is not None and end <= (start or b""):
        return None
    return start or None, end


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key behind all that begin with `prefix`; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def check_prefix(prefix: object) -> Bounds:
    """The range of all keys that begin with `prefix`. Raises `InvalidRequest` when it is not bytes, or too long."""
    if not isinstance(prefix, bytes):
        raise InvalidRequest(
            f"A prefix is bytes, and {type(prefix).__name__} was given: convert it to bytes first.", kind="wrong_type"
        )
    if len(prefix) > KEY_BYTES_MAX:
        check_key(prefix)
    return prefix or None, prefix_end(prefix)


class Reading:
    """Scans and bulk reads over whatever version `_stand` gives."""

    def _stand(self) -> tuple[View, object]:
        """A view, and what has to be kept alive while its files are read. Raises `Closed`."""
        raise NotImplementedError

    def _explain(self, error: LakebedError) -> LakebedError:
        """What it means that a file of ours is gone or damaged: a better error where there is one."""
        return error

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of many keys at one moment, in the order asked; None where there is none.

        Raises `InvalidRequest` for a key that cannot be. Cost: neighbouring blocks are read together.
        """
        if isinstance(keys, bytes | str):
            raise InvalidRequest("get_many takes several keys, and one was given: use get.", kind="wrong_type")
        wanted = list(keys)
        if set(map(type, wanted)) - {bytes} or not all(wanted) or max(map(len, wanted), default=0) > KEY_BYTES_MAX:
            for key in wanted:
                check_key(key)
        view, hold = self._stand()
        try:
            found: list[bytes | None] = view.get_many(wanted)
        except LakebedError as error:
            self._raise_better(error)
        finally:
            del hold
        return found

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of ``[start, end)`` as they are now, in the order of the keys or against it.

        The files it reads stay until it ends, is closed, or is let go. Raises `InvalidRequest`.
        """
        bounds = check_range(start, end)
        view, hold = self._stand()
        return iter(()) if bounds is None else self._scanned(view, hold, bounds, reverse)

    def scan_prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all keys that begin with `prefix`. Otherwise as `scan`."""
        bounds = check_prefix(prefix)
        view, hold = self._stand()
        return self._scanned(view, hold, bounds, reverse)

    def _scanned(self, view: View, hold: object, bounds: Bounds, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        return self._read(view, hold, lambda view: view.scan(*bounds, reverse=reverse))

    def _read(
        self, view: View, hold: object, ask: Callable[[View], Iterable[T]]
    ) -> Iterator[T]:  # a generator's arguments live as long as it does: that is what keeps `hold`
        """What a view answers, lazily, with better errors."""
        try:
            yield from ask(view)
        except LakebedError as error:
            self._raise_better(error)

    def scan_arrow(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] = ("key", "value"),
    ) -> pa.RecordBatchReader:
        """Rows of ``[start, end)``, or of a prefix, as Arrow batches in the order of the keys: the quickest way.

        Args:
            columns: of ``key``, ``value``, ``sequence`` and ``expires_at_ms`` (Unix ms, UTC; null: never).

        Raises `InvalidRequest`.
        """
        if prefix is not None and (start is not None or end is not None):
            raise InvalidRequest("A scan is over a prefix or over a range, and both were given.", kind="two_ranges")
        unknown = [name for name in columns if name not in ROW_SCHEMA.names or name == "kind"]
        if unknown or not columns:
            raise InvalidRequest(
                f"A scan has the columns key, value, sequence, expires_at_ms, and {unknown or 'none'} was asked for.",
                kind="unknown_column",
            )
        bounds = check_range(start, end) if prefix is None else check_prefix(prefix)
        view, hold = self._stand()
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        if bounds is None:
            return pa.RecordBatchReader.from_batches(schema, iter(()))

        def ask(view: View) -> Iterator[pa.RecordBatch]:
            return (batch for batch in view.scan_arrow(*bounds, columns=tuple(columns)) if batch.num_rows)

        return pa.RecordBatchReader.from_batches(schema, self._read(view, hold, ask))

    def _raise_better(self, error: LakebedError) -> NoReturn:
        """Raise an error of a read, or what `_explain` makes of it."""
        better = self._explain(error) if isinstance(error, NotFound | Corruption) else error
        if better is error:
            raise error
        raise better from error
