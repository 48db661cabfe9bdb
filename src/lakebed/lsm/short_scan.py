"""The first rows of a scan that begins at a key, as lists: most such scans end soon.

Owns: taking rows below one key after another from all sources, and merging them. Forming Arrow batches and sorting them
costs as much as a hundred rows, so the first rows are taken some pages of each file at a time, and some keys of each
memtable. Where the next step ends is known before anything is read: files know the keys from which their pages begin.

Invariants: a source gives each of its rows once, in the order of keys, and all that it has of a key in one step;
sources are given from the newest to the oldest, and of two sources the first has the newer rows of every key. It says
the same as `lakebed.lsm.merge`, and `lakebed.lsm.resolve` gives both their meaning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import Kind, Row

_FIRST_ROW_COUNT: Final = 32
"""Rows of the largest source that the first step takes, about."""

_ROW_COUNT: Final = 64
"""Of each further step: more rows of 1 KB leave the processor's cache before they are given."""

NO_ROWS: Final = b""
"""What `Source.bound` says where nothing can be taken: no key is below."""

_PUT: Final = int(Kind.PUT)
_MERGE: Final = int(Kind.MERGE)
_key_of: Final = itemgetter(0)


class Chunk(NamedTuple):
    """Sorted rows of one source that follow one another, at least one."""

    keys: Sequence[bytes]
    """Ascending; as often as there are rows."""
    values: Sequence[bytes] | None
    """Of each key, where every row is the newest of its key and a PUT that does not end; None: the rows decide."""
    rows: Sequence[Row]
    """Of each key, newest first; nothing where there are values."""

    def slice(self, start: int, end: int) -> Chunk:
        """Rows [start, end)."""
        values = None if self.values is None else self.values[start:end]
        return Chunk(self.keys[start:end], values, self.rows[start:end])


class Source(Protocol):
    """Rows in the order of their keys, of which some were taken."""

    def bound(self, row_count: int) -> bytes | None:
        """A key behind about `row_count` of the next rows, above what was taken.

        None: there are no more rows than that. `NO_ROWS` where rows follow that cannot be taken like this.
        """
        ...

    def take(self, bound: bytes | None, chunks: list[Chunk]) -> None:
        """Add the rows with keys below the bound that were not taken yet; None: all. Bounds ascend."""
        ...


def chunk_of_rows(rows: Sequence[Row]) -> Chunk:
    """Rows of which some do not settle the value of their key."""
    return Chunk(list(map(_key_of, rows)), None, rows)


class KeysOfMemtable(Source):
    """What a memtable has of some of its keys.

    Args:
        keys: ascending.
        start: the first key that counts.
        sequence: newest that counts, inclusive; None: all.
    """

    __slots__ = ("_at", "_keys", "_memtable", "_sequence")

    def __init__(self, memtable: Memtable, keys: Sequence[bytes], start: bytes, *, sequence: int | None) -> None:
        self._memtable = memtable
        self._keys = keys
        self._at = bisect_left(keys, start)
        self._sequence = sequence

    def bound(self, row_count: int) -> bytes | None:
        behind = self._at + row_count
        return self._keys[behind] if behind < len(self._keys) else None

    def take(self, bound: bytes | None, chunks: list[Chunk]) -> None:
        at, all_keys = self._at, self._keys
        self._at = behind = len(all_keys) if bound is None else bisect_left(all_keys, bound, at)
        if at == behind:
            return
        keys = all_keys[at:behind]
        values: dict[bytes, bytes] = {}
        if self._memtable.find_values(keys, values, sequence=self._sequence):
            rows = self._memtable.find_values(keys, None, sequence=self._sequence)
            chunks.append(chunk_of_rows([row for versions in rows.values() for row in versions]))
        elif values:
            chunks.append(Chunk(list(values), list(values.values()), ()))


def merge_sources(
    sources: Sequence[Source],
    *,
    start: bytes,
    end: bytes | None,
    resolve: Callable[[list[Row]], Row | None],
    count: int,
) -> Generator[Iterable[tuple[bytes, bytes]], None, bytes | None]:
    """Keys and values of the first of the rows of [start, end) of all sources, ascending, some at a time, at least one.

    Args:
        sources: newest first; of none the rows below `start` count.
        end: key behind the last; None: to the largest.
        resolve: what the rows of one key mean.
        count: of rows that all steps take of the largest source, about. Rows that give nothing count too: where
            many follow one another that were deleted, batches pass them in a tenth of the time.

    Returns:
        A key that is above all that were given and not above any other; None: there are no others.
    Cost: about 1 us a source for each step, and 0.1 us a row where only one source has some.
    """
    low, row_count, taken_count = start, _FIRST_ROW_COUNT, 0
    while True:
        bound = min([key for source in sources if (key := source.bound(row_count)) is not None], default=None)
        if bound == NO_ROWS:
            return low
        is_last = bound is None or (end is not None and bound >= end)
        if is_last:
            bound = end
        chunks: list[Chunk] = []
        for source in sources:
            source.take(bound, chunks)
        if chunks:
            keys, values = _merge(chunks, resolve)
            if keys:
                yield zip(keys, values, strict=True)
        if is_last or bound is None:
            return None
        taken_count += row_count
        if taken_count >= count:
            return bound
        low = bound
        row_count = _ROW_COUNT


def _merge(
    chunks: Sequence[Chunk], resolve: Callable[[list[Row]], Row | None]
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Keys and values of chunks, newest first, all of whose rows are there of the keys that they have."""
    newest: dict[bytes, bytes] = {}
    for chunk in reversed(chunks):
        if chunk.values is None:
            return _merge_rows(chunks, resolve)
        if len(chunks) == 1:
            return chunk.keys, chunk.values
        newest.update(zip(chunk.keys, chunk.values, strict=True))
    if len(newest) == len(chunks[-1].keys):  # the oldest has all keys, in their order
        return list(newest), list(newest.values())
    keys = sorted(newest)
    return keys, list(map(newest.__getitem__, keys))


def _merge_rows(
    chunks: Sequence[Chunk], resolve: Callable[[list[Row]], Row | None]
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """As `_merge`, where rows decide."""
    versions: dict[bytes, list[Row]] = {}
    for chunk in chunks:
        rows = chunk.rows
        if chunk.values is not None:
            # Older than every row of its key so far, and what is below it does not count: any sequence will do.
            rows = [Row(key, 0, _PUT, value, None) for key, value in zip(chunk.keys, chunk.values, strict=True)]
        for key, group in groupby(rows, _key_of):
            known = versions.setdefault(key, [])
            if all(row.kind == _MERGE for row in known):
                known += group
    keys: list[bytes] = []
    values: list[bytes] = []
    for key in sorted(versions):
        row = resolve(versions[key])
        if row is not None:
            keys.append(key)
            values.append(row.value)
    return keys, values
