"""Caches: one bounded cache of blocks and tails of files for each process, and caches of single rows.

Invariants: the sum of the sizes never exceeds the setting, not even while a value is added. A value that is larger than
the setting is not kept. Files are immutable, so a cached block is never stale. A cached row can become stale, so `put`
names the generation in which the row was read, and rows that were read before the last `discard` are refused.

Reads take no lock: one look-up in a dictionary is atomic, a value never changes once it is in the cache, and the loss
of a mark that it was used does no harm. Changes are made under a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from lakebed.runtime import Runtime, ThreadRuntime

CACHE_BYTES_MAX_DEFAULT: Final = 64 << 20
"""Size of the process's shared cache."""

_ENTRY_BYTES: Final = 400
"""Memory of an entry in addition to its value: key, node of the ordered dictionary, entry, slot in its file's set."""

_FULL_SHARE: Final = 0.9
"""Share of the setting from which on a cache counts as full."""

OPEN: Final = -1
"""The number of the entry of an open file itself. The numbers of its blocks count from 0."""

_OPEN_SHARE: Final = 0.75
"""Share of the setting up to which open files may grow."""

_SPARED_COUNT_MAX: Final = 16
"""Most open files that are spared to make room for a block or page. After so many, the block or page is not kept."""

_NO_NUMBERS: Final[Set[int]] = frozenset()

_SINGLE_READS_MIN: Final = 1024
_SINGLE_READS_PER_ENTRY: Final = 2
"""Number of blocks and pages remembered as read once, for each one that is kept. Each takes 70 bytes."""

_BYTES_PER_MARK: Final = 256
"""Bytes of the budget for rows for each mark, which is a byte that remembers a key that was read once."""

_MANY_KEYS: Final = 16
"""Keys of a call from which on the cache counts how many of them it has."""

_FEW_OF_MANY: Final = 8
"""The cache has few of many keys if it has less than one in so many. To look up and mark each key then costs more."""

_POOR_CALL_COUNT: Final = 8
"""After so many consecutive calls of which the cache had few keys, only one call in so many uses it."""

_ROW_BYTES: Final = 200
"""Memory of a row in addition to its bytes: two bytes objects and its slot in a dictionary that has just grown."""


class Entry:
    """A cached value. `used` says whether it was used since it was added or last passed over."""

    __slots__ = ("grown_bytes", "size_bytes", "used", "used_at", "value")

    def __init__(self, value: Any, size_bytes: int) -> None:
        self.value = value
        self.size_bytes = size_bytes
        self.grown_bytes = 0
        """The part of `size_bytes` that `BlockCache.grow` added."""
        self.used = False
        self.used_at = 0
        """Total bytes that the cache had been asked to keep when an eviction last found this entry used.

        An open file may be evicted for blocks and pages once the cache has since been asked to keep as many bytes as
        the setting.
        """


