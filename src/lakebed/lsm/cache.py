"""Memory for what was read: blocks and tails of files in one bounded cache a process, single rows in another.

Invariants: the sum of the sizes never exceeds the setting, not even while something is put in; what is larger than the
setting is not kept; files are immutable, so a cached block is never stale. A cached row can be, so `put` names
the generation in which it was read, and rows read before the last `discard` are refused.

Reads take no lock: one lookup in a dictionary is atomic, a value is never changed once it is in, and a lost mark
that it was used does no harm. Changes are made under a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from lakebed.runtime import Runtime, ThreadRuntime

CACHE_BYTES_MAX_DEFAULT: Final = 64 << 20
"""Of the process's shared cache."""

_ENTRY_BYTES: Final = 400
"""What one entry costs in addition to its value: key, node of the ordered dictionary, entry, slot in its file's set."""

_FULL_SHARE: Final = 0.9
"""Of the setting: from here on a cache counts as full."""

OPEN: Final = -1
"""The number under which a file itself is kept, open, where its blocks count from 0."""

_OPEN_SHARE: Final = 0.75
"""Of the setting: up to here open files may grow."""

_SPARED_COUNT_MAX: Final = 16
"""Open files that are passed over for a block or page before it is left out instead."""

_NO_NUMBERS: Final[Set[int]] = frozenset()

_MET_COUNT_MIN: Final = 1024
_MET_PER_ENTRY: Final = 2
"""Blocks and pages remembered as read once: so many for each that is kept, 70 bytes each."""

_BYTES_PER_MARK: Final = 256
"""Of the budget for rows, for each byte that remembers a key that was read once."""

_MANY_KEYS: Final = 16
"""Of a call; of fewer it is not noted how many are kept."""

_FEW_OF_MANY: Final = 8
"""Few are kept of many keys when it is less than one in so many: to ask for each and to remember it costs more."""

_POOR_CALL_COUNT: Final = 8
"""After so many calls with few keys, and then one in so many asks."""

_ROW_BYTES: Final = 200
"""What one row costs in addition to its bytes: two bytes objects and its slot in a dictionary that has just grown."""


class Entry:
    """A cached value; `used` since it was put in or last passed over."""

    __slots__ = ("grown_bytes", "size_bytes", "used", "used_at", "value")

    def __init__(self, value: Any, size_bytes: int) -> None:
        self.value = value
        self.size_bytes = size_bytes
        self.grown_bytes = 0
        """Of these, what `BlockCache.grow` added."""
        self.used = False
        self.used_at = 0
        """How many bytes the cache had been asked to keep when the hand last found it used. An open file that was not
        used while it was asked to keep as much as the setting makes room for blocks and pages."""


