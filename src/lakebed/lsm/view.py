"""The read path: one state of the data, over memtables and files.

Owns: the choice of the sources that can have a key or a range, their order from the newest to the oldest, and the
choice between the ways to merge them.

Invariants: a view does not change. Its newest memtable may still grow, but only rows up to the view's sequence are
read. The time is taken once, when a read begins. Of two sources, the first has the newer rows of every key. A missing
file raises `NotFound`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.clock import Clock
from lakebed.lsm.cache import Entry, RowCache
from lakebed.lsm.columns import keys_of
from lakebed.lsm.file_reader import (
    AHEAD_BYTES_DEFAULT,
    FEW_ABSENT,
    FEW_KEYS,
    FULL_CALL_COUNT,
    FileReader,
    Rest,
    choose_run_bytes,
)
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import Filter, LevelsFilter, hash_key
from lakebed.lsm.format import Tail
from lakebed.lsm.key_batch import KeyBatch
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.merge import Part, Window, cut_windows
from lakebed.lsm.model import ROW_SCHEMA, ROWS_DECIDE, FileMeta, FileSet, Kind, Row, RowsDecide
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.resolve import resolve_row, visible
from lakebed.lsm.row_merge import merge_rows, newest_first
from lakebed.lsm.short_scan import FIRST_ROW_COUNT, KeysOfMemtable, Newest, Source, merge_sources
from lakebed.runtime import Environment

T = TypeVar("T")

FEW_ROWS: Final = 128
"""Windows up to this size are merged row by row."""

SHORT_SCAN_ROWS: Final = 480
"""Approximate number of rows that a scan reads by single pages at its beginning, before it continues by batches."""

SCAN_BYTES: Final = 8 << 20
"""Bytes that all files of a scan together read ahead."""

WINDOW_BYTES: Final = 2 << 20
"""Bytes of all sources that are merged at once. Data that fits into a processor's cache is merged faster."""

SLICE_ROW_COUNT: Final = 512
"""Rows in the first slice of a memtable that a scan takes. Each further slice is four times as large."""

LIMITED_ROWS_MAX: Final = 128
"""Most rows in the first step of a scan with a limit. More rows would not stay in the processor's cache."""

_FILES_ASKED_MAX: Final = 1024
"""Most files whose filters are asked before anything else. This takes about 2 KB for each, in addition to the cache."""

PUT: Final = int(Kind.PUT)
MERGE: Final = int(Kind.MERGE)