class BlockCache:
    """A bounded map from (file, number) to the value that was decoded from there. Thread-safe.

    Eviction is by second chance: an entry that was used since it was last passed over is passed over again, and of the
    others the oldest is evicted first. Once the cache is full, `wants` refuses a block that was read for a single key
    until it is read again, because most such blocks never are.

    Open files (number `OPEN`) are evicted if other files need their space or if they were not used for long, but not
    for blocks and pages, which cost less to read again. They may grow (`grow`) while all of them together take at most
    a part of the setting. If they take more, because there are more of them, they first lose what they grew by.

    Args:
        bytes_max: bound of the sum of sizes; 0 keeps nothing. An open file whose minimum (`Tail.size_bytes`) does not
            fit is read again for each operation.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX_DEFAULT, *, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self.entries: OrderedDict[tuple[str, int], Entry] = OrderedDict()
        """For readers that look entries up as `get` does, without a call. Only the cache changes it."""
        self._numbers: dict[str, set[int]] = {}
        self._single_reads: dict[str, set[int]] = {}
        """Numbers that were read lately and not kept, by file."""
        self._single_reads_left = _SINGLE_READS_MIN
        """How many more of these are remembered before all are forgotten."""
        self._full_bytes = bytes_max * _FULL_SHARE
        self._size_bytes = 0
        self._open_bytes = 0
        """Size of all open files."""
        self._asked_bytes = 0
        """Total size of all values that the cache was ever asked to keep."""
        self._grown: dict[tuple[str, int], Callable[[], None]] = {}
        """Functions that undo the growth of open files, in the order in which the files grew."""
        self.has_space = bytes_max > 0
        """Whether the cache is not full. Then a block that is read for a single key is kept with its neighbours."""
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def bytes_max(self) -> int:
        """The setting."""
        return self._bytes_max

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all entries; at most `bytes_max`."""
        return self._size_bytes

    @property
    def space_bytes(self) -> float:
        """Bytes that fit before the cache counts as full; 0 or less if it is full."""
        return self._full_bytes - self._size_bytes

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, file: str, number: int) -> Any | None:
        """Return the value of a file and number, or None. Cost: about 0.2 us."""
        entry = self.entries.get((file, number))
        if entry is None:
            return None
        entry.used = True
        return entry.value

    def put(self, file: str, number: int, value: Any, *, size_bytes: int) -> None:
        """Add a value, which must not be None. Evict others first if needed."""
        size_bytes += _ENTRY_BYTES
        key = (file, number)
        with self._lock:
            if key in self.entries:
                self._drop(key)
            self._asked_bytes += size_bytes
            if not self._make_room(size_bytes, is_open=number == OPEN):
                return
            self.entries[key] = entry = Entry(value, size_bytes)
            entry.used_at = self._asked_bytes
            numbers = self._numbers.get(file)
            if numbers is None:
                numbers = self._numbers[file] = set()
            numbers.add(number)
            self._size_bytes += size_bytes
            if number == OPEN:
                self._open_bytes += size_bytes
                while self._grown and self._open_bytes > self._bytes_max * _OPEN_SHARE:
                    self._take_back(next(iter(self._grown)))
            self.has_space = self._size_bytes < self._full_bytes

    def grow(self, file: str, value: Any, *, size_bytes: int, take_back: Callable[[], None]) -> bool:
        """Count additional bytes of an open file before it grows. A file may grow once.

        Args:
            take_back: undoes the growth. Called if the space is needed, unless the file has left the cache.

        Returns:
            False if the file may not grow: it is not in the cache, has grown already, or all open files would take too
            large a part.
        """
        key = (file, OPEN)
        with self._lock:
            entry = self.entries.get(key)
            if entry is None or entry.value is not value or entry.grown_bytes:
                return False
            entry.used = True
            if self._open_bytes + size_bytes > self._bytes_max * _OPEN_SHARE:
                return False
            if not self._make_room(size_bytes, is_open=False) or self.entries.get(key) is not entry:
                return False
            self._grown[key] = take_back
            self._add_bytes(entry, size_bytes)
            return True

    def _take_back(self, key: tuple[str, int]) -> None:
        entry = self.entries[key]
        self._grown.pop(key)()
        self._add_bytes(entry, -entry.grown_bytes)

    def _add_bytes(self, entry: Entry, size_bytes: int) -> None:
        entry.grown_bytes += size_bytes
        entry.size_bytes += size_bytes
        self._open_bytes += size_bytes
        self._size_bytes += size_bytes
        self.has_space = self._size_bytes < self._full_bytes

    def wants(self, file: str, number: int) -> bool:
        """Whether to cache a block that was just read for a single key: if there is space, or at its second reading."""
        if self.has_space:
            return True
        numbers_read = self._single_reads.get(file)
        if numbers_read is None:
            numbers_read = self._single_reads[file] = set()
        elif number in numbers_read:
            return True
        numbers_read.add(number)
        self._remember(1)
        return False

    def wants_each(self, file: str, numbers: Sequence[int]) -> Collection[int]:
        """Return those of several numbers of a file for which `wants` is true."""
        if self.has_space:
            return numbers
        numbers_read = self._single_reads.get(file)
        if numbers_read is None:
            numbers_read = self._single_reads[file] = set()
        wanted_numbers = numbers_read.intersection(numbers)
        numbers_read.update(numbers)
        self._remember(len(numbers) - len(wanted_numbers))
        return wanted_numbers

    def _remember(self, count: int) -> None:
        self._single_reads_left -= count
        if self._single_reads_left <= 0:
            self._single_reads = {}
            self._single_reads_left = max(_SINGLE_READS_MIN, _SINGLE_READS_PER_ENTRY * len(self.entries))

    def numbers_of(self, file: str) -> Set[int]:
        """Return the numbers of a file that are in the cache now. They may be evicted at any moment."""
        return self._numbers.get(file, _NO_NUMBERS)

    def forget(self, file: str) -> None:
        """Drop all entries of a file."""
        with self._lock:
            for number in list(self._numbers.get(file, ())):
                self._drop((file, number))

    def resize(self, bytes_max: int) -> None:
        """Change the setting. Entries that no longer fit are evicted at once."""
        with self._lock:
            self._bytes_max = bytes_max
            self._full_bytes = bytes_max * _FULL_SHARE
            self.has_space = self._size_bytes < self._full_bytes
            self._shrink(bytes_max)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._shrink(0)

    def _make_room(self, size_bytes: int, *, is_open: bool) -> bool:
        """Drop entries until `size_bytes` fit. Return False if they do not fit, or only without open files in use.

        Args:
            is_open: whether the new value is an open file. For it, open files in use are evicted too, if nothing else
                is left.
        """
        if size_bytes > self._bytes_max:
            return False
        chances, spares_left = 3 * len(self.entries), _SPARED_COUNT_MAX
        while self._size_bytes + size_bytes > self._bytes_max:
            key, entry = next(iter(self.entries.items()))
            is_used, entry.used = entry.used, False
            if is_used:
                entry.used_at = self._asked_bytes
            is_spared = key[1] == OPEN and self._asked_bytes - entry.used_at < self._bytes_max
            if is_spared and not (is_open and self._size_bytes == self._open_bytes):
                if not spares_left and not is_open:
                    return False
                spares_left -= 1
            elif not is_used or chances <= 0:
                self._drop(key)
                continue
            chances -= 1  # a bound, because other threads may use entries all the time
            self.entries.move_to_end(key)
        return True

    def _shrink(self, bytes_max: int) -> None:
        """Drop the oldest entries until at most `bytes_max` are left."""
        while self._size_bytes > bytes_max:
            self._drop(next(iter(self.entries)))

    def _drop(self, key: tuple[str, int]) -> None:
        entry = self.entries.pop(key, None)
        if entry is None:
            return
        self._size_bytes -= entry.size_bytes
        if key[1] == OPEN:
            self._open_bytes -= entry.size_bytes
            self._grown.pop(key, None)
        self.has_space = self._size_bytes < self._full_bytes
        file, number = key
        numbers = self._numbers.get(file)
        if numbers is None:  # a fork or an interrupt came between adding an entry and adding its number
            return
        numbers.discard(number)
        if not numbers:
            del self._numbers[file]


