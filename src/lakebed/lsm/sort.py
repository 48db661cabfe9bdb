"""The order of rows: keys ascending as unsigned bytes; rows of one key by descending sequence, the newest first.

Owns: sorting rows in this order, and finding a key in a sorted column. Invariant: the order is exact for all keys:
prefixes of one another, trailing zero bytes, any length. Numbers of 8 bytes only make sorting faster.

How it works: a window of bytes of every key becomes an unsigned number, and the numbers are sorted. Only rows that are
still equal continue, with their group's number followed by the next bytes, until lengths and finally sequences decide.
Bytes that all keys have in common are skipped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, islice, pairwise
from operator import ge
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.lsm.columns import numbers_of

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD_BYTES: Final = 8
WORD_BITS: Final = 64

_SHORT_BYTES_MAX: Final = 32
"""Up to this length keys have few words, which are always sorted faster than Python compares the keys one by one."""
_STRAY_SHARE: Final = 16
"""If all rows but at most one in this many are in one ascending run, Python's sort is faster."""
_PROBE_COUNT: Final = 32
_PROBE_BREAKS_MAX: Final = 2
"""Most breaks among a few probes if there may be such a run. The probes take some microseconds."""


class KeyColumn:
    """Bytes of a binary column in a form for numpy. Shares the column's memory, except for 8 bytes at its end.

    Cost: about 3 us to make, for any size, plus a copy of the keys for `words`.
    """

    __slots__ = ("_heap", "_padded", "count", "offsets")

    def __init__(self, column: pa.BinaryArray) -> None:
        self.count = len(column)
        _, offsets, heap = column.buffers()
        size = (column.offset + self.count + 1) * 4
        self.offsets: npt.NDArray[np.int32] = (
            np.frombuffer(offsets, np.int32, self.count + 1, column.offset * 4)
            if offsets is not None and offsets.size >= size
            else np.zeros(1, np.int32)
        )
        self._heap = memoryview(heap) if heap is not None else memoryview(b"")
        self._padded: npt.NDArray[np.uint64] | None = None

    def __getitem__(self, index: int) -> bytes:
        """Return the key at `index`, which must be in range."""
        offsets = self.offsets
        return bytes(self._heap[offsets[index] : offsets[index + 1]])

    def lower_bound(self, key: bytes) -> int:
        """Return how many keys of a sorted column are smaller than `key`. Cost: log2(count) comparisons of 0.3 us."""
        low, high = 0, self.count
        offsets, heap = self.offsets, self._heap
        while low < high:
            middle = (low + high) >> 1
            if bytes(heap[offsets[middle] : offsets[middle + 1]]) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def words(self, rows: Indices | None, depth: int) -> Words:
        """Return the bytes [depth, depth + 8) of the keys of `rows` as big-endian numbers, padded with zeros.

        Args:
            rows: None: all.
        """
        if self._padded is None:
            first, last = int(self.offsets[0]), int(self.offsets[-1])
            padded = np.zeros(last - first + WORD_BYTES, np.uint8)
            padded[: last - first] = np.frombuffer(self._heap, np.uint8, last - first, first)
            self._padded = np.ndarray(last - first + 1, ">u8", cast(Any, padded), 0, (1,))
        begins, ends = self.offsets[:-1], self.offsets[1:]
        if rows is not None:
            begins, ends = begins[rows], ends[rows]
        base = int(self.offsets[0]) - depth
        bytes_left = ends - begins - depth
        offsets = begins - base
        if self.count and int(bytes_left.min()) >= WORD_BYTES:
            return self._padded[offsets].astype(np.uint64)
        cut_bits = (WORD_BYTES - np.clip(bytes_left, 0, WORD_BYTES)).astype(np.uint64) * np.uint64(8)
        words = self._padded[np.minimum(offsets, len(self._padded) - 1)].astype(np.uint64)
        words = np.where(cut_bits < WORD_BITS, words >> np.minimum(cut_bits, WORD_BITS - 1), np.uint64(0))
        return cast(Words, words << np.minimum(cut_bits, WORD_BITS - 1))


