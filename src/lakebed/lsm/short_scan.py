"""The first rows of a scan that begins at a key, as lists, because most such scans end soon.

Owns: reading rows from all sources in steps, each up to a bound key, and merging them. Forming Arrow batches and
sorting them costs as much as a hundred rows. So the first rows are taken some pages of each file and some keys of each
memtable at a time. The bound of a step is known before anything is read, because files know the first keys of their
pages.

Invariants: a step takes all rows that each source has of the step's keys, and the next step begins where it ends.
Sources are given from the newest to the oldest, and of two sources the first has the newer rows of every key. The
result is that of `lakebed.lsm.merge`; `lakebed.lsm.resolve` interprets both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Protocol

from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import Kind, Row

FIRST_ROW_COUNT: Final = 32
"""Approximate number of rows of the largest source that the first step takes if the scan has no limit."""

_ROW_COUNT: Final = 64
"""As `FIRST_ROW_COUNT`, for each further step. More rows of 1 KB would leave the processor's cache before their use."""

NO_ROWS: Final = b""
"""The result of `Source.find` if nothing can be taken. No key is smaller."""

_PUT: Final = int(Kind.PUT)
_MERGE: Final = int(Kind.MERGE)

Newest = dict[bytes, Any]
"""By key: the value (bytes) if the newest row is a PUT that does not expire, otherwise the rows that decide
(list[Row]), newest first."""


class Source(Protocol):
    """Rows in the order of their keys. They are read in steps. Each step begins at the bound of the previous one."""

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, Any]:
        """Find the end of about `row_count` rows from `low` on.

        Returns:
            A key after these rows, which is above `low`; None: there are no more rows; `NO_ROWS`: the next rows cannot
            be taken in this way. And the place of the rows, for `take`.
        """
        ...

    def take(self, place: Any, low: bytes, bound: bytes | None, newest: Newest) -> bool:
        """Put the rows with keys in [low, bound) over those of older sources; None: all from `low` on.

        Args:
            place: the place that `find` returned for `low`. The bound is not above the key that it returned.

        Returns:
            False if all are values.
        """
        ...


def put_rows(newest: Newest, keys: Iterable[bytes], values: Iterable[bytes | list[Row]]) -> None:
    """Put values, and rows that decide, over those of older sources, which matter only below operands."""
    for key, value in zip(keys, values, strict=True):
        older = newest.get(key)
        if older is not None and isinstance(value, list) and all(row.kind == _MERGE for row in value):
            # The value is older than every row above it, and rows below it do not matter, so any sequence will do.
            value = value + (older if isinstance(older, list) else [Row(key, 0, _PUT, older, None)])
        newest[key] = value


class KeysOfMemtable(Source):
    """The rows of some keys of a memtable.

    Args:
        keys: ascending.
        sequence: newest visible sequence, inclusive; None: all.
    """

    __slots__ = ("_keys", "_memtable", "_sequence")

    def __init__(self, memtable: Memtable, keys: Sequence[bytes], *, sequence: int | None) -> None:
        self._memtable = memtable
        self._keys = keys
        self._sequence = sequence

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, tuple[int, int]]:
        keys = self._keys
        start = bisect_left(keys, low)
        stop = start + row_count
        return (keys[stop], (start, stop)) if stop < len(keys) else (None, (start, len(keys)))

    def take(self, place: tuple[int, int], low: bytes, bound: bytes | None, newest: Newest) -> bool:
        start, stop = place
        keys = self._keys[start : stop if bound is None else bisect_left(self._keys, bound, start, stop)]
        rows = self._memtable.find_values(keys, newest, sequence=self._sequence) if keys else None
        if rows:
            put_rows(newest, rows.keys(), rows.values())
        return bool(rows)


def merge_sources(
    sources: Sequence[Source],
    *,
    start: bytes,
    end: bytes | None,
    resolve: Callable[[list[Row]], Row | None],
    count: int,
    first_count: int = FIRST_ROW_COUNT,
) -> Generator[Iterable[tuple[bytes, bytes]], None, bytes | None]:
    """Yield keys and values of the first rows of [start, end) of all sources, ascending, in pieces of at least one row.

    Args:
        sources: newest first. Their rows below `start` are ignored.
        end: key behind the last; None: to the largest.
        resolve: returns the visible row for the rows of one key.
        count: approximate number of rows that all steps together take of the largest source. Rows that give no result
            count too: batches pass over a sequence of many deleted rows in a tenth of the time.
        first_count: approximate number of rows of the largest source that the first step takes. If none of them was
            deleted, no fewer rows come.

    Returns:
        A key that is above all keys that were yielded and not above any other; None: there are no others.

    Cost: about 1 us for each source and step, and 0.1 us for each row if only one source has rows.
    """
    low, row_count, taken_count = start, first_count, 0
    while True:
        bound: bytes | None = None
        places: list[tuple[Source, Any]] = []
        for source in sources:
            key, place = source.find(low, row_count)
            if key is not None and (bound is None or key < bound):
                bound = key
            places.append((source, place))
        if bound == NO_ROWS:
            return low
        is_last = bound is None or (end is not None and bound >= end)
        if is_last:
            bound = end
        newest: Newest = {}
        rows_decide = False
        for source, place in reversed(places):
            if source.take(place, low, bound, newest):
                rows_decide = True
        if rows_decide:
            _resolve_rows(newest, resolve)
        if newest:
            yield sorted(newest.items())  # keys are unique, so values are never compared
        if is_last or bound is None:
            return None
        taken_count += row_count
        if taken_count >= count:
            return bound
        low = bound
        row_count = _ROW_COUNT


def _resolve_rows(newest: Newest, resolve: Callable[[list[Row]], Row | None]) -> None:
    """Replace rows that decide by their value. Remove keys without a value."""
    for key in [key for key, value in newest.items() if isinstance(value, list)]:
        row = resolve(newest[key])
        if row is None:
            del newest[key]
        else:
            newest[key] = row.value