class Level:
    """Files that are sorted by key and do not overlap: a run, or one file of level 0."""

    __slots__ = ("_readers", "files", "last_keys", "only", "visible_from")

    def __init__(self, files: Sequence[FileMeta]) -> None:
        self.files = files
        self.only: FileReader | None = None
        """The handle of the only file of the level, once it was requested."""
        self.visible_from = max([file.min_sequence for file in files], default=0)
        """From this sequence on, each of the files has visible rows."""
        self.last_keys = [file.last_key for file in files]
        """The last key of each file."""
        self._readers: list[FileReader | None] = [None] * len(files)

    def reader_of(self, key: bytes, files: FileStore) -> FileReader | None:
        """Return the handle of the file whose range includes a key, or None. Cost: a bisection."""
        place = bisect_left(self.last_keys, key)
        if place == len(self.last_keys) or self.files[place].first_key > key:
            return None
        return self.reader(place, files)

    def open_tail(self, at: int, entries: Mapping[tuple[str, int], Entry]) -> Tail | None:
        """Return the tail of a file from the cache; None if it was not read yet, or is not in the cache."""
        reader = self._readers[at]
        entry = None if reader is None else entries.get(reader.tail_key)
        return None if entry is None else entry.value

    def lie_apart(self, keys: Sequence[bytes]) -> bool:
        """Whether the first and the last of some keys are not neighbours in this level (`FileReader.lie_apart`)."""
        place = bisect_left(self.last_keys, keys[0])
        if place != bisect_left(self.last_keys, keys[-1]) or place == len(self.files):
            return True
        reader = self._readers[place]
        return reader is not None and reader.lie_apart(keys)

    def reader(self, at: int, files: FileStore) -> FileReader:
        """Return the handle of a file by its index."""
        reader = self._readers[at]
        if reader is None:
            self._readers[at] = reader = files.reader(self.files[at])
            if len(self.files) == 1:
                self.only = reader
        return reader

    def of_keys(self, keys: Sequence[bytes], files: FileStore) -> Iterable[tuple[FileReader, int, int]]:
        """Return files whose ranges include some of the sorted keys, with the range [low, high) of these keys' indices.

        The only file of a level is returned with all keys, in any order, if its range includes one of them.
        """
        if len(self.files) > 1:
            return self._of_sorted_keys(keys, files)
        reader = self.only or self.reader(0, files)
        first_key, last_key = reader.first_key, reader.last_key
        if first_key <= keys[0] <= last_key or any(first_key <= key <= last_key for key in keys):
            return ((reader, 0, len(keys)),)
        return ()

    def _of_sorted_keys(self, keys: Sequence[bytes], files: FileStore) -> Iterator[tuple[FileReader, int, int]]:
        low = 0
        while low < len(keys):
            place = bisect_left(self.last_keys, keys[low])
            if place == len(self.files):
                return
            file = self.files[place]
            first = bisect_left(keys, file.first_key, low)
            low = bisect_right(keys, file.last_key, first)
            if first < low:
                yield self.reader(place, files), first, low

    def of_range(self, start: bytes | None, end: bytes | None) -> Sequence[FileMeta]:
        """Return the files that overlap [start, end), in the order of their keys."""
        low = 0 if start is None else bisect_left(self.last_keys, start)
        high = len(self.files) if end is None else bisect_left(self.files, end, low, key=lambda file: file.first_key)
        return self.files[low:high]


class Levels(list[Level]):
    """The levels of a set, newest first. Views of the set share them."""

    __slots__ = ("_are_neighbours", "_awaited", "_filter", "_full_call_count", "_is_asked", "_was_asked")

    def __init__(self, levels: Iterable[Level]) -> None:
        super().__init__(levels)
        self._filter: LevelsFilter | None = None
        self._was_asked = False
        """Whether a filter was requested before: a view that is used once need not make it."""
        self._is_asked = False
        """Whether `filters` was requested, which happens once all files were read."""
        self._full_call_count = 0
        """Consecutive calls with many keys in which nearly all keys were found. A lost update does no harm."""
        self._are_neighbours = False
        """Whether the keys of the last call of `lie_apart` may be neighbours. A lost update does no harm."""
        self._awaited: tuple[Level, int] | None = None
        """The first file that was not open when `filters` was called. Until it is open, others need not be tried."""

    def filters(
        self, entries: Mapping[tuple[str, int], Entry]
    ) -> Sequence[tuple[Sequence[bytes], Sequence[Filter]]] | None:
        """See `View.filters`."""
        if sum(len(level.files) for level in self) > _FILES_ASKED_MAX:
            return ()
        if self._awaited is not None and self._awaited[0].open_tail(self._awaited[1], entries) is None:
            return None
        filters: list[tuple[Sequence[bytes], Sequence[Filter]]] = []
        for level in self:
            tails: list[Tail] = []
            for number in range(len(level.files)):
                tail = level.open_tail(number, entries)
                if tail is None:
                    self._awaited = (level, number)
                    return None
                tails.append(tail)
            if any(tail.mapped is None or tail.filter.is_empty for tail in tails):
                return ()
            filters.append((level.last_keys, [tail.filter for tail in tails]))
        return filters

    def find_filter(self, keys: Sequence[bytes], entries: Mapping[tuple[str, int], Entry]) -> LevelsFilter | None:
        """Return the filter that finds for keys together which levels may have them; None: ask each file.

        It is None for few keys, if these and the previous keys may be neighbours, if nearly all keys of the last calls
        were in the only level, and until there are `filters`.
        """
        if len(keys) < FEW_KEYS or self.are_likely(keys):
            return None
        if not self._is_asked:
            if not self._was_asked:
                self._was_asked = True
                return None
            filters = self.filters(entries)
            if filters is None:
                return None
            self._filter = LevelsFilter(filters) if filters else None
            self._is_asked = True
        return None if self._are_neighbours and not self.lie_apart(keys) else self._filter

    def lie_apart(self, keys: Sequence[bytes]) -> bool:
        """Whether some keys are not neighbours in the last level. This is also the guess for the next call.

        It takes as long as a search in a file, so it is called only if many keys pass the filters or may be neighbours.
        """
        self._are_neighbours = not self[-1].lie_apart(keys)
        return not self._are_neighbours

    def are_likely(self, keys: Sequence[bytes]) -> bool:
        """Whether there are many keys, and nearly all keys of the last calls were in the only level."""
        return self._full_call_count >= FULL_CALL_COUNT and len(self) == 1 and len(keys) >= FEW_KEYS

    def note_absent(self, absent_count: int, count: int) -> None:
        """Record how many of the keys of a call were not found."""
        self._full_call_count = 0 if FEW_ABSENT * absent_count > count else self._full_call_count + 1