def sort_rows(rows: pa.RecordBatch, *, log: Sequence[bytes] = ()) -> Indices | None:
    """Return the order in which the rows are sorted.

    Args:
        rows: columns ``key`` (binary) and ``sequence`` (uint64), in any order.
        log: the keys of the rows as Python objects, if the rows are in the order of their sequences.

    Returns:
        Indices for ``take``: keys ascending; rows of one key by descending sequence. None if the rows are already
        sorted and no key repeats, as after writes in the order of keys.

    Cost: about 0.1 us a row for random keys of 16 bytes, 1 us for long keys with prefixes that only some keys share.
    With `log`, 0.1 us for long keys of which nearly all were written in ascending order.
    """
    count = rows.num_rows
    if count < 2:
        return None
    keys = KeyColumn(rows.column("key"))
    lengths = np.diff(keys.offsets)
    if len(log) == count and int(lengths.max()) > _SHORT_BYTES_MAX:
        # Python's sort detects runs and keeps the order of equal keys, which is reversed here: the newest first.
        run_count = _longest_run(log)
        if run_count == count:
            return None
        if run_count >= count - count // _STRAY_SHARE:
            places = sorted(range(count - 1, -1, -1), key=log.__getitem__)
            return np.fromiter(places, np.int64, count)
    depth, codes = _first_words(keys, int(lengths.min()))
    if bool((codes[1:] > codes[:-1]).all()):
        return None
    order: Indices = np.argsort(codes)
    codes = codes[order]
    tied = _find_ties(codes)
    depth += WORD_BYTES
    one_length = bool((lengths == lengths[0]).all())
    while tied.any():
        open_rows = np.flatnonzero(tied)
        rows_left, groups = order[open_rows], _group_numbers(codes, open_rows)
        group_bits = int(groups[-1]).bit_length()
        if depth < int(lengths[rows_left].max()):
            byte_count = min(WORD_BYTES, (WORD_BITS - group_bits) // 8)
            ranks = keys.words(rows_left, depth) >> np.uint64(8 * (WORD_BYTES - byte_count))
            depth, bits = depth + byte_count, 8 * byte_count
        elif not one_length:
            ranks, bits, one_length = lengths[rows_left].astype(np.uint64), 16, True
        else:
            order[open_rows] = rows_left[_newest_first(rows, rows_left, groups)]
            break
        codes = ranks if bits == WORD_BITS else (groups << np.uint64(bits)) | ranks
        suborder = np.argsort(codes)
        order[open_rows] = rows_left[suborder]
        codes, tied = _spread(codes[suborder], open_rows, count)
    return order


def _longest_run(keys: Sequence[bytes]) -> int:
    """Return the length of the longest ascending run of keys. May return 0 unless nearly all keys are in it."""
    probes = keys[:: 1 + len(keys) // _PROBE_COUNT]
    if sum(map(ge, probes, islice(probes, 1, None))) > _PROBE_BREAKS_MAX:
        return 0
    breaks = compress(range(1, len(keys)), map(ge, keys, islice(keys, 1, None)))
    return max(end - start for start, end in pairwise((0, *breaks, len(keys))))


def _first_words(keys: KeyColumn, length_min: int) -> tuple[int, Words]:
    """Return how many bytes all keys have in common, and the first 8 bytes in which the keys differ."""
    depth = 0
    while True:
        words = keys.words(None, depth)
        spread = int(words.min()) ^ int(words.max())
        common = (WORD_BITS - spread.bit_length()) // 8
        if common == 0 or depth + common >= length_min:
            return depth, words
        depth += common


def _find_ties(codes: Words) -> npt.NDArray[np.bool_]:
    """Return which of the sorted codes are equal to a neighbour."""
    is_same = codes[1:] == codes[:-1]
    tied = np.zeros(len(codes), np.bool_)
    tied[1:] = is_same
    tied[:-1] |= is_same
    return tied


def _group_numbers(codes: Words, at: Indices) -> Words:
    """Return the groups of equal codes at these sorted positions, numbered from zero."""
    codes_in_order = codes[at]
    numbers = np.zeros(len(at), np.uint64)
    np.cumsum(codes_in_order[1:] != codes_in_order[:-1], out=numbers[1:])
    return numbers


def _spread(codes: Words, at: Indices, count: int) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Spread the sorted codes of some positions, and which of them are tied, over all positions."""
    everywhere = np.zeros(count, np.uint64)
    everywhere[at] = codes
    tied = np.zeros(count, np.bool_)
    tied[at] = _find_ties(codes)
    return everywhere, tied


def _newest_first(rows: pa.RecordBatch, rows_left: Indices, groups: Words) -> Indices:
    """Return how to sort rows of equal keys within their groups."""
    sequences: Words = numbers_of(rows.column("sequence"))[rows_left]
    newest = sequences.max()
    ages = newest - sequences
    bits = int(ages.max()).bit_length()
    if int(groups[-1]).bit_length() + bits <= WORD_BITS and bits < WORD_BITS:
        return np.argsort((groups << np.uint64(bits)) | ages)
    return np.lexsort((ages, groups))
