"""Scans and bulk reads, shared by databases, snapshots, transactions and readers.

Owns: the checks of arguments, and the references that keep the files of a scan alive. Invariant: a scan reads the
version of the moment of the call, not that of the moment at which its first row is taken. Does not know: where a view
comes from (`ViewSource`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from operator import countOf
from typing import Final, NoReturn, Protocol, Self, TypeVar, cast

import pyarrow as pa

from lakebed.arguments import check_limit
from lakebed.errors import Closed, Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.kv.ranges import Bounds, check_prefix, check_range
from lakebed.lsm.model import KEY_BYTES_MAX, ROW_SCHEMA, check_key
from lakebed.lsm.view import View

T = TypeVar("T")

_ONE_KEY: Final = bytes | str


class ViewSource(Protocol):
    """The source from which reads take their view."""

    def pin_view(self) -> tuple[View, object]:
        """Return a view, and an object that keeps its files as long as it is referenced. Raises `Closed`."""
        ...

    def explain(self, error: LakebedError) -> LakebedError:
        """Return a more precise error for a missing or damaged file if there is one, otherwise the same error."""
        ...

    def read(self, view: View, pin: object, rows_of: Callable[[View], Iterable[T]]) -> Generator[T, None, None]:
        """Yield the rows of a view lazily. Errors are explained."""
        try:  # a generator's arguments live as long as the generator: that keeps `pin`
            yield from rows_of(view)
        except LakebedError as error:
            raise_explained(self, error)


def raise_explained(source: ViewSource, error: LakebedError) -> NoReturn:
    """Raise an error of a read, as the source explains it."""
    explained = source.explain(error) if isinstance(error, NotFound | Corruption) else error
    if explained is error:
        raise error
    raise explained from error


class FixedView(ViewSource):
    """A `ViewSource` of one view, until it is closed.

    Args:
        pin: keeps the files of the view.
        writer: the source that the view was taken from; it explains errors.
        closed: text of the error that reads raise after `close`.
    """

    def __init__(self, view: View, pin: object, *, writer: ViewSource, closed: str) -> None:
        self._pinned: tuple[View, object] | None = (view, pin)
        self._writer = writer
        self._closed = closed

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called."""
        return self._pinned is not None

    def pin_view(self) -> tuple[View, object]:
        pinned_view = self._pinned
        if pinned_view is None:
            raise Closed(self._closed)
        return pinned_view

    def explain(self, error: LakebedError) -> LakebedError:
        return self._writer.explain(error)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a checked key; None if it has none."""
        view, _ = self.pin_view()
        try:
            return view.get(key)
        except LakebedError as error:
            raise_explained(self, error)

    def close(self) -> None:
        """Release the view. Scans that have begun continue. Closing twice is a no-op."""
        self._pinned = None


def _check_keys(keys: Sequence[bytes]) -> None:
    """Raise `InvalidRequest` for the first key that is invalid, if there is one."""
    try:
        size_bytes = len(b"".join(keys))  # first: no other step loads so many keys into the processor's caches at once
        # If all keys together are no longer than one key may be, no key is too long.
        is_short = size_bytes <= KEY_BYTES_MAX or max(map(len, keys)) <= KEY_BYTES_MAX
        is_valid = is_short and all(keys) and countOf(map(type, keys), bytes) == len(keys)
    except (TypeError, ValueError, BufferError):  # raised for a key that is not bytes
        is_valid = False
    if not is_valid:
        for key in keys:
            check_key(key)


class _Rows(chain[tuple[bytes, bytes]]):
    """The rows of some pieces, one after another. It runs Python code once for each piece, and none for each row."""

    __slots__ = ("_pieces",)
    _pieces: Generator[Iterable[tuple[bytes, bytes]], None, None]

    @classmethod
    def of(cls, pieces: Generator[Iterable[tuple[bytes, bytes]], None, None]) -> Self:
        rows = cast(Self, cls.from_iterable(pieces))
        rows._pieces = pieces
        return rows

    def __repr__(self) -> str:
        return "<rows of a scan, read as they are asked for: (key, value) each>"

    def close(self) -> None:
        """End the iteration, and release what it reads."""
        self._pieces.close()
        deque(self, 0)  # consume the rest of the piece that was read last


class ReadVerbs:
    """Reads of more than one key from a `ViewSource`: verbs of databases, snapshots, transactions and readers."""

    def __init__(self, source: ViewSource) -> None:
        self._source = source

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of many keys at one moment, in the order of the keys; None for a key without a value.

        Raises `InvalidRequest` for a key that is not valid. Cost: as single gets, but neighbouring blocks are read
        together.
        """
        if isinstance(keys, _ONE_KEY):
            raise InvalidRequest("get_many takes several keys, and one was given: use get.", kind="wrong_type")
        if not isinstance(keys, Iterable):
            sentence = f"get_many takes several keys, and {type(keys).__name__} was given: give a list of bytes."
            raise InvalidRequest(sentence, kind="wrong_type")
        key_list = list(keys)
        _check_keys(key_list)
        view, pin = self._source.pin_view()
        try:
            return view.get_many(key_list)
        except LakebedError as error:
            raise_explained(self._source, error)
        finally:
            del pin

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys and values of the range ``[start, end)`` as they are now, in the order of the keys.

        The files that it reads stay until the iterator ends, is closed, or is no longer referenced.

        Args:
            start: first key; None: from the first.
            end: key behind the last one; None: to the last.
            reverse: in descending order.
            limit: most rows to return; None: all. Of local files, no more is read than these rows are in.

        Raises:
            InvalidRequest: a bound or the limit is not valid.
        """
        return self._scan(check_range(start, end), reverse=reverse, limit=check_limit(limit))

    def scan_prefix(
        self, prefix: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys that begin with `prefix`, with their values. Otherwise as `scan`."""
        return self._scan(check_prefix(prefix), reverse=reverse, limit=check_limit(limit))

    def _scan(self, bounds: Bounds | None, *, reverse: bool, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, of a checked range."""
        view, pin = self._source.pin_view()
        if bounds is None or limit == 0:
            return iter(())
        start, end = bounds
        return _Rows.of(
            self._source.read(view, pin, lambda view: view.scan_pieces(start, end, reverse=reverse, limit=limit))
        )

    def scan_arrow(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] = ("key", "value"),
    ) -> pa.RecordBatchReader:
        """Return the rows of the range ``[start, end)``, or of a prefix, as Arrow batches in the order of the keys.

        This is the fastest way to read many rows.

        Args:
            start, end: as `scan`.
            prefix: instead of `start` and `end`.
            columns: some of ``key``, ``value``, ``sequence`` and ``expires_at_ms`` (Unix milliseconds, UTC; null:
                never).

        Raises:
            InvalidRequest: a prefix and a range are given, or an unknown column.
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
        view, pin = self._source.pin_view()
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        if bounds is None:
            return pa.RecordBatchReader.from_batches(schema, iter(()))

        def rows_of(view: View) -> Iterator[pa.RecordBatch]:
            return (batch for batch in view.scan_arrow(*bounds, columns=tuple(columns)) if batch.num_rows)

        return pa.RecordBatchReader.from_batches(schema, self._source.read(view, pin, rows_of))