def levels_of(file_set: FileSet) -> Levels:
    """Return the levels of a set, newest first. Views of one set share them. Cost: O(files)."""
    return Levels([*(Level((file,)) for file in file_set.l0), *(Level(run.files) for run in file_set.runs)])


class Ends:
    """The fixed time of a view, and the earliest expiry among the values that the view has shown.

    Attributes:
        first_ms: the earliest expiry, Unix time in milliseconds, UTC, after the fixed time; None: no value that was
            read expires.
    """

    __slots__ = ("_now_ms", "first_ms")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.first_ms: int | None = None

    def now_ms(self) -> int:
        """The fixed time: Unix time in milliseconds, UTC."""
        return self._now_ms

    def note(self, end_ms: int | None) -> None:
        """Record the expiry of a row that was read; None: it does not expire."""
        if end_ms is not None and end_ms > self._now_ms and (self.first_ms is None or end_ms < self.first_ms):
            self.first_ms = end_ms


class View:
    """One state of the data. Immutable; any number of threads may read.

    Args:
        memtables: newest first.
        file_set: the files, which have older rows.
        sequence: newest visible sequence, inclusive; None: all.
        operator: combines operands; None: the store has none.
        environment: its clock decides what has expired.
        files: the store of the files.
        levels: `levels` of another view of the same set and the same `files`, which need not be made again.
        cached_rows: a cache of the values in all files, of keys without a row in `memtables`, and the generation of the
            cache for which this is true; None: no cache.
    """

    __slots__ = (
        "_cached_rows",
        "_clock",
        "_ends",
        "_entries",
        "_files",
        "_levels",
        "_operator",
        "file_set",
        "memtables",
        "sequence",
    )

    def __init__(
        self,
        *,
        memtables: Sequence[Memtable],
        file_set: FileSet,
        sequence: int | None,
        operator: MergeOperator | None,
        environment: Environment,
        files: FileStore,
        levels: Levels | None = None,
        cached_rows: tuple[RowCache, int] | None = None,
    ) -> None:
        self._cached_rows = cached_rows
        self.memtables = memtables
        self.file_set = file_set
        self.sequence = sequence
        self._operator = operator
        self._clock: Clock | Ends = environment.clock
        self._files = files
        self._entries = files.cache.entries
        self._levels = levels
        self._ends: Ends | None = None

    def noting(self, ends: Ends) -> View:
        """Return this view at a fixed time. Its reads record in `ends` when values expire, also values below operands.

        For one thread.
        """
        view = copy(self)
        view._clock = view._ends = ends
        return view

    @property
    def levels(self) -> Levels:
        """The files, arranged to find those that can have a key. Made on first use."""
        if self._levels is None:
            self._levels = levels_of(self.file_set)
        return self._levels

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none. As `get_row`."""
        for memtable in self.memtables:
            if key in memtable.index:
                break
        else:
            value = self.find_value(key)
            if value is not ROWS_DECIDE:
                return value
        row = self.get_row(key)
        return None if row is None else row.value

    def get_row(self, key: bytes) -> Row | None:
        """Return the value of a key as a row, with the newest row's sequence; None if it has none.

        Raises:
            NotFound: a file is gone.
            Corruption: a file is damaged.
            InvalidRequest: the operands of the key cannot be combined.
        Cost: in memory 1 us. In files, one bisection for each level and one check of each filter; 1 GET for the block,
            none if it is cached; with operands, 1 GET for each file that has some.
        """
        sequence = self.sequence
        versions: list[Row] = []
        for memtable in self.memtables:
            if key in memtable.index:
                versions += memtable.rows_of(key, sequence)
                if versions and versions[-1].kind != MERGE:
                    return self._resolve(versions)
        key_hash, files = hash_key(key), self._files
        for level in self._levels or self.levels:
            reader = level.only
            if reader is None:
                reader = level.reader_of(key, files)
            elif not reader.first_key <= key <= reader.last_key:
                continue
            if reader is None or (sequence is not None and reader.meta.min_sequence > sequence):
                continue
            rows = reader.get(key, sequence=sequence, key_hash=key_hash)
            if rows:
                versions = versions + rows if versions else rows
                if rows[-1].kind != MERGE:
                    break
        return self._resolve(versions) if versions else None

    def find_value(self, key: bytes, *, key_hash: int | None = None, first_level: int = 0) -> bytes | RowsDecide | None:
        """Return the value of a key in the files in the fewest steps, if its newest row is a PUT that does not expire.

        Args:
            key_hash: hash of a key that has passed one of `filters`; None: they were not asked.
            first_level: the number of that filter.

        Returns:
            None if the key has no value; `ROWS_DECIDE` if the caller has to use `get_row`.

        Errors and cost: as `get_row`.
        """
        files, sequence, entries, levels = self._files, self.sequence, self._entries, self._levels or self.levels
        is_likely = key_hash is not None
        if key_hash is None:
            key_hash = hash_key(key)
        for level in levels[first_level:] if first_level else levels:
            reader = level.only
            if reader is None:
                reader = level.reader_of(key, files)
            elif not reader.first_key <= key <= reader.last_key:
                reader = None
            if reader is None:
                is_likely = False
                continue
            entry = entries.get(reader.tail_key)
            if entry is None:
                return ROWS_DECIDE  # a tail that the cache does not keep would be read twice otherwise
            entry.used = True
            tail: Tail = entry.value
            if not is_likely and not tail.filter.may_contain(key_hash):
                continue
            is_likely = False
            if sequence is not None and reader.meta.min_sequence > sequence:
                continue
            value = reader.find_value(tail, key, sequence=sequence)
            if value is not None:
                return value
        return None

    def filters(self) -> Sequence[tuple[Sequence[bytes], Sequence[Filter]]] | None:
        """Return the last keys and the filters of each level's files, which show that a level does not have a key.

        They keep no memory except maps of files. The result is empty if there are more than `_FILES_ASKED_MAX` files,
        or if one is not mapped or has no filter. It is None while a file is not open, because this opens no file.

        Cost: 0.2 us for each file, and 0.3 us while the same file is not open.
        """
        return self.levels.filters(self._entries)

    def _resolve(self, rows: list[Row], *, now_ms: int | None = None) -> Row | None:
        newest = rows[0]
        if newest.kind == PUT and newest.expires_at_ms is None:
            return newest
        if len(rows) > 1:
            newest_first(rows)
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        if self._ends is not None:
            for row in rows:
                self._ends.note(row.expires_at_ms)
        return resolve_row(rows, now_ms=now_ms, operator=self._operator)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys; None for a key without a value. Keys may repeat.

        Raises: as `get_row`.

        Cost: in files, 1 GET for each run of neighbouring blocks that may have some of the keys.
        """
        sequence = self.sequence
        active = self.memtables[0] if self.memtables else None
        if active is not None and active.index:
            active_values = active.find_all(keys, sequence=sequence)
            if active_values is not None:
                return active_values
        now_ms = self._clock.now_ms()
        by_key: dict[bytes, Sequence[Row]] = {}
        values: dict[bytes, bytes] = {}
        keys_left: Sequence[bytes] = keys
        for memtable in self.memtables:
            index = memtable.index
            if index and not index.keys().isdisjoint(keys_left):
                rows = memtable.find_values(keys_left, values if not by_key else None, sequence=sequence)
                if values:
                    keys_left = [key for key in keys_left if key not in values]
                keys_left = _still_wanted(keys_left, rows, by_key)
        # A filter never excludes a key that the row cache has. If the cache has the first key, ask it for all keys
        # before the filters. Otherwise many keys may be absent: ask it after the filters.
        cached_rows = self._cached_rows
        is_cached = cached_rows is not None and bool(keys_left) and keys_left[0] in cached_rows[0]
        if is_cached:
            cached_values = self._values_in_cache(keys_left, by_key)
            keys_left = [key for key in keys_left if key not in cached_values]
            values = values | cached_values if values else cached_values
        if keys_left:
            self._find_in_files(keys_left, by_key, values, asks_cache=not is_cached)
        for key, versions in by_key.items():
            newest = versions[0]
            if newest.kind == PUT and newest.expires_at_ms is None:
                values[key] = newest.value
            elif (row := self._resolve(list(versions), now_ms=now_ms)) is not None:
                values[key] = row.value
        return list(map(values.get, keys)) if values else [None] * len(keys)

    def _values_in_cache(self, keys: Collection[bytes], by_key: Mapping[bytes, object]) -> dict[bytes, bytes]:
        """Return the values that the row cache has, of those keys for which no row was found so far."""
        if self._cached_rows is None:
            return {}
        cache, generation = self._cached_rows
        values = cache.get_many(keys)
        # Another generation means that a new file was shown since, so the values may be newer than this view.
        if cache.generation != generation:
            return {}
        for key in by_key:
            values.pop(key, None)
        return values

    def _find_in_files(
        self,
        wanted: Sequence[bytes],
        by_key: dict[bytes, Sequence[Row]],
        values: dict[bytes, bytes],
        *,
        asks_cache: bool,
    ) -> None:
        """Add what files have of keys, from the newest file to the oldest one that matters.

        Add a value instead of rows if a PUT that does not expire decides.

        Args:
            asks_cache: whether to ask the row cache, before a file, for the keys that pass the file's filter.
        """
        levels, keys_left, former_count = self._levels or self.levels, wanted, len(values) + len(by_key)
        levels_filter, places = levels.find_filter(wanted, self._entries), None
        if levels_filter is not None:
            places = levels_filter.select(wanted)
            if not by_key and sum(map(len, places)) < FEW_KEYS:
                keys_left, places = self._find_few(wanted, places, values, asks_cache=asks_cache), None
            elif not levels.lie_apart(wanted):
                places = None
        if keys_left:
            self._find_by_level(keys_left, places, by_key, values, asks_cache=asks_cache)
        levels.note_absent(len(wanted) - (len(values) + len(by_key) - former_count), len(wanted))

    def _find_few(
        self, keys: Sequence[bytes], places: Sequence[Sequence[int]], values: dict[bytes, bytes], *, asks_cache: bool
    ) -> list[bytes]:
        """Add the values of the few keys that pass the filters, one by one: to group them would take longer.

        Args:
            places: for each level, the indices of the keys that pass its filters.

        Returns:
            The keys whose rows have to be read.
        """
        first_levels: dict[bytes, int] = {}
        for number, level_keys in enumerate(places):
            for place in level_keys:
                first_levels.setdefault(keys[place], number)
        if asks_cache and first_levels and (cached_values := self._values_in_cache(first_levels, {})):
            values |= cached_values
            first_levels = {key: number for key, number in first_levels.items() if key not in cached_values}
        settled, keys_left = {}, []
        for key, number in first_levels.items():
            value = self.find_value(key, key_hash=hash_key(key), first_level=number)
            if value is ROWS_DECIDE:
                keys_left.append(key)
            elif value is not None:
                settled[key] = value
        if settled:
            values |= settled
            if self._cached_rows is not None:
                cache, generation = self._cached_rows
                cache.put_each(settled, generation=generation)
        return keys_left

    def _find_by_level(
        self,
        keys: Sequence[bytes],
        places: Sequence[Sequence[int]] | None,
        by_key: dict[bytes, Sequence[Row]],
        values: dict[bytes, bytes],
        *,
        asks_cache: bool,
    ) -> None:
        """As `_find_in_files`, level by level. `places`: indices of the keys that each level may have; None: all."""
        sequence, levels, files, keys_left = self.sequence, self._levels or self.levels, self._files, keys
        if places is None and any(len(level.files) > 1 for level in levels):
            keys_left = sorted(keys_left)
        batch, are_likely = KeyBatch(keys_left), levels.are_likely(keys_left)
        cached_rows = self._cached_rows
        if asks_cache and cached_rows is not None and cached_rows[0].is_passed_by():
            asks_cache, cached_rows = False, None
        for number, level in enumerate(levels):
            if places is not None:
                batch = _choose_likely(keys, places[number], keys_left)
                if not batch.keys:
                    continue
            # If rows were found in newer levels, they are operands, so the rows below them are needed.
            needs_rows = bool(by_key) and not by_key.keys().isdisjoint(keys_left)
            rows: dict[bytes, list[Row]] = {}
            value_count = len(values)
            for reader, low, high in level.of_keys(batch.keys, files):
                if sequence is not None and reader.meta.min_sequence > sequence:
                    continue
                if places is None:
                    file_keys = batch.slice(low, high)
                    if not needs_rows and reader.find_neighbours(file_keys.keys, sequence=sequence, values=values):
                        continue
                    likely = reader.select(file_keys, are_likely=are_likely)
                else:
                    likely = KeyBatch(batch.keys[low:high])
                if not likely.keys:
                    continue
                if asks_cache and (cached_values := self._values_in_cache(likely.keys, by_key)):
                    values |= cached_values
                    likely = likely.select(np.flatnonzero([key not in cached_values for key in likely.keys]))
                settled = values if cached_rows is None else {}
                reader.find_many(likely, sequence=sequence, rows_by_key=rows, values=None if needs_rows else settled)
                if settled and cached_rows is not None:
                    values |= settled
                    cache, generation = cached_rows
                    cache.put_each(settled, generation=generation)
            if len(values) == value_count and not rows:
                continue
            keys_left = [key for key in keys_left if key not in values] if level is not levels[-1] else ()
            keys_left = _still_wanted(keys_left, rows, by_key)
            if not keys_left:
                break
            batch = KeyBatch(keys_left)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values of [start, end), in ascending or descending order of the keys.

        Args:
            start: First key; None: from the smallest.
            end: Key behind the last; None: to the largest.
            reverse: from the largest to the smallest.

        Raises: as `get_row`, during the iteration.

        Cost: as `scan_arrow`, and 0.2 us for each row for the Python objects.
        """
        return chain.from_iterable(self.scan_pieces(start, end, reverse=reverse))

    def scan_pieces(
        self, start: bytes | None, end: bytes | None, *, reverse: bool, limit: int | None = None
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """As `scan`, in pieces of at least one row; only the first `limit` rows, which is at least 1; None: all."""
        pieces = self._pairs(start, end, reverse=reverse, limit=limit, now_ms=self._clock.now_ms())
        return pieces if limit is None else cut_pieces(pieces, limit)

    def _pairs(
        self, start: bytes | None, end: bytes | None, *, reverse: bool, limit: int | None, now_ms: int
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """As `scan_pieces`. The limit affects only how much is read at once."""
        if start is not None and end is not None and start >= end:
            return
        if not reverse and (start is not None or limit is not None):
            start = yield from self._first_pairs(start or b"", end, limit=limit, now_ms=now_ms)
            if start is None:
                return
        for window in cut_windows(self._sources(start, end, reverse=reverse), reverse=reverse, size_bytes=WINDOW_BYTES):
            if window.row_count <= FEW_ROWS:
                pairs = self._few(window, now_ms=now_ms)
                if pairs:
                    yield reversed(pairs) if reverse else pairs
                continue
            batches = self._visible(window, ("key", "value"), now_ms=now_ms)
            for batch in reversed(batches) if reverse else batches:
                if not batch.num_rows:
                    continue
                keys, values = keys_of(batch.column(0)), keys_of(batch.column(1))
                yield zip(reversed(keys), reversed(values), strict=True) if reverse else zip(keys, values, strict=True)

    def _first_pairs(
        self, start: bytes, end: bytes | None, *, limit: int | None, now_ms: int
    ) -> Generator[Iterable[tuple[bytes, bytes]], None, bytes | None]:
        """Yield the first pairs of `_pairs` by single pages, because most scans that begin at a key end soon.

        Returns:
            The key from which the remaining pairs begin; None: there are no more.
        """
        files, sequence = self._files, self.sequence
        sources: list[Source] = [
            KeysOfMemtable(memtable, keys, sequence=sequence)
            for memtable in self.memtables
            for keys in memtable.order_keys()
            if keys
        ]
        sources += [_RowsOfLevel(level, files, end=end, sequence=sequence) for level in self._levels or self.levels]
        return merge_sources(
            sources,
            start=start,
            end=end,
            resolve=lambda rows: self._resolve(rows, now_ms=now_ms),
            count=SHORT_SCAN_ROWS,
            first_count=FIRST_ROW_COUNT if limit is None else min(limit, LIMITED_ROWS_MAX),
        )

    def _few(self, window: Window, *, now_ms: int) -> list[tuple[bytes, bytes]]:
        """Return the visible rows of a small window."""
        sequence = self.sequence
        pairs = []
        for key, versions in merge_rows(part.rows for part in window.parts):
            if sequence is not None and versions[0].sequence > sequence:
                versions = [row for row in versions if row.sequence <= sequence]
            row = self._resolve(versions, now_ms=now_ms) if versions else None
            if row is not None:
                pairs.append((key, row.value))
        return pairs

    def _visible(self, window: Window, columns: Sequence[str], *, now_ms: int) -> list[pa.RecordBatch]:
        """Return the visible rows of a window, keys ascending."""
        if all(part.plain for part in window.parts):
            parts = window.parts_in_order()
            if parts is not None:
                return [part.rows.select(columns) for part in parts]
        if self._ends is not None:
            for part in window.parts:
                ends = part.rows.column("expires_at_ms")
                self._ends.note(pc.min(ends.filter(pc.greater(ends, now_ms))).as_py())
        table = visible(
            window.merge_parts(), sequence=self.sequence, now_ms=now_ms, operator=self._operator, columns=columns
        )
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches

    def scan_arrow(
        self, start: bytes | None = None, end: bytes | None = None, *, columns: Sequence[str] = ("key", "value")
    ) -> pa.RecordBatchReader:
        """Return the rows of [start, end) as batches, keys ascending, each key once.

        Args:
            start, end: as for `scan`.
            columns: of ``key``, ``value``, ``sequence`` (of the newest row) and ``expires_at_ms`` (Unix ms, UTC; null:
                never).

        Raises: as `get_row`, during the iteration.

        Cost: sequential reads of the files that overlap. If sources overlap, 0.2 us for each row. Rows of one source
            that has only puts pass through without a copy. Memory: `SCAN_BYTES` and what merging needs.
        """
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        batches = self._batches(start, end, columns=list(columns), now_ms=self._clock.now_ms())
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _batches(
        self, start: bytes | None, end: bytes | None, *, columns: list[str], now_ms: int
    ) -> Iterator[pa.RecordBatch]:
        for window in cut_windows(self._sources(start, end, reverse=False), size_bytes=WINDOW_BYTES):
            yield from self._visible(window, columns, now_ms=now_ms)

    def _sources(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> list[Iterable[Part]]:
        """Return the sources that have rows of a range, newest first."""
        sources: list[Iterable[Part]] = [
            _slices(rows, reverse=reverse)
            for memtable in self.memtables
            for rows in memtable.sorted(start, end, sequence=self.sequence)
        ]
        levels = [files for level in self.levels if (files := level.of_range(start, end))]
        level_count = max(1, len(levels))
        ahead_bytes, run_bytes = min(AHEAD_BYTES_DEFAULT, SCAN_BYTES // level_count), choose_run_bytes(level_count)
        for files in levels:
            parts = self._parts(files, start, end, reverse=reverse, ahead_bytes=ahead_bytes, run_bytes=run_bytes)
            sources.append(parts)
        return sources

    def _parts(
        self,
        files: Sequence[FileMeta],
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool,
        ahead_bytes: int,
        run_bytes: int,
    ) -> Iterator[Part]:
        """Yield blocks of the files of one level. A file is opened when its turn comes."""
        sequence = self.sequence
        for file in reversed(files) if reverse else files:
            if sequence is not None and file.min_sequence > sequence:
                continue
            reader = self._files.reader(file)
            for block in reader.batches(start, end, reverse=reverse, ahead_bytes=ahead_bytes, run_bytes=run_bytes):
                is_plain = block.plain and (sequence is None or block.max_sequence <= sequence)
                yield Part(block.batch, is_plain, block.batch.get_total_buffer_size())


class _RowsOfLevel(Source):
    """The rows of the files of one level. A file is opened when its turn comes.

    Args:
        end: files with only greater keys are not opened; None: all files may be opened.
        sequence: newest visible sequence, inclusive; None: all.
    """

    __slots__ = ("_end", "_files", "_level", "_rest", "_sequence")

    def __init__(self, level: Level, files: FileStore, *, end: bytes | None, sequence: int | None) -> None:
        self._level = level
        self._files = files
        self._end = end
        self._sequence = sequence
        self._rest: Rest | None = None
        """The rest of the last page that was read, if a step ended in this page."""

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, tuple[FileReader, Any] | None]:
        level, sequence = self._level, self._sequence
        number, count = bisect_left(level.last_keys, low), len(level.files)
        if sequence is not None and level.visible_from > sequence:
            while number < count and level.files[number].min_sequence > sequence:
                number += 1
        if number == count or (self._end is not None and level.files[number].first_key >= self._end):
            return None, None
        reader = level.reader(number, self._files)
        bound, place = reader.find_pages(low, row_count)
        if bound is None and number + 1 < count:
            bound = level.files[number + 1].first_key
        return bound, (reader, place)

    def take(self, place: tuple[FileReader, Any] | None, low: bytes, bound: bytes | None, newest: Newest) -> bool:
        if place is None:
            return False
        reader, pages = place
        rest, sequence = self._rest, self._sequence
        rows_decide, self._rest = reader.take_pages(pages, low, bound, newest, rest=rest, sequence=sequence)
        return rows_decide


def cut_pieces(pieces: Iterable[Iterable[T]], limit: int) -> Iterator[list[T]]:
    """Yield the first `limit` rows of pieces; the limit is at least 1."""
    for piece in pieces:
        rows = list(islice(piece, limit))
        yield rows
        limit -= len(rows)
        if not limit:
            return


def _choose_likely(keys: Sequence[bytes], places: Sequence[int], wanted: Sequence[bytes]) -> KeyBatch:
    """Return those of the keys at some indices that are still wanted, sorted."""
    if not places:
        return KeyBatch(())
    likely = sorted(map(keys.__getitem__, places))
    if len(wanted) < len(keys):
        keys_left = set(wanted)
        likely = [key for key in likely if key in keys_left]
    return KeyBatch(likely)


def _still_wanted(
    wanted: Sequence[bytes], rows: Mapping[bytes, Sequence[Row]], by_key: dict[bytes, Sequence[Row]]
) -> Sequence[bytes]:
    """Add rows to those found before. Return the keys that have to be searched in older levels."""
    if not rows:
        return wanted
    if by_key:
        for key, versions in rows.items():
            by_key[key] = [*by_key[key], *versions] if key in by_key else versions
    else:
        by_key.update(rows)
    unsettled = {key for key, versions in rows.items() if versions[-1].kind == MERGE}
    return [key for key in wanted if key not in rows or key in unsettled]


def _slices(rows: pa.RecordBatch, *, reverse: bool) -> Iterator[Part]:
    """Yield a sorted batch in growing slices, so that the first row does not wait for the last."""
    size, row, count = SLICE_ROW_COUNT, 0, rows.num_rows
    whole_part = Part(rows, False, rows.nbytes)
    while row < count:
        size = min(size, count - row)
        start = count - row - size if reverse else row
        yield whole_part.slice(start, start + size)
        row += size
        size *= 4
