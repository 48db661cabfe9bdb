"""Reads that are the same on everything that can be read: databases, snapshots, readers.

Owns: the checks of keys and ranges, and what holds a scan's files. Invariants: a scan reads the version at which it was
asked for, not the one at which its first row is taken; a range that ends before it starts is empty, not an error.
Does not know: where a view comes from (`Reading._stand`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import pyarrow as pa

from lakebed.errors import Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.lsm.model import ROW_SCHEMA, check_key
from lakebed.lsm.view import View

__all__ = ["Reading", "check_prefix", "check_range", "prefix_end"]

Bounds = tuple[bytes | None, bytes | None]


def check_range(start: object, end: object) -> Bounds | None:
    """Both ends of ``[start, end)``; None for an empty range. Raises `InvalidRequest` for ends that are not bytes."""
    for name, bound in (("start", start), ("end", end)):
        if bound is not None and not isinstance(bound, bytes):
            raise InvalidRequest(
                f"The {name} of a scan is bytes or None, and {type(bound).__name__} was given: encode it first.",
                kind="wrong_type",
            )
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
    """The range of all keys that begin with `prefix`. Raises `InvalidRequest` when it is not bytes."""
    if not isinstance(prefix, bytes):
        raise InvalidRequest(
            f"A prefix is bytes, and {type(prefix).__name__} was given: encode it first.", kind="wrong_type"
        )
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
        if set(map(type, wanted)) - {bytes} or not all(wanted):
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
        view, hold = self._stand()
        return self._scanned(view, hold, check_prefix(prefix), reverse)

    def _scanned(
        self, view: View, hold: object, bounds: Bounds, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:  # a generator's arguments live as long as it does: that is what keeps `hold`
        try:
            yield from view.scan(*bounds, reverse=reverse)
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
        reader = view.scan_arrow(*(bounds or (None, None)), columns=tuple(columns))
        batches = iter(()) if bounds is None else self._batches(reader, hold)
        return pa.RecordBatchReader.from_batches(reader.schema, batches)

    def _batches(self, reader: pa.RecordBatchReader, hold: object) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except LakebedError as error:
            self._raise_better(error)

    def _raise_better(self, error: LakebedError) -> NoReturn:
        """Raise an error of a read, or what `_explain` makes of it."""
        better = self._explain(error) if isinstance(error, NotFound | Corruption) else error
        if better is error:
            raise error
        raise better from error