class RowCache:
    """A bounded map from key to the newest value found in files. Thread-safe.

    It consists of two generations of plain dictionaries. A read from the older one moves the row to the younger one. If
    space is needed, the oldest row of the older one is evicted; if the older one is empty, the younger one takes its
    place. So a hit costs one look-up, and a row that is read again stays. While half of the budget is used, a row is
    kept only when it is read from files a second time, because most rows are read once and would evict others.

    Args:
        bytes_max: bound of the sum of sizes; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int, *, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self._half_bytes_max = bytes_max // 2
        self.young: dict[bytes, bytes] = {}
        """For readers that look a key up as `get` does, without a call. Only the cache changes it."""
        self.old: dict[bytes, bytes] = {}
        """As `young`. If a key is found here, read it by `get`, which moves it."""
        self._young_bytes = 0
        self._old_bytes = 0
        self._eviction_order: list[bytes] = []
        """The keys of `old`, the oldest last. Some may have left `old`."""
        self._marks = bytearray(max(1, bytes_max // _BYTES_PER_MARK))
        """Marks of keys that were read and not kept: one byte of the hash, at the index that its other bytes give."""
        self._poor_call_count = 0
        """Consecutive calls with many keys of which few were here. A lost update does no harm."""
        self._generation = 0
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def generation(self) -> int:
        """The count of `discard` and `clear` calls. Read it before reading files, and pass it to `put` afterwards."""
        return self._generation

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all rows; at most the setting."""
        return self._young_bytes + self._old_bytes

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None. Cost: about 0.1 us for a key that was read lately."""
        value = self.young.get(key)
        if value is None and key in self.old:
            return self._promote(key)
        return value

    def __contains__(self, key: bytes) -> bool:
        return key in self.young or key in self.old

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that are in the cache. Cost: about 0.1 us for each key, more if it moves."""
        values: dict[bytes, bytes] = {}
        young, old = self.young, self.old
        if not young.keys().isdisjoint(keys):
            values = {key: value for key in keys if (value := young.get(key)) is not None}
        if old and not old.keys().isdisjoint(keys):
            for key in keys:
                if key in old and key not in values and (value := self._promote(key)) is not None:
                    values[key] = value
        if len(keys) >= _MANY_KEYS:
            self._poor_call_count = self._poor_call_count + 1 if _FEW_OF_MANY * len(values) < len(keys) else 0
        return values

    def is_passed_by(self) -> bool:
        """Whether a call with many keys should not use the cache, because it is half full and had few of such keys.

        One call in eight still uses it, to detect that other keys are read now.
        """
        if self._poor_call_count < _POOR_CALL_COUNT or self._young_bytes + self._old_bytes < self._half_bytes_max:
            return False
        self._poor_call_count += 1
        return self._poor_call_count % _POOR_CALL_COUNT != 0

    def put(self, key: bytes, value: bytes, *, generation: int) -> None:
        """Add a value. Do nothing if rows were discarded since `generation`, because the value may be one of them.

        Also do nothing at the first reading of a key, while half of the budget is used.
        """
        if self._young_bytes + self._old_bytes >= self._half_bytes_max and not self._wants(key):
            return
        with self._lock:
            if generation == self._generation:
                self._add(key, value)

    def put_each(self, rows: Mapping[bytes, bytes], *, generation: int) -> None:
        """As `put`, for several rows. Cost: about 0.1 us for each key, and 0.7 us for each that is kept."""
        space_bytes = self._half_bytes_max - self._young_bytes - self._old_bytes
        keys = list(rows)
        if space_bytes <= 0:
            keys = self._wants_each(keys) if self._half_bytes_max else []
        with self._lock:
            if generation == self._generation:
                for key in keys if space_bytes <= 0 else keys[: 1 + space_bytes // _ROW_BYTES]:
                    self._add(key, rows[key])

    def _wants_each(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of some keys for which `_wants` is true."""
        hashes, kept_marks = np.fromiter(map(hash, keys), np.int64, len(keys)), np.frombuffer(self._marks, np.uint8)
        places, marks = hashes % len(kept_marks), (hashes >> 56 & 0xFF).astype(np.uint8)
        wanted = (kept_marks.take(places) == marks).nonzero()[0].tolist()
        kept_marks[places] = marks
        return list(map(keys.__getitem__, wanted))

    def _wants(self, key: bytes) -> bool:
        """Whether to keep the row of a key: at its second reading, unless another key has overwritten its mark.

        Takes no lock, because a lost mark, or the mark of another key, does no harm.
        """
        key_hash, marks = hash(key), self._marks
        place, mark = key_hash % len(marks), key_hash >> 56 & 0xFF
        if marks[place] == mark:
            return True
        marks[place] = mark
        return False

    def discard(self, keys: Collection[bytes]) -> None:
        """Drop rows whose keys were written. Values that were read before this call can no longer be added."""
        with self._lock:
            self._generation += 1
            self._young_bytes -= _discard(self.young, keys)
            self._old_bytes -= _discard(self.old, keys)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._generation += 1
            self.young, self.old, self._eviction_order = {}, {}, []
            self._young_bytes = self._old_bytes = 0

    def _promote(self, key: bytes) -> bytes | None:
        with self._lock:
            value = self.old.get(key)
            if value is None:
                return self.young.get(key)  # another thread has moved it
            self._add(key, value)
            return value

    def _add(self, key: bytes, value: bytes) -> None:
        if (former := self.young.pop(key, None)) is not None:
            self._young_bytes -= _row_bytes(key, former)
        if (former := self.old.pop(key, None)) is not None:
            self._old_bytes -= _row_bytes(key, former)
        size_bytes = len(key) + len(value) + _ROW_BYTES
        if size_bytes > self._half_bytes_max:
            return
        while self._young_bytes + self._old_bytes + size_bytes > self._bytes_max:
            self._evict()
        self.young[key] = value
        self._young_bytes += size_bytes

    def _evict(self) -> None:
        """Drop the oldest row of `old`. If `old` is empty, `young` takes its place."""
        while self._eviction_order:
            key = self._eviction_order.pop()
            if (value := self.old.pop(key, None)) is not None:
                self._old_bytes -= _row_bytes(key, value)
                return
        self.old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0
        self._eviction_order = list(reversed(self.old))


def _row_bytes(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ROW_BYTES


def _discard(rows: dict[bytes, bytes], keys: Collection[bytes]) -> int:
    """Drop keys from rows, and return the bytes dropped. Iterate over the keys or the rows, whichever are fewer."""
    if not rows:
        return 0
    cached_keys = [key for key in keys if key in rows] if len(keys) < len(rows) else list(rows.keys() & set(keys))
    return sum(_row_bytes(key, rows.pop(key)) for key in cached_keys)


_SHARED: Final = BlockCache()


def block_cache() -> BlockCache:
    """Return the cache of this process, which is used if no other is given."""
    return _SHARED


def set_shared_cache_bytes(bytes_max: int) -> None:
    """Resize the cache of this process. Its default size is `CACHE_BYTES_MAX_DEFAULT`."""
    _SHARED.resize(bytes_max)