class BlockCache:
    """A bounded map from (file, number) to what was decoded from there. Thread-safe.

    What was used since the hand last passed it gets a second chance; of the others the oldest goes first. Once full,
    `wants` keeps out what was read for a single key until it is read again: most such blocks never are. Open files
    (number `OPEN`) go when other files need their place or nothing asked for them for long, but not for blocks and
    pages, which cost less to read again. They may grow (`grow`) while all of them take a part of the setting; when they
    take more, because there are more of them, they lose first what they grew by.

    Args:
        bytes_max: bound of the sum of sizes; 0 keeps nothing. What an open file takes at least (`Tail.size_bytes`) is
            read anew for each operation where it does not fit in.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX_DEFAULT, *, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self.entries: OrderedDict[tuple[str, int], Entry] = OrderedDict()
        """For a reader that looks something up without a call, as `get` does; only the cache changes it."""
        self._numbers: dict[str, set[int]] = {}
        self._met: dict[str, set[int]] = {}
        """What was read lately and not kept, by file."""
        self._met_left = _MET_COUNT_MIN
        """Of which so many more are remembered before all are forgotten."""
        self._full_bytes = bytes_max * _FULL_SHARE
        self._size_bytes = 0
        self._open_bytes = 0
        """Of open files."""
        self._asked_bytes = 0
        """Of all that was ever to be kept."""
        self._grown: dict[tuple[str, int], Callable[[], None]] = {}
        """What takes back how open files grew, the longest first."""
        self.has_space = bytes_max > 0
        """Whether it is not full: then what is read for a single key is kept with its neighbours."""
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def bytes_max(self) -> int:
        """The setting."""
        return self._bytes_max

    @property
    def size_bytes(self) -> int:
        """Sum over what is kept; at most `bytes_max`."""
        return self._size_bytes

    @property
    def space_bytes(self) -> float:
        """What fits in before it counts as full; at most 0 when it does."""
        return self._full_bytes - self._size_bytes

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, file: str, number: int) -> Any | None:
        """What is kept of a file under a number, or None. About 0.2 us."""
        entry = self.entries.get((file, number))
        if entry is None:
            return None
        entry.used = True
        return entry.value

    def put(self, file: str, number: int, value: Any, *, size_bytes: int) -> None:
        """Keep a value, which is never None; evict others first if needed."""
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
        """Count more of an open file, before it grows, once.

        Args:
            take_back: makes it what it was before; called when its place is needed, unless it has left the cache.

        Returns:
            False when it may not grow: it is not kept, has grown, or all open files would take too large a part.
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
        """Whether to cache what was just read for a single key: while there is space, and at its second reading."""
        if self.has_space:
            return True
        met = self._met.get(file)
        if met is None:
            met = self._met[file] = set()
        elif number in met:
            return True
        met.add(number)
        self._remember(1)
        return False

    def wants_each(self, file: str, numbers: Sequence[int]) -> Collection[int]:
        """`wants` of several numbers of a file: those that it wants."""
        if self.has_space:
            return numbers
        met = self._met.get(file)
        if met is None:
            met = self._met[file] = set()
        wanted = met.intersection(numbers)
        met.update(numbers)
        self._remember(len(numbers) - len(wanted))
        return wanted

    def _remember(self, count: int) -> None:
        self._met_left -= count
        if self._met_left <= 0:
            self._met, self._met_left = {}, max(_MET_COUNT_MIN, _MET_PER_ENTRY * len(self.entries))

    def numbers_of(self, file: str) -> Set[int]:
        """The numbers of a file under which something is kept now; what is in there may be gone the next moment."""
        return self._numbers.get(file, _NO_NUMBERS)

    def forget(self, file: str) -> None:
        """Drop all that is kept of a file."""
        with self._lock:
            for number in list(self._numbers.get(file, ())):
                self._drop((file, number))

    def resize(self, bytes_max: int) -> None:
        """Change the setting; what no longer fits goes at once."""
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
        """Drop entries until so much fits in; False when it does not, or not without open files that are in use.

        Args:
            is_open: whether it is an open file, for which others go that are in use, when nothing else is left.
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
            chances -= 1  # others may use entries all the while
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
        if numbers is None:  # a fork, or an interrupt, came between an entry and its number
            return
        numbers.discard(number)
        if not numbers:
            del self._numbers[file]


class RowCache:
    """A bounded map from key to the newest value found in files. Thread-safe.

    Two generations of plain dictionaries: a read from the older moves the row to the younger. Where room is needed the
    oldest row of the older one goes; when it has none left, the younger takes its place. So a hit costs one lookup, and
    a row that is read again stays. While half of the budget is taken, a row is kept when it is read from files a second
    time: most are read once, and would put out others.

    Args:
        bytes_max: bound of the sum of sizes; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int, *, runtime: Runtime | None = None) -> None:
        self._bytes_max = bytes_max
        self._half_bytes_max = bytes_max // 2
        self.young: dict[bytes, bytes] = {}
        """For a reader that looks a key up without a call, as `get` does; only the cache changes it."""
        self.old: dict[bytes, bytes] = {}
        """As `young`; a key that is read from here is read by `get`, which moves it."""
        self._young_bytes = 0
        self._old_bytes = 0
        self._doomed: list[bytes] = []
        """The keys of `old`, of which some may have left it, the oldest last."""
        self._marks = bytearray(max(1, bytes_max // _BYTES_PER_MARK))
        """Of keys that were read and not kept, a byte of the hash, at the place that the others say."""
        self._poor_call_count = 0
        """Calls of many keys in a row of which few were here; a lost one does no harm."""
        self._generation = 0
        self._lock = (runtime or ThreadRuntime()).lock()

    @property
    def generation(self) -> int:
        """Counts `discard` and `clear`: read it before reading files, hand it to `put` afterwards."""
        return self._generation

    @property
    def size_bytes(self) -> int:
        """Sum over what is kept; at most the setting."""
        return self._young_bytes + self._old_bytes

    def get(self, key: bytes) -> bytes | None:
        """The value kept for a key, or None. About 0.1 us for one that was read lately."""
        value = self.young.get(key)
        if value is None and key in self.old:
            return self._promote(key)
        return value

    def __contains__(self, key: bytes) -> bool:
        return key in self.young or key in self.old

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The values kept of some keys. Cost: about 0.1 us a key, more of one in a hundred that moves."""
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
        """Whether a call of many keys neither asks nor fills it, because while half of it is taken it has few of them.

        One call in eight does, so that it is noticed when others are asked for.
        """
        if self._poor_call_count < _POOR_CALL_COUNT or self._young_bytes + self._old_bytes < self._half_bytes_max:
            return False
        self._poor_call_count += 1
        return self._poor_call_count % _POOR_CALL_COUNT != 0

    def put(self, key: bytes, value: bytes, *, generation: int) -> None:
        """Keep a value; nothing happens when rows were discarded since `generation`, for it may be one of them.

        Nor, while half of the budget is taken, at the first reading of a key.
        """
        if self._young_bytes + self._old_bytes >= self._half_bytes_max and not self._wants(key):
            return
        with self._lock:
            if generation == self._generation:
                self._add(key, value)

    def put_each(self, rows: Mapping[bytes, bytes], *, generation: int) -> None:
        """`put` of the rows of several keys. Cost: about 0.1 us a key, and 0.7 us for each that is kept."""
        space_bytes = self._half_bytes_max - self._young_bytes - self._old_bytes
        keys = list(rows)
        if space_bytes <= 0:
            keys = self._wants_each(keys) if self._half_bytes_max else []
        with self._lock:
            if generation == self._generation:
                for key in keys if space_bytes <= 0 else keys[: 1 + space_bytes // _ROW_BYTES]:
                    self._add(key, rows[key])

    def _wants_each(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of some keys that `_wants`."""
        hashes, met = np.fromiter(map(hash, keys), np.int64, len(keys)), np.frombuffer(self._marks, np.uint8)
        places, marks = hashes % len(met), (hashes >> 56 & 0xFF).astype(np.uint8)
        wanted = (met.take(places) == marks).nonzero()[0].tolist()
        met[places] = marks
        return list(map(keys.__getitem__, wanted))

    def _wants(self, key: bytes) -> bool:
        """Whether to keep the row of a key: at its second reading, unless another has its place since the first.

        Takes no lock, for a lost mark does no harm, nor does one that another key left.
        """
        key_hash, marks = hash(key), self._marks
        place, mark = key_hash % len(marks), key_hash >> 56 & 0xFF
        if marks[place] == mark:
            return True
        marks[place] = mark
        return False

    def discard(self, keys: Collection[bytes]) -> None:
        """Drop rows whose keys were written to; values read before now can no longer be put in."""
        with self._lock:
            self._generation += 1
            self._young_bytes -= _discard(self.young, keys)
            self._old_bytes -= _discard(self.old, keys)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._generation += 1
            self.young, self.old, self._doomed = {}, {}, []
            self._young_bytes = self._old_bytes = 0

    def _promote(self, key: bytes) -> bytes | None:
        with self._lock:
            value = self.old.get(key)
            if value is None:
                return self.young.get(key)  # another thread moved it
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
        """Drop the oldest row of `old`; where it has none, the rows of `young` take their place."""
        while self._doomed:
            key = self._doomed.pop()
            if (value := self.old.pop(key, None)) is not None:
                self._old_bytes -= _row_bytes(key, value)
                return
        self.old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0
        self._doomed = list(reversed(self.old))


def _row_bytes(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ROW_BYTES


def _discard(rows: dict[bytes, bytes], keys: Collection[bytes]) -> int:
    """Drop keys from rows, whichever are fewer deciding the order; the bytes that went."""
    if not rows:
        return 0
    doomed = [key for key in keys if key in rows] if len(keys) < len(rows) else list(rows.keys() & set(keys))
    return sum(_row_bytes(key, rows.pop(key)) for key in doomed)


_SHARED: Final = BlockCache()


def block_cache() -> BlockCache:
    """The cache of this process, used wherever no other is given."""
    return _SHARED


def set_shared_cache_bytes(bytes_max: int) -> None:
    """Resize the cache of this process; by default it holds `CACHE_BYTES_MAX_DEFAULT`."""
    _SHARED.resize(bytes_max)
