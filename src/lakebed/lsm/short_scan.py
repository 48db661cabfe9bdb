"""The first rows of a scan that begins at a key, as lists: most such scans end soon.

Owns: taking rows below one key after another from all sources, and merging them. Forming Arrow batches and sorting them
costs as much as a hundred rows, so the first rows are taken some pages of each file at a time, and some keys of each
memtable. Where the next step ends is known before anything is read: files know the keys from which their pages begin.

Invariants: a step takes all that each source has of its keys, and the next one begins where it ends; sources are given
from the newest to the oldest, and of two sources the first has the newer rows of every key. It says the same as
`lakebed.lsm.merge`, and `lakebed.lsm.resolve` gives both their meaning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Protocol

from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import Kind, Row

FIRST_ROW_COUNT: Final = 32
"""Rows of the largest source that the first step takes, about, where the scan has no limit."""

_ROW_COUNT: Final = 64
"""Of each further step: more rows of 1 KB leave the processor's cache before they are given."""

NO_ROWS: Final = b""
"""What `Source.find` says where nothing can be taken: no key is below."""

_PUT: Final = int(Kind.PUT)
_MERGE: Final = int(Kind.MERGE)

Newest = dict[bytes, Any]
"""Of keys the value (bytes), where the newest row is a PUT that does not end, else the rows that decide (list[Row]),
newest first."""


class Source(Protocol):
    """Rows in the order of their keys, which are read step by step: each begins at the bound of the one before."""

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, Any]:
        """A key behind about `row_count` of the rows from `low` on, and for `take` where these are.

        The key is above `low`; None: there are no more rows than that. `NO_ROWS` where rows follow that cannot be taken
        like this.
        """
        ...

    def take(self, place: Any, low: bytes, bound: bytes | None, newest: Newest) -> bool:
        """Put the rows with keys in [low, bound) over those of older sources; None: all from `low` on.

        Args:
            place: what `find` said of `low`; the bound is not above the key that it said.

        Returns:
            False where all are values.
        """
        ...


def put_rows(newest: Newest, keys: Iterable[bytes], values: Iterable[bytes | list[Row]]) -> None:
    """Put values, and rows that decide, over those of older sources, which count below operands alone."""
    for key, value in zip(keys, values, strict=True):
        older = newest.get(key)
        if older is not None and isinstance(value, list) and all(row.kind == _MERGE for row in value):
            # Older than every row above, and what is below it does not count: any sequence will do.
            value = value + (older if isinstance(older, list) else [Row(key, 0, _PUT, older, None)])
        newest[key] = value


class KeysOfMemtable(Source):
    """What a memtable has of some of its keys.

    Args:
        keys: ascending.
        sequence: newest that counts, inclusive; None: all.
    """

    __slots__ = ("_keys", "_memtable", "_sequence")

    def __init__(self, memtable: Memtable, keys: Sequence[bytes], *, sequence: int | None) -> None:
        self._memtable = memtable
        self._keys = keys
        self._sequence = sequence

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, tuple[int, int]]:
        keys = self._keys
        at = bisect_left(keys, low)
        behind = at + row_count
        return (keys[behind], (at, behind)) if behind < len(keys) else (None, (at, len(keys)))

    def take(self, place: tuple[int, int], low: bytes, bound: bytes | None, newest: Newest) -> bool:
        at, behind = place
        keys = self._keys[at : behind if bound is None else bisect_left(self._keys, bound, at, behind)]
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
    """Keys and values of the first of the rows of [start, end) of all sources, ascending, some at a time, at least one.

    Args:
        sources: newest first; of none the rows below `start` count.
        end: key behind the last; None: to the largest.
        resolve: what the rows of one key mean.
        count: of rows that all steps take of the largest source, about. Rows that give nothing count too: where
            many follow one another that were deleted, batches pass them in a tenth of the time.
        first_count: of rows of the largest source that the first step takes, about: no fewer come if none was deleted.

    Returns:
        A key that is above all that were given and not above any other; None: there are no others.
    Cost: about 1 us a source for each step, and 0.1 us a row where only one source has some.
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
            yield sorted(newest.items())  # keys differ: no value is compared
        if is_last or bound is None:
            return None
        taken_count += row_count
        if taken_count >= count:
            return bound
        low = bound
        row_count = _ROW_COUNT


def _resolve_rows(newest: Newest, resolve: Callable[[list[Row]], Row | None]) -> None:
    """Put values in the place of rows that decide; keys that have none go."""
    for key in [key for key, value in newest.items() if isinstance(value, list)]:
        row = resolve(newest[key])
        if row is None:
            del newest[key]
        else:
            newest[key] = row.value
